/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - loads of units: copies one rank's data into the shards of all ranks.
 *
 * The rank with the data copies it, in the order of its stream, into memory that the daemon allocates for the
 * load. Its request names this memory and the stream's fence. The requests of the other ranks name neither.
 * The daemon copies the slices from this memory, and frees it with its answer.
 */
#include "client/lib/base/enter.h"
#include "client/lib/base/handles.h"
#include "client/lib/base/options.h"
#include "client/lib/calls/alloc.h"
#include "client/lib/compute/cast.h"
#include "client/lib/conn/request.h"
#include "client/lib/device/cuda.h"
#include "client/lib/streams/stream.h"

struct load {
	struct zerod_client *client;
	struct zc_unit *unit;
	const void *data; /* NULL: another rank's */
	zerod_stream *stream;
	uint64_t deadline_ns;
	struct zerod_allocation *room; /* for the data; NULL: none */
	struct zc_location at;         /* of the room */
	void *to;
	struct zd_err *err;
};

/* ---- The data ------------------------------------------------------------------------------------------ */

static int copy_on_stream(const struct load *load)
{
	const struct zc_conversion bytes = {.from_dtype = load->unit->dtype,
	                                    .to_dtype = load->unit->dtype,
	                                    .from = load->data,
	                                    .to = load->to,
	                                    .numel = load->unit->numel};
	int rc;

	pthread_mutex_lock(&load->client->lock);
	rc = zc_stream_reach(load->client, load->stream, load->at.segment, load->err);
	pthread_mutex_unlock(&load->client->lock);
	return rc ? rc : zc_stream_copy(load->stream, &bytes, load->err);
}

/* On a stream of the library. */
static int copy_on_gpu(const struct load *load)
{
	struct zc_copy copy = {.to = load->to, .from = load->data, .bytes = zc_unit_bytes(load->unit)};
	int rc;

	pthread_mutex_lock(&load->client->lock);
	copy.segment = zc_segment_find(load->client, load->at.segment);
	rc = zc_cuda_copy(load->client, &copy, 1, load->err);
	pthread_mutex_unlock(&load->client->lock);
	return rc ? rc : zc_cuda_copies_finish(load->client, load->err);
}

/* After an error the stream can nevertheless have the copy. The room is therefore freed after the stream.
 * Does not change the error. */
static void give_room_back(const struct load *load)
{
	struct zd_err why = *load->err;

	if (load->room && zerod_free(load->room, &load->stream, load->stream != NULL) != 0)
		zc_buffer_forget(load->room); /* the daemon has freed it already, or ends with the session */
	*load->err = why;
}

static int bring_data(struct load *load)
{
	Zd__Alloc alloc = ZD__ALLOC__INIT;
	int rc;

	alloc.unit = load->unit->id;
	rc = zc_buffer_new(load->client, &alloc, zc_unit_bytes(load->unit), zc_left_ms(load->deadline_ns),
	                   &load->room, &load->at, &load->to, load->err);
	if (rc)
		return rc;
	rc = load->client->on_gpus && !load->stream ? copy_on_gpu(load) : copy_on_stream(load);
	if (rc)
		give_room_back(load);
	return rc;
}

/* ---- The request --------------------------------------------------------------------------------------- */

static const struct zc_ticket_type load_ticket = {.what = "the load of"};

/* The room is the daemon's when this returns, or has been freed. */
static int send_load(struct load *load, zerod_ticket *ticket)
{
	Zd__UnitLoad unit_load = ZD__UNIT_LOAD__INIT;
	Zd__Request request = ZD_REQUEST(UNIT_LOAD, unit_load, &unit_load);
	struct zc_fence_args fences = {.count = 0};
	int rc = 0;

	if (load->room)
		rc = zc_streams_fence(load->client, &load->stream, load->stream != NULL, &fences, load->err);
	unit_load.unit = load->unit->id;
	unit_load.allocation = load->room ? load->room->id : 0;
	unit_load.n_fences = fences.count;
	unit_load.fences = fences.pointers;
	if (!rc)
		rc = ticket ? zc_post_other(load->client, &load_ticket, NULL, load->unit, &request,
		                            zc_left_ms(load->deadline_ns), ticket, load->err)
		            : zc_call(load->client, &request, zc_left_ms(load->deadline_ns), NULL, NULL);
	if (rc)
		give_room_back(load);
	else if (load->room)
		zc_buffer_forget(load->room);
	return rc;
}

static int check_load(const struct load *load)
{
	const struct zc_unit *unit = load->unit;
	bool updating;

	pthread_mutex_lock(&load->client->lock);
	updating = unit->updating;
	pthread_mutex_unlock(&load->client->lock);
	if (!updating)
		return zd_err_set(load->err, ZEROD_E_STATE, "unit '%s' is not under update", unit->name);
	if ((uintptr_t)load->data % zerod_dtype_bytes(unit->dtype) != 0)
		return zd_err_set(load->err, ZEROD_E_INVALID, "unit '%s': data is not aligned for %s",
		                  unit->name, zerod_dtype_name(unit->dtype));
	if (load->data && load->stream && load->client->on_gpus && !load->stream->ops->convert)
		return zd_err_set(load->err, ZEROD_E_INVALID,
		                  "the shards are on a GPU, the stream is a host stream");
	return 0;
}

int zerod_unit_load(zerod_unit *unit, const void *data, zerod_stream *stream,
                    const struct zerod_wait_options *options, zerod_ticket *ticket)
{
	struct load load = {.client = zc_unit_client(unit), .data = data, .stream = stream};
	uint32_t deadline_ms = 0;
	ZC_INSIDE(load.client);
	int rc = zc_enter_group(zc_unit_group(unit), &load.err);

	if (rc)
		return rc;
	load.unit = unit->shared;
	rc = zc_wait_options(options, &deadline_ms, load.err);
	load.deadline_ns = zc_until_ns(zc_deadline_ms(load.client, deadline_ms));
	if (!rc)
		rc = zc_streams_check_poison(load.client, load.err);
	if (!rc)
		rc = zc_stream_check(load.client, stream, load.err);
	if (!rc)
		rc = check_load(&load);
	if (!rc && data)
		rc = bring_data(&load);
	return rc ? rc : send_load(&load, ticket);
}
