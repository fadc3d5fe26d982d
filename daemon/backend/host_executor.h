/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_executor.h - the thread that runs one emulated device's commands.
 *
 * The lane: all commands but WATCH, in the order in which they were given, each beginning after the former
 * has ended. Watches: polled beside the lane, completing in any order; they never hold the lane up, nor it
 * them for longer than one slice of work.
 */
#ifndef ZD_BACKEND_HOST_EXECUTOR_H
#define ZD_BACKEND_HOST_EXECUTOR_H

#include <pthread.h>
#include <stdbool.h>

#include "backend/host_task.h"

struct zd_host_executor {
	/* set at start */
	uint32_t device;
	struct zd_host_segments *segments;
	void (*done)(void *arg, const struct zd_completion *completion);
	void *done_arg;
	pthread_t thread;
	bool started;

	/* between the loop's thread and the executor's */
	pthread_mutex_t lock;
	pthread_cond_t submitted_or_stopping;
	struct zd_host_tasks submitted;
	bool stopping;

	/* the executor thread's own */
	struct zd_host_tasks lane;
	struct zd_host_tasks watches;
	unsigned idle_polls; /* looks at the watches since anything last happened */
};

/* Starts the thread of device `device`. On failure there is nothing to deinit. Errors: SYSTEM. */
int zd_host_executor_init(struct zd_host_executor *executor, uint32_t device,
                          struct zd_host_segments *segments, const struct zd_backend_config *config,
                          struct zd_err *err) __attribute__((warn_unused_result));
/* Asks the thread to finish the slice at hand and to fail everything else with SHUTDOWN. Returns at once. An
 * executor that was not started is allowed, here and below. */
void zd_host_executor_stop(struct zd_host_executor *executor);
/* Stops, and waits for the thread: nothing completes afterwards. */
void zd_host_executor_deinit(struct zd_host_executor *executor);

/* The thread, of which this is the argument: ends, all tasks with it, when the executor is stopped. */
void *zd_host_executor_run(void *executor);

/* The executor owns the task from here on. Never blocks: the lock is held for a few instructions only. */
void zd_host_executor_submit(struct zd_host_executor *executor, struct zd_host_task *task);

#endif
