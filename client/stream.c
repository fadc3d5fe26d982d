/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c - host streams: a thread, a queue, and a timeline on the client's fence page.
 *
 * Three kinds of work are queued: functions of the caller, waits for the daemon's fences, and signals, which write the next
 * value of the stream's timeline. What must hold:
 *   - taking a value and queueing its signal are one step under the stream's lock, so that values are written in order;
 *   - a wait that fails (aborted, or the daemon is gone) makes the stream refuse and drop functions and waits, which would
 *     run on garbage, until the session is reset. Signals are written all the same: the work before them will not run any
 *     more, and the daemon need not keep memory for it. The session is poisoned by then, so that nothing that was computed
 *     can be published;
 *   - work that was queued before a reset is not run after it: each piece knows the stream's epoch.
 */
#include "client/internal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum work_kind { WORK_FUNCTION, WORK_WAIT, WORK_SIGNAL };

struct work {
	enum work_kind kind;
	unsigned epoch;
	union {
		struct {
			void (*fn)(void *);
			void *arg;
		} function;
		struct zc_fences wait;
		struct {
			uint64_t value;
			struct zc_hold_list holds; /* dropped before the value is written */
		} signal;
	} u;
	STAILQ_ENTRY(work) link;
};

struct zerod_stream {
	struct zerod_client *client;
	LIST_ENTRY(zerod_stream) link;
	uint32_t timeline;
	pthread_t thread;

	pthread_mutex_t lock; /* all that follows */
	pthread_cond_t wake;  /* there is work, or the end has come */
	pthread_cond_t ran;   /* a piece of work has ended */
	STAILQ_HEAD(, work) queue;
	bool ending;
	unsigned epoch;
	uint64_t appended, completed; /* pieces of work */
	uint64_t value;               /* last taken */
	struct zd_err failure;        /* of a wait; status 0: none */
};

/* ---- The thread ------------------------------------------------------------------------------------------ */

/* The daemon keeps what it has promised or dies, which is noticed: a stream's waits have no deadline of their own. */
static void run_wait(zerod_stream *stream, const struct work *work)
{
	struct zd_err err = ZD_ERR_NONE;

	if (!zc_fences_wait(stream->client, &work->u.wait, UINT64_MAX, "gathered bytes", &err))
		return;
	pthread_mutex_lock(&stream->lock);
	if (work->epoch == stream->epoch && !stream->failure.status)
		stream->failure = err;
	pthread_mutex_unlock(&stream->lock);
}

static void free_work(zerod_stream *stream, struct work *work)
{
	if (work->kind == WORK_WAIT)
		zc_fences_deinit(&work->u.wait);
	else if (work->kind == WORK_SIGNAL)
		zc_holds_drop(stream->client, &work->u.signal.holds);
	free(work);
}

/* The daemon may give the pages to somebody else from the signal on. */
static void run_signal(zerod_stream *stream, struct work *work)
{
	zc_holds_drop(stream->client, &work->u.signal.holds);
	zc_timeline_signal(stream->client, stream->timeline, work->u.signal.value);
}

static void run(zerod_stream *stream, struct work *work, bool drop)
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
	zerod_stream *stream = arg;

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
		run(stream, work, drop);
		free_work(stream, work);
		pthread_mutex_lock(&stream->lock);
		stream->completed++;
		pthread_cond_broadcast(&stream->ran);
	}
	pthread_mutex_unlock(&stream->lock);
	return NULL;
}

/* Signals are the application's threads' business. */
static int start_thread(zerod_stream *stream)
{
	sigset_t all, before;
	int error;

	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&stream->thread, NULL, stream_main, stream);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

/* ---- Timelines -------------------------------------------------------------------------------------------- */

static int take_timeline(struct zerod_client *client, zerod_stream *stream, struct zd_err *err)
{
	uint32_t limit = client->ntimelines < ZEROD_MAX_STREAMS ? client->ntimelines : ZEROD_MAX_STREAMS;
	uint32_t i = 0;

	pthread_mutex_lock(&client->lock);
	while (i < limit && client->timeline_used[i])
		i++;
	if (i < limit) {
		client->timeline_used[i] = true;
		stream->timeline = i;
		stream->value = client->timeline_value[i];
	}
	pthread_mutex_unlock(&client->lock);
	if (i == limit)
		return zd_err_set(err, ZEROD_E_LIMIT, "the session has %u streams already", limit);
	return 0;
}

