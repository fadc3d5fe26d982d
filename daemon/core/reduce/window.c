/* SPDX-License-Identifier: Apache-2.0 */
/*
 * window.c - windows: the backwards of a rank from one step to the next, and windows that end without a step.
 *
 * Stage, dtype and number of backwards must be the same on all ranks. A window fails on all ranks at once.
 * Each rank receives the failure from its next call that can return it, and closes the window by its step or,
 * once it knows the failure, by its next backward. A rank can therefore be windows ahead of another rank. The
 * failure of a window that it has closed is then also the other rank's failure.
 *
 * A promised step (step.c) waits for no call. When the rank has also called step_end for it, the rank begins
 * the next window, while the sums and the step of the former, closing window are under way. Both windows have
 * a target. At most one window of a rank is closing.
 *
 * A rank can abandon its window, which ends it for all ranks. Reductions of the window are dropped, and the
 * content of its targets is undefined. The other ranks learn of it from their step. Until then their
 * reserves, submits and skips in that window are accepted without a reduction, and their backwards end when
 * their own fences have passed.
 */
#include "core/cluster/cluster.h"
#include "core/engine/objects.h"
#include "core/reduce/bucket.h"
#include "core/reduce/entry.h"
#include "core/reduce/member.h"
#include "core/reduce/reduction.h"
#include "core/reduce/target.h"
#include "core/reduce/window.h"

void zd_failure_set(struct zd_failure *failure, int status, const char *text)
{
	if (failure->status != 0 || failure->abandoned)
		return; /* the first failure counts */
	failure->status = status;
	failure->text = zd_strdup(text);
}

void zd_failure_clear(struct zd_failure *failure)
{
	free(failure->text);
	*failure = (struct zd_failure){0};
}

void zd_failure_copy(struct zd_failure *failure, const struct zd_failure *from)
{
	if (from->status != 0)
		zd_failure_set(failure, from->status, from->text);
	if (!from->abandoned || failure->status != 0)
		return;
	failure->abandoned = true;
	failure->rank = from->rank;
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

struct zd_window *zd_window_new(struct zd_member_reduce *mr, uint64_t number)
{
	struct zd_window *w = mr->spare ? mr->spare : zd_calloc(1, sizeof(*w));
	*w = (struct zd_window){.mr = mr, .number = number, .norms = w->norms};
	TAILQ_INIT(&w->sums);
	mr->spare = NULL;
	return w;
}

void zd_window_free(struct zd_engine *e, struct zd_window *w)
{
	if (w)
		zd_norms_end(e, w->mr->member->group->job->owner, &w->norms);
	free(w);
}

/* A closing window whose step is taken is not found: only its target is left. */
struct zd_window *zd_window_find(const struct zd_member_reduce *mr, uint64_t number)
{
	if (mr->w->number == number)
		return mr->w;
	return mr->closing && mr->closing->stage > 0 && mr->closing->number == number ? mr->closing : NULL;
}

struct zd_window *zd_window_of_rank(const struct zd_group *group, uint32_t rank, uint64_t number)
{
	const struct zd_member_reduce *mr = zd_member_reduce(&group->members[rank]);
	return mr ? zd_window_find(mr, number) : NULL;
}

struct zd_window *zd_window_of(const struct zd_request *req)
{
	return zd_window_of_rank(req->member->group, req->member->rank, req->u.reduce.window);
}

/* ---- The end ------------------------------------------------------------------------------------------- */

/* Copies the failure of a window that other ranks have failed, or have left with a failure, before this rank
 * began it. */
static void inherit(struct zd_window *w)
{
	const struct zd_group *group = w->mr->member->group;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_member_reduce *other = zd_member_reduce(&group->members[rank]);
		if (other && other->w->number > w->number)
			zd_failure_copy(&w->failure, &other->past);
		else if (other && other != w->mr && other->w->number == w->number)
			zd_failure_copy(&w->failure, &other->w->failure);
	}
}

