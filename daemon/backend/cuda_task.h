/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_task.h - a command as executors and workers run it: names turned into addresses, arrays copied.
 *
 * Made on the loop's thread. Tasks of segments end on their device's worker. Those of communicators, and
 * SIGNALs of exchanges' timelines, end on its thread for communicators, which alone stores into these
 * timelines. All others end on its executor, which alone stores into the rest of the device's timelines.
 */
#ifndef ZD_BACKEND_CUDA_TASK_H
#define ZD_BACKEND_CUDA_TASK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "backend/backend.h"
#include "backend/cuda_comm_queue.h"
#include "backend/cuda_segment.h"
#include "backend/cuda_session.h"
#include "backend/task.h"

struct zd_cuda_task;

/* An EXCHANGE or AGREE. */
struct zd_cuda_exchange {
	struct zd_cuda_comm_op op;
	struct zd_cuda_task *task; /* that it is of */
	uint64_t comm;
	struct zd_exchange_desc desc; /* of an EXCHANGE; its locations and words are not valid any more */
	char what[ZD_CUDA_COMM_WHAT];
	unsigned char value[ZD_AGREE_BYTES];
	bool ended; /* and others are to store into its timeline first */
	TAILQ_ENTRY(zd_cuda_exchange) under_way;
};

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
			zd_cu_ptr dst, src; /* src 0: fill with the pattern */
			uint64_t pattern;   /* as of a command */
			uint64_t bytes, issued_bytes;
			uint64_t seen_ns;        /* when its executor took it */
			bool turn;               /* it has its turn: cuda_turns.h */
		} copy;                          /* COPY, FILL */
		struct zd_cuda_segment *destroy; /* owned; NULL if it never came to be */
		struct {
			struct zd_reduce_desc desc; /* its locations are not valid any more */
			zd_cu_ptr target;
			zd_cu_ptr *inputs; /* owned */
		} reduce;
		struct {
			uint32_t count, uid;
		} ids;
		struct zd_comm_desc *comm_open; /* owned, its words too */
		struct {
			uint64_t comm;
			bool abort;
		} comm_close;
		struct zd_cuda_exchange *exchange; /* owned */
	} u;
};

STAILQ_HEAD(zd_cuda_tasks, zd_cuda_task);

/* The sessions are those that the command names, NULL when it names none or it is gone. Takes references of
 * its own. */
struct zd_cuda_task *zd_cuda_task_new(const struct zd_command *command, struct zd_cuda_segments *segments,
                                      struct zd_backend_session *signalled,
                                      struct zd_backend_session *watched);
/* A task that has not run leaves nothing behind but a segment to be destroyed, which is a worker's. */
void zd_cuda_task_free(struct zd_cuda_task *task);

static inline bool zd_cuda_task_exchanges(const struct zd_cuda_task *task)
{
	return task->base.kind == ZD_CMD_EXCHANGE || task->base.kind == ZD_CMD_AGREE;
}

static inline bool zd_cuda_task_copies(const struct zd_cuda_task *task)
{
	return task->base.kind == ZD_CMD_COPY || task->base.kind == ZD_CMD_FILL;
}

#endif
