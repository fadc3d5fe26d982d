/* SPDX-License-Identifier: Apache-2.0 */
/* streams.c - fences and aborts of several streams, or of all. */
#include "client/lib/base/enter.h"
#include "client/lib/conn/request.h"
#include "client/lib/device/cuda.h"
#include "client/lib/streams/stream.h"

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

/* Whether an abort has freed a wait of a GPU's stream, which does not report the abort. With the client's
 * lock. */
static bool are_aborted(struct zerod_client *client)
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

int zc_streams_check_poison(struct zerod_client *client, struct zd_err *err)
{
	if (client->on_gpus && !client->poisoned) {
		pthread_mutex_lock(&client->lock);
		client->poisoned = client->poisoned || are_aborted(client);
		pthread_mutex_unlock(&client->lock);
	}
	if (!client->poisoned)
		return 0;
	if (zc_is_hung_up(client))
		return zc_loss_say(client, err);
	return zd_err_set(err, ZEROD_E_POISONED,
	                  "an abort has ended a wait of this session: discard the results since then, and "
	                  "reset the session");
}
