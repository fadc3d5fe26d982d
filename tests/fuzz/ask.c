/* SPDX-License-Identifier: Apache-2.0 */
/* ask.c - which request is made next. */
#include "tests/fuzz/ask.h"

uint32_t fuzz_pick(struct fuzz_picks *picks, uint32_t among)
{
	if (picks->nbytes == 0)
		return 0;
	picks->nbytes--;
	return *picks->bytes++ % among;
}

/* ---- What requests share ------------------------------------------------------------------------------ */

const struct fuzz_place fuzz_places[FUZZ_PLACES] = {
        {"a", {"solo0", "solo1"}, 1, false, false, false},
        {"a", {"pair", "pair"}, 2, false, false, false},
        {"k", {"kept", "kept"}, 2, true, true, false},
        {"n", {"nccl0", "nccl1"}, 1, false, false, true},
};

const struct fuzz_unit_terms fuzz_units[FUZZ_UNITS] = {
        {"u", 1, 0, 100, false}, {"v", 3, 1, 3000, true}, {"w", 1, 0, 20000, false}};

bool fuzz_add_fence(struct step *s, size_t *count, Zd__Fence ***fences)
{
	static Zd__Fence fence, *pointers[] = {&fence};

	fence = (Zd__Fence)ZD__FENCE__INIT;
	*count = PICK(4) == 1;
	*fences = pointers;
	if (*count > 0)
		fence.value = ++s->actor->issued;
	return true;
}

bool fuzz_rarely(struct step *s, uint32_t among)
{
	return s->call->foreign || PICK(among) == 1;
}

bool fuzz_has_units(const struct step *s, uint64_t version)
{
	for (unsigned i = 0; i < FUZZ_UNITS; i++)
		if (s->m->units[i].id && s->m->units[i].version >= version)
			return true;
	return false;
}

bool fuzz_is_idle(const struct fuzz_unit *u)
{
	return u->id && !u->updating && !u->entry && !u->lent && u->leases[0] + u->leases[1] == 0;
}

bool fuzz_spans(const struct step *s)
{
	return fuzz_places[s->call->place].nccl;
}

/* ---- Choice ------------------------------------------------------------------------------------------- */

enum {
	ALL = 1,     /* of all ranks of the group */
	PIPED = 2,   /* also while another request of the rank waits */
	SESSION = 4, /* needs no group */
	ADMIN = 8,   /* also of the administrator's session, which has no groups */
};

/* The first valid one behind the fuzzer's choice is taken: those before JOIN need a group. */
static const struct action {
	bool (*ask)(struct step *s);
	unsigned flags;
} actions[] = {
        {fuzz_ask_barrier, ALL},
        {fuzz_ask_agree, ALL},
        {fuzz_ask_commit, ALL},
        {fuzz_ask_leave, ALL | PIPED},
        {fuzz_ask_unit_register, ALL},
        {fuzz_ask_set_persistent, 0},
        {fuzz_ask_set_slot, 0},
        {fuzz_ask_set_frozen, ALL},
        {fuzz_ask_unregister, ALL},
        {fuzz_ask_update_begin, ALL},
        {fuzz_ask_alloc_load, 0},
        {fuzz_ask_load, ALL},
        {fuzz_ask_place, ALL},
        {fuzz_ask_publish, ALL},
        {fuzz_ask_release, PIPED},
        {fuzz_ask_gather, 0},
        {fuzz_ask_release, PIPED},
        {fuzz_ask_gather_in_scope, 0},
        {fuzz_ask_claim_end, PIPED},
        {fuzz_ask_scope_abandon, PIPED},
        {fuzz_ask_forward_begin, 0},
        {fuzz_ask_forward_end, PIPED},
        {fuzz_ask_gather_in_scope, 0},
        {fuzz_ask_context_end, PIPED},
        {fuzz_ask_context_begin, 0},
        {fuzz_ask_unit_register, ALL},
        {fuzz_ask_update_begin, ALL},
        {fuzz_ask_publish, ALL},
        {fuzz_ask_bucket_create, ALL},
        {fuzz_ask_reserve, ALL},
        {fuzz_ask_skip, ALL},
        {fuzz_ask_submit, ALL},
        {fuzz_ask_reserve, ALL},
        {fuzz_ask_submit, ALL},
        {fuzz_ask_reduce_wait, ALL},
        {fuzz_ask_target_return, PIPED},
        {fuzz_ask_backward_abandon, 0},
        {fuzz_ask_backward_end, ALL},
        {fuzz_ask_step_begin, ALL},
        {fuzz_ask_step_get, 0},
        {fuzz_ask_step_end, ALL},
        {fuzz_ask_backward_begin, ALL},
        {fuzz_ask_bucket_destroy, 0},
        {fuzz_ask_publish, ALL},
        {fuzz_ask_join, ALL | SESSION},
        {fuzz_ask_alloc, SESSION},
        {fuzz_ask_free_allocation, SESSION},
        {fuzz_ask_commit_save, 0},
        {fuzz_ask_commit_wait, SESSION},
        {fuzz_ask_unit_read, SESSION},
        {fuzz_ask_unit_map, SESSION},
        {fuzz_ask_list, SESSION | ADMIN},
        {fuzz_ask_status, SESSION | ADMIN},
        {fuzz_ask_events, SESSION | ADMIN},
        {fuzz_ask_trim, SESSION | ADMIN},
        {fuzz_ask_unique_ids, SESSION},
        {fuzz_ask_reset, SESSION},
        {fuzz_ask_kill_session, SESSION | ADMIN},
        {fuzz_ask_abort_group, SESSION | ADMIN},
        {fuzz_ask_end_job, SESSION | ADMIN},
        {fuzz_ask_kill_job, SESSION | ADMIN},
        {fuzz_ask_drain, SESSION | ADMIN},
};

