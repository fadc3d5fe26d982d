/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_comm_command.h - a command of a communicator, as a task: an EXCHANGE or AGREE with its operation.
 */
#ifndef ZD_EXECUTOR_CUDA_COMM_COMMAND_H
#define ZD_EXECUTOR_CUDA_COMM_COMMAND_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "executor/cuda/cuda_task.h"
#include "executor/nccl/cuda_comm_queue.h"

/* An EXCHANGE or AGREE. */
struct zd_cuda_collective {
	struct zd_cuda_comm_op op;
	struct zd_cuda_task *task; /* the task that owns the exchange */
	uint64_t comm;
	struct zd_exchange_desc desc; /* of an EXCHANGE; its locations and `what` are not valid */
	char what[ZD_CUDA_COMM_WHAT];
	unsigned char value[ZD_AGREE_BYTES];
	bool ended; /* earlier exchanges of its timeline have not */
	TAILQ_ENTRY(zd_cuda_collective) under_way;
};

/* Makes the task of a UNIQUE_IDS, COMM_OPEN, COMM_CLOSE, EXCHANGE or AGREE. `signalled`: see
 * zd_cuda_task_new(). */
struct zd_cuda_task *zd_cuda_comm_task_new(const struct zd_command *command,
                                           struct zd_cuda_segments *segments,
                                           struct zd_backend_session *signalled);

#endif
