/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.c - gradients: buckets and their entries, and the bounds of a backward. */
#include <errno.h>
#include <stdlib.h>

#include "client/lib/base/detached.h"
#include "client/lib/base/enter.h"
#include "client/lib/base/options.h"
#include "client/lib/conn/repeat.h"
#include "client/lib/gradients/bucket.h"
#include "client/lib/gradients/step.h"
#include "client/lib/gradients/target.h"

#define DEFAULT_STAGE      3u
#define DEFAULT_SLOT_BYTES (32ull << 20)
#define DEFAULT_NSLOTS     2u

/* ---- Backward ------------------------------------------------------------------------------------------ */

/* Forgets the target, and the reservations made before the request, which the group's failure has ended. With
 * the lock. */
static void begun(struct zerod_group *group, const Zd__BackwardBeginReply *reply, uint64_t request)
{
	group->target_bound = false;
	group->nbackwards++;
	if (reply->first)
		zc_targets_forget(group);
	zc_buckets_forget(group, request);
}

struct beginning {
	struct zerod_group *group;
	struct zd_err *err;
};

static int take_backward(const Zd__Reply *reply, void *arg)
{
	struct beginning *beginning = arg;
	struct zerod_client *client = beginning->group->client;
	int rc = zc_check_body(reply, ZD__REPLY__BODY_BACKWARD_BEGIN, beginning->err);

	if (rc)
		return rc;
	pthread_mutex_lock(&client->lock);
	begun(beginning->group, reply->backward_begin, UINT64_MAX);
	pthread_mutex_unlock(&client->lock);
	return 0;
}

static int begin_answered(struct zerod_client *client, struct zc_op *op, const Zd__Reply *reply,
                          struct zd_err *err)
{
	const uint64_t *id = op->data;
	struct zerod_group *group = zc_group_find(client, *id);
	int rc = zc_check_body(reply, ZD__REPLY__BODY_BACKWARD_BEGIN, err);

	if (!rc && group)
		begun(group, reply->backward_begin, op->id);
	return rc;
}

static const struct zc_ticket_type begin_type = {
        .what = "the beginning of a backward",
        .answered = begin_answered,
        .deinit = zc_ticket_free_data,
};

int zerod_backward_begin(zerod_group *group, const struct zerod_backward_options *given)
{
	struct zerod_client *client = zc_group_client(group);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__BackwardBegin begin = ZD__BACKWARD_BEGIN__INIT;
	struct zerod_backward_options options;
	struct beginning beginning = {.group = group};
	uint64_t deadline_ns;
	ZC_INSIDE(client);
	int rc = zc_enter_group(group, &beginning.err);

	if (!rc)
		rc = zc_options(&options, sizeof(options), given, "zerod_backward_options", beginning.err);
	if (!rc)
		rc = zc_flags(options.flags, ZEROD_BACKWARD_DETACHED, "zerod_backward_options",
		              beginning.err);
	if (!rc)
		rc = zc_reserved(options.reserved, "zerod_backward_options", beginning.err);
	if (!rc)
		rc = zc_streams_check_poison(client, beginning.err);
	if (!rc)
		rc = zc_backward_report(group, beginning.err);
	if (rc)
		return rc;
	deadline_ns = zc_until_ns(zc_deadline_ms(client, options.deadline_ms));
	rc = zc_step_await(group, 1, deadline_ns, beginning.err);
	if (rc)
		return rc;
	options.deadline_ms = zc_left_ms(deadline_ns);
	begin.group = group->id;
	begin.stage = options.stage ? options.stage : DEFAULT_STAGE;
	begin.boundary = options.boundary != 0;
	begin.target_dtype = options.target_dtype ? options.target_dtype : ZEROD_FLOAT32;
	request.body_case = ZD__REQUEST__BODY_BACKWARD_BEGIN;
	request.backward_begin = &begin;
	if (options.flags & ZEROD_BACKWARD_DETACHED) {
		request.deadline_ms = zc_deadline_ms(client, options.deadline_ms);
		return zc_post_for_group(group, &begin_type, "zerod_backward_begin()", &request, NULL,
		                         beginning.err);
	}
	return zc_call(client, &request, options.deadline_ms, take_backward, &beginning);
}

static const struct zc_ticket_type end_type = {.what = "the end of a backward"};

