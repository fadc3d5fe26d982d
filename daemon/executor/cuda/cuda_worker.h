/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_worker.h - a GPU's second thread, for driver calls that block: it creates and destroys segments,
 * unregisters sessions' pages, and sums reductions. It runs its tasks in the order of submission.
 */
#ifndef ZD_EXECUTOR_CUDA_WORKER_H
#define ZD_EXECUTOR_CUDA_WORKER_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "executor/cuda/cuda_executor.h"
#include "executor/cuda/cuda_gate.h"
#include "executor/cuda/cuda_reduce.h"
#include "executor/cuda/cuda_task.h"

struct zd_cuda_worker {
	/* constant after the start */
	struct zd_cuda_devices *devices;
	struct zd_cuda_device *device;
	struct zd_cuda_segments *segments;
	struct zd_cuda_executor *executor; /* completes reductions */
	struct zd_cuda_gate *gate;         /* shared by the daemon's GPUs */
	void (*done)(void *arg, const struct zd_completion *completion);
	void *done_arg;
	struct CUstream_st *stream;
	pthread_t thread;
	bool started;

	/* shared by the worker's and other threads */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct zd_cuda_tasks submitted;
	STAILQ_HEAD(, zd_cuda_session) sessions; /* to be freed */
	bool busy;                               /* runs a task */
	bool draining;                           /* fails the remaining tasks with SHUTDOWN */
	bool stopping;

	struct zd_cuda_reducer reducer; /* private to the worker's thread */
};

/* Starts the thread; the device's context is current. On failure there is nothing to deinit. Errors: SYSTEM,
 * NO_MEMORY, DEVICE. */
int zd_cuda_worker_init(struct zd_cuda_worker *worker, struct zd_cuda_executor *executor,
                        struct zd_cuda_segments *segments, struct zd_cuda_gate *gate,
                        const struct zd_backend_config *config, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Waits for the current task and fails all others with SHUTDOWN. No task ends after it has returned. Does
 * nothing for a worker that was not started; neither does deinit. */
void zd_cuda_worker_drain(struct zd_cuda_worker *worker);
/* Frees the sessions that were submitted, and stops the thread. */
void zd_cuda_worker_deinit(struct zd_cuda_worker *worker);

/* Submits the task, which the worker then owns: SEGMENT_CREATE, SEGMENT_DESTROY, REDUCE. Never blocks. */
void zd_cuda_worker_submit(struct zd_cuda_worker *worker, struct zd_cuda_task *task);
/* Frees a session without references. Thread-safe; never blocks. */
void zd_cuda_worker_free_session(struct zd_cuda_worker *worker, struct zd_cuda_session *session);

#endif
