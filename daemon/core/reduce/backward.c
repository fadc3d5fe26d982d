/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backward.c - backward passes of a rank: their start, their end, and the target of their reductions.
 *
 * All ranks run the same sequence of backwards and steps. The first rank that begins a backward of a window,
 * or its boundary, sets the options. A rank whose options differ receives MISMATCH, instead of waiting for a
 * step that no rank completes. Stage 1 has a boundary, the only backward that reduces. In stages 2 and 3 the
 * step closes the window.
 *
 * When a group fails, a remaining rank learns of it from a later request. Until then its streams write its
 * entries and read its target. These are abandoned: they take part in no reduction, remain charged, and are
 * not reused until the rank submits the entry, ends its step (with fences), or reports by another call that
 * its streams have drained.
 */
#include "base/dtype.h"
#include "core/gather/layout.h"
#include "core/gather/unit.h"
#include "core/reduce/bucket.h"
#include "core/reduce/entry.h"
#include "core/reduce/member.h"
#include "core/reduce/reduce.h"
#include "core/reduce/reduction.h"
#include "core/reduce/target.h"
#include "core/reduce/window.h"

/* ---- Members ------------------------------------------------------------------------------------------- */

struct zd_member_reduce *zd_member_reduce_get(struct zd_member *member)
{
	struct zd_member_reduce *mr = member->reduce;
	if (!mr) {
		mr = zd_calloc(1, sizeof(*mr));
		mr->member = member;
		TAILQ_INIT(&mr->buckets);
		TAILQ_INIT(&mr->waiting);
		TAILQ_INIT(&mr->storages);
		TAILQ_INIT(&mr->loans);
		mr->w = zd_window_new(mr, 0);
		member->reduce = mr;
	}
	mr->attached = true;
	return mr;
}

void zd_member_reduce_release(struct zd_engine *e, struct zd_member_reduce *mr)
{
	if (mr->attached || !TAILQ_EMPTY(&mr->storages))
		return;
	zd_assert(!mr->closing);
	mr->member->reduce = NULL;
	zd_window_free(e, mr->w);
	zd_window_free(e, mr->spare);
	free(mr);
}

void zd_reduce_request_init(struct zd_request *req, struct zd_member *member)
{
	zd_request_set_member(req, member);
	req->u.reduce.serial = member->group->reduce_serial;
}

bool zd_reduce_request_lost(const struct zd_request *req)
{
	return req->u.reduce.serial != req->member->group->reduce_serial;
}

int zd_reduce_lost(const struct zd_group *group, struct zd_err *err)
{
	int status = zd_group_check(group, err);
	if (status == 0) /* all ranks have joined again */
		status = zd_err_set(err, ZEROD_E_PEER_LOST,
		                    "rank %u (pid %u) of group '%s' was gone meanwhile",
		                    zd_group_lost(group)->rank, zd_group_lost(group)->pid, group->name);
	return status;
}

int zd_reduce_request_check(const struct zd_request *req, struct zd_err *err)
{
	const struct zd_group *group = req->member->group;
	return zd_reduce_request_lost(req) ? zd_reduce_lost(group, err) : zd_group_check(group, err);
}

/* A client can send requests before its backward_begin receives a reply: they wait for it. A backward_begin
 * itself waits only for its target's memory. */
int zd_backward_await(struct zd_request *req, const struct zd_member_reduce *mr)
{
	if (mr->w->backward != ZD_BACKWARD_STARTING)
		return 0;
	zd_request_set_member(req, mr->member);
	return zd_wait_for(req, ZD_WAIT_SEGMENT, 0, 0, 0);
}

bool zd_backward_ended(const struct zd_member *member, const struct zd_window *w)
{
	const struct zd_member_reduce *mr = zd_member_reduce(member);
	const struct zd_window *other = mr ? zd_window_find(mr, w->number) : NULL;
	if (!other)
		return mr && mr->w->number > w->number;
	if (other->count > w->count || zd_step_is_called(other))
		return true;
	return other->count == w->count &&
	       (other->backward == ZD_BACKWARD_IDLE || other->backward == ZD_BACKWARD_ENDING);
}

