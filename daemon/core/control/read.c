/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read.c - reads of a group's last commit by sessions that are not its ranks.
 *
 * commit_wait finds the group by the name of its job and its own name, and waits for a commit after a given
 * step. unit_read copies bytes of a unit, as of the last commit, into an allocation of the reader. Or it
 * returns their place. A session of the job's uid maps it, reads, and asks afterwards whether the bytes were
 * valid.
 *
 * A part holds the last commit in its shard until an update is granted, and from then on in its shadow, if it
 * has one (shadow.c). It holds a pinned commit in the same places or, if an update has made one, in its save
 * (save.c). If none of them holds the step, the read is rejected with STALE_VERSION. All reads that name one
 * step are therefore of one commit.
 *
 * The daemon itself makes the copies. An update waits for the copies of the shard that are under way, but
 * never for the reader's process: after the update's request no read of the shard starts. Until the shadow or
 * save is complete, reads fail with BUSY.
 *
 * After its first copy a read has no deadline, because its caller may not continue while copies write.
 *
 * The engine stores nothing about a place that it has returned. The place is in a shard or its shadow. It is
 * valid while it holds the commit and the block has had no other owner. Saves are not mapped: they are freed
 * when a request needs their memory, and that request would wait until the reader has unmapped them.
 */
#include <stdio.h>

#include "base/text.h"
#include "core/control/control.h"
#include "core/gather/commit.h"
#include "core/gather/save.h"
#include "core/memory/allocation.h"

/* ---- Waits for commits --------------------------------------------------------------------------------- */

static struct zd_group *find_group(struct zd_engine *e, const struct zd_session *session, uint64_t id)
{
	struct zd_group *group;
	HASH_FIND(hh, e->groups, &id, sizeof(id), group);
	return group && (session->reads_others || group->job->owner->uid == session->uid) ? group : NULL;
}

static int check_daemons(const struct zd_group *group, struct zd_err *err)
{
	if (!group->cluster)
		return 0;
	return zd_err_set(err, ZEROD_E_UNSUPPORTED,
	                  "group '%s' spans daemons, or its collectives are NCCL's; readers copy between the "
	                  "shards of one daemon only",
	                  group->name);
}

static int find_named(struct zd_engine *e, const struct zd_session *session, const struct zd_args *args,
                      struct zd_group **group, struct zd_err *err)
{
	const char *job_name = args->u.commit_wait.job, *name = args->u.commit_wait.group;
	uint32_t uid = args->u.commit_wait.uid ? args->u.commit_wait.uid : session->uid;
	int status = zd_name_check(job_name, ZD_MAX_NAME_BYTES, "job name", err);
	if (status == 0)
		status = zd_name_check(name, ZD_MAX_NAME_BYTES, "group name", err);
	if (status != 0)
		return status;
	if (uid != session->uid && !session->reads_others)
		return zd_err_set(err, ZEROD_E_PERMISSION,
		                  "job '%s' of uid %u: uid %u reads jobs of its own, and is in no group of "
		                  "reader_groups",
		                  job_name, uid, session->uid);
	zd_endings_finish_for(e, session);
	const struct zd_job *job = zd_job_find(e, uid, job_name);
	*group = job ? zd_group_find(job, name) : NULL;
	if (!*group)
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "no group '%s' in job '%s' of uid %u", name,
		                  job_name, uid);
	return check_daemons(*group, err);
}

static int commit_wait_begin(struct zd_engine *e, struct zd_request *req, const struct zd_args *args,
                             struct zd_err *err)
{
	struct zd_group *group;
	int status = find_named(e, req->session, args, &group, err);
	if (status != 0)
		return status;
	req->device = zd_commit_waits(e);
	req->u.commit_wait.group = group->id;
	if (req->session->reads.group != group->id)
		req->session->reads.step = 0; /* of another group */
	req->session->reads.group = group->id;
	req->u.commit_wait.after = args->u.commit_wait.after;
	req->u.commit_wait.pin = args->u.commit_wait.pin;
	req->u.commit_wait.pin_ms = args->u.commit_wait.pin_ms;
	if (req->u.commit_wait.pin || req->session->pinned.group == group->id)
		zd_unpin(e, req->session);
	return 0;
}

