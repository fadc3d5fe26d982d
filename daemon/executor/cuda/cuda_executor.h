/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_executor.h - the thread that issues a GPU's commands and polls for their completion.
 *
 * Trainers' kernels do not delay pushes into other GPUs' memory. They would delay copies within the GPU.
 * Another GPU therefore makes these (cuda_across.h). The remaining copies and fills, and all of them on a
 * machine with one GPU, have their own stream and do not delay other work. The thread polls watches in
 * between. It never blocks inside the driver: a worker (cuda_worker.h) makes calls that can take long.
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

#define ZD_CUDA_STREAMS 5u

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
	struct zd_cuda_copy_stream *streams[ZD_CUDA_STREAMS]; /* of push, local and host */
	struct zd_cuda_tasks watches;
	bool hurried;          /* a caller waits for one of them */
	bool giving_up;        /* the device has failed, and the waiters of its tasks have been freed */
	bool giving_up_across; /* giving up the GPU that makes copies within this one, and their tasks */
	struct zd_spin spin;
	unsigned sleeps;     /* since the last event */
	uint64_t checked_ns; /* time of the last check of the streams, or when no work was in flight */
};

/* Creates the streams and starts the thread. The device's context is current. On failure there is nothing to
 * deinit. Errors: SYSTEM, NO_MEMORY, DEVICE. */
int zd_cuda_executor_init(struct zd_cuda_executor *executor, struct zd_cuda_devices *devices, uint32_t device,
                          const struct zd_backend_config *config, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Tells the thread to wait for the work in flight, and to fail all other tasks with SHUTDOWN. Returns at
 * once. Stop and deinit do nothing for an executor that was not started. */
void zd_cuda_executor_stop(struct zd_cuda_executor *executor);
/* Stops the thread and waits for it: no task completes afterwards. */
void zd_cuda_executor_deinit(struct zd_cuda_executor *executor);

/* Submits the task, which the executor then owns: COPY, FILL, WATCH, SIGNAL; a REDUCE that a worker has done.
 * Never blocks. */
void zd_cuda_executor_submit(struct zd_cuda_executor *executor, struct zd_cuda_task *task);
/* As zd_cuda_executor_submit(), but the executor can receive the task only with the next
 * zd_cuda_executor_flush(). It wakes once for all tasks of a flush, and issues their copies in groups. Only
 * one thread calls these two functions. */
void zd_cuda_executor_collect(struct zd_cuda_executor *executor, struct zd_cuda_task *task);
void zd_cuda_executor_flush(struct zd_cuda_executor *executor);
/* Announces a task within microseconds, so that the thread is awake by then. Never blocks. */
void zd_cuda_executor_expect(struct zd_cuda_executor *executor);

#endif
