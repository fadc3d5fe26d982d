/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce.c - reductions: the contributions of ranks to a unit's gradient in one backward, and their end.
 *
 * A reduction begins with the first rank that reserves, submits or skips the unit. It runs only when all
 * ranks have submitted or skipped. Staging is therefore allocated only for reductions that can finish, and
 * reductions never wait for each other in a circle. A reduction is over when none of its operations is left.
 * Its record remains until every rank has ended the backward, so that a second contribution is rejected.
 */
#include <stdio.h>
#include <string.h>

#include <utlist.h>

#include "core/cluster/cluster.h"
#include "core/engine/ending.h"
#include "core/gather/unit.h"
#include "core/reduce/reduce.h"
#include "core/reduce/slice.h"

/* Old reductions that are examined when one begins, so that they become fewer. */
#define FORGOTTEN_WITH_ONE 4u

/* ---- Records ------------------------------------------------------------------------------------------- */

static uint64_t hash_key(const uint64_t *key)
{
	return zd_hash_id(key[ZD_REDUCTION_UNIT] +
	                  zd_hash_id(key[ZD_REDUCTION_WINDOW] + zd_hash_id(key[ZD_REDUCTION_BACKWARD])));
}

struct zd_reduction *zd_reduction_find(const struct zd_window *w, uint64_t unit)
{
	const struct zd_group *group = w->mr->member->group;
	const uint64_t key[ZD_REDUCTION_NKEYS] = {unit, w->number, w->count};
	struct zd_hash_node *node = zd_hash_first(&group->reduction_index.by_key, hash_key(key));
	for (; node; node = zd_hash_next(node)) {
		struct zd_reduction *r = ZD_CONTAINER_OF(node, struct zd_reduction, by_key);
		if (memcmp(r->key, key, sizeof(key)) == 0)
			return r;
	}
	return NULL;
}

static void unlink_record(struct zd_reductions *index, struct zd_reduction *r)
{
	zd_hash_remove(&index->by_key, &r->by_key);
	DL_DELETE(index->first, r);
}

static void reduction_free(struct zd_reduction *r)
{
	zd_failure_clear(&r->failure);
	free(r->ranks);
	zd_slices_free(r);
	free(r);
}

static uint32_t ncontributions(const struct zd_reduction *r)
{
	return r->nsubmitted + r->nskipped;
}

/* Whether the rank's backward waits for the reduction. */
static bool is_open(const struct zd_reduction *r, uint32_t rank)
{
	return zd_contribution_made(&r->ranks[rank]) && !r->ranks[rank].settled;
}

/* Releases the unit and its parts, which the reduction no longer needs. */
static void release_unit(struct zd_engine *e, struct zd_reduction *r)
{
	struct zd_unit *unit = r->unit;
	for (uint32_t rank = 0; rank < r->group->local_world_size; rank++)
		unit->parts[rank].users -= is_open(r, rank);
	r->unit = NULL;
	TAILQ_REMOVE(&r->group->reductions, r, link);
	zd_unit_unref(e, unit);
}

static void reduction_over(struct zd_engine *e, struct zd_reduction *r)
{
	struct zd_group *group = r->group;
	r->over = true;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_window *w = zd_reduction_window(r, rank);
		if (is_open(r, rank))
			w->open--;
		if (w && r->state == ZD_REDUCTION_COMPLETE)
			zd_norms_note_skipped(w, r->unit); /* has no effect if it was summed */
	}
	release_unit(e, r);
	zd_slices_free(r);
	if (r->state == ZD_REDUCTION_COMPLETE) {
		free(r->ranks);
		r->ranks = NULL;
	}
	zd_dirty_group(e, group);
}

static void reduction_event(struct zd_engine *e, const struct zd_reduction *r, enum zd_event_word outcome)
{
	struct zd_event *event = zd_event_new(e, ZD_EVENT_REDUCTION, r->group->job);
	event->reason = (uint8_t)outcome;
	event->object = r->unit->id;
	event->bytes = zd_unit_padded_bytes(r->unit);
	event->value = r->begin_ns;
}

static void reduction_complete(struct zd_engine *e, struct zd_reduction *r)
{
	zd_sm_move(&zd_sm_reduction, &r->state, ZD_REDUCTION_COMPLETE);
	zd_count(e, ZD_COUNT_REDUCTIONS_COMPLETE, 1);
	reduction_event(e, r, ZD_WORD_READY);
	reduction_over(e, r);
}