static int commit_wait_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_group *group = find_group(e, req->session, req->u.commit_wait.group);
	int status = 0;
	if (!group || group->over)
		status = zd_err_set(err, ZEROD_E_NOT_FOUND, "the group has ended");
	else if (group->committed_step <= req->u.commit_wait.after && group->state != ZD_GROUP_FORMING &&
	         !group->job->durable)
		status = zd_group_check(group, err);
	if (status == 0 && group->committed_step <= req->u.commit_wait.after)
		return zd_wait_for(req, ZD_WAIT_NEXT, 0, req->u.commit_wait.after, group->id);
	if (status != 0)
		return status;
	if (req->u.commit_wait.pin)
		zd_pin(e, req->session, group, req->u.commit_wait.pin_ms);
	e->reply.u.commit_wait.group = group->id;
	e->reply.u.commit_wait.step = group->committed_step;
	return 0;
}

/* ---- Reads --------------------------------------------------------------------------------------------- */

/* Returns a rank's part with this shard, if possible in memory of the device. Replicas of a hybrid group are
 * equal. */
static struct zd_part *part_of(const struct zd_unit *unit, uint64_t index, const struct zd_device *device)
{
	struct zd_part *found = NULL;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		struct zd_part *part = &unit->parts[rank];
		if (zd_shard_index(&unit->group->members[rank]) != index)
			continue;
		if (part->shard.segment && part->shard.segment->device == device)
			return part;
		found = found ? found : part;
	}
	return found;
}

static bool is_pinned(const struct zd_group *group, uint64_t step)
{
	return group->pin.serial && group->pin.step == step;
}

/* Finds a pinned commit, unless an update is about to overwrite it. */
static int locate_pinned(struct zd_part *part, enum zd_holder *holder, struct zd_err *err)
{
	unsigned long long step = part->unit->group->pin.step;
	*holder = zd_part_find_pin(part);
	bool closed = part->state == ZD_PART_UPDATE_WAIT || zd_part_is_written(part);
	if (*holder == ZD_HOLDER_NONE)
		return zd_err_set(
		        err, ZEROD_E_STALE_VERSION, "unit '%s': rank %u's shard of step %llu was not saved%s",
		        part->unit->name, zd_world_rank(zd_part_member(part)), step,
		        part->unit->unsaved ? ", since it was registered with ZEROD_UNIT_UNSAVED" : "");
	if (!closed || *holder == ZD_HOLDER_SAVE ||
	    (*holder == ZD_HOLDER_SHADOW && part->shadow != ZD_SHADOW_FREE))
		return 0;
	return zd_err_set(err, ZEROD_E_BUSY, "unit '%s': rank %u's shard of step %llu is being saved",
	                  part->unit->name, zd_world_rank(zd_part_member(part)), step);
}