static void give_timeline_back(struct zerod_client *client, const zerod_stream *stream)
{
	pthread_mutex_lock(&client->lock);
	client->timeline_used[stream->timeline] = false;
	client->timeline_value[stream->timeline] = stream->value;
	pthread_mutex_unlock(&client->lock);
}

/* ---- Appending ---------------------------------------------------------------------------------------------- */

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
static void append(zerod_stream *stream, struct work *work)
{
	work->epoch = stream->epoch;
	STAILQ_INSERT_TAIL(&stream->queue, work, link);
	stream->appended++;
	pthread_cond_signal(&stream->wake);
}

int zc_stream_wait(zerod_stream *stream, const struct zc_fences *fences, struct zd_err *err)
{
	struct work *work;
	size_t many_bytes = fences->count * sizeof(*fences->many);

	if (zc_fences_poll(stream->client, fences) == 1)
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
	pthread_mutex_lock(&stream->lock);
	append(stream, work);
	pthread_mutex_unlock(&stream->lock);
	return 0;
}

/* 0: the stream is idle and needs no fence; 1: *value stands for all that is in it now. */
static int take_value(zerod_stream *stream, const struct zc_hold_list *holds, uint64_t *value,
                      struct zd_err *err)
{
	struct work *work = new_work(WORK_SIGNAL, err);
	bool idle;
	int rc = 0;