/* Whether the rank has ended the window's backward of that number. */
static bool is_past(const struct zd_member_reduce *mr, uint64_t window, uint64_t backward)
{
	const struct zd_window *w = mr ? zd_window_find(mr, window) : NULL;
	if (!w)
		return mr && mr->w->number > window;
	return w->count > backward || (w->count == backward && w->backward == ZD_BACKWARD_IDLE);
}

static bool are_past(const struct zd_group *group, uint64_t window, uint64_t backward)
{
	uint32_t rank = 0;
	while (rank < group->local_world_size &&
	       is_past(zd_member_reduce(&group->members[rank]), window, backward))
		rank++;
	return rank == group->local_world_size;
}

/* Frees reductions that are over and that no rank can use any more, among the oldest `most`. */
static void forget_past(struct zd_group *group, uint32_t most)
{
	struct zd_reduction *r = group->reduction_index.first, *next;
	for (; r && most-- > 0; r = next) {
		next = r->next;
		if (!r->over || !are_past(group, r->key[ZD_REDUCTION_WINDOW], r->key[ZD_REDUCTION_BACKWARD]))
			continue;
		unlink_record(&group->reduction_index, r);
		reduction_free(r);
	}
}

void zd_reduction_forget(const struct zd_engine *e, struct zd_group *group, uint64_t window,
                         uint64_t backward)
{
	if (are_past(group, window, backward))
		forget_past(group, e->sink.ends ? e->end_step_objects : UINT32_MAX);
}

static struct zd_reduction *get_reduction(const struct zd_engine *e, const struct zd_member_reduce *mr,
                                          struct zd_unit *unit)
{
	struct zd_group *group = mr->member->group;
	struct zd_reduction *r = zd_reduction_find(mr->w, unit->id);
	if (r)
		return r;
	r = zd_calloc(1, sizeof(*r));
	r->begin_ns = e->now_ns;
	r->key[ZD_REDUCTION_UNIT] = unit->id;
	r->key[ZD_REDUCTION_WINDOW] = mr->w->number;
	r->key[ZD_REDUCTION_BACKWARD] = mr->w->count;
	r->group = group;
	r->unit = unit;
	r->ranks = zd_calloc(group->local_world_size, sizeof(*r->ranks));
	unit->refs++;
	forget_past(group, FORGOTTEN_WITH_ONE);
	zd_hash_insert(&group->reduction_index.by_key, &r->by_key, hash_key(r->key));
	DL_APPEND(group->reduction_index.first, r);
	TAILQ_INSERT_TAIL(&group->reductions, r, link);
	return r;
}

/* ---- Contributions ------------------------------------------------------------------------------------- */

static int failure_text(const struct zd_reduction *r, struct zd_err *err)
{
	return zd_err_set(err, r->failure.status, "%s", r->failure.text);
}

static bool has_place(const struct zd_window *w, const struct zd_unit *unit)
{
	return unit->parts[w->mr->member->rank].untargeted ||
	       unit->target_offset_numel + zd_unit_target_numel(unit) <= zd_window_target(w, unit)->numel;
}

/* A rank whose target was bound before the unit was registered cannot skip it, because the target has no
 * place for the sum. */
static bool skips(const struct zd_window *w, const struct zd_unit *unit)
{
	return w && w->skips_rest && (zd_window_is_abandoned(w) || has_place(w, unit));
}

/* Returns MISMATCH if a rank has ended the backward without a contribution, because the reduction would never
 * run. A rank that has begun its step, or left the window, before this backward has failed the window:
 * returns that failure. */
static int check_ended(const struct zd_group *group, const struct zd_reduction *r, const struct zd_unit *unit,
                       const struct zd_window *w, const char *wants, struct zd_err *err)
{
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_window *other = zd_window_of_rank(group, rank, w->number);
		if (!zd_backward_ended(&group->members[rank], w) || skips(other, unit) ||
		    (r && zd_contribution_made(&r->ranks[rank])))
			continue;
		if ((!other || other->count < w->count) && w->failure.status != 0)
			return zd_err_set(err, w->failure.status, "%s", w->failure.text);
		return zd_err_set(
		        err, ZEROD_E_MISMATCH,
		        "rank %u ended backward %llu without a gradient or skip for unit '%s' that rank %u "
		        "wants to %s",
		        group->first_rank + rank, (unsigned long long)w->mr->number, unit->name,
		        zd_world_rank(w->mr->member), wants);
	}
	return 0;
}

