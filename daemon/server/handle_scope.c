/* SPDX-License-Identifier: Apache-2.0 */
/* handle_scope.c - forward scopes, claims and user contexts. */
#include <string.h>

#include "server/handlers.h"

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
