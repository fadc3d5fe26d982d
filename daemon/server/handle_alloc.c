/* SPDX-License-Identifier: Apache-2.0 */
/* handle_alloc.c - plain allocations. */
#include "server/handlers.h"

void zd_fill_alloc(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__AllocReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__alloc_reply__init(message);
	message->allocation = reply->u.alloc.allocation;
	message->location = zd_answer_location(answer, &reply->u.alloc.location);
	answer->reply.body_case = ZD__REPLY__BODY_ALLOC;
	answer->reply.alloc = message;
}