static int admit_state(const struct zd_member_reduce *mr, const struct zd_unit *unit, struct zd_err *err)
{
	uint32_t rank = zd_world_rank(mr->member);
	const struct zd_target *target = zd_window_target(mr->w, unit);
	if (mr->w->backward != ZD_BACKWARD_RUNNING)
		return zd_err_set(err, ZEROD_E_STATE, "rank %u runs no backward: unit '%s' cannot be reduced",
		                  rank, unit->name);
	if (mr->w->stage == 1 && !mr->w->boundary)
		return zd_err_set(err, ZEROD_E_STATE,
		                  "stage 1 reduces only in the boundary backward; backward %llu of rank %u "
		                  "is not the boundary",
		                  (unsigned long long)mr->number, rank);
	if (unit->parts[mr->member->rank].frozen)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s' is frozen: it has no gradient",
		                  unit->name);
	if (zd_window_is_abandoned(mr->w)) /* no reduction: the target was dropped */
		return !mr->w->told ? 0
		                    : zd_err_set(err, ZEROD_E_STATE, "rank %u has abandoned backward %llu",
		                                 rank, (unsigned long long)mr->number);
	if (!has_place(mr->w, unit))
		return zd_err_set(err, ZEROD_E_STATE,
		                  "unit '%s' was registered after the target of backward %llu was bound",
		                  unit->name,
		                  (unsigned long long)(target->storage ? target->number : mr->number));
	return 0;
}

void zd_reduction_refused(struct zd_engine *e, struct zd_group *group, int status, const struct zd_err *err)
{
	if (group->cluster && status == ZEROD_E_MISMATCH)
		zd_cluster_fail(e, group, status, err->text);
}

int zd_reduction_admit(struct zd_engine *e, const struct zd_member_reduce *mr, const struct zd_unit *unit,
                       const char *wants, struct zd_err *err)
{
	int status = admit_state(mr, unit, err);
	if (status != 0 || zd_window_is_abandoned(mr->w))
		return status;
	struct zd_group *group = mr->member->group;
	const struct zd_reduction *r = zd_reduction_find(mr->w, unit->id);
	if (r && (!r->ranks || r->ranks[mr->member->rank].state != ZD_CONTRIBUTION_NONE))
		return zd_err_set(err, ZEROD_E_DUPLICATE,
		                  "rank %u reduces unit '%s' a second time in backward %llu",
		                  zd_world_rank(mr->member), unit->name, (unsigned long long)mr->number);
	if (r && r->state == ZD_REDUCTION_FAILED)
		return failure_text(r, err);
	status = check_ended(group, r, unit, mr->w, wants, err);
	zd_reduction_refused(e, group, status, err);
	return status;
}

void zd_reduction_reserve(struct zd_engine *e, struct zd_entry *entry)
{
	const struct zd_member_reduce *mr = entry->bucket->mr;
	if (zd_window_is_abandoned(mr->w))
		return;
	struct zd_reduction *r = get_reduction(e, mr, entry->part->unit);
	struct zd_contribution *c = &r->ranks[entry->part->rank];
	zd_sm_move(&zd_sm_contribution, &c->state, ZD_CONTRIBUTION_RESERVED);
	c->entry = entry;
	r->nreserved++;
	entry->reduction = r;
}

void zd_reduction_unreserve(struct zd_engine *e, struct zd_entry *entry)
{
	struct zd_reduction *r = entry->reduction;
	struct zd_contribution *c = &r->ranks[entry->part->rank];
	zd_sm_move(&zd_sm_contribution, &c->state, ZD_CONTRIBUTION_NONE);
	c->entry = NULL;
	r->nreserved--;
	entry->reduction = NULL;
	if (r->state != ZD_REDUCTION_COLLECTING || r->nreserved + ncontributions(r) > 0)
		return;
	release_unit(e, r);
	unlink_record(&r->group->reduction_index, r);
	reduction_free(r);
}

static void options_text(const struct zd_reduction_options *options, char *out, size_t out_bytes)
{
	(void)snprintf(out, out_bytes, "%s of %s, prescale %.9g, %s",
	               options->op == ZEROD_MEAN ? "mean" : "sum", zerod_dtype_name(options->dtype),
	               (double)options->prescale, options->overwrite ? "overwrite" : "accumulate");
}

