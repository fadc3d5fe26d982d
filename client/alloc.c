/* SPDX-License-Identifier: Apache-2.0 */
/* alloc.c - plain allocations; what is known of a device, and what goes back to it. */
#include "client/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "client/cuda.h"

/* ---- Allocations --------------------------------------------------------------------------------------- */

struct allocation {
	struct zerod_buffer *buffer;
	uint64_t bytes;
	void *data;
	struct zd_err *err;
};

static int take_allocation(const Zd__Reply *reply, void *arg)
{
	struct allocation *allocation = arg;
	struct zerod_client *client = allocation->buffer->client;
	struct zc_location location;
	int rc = zc_check_body(reply, ZD__REPLY__BODY_ALLOC, allocation->err);

	if (rc)
		return rc;
	allocation->buffer->id = reply->alloc->allocation;
	pthread_mutex_lock(&client->lock);
	rc = zc_location_take(client, reply->alloc->location, allocation->bytes, 1, &location,
	                      allocation->err);
	if (!rc)
		rc = zc_location_map(client, &location, &allocation->data, allocation->err);
	pthread_mutex_unlock(&client->lock);
	return rc;
}

/* What the daemon has allocated and this process cannot map. `err` stays what it is. */
static void give_back(const struct allocation *allocation)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Free release = ZD__FREE__INIT;
	struct zd_err why = *allocation->err;
	int rc;

	release.allocation = allocation->buffer->id;
	request.body_case = ZD__REQUEST__BODY_FREE;
	request.free = &release;
	rc = zc_call(allocation->buffer->client, &request, 0, NULL, NULL);
	(void)rc; /* it ends with the session in any case */
	*allocation->err = why;
}

static int take_options(const struct zerod_alloc_options *given, struct zerod_alloc_options *options,
                        struct zd_err *err)
{
	int rc = zc_options(options, sizeof(*options), given, "zerod_alloc_options", err);

	if (!rc)
		rc = zd_name_check(options->job, ZD_MAX_NAME_BYTES, "job", err);
	if (!rc && options->name && options->name[0])
		rc = zd_name_check(options->name, ZD_MAX_NAME_BYTES, "allocation name", err);
	if (!rc && !options->name)
		options->name = "";
	return rc;
}

int zerod_alloc(zerod_client *client, const struct zerod_alloc_options *given, zerod_buffer **buffer,
                void **data)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Alloc alloc = ZD__ALLOC__INIT;
	struct zerod_alloc_options options;
	struct allocation allocation;
	int rc = zc_enter(client, &allocation.err);

	if (!rc && (!given || !buffer || !data))
		rc = zd_err_set(allocation.err, ZEROD_E_INVALID, "options, buffer or data is NULL");
	if (!rc)
		rc = take_options(given, &options, allocation.err);
	if (!rc)
		rc = zc_cuda_join(client, options.device, allocation.err);
	if (rc)
		return rc;
	allocation.bytes = options.bytes;
	allocation.buffer = calloc(1, sizeof(*allocation.buffer));
	if (!allocation.buffer)
		return zd_err_errno(allocation.err, ENOMEM, "allocating '%s'", options.name);
	allocation.buffer->client = client;
	alloc.job = (char *)options.job;
	alloc.name = (char *)options.name;
	alloc.device = options.device;
	alloc.bytes = options.bytes;
	alloc.alignment = options.alignment;
	request.body_case = ZD__REQUEST__BODY_ALLOC;
	request.alloc = &alloc;
	rc = zc_call(client, &request, options.deadline_ms, take_allocation, &allocation);
	if (rc) {
		if (allocation.buffer->id && rc != ZEROD_E_PROTOCOL)
			give_back(&allocation);
		free(allocation.buffer);
		return rc;
	}
	pthread_mutex_lock(&client->lock);
	LIST_INSERT_HEAD(&client->buffers, allocation.buffer, link);
	pthread_mutex_unlock(&client->lock);
	*buffer = allocation.buffer;
	*data = allocation.data;
	return 0;
}

static struct zerod_client *buffer_client(const struct zerod_buffer *buffer)
{
	return buffer ? buffer->client : NULL;
}

