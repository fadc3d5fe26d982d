/* SPDX-License-Identifier: Apache-2.0 */
/* read.c - reads of a group's last commit, by copies and by mappings. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zerod_read.h>

#include "client/lib/base/enter.h"
#include "client/lib/base/handles.h"
#include "client/lib/base/interrupt.h"
#include "client/lib/base/options.h"
#include "client/lib/calls/alloc.h"
#include "client/lib/calls/read.h"
#include "client/lib/conn/request.h"
#include "client/lib/device/device.h"
#include "client/lib/segments/segment.h"

#define BUSY_US 200 /* a shard is saved in less than that, if it is small */

struct committed {
	struct zerod_committed made;
	bool saved; /* of a host copy */
};

static int take_committed(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	struct committed *committed = object;

	return zc_commit_wait_take(reply, committed->saved, &committed->made, err);
}

int zc_commit_wait_take(const Zd__Reply *reply, bool saved, struct zerod_committed *made, struct zd_err *err)
{
	made->group = reply->commit_wait->group;
	made->step = reply->commit_wait->step;
	if (saved && !reply->commit_wait->saved)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED, "the daemon is older: it has no host copies");
	return 0;
}

int zc_commit_wait_make(const struct zerod_commit_source *given, uint64_t after, Zd__CommitWait *wait,
                        uint32_t *deadline_ms, struct zd_err *err)
{
	struct zerod_commit_source source;
	int rc = zc_options(&source, sizeof(source), given, "zerod_commit_source", err);

	if (!rc && !source.job)
		rc = zd_err_set(err, ZEROD_E_INVALID, "job is NULL");
	if (!rc)
		rc = zc_flags(source.flags, ZEROD_COMMIT_PIN | ZEROD_COMMIT_SAVED, "zerod_commit_source",
		              err);
	if (!rc && source.pin_ms && !(source.flags & ZEROD_COMMIT_PIN))
		rc = zd_err_set(err, ZEROD_E_INVALID, "pin_ms is %u without ZEROD_COMMIT_PIN", source.pin_ms);
	if (rc)
		return rc;
	wait->job = (char *)source.job;
	wait->group = (char *)(source.group ? source.group : "world");
	wait->uid = source.uid;
	wait->after = after;
	wait->pin = source.flags & ZEROD_COMMIT_PIN;
	wait->pin_ms = source.pin_ms;
	wait->saved = (source.flags & ZEROD_COMMIT_SAVED) != 0;
	*deadline_ms = source.deadline_ms;
	return 0;
}

int zerod_commit_wait(zerod_client *client, const struct zerod_commit_source *source, uint64_t after,
                      struct zerod_committed *committed)
{
	Zd__CommitWait wait = ZD__COMMIT_WAIT__INIT;
	Zd__Request request = ZD_REQUEST(COMMIT_WAIT, commit_wait, &wait);
	struct committed result = {0};
	struct zd_err *err;
	uint32_t deadline_ms = 0;
	ZC_INSIDE(client);
	int rc = zc_enter(client, &err);

	if (!rc)
		rc = zc_result_check(committed, "committed", err);
	if (!rc)
		rc = zc_commit_wait_make(source, after, &wait, &deadline_ms, err);
	if (rc)
		return rc;
	result.saved = wait.saved;
	rc = zc_call_take(client, &request, deadline_ms, ZD__REPLY__BODY_COMMIT_WAIT, take_committed,
	                  &result);
	if (!rc)
		zc_result_fill(committed, &result.made, sizeof(result.made));
	return rc;
}

static const struct zc_ticket_type save_type = {.what = "a host copy"};

int zerod_commit_save(zerod_group *group, uint64_t step, const struct zerod_wait_options *options,
                      zerod_ticket *ticket)
{
	struct zerod_client *client = zc_group_client(group);
	Zd__CommitSave save = ZD__COMMIT_SAVE__INIT;
	Zd__Request request = ZD_REQUEST(COMMIT_SAVE, commit_save, &save);
	uint32_t deadline_ms;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_group(group, &err);

	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, err);
	if (rc)
		return rc;
	save.group = group->id;
	save.step = step;
	if (!ticket)
		return zc_call(client, &request, deadline_ms, NULL, NULL);
	return zc_post_other(client, &save_type, NULL, NULL, &request, deadline_ms, ticket, err);
}

