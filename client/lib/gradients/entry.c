/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entry.c - gradients of units on their way into the daemon's buckets: reserve, submit, skip.
 *
 * A bucket lists every reservation from its request until the caller has the entry. The unit's next
 * reservation therefore finds an answer that arrived after the caller's deadline, or an entry whose memory
 * was not available in time. One thread at a time continues a listed reservation, which is `claimed` in this
 * time.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/base/enter.h"
#include "client/lib/base/errors.h"
#include "client/lib/base/ids.h"
#include "client/lib/base/options.h"
#include "client/lib/compute/cast.h"
#include "client/lib/conn/fence_wait.h"
#include "client/lib/gradients/bucket.h"
#include "client/lib/gradients/target.h"
#include "client/lib/segments/segment.h"

/* ---- Reservations -------------------------------------------------------------------------------------- */

/* With the lock. */
static int take_reservation(struct zerod_client *client, struct zc_op *op, const Zd__Reply *reply,
                            struct zd_err *err)
{
	struct zc_reserved *reserved = op->data;
	const Zd__BucketReserveReply *from = reply->bucket_reserve;
	size_t align;
	int rc;

	if (!reserved) /* the bucket was freed meanwhile */
		return 0;
	align = zerod_dtype_bytes(reserved->dtype);
	reserved->entry = from->entry;
	rc = zc_location_take(client, from->location, op->unit->padded_numel * align, align,
	                      &reserved->location, err);
	if (!rc)
		rc = zc_fences_take(client, from->n_fences, from->fences, &reserved->fences, err);
	reserved->op = NULL;
	op->data = NULL;
	if (rc)
		zc_reserved_free(reserved);
	return rc;
}

static void refused_reservation(struct zerod_client *client, struct zc_op *op)
{
	struct zc_reserved *reserved = op->data;

	(void)client;
	if (reserved)
		zc_reserved_free(reserved);
}

/* Only this file waits for these tickets. */
static const struct zc_ticket_type reservation_type = {
        .what = "the gradient of",
        .body = ZD__REPLY__BODY_BUCKET_RESERVE,
        .answered = take_reservation,
        .failed = refused_reservation,
};

struct reserving {
	struct zerod_client *client;
	struct zerod_bucket *bucket;
	const struct zerod_unit *unit;
	struct zerod_reserve_options options;
	struct zc_reserved *reserved;
	uint32_t deadline_ms;
	uint64_t deadline_ns; /* of the whole call */
	bool late;            /* the daemon has not answered in time */
	void *data;
	struct zd_err *err;
};

/* Finds the reservation that an earlier call has requested; NULL: none. With the lock. */
static struct zc_reserved *find_reserved(const struct reserving *reserving)
{
	struct zc_reserved *reserved;

	LIST_FOREACH (reserved, &reserving->bucket->reserved, link)
		if (reserved->unit == reserving->unit->shared && !reserved->claimed)
			break;
	return reserved;
}

/* Makes a request's op, and its place in the bucket's list. */
static struct zc_op *request_new(struct reserving *reserving)
{
	struct zc_reserved *reserved = calloc(1, sizeof(*reserved));
	struct zc_op *op;

	if (!reserved) {
		(void)zd_err_errno(reserving->err, ENOMEM, "reserving room for a gradient");
		return NULL;
	}
	op = zc_op_new_other(reserving->client, &reservation_type, reserved, reserving->unit->shared,
	                     reserving->deadline_ms, reserving->err);
	if (!op) {
		free(reserved);
		return NULL;
	}
	reserved->unit = reserving->unit->shared;
	reserved->dtype = reserving->bucket->dtype;
	reserved->op = op;
	reserved->claimed = true;
	reserving->reserved = reserved;
	ZC_LOCKED(&reserving->client->lock);
	op->refs++; /* ours */
	reserved->unit->refs++;
	reserved->made = reserving->client->next_id;
	LIST_INSERT_HEAD(&reserving->bucket->reserved, reserved, link);
	return op;
}

/* A failure to send is the op's answer. */
static void post_request(struct reserving *reserving, Zd__Request *request, struct zc_op *op)
{
	Zd__BucketReserve reserve = ZD__BUCKET_RESERVE__INIT;
	struct zd_err ignored;

	reserve.bucket = reserving->bucket->id;
	reserve.unit = reserving->unit->shared->id;
	reserve.ahead = reserving->options.stream != NULL;
	reserve.zero_holes = reserving->options.flags & ZEROD_RESERVE_ZERO_HOLES;
	request->bucket_reserve = &reserve;
	if (zc_post(reserving->client, op, request, &ignored))
		return;
	zc_flush(reserving->client); /* with the thread's batch, in one packet if it fits */
}

