/* SPDX-License-Identifier: Apache-2.0 */
/* handle_reduce.c - backwards, buckets and their entries, and the optimizer's step. */
#include "server/handlers.h"

#include <string.h>

int zd_args_backward_begin(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                           struct zd_err *err)
{
	const Zd__BackwardBegin *backward = request->backward_begin;

	(void)arena;
	(void)err;
	args->kind = ZD_REQ_BACKWARD_BEGIN;
	args->u.backward_begin.group = backward->group;
	args->u.backward_begin.stage = backward->stage;
	args->u.backward_begin.boundary = backward->boundary;
	args->u.backward_begin.target_dtype = backward->target_dtype;
	return 0;
}

void zd_fill_backward_begin(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__BackwardBeginReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__backward_begin_reply__init(message);
	message->backward = reply->u.backward_begin.backward;
	message->first = reply->u.backward_begin.first;
	answer->reply.body_case = ZD__REPLY__BODY_BACKWARD_BEGIN;
	answer->reply.backward_begin = message;
}

int zd_args_bucket_create(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                          struct zd_err *err)
{
	const Zd__BucketCreate *create = request->bucket_create;

	(void)arena;
	(void)err;
	args->kind = ZD_REQ_BUCKET_CREATE;
	args->u.bucket_create.group = create->group;
	args->u.bucket_create.dtype = create->dtype;
	args->u.bucket_create.slot_bytes = create->slot_bytes;
	args->u.bucket_create.nslots = create->nslots;
	return 0;
}

void zd_fill_bucket_create(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__BucketCreateReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__bucket_create_reply__init(message);
	message->bucket = reply->u.bucket_create.bucket;
	answer->reply.body_case = ZD__REPLY__BODY_BUCKET_CREATE;
	answer->reply.bucket_create = message;
}

int zd_args_bucket_destroy(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                           struct zd_err *err)
{
	(void)arena;
	(void)err;
	args->kind = ZD_REQ_BUCKET_DESTROY;
	args->u.bucket = request->bucket_destroy->bucket;
	return 0;
}

int zd_args_bucket_reserve(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                           struct zd_err *err)
{
	(void)arena;
	(void)err;
	args->kind = ZD_REQ_BUCKET_RESERVE;
	args->u.bucket_reserve.bucket = request->bucket_reserve->bucket;
	args->u.bucket_reserve.unit = request->bucket_reserve->unit;
	args->u.bucket_reserve.ahead = request->bucket_reserve->ahead;
	args->u.bucket_reserve.zero_holes = request->bucket_reserve->zero_holes;
	return 0;
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

int zd_args_bucket_submit(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                          struct zd_err *err)
{
	const Zd__BucketSubmit *submit = request->bucket_submit;

	args->kind = ZD_REQ_BUCKET_SUBMIT;
	args->u.bucket_submit.bucket = submit->bucket;
	args->u.bucket_submit.entry = submit->entry;
	args->u.bucket_submit.op = submit->op;
	args->u.bucket_submit.prescale = submit->prescale;
	args->u.bucket_submit.overwrite = submit->overwrite;
	args->u.bucket_submit.nabsent = (uint32_t)submit->n_absent;
	args->u.bucket_submit.absent = submit->absent;
	return zd_take_fences(submit->fences, submit->n_fences, arena, &args->u.bucket_submit.fences, err);
}

int zd_args_reduce_skip(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                        struct zd_err *err)
{
	(void)arena;
	(void)err;
	args->kind = ZD_REQ_REDUCE_SKIP;
	args->u.unit = request->reduce_skip->unit;
	return 0;
}

int zd_args_reduce_wait(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                        struct zd_err *err)
{
	(void)arena;
	(void)err;
	args->kind = ZD_REQ_REDUCE_WAIT;
	args->u.reduce_wait.unit = request->reduce_wait->unit;
	args->u.reduce_wait.ahead = request->reduce_wait->ahead;
	return 0;
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

int zd_args_target_return(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                          struct zd_err *err)
{
	const Zd__TargetReturn *back = request->target_return;
	int rc = zd_take_count(back->n_units, ZD_MAX_UNITS_PER_REQUEST, "units", err);

	if (rc)
		return rc;
	args->kind = ZD_REQ_TARGET_RETURN;
	args->u.target_return.nunits = (uint32_t)back->n_units;
	args->u.target_return.units = back->units;
	return zd_take_fences(back->fences, back->n_fences, arena, &args->u.target_return.fences, err);
}

int zd_args_backward_end(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                         struct zd_err *err)
{
	(void)arena;
	(void)err;
	args->kind = ZD_REQ_BACKWARD_END;
	args->u.backward_end.group = request->backward_end->group;
	args->u.backward_end.skip_rest = request->backward_end->skip_rest;
	return 0;
}

int zd_args_backward_abandon(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                             struct zd_err *err)
{
	const Zd__BackwardAbandon *abandon = request->backward_abandon;

	args->kind = ZD_REQ_BACKWARD_ABANDON;
	args->u.backward_abandon.group = abandon->group;
	return zd_take_fences(abandon->fences, abandon->n_fences, arena, &args->u.backward_abandon.fences,
	                      err);
}

int zd_args_step_begin(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                       struct zd_err *err)
{
	(void)arena;
	(void)err;
	args->kind = ZD_REQ_STEP_BEGIN;
	args->u.step_begin.group = request->step_begin->group;
	args->u.step_begin.ahead = request->step_begin->ahead;
	args->u.step_begin.scalars = request->step_begin->scalars;
	return 0;
}

int zd_args_step_get(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                     struct zd_err *err)
{
	const Zd__StepGet *get = request->step_get;
	int rc = zd_take_count(get->n_units, ZD_MAX_UNITS_PER_REQUEST, "units", err);

	(void)arena;
	args->kind = ZD_REQ_STEP_GET;
	args->u.step_get.group = get->group;
	args->u.step_get.nunits = (uint32_t)get->n_units;
	args->u.step_get.units = get->units;
	return rc;
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

int zd_args_step_end(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                     struct zd_err *err)
{
	const Zd__StepEnd *end = request->step_end;

	args->kind = ZD_REQ_STEP_END;
	args->u.step_end.group = end->group;
	return zd_take_fences(end->fences, end->n_fences, arena, &args->u.step_end.fences, err);
}
