/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_executor.c - the thread that issues a GPU's commands and polls for their completion.
 *
 * Progress and fences are counters that GPUs and other processes write without a notification. The thread
 * therefore polls them. It busy-polls for a moment after the last event, because most events follow soon, and
 * then sleeps for increasing times between two polls. A new command ends the sleep. If it has no counters to
 * poll, the thread sleeps until a command is submitted. The counters do not show that a GPU has failed. While
 * work is in flight, the thread therefore asks the driver from time to time.
 *
 * When a GPU fails, ZD_FENCE_ABORTED releases the waiters of its copies at once. Its commands complete only
 * when no copy runs any more, because the core reuses the memory of completed commands and a push can still
 * write to it. Then the timelines are aborted a second time, because the GPU can have stored into them in
 * between.
 */
#include "executor/cuda/cuda_executor.h"

#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "executor/thread.h"

#define INFLIGHT_LIMIT_BYTES                                                                                 \
	(ZD_CUDA_OPEN_BYTES + 2 * ZD_CUDA_PIECE_BYTES) /* links remain busy between two polls */
#define SPIN_NS           50000u
#define PROCESSORS        8u /* with fewer the thread does not busy-poll */
#define SLEEP_FIRST_NS    20000u
#define SLEEP_ROOM_NS     20000u  /* at most, while tasks wait for room, or the CPU reports a completion */
#define SLEEP_INFLIGHT_NS 100000u /* at most, while something is in flight */
#define SLEEP_MOST_NS     100000u
#define SLEEP_CALM_NS     5000000u /* at most, if only watches without a waiting caller remain */
#define SLEEP_DOUBLES     8u
#define SLEEP_LATE_NS     5000u     /* the delay with which a sleep may end */
#define CHECK_NS          20000000u /* between two checks of the device for a failure */

static void note_event(struct zd_cuda_executor *executor)
{
	zd_spin_event(&executor->spin, zd_thread_now_ns());
	executor->sleeps = 0;
}

/* ---- Ends of tasks ------------------------------------------------------------------------------------- */

/* A waiter must not mistake a failure for data. A failed task therefore aborts its timeline, and later tasks
 * do not change an aborted timeline. Only a SIGNAL of the core, when the session is reset, ends the abort. */
static void signal_waiters(const struct zd_cuda_task *task)
{
	if (!task->session)
		return;
	struct zd_backend_session *session = &task->session->base;
	if (task->completion.status != 0)
		zd_backend_session_set(session, task->base.timeline, ZD_FENCE_ABORTED);
	else if (task->base.kind == ZD_CMD_SIGNAL)
		zd_backend_session_set(session, task->base.timeline, task->base.value);
	else if (task->gpu_stores)
		zd_backend_session_wake(session, task->base.timeline);
	else
		zd_backend_session_signal(session, task->base.timeline, task->base.value);
}

static void complete_task(struct zd_cuda_executor *executor, struct zd_cuda_task *task)
{
	struct zd_completion completion = task->completion;
	signal_waiters(task);
	zd_cuda_task_free(task);
	if (completion.op)
		executor->done(executor->done_arg, &completion);
	else
		zd_completion_deinit(&completion);
}

static void complete_issued(struct zd_cuda_executor *executor, struct zd_cuda_task *task)
{
	zd_cuda_order_completed(&executor->order, task);
	complete_task(executor, task);
}

/* After an abort has released waiters, no command may complete: a completion would overwrite the abort. */
static void reap_all(struct zd_cuda_executor *executor)
{
	const struct zd_cuda_across *across = &executor->local.across;
	struct zd_cuda_task *task;
	for (size_t i = 0; i < ZD_CUDA_STREAMS && !executor->giving_up; i++) {
		struct zd_cuda_copy_stream *stream = executor->streams[i];
		while (!(stream == &across->stream && zd_cuda_across_has_failed(across)) &&
		       zd_cuda_copy_stream_reap(stream, &task)) {
			note_event(executor);
			if (task)
				complete_issued(executor, task);
		}
	}
}

