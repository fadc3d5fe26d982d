/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step.c - steps: what all ranks agree on after a window's last backward, and the target's end.
 *
 * A step is taken by all ranks at once, when the last of them has begun it. If a reduction of its window
 * failed, no rank takes it: each gets the failure, and its next window begins. When the group fails after
 * that, a rank's target stays for as long as the rank may read it.
 *
 * A rank may ask for the step while its backward ends, and be answered before it is taken: with a promise
 * that its target may be read. The promise is made when every rank has asked for the step and all sums of the
 * window depend on executors and on fences that the engine has. From then on no rank can take back its part:
 * what is given up, or fails, fails the step of all ranks. The promise is kept even then, since a broken one
 * would cost the session all that its streams compute: the rank has a target whose content is undefined, and
 * is told of the failure by step_get, or by its next backward. Groups over several daemons make no such
 * promises.
 */
#include <math.h>
#include <string.h>

#include "core/promise.h"
#include "core/reduce_internal.h"
#include "core/span.h"

/* ---- Results and promises ------------------------------------------------------------------------------ */

void zd_step_forget_result(struct zd_member_reduce *mr)
{
	zd_failure_clear(&mr->result.failure);
	mr->result = (struct zd_step_result){.known = false};
}

static void set_result(struct zd_member_reduce *mr, uint64_t step, bool overflow, double norm_squared)
{
	zd_step_forget_result(mr);
	mr->result.known = true;
	mr->result.step = step;
	mr->result.overflow = overflow;
	mr->result.norm_squared = norm_squared;
}

/* Of a step that is not taken. */
static void set_failed_result(struct zd_member_reduce *mr, const struct zd_failure *failure)
{
	set_result(mr, mr->steps + 1, true, (double)INFINITY);
	zd_failure_copy(&mr->result.failure, failure);
}

int zd_step_tell(struct zd_member_reduce *mr, struct zd_err *err)
{
	const struct zd_failure *failure = &mr->result.failure;
	if (failure->status == 0 || mr->result.told)
		return 0;
	mr->result.told = true;
	return zd_err_set(err, failure->status, "%s", failure->text);
}

bool zd_step_is_promised(const struct zd_member_reduce *mr)
{
	const struct zd_group *group = mr->member->group;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_member_reduce *other = zd_member_reduce(&group->members[rank]);
		if (other && other->promise && other->window == mr->window)
			return true;
	}
	return false;
}

/* All operations on the target have ended, or nothing of it counts. */
static void keep_promise(struct zd_engine *e, struct zd_member_reduce *mr)
{
	struct zd_promise *promise = mr->promise;
	mr->promise = NULL;
	if (promise && mr->scalars)
		zd_target_store_scalars(e, mr, promise);
	else if (promise)
		zd_promise_keep(e, promise);
}

/* The window has failed, and the rank's streams wait for the target that was promised. */
static void take_failed(struct zd_engine *e, struct zd_member_reduce *mr)
{
	set_failed_result(mr, &mr->failure);
	zd_window_leave(e, mr, ZD_STEP_TAKEN);
	mr->unwritten_numel = 0;
	keep_promise(e, mr);
}

/* ---- When the group fails ------------------------------------------------------------------------------ */

/* A promise is kept: nothing of the step counts, and the streams go on. */
static void abandon_promised(struct zd_engine *e, struct zd_member_reduce *mr)
{
	struct zd_failure failure = {0};
	struct zd_err err = ZD_ERR_NONE;
	zd_failure_set(&failure, zd_reduce_lost(mr->member->group, &err), err.text);
	set_failed_result(mr, &failure);
	zd_failure_clear(&failure);
	mr->result.told = true; /* every call of the group tells */
	zd_sm_move(&zd_sm_step, &mr->step, ZD_STEP_ABANDONED);
	mr->unwritten_numel = 0;
	keep_promise(e, mr);
}

