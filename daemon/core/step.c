/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step.c - steps: what all ranks agree on after a boundary's backward, and the target's end.
 *
 * A step is taken by all ranks at once, when the last of them has begun it. If a reduction of its window
 * failed, no rank takes it: each gets the failure, and its next window begins. When the group fails after
 * that, a rank's target stays for as long as the rank may read it.
 */
#include <string.h>

#include "core/reduce_internal.h"
#include "core/span.h"

/* ---- Windows ------------------------------------------------------------------------------------------- */

void zd_failure_set(struct zd_failure *failure, int status, const char *text)
{
	if (failure->status != 0)
		return; /* the first counts */
	failure->status = status;
	failure->text = zd_strdup(text);
}

void zd_failure_clear(struct zd_failure *failure)
{
	free(failure->text);
	*failure = (struct zd_failure){0};
}

static struct zd_slice_norm *find_norm(const struct zd_member_reduce *mr, const struct zd_unit *unit)
{
	struct zd_slice_norm *norm;
	HASH_FIND(hh, mr->norms, &unit->id, sizeof(unit->id), norm);
	return norm;
}

bool zd_step_has_sum(const struct zd_member_reduce *mr, const struct zd_unit *unit)
{
	return find_norm(mr, unit) != NULL;
}

void zd_step_note(struct zd_member_reduce *mr, const struct zd_unit *unit, const struct zd_op_result *result)
{
	struct zd_slice_norm *norm = find_norm(mr, unit);
	if (!norm) {
		norm = zd_calloc(1, sizeof(*norm));
		norm->unit = unit->id;
		HASH_ADD(hh, mr->norms, unit, sizeof(norm->unit), norm);
		mr->unwritten_numel -= zd_unit_target_numel(unit);
	}
	norm->sum_squares = result->sum_squares;
	mr->overflow |= result->overflow;
}

void zd_step_close_window(struct zd_member_reduce *mr)
{
	struct zd_slice_norm *norm = mr->norms, *next;
	HASH_CLEAR(hh, mr->norms);
	for (; norm; norm = next) {
		next = norm->hh.next;
		free(norm);
	}
	mr->overflow = false;
	mr->window++;
	mr->stage = 0;
	mr->boundary_number = 0;
}

void zd_step_abandon(struct zd_engine *e, struct zd_member_reduce *mr)
{
	bool reads = mr->step == ZD_STEP_TAKEN || mr->step == ZD_STEP_ABANDONED;
	if (!reads)
		zd_target_drop(e, mr);
	if (mr->step == ZD_STEP_TAKEN)
		zd_sm_move(&zd_sm_step, &mr->step, ZD_STEP_ABANDONED);
	else if (!reads && mr->step != ZD_STEP_NONE)
		zd_sm_move(&zd_sm_step, &mr->step, ZD_STEP_NONE);
}

void zd_step_give_up(struct zd_engine *e, struct zd_member_reduce *mr)
{
	if (mr->step != ZD_STEP_ABANDONED)
		return;
	zd_target_drop(e, mr);
	zd_sm_move(&zd_sm_step, &mr->step, ZD_STEP_NONE);
}

bool zd_step_is_taken(const struct zd_member *member)
{
	const struct zd_member_reduce *mr = zd_member_reduce(member);
	return mr && mr->step == ZD_STEP_TAKEN;
}

bool zd_reduce_has_target(const struct zd_group *group)
{
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_member_reduce *mr = zd_member_reduce(&group->members[rank]);
		if (mr && mr->target && mr->step != ZD_STEP_ABANDONED)
			return true;
	}
	return false;
}

/* ---- Begin --------------------------------------------------------------------------------------------- */

static int begin_begin(struct zd_engine *e, struct zd_request *req, const struct zd_args *args,
                       struct zd_err *err)
{
	struct zd_member *member;
	int status = zd_member_find(e, req->session, args->u.group, &member, err);
	if (status == 0)
		status = zd_group_check(member->group, err);
	if (status == 0)
		status = zd_session_check_poisoned(req->session, err);
	if (status != 0)
		return status;
	struct zd_member_reduce *mr = zd_member_reduce_get(member);
	if (mr->step == ZD_STEP_NONE || mr->step == ZD_STEP_ABANDONED)
		return zd_err_set(err, ZEROD_E_STATE, "no boundary backward of rank %u has ended",
		                  zd_world_rank(member));
	if (mr->step != ZD_STEP_READY)
		return zd_err_set(err, ZEROD_E_STATE, "rank %u has begun the step already",
		                  zd_world_rank(member));
	zd_reduce_request_init(req, member);
	zd_sm_move(&zd_sm_step, &mr->step, ZD_STEP_ZEROING);
	return 0;
}

