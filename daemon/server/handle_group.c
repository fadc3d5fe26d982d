/* SPDX-License-Identifier: Apache-2.0 */
/* handle_group.c - joining and leaving groups, unique ids of groups that span daemons, and commits. */
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "server/api.h"
#include "server/handlers.h"
#include "server/id_stamp.h"
#include "server/session.h"

#define MOST_IDS_BYTES (ZD_ID_STAMP_BYTES + ZD_MAX_UNIQUE_IDS * ZD_UNIQUE_ID_BYTES)

/* ---- Unique ids ---------------------------------------------------------------------------------------- */

/* The real-time clock, because nodes have no other one in common. */
static struct zd_id_facts facts_of(const struct zd_api_session *session, const char *job, const char *group)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_REALTIME, &now);
	return (struct zd_id_facts){.uid = zd_conn_creds(session->conn)->uid,
	                            .job = job,
	                            .group = group,
	                            .now_s = (uint64_t)now.tv_sec};
}

int zd_check_ids(const struct zd_api_session *session, struct zd_args *args, struct zd_err *err)
{
	const struct zd_id_facts facts = facts_of(session, args->u.group_join.job, args->u.group_join.group);
	const struct zd_api *api = session->api;
	struct zd_err why = ZD_ERR_NONE;
	int rc;

	if (args->u.group_join.ids_bytes == 0)
		return 0;
	rc = zd_id_stamp_check(&api->id_key, &facts, api->limits.id_ttl_s, args->u.group_join.ids,
	                       args->u.group_join.ids_bytes, &args->u.group_join.ids_left_s, &why);
	if (rc)
		return zd_err_set(err, rc, "group '%s': %s", facts.group, why.text);
	args->u.group_join.ids += ZD_ID_STAMP_BYTES;
	args->u.group_join.ids_bytes -= ZD_ID_STAMP_BYTES;
	return 0;
}

int zd_args_unique_ids(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                       struct zd_err *err)
{
	(void)arena;
	(void)err;
	args->kind = ZD_REQ_UNIQUE_IDS;
	args->u.unique_ids.count = request->unique_ids->count;
	args->u.unique_ids.job = request->unique_ids->job;
	args->u.unique_ids.group = request->unique_ids->group;
	return 0;
}

void zd_fill_unique_ids(const struct zd_reply *reply, struct zd_answer *answer)
{
	const struct zd_id_facts facts = facts_of(answer->session, reply->u.unique_ids.job,
	                                          reply->u.unique_ids.group);
	Zd__UniqueIdsReply *message = zd_arena_alloc(answer->arena, sizeof(*message));
	uint32_t nbytes = reply->u.unique_ids.nbytes;
	struct zd_err err;
	int rc;

	zd__unique_ids_reply__init(message);
	message->ids.len = ZD_ID_STAMP_BYTES + nbytes;
	message->ids.data = zd_arena_alloc(answer->arena, message->ids.len);
	memcpy(message->ids.data + ZD_ID_STAMP_BYTES, reply->u.unique_ids.bytes, nbytes);
	rc = zd_id_stamp_write(&answer->session->api->id_key, &facts, reply->u.unique_ids.bytes,
	                       nbytes / ZD_UNIQUE_ID_BYTES, message->ids.data, &err);
	if (rc) {
		answer->reply.status = rc;
		answer->reply.error = zd_answer_text(answer->arena, err.text);
		return;
	}
	answer->reply.body_case = ZD__REPLY__BODY_UNIQUE_IDS;
	answer->reply.unique_ids = message;
}

/* ---- Groups -------------------------------------------------------------------------------------------- */

/* The enum of a received message may have any value. zd_check_ids() checks the ids, and the engine their
 * number. */
static int take_collectives(const Zd__GroupJoin *join, struct zd_args *args, struct zd_err *err)
{
	size_t nbytes = join->unique_ids.len;

	if (join->collectives != ZD__COLLECTIVES__COPIES && join->collectives != ZD__COLLECTIVES__NCCL)
		return zd_err_set(err, ZEROD_E_INVALID, "collectives %d, expected 0 (copies) or 1 (NCCL)",
		                  (int)join->collectives);
	if (nbytes > MOST_IDS_BYTES)
		return zd_err_set(err, ZEROD_E_LIMIT, "unique ids of %zu bytes, at most %u are allowed",
		                  nbytes, MOST_IDS_BYTES);
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
