/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reply_scope.c - replies to what begins and ends forward scopes, claims and contexts.
 *
 * The model knows which scopes there are and what each request ends. A reply must name exactly those, and may
 * refuse only what the model finds wrong as well.
 */
#include "sim.h"

/* The reply must name the scopes at these places and no others, each once. They are over. */
static void end_all(struct zd_sim_world *world, struct zd_sim_session *session,
                    const struct zd_sim_request *request, const struct zd_reply *reply, uint32_t places)
{
	struct zd_sim_member *member = &session->members[request->group];

	if (reply->u.scope.n_ended != (uint32_t)__builtin_popcount(places))
		zd_sim_fail(world, "operation %u ends %zu scopes, %d should end", request->op,
		            reply->u.scope.n_ended, __builtin_popcount(places));
	for (uint32_t p = 0; p < ZD_SIM_SCOPES; p++) {
		uint32_t named = 0;

		if (!(places & (1u << p)))
			continue;
		for (uint32_t i = 0; i < reply->u.scope.n_ended; i++)
			named += reply->u.scope.ended[i] == member->scopes[p].id;
		if (named != 1)
			zd_sim_fail(world, "operation %u should end scope %llu and names it %u times",
			            request->op, (unsigned long long)member->scopes[p].id, named);
		member->scopes[p].state = ZD_SIM_SCOPE_NONE;
		for (uint32_t u = 0; u < ZD_SIM_UNITS; u++) {
			struct zd_sim_lease *lease = &member->handles[u].leases[ZD_SIM_TAGS + p];
			*lease = (struct zd_sim_lease){.pending = lease->pending};
		}
	}
}

static bool nested_open(const struct zd_sim_member *member, uint64_t scope)
{
	for (uint32_t p = 0; p < ZD_SIM_SCOPES; p++) {
		if (member->scopes[p].state == ZD_SIM_SCOPE_OPEN && member->scopes[p].parent == scope)
			return true;
	}
	return false;
}

/* May a request of this kind end the scope. */
static bool may_end(const struct zd_sim_member *member, enum zd_request_kind kind,
                    const struct zd_sim_scope *scope)
{
	switch (kind) {
	case ZD_REQ_FORWARD_END:
		return scope->state == ZD_SIM_SCOPE_OPEN && !nested_open(member, scope->id);
	case ZD_REQ_CLAIM_END:
		return scope->state == ZD_SIM_SCOPE_CLAIM;
	case ZD_REQ_SCOPE_ABANDON:
		return scope->state == ZD_SIM_SCOPE_OPEN || scope->state == ZD_SIM_SCOPE_CLAIM;
	default:
		return scope->state == ZD_SIM_SCOPE_CONTEXT;
	}
}

static void replied_end(struct zd_sim_world *world, struct zd_sim_session *session,
                        const struct zd_sim_request *request, const struct zd_reply *reply)
{
	struct zd_sim_member *member = &session->members[request->group];
	struct zd_sim_scope *scope = &member->scopes[request->tag];
	bool there = scope->id == request->scope && scope->state != ZD_SIM_SCOPE_NONE;
	bool legal = there && may_end(member, request->kind, scope);

	if (reply->status == 0 && !legal)
		zd_sim_fail(world, "operation %u ends scope %llu, which it must not", request->op,
		            (unsigned long long)request->scope);
	if (reply->status == ZEROD_E_NOT_FOUND && there)
		zd_sim_fail(world, "scope %llu is not found, but it has not ended",
		            (unsigned long long)request->scope);
	if ((reply->status == ZEROD_E_STATE || reply->status == ZEROD_E_INVALID) && legal &&
	    !zd_sim_may_end(world, session->id))
		zd_sim_fail(world, "operation %u may end scope %llu and is refused: %s", request->op,
		            (unsigned long long)request->scope, reply->error);
	if (reply->status != 0)
		return;
	if (reply->u.scope.scope != request->scope)
		zd_sim_fail(world, "operation %u is about scope %llu, its reply about %llu", request->op,
		            (unsigned long long)request->scope, (unsigned long long)reply->u.scope.scope);
	end_all(world, session, request, reply,
	        zd_sim_scopes_ended(member, request->kind, request->tag, request->grad));
	if (request->grad)
		scope->state = ZD_SIM_SCOPE_CLAIM;
}

static void replied_begin(struct zd_sim_world *world, struct zd_sim_session *session,
                          const struct zd_sim_request *request, const struct zd_reply *reply)
{
	struct zd_sim_member *member = &session->members[request->group];

	if (reply->status != 0)
		return;
	end_all(world, session, request, reply, request->parent ? 0 : zd_sim_scopes_swept(member));
	if (!reply->u.scope.scope || reply->u.scope.scope == request->parent)
		zd_sim_fail(world, "operation %u begins scope %llu", request->op,
		            (unsigned long long)reply->u.scope.scope);
	member->scopes[request->tag] = (struct zd_sim_scope){
	        .state = ZD_SIM_SCOPE_OPEN, .id = reply->u.scope.scope, .parent = request->parent};
}

/* Is one of the units in another context of the rank. */
static bool overlaps(const struct zd_sim_member *member, const struct zd_sim_request *request)
{
	for (uint32_t p = 0; p < ZD_SIM_SCOPES; p++) {
		bool context = member->scopes[p].state == ZD_SIM_SCOPE_PENDING ||
		               member->scopes[p].state == ZD_SIM_SCOPE_CONTEXT;
		if (p != request->tag && context && member->scopes[p].units & request->units)
			return true;
	}
	return false;
}

static void replied_context(struct zd_sim_world *world, struct zd_sim_session *session,
                            const struct zd_sim_request *request, const struct zd_reply *reply)
{
	struct zd_sim_member *member = &session->members[request->group];
	struct zd_sim_scope *scope = &member->scopes[request->tag];

	scope->state = ZD_SIM_SCOPE_NONE;
	if ((reply->status == ZEROD_E_EXISTS && !overlaps(member, request)) ||
	    (reply->status == 0 && overlaps(member, request)))
		zd_sim_fail(world, "operation %u: a context that overlaps %s: %s", request->op,
		            overlaps(member, request) ? "another one" : "no other one",
		            zerod_status_name(reply->status));
	if (reply->status != 0)
		return;
	*scope = (struct zd_sim_scope){
	        .state = ZD_SIM_SCOPE_CONTEXT, .id = reply->u.scope.scope, .units = request->units};
	for (uint32_t u = 0; u < ZD_SIM_UNITS; u++) {
		struct zd_sim_lease *lease = &member->handles[u].leases[ZD_SIM_TAGS + request->tag];
		if (request->units & (1u << u))
			*lease = (struct zd_sim_lease){.uses = 1, .pending = lease->pending};
	}
}

void zd_sim_reply_scope(struct zd_sim_world *world, struct zd_sim_session *session,
                        const struct zd_sim_request *request, const struct zd_reply *reply)
{
	switch (request->kind) {
	case ZD_REQ_FORWARD_BEGIN:
		replied_begin(world, session, request, reply);
		break;
	case ZD_REQ_CONTEXT_BEGIN:
		replied_context(world, session, request, reply);
		break;
	default:
		replied_end(world, session, request, reply);
		break;
	}
}
