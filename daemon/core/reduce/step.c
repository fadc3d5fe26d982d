/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step.c - steps: the result that all ranks agree on after a window's last backward, and the end of the
 * target.
 *
 * All ranks take a step at once, when the last of them has begun it. If a reduction of its window failed, no
 * rank takes it: each rank receives the failure, and its next window begins. If the group fails after a step
 * was taken, a rank's target remains for as long as the rank may read it.
 *
 * A rank can call step_begin while its backward ends, and receive a reply before the step is taken, with a
 * promise that its target may be read. The promise is made when every rank has called step_begin, and all
 * sums of the window depend only on executors and on fences that the engine has. From then on no rank can
 * withdraw: a cancelled or failed step_begin fails the step of all ranks. The promise is kept even then,
 * because a broken promise would cost the session all results of its streams. The rank then has a target with
 * undefined content. step_get returns the failure, or otherwise the rank's next call that begins or ends a
 * backward or begins a step. In groups that span daemons steps are not promised.
 *
 * When the rank has also called step_end for a promised step, its next window begins (window.c). The step of
 * that window can also be promised, and is taken after the previous step.
 */
#include <math.h>
#include <string.h>

#include "core/cluster/cluster.h"
#include "core/engine/objects.h"
#include "core/engine/promise.h"
#include "core/reduce/member.h"
#include "core/reduce/reduce.h"
#include "core/reduce/reduction.h"
#include "core/reduce/storage.h"
#include "core/reduce/target.h"
#include "core/reduce/window.h"

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

static void set_failed_result(struct zd_member_reduce *mr, const struct zd_failure *failure)
{
	set_result(mr, mr->steps + 1, true, (double)INFINITY);
	zd_failure_copy(&mr->result.failure, failure);
}

int zd_step_tell(struct zd_member_reduce *mr, struct zd_err *err)
{
	struct zd_failure failure = mr->untold;
	if (failure.status == 0)
		return 0;
	mr->untold = (struct zd_failure){0};
	int status = zd_err_set(err, failure.status, "%s", failure.text);
	zd_failure_clear(&failure);
	return status;
}

bool zd_step_is_promised(const struct zd_window *w)
{
	const struct zd_group *group = w->mr->member->group;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_window *other = zd_window_of_rank(group, rank, w->number);
		if (other && other->promise)
			return true;
	}
	return false;
}

/* Keeps the window's promise when all operations on the target have ended, or its content does not matter. */
static void keep_promise(struct zd_engine *e, struct zd_window *w)
{
	struct zd_promise *promise = w->promise;
	w->promise = NULL;
	if (promise && w->scalars)
		zd_target_store_scalars(e, w, promise);
	else if (promise)
		zd_promise_keep(e, promise);
}

/* Ends a promised step whose window has failed, because the rank's streams wait for the target. */
static void take_failed(struct zd_engine *e, struct zd_window *w)
{
	set_failed_result(w->mr, &w->failure);
	zd_failure_clear(&w->mr->untold);
	zd_failure_copy(&w->mr->untold, &w->failure);
	zd_window_leave(e, w, ZD_STEP_TAKEN);
	zd_targets_set_written(w);
	keep_promise(e, w);
}

/* ---- When the group fails ------------------------------------------------------------------------------ */

/* Keeps the promise of a step that the group's failure ends, so that the streams continue. The rank's later
 * calls return the group's failure. */
static void abandon_promised(struct zd_engine *e, struct zd_window *w)
{
	struct zd_failure failure = {0};
	struct zd_err err = ZD_ERR_NONE;
	zd_failure_set(&failure, zd_reduce_lost(w->mr->member->group, &err), err.text);
	set_failed_result(w->mr, &failure);
	zd_failure_clear(&failure);
	zd_sm_move(&zd_sm_step, &w->step, ZD_STEP_ABANDONED);
	zd_targets_set_written(w);
	keep_promise(e, w);
}

