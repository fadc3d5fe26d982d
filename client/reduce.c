/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.c - gradients: buckets and their entries, and the bounds of a backward. */
#include "client/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define DEFAULT_STAGE      3u
#define DEFAULT_SLOT_BYTES (32ull << 20)
#define DEFAULT_NSLOTS     2u

/* ---- Backward ------------------------------------------------------------------------------------------ */

int zerod_backward_begin(zerod_group *group, const struct zerod_backward_options *given)
{
	struct zerod_client *client = zc_group_client(group);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__BackwardBegin begin = ZD__BACKWARD_BEGIN__INIT;
	struct zerod_backward_options options;
	struct zd_err *err;
	int rc = zc_enter(client, &err);

	if (!rc)
		rc = zc_options(&options, sizeof(options), given, "zerod_backward_options", err);
	if (!rc)
		rc = zc_check_poison(client, err);
	if (rc)
		return rc;
	begin.group = group->id;
	begin.stage = options.stage ? options.stage : DEFAULT_STAGE;
	begin.boundary = options.boundary != 0;
	begin.target_dtype = options.target_dtype ? options.target_dtype : ZEROD_FLOAT32;
	request.body_case = ZD__REQUEST__BODY_BACKWARD_BEGIN;
	request.backward_begin = &begin;
	rc = zc_call(client, &request, 0, NULL, NULL);
	if (rc)
		return rc;
	pthread_mutex_lock(&client->lock);
	group->target_bound = false; /* a step that the group's failure has left is given up */
	pthread_mutex_unlock(&client->lock);
	return 0;
}

int zerod_backward_end(zerod_group *group)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__BackwardEnd end = ZD__BACKWARD_END__INIT;
	struct zd_err *err;
	int rc = zc_enter(zc_group_client(group), &err);

	if (rc)
		return rc;
	end.group = group->id;
	request.body_case = ZD__REQUEST__BODY_BACKWARD_END;
	request.backward_end = &end;
	return zc_call(group->client, &request, 0, NULL, NULL);
}

/* ---- Buckets ------------------------------------------------------------------------------------------- */

static struct zerod_client *bucket_client(const struct zerod_bucket *bucket)
{
	return bucket ? bucket->group->client : NULL;
}

struct creation {
	struct zerod_bucket *bucket;
	struct zd_err *err;
};

static int take_creation(const Zd__Reply *reply, void *arg)
{
	struct creation *creation = arg;
	int rc = zc_check_body(reply, ZD__REPLY__BODY_BUCKET_CREATE, creation->err);

	if (!rc)
		creation->bucket->id = reply->bucket_create->bucket;
	return rc;
}

int zerod_bucket_create(zerod_group *group, const struct zerod_bucket_options *given, zerod_bucket **bucket)
{
	struct zerod_client *client = zc_group_client(group);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__BucketCreate create = ZD__BUCKET_CREATE__INIT;
	struct zerod_bucket_options options;
	struct creation creation;
	int rc = zc_enter(client, &creation.err);

	if (!rc && (!given || !bucket))
		rc = zd_err_set(creation.err, ZEROD_E_INVALID, "options or bucket is NULL");
	if (!rc)
		rc = zc_options(&options, sizeof(options), given, "zerod_bucket_options", creation.err);
	if (!rc && zerod_dtype_bytes(options.dtype) == 0)
		rc = zd_err_set(creation.err, ZEROD_E_INVALID, "bucket: there is no dtype %d",
		                (int)options.dtype);
	if (rc)
		return rc;
	creation.bucket = calloc(1, sizeof(*creation.bucket));
	if (!creation.bucket)
		return zd_err_errno(creation.err, ENOMEM, "creating a bucket");
	create.group = group->id;
	create.dtype = options.dtype;
	create.slot_bytes = options.slot_bytes ? options.slot_bytes : DEFAULT_SLOT_BYTES;
	create.nslots = options.nslots ? options.nslots : DEFAULT_NSLOTS;
	request.body_case = ZD__REQUEST__BODY_BUCKET_CREATE;
	request.bucket_create = &create;
	rc = zc_call(client, &request, 0, take_creation, &creation);
	if (rc) {
		free(creation.bucket);
		return rc;
	}
	creation.bucket->group = group;
	creation.bucket->dtype = options.dtype;
	pthread_mutex_lock(&client->lock);
	LIST_INSERT_HEAD(&group->buckets, creation.bucket, link);
	pthread_mutex_unlock(&client->lock);
	*bucket = creation.bucket;
	return 0;
}

int zerod_bucket_destroy(zerod_bucket *bucket)
{
	struct zerod_client *client = bucket_client(bucket);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__BucketDestroy destroy = ZD__BUCKET_DESTROY__INIT;
	struct zd_err *err;
	int rc = zc_enter(client, &err);

	if (rc)
		return rc;
	destroy.bucket = bucket->id;
	request.body_case = ZD__REQUEST__BODY_BUCKET_DESTROY;
	request.bucket_destroy = &destroy;
	rc = zc_call(client, &request, 0, NULL, NULL);
	if (rc)
		return rc;
	pthread_mutex_lock(&client->lock);
	LIST_REMOVE(bucket, link);
	pthread_mutex_unlock(&client->lock);
	free(bucket);
	return 0;
}

