/* SPDX-License-Identifier: Apache-2.0 */
/* ask_group.c - requests of groups, units and gathers. */
#include "tests/fuzz/ask.h"

/* ---- Groups and units ---------------------------------------------------------------------------------- */

bool fuzz_ask_join(struct step *s)
{
	unsigned place = s->call->place;

	return !s->m->group && !fuzz_model.draining &&
	       ASK(GROUP_JOIN, group_join, .job = (char *)fuzz_places[place].job,
	           .group = (char *)fuzz_places[place].groups[s->rank],
	           .world_size = fuzz_places[place].world_size,
	           .rank = s->rank % fuzz_places[place].world_size, .device = s->rank,
	           .durable = fuzz_places[place].durable, .shadow = fuzz_places[place].shadow,
	           .collectives = fuzz_places[place].nccl ? ZD__COLLECTIVES__NCCL : ZD__COLLECTIVES__COPIES);
}

/* The other rank is told PEER_LOST: it had better leave, too. */
bool fuzz_ask_leave(struct step *s)
{
	struct fuzz_member *other = &fuzz_model.actors[s->call->actor ^ 1].members[s->call->place];

	if (!s->m->group || (!s->m->broken && !fuzz_rarely(s, 32)))
		return false;
	other->broken |= fuzz_places[s->call->place].world_size > 1 && !s->call->foreign;
	return ASK(GROUP_LEAVE, group_leave, .group = s->m->group);
}

bool fuzz_ask_barrier(struct step *s)
{
	return s->m->group && !fuzz_spans(s) && s->call->mode % 4 == 1 &&
	       ASK(GROUP_BARRIER, group_barrier, .group = s->m->group);
}

bool fuzz_ask_agree(struct step *s)
{
	static double values[] = {1, 2, 3};

	return s->m->group && !fuzz_spans(s) && s->call->mode % 4 == 1 &&
	       ASK(GROUP_AGREE, group_agree, .group = s->m->group, .op = s->m->step % 3,
	           .n_values = 1 + s->m->step % 2, .values = values);
}

bool fuzz_ask_commit(struct step *s)
{
	for (unsigned i = 0; i < FUZZ_UNITS; i++)
		if (s->m->units[i].updating)
			return false;
	s->call->value = s->m->step + 1;
	return s->m->group && !fuzz_spans(s) && s->call->mode % 4 == 1 &&
	       ASK(COMMIT, commit, .group = s->m->group, .step = s->call->value);
}

bool fuzz_ask_commit_save(struct step *s)
{
	return s->m->group && !fuzz_spans(s) &&
	       ASK(COMMIT_SAVE, commit_save, .group = s->m->group, .step = PICK(4) ? s->m->step : 0);
}

/* By any session of the user. Mostly not for a commit that is to come. */
bool fuzz_ask_commit_wait(struct step *s)
{
	const struct fuzz_place *place = &fuzz_places[s->call->place];

	return s->m->step > 0 && !fuzz_spans(s) &&
	       ASK(COMMIT_WAIT, commit_wait, .job = (char *)place->job,
	           .group = (char *)place->groups[s->rank], .after = s->m->step - (PICK(8) != 1),
	           .pin = PICK(2));
}

bool fuzz_ask_unit_read(struct step *s)
{
	uint64_t allocation = s->actor->allocations[PICK(FUZZ_ALLOCATIONS)];

	return s->m->step > 0 && allocation && !fuzz_spans(s) &&
	       ASK(UNIT_READ, unit_read, .group = s->m->group, .step = s->m->step,
	           .unit = (char *)fuzz_units[s->call->unit].name, .offset = PICK(64), .bytes = PICK(128),
	           .allocation = allocation, .allocation_offset = PICK(2), .rows = PICK(4),
	           .stride = PICK(128));
}

bool fuzz_ask_unit_map(struct step *s)
{
	return s->m->step > 0 && !fuzz_spans(s) &&
	       ASK(UNIT_READ, unit_read, .group = s->m->group, .step = s->m->step,
	           .unit = (char *)fuzz_units[s->call->unit].name, .offset = PICK(64),
	           .map_bytes = 1 + PICK(128), .device = PICK(2), .mapped = PICK(2) * PICK(64));
}

bool fuzz_ask_unit_register(struct step *s)
{
	unsigned unit = s->call->unit;

	return s->m->group && !s->u->id && s->m->window == FUZZ_CLOSED &&
	       ASK(UNIT_REGISTER, unit_register, .group = s->m->group, .name = (char *)fuzz_units[unit].name,
	           .dtype = fuzz_units[unit].dtype, .numel = fuzz_units[unit].numel,
	           .slot = fuzz_units[unit].slot, .all_reduce = fuzz_units[unit].all_reduce);
}

bool fuzz_ask_unregister(struct step *s)
{
	return fuzz_is_idle(s->u) && s->m->window == FUZZ_CLOSED && !s->m->scope && !s->m->claim &&
	       !s->m->context && fuzz_rarely(s, 4) && ASK(UNIT_UNREGISTER, unit_unregister, .unit = s->u->id);
}

