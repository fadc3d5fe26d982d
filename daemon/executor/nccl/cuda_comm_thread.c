/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_comm_thread.c - a GPU's third thread, for communicators. */
#include "executor/nccl/cuda_comm_thread.h"

#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "executor/thread.h"

#define SPIN_NS        50000u
#define PROCESSORS     8u /* with fewer the thread does not busy-poll */
#define SLEEP_FIRST_NS 20000u
#define SLEEP_MOST_NS  1000000u
#define SLEEP_SHARE    32u        /* of the time since the last event: a small relative delay */
#define CHECK_NS       20000000u  /* between two checks of the device for a failure */
#define LISTEN_NS      100000000u /* between two checks of processes that make unique ids */

static void event(struct zd_cuda_comm_thread *thread, uint64_t now_ns)
{
	zd_spin_event(&thread->spin, now_ns);
	thread->event_ns = now_ns;
}

/* Returns the time to sleep before the next poll; 0: poll again at once. */
static uint64_t rest_ns(struct zd_cuda_comm_thread *thread)
{
	uint64_t now_ns = zd_thread_now_ns();
	uint64_t share_ns = (now_ns - thread->event_ns) / SLEEP_SHARE;
	if (zd_spin_may(&thread->spin, now_ns))
		return 0;
	return zd_min_u64(zd_max_u64(share_ns, SLEEP_FIRST_NS), SLEEP_MOST_NS);
}

/* Collects submitted tasks, after a rest. Without work in progress the thread waits for a task. Returns false
 * when the thread is to end. */
static bool take_submitted(struct zd_cuda_comm_thread *thread, bool under_way, struct zd_cuda_tasks *taken)
{
	bool news = atomic_load_explicit(&thread->news, memory_order_relaxed);
	uint64_t rest = news || !under_way ? 0 : rest_ns(thread);
	if (!news && under_way && rest == 0) {
		zd_spin_pause();
		return true;
	}
	if (!under_way && zd_cuda_comms_listen(&thread->comms)) {
		under_way = true;
		rest = LISTEN_NS;
	}
	pthread_mutex_lock(&thread->lock);
	while (!under_way && STAILQ_EMPTY(&thread->submitted) && !thread->stopping)
		pthread_cond_wait(&thread->submitted_or_stopping, &thread->lock);
	/* An early wake-up is harmless: it only causes one more poll. */
	if (under_way && STAILQ_EMPTY(&thread->submitted) && !thread->stopping)
		zd_cond_sleep(&thread->submitted_or_stopping, &thread->lock, rest);
	STAILQ_CONCAT(taken, &thread->submitted);
	bool stopping = thread->stopping;
	atomic_store_explicit(&thread->news, stopping, memory_order_relaxed);
	pthread_mutex_unlock(&thread->lock);
	return !stopping;
}

static void run_all(struct zd_cuda_comm_thread *thread, struct zd_cuda_tasks *taken)
{
	struct zd_cuda_task *task;
	while ((task = STAILQ_FIRST(taken))) {
		STAILQ_REMOVE_HEAD(taken, next);
		zd_cuda_comms_run(&thread->comms, task);
		event(thread, zd_thread_now_ns());
	}
}

static bool poll(struct zd_cuda_comm_thread *thread)
{
	uint64_t now_ns = zd_thread_now_ns(), ended = thread->comms.ended;
	bool under_way = zd_cuda_comms_poll(&thread->comms, now_ns);
	if (thread->comms.ended != ended)
		event(thread, now_ns);
	if (!under_way)
		thread->checked_ns = now_ns;
	if (now_ns - thread->checked_ns >= CHECK_NS) {
		thread->checked_ns = now_ns;
		zd_cuda_comms_check(&thread->comms);
	}
	return under_way;
}

static void shut_down(struct zd_cuda_comm_thread *thread, struct zd_cuda_tasks *taken)
{
	struct zd_err why = ZD_ERR_NONE;
	struct zd_cuda_task *task;
	(void)zd_err_set(&why, ZEROD_E_SHUTDOWN, "the daemon is shutting down");
	while ((task = STAILQ_FIRST(taken))) {
		STAILQ_REMOVE_HEAD(taken, next);
		zd_cuda_comms_refuse(&thread->comms, task, &why);
	}
	zd_cuda_comms_stop(&thread->comms, &why);
	while (poll(thread)) {
		pthread_mutex_lock(&thread->lock);
		zd_cond_sleep(&thread->submitted_or_stopping, &thread->lock, SLEEP_FIRST_NS);
		pthread_mutex_unlock(&thread->lock);
	}
	zd_cuda_comms_deinit(&thread->comms);
}

static void *comm_thread_main(void *arg)
{
	struct zd_cuda_comm_thread *thread = arg;
	struct zd_cuda_tasks taken = STAILQ_HEAD_INITIALIZER(taken);
	bool under_way = false;
	zd_cuda_device_enter(thread->device);
	while (take_submitted(thread, under_way, &taken)) {
		run_all(thread, &taken);
		under_way = poll(thread);
	}
	shut_down(thread, &taken);
	return NULL;
}

void zd_cuda_comm_thread_init(struct zd_cuda_comm_thread *thread, struct zd_cuda_device *device,
                              const struct zd_cuda_comm_settings *settings)
{
	*thread = (struct zd_cuda_comm_thread){.device = device};
	STAILQ_INIT(&thread->submitted);
	pthread_mutex_init(&thread->lock, NULL);
	zd_cond_init(&thread->submitted_or_stopping);
	zd_spin_init(&thread->spin, SPIN_NS, PROCESSORS);
	zd_cuda_comms_init(&thread->comms, device, settings);
}

void zd_cuda_comm_thread_stop(struct zd_cuda_comm_thread *thread)
{
	if (!thread->device)
		return;
	pthread_mutex_lock(&thread->lock);
	thread->stopping = true;
	atomic_store_explicit(&thread->news, true, memory_order_relaxed);
	pthread_mutex_unlock(&thread->lock);
	pthread_cond_signal(&thread->submitted_or_stopping);
}

void zd_cuda_comm_thread_deinit(struct zd_cuda_comm_thread *thread)
{
	if (!thread->device)
		return;
	zd_cuda_comm_thread_stop(thread);
	if (thread->started)
		pthread_join(thread->thread, NULL);
	pthread_cond_destroy(&thread->submitted_or_stopping);
	pthread_mutex_destroy(&thread->lock);
	*thread = (struct zd_cuda_comm_thread){.device = NULL};
}

static int start_thread(struct zd_cuda_comm_thread *thread, struct zd_err *err)
{
	char name[24];
	(void)snprintf(name, sizeof(name), "zd-gpu%u-nccl", thread->device->index);
	int rc = zd_thread_start(&thread->thread, name, comm_thread_main, thread, err);
	thread->started = rc == 0;
	return rc;
}

void zd_cuda_comm_thread_submit(struct zd_cuda_comm_thread *thread, struct zd_cuda_task *task)
{
	struct zd_err err = ZD_ERR_NONE;
	if (!thread->started && start_thread(thread, &err)) {
		zd_cuda_comms_refuse(&thread->comms, task, &err);
		return;
	}
	pthread_mutex_lock(&thread->lock);
	STAILQ_INSERT_TAIL(&thread->submitted, task, next);
	atomic_store_explicit(&thread->news, true, memory_order_relaxed);
	pthread_mutex_unlock(&thread->lock);
	pthread_cond_signal(&thread->submitted_or_stopping);
}
