/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_task.h - a command as executors and workers run it: names turned into addresses, arrays copied.
 *
 * Made on the loop's thread. Every task but those of segments ends on its device's executor, which alone stores into the
 * timelines of its device.
 */
#ifndef ZD_BACKEND_CUDA_TASK_H
#define ZD_BACKEND_CUDA_TASK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "backend/backend.h"
#include "backend/cuda_segment.h"
#include "backend/cuda_session.h"
#include "backend/task.h"

struct zd_cuda_task {
	STAILQ_ENTRY(zd_cuda_task) next;
	struct zd_task base;
	struct zd_cuda_session *session; /* NULL: no signal, or nobody is left to see it */
	uint32_t target;                 /* the device that it writes to: whose queue it takes */
	bool gpu_stores;                 /* the GPU stores the value, once all is issued */
	bool cpu_stores;                 /* the CPU will: nothing of the timeline is issued until it has */
	struct zd_completion completion;
	union {
		struct {
			zd_cu_ptr dst, src; /* src 0: fill with zeros */
			uint64_t bytes, issued_bytes;
			bool claimed;            /* the link into the target, for what is not issued */
		} copy;                          /* COPY, FILL */
		struct zd_cuda_segment *destroy; /* owned; NULL if it never came to be */
		struct {
			struct zd_reduce_desc desc; /* its locations are not valid any more */
			zd_cu_ptr target;
			zd_cu_ptr *inputs; /* owned */
		} reduce;
	} u;
};

STAILQ_HEAD(zd_cuda_tasks, zd_cuda_task);

/* The sessions are those that the command names, NULL when it names none or it is gone. Takes references of its own. */
struct zd_cuda_task *zd_cuda_task_new(const struct zd_command *command, struct zd_cuda_segments *segments,
                                      struct zd_backend_session *signalled,
                                      struct zd_backend_session *watched);
/* A task that has not run leaves nothing behind but a segment to be destroyed, which is a worker's. */
void zd_cuda_task_free(struct zd_cuda_task *task);

static inline bool zd_cuda_task_copies(const struct zd_cuda_task *task)
{
	return task->base.kind == ZD_CMD_COPY || task->base.kind == ZD_CMD_FILL;
}

#endif