int zerod_backward_end(zerod_group *group, const struct zerod_backward_end_options *given,
                       zerod_ticket *ticket)
{
	struct zerod_client *client = zc_group_client(group);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__BackwardEnd end = ZD__BACKWARD_END__INIT;
	struct zerod_backward_end_options options;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_group_quietly(group, &err);

	if (!rc)
		rc = zc_options(&options, sizeof(options), given, "zerod_backward_end_options", err);
	if (!rc)
		rc = zc_flags(options.flags, ZEROD_BACKWARD_SKIP_REST, "zerod_backward_end_options", err);
	if (rc)
		return rc;
	rc = zc_accumulations_submit(group, err);
	if (!rc && (options.flags & ZEROD_BACKWARD_SKIP_REST))
		rc = zc_targets_return(group, true, err);
	if (rc)
		return rc;
	end.group = group->id;
	end.skip_rest = options.flags & ZEROD_BACKWARD_SKIP_REST;
	request.body_case = ZD__REQUEST__BODY_BACKWARD_END;
	request.backward_end = &end;
	if (!ticket) {
		rc = zc_call(client, &request, options.deadline_ms, NULL, NULL);
		/* The reason is a detached call that was refused before: an entry is not submitted, or the
		 * backward ended with the loss of a rank. */
		return rc == ZEROD_E_STATE && zc_detached_report(client, err) ? err->status : rc;
	}
	rc = zc_post_other(client, &end_type, NULL, NULL, &request, options.deadline_ms, ticket, err);
	pthread_mutex_lock(&client->lock);
	group->backward_ending = rc ? 0 : ticket->id;
	pthread_mutex_unlock(&client->lock);
	return rc;
}

int zerod_backward_abandon(zerod_group *group, zerod_stream *const *streams, uint32_t nstreams,
                           const struct zerod_wait_options *options)
{
	uint32_t deadline_ms;
	struct zerod_client *client = zc_group_client(group);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__BackwardAbandon abandon = ZD__BACKWARD_ABANDON__INIT;
	struct zc_fence_args fences;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_group_quietly(group, &err);

	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, err);
	if (!rc)
		rc = zc_streams_fence(client, streams, nstreams, &fences, err);
	if (!rc)
		rc = zc_accumulations_fence(group, &fences, err);
	if (!rc)
		rc = zc_targets_return(group, false, err);
	if (rc)
		return rc;
	abandon.group = group->id;
	abandon.n_fences = fences.count;
	abandon.fences = fences.pointers;
	request.body_case = ZD__REQUEST__BODY_BACKWARD_ABANDON;
	request.backward_abandon = &abandon;
	rc = zc_call(client, &request, deadline_ms, NULL, NULL);
	if (rc)
		return rc;
	pthread_mutex_lock(&client->lock);
	zc_buckets_forget(group, UINT64_MAX);
	pthread_mutex_unlock(&client->lock);
	return 0;
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

static int fill_bucket(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	struct zerod_bucket *bucket = object;
	int rc = zc_check_body(reply, ZD__REPLY__BODY_BUCKET_CREATE, err);

	if (!rc)
		bucket->id = reply->bucket_create->bucket;
	return rc;
}

static int take_creation(const Zd__Reply *reply, void *arg)
{
	const struct creation *creation = arg;

	return fill_bucket(reply, creation->bucket, creation->err);
}

static const struct zc_kept_request *kept_creation(const void *object)
{
	return ((const struct zerod_bucket *)object)->created;
}

int zc_buckets_rejoin(struct zerod_group *group, struct zd_err *err)
{
	static const struct zc_repeat repeat = {.kept = kept_creation, .take = fill_bucket};
	void *due[ZD_MAX_BUCKETS]; /* no daemon has granted more */
	struct zerod_bucket *bucket;
	size_t ndue = 0;

	LIST_FOREACH (bucket, &group->buckets, link)
		if (bucket->id == 0 && ndue < ZD_MAX_BUCKETS)
			due[ndue++] = bucket;
	return zc_requests_repeat(group, &repeat, due, ndue, err);
}

int zerod_bucket_create(zerod_group *group, const struct zerod_bucket_options *given, zerod_bucket **bucket)
{
	struct zerod_client *client = zc_group_client(group);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__BucketCreate create = ZD__BUCKET_CREATE__INIT;
	struct zerod_bucket_options options;
	struct creation creation;
	ZC_INSIDE(client);
	int rc = zc_enter_group(group, &creation.err);

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
	creation.bucket->created = zc_request_keep(client, &request);
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
	ZC_INSIDE(client);
	int rc = zc_enter_group_quietly(bucket ? bucket->group : NULL, &err);

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

void zc_buckets_forget(struct zerod_group *group, uint64_t request)
{
	struct zerod_bucket *bucket;

	LIST_FOREACH (bucket, &group->buckets, link)
		zc_reserved_forget(bucket, request);
}

void zc_bucket_free(struct zerod_bucket *bucket)
{
	zc_reserved_forget(bucket, UINT64_MAX);
	LIST_REMOVE(bucket, link);
	free(bucket->created);
	free(bucket);
}