/* Checks that the part still holds the commit, and returns in which memory. */
static int locate(struct zd_part *part, uint64_t committed, enum zd_holder *holder, struct zd_err *err)
{
	const struct zd_unit *unit = part->unit;
	enum zd_shadow_state shadow = zd_part_shadow(part);
	bool in_shadow = shadow == ZD_SHADOW_SAVED || zd_shadow_is_owed(part);
	unsigned long long step = committed;
	if (zd_part_is_gone(part) || part->state == ZD_PART_FILLING)
		return zd_err_set(err, ZEROD_E_STALE_VERSION,
		                  "unit '%s': rank %u's shard of step %llu has gone", unit->name,
		                  zd_world_rank(zd_part_member(part)), step);
	if (part->state == ZD_PART_MOVING)
		return zd_err_set(err, ZEROD_E_BUSY, "unit '%s' is being moved", unit->name);
	if (zd_part_committed(part) == part->first &&
	    zd_part_member(part)->since_commits == unit->group->ncommits)
		return zd_err_set(err, ZEROD_E_STALE_VERSION,
		                  "unit '%s': rank %u has joined after step %llu, and its shard of that step "
		                  "has gone",
		                  unit->name, zd_world_rank(zd_part_member(part)), step);
	if (zd_part_committed(part) == part->first)
		return zd_err_set(err, ZEROD_E_STATE, "unit '%s' was not published before step %llu",
		                  unit->name, step);
	if (is_pinned(unit->group, committed))
		return locate_pinned(part, holder, err);
	*holder = in_shadow ? ZD_HOLDER_SHADOW : ZD_HOLDER_SHARD;
	if (!in_shadow && shadow != ZD_SHADOW_NONE && part->state == ZD_PART_UPDATE_WAIT)
		return zd_err_set(err, ZEROD_E_BUSY, "unit '%s': rank %u's shard of step %llu is being saved",
		                  unit->name, zd_world_rank(zd_part_member(part)), step);
	if (!in_shadow && (zd_part_is_written(part) || part->state == ZD_PART_UPDATE_WAIT ||
	                   part->version != zd_part_committed(part)))
		return zd_err_set(err, ZEROD_E_STALE_VERSION,
		                  "unit '%s': rank %u has updated its shard after step %llu, and the group "
		                  "has no shadows",
		                  unit->name, zd_world_rank(zd_part_member(part)), step);
	return 0;
}

static int check_step(const struct zd_group *group, uint64_t step, struct zd_err *err)
{
	if (group->torn)
		return zd_err_set(err, ZEROD_E_TORN, "group '%s' is torn", group->name);
	if ((step == group->committed_step && step > 0) || is_pinned(group, step))
		return 0;
	return zd_err_set(err, step < group->committed_step ? ZEROD_E_STALE_VERSION : ZEROD_E_STATE,
	                  "step %llu of group '%s': the last commit is step %llu", (unsigned long long)step,
	                  group->name, (unsigned long long)group->committed_step);
}

static int check_range(const struct zd_args *args, const struct zd_unit *unit,
                       const struct zd_allocation *into, struct zd_err *err)
{
	uint64_t size = unit->numel * zerod_dtype_bytes(unit->dtype);
	uint64_t offset = args->u.unit_read.offset;
	uint64_t bytes = args->u.unit_read.map_bytes ? args->u.unit_read.map_bytes : args->u.unit_read.bytes;
	uint64_t at = args->u.unit_read.allocation_offset;
	if (bytes > size || offset > size - bytes)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "bytes %llu .. %llu of unit '%s', which has %llu bytes",
		                  (unsigned long long)offset, (unsigned long long)(offset + bytes),
		                  unit->name, (unsigned long long)size);
	if (into && (bytes > into->extent.bytes || at > into->extent.bytes - bytes))
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "%llu bytes at offset %llu of allocation '%s', which has %llu bytes",
		                  (unsigned long long)bytes, (unsigned long long)at, into->name,
		                  (unsigned long long)into->extent.bytes);
	return 0;
}

static void copied(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                   const struct zd_op_result *result)
{
	struct zd_request *req = op->owner;
	struct zd_unit *unit = req->u.unit_read.unit;
	struct zd_part *part = &unit->parts[op->aux / 4];
	enum zd_holder holder = op->aux % 4;
	zd_allocation_op_end(e, req->u.unit_read.into);
	if (holder == ZD_HOLDER_SAVE)
		zd_save_reader_done(e, part);
	else if (holder == ZD_HOLDER_SHADOW)
		zd_part_shadow_reader_done(e, part);
	else
		zd_part_reader_done(e, part);
	zd_unit_unref(e, unit);
	zd_request_op_done(e, op, status, error, result);
}

/* Returns the memory of the shard, with its shadow, or of the save. */
static const struct zd_extent *extent_of(const struct zd_part *part, enum zd_holder holder)
{
	return holder == ZD_HOLDER_SAVE ? &zd_save_of(part)->extent : &part->shard;
}

