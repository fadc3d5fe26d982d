/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_order.h - the tasks that wait to be issued on a GPU.
 *
 * A queue exists for each device to which the GPU writes, including itself, and one for each direction of
 * copies with host memory. Invariants: Tasks of one timeline are issued in the order of submission. A store
 * by the CPU into a timeline (for a SIGNAL, or a failure) follows all earlier stores and precedes all later
 * ones.
 *
 * Each queue is in order. If a task's timeline has pending tasks in another queue, the task is held until
 * these have completed. Tasks of different queues can overtake each other, because all dependencies of a
 * command have completed when it is submitted.
 */
#ifndef ZD_EXECUTOR_CUDA_ORDER_H
#define ZD_EXECUTOR_CUDA_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "executor/cuda/cuda_device.h"
#include "executor/cuda/cuda_task.h"

struct zd_cuda_order {
	const struct zd_cuda_devices *devices;
	uint32_t self;   /* the GPU that the tasks run on */
	uint64_t filled; /* bit i: queue i is not empty */
	struct zd_cuda_tasks queues[ZD_MAX_DEVICES];
	struct zd_cuda_tasks held;
};

void zd_cuda_order_init(struct zd_cuda_order *order, const struct zd_cuda_devices *devices, uint32_t self);

void zd_cuda_order_add(struct zd_cuda_order *order, struct zd_cuda_task *task);
/* Returns the queue's first task, which remains in the queue, or NULL if none can be issued now. */
struct zd_cuda_task *zd_cuda_order_first(const struct zd_cuda_order *order, uint32_t queue);
/* Removes the first task of its queue, which is now in flight. `cpu_stores`: no other task of its timeline
 * may be issued until this task has completed. */
void zd_cuda_order_take(struct zd_cuda_order *order, struct zd_cuda_task *task, bool cpu_stores);
/* Records that the task has completed. Must be called before the task's timeline is stored or its session is
 * released. */
void zd_cuda_order_completed(struct zd_cuda_order *order, struct zd_cuda_task *task);

/* Returns whether no task waits. */
static inline bool zd_cuda_order_is_empty(const struct zd_cuda_order *order)
{
	return order->filled == 0 && STAILQ_EMPTY(&order->held);
}
/* Returns the first task of any queue; NULL: none. While tasks are in flight the order may hold tasks and
 * have empty queues. */
struct zd_cuda_task *zd_cuda_order_any(const struct zd_cuda_order *order);
/* Returns the other GPUs that tasks wait for, as bits. */
static inline uint64_t zd_cuda_order_others(const struct zd_cuda_order *order)
{
	return order->filled & ~(1ull << order->self | 1ull << ZD_CUDA_QUEUE_UP | 1ull << ZD_CUDA_QUEUE_DOWN);
}
/* Returns whether tasks for several other devices wait. */
static inline bool zd_cuda_order_has_several(const struct zd_cuda_order *order)
{
	uint64_t others = zd_cuda_order_others(order);
	return (others & (others - 1)) != 0;
}
/* Returns whether several tasks wait for other devices, for one device or more. */
static inline bool zd_cuda_order_has_more(const struct zd_cuda_order *order)
{
	uint64_t others = zd_cuda_order_others(order);
	return zd_cuda_order_has_several(order) ||
	       (others && STAILQ_NEXT(STAILQ_FIRST(&order->queues[__builtin_ctzll(others)]), next));
}
/* Calls fn for each task that waits. */
void zd_cuda_order_walk(const struct zd_cuda_order *order, void (*fn)(struct zd_cuda_task *task));

#endif