	if (!work)
		return ZEROD_E_SYSTEM;
	pthread_mutex_lock(&stream->lock);
	idle = stream->completed == stream->appended;
	if (!idle && holds)
		rc = zc_holds_copy(stream->client, holds, &work->u.signal.holds, err);
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

int zc_stream_check(const struct zerod_client *client, const zerod_stream *stream, struct zd_err *err)
{
	if (stream && stream->client != client)
		return zd_err_set(err, ZEROD_E_INVALID, "the stream belongs to another client");
	return 0;
}

int zc_streams_fence(struct zerod_client *client, zerod_stream *const *streams, uint32_t nstreams,
                     struct zc_fence_args *args, struct zd_err *err)
{
	return zc_streams_fence_holding(client, streams, nstreams, NULL, args, err);
}

int zc_streams_fence_holding(struct zerod_client *client, zerod_stream *const *streams, uint32_t nstreams,
                             const struct zc_hold_list *holds, struct zc_fence_args *args, struct zd_err *err)
{
	args->count = 0;
	if (nstreams > 0 && !streams)
		return zd_err_set(err, ZEROD_E_INVALID, "streams is NULL, nstreams is %u", nstreams);
	if (nstreams > ZD_MAX_FENCES)
		return zd_err_set(err, ZEROD_E_LIMIT, "%u streams, the limit is %u", nstreams, ZD_MAX_FENCES);
	for (uint32_t i = 0; i < nstreams; i++) {
		Zd__Fence *fence = &args->fences[args->count];
		int rc = zc_stream_check(client, streams[i], err);

		if (!rc && streams[i]) {
			zd__fence__init(fence);
			rc = take_value(streams[i], holds, &fence->value, err);
		}
		if (rc < 0)
			return rc;
		if (rc > 0) {
			fence->timeline = streams[i]->timeline;
			args->pointers[args->count++] = fence;
		}
	}
	return 0;
}

void zc_streams_reset(struct zerod_client *client)
{
	zerod_stream *stream;

	LIST_FOREACH (stream, &client->streams, link) {
		pthread_mutex_lock(&stream->lock);
		if (stream->failure.status) {
			stream->failure = (struct zd_err)ZD_ERR_NONE;
			stream->epoch++;
		}
		pthread_mutex_unlock(&stream->lock);
	}
}

/* ---- The public calls -------------------------------------------------------------------------------------- */

static zerod_stream *new_stream(struct zerod_client *client)
{
	zerod_stream *stream = calloc(1, sizeof(*stream));

	if (!stream)
		return NULL;
	stream->client = client;
	pthread_mutex_init(&stream->lock, NULL);
	pthread_cond_init(&stream->wake, NULL);
	pthread_cond_init(&stream->ran, NULL);
	STAILQ_INIT(&stream->queue);
	return stream;
}

static void free_stream(zerod_stream *stream)
{
	pthread_mutex_destroy(&stream->lock);
	pthread_cond_destroy(&stream->wake);
	pthread_cond_destroy(&stream->ran);
	free(stream);
}

int zerod_host_stream_create(zerod_client *client, zerod_stream **stream)
{
	zerod_stream *created;
	struct zd_err *err;
	int error, rc = zc_enter(client, &err);

	if (rc)
		return rc;
	if (!stream)
		return zd_err_set(err, ZEROD_E_INVALID, "stream is NULL");
	created = new_stream(client);
	if (!created)
		return zd_err_errno(err, ENOMEM, "creating a stream");
	rc = take_timeline(client, created, err);
	if (rc)
		goto free_stream;
	error = start_thread(created);
	if (error) {
		rc = zd_err_errno(err, error, "starting a stream's thread");
		goto give_timeline_back;
	}
	pthread_mutex_lock(&client->lock);
	LIST_INSERT_HEAD(&client->streams, created, link);
	pthread_mutex_unlock(&client->lock);
	*stream = created;
	return 0;

give_timeline_back:
	give_timeline_back(client, created);
free_stream:
	free_stream(created);
	return rc;
}

static struct zerod_client *stream_client(const zerod_stream *stream)
{
	return stream ? stream->client : NULL;
}

int zerod_host_stream_launch(zerod_stream *stream, void (*fn)(void *), void *arg)
{
	struct zd_err failure = ZD_ERR_NONE;
	struct zd_err *err;
	struct work *work;
	int rc = zc_enter(stream_client(stream), &err);

	if (rc)
		return rc;
	if (!fn)
		return zd_err_set(err, ZEROD_E_INVALID, "fn is NULL");
	work = new_work(WORK_FUNCTION, err);
	if (!work)
		return ZEROD_E_SYSTEM;
	work->u.function.fn = fn;
	work->u.function.arg = arg;
	pthread_mutex_lock(&stream->lock);
	if (stream->failure.status)
		failure = stream->failure;
	else
		append(stream, work);
	pthread_mutex_unlock(&stream->lock);
	if (!failure.status)
		return 0;
	free(work);
	return zd_err_set(err, ZEROD_E_STATE, "the stream takes no work: %s", failure.text);
}

int zerod_stream_synchronize(zerod_stream *stream)
{
	struct zd_err *err;
	uint64_t target;
	int rc = zc_enter(stream_client(stream), &err);

	if (!stream || rc == ZEROD_E_FORKED)
		return rc;
	if (pthread_equal(pthread_self(), stream->thread))
		return zd_err_set(err, ZEROD_E_STATE, "a stream cannot wait for itself");
	zc_flush(stream->client);
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

void zerod_stream_destroy(zerod_stream *stream)
{
	struct zd_err *err;

	if (!stream || zc_enter(stream->client, &err) == ZEROD_E_FORKED)
		return;
	pthread_mutex_lock(&stream->client->lock);
	LIST_REMOVE(stream, link);
	pthread_mutex_unlock(&stream->client->lock);
	pthread_mutex_lock(&stream->lock);
	stream->ending = true;
	pthread_cond_signal(&stream->wake);
	pthread_mutex_unlock(&stream->lock);
	(void)pthread_join(stream->thread, NULL);
	give_timeline_back(stream->client, stream);
	free_stream(stream);
}

void zc_stream_forget(zerod_stream *stream)
{
	struct work *work;

	LIST_REMOVE(stream, link);
	while ((work = STAILQ_FIRST(&stream->queue))) {
		STAILQ_REMOVE_HEAD(&stream->queue, link);
		free_work(stream, work);
	}
	free(stream);
}
