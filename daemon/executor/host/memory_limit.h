/* SPDX-License-Identifier: Apache-2.0 */
/* memory_limit.h - the memory limits of the control groups that this process is in. */
#ifndef ZD_EXECUTOR_MEMORY_LIMIT_H
#define ZD_EXECUTOR_MEMORY_LIMIT_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

struct zd_memory_limit {
	uint64_t bytes;
	uint64_t used_bytes; /* without the page cache, which the kernel frees first */
	char file[PATH_MAX]; /* which sets the limit */
};

/* Returns whether `bytes` exceed a limit of the process's control group or of a group above it, and the first
 * limit that they exceed. `beside_used`: in addition to the memory that the group uses. `root` is "", or the
 * folder that has proc and sys. A limit that cannot be read is ignored. */
bool zd_memory_limit_exceeded(const char *root, uint64_t bytes, bool beside_used,
                              struct zd_memory_limit *limit);

#endif
