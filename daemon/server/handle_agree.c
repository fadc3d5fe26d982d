/* SPDX-License-Identifier: Apache-2.0 */
/* handle_agree.c - agreement of a group's ranks on scalars. */
#include <string.h>

#include "server/handlers.h"

int zd_args_group_agree(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                        struct zd_err *err)
{
	const Zd__GroupAgree *agree = request->group_agree;

	(void)arena;
	if (agree->n_values > ZEROD_MAX_AGREED)
		return zd_err_set(err, ZEROD_E_LIMIT, "%zu values to agree on; at most %u", agree->n_values,
		                  ZEROD_MAX_AGREED);
	args->kind = ZD_REQ_GROUP_AGREE;
	args->u.group_agree.group = agree->group;
	args->u.group_agree.op = agree->op;
	args->u.group_agree.count = (uint32_t)agree->n_values;
	args->u.group_agree.values = agree->values;
	return 0;
}

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