/* With the lock, which is released meanwhile, and a reference to the op, which is dropped. On success the
 * caller owns the reservation. */
static int await_request(struct reserving *reserving, struct zc_op *op)
{
	struct zerod_client *client = reserving->client;
	struct zc_reserved *reserved = reserving->reserved;
	int rc = 0;

	op->stale = false;
	if (!op->answered)
		rc = zc_wait_own_answer(client, op, zc_answer_ns(reserving->deadline_ns));
	if (rc) {
		reserving->late = true;
		op->stale = true; /* only the reservation has its answer */
		reserved->claimed = false;
		(void)zd_err_set(reserving->err, rc,
		                 "the daemon did not answer in time; the entry for the gradient of unit '%s' "
		                 "remains for the next call that reserves it",
		                 op->unit->name);
	} else if (op->status) {
		rc = zd_err_set(reserving->err, op->status, "%s",
		                op->error && op->error[0] ? op->error : zerod_status_name(op->status));
	}
	if (op->finished)
		zc_ticket_drop(client, op);
	zc_ticket_unref(client, op);
	return rc;
}

/* Continues the reservation of an earlier call. Returns true with the result in *rc. With the lock. */
static bool resume(struct reserving *reserving, int *rc)
{
	struct zc_op *op;

	for (;;) {
		reserving->reserved = find_reserved(reserving);
		*rc = 0;
		if (!reserving->reserved)
			return false;
		reserving->reserved->claimed = true;
		op = reserving->reserved->op;
		if (!op)
			return true;
		op->refs++;
		*rc = await_request(reserving, op);
		if (*rc == 0 || reserving->late || reserving->client->broken_status)
			return true;
		/* rejected later: it is requested again */
	}
}

/* Continues an entry that sums up gradients, like resume(). With the lock. */
static bool resume_sum(struct reserving *reserving, int *rc)
{
	*rc = zc_accumulation_find(reserving->bucket, reserving->unit->shared, &reserving->reserved,
	                           reserving->err);
	if (!*rc && reserving->reserved)
		reserving->reserved->sum->open = true;
	return *rc || reserving->reserved;
}

static int ask_for_room(struct reserving *reserving)
{
	Zd__Request request = ZD__REQUEST__INIT;
	struct zc_op *op;
	bool resumed = false;
	int rc;

	pthread_mutex_lock(&reserving->client->lock);
	if (reserving->options.flags & ZEROD_RESERVE_ACCUMULATE)
		resumed = resume_sum(reserving, &rc);
	if (!resumed)
		resumed = resume(reserving, &rc);
	pthread_mutex_unlock(&reserving->client->lock);
	if (resumed)
		return rc;
	request.body_case = ZD__REQUEST__BODY_BUCKET_RESERVE;
	request.deadline_ms = reserving->deadline_ms;
	rc = zc_outstanding_await(reserving->client, &request, reserving->deadline_ns, reserving->err);
	if (rc)
		return rc;
	op = request_new(reserving);
	if (op)
		post_request(reserving, &request, op);
	ZC_LOCKED(&reserving->client->lock);
	if (!op)
		zc_outstanding_return(reserving->client, 1);
	rc = !op ? ZEROD_E_SYSTEM : await_request(reserving, op);
	return rc;
}

/* The slot's former content may still be read: the stream, or the caller, waits. */
static int await_room(struct reserving *reserving)
{
	struct zerod_client *client = reserving->client;
	const struct zc_fences *fences = &reserving->reserved->fences;
	zerod_stream *stream = reserving->options.stream;
	struct zc_fences none = {.count = 0};
	struct zc_stream_wait wait = {.fences = fences, .copied = &none};
	char what[ZD_MAX_UNIT_NAME_BYTES + 48];

	if (zc_fences_poll(client, fences) == 1)
		return 0;
	if (stream)
		return stream->ops->wait(stream, &wait, reserving->err);
	(void)snprintf(what, sizeof(what), "room for the gradient of unit '%s'",
	               reserving->unit->shared->name);
	return zc_fences_wait(client, fences, zc_answer_ns(reserving->deadline_ns), what, reserving->err);
}

