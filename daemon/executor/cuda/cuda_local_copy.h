/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_local_copy.h - fills and copies within one GPU.
 *
 * Both would wait for the trainers' kernels. Another GPU therefore makes them (cuda_across.h), except large
 * fills and fills with other values than zero. Without another GPU, this GPU makes all of them. Fills signal
 * no timeline. Fills and copies can therefore overtake each other.
 */
#ifndef ZD_EXECUTOR_CUDA_LOCAL_COPY_H
#define ZD_EXECUTOR_CUDA_LOCAL_COPY_H

#include <stdbool.h>

#include "executor/cuda/cuda_across.h"
#include "executor/cuda/cuda_copy_stream.h"

struct zd_cuda_local_copy {
	struct zd_cuda_copy_stream direct;
	struct zd_cuda_across across;
};

/* Creates the streams. The device's context is current, here and below. On failure there is nothing to
 * deinit. Errors: NO_MEMORY, DEVICE. */
int zd_cuda_local_copy_init(struct zd_cuda_local_copy *local, struct zd_cuda_devices *devices,
                            uint32_t device, struct zd_err *err) __attribute__((warn_unused_result));
/* Frees both streams, on which nothing may be in progress. */
void zd_cuda_local_copy_deinit(struct zd_cuda_local_copy *local);

/* Returns whether the task may be issued now. */
bool zd_cuda_local_copy_has_room(const struct zd_cuda_local_copy *local, const struct zd_cuda_task *task);
/* Issues the task, and clears `*whole` if it has to be issued again. There must be room. On failure it was
 * not issued. Copies can be delayed until zd_cuda_local_copy_close(). Errors: NO_MEMORY, DEVICE. */
int zd_cuda_local_copy_issue(struct zd_cuda_local_copy *local, struct zd_cuda_task *task, bool *whole,
                             struct zd_err *err) __attribute__((warn_unused_result));
/* Adds a task without data that has to retain its place in the order. There must be room. */
void zd_cuda_local_copy_follow(struct zd_cuda_local_copy *local, struct zd_cuda_task *task);
void zd_cuda_local_copy_close(struct zd_cuda_local_copy *local);

#endif
