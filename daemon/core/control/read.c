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
 * (save.c). If none of them holds the step, it is read from the group's host copy (host_copy.c) or rejected
 * with STALE_VERSION. All reads that name one step are therefore of one commit. A session that has waited for
 * a host copy reads the step there from the start, and holds up no update.
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

#include "base/text.h"
#include "core/control/control.h"
#include "core/gather/holder.h"
#include "core/gather/host_copy.h"
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

static int commit_wait_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_group *group;
	int status = find_named(e, req->session, req->args, &group, err);
	if (status == 0 && req->args->u.commit_wait.pin && req->args->u.commit_wait.saved)
		status = zd_err_set(err, ZEROD_E_INVALID, "a commit_wait for a host copy pins nothing");
	if (status != 0)
		return status;
	req->device = zd_commit_waits(e);
	req->u.commit_wait.group = group->id;
	if (req->session->reads.group != group->id)
		req->session->reads.step = 0; /* of another group */
	req->session->reads.group = group->id;
	req->u.commit_wait.after = req->args->u.commit_wait.after;
	req->u.commit_wait.pin = req->args->u.commit_wait.pin;
	req->u.commit_wait.saved = req->args->u.commit_wait.saved;
	req->u.commit_wait.pin_ms = req->args->u.commit_wait.pin_ms;
	if (req->u.commit_wait.pin || req->session->pinned.group == group->id)
		zd_unpin(e, &req->session->pinned);
	if (req->session->saved.group == group->id)
		req->session->saved.group = 0;
	return 0;
}

static int commit_wait_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_group *group = find_group(e, req->session, req->u.commit_wait.group);
	uint64_t step = 0, after = req->u.commit_wait.after;
	bool saved = req->u.commit_wait.saved;
	int status = 0;
	if (group)
		step = !saved ? group->committed_step : group->saved ? group->saved->step : 0;
	if (!group || group->over)
		status = zd_err_set(err, ZEROD_E_NOT_FOUND, "the group has ended");
	else if (step <= after && group->state != ZD_GROUP_FORMING && !group->job->durable)
		status = zd_group_check(group, err);
	if (status == 0 && step <= after)
		return zd_wait_for(req, ZD_WAIT_NEXT, saved, after, group->id);
	if (status != 0)
		return status;
	if (req->u.commit_wait.pin)
		zd_pin_for(e, req->session, group, req->u.commit_wait.pin_ms);
	if (saved) {
		req->session->saved.group = group->id;
		req->session->saved.step = step;
	}
	e->reply.u.commit_wait.group = group->id;
	e->reply.u.commit_wait.step = step;
	e->reply.u.commit_wait.saved = saved;
	return 0;
}

/* ---- Reads --------------------------------------------------------------------------------------------- */

static uint64_t nrows(const struct zd_args *args)
{
	return args->u.unit_read.bytes > 0 && args->u.unit_read.rows > 0 ? args->u.unit_read.rows : 1;
}

/* One row if there are no gaps. */
static struct zd_rows rows_of(const struct zd_args *args)
{
	uint64_t bytes = args->u.unit_read.bytes, stride = args->u.unit_read.stride,
	         all = nrows(args) * bytes;
	return all > bytes && stride > bytes ? (struct zd_rows){bytes, stride} : (struct zd_rows){all, all};
}

