/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.c - the thread of a device whose commands go on in any order that is allowed.
 *
 * It takes the place of daemon/executor/host/host_run.c when a program is linked with it; all else is the
 * host backend's. Of the commands that are held, the one whose time came first takes its next step (held.h).
 * Now and then the whole device stands still while the others run on.
 */
#include "executor/thread.h"
#include "tests/simbackend/held.h"

struct device {
	struct zd_host_executor *executor;
	struct zd_temper temper;
	struct zd_held_list held; /* in the order in which they were given */
	uint64_t given;           /* commands so far */
	uint64_t still_until_ns;
};

static void hold(struct device *device, struct zd_host_task *task)
{
	uint64_t now_ns = zd_thread_now_ns();
	struct zd_held *held, *former;
	struct zd_sim_rng rng;

	zd_temper_command_rng(device->executor->device, device->given++, &rng);
	if (zd_sim_below(&rng, 1000) < device->temper.stall_permille)
		device->still_until_ns = now_ns + zd_sim_delay(&rng, device->temper.stall_ns);
	held = zd_held_new(task, &device->temper, &rng, now_ns);
	TAILQ_FOREACH_REVERSE(former, &device->held, zd_held_list, next)
	{
		if (former->task && zd_held_ordered(former, held))
			break;
	}
	if (former) {
		held->after = former;
		former->before = held;
	}
	TAILQ_INSERT_TAIL(&device->held, held, next);
}

/* The one that goes on first; NULL: none can before another command comes. */
static struct zd_held *first(const struct device *device)
{
	struct zd_held *held, *found = NULL;

	TAILQ_FOREACH (held, &device->held, next) {
		if (zd_held_may_go(held) && (!found || held->due_ns < found->due_ns))
			found = held;
	}
	return found;
}

static uint64_t due_ns(const struct device *device, const struct zd_held *held)
{
	return held->due_ns > device->still_until_ns ? held->due_ns : device->still_until_ns;
}

/* Until the time of the first one has come, or something is submitted. The lock is held. */
static void rest(struct device *device)
{
	struct zd_host_executor *executor = device->executor;
	const struct zd_held *held = first(device);
	uint64_t now_ns = zd_thread_now_ns(), until_ns = held ? due_ns(device, held) : 0;

	if (!held)
		pthread_cond_wait(&executor->submitted_or_stopping, &executor->lock);
	else if (until_ns > now_ns)
		zd_cond_sleep(&executor->submitted_or_stopping, &executor->lock, until_ns - now_ns);
}

/* False when the thread shall end. */
static bool take_submitted(struct device *device)
{
	struct zd_host_tasks taken = STAILQ_HEAD_INITIALIZER(taken);
	struct zd_host_executor *executor = device->executor;
	bool stopping;

	pthread_mutex_lock(&executor->lock);
	if (STAILQ_EMPTY(&executor->submitted) && !executor->stopping)
		rest(device);
	STAILQ_CONCAT(&taken, &executor->submitted);
	stopping = executor->stopping;
	pthread_mutex_unlock(&executor->lock);
	while (!STAILQ_EMPTY(&taken)) {
		struct zd_host_task *task = STAILQ_FIRST(&taken);

		STAILQ_REMOVE_HEAD(&taken, next);
		hold(device, task);
	}
	return !stopping;
}

static void drop(struct device *device, struct zd_held *held)
{
	TAILQ_REMOVE(&device->held, held, next);
	zd_held_free(held);
}

static void step(struct device *device)
{
	uint64_t now_ns = zd_thread_now_ns();
	struct zd_held *held = first(device);

	if (held && due_ns(device, held) <= now_ns &&
	    zd_held_step(held, device->executor, &device->temper, now_ns))
		drop(device, held);
}

void *zd_host_executor_run(void *executor)
{
	struct device device = {.executor = executor};
	struct zd_held *held;

	TAILQ_INIT(&device.held);
	zd_temper_draw(device.executor->device, &device.temper);
	while (take_submitted(&device))
		step(&device);
	while ((held = TAILQ_FIRST(&device.held))) {
		zd_held_fail(held, executor, ZEROD_E_SHUTDOWN, "the daemon is shutting down");
		drop(&device, held);
	}
	return NULL;
}