void zd_window_close(struct zd_window *w)
{
	zd_norms_forget(w);
	zd_failure_clear(&w->failure);
	w->told = false;
	w->skips_rest = false;
	w->count = 0;
	w->stage = 0;
	w->boundary = false;
	w->boundary_count = 0;
	if (w != w->mr->w)
		return;
	w->number++;
	inherit(w);
}

void zd_window_try_pass(struct zd_engine *e, struct zd_member_reduce *mr)
{
	struct zd_window *w = mr->w;
	if (mr->closing || !w->promise || mr->nenders == 0)
		return;
	zd_target_forget_lent(e, w);
	mr->closing = w;
	mr->w = zd_window_new(mr, w->number + 1);
	inherit(mr->w);
	zd_dirty_group(e, mr->member->group);
}

void zd_window_end(struct zd_engine *e, struct zd_window *w)
{
	struct zd_member_reduce *mr = w->mr;
	zd_dirty(e, mr->member->device); /* requests can wait for its target's memory, and for its step */
	if (w != mr->closing)
		return;
	mr->closing = NULL;
	zd_assert(w->norms.count == 0);
	mr->spare = w;
	zd_window_try_pass(e, mr);
}

/* Makes the numbers of backwards equal on all ranks again, as far as possible. */
static void align_number(struct zd_member_reduce *mr)
{
	const struct zd_group *group = mr->member->group;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_member_reduce *other = zd_member_reduce(&group->members[rank]);
		if (other)
			mr->number = zd_max_u64(mr->number, other->number - other->w->count);
		if (other && other->w->number == mr->w->number)
			mr->number = zd_max_u64(mr->number, other->number);
	}
}

void zd_window_leave(struct zd_engine *e, struct zd_window *w, enum zd_step_state step)
{
	struct zd_member_reduce *mr = w->mr;
	uint64_t number = w->number, count = w->count;
	if (w->step != step)
		zd_sm_move(&zd_sm_step, &w->step, step);
	if (!w->promise) /* otherwise streams can read it */
		zd_targets_drop(e, w);
	if (w == mr->w) { /* otherwise all ranks are in it, with equal numbers */
		zd_failure_clear(&mr->past);
		mr->past = w->failure;
		w->failure = (struct zd_failure){0};
		align_number(mr);
	}
	zd_window_close(w);
	zd_reduction_forget(e, mr->member->group, number, count);
	zd_dirty_group(e, mr->member->group);
}

void zd_window_fail(struct zd_engine *e, struct zd_group *group, uint64_t window, int status,
                    const char *text)
{
	struct zd_reduction *r, *next;
	if (group->cluster) {
		zd_cluster_fail(e, group, status, text);
		return;
	}
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_window *w = zd_window_of_rank(group, rank, window);
		if (w)
			zd_failure_set(&w->failure, status, text);
	}
	TAILQ_FOREACH_SAFE (r, &group->reductions, link, next) {
		if (r->key[ZD_REDUCTION_WINDOW] == window && r->state == ZD_REDUCTION_COLLECTING)
			zd_reduction_fail(e, r, status, text);
	}
	zd_reduction_fail_untaken(e, group, window, status, text);
	zd_dirty_group(e, group);
}

/* ---- Abandoning ---------------------------------------------------------------------------------------- */

/* Removes entries that are not submitted from their reductions. Their ranks can still be writing them. */
static void detach_entries(struct zd_engine *e, struct zd_member_reduce *mr)
{
	struct zd_bucket *bucket;
	TAILQ_FOREACH (bucket, &mr->buckets, link) {
		for (struct zd_entry *entry = bucket->entries; entry; entry = entry->hh.next) {
			if (entry->reduction && entry->w == mr->w && entry->state < ZD_ENTRY_SUBMITTED)
				zd_entry_detach(e, entry);
		}
	}
}