static uint32_t nlent(const struct zd_window *w)
{
	return w == w->mr->w ? w->mr->nlent : 0;
}

void zd_step_abandon(struct zd_engine *e, struct zd_window *w)
{
	bool reads = w->step == ZD_STEP_TAKEN || w->step == ZD_STEP_ABANDONED || w->promise || nlent(w) > 0;
	if (!reads)
		zd_targets_drop(e, w);
	if (w->promise)
		abandon_promised(e, w);
	else if (w->step == ZD_STEP_TAKEN || (nlent(w) > 0 && w->step != ZD_STEP_ABANDONED))
		zd_sm_move(&zd_sm_step, &w->step, ZD_STEP_ABANDONED);
	else if (!reads && w->step != ZD_STEP_NONE)
		zd_sm_move(&zd_sm_step, &w->step, ZD_STEP_NONE);
}

static void give_up_step(struct zd_engine *e, struct zd_window *w)
{
	if (w->step != ZD_STEP_ABANDONED)
		return;
	zd_targets_drop(e, w);
	zd_sm_move(&zd_sm_step, &w->step, ZD_STEP_NONE);
	zd_window_end(e, w);
}

void zd_step_give_up(struct zd_engine *e, struct zd_member_reduce *mr)
{
	if (mr->closing)
		give_up_step(e, mr->closing);
	give_up_step(e, mr->w);
}

static bool is_step_taken(const struct zd_window *w)
{
	return w &&
	       (w->step == ZD_STEP_TAKEN || w->promise || (nlent(w) > 0 && w->step != ZD_STEP_ABANDONED));
}

bool zd_step_is_taken(const struct zd_member *member)
{
	const struct zd_member_reduce *mr = zd_member_reduce(member);
	return mr && (is_step_taken(mr->w) || is_step_taken(mr->closing));
}

static bool has_target(const struct zd_window *w)
{
	return w && zd_window_has_target(w) && w->step != ZD_STEP_ABANDONED;
}

bool zd_reduce_has_target(const struct zd_group *group)
{
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_member_reduce *mr = zd_member_reduce(&group->members[rank]);
		if (mr && (has_target(mr->w) || has_target(mr->closing)))
			return true;
	}
	return false;
}

/* ---- Begin --------------------------------------------------------------------------------------------- */

static int begin_check(const struct zd_member_reduce *mr, bool ahead, struct zd_err *err)
{
	uint32_t rank = zd_world_rank(mr->member);
	bool ends = mr->w->backward == ZD_BACKWARD_ENDING && (mr->w->stage > 1 || mr->w->boundary);
	if (mr->w->step == ZD_STEP_READY || (ahead && ends && mr->w->step == ZD_STEP_NONE))
		return 0;
	if (zd_step_is_called(mr->w) || mr->w->step == ZD_STEP_TAKEN)
		return zd_err_set(err, ZEROD_E_STATE, "rank %u has begun the step already", rank);
	if (mr->w->backward != ZD_BACKWARD_IDLE)
		return zd_err_set(err, ZEROD_E_STATE, "backward %llu of rank %u runs",
		                  (unsigned long long)mr->number, rank);
	return zd_err_set(err, ZEROD_E_STATE, "no %sbackward of rank %u has ended since its last step",
	                  mr->w->stage == 1 ? "boundary " : "", rank);
}

