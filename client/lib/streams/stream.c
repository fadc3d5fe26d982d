/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c - the part that streams of every kind share: their timelines, and the client's list of them.
 *
 * Invariant: a timeline's values are written in the order in which they were reserved. Another stream
 * therefore receives a timeline only when its last value has been written. For a GPU's stream this can be
 * long after its handle was freed.
 */
#include "client/lib/streams/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/base/enter.h"
#include "client/lib/compute/cast.h"
#include "client/lib/conn/request.h"
#include "client/lib/segments/segment.h"

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
	ZC_LOCKED(&client->lock);
	client->timeline_used[timeline] = false;
	client->timeline_value[timeline] = value;
}

/* ---- The list ------------------------------------------------------------------------------------------ */

int zc_stream_check(const struct zerod_client *client, const zerod_stream *stream, struct zd_err *err)
{
	if (stream && stream->client != client)
		return zd_err_set(err, ZEROD_E_INVALID, "the stream belongs to another client");
	return 0;
}

void zc_stream_add(zerod_stream *stream)
{
	ZC_LOCKED(&stream->client->lock);
	LIST_INSERT_HEAD(&stream->client->streams, stream, link);
}

int zc_stream_launch(zerod_stream *stream, void (*fn)(void *), void *arg, void *owned, struct zd_err *err)
{
	int rc = stream->ops->launch(stream, fn, arg, owned, err);

	return rc == ZEROD_E_STATE && zc_is_hung_up(stream->client) ? zc_loss_say(stream->client, err) : rc;
}

int zc_stream_run(zerod_stream *stream, void (*fn)(void *), void *owned, struct zd_err *err)
{
	int rc = 0;

	if (stream)
		rc = zc_stream_launch(stream, fn, owned, owned, err);
	else
		fn(owned);
	if (!stream || rc)
		free(owned);
	return rc;
}

static void run_copy(void *arg)
{
	const struct zc_conversion *copy = arg;

	memcpy(copy->to, copy->from, copy->numel * zerod_dtype_bytes(copy->to_dtype));
}

int zc_stream_copy(zerod_stream *stream, const struct zc_conversion *copy, struct zd_err *err)
{
	struct zc_conversion *owned;

	if (stream && stream->ops->convert)
		return stream->ops->convert(stream, copy, err);
	owned = malloc(sizeof(*owned));
	if (!owned)
		return zd_err_errno(err, ENOMEM, "copying to the daemon's memory");
	*owned = *copy;
	return zc_stream_run(stream, run_copy, owned, err);
}

int zc_stream_reach(struct zerod_client *client, const zerod_stream *stream, uint32_t segment,
                    struct zd_err *err)
{
	if (!stream || !stream->ops->reach)
		return 0;
	return stream->ops->reach(stream, zc_segment_find(client, segment), err);
}

int zc_stream_map(struct zerod_client *client, const zerod_stream *stream, const struct zc_location *location,
                  void **data, struct zd_err *err)
{
	int rc = zc_location_map(client, location, data, err);

	return rc ? rc : zc_stream_reach(client, stream, location->segment, err);
}

void zc_stream_forget(zerod_stream *stream)
{
	LIST_REMOVE(stream, link);
	stream->ops->forget(stream);
}