static int check_range(const struct zd_args *args, const struct zd_unit *unit,
                       const struct zd_allocation *into, struct zd_err *err)
{
	uint64_t size = unit->numel * zerod_dtype_bytes(unit->dtype);
	uint64_t offset = args->u.unit_read.offset;
	uint64_t bytes = args->u.unit_read.map_bytes ? args->u.unit_read.map_bytes : args->u.unit_read.bytes;
	uint64_t at = args->u.unit_read.allocation_offset, rows = nrows(args);
	uint64_t stride = args->u.unit_read.stride;
	if (rows > 1 && stride < bytes)
		return zd_err_set(err, ZEROD_E_INVALID, "rows of %llu bytes that are %llu bytes apart",
		                  (unsigned long long)bytes, (unsigned long long)stride);
	if (rows > 1 &&
	    (bytes > size || offset > size - bytes || rows - 1 > (size - bytes - offset) / stride))
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "%llu rows of %llu bytes, %llu bytes apart, from byte %llu on, of unit "
		                  "'%s', which has %llu bytes",
		                  (unsigned long long)rows, (unsigned long long)bytes,
		                  (unsigned long long)stride, (unsigned long long)offset, unit->name,
		                  (unsigned long long)size);
	if (bytes > size || offset > size - bytes)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "bytes %llu .. %llu of unit '%s', which has %llu bytes",
		                  (unsigned long long)offset, (unsigned long long)(offset + bytes),
		                  unit->name, (unsigned long long)size);
	bytes *= rows;
	if (into && (bytes > into->extent.bytes || at > into->extent.bytes - bytes))
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "%llu bytes at offset %llu of allocation '%s', which has %llu bytes",
		                  (unsigned long long)bytes, (unsigned long long)at, into->name,
		                  (unsigned long long)into->extent.bytes);
	return 0;
}

static void copied(struct zd_engine *e, struct zd_op *op)
{
	struct zd_request *req = op->owner;
	struct zd_unit *unit = req->u.unit_read.unit;
	struct zd_part *part = &unit->parts[op->aux / 4];
	enum zd_holder holder = op->aux % 4;
	zd_allocation_op_end(e, req->u.unit_read.into);
	if (req->u.unit_read.from) {
		zd_host_copy_done(e, req->u.unit_read.from);
		zd_unit_unref(e, unit);
	} else {
		zd_holder_done(e, part, holder);
	}
	zd_request_op_done(e, op);
}

/* A part of a read that one command copies. */
struct piece {
	uint64_t at;          /* in the unit, and all is in one block of memory */
	uint64_t done, bytes; /* in the allocation, from the first byte that is read on */
	struct zd_rows rows;  /* bytes 0: a row, or a part of one */
};

/* Each block has `block_bytes` bytes of the unit. Rows that are further apart have a command each. */
static struct piece next_piece(const struct zd_request *req, uint64_t done, uint64_t block_bytes)
{
	struct zd_rows rows = req->u.unit_read.rows;
	uint64_t within = done % rows.bytes;
	struct piece piece = {.at = req->u.unit_read.offset + done / rows.bytes * rows.stride + within,
	                      .done = done};
	uint64_t left = block_bytes - piece.at % block_bytes;
	piece.bytes = zd_min_u64(rows.bytes - within, left);
	if (within > 0 || left < rows.bytes || rows.stride > ZD_MAX_ROWS_STRIDE_BYTES)
		return piece;
	piece.bytes = zd_min_u64(((left - rows.bytes) / rows.stride + 1) * rows.bytes,
	                         req->u.unit_read.bytes - done);
	if (piece.bytes > rows.bytes)
		piece.rows = rows;
	return piece;
}

/* Copies a piece, which starts at `src` in memory of the device `from`. */
static void submit(struct zd_engine *e, struct zd_request *req, struct zd_location src,
                   const struct zd_device *from, const struct piece *piece, uint64_t aux)
{
	struct zd_allocation *into = req->u.unit_read.into;
	struct zd_command command = {.kind = ZD_CMD_COPY, .device = zd_copy_device(from, into->device)};
	command.u.copy.src = src;
	command.u.copy.dst = zd_extent_location(&into->extent);
	command.u.copy.dst.offset += req->u.unit_read.into_offset + piece->done;
	command.u.copy.dst.bytes = piece->bytes;
	command.u.copy.dst_device = into->device->index;
	command.u.copy.rows = piece->rows;
	into->pending++;
	req->pending_ops++;
	zd_op_submit(e, req->u.unit_read.unit->group->job, &command, copied, req, aux);
}