static void abandon_on(struct zd_engine *e, struct zd_member_reduce *mr, const struct zd_member *by)
{
	zd_failure_clear(&mr->w->failure);
	mr->w->failure.abandoned = true;
	mr->w->failure.rank = zd_world_rank(by);
	mr->w->told = false;
	detach_entries(e, mr);
	/* the target is the last step's */
	if (mr->w->step == ZD_STEP_TAKEN || mr->w->step == ZD_STEP_ABANDONED)
		return;
	/* otherwise its streams can access it until its next window */
	if (mr->nlent == 0 || mr->member == by)
		zd_targets_drop(e, mr->w);
}

static void abandon_window(struct zd_engine *e, const struct zd_member_reduce *by)
{
	struct zd_group *group = by->member->group;
	struct zd_reduction *r, *next;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_member_reduce *mr = zd_member_reduce_get(&group->members[rank]);
		if (mr->w->number == by->w->number)
			abandon_on(e, mr, by->member);
	}
	TAILQ_FOREACH_SAFE (r, &group->reductions, link, next) {
		if (r->key[ZD_REDUCTION_WINDOW] == by->w->number)
			zd_reduction_fail(e, r, ZEROD_E_STATE, "its backward was abandoned");
	}
	zd_dirty_group(e, group);
}

/* Returns the reserved entries of the rank that abandons its window. The rank does not have to submit them,
 * because its call names their streams. */
static void return_entries(struct zd_engine *e, struct zd_member_reduce *mr,
                           const struct zd_fence_list *fences)
{
	struct zd_bucket *bucket;
	struct zd_entry *entry, *next;
	TAILQ_FOREACH (bucket, &mr->buckets, link) {
		HASH_ITER (hh, bucket->entries, entry, next) {
			if (entry->state == ZD_ENTRY_RESERVED)
				zd_entry_return(e, entry, fences);
		}
	}
}

static int abandon_check(const struct zd_member_reduce *mr, struct zd_err *err)
{
	uint32_t rank = zd_world_rank(mr->member);
	if (mr->w->stage == 0)
		return zd_err_set(err, ZEROD_E_STATE, "rank %u has begun no backward since its last step",
		                  rank);
	if (mr->w->backward == ZD_BACKWARD_STARTING)
		return zd_err_set(err, ZEROD_E_STATE, "backward %llu of rank %u is being begun",
		                  (unsigned long long)mr->number, rank);
	if (zd_step_is_promised(mr->w))
		return zd_err_set(err, ZEROD_E_STATE,
		                  "all ranks have begun the step: backward %llu of rank %u counts",
		                  (unsigned long long)mr->number, rank);
	return 0;
}

static int abandon_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_member *member;
	int status = zd_member_find(e, req->session, req->args->u.backward_abandon.group, &member, err);
	if (status == 0)
		status = zd_group_check(member->group, err);
	if (status != 0)
		return status;
	struct zd_member_reduce *mr = zd_member_reduce_get(member);
	status = abandon_check(mr, err);
	if (status != 0)
		return status;
	if (member->group->cluster) {
		status = zd_err_set(err, ZEROD_E_ABORTED, "group '%s': rank %u has abandoned its backward",
		                    member->group->name, zd_world_rank(member));
		zd_cluster_fail(e, member->group, status, err->text);
		return status;
	}
	if (!zd_window_is_abandoned(mr->w))
		abandon_window(e, mr);
	mr->w->told = true;
	return_entries(e, mr, &req->args->fences);
	zd_reduce_request_init(req, member);
	return 0;
}

/* Waits until no entry of the rank is read or written any more. */
static int abandon_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	int status = zd_reduce_request_check(req, err);
	if (status != 0)
		return status;
	struct zd_member_reduce *mr = req->member->reduce;
	if (mr->w->open > 0 || mr->w->nentries > 0)
		return zd_wait_for(req, ZD_WAIT_FENCES, 0, 0, 0);
	(void)zd_bucket_trim(e, mr);
	if (mr->w->backward == ZD_BACKWARD_RUNNING) {
		zd_sm_move(&zd_sm_backward, &mr->w->backward, ZD_BACKWARD_IDLE);
		zd_reduction_forget(e, mr->member->group, mr->w->number, mr->w->count);
	}
	/* in stage 1 without a boundary */
	if (mr->w->backward == ZD_BACKWARD_IDLE && mr->w->step == ZD_STEP_NONE)
		zd_sm_move(&zd_sm_step, &mr->w->step, ZD_STEP_READY);
	return 0;
}