struct info {
	struct zerod_unit_info made;
	uint64_t rows_bytes; /* of several rows, which an older daemon does not copy */
};

static int take_info(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	struct info *info = object;

	if (reply->unit_read->copied_bytes < info->rows_bytes)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "the daemon is older, and copies one row of a read");
	info->made.numel = reply->unit_read->numel;
	info->made.dtype = (enum zerod_dtype)reply->unit_read->dtype;
	return 0;
}

static int check_read(const struct zerod_client *client, const struct zerod_unit_read_options *options,
                      struct zd_err *err)
{
	int rc = zc_reserved(options->reserved, "zerod_unit_read_options", err);

	if (rc)
		return rc;
	if (!options->unit)
		return zd_err_set(err, ZEROD_E_INVALID, "unit is NULL");
	if (!options->into)
		return options->bytes == 0 ? 0 : zd_err_set(err, ZEROD_E_INVALID, "into is NULL");
	if (options->into->client != client)
		return zd_err_set(err, ZEROD_E_INVALID, "into is of another client");
	if (options->into->id == 0)
		return zd_err_set(err, ZEROD_E_RESTARTED, "the allocation ended with the daemon before");
	return 0;
}

/* Repeats the request while a shard is saved or moved. */
static int call_read(zerod_client *client, Zd__UnitRead *read, uint32_t deadline_ms, zc_take_fn *take,
                     void *object, struct zd_err *err)
{
	Zd__Request request = ZD_REQUEST(UNIT_READ, unit_read, read);
	uint64_t until = zc_until_ns(zc_deadline_ms(client, deadline_ms)), ask_ns = zc_ask_from(client);
	bool busy;
	int rc;

	do {
		rc = zc_call_take(client, &request, deadline_ms, ZD__REPLY__BODY_UNIT_READ, take, object);
		busy = rc == ZEROD_E_BUSY && zc_now_ns() < until;
		if (busy && zc_ask(client, &ask_ns))
			return zd_err_set(err, ZEROD_E_INTERRUPTED,
			                  "waited for a shard of unit '%s' to be saved or moved", read->unit);
		if (busy)
			(void)usleep(BUSY_US);
	} while (busy);
	return rc;
}

int zerod_unit_read(zerod_client *client, const struct zerod_unit_read_options *given,
                    struct zerod_unit_info *info)
{
	Zd__UnitRead read = ZD__UNIT_READ__INIT;
	struct zerod_unit_read_options options;
	struct info result = {0};
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter(client, &err);

	if (!rc)
		rc = zc_options(&options, sizeof(options), given, "zerod_unit_read_options", err);
	if (!rc && info)
		rc = zc_result_check(info, "info", err);
	if (!rc)
		rc = check_read(client, &options, err);
	if (rc)
		return rc;
	read.group = options.group;
	read.unit = (char *)options.unit;
	read.step = options.step;
	read.offset = options.offset_bytes;
	read.bytes = options.bytes;
	read.rows = options.rows;
	read.stride = options.stride_bytes;
	if (options.rows > 1 && __builtin_mul_overflow(options.rows, options.bytes, &result.rows_bytes))
		result.rows_bytes = UINT64_MAX; /* the daemon rejects it */
	read.allocation = options.into ? options.into->id : 0;
	read.allocation_offset = options.into_offset_bytes;
	rc = call_read(client, &read, options.deadline_ms, take_info, &result, err);
	if (!rc && info)
		zc_result_fill(info, &result.made, sizeof(result.made));
	return rc;
}

/* ---- Mappings ------------------------------------------------------------------------------------------ */

struct place {
	struct zerod_mapped *mapped; /* its segment is NULL: there is nothing to map */
	const void *data;
	uint64_t bytes;
};

/* With the lock. */
static int map_place(const Zd__Location *from, struct place *place, struct zd_err *err)
{
	struct zerod_client *client = place->mapped->client;
	struct zc_location location;
	int rc = 0;

	if (!zc_segment_find(client, from->segment)) /* it was given back before this thread had the reply */
		rc = zd_err_set(err, ZEROD_E_STALE, "the bytes were freed just now");
	if (!rc)
		rc = zc_location_take(client, from, place->bytes, 1, &location, err);
	if (!rc)
		rc = zc_location_map_read(client, &location, &place->data, err);
	if (rc)
		return rc;
	place->mapped->segment = zc_segment_find(client, location.segment);
	place->mapped->segment->nmapped++;
	LIST_INSERT_HEAD(&client->mapped, place->mapped, link);
	return 0;
}