static void add_reader(struct zd_part *part, enum zd_holder holder)
{
	struct zd_save *save = zd_save_of(part);
	if (holder == ZD_HOLDER_SAVE)
		save->readers++;
	else if (holder == ZD_HOLDER_SHADOW)
		part->shadow_readers++;
	else
		part->readers++;
}

/* Copies the bytes from `at` to `end` of the unit, which are of one shard. */
static void copy(struct zd_engine *e, struct zd_request *req, struct zd_part *part, enum zd_holder holder,
                 uint64_t at, uint64_t end)
{
	struct zd_allocation *into = req->u.unit_read.into;
	const struct zd_extent *extent = extent_of(part, holder);
	uint64_t shard_bytes = zd_unit_shard_bytes(part->unit);
	struct zd_command command = {.kind = ZD_CMD_COPY,
	                             .device = zd_copy_device(extent->segment->device, into->device)};
	command.u.copy.src = zd_extent_location(extent);
	command.u.copy.src.offset += at % shard_bytes + (holder == ZD_HOLDER_SHADOW ? shard_bytes : 0);
	command.u.copy.src.bytes = end - at;
	command.u.copy.dst = zd_extent_location(&into->extent);
	command.u.copy.dst.offset += req->u.unit_read.into_offset + (at - req->u.unit_read.offset);
	command.u.copy.dst.bytes = end - at;
	command.u.copy.dst_device = into->device->index;
	add_reader(part, holder);
	part->unit->refs++;
	into->pending++;
	req->pending_ops++;
	zd_op_submit(e, part->unit->group->job, &command, copied, req, 4 * (uint64_t)part->rank + holder);
}

/* Rejects copies between the host memory of two devices' nodes: no processor makes them. */
static int check_nodes(const struct zd_part *part, enum zd_holder holder, const struct zd_allocation *into,
                       struct zd_err *err)
{
	const struct zd_device *from = extent_of(part, holder)->segment->device;
	if (!from->config.host_memory || !into->device->config.host_memory || from == into->device)
		return 0;
	return zd_err_set(
	        err, ZEROD_E_UNSUPPORTED,
	        "unit '%s' is in the host memory of device %u, and the allocation in that of device %u",
	        part->unit->name, from->index, into->device->index);
}

/* For each shard in the range: checks it, or copies from it. */
static int walk_shards(struct zd_engine *e, struct zd_request *req, bool copies, struct zd_err *err)
{
	const struct zd_unit *unit = req->u.unit_read.unit;
	uint64_t at = req->u.unit_read.offset, end = at + req->u.unit_read.bytes, stop;
	uint64_t shard_bytes = zd_unit_shard_bytes(unit);
	int status = 0;
	for (; at < end && status == 0; at = stop) {
		struct zd_part *part = part_of(unit, at / shard_bytes, req->device);
		enum zd_holder holder = ZD_HOLDER_NONE;
		zd_assert(part != NULL); /* the group does not span daemons */
		stop = zd_min_u64(end, (at / shard_bytes + 1) * shard_bytes);
		status = locate(part, req->u.unit_read.step, &holder, err);
		if (status == 0)
			status = check_nodes(part, holder, req->u.unit_read.into, err);
		if (status == 0 && copies)
			copy(e, req, part, holder, at, stop);
	}
	return status;
}

/* Identifies what is at a part's place. */
static uint64_t place_serial(const struct zd_part *part, enum zd_holder holder)
{
	return 4 * (uint64_t)part->shard.block->given + holder;
}

/* Returns the place of the first bytes of the range, unless they are in a save, or in memory of another
 * device. With `mapped`: checks that the place has not changed. */
