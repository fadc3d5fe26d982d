/* SPDX-License-Identifier: Apache-2.0 */
/*
 * update.c - who may write a shard, and when others may read what was written.
 *
 * update_begin closes the shards for new gathers at once and is granted when the pushes that read them have ended;
 * publish opens them again, one version higher, when the writers' fences have passed. So no push ever reads a shard
 * that is being written, and no gathered buffer mixes versions. Both are all or nothing over their units. In a shadow group an
 * update also waits until the last commit is saved (shadow.c), and begins only while all ranks are there.
 */
#include <stdio.h>
#include <string.h>

#include "core/shadow.h"

/* ---- update_begin --------------------------------------------------------------------------------------- */

static void parts_move(struct zd_request *req, unsigned state)
{
	for (uint32_t i = 0; i < req->u.publish.nparts; i++)
		zd_sm_move(&zd_sm_part, &req->u.publish.parts[i]->state, state);
}

/* Finds all parts and takes each from `from` to `to`; on an error all are as before. */
static int parts_take(struct zd_engine *e, struct zd_request *req, const struct zd_args *args, unsigned from,
                      unsigned to, struct zd_err *err)
{
	uint32_t nunits = args->u.publish.nunits;
	if (nunits == 0 || nunits > ZD_MAX_UNITS_PER_REQUEST)
		return zd_err_set(err, ZEROD_E_LIMIT, "%u units in one request; 1 to %u", nunits,
		                  ZD_MAX_UNITS_PER_REQUEST);
	int status = zd_session_check_poisoned(req->session, err);
	if (status != 0)
		return status;
	req->u.publish.parts = zd_calloc(nunits, sizeof(struct zd_part *));
	for (uint32_t i = 0; i < nunits && status == 0; i++) {
		struct zd_part *part;
		status = zd_part_find(e, req->session, args->u.publish.units[i], &part, err);
		if (status != 0)
			break;
		struct zd_member *member = zd_part_member(part);
		if (!req->member)
			req->member = member;
		if (member != req->member) {
			status = zd_err_set(err, ZEROD_E_INVALID,
			                    "unit '%s' is of another group than the first", part->unit->name);
		} else if (part->state != from) {
			status = zd_err_set(err, ZEROD_E_STATE, "unit '%s' is %s; %s needs it %s",
			                    part->unit->name, zd_sm_name(&zd_sm_part, part->state),
			                    zd_request_types[req->kind]->name,
			                    zd_sm_name(&zd_sm_part, (uint8_t)from));
		} else {
			zd_sm_move(&zd_sm_part, &part->state, to);
			req->u.publish.parts[req->u.publish.nparts++] = part;
		}
	}
	if (status != 0) {
		parts_move(req, from);
		return status;
	}
	req->device = req->member->device;
	return 0;
}

static int update_begin(struct zd_engine *e, struct zd_request *req, const struct zd_args *args,
                        struct zd_err *err)
{
	return parts_take(e, req, args, ZD_PART_IDLE, ZD_PART_UPDATE_WAIT, err);
}

/* Gathers that waited for this update go back to the version that is there. */
static void update_cancel(struct zd_engine *e, struct zd_request *req)
{
	parts_move(req, ZD_PART_IDLE);
	zd_dirty_group(e, req->member->group);
}

static int update_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	const struct zd_group *group = req->member->group;
	int status = group->shadow || group->state == ZD_GROUP_ABORTED ? zd_member_check(req->member, err)
	                                                               : 0;
	if (status != 0) {
		update_cancel(e, req);
		return status;
	}
	for (uint32_t i = 0; i < req->u.publish.nparts; i++)
		zd_shadow_save(e, req->u.publish.parts[i]);
	for (uint32_t i = 0; i < req->u.publish.nparts; i++) {
		struct zd_part *part = req->u.publish.parts[i];
		enum zd_wait_kind kind = zd_shadow_is_owed(part)            ? ZD_WAIT_RESTORE
		                         : part->shadow == ZD_SHADOW_SAVING ? ZD_WAIT_SAVE
		                                                            : ZD_WAIT_READERS;
		if (part->readers > 0 || kind == ZD_WAIT_RESTORE) {
			int wait = zd_wait_for(req, kind, part->rank, part->readers, 0);
			req->wait.unit = part->unit;
			return wait;
		}
	}
	parts_move(req, ZD_PART_UPDATING);
	return 0;
}

