/* SPDX-License-Identifier: Apache-2.0 */
/* std_fds.h - descriptors 0 to 2 of a process that was started without some of them. */
#ifndef ZD_BASE_STD_FDS_H
#define ZD_BASE_STD_FDS_H

/* Opens what is missing, so that no socket gets such a number and what is printed goes into it. Writes there
 * still fail, with EBADF. For the begin of main(). */
void zd_std_fds_fill(void);

#endif