int zd_reduction_check_options(const struct zd_entry *entry, const struct zd_reduction_options *options,
                               struct zd_err *err)
{
	const struct zd_reduction *r = entry->reduction;
	const struct zd_reduction_options *had = &r->options;
	if (r->state == ZD_REDUCTION_FAILED || r->nsubmitted == 0 ||
	    (had->op == options->op && had->prescale == options->prescale &&
	     had->overwrite == options->overwrite && had->dtype == options->dtype))
		return 0;
	char first[96], second[96];
	options_text(had, first, sizeof(first));
	options_text(options, second, sizeof(second));
	return zd_err_set(err, ZEROD_E_MISMATCH, "unit '%.64s': rank %u reduces by %s; rank %u says %s",
	                  entry->part->unit->name, r->group->first_rank + r->first_rank, first,
	                  zd_world_rank(zd_part_member(entry->part)), second);
}

int zd_reduction_check_ranks(const struct zd_entry *entry, struct zd_err *err)
{
	const struct zd_reduction *r = entry->reduction;
	if (r->state == ZD_REDUCTION_FAILED)
		return failure_text(r, err);
	return check_ended(r->group, r, entry->part->unit, entry->w, "reduce", err);
}

/* ---- From the last contribution to the end ------------------------------------------------------------- */

static void run_reduction(struct zd_engine *e, struct zd_reduction *r)
{
	uint32_t order = 0;
	if (r->nsubmitted == 0 && !r->group->cluster) {
		/* All ranks have skipped the unit: no sum is needed. */
		reduction_complete(e, r);
		return;
	}
	zd_sm_move(&zd_sm_reduction, &r->state, ZD_REDUCTION_RUNNING);
	for (uint32_t rank = 0; rank < r->group->local_world_size; rank++) {
		struct zd_contribution *c = &r->ranks[rank];
		if (c->state == ZD_CONTRIBUTION_SKIPPED)
			continue;
		c->order = order++;
		c->storage = c->entry->storage;
		c->offset = c->entry->offset;
	}
	zd_slices_start(e, r);
}

static void count(struct zd_reduction *r, uint32_t rank)
{
	struct zd_member_reduce *mr = zd_member_reduce(&r->group->members[rank]);
	r->unit->parts[rank].users++;
	zd_reduction_window(r, rank)->open++;
	r->ranks[rank].rail_seq = ++mr->last_rail_seq;
}

static void skip(struct zd_reduction *r, uint32_t rank)
{
	zd_sm_move(&zd_sm_contribution, &r->ranks[rank].state, ZD_CONTRIBUTION_SKIPPED);
	r->nskipped++;
	count(r, rank);
}

/* Skips the reduction for ranks that have not contributed, and whose backward_end skips the rest. */
static void skip_for_others(struct zd_reduction *r)
{
	for (uint32_t rank = 0; rank < r->group->local_world_size; rank++) {
		const struct zd_window *w = zd_reduction_window(r, rank);
		if (skips(w, r->unit) && zd_reduction_is_of(r, w) &&
		    r->ranks[rank].state == ZD_CONTRIBUTION_NONE)
			skip(r, rank);
	}
}

static void contributed(struct zd_engine *e, struct zd_reduction *r)
{
	skip_for_others(r);
	zd_dirty_group(e, r->group); /* the texts of other requests' waits have changed */
	if (ncontributions(r) == r->group->local_world_size)
		run_reduction(e, r);
}

void zd_reduction_skip_rest(struct zd_engine *e, struct zd_window *w)
{
	struct zd_reduction *r, *next;
	TAILQ_FOREACH_SAFE (r, &w->mr->member->group->reductions, link, next) {
		if (zd_reduction_is_of(r, w) && r->state == ZD_REDUCTION_COLLECTING && ncontributions(r) > 0)
			contributed(e, r);
	}
}

void zd_reduction_submit(struct zd_engine *e, struct zd_entry *entry,
                         const struct zd_reduction_options *options, bool lends)
{
	struct zd_reduction *r = entry->reduction;
	uint32_t rank = entry->part->rank;
	zd_sm_move(&zd_sm_contribution, &r->ranks[rank].state, ZD_CONTRIBUTION_SUBMITTED);
	r->ranks[rank].lends = lends;
	if (r->nsubmitted == 0) {
		r->first_rank = rank;
		r->options = *options;
	}
	r->nreserved--;
	r->nsubmitted++;
	count(r, rank);
	contributed(e, r);
}