/* ---- Begin --------------------------------------------------------------------------------------------- */

struct options {
	uint32_t stage;
	bool boundary;
	enum zerod_dtype target_dtype;
};

static int parse_options(const struct zd_args *args, struct options *out, struct zd_err *err)
{
	uint32_t stage = args->u.backward_begin.stage, dtype = args->u.backward_begin.target_dtype;
	if (stage > 3)
		return zd_err_set(err, ZEROD_E_INVALID, "stage %u is not one of 1, 2, 3", stage);
	if (dtype == 0)
		dtype = ZEROD_FLOAT32;
	if (zerod_dtype_bytes(dtype) == 0)
		return zd_err_set(err, ZEROD_E_INVALID, "unknown target dtype %u", dtype);
	if (!zd_dtype_holds_sums(dtype))
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "a target of dtype %s; only float32, float16 and bfloat16 are reduced into",
		                  zerod_dtype_name(dtype));
	stage = stage ? stage : 3;
	*out = (struct options){stage, stage == 1 && args->u.backward_begin.boundary, dtype};
	return 0;
}

static int check_state(const struct zd_member_reduce *mr, struct zd_err *err)
{
	uint32_t rank = zd_world_rank(mr->member);
	if (mr->w->backward != ZD_BACKWARD_IDLE)
		return zd_err_set(err, ZEROD_E_STATE, "backward %llu of rank %u runs",
		                  (unsigned long long)mr->number, rank);
	if (mr->w->step == ZD_STEP_TAKEN)
		return zd_err_set(err, ZEROD_E_STATE, "step %llu of rank %u has not ended",
		                  (unsigned long long)mr->steps, rank);
	if (zd_step_is_called(mr->w))
		return zd_err_set(err, ZEROD_E_STATE, "rank %u has begun the step that ends its window",
		                  rank);
	if (mr->w->step == ZD_STEP_READY && mr->w->stage == 1)
		return zd_err_set(err, ZEROD_E_STATE,
		                  "backward %llu of rank %u was the boundary: the step is next",
		                  (unsigned long long)mr->number, rank);
	return 0;
}

int zd_backward_check_ended(const struct zd_member *member, struct zd_err *err)
{
	const struct zd_member_reduce *mr = zd_member_reduce(member);
	if (!mr || mr->w->backward == ZD_BACKWARD_IDLE)
		return 0;
	return zd_err_set(
	        err, ZEROD_E_STATE,
	        "backward %llu of rank %u runs; in a group that spans daemons a commit is behind it",
	        (unsigned long long)mr->number, zd_world_rank(member));
}

static bool is_closed(const struct zd_window *w)
{
	return !w || (w->backward == ZD_BACKWARD_IDLE && w->stage == 0 &&
	              (w->step == ZD_STEP_NONE || w->step == ZD_STEP_ABANDONED));
}

int zd_backward_check_closed(const struct zd_member *member, const struct zd_unit *unit, struct zd_err *err)
{
	const struct zd_member_reduce *mr = zd_member_reduce(member);
	if (!mr || (is_closed(mr->w) && is_closed(mr->closing)))
		return 0;
	return zd_err_set(
	        err, ZEROD_E_STATE,
	        "rank %u is between backward %llu and the end of its step: unit '%s' stays as it is",
	        zd_world_rank(member), (unsigned long long)mr->number, unit->name);
}

static int check_window(const struct zd_window *had, const struct zd_member_reduce *mr,
                        const struct options *options, struct zd_err *err)
{
	if (had->stage == options->stage && had->target_dtype == options->target_dtype)
		return 0;
	return zd_err_set(
	        err, ZEROD_E_MISMATCH,
	        "rank %u runs the backwards of this step in stage %u into %s; rank %u says stage %u into %s",
	        zd_world_rank(had->mr->member), had->stage, zerod_dtype_name(had->target_dtype),
	        zd_world_rank(mr->member), options->stage, zerod_dtype_name(options->target_dtype));
}

