/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_task.h - a command in the form in which executors and workers run it: locations are addresses, arrays
 * are copied.
 *
 * The loop's thread makes tasks. A task of a segment completes on its device's worker. Tasks of
 * communicators, and SIGNALs of exchanges' timelines, complete on the device's thread for communicators, the
 * only one that stores into these timelines. All other tasks complete on the device's executor, the only
 * thread that stores into the device's other timelines.
 */
#ifndef ZD_EXECUTOR_CUDA_TASK_H
#define ZD_EXECUTOR_CUDA_TASK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "executor/backend.h"
#include "executor/cuda/cuda_segment.h"
#include "executor/cuda/cuda_session.h"
#include "executor/task.h"

struct zd_cuda_collective; /* executor/nccl/cuda_comm_command.h */

struct zd_cuda_task {
	STAILQ_ENTRY(zd_cuda_task) next;
	struct zd_task base;
	struct zd_cuda_session *session; /* NULL: no signal, or the session has ended */
	uint32_t target;                 /* the device that the task writes to, which selects its queue */
	bool gpu_stores;                 /* the GPU stores the value, once all pieces are issued */
	bool cpu_stores;                 /* the CPU stores the value; the timeline's next task waits for it */
	struct zd_completion completion;
	union {
		struct {
			zd_cu_ptr dst, src; /* src 0: fill with the pattern */
			uint64_t pattern;   /* as of a command */
			uint64_t bytes, issued_bytes;
			struct zd_rows rows;     /* of src; pieces have whole ones */
			uint64_t seen_ns;        /* when the executor received the task */
			bool has_link_slot;      /* its links are reserved: cuda_link_scheduler.h */
		} copy;                          /* COPY, FILL */
		struct zd_cuda_segment *destroy; /* owned; NULL if its creation failed */
		struct {
			struct zd_reduce_desc desc; /* its locations are not valid */
			zd_cu_ptr target;
			zd_cu_ptr *inputs; /* owned */
		} reduce;
		struct {
			uint32_t count, uid;
		} ids;
		struct zd_comm_desc *comm_open; /* owned, with its strings */
		struct {
			uint64_t comm;
			bool abort;
		} comm_close;
		struct zd_cuda_collective *collective; /* owned */
	} u;
};

STAILQ_HEAD(zd_cuda_tasks, zd_cuda_task);

/* Makes the task of a command that is not a communicator's. `signalled` and `watched` are the sessions that
 * the command names; NULL when it names none or the session has ended. The task takes references of its
 * own. */
struct zd_cuda_task *zd_cuda_task_new(const struct zd_command *command, struct zd_cuda_segments *segments,
                                      struct zd_backend_session *signalled,
                                      struct zd_backend_session *watched);
/* Frees a task that has not run, except for a segment to be destroyed, which a worker frees. */
void zd_cuda_task_free(struct zd_cuda_task *task);

static inline bool zd_cuda_task_is_collective(const struct zd_cuda_task *task)
{
	return task->base.kind == ZD_CMD_EXCHANGE || task->base.kind == ZD_CMD_AGREE;
}

static inline bool zd_cuda_task_copies(const struct zd_cuda_task *task)
{
	return task->base.kind == ZD_CMD_COPY || task->base.kind == ZD_CMD_FILL;
}

#endif
