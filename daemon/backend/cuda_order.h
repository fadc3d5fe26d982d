/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_order.h - the tasks that wait to be issued on a GPU.
 *
 * A queue for each device that is written to, the GPU's own included. What must hold: tasks of one timeline
 * are issued in the order in which they came, and what the CPU stores into a timeline (a SIGNAL, a failure)
 * comes behind everything before it and before everything behind it. Queues are in order; a task whose
 * timeline has others under way in another queue is held until those have landed. Tasks of different queues
 * overtake each other freely: all that a command depends on has happened when it is given.
 */
#ifndef ZD_BACKEND_CUDA_ORDER_H
#define ZD_BACKEND_CUDA_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda_device.h"
#include "backend/cuda_task.h"

struct zd_cuda_order {
	const struct zd_cuda_devices *devices;
	uint32_t self;   /* the GPU that the tasks run on */
	uint64_t filled; /* bit i: queue i is not empty */
	struct zd_cuda_tasks queues[ZD_MAX_DEVICES];
	struct zd_cuda_tasks held;
};

void zd_cuda_order_init(struct zd_cuda_order *order, const struct zd_cuda_devices *devices, uint32_t self);

void zd_cuda_order_add(struct zd_cuda_order *order, struct zd_cuda_task *task);
/* The next task that writes to the device; NULL: none that may be issued now. It stays in its queue. */
struct zd_cuda_task *zd_cuda_order_first(const struct zd_cuda_order *order, uint32_t queue);
/* The task, its queue's first, leaves it: it flies. `cpu_stores`: nothing of its timeline may be issued until
 * it has landed. */
void zd_cuda_order_take(struct zd_cuda_order *order, struct zd_cuda_task *task, bool cpu_stores);
/* It has landed; called before its timeline is stored or its session let go. */
void zd_cuda_order_landed(struct zd_cuda_order *order, struct zd_cuda_task *task);

/* Is there anything that waits. */
static inline bool zd_cuda_order_is_empty(const struct zd_cuda_order *order)
{
	return order->filled == 0 && STAILQ_EMPTY(&order->held);
}
/* The first of any queue, in whatever order; NULL: none. Only held ones may be left when others are in
 * flight. */
struct zd_cuda_task *zd_cuda_order_any(const struct zd_cuda_order *order);
/* Do tasks for several other devices wait. */
static inline bool zd_cuda_order_has_several(const struct zd_cuda_order *order)
{
	uint64_t others = order->filled & ~(1ull << order->self);
	return (others & (others - 1)) != 0;
}
/* Do several tasks for other devices wait, for one or more of them. */
static inline bool zd_cuda_order_has_more(const struct zd_cuda_order *order)
{
	uint64_t others = order->filled & ~(1ull << order->self);
	return zd_cuda_order_has_several(order) ||
	       (others && STAILQ_NEXT(STAILQ_FIRST(&order->queues[__builtin_ctzll(others)]), next));
}
/* Calls fn for each that waits. */
void zd_cuda_order_walk(const struct zd_cuda_order *order, void (*fn)(struct zd_cuda_task *task));

#endif
