/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_comm_thread.h - a GPU's third thread, for its communicators: it calls NCCL, and polls for the end of
 * operations.
 *
 * NCCL's calls must not delay the executor, nor the executor's work NCCL. The thread is started by the first
 * command of a communicator, and sleeps while nothing is in progress. NCCL sends no notification: the thread
 * polls.
 */
#ifndef ZD_EXECUTOR_CUDA_COMM_THREAD_H
#define ZD_EXECUTOR_CUDA_COMM_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/spin.h"
#include "executor/nccl/cuda_comm_tasks.h"

struct zd_cuda_comm_thread {
	struct zd_cuda_device *device; /* NULL: not initialised */
	bool started;                  /* used by the loop's thread only */
	pthread_t thread;

	/* shared by the loop's thread and this one */
	pthread_mutex_t lock;
	pthread_cond_t submitted_or_stopping;
	struct zd_cuda_tasks submitted;
	bool stopping;
	atomic_bool news; /* a task was submitted, or `stopping` is set: read without the lock */

	/* private to the thread, once it is started */
	struct zd_cuda_comms comms;
	struct zd_spin spin;
	uint64_t event_ns;   /* the time of the last event */
	uint64_t checked_ns; /* time of the last check of the GPU, or when no work was in progress */
};

/* Does not start the thread. `settings` must outlive it. */
void zd_cuda_comm_thread_init(struct zd_cuda_comm_thread *thread, struct zd_cuda_device *device,
                              const struct zd_cuda_comm_settings *settings);
/* Tells the thread to end the work in progress and to fail all other tasks with SHUTDOWN. Returns at once.
 * Stop and deinit do nothing for a thread that was not initialised. */
void zd_cuda_comm_thread_stop(struct zd_cuda_comm_thread *thread);
/* Stops the thread and waits for it: no task completes afterwards. */
void zd_cuda_comm_thread_deinit(struct zd_cuda_comm_thread *thread);

/* Submits the task, which the thread then owns: see zd_cuda_comms_run(). Never blocks. */
void zd_cuda_comm_thread_submit(struct zd_cuda_comm_thread *thread, struct zd_cuda_task *task);

#endif