/* ---- publish ---------------------------------------------------------------------------------------------- */

static int publish_check_leases(const struct zd_request *req, struct zd_err *err)
{
	for (uint32_t i = 0; i < req->u.publish.nparts; i++) {
		const struct zd_part *part = req->u.publish.parts[i];
		if (!part->buffer || TAILQ_EMPTY(&part->buffer->leases))
			continue;
		char tags[128];
		zd_buffer_tags(part->buffer, tags, sizeof(tags));
		return zd_err_set(err, ZEROD_E_BUSY, "unit '%s' is held on rank %u by %s", part->unit->name,
		                  part->rank, tags);
	}
	return 0;
}

static int publish_begin(struct zd_engine *e, struct zd_request *req, const struct zd_args *args,
                         struct zd_err *err)
{
	int status = zd_fences_check(&args->u.publish.fences, err);
	if (status == 0)
		status = parts_take(e, req, args, ZD_PART_UPDATING, ZD_PART_PUBLISHING, err);
	if (status != 0)
		return status;
	if (!args->u.publish.force)
		status = publish_check_leases(req, err);
	if (status != 0) {
		parts_move(req, ZD_PART_UPDATING);
		return status;
	}
	if (zd_fences_watch(e, req->session, req->member->group->job, req->device->index,
	                    &args->u.publish.fences, zd_request_op_done, req, 0))
		req->pending_ops++;
	return 0;
}

static void publish_cancel(struct zd_engine *e, struct zd_request *req)
{
	(void)e;
	parts_move(req, ZD_PART_UPDATING);
}

/* Of an update that was undone while the rank wrote: it has stopped now, so that its shards can be set back. The others stay
 * under update. */
static int publish_check_undone(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	int status = 0;
	for (uint32_t i = 0; i < req->u.publish.nparts && status == 0; i++) {
		if (zd_shadow_is_owed(req->u.publish.parts[i]))
			status = zd_shadow_undone(req->u.publish.parts[i], err);
	}
	for (uint32_t i = 0; i < req->u.publish.nparts && status != 0; i++) {
		struct zd_part *part = req->u.publish.parts[i];
		zd_sm_move(&zd_sm_part, &part->state,
		           zd_shadow_is_owed(part) ? ZD_PART_IDLE : ZD_PART_UPDATING);
		zd_shadow_try(e, part);
	}
	return status;
}

static int publish_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	if (req->pending_ops > 0)
		return zd_wait_for(req, ZD_WAIT_FENCES, 0, 0, 0);
	int status = zd_session_check_poisoned(req->session, err); /* since it was begun */
	if (status != 0) {
		publish_cancel(e, req);
		return status;
	}
	status = publish_check_undone(e, req, err);
	if (status != 0)
		return status;
	for (uint32_t i = 0; i < req->u.publish.nparts; i++) {
		struct zd_part *part = req->u.publish.parts[i];
		zd_sm_move(&zd_sm_part, &part->state, ZD_PART_IDLE);
		part->version++;
		/* A persistent copy is stale now and refreshed at its next gather; another has no reason to stay. */
		if (part->buffer && TAILQ_EMPTY(&part->buffer->leases) && !part->persistent)
			zd_buffer_drop(e, part->buffer);
	}
	zd_dirty_group(e, req->member->group);
	return 0;
}

/* ---- commit ------------------------------------------------------------------------------------------------- */

static int commit_begin(struct zd_engine *e, struct zd_request *req, const struct zd_args *args,
                        struct zd_err *err)
{
	struct zd_member *member;
	int status = zd_member_find(e, req->session, args->u.commit.group, &member, err);
	if (status == 0)
		status = zd_session_check_poisoned(req->session, err);
	if (status == 0)
		status = zd_member_check(member, err);
	if (status != 0)
		return status;
	struct zd_group *group = member->group;
	uint64_t step = args->u.commit.step;
	if (member->committing)
		return zd_err_set(err, ZEROD_E_STATE, "rank %u is committing step %llu already", member->rank,
		                  (unsigned long long)member->commit_step);
	if (step <= group->committed_step)
		return zd_err_set(err, ZEROD_E_STATE, "step %llu is committed; %llu is not after it",
		                  (unsigned long long)group->committed_step, (unsigned long long)step);
	for (uint32_t rank = 0; rank < group->world_size; rank++) {
		const struct zd_member *other = &group->members[rank];
		if (other->committing && other->commit_step != step)
			return zd_err_set(err, ZEROD_E_MISMATCH,
			                  "rank %u commits step %llu; rank %u says %llu", rank,
			                  (unsigned long long)other->commit_step, member->rank,
			                  (unsigned long long)step);
	}
	req->member = member;
	req->device = member->device;
	req->u.commit.serial = group->commit_serial;
	member->committing = true;
	member->commit_step = step;
	return 0;
}

