/* SPDX-License-Identifier: Apache-2.0 */
/* listing.h - reading the files of ZD_DOUBLE_DIR (listed.c) by which processes are listed on a GPU; for both
 * libraries. */
#ifndef ZD_DOUBLE_LISTING_H
#define ZD_DOUBLE_LISTING_H

#include <stdbool.h>
#include <sys/types.h>

/* Returns the process that a file's name names; 0 if the file is not of the GPU with that index. */
pid_t double_listed_pid(const char *name, int index);
/* Whether the file's lock is held. */
bool double_listed_is(const char *dir, const char *name);

#endif
