/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_across.h - copies within one GPU that another GPU makes. Each of the two must have peer access to the
 * other.
 *
 * A copy within a GPU waits for the kernels that run on it, in every context and with every call: next to
 * 8192 x 8192 matrix products half a product on average, 0.9 ms on an H200. A copy by another GPU's copy
 * engine, which reads and writes this GPU's memory, does not wait. Up to 1 MiB it takes as long as a push,
 * and three times as long for large copies (12 and 24 us at 256 KiB and 1 MiB; 217 us at 16 MiB). The driver
 * fills memory with a kernel, which also waits and delays the trainers' kernels. The other GPU therefore has
 * zeros, and pushes them for small fills.
 */
#ifndef ZD_EXECUTOR_CUDA_ACROSS_H
#define ZD_EXECUTOR_CUDA_ACROSS_H

#include "executor/cuda/cuda_copy_stream.h"

#define ZD_CUDA_ACROSS_ZEROS_BYTES (64ull << 10)
/* Limit of a copy for which no stream waits. A larger one takes longer than a wait and a copy within the
 * GPU. */
#define ZD_CUDA_ACROSS_MOST_BYTES (64ull << 20)

struct zd_cuda_across {
	struct zd_cuda_copy_stream stream; /* of the other GPU */
	struct zd_cuda_segment *zeros;     /* on the other GPU; NULL: no such GPU */
	uint32_t home;                     /* the device whose memory is copied */
};

/* Chooses the next GPU with peer access in both directions. If none exists, or it lacks memory, `zeros`
 * remains NULL. On failure there is nothing to deinit. Errors: DEVICE. */
int zd_cuda_across_init(struct zd_cuda_across *across, struct zd_cuda_devices *devices, uint32_t device,
                        struct zd_err *err) __attribute__((warn_unused_result));
/* Frees the stream and the zeros, when nothing is in progress. */
void zd_cuda_across_deinit(struct zd_cuda_across *across);

/* Returns whether the other GPU has failed. Then no task is issued any more, and no task in progress
 * completes. */
static inline bool zd_cuda_across_has_failed(const struct zd_cuda_across *across)
{
	return across->zeros && zd_cuda_device_failed(across->stream.device);
}
static inline bool zd_cuda_across_is_idle(const struct zd_cuda_across *across)
{
	return across->stream.count == 0;
}

/* Returns whether the other GPU can execute the task: a copy, unless it is of rows, or large and belongs to
 * no session, or a small fill with zeros. */
static inline bool zd_cuda_across_accepts(const struct zd_cuda_across *across,
                                          const struct zd_cuda_task *task)
{
	if (!across->zeros)
		return false;
	if (task->base.kind == ZD_CMD_FILL)
		return task->u.copy.pattern == 0 && task->u.copy.bytes <= ZD_CUDA_ACROSS_ZEROS_BYTES;
	if (task->u.copy.rows.bytes)
		return false;
	return task->session || task->u.copy.bytes <= ZD_CUDA_ACROSS_MOST_BYTES;
}

/* Issues the task, for which there must be room. It can be delayed until zd_cuda_across_close(). On failure
 * the task was not issued. Errors: NO_MEMORY, DEVICE. */
int zd_cuda_across_issue(struct zd_cuda_across *across, struct zd_cuda_task *task, struct zd_err *err)
        __attribute__((warn_unused_result));
void zd_cuda_across_close(struct zd_cuda_across *across);

#endif