/* With the lock. The reservation is not used: the next call for the unit finds it. */
static void reserve_undo(struct reserving *reserving)
{
	struct zc_reserved *reserved = reserving->reserved;

	if (reserved->sum && reserved->sum->ngradients > 0) {
		reserved->sum->open = false;
		return;
	}
	LIST_REMOVE(reserved, link);
	LIST_INSERT_HEAD(&reserving->bucket->reserved, reserved, link);
	free(reserved->sum);
	reserved->sum = NULL;
	reserved->claimed = false;
}

/* Moves the reservation to the caller. With the lock. */
static int hand_over_room(struct reserving *reserving)
{
	struct zc_reserved *reserved = reserving->reserved;

	if (reserved->sum)
		return 0;
	if (reserving->options.flags & ZEROD_RESERVE_ACCUMULATE) {
		reserved->sum = calloc(1, sizeof(*reserved->sum));
		if (!reserved->sum)
			return zd_err_errno(reserving->err, ENOMEM, "reserving room for gradients");
		reserved->sum->open = true;
	}
	LIST_REMOVE(reserved, link);
	LIST_INSERT_HEAD(&reserving->bucket->given, reserved, link);
	return 0;
}

static int reserve_room(struct reserving *reserving)
{
	struct zerod_client *client = reserving->client;
	int rc = ask_for_room(reserving);

	if (rc)
		return rc;
	pthread_mutex_lock(&client->lock);
	rc = zc_stream_map(client, reserving->options.stream, &reserving->reserved->location,
	                   &reserving->data, reserving->err);
	pthread_mutex_unlock(&client->lock);
	if (!rc)
		rc = await_room(reserving);
	ZC_LOCKED(&client->lock);
	if (!rc)
		rc = hand_over_room(reserving);
	if (rc)
		reserve_undo(reserving);
	return rc;
}

static int reserve_init(struct reserving *reserving, struct zerod_client *client, zerod_bucket *bucket,
                        const zerod_unit *unit, const struct zerod_reserve_options *given)
{
	int rc = 0;

	*reserving =
	        (struct reserving){.client = client, .bucket = bucket, .unit = unit, .err = zc_err(client)};
	if (zc_unit_client(unit) != client)
		return zd_err_set(reserving->err, ZEROD_E_INVALID, "unit is NULL, or of another client");
	rc = zc_options(&reserving->options, sizeof(reserving->options), given, "zerod_reserve_options",
	                reserving->err);
	if (!rc)
		rc = zc_flags(reserving->options.flags, ZEROD_RESERVE_ZERO_HOLES | ZEROD_RESERVE_ACCUMULATE,
		              "zerod_reserve_options", reserving->err);
	if (!rc)
		rc = zc_stream_check(client, reserving->options.stream, reserving->err);
	reserving->deadline_ms = zc_deadline_ms(client, reserving->options.deadline_ms);
	reserving->deadline_ns = zc_until_ns(reserving->deadline_ms);
	return rc;
}

int zerod_bucket_reserve(zerod_bucket *bucket, zerod_unit *unit, const struct zerod_reserve_options *options,
                         struct zerod_entry *entry)
{
	struct zerod_client *client = zc_bucket_client(bucket);
	struct reserving reserving;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_group(bucket ? bucket->group : NULL, &err);

	if (!rc)
		rc = zc_result_check(entry, "entry", err);
	if (!rc)
		rc = reserve_init(&reserving, client, bucket, unit, options);
	if (!rc)
		rc = reserve_room(&reserving);
	if (rc)
		return rc;
	zc_result_fill(
	        entry,
	        &(struct zerod_entry){
	                .id = zc_id_give(client, reserving.reserved->entry),
	                .data = reserving.data,
	                .padded_numel = unit->shared->padded_numel,
	                .accumulates = reserving.reserved->sum && reserving.reserved->sum->ngradients > 0,
	        },
	        sizeof(*entry));
	return 0;
}

/* ---- Submit and skip ----------------------------------------------------------------------------------- */

static const struct zc_ticket_type submit_type = {.what = "the gradient of"};
static const struct zc_ticket_type skip_type = {.what = "the skip of"};

/* Finds the reservation that was returned to a caller under this id. With the lock. */
static struct zc_reserved *find_given(struct zerod_bucket *bucket, uint64_t entry_id)
{
	struct zc_reserved *given;

	LIST_FOREACH (given, &bucket->given, link)
		if (given->entry == entry_id)
			break;
	return given;
}

/* With the lock. Only the calling thread can end it, because the entry is the caller's. */
static struct zc_reserved *ref_given(struct zerod_client *client, struct zerod_bucket *bucket,
                                     uint64_t entry_id, struct zc_unit **unit)
{
	struct zc_reserved *given;
	ZC_LOCKED(&client->lock);

	given = find_given(bucket, entry_id);
	*unit = given ? given->unit : NULL;
	if (given)
		given->unit->refs++;
	return given;
}