int zerod_free(zerod_buffer *buffer, zerod_stream *const *streams, uint32_t nstreams)
{
	struct zerod_client *client = buffer_client(buffer);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Free release = ZD__FREE__INIT;
	struct zc_fence_args fences;
	struct zd_err *err;
	int rc = zc_enter(client, &err);

	if (!rc)
		rc = zc_streams_fence(client, streams, nstreams, &fences, err);
	if (rc)
		return rc;
	release.allocation = buffer->id;
	release.n_fences = fences.count;
	release.fences = fences.pointers;
	request.body_case = ZD__REQUEST__BODY_FREE;
	request.free = &release;
	rc = zc_call(client, &request, 0, NULL, NULL);
	if (rc)
		return rc;
	pthread_mutex_lock(&client->lock);
	LIST_REMOVE(buffer, link);
	pthread_mutex_unlock(&client->lock);
	free(buffer);
	return 0;
}

/* ---- Devices ------------------------------------------------------------------------------------------- */

struct device_search {
	uint32_t device;
	struct zerod_device_info *info;
	bool found;
	uint64_t next; /* cursor; 0: no more rows */
	struct zd_err *err;
};

static void fill_info(const Zd__DeviceRow *row, struct zerod_device_info *info)
{
	size_t name_bytes = strnlen(row->name, sizeof(info->name) - 1);

	*info = (struct zerod_device_info){
	        .index = row->index,
	        .arena_bytes = row->arena_bytes,
	};
	memcpy(info->name, row->name, name_bytes);
	if (!row->usage)
		return;
	info->gathered_bytes = row->usage->gathered_bytes;
	info->allocated_bytes = row->usage->shard_bytes + row->usage->gathered_bytes +
	                        row->usage->bucket_bytes + row->usage->staging_bytes +
	                        row->usage->target_bytes + row->usage->allocation_bytes;
	info->peak_bytes = row->usage->peak_bytes;
}

static int take_devices(const Zd__Reply *reply, void *arg)
{
	struct device_search *search = arg;
	const Zd__ListReply *list;
	int rc = zc_check_body(reply, ZD__REPLY__BODY_LIST, search->err);

	if (rc)
		return rc;
	list = reply->list;
	if (list->next != 0 && list->next <= search->next)
		return zd_err_set(search->err, ZEROD_E_PROTOCOL, "the daemon's list of devices does not end");
	search->next = list->next;
	for (size_t i = 0; i < list->n_rows && !search->found; i++) {
		const Zd__Row *row = list->rows[i];

		if (row->row_case == ZD__ROW__ROW_DEVICE && row->device->index == search->device) {
			fill_info(row->device, search->info);
			search->found = true;
		}
	}
	return 0;
}

int zerod_device_get(zerod_client *client, uint32_t device, struct zerod_device_info *info)
{
	struct device_search search = {.device = device, .info = info};
	int rc = zc_enter(client, &search.err);

	if (!rc && !info)
		rc = zd_err_set(search.err, ZEROD_E_INVALID, "info is NULL");
	if (rc)
		return rc;
	do {
		Zd__Request request = ZD__REQUEST__INIT;
		Zd__List list = ZD__LIST__INIT;

		list.table = ZD__TABLE__DEVICES;
		list.cursor = search.next;
		request.body_case = ZD__REQUEST__BODY_LIST;
		request.list = &list;
		rc = zc_call(client, &request, 0, take_devices, &search);
	} while (!rc && !search.found && search.next != 0);
	if (!rc && !search.found)
		return zd_err_set(search.err, ZEROD_E_NOT_FOUND, "there is no device %u", device);
	return rc;
}

struct trimming {
	uint64_t freed_bytes;
	struct zd_err *err;
};

static int take_trim(const Zd__Reply *reply, void *arg)
{
	struct trimming *trimming = arg;
	int rc = zc_check_body(reply, ZD__REPLY__BODY_TRIM, trimming->err);

	if (!rc)
		trimming->freed_bytes = reply->trim->freed_bytes;
	return rc;
}

int zerod_trim(zerod_client *client, uint32_t device, uint64_t keep_bytes, uint64_t *freed_bytes)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Trim trim = ZD__TRIM__INIT;
	struct trimming trimming;
	int rc = zc_enter(client, &trimming.err);

	if (rc)
		return rc;
	trim.device = device;
	trim.keep_bytes = keep_bytes;
	request.body_case = ZD__REQUEST__BODY_TRIM;
	request.trim = &trim;
	rc = zc_call(client, &request, 0, take_trim, &trimming);
	if (!rc && freed_bytes)
		*freed_bytes = trimming.freed_bytes;
	return rc;
}