static int begin_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_member *member;
	bool ahead = req->args->u.step_begin.ahead;
	int status = zd_member_find(e, req->session, req->args->u.step_begin.group, &member, err);
	if (status == 0)
		status = zd_group_check(member->group, err);
	if (status == 0)
		status = zd_session_check_poisoned(req->session, err);
	if (status != 0)
		return status;
	struct zd_member_reduce *mr = zd_member_reduce_get(member);
	status = begin_check(mr, ahead, err);
	if (status != 0)
		return status;
	status = zd_step_tell(mr, err);
	if (status != 0)
		return status;
	status = zd_window_check_step(mr->w, err);
	if (status != 0)
		zd_window_fail(e, member->group, mr->w->number, status, err->text);
	if (status != 0 && member->group->cluster) /* this has ended the group */
		return status;
	zd_reduce_request_init(req, member);
	req->u.reduce.window = mr->w->number;
	req->u.reduce.ahead = ahead;
	req->u.reduce.scalars = req->args->u.step_begin.scalars &&
	                        (zd_window_has_target(mr->w) || mr->w->norms.count > 0) &&
	                        !zd_window_is_abandoned(mr->w);
	zd_step_forget_result(mr);
	zd_sm_move(&zd_sm_step, &mr->w->step,
	           mr->w->backward == ZD_BACKWARD_ENDING ? ZD_STEP_CALLED : ZD_STEP_ZEROING);
	zd_dirty_group(e, member->group); /* other ranks' steps can be promised now */
	return 0;
}

uint32_t zd_step_first_uncalled(const struct zd_window *w)
{
	const struct zd_group *group = w->mr->member->group;
	uint32_t rank;
	for (rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_window *other = zd_window_of_rank(group, rank, w->number);
		if (!other || !zd_step_is_called(other))
			break;
	}
	return rank;
}

/* Whether the rank's target will be complete without another call of any process. The former, closing window
 * needs no call either, because its step was promised. */
static bool may_promise(const struct zd_engine *e, const struct zd_window *w)
{
	const struct zd_group *group = w->mr->member->group;
	if (group->cluster || w->failure.status != 0 || zd_window_is_abandoned(w))
		return false;
	return zd_step_first_uncalled(w) == group->local_world_size &&
	       zd_reductions_drain(e, group, w->number);
}

/* Returns the first rank whose step is not WAITING. local_world_size: there is none. */
static uint32_t first_missing(const struct zd_window *w)
{
	const struct zd_group *group = w->mr->member->group;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_window *other = zd_window_of_rank(group, rank, w->number);
		if (!other || other->step != ZD_STEP_WAITING)
			return rank;
	}
	return group->local_world_size;
}

/* The result of a step: of one rank, of a daemon, or of all daemons. */
struct sums {
	double norm_squared;
	uint64_t overflow;
	uint64_t backwards; /* in the window; the same on all ranks of a daemon */
};

static void add_rank(struct sums *sums, struct zd_window *w)
{
	sums->overflow |= w->overflow;
	zd_norms_add(w, &sums->norm_squared);
}

/* Adds up in the order of ranks, so that all runs compute the same bits. */
static struct sums local_sums(const struct zd_group *group, uint64_t window)
{
	struct sums sums = {.backwards = zd_window_of_rank(group, 0, window)->count};
	for (uint32_t rank = 0; rank < group->local_world_size; rank++)
		add_rank(&sums, zd_window_of_rank(group, rank, window));
	return sums;
}

static void agree_on_sums(struct zd_engine *e, struct zd_group *group, uint64_t window,
                          const struct sums *sums)
{
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_window *w = zd_window_of_rank(group, rank, window);
		w->mr->steps++;
		set_result(w->mr, w->mr->steps, sums->overflow, sums->norm_squared);
		zd_window_close(w);
		zd_sm_move(&zd_sm_step, &w->step, ZD_STEP_TAKEN);
		keep_promise(e, w);
	}
	zd_dirty_group(e, group);
}

/* Compares the number of backwards with that of a rank of another daemon. Daemons compare their own. */
static int check_backwards(const struct zd_group *group, uint32_t peer, uint64_t count, struct zd_err *err)
{
	const struct zd_member *member = &group->members[0];
	uint64_t own = zd_member_reduce(member)->w->count;
	if (own == count)
		return 0;
	return zd_err_set(err, ZEROD_E_MISMATCH,
	                  "rank %u runs %llu backward%s in this step, rank %u runs %llu",
	                  zd_world_rank(member), (unsigned long long)own, own == 1 ? "" : "s",
	                  zd_cluster_world_rank(member, peer), (unsigned long long)count);
}

