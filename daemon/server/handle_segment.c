/* SPDX-License-Identifier: Apache-2.0 */
/* handle_segment.c - segments that are released to their device. */
#include "server/handlers.h"

#include "proto/limits.h"

void zd_fill_trim(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__TrimReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__trim_reply__init(message);
	message->freed_bytes = reply->u.trim.freed_bytes;
	answer->reply.body_case = ZD__REPLY__BODY_TRIM;
	answer->reply.trim = message;
}
