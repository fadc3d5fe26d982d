/* SPDX-License-Identifier: Apache-2.0 */
/* alloc.c - plain allocations. */
#include "client/lib/calls/alloc.h"

#include <errno.h>
#include <stdlib.h>

#include "base/text.h"
#include "client/lib/base/enter.h"
#include "client/lib/base/options.h"
#include "client/lib/conn/request.h"
#include "client/lib/device/device.h"
#include "client/lib/segments/segment.h"
#include "client/lib/streams/stream.h"

struct allocation {
	struct zerod_allocation *buffer;
	uint64_t bytes;
	struct zc_location location;
	void *data;
};

static int take_allocation(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	struct allocation *allocation = object;
	struct zerod_client *client = allocation->buffer->client;
	int rc;

	allocation->buffer->id = reply->alloc->allocation;
	ZC_LOCKED(&client->lock);
	rc = zc_location_take(client, reply->alloc->location, allocation->bytes, 1, &allocation->location,
	                      err);
	if (!rc)
		rc = zc_location_map(client, &allocation->location, &allocation->data, err);
	return rc;
}

/* Frees an allocation that the daemon has made and this process cannot map. Does not change `err`. */
static void give_back(const struct zerod_allocation *buffer, struct zd_err *err)
{
	Zd__Free release = ZD__FREE__INIT;
	Zd__Request request = ZD_REQUEST(FREE, free, &release);
	struct zd_err why = *err;
	int rc;

	release.allocation = buffer->id;
	rc = zc_call(buffer->client, &request, 0, NULL, NULL);
	(void)rc; /* it ends with the session in any case */
	*err = why;
}

static int take_options(const struct zerod_alloc_options *given, struct zerod_alloc_options *options,
                        struct zd_err *err)
{
	int rc = zc_options(options, sizeof(*options), given, "zerod_alloc_options", err);

	if (!rc)
		rc = zd_name_check(options->job, ZD_MAX_NAME_BYTES, "job", err);
	if (!rc && options->name && options->name[0])
		rc = zd_name_check(options->name, ZD_MAX_NAME_BYTES, "allocation name", err);
	if (!rc)
		rc = zc_flags(options->flags, ZEROD_ALLOC_DURABLE, "zerod_alloc_options", err);
	if (!rc)
		rc = zc_reserved(options->reserved, "zerod_alloc_options", err);
	if (!rc && !options->name)
		options->name = "";
	return rc;
}

int zc_buffer_new(struct zerod_client *client, Zd__Alloc *alloc, uint64_t bytes, uint32_t deadline_ms,
                  struct zerod_allocation **buffer, struct zc_location *location, void **data,
                  struct zd_err *err)
{
	Zd__Request request = ZD_REQUEST(ALLOC, alloc, alloc);
	struct allocation allocation = {.bytes = bytes};
	int rc;

	allocation.buffer = calloc(1, sizeof(*allocation.buffer));
	if (!allocation.buffer)
		return zd_err_errno(err, ENOMEM, "allocating %llu bytes", (unsigned long long)bytes);
	allocation.buffer->client = client;
	rc = zc_call_take(client, &request, deadline_ms, ZD__REPLY__BODY_ALLOC, take_allocation, &allocation);
	if (rc) {
		if (allocation.buffer->id && rc != ZEROD_E_PROTOCOL)
			give_back(allocation.buffer, err);
		free(allocation.buffer);
		return rc;
	}
	pthread_mutex_lock(&client->lock);
	LIST_INSERT_HEAD(&client->buffers, allocation.buffer, link);
	pthread_mutex_unlock(&client->lock);
	*buffer = allocation.buffer;
	*location = allocation.location;
	*data = allocation.data;
	return 0;
}

void zc_buffer_forget(struct zerod_allocation *buffer)
{
	struct zerod_client *client = buffer->client;

	pthread_mutex_lock(&client->lock);
	LIST_REMOVE(buffer, link);
	pthread_mutex_unlock(&client->lock);
	free(buffer);
}

int zerod_alloc(zerod_client *client, const struct zerod_alloc_options *given, zerod_allocation **allocation,
                void **data)
{
	Zd__Alloc alloc = ZD__ALLOC__INIT;
	struct zerod_alloc_options options;
	struct zc_location location;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter(client, &err);

	if (!rc && (!given || !allocation || !data))
		rc = zd_err_set(err, ZEROD_E_INVALID, "options, allocation or data is NULL");
	if (!rc)
		rc = take_options(given, &options, err);
	if (!rc)
		rc = zc_device_join(client, options.device, err);
	if (rc)
		return rc;
	alloc.job = (char *)options.job;
	alloc.name = (char *)options.name;
	alloc.device = options.device;
	alloc.bytes = options.bytes;
	alloc.alignment = options.alignment;
	alloc.durable = (options.flags & ZEROD_ALLOC_DURABLE) != 0;
	return zc_buffer_new(client, &alloc, options.bytes, options.deadline_ms, allocation, &location, data,
	                     err);
}

static struct zerod_client *allocation_client(const struct zerod_allocation *allocation)
{
	return allocation ? allocation->client : NULL;
}

int zerod_free(zerod_allocation *allocation, zerod_stream *const *streams, uint32_t nstreams)
{
	struct zerod_client *client = allocation_client(allocation);
	Zd__Free release = ZD__FREE__INIT;
	Zd__Request request = ZD_REQUEST(FREE, free, &release);
	struct zc_fence_args fences;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_quietly(client, &err);

	if (!rc && allocation->id == 0)
		rc = zd_err_set(err, ZEROD_E_RESTARTED, "the allocation ended with the daemon before");
	if (!rc)
		rc = zc_streams_fence(client, streams, nstreams, &fences, err);
	if (rc)
		return rc;
	release.allocation = allocation->id;
	release.n_fences = fences.count;
	release.fences = fences.pointers;
	rc = zc_call(client, &request, 0, NULL, NULL);
	if (rc)
		return rc;
	zc_buffer_forget(allocation);
	return 0;
}
