/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_comm_thread.h - a GPU's third thread, for communicators: it gives NCCL what commands ask for, and sees
 * it end.
 *
 * The executor must not wait for NCCL, nor NCCL for the executor's work. The thread begins with the first
 * command of a communicator, and sleeps while nothing is under way. NCCL tells of nothing by itself: somebody
 * has to look, as for what an executor has in flight.
 */
#ifndef ZD_BACKEND_CUDA_COMM_THREAD_H
#define ZD_BACKEND_CUDA_COMM_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "backend/cuda_comm_tasks.h"
#include "base/spin.h"

struct zd_cuda_comm_thread {
	struct zd_cuda_device *device; /* NULL: not initialised */
	bool started;                  /* the loop's thread's */
	pthread_t thread;

	/* between the loop's thread and this one */
	pthread_mutex_t lock;
	pthread_cond_t submitted_or_stopping;
	struct zd_cuda_tasks submitted;
	bool stopping;
	atomic_bool news; /* something was submitted, or it is stopping: looked at without the lock */

	/* the thread's own, once it is started */
	struct zd_cuda_comms comms;
	struct zd_spin spin;
	uint64_t event_ns;   /* the last */
	uint64_t checked_ns; /* when the GPU was asked whether it has failed, or nothing was under way */
};

/* Starts nothing. The settings stay where they are. */
void zd_cuda_comm_thread_init(struct zd_cuda_comm_thread *thread, struct zd_cuda_device *device,
                              const struct zd_cuda_comm_settings *settings);
/* Asks the thread to end what is under way, and to fail everything else with SHUTDOWN. Returns at once. One
 * that was not initialised is allowed, here and below. */
void zd_cuda_comm_thread_stop(struct zd_cuda_comm_thread *thread);
/* Stops, and waits for the thread: nothing completes afterwards. */
void zd_cuda_comm_thread_deinit(struct zd_cuda_comm_thread *thread);

/* The thread owns the task from here on: see zd_cuda_comms_run(). Never blocks. */
void zd_cuda_comm_thread_submit(struct zd_cuda_comm_thread *thread, struct zd_cuda_task *task);

#endif
