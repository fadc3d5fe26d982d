/* SPDX-License-Identifier: Apache-2.0 */
/* handle_agree.c - agreement of a group's ranks on scalars. */
#include <string.h>

#include "server/handlers.h"

void zd_fill_group_agree(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__GroupAgreeReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__group_agree_reply__init(message);
	message->n_values = reply->u.group_agree.count;
	message->values = zd_arena_alloc(answer->arena, message->n_values * sizeof(double));
	memcpy(message->values, reply->u.group_agree.values, message->n_values * sizeof(double));
	answer->reply.body_case = ZD__REPLY__BODY_GROUP_AGREE;
	answer->reply.group_agree = message;
}