/* A rank that is a window ahead has closed this one by its failure. */
static const struct zd_failure *window_failure(const struct zd_member_reduce *mr)
{
	const struct zd_group *group = mr->member->group;
	for (uint32_t rank = 0; rank < group->local_world_size && mr->failure.status == 0; rank++) {
		const struct zd_member_reduce *other = zd_member_reduce(&group->members[rank]);
		if (other && other->window > mr->window)
			return &other->past;
	}
	return &mr->failure;
}

static int begin_failed(struct zd_engine *e, struct zd_member_reduce *mr, const struct zd_failure *failure,
                        struct zd_err *err)
{
	int status = zd_err_set(err, failure->status, "%s", failure->text);
	struct zd_failure past = {failure->status, zd_strdup(failure->text)};
	zd_failure_clear(&mr->past);
	zd_failure_clear(&mr->failure);
	mr->past = past;
	zd_sm_move(&zd_sm_step, &mr->step, ZD_STEP_NONE);
	zd_target_drop(e, mr);
	zd_step_close_window(mr);
	zd_dirty_group(e, mr->member->group); /* ranks behind learn of it */
	return status;
}

/* The first rank that is not there yet; local_world_size when all are. */
static uint32_t first_missing(const struct zd_member_reduce *mr)
{
	const struct zd_group *group = mr->member->group;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_member_reduce *other = zd_member_reduce(&group->members[rank]);
		if (!other || other->step != ZD_STEP_WAITING || other->window != mr->window)
			return rank;
	}
	return group->local_world_size;
}

static int by_unit(const struct zd_slice_norm *a, const struct zd_slice_norm *b)
{
	return a->unit < b->unit ? -1 : a->unit > b->unit;
}

/* What a step has come to: of a rank, of a daemon, of all. */
struct sums {
	double norm_squared;
	uint64_t overflow;
};

/* By unit, so that two runs agree bit by bit. */
static void add_rank(struct sums *sums, struct zd_member_reduce *mr)
{
	sums->overflow |= mr->overflow;
	HASH_SORT(mr->norms, by_unit);
	for (const struct zd_slice_norm *norm = mr->norms; norm; norm = norm->hh.next)
		sums->norm_squared += norm->sum_squares;
}

/* By rank, likewise. */
static struct sums local_sums(const struct zd_group *group)
{
	struct sums sums = {0};
	for (uint32_t rank = 0; rank < group->local_world_size; rank++)
		add_rank(&sums, zd_member_reduce(&group->members[rank]));
	return sums;
}

static void agree(struct zd_engine *e, struct zd_group *group, const struct sums *sums)
{
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_member_reduce *mr = zd_member_reduce(&group->members[rank]);
		mr->steps++;
		mr->step_overflow = sums->overflow;
		mr->step_norm_squared = sums->norm_squared;
		zd_step_close_window(mr);
		zd_sm_move(&zd_sm_step, &mr->step, ZD_STEP_TAKEN);
	}
	zd_dirty_group(e, group);
}

/* A rail has answered; they all say the same. */
static void rail_answered(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                          const struct zd_op_result *result)
{
	struct zd_group *group = op->owner;
	struct zd_span *span = group->span;
	struct sums all = {0};
	if (!zd_span_answered(e, op, &span->step, status, error))
		return;
	zd_assert(result->values_bytes == span->nranks * sizeof(all));
	for (uint32_t peer = 0; peer < span->nranks; peer++) {
		struct sums sums;
		memcpy(&sums, result->values + peer * sizeof(sums), sizeof(sums));
		/* In a hybrid group all have the same slices, each in an order of its own: the first one's
		 * sum is all daemons', so that replicas stay alike. */
		if (!span->hybrid || peer == 0)
			all.norm_squared += sums.norm_squared;
		all.overflow |= sums.overflow;
	}
	agree(e, group, &all);
}

/* Each rail is asked, so that all have the same operations: for the sums of its daemon's ranks, or of its own
 * rank where all ranks are on one rail. */
static void ask(struct zd_engine *e, struct zd_group *group)
{
	struct sums local = local_sums(group);
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_member *member = &group->members[rank];
		struct sums own = {0};
		if (group->span->exchange)
			add_rank(&own, zd_member_reduce(member));
		else
			own = local;
		zd_span_ask(e, member, &group->span->step, "step", &own, sizeof(own), rail_answered);
	}
	zd_dirty_group(e, group); /* they all wait for something else now */
}