static void poll_watches(struct zd_cuda_executor *executor)
{
	struct zd_cuda_tasks watches = STAILQ_HEAD_INITIALIZER(watches);
	struct zd_cuda_task *task;
	STAILQ_CONCAT(&watches, &executor->watches);
	executor->hurried = false;
	while ((task = STAILQ_FIRST(&watches))) {
		STAILQ_REMOVE_HEAD(&watches, next);
		if (zd_watch_poll(&task->base.u.watch, &task->completion)) {
			note_event(executor);
			complete_task(executor, task);
		} else {
			executor->hurried |= zd_watch_hurries(&task->base.u.watch);
			STAILQ_INSERT_TAIL(&executor->watches, task, next);
		}
	}
}

/* ---- Issuing ------------------------------------------------------------------------------------------- */

static bool needs_gpu(const struct zd_cuda_task *task)
{
	return zd_cuda_task_copies(task) && task->completion.status == 0 &&
	       (task->u.copy.bytes > 0 || task->session);
}

/* The CPU will store the end of the task, in the timeline's order. */
static void end_on_cpu(struct zd_cuda_executor *executor, struct zd_cuda_task *task, int rc,
                       const struct zd_err *err)
{
	if (rc)
		zd_completion_fail(&task->completion, rc, err->text);
	zd_cuda_order_take(&executor->order, task, true);
}

/* Selects the next push: small ones at once, large ones when they have a link slot. */
static struct zd_cuda_task *next_push(struct zd_cuda_executor *executor)
{
	const struct zd_cuda_order *order = &executor->order;
	uint32_t others = executor->devices->count - 1;
	uint64_t now_ns = zd_thread_now_ns();
	struct zd_cuda_task *firsts[ZD_MAX_DEVICES];
	for (uint32_t distance = 1; distance <= others; distance++) {
		firsts[distance - 1] = zd_cuda_order_first(order, (order->self + distance) % (others + 1));
		if (firsts[distance - 1])
			zd_cuda_link_scheduler_offer(&executor->scheduler, firsts[distance - 1]);
	}
	uint32_t begin = zd_cuda_link_scheduler_begin(&executor->scheduler, now_ns);
	for (uint32_t i = 0; i < others; i++) {
		struct zd_cuda_task *task = firsts[(begin - 1 + i) % others];
		if (task && zd_cuda_link_scheduler_reserve(&executor->scheduler, task, now_ns))
			return task;
	}
	return NULL;
}

static int issue_piece(struct zd_cuda_executor *executor, struct zd_cuda_task *task, bool *whole,
                       struct zd_err *err)
{
	struct zd_cuda_device *target = &executor->devices->all[task->target];
	bool has_slot = task->u.copy.has_link_slot;
	/* The last of several small pushes is also batched, because the others are submitted with it. */
	bool together = !has_slot && (zd_cuda_order_has_more(&executor->order) || executor->push.nmoves > 0);
	struct zd_cuda_piece piece = zd_cuda_piece_next(task, task->target, ZD_CUDA_PIECE_BYTES);
	*whole = piece.ends;
	piece.together = together;
	/* A push into a failed GPU would also make this one fail. */
	if (zd_cuda_device_failed(target))
		return zd_cuda_device_failure(target, err);
	int rc = zd_cuda_copy_stream_issue(&executor->push, &piece, err);
	if (rc)
		return rc;
	task->u.copy.issued_bytes += piece.bytes;
	task->u.copy.has_link_slot = false;
	return 0;
}

/* Issues the task or its next piece: a push, a copy with the host or, without `stream`, one within this
 * GPU. */
static void issue_task(struct zd_cuda_executor *executor, struct zd_cuda_copy_stream *stream,
                       struct zd_cuda_task *task)
{
	struct zd_err err = ZD_ERR_NONE;
	bool whole = false;
	int rc = 0;
	note_event(executor);
	if (needs_gpu(task)) {
		if (!stream)
			rc = zd_cuda_local_copy_issue(&executor->local, task, &whole, &err);
		else if (stream == &executor->push)
			rc = issue_piece(executor, task, &whole, &err);
		else
			rc = zd_cuda_host_copy_issue(stream, task, &whole, &err);
		if (!rc && whole)
			zd_cuda_order_take(&executor->order, task, false);
		if (!rc || zd_cuda_device_failed(executor->device))
			return; /* give_up_device() ends all tasks of a failed device */
	}
	end_on_cpu(executor, task, rc, &err);
	if (stream)
		zd_cuda_copy_stream_follow(stream, task);
	else
		zd_cuda_local_copy_follow(&executor->local, task);
}