/* A rail's agreement has completed; all rails have the same result. */
static void rail_answered(struct zd_engine *e, struct zd_op *op)
{
	struct zd_group *group = op->owner;
	struct zd_cluster *cluster = group->cluster;
	struct sums all = {0};
	struct zd_err err = ZD_ERR_NONE;
	if (!zd_cluster_answered(e, op, &cluster->step))
		return;
	zd_assert(op->result->values_bytes == cluster->nranks * sizeof(all));
	for (uint32_t peer = 0; peer < cluster->nranks; peer++) {
		struct sums sums;
		memcpy(&sums, op->result->values + peer * sizeof(sums), sizeof(sums));
		int differs = check_backwards(group, peer, sums.backwards, &err);
		if (differs != 0) {
			zd_cluster_fail(e, group, differs, err.text);
			return;
		}
		/* In a hybrid group all daemons have the same slices, added up in different orders. The first
		 * daemon's sum counts for all, so that replicas remain identical. */
		if (!cluster->hybrid || peer == 0)
			all.norm_squared += sums.norm_squared;
		all.overflow |= sums.overflow;
	}
	uint64_t window = zd_member_reduce(&group->members[0])->w->number;
	zd_norms_keep(group, window);
	agree_on_sums(e, group, window, &all);
}

/* Starts an agreement on each rail, so that all rails have the same operations. Its values are the sums of
 * the daemon's ranks or, if all ranks are on one rail, of the rail's own rank. */
static void ask(struct zd_engine *e, struct zd_group *group, uint64_t window)
{
	struct sums local = local_sums(group, window);
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_member *member = &group->members[rank];
		struct sums own = {.backwards = local.backwards};
		if (group->cluster->nccl_collectives)
			add_rank(&own, zd_window_of_rank(group, rank, window));
		else
			own = local;
		zd_cluster_ask(e, member, &group->cluster->step, "step", &own, sizeof(own), rail_answered);
	}
	zd_dirty_group(e, group); /* the ranks' requests wait for other daemons now */
}

/* Called when all ranks of this daemon have begun the step. Returns 0 if the result is known. */
static int decide(struct zd_engine *e, struct zd_request *req, uint64_t window)
{
	struct zd_group *group = req->member->group;
	struct sums sums = {0};
	if (group->cluster) {
		if (!group->cluster->step.pending)
			ask(e, group, window);
		return zd_wait_for(req, ZD_WAIT_OTHERS, 0, 0, 0);
	}
	if (!zd_norms_sum(e, group, window, &sums.norm_squared)) {
		req->goes_on = true;
		return zd_wait_for(req, ZD_WAIT_SUMS, req->member->rank, 0, 0);
	}
	for (uint32_t rank = 0; rank < group->local_world_size; rank++)
		sums.overflow |= zd_window_of_rank(group, rank, window)->overflow;
	agree_on_sums(e, group, window, &sums);
	return 0;
}

/* Zeroes the elements that no sum has written. No reduction runs between the last backward's end and the
 * step. Fills of a cancelled step_begin can still be under way. They must end before new fills start and
 * before the rank reads the target. */
static int zero_rest(struct zd_engine *e, struct zd_request *req, struct zd_window *w)
{
	if (zd_targets_are_in_use(w))
		return zd_wait_for(req, ZD_WAIT_FILL, 0, 0, 0);
	if (zd_targets_zero_rest(e, req, w) == ZD_WAIT)
		return ZD_WAIT;
	zd_targets_set_written(w);
	zd_sm_move(&zd_sm_step, &w->step, ZD_STEP_WAITING);
	return 0;
}

