/* SPDX-License-Identifier: Apache-2.0 */
/* model.c - what replies say of the sessions. */
#include "tests/fuzz/ask.h"

#include <string.h>

#include "base/err.h"

struct fuzz_model fuzz_model;

void fuzz_model_sent(const struct fuzz_call *call)
{
	struct fuzz_actor *actor = &fuzz_model.actors[call->actor];
	struct fuzz_member *m = &actor->members[call->place];

	if (call->foreign)
		return;
	if (call->in_group) {
		m->pending++;
		m->waiting = call->action;
	}
	if (call->request.body_case == ZD__REQUEST__BODY_RELEASE)
		m->units[call->unit].leases[call->value]--;
	if (call->request.body_case == ZD__REQUEST__BODY_FREE)
		actor->allocations[call->value] = 0;
}

static void end_scope(struct fuzz_member *m, uint64_t scope)
{
	fuzz_model.old_id = scope;
	m->scope = m->scope == scope ? 0 : m->scope;
	m->claim = m->claim == scope ? 0 : m->claim;
	m->context = m->context == scope ? 0 : m->context;
}

static void take_scope(struct fuzz_member *m, const struct fuzz_call *call, const Zd__ScopeReply *reply)
{
	for (size_t i = 0; i < reply->n_ended; i++)
		end_scope(m, reply->ended[i]);
	if (call->request.body_case == ZD__REQUEST__BODY_FORWARD_BEGIN) {
		m->scope = reply->scope;
	} else if (call->request.body_case == ZD__REQUEST__BODY_CONTEXT_BEGIN) {
		m->context = reply->scope;
	} else if (call->request.body_case == ZD__REQUEST__BODY_FORWARD_END && m->scope == reply->scope) {
		m->claim = reply->scope;
		m->scope = 0;
	}
}

static void take_unit(struct fuzz_unit *u, const struct fuzz_call *call, const Zd__Reply *reply)
{
	switch (call->request.body_case) {
	case ZD__REQUEST__BODY_UNIT_REGISTER:
		*u = (struct fuzz_unit){.id = reply->unit_register->unit,
		                        .version = reply->unit_register->version};
		break;
	case ZD__REQUEST__BODY_UNIT_UNREGISTER:
		fuzz_model.old_id = u->id;
		*u = (struct fuzz_unit){.id = 0};
		break;
	case ZD__REQUEST__BODY_UPDATE_BEGIN:
		u->updating = true;
		break;
	case ZD__REQUEST__BODY_PUBLISH:
		u->updating = false;
		u->version++;
		break;
	case ZD__REQUEST__BODY_SET_FROZEN:
		u->frozen = call->value;
		break;
	case ZD__REQUEST__BODY_GATHER:
		if (call->value < FUZZ_TAGS)
			u->leases[call->value]++;
		break;
	case ZD__REQUEST__BODY_BUCKET_RESERVE:
		u->entry = reply->bucket_reserve->entry;
		break;
	case ZD__REQUEST__BODY_BUCKET_SUBMIT:
		u->entry = 0;
		u->contributed = true;
		break;
	case ZD__REQUEST__BODY_REDUCE_SKIP:
		u->contributed = true;
		break;
	case ZD__REQUEST__BODY_REDUCE_WAIT:
		u->lent = true;
		break;
	case ZD__REQUEST__BODY_TARGET_RETURN:
		u->lent = false;
		break;
	case ZD__REQUEST__BODY_ALLOC:
		u->load = reply->alloc->allocation;
		break;
	default:
		break;
	}
}

static void move_window(struct fuzz_member *m, enum fuzz_window window)
{
	m->window = window;
	for (unsigned i = 0; i < FUZZ_UNITS && window == FUZZ_BACKWARD; i++)
		m->units[i].contributed = false;
}