static void issue_pushes(struct zd_cuda_executor *executor)
{
	struct zd_cuda_copy_stream *stream = &executor->push;
	struct zd_cuda_task *task;
	executor->scheduler.again_ns = UINT64_MAX;
	while (!zd_cuda_device_failed(executor->device) && zd_cuda_copy_stream_has_room(stream) &&
	       (task = next_push(executor))) {
		issue_task(executor, stream, task);
		if (zd_cuda_copy_stream_group_is_full(stream))
			zd_cuda_copy_stream_close(stream);
	}
	zd_cuda_copy_stream_close(stream);
}

static void issue_local(struct zd_cuda_executor *executor)
{
	struct zd_cuda_task *task;
	while (!zd_cuda_device_failed(executor->device) &&
	       (task = zd_cuda_order_first(&executor->order, executor->order.self)) &&
	       zd_cuda_local_copy_has_room(&executor->local, task))
		issue_task(executor, NULL, task);
	zd_cuda_local_copy_close(&executor->local);
}

static void issue_host(struct zd_cuda_executor *executor, enum zd_cuda_direction direction)
{
	struct zd_cuda_copy_stream *stream = &executor->host.streams[direction];
	struct zd_cuda_task *task;
	while (!zd_cuda_device_failed(executor->device) && zd_cuda_copy_stream_has_room(stream) &&
	       (task = zd_cuda_order_first(&executor->order, zd_cuda_host_copy_queue(direction)))) {
		issue_task(executor, stream, task);
		if (zd_cuda_copy_stream_group_is_full(stream))
			zd_cuda_copy_stream_close(stream);
	}
	zd_cuda_copy_stream_close(stream);
}

static void issue_all(struct zd_cuda_executor *executor)
{
	issue_pushes(executor);
	issue_local(executor);
	issue_host(executor, ZD_CUDA_UP);
	issue_host(executor, ZD_CUDA_DOWN);
}

/* ---- Giving up: the device has failed, or the daemon ends ---------------------------------------------- */

static void abort_timeline(struct zd_cuda_task *task)
{
	if (task->session && zd_cuda_task_copies(task))
		zd_backend_session_set(&task->session->base, task->base.timeline, ZD_FENCE_ABORTED);
}

/* Only copies and fills fail; other tasks complete as usual. */
static void fail_task(struct zd_cuda_task *task, const struct zd_err *why)
{
	if (zd_cuda_task_copies(task) && task->completion.status == 0)
		zd_completion_fail(&task->completion, why->status, why->text);
}

static void fail_inflight(struct zd_cuda_executor *executor, struct zd_cuda_task *task,
                          const struct zd_err *why)
{
	if (!task)
		return;
	fail_task(task, why);
	complete_issued(executor, task);
}

/* No copy may run any more. */
static void fail_all_inflight(struct zd_cuda_executor *executor, const struct zd_err *why)
{
	struct zd_cuda_task *task;
	for (size_t i = 0; i < ZD_CUDA_STREAMS; i++) {
		while (zd_cuda_copy_stream_drop(executor->streams[i], &task))
			fail_inflight(executor, task, why);
	}
}

/* Ends a task that the other GPU had. A fill without a fence can be repeated on its own GPU. */
static void end_across(struct zd_cuda_executor *executor, struct zd_cuda_task *task, const struct zd_err *why)
{
	if (task && task->base.kind == ZD_CMD_FILL && !task->session && task->completion.status == 0)
		zd_cuda_order_add(&executor->order, task);
	else
		fail_inflight(executor, task, why);
}

/* The other GPU has failed, not this one, which continues without it. */
static void give_up_across(struct zd_cuda_executor *executor)
{
	struct zd_cuda_copy_stream *stream = &executor->local.across.stream;
	struct zd_err why = ZD_ERR_NONE;
	struct zd_cuda_task *task;
	if (stream->count == 0)
		return;
	if (!executor->giving_up_across)
		zd_cuda_copy_stream_walk(stream, abort_timeline);
	executor->giving_up_across = true;
	if (!zd_cuda_copy_stream_is_still(stream))
		return;
	(void)zd_cuda_device_failure(stream->device, &why);
	while (zd_cuda_copy_stream_drop(stream, &task))
		end_across(executor, task, &why);
	note_event(executor);
}