void zd_step_abandon(struct zd_engine *e, struct zd_member_reduce *mr)
{
	bool reads = mr->step == ZD_STEP_TAKEN || mr->step == ZD_STEP_ABANDONED || mr->promise ||
	             mr->nlent > 0;
	if (!reads)
		zd_target_drop(e, mr);
	if (mr->promise)
		abandon_promised(e, mr);
	else if (mr->step == ZD_STEP_TAKEN || (mr->nlent > 0 && mr->step != ZD_STEP_ABANDONED))
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
	return mr &&
	       (mr->step == ZD_STEP_TAKEN || mr->promise || (mr->nlent > 0 && mr->step != ZD_STEP_ABANDONED));
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

static int begin_check(const struct zd_member_reduce *mr, bool ahead, struct zd_err *err)
{
	uint32_t rank = zd_world_rank(mr->member);
	bool ends = mr->backward == ZD_BACKWARD_ENDING && (mr->stage > 1 || mr->boundary);
	if (mr->step == ZD_STEP_READY || (ahead && ends && mr->step == ZD_STEP_NONE))
		return 0;
	if (zd_step_is_called(mr) || mr->step == ZD_STEP_TAKEN)
		return zd_err_set(err, ZEROD_E_STATE, "rank %u has begun the step already", rank);
	if (mr->backward != ZD_BACKWARD_IDLE)
		return zd_err_set(err, ZEROD_E_STATE, "backward %llu of rank %u runs",
		                  (unsigned long long)mr->number, rank);
	return zd_err_set(err, ZEROD_E_STATE, "no %sbackward of rank %u has ended since its last step",
	                  mr->stage == 1 ? "boundary " : "", rank);
}

static int begin_begin(struct zd_engine *e, struct zd_request *req, const struct zd_args *args,
                       struct zd_err *err)
{
	struct zd_member *member;
	bool ahead = args->u.step_begin.ahead;
	int status = zd_member_find(e, req->session, args->u.step_begin.group, &member, err);
	if (status == 0)
		status = zd_member_enter(member, err);
	if (status == 0)
		status = zd_session_check_poisoned(req->session, err);
	if (status != 0)
		return status;
	struct zd_member_reduce *mr = zd_member_reduce_get(member);
	status = begin_check(mr, ahead, err);
	if (status != 0)
		return status;
	status = zd_window_check_step(mr, err);
	if (status != 0)
		zd_window_fail(e, member->group, mr->window, status, err->text);
	if (status != 0 && member->group->span) /* that was its end */
		return status;
	zd_reduce_request_init(req, member);
	req->u.reduce.ahead = ahead;
	req->u.reduce.scalars = args->u.step_begin.scalars && mr->target && !zd_window_is_abandoned(mr);
	zd_step_forget_result(mr);
	zd_sm_move(&zd_sm_step, &mr->step,
	           mr->backward == ZD_BACKWARD_ENDING ? ZD_STEP_CALLED : ZD_STEP_ZEROING);
	zd_dirty_group(e, member->group); /* others may be promised theirs */
	return 0;
}

/* Will the rank's target be there without a call of any process. */
static bool may_promise(const struct zd_member_reduce *mr)
{
	const struct zd_group *group = mr->member->group;
	if (group->span || mr->failure.status != 0 || zd_window_is_abandoned(mr))
		return false;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_member_reduce *other = zd_member_reduce(&group->members[rank]);
		if (!other || other->window != mr->window || !zd_step_is_called(other))
			return false;
	}
	return zd_reductions_drain(group, mr->window);
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

/* What a step has come to: of a rank, of a daemon, of all. */
struct sums {
	double norm_squared;
	uint64_t overflow;
	uint64_t backwards; /* in the window; the same on all ranks of a daemon */
};

static void add_rank(struct sums *sums, struct zd_member_reduce *mr)
{
	sums->overflow |= mr->overflow;
	zd_norms_add(mr, &sums->norm_squared);
}

/* By rank, likewise. */
static struct sums local_sums(const struct zd_group *group)
{
	struct sums sums = {.backwards = zd_member_reduce(&group->members[0])->count};
	for (uint32_t rank = 0; rank < group->local_world_size; rank++)
		add_rank(&sums, zd_member_reduce(&group->members[rank]));
	return sums;
}

static void agree(struct zd_engine *e, struct zd_group *group, const struct sums *sums)
{
	zd_norms_keep(group);
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_member_reduce *mr = zd_member_reduce(&group->members[rank]);
		mr->steps++;
		set_result(mr, mr->steps, sums->overflow, sums->norm_squared);
		zd_window_close(mr);
		zd_sm_move(&zd_sm_step, &mr->step, ZD_STEP_TAKEN);
		keep_promise(e, mr);
	}
	zd_dirty_group(e, group);
}