static int map(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	const struct zd_unit *unit = req->u.unit_read.unit;
	uint64_t shard_bytes = zd_unit_shard_bytes(unit), mapped = req->u.unit_read.mapped;
	uint64_t index = req->u.unit_read.offset / shard_bytes, at = req->u.unit_read.offset % shard_bytes;
	struct zd_part *part = part_of(unit, index, req->device);
	enum zd_holder holder = ZD_HOLDER_NONE;
	zd_assert(part != NULL); /* the group does not span daemons */
	int status = check_step(unit->group, req->u.unit_read.step, err);
	if (status == 0)
		status = locate(part, req->u.unit_read.step, &holder, err);
	if (status != 0 && !(mapped && status == ZEROD_E_BUSY))
		return status;
	bool is_there = status == 0 && holder != ZD_HOLDER_SAVE && part->shard.segment->device == req->device;
	if (mapped && !(is_there && place_serial(part, holder) == mapped))
		return zd_err_set(err, ZEROD_E_STALE_VERSION,
		                  "unit '%s': an update of rank %u's shard has begun since, or it has moved",
		                  unit->name, zd_world_rank(zd_part_member(part)));
	if (mapped) {
		req->u.unit_read.bytes = req->u.unit_read.map_bytes; /* counted as if they were copied */
		return 0;
	}
	Zd__UnitReadReply *reply = &e->reply.u.unit_read;
	reply->mapped_bytes = zd_min_u64(req->u.unit_read.map_bytes, shard_bytes - at);
	if (!is_there)
		return 0;
	reply->mapped = place_serial(part, holder);
	e->reply.place = zd_extent_location(&part->shard);
	e->reply.place.offset += at + (holder == ZD_HOLDER_SHADOW ? shard_bytes : 0);
	e->reply.place.bytes = reply->mapped_bytes;
	req->session->reads.segment = e->reply.place.segment;
	return 0;
}

static int check_map(const struct zd_engine *e, const struct zd_group *group, const struct zd_args *args,
                     const struct zd_session *session, struct zd_err *err)
{
	uint64_t bytes = args->u.unit_read.map_bytes;
	if (bytes == 0 ? args->u.unit_read.mapped : args->u.unit_read.bytes)
		return zd_err_set(err, ZEROD_E_INVALID, "a unit_read either copies bytes or maps them");
	if (bytes > 0 && group->job->owner->uid != session->uid)
		return zd_err_set(err, ZEROD_E_PERMISSION,
		                  "job '%s' is of uid %u: others copy its units, and do not map them",
		                  group->job->name, group->job->owner->uid);
	return bytes > 0 ? zd_session_check_device(e, session, args->u.unit_read.device, err) : 0;
}

static int read_find(struct zd_engine *e, struct zd_request *req, const struct zd_args *args,
                     struct zd_err *err)
{
	struct zd_session *session = req->session;
	int status = zd_session_check_poisoned(session, err);
	if (status != 0)
		return status;
	zd_endings_finish_for(e, session);
	const struct zd_group *group = find_group(e, session, args->u.unit_read.group);
	if (!group || group->over)
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "no group %llu",
		                  ZD_ID_NUMBER(args->u.unit_read.group));
	status = check_daemons(group, err);
	if (status == 0)
		status = check_map(e, group, args, session, err);
	if (status == 0 && args->u.unit_read.bytes > 0)
		status = zd_allocation_find(e, session, args->u.unit_read.allocation, &req->u.unit_read.into,
		                            err);
	if (status == 0)
		status = check_step(group, args->u.unit_read.step, err);
	if (status != 0)
		return status;
	req->u.unit_read.unit = zd_unit_find_name(group, args->u.unit_read.unit, false);
	if (!req->u.unit_read.unit)
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "group '%s' has no unit '%.64s'", group->name,
		                  args->u.unit_read.unit);
	return check_range(args, req->u.unit_read.unit, req->u.unit_read.into, err);
}