/* All ranks of this daemon are there: is it decided. */
static bool decided(struct zd_engine *e, struct zd_group *group)
{
	struct sums sums;
	if (group->span) {
		if (!group->span->step.pending)
			ask(e, group);
		return false;
	}
	sums = local_sums(group);
	agree(e, group, &sums);
	return true;
}

/* Nothing is reduced between a boundary's end and the step: what is zeroed stays so. A request that was given
 * up may have left fills under way, which must not meet these, or whoever reads the target. */
static int zero_rest(struct zd_engine *e, struct zd_request *req, struct zd_member_reduce *mr)
{
	if (mr->unwritten_numel > 0 && mr->target->uses > 0)
		return zd_wait_for(req, ZD_WAIT_FILL, 0, 0, 0);
	if (!req->u.reduce.zeroes) {
		req->u.reduce.zeroes = true;
		if (zd_target_zero_rest(e, req, mr) == ZD_WAIT)
			return ZD_WAIT;
	}
	mr->unwritten_numel = 0;
	zd_sm_move(&zd_sm_step, &mr->step, ZD_STEP_WAITING);
	return 0;
}

static int begin_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	int status = zd_reduce_request_check(req, err);
	if (status != 0)
		return status;
	struct zd_member_reduce *mr = req->member->reduce;
	if (mr->step == ZD_STEP_ZEROING || mr->step == ZD_STEP_WAITING) {
		const struct zd_failure *failure = window_failure(mr);
		if (failure->status != 0)
			return begin_failed(e, mr, failure, err);
		if (mr->step == ZD_STEP_ZEROING && zero_rest(e, req, mr) == ZD_WAIT)
			return ZD_WAIT;
		uint32_t missing = first_missing(mr);
		if (missing < req->member->group->local_world_size)
			return zd_wait_for(req, ZD_WAIT_STEP, missing, 0, 0);
		if (!decided(e, req->member->group))
			return zd_wait_for(req, ZD_WAIT_OTHERS, 0, 0, 0);
	}
	e->reply.u.step_begin.step = mr->steps;
	e->reply.u.step_begin.overflow = mr->step_overflow;
	e->reply.u.step_begin.norm_squared = mr->step_norm_squared;
	e->reply.u.step_begin.target_dtype = mr->target_dtype;
	if (mr->target)
		e->reply.u.step_begin.target = zd_storage_location(
		        mr->target, 0, mr->target_numel * zerod_dtype_bytes(mr->target_dtype));
	return 0;
}

static void begin_cancel(struct zd_engine *e, struct zd_request *req)
{
	struct zd_group *group = req->member->group;
	if (zd_reduce_request_lost(req))
		return;
	if (group->span && group->span->step.pending)
		zd_span_give_up(e, req->member, "a step that others take");
	else
		zd_sm_move(&zd_sm_step, &req->member->reduce->step, ZD_STEP_READY);
}

/* ---- End ----------------------------------------------------------------------------------------------- */

static void target_unused(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                          const struct zd_op_result *result)
{
	(void)status; /* with its session gone nothing reads the target any more */
	(void)error;
	(void)result;
	zd_storage_unuse(e, op->owner);
}

/* Has the rank a step to end, whatever became of its group meanwhile. */
static int end_check(const struct zd_member *member, struct zd_err *err)
{
	const struct zd_member_reduce *mr = zd_member_reduce(member);
	if (mr && (mr->step == ZD_STEP_TAKEN || mr->step == ZD_STEP_ABANDONED))
		return 0;
	int status = zd_group_check(member->group, err);
	if (status == 0)
		status = zd_err_set(err, ZEROD_E_STATE, "rank %u has begun no step", zd_world_rank(member));
	return status;
}

static int end_begin(struct zd_engine *e, struct zd_request *req, const struct zd_args *args,
                     struct zd_err *err)
{
	struct zd_member *member;
	const struct zd_fence_list *fences = &args->u.step_end.fences;
	int status = zd_member_find(e, req->session, args->u.step_end.group, &member, err);
	if (status == 0)
		status = end_check(member, err);
	if (status == 0)
		status = zd_fences_check(fences, err);
	if (status != 0)
		return status;
	struct zd_member_reduce *mr = member->reduce;
	zd_sm_move(&zd_sm_step, &mr->step, ZD_STEP_NONE);
	if (mr->target && zd_fences_watch(e, req->session, member->group->job, member->device->index, fences,
	                                  target_unused, mr->target, 0))
		zd_storage_use(mr->target);
	zd_target_drop(e, mr);
	return 0;
}

const struct zd_request_type zd_req_step_begin = {"step_begin", begin_begin, begin_attempt, begin_cancel};
const struct zd_request_type zd_req_step_end = {.name = "step_end", .begin = end_begin};