/* Returns MISMATCH if another rank's window has its boundary at another backward. */
static int check_boundary(const struct zd_window *other, const struct zd_member_reduce *mr, bool boundary,
                          struct zd_err *err)
{
	uint64_t count = mr->w->count + 1, before = mr->number - mr->w->count, at = other->boundary_count;
	bool agrees = at == 0 ? !boundary || other->count < count : boundary ? at == count : at > count;
	if (other->stage != 1 || agrees)
		return 0;
	return zd_err_set(err, ZEROD_E_MISMATCH,
	                  "backward %llu is %s boundary of rank %u; rank %u has %s %llu",
	                  (unsigned long long)(before + count), boundary ? "the" : "not the",
	                  zd_world_rank(mr->member), zd_world_rank(other->mr->member),
	                  at ? "its boundary at backward" : "no boundary up to backward",
	                  (unsigned long long)(before + (at ? at : other->count)));
}

/* Returns MISMATCH if options or frozen units differ from those of a rank that has begun this window. */
static int check_ranks(const struct zd_member_reduce *mr, const struct options *options, struct zd_err *err)
{
	const struct zd_group *group = mr->member->group;
	int status = 0;
	for (uint32_t rank = 0; rank < group->local_world_size && status == 0; rank++) {
		const struct zd_member_reduce *other = zd_member_reduce(&group->members[rank]);
		const struct zd_window *w = other ? zd_window_find(other, mr->w->number) : NULL;
		if (!w || w->stage == 0)
			continue;
		status = check_window(w, mr, options, err);
		if (status == 0)
			status = zd_layout_compare(mr->member, other->member, err);
		if (status == 0 && other != mr)
			status = check_boundary(w, mr, options->boundary, err);
	}
	return status;
}

/* If the rank's window has failed and the rank does not know it, this backward_begin returns the failure. The
 * next backward_begin leaves the window. */
static int leave_failed(struct zd_engine *e, struct zd_member_reduce *mr, struct zd_err *err)
{
	if ((mr->w->failure.status == 0 && !mr->w->told) || mr->w->stage == 0)
		return 0;
	if (!mr->w->told) {
		mr->w->told = true;
		return zd_err_set(err, mr->w->failure.status, "%s", mr->w->failure.text);
	}
	zd_window_leave(e, mr->w, ZD_STEP_NONE);
	return 0;
}

/* If the ranks' numbers of backwards differ, fails the window, so that no rank completes its step. */
static int check_count(struct zd_engine *e, struct zd_member_reduce *mr, struct zd_err *err)
{
	int status = zd_window_check_begin(mr->w, err);
	if (status == 0)
		return 0;
	zd_window_fail(e, mr->member->group, mr->w->number, status, err->text);
	mr->w->told = true;
	return status;
}

static void begin_count(struct zd_member_reduce *mr, const struct options *options)
{
	if (mr->w->step == ZD_STEP_READY)
		zd_sm_move(&zd_sm_step, &mr->w->step, ZD_STEP_NONE);
	mr->number++;
	mr->w->count++;
	mr->w->boundary = options->boundary;
	if (mr->w->stage == 0) {
		mr->w->stage = options->stage;
		mr->w->target_dtype = options->target_dtype;
	}
	if (options->boundary)
		mr->w->boundary_count = mr->w->count;
}

static int begin_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_member *member;
	struct options options;
	int status = zd_member_find(e, req->session, req->args->u.backward_begin.group, &member, err);
	/* A request that fails here does not release the abandoned entries, because the rank's streams can
	 * still use them. */
	if (status == 0)
		status = zd_group_check(member->group, err);
	if (status == 0)
		status = zd_session_check_poisoned(req->session, err);
	if (status == 0)
		status = parse_options(req->args, &options, err);
	if (status != 0)
		return status;
	struct zd_member_reduce *mr = zd_member_reduce_get(member);
	if (mr->w->backward == ZD_BACKWARD_IDLE &&
	    (mr->w->step == ZD_STEP_NONE || mr->w->step == ZD_STEP_READY))
		status = zd_step_tell(mr, err);
	if (status == 0 && mr->w->backward == ZD_BACKWARD_IDLE && !zd_step_is_called(mr->w))
		status = leave_failed(e, mr, err);
	if (status == 0)
		status = check_state(mr, err);
	if (status == 0)
		status = check_ranks(mr, &options, err);
	if (status == 0)
		status = check_count(e, mr, err);
	if (status != 0)
		return status;
	zd_reduce_request_init(req, member);
	zd_reduce_give_up(e, member);
	zd_sm_move(&zd_sm_backward, &mr->w->backward, ZD_BACKWARD_STARTING);
	begin_count(mr, &options);
	zd_window_fail_agreements(e, member->group);
	return 0;
}

