/* SPDX-License-Identifier: Apache-2.0 */
/* std_fds.h - descriptors 0 to 2 of a process that was started without some of them. */
#ifndef ZD_BASE_STD_FDS_H
#define ZD_BASE_STD_FDS_H

/* Opens the missing descriptors, so that no socket has one of these numbers and receives the program's
 * output. Writes to them still fail, with EBADF. Called at the start of main(). */
void zd_std_fds_fill(void);

#endif
