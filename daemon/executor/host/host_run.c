/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_run.c - the main loop of an executor's thread.
 *
 * Fences are counters that another process writes without a notification. The executor therefore polls them.
 * With watches but no work it busy-polls for a moment, because most fences pass soon, and then sleeps for
 * increasing times between two polls. A new command ends the sleep. Without watches it sleeps until a command
 * is submitted.
 */
#include "executor/host/host_executor.h"
#include "executor/thread.h"

#define SPIN_POLLS       128u /* some microseconds */
#define SLEEP_FIRST_NS   20000u
#define SLEEP_DOUBLINGS  5u
#define SLEEP_LONGEST_NS 500000u

/* Completes and frees. */
static void complete_task(struct zd_host_executor *executor, struct zd_host_task *task,
                          struct zd_completion *completion)
{
	zd_host_task_signal(task, completion->status);
	completion->op = task->op;
	zd_host_task_free(task);
	if (completion->op)
		executor->done(executor->done_arg, completion);
	else
		zd_completion_deinit(completion);
}

static void poll_watches(struct zd_host_executor *executor)
{
	struct zd_host_tasks watches = STAILQ_HEAD_INITIALIZER(watches);
	STAILQ_CONCAT(&watches, &executor->watches);
	while (!STAILQ_EMPTY(&watches)) {
		struct zd_host_task *task = STAILQ_FIRST(&watches);
		struct zd_completion completion = {.status = 0};
		STAILQ_REMOVE_HEAD(&watches, next);
		if (zd_watch_poll(&task->base.u.watch, &completion)) {
			complete_task(executor, task, &completion);
			executor->idle_polls = 0;
		} else {
			STAILQ_INSERT_TAIL(&executor->watches, task, next);
		}
	}
}

static void step_queue(struct zd_host_executor *executor)
{
	struct zd_host_task *task = STAILQ_FIRST(&executor->queue);
	struct zd_completion completion = {.status = 0};
	if (!task)
		return;
	executor->idle_polls = 0;
	if (zd_host_task_step(task, executor->segments, &completion)) {
		STAILQ_REMOVE_HEAD(&executor->queue, next);
		complete_task(executor, task, &completion);
	}
}

/* Sleeps for the back-off's time, or until a command is submitted. The caller holds the lock. */
static void sleep_between_polls(struct zd_host_executor *executor)
{
	unsigned doublings = executor->idle_polls - SPIN_POLLS;
	uint64_t ns = doublings < SLEEP_DOUBLINGS ? SLEEP_FIRST_NS << doublings : SLEEP_LONGEST_NS;
	/* An early wake-up is harmless: it only causes one more poll. */
	zd_cond_sleep(&executor->submitted_or_stopping, &executor->lock, ns);
}

/* The caller holds the lock; no task is submitted. */
static void rest(struct zd_host_executor *executor)
{
	if (!STAILQ_EMPTY(&executor->queue))
		return;
	if (STAILQ_EMPTY(&executor->watches)) {
		while (STAILQ_EMPTY(&executor->submitted) && !executor->stopping)
			pthread_cond_wait(&executor->submitted_or_stopping, &executor->lock);
	} else if (executor->idle_polls >= SPIN_POLLS) {
		sleep_between_polls(executor);
	}
}

/* Collects submitted tasks. If it has no other work, first sleeps. Returns false when the thread shall
 * end. */
static bool take_submitted(struct zd_host_executor *executor)
{
	struct zd_host_tasks taken = STAILQ_HEAD_INITIALIZER(taken);
	pthread_mutex_lock(&executor->lock);
	if (STAILQ_EMPTY(&executor->submitted) && !executor->stopping)
		rest(executor);
	STAILQ_CONCAT(&taken, &executor->submitted);
	bool stopping = executor->stopping;
	pthread_mutex_unlock(&executor->lock);

	if (!STAILQ_EMPTY(&taken))
		executor->idle_polls = 0;
	else if (executor->idle_polls < SPIN_POLLS + SLEEP_DOUBLINGS)
		executor->idle_polls++;
	while (!STAILQ_EMPTY(&taken)) {
		struct zd_host_task *task = STAILQ_FIRST(&taken);
		STAILQ_REMOVE_HEAD(&taken, next);
		if (task->base.kind == ZD_CMD_WATCH)
			STAILQ_INSERT_TAIL(&executor->watches, task, next);
		else
			STAILQ_INSERT_TAIL(&executor->queue, task, next);
	}
	return !stopping;
}

static void fail_all(struct zd_host_executor *executor, struct zd_host_tasks *tasks)
{
	while (!STAILQ_EMPTY(tasks)) {
		struct zd_host_task *task = STAILQ_FIRST(tasks);
		struct zd_completion completion = {.status = 0};
		STAILQ_REMOVE_HEAD(tasks, next);
		zd_completion_fail(&completion, ZEROD_E_SHUTDOWN, "the daemon is shutting down");
		complete_task(executor, task, &completion);
	}
}

void *zd_host_executor_run(void *arg)
{
	struct zd_host_executor *executor = arg;
	while (take_submitted(executor)) {
		poll_watches(executor);
		step_queue(executor);
		if (!STAILQ_EMPTY(&executor->watches))
			zd_spin_pause();
	}
	fail_all(executor, &executor->queue);
	fail_all(executor, &executor->watches);
	return NULL;
}
