/* SPDX-License-Identifier: Apache-2.0 */
/* handle_reduce.c - backwards, buckets and their entries, and the optimizer's step. */
#include "server/handlers.h"

#include <string.h>

void zd_fill_backward_begin(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__BackwardBeginReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__backward_begin_reply__init(message);
	message->backward = reply->u.backward_begin.backward;
	message->first = reply->u.backward_begin.first;
	answer->reply.body_case = ZD__REPLY__BODY_BACKWARD_BEGIN;
	answer->reply.backward_begin = message;
}

void zd_fill_bucket_create(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__BucketCreateReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__bucket_create_reply__init(message);
	message->bucket = reply->u.bucket_create.bucket;
	answer->reply.body_case = ZD__REPLY__BODY_BUCKET_CREATE;
	answer->reply.bucket_create = message;
}

void zd_fill_bucket_reserve(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__BucketReserveReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__bucket_reserve_reply__init(message);
	message->entry = reply->u.bucket_reserve.entry;
	message->location = zd_answer_location(answer, &reply->u.bucket_reserve.location);
	message->n_fences = reply->u.bucket_reserve.fence.value != 0;
	message->fences = zd_answer_fences(answer, &reply->u.bucket_reserve.fence,
	                                   (uint32_t)message->n_fences);
	answer->reply.body_case = ZD__REPLY__BODY_BUCKET_RESERVE;
	answer->reply.bucket_reserve = message;
}

void zd_fill_reduce_wait(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__ReduceWaitReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__reduce_wait_reply__init(message);
	message->target = zd_answer_location(answer, &reply->u.reduce_wait.target);
	message->target_dtype = reply->u.reduce_wait.target_dtype;
	message->n_fences = reply->u.reduce_wait.fence.value != 0;
	message->fences = zd_answer_fences(answer, &reply->u.reduce_wait.fence, (uint32_t)message->n_fences);
	answer->reply.body_case = ZD__REPLY__BODY_REDUCE_WAIT;
	answer->reply.reduce_wait = message;
}

static Zd__StepBeginReply *fill_step(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__StepBeginReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__step_begin_reply__init(message);
	message->step = reply->u.step_begin.step;
	message->overflow = reply->u.step_begin.overflow;
	message->norm_squared = reply->u.step_begin.norm_squared;
	message->target = zd_answer_location(answer, &reply->u.step_begin.targets[ZD_TARGET_ON_DEVICE]);
	message->host_target = zd_answer_location(answer, &reply->u.step_begin.targets[ZD_TARGET_ON_HOST]);
	message->target_dtype = reply->u.step_begin.target_dtype;
	message->abandoned = reply->u.step_begin.abandoned;
	message->abandoned_rank = reply->u.step_begin.abandoned_rank;
	message->scalars = zd_answer_location(answer, &reply->u.step_begin.scalars);
	message->n_fences = reply->u.step_begin.fence.value != 0;
	message->fences = zd_answer_fences(answer, &reply->u.step_begin.fence, (uint32_t)message->n_fences);
	return message;
}

static double *copy_doubles(struct zd_arena *arena, const double *values, uint32_t count)
{
	double *copy = zd_arena_alloc(arena, count * sizeof(*copy));

	if (count > 0)
		memcpy(copy, values, count * sizeof(*copy));
	return copy;
}

void zd_fill_step_begin(const struct zd_reply *reply, struct zd_answer *answer)
{
	answer->reply.body_case = ZD__REPLY__BODY_STEP_BEGIN;
	answer->reply.step_begin = fill_step(reply, answer);
}

void zd_fill_step_get(const struct zd_reply *reply, struct zd_answer *answer)
{
	answer->reply.body_case = ZD__REPLY__BODY_STEP_GET;
	answer->reply.step_get = fill_step(reply, answer);
	answer->reply.step_get->n_norms_squared = reply->u.step_begin.nnorms;
	answer->reply.step_get->norms_squared = copy_doubles(answer->arena, reply->u.step_begin.norms_squared,
	                                                     reply->u.step_begin.nnorms);
}
