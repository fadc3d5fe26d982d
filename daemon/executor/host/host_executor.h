/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_executor.h - the thread that runs one emulated device's commands.
 *
 * The queue runs all commands but WATCH, one after the other in the order of submission. Watches are polled
 * between slices of the queue's work and complete in any order: a watch never delays the queue, and the queue
 * delays a watch by at most one slice.
 */
#ifndef ZD_EXECUTOR_HOST_EXECUTOR_H
#define ZD_EXECUTOR_HOST_EXECUTOR_H

#include <pthread.h>
#include <stdbool.h>

#include "executor/host/host_task.h"

struct zd_host_executor {
	/* constant after the start */
	uint32_t device;
	struct zd_host_segments *segments;
	void (*done)(void *arg, const struct zd_completion *completion);
	void *done_arg;
	pthread_t thread;
	bool started;

	/* shared by the loop's thread and the executor's */
	pthread_mutex_t lock;
	pthread_cond_t submitted_or_stopping;
	struct zd_host_tasks submitted;
	bool stopping;

	/* private to the executor's thread */
	struct zd_host_tasks queue;
	struct zd_host_tasks watches;
	unsigned idle_polls; /* polls of the watches since the last event */
};

/* Starts the thread of device `device`. On failure there is nothing to deinit. Errors: SYSTEM. */
int zd_host_executor_init(struct zd_host_executor *executor, uint32_t device,
                          struct zd_host_segments *segments, const struct zd_backend_config *config,
                          struct zd_err *err) __attribute__((warn_unused_result));
/* Tells the thread to finish the current slice and to fail all other tasks with SHUTDOWN. Returns at once.
 * Stop and deinit do nothing for an executor that was not started. */
void zd_host_executor_stop(struct zd_host_executor *executor);
/* Stops the thread and waits for it: no task completes afterwards. */
void zd_host_executor_deinit(struct zd_host_executor *executor);

/* Runs the thread; the argument is the executor. Returns after a stop, when all tasks have completed. */
void *zd_host_executor_run(void *executor);

/* Submits the command. Never blocks: the lock is held for a few instructions only. */
void zd_host_executor_submit(struct zd_host_executor *executor, struct zd_backend_sessions *sessions,
                             const struct zd_command *command);

#endif