void zd_reduction_ready(struct zd_engine *e, struct zd_entry *entry)
{
	struct zd_reduction *r = entry->reduction;
	uint32_t rank = entry->part->rank;
	zd_sm_move(&zd_sm_contribution, &r->ranks[rank].state, ZD_CONTRIBUTION_READY);
	if (r->state == ZD_REDUCTION_RUNNING)
		zd_slices_entry_ready(e, r, rank);
	else if (r->state == ZD_REDUCTION_FAILED)
		zd_reduction_drain(e, r, rank);
}

void zd_reduction_drain(struct zd_engine *e, struct zd_reduction *r, uint32_t rank)
{
	struct zd_contribution *c = &r->ranks[rank];
	if (!c->entry || c->state != ZD_CONTRIBUTION_READY || c->ops > 0)
		return;
	if (c->left > 0 && r->state != ZD_REDUCTION_FAILED)
		return;
	zd_entry_end(e, c->entry);
	c->storage = NULL; /* later steps, over a rail, do not read it */
	zd_reduction_try_settle(e, r, rank);
}

/* Never settles early for an all-reduced unit, because all owners' slices write to this rank's target. It
 * does not settle early over rails either, because a reduction ends for all of the daemon's ranks at once. */
void zd_reduction_try_settle(struct zd_engine *e, struct zd_reduction *r, uint32_t rank)
{
	struct zd_contribution *c = &r->ranks[rank];
	if (r->state != ZD_REDUCTION_RUNNING || c->settled || c->entry ||
	    r->slices[rank].state != ZD_SLICE_DONE || r->unit->all_reduce || r->group->cluster)
		return;
	c->settled = true;
	r->unit->parts[rank].users--;
	zd_reduction_window(r, rank)->open--;
	zd_dirty_group(e, r->group);
}

void zd_reduction_op_end(struct zd_engine *e, struct zd_reduction *r)
{
	zd_assert(r->ops > 0);
	r->ops--;
	if (r->ops > 0)
		return;
	if (r->state == ZD_REDUCTION_DROPPED) {
		reduction_free(r);
	} else if (r->state == ZD_REDUCTION_FAILED) {
		reduction_over(e, r);
	} else if (r->ndone == r->group->local_world_size) {
		reduction_complete(e, r);
	}
}

static void fail_one(struct zd_engine *e, struct zd_reduction *r, int status, const char *text)
{
	struct zd_group *group = r->group;
	zd_sm_move(&zd_sm_reduction, &r->state, ZD_REDUCTION_FAILED);
	zd_count(e, ZD_COUNT_REDUCTIONS_FAILED, 1);
	reduction_event(e, r, ZD_WORD_FAILED);
	zd_failure_set(&r->failure, status, text);
	zd_slices_stop(e, r);
	for (uint32_t rank = 0; rank < group->local_world_size; rank++)
		zd_reduction_drain(e, r, rank);
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_window *w = zd_reduction_window(r, rank);
		if (w)
			zd_failure_set(&w->failure, status, text);
	}
	if (r->ops == 0)
		reduction_over(e, r);
	zd_dirty_group(e, group);
}

/* Whether a slice has terms that are not lent, or will have some. */
static bool has_untaken(const struct zd_reduction *r)
{
	for (uint32_t rank = 0; rank < r->nslices; rank++) {
		const struct zd_slice *slice = &r->slices[rank];
		bool waits = slice->planner == &zd_plan_terms && slice->state == ZD_SLICE_WAITING;
		if (waits || (slice->held && !slice->lent))
			return true;
	}
	return false;
}

void zd_reduction_fail_untaken(struct zd_engine *e, const struct zd_group *group, uint64_t window, int status,
                               const char *text)
{
	struct zd_reduction *r, *next;
	TAILQ_FOREACH_SAFE (r, &group->reductions, link, next) {
		if (r->key[ZD_REDUCTION_WINDOW] == window && r->state == ZD_REDUCTION_RUNNING &&
		    has_untaken(r))
			fail_one(e, r, status, text);
	}
}

static bool window_has_failed(const struct zd_reduction *r)
{
	for (uint32_t rank = 0; rank < r->group->local_world_size; rank++) {
		const struct zd_window *w = zd_reduction_window(r, rank);
		if (w && (w->failure.status != 0 || zd_window_is_abandoned(w)))
			return true;
	}
	return false;
}