static int take_place(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	struct place *place = object;
	struct zerod_mapped *mapped = place->mapped;

	place->bytes = reply->unit_read->mapped_bytes;
	if (place->bytes == 0)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED, "the daemon is older, and maps no reads");
	if (place->bytes > mapped->request.map_bytes)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon maps %llu bytes instead of %llu",
		                  (unsigned long long)place->bytes,
		                  (unsigned long long)mapped->request.map_bytes);
	if (!reply->unit_read->place)
		return 0;
	mapped->request.map_bytes = place->bytes;
	mapped->request.mapped = reply->unit_read->mapped;
	ZC_LOCKED(&mapped->client->lock);
	return map_place(reply->unit_read->place, place, err);
}

/* NULL: SYSTEM. */
static struct zerod_mapped *mapped_new(struct zerod_client *client,
                                       const struct zerod_unit_map_options *options, struct zd_err *err)
{
	struct zerod_mapped *mapped = calloc(1, sizeof(*mapped));
	char *unit = strdup(options->unit);

	if (!mapped || !unit) {
		free(mapped);
		free(unit);
		(void)zd_err_errno(err, ENOMEM, "mapping a unit");
		return NULL;
	}
	mapped->client = client;
	mapped->request = (Zd__UnitRead)ZD__UNIT_READ__INIT;
	mapped->request.group = options->group;
	mapped->request.unit = unit;
	mapped->request.step = options->step;
	mapped->request.offset = options->offset_bytes;
	mapped->request.map_bytes = options->bytes;
	mapped->request.device = options->device;
	return mapped;
}

static void free_unlisted(struct zerod_mapped *mapped)
{
	free(mapped->request.unit);
	free(mapped);
}

void zc_mapped_free(struct zerod_mapped *mapped)
{
	LIST_REMOVE(mapped, link);
	free_unlisted(mapped);
}

int zerod_unit_map(zerod_client *client, const struct zerod_unit_map_options *given, zerod_mapped **mapped,
                   const void **data, uint64_t *bytes)
{
	struct zerod_unit_map_options options;
	struct place place = {0};
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter(client, &err);

	if (!rc && (!mapped || !data || !bytes))
		rc = zd_err_set(err, ZEROD_E_INVALID, "mapped, data or bytes is NULL");
	if (!rc)
		rc = zc_options(&options, sizeof(options), given, "zerod_unit_map_options", err);
	if (!rc && (!options.unit || options.bytes == 0))
		rc = zd_err_set(err, ZEROD_E_INVALID, "unit is NULL, or bytes is 0");
	if (!rc)
		rc = zc_device_join(client, options.device, err);
	if (rc)
		return rc;
	place.mapped = mapped_new(client, &options, err);
	if (!place.mapped)
		return ZEROD_E_SYSTEM;
	rc = call_read(client, &place.mapped->request, options.deadline_ms, take_place, &place, err);
	if (!rc) {
		*mapped = place.data ? place.mapped : NULL;
		*data = place.data;
		*bytes = place.bytes;
	}
	if (!place.data)
		free_unlisted(place.mapped);
	return rc;
}

static void end_mapping(struct zerod_mapped *mapped)
{
	struct zerod_client *client = mapped->client;
	struct zd_err err;

	pthread_mutex_lock(&client->lock);
	if (zc_segment_unread(client, mapped->segment, &err))
		zc_break(client, &err);
	zc_mapped_free(mapped);
	pthread_mutex_unlock(&client->lock);
	zc_transmit_unmapped(client);
}

int zerod_unit_map_end(zerod_mapped *mapped)
{
	struct zerod_client *client = mapped ? mapped->client : NULL;
	Zd__Request request = ZD_REQUEST(UNIT_READ, unit_read, mapped ? &mapped->request : NULL);
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_quietly(client, &err);

	if (!mapped || rc == ZEROD_E_FORKED)
		return rc;
	if (!rc)
		rc = zc_call(client, &request, 0, NULL, NULL);
	end_mapping(mapped);
	return rc;
}
