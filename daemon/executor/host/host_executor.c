/* SPDX-License-Identifier: Apache-2.0 */
/* host_executor.c - the start, end and queue of an emulated device's thread. */
#include <stdio.h>

#include "base/err.h"
#include "executor/host/host_executor.h"
#include "executor/thread.h"

int zd_host_executor_init(struct zd_host_executor *executor, uint32_t device,
                          struct zd_host_segments *segments, const struct zd_backend_config *config,
                          struct zd_err *err)
{
	*executor = (struct zd_host_executor){
	        .device = device,
	        .segments = segments,
	        .done = config->done,
	        .done_arg = config->done_arg,
	};
	STAILQ_INIT(&executor->submitted);
	STAILQ_INIT(&executor->queue);
	STAILQ_INIT(&executor->watches);
	pthread_mutex_init(&executor->lock, NULL);
	zd_cond_init(&executor->submitted_or_stopping);

	char name[24];
	snprintf(name, sizeof(name), "zd-host%u", device);
	int rc = zd_thread_start(&executor->thread, name, zd_host_executor_run, executor, err);
	if (rc) {
		pthread_cond_destroy(&executor->submitted_or_stopping);
		pthread_mutex_destroy(&executor->lock);
		return rc;
	}
	executor->started = true;
	return 0;
}

void zd_host_executor_stop(struct zd_host_executor *executor)
{
	if (!executor->started)
		return;
	pthread_mutex_lock(&executor->lock);
	executor->stopping = true;
	pthread_mutex_unlock(&executor->lock);
	pthread_cond_signal(&executor->submitted_or_stopping);
}

void zd_host_executor_deinit(struct zd_host_executor *executor)
{
	if (!executor->started)
		return;
	zd_host_executor_stop(executor);
	pthread_join(executor->thread, NULL);
	pthread_cond_destroy(&executor->submitted_or_stopping);
	pthread_mutex_destroy(&executor->lock);
	executor->started = false;
}

void zd_host_executor_submit(struct zd_host_executor *executor, struct zd_backend_sessions *sessions,
                             const struct zd_command *command)
{
	struct zd_backend_session *watched = NULL;
	struct zd_backend_session *signalled = zd_backend_sessions_find(sessions, command->signal.session);
	if (command->kind == ZD_CMD_WATCH)
		watched = zd_backend_sessions_find(sessions, command->u.watch.session);
	struct zd_host_task *task = zd_host_task_new(command, executor->segments, signalled, watched);
	pthread_mutex_lock(&executor->lock);
	STAILQ_INSERT_TAIL(&executor->submitted, task, next);
	pthread_mutex_unlock(&executor->lock);
	pthread_cond_signal(&executor->submitted_or_stopping);
}