/* ---- Entries ------------------------------------------------------------------------------------------- */

struct reservation {
	struct zerod_bucket *bucket;
	const struct zc_unit *unit;
	struct zd_err *err;
	uint64_t id;
	void *data;
	struct zc_fences fences;
};

static int take_reservation(const Zd__Reply *reply, void *arg)
{
	struct reservation *reservation = arg;
	struct zerod_client *client = reservation->bucket->group->client;
	size_t align = zerod_dtype_bytes(reservation->bucket->dtype);
	const Zd__BucketReserveReply *reserved;
	struct zc_location location;
	int rc = zc_check_body(reply, ZD__REPLY__BODY_BUCKET_RESERVE, reservation->err);

	if (rc)
		return rc;
	reserved = reply->bucket_reserve;
	pthread_mutex_lock(&client->lock);
	rc = zc_location_take(client, reserved->location, reservation->unit->padded_numel * align, align,
	                      &location, reservation->err);
	if (!rc)
		rc = zc_location_map(client, &location, &reservation->data, reservation->err);
	pthread_mutex_unlock(&client->lock);
	if (!rc)
		rc = zc_fences_take(client, reserved->n_fences, reserved->fences, &reservation->fences,
		                    reservation->err);
	reservation->id = reserved->entry;
	return rc;
}

/* The slot's former content may still be on its way: the caller writes when that has ended. */
static int await_room(struct zerod_client *client, struct reservation *reservation)
{
	char what[ZD_MAX_UNIT_NAME_BYTES + 48];
	int rc;

	(void)snprintf(what, sizeof(what), "room for the gradient of unit '%s'", reservation->unit->name);
	rc = zc_fences_wait(client, &reservation->fences, zc_deadline_ns(zc_deadline_ms(client, 0)), what,
	                    reservation->err);
	zc_fences_deinit(&reservation->fences);
	return rc;
}

int zerod_bucket_reserve(zerod_bucket *bucket, zerod_unit *unit, struct zerod_entry *entry)
{
	struct zerod_client *client = bucket_client(bucket);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__BucketReserve reserve = ZD__BUCKET_RESERVE__INIT;
	struct reservation reservation = {.bucket = bucket};
	int rc = zc_enter(client, &reservation.err);

	if (!rc && (zc_unit_client(unit) != client || !entry))
		rc = zd_err_set(reservation.err, ZEROD_E_INVALID,
		                "unit or entry is NULL, or of another client");
	if (rc)
		return rc;
	reservation.unit = unit->shared;
	reserve.bucket = bucket->id;
	reserve.unit = unit->shared->id;
	request.body_case = ZD__REQUEST__BODY_BUCKET_RESERVE;
	request.bucket_reserve = &reserve;
	rc = zc_call(client, &request, 0, take_reservation, &reservation);
	if (!rc)
		rc = await_room(client, &reservation);
	if (rc)
		return rc;
	*entry = (struct zerod_entry){
	        .id = reservation.id,
	        .data = reservation.data,
	        .padded_numel = unit->shared->padded_numel,
	};
	return 0;
}

int zerod_bucket_commit(zerod_bucket *bucket, uint64_t entry_id, zerod_stream *const *streams,
                        uint32_t nstreams, const struct zerod_reduce_options *given)
{
	struct zerod_client *client = bucket_client(bucket);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__BucketCommit commit = ZD__BUCKET_COMMIT__INIT;
	struct zerod_reduce_options options;
	struct zc_fence_args fences;
	struct zd_err *err;
	int rc = zc_enter(client, &err);

	if (!rc)
		rc = zc_options(&options, sizeof(options), given, "zerod_reduce_options", err);
	if (!rc)
		rc = zc_flags(options.flags, ZEROD_REDUCE_OVERWRITE, "zerod_reduce_options", err);
	if (!rc)
		rc = zc_streams_fence(client, streams, nstreams, &fences, err);
	if (rc)
		return rc;
	commit.bucket = bucket->id;
	commit.entry = entry_id;
	commit.n_fences = fences.count;
	commit.fences = fences.pointers;
	commit.op = options.op;
	commit.prescale = options.prescale;
	commit.overwrite = options.flags & ZEROD_REDUCE_OVERWRITE;
	request.body_case = ZD__REQUEST__BODY_BUCKET_COMMIT;
	request.bucket_commit = &commit;
	return zc_call(client, &request, 0, NULL, NULL);
}

int zerod_reduce_skip(zerod_unit *unit)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__ReduceSkip skip = ZD__REDUCE_SKIP__INIT;
	struct zd_err *err;
	int rc = zc_enter(zc_unit_client(unit), &err);

	if (rc)
		return rc;
	skip.unit = unit->shared->id;
	request.body_case = ZD__REQUEST__BODY_REDUCE_SKIP;
	request.reduce_skip = &skip;
	return zc_call(unit->group->client, &request, 0, NULL, NULL);
}