/* Drops the reference. The entry is the daemon's, if it was submitted. */
static void given_end(struct zerod_client *client, struct zerod_bucket *bucket, uint64_t entry_id,
                      struct zc_unit *unit, bool submitted)
{
	struct zc_reserved *given;
	ZC_LOCKED(&client->lock);

	given = submitted ? find_given(bucket, entry_id) : NULL;
	if (given)
		zc_reserved_free(given);
	if (unit)
		zc_unit_unref(unit);
}

static int check_detached(bool detached, const zerod_ticket *ticket, struct zd_err *err)
{
	if (detached && ticket)
		return zd_err_set(err, ZEROD_E_INVALID, "a detached request has no ticket: expected NULL");
	return 0;
}

static int check_reduce_options(struct zerod_reduce_options *options,
                                const struct zerod_reduce_options *given, const zerod_ticket *ticket,
                                struct zd_err *err)
{
	int rc = zc_options(options, sizeof(*options), given, "zerod_reduce_options", err);

	if (!rc)
		rc = zc_flags(options->flags,
		              ZEROD_REDUCE_OVERWRITE | ZEROD_REDUCE_DETACHED | ZEROD_REDUCE_TERMS,
		              "zerod_reduce_options", err);
	if (!rc)
		rc = zc_reserved(options->reserved, "zerod_reduce_options", err);
	if (!rc && options->nabsent > 0 && !options->absent)
		rc = zd_err_set(err, ZEROD_E_INVALID, "absent is NULL, nabsent is %u", options->nabsent);
	if (!rc && options->nabsent > ZD_MAX_VIEWS)
		rc = zd_err_set(err, ZEROD_E_LIMIT, "%u absent views; at most %u", options->nabsent,
		                ZD_MAX_VIEWS);
	return rc ? rc : check_detached(options->flags & ZEROD_REDUCE_DETACHED, ticket, err);
}

int zerod_bucket_submit(zerod_bucket *bucket, uint64_t entry_id, zerod_stream *const *streams,
                        uint32_t nstreams, const struct zerod_reduce_options *given, zerod_ticket *ticket)
{
	struct zerod_client *client = zc_bucket_client(bucket);
	struct zc_sending sending = {.type = &submit_type, .word = "gradient", .ticket = ticket};
	struct zerod_reduce_options options;
	struct zc_fence_args fences;
	struct zc_reserved *reserved;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_group(bucket ? bucket->group : NULL, &err);

	if (!rc)
		rc = check_reduce_options(&options, given, ticket, err);
	if (!rc)
		rc = zc_id_take(client, entry_id, "entry", &entry_id, err);
	if (!rc)
		rc = zc_streams_fence(client, streams, nstreams, &fences, err);
	if (rc)
		return rc;
	sending.detached = options.flags & ZEROD_REDUCE_DETACHED;
	reserved = ref_given(client, bucket, entry_id, &sending.unit);
	rc = sending.unit ? zc_target_return(client, sending.unit, err) : 0;
	if (rc) {
		given_end(client, bucket, entry_id, sending.unit, false);
		return rc;
	}
	if (reserved && reserved->sum) {
		rc = zc_accumulation_add(client, reserved, &fences, &options, &sending, err);
		given_end(client, bucket, entry_id, sending.unit, false);
		return rc;
	}
	if (sending.detached && !sending.unit)
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "this client has not reserved entry %llu",
		                  ZD_ID_NUMBER(entry_id));
	rc = zc_entry_submit(client, bucket, entry_id, &fences, &options, &sending, err);
	given_end(client, bucket, entry_id, sending.unit, rc == 0);
	return rc;
}

int zerod_reduce_skip(zerod_unit *unit, const struct zerod_skip_options *given, zerod_ticket *ticket)
{
	struct zerod_client *client = zc_unit_client(unit);
	Zd__ReduceSkip skip = ZD__REDUCE_SKIP__INIT;
	Zd__Request request = ZD_REQUEST(REDUCE_SKIP, reduce_skip, &skip);
	struct zc_sending sending = {.type = &skip_type, .word = "skip", .ticket = ticket};
	struct zerod_skip_options options;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_group(zc_unit_group(unit), &err);

	if (!rc)
		rc = zc_options(&options, sizeof(options), given, "zerod_skip_options", err);
	if (!rc)
		rc = zc_flags(options.flags, ZEROD_SKIP_DETACHED, "zerod_skip_options", err);
	if (!rc)
		rc = check_detached(options.flags & ZEROD_SKIP_DETACHED, ticket, err);
	if (!rc)
		rc = zc_target_return(client, unit->shared, err);
	if (rc)
		return rc;
	sending.unit = unit->shared;
	sending.detached = options.flags & ZEROD_SKIP_DETACHED;
	skip.unit = unit->shared->id;
	return zc_entry_send(client, &sending, &request, options.deadline_ms, err);
}

