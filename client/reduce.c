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
	zc_buckets_forget(group);
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
	zc_bucket_free(bucket);
	pthread_mutex_unlock(&client->lock);
	return 0;
}

/* ---- Entries ------------------------------------------------------------------------------------------- */

static void free_reserved(struct zc_reserved *reserved)
{
	zc_fences_deinit(&reserved->fences);
	free(reserved);
}

static void forget_reserved(struct zerod_bucket *bucket)
{
	struct zc_reserved *reserved;

	while ((reserved = LIST_FIRST(&bucket->reserved))) {
		LIST_REMOVE(reserved, link);
		free_reserved(reserved);
	}
}

void zc_buckets_forget(struct zerod_group *group)
{
	struct zerod_bucket *bucket;

	LIST_FOREACH (bucket, &group->buckets, link)
		forget_reserved(bucket);
}

void zc_bucket_free(struct zerod_bucket *bucket)
{
	forget_reserved(bucket);
	LIST_REMOVE(bucket, link);
	free(bucket);
}

struct reservation {
	struct zerod_bucket *bucket;
	const struct zc_unit *unit;
	struct zc_reserved *reserved;
	struct zd_err *err;
};

/* What the daemon has reserved for an earlier call, which failed then. NULL: nothing. */
static struct zc_reserved *find_reserved(struct zerod_bucket *bucket, uint64_t unit)
{
	struct zerod_client *client = bucket->group->client;
	struct zc_reserved *reserved;

	pthread_mutex_lock(&client->lock);
	LIST_FOREACH (reserved, &bucket->reserved, link)
		if (reserved->unit == unit)
			break;
	if (reserved)
		LIST_REMOVE(reserved, link);
	pthread_mutex_unlock(&client->lock);
	return reserved;
}

static int take_reservation(const Zd__Reply *reply, void *arg)
{
	struct reservation *reservation = arg;
	struct zc_reserved *reserved = reservation->reserved;
	struct zerod_client *client = reservation->bucket->group->client;
	size_t align = zerod_dtype_bytes(reservation->bucket->dtype);
	const Zd__BucketReserveReply *from;
	int rc = zc_check_body(reply, ZD__REPLY__BODY_BUCKET_RESERVE, reservation->err);

	if (rc)
		return rc;
	from = reply->bucket_reserve;
	reserved->entry = from->entry;
	pthread_mutex_lock(&client->lock);
	rc = zc_location_take(client, from->location, reservation->unit->padded_numel * align, align,
	                      &reserved->location, reservation->err);
	pthread_mutex_unlock(&client->lock);
	return rc ? rc
	          : zc_fences_take(client, from->n_fences, from->fences, &reserved->fences, reservation->err);
}

static int ask_for_room(struct reservation *reservation)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__BucketReserve reserve = ZD__BUCKET_RESERVE__INIT;
	int rc;

	reservation->reserved = calloc(1, sizeof(*reservation->reserved));
	if (!reservation->reserved)
		return zd_err_errno(reservation->err, ENOMEM, "reserving room for a gradient");
	reservation->reserved->unit = reservation->unit->id;
	reserve.bucket = reservation->bucket->id;
	reserve.unit = reservation->unit->id;
	request.body_case = ZD__REQUEST__BODY_BUCKET_RESERVE;
	request.bucket_reserve = &reserve;
	rc = zc_call(reservation->bucket->group->client, &request, 0, take_reservation, reservation);
	if (rc)
		free_reserved(reservation->reserved);
	return rc;
}

/* The slot's former content may still be on its way: the caller writes when that has ended. */
static int await_room(const struct reservation *reservation, void **data)
{
	struct zerod_client *client = reservation->bucket->group->client;
	char what[ZD_MAX_UNIT_NAME_BYTES + 48];
	int rc;

	pthread_mutex_lock(&client->lock);
	rc = zc_location_map(client, &reservation->reserved->location, data, reservation->err);
	pthread_mutex_unlock(&client->lock);
	if (rc)
		return rc;
	(void)snprintf(what, sizeof(what), "room for the gradient of unit '%s'", reservation->unit->name);
	return zc_fences_wait(client, &reservation->reserved->fences,
	                      zc_deadline_ns(zc_deadline_ms(client, 0)), what, reservation->err);
}

int zerod_bucket_reserve(zerod_bucket *bucket, zerod_unit *unit, struct zerod_entry *entry)
{
	struct zerod_client *client = bucket_client(bucket);
	struct reservation reservation = {.bucket = bucket};
	void *data;
	int rc = zc_enter(client, &reservation.err);

	if (!rc && (zc_unit_client(unit) != client || !entry))
		rc = zd_err_set(reservation.err, ZEROD_E_INVALID,
		                "unit or entry is NULL, or of another client");
	if (rc)
		return rc;
	reservation.unit = unit->shared;
	reservation.reserved = find_reserved(bucket, unit->shared->id);
	if (!reservation.reserved)
		rc = ask_for_room(&reservation);
	if (rc)
		return rc;
	rc = await_room(&reservation, &data);
	if (rc) {
		pthread_mutex_lock(&client->lock);
		LIST_INSERT_HEAD(&bucket->reserved, reservation.reserved, link);
		pthread_mutex_unlock(&client->lock);
		return rc;
	}
	*entry = (struct zerod_entry){
	        .id = reservation.reserved->entry,
	        .data = data,
	        .padded_numel = unit->shared->padded_numel,
	};
	free_reserved(reservation.reserved);
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
