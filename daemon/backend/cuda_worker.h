/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_worker.h - a GPU's second thread, for what may block inside the driver: segments made and destroyed,
 * sessions' pages given back, reductions.
 *
 * What it is given is done in order.
 */
#ifndef ZD_BACKEND_CUDA_WORKER_H
#define ZD_BACKEND_CUDA_WORKER_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "backend/cuda_comm_gate.h"
#include "backend/cuda_executor.h"
#include "backend/cuda_reduce.h"
#include "backend/cuda_task.h"

struct zd_cuda_worker {
	/* set at start */
	struct zd_cuda_devices *devices;
	struct zd_cuda_device *device;
	struct zd_cuda_segments *segments;
	struct zd_cuda_executor *executor; /* where reductions end */
	struct zd_cuda_comm_gate *gate;    /* the daemon's */
	void (*done)(void *arg, const struct zd_completion *completion);
	void *done_arg;
	struct CUstream_st *stream;
	pthread_t thread;
	bool started;

	/* between other threads and the worker's */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct zd_cuda_tasks submitted;
	STAILQ_HEAD(, zd_cuda_session) sessions; /* to be freed */
	bool busy;                               /* with a task */
	bool draining;                           /* tasks are failed with SHUTDOWN */
	bool stopping;

	struct zd_cuda_reducer reducer; /* the worker thread's own */
};

/* Starts the thread; the device's context is current. On failure there is nothing to deinit. Errors: SYSTEM,
 * NO_MEMORY, DEVICE. */
int zd_cuda_worker_init(struct zd_cuda_worker *worker, struct zd_cuda_executor *executor,
                        struct zd_cuda_segments *segments, struct zd_cuda_comm_gate *gate,
                        const struct zd_backend_config *config, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Ends the task at hand and fails all others with SHUTDOWN. When it returns, no task will end any more. One
 * that was not started is allowed, here and below. */
void zd_cuda_worker_drain(struct zd_cuda_worker *worker);
/* Frees the sessions that it was given, and stops. */
void zd_cuda_worker_deinit(struct zd_cuda_worker *worker);

/* The worker owns the task from here on: SEGMENT_CREATE, SEGMENT_DESTROY, REDUCE. Never blocks. */
void zd_cuda_worker_submit(struct zd_cuda_worker *worker, struct zd_cuda_task *task);
/* Nobody refers to the session any more. From any thread, never blocks. */
void zd_cuda_worker_free_session(struct zd_cuda_worker *worker, struct zd_cuda_session *session);

#endif