bool fuzz_ask_update_begin(struct step *s)
{
	return fuzz_is_idle(s->u) && !s->m->scope && !s->m->claim && !s->m->context &&
	       ASK(UPDATE_BEGIN, update_begin, .n_units = 1, .units = &s->u->id, .ahead = PICK(2));
}

bool fuzz_ask_publish(struct step *s)
{
	return s->u->updating && !s->u->load && ASK(PUBLISH, publish, .n_units = 1, .units = &s->u->id) &&
	       WITH_FENCES(publish);
}

bool fuzz_ask_alloc_load(struct step *s)
{
	s->call->value = FUZZ_ALLOCATIONS; /* no place of an allocation */
	return s->u->updating && !s->u->load && s->rank == 0 && !fuzz_spans(s) && s->call->mode % 4 == 1 &&
	       ASK(ALLOC, alloc, .unit = s->u->id);
}

bool fuzz_ask_load(struct step *s)
{
	const struct fuzz_unit *first =
	        &fuzz_model.actors[s->call->actor - s->rank].members[s->call->place].units[s->call->unit];

	return s->u->updating && (s->call->place == 0 ? s->u->load : first->load) &&
	       ASK(UNIT_LOAD, unit_load, .unit = s->u->id, .allocation = s->u->load) &&
	       WITH_FENCES(unit_load);
}

/* One unit is moved to the host, the others to where they are. */
bool fuzz_ask_place(struct step *s)
{
	return fuzz_is_idle(s->u) && fuzz_rarely(s, 4) &&
	       ASK(UNIT_PLACE, unit_place, .unit = s->u->id, .on_host = s->call->unit == 1);
}

bool fuzz_ask_set_persistent(struct step *s)
{
	return s->u->id && ASK(SET_PERSISTENT, set_persistent, .unit = s->u->id, .persistent = PICK(2));
}

bool fuzz_ask_set_slot(struct step *s)
{
	return fuzz_is_idle(s->u) && !s->m->scope && !s->m->claim && !s->m->context &&
	       ASK(SET_SLOT, set_slot, .unit = s->u->id, .slot = PICK(3));
}

bool fuzz_ask_set_frozen(struct step *s)
{
	if (!fuzz_is_idle(s->u) || s->m->window != FUZZ_CLOSED)
		return false;
	s->call->value = s->m->step % 2;
	return ASK(SET_FROZEN, set_frozen, .unit = s->u->id, .frozen = s->call->value);
}

/* ---- Gathers ------------------------------------------------------------------------------------------- */

static const char *const tags[FUZZ_TAGS] = {"", "other"};

bool fuzz_ask_gather(struct step *s)
{
	s->call->value = PICK(FUZZ_TAGS);
	if (s->u->version == 0 || s->u->updating)
		return false;
	if (PICK(8) == 1)
		s->call->value = FUZZ_TAGS; /* a prefetch has no lease */
	return ASK(GATHER, gather, .unit = s->u->id, .prefetch = s->call->value == FUZZ_TAGS,
	           .tag = (char *)tags[s->call->value % FUZZ_TAGS], .no_slot = PICK(8) == 1);
}

bool fuzz_ask_gather_in_scope(struct step *s)
{
	uint64_t scopes[] = {s->m->scope, s->m->claim, s->m->context};
	uint64_t scope = scopes[PICK(COUNT(scopes))];

	s->call->value = FUZZ_TAGS;
	return scope && s->u->version > 0 && !s->u->updating &&
	       ASK(GATHER, gather, .unit = s->u->id, .scope = scope);
}

bool fuzz_ask_release(struct step *s)
{
	s->call->value = s->u->leases[0] > 0 ? 0 : 1;
	return s->u->leases[s->call->value] > 0 &&
	       ASK(RELEASE, release, .unit = s->u->id, .tag = (char *)tags[s->call->value]) &&
	       WITH_FENCES(release);
}

bool fuzz_ask_forward_begin(struct step *s)
{
	return fuzz_has_units(s, 1) && !s->m->scope &&
	       ASK(FORWARD_BEGIN, forward_begin, .group = s->m->group) && WITH_FENCES(forward_begin);
}

bool fuzz_ask_forward_end(struct step *s)
{
	return s->m->scope &&
	       ASK(FORWARD_END, forward_end, .scope = s->m->scope, .grad = !s->m->claim && PICK(2)) &&
	       WITH_FENCES(forward_end);
}

bool fuzz_ask_claim_end(struct step *s)
{
	return s->m->claim && ASK(CLAIM_END, scope_end, .scope = s->m->claim) && WITH_FENCES(scope_end);
}

bool fuzz_ask_scope_abandon(struct step *s)
{
	return s->m->scope && ASK(SCOPE_ABANDON, scope_end, .scope = s->m->scope) && WITH_FENCES(scope_end);
}

bool fuzz_ask_context_begin(struct step *s)
{
	return s->u->version > 0 && !s->u->updating && !s->m->context &&
	       ASK(CONTEXT_BEGIN, context_begin, .n_units = 1, .units = &s->u->id);
}

bool fuzz_ask_context_end(struct step *s)
{
	return s->m->context && ASK(CONTEXT_END, scope_end, .scope = s->m->context) && WITH_FENCES(scope_end);
}
