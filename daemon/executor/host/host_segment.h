/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_segment.h - the memory of emulated devices: sealed memfd segments, mapped in the daemon and in the
 * clients.
 *
 * A segment is sparse: pages are allocated at their first use. Its size is sealed before another process has
 * it. No client can therefore truncate it while an executor uses it.
 *
 * Three cases cannot be prevented:
 *
 * - When the machine or the cgroup runs out of memory while pages are filled, the kernel's out-of-memory
 * killer selects a process, possibly the daemon. Pages count for the cgroup that touched them first, often a
 * client's. Memory limits should be above the sum of the arenas.
 *
 * - A client can punch holes into memory that it may write: the pages return, zeroed, at their next use.
 *
 * - SIGBUS follows a hardware memory error, and the use of a punched page under strict overcommit when memory
 * has run out.
 */
#ifndef ZD_EXECUTOR_HOST_SEGMENT_H
#define ZD_EXECUTOR_HOST_SEGMENT_H

#include <pthread.h>
#include <stdint.h>
#include <sys/queue.h>

#include "core/command.h"

struct zd_err;

/* Pins the memory of new segments for GPUs, and unpins it before it is freed. */
struct zd_host_pinning {
	int (*pin)(void *arg, void *base, uint64_t bytes, struct zd_err *err);
	void (*unpin)(void *arg, void *base);
	void *arg;
};

struct zd_host_segment {
	uint32_t id;
	int fd;
	uint8_t *base;
	uint64_t bytes;
	const struct zd_host_pinning *pinned_by; /* NULL: the memory is not pinned */
	LIST_ENTRY(zd_host_segment) in_bucket;
};

LIST_HEAD(zd_host_segment_bucket, zd_host_segment);

#define ZD_HOST_SEGMENT_BUCKETS 256u

/* The segments of all devices by id. Executors add segments, the loop's thread finds and removes them. The
 * lock is held for these table operations only. */
struct zd_host_segments {
	pthread_mutex_t lock;
	const struct zd_host_pinning *pinning;                          /* NULL: segments are not pinned */
	struct zd_host_segment_bucket buckets[ZD_HOST_SEGMENT_BUCKETS]; /* by id; ids are consecutive */
};

/* Returns the size of the machine's memory; 0 if unknown. */
uint64_t zd_host_memory_bytes(void);

/* Creates a zeroed segment, which is in no table yet. It is pinned if `pinning` is not NULL. Errors:
 * NO_MEMORY with the sizes, SYSTEM, those of `pin`. */
int zd_host_segment_new(uint32_t id, uint64_t bytes, const struct zd_host_pinning *pinning,
                        struct zd_host_segment **segment, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Makes the segment of its descriptor, which the segment then owns, also on failure. INVALID: the file is not
 * of that size, or not sealed. */
int zd_host_segment_import(uint32_t id, uint64_t bytes, int fd, struct zd_host_segment **segment,
                           struct zd_err *err) __attribute__((warn_unused_result));
/* Pins the segment until it is freed. */
int zd_host_segment_pin(struct zd_host_segment *segment, const struct zd_host_pinning *pinning,
                        struct zd_err *err) __attribute__((warn_unused_result));
/* Unmaps the segment. The kernel frees the memory when no other process maps it, and no store holds its
 * descriptor. NULL is allowed. */
void zd_host_segment_free(struct zd_host_segment *segment);
/* As zd_host_segment_free(), but frees the memory now: a process that still maps the segment finds zeros. */
void zd_host_segment_destroy(struct zd_host_segment *segment);

void zd_host_segments_init(struct zd_host_segments *segments);
/* Frees the remaining segments. */
void zd_host_segments_deinit(struct zd_host_segments *segments);
/* Adds the segment, which the table then owns. */
void zd_host_segments_add(struct zd_host_segments *segments, struct zd_host_segment *segment);
/* Removes the segment, which the caller then owns. NULL if there is none. */
struct zd_host_segment *zd_host_segments_take(struct zd_host_segments *segments, uint32_t id);
/* Returns the segment's descriptor; -1 if there is no such segment. */
int zd_host_segments_fd(struct zd_host_segments *segments, uint32_t id);
/* Returns the address of the location's first byte; NULL for an empty location. A location beyond its segment
 * is an error of the core and aborts the daemon. */
void *zd_host_segments_at(struct zd_host_segments *segments, const struct zd_location *location);

#endif