static void fill_target(struct zd_engine *e, const struct zd_window *w)
{
	e->reply.u.step_begin.target_dtype = w->target_dtype;
	for (uint32_t i = 0; i < ZD_NTARGETS; i++) {
		const struct zd_target *target = &w->targets[i];
		if (target->storage)
			*(i == ZD_TARGET_ON_HOST ? &e->reply.host_target : &e->reply.target) =
			        zd_storage_location(target->storage, 0,
			                            target->numel * zerod_dtype_bytes(w->target_dtype));
	}
	if (w->scalars)
		e->reply.scalars = zd_target_scalars(w);
}

static void fill_result(struct zd_engine *e, const struct zd_step_result *result)
{
	e->reply.u.step_begin.step = result->step;
	e->reply.u.step_begin.overflow = result->overflow;
	e->reply.u.step_begin.norm_squared = result->norm_squared;
	e->reply.u.step_begin.abandoned = result->failure.abandoned;
	e->reply.u.step_begin.abandoned_rank = result->failure.rank;
}

/* Whether the rank's closing window has a step that is not taken yet. */
static bool follows_another(const struct zd_window *w)
{
	const struct zd_window *closing = w->mr->closing;
	return closing && w != closing && zd_step_is_called(closing);
}

/* Promises the step. Its number counts the steps before it, which are expected to be taken. */
static void promise_step(struct zd_engine *e, struct zd_request *req, struct zd_window *w)
{
	w->promise = zd_promise_new(e, req->session, req->device, ZD_PROMISE_STEPS);
	fill_target(e, w);
	e->reply.u.step_begin.step = w->mr->steps + 1 + follows_another(w);
	e->reply.fence = w->promise->fence;
	zd_request_answer(e, req);
}

/* Returns 0 if the step is taken, or has failed after it was promised. Steps are taken in order. */
static int take_step(struct zd_engine *e, struct zd_request *req, struct zd_window *w, struct zd_err *err)
{
	if (follows_another(w))
		return zd_wait_for(req, ZD_WAIT_SUMS, w->mr->member->rank, 0, 0);
	if (zd_window_is_abandoned(w)) {
		/* without reductions there is no agreement */
		set_result(w->mr, w->mr->steps, false, 0);
		zd_failure_copy(&w->mr->result.failure, &w->failure);
		zd_window_leave(e, w, ZD_STEP_TAKEN);
		return 0;
	}
	if (w->failure.status != 0 && w->promise) {
		take_failed(e, w);
		return 0;
	}
	if (w->failure.status != 0) {
		int status = zd_err_set(err, w->failure.status, "%s", w->failure.text);
		set_failed_result(w->mr, &w->failure);
		zd_window_leave(e, w, ZD_STEP_NONE);
		return status;
	}
	if (w->step == ZD_STEP_ZEROING && zero_rest(e, req, w) == ZD_WAIT)
		return ZD_WAIT;
	uint32_t missing = first_missing(w);
	if (missing < req->member->group->local_world_size) {
		const struct zd_window *other = zd_window_of_rank(req->member->group, missing, w->number);
		bool called = other && zd_step_is_called(other); /* its sums are missing */
		return zd_wait_for(req, called ? ZD_WAIT_SUMS : ZD_WAIT_STEP, missing, 0, 0);
	}
	return decide(e, req, w->number);
}

/* Fails the window, because other ranks were promised this step and make no call that waits for it. */
static void fail_promised(struct zd_engine *e, const struct zd_request *req, const struct zd_window *w)
{
	struct zd_err err = ZD_ERR_NONE;
	uint32_t rank = zd_world_rank(w->mr->member);
	int status = req->failed
	                     ? zd_err_set(&err, req->failed, "%s", req->failed_text)
	                     : zd_err_set(&err, ZEROD_E_ABORTED,
	                                  "rank %u has given up the step that all ranks have begun", rank);
	zd_window_fail(e, w->mr->member->group, w->number, status, err.text);
}

