/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_segment.h - the GPUs' memory: physical allocations that are exported as descriptors, and the table of
 * them.
 *
 * A segment is mapped here for its own GPU and for all that reach its memory, so that any of them can push
 * into it. Making one takes milliseconds: a worker's business.
 */
#ifndef ZD_BACKEND_CUDA_SEGMENT_H
#define ZD_BACKEND_CUDA_SEGMENT_H

#include <pthread.h>
#include <stdint.h>
#include <sys/queue.h>

#include "backend/cuda_device.h"
#include "core/engine.h"

struct zd_cuda_segment {
	uint32_t id;
	struct zd_cuda_device *device;
	zd_cu_memory memory; /* 0: none */
	zd_cu_ptr range;     /* reserved addresses; 0: none */
	bool mapped;
	uint64_t bytes; /* a multiple of the granularity */
	int fd;         /* -1: none */
	LIST_ENTRY(zd_cuda_segment) in_bucket;
};

LIST_HEAD(zd_cuda_segment_bucket, zd_cuda_segment);

#define ZD_CUDA_SEGMENT_BUCKETS 256u

/* All GPUs' segments by id. Workers add, the loop's thread looks up and takes; the lock is held for that
 * only. */
struct zd_cuda_segments {
	pthread_mutex_t lock;
	struct zd_cuda_segment_bucket buckets[ZD_CUDA_SEGMENT_BUCKETS]; /* by id; ids are counted up */
};

/* Makes a zeroed segment on device `index` that no table holds yet; the device's context is current. Waits
 * for `stream`.
 * Errors: NO_MEMORY with the sizes, DEVICE, SYSTEM. */
int zd_cuda_segment_new(const struct zd_cuda_devices *devices, uint32_t index, uint32_t id, uint64_t bytes,
                        struct CUstream_st *stream, struct zd_cuda_segment **segment, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Unmaps; the memory goes when the last client has let it go too. NULL is allowed. */
void zd_cuda_segment_free(struct zd_cuda_segment *segment);

void zd_cuda_segments_init(struct zd_cuda_segments *segments);
/* Frees the segments that are left. */
void zd_cuda_segments_deinit(struct zd_cuda_segments *segments);
/* The table owns the segment from here on. */
void zd_cuda_segments_add(struct zd_cuda_segments *segments, struct zd_cuda_segment *segment);
/* Takes the segment out of the table: it is the caller's. NULL if there is none. */
struct zd_cuda_segment *zd_cuda_segments_take(struct zd_cuda_segments *segments, uint32_t id);
/* -1 if there is none. */
int zd_cuda_segments_fd(struct zd_cuda_segments *segments, uint32_t id);
/* The GPUs' address of the first byte; 0 for an empty location. One that leaves its segment is the core's
 * mistake and aborts. */
zd_cu_ptr zd_cuda_segments_at(struct zd_cuda_segments *segments, const struct zd_location *location);

#endif
