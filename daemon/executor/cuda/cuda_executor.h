/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_executor.h - the thread that issues a GPU's commands and polls for their completion.
 *
 * Trainers' kernels do not delay pushes into other GPUs' memory. They would delay copies within the GPU, so
 * another GPU makes these (cuda_across.h). The remaining copies and fills, and all of those on a
 * machine's only GPU, have a stream of their own and delay nothing else. Watches are polled in between. The
 * thread never blocks inside the driver; calls that may take long are made by a worker (cuda_worker.h).
 */
#ifndef ZD_EXECUTOR_CUDA_EXECUTOR_H
#define ZD_EXECUTOR_CUDA_EXECUTOR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/spin.h"
#include "executor/cuda/cuda_copy_stream.h"
#include "executor/cuda/cuda_order.h"
#include "executor/cuda/cuda_link_scheduler.h"
#include "executor/cuda/cuda_host_copy.h"
#include "executor/cuda/cuda_local_copy.h"

struct zd_cuda_executor {
	/* constant after the start */
	struct zd_cuda_devices *devices;
	struct zd_cuda_device *device;
	void (*done)(void *arg, const struct zd_completion *completion);
	void *done_arg;
	pthread_t thread;
	bool started;

	/* shared by the executor's and other threads */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct zd_cuda_tasks submitted;
	bool stopping;
	bool expecting;   /* a task will be submitted soon */
	atomic_bool news; /* one of these three has changed: read without the lock */

	/* private to the thread that collects */
	struct zd_cuda_tasks collected;
	unsigned ncollected;

	/* private to the executor's thread */
	struct zd_cuda_order order;
	struct zd_cuda_link_scheduler scheduler;
	struct zd_cuda_copy_stream push;
	struct zd_cuda_local_copy local;
	struct zd_cuda_host_copy host;
	struct zd_cuda_tasks watches;
	bool hurried;          /* a caller waits for one of them */
	bool giving_up;        /* the device has failed, and the waiters of its tasks have been freed */
	bool giving_up_across; /* the same for the GPU that makes copies within this one, and their tasks */
	struct zd_spin spin;
	unsigned sleeps;     /* since the last event */
	uint64_t checked_ns; /* when the streams were last checked, or nothing was in flight */
};

/* Makes the streams and starts the thread; the device's context is current. On failure there is nothing to
 * deinit. Errors: SYSTEM, NO_MEMORY, DEVICE. */
int zd_cuda_executor_init(struct zd_cuda_executor *executor, struct zd_cuda_devices *devices, uint32_t device,
                          const struct zd_backend_config *config, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Asks the thread to wait for what is in flight, and to fail everything else with SHUTDOWN. Returns at once.
 * Does nothing for an executor that was not started; neither does deinit. */
void zd_cuda_executor_stop(struct zd_cuda_executor *executor);
/* Stops the thread and waits for it: no task completes afterwards. */
void zd_cuda_executor_deinit(struct zd_cuda_executor *executor);

/* Submits the task, which the executor then owns: COPY, FILL, WATCH, SIGNAL; a REDUCE that a worker has done.
 * Never blocks. */
void zd_cuda_executor_submit(struct zd_cuda_executor *executor, struct zd_cuda_task *task);
/* The same, but the executor may receive the task only with the next zd_cuda_executor_flush(). It is woken
 * once for all tasks of a flush, and issues their copies in groups. Only one thread calls the two. */
void zd_cuda_executor_collect(struct zd_cuda_executor *executor, struct zd_cuda_task *task);
void zd_cuda_executor_flush(struct zd_cuda_executor *executor);
/* Announces a task within microseconds, so that the thread is awake by then. Never blocks. */
void zd_cuda_executor_expect(struct zd_cuda_executor *executor);

#endif