static void begin_cancel(struct zd_engine *e, struct zd_request *req)
{
	struct zd_group *group = req->member->group;
	if (zd_reduce_request_lost(req))
		return;
	struct zd_window *w = zd_window_of(req);
	if (group->cluster && group->cluster->step.pending) {
		zd_cluster_give_up(e, req->member, "a step that others take");
		return;
	}
	if (!w) /* another rank's request has taken the step for all */
		return;
	if (zd_step_is_promised(w))
		fail_promised(e, req, w);
	if (w->promise) { /* the request has failed, or the rank is lost and its group fails next */
		if (req->failed)
			take_failed(e, w);
	} else if (w->step == ZD_STEP_CALLED) {
		zd_sm_move(&zd_sm_step, &w->step, ZD_STEP_NONE);
		zd_backward_step_given_up(w);
	} else {
		zd_sm_move(&zd_sm_step, &w->step, ZD_STEP_READY);
	}
}

static void answer_taken(struct zd_engine *e, struct zd_request *req, struct zd_window *w)
{
	fill_target(e, w);
	fill_result(e, &w->mr->result);
	if (!w->scalars)
		return;
	struct zd_promise *promise = zd_promise_new(e, req->session, req->device, ZD_PROMISE_STEPS);
	e->reply.fence = promise->fence;
	zd_target_store_scalars(e, w, promise);
}

static int begin_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	int status = zd_reduce_request_check(req, err);
	if (status != 0)
		return status;
	struct zd_window *w = zd_window_of(req);
	if (!w && req->answered) /* another rank's request has taken the step for all */
		return 0;
	if (!w) /* likewise; without a promise the rank has begun no other window */
		w = req->member->reduce->w;
	if (req->u.reduce.scalars && !w->scalars && zd_step_is_called(w)) {
		status = zd_target_bind_scalars(e, req, w, err);
		if (status < 0)
			begin_cancel(e, req);
		if (status != 0)
			return status;
	}
	if (req->u.reduce.ahead && zd_step_is_called(w) && !w->promise && may_promise(e, w))
		promise_step(e, req, w);
	if (w->step == ZD_STEP_CALLED)
		status = zd_backward_end_for_step(e, req, w);
	if (status == 0 && zd_step_is_called(w))
		status = take_step(e, req, w, err);
	if (status != 0 || req->answered)
		return status;
	answer_taken(e, req, w);
	return 0;
}

/* ---- Get ----------------------------------------------------------------------------------------------- */

static int get_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_member *member;
	int status = zd_member_find(e, req->session, req->args->u.step_get.group, &member, err);
	if (status == 0 && req->args->u.step_get.n_units > 0)
		status = zd_norms_check(e, req->session, member->group, req->args, err);
	if (status != 0)
		return status;
	zd_request_set_member(req, member);
	req->u.reduce.nunits = req->args->u.step_get.n_units;
	if (req->u.reduce.nunits > 0) {
		size_t bytes = req->u.reduce.nunits * sizeof(*req->u.reduce.units);
		/* the charge includes the norms of the reply */
		req->u.reduce.units = zd_request_own(req, zd_calloc(1, bytes),
		                                     bytes + req->u.reduce.nunits * sizeof(double));
		memcpy(req->u.reduce.units, req->args->u.step_get.units, bytes);
	}
	return 0;
}

static int get_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_member_reduce *mr = zd_member_reduce(req->member);
	if (mr && (zd_step_is_called(mr->w) || (mr->closing && zd_step_is_called(mr->closing))))
		return zd_wait_for(req, ZD_WAIT_SUMS, req->member->rank, 0, 0);
	if (!mr || !mr->result.known)
		return zd_err_set(err, ZEROD_E_STATE, "rank %u has begun no step",
		                  zd_world_rank(req->member));
	if (mr->result.failure.status != 0) {
		zd_failure_clear(&mr->untold);
		return zd_err_set(err, mr->result.failure.status, "%s", mr->result.failure.text);
	}
	int status = zd_step_tell(mr, err); /* the failure of the previous step */
	if (status != 0)
		return status;
	fill_result(e, &mr->result);
	if (req->u.reduce.nunits > 0)
		zd_norms_reply(e, req);
	return 0;
}

