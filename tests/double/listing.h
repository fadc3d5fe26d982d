/* SPDX-License-Identifier: Apache-2.0 */
/* listing.h - reading the files of ZD_DOUBLE_DIR (listed.c) by which processes are listed on a GPU; for both
 * libraries. */
#ifndef ZD_DOUBLE_LISTING_H
#define ZD_DOUBLE_LISTING_H

#include <stdbool.h>
#include <sys/types.h>

/* The process that a file's name is about, 0 if it is not about the GPU with that index. */
pid_t double_listed_pid(const char *name, int index);
/* Is the file's lock held? */
bool double_listed_is(const char *dir, const char *name);

#endif