static void begin_undo(struct zd_engine *e, struct zd_member_reduce *mr)
{
	zd_targets_unbind(e, mr->w);
	mr->number--;
	mr->w->count--;
	if (mr->w->boundary)
		mr->w->boundary_count = 0;
	mr->w->boundary = false;
	if (mr->w->count == 0)
		mr->w->stage = 0;
	else if (mr->w->stage > 1)
		zd_sm_move(&zd_sm_step, &mr->w->step, ZD_STEP_READY);
	zd_sm_move(&zd_sm_backward, &mr->w->backward, ZD_BACKWARD_IDLE);
}

static int begin_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	int status = zd_reduce_request_check(req, err);
	if (status != 0)
		return status;
	struct zd_member_reduce *mr = req->member->reduce;
	bool reduces = (mr->w->stage > 1 || mr->w->boundary) && !zd_window_is_abandoned(mr->w);
	if (reduces)
		status = zd_targets_bind(e, req, mr->w, err);
	if (status == ZD_WAIT)
		return status;
	if (status != 0) {
		begin_undo(e, mr);
		return status;
	}
	zd_sm_move(&zd_sm_backward, &mr->w->backward, ZD_BACKWARD_RUNNING);
	e->reply.u.backward_begin.backward = mr->number;
	e->reply.u.backward_begin.first = mr->w->count == 1;
	return 0;
}

static void begin_cancel(struct zd_engine *e, struct zd_request *req)
{
	if (!zd_reduce_request_lost(req))
		begin_undo(e, req->member->reduce);
}

/* ---- End ----------------------------------------------------------------------------------------------- */

static int unsubmitted(const struct zd_member_reduce *mr, struct zd_err *err)
{
	const struct zd_bucket *bucket;
	const char *unit = "";
	TAILQ_FOREACH (bucket, &mr->buckets, link) {
		for (const struct zd_entry *entry = bucket->entries; entry; entry = entry->hh.next) {
			if (entry->state < ZD_ENTRY_SUBMITTED)
				unit = entry->part->unit->name;
		}
	}
	return zd_err_set(err, ZEROD_E_STATE, "rank %u has reserved %u %s not submitted, unit '%s' last",
	                  zd_world_rank(mr->member), mr->nunsubmitted,
	                  mr->nunsubmitted == 1 ? "entry that is" : "entries that are", unit);
}

/* Retries the backward_ends of ranks that skip the rest: they wait for the ends of the other ranks. */
static void tell_skippers(struct zd_engine *e, const struct zd_member_reduce *mr)
{
	const struct zd_group *group = mr->member->group;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_member_reduce *other = zd_member_reduce(&group->members[rank]);
		const struct zd_window *w = other ? zd_window_find(other, mr->w->number) : NULL;
		if (other != mr && w && w->skips_rest)
			zd_dirty(e, other->member->device);
	}
}

static int end_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_member *member;
	bool skips_rest = req->args->u.backward_end.skip_rest;
	int status = zd_member_find(e, req->session, req->args->u.backward_end.group, &member, err);
	if (status == 0)
		status = zd_group_check(member->group, err);
	if (status != 0)
		return status;
	if (skips_rest && member->group->cluster)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "group '%s' spans daemons: each rank names the units that it skips",
		                  member->group->name);
	struct zd_member_reduce *mr = zd_member_reduce_get(member);
	if (zd_backward_await(req, mr) != 0)
		return ZD_WAIT;
	if (mr->w->backward != ZD_BACKWARD_RUNNING)
		return zd_err_set(err, ZEROD_E_STATE, "rank %u runs no backward", zd_world_rank(member));
	if (mr->nunsubmitted > 0)
		return unsubmitted(mr, err);
	zd_reduce_request_init(req, member);
	req->u.reduce.window = mr->w->number;
	zd_sm_move(&zd_sm_backward, &mr->w->backward, ZD_BACKWARD_ENDING);
	mr->w->end_requested = true;
	mr->w->skips_rest = skips_rest;
	if (skips_rest)
		zd_reduction_skip_rest(e, mr->w);
	else
		zd_reduction_fail_without(e, mr->w);
	tell_skippers(e, mr);
	return 0;
}

