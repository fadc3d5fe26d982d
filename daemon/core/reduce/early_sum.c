/* SPDX-License-Identifier: Apache-2.0 */
/*
 * early_sum.c - sums that are submitted before their pieces have been copied.
 *
 * When the last piece of a chunk has been submitted, its sum is submitted as well, and the owner's GPU waits
 * for the fences of the pieces: the owner's process needs no message when the copies have ended. The sum
 * counts when the core knows that the pieces have been copied.
 *
 * Each early sum blocks a stream of the process, and possibly others in the same hardware queue. A session
 * therefore has few of them. A piece that fails aborts its timeline, which also releases sums that wait for
 * later pieces on it. The core learns of their failures later, and does not count these sums. From then on no
 * sum of the session is submitted early after pieces of that device, even after a reset.
 *
 * A sum that is added to a target in host memory is not early, because the target's content is copied up
 * first. In groups across several daemons no sum is early: its result is exchanged, and a sum that was
 * released too soon would reach the other daemons.
 */
#include "core/reduce/slice.h"

#define MOST_EARLY 2u /* sums of a session */

/* Returns NULL if no sum of the slice is early, or the session has ended. */
static struct zd_session *find_session(struct zd_engine *e, const struct zd_slice *slice)
{
	return slice->session ? zd_session_find(e, slice->session) : NULL;
}

void zd_early_sums_init(struct zd_engine *e, struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	const struct zd_session *session = r->group->members[slice->owner].session;
	uint32_t npieces = zd_slice_npieces(slice);
	if (npieces == 0 || slice->planner != &zd_plan_sums || zd_slice_loads(slice) || !e->sink.sums_ahead ||
	    !e->sink.sums_ahead(e->sink.arg, session->id))
		return;
	slice->session = session->id;
	slice->fences = zd_calloc((size_t)npieces * r->nchunks, sizeof(*slice->fences));
	for (uint32_t chunk = 0; chunk < r->nchunks; chunk++)
		slice->chunks[chunk].fences = slice->fences + (size_t)chunk * npieces;
}

void zd_early_sum_sign(struct zd_engine *e, struct zd_slice *slice, uint32_t chunk,
                       struct zd_command *command)
{
	struct zd_session *session = find_session(e, slice);
	struct zd_slice_chunk *state = &slice->chunks[chunk];
	uint32_t timeline = ZD_TIMELINE_STAGED + command->device;
	if (!session)
		return;
	command->signal = (struct zd_signal){session->id, timeline, ++session->timeline[timeline]};
	state->fences[state->nfences++] = (struct zd_fence){timeline, command->signal.value};
}

static bool is_lost(const struct zd_session *session, const struct zd_slice_chunk *chunk)
{
	for (uint32_t i = 0; i < chunk->nfences; i++) {
		if (zd_timelines_has(&session->failed, chunk->fences[i].timeline))
			return true;
	}
	return false;
}

bool zd_early_sum_is_lost(const struct zd_slice *slice, uint32_t chunk)
{
	return is_lost(slice->reduction->group->members[slice->owner].session, &slice->chunks[chunk]);
}

void zd_early_sums_try(struct zd_engine *e, struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	struct zd_session *session = find_session(e, slice);
	for (uint32_t i = 0; session && !slice->refused && !slice->plan.stopped && i < r->nchunks; i++) {
		const struct zd_slice_chunk *chunk = &slice->chunks[i];
		struct zd_plan_step *sum = &slice->plan.steps[zd_slice_sum_step(slice, i)];
		if (sum->state != ZD_PLAN_WAITING || chunk->pushed < r->nsubmitted ||
		    session->nahead >= MOST_EARLY || is_lost(session, chunk))
			continue;
		session->nahead++;
		zd_plan_run_early(e, &slice->plan, sum);
	}
}

void zd_early_sum_ended(struct zd_engine *e, struct zd_slice *slice)
{
	struct zd_session *session = find_session(e, slice);
	if (!session)
		return;
	zd_assert(session->nahead > 0);
	session->nahead--;
}

void zd_early_sums_note_failed(struct zd_engine *e, const struct zd_slice *slice, uint32_t device)
{
	struct zd_session *session = find_session(e, slice);
	if (!session)
		return;
	zd_timelines_add(&session->aborted, ZD_TIMELINE_STAGED + device);
	zd_timelines_add(&session->failed, ZD_TIMELINE_STAGED + device);
}
