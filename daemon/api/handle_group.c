/* SPDX-License-Identifier: Apache-2.0 */
/* handle_group.c - joining and leaving a group, and committing its steps. */
#include "api/handlers.h"

int zd_args_group_join(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                       struct zd_err *err)
{
	const Zd__GroupJoin *join = request->group_join;

	(void)arena;
	(void)err;
	args->kind = ZD_REQ_GROUP_JOIN;
	args->u.group_join.job = join->job;
	args->u.group_join.group = join->group;
	args->u.group_join.world_size = join->world_size;
	args->u.group_join.rank = join->rank;
	args->u.group_join.device = join->device;
	args->u.group_join.durable = join->durable;
	args->u.group_join.shadow = join->shadow;
	return 0;
}

void zd_fill_group_join(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__GroupJoinReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__group_join_reply__init(message);
	message->group = reply->u.group_join.group;
	message->torn = reply->u.group_join.torn;
	message->committed_step = reply->u.group_join.committed_step;
	answer->reply.body_case = ZD__REPLY__BODY_GROUP_JOIN;
	answer->reply.group_join = message;
}

int zd_args_group_leave(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                        struct zd_err *err)
{
	(void)arena;
	(void)err;
	args->kind = ZD_REQ_GROUP_LEAVE;
	args->u.group = request->group_leave->group;
	return 0;
}

int zd_args_commit(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                   struct zd_err *err)
{
	(void)arena;
	(void)err;
	args->kind = ZD_REQ_COMMIT;
	args->u.commit.group = request->commit->group;
	args->u.commit.step = request->commit->step;
	return 0;
}
