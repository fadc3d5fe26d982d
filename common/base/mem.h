/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mem.h - the daemon's own small allocations.
 *
 * The functions never return NULL: if the system cannot allocate a few hundred bytes, the daemon ends with a
 * message, and systemd starts it again. Allocations of device memory, in contrast, are always checked. Sizes
 * that a client has chosen are checked against proto/limits.h first.
 */
#ifndef ZD_BASE_MEM_H
#define ZD_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

void *zd_calloc(size_t count, size_t bytes_each) __attribute__((returns_nonnull, malloc, alloc_size(1, 2)));
void *zd_realloc(void *old, size_t count, size_t bytes_each) __attribute__((returns_nonnull));
char *zd_strdup(const char *text) __attribute__((returns_nonnull, malloc));

#define ZD_ARRAY_LEN(a)                    (sizeof(a) / sizeof((a)[0]))
#define ZD_CONTAINER_OF(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

static inline uint64_t zd_min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t zd_max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Rounds `value` up to a multiple of `align`, a power of two. The caller has checked `value` (ZD_MAX_BYTES),
 * so that the result cannot overflow. */
static inline uint64_t zd_align_up(uint64_t value, uint64_t align)
{
	return (value + align - 1) & ~(align - 1);
}

#endif
