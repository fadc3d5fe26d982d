/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_order.c - the tasks that wait to be issued on a GPU. */
#include "executor/cuda/cuda_order.h"

#include "base/err.h"

void zd_cuda_order_init(struct zd_cuda_order *order, const struct zd_cuda_devices *devices, uint32_t self)
{
	*order = (struct zd_cuda_order){.devices = devices, .self = self};
	STAILQ_INIT(&order->held);
	for (uint32_t i = 0; i < ZD_MAX_DEVICES; i++)
		STAILQ_INIT(&order->queues[i]);
}

static struct zd_cuda_timeline *timeline_of(const struct zd_cuda_task *task)
{
	return task->session ? &task->session->timelines[task->base.timeline] : NULL;
}

static void enqueue_task(struct zd_cuda_order *order, struct zd_cuda_task *task)
{
	STAILQ_INSERT_TAIL(&order->queues[task->target], task, next);
	order->filled |= 1ull << task->target;
}

void zd_cuda_order_add(struct zd_cuda_order *order, struct zd_cuda_task *task)
{
	struct zd_cuda_timeline *timeline = timeline_of(task);
	if (!timeline) {
		enqueue_task(order, task);
		return;
	}
	/* A task that moves nothing can follow the pending tasks of its timeline in any queue. */
	if (timeline->pending > 0 && !zd_cuda_task_copies(task))
		task->target = timeline->queue;
	if (timeline->held > 0 || (timeline->pending > 0 && timeline->queue != task->target)) {
		STAILQ_INSERT_TAIL(&order->held, task, next);
		timeline->held++;
		return;
	}
	timeline->queue = task->target;
	timeline->pending++;
	enqueue_task(order, task);
}

struct zd_cuda_task *zd_cuda_order_first(const struct zd_cuda_order *order, uint32_t queue)
{
	struct zd_cuda_task *task = STAILQ_FIRST(&order->queues[queue]);
	const struct zd_cuda_timeline *timeline = task ? timeline_of(task) : NULL;
	return timeline && timeline->cpu_stores > 0 ? NULL : task;
}

void zd_cuda_order_take(struct zd_cuda_order *order, struct zd_cuda_task *task, bool cpu_stores)
{
	struct zd_cuda_tasks *queue = &order->queues[task->target];
	struct zd_cuda_timeline *timeline = timeline_of(task);
	zd_assert(STAILQ_FIRST(queue) == task);
	STAILQ_REMOVE_HEAD(queue, next);
	if (STAILQ_EMPTY(queue))
		order->filled &= ~(1ull << task->target);
	task->cpu_stores = cpu_stores && timeline;
	if (task->cpu_stores)
		timeline->cpu_stores++;
}

/* Adds the timeline's held tasks again, in their order. */
static void release_held(struct zd_cuda_order *order, struct zd_cuda_timeline *timeline)
{
	struct zd_cuda_tasks all = STAILQ_HEAD_INITIALIZER(all), own = STAILQ_HEAD_INITIALIZER(own);
	struct zd_cuda_task *task;
	STAILQ_CONCAT(&all, &order->held);
	while ((task = STAILQ_FIRST(&all))) {
		STAILQ_REMOVE_HEAD(&all, next);
		if (timeline_of(task) == timeline)
			STAILQ_INSERT_TAIL(&own, task, next);
		else
			STAILQ_INSERT_TAIL(&order->held, task, next);
	}
	timeline->held = 0;
	while ((task = STAILQ_FIRST(&own))) {
		STAILQ_REMOVE_HEAD(&own, next);
		zd_cuda_order_add(order, task);
	}
}

void zd_cuda_order_completed(struct zd_cuda_order *order, struct zd_cuda_task *task)
{
	struct zd_cuda_timeline *timeline = timeline_of(task);
	if (!timeline)
		return;
	zd_assert(timeline->pending > 0);
	timeline->pending--;
	if (task->cpu_stores)
		timeline->cpu_stores--;
	if (timeline->pending == 0 && timeline->held > 0)
		release_held(order, timeline);
}

struct zd_cuda_task *zd_cuda_order_any(const struct zd_cuda_order *order)
{
	return order->filled ? STAILQ_FIRST(&order->queues[__builtin_ctzll(order->filled)]) : NULL;
}

void zd_cuda_order_walk(const struct zd_cuda_order *order, void (*fn)(struct zd_cuda_task *task))
{
	struct zd_cuda_task *task;
	for (uint32_t i = 0; i < ZD_MAX_DEVICES; i++) {
		STAILQ_FOREACH(task, &order->queues[i], next)
		fn(task);
	}
	STAILQ_FOREACH(task, &order->held, next)
	fn(task);
}
