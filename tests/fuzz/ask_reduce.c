/* SPDX-License-Identifier: Apache-2.0 */
/* ask_reduce.c - requests of reductions, and those that need no group. */
#include "tests/fuzz/ask.h"

/* ---- Reductions ---------------------------------------------------------------------------------------- */

bool fuzz_ask_backward_begin(struct step *s)
{
	return s->m->bucket && (s->m->window == FUZZ_CLOSED || s->m->window == FUZZ_BETWEEN) &&
	       ASK(BACKWARD_BEGIN, backward_begin, .group = s->m->group, .stage = 2 + s->call->place % 2,
	           .boundary = true, .target_dtype = 1);
}

bool fuzz_ask_bucket_create(struct step *s)
{
	return fuzz_has_units(s, 0) && !s->m->bucket &&
	       ASK(BUCKET_CREATE, bucket_create, .group = s->m->group, .dtype = 1, .slot_bytes = 100000,
	           .nslots = 1 + PICK(3));
}

bool fuzz_ask_bucket_destroy(struct step *s)
{
	return s->m->bucket && s->m->window == FUZZ_CLOSED && fuzz_rarely(s, 4) &&
	       ASK(BUCKET_DESTROY, bucket_destroy, .bucket = s->m->bucket);
}

static bool may_contribute(const struct step *s)
{
	return s->m->window == FUZZ_BACKWARD && s->u->id && !s->u->frozen && !s->u->contributed &&
	       !s->u->entry && !s->u->lent;
}

bool fuzz_ask_reserve(struct step *s)
{
	return may_contribute(s) && s->m->bucket &&
	       ASK(BUCKET_RESERVE, bucket_reserve, .bucket = s->m->bucket, .unit = s->u->id, .ahead = PICK(2),
	           .zero_holes = PICK(2));
}

bool fuzz_ask_submit(struct step *s)
{
	return s->u->entry &&
	       ASK(BUCKET_SUBMIT, bucket_submit, .bucket = s->m->bucket, .entry = s->u->entry) &&
	       WITH_FENCES(bucket_submit);
}

bool fuzz_ask_skip(struct step *s)
{
	return may_contribute(s) && s->call->mode % 8 == 2 && ASK(REDUCE_SKIP, reduce_skip, .unit = s->u->id);
}

bool fuzz_ask_reduce_wait(struct step *s)
{
	return s->u->contributed && !s->u->lent && s->m->window == FUZZ_BACKWARD &&
	       ASK(REDUCE_WAIT, reduce_wait, .unit = s->u->id, .ahead = PICK(2));
}

bool fuzz_ask_target_return(struct step *s)
{
	return s->u->lent && ASK(TARGET_RETURN, target_return, .n_units = 1, .units = &s->u->id) &&
	       WITH_FENCES(target_return);
}

static bool holds(const struct fuzz_member *m)
{
	for (unsigned i = 0; i < FUZZ_UNITS; i++)
		if (m->units[i].entry || m->units[i].lent)
			return true;
	return false;
}

bool fuzz_ask_backward_end(struct step *s)
{
	return s->m->window == FUZZ_BACKWARD && !holds(s->m) && s->call->mode % 2 == 1 &&
	       ASK(BACKWARD_END, backward_end, .group = s->m->group, .skip_rest = !fuzz_spans(s));
}

bool fuzz_ask_backward_abandon(struct step *s)
{
	return s->m->window == FUZZ_BACKWARD && !holds(s->m) && fuzz_rarely(s, 8) &&
	       ASK(BACKWARD_ABANDON, backward_abandon, .group = s->m->group) && WITH_FENCES(backward_abandon);
}

bool fuzz_ask_step_begin(struct step *s)
{
	return s->m->window == FUZZ_BETWEEN &&
	       ASK(STEP_BEGIN, step_begin, .group = s->m->group, .ahead = PICK(2), .scalars = PICK(2));
}

bool fuzz_ask_step_get(struct step *s)
{
	return s->m->window == FUZZ_STEPPING && s->u->id &&
	       ASK(STEP_GET, step_get, .group = s->m->group, .n_units = !fuzz_spans(s), .units = &s->u->id);
}

bool fuzz_ask_step_end(struct step *s)
{
	return s->m->window == FUZZ_STEPPING && ASK(STEP_END, step_end, .group = s->m->group) &&
	       WITH_FENCES(step_end);
}

