/* SPDX-License-Identifier: Apache-2.0 */
/* stream_calls.c - the public calls on streams of every kind. */
#include <zerod_host.h>

#include "client/lib/base/enter.h"
#include "client/lib/conn/request.h"
#include "client/lib/streams/stream.h"

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
		return zc_loss_say(stream->client, err);
	return failed ? failed : rc;
}

void zerod_stream_destroy(zerod_stream *stream)
{
	struct zd_err *err;
	ZC_INSIDE(stream_client(stream));

	if (!stream || zc_enter_quietly(stream->client, &err) == ZEROD_E_FORKED)
		return;
	if (stream->end_reader)
		stream->end_reader(stream);
	zc_flush(stream->client); /* work in the stream may wait for that */
	pthread_mutex_lock(&stream->client->lock);
	LIST_REMOVE(stream, link);
	pthread_mutex_unlock(&stream->client->lock);
	stream->ops->end(stream);
}
