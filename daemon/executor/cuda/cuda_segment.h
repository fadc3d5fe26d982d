/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_segment.h - segments of GPU memory: physical allocations that are exported as descriptors, and their
 * table.
 *
 * The daemon maps a segment for its own GPU and for all GPUs with access to its memory, which can then push
 * into it. Creating a segment takes milliseconds. A worker therefore does it.
 */
#ifndef ZD_EXECUTOR_CUDA_SEGMENT_H
#define ZD_EXECUTOR_CUDA_SEGMENT_H

#include <pthread.h>
#include <stdint.h>
#include <sys/queue.h>

#include "core/command.h"
#include "executor/cuda/cuda_device.h"

struct zd_cuda_host_memory;

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

/* The segments of all GPUs by id. Workers add segments, the loop's thread finds and removes them. The lock is
 * held for these table operations only. */
struct zd_cuda_segments {
	const struct zd_cuda_host_memory *host; /* the segments that are not on GPUs, or NULL */
	pthread_mutex_t lock;
	struct zd_cuda_segment_bucket buckets[ZD_CUDA_SEGMENT_BUCKETS]; /* by id; ids are consecutive */
};

/* Makes a zeroed segment on device `index`, which is in no table yet. The device's context is current. Waits
 * for `stream`. Errors: NO_MEMORY with the sizes, DEVICE, SYSTEM. */
int zd_cuda_segment_new(const struct zd_cuda_devices *devices, uint32_t index, uint32_t id, uint64_t bytes,
                        struct CUstream_st *stream, struct zd_cuda_segment **segment, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Makes the segment of another process's memory, from its exported descriptor, which the segment then owns,
 * also on failure. */
int zd_cuda_segment_import(const struct zd_cuda_devices *devices, uint32_t index, uint32_t id, uint64_t bytes,
                           int fd, struct zd_cuda_segment **segment, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Unmaps the segment. The driver frees the memory when the last client has also released it. NULL is
 * allowed. */
void zd_cuda_segment_free(struct zd_cuda_segment *segment);

void zd_cuda_segments_init(struct zd_cuda_segments *segments);
/* Frees the remaining segments. */
void zd_cuda_segments_deinit(struct zd_cuda_segments *segments);
/* Adds the segment, which the table then owns. */
void zd_cuda_segments_add(struct zd_cuda_segments *segments, struct zd_cuda_segment *segment);
/* Removes the segment, which the caller then owns. NULL if there is none. */
struct zd_cuda_segment *zd_cuda_segments_take(struct zd_cuda_segments *segments, uint32_t id);
/* Returns the segment's descriptor; -1 if there is no such segment. */
int zd_cuda_segments_fd(struct zd_cuda_segments *segments, uint32_t id);
/* Returns whether the segment is in host memory. */
bool zd_cuda_segments_on_host(const struct zd_cuda_segments *segments, uint32_t segment);
/* Returns the address of the location's first byte for all GPUs, also in host memory; 0 for an empty
 * location. A location beyond its segment is an error of the core and aborts the daemon. */
zd_cu_ptr zd_cuda_segments_at(struct zd_cuda_segments *segments, const struct zd_location *location);

#endif