/* ---- The whole way of a gradient ----------------------------------------------------------------------- */

static int check_data(const struct zerod_bucket *bucket, const zerod_unit *unit, const void *data,
                      struct zd_err *err)
{
	size_t each = zerod_dtype_bytes(bucket->dtype);

	if (!data)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s': data is NULL", unit->shared->name);
	if ((uintptr_t)data % each != 0)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s': data is not aligned for %s",
		                  unit->shared->name, zerod_dtype_name(bucket->dtype));
	return 0;
}

/* The stream must be of the kind and GPU of the rank's bucket, which is in the memory of its shards, except
 * for units on the host. zc_stream_map() checks the entry itself. */
static int check_stream(struct zerod_client *client, const zerod_unit *unit, const zerod_stream *stream,
                        struct zd_err *err)
{
	struct zc_segment *segment;
	int rc = 0;

	if (!stream)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s': stream is NULL", unit->shared->name);
	if (!stream->ops->convert == client->on_gpus)
		return zd_err_set(err, ZEROD_E_INVALID, "the buckets are %s, the stream is %s",
		                  client->on_gpus ? "on a GPU" : "in host memory",
		                  client->on_gpus ? "a host stream" : "a GPU's");
	ZC_LOCKED(&client->lock);
	segment = zc_segment_find(client, unit->shared->shard.segment);
	if (segment && !segment->is_file && stream->ops->reach)
		rc = stream->ops->reach(stream, segment, err);
	return rc;
}

/* Behind the copy. The next reservation finds the entry if that fails. */
static int copy_and_submit(struct reserving *reserving, const void *data,
                           const struct zerod_reduce_options *options, const struct zc_sending *sending)
{
	struct zerod_client *client = reserving->client;
	struct zc_reserved *reserved = reserving->reserved;
	zerod_stream *stream = reserving->options.stream;
	struct zc_conversion copy = {.from_dtype = reserving->bucket->dtype,
	                             .to_dtype = reserving->bucket->dtype,
	                             .from = data,
	                             .to = reserving->data,
	                             .numel = reserving->unit->shared->numel};
	struct zc_fence_args fences;
	int rc = zc_stream_copy(stream, &copy, reserving->err);

	if (!rc)
		rc = zc_streams_fence(client, &stream, 1, &fences, reserving->err);
	if (!rc)
		rc = zc_target_return(client, reserving->unit->shared, reserving->err);
	if (!rc)
		rc = zc_entry_submit(client, reserving->bucket, reserved->entry, &fences, options, sending,
		                     reserving->err);
	ZC_LOCKED(&client->lock);
	if (rc && !client->broken_status)
		reserve_undo(reserving);
	else
		zc_reserved_free(reserved);
	return rc;
}

int zerod_reduce(zerod_bucket *bucket, zerod_unit *unit, const void *data, zerod_stream *stream,
                 const struct zerod_reduce_options *given, zerod_ticket *ticket)
{
	struct zerod_client *client = zc_bucket_client(bucket);
	struct zc_sending sending = {.type = &submit_type, .word = "gradient", .ticket = ticket};
	struct zerod_reserve_options reserve_options = ZEROD_INIT(reserve_options);
	struct zerod_reduce_options options;
	struct reserving reserving;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_group(bucket ? bucket->group : NULL, &err);

	if (!rc)
		rc = check_reduce_options(&options, given, ticket, err);
	if (rc)
		return rc;
	reserve_options.stream = stream;
	reserve_options.deadline_ms = options.deadline_ms;
	rc = reserve_init(&reserving, client, bucket, unit, &reserve_options);
	if (!rc)
		rc = check_data(bucket, unit, data, err);
	if (!rc)
		rc = check_stream(client, unit, stream, err);
	if (!rc)
		rc = reserve_room(&reserving);
	if (rc)
		return rc;
	sending.unit = unit->shared;
	sending.detached = options.flags & ZEROD_REDUCE_DETACHED;
	return copy_and_submit(&reserving, data, &options, &sending);
}
