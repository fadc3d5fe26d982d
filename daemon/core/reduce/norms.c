/* SPDX-License-Identifier: Apache-2.0 */
/*
 * norms.c - squared norms of reduced gradients.
 *
 * The reduction of a slice yields the slice's norm. Norms are added up in the order of ranks and units, so
 * that all runs compute the same bits. If the units are many, the sum is made in several steps. At a step,
 * the group stores the norm of each unit across the ranks of this daemon until the next step, because
 * step_get cannot compute it later.
 */
#include <stdlib.h>

#include <utlist.h>

#include "core/cluster/cluster.h"
#include "core/engine/ending.h"
#include "core/gather/unit.h"
#include "core/reduce/member.h"
#include "core/reduce/reduce.h"
#include "core/reduce/window.h"

static struct zd_slice_norm *find_any(const struct zd_norms *norms, uint64_t unit)
{
	struct zd_hash_node *node = zd_hash_first(&norms->by_unit, zd_hash_id(unit));
	return node ? ZD_CONTAINER_OF(node, struct zd_slice_norm, by_unit) : NULL;
}

/* The norm of the present epoch; NULL: none. */
static struct zd_slice_norm *find_norm(const struct zd_norms *norms, uint64_t unit)
{
	struct zd_slice_norm *norm = find_any(norms, unit);
	return norm && norm->epoch == norms->epoch ? norm : NULL;
}

static void norm_free(struct zd_norms *norms, struct zd_slice_norm *norm)
{
	zd_hash_remove(&norms->by_unit, &norm->by_unit);
	DL_DELETE(norms->all, norm);
	free(norm);
}

/* Frees at most two norms that had no value in the last epoch. Norms of ended units thereby disappear. */
static void sweep(struct zd_norms *norms)
{
	for (uint32_t i = 0; i < 2; i++) {
		struct zd_slice_norm *norm = norms->hand ? norms->hand : norms->all;
		if (!norm)
			return;
		norms->hand = norm->next;
		if (norm->epoch + 1 < norms->epoch)
			norm_free(norms, norm);
	}
}

static struct zd_slice_norm *get_norm(struct zd_norms *norms, uint64_t unit)
{
	struct zd_slice_norm *norm = find_any(norms, unit);
	if (norm && norm->epoch == norms->epoch)
		return norm;
	if (!norm) {
		sweep(norms);
		norm = zd_calloc(1, sizeof(*norm));
		norm->unit = unit;
		zd_hash_insert(&norms->by_unit, &norm->by_unit, zd_hash_id(unit));
		DL_APPEND(norms->all, norm);
	}
	norms->count++;
	norm->epoch = norms->epoch;
	norm->skipped = false;
	norm->sum_squares = 0;
	return norm;
}

/* The memory remains for the norms of the next epoch, which are mostly of the same units. */
static void forget(struct zd_norms *norms)
{
	norms->epoch++;
	norms->count = 0;
}

struct ended {
	struct zd_ending ending;
	struct zd_norms norms;
};

static bool free_ended(struct zd_engine *e, struct zd_ending *ending, uint32_t *budget)
{
	struct ended *ended = ZD_CONTAINER_OF(ending, struct ended, ending);
	(void)e;
	while (ended->norms.all) {
		if (!zd_ending_may_free(budget))
			return false;
		norm_free(&ended->norms, ended->norms.all);
	}
	free(ended);
	return true;
}

void zd_norms_end(struct zd_engine *e, struct zd_owner *owner, struct zd_norms *norms)
{
	if (!norms->all)
		return;
	struct ended *ended = zd_calloc(1, sizeof(*ended));
	ended->norms = *norms;
	*norms = (struct zd_norms){0};
	zd_ending_begin_last(e, owner, &ended->ending, free_ended);
}

/* ---- Of an owner --------------------------------------------------------------------------------------- */

/* A norm has changed: an incomplete sum starts again. */
static void changed(struct zd_window *w)
{
	w->mr->member->group->summing = (struct zd_summing){.runs = false};
}

bool zd_norms_has(const struct zd_window *w, const struct zd_unit *unit)
{
	const struct zd_slice_norm *norm = find_norm(&w->norms, unit->id);
	return norm && !norm->skipped;
}

void zd_norms_note_skipped(struct zd_window *w, const struct zd_unit *unit)
{
	if (find_norm(&w->norms, unit->id))
		return;
	changed(w);
	get_norm(&w->norms, unit->id)->skipped = true;
}

bool zd_norms_skipped(const struct zd_window *w, const struct zd_unit *unit)
{
	const struct zd_slice_norm *norm = find_norm(&w->norms, unit->id);
	return norm && norm->skipped;
}

