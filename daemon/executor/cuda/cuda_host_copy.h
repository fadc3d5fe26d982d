/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_host_copy.h - a GPU's copies from and to host memory. Each direction has its own stream, because the
 * link carries both at once. Trainers' kernels do not delay them.
 */
#ifndef ZD_EXECUTOR_CUDA_HOST_COPY_H
#define ZD_EXECUTOR_CUDA_HOST_COPY_H

#include <stdbool.h>

#include "executor/cuda/cuda_copy_stream.h"
#include "executor/cuda/cuda_order.h"

enum zd_cuda_direction { ZD_CUDA_UP, ZD_CUDA_DOWN, ZD_CUDA_DIRECTIONS };

struct zd_cuda_host_copy {
	struct zd_cuda_copy_stream
	        streams[ZD_CUDA_DIRECTIONS]; /* without a device if the GPU has no host memory */
};

/* Creates the streams. The device's context is current, here and below. On failure there is nothing to
 * deinit. Errors: NO_MEMORY, DEVICE. */
int zd_cuda_host_copy_init(struct zd_cuda_host_copy *copy, struct zd_cuda_devices *devices, uint32_t device,
                           struct zd_err *err) __attribute__((warn_unused_result));
/* Frees the streams, on which nothing may be in progress. */
void zd_cuda_host_copy_deinit(struct zd_cuda_host_copy *copy);

/* Returns the queue of the tasks of a direction. */
static inline uint32_t zd_cuda_host_copy_queue(enum zd_cuda_direction direction)
{
	return direction == ZD_CUDA_UP ? ZD_CUDA_QUEUE_UP : ZD_CUDA_QUEUE_DOWN;
}

/* Issues the next piece of the task, and sets `*whole` if it was the last. There must be room. On failure it
 * was not issued. Errors: NO_MEMORY, DEVICE. */
int zd_cuda_host_copy_issue(struct zd_cuda_copy_stream *stream, struct zd_cuda_task *task, bool *whole,
                            struct zd_err *err) __attribute__((warn_unused_result));

#endif
