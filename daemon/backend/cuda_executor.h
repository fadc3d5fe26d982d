/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_executor.h - the thread that gives a GPU its commands, and sees them land.
 *
 * Pushes into other GPUs' memory are delayed by no trainer. What stays on the GPU would be, so copies within
 * it go round by another one (cuda_detour.h); what is left, fills and all on a machine's only GPU, has a lane
 * of its own and holds up nothing else. Watches are polled beside them. The thread never waits inside the
 * driver; what may take long is a worker's (cuda_worker.h).
 */
#ifndef ZD_BACKEND_CUDA_EXECUTOR_H
#define ZD_BACKEND_CUDA_EXECUTOR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda_lane.h"
#include "backend/cuda_order.h"
#include "backend/cuda_turns.h"
#include "backend/cuda_within.h"
#include "base/spin.h"

struct zd_cuda_executor {
	/* set at start */
	struct zd_cuda_devices *devices;
	struct zd_cuda_device *device;
	void (*done)(void *arg, const struct zd_completion *completion);
	void *done_arg;
	pthread_t thread;
	bool started;

	/* between other threads and the executor's */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct zd_cuda_tasks submitted;
	bool stopping;
	bool expecting;   /* something will be submitted soon */
	atomic_bool news; /* one of these three: looked at without the lock */

	/* the executor thread's own */
	struct zd_cuda_order order;
	struct zd_cuda_turns turns;
	struct zd_cuda_lane push;
	struct zd_cuda_within within;
	struct zd_cuda_tasks watches;
	bool hurried;         /* somebody waits for one of them */
	bool giving_up;       /* the device has failed, and whoever waits for what it had has been told */
	bool giving_up_round; /* the same of the GPU by which its copies go round, and of those */
	struct zd_spin spin;
	unsigned sleeps;     /* since the last event */
	uint64_t checked_ns; /* when the streams were, or nothing was in flight */
};

/* Makes the streams and starts the thread; the device's context is current. On failure there is nothing to
 * deinit. Errors: SYSTEM, NO_MEMORY, DEVICE. */
int zd_cuda_executor_init(struct zd_cuda_executor *executor, struct zd_cuda_devices *devices, uint32_t device,
                          const struct zd_backend_config *config, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Asks the thread to let what is in flight land, and to fail everything else with SHUTDOWN. Returns at once.
 * One that was not started is allowed, here and below. */
void zd_cuda_executor_stop(struct zd_cuda_executor *executor);
/* Stops, and waits for the thread: nothing completes afterwards. */
void zd_cuda_executor_deinit(struct zd_cuda_executor *executor);

/* Slices of up to so many bytes need not wait for the GPU's kernels. */
uint64_t zd_cuda_executor_own_slice_bytes(const struct zd_cuda_executor *executor);

/* The executor owns the task from here on: COPY, FILL, WATCH, SIGNAL; a REDUCE that a worker has done. Never
 * blocks. */
void zd_cuda_executor_submit(struct zd_cuda_executor *executor, struct zd_cuda_task *task);
/* A task will follow within microseconds: the thread is to be awake by then. Never blocks. */
void zd_cuda_executor_expect(struct zd_cuda_executor *executor);

#endif
