/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c - the public calls on streams of every kind, their timelines, and fences of several streams.
 *
 * Invariant: a timeline's values are written in the order in which they were reserved. So another stream gets
 * a timeline only when its last value has been written, which for a GPU's stream may be long after its handle
 * was freed.
 */
#include "client/stream.h"

#include <zerod_host.h>

#include "client/cuda.h"

/* ---- Timelines ----------------------------------------------------------------------------------------- */

static bool is_written(const struct zerod_client *client, uint32_t timeline)
{
	uint64_t counter = __atomic_load_n(&client->client_page[timeline], __ATOMIC_ACQUIRE);

	return zc_fence_reached(counter, client->timeline_value[timeline]);
}

int zc_timeline_take(struct zerod_client *client, uint32_t *timeline, uint64_t *value, struct zd_err *err)
{
	uint32_t limit = client->ntimelines < ZEROD_MAX_STREAMS ? client->ntimelines : ZEROD_MAX_STREAMS;
	uint32_t i = 0;

	pthread_mutex_lock(&client->lock);
	while (i < limit && (client->timeline_used[i] || !is_written(client, i)))
		i++;
	if (i < limit) {
		client->timeline_used[i] = true;
		*timeline = i;
		*value = client->timeline_value[i];
	}
	pthread_mutex_unlock(&client->lock);
	if (i == limit)
		return zd_err_set(err, ZEROD_E_LIMIT, "the session has %u streams already", limit);
	return 0;
}

void zc_timeline_give(struct zerod_client *client, uint32_t timeline, uint64_t value)
{
	pthread_mutex_lock(&client->lock);
	client->timeline_used[timeline] = false;
	client->timeline_value[timeline] = value;
	pthread_mutex_unlock(&client->lock);
}

/* ---- Fences and waits ---------------------------------------------------------------------------------- */

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
		return zd_err_set(err, ZEROD_E_LIMIT, "%u streams; at most %u", nstreams, ZD_MAX_FENCES);
	for (uint32_t i = 0; i < nstreams; i++) {
		Zd__Fence *fence = &args->fences[args->count];
		int rc = zc_stream_check(client, streams[i], err);

		if (!rc && streams[i]) {
			zd__fence__init(fence);
			rc = streams[i]->ops->fence(streams[i], holds, &fence->value, err);
		}
		if (rc < 0)
			return rc;
		if (rc > 0) {
			fence->timeline = streams[i]->timeline;
			args->pointers[args->count++] = fence;
		}
	}
	int rc = zc_lag_fence(client, args, err);

	return rc ? rc : zc_cuda_copies_fence(client, args, err);
}

bool zc_streams_aborted(struct zerod_client *client)
{
	bool aborted = zc_cuda_left_aborted(client);
	zerod_stream *stream;

	LIST_FOREACH (stream, &client->streams, link)
		if (stream->ops->aborted)
			aborted |= stream->ops->aborted(stream);
	return aborted;
}

void zc_streams_reset(struct zerod_client *client)
{
	zerod_stream *stream;

	LIST_FOREACH (stream, &client->streams, link)
		stream->ops->reset(stream);
	zc_cuda_left_reset(client);
}

/* ---- The public calls ---------------------------------------------------------------------------------- */

void zc_stream_add(zerod_stream *stream)
{
	pthread_mutex_lock(&stream->client->lock);
	LIST_INSERT_HEAD(&stream->client->streams, stream, link);
	pthread_mutex_unlock(&stream->client->lock);
}

int zc_stream_launch(zerod_stream *stream, void (*fn)(void *), void *arg, void *owned, struct zd_err *err)
{
	int rc = stream->ops->launch(stream, fn, arg, owned, err);

	return rc == ZEROD_E_STATE && zc_is_hung_up(stream->client) ? zc_say_lost(stream->client, err) : rc;
}

static struct zerod_client *stream_client(const zerod_stream *stream)
{
	return stream ? stream->client : NULL;
}

int zerod_host_stream_launch(zerod_stream *stream, void (*fn)(void *), void *arg)
{
	struct zd_err *err;
	ZC_INSIDE(stream_client(stream));
	int rc = zc_enter_quietly(stream_client(stream), &err);

	if (rc)
		return rc;
	if (!fn)
		return zd_err_set(err, ZEROD_E_INVALID, "fn is NULL");
	if (!stream->ops->launch)
		return zd_err_set(err, ZEROD_E_INVALID, "the stream is a GPU's and runs no functions");
	return zc_stream_launch(stream, fn, arg, NULL, err);
}

int zerod_stream_synchronize(zerod_stream *stream)
{
	struct zd_err *err;
	ZC_INSIDE(stream_client(stream));
	int failed, rc = zc_enter_quietly(stream_client(stream), &err);

	if (!stream || rc == ZEROD_E_FORKED)
		return rc;
	zc_flush(stream->client);
	failed = stream->ops->synchronize(stream, err);
	if (failed == ZEROD_E_ABORTED && zc_is_hung_up(stream->client))
		return zc_say_lost(stream->client, err);
	return failed ? failed : rc;
}

void zerod_stream_destroy(zerod_stream *stream)
{
	struct zd_err *err;
	ZC_INSIDE(stream_client(stream));

	if (!stream || zc_enter_quietly(stream->client, &err) == ZEROD_E_FORKED)
		return;
	zc_reader_end(stream);
	zc_flush(stream->client); /* work in the stream may wait for that */
	pthread_mutex_lock(&stream->client->lock);
	LIST_REMOVE(stream, link);
	pthread_mutex_unlock(&stream->client->lock);
	stream->ops->end(stream);
}

void zc_stream_forget(zerod_stream *stream)
{
	LIST_REMOVE(stream, link);
	stream->ops->forget(stream);
}
