/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_reduce.h - a reduction of GPU memory, summed by the CPU.
 *
 * Pieces of the inputs are copied to pinned memory, summed by host_kernels, and copied back. The result is
 * exactly that of the host backend, and the same in every run. The speed is that of the link to the host. Not
 * thread-safe: a worker's own.
 */
#ifndef ZD_EXECUTOR_CUDA_REDUCE_H
#define ZD_EXECUTOR_CUDA_REDUCE_H

#include <stdint.h>

#include "executor/cuda/cuda_device.h"
#include "executor/cuda/cuda_task.h"

struct zd_cuda_reducer {
	struct zd_cuda_device *device;
	struct CUstream_st *stream; /* the worker's */
	uint8_t *staging;           /* pinned; NULL until the first reduction */
};

/* Frees the pinned memory. */
void zd_cuda_reducer_deinit(struct zd_cuda_reducer *reducer);

/* Runs a REDUCE and waits for it; the device's context is current. Sets the completion's result. Errors:
 * NO_MEMORY, DEVICE. */
int zd_cuda_reduce(struct zd_cuda_reducer *reducer, struct zd_cuda_task *task, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