static void copy(struct zd_engine *e, struct zd_request *req, struct zd_part *part, enum zd_holder holder,
                 const struct piece *piece)
{
	const struct zd_device *from = zd_holder_extent(part, holder)->segment->device;
	submit(e, req,
	       zd_holder_read(part, holder, piece->at % zd_unit_shard_bytes(part->unit),
	                      zd_rows_span(piece->rows, piece->bytes)),
	       from, piece, 4 * (uint64_t)part->rank + holder);
}

static bool reaches(const struct zd_device *from, const struct zd_allocation *into)
{
	return !into || !from->config.host_memory || !into->device->config.host_memory ||
	       from == into->device;
}

/* Rejects copies between the host memory of two devices' nodes: no processor makes them. */
static int check_nodes(const struct zd_unit *unit, const struct zd_device *from,
                       const struct zd_allocation *into, struct zd_err *err)
{
	if (reaches(from, into))
		return 0;
	return zd_err_set(
	        err, ZEROD_E_UNSUPPORTED,
	        "unit '%s' is in the host memory of device %u, and the allocation in that of device %u",
	        unit->name, from->index, into->device->index);
}

/* For each piece of the read: checks its shard, or copies it. */
static int walk_shards(struct zd_engine *e, struct zd_request *req, bool copies, struct zd_err *err)
{
	const struct zd_unit *unit = req->u.unit_read.unit;
	uint64_t shard_bytes = zd_unit_shard_bytes(unit);
	struct piece piece;
	int status = 0;
	for (uint64_t done = 0; done < req->u.unit_read.bytes && status == 0; done += piece.bytes) {
		piece = next_piece(req, done, shard_bytes);
		struct zd_part *part = zd_holder_part(unit, piece.at / shard_bytes, req->device);
		enum zd_holder holder = ZD_HOLDER_NONE;
		zd_assert(part != NULL); /* the group does not span daemons */
		status = zd_holder_locate(part, req->u.unit_read.step, &holder, err);
		if (status == 0)
			status = check_nodes(unit, zd_holder_extent(part, holder)->segment->device,
			                     req->u.unit_read.into, err);
		if (status == 0 && copies)
			copy(e, req, part, holder, &piece);
	}
	return status;
}

/* ---- Reads of host copies ------------------------------------------------------------------------------ */

/* Whether the session reads the step from its host copy although the parts may hold it, too. */
static bool prefers_copy(const struct zd_request *req)
{
	const struct zd_session *session = req->session;
	return session->saved.group == req->u.unit_read.unit->group->id &&
	       session->saved.step == req->u.unit_read.step;
}

/* Returns the unit in the host copy if it is to be read there, after this error of the parts; NULL: it is not
 * there. Then the error is more exact. */
static struct zd_copied_unit *find_copy(const struct zd_request *req, int *status, struct zd_err *err)
{
	const struct zd_unit *unit = req->u.unit_read.unit;
	uint64_t step = req->u.unit_read.step;
	bool is_held = *status == 0 || (*status != ZEROD_E_STALE_VERSION && *status != ZEROD_E_BUSY &&
	                                *status != ZEROD_E_TORN && *status != ZEROD_E_STATE);
	struct zd_copied_unit *from = is_held && !prefers_copy(req) ? NULL : zd_host_copy_find(unit, step);
	if (from && is_held && !reaches(from->extent.segment->device, req->u.unit_read.into))
		from = NULL;
	if (!from && !is_held && *status != ZEROD_E_BUSY && zd_host_copy_is_of(unit->group, step))
		*status = zd_err_set(err, ZEROD_E_STALE_VERSION,
		                     "unit '%s' is not in the host copy of step %llu: %s", unit->name,
		                     (unsigned long long)step,
		                     unit->unsaved ? "it was registered with ZEROD_UNIT_UNSAVED"
		                                   : "it was not published before, or registered anew since");
	return from;
}