const struct zd_request_type zd_req_backward_abandon = {.begin = abandon_begin, .attempt = abandon_attempt};

/* ---- Counts -------------------------------------------------------------------------------------------- */

static int counts_differ(const struct zd_window *w, uint64_t count, const struct zd_window *other,
                         struct zd_err *err)
{
	return zd_err_set(err, ZEROD_E_MISMATCH,
	                  "rank %u runs %llu backward%s in this step, rank %u runs %llu",
	                  zd_world_rank(w->mr->member), (unsigned long long)count, count == 1 ? "" : "s",
	                  zd_world_rank(other->mr->member), (unsigned long long)other->count);
}

int zd_window_check_begin(const struct zd_window *w, struct zd_err *err)
{
	const struct zd_group *group = w->mr->member->group;
	for (uint32_t rank = 0; rank < group->local_world_size && !zd_window_is_abandoned(w); rank++) {
		const struct zd_window *other = zd_window_of_rank(group, rank, w->number);
		if (other && zd_step_is_called(other) && other->count <= w->count)
			return counts_differ(w, w->count + 1, other, err);
	}
	return 0;
}

int zd_window_check_step(const struct zd_window *w, struct zd_err *err)
{
	const struct zd_group *group = w->mr->member->group;
	for (uint32_t rank = 0; rank < group->local_world_size && !zd_window_is_abandoned(w); rank++) {
		const struct zd_window *other = zd_window_of_rank(group, rank, w->number);
		if (other &&
		    (other->count > w->count || (zd_step_is_called(other) && other->count < w->count)))
			return counts_differ(w, w->count, other, err);
	}
	return 0;
}

/* Returns the rank's window in which a backward has begun and which no rank has abandoned. NULL: none, or the
 * rank waits in an agreement. */
static const struct zd_window *begun_window(const struct zd_member *member)
{
	const struct zd_member_reduce *mr = zd_member_reduce(member);
	return mr && !member->agreeing && mr->w->count > 0 && !zd_window_is_abandoned(mr->w) ? mr->w : NULL;
}

/* Whether the rank of window `w` has not begun the last backward of `ahead`. A rank that has called the step
 * can agree while it waits for the step. */
static bool is_left_behind(const struct zd_window *w, const struct zd_window *ahead)
{
	if (w->number == ahead->number)
		return w->count < ahead->count;
	return w->number < ahead->number && !zd_step_is_called(w);
}

/* Whether `w` is ahead of `other`; NULL: of any. */
static bool is_ahead(const struct zd_window *w, const struct zd_window *other)
{
	return !other || w->number > other->number || (w->number == other->number && w->count > other->count);
}

void zd_window_fail_agreements(struct zd_engine *e, struct zd_group *group)
{
	const struct zd_window *ahead = NULL;
	struct zd_err err = ZD_ERR_NONE;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_window *w = begun_window(&group->members[rank]);
		if (w && is_ahead(w, ahead))
			ahead = w;
	}
	for (uint32_t rank = 0; ahead && rank < group->local_world_size; rank++) {
		struct zd_member *member = &group->members[rank];
		if (!member->agreeing || !is_left_behind(zd_member_reduce_get(member)->w, ahead))
			continue;
		int status = zd_err_set(
		        &err, ZEROD_E_MISMATCH,
		        "rank %u agrees, and rank %u has begun the next backward: all ranks agree, in "
		        "the same place of their programs",
		        zd_world_rank(member), zd_world_rank(ahead->mr->member));
		zd_request_fail(member->agreeing, status, err.text);
		zd_dirty_group(e, group);
	}
}