/* No task may be in flight. */
static void fail_waiting(struct zd_cuda_executor *executor, const struct zd_err *why)
{
	struct zd_cuda_task *task;
	while ((task = zd_cuda_order_any(&executor->order))) {
		fail_task(task, why);
		zd_cuda_order_take(&executor->order, task, false);
		complete_issued(executor, task);
	}
	zd_assert(zd_cuda_order_is_empty(&executor->order));
}

static void give_up_device(struct zd_cuda_executor *executor)
{
	struct zd_err why = ZD_ERR_NONE;
	if (!executor->giving_up) {
		executor->giving_up = true;
		executor->scheduler.again_ns = UINT64_MAX;
		for (size_t i = 0; i < ZD_CUDA_STREAMS; i++)
			zd_cuda_copy_stream_walk(executor->streams[i], abort_timeline);
		zd_cuda_order_walk(&executor->order, abort_timeline);
		note_event(executor);
	}
	for (size_t i = 0; i < ZD_CUDA_STREAMS; i++) {
		if (executor->streams[i]->count > 0 && !zd_cuda_copy_stream_is_still(executor->streams[i]))
			return;
	}
	(void)zd_cuda_device_failure(executor->device, &why);
	fail_all_inflight(executor, &why);
	fail_waiting(executor, &why);
}

static void shut_down(struct zd_cuda_executor *executor)
{
	struct zd_err why = ZD_ERR_NONE;
	struct zd_cuda_task *task;
	(void)zd_err_set(&why, ZEROD_E_SHUTDOWN, "the daemon is shutting down");
	for (size_t i = 0; i < ZD_CUDA_STREAMS; i++) {
		if (executor->streams[i]->count > 0)
			zd_cuda_copy_stream_wait(executor->streams[i]);
	}
	reap_all(executor);
	fail_all_inflight(executor, &why);
	while ((task = zd_cuda_order_any(&executor->order))) {
		/* SIGNALs also fail, because the tasks before them were not done */
		if (task->completion.status == 0)
			zd_completion_fail(&task->completion, why.status, why.text);
		zd_cuda_order_take(&executor->order, task, false);
		complete_issued(executor, task);
	}
	while ((task = STAILQ_FIRST(&executor->watches))) {
		STAILQ_REMOVE_HEAD(&executor->watches, next);
		zd_completion_fail(&task->completion, why.status, why.text);
		complete_task(executor, task);
	}
}

/* ---- The thread ---------------------------------------------------------------------------------------- */

static bool has_inflight(const struct zd_cuda_executor *executor)
{
	size_t i = 0;
	while (i < ZD_CUDA_STREAMS && executor->streams[i]->count == 0)
		i++;
	return i < ZD_CUDA_STREAMS;
}

static uint64_t until_link_slot_ns(const struct zd_cuda_executor *executor)
{
	uint64_t now_ns = zd_thread_now_ns() + SLEEP_LATE_NS;
	return executor->scheduler.again_ns > now_ns ? executor->scheduler.again_ns - now_ns : 0;
}

/* Returns the time to sleep before the next poll. 0: poll again at once. UINT64_MAX: no counters to poll. The
 * thread also busy-polls for the next command, because waking it would cost the submitting thread 2 us and
 * the command 4 us. */
static uint64_t rest_ns(struct zd_cuda_executor *executor)
{
	bool inflight = has_inflight(executor), waiting = !zd_cuda_order_is_empty(&executor->order);
	bool awaited = executor->push.nawaited > 0;
	if (zd_spin_may(&executor->spin, zd_thread_now_ns()))
		return 0;
	if (!inflight && !waiting && STAILQ_EMPTY(&executor->watches))
		return UINT64_MAX;
	uint64_t most = waiting || awaited  ? SLEEP_ROOM_NS
	                : inflight          ? SLEEP_INFLIGHT_NS
	                : executor->hurried ? SLEEP_MOST_NS
	                                    : SLEEP_CALM_NS;
	uint64_t ns = zd_min_u64(SLEEP_FIRST_NS << executor->sleeps, most);
	if (executor->sleeps < SLEEP_DOUBLES)
		executor->sleeps++;
	/* Half of the bytes in flight take at least this time; until then the link has work. */
	if (!awaited)
		ns = zd_max_u64(ns, executor->push.inflight_bytes / 2 / ZD_CUDA_LINK_BYTES_NS);
	return zd_min_u64(ns, until_link_slot_ns(executor));
}