/* Each daemon has looked at its own ranks' already. */
static int check_backwards(const struct zd_group *group, uint32_t peer, uint64_t count, struct zd_err *err)
{
	const struct zd_member *member = &group->members[0];
	uint64_t own = zd_member_reduce(member)->count;
	if (own == count)
		return 0;
	return zd_err_set(err, ZEROD_E_MISMATCH,
	                  "rank %u runs %llu backward%s in this step, rank %u runs %llu",
	                  zd_world_rank(member), (unsigned long long)own, own == 1 ? "" : "s",
	                  zd_span_world_rank(member, peer), (unsigned long long)count);
}

/* A rail has answered; they all say the same. */
static void rail_answered(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                          const struct zd_op_result *result)
{
	struct zd_group *group = op->owner;
	struct zd_span *span = group->span;
	struct sums all = {0};
	struct zd_err err = ZD_ERR_NONE;
	if (!zd_span_answered(e, op, &span->step, status, error))
		return;
	zd_assert(result->values_bytes == span->nranks * sizeof(all));
	for (uint32_t peer = 0; peer < span->nranks; peer++) {
		struct sums sums;
		memcpy(&sums, result->values + peer * sizeof(sums), sizeof(sums));
		int differs = check_backwards(group, peer, sums.backwards, &err);
		if (differs != 0) {
			zd_span_fail(e, group, differs, err.text);
			return;
		}
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
		struct sums own = {.backwards = local.backwards};
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

/* Nothing is reduced between the last backward's end and the step: what is zeroed stays so. A request that
 * was given up may have left fills under way, which must not meet these, or whoever reads the target. */
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

/* A step like any other for its rank, but that nothing was reduced and nothing is agreed on. */
static void begin_abandoned(struct zd_engine *e, struct zd_member_reduce *mr)
{
	set_result(mr, mr->steps, false, 0);
	zd_failure_copy(&mr->result.failure, &mr->failure);
	zd_window_leave(e, mr, ZD_STEP_TAKEN);
}

static void fill_target(struct zd_engine *e, const struct zd_member_reduce *mr)
{
	e->reply.u.step_begin.target_dtype = mr->target_dtype;
	if (mr->target)
		e->reply.u.step_begin.target = zd_storage_location(
		        mr->target, 0, mr->target_numel * zerod_dtype_bytes(mr->target_dtype));
	if (mr->scalars)
		e->reply.u.step_begin.scalars = zd_target_scalars(mr);
}

static void fill_result(struct zd_engine *e, const struct zd_step_result *result)
{
	e->reply.u.step_begin.step = result->step;
	e->reply.u.step_begin.overflow = result->overflow;
	e->reply.u.step_begin.norm_squared = result->norm_squared;
	e->reply.u.step_begin.abandoned = result->failure.abandoned;
	e->reply.u.step_begin.abandoned_rank = result->failure.rank;
}

static void promise(struct zd_engine *e, struct zd_request *req, struct zd_member_reduce *mr)
{
	mr->promise = zd_promise_new(e, req->session, req->device, ZD_LANE_STEPS);
	fill_target(e, mr);
	e->reply.u.step_begin.step = mr->steps + 1;
	e->reply.u.step_begin.fence = mr->promise->fence;
	zd_request_answer(e, req);
}

/* 0: the step is taken, or has failed for a rank that was promised it. */
static int take(struct zd_engine *e, struct zd_request *req, struct zd_member_reduce *mr, struct zd_err *err)
{
	if (zd_window_is_abandoned(mr)) {
		begin_abandoned(e, mr);
		return 0;
	}
	if (mr->failure.status != 0 && mr->promise) {
		take_failed(e, mr);
		return 0;
	}
	if (mr->failure.status != 0) {
		int status = zd_err_set(err, mr->failure.status, "%s", mr->failure.text);
		set_failed_result(mr, &mr->failure);
		mr->result.told = true;
		zd_window_leave(e, mr, ZD_STEP_NONE);
		return status;
	}
	if (mr->step == ZD_STEP_ZEROING && zero_rest(e, req, mr) == ZD_WAIT)
		return ZD_WAIT;
	uint32_t missing = first_missing(mr);
	if (missing < req->member->group->local_world_size)
		return zd_wait_for(req, ZD_WAIT_STEP, missing, 0, 0);
	return decided(e, req->member->group) ? 0 : zd_wait_for(req, ZD_WAIT_OTHERS, 0, 0, 0);
}

/* Others rely on this rank's step, and do not wait for it with a call of theirs. */
static void fail_promised(struct zd_engine *e, const struct zd_request *req, struct zd_member_reduce *mr)
{
	struct zd_err err = ZD_ERR_NONE;
	int status = req->failed ? zd_err_set(&err, req->failed, "%s", req->failed_text)
	                         : zd_err_set(&err, ZEROD_E_ABORTED,
	                                      "rank %u has given up the step that all ranks have begun",
	                                      zd_world_rank(mr->member));
	zd_window_fail(e, mr->member->group, mr->window, status, err.text);
}

static void begin_cancel(struct zd_engine *e, struct zd_request *req)
{
	struct zd_group *group = req->member->group;
	if (zd_reduce_request_lost(req))
		return;
	struct zd_member_reduce *mr = req->member->reduce;
	if (group->span && group->span->step.pending) {
		zd_span_give_up(e, req->member, "a step that others take");
		return;
	}
	if (zd_step_is_promised(mr))
		fail_promised(e, req, mr);
	if (mr->promise) { /* a failed operation; or the rank goes, and its group fails next */
		if (req->failed)
			take_failed(e, mr);
	} else if (mr->step == ZD_STEP_CALLED) {
		zd_sm_move(&zd_sm_step, &mr->step, ZD_STEP_NONE);
		zd_backward_step_given_up(mr);
	} else {
		zd_sm_move(&zd_sm_step, &mr->step, ZD_STEP_READY);
	}
}

static int begin_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	int status = zd_reduce_request_check(req, err);
	if (status != 0)
		return status;
	struct zd_member_reduce *mr = req->member->reduce;
	if (req->u.reduce.scalars && !mr->scalars && zd_step_is_called(mr)) {
		status = zd_target_bind_scalars(e, req, mr, err);
		if (status < 0)
			begin_cancel(e, req);
		if (status != 0)
			return status;
	}
	if (req->u.reduce.ahead && zd_step_is_called(mr) && !mr->promise && may_promise(mr))
		promise(e, req, mr);
	if (mr->step == ZD_STEP_CALLED)
		status = zd_backward_end_for_step(e, req, mr);
	if (status == 0 && zd_step_is_called(mr)) /* else another rank's request has taken it for all */
		status = take(e, req, mr, err);
	if (status != 0 || req->answered)
		return status;
	fill_target(e, mr);
	fill_result(e, &mr->result);
	if (mr->scalars) {
		struct zd_promise *promise = zd_promise_new(e, req->session, req->device, ZD_LANE_STEPS);
		e->reply.u.step_begin.fence = promise->fence;
		zd_target_store_scalars(e, mr, promise);
	}
	return 0;
}

/* ---- Get ----------------------------------------------------------------------------------------------- */

static int get_begin(struct zd_engine *e, struct zd_request *req, const struct zd_args *args,
                     struct zd_err *err)
{
	struct zd_member *member;
	int status = zd_member_find(e, req->session, args->u.step_get.group, &member, err);
	if (status == 0 && args->u.step_get.nunits > 0)
		status = zd_norms_check(e, req->session, member->group, args, err);
	if (status != 0)
		return status;
	req->member = member;
	req->device = member->device;
	req->u.reduce.nunits = args->u.step_get.nunits;
	if (req->u.reduce.nunits > 0) {
		size_t bytes = req->u.reduce.nunits * sizeof(*req->u.reduce.units);
		req->u.reduce.units = zd_calloc(1, bytes);
		memcpy(req->u.reduce.units, args->u.step_get.units, bytes);
	}
	return 0;
}

static int get_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_member_reduce *mr = zd_member_reduce(req->member);
	if (mr && zd_step_is_called(mr))
		return zd_wait_for(req, ZD_WAIT_SUMS, req->member->rank, 0, 0);
	if (!mr || !mr->result.known)
		return zd_err_set(err, ZEROD_E_STATE, "rank %u has begun no step",
		                  zd_world_rank(req->member));
	if (mr->result.failure.status != 0) {
		mr->result.told = true;
		return zd_err_set(err, mr->result.failure.status, "%s", mr->result.failure.text);
	}
	fill_result(e, &mr->result);
	if (req->u.reduce.nunits > 0)
		zd_norms_reply(e, req);
	return 0;
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

/* The storage is used until the fences have passed. */
static void drop_behind(struct zd_engine *e, const struct zd_request *req, const struct zd_fence_list *fences,
                        struct zd_storage *storage)
{
	if (storage && zd_fences_watch(e, req->session, req->member->group->job, req->device->index, fences,
	                               target_unused, storage, 0))
		zd_storage_use(storage);
}

/* Has the rank a step to end, whatever became of its group meanwhile. */
static bool has_step(const struct zd_member_reduce *mr)
{
	return mr && (mr->step == ZD_STEP_TAKEN || mr->step == ZD_STEP_ABANDONED || mr->promise);
}

static int end_check(const struct zd_member *member, struct zd_err *err)
{
	if (has_step(zd_member_reduce(member)))
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
	req->member = member;
	req->device = member->device;
	req->u.release.nfences = fences->count;
	if (fences->count > 0) {
		req->u.release.fences = zd_calloc(fences->count, sizeof(*fences->fences));
		memcpy(req->u.release.fences, fences->fences, fences->count * sizeof(*fences->fences));
	}
	return 0;
}

/* A target that is promised is still to be written. */
static int end_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	const struct zd_fence_list fences = {req->u.release.nfences, req->u.release.fences};
	struct zd_member_reduce *mr = zd_member_reduce(req->member);
	(void)err;
	if (!has_step(mr)) /* another request of the rank has ended it meanwhile */
		return 0;
	if (mr->promise)
		return zd_wait_for(req, ZD_WAIT_SUMS, req->member->rank, 0, 0);
	zd_sm_move(&zd_sm_step, &mr->step, ZD_STEP_NONE);
	drop_behind(e, req, &fences, mr->target);
	drop_behind(e, req, &fences, mr->scalars);
	zd_target_drop(e, mr);
	return 0;
}

const struct zd_request_type zd_req_step_begin = {"step_begin", begin_begin, begin_attempt, begin_cancel};
const struct zd_request_type zd_req_step_get = {
        .name = "step_get", .begin = get_begin, .attempt = get_attempt};
const struct zd_request_type zd_req_step_end = {
        .name = "step_end", .begin = end_begin, .attempt = end_attempt};