/* Are all parts of the unit idle, at one version? */
static int commit_check_unit(const struct zd_unit *unit, struct zd_err *err)
{
	const struct zd_part *first = NULL;
	for (uint32_t rank = 0; rank < unit->group->world_size; rank++) {
		const struct zd_part *part = &unit->parts[rank];
		if (zd_part_is_gone(part))
			continue;
		if (part->state != ZD_PART_IDLE)
			return zd_err_set(err, ZEROD_E_STATE, "unit '%s' is %s on rank %u", unit->name,
			                  zd_sm_name(&zd_sm_part, part->state), rank);
		if (!first)
			first = part;
		if (part->version != first->version)
			return zd_err_set(err, ZEROD_E_STATE,
			                  "unit '%s' has version %llu on rank %u and %llu on rank %u",
			                  unit->name, (unsigned long long)first->version, first->rank,
			                  (unsigned long long)part->version, rank);
	}
	return 0;
}

/* Every rank has come: decides for all of them. */
static void commit_evaluate(struct zd_engine *e, struct zd_group *group, uint64_t step)
{
	struct zd_err err = ZD_ERR_NONE;
	struct zd_unit *unit;
	int status = 0;
	for (unit = group->units; unit && status == 0; unit = unit->hh_name.next)
		status = commit_check_unit(unit, &err);
	for (unit = group->units; unit && status == 0; unit = unit->hh_name.next) {
		for (uint32_t rank = 0; rank < group->world_size; rank++) {
			struct zd_part *part = &unit->parts[rank];
			if (zd_part_is_gone(part))
				continue;
			zd_shadow_commit(part);
			part->committed = part->version;
		}
	}
	if (status == 0) {
		group->committed_step = step;
		group->torn = false;
	}
	group->commit_status = status;
	(void)snprintf(group->commit_text, sizeof(group->commit_text), "%.191s", err.text);
	group->commit_serial++;
	for (uint32_t rank = 0; rank < group->world_size; rank++)
		group->members[rank].committing = false;
	zd_dirty_group(e, group);
}

static void commit_cancel(struct zd_engine *e, struct zd_request *req)
{
	(void)e;
	if (req->u.commit.serial == req->member->group->commit_serial)
		req->member->committing = false;
}

static int commit_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_group *group = req->member->group;
	if (req->u.commit.serial == group->commit_serial) {
		int status = zd_group_check(group, err);
		if (status != 0) {
			commit_cancel(e, req);
			return status;
		}
		for (uint32_t rank = 0; rank < group->world_size; rank++) {
			if (!group->members[rank].committing)
				return zd_wait_for(req, ZD_WAIT_COMMIT, rank, 0, 0);
		}
		commit_evaluate(e, group, req->member->commit_step);
	}
	if (group->commit_status != 0)
		return zd_err_set(err, group->commit_status, "%s", group->commit_text);
	return 0;
}

/* ---- set_persistent ------------------------------------------------------------------------------------------- */

static int persistent_begin(struct zd_engine *e, struct zd_request *req, const struct zd_args *args,
                            struct zd_err *err)
{
	struct zd_part *part;
	int status = zd_part_find(e, req->session, args->u.set_persistent.unit, &part, err);
	if (status != 0)
		return status;
	part->persistent = args->u.set_persistent.persistent;
	/* Nobody holds the copy, so no release would come that frees it. */
	if (!part->persistent && part->buffer && TAILQ_EMPTY(&part->buffer->leases) &&
	    !part->buffer->prefetched)
		zd_buffer_drop(e, part->buffer);
	return 0;
}

const struct zd_request_type zd_req_update_begin = {"update_begin", update_begin, update_attempt,
                                                    update_cancel};
const struct zd_request_type zd_req_publish = {"publish", publish_begin, publish_attempt, publish_cancel};
const struct zd_request_type zd_req_commit = {"commit", commit_begin, commit_attempt, commit_cancel};
const struct zd_request_type zd_req_set_persistent = {.name = "set_persistent", .begin = persistent_begin};