/* Returns the first rank that can still begin a reduction: a backward_end with skip_rest waits for it.
 * local_world_size: there is none. An abandoned window has no reductions. */
static uint32_t first_reducing(const struct zd_window *w)
{
	const struct zd_group *group = w->mr->member->group;
	uint32_t rank = 0;
	if (!w->skips_rest || zd_window_is_abandoned(w))
		return group->local_world_size;
	while (rank < group->local_world_size && zd_backward_ended(&group->members[rank], w))
		rank++;
	return rank;
}

/* Returns ZD_WAIT, with the reason why the backward cannot end yet, or 0 if it can. */
static int end_wait(struct zd_request *req, const struct zd_window *w)
{
	const struct zd_reduction *r = zd_reduction_first_open(w);
	uint32_t reducing;
	if (w->open == 0 && w->nentries == 0) {
		reducing = first_reducing(w);
		return reducing < w->mr->member->group->local_world_size
		               ? zd_wait_for(req, ZD_WAIT_BACKWARD, reducing, 0, 0)
		               : 0;
	}
	if (!r) /* rejected entries that streams still write */
		return zd_wait_for(req, ZD_WAIT_FENCES, 0, 0, 0);
	return zd_wait_for_unit(req, r->unit, ZD_WAIT_REDUCTIONS,
	                        zd_reduction_waits_for(r, w->mr->member->rank), w->open, 0);
}

static int end_backward(struct zd_engine *e, struct zd_request *req, struct zd_window *w)
{
	struct zd_member_reduce *mr = w->mr;
	int wait = end_wait(req, w);
	if (wait != 0)
		return wait;
	w->skips_rest = false;
	/* otherwise a later backward uses the slots */
	if (w == mr->w || mr->w->backward <= ZD_BACKWARD_STARTING)
		(void)zd_bucket_trim(e, mr);
	zd_sm_move(&zd_sm_backward, &w->backward, ZD_BACKWARD_IDLE);
	if (w->step == ZD_STEP_CALLED)
		zd_sm_move(&zd_sm_step, &w->step, ZD_STEP_ZEROING);
	else if (w->stage > 1 || w->boundary || w->told)
		zd_sm_move(&zd_sm_step, &w->step, ZD_STEP_READY);
	zd_reduction_forget(e, mr->member->group, w->number, w->count);
	return 0;
}

int zd_backward_end_for_step(struct zd_engine *e, struct zd_request *req, struct zd_window *w)
{
	if (!w->end_requested)
		return end_backward(e, req, w);
	int wait = end_wait(req, w);
	return wait != 0 ? wait : zd_wait_for(req, ZD_WAIT_SUMS, w->mr->member->rank, 0, 0);
}

void zd_backward_step_given_up(struct zd_window *w)
{
	if (w->end_requested)
		return;
	w->skips_rest = false;
	zd_sm_move(&zd_sm_backward, &w->backward, ZD_BACKWARD_RUNNING);
}

static int end_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	int status = zd_reduce_request_check(req, err);
	if (status != 0)
		return status;
	struct zd_window *w = zd_window_of(req);
	if (end_backward(e, req, w) == ZD_WAIT)
		return ZD_WAIT;
	w->end_requested = false;
	if (w->failure.status == 0)
		return w == w->mr->w ? zd_step_tell(w->mr, err) : 0;
	w->told = true;
	return zd_err_set(err, w->failure.status, "%s", w->failure.text);
}

