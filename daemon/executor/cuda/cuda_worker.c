/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_worker.c - a GPU's second thread, for driver calls that block. */
#include "executor/cuda/cuda_worker.h"

#include <stdio.h>

#include "base/err.h"
#include "executor/thread.h"

#define LOOK_NS 1000000u /* between two attempts to free sessions */

/* ---- Tasks --------------------------------------------------------------------------------------------- */

static int create_segment(struct zd_cuda_worker *worker, const struct zd_cuda_task *task, struct zd_err *err)
{
	struct zd_cuda_segment *segment = NULL;
	int rc = zd_cuda_segment_new(worker->devices, worker->device->index, task->base.u.create.id,
	                             task->base.u.create.bytes, worker->stream, &segment, err);
	if (!rc)
		zd_cuda_segments_add(worker->segments, segment);
	return rc;
}

static void end_task(struct zd_cuda_worker *worker, struct zd_cuda_task *task, int rc,
                     const struct zd_err *err)
{
	if (rc)
		zd_completion_fail(&task->completion, rc, err->text);
	if (task->base.kind == ZD_CMD_REDUCE) {
		zd_cuda_executor_submit(worker->executor, task);
		return;
	}
	struct zd_completion completion = task->completion;
	zd_cuda_task_free(task);
	if (completion.op)
		worker->done(worker->done_arg, &completion);
	else
		zd_completion_deinit(&completion);
}

static void run_task(struct zd_cuda_worker *worker, struct zd_cuda_task *task, bool draining)
{
	struct zd_err err = ZD_ERR_NONE;
	int rc = 0;
	/* Always, even when the device has failed or the worker drains. */
	if (task->base.kind == ZD_CMD_SEGMENT_DESTROY)
		zd_cuda_segment_free(task->u.destroy);
	if (draining)
		rc = zd_err_set(&err, ZEROD_E_SHUTDOWN, "the daemon is shutting down");
	else if (zd_cuda_device_failed(worker->device) && task->base.kind != ZD_CMD_SEGMENT_DESTROY)
		rc = zd_cuda_device_failure(worker->device, &err);
	else if (task->base.kind == ZD_CMD_SEGMENT_CREATE)
		rc = create_segment(worker, task, &err);
	else if (task->base.kind == ZD_CMD_REDUCE && task->u.reduce.desc.nfences > 0)
		task->completion.result.not_begun = true; /* waiting would delay other tasks */
	else if (task->base.kind == ZD_CMD_REDUCE)
		rc = zd_cuda_reduce(&worker->reducer, task, &err);
	end_task(worker, task, rc, &err);
}

/* ---- The thread ---------------------------------------------------------------------------------------- */

/* The caller holds the lock, which is released during driver calls. Returns false if sessions are left
 * because a communicator's kernel runs: the driver call would wait for it. */
static bool free_sessions(struct zd_cuda_worker *worker)
{
	struct zd_cuda_session *session;
	while ((session = STAILQ_FIRST(&worker->sessions))) {
		if (!zd_cuda_gate_close(worker->gate))
			return false;
		STAILQ_REMOVE_HEAD(&worker->sessions, to_free);
		pthread_mutex_unlock(&worker->lock);
		zd_cuda_session_free(session, worker->device->cuda);
		zd_cuda_gate_open(worker->gate);
		pthread_mutex_lock(&worker->lock);
	}
	return true;
}

