/* SPDX-License-Identifier: Apache-2.0 */
/* memfd.h - memory files that are safe to share with a process that one does not trust. */
#ifndef ZD_BACKEND_MEMFD_H
#define ZD_BACKEND_MEMFD_H

#include <stdint.h>

struct zd_err;

/* A sparse, zeroed file of `bytes`, close-on-exec and never executable, without seals so far. Errors:
 * NO_MEMORY when the system bounds files below that size, SYSTEM. */
int zd_memfd_new(const char *name, uint64_t bytes, int *fd, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Fixes the size, and the set of seals itself. `more_seals`: F_SEAL_* beside those. */
int zd_memfd_seal(int fd, int more_seals, struct zd_err *err) __attribute__((warn_unused_result));
/* Gives every page of the file its memory now. Errors: NO_MEMORY. */
int zd_memfd_reserve(int fd, uint64_t bytes, struct zd_err *err) __attribute__((warn_unused_result));

/* All of it: a file of whole pages, backed from the start - who reads or writes it must not be the one to
 * find no memory left
 * - mapped here with `protection`, and sealed. The descriptor is the caller's. Errors: NO_MEMORY, SYSTEM. */
int zd_memfd_map(const char *name, uint64_t bytes, int protection, int more_seals, void **map, int *fd,
                 struct zd_err *err) __attribute__((warn_unused_result));

#endif
