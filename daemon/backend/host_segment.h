/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_segment.h - the emulated devices' memory: sealed memfd segments, mapped here and in the clients.
 *
 * A segment is sparse: pages come with their first use. It can neither shrink nor grow once anybody else has
 * it, so no client can cut it off under an executor.
 *
 * What cannot be defended: when the machine or the cgroup runs out of memory while pages are being filled,
 * the kernel's out-of-memory killer chooses a process, and it may choose the daemon; pages count for the
 * cgroup that touched them first, often a client's. Whoever sets limits keeps the arenas' sum below them. Nor
 * can a client be kept from punching holes into what it may write: the pages come back, zeroed, with their
 * next use. SIGBUS is left for a page lost to a hardware memory error, and for a punched one under strict
 * overcommit when memory has run out.
 */
#ifndef ZD_BACKEND_HOST_SEGMENT_H
#define ZD_BACKEND_HOST_SEGMENT_H

#include <pthread.h>
#include <stdint.h>
#include <sys/queue.h>

#include "core/engine.h"

struct zd_err;

struct zd_host_segment {
	uint32_t id;
	int fd;
	uint8_t *base;
	uint64_t bytes;
	LIST_ENTRY(zd_host_segment) in_bucket;
};

LIST_HEAD(zd_host_segment_bucket, zd_host_segment);

#define ZD_HOST_SEGMENT_BUCKETS 256u

/* All devices' segments by id. Executors add, the loop's thread looks up and takes; the lock is held for that
 * only. */
struct zd_host_segments {
	pthread_mutex_t lock;
	struct zd_host_segment_bucket buckets[ZD_HOST_SEGMENT_BUCKETS]; /* by id; ids are counted up */
};

/* The machine's memory; 0 when unknown. */
uint64_t zd_host_memory_bytes(void);

/* Makes a zeroed segment that no table holds yet. Errors: NO_MEMORY with both sizes, SYSTEM. */
int zd_host_segment_new(uint32_t id, uint64_t bytes, struct zd_host_segment **segment, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Unmaps; the memory goes when the last client has unmapped it too. NULL is allowed. */
void zd_host_segment_free(struct zd_host_segment *segment);

void zd_host_segments_init(struct zd_host_segments *segments);
/* Frees the segments that are left. */
void zd_host_segments_deinit(struct zd_host_segments *segments);
/* The table owns the segment from here on. */
void zd_host_segments_add(struct zd_host_segments *segments, struct zd_host_segment *segment);
/* Takes the segment out of the table: it is the caller's. NULL if there is none. */
struct zd_host_segment *zd_host_segments_take(struct zd_host_segments *segments, uint32_t id);
/* -1 if there is none. */
int zd_host_segments_fd(struct zd_host_segments *segments, uint32_t id);
/* The first byte's address; NULL for an empty location. One that leaves its segment is the core's
 * mistake and aborts. */
void *zd_host_segments_at(struct zd_host_segments *segments, const struct zd_location *location);

#endif