void zd_reduction_fail(struct zd_engine *e, struct zd_reduction *r, int status, const char *text)
{
	struct zd_group *group = r->group;
	uint64_t window = r->key[ZD_REDUCTION_WINDOW];
	if (r->state == ZD_REDUCTION_FAILED)
		return;
	bool first = !window_has_failed(r);
	fail_one(e, r, status, text);
	if (group->cluster) /* the other daemons' ranks wait for it */
		zd_cluster_fail(e, group, status, text);
	else if (first)
		zd_reduction_fail_untaken(e, group, window, status, text);
}

void zd_reduction_fail_without(struct zd_engine *e, struct zd_window *w)
{
	struct zd_reduction *r, *next;
	uint32_t me = w->mr->member->rank;
	TAILQ_FOREACH_SAFE (r, &w->mr->member->group->reductions, link, next) {
		if (!zd_reduction_is_of(r, w) || ncontributions(r) == 0 ||
		    zd_contribution_made(&r->ranks[me]))
			continue;
		uint32_t other = 0;
		while (!zd_contribution_made(&r->ranks[other]))
			other++;
		struct zd_err err = ZD_ERR_NONE;
		int status = zd_err_set(
		        &err, ZEROD_E_MISMATCH,
		        "rank %u ended backward %llu without a gradient or skip for unit '%s' that "
		        "rank %u %s",
		        zd_world_rank(w->mr->member), (unsigned long long)w->mr->number, r->unit->name,
		        r->group->first_rank + other,
		        r->ranks[other].state == ZD_CONTRIBUTION_SKIPPED ? "skipped" : "reduced");
		zd_reduction_fail(e, r, status, err.text);
		if (w->mr->member->group->cluster)
			return; /* that was the end of the group */
	}
}

/* Records of reductions that are over, of a group that has failed. */
struct past {
	struct zd_ending ending;
	struct zd_reductions all;
};

static bool free_past(struct zd_engine *e, struct zd_ending *ending, uint32_t *budget)
{
	struct past *past = ZD_CONTAINER_OF(ending, struct past, ending);
	struct zd_reduction *r;
	(void)e;
	while ((r = past->all.first)) {
		if (!zd_ending_may_free(budget))
			return false;
		unlink_record(&past->all, r);
		reduction_free(r);
	}
	free(past);
	return true;
}

static void drop(struct zd_engine *e, struct zd_reduction *r)
{
	unlink_record(&r->group->reduction_index, r);
	if (r->state != ZD_REDUCTION_FAILED) {
		zd_count(e, ZD_COUNT_REDUCTIONS_DROPPED, 1);
		reduction_event(e, r, ZD_WORD_DROPPED);
		zd_slices_stop(e, r);
	}
	zd_sm_move(&zd_sm_reduction, &r->state, ZD_REDUCTION_DROPPED);
	release_unit(e, r);
	if (r->ops == 0)
		reduction_free(r);
}

void zd_reduction_drop_all(struct zd_engine *e, struct zd_group *group)
{
	struct zd_reduction *r, *next;
	TAILQ_FOREACH_SAFE (r, &group->reductions, link, next)
		drop(e, r);
	if (!group->reduction_index.first)
		return;
	struct past *past = zd_calloc(1, sizeof(*past));
	past->all = group->reduction_index;
	group->reduction_index = (struct zd_reductions){.first = NULL};
	zd_ending_begin_last(e, group->job->owner, &past->ending, free_past);
}

/* ---- Waiting ------------------------------------------------------------------------------------------- */

const struct zd_reduction *zd_reduction_first_open(const struct zd_window *w)
{
	const struct zd_reduction *r;
	TAILQ_FOREACH (r, &w->mr->member->group->reductions, link) {
		if (zd_reduction_is_of(r, w) && is_open(r, w->mr->member->rank))
			return r;
	}
	return NULL;
}

static uint32_t first_rank(const struct zd_reduction *r, enum zd_contribution_state below)
{
	uint32_t rank = 0;
	while (rank < r->group->local_world_size && r->ranks[rank].state >= below)
		rank++;
	return rank;
}

bool zd_reduction_lends(const struct zd_reduction *r, uint32_t rank)
{
	return r->state == ZD_REDUCTION_RUNNING && r->slices[rank].held &&
	       r->slices[rank].state == ZD_SLICE_DONE;
}