/* ---- End ----------------------------------------------------------------------------------------------- */

static void target_unused(struct zd_engine *e, struct zd_op *op)
{
	/* The status does not matter: a failed watch means that the session and its streams have ended. */
	zd_storage_unuse(e, op->owner);
}

/* The storage remains until the fences of the request have passed. */
static void drop_behind(struct zd_engine *e, const struct zd_request *req, struct zd_storage *storage)
{
	if (storage && zd_fences_watch(e, req->session, req->member->group->job, req->device->index,
	                               &req->fences, target_unused, storage, 0))
		zd_storage_use(storage);
}

/* Whether the rank has a step to end, even if its group has failed. */
static bool has_step(const struct zd_window *w)
{
	return w && (w->step == ZD_STEP_TAKEN || w->step == ZD_STEP_ABANDONED || w->promise);
}

static int end_check(const struct zd_member *member, struct zd_err *err)
{
	const struct zd_member_reduce *mr = zd_member_reduce(member);
	uint32_t nsteps = mr ? (uint32_t)has_step(mr->closing) + has_step(mr->w) : 0;
	if (nsteps > 0 && mr->nenders < nsteps)
		return 0;
	int status = zd_group_check(member->group, err);
	if (status == 0 && nsteps > 0)
		status = zd_err_set(err, ZEROD_E_STATE, "rank %u has asked for its step's end already",
		                    zd_world_rank(member));
	else if (status == 0)
		status = zd_err_set(err, ZEROD_E_STATE, "rank %u has begun no step", zd_world_rank(member));
	return status;
}

static int end_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_member *member;
	int status = zd_member_find(e, req->session, req->args->u.step_end.group, &member, err);
	if (status == 0)
		status = end_check(member, err);
	if (status != 0)
		return status;
	zd_request_set_member(req, member);
	zd_request_keep_fences(req, &req->args->fences);
	member->reduce->nenders++;
	zd_window_try_pass(e, member->reduce);
	return 0;
}

/* Waits while the target is promised, because sums can still write it. Steps end in order. */
static int end_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_member_reduce *mr = zd_member_reduce(req->member);
	struct zd_window *w = mr && mr->closing ? mr->closing : mr ? mr->w : NULL;
	struct zd_storage *sum;
	(void)err;
	if (has_step(w) && w->promise)
		return zd_wait_for(req, ZD_WAIT_SUMS, req->member->rank, 0, 0);
	if (mr)
		mr->nenders--;
	if (!has_step(w)) /* the rank's step was dropped meanwhile */
		return 0;
	zd_sm_move(&zd_sm_step, &w->step, ZD_STEP_NONE);
	for (uint32_t i = 0; i < ZD_NTARGETS; i++)
		drop_behind(e, req, w->targets[i].storage);
	drop_behind(e, req, w->scalars);
	TAILQ_FOREACH (sum, &w->sums, sum_link)
		drop_behind(e, req, sum);
	zd_targets_drop(e, w);
	zd_window_end(e, w);
	return 0;
}

static void end_cancel(struct zd_engine *e, struct zd_request *req)
{
	struct zd_member_reduce *mr = zd_member_reduce(req->member);
	(void)e;
	if (mr)
		mr->nenders--;
}

const struct zd_request_type zd_req_step_begin = {
        .begin = begin_begin, .attempt = begin_attempt, .cancel = begin_cancel};
const struct zd_request_type zd_req_step_get = {.begin = get_begin, .attempt = get_attempt};
const struct zd_request_type zd_req_step_end = {
        .begin = end_begin, .attempt = end_attempt, .cancel = end_cancel};