static bool is_valid(struct step *s, const struct action *action)
{
	if (s->user >= FUZZ_USERS)
		return action->flags & ADMIN && action->ask(s);
	if (s->m->pending > 0 && !(action->flags & PIPED))
		return (action->flags & SESSION) && action->ask != fuzz_ask_join && action->ask(s);
	return action->ask(s);
}

/* The rank whose member waits for others is followed by them, mostly. */
static const struct action *followed(const struct step *s)
{
	const struct fuzz_member *other = &fuzz_model.actors[s->call->actor ^ 1].members[s->call->place];

	if (s->user >= FUZZ_USERS || other->pending == 0 || s->m->pending > 0 || other->broken)
		return NULL;
	return other->waiting && other->waiting->flags & ALL ? other->waiting : NULL;
}

static bool choose(struct step *s, const struct action **chosen)
{
	size_t first = PICK(COUNT(actions));

	*chosen = &actions[COUNT(actions) - 1];
	if (s->user >= FUZZ_USERS && fuzz_model.draining)
		return fuzz_ask_drain(s);
	*chosen = followed(s);
	if (*chosen && PICK(8) != 1 && is_valid(s, *chosen))
		return true;
	for (size_t i = 0; i < COUNT(actions); i++) {
		*chosen = &actions[(first + i) % COUNT(actions)];
		if (is_valid(s, *chosen))
			return true;
	}
	return false;
}

static bool choose_repair(struct step *s, const struct action **chosen)
{
	if (!s->m->broken || PICK(8) == 1)
		return false;
	for (size_t i = 0; i < COUNT(actions); i++) {
		*chosen = &actions[i];
		if (actions[i].ask == (s->actor->poisoned ? fuzz_ask_reset : fuzz_ask_leave))
			return actions[i].ask(s);
	}
	return false;
}

bool fuzz_model_ask(struct fuzz_call *call, unsigned actor, struct fuzz_picks *picks, bool foreign,
                    const struct action *same)
{
	static const uint8_t usual_places[] = {0, 1, 1, 1, 2, 2, 3, 1};
	uint32_t where = fuzz_pick(picks, 256);
	struct step step = {.call = call, .picks = picks, .rank = actor % FUZZ_RANKS};
	const struct action *chosen = same;
	bool found;

	*call = (struct fuzz_call){.request = ZD__REQUEST__INIT,
	                           .actor = actor,
	                           .place = usual_places[where % COUNT(usual_places)],
	                           .unit = where / COUNT(usual_places) % FUZZ_UNITS,
	                           .mode = fuzz_pick(picks, 256),
	                           .foreign = foreign};
	step.actor = &fuzz_model.actors[actor];
	step.m = &step.actor->members[call->place];
	if (step.m->units[0].id && call->mode % 4 > 0)
		call->unit = 0; /* units that ranks do not register keep the others waiting */
	step.u = &step.m->units[call->unit];
	step.user = actor / FUZZ_RANKS;
	if (same)
		(void)fuzz_pick(picks, COUNT(actions)); /* the same picks follow */
	found = same ? is_valid(&step, same) : choose_repair(&step, &chosen) || choose(&step, &chosen);
	call->action = chosen;
	call->in_group = found && !(chosen->flags & SESSION) && step.user < FUZZ_USERS;
	call->in_group = call->in_group || (found && chosen->ask == fuzz_ask_join);
	call->generation = step.m->generation;
	call->request.hello = &call->body.hello; /* the union of all bodies' pointers */
	return found;
}

bool fuzz_call_is_collective(const struct fuzz_call *call)
{
	return call->in_group && fuzz_places[call->place].world_size > 1 &&
	       (call->action->flags & ALL || fuzz_places[call->place].nccl);
}

bool fuzz_call_names_ids(const struct fuzz_call *call)
{
	switch (call->request.body_case) {
	case ZD__REQUEST__BODY_GROUP_JOIN:
	case ZD__REQUEST__BODY_COMMIT_WAIT:
	case ZD__REQUEST__BODY_LIST:
	case ZD__REQUEST__BODY_DAEMON_STATUS:
	case ZD__REQUEST__BODY_EVENTS:
	case ZD__REQUEST__BODY_TRIM:
	case ZD__REQUEST__BODY_UNIQUE_IDS:
	case ZD__REQUEST__BODY_SESSION_RESET:
	case ZD__REQUEST__BODY_DRAIN:
		return false;
	case ZD__REQUEST__BODY_ALLOC:
		return call->body.alloc.unit != 0;
	default:
		return true;
	}
}