/* The caller holds the lock. */
static bool has_news(const struct zd_cuda_executor *executor)
{
	return !STAILQ_EMPTY(&executor->submitted) || executor->expecting || executor->stopping;
}

static void order_task(struct zd_cuda_executor *executor, struct zd_cuda_task *task)
{
	if (zd_cuda_task_copies(task))
		task->u.copy.seen_ns = executor->spin.event_ns;
	zd_cuda_order_add(&executor->order, task);
}

/* Collects submitted tasks. If it has no other work, first sleeps. Returns false when the thread shall
 * end. */
static bool take_submitted(struct zd_cuda_executor *executor)
{
	struct zd_cuda_tasks taken = STAILQ_HEAD_INITIALIZER(taken);
	struct zd_cuda_task *task;
	bool news = atomic_load_explicit(&executor->news, memory_order_relaxed);
	uint64_t rest = news ? 0 : rest_ns(executor);
	if (!news && rest == 0) {
		zd_spin_pause();
		return true;
	}
	pthread_mutex_lock(&executor->lock);
	while (rest == UINT64_MAX && !has_news(executor))
		pthread_cond_wait(&executor->changed, &executor->lock);
	/* An early wake-up is harmless: it only causes one more poll. */
	if (rest != UINT64_MAX && !has_news(executor))
		zd_cond_sleep(&executor->changed, &executor->lock, rest);
	STAILQ_CONCAT(&taken, &executor->submitted);
	bool stopping = executor->stopping;
	if (executor->expecting)
		zd_spin_expect(&executor->spin, zd_thread_now_ns() + ZD_SPIN_AWAIT_NS);
	executor->expecting = false;
	atomic_store_explicit(&executor->news, stopping, memory_order_relaxed);
	pthread_mutex_unlock(&executor->lock);

	while ((task = STAILQ_FIRST(&taken))) {
		note_event(executor);
		STAILQ_REMOVE_HEAD(&taken, next);
		if (task->base.kind == ZD_CMD_WATCH)
			STAILQ_INSERT_TAIL(&executor->watches, task, next);
		else
			order_task(executor, task);
	}
	return !stopping;
}

/* Counters that do not change may belong to a GPU that has failed. */
static void check_inflight(struct zd_cuda_executor *executor)
{
	uint64_t now_ns = zd_thread_now_ns();
	if (!has_inflight(executor))
		executor->checked_ns = now_ns; /* short work is not delayed by a check */
	if (now_ns - executor->checked_ns < CHECK_NS)
		return;
	executor->checked_ns = now_ns;
	for (size_t i = 0; i < ZD_CUDA_STREAMS; i++)
		zd_cuda_copy_stream_check(executor->streams[i]);
}

static void *executor_main(void *arg)
{
	struct zd_cuda_executor *executor = arg;
	zd_cuda_device_enter(executor->device);
	while (take_submitted(executor)) {
		reap_all(executor);
		poll_watches(executor);
		check_inflight(executor);
		if (zd_cuda_device_failed(executor->device)) {
			give_up_device(executor);
			continue;
		}
		if (zd_cuda_across_has_failed(&executor->local.across))
			give_up_across(executor);
		issue_all(executor);
	}
	shut_down(executor);
	zd_cuda_host_copy_deinit(&executor->host);
	zd_cuda_local_copy_deinit(&executor->local);
	zd_cuda_copy_stream_deinit(&executor->push);
	return NULL;
}

static int start_thread(struct zd_cuda_executor *executor, struct zd_err *err)
{
	char name[24];
	(void)snprintf(name, sizeof(name), "zd-gpu%u", executor->device->index);
	return zd_thread_start(&executor->thread, name, executor_main, executor, err);
}

