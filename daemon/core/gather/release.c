/* SPDX-License-Identifier: Apache-2.0 */
/* release.c - releases: a release ends one use of a lease, after the fences that the client names. */
#include <stdio.h>
#include <string.h>

#include "core/cluster/cluster.h"
#include "core/gather/buffer.h"
#include "core/gather/collective.h"
#include "core/gather/gather.h"

/* If gathers are collective, ranks of other daemons have released the unit and will gather it again, but this
 * rank would join its old buffer. The group therefore ends. */
static void give_up(struct zd_engine *e, const struct zd_part *part)
{
	struct zd_member *member = zd_part_member(part);
	char what[128];
	if (!zd_gathers_are_collective(member->group))
		return;
	(void)snprintf(what, sizeof(what), "its release of unit '%.64s'", part->unit->name);
	zd_cluster_give_up(e, member, what);
}

/* Checks that the user's metadata has room for a watch, which a release needs if its fences are pending. */
static int check_watch(struct zd_engine *e, const struct zd_request *req, const struct zd_part *part,
                       struct zd_err *err)
{
	int status = zd_metadata_check_work(e, req->session, "a release with fences", ZD_WATCH_METADATA_BYTES,
	                                    err);
	if (status != 0)
		give_up(e, part);
	return status;
}

static int release_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_part *part;
	const char *tag = zd_tag_or_default(req->args->u.release.tag);
	int status = zd_part_find(e, req->session, req->args->u.release.unit, &part, err);
	if (status == 0)
		status = zd_tag_check(tag, err);
	if (status == 0 && req->args->fences.count > 0)
		status = check_watch(e, req, part, err);
	if (status != 0)
		return status;
	zd_request_set_member(req, zd_part_member(part));
	req->u.release.part = part;
	memcpy(req->u.release.tag, tag, strlen(tag) + 1); /* checked above */
	zd_request_keep_fences(req, &req->args->fences);
	part->users++;
	return 0;
}

static void release_cancel(struct zd_engine *e, struct zd_request *req)
{
	req->u.release.part->users--;
	give_up(e, req->u.release.part);
}

/* A client can send a release before its gather receives a reply: while the gather waits, the release also
 * does. */
static bool gather_waits(const struct zd_request *req)
{
	const struct zd_request *other;
	TAILQ_FOREACH (other, &req->session->requests, session_link) {
		if (other->kind == ZD_REQ_GATHER && other->u.gather.part == req->u.release.part &&
		    !other->u.gather.prefetch && strcmp(other->u.gather.tag, req->u.release.tag) == 0)
			return true;
	}
	return false;
}

/* If gathers are collective: whether an earlier context_begin has yet to join the buffer. On ranks on which
 * that request did not wait, it has joined. */
static bool context_joins(const struct zd_request *req)
{
	const struct zd_part *part = req->u.release.part;
	const struct zd_request *before;
	uint64_t version;
	if (!zd_gathers_are_collective(req->member->group))
		return false;
	TAILQ_FOREACH (before, &req->session->requests, session_link) {
		if (before == req)
			return false;
		if (before->kind == ZD_REQ_CONTEXT_BEGIN && zd_gather_lacks(before, part, &version) &&
		    part->buffer->version == version)
			return true;
	}
	return false;
}

static int release_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_part *part = req->u.release.part;
	struct zd_lease *lease = part->buffer ? zd_lease_find(part->buffer, req->u.release.tag) : NULL;
	if (lease ? context_joins(req) : gather_waits(req))
		return zd_wait_for_unit(req, part->unit, ZD_WAIT_GATHER, part->rank, 0, 0);
	part->users--;
	if (!lease)
		return zd_err_set(err, ZEROD_E_NOT_HELD, "rank %u does not hold unit '%s' under tag '%s'",
		                  zd_world_rank(zd_part_member(part)), part->unit->name, req->u.release.tag);
	e->reply.u.release.lease_ended = zd_lease_release(e, part->buffer, lease, &req->fences);
	return 0;
}

const struct zd_request_type zd_req_release = {.begin = release_begin,
                                               .attempt = release_attempt,
                                               .cancel = release_cancel,
                                               .room = ZD_RELEASE_ROOM};
