/* SPDX-License-Identifier: Apache-2.0 */
/* handle_scope.c - forward scopes, claims and user contexts. */
#include <string.h>

#include "server/handlers.h"

int zd_args_forward_begin(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                          struct zd_err *err)
{
	const Zd__ForwardBegin *forward = request->forward_begin;

	args->kind = ZD_REQ_FORWARD_BEGIN;
	args->u.forward_begin.group = forward->group;
	args->u.forward_begin.parent = forward->parent;
	return zd_take_fences(forward->fences, forward->n_fences, arena, &args->u.forward_begin.fences, err);
}

int zd_args_forward_end(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                        struct zd_err *err)
{
	const Zd__ForwardEnd *forward = request->forward_end;

	args->kind = ZD_REQ_FORWARD_END;
	args->u.scope_end.scope = forward->scope;
	args->u.scope_end.grad = forward->grad;
	return zd_take_fences(forward->fences, forward->n_fences, arena, &args->u.scope_end.fences, err);
}

static int take_scope_end(const Zd__ScopeEnd *end, enum zd_request_kind kind, struct zd_arena *arena,
                          struct zd_args *args, struct zd_err *err)
{
	args->kind = kind;
	args->u.scope_end.scope = end->scope;
	args->u.scope_end.grad = false;
	return zd_take_fences(end->fences, end->n_fences, arena, &args->u.scope_end.fences, err);
}

int zd_args_claim_end(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                      struct zd_err *err)
{
	return take_scope_end(request->claim_end, ZD_REQ_CLAIM_END, arena, args, err);
}

int zd_args_scope_abandon(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                          struct zd_err *err)
{
	return take_scope_end(request->scope_abandon, ZD_REQ_SCOPE_ABANDON, arena, args, err);
}

int zd_args_context_begin(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                          struct zd_err *err)
{
	const Zd__ContextBegin *context = request->context_begin;
	int rc = zd_take_count(context->n_units, ZD_MAX_UNITS_PER_REQUEST, "units", err);

	(void)arena;
	if (rc)
		return rc;
	args->kind = ZD_REQ_CONTEXT_BEGIN;
	args->u.context_begin.nunits = (uint32_t)context->n_units;
	args->u.context_begin.units = context->units;
	return 0;
}

int zd_args_context_end(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                        struct zd_err *err)
{
	return take_scope_end(request->context_end, ZD_REQ_CONTEXT_END, arena, args, err);
}

void zd_fill_scope(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__ScopeReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__scope_reply__init(message);
	message->scope = reply->u.scope.scope;
	message->n_ended = reply->u.scope.nended;
	message->ended = zd_answer_ids(answer, reply->u.scope.ended, reply->u.scope.nended);
	answer->reply.body_case = ZD__REPLY__BODY_SCOPE;
	answer->reply.scope = message;
}
