/* SPDX-License-Identifier: Apache-2.0 */
/* handle_group.c - unique ids of groups that span daemons. */
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "server/api.h"
#include "server/handlers.h"
#include "server/id_stamp.h"
#include "server/session.h"

#define MOST_IDS_BYTES (ZD_ID_STAMP_BYTES + ZD_MAX_UNIQUE_IDS * ZD_UNIQUE_ID_BYTES)

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

int zd_check_group_join(const struct zd_api_session *session, struct zd_args *args, struct zd_err *err)
{
	Zd__GroupJoin *join = &args->u.group_join;
	size_t nbytes = join->unique_ids.len;
	struct zd_err why = ZD_ERR_NONE;

	/* The enum of a received message may have any value. */
	if (join->collectives != ZD__COLLECTIVES__COPIES && join->collectives != ZD__COLLECTIVES__NCCL)
		return zd_err_set(err, ZEROD_E_INVALID, "collectives %d, expected 0 (copies) or 1 (NCCL)",
		                  (int)join->collectives);
	if (nbytes > MOST_IDS_BYTES)
		return zd_err_set(err, ZEROD_E_LIMIT, "unique ids of %zu bytes, at most %u are allowed",
		                  nbytes, MOST_IDS_BYTES);
	if (nbytes == 0)
		return 0;
	struct zd_id_facts facts = facts_of(session, join->job, join->group);
	int rc = zd_id_stamp_check(&session->api->id_key, &facts, session->api->limits.id_ttl_s,
	                           join->unique_ids.data, (uint32_t)nbytes, &args->ids_left_s, &why);
	if (rc)
		return zd_err_set(err, rc, "group '%s': %s", facts.group, why.text);
	join->unique_ids.data += ZD_ID_STAMP_BYTES;
	join->unique_ids.len -= ZD_ID_STAMP_BYTES;
	return 0;
}

void zd_stamp_ids(const struct zd_reply *reply, struct zd_answer *answer)
{
	const struct zd_id_facts facts = facts_of(answer->session, reply->job, reply->group);
	const ProtobufCBinaryData *ids = &reply->u.unique_ids.ids;
	size_t nbytes = ZD_ID_STAMP_BYTES + ids->len;
	uint8_t *stamped = zd_arena_alloc(answer->arena, nbytes);
	struct zd_err err;

	memcpy(stamped + ZD_ID_STAMP_BYTES, ids->data, ids->len);
	int rc = zd_id_stamp_write(&answer->session->api->id_key, &facts, ids->data,
	                           (uint32_t)ids->len / ZD_UNIQUE_ID_BYTES, stamped, &err);
	answer->reply.unique_ids->ids = (ProtobufCBinaryData){.len = nbytes, .data = stamped};
	if (rc == 0)
		return;
	answer->reply.body_case = ZD__REPLY__BODY__NOT_SET;
	answer->reply.status = rc;
	answer->reply.error = zd_answer_text(answer->arena, err.text);
}
