/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_stream.c - host streams: a thread, a queue, and a timeline on the client's fence page.
 *
 * Three kinds of work are queued: functions of the caller, waits for the daemon's fences, and signals, which
 * write the next value of the stream's timeline. Invariants:
 *   - reserving a value and queueing its signal are one step under the stream's lock, so that values are
 *     written in order;
 *   - after a failed wait (an abort, or the daemon's end) the stream rejects and drops functions and waits,
 *     which would use undefined data, until the session is reset. Signals are still written: the work before
 *     them will not run any more, and the daemon need not keep memory for it. The session is poisoned by
 *     then, so that no result can be published;
 *   - work that was queued before a reset is not run after it: each piece has the number of the stream's
 *     epoch.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <zerod_host.h>

#include "base/thread.h"
#include "client/lib/base/enter.h"
#include "client/lib/base/interrupt.h"
#include "client/lib/conn/fence_wait.h"
#include "client/lib/device/cuda.h"
#include "client/lib/segments/strict.h"
#include "client/lib/streams/stream.h"

enum work_kind { WORK_FUNCTION, WORK_WAIT, WORK_SIGNAL };

struct work {
	enum work_kind kind;
	unsigned epoch;
	union {
		struct {
			void (*fn)(void *);
			void *arg, *owned;
		} function;
		struct zc_fences wait;
		struct {
			uint64_t value;
			struct zc_hold_list holds; /* dropped before the value is written */
		} signal;
	} u;
	STAILQ_ENTRY(work) link;
};

struct host_stream {
	struct zerod_stream base;
	pthread_t thread;

	pthread_mutex_t lock; /* all that follows */
	pthread_cond_t wake;  /* work was queued, or the stream ends */
	pthread_cond_t ran;   /* a piece of work has ended */
	STAILQ_HEAD(, work) queue;
	bool ending;
	unsigned epoch;
	uint64_t appended, completed; /* pieces of work */
	uint64_t value;               /* last reserved */
	struct zd_err failure;        /* failure of a wait; status 0: none */
};

static struct host_stream *host_of(zerod_stream *stream)
{
	return (struct host_stream *)stream; /* `base` is the first member */
}

/* ---- The thread ---------------------------------------------------------------------------------------- */

/* A stream's waits have no deadline: the daemon signals each fence that it has promised, unless it dies,
 * which is detected. */
static void run_wait(struct host_stream *stream, const struct work *work)
{
	struct zd_err err = ZD_ERR_NONE;

	if (!zc_fences_wait(stream->base.client, &work->u.wait, UINT64_MAX, "gathered bytes", &err))
		return;
	ZC_LOCKED(&stream->lock);
	if (work->epoch == stream->epoch && !stream->failure.status)
		stream->failure = err;
}

static void free_work(struct host_stream *stream, struct work *work)
{
	if (work->kind == WORK_WAIT)
		zc_fences_deinit(&work->u.wait);
	else if (work->kind == WORK_SIGNAL)
		zc_holds_drop(stream->base.client, &work->u.signal.holds);
	else
		free(work->u.function.owned);
	free(work);
}

/* The daemon may reuse the pages after the signal. */
static void run_signal(struct host_stream *stream, struct work *work)
{
	zc_holds_drop(stream->base.client, &work->u.signal.holds);
	zc_fence_signal(stream->base.client, stream->base.timeline, work->u.signal.value);
}

static void run_work(struct host_stream *stream, struct work *work, bool drop)
{
	if (work->kind == WORK_SIGNAL)
		run_signal(stream, work);
	else if (drop)
		return;
	else if (work->kind == WORK_WAIT)
		run_wait(stream, work);
	else
		work->u.function.fn(work->u.function.arg);
}

static void *stream_main(void *arg)
{
	struct host_stream *stream = arg;

	zc_inside_stay(stream->base.client);
	zc_ask_never(true);
	pthread_mutex_lock(&stream->lock);
	for (;;) {
		struct work *work = STAILQ_FIRST(&stream->queue);
		bool drop;

		if (!work && stream->ending)
			break;
		if (!work) {
			pthread_cond_wait(&stream->wake, &stream->lock);
			continue;
		}
		STAILQ_REMOVE_HEAD(&stream->queue, link);
		drop = stream->failure.status || work->epoch != stream->epoch;
		pthread_mutex_unlock(&stream->lock);
		run_work(stream, work, drop);
		free_work(stream, work);
		pthread_mutex_lock(&stream->lock);
		stream->completed++;
		pthread_cond_broadcast(&stream->ran);
	}
	pthread_mutex_unlock(&stream->lock);
	return NULL;
}

/* ---- Appending ----------------------------------------------------------------------------------------- */

static struct work *new_work(enum work_kind kind, struct zd_err *err)
{
	struct work *work = calloc(1, sizeof(*work));

	if (work)
		work->kind = kind;
	else
		(void)zd_err_errno(err, ENOMEM, "appending to a stream");
	return work;
}

/* With the stream's lock. */
static void append(struct host_stream *stream, struct work *work)
{
	work->epoch = stream->epoch;
	STAILQ_INSERT_TAIL(&stream->queue, work, link);
	stream->appended++;
	pthread_cond_signal(&stream->wake);
}

static int host_wait(zerod_stream *base, const struct zc_stream_wait *wait, struct zd_err *err)
{
	const struct zc_fences *fences = wait->fences;
	struct host_stream *stream = host_of(base);
	struct work *work;
	size_t many_bytes = fences->count * sizeof(*fences->many);
	int rc = zc_cuda_copies_wait(stream->base.client, wait->copied,
	                             err); /* rare: functions that launch on a GPU */

	if (rc)
		return rc;
	if (zc_fences_poll(stream->base.client, fences) == 1)
		return 0;
	work = new_work(WORK_WAIT, err);
	if (!work)
		return ZEROD_E_SYSTEM;
	work->u.wait = *fences;
	if (fences->many) {
		work->u.wait.many = malloc(many_bytes);
		if (!work->u.wait.many) {
			free(work);
			return zd_err_errno(err, ENOMEM, "appending to a stream");
		}
		memcpy(work->u.wait.many, fences->many, many_bytes);
	}
	ZC_LOCKED(&stream->lock);
	append(stream, work);
	return 0;
}

static int host_fence(zerod_stream *base, const struct zc_hold_list *holds, uint64_t *value,
                      struct zd_err *err)
{
	struct host_stream *stream = host_of(base);
	struct work *work = new_work(WORK_SIGNAL, err);
	bool idle;
	int rc = 0;

	if (!work)
		return ZEROD_E_SYSTEM;
	pthread_mutex_lock(&stream->lock);
	idle = stream->completed == stream->appended;
	if (!idle && holds)
		rc = zc_holds_copy(stream->base.client, holds, &work->u.signal.holds, err);
	if (!idle && !rc) {
		work->u.signal.value = ++stream->value;
		*value = work->u.signal.value;
		append(stream, work);
	}
	pthread_mutex_unlock(&stream->lock);
	if (idle || rc)
		free(work);
	return rc ? rc : !idle;
}

static int host_launch(zerod_stream *base, void (*fn)(void *), void *arg, void *owned, struct zd_err *err)
{
	struct host_stream *stream = host_of(base);
	struct zd_err failure = ZD_ERR_NONE;
	struct work *work = new_work(WORK_FUNCTION, err);

	if (!work)
		return ZEROD_E_SYSTEM;
	work->u.function.fn = fn;
	work->u.function.arg = arg;
	work->u.function.owned = owned;
	pthread_mutex_lock(&stream->lock);
	if (stream->failure.status)
		failure = stream->failure;
	else
		append(stream, work);
	pthread_mutex_unlock(&stream->lock);
	if (!failure.status)
		return 0;
	free(work);
	return zd_err_set(err, ZEROD_E_STATE, "the stream accepts no work: %s", failure.text);
}

/* ---- The stream as a whole ----------------------------------------------------------------------------- */

static int host_synchronize(zerod_stream *base, struct zd_err *err)
{
	struct host_stream *stream = host_of(base);
	uint64_t target;
	int rc = 0;

	if (pthread_equal(pthread_self(), stream->thread))
		return zd_err_set(err, ZEROD_E_STATE, "a stream cannot wait for itself");
	pthread_mutex_lock(&stream->lock);
	target = stream->appended;
	while (stream->completed < target)
		pthread_cond_wait(&stream->ran, &stream->lock);
	if (stream->failure.status) {
		*err = stream->failure;
		rc = stream->failure.status;
	}
	pthread_mutex_unlock(&stream->lock);
	return rc;
}

static void host_reset(zerod_stream *base)
{
	struct host_stream *stream = host_of(base);
	ZC_LOCKED(&stream->lock);

	if (stream->failure.status) {
		stream->failure = (struct zd_err)ZD_ERR_NONE;
		stream->epoch++;
	}
}

static void free_stream(struct host_stream *stream)
{
	pthread_mutex_destroy(&stream->lock);
	pthread_cond_destroy(&stream->wake);
	pthread_cond_destroy(&stream->ran);
	free(stream);
}

static void host_end(zerod_stream *base)
{
	struct host_stream *stream = host_of(base);

	pthread_mutex_lock(&stream->lock);
	stream->ending = true;
	pthread_cond_signal(&stream->wake);
	pthread_mutex_unlock(&stream->lock);
	(void)pthread_join(stream->thread, NULL);
	zc_timeline_give(base->client, base->timeline, stream->value);
	free_stream(stream);
}

/* The stream's thread does not exist in the child, and may have held a lock. */
static void host_forget(zerod_stream *base)
{
	struct host_stream *stream = host_of(base);
	struct work *work;

	while ((work = STAILQ_FIRST(&stream->queue))) {
		STAILQ_REMOVE_HEAD(&stream->queue, link);
		free_work(stream, work);
	}
	free(stream);
}

static const struct zc_stream_ops host_ops = {
        .wait = host_wait,
        .fence = host_fence,
        .launch = host_launch,
        .synchronize = host_synchronize,
        .reset = host_reset,
        .end = host_end,
        .forget = host_forget,
};

static struct host_stream *new_stream(struct zerod_client *client)
{
	struct host_stream *stream = calloc(1, sizeof(*stream));

	if (!stream)
		return NULL;
	stream->base.ops = &host_ops;
	stream->base.client = client;
	pthread_mutex_init(&stream->lock, NULL);
	pthread_cond_init(&stream->wake, NULL);
	pthread_cond_init(&stream->ran, NULL);
	STAILQ_INIT(&stream->queue);
	return stream;
}

int zerod_host_stream_create(zerod_client *client, zerod_stream **stream)
{
	struct host_stream *made;
	struct zd_err *err;
	ZC_INSIDE(client);
	int error, rc = zc_enter_quietly(client, &err);

	if (rc)
		return rc;
	if (!stream)
		return zd_err_set(err, ZEROD_E_INVALID, "stream is NULL");
	made = new_stream(client);
	if (!made)
		return zd_err_errno(err, ENOMEM, "creating a stream");
	rc = zc_timeline_take(client, &made->base.timeline, &made->value, err);
	if (!rc) {
		error = zd_thread_create(&made->thread, stream_main, made);
		if (error) {
			rc = zd_err_errno(err, error, "starting a stream's thread");
			zc_timeline_give(client, made->base.timeline, made->value);
		}
	}
	if (rc) {
		free_stream(made);
		return rc;
	}
	zc_stream_add(&made->base);
	*stream = &made->base;
	return 0;
}
