/* SPDX-License-Identifier: Apache-2.0 */
/*
 * issue_scope.c - forward scopes, claims and user contexts as requests.
 *
 * What ends a scope carries the fences of all streams that read in it, and in what ends with it. Noise also
 * names scopes that have ended, which must be refused.
 */
#include "sim.h"

/* Every open one that is nested in `outer`, however deep, and itself; bits of places. */
static uint32_t nested_in(const struct zd_sim_member *member, uint32_t outer)
{
	uint32_t found = 1u << outer, before = 0;

	while (found != before) {
		before = found;
		for (uint32_t p = 0; p < ZD_SIM_SCOPES; p++) {
			for (uint32_t q = 0; q < ZD_SIM_SCOPES; q++) {
				const struct zd_sim_scope *inner = &member->scopes[p];
				if (found & (1u << q) && inner->state == ZD_SIM_SCOPE_OPEN &&
				    inner->parent == member->scopes[q].id)
					found |= 1u << p;
			}
		}
	}
	return found;
}

uint32_t zd_sim_scopes_swept(const struct zd_sim_member *member)
{
	uint32_t open = 0;

	for (uint32_t p = 0; p < ZD_SIM_SCOPES; p++) {
		if (member->scopes[p].state == ZD_SIM_SCOPE_CLAIM)
			return 0;
		open |= member->scopes[p].state == ZD_SIM_SCOPE_OPEN ? 1u << p : 0;
	}
	return open;
}

uint32_t zd_sim_scopes_ended(const struct zd_sim_member *member, enum zd_request_kind kind, uint32_t place,
                             bool grad)
{
	if (kind == ZD_REQ_FORWARD_END && grad)
		return 0;
	return kind == ZD_REQ_SCOPE_ABANDON ? nested_in(member, place) : 1u << place;
}

bool zd_sim_scope_ending(const struct zd_sim_session *session, uint64_t scope)
{
	for (uint32_t i = 0; i < session->nrequests; i++) {
		const struct zd_sim_request *request = &session->requests[i];
		if (request->scope == scope && request->kind != ZD_REQ_GATHER &&
		    request->kind != ZD_REQ_FORWARD_BEGIN && !request->grad)
			return true;
	}
	return false;
}

/* Fences of all streams that read in scopes at these places. */
static struct zd_fence_list signal_readers(struct zd_sim_world *world, struct zd_sim_session *session,
                                           uint32_t group, uint32_t places, struct zd_fence *fences)
{
	uint32_t streams = 0, count = 0;

	for (uint32_t p = 0; p < ZD_SIM_SCOPES; p++) {
		for (uint32_t u = 0; places & (1u << p) && u < ZD_SIM_UNITS; u++)
			streams |= session->members[group].handles[u].leases[ZD_SIM_TAGS + p].streams;
	}
	for (uint32_t s = 0; s < ZD_SIM_STREAMS; s++) {
		if (streams & (1u << s))
			fences[count++] = zd_sim_stream_signal(world, session, s);
	}
	return (struct zd_fence_list){.count = count, .fences = fences};
}

static bool issue_forward_begin(struct zd_sim_world *world, struct zd_sim_session *session,
                                const struct zd_sim_op *op, struct zd_sim_request *request)
{
	const struct zd_sim_member *member = &session->members[op->group];
	const struct zd_sim_scope *parent = op->arg ? &member->scopes[(op->arg - 1) % ZD_SIM_SCOPES] : NULL;
	uint32_t swept = parent ? 0 : zd_sim_scopes_swept(member);
	struct zd_args args = {.kind = ZD_REQ_FORWARD_BEGIN};
	struct zd_fence fences[ZD_SIM_STREAMS];

	if (!member->id || (parent && (!parent->id || parent->state == ZD_SIM_SCOPE_PENDING)) ||
	    (member->scopes[op->tag].state != ZD_SIM_SCOPE_NONE && !(swept & (1u << op->tag))))
		return false;
	request->must_fail = parent && parent->id && parent->state != ZD_SIM_SCOPE_OPEN;
	request->parent = parent ? parent->id : 0;
	args.u.forward_begin.group = member->id;
	args.u.forward_begin.parent = request->parent;
	args.fences = signal_readers(world, session, op->group, swept, fences);
	zd_sim_send(world, session, request, &args);
	return true;
}

static bool issue_end(struct zd_sim_world *world, struct zd_sim_session *session, const struct zd_sim_op *op,
                      struct zd_sim_request *request, enum zd_request_kind kind)
{
	const struct zd_sim_member *member = &session->members[op->group];
	const struct zd_sim_scope *scope = &member->scopes[op->tag];
	struct zd_args args = {.kind = kind};
	struct zd_fence fences[ZD_SIM_STREAMS];

	if (!scope->id || scope->state == ZD_SIM_SCOPE_PENDING ||
	    (scope->state == ZD_SIM_SCOPE_NONE && !op->noise))
		return false;
	request->must_fail = scope->state == ZD_SIM_SCOPE_NONE;
	request->scope = scope->id;
	request->grad = kind == ZD_REQ_FORWARD_END && op->arg & ZD_SIM_END_GRAD;
	args.u.claim_end.scope = request->scope; /* the first field of all these messages */
	if (kind == ZD_REQ_FORWARD_END)
		args.u.forward_end.grad = request->grad;
	args.fences = signal_readers(world, session, op->group,
	                             zd_sim_scopes_ended(member, kind, op->tag, request->grad), fences);
	zd_sim_send(world, session, request, &args);
	return true;
}

static bool issue_context_begin(struct zd_sim_world *world, struct zd_sim_session *session,
                                const struct zd_sim_op *op, struct zd_sim_request *request)
{
	struct zd_sim_member *member = &session->members[op->group];
	struct zd_args args = {.kind = ZD_REQ_CONTEXT_BEGIN};
	uint64_t ids[ZD_SIM_UNITS];

	if (!member->id || member->scopes[op->tag].state != ZD_SIM_SCOPE_NONE)
		return false;
	for (uint32_t u = 0; u < world->config.groups[op->group].nunits; u++) {
		if (!(op->arg & (1u << u)) || !member->handles[u].id)
			continue;
		ids[args.u.context_begin.n_units++] = member->handles[u].id;
		request->units |= (uint8_t)(1u << u);
	}
	if (!request->units)
		return false;
	args.u.context_begin.units = ids;
	member->scopes[op->tag].state = ZD_SIM_SCOPE_PENDING;
	member->scopes[op->tag].units = request->units;
	zd_sim_send(world, session, request, &args);
	return true;
}

bool zd_sim_issue_scope(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t index)
{
	const struct zd_sim_op *op = &world->program.ops[index];
	struct zd_sim_request request = {.op = index, .group = op->group, .tag = op->tag, .noise = op->noise};

	switch (op->kind) {
	case ZD_SIM_FORWARD_BEGIN:
		return issue_forward_begin(world, session, op, &request);
	case ZD_SIM_FORWARD_END:
		return issue_end(world, session, op, &request, ZD_REQ_FORWARD_END);
	case ZD_SIM_CLAIM_END:
		return issue_end(world, session, op, &request, ZD_REQ_CLAIM_END);
	case ZD_SIM_SCOPE_ABANDON:
		return issue_end(world, session, op, &request, ZD_REQ_SCOPE_ABANDON);
	case ZD_SIM_CONTEXT_BEGIN:
		return issue_context_begin(world, session, op, &request);
	default:
		return issue_end(world, session, op, &request, ZD_REQ_CONTEXT_END);
	}
}