void zd_norms_note(struct zd_window *w, const struct zd_unit *unit, const struct zd_op_result *result)
{
	uint64_t *unwritten_numel = &w->targets[unit->on_host].unwritten_numel;
	bool placed = !unit->parts[w->mr->member->rank].untargeted;
	if (placed && !zd_norms_has(w, unit) && *unwritten_numel > 0) /* 0: a cancelled step has zeroed it */
		*unwritten_numel -= zd_unit_target_numel(unit);
	changed(w);
	struct zd_slice_norm *norm = get_norm(&w->norms, unit->id);
	norm->skipped = false;
	norm->sum_squares = result->sum_squares;
	w->overflow |= result->overflow;
}

void zd_norms_forget(struct zd_window *w)
{
	changed(w);
	forget(&w->norms);
	w->overflow = false;
}

static int by_unit(const void *a, const void *b)
{
	const struct zd_slice_norm *const *left = a, *const *right = b;
	return (*left)->unit < (*right)->unit ? -1 : (*left)->unit > (*right)->unit;
}

void zd_norms_add(const struct zd_window *w, double *sum)
{
	const struct zd_norms *norms = &w->norms;
	const struct zd_slice_norm **sorted = zd_calloc(norms->count + 1, sizeof(struct zd_slice_norm *)),
	                           *norm;
	uint32_t count = 0;
	DL_FOREACH(norms->all, norm)
	if (norm->epoch == norms->epoch)
		sorted[count++] = norm;
	qsort(sorted, count, sizeof(struct zd_slice_norm *), by_unit);
	for (uint32_t i = 0; i < count; i++)
		*sum += sorted[i]->sum_squares;
	free(sorted);
}

/* ---- Of a step ----------------------------------------------------------------------------------------- */

static void keep(struct zd_group *group, const struct zd_slice_norm *norm)
{
	get_norm(&group->step_norms, norm->unit)->sum_squares += norm->sum_squares;
}

void zd_norms_keep(struct zd_group *group, uint64_t window)
{
	forget(&group->step_norms);
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_norms *norms = &zd_window_of_rank(group, rank, window)->norms;
		const struct zd_slice_norm *norm;
		DL_FOREACH(norms->all, norm)
		if (norm->epoch == norms->epoch)
			keep(group, norm);
	}
}

/* Adds up all norms at once, because units of which a rank has a norm have ended since. */
static double sum_all(struct zd_group *group, uint64_t window)
{
	double sum = 0;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++)
		zd_norms_add(zd_window_of_rank(group, rank, window), &sum);
	zd_norms_keep(group, window);
	return sum;
}

bool zd_norms_sum(const struct zd_engine *e, struct zd_group *group, uint64_t window, double *sum)
{
	struct zd_summing *summing = &group->summing;
	uint32_t left = zd_step_units(e);
	if (!summing->runs || summing->window != window) {
		forget(&group->step_norms);
		*summing = (struct zd_summing){
		        .runs = true, .window = window, .next = TAILQ_FIRST(&group->units)};
	}
	while (summing->rank < group->local_world_size) {
		const struct zd_norms *norms = &zd_window_of_rank(group, summing->rank, window)->norms;
		for (; summing->next; summing->next = TAILQ_NEXT(summing->next, group_link)) {
			if (left-- == 0)
				return false;
			const struct zd_slice_norm *norm = find_norm(norms, summing->next->id);
			if (!norm)
				continue;
			summing->found++;
			summing->sum += norm->sum_squares;
			keep(group, norm);
		}
		if (summing->found < norms->count) {
			*sum = sum_all(group, window);
			return true;
		}
		summing->found = 0;
		summing->rank++;
		summing->next = TAILQ_FIRST(&group->units);
	}
	*sum = summing->sum;
	return true;
}

void zd_norms_group_end(struct zd_engine *e, struct zd_group *group)
{
	zd_norms_end(e, group->job->owner, &group->step_norms);
}

int zd_norms_check(struct zd_engine *e, struct zd_session *session, const struct zd_group *group,
                   const struct zd_args *args, struct zd_err *err)
{
	struct zd_part *part;
	if (group->cluster && !group->cluster->hybrid)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "group '%s' spans daemons: no daemon knows the norm of a unit",
		                  group->name);
	for (uint32_t i = 0; i < args->u.step_get.n_units; i++) {
		int status = zd_part_find(e, session, args->u.step_get.units[i], &part, err);
		if (status == 0 && part->unit->group != group)
			status = zd_err_set(err, ZEROD_E_INVALID,
			                    "unit '%s' is of group '%s', the step of '%s'", part->unit->name,
			                    part->unit->group->name, group->name);
		if (status != 0)
			return status;
	}
	return 0;
}

void zd_norms_reply(struct zd_engine *e, struct zd_request *req)
{
	uint32_t count = req->u.reduce.nunits;
	double *norms = zd_calloc(count, sizeof(*norms));
	for (uint32_t i = 0; i < count; i++) {
		const struct zd_slice_norm *norm = find_norm(&req->member->group->step_norms,
		                                             req->u.reduce.units[i]);
		norms[i] = norm ? norm->sum_squares : 0;
	}
	(void)zd_request_own(req, norms, 0); /* charged with the units */
	e->reply.u.step_begin.n_norms_squared = count;
	e->reply.u.step_begin.norms_squared = norms;
}