/* If a step_begin was called after this backward_end, the step ends the backward. */
static void end_cancel(struct zd_engine *e, struct zd_request *req)
{
	struct zd_window *w = zd_window_of(req);
	(void)e;
	if (zd_reduce_request_lost(req))
		return;
	w->end_requested = false;
	if (w->step == ZD_STEP_CALLED)
		return;
	w->skips_rest = false;
	zd_sm_move(&zd_sm_backward, &w->backward, ZD_BACKWARD_RUNNING);
}

const struct zd_request_type zd_req_backward_begin = {
        .begin = begin_begin, .attempt = begin_attempt, .cancel = begin_cancel};
const struct zd_request_type zd_req_backward_end = {
        .begin = end_begin, .attempt = end_attempt, .cancel = end_cancel};

/* ---- The group's life ---------------------------------------------------------------------------------- */

static void reset_window(struct zd_engine *e, struct zd_window *w)
{
	if (w->backward != ZD_BACKWARD_IDLE)
		zd_sm_move(&zd_sm_backward, &w->backward, ZD_BACKWARD_IDLE);
	w->end_requested = false;
	w->open = 0;
	zd_step_abandon(e, w);
	zd_window_close(w);
	zd_failure_clear(&w->failure);
}

static void reset(struct zd_engine *e, struct zd_member_reduce *mr)
{
	struct zd_bucket *bucket;
	TAILQ_FOREACH (bucket, &mr->buckets, link)
		zd_bucket_abandon_entries(e, bucket);
	(void)zd_bucket_trim(e, mr);
	if (mr->closing)
		reset_window(e, mr->closing);
	reset_window(e, mr->w);
	zd_failure_clear(&mr->past);
	mr->last_rail_seq = 0;
	mr->begun_rail_seq = 0;
	mr->holds_rail = false;
}

void zd_reduce_group_failed(struct zd_engine *e, struct zd_group *group)
{
	group->reduce_serial++;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_member_reduce *mr = zd_member_reduce(&group->members[rank]);
		if (mr)
			reset(e, mr);
	}
	zd_reduction_drop_all(e, group);
	zd_dirty_group(e, group);
}

void zd_reduce_give_up(struct zd_engine *e, struct zd_member *member)
{
	struct zd_member_reduce *mr = zd_member_reduce(member);
	struct zd_bucket *bucket;
	/* a backward has begun, and has dropped the abandoned entries */
	if (!mr || mr->w->backward != ZD_BACKWARD_IDLE)
		return;
	bool closes = mr->closing && mr->closing->nentries > 0; /* its entries are not abandoned */
	TAILQ_FOREACH (bucket, &mr->buckets, link) {
		if (!closes)
			zd_bucket_drop_entries(e, bucket);
	}
	if (!closes)
		(void)zd_bucket_trim(e, mr);
	zd_step_give_up(e, mr);
}

void zd_reduce_group_revived(struct zd_engine *e, struct zd_group *group)
{
	uint64_t number = 0, window = 0, steps = 0;
	(void)e;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_member_reduce *mr = zd_member_reduce(&group->members[rank]);
		number = zd_max_u64(number, mr ? mr->number : 0);
		window = zd_max_u64(window, mr ? mr->w->number : 0);
		steps = zd_max_u64(steps, mr ? mr->steps : 0);
	}
	for (uint32_t rank = 0; rank < group->local_world_size && window > 0; rank++) {
		struct zd_member_reduce *mr = zd_member_reduce_get(&group->members[rank]);
		mr->number = number;
		mr->w->number = window;
		mr->steps = steps;
	}
}

void zd_reduce_member_detach(struct zd_engine *e, struct zd_member *member)
{
	struct zd_member_reduce *mr = zd_member_reduce(member);
	struct zd_bucket *bucket, *next;
	if (!mr)
		return;
	reset(e, mr);
	zd_reduce_give_up(e, member);
	TAILQ_FOREACH_SAFE (bucket, &mr->buckets, link, next)
		zd_bucket_free(e, bucket);
	zd_step_forget_result(mr);
	zd_failure_clear(&mr->untold);
	mr->number = 0;
	mr->w->number = 0;
	mr->steps = 0;
	mr->attached = false;
	zd_member_reduce_release(e, mr);
}