static void take_group(struct fuzz_member *m, const struct fuzz_call *call, const Zd__Reply *reply)
{
	switch (call->request.body_case) {
	case ZD__REQUEST__BODY_GROUP_JOIN:
		m->group = reply->group_join->group;
		m->step = reply->group_join->committed_step;
		break;
	case ZD__REQUEST__BODY_COMMIT:
		m->step = call->value;
		break;
	case ZD__REQUEST__BODY_BUCKET_CREATE:
		m->bucket = reply->bucket_create->bucket;
		break;
	case ZD__REQUEST__BODY_BUCKET_DESTROY:
		fuzz_model.old_id = m->bucket;
		m->bucket = 0;
		break;
	case ZD__REQUEST__BODY_BACKWARD_BEGIN:
		move_window(m, FUZZ_BACKWARD);
		break;
	case ZD__REQUEST__BODY_BACKWARD_END:
	case ZD__REQUEST__BODY_BACKWARD_ABANDON:
		move_window(m, FUZZ_BETWEEN);
		break;
	case ZD__REQUEST__BODY_STEP_BEGIN:
		move_window(m, reply->step_begin->abandoned ? FUZZ_CLOSED : FUZZ_STEPPING);
		break;
	case ZD__REQUEST__BODY_STEP_END:
		move_window(m, FUZZ_CLOSED);
		break;
	default:
		if (reply->body_case == ZD__REPLY__BODY_SCOPE)
			take_scope(m, call, reply->scope);
		break;
	}
}

static void take_failure(struct fuzz_actor *actor, struct fuzz_member *m, const struct fuzz_call *call,
                         int status)
{
	actor->poisoned = actor->poisoned || status == ZEROD_E_POISONED;
	if (call->in_group && status != ZEROD_E_NO_MEMORY && status != ZEROD_E_LIMIT &&
	    status != ZEROD_E_BUSY && status != ZEROD_E_UNSUPPORTED && status != ZEROD_E_SHUTDOWN)
		m->broken = m->group != 0;
}

void fuzz_model_take(const struct fuzz_call *call, const Zd__Reply *reply)
{
	struct fuzz_actor *actor = &fuzz_model.actors[call->actor];
	struct fuzz_member *m = &actor->members[call->place];

	if (call->foreign || call->generation != m->generation)
		return;
	m->pending -= call->in_group;
	if (call->request.body_case == ZD__REQUEST__BODY_UNIT_LOAD)
		m->units[call->unit].load = 0;
	if (call->odd) {
		if (reply->body_case == ZD__REPLY__BODY_GROUP_JOIN)
			take_group(m, call, reply);
		m->broken = m->broken || (reply->status == 0 && m->group);
	} else if (call->request.body_case == ZD__REQUEST__BODY_GROUP_LEAVE) {
		fuzz_model.old_id = m->group;
		*m = (struct fuzz_member){.generation = m->generation + 1};
	} else if (reply->status != 0) {
		take_failure(actor, m, call, reply->status);
	} else if (call->in_group) {
		take_group(m, call, reply);
		take_unit(&m->units[call->unit], call, reply);
	} else if (call->request.body_case == ZD__REQUEST__BODY_ALLOC) {
		actor->allocations[call->value] = reply->alloc->allocation;
	} else if (call->request.body_case == ZD__REQUEST__BODY_SESSION_RESET) {
		actor->poisoned = false;
	}
}

void fuzz_model_end(unsigned actor)
{
	struct fuzz_actor *ended = &fuzz_model.actors[actor], *other = &fuzz_model.actors[actor ^ 1];
	unsigned generation;

	for (unsigned i = 0; i < FUZZ_PLACES; i++) {
		if (actor < FUZZ_ACTORS && ended->members[i].group && fuzz_places[i].world_size > 1)
			other->members[i].broken = other->members[i].group != 0;
		generation = ended->members[i].generation + 1;
		ended->members[i] = (struct fuzz_member){.generation = generation};
	}
	memset(ended->allocations, 0, sizeof(ended->allocations));
	ended->session = ended->issued = 0;
	ended->poisoned = false;
}
