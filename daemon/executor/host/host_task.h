/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_task.h - a command in the form in which an executor runs it: locations are addresses, arrays are
 * copied.
 *
 * The loop's thread makes tasks, an executor's thread runs and frees them. Long tasks run in slices, so that
 * the executor can poll its watches in between.
 */
#ifndef ZD_EXECUTOR_HOST_TASK_H
#define ZD_EXECUTOR_HOST_TASK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "executor/backend.h"
#include "executor/host/host_kernels.h"
#include "executor/host/host_segment.h"
#include "executor/session.h"
#include "executor/task.h"

struct zd_host_task {
	STAILQ_ENTRY(zd_host_task) next;
	struct zd_task base;
	uint64_t op;
	struct zd_backend_session *session; /* NULL: no signal, or the session has ended */
	union {
		struct zd_host_segment *destroy; /* owned; NULL if its creation failed */
		struct {
			uint8_t *dst;
			const uint8_t *src; /* NULL: fill with the pattern */
			uint64_t pattern;   /* as of a command */
			uint64_t bytes, done_bytes;
			struct zd_rows rows; /* of src */
			bool in_parts;       /* by several threads */
		} copy;
		struct {
			struct zd_host_reduce run;
			const void **inputs;
		} reduce;
	} u;
};

STAILQ_HEAD(zd_host_tasks, zd_host_task);

/* Makes the task of a command. `signalled` and `watched` are the sessions that the command names; NULL when
 * it names none or the session has ended. The task adds references of its own. */
struct zd_host_task *zd_host_task_new(const struct zd_command *command, struct zd_host_segments *segments,
                                      struct zd_backend_session *signalled,
                                      struct zd_backend_session *watched);
/* Frees the task, and a segment that it was to destroy. NULL is allowed. */
void zd_host_task_free(struct zd_host_task *task);

/* Runs the next slice of a task other than WATCH. Returns true when the task has ended; then the completion's
 * status, error and result are set. */
bool zd_host_task_step(struct zd_host_task *task, struct zd_host_segments *segments,
                       struct zd_completion *completion);

/* Stores the signal of a task that has ended with this status. Only the device's executor may call it. */
void zd_host_task_signal(const struct zd_host_task *task, int status);

#endif