static void *worker_main(void *arg)
{
	struct zd_cuda_worker *worker = arg;
	struct zd_cuda_task *task;
	zd_cuda_device_enter(worker->device);
	pthread_mutex_lock(&worker->lock);
	for (;;) {
		bool all_free = free_sessions(worker);
		task = STAILQ_FIRST(&worker->submitted);
		if (!task && worker->stopping && all_free)
			break;
		if (!task && !all_free) {
			zd_cond_sleep(&worker->changed, &worker->lock, LOOK_NS);
			continue;
		}
		if (!task) {
			pthread_cond_wait(&worker->changed, &worker->lock);
			continue;
		}
		STAILQ_REMOVE_HEAD(&worker->submitted, next);
		bool draining = worker->draining;
		worker->busy = true;
		pthread_mutex_unlock(&worker->lock);
		run_task(worker, task, draining);
		pthread_mutex_lock(&worker->lock);
		worker->busy = false;
		pthread_cond_broadcast(&worker->changed);
	}
	pthread_mutex_unlock(&worker->lock);
	bool pushed = zd_cuda_device_push(worker->device);
	zd_cuda_reducer_deinit(&worker->reducer);
	(void)worker->device->cuda->streamDestroy(worker->stream);
	zd_cuda_leave(worker->device->cuda, pushed);
	return NULL;
}

int zd_cuda_worker_init(struct zd_cuda_worker *worker, struct zd_cuda_executor *executor,
                        struct zd_cuda_segments *segments, struct zd_cuda_gate *gate,
                        const struct zd_backend_config *config, struct zd_err *err)
{
	struct zd_cuda_device *device = executor->device;
	char name[24];
	*worker = (struct zd_cuda_worker){
	        .devices = executor->devices,
	        .device = device,
	        .segments = segments,
	        .executor = executor,
	        .gate = gate,
	        .done = config->done,
	        .done_arg = config->done_arg,
	};
	int rc = zd_cuda_device_err(
	        device, device->cuda->streamCreateWithPriority(&worker->stream, ZD_CU_STREAM_NON_BLOCKING, 0),
	        err, "a stream");
	if (rc)
		return rc;
	worker->reducer = (struct zd_cuda_reducer){.device = device, .stream = worker->stream};
	STAILQ_INIT(&worker->submitted);
	STAILQ_INIT(&worker->sessions);
	pthread_mutex_init(&worker->lock, NULL);
	zd_cond_init(&worker->changed);
	(void)snprintf(name, sizeof(name), "zd-gpu%u-work", device->index);
	rc = zd_thread_start(&worker->thread, name, worker_main, worker, err);
	if (rc) {
		pthread_cond_destroy(&worker->changed);
		pthread_mutex_destroy(&worker->lock);
		(void)device->cuda->streamDestroy(worker->stream);
		return rc;
	}
	worker->started = true;
	return 0;
}

void zd_cuda_worker_drain(struct zd_cuda_worker *worker)
{
	if (!worker->started)
		return;
	pthread_mutex_lock(&worker->lock);
	worker->draining = true;
	while (worker->busy || !STAILQ_EMPTY(&worker->submitted))
		pthread_cond_wait(&worker->changed, &worker->lock);
	pthread_mutex_unlock(&worker->lock);
}

void zd_cuda_worker_deinit(struct zd_cuda_worker *worker)
{
	if (!worker->started)
		return;
	pthread_mutex_lock(&worker->lock);
	worker->stopping = true;
	pthread_cond_broadcast(&worker->changed);
	pthread_mutex_unlock(&worker->lock);
	pthread_join(worker->thread, NULL);
	pthread_cond_destroy(&worker->changed);
	pthread_mutex_destroy(&worker->lock);
	worker->started = false;
}

void zd_cuda_worker_submit(struct zd_cuda_worker *worker, struct zd_cuda_task *task)
{
	pthread_mutex_lock(&worker->lock);
	STAILQ_INSERT_TAIL(&worker->submitted, task, next);
	pthread_cond_broadcast(&worker->changed);
	pthread_mutex_unlock(&worker->lock);
}

void zd_cuda_worker_free_session(struct zd_cuda_worker *worker, struct zd_cuda_session *session)
{
	pthread_mutex_lock(&worker->lock);
	STAILQ_INSERT_TAIL(&worker->sessions, session, to_free);
	pthread_cond_broadcast(&worker->changed);
	pthread_mutex_unlock(&worker->lock);
}
