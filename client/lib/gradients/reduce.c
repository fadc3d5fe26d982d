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

static int take_backward(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	struct zerod_group *group = object;

	(void)err;
	ZC_LOCKED(&group->client->lock);
	begun(group, reply->backward_begin, UINT64_MAX);
	return 0;
}

static int begin_answered(struct zerod_client *client, struct zc_op *op, const Zd__Reply *reply,
                          struct zd_err *err)
{
	struct zerod_group *group = zc_group_find(client, op->group);

	(void)err;
	if (group)
		begun(group, reply->backward_begin, op->id);
	return 0;
}

static const struct zc_ticket_type begin_type = {
        .what = "the beginning of a backward",
        .body = ZD__REPLY__BODY_BACKWARD_BEGIN,
        .answered = begin_answered,
};

int zerod_backward_begin(zerod_group *group, const struct zerod_backward_options *given)
{
	struct zerod_client *client = zc_group_client(group);
	Zd__BackwardBegin begin = ZD__BACKWARD_BEGIN__INIT;
	Zd__Request request = ZD_REQUEST(BACKWARD_BEGIN, backward_begin, &begin);
	struct zerod_backward_options options;
	struct zd_err *err;
	uint64_t deadline_ns;
	ZC_INSIDE(client);
	int rc = zc_enter_group(group, &err);

	if (!rc)
		rc = zc_options(&options, sizeof(options), given, "zerod_backward_options", err);
	if (!rc)
		rc = zc_flags(options.flags, ZEROD_BACKWARD_DETACHED, "zerod_backward_options", err);
	if (!rc)
		rc = zc_reserved(options.reserved, "zerod_backward_options", err);
	if (!rc)
		rc = zc_streams_check_poison(client, err);
	if (!rc)
		rc = zc_backward_report(group, err);
	if (rc)
		return rc;
	deadline_ns = zc_until_ns(zc_deadline_ms(client, options.deadline_ms));
	rc = zc_step_await(group, 1, deadline_ns, err);
	if (rc)
		return rc;
	options.deadline_ms = zc_left_ms(deadline_ns);
	begin.group = group->id;
	begin.stage = options.stage ? options.stage : DEFAULT_STAGE;
	begin.boundary = options.boundary != 0;
	begin.target_dtype = options.target_dtype ? options.target_dtype : ZEROD_FLOAT32;
	if (options.flags & ZEROD_BACKWARD_DETACHED) {
		request.deadline_ms = zc_deadline_ms(client, options.deadline_ms);
		return zc_post_for_group(group, &begin_type, "zerod_backward_begin()", &request, NULL, err);
	}
	return zc_call_take(client, &request, options.deadline_ms, ZD__REPLY__BODY_BACKWARD_BEGIN,
	                    take_backward, group);
}

static const struct zc_ticket_type end_type = {.what = "the end of a backward"};

int zerod_backward_end(zerod_group *group, const struct zerod_backward_end_options *given,
                       zerod_ticket *ticket)
{
	struct zerod_client *client = zc_group_client(group);
	Zd__BackwardEnd end = ZD__BACKWARD_END__INIT;
	Zd__Request request = ZD_REQUEST(BACKWARD_END, backward_end, &end);
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
	if (!ticket) {
		rc = zc_call(client, &request, options.deadline_ms, NULL, NULL);
		/* The reason is a detached call that was refused before: an entry is not submitted, or the
		 * backward ended with the loss of a rank. */
		return rc == ZEROD_E_STATE && zc_detached_report(client, err) ? err->status : rc;
	}
	rc = zc_post_other(client, &end_type, NULL, NULL, &request, options.deadline_ms, ticket, err);
	ZC_LOCKED(&client->lock);
	group->backward_ending = rc ? 0 : ticket->id;
	return rc;
}

int zerod_backward_abandon(zerod_group *group, zerod_stream *const *streams, uint32_t nstreams,
                           const struct zerod_wait_options *options)
{
	uint32_t deadline_ms;
	struct zerod_client *client = zc_group_client(group);
	Zd__BackwardAbandon abandon = ZD__BACKWARD_ABANDON__INIT;
	Zd__Request request = ZD_REQUEST(BACKWARD_ABANDON, backward_abandon, &abandon);
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
	rc = zc_call(client, &request, deadline_ms, NULL, NULL);
	if (rc)
		return rc;
	ZC_LOCKED(&client->lock);
	zc_buckets_forget(group, UINT64_MAX);
	return 0;
}

/* ---- Buckets ------------------------------------------------------------------------------------------- */

static int fill_bucket(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	struct zerod_bucket *bucket = object;

	(void)err;
	bucket->id = reply->bucket_create->bucket;
	return 0;
}

static const struct zc_kept_request *kept_creation(const void *object)
{
	return ((const struct zerod_bucket *)object)->created;
}

int zc_buckets_rejoin(struct zerod_group *group, struct zd_err *err)
{
	static const struct zc_repeat repeat = {
	        .kept = kept_creation, .body = ZD__REPLY__BODY_BUCKET_CREATE, .take = fill_bucket};
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
	Zd__BucketCreate create = ZD__BUCKET_CREATE__INIT;
	Zd__Request request = ZD_REQUEST(BUCKET_CREATE, bucket_create, &create);
	struct zerod_bucket_options options;
	struct zerod_bucket *made;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_group(group, &err);

	if (!rc && (!given || !bucket))
		rc = zd_err_set(err, ZEROD_E_INVALID, "options or bucket is NULL");
	if (!rc)
		rc = zc_options(&options, sizeof(options), given, "zerod_bucket_options", err);
	if (!rc && zerod_dtype_bytes(options.dtype) == 0)
		rc = zd_err_set(err, ZEROD_E_INVALID, "bucket: there is no dtype %d", (int)options.dtype);
	if (rc)
		return rc;
	made = calloc(1, sizeof(*made));
	if (!made)
		return zd_err_errno(err, ENOMEM, "creating a bucket");
	create.group = group->id;
	create.dtype = options.dtype;
	create.slot_bytes = options.slot_bytes ? options.slot_bytes : DEFAULT_SLOT_BYTES;
	create.nslots = options.nslots ? options.nslots : DEFAULT_NSLOTS;
	rc = zc_call_take(client, &request, 0, ZD__REPLY__BODY_BUCKET_CREATE, fill_bucket, made);
	if (rc) {
		free(made);
		return rc;
	}
	made->group = group;
	made->dtype = options.dtype;
	made->created = zc_request_keep(client, &request);
	pthread_mutex_lock(&client->lock);
	LIST_INSERT_HEAD(&group->buckets, made, link);
	pthread_mutex_unlock(&client->lock);
	*bucket = made;
	return 0;
}

int zerod_bucket_destroy(zerod_bucket *bucket)
{
	struct zerod_client *client = zc_bucket_client(bucket);
	Zd__BucketDestroy destroy = ZD__BUCKET_DESTROY__INIT;
	Zd__Request request = ZD_REQUEST(BUCKET_DESTROY, bucket_destroy, &destroy);
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_group_quietly(bucket ? bucket->group : NULL, &err);

	if (rc)
		return rc;
	destroy.bucket = bucket->id;
	rc = zc_call(client, &request, 0, NULL, NULL);
	if (rc)
		return rc;
	ZC_LOCKED(&client->lock);
	zc_bucket_free(bucket);
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