/* ---- Without a group ----------------------------------------------------------------------------------- */

bool fuzz_ask_alloc(struct step *s)
{
	static const char *const names[FUZZ_RANKS][FUZZ_ALLOCATIONS] = {{"", "x", "z0"}, {"", "y", "z1"}};
	static const uint64_t bytes[] = {1, 4096, 70000, 1 << 20};
	unsigned which = PICK(FUZZ_ALLOCATIONS);
	bool durable = which > 0 && s->actor->members[2].group && !s->actor->members[2].broken;

	s->call->value = which;
	return !s->actor->allocations[which] && !fuzz_model.draining &&
	       ASK(ALLOC, alloc, .job = (char *)(durable ? "k" : "a"), .device = PICK(2), .durable = durable,
	           .name = (char *)names[s->rank][which], .bytes = durable ? 5000 : bytes[PICK(4)],
	           .alignment = 1u << PICK(16));
}

bool fuzz_ask_free_allocation(struct step *s)
{
	unsigned which = PICK(FUZZ_ALLOCATIONS);

	s->call->value = which;
	return s->actor->allocations[which] && ASK(FREE, free, .allocation = s->actor->allocations[which]) &&
	       WITH_FENCES(free);
}

bool fuzz_ask_list(struct step *s)
{
	return ASK(LIST, list, .table = 1 + PICK(9), .cursor = PICK(4), .job = (char *)(PICK(2) ? "a" : ""));
}

bool fuzz_ask_events(struct step *s)
{
	return ASK(EVENTS, events, .after = PICK(200), .job = (char *)(PICK(2) ? "a" : ""),
	           .copies = PICK(2) != 0);
}

bool fuzz_ask_status(struct step *s)
{
	return ASK(DAEMON_STATUS, daemon_status);
}

bool fuzz_ask_trim(struct step *s)
{
	return ASK(TRIM, trim, .device = PICK(2));
}

bool fuzz_ask_unique_ids(struct step *s)
{
	return ASK(UNIQUE_IDS, unique_ids, .count = 1 + PICK(4), .job = (char *)"a", .group = (char *)"far");
}

bool fuzz_ask_reset(struct step *s)
{
	return (s->actor->poisoned || fuzz_rarely(s, 8)) && ASK(SESSION_RESET, session_reset);
}

bool fuzz_ask_kill_session(struct step *s)
{
	unsigned victim = s->user < FUZZ_USERS ? s->call->actor ^ 1 : PICK(FUZZ_ACTORS);

	return fuzz_rarely(s, 32) && fuzz_model.actors[victim].session &&
	       ASK(KILL_SESSION, kill_session, .session = fuzz_model.actors[victim].session);
}

bool fuzz_ask_abort_group(struct step *s)
{
	uint64_t group = fuzz_model.actors[s->call->actor % FUZZ_ACTORS].members[s->call->place].group;

	return fuzz_rarely(s, 32) && group && ASK(ABORT_GROUP, abort_group, .group = group);
}

/* A job that has ranks may not end. */
bool fuzz_ask_end_job(struct step *s)
{
	unsigned user = s->user % FUZZ_USERS;
	uint64_t job = fuzz_model.jobs[user][2];

	for (unsigned rank = 0; rank < FUZZ_RANKS && !s->call->foreign; rank++)
		if (fuzz_model.actors[user * FUZZ_RANKS + rank].members[2].group)
			return false;
	return fuzz_rarely(s, 4) && job && ASK(END_JOB, end_job, .job = job);
}

/* A session that is of the job may not. */
bool fuzz_ask_kill_job(struct step *s)
{
	uint64_t job = fuzz_model.jobs[s->user % FUZZ_USERS][s->call->place];

	for (unsigned i = 0; i < FUZZ_PLACES && !s->call->foreign; i++)
		if (s->actor->members[i].group || s->actor->allocations[i % FUZZ_ALLOCATIONS])
			return false;
	return fuzz_rarely(s, 32) && job && ASK(KILL_JOB, kill_job, .job = job);
}

bool fuzz_ask_drain(struct step *s)
{
	if (s->user < FUZZ_USERS || (!fuzz_model.draining && !fuzz_rarely(s, 4)))
		return false;
	return ASK(DRAIN, drain, .undrain = fuzz_model.draining);
}
