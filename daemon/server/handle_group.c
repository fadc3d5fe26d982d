/* SPDX-License-Identifier: Apache-2.0 */
/* handle_group.c - joining and leaving groups, unique ids of groups that span daemons, and commits. */
#include <string.h>

#include "base/err.h"
#include "server/handlers.h"

/* The enum of a received message may have any value. The engine checks the number of ids. */
static int take_collectives(const Zd__GroupJoin *join, struct zd_args *args, struct zd_err *err)
{
	size_t nbytes = join->unique_ids.len;
	int rc;

	if (join->collectives != ZD__COLLECTIVES__COPIES && join->collectives != ZD__COLLECTIVES__NCCL)
		return zd_err_set(err, ZEROD_E_INVALID, "collectives %d, expected 0 (copies) or 1 (NCCL)",
		                  (int)join->collectives);
	if (nbytes % ZD_UNIQUE_ID_BYTES != 0)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "unique ids of %zu bytes together, expected a multiple of %u", nbytes,
		                  ZD_UNIQUE_ID_BYTES);
	rc = zd_take_count(nbytes / ZD_UNIQUE_ID_BYTES, ZD_MAX_UNIQUE_IDS, "unique ids", err);
	if (rc)
		return rc;
	args->u.group_join.nccl_collectives = join->collectives == ZD__COLLECTIVES__NCCL;
	args->u.group_join.ids = nbytes > 0 ? join->unique_ids.data : NULL;
	args->u.group_join.ids_bytes = (uint32_t)nbytes;
	return 0;
}

int zd_args_group_join(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                       struct zd_err *err)
{
	const Zd__GroupJoin *join = request->group_join;

	(void)arena;
	args->kind = ZD_REQ_GROUP_JOIN;
	args->u.group_join.job = join->job;
	args->u.group_join.group = join->group;
	args->u.group_join.world_size = join->world_size;
	args->u.group_join.rank = join->rank;
	args->u.group_join.device = join->device;
	args->u.group_join.durable = join->durable;
	args->u.group_join.shadow = join->shadow;
	args->u.group_join.local_world_size = join->local_world_size;
	args->u.group_join.hybrid = join->hybrid;
	return take_collectives(join, args, err);
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

int zd_args_group_barrier(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                          struct zd_err *err)
{
	(void)arena;
	(void)err;
	args->kind = ZD_REQ_GROUP_BARRIER;
	args->u.group = request->group_barrier->group;
	return 0;
}

int zd_args_unique_ids(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                       struct zd_err *err)
{
	(void)arena;
	(void)err;
	args->kind = ZD_REQ_UNIQUE_IDS;
	args->u.unique_ids = request->unique_ids->count;
	return 0;
}

void zd_fill_unique_ids(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__UniqueIdsReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__unique_ids_reply__init(message);
	message->ids.len = reply->u.unique_ids.nbytes;
	message->ids.data = zd_arena_alloc(answer->arena, message->ids.len);
	memcpy(message->ids.data, reply->u.unique_ids.bytes, message->ids.len);
	answer->reply.body_case = ZD__REPLY__BODY_UNIQUE_IDS;
	answer->reply.unique_ids = message;
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
