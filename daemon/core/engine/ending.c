/* SPDX-License-Identifier: Apache-2.0 */
/* ending.c - which ends are incomplete, and their next steps. */
#include "core/engine/ending.h"

#include "core/engine/objects.h"

/* Whether the uid has incomplete ends, or waiting requests that an incomplete walk has not tried. */
static bool has_steps(const struct zd_owner *owner)
{
	return owner && (!TAILQ_EMPTY(&owner->endings) || owner->nwalks > 0);
}

/* Makes a step; returns whether the end is complete. */
static bool make_step(struct zd_engine *e, struct zd_ending *ending, uint32_t budget)
{
	struct zd_owner *owner = ending->owner;
	if (ending->step(e, ending, &budget)) {
		e->nendings--;
		zd_owner_put(e, owner);
		return true;
	}
	TAILQ_INSERT_HEAD(&owner->endings, ending, link);
	return false;
}

static void init(struct zd_engine *e, struct zd_owner *owner, struct zd_ending *ending, zd_ending_fn *step)
{
	*ending = (struct zd_ending){.step = step, .owner = owner};
	owner->refs++;
	e->nendings++;
}

void zd_ending_begin(struct zd_engine *e, struct zd_owner *owner, struct zd_ending *ending,
                     zd_ending_fn *step)
{
	init(e, owner, ending, step);
	if (!make_step(e, ending, e->sink.ends ? e->end_step_objects : UINT32_MAX))
		e->sink.ends(e->sink.arg, owner->uid);
}

/* The list's first end makes all steps until it is complete. */
void zd_ending_begin_last(struct zd_engine *e, struct zd_owner *owner, struct zd_ending *ending,
                          zd_ending_fn *step)
{
	if (TAILQ_EMPTY(&owner->endings)) {
		zd_ending_begin(e, owner, ending, step);
		return;
	}
	init(e, owner, ending, step);
	TAILQ_INSERT_TAIL(&owner->endings, ending, link);
}

void zd_ending_cancel(struct zd_engine *e, struct zd_ending *ending)
{
	TAILQ_REMOVE(&ending->owner->endings, ending, link);
	e->nendings--;
	zd_owner_put(e, ending->owner);
}

static bool next_step(struct zd_engine *e, struct zd_owner *owner, uint32_t budget)
{
	struct zd_ending *ending = TAILQ_FIRST(&owner->endings);
	TAILQ_REMOVE(&owner->endings, ending, link);
	return make_step(e, ending, budget);
}

void zd_endings_finish(struct zd_engine *e, struct zd_owner *owner)
{
	uint32_t uid = owner->uid;
	while (has_steps(owner)) {
		if (!TAILQ_EMPTY(&owner->endings))
			(void)next_step(e, owner, UINT32_MAX);
		else
			zd_walks_step(e, owner, UINT32_MAX);
		HASH_FIND(hh, e->owners, &uid, sizeof(uid), owner);
	}
}

void zd_endings_finish_of(struct zd_engine *e, uint32_t uid)
{
	struct zd_owner *owner;
	HASH_FIND(hh, e->owners, &uid, sizeof(uid), owner);
	if (!has_steps(owner))
		return;
	zd_endings_finish(e, owner);
	zd_settle(e);
}

void zd_endings_finish_for(struct zd_engine *e, const struct zd_session *session)
{
	struct zd_owner *owner, *next;
	if (!session->admin || e->nendings + e->nwalks == 0)
		return;
	HASH_ITER (hh, e->owners, owner, next)
		zd_endings_finish(e, owner);
}

bool zd_engine_end_step(struct zd_engine *e, uint32_t uid)
{
	struct zd_owner *owner;
	HASH_FIND(hh, e->owners, &uid, sizeof(uid), owner);
	if (!has_steps(owner))
		return false;
	/* Waiting requests are tried once for each end, not after each step. */
	if (TAILQ_EMPTY(&owner->endings))
		zd_walks_step(e, owner, e->end_step_objects);
	else if (!next_step(e, owner, e->end_step_objects))
		return true;
	zd_settle(e);
	HASH_FIND(hh, e->owners, &uid, sizeof(uid), owner);
	return has_steps(owner);
}
