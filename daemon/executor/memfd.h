/* SPDX-License-Identifier: Apache-2.0 */
/* memfd.h - memory files that can be shared with untrusted processes. */
#ifndef ZD_EXECUTOR_MEMFD_H
#define ZD_EXECUTOR_MEMFD_H

#include <stdint.h>

struct zd_err;

/* Makes a sparse, zeroed file of `bytes`, close-on-exec, never executable, and not sealed yet. Errors:
 * NO_MEMORY when the system limits files to a smaller size, SYSTEM. */
int zd_memfd_new(const char *name, uint64_t bytes, int *fd, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Seals the size and the set of seals. `more_seals`: further F_SEAL_* flags. */
int zd_memfd_seal(int fd, int more_seals, struct zd_err *err) __attribute__((warn_unused_result));
/* Allocates every page of the file now. Errors: NO_MEMORY. */
int zd_memfd_reserve(int fd, uint64_t bytes, struct zd_err *err) __attribute__((warn_unused_result));

/* Creates a file of whole pages, maps it with `protection`, and seals it. All pages are allocated, so that no
 * later access can fail for lack of memory. The caller owns the descriptor. Errors: NO_MEMORY, SYSTEM. */
int zd_memfd_map(const char *name, uint64_t bytes, int protection, int more_seals, void **map, int *fd,
                 struct zd_err *err) __attribute__((warn_unused_result));

/* Frees the file's pages and unmaps them. A process that still maps the file finds zeros. With
 * F_SEAL_FUTURE_WRITE the pages remain until no process maps them. */
void zd_memfd_drop(void *map, uint64_t bytes);

#endif
