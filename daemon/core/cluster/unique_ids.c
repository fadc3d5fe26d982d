/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unique_ids.c - ids of future communicators, which the job's launcher passes to all ranks of a group.
 *
 * The ranks first connect to the daemon that made the ids: it must live until the group is joined. The driver
 * authenticates the ids for the job and the group that the request names.
 *
 * An id is used once. The engine stores the first id of each group that has connected until the driver would
 * reject it for its age. The memory is charged to the user.
 */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "core/cluster/cluster.h"

/* ---- Used ids ------------------------------------------------------------------------------------------ */

static void forget(struct zd_engine *e, struct zd_used_id *used)
{
	zd_metadata_uncharge(used->owner, sizeof(*used));
	zd_owner_put(e, used->owner);
	HASH_DEL(e->used_ids, used);
	free(used);
}

void zd_ids_use(struct zd_engine *e, const struct zd_group *group)
{
	const struct zd_cluster *cluster = group->cluster;
	/* The oldest ids are first. Removing at most two in a call limits the work, and the number of expired
	 * ids that remain. */
	for (unsigned i = 0; i < 2 && e->used_ids && e->used_ids->until_ns < e->now_ns; i++)
		forget(e, e->used_ids);
	if (zd_ids_are_used(e, cluster->ids))
		return;
	struct zd_used_id *used = zd_calloc(1, sizeof(*used));
	memcpy(used->id, cluster->ids, sizeof(used->id));
	used->until_ns = cluster->ids_until_ns;
	used->owner = zd_owner_get(e, group->job->owner->uid);
	zd_metadata_charge(used->owner, sizeof(*used));
	HASH_ADD(hh, e->used_ids, id, sizeof(used->id), used);
}

bool zd_ids_are_used(const struct zd_engine *e, const unsigned char *ids)
{
	const struct zd_used_id *used;
	HASH_FIND(hh, e->used_ids, ids, ZD_UNIQUE_ID_BYTES, used);
	return used != NULL;
}

void zd_used_ids_free(struct zd_engine *e)
{
	while (e->used_ids)
		forget(e, e->used_ids);
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

static void ids_made(struct zd_engine *e, struct zd_op *op)
{
	struct zd_request *req = op->owner;
	uint32_t nbytes = req->u.unique_ids.count * ZD_UNIQUE_ID_BYTES;
	if (op->status == 0) {
		zd_assert(op->result && op->result->values_bytes == nbytes);
		memcpy(req->u.unique_ids.bytes, op->result->values, nbytes);
	}
	zd_request_op_done(e, op);
}

static int ids_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	uint32_t count = req->args->u.unique_ids.count;
	if (!e->collectives)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED, "this daemon's backend has no communicators");
	if (count == 0 || count > ZD_MAX_UNIQUE_IDS)
		return zd_err_set(err, ZEROD_E_LIMIT, "%u unique ids in one request; 1 to %u", count,
		                  ZD_MAX_UNIQUE_IDS);
	bool for_any = req->args->u.unique_ids.job[0] == '\0' && req->args->u.unique_ids.group[0] == '\0';
	int status = for_any ? 0
	                     : zd_name_check(req->args->u.unique_ids.job, ZD_MAX_NAME_BYTES, "job name", err);
	if (status == 0 && !for_any)
		status = zd_name_check(req->args->u.unique_ids.group, ZD_MAX_NAME_BYTES, "group name", err);
	if (status)
		return status;
	struct zd_command command = {.kind = ZD_CMD_UNIQUE_IDS};
	command.u.ids.count = count;
	command.u.ids.uid = req->session->uid;
	req->device = &e->devices[0];
	req->u.unique_ids.count = count;
	req->u.unique_ids.job = zd_request_own(req, zd_strdup(req->args->u.unique_ids.job), 0);
	req->u.unique_ids.group = zd_request_own(req, zd_strdup(req->args->u.unique_ids.group), 0);
	req->u.unique_ids.bytes = zd_request_own(req, zd_calloc(count, ZD_UNIQUE_ID_BYTES),
	                                         (size_t)count * ZD_UNIQUE_ID_BYTES);
	req->pending_ops++;
	zd_op_submit(e, NULL, &command, ids_made, req, 0);
	return 0;
}

static int ids_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	(void)err;
	if (req->pending_ops > 0)
		return zd_wait_for(req, ZD_WAIT_UNIQUE_IDS, 0, 0, 0);
	e->reply.u.unique_ids.ids.data = req->u.unique_ids.bytes;
	e->reply.u.unique_ids.ids.len = (size_t)req->u.unique_ids.count * ZD_UNIQUE_ID_BYTES;
	e->reply.job = req->u.unique_ids.job;
	e->reply.group = req->u.unique_ids.group;
	return 0;
}

const struct zd_request_type zd_req_unique_ids = {.begin = ids_begin, .attempt = ids_attempt};
