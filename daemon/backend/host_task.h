/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_task.h - a command as an executor runs it: names turned into addresses, arrays copied.
 *
 * Made on the loop's thread, run and freed on an executor's. Long work is done in slices, so that an executor
 * looks after its watches in between.
 */
#ifndef ZD_BACKEND_HOST_TASK_H
#define ZD_BACKEND_HOST_TASK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "backend/backend.h"
#include "backend/host_kernels.h"
#include "backend/host_segment.h"
#include "backend/session.h"
#include "backend/task.h"

struct zd_host_task {
	STAILQ_ENTRY(zd_host_task) next;
	struct zd_task base;
	uint64_t op;
	struct zd_backend_session *session; /* NULL: no signal, or nobody is left to see it */
	union {
		struct zd_host_segment *destroy; /* owned; NULL if it never came to be */
		struct {
			uint8_t *dst;
			const uint8_t *src; /* NULL: fill with the pattern */
			uint64_t pattern;   /* as of a command */
			uint64_t bytes, done_bytes;
		} copy;
		struct {
			struct zd_host_reduce run;
			const void **inputs;
		} reduce;
	} u;
};

STAILQ_HEAD(zd_host_tasks, zd_host_task);

/* The sessions are those that the command names, NULL when it names none or it is gone. Takes references of
 * its own. */
struct zd_host_task *zd_host_task_new(const struct zd_command *command, struct zd_host_segments *segments,
                                      struct zd_backend_session *signalled,
                                      struct zd_backend_session *watched);
/* NULL is allowed. A task that has not run leaves nothing behind, a segment to be destroyed included. */
void zd_host_task_free(struct zd_host_task *task);

/* Does the next slice of a task other than WATCH. True when the task has ended: then the completion's status,
 * error and result are filled in. */
bool zd_host_task_step(struct zd_host_task *task, struct zd_host_segments *segments,
                       struct zd_completion *completion);

/* Stores the signal of a task that has ended with this status; the timeline's own thread only. */
void zd_host_task_signal(const struct zd_host_task *task, int status);

#endif