int zd_cuda_executor_init(struct zd_cuda_executor *executor, struct zd_cuda_devices *devices, uint32_t device,
                          const struct zd_backend_config *config, struct zd_err *err)
{
	*executor = (struct zd_cuda_executor){
	        .devices = devices,
	        .device = &devices->all[device],
	        .done = config->done,
	        .done_arg = config->done_arg,
	        .streams = {&executor->push, &executor->local.direct, &executor->local.across.stream,
	                    &executor->host.streams[ZD_CUDA_UP], &executor->host.streams[ZD_CUDA_DOWN]},
	};
	zd_cuda_link_scheduler_init(&executor->scheduler, devices, device);
	zd_spin_init(&executor->spin, SPIN_NS, PROCESSORS);
	int rc = zd_cuda_copy_stream_init(&executor->push, devices, device, INFLIGHT_LIMIT_BYTES, err);
	if (rc)
		return rc;
	rc = zd_cuda_local_copy_init(&executor->local, devices, device, err);
	if (rc)
		goto no_local;
	rc = zd_cuda_host_copy_init(&executor->host, devices, device, err);
	if (rc)
		goto no_host;
	STAILQ_INIT(&executor->submitted);
	STAILQ_INIT(&executor->collected);
	STAILQ_INIT(&executor->watches);
	zd_cuda_order_init(&executor->order, devices, device);
	pthread_mutex_init(&executor->lock, NULL);
	zd_cond_init(&executor->changed);
	rc = start_thread(executor, err);
	if (rc)
		goto no_thread;
	executor->started = true;
	return 0;
no_thread:
	pthread_cond_destroy(&executor->changed);
	pthread_mutex_destroy(&executor->lock);
	zd_cuda_host_copy_deinit(&executor->host);
no_host:
	zd_cuda_local_copy_deinit(&executor->local);
no_local:
	zd_cuda_copy_stream_deinit(&executor->push);
	return rc;
}

void zd_cuda_executor_stop(struct zd_cuda_executor *executor)
{
	if (!executor->started)
		return;
	pthread_mutex_lock(&executor->lock);
	executor->stopping = true;
	atomic_store_explicit(&executor->news, true, memory_order_relaxed);
	pthread_mutex_unlock(&executor->lock);
	pthread_cond_signal(&executor->changed);
}

void zd_cuda_executor_deinit(struct zd_cuda_executor *executor)
{
	if (!executor->started)
		return;
	zd_cuda_executor_stop(executor);
	pthread_join(executor->thread, NULL);
	pthread_cond_destroy(&executor->changed);
	pthread_mutex_destroy(&executor->lock);
	executor->started = false;
}

static void submit_all(struct zd_cuda_executor *executor, struct zd_cuda_tasks *tasks)
{
	pthread_mutex_lock(&executor->lock);
	STAILQ_CONCAT(&executor->submitted, tasks);
	atomic_store_explicit(&executor->news, true, memory_order_relaxed);
	pthread_mutex_unlock(&executor->lock);
	pthread_cond_signal(&executor->changed);
}

void zd_cuda_executor_submit(struct zd_cuda_executor *executor, struct zd_cuda_task *task)
{
	struct zd_cuda_tasks one = STAILQ_HEAD_INITIALIZER(one);
	STAILQ_INSERT_TAIL(&one, task, next);
	submit_all(executor, &one);
}

void zd_cuda_executor_collect(struct zd_cuda_executor *executor, struct zd_cuda_task *task)
{
	STAILQ_INSERT_TAIL(&executor->collected, task, next);
	if (++executor->ncollected == ZD_CUDA_GROUP)
		zd_cuda_executor_flush(executor);
}

void zd_cuda_executor_flush(struct zd_cuda_executor *executor)
{
	if (executor->ncollected == 0)
		return;
	executor->ncollected = 0;
	submit_all(executor, &executor->collected);
}

void zd_cuda_executor_expect(struct zd_cuda_executor *executor)
{
	pthread_mutex_lock(&executor->lock);
	executor->expecting = true;
	atomic_store_explicit(&executor->news, true, memory_order_relaxed);
	pthread_mutex_unlock(&executor->lock);
	pthread_cond_signal(&executor->changed);
}