static int copy_from(struct zd_engine *e, struct zd_request *req, const struct zd_copied_unit *from,
                     struct zd_err *err)
{
	const struct zd_device *device = from->extent.segment->device;
	struct zd_unit *unit = req->u.unit_read.unit;
	struct piece piece;
	int status = check_nodes(unit, device, req->u.unit_read.into, err);
	if (status != 0)
		return status;
	req->u.unit_read.from = from->copy;
	for (uint64_t done = 0; done < req->u.unit_read.bytes; done += piece.bytes) {
		piece = next_piece(req, done, unit->numel * zerod_dtype_bytes(unit->dtype));
		struct zd_location src = zd_extent_location(&from->extent);
		src.offset += piece.at;
		src.bytes = zd_rows_span(piece.rows, piece.bytes);
		from->copy->copies++;
		unit->refs++;
		submit(e, req, src, device, &piece, 0);
	}
	return 0;
}

/* ---- Mappings ------------------------------------------------------------------------------------------ */

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
	struct zd_part *part = zd_holder_part(unit, index, req->device);
	enum zd_holder holder = ZD_HOLDER_NONE;
	zd_assert(part != NULL); /* the group does not span daemons */
	int status = zd_holder_check_step(unit->group, req->u.unit_read.step, err);
	if (status == 0)
		status = zd_holder_locate(part, req->u.unit_read.step, &holder, err);
	if (!mapped && find_copy(req, &status, err)) {
		e->reply.u.unit_read.mapped_bytes = req->u.unit_read.map_bytes;
		return 0;
	}
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
	if (bytes == 0 ? args->u.unit_read.mapped : args->u.unit_read.bytes || args->u.unit_read.rows)
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
	if (status == 0 && !zd_host_copy_is_of(group, args->u.unit_read.step))
		status = zd_holder_check_step(group, args->u.unit_read.step, err);
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

static int unit_read_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	req->u.unit_read.step = req->args->u.unit_read.step;
	int status = read_find(e, req, req->args, err);
	if (status != 0) {
		note_read(e, req, req->args->u.unit_read.group, status, err);
		return status;
	}
	req->device =
	        req->u.unit_read.into
	                ? req->u.unit_read.into->device
	                : &e->devices[req->args->u.unit_read.map_bytes ? req->args->u.unit_read.device : 0];
	req->u.unit_read.offset = req->args->u.unit_read.offset;
	req->u.unit_read.bytes = nrows(req->args) * req->args->u.unit_read.bytes;
	req->u.unit_read.rows = rows_of(req->args);
	req->u.unit_read.into_offset = req->args->u.unit_read.allocation_offset;
	req->u.unit_read.map_bytes = req->args->u.unit_read.map_bytes;
	req->u.unit_read.mapped = req->args->u.unit_read.mapped;
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
	int status = zd_holder_check_step(req->u.unit_read.unit->group, req->u.unit_read.step, err);
	if (status == 0)
		status = walk_shards(e, req, false, err);
	const struct zd_copied_unit *from = find_copy(req, &status, err);
	if (status != 0 && !from)
		return status;
	if (req->u.unit_read.bytes == 0)
		return 0;
	if (!req->queued) {
		req->goes_on = true;
		return zd_wait_for(req, ZD_WAIT_READ, 0, 0, 0);
	}
	status = from ? copy_from(e, req, from, err) : walk_shards(e, req, true, err);
	if (status == 0) {
		req->u.unit_read.copied = true;
		zd_request_drop_deadline(e, req);
	}
	return status;
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
		e->reply.u.unit_read.copied_bytes = req->u.unit_read.copied ? req->u.unit_read.bytes : 0;
	}
	if (status != ZD_WAIT) {
		note_read(e, req, unit->group->id, status, err);
		unit_read_cancel(e, req);
	}
	return status;
}

const struct zd_request_type zd_req_commit_wait = {.begin = commit_wait_begin,
                                                   .attempt = commit_wait_attempt};
const struct zd_request_type zd_req_unit_read = {
        .begin = unit_read_begin, .attempt = unit_read_attempt, .cancel = unit_read_cancel};