/* Counts a read that has ended. If the pin's deadline has passed, the error's text says it as well. */
static void note_read(struct zd_engine *e, const struct zd_request *req, uint64_t group, int status,
                      struct zd_err *err)
{
	const struct zd_session *session = req->session;
	if (status == ZEROD_E_STALE_VERSION)
		zd_count(e, ZD_COUNT_READS_STALE, 1);
	if (status == ZEROD_E_STALE_VERSION && session->pinned.expired && session->pinned.group == group &&
	    session->pinned.step == req->u.unit_read.step) {
		struct zd_err stale = *err;
		status = zd_err_set(err, status, "%s; the deadline of its pin has passed", stale.text);
	}
	if (status != 0 || req->u.unit_read.bytes == 0)
		return;
	zd_count(e, ZD_COUNT_READS_COPIED, 1);
	zd_count(e, ZD_COUNT_READ_BYTES, req->u.unit_read.bytes);
	req->session->reads.group = req->u.unit_read.unit->group->id;
	req->session->reads.step = req->u.unit_read.step;
	req->session->reads.bytes += req->u.unit_read.bytes;
}

static int unit_read_begin(struct zd_engine *e, struct zd_request *req, const struct zd_args *args,
                           struct zd_err *err)
{
	req->u.unit_read.step = args->u.unit_read.step;
	int status = read_find(e, req, args, err);
	if (status != 0) {
		note_read(e, req, args->u.unit_read.group, status, err);
		return status;
	}
	req->device = req->u.unit_read.into
	                      ? req->u.unit_read.into->device
	                      : &e->devices[args->u.unit_read.map_bytes ? args->u.unit_read.device : 0];
	req->u.unit_read.offset = args->u.unit_read.offset;
	req->u.unit_read.bytes = args->u.unit_read.bytes;
	req->u.unit_read.into_offset = args->u.unit_read.allocation_offset;
	req->u.unit_read.map_bytes = args->u.unit_read.map_bytes;
	req->u.unit_read.mapped = args->u.unit_read.mapped;
	req->u.unit_read.unit->refs++;
	if (req->u.unit_read.into)
		req->u.unit_read.into->pending++; /* the allocation can be freed meanwhile */
	return 0;
}

static void unit_read_cancel(struct zd_engine *e, struct zd_request *req)
{
	zd_unit_unref(e, req->u.unit_read.unit);
	if (req->u.unit_read.into)
		zd_allocation_op_end(e, req->u.unit_read.into);
}

/* Starts the copies. The request must be queued, because only then it has been admitted. */
static int unit_read_copy(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	int status = check_step(req->u.unit_read.unit->group, req->u.unit_read.step, err);
	if (status == 0 && !req->queued && req->u.unit_read.bytes > 0) {
		req->goes_on = true;
		return zd_wait_for(req, ZD_WAIT_READ, 0, 0, 0);
	}
	if (status == 0)
		status = walk_shards(e, req, false, err);
	if (status != 0)
		return status;
	req->u.unit_read.copied = true;
	zd_request_drop_deadline(e, req);
	return walk_shards(e, req, true, err);
}

static int unit_read_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	const struct zd_unit *unit = req->u.unit_read.unit;
	int status = req->u.unit_read.copied      ? 0
	             : req->u.unit_read.map_bytes ? map(e, req, err)
	                                          : unit_read_copy(e, req, err);
	if (status == 0 && req->pending_ops > 0)
		status = zd_wait_for(req, ZD_WAIT_READ, 0, 0, 0);
	if (status == ZD_WAIT)
		req->wait.unit = unit;
	if (status == 0) {
		e->reply.u.unit_read.dtype = unit->dtype;
		e->reply.u.unit_read.numel = unit->numel;
	}
	if (status != ZD_WAIT) {
		note_read(e, req, unit->group->id, status, err);
		unit_read_cancel(e, req);
	}
	return status;
}

const struct zd_request_type zd_req_commit_wait = {
        .name = "commit_wait", .begin = commit_wait_begin, .attempt = commit_wait_attempt};
const struct zd_request_type zd_req_unit_read = {.name = "unit_read",
                                                 .begin = unit_read_begin,
                                                 .attempt = unit_read_attempt,
                                                 .cancel = unit_read_cancel};