uint32_t zd_reduction_waits_for(const struct zd_reduction *r, uint32_t mine)
{
	uint32_t world = r->group->local_world_size, rank = first_rank(r, ZD_CONTRIBUTION_SUBMITTED);
	if (rank == world)
		rank = first_rank(r, ZD_CONTRIBUTION_READY);
	if (rank < world || !r->slices)
		return rank < world ? rank : 0;
	if (zd_reduction_lends(r, mine))
		return mine;
	for (rank = 0; rank < world - 1 && r->slices[rank].state == ZD_SLICE_DONE;)
		rank++;
	return rank;
}

/* Whether the slice's sums are launched without a call of a process. A process returns terms by a call. It
 * can be unable to launch a sum while its stream waits, unless it has declared otherwise: other calls of the
 * driver, such as copies to pageable memory, can block launches until the stream continues. */
static bool sums_are_launched(const struct zd_engine *e, const struct zd_slice *slice)
{
	const struct zd_session *session = slice->reduction->group->members[slice->owner].session;
	if (slice->planner == &zd_plan_terms)
		return !slice->held || slice->returned;
	enum zd_sums_state sums = session && e->sink.sums ? e->sink.sums(e->sink.arg, session->id)
	                                                  : ZD_SUMS_BY_EXECUTOR;
	if (sums == ZD_SUMS_BY_EXECUTOR || session->runs_ahead || slice->state == ZD_SLICE_DONE)
		return true;
	for (uint32_t chunk = 0; chunk < slice->reduction->nchunks; chunk++) {
		if (slice->plan.steps[zd_slice_sum_step(slice, chunk)].state == ZD_PLAN_WAITING)
			return false;
	}
	return sums != ZD_SUMS_ASKED;
}

void zd_engine_sums_launched(struct zd_engine *e, uint64_t id)
{
	const struct zd_session *session = zd_session_find(e, id);
	const struct zd_member *member;
	if (!session)
		return;
	TAILQ_FOREACH (member, &session->members, session_link)
		zd_dirty_group(e, member->group);
	zd_settle(e);
}

/* Whether terms of a reduction that has failed are lent. */
static bool has_loan(const struct zd_reduction *r)
{
	uint32_t rank = 0;
	while (rank < r->nslices && (!r->slices[rank].held || r->slices[rank].returned))
		rank++;
	return rank < r->nslices;
}

/* Over rails, ranks of other daemons also have to contribute. A slice that waits for staging can wait for
 * memory in quarantine, whose fences wait for the promise that the caller is about to make. */
bool zd_reduction_drains(const struct zd_engine *e, const struct zd_reduction *r)
{
	if (r->state == ZD_REDUCTION_FAILED)
		return !has_loan(r);
	if (r->state != ZD_REDUCTION_RUNNING || r->group->cluster)
		return false;
	for (uint32_t rank = 0; rank < r->group->local_world_size; rank++) {
		const struct zd_slice *slice = &r->slices[rank];
		if (slice->state == ZD_SLICE_WAITING || !sums_are_launched(e, slice))
			return false;
	}
	return true;
}

bool zd_reductions_drain(const struct zd_engine *e, const struct zd_group *group, uint64_t window)
{
	const struct zd_reduction *r;
	TAILQ_FOREACH (r, &group->reductions, link) {
		if (r->key[ZD_REDUCTION_WINDOW] == window && !zd_reduction_drains(e, r))
			return false;
	}
	return true;
}

/* ---- Skip ---------------------------------------------------------------------------------------------- */

static int skip_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_part *part;
	int status = zd_part_find(e, req->session, req->args->u.reduce_skip.unit, &part, err);
	if (status != 0)
		return status;
	struct zd_member *member = zd_part_member(part);
	status = zd_group_check(member->group, err);
	if (status != 0)
		return status;
	const struct zd_member_reduce *mr = zd_member_reduce_get(member);
	if (zd_backward_await(req, mr) != 0)
		return ZD_WAIT;
	status = zd_reduction_admit(e, mr, part->unit, "skip", err);
	if (status != 0 || zd_window_is_abandoned(mr->w))
		return status;
	struct zd_reduction *r = get_reduction(e, mr, part->unit);
	skip(r, member->rank);
	contributed(e, r);
	return 0;
}

const struct zd_request_type zd_req_reduce_skip = {.begin = skip_begin};
