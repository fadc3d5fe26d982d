/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place.c - moves of units between their ranks' devices and host memory.
 *
 * Every rank of the group sends unit_place. The request that completes the round checks the unit on all ranks
 * at once. Then the parts are MOVING: no gather reads the shards and no update starts. Each rank's request
 * allocates the rank's new shard. When all ranks have theirs and no operation reads the former shards any
 * more, each shard is copied with its shadow. The end of the last copy changes the unit on all ranks in one
 * event: addresses, charges, the place in the target, and the journal's records.
 *
 * After any error before that the shards of all ranks remain in their place, and every rank that has called
 * receives the error. If a rank leaves, or its deadline passes, before the copies have begun, the parts are
 * open again, and the other ranks wait for its next call. After the first copy requests have no deadline. If
 * a rank leaves then, the move fails: the new shards are uncharged at once, and freed after the last copy.
 *
 * Copies count as `readers` of the shards, which therefore outlive a rank that leaves.
 *
 * Gathered buffers remain, with their leases. A buffer in place cannot remain, because its own part is the
 * shard: a lease of one prevents the move.
 */
#include "core/engine/events.h"
#include "core/gather/buffer.h"
#include "core/gather/layout.h"
#include "core/gather/place.h"
#include "core/gather/shadow.h"

#include <stdlib.h>

/* ---- Moves --------------------------------------------------------------------------------------------- */

static void move_new(struct zd_unit *unit)
{
	uint32_t world = unit->group->local_world_size;
	struct zd_move *move = zd_calloc(1, sizeof(*move));
	move->unit = unit;
	move->requests = zd_calloc(world, sizeof(struct zd_request *));
	move->called = zd_calloc(world, sizeof(bool));
	move->shards = zd_calloc(world, sizeof(*move->shards));
	unit->refs++;
	unit->move = move;
}

static void move_free(struct zd_engine *e, struct zd_move *move)
{
	struct zd_unit *unit = move->unit;
	unit->move = NULL;
	free(move->requests);
	free(move->called);
	free(move->shards);
	free(move);
	zd_unit_unref(e, unit);
}

static void free_shards(struct zd_engine *e, struct zd_move *move)
{
	const struct zd_group *group = move->unit->group;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_extent *shard = &move->shards[rank];
		if (!shard->block)
			continue;
		if (move->doomed)
			shard->segment->device->quarantine_bytes -= shard->bytes;
		else
			zd_uncharge(e, group->job, shard->segment->device, ZD_CHARGE_SHARD, shard->bytes);
		zd_pool_free(e, shard);
	}
}

/* Lets gathers and updates of the unit proceed. Parts of ranks that have left are no longer MOVING. */
static void open_parts(struct zd_engine *e, struct zd_unit *unit)
{
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		if (unit->parts[rank].state == ZD_PART_MOVING)
			zd_part_move(&unit->parts[rank], ZD_PART_IDLE);
	}
	zd_dirty_group(e, unit->group);
}

/* Ends the move for all ranks: complete, or with a status. */
static void move_end(struct zd_engine *e, struct zd_move *move, int status, const char *text)
{
	struct zd_unit *unit = move->unit;
	free_shards(e, move);
	open_parts(e, unit);
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		struct zd_request *req = move->requests[rank];
		if (!req)
			continue;
		req->u.place.move = NULL;
		req->u.place.complete = status == 0;
		if (status != 0)
			zd_request_fail(req, status, text);
	}
	move_free(e, move);
}

/* Does the same with the error of one rank, for the attempt of its request. */
static int move_fail(struct zd_engine *e, struct zd_move *move, int status, struct zd_err *failure,
                     struct zd_err *err)
{
	move_end(e, move, status, failure->text);
	return zd_err_set(err, status, "%s", failure->text);
}

/* ---- The change ---------------------------------------------------------------------------------------- */

/* Drops a buffer in place without leases. A copy remains, even if the part is gathered in place now. */
static void replace_shard(struct zd_engine *e, struct zd_move *move, struct zd_part *part)
{
	struct zd_buffer *buffer = part->buffer;
	struct zd_extent former = part->shard;
	if (buffer && zd_buffer_is_in_place(buffer))
		zd_buffer_drop(e, buffer);
	part->shard = move->shards[part->rank];
	move->shards[part->rank] = (struct zd_extent){0};
	zd_uncharge(e, part->unit->group->job, former.segment->device, ZD_CHARGE_SHARD, former.bytes);
	zd_pool_free(e, &former);
}

static void change_place(struct zd_engine *e, struct zd_move *move)
{
	struct zd_unit *unit = move->unit;
	uint32_t world = unit->group->local_world_size;
	for (uint32_t rank = 0; rank < world; rank++)
		replace_shard(e, move, &unit->parts[rank]);
	zd_layout_move(unit, !unit->on_host);
	unit->placed = true;
	zd_journal_unit(unit);
	for (uint32_t rank = 0; rank < world; rank++)
		zd_journal_part(&unit->parts[rank]);
}

/* Returns 0 if no rank has left since the copies began. */
static int check_ranks(const struct zd_move *move, struct zd_err *err)
{
	const struct zd_group *group = move->unit->group;
	int status = zd_group_check(group, err);
	if (status != 0 || !move->doomed)
		return status;
	return zd_group_tell(group, move->generation, err); /* all have joined again */
}

/* ---- Copies -------------------------------------------------------------------------------------------- */

static void copied(struct zd_engine *e, struct zd_op *op)
{
	struct zd_move *move = op->owner;
	struct zd_part *part = &move->unit->parts[op->aux];
	if (op->status != 0 && move->failure.status == 0)
		zd_err_set(&move->failure, op->status, "unit '%s': moving rank %u's shard: %s",
		           move->unit->name, zd_world_rank(zd_part_member(part)), op->error);
	zd_part_reader_done(e, part);
	if (--move->ops > 0)
		return;
	struct zd_err failure = move->failure;
	int status = failure.status ? failure.status : check_ranks(move, &failure);
	if (status == 0)
		change_place(e, move);
	move_end(e, move, status, failure.text);
}

static void copy(struct zd_engine *e, struct zd_move *move, struct zd_part *part)
{
	const struct zd_extent *from = &part->shard, *to = &move->shards[part->rank];
	const struct zd_device *to_device = to->segment->device;
	struct zd_command command = {.kind = ZD_CMD_COPY,
	                             .device = zd_copy_device(from->segment->device, to_device)};
	command.u.copy.src = zd_extent_location(from);
	command.u.copy.dst = zd_extent_location(to);
	command.u.copy.dst_device = to_device->index;
	move->ops++;
	part->readers++;
	zd_op_submit(e, move->unit->group->job, &command, copied, move, part->rank);
}

static void begin_copies(struct zd_engine *e, struct zd_move *move)
{
	struct zd_unit *unit = move->unit;
	uint32_t world = unit->group->local_world_size;
	move->state = ZD_MOVE_COPYING;
	move->generation = unit->group->generation;
	for (uint32_t rank = 0; rank < world; rank++) {
		struct zd_part *part = &unit->parts[rank];
		zd_request_drop_deadline(e, move->requests[rank]);
		copy(e, move, part);
	}
	zd_dirty_group(e, unit->group); /* the reasons of the ranks' waits have changed */
}

static void doom(struct zd_engine *e, struct zd_move *move)
{
	const struct zd_group *group = move->unit->group;
	for (uint32_t rank = 0; rank < group->local_world_size && !move->doomed; rank++) {
		const struct zd_extent *shard = &move->shards[rank];
		zd_uncharge(e, group->job, shard->segment->device, ZD_CHARGE_SHARD, shard->bytes);
		shard->segment->device->quarantine_bytes += shard->bytes;
	}
	move->doomed = true;
}

/* ---- Checks, when all ranks have called ---------------------------------------------------------------- */

static const char *place_name(bool on_host)
{
	return on_host ? "the host" : "its device";
}

static int check_flags(const struct zd_move *move, struct zd_err *err)
{
	const struct zd_request *first = move->requests[0];
	for (uint32_t rank = 1; rank < move->unit->group->local_world_size; rank++) {
		const struct zd_request *req = move->requests[rank];
		if (req->u.place.on_host != first->u.place.on_host)
			return zd_err_set(err, ZEROD_E_MISMATCH,
			                  "unit '%s': rank %u places it on %s; rank %u says on %s",
			                  move->unit->name, zd_world_rank(first->member),
			                  place_name(first->u.place.on_host), zd_world_rank(req->member),
			                  place_name(req->u.place.on_host));
	}
	return 0;
}

static int check_part(const struct zd_engine *e, const struct zd_part *part, struct zd_err *err)
{
	const struct zd_member *member = zd_part_member(part);
	const struct zd_unit *unit = part->unit;
	int status = zd_unit_check_place(member, unit->name, !unit->on_host, err);
	if (status != 0)
		return status;
	if (part->state != ZD_PART_IDLE)
		return zd_err_set(err, ZEROD_E_STATE, "unit '%s' is %s on rank %u; unit_place needs it IDLE",
		                  unit->name, zd_sm_name(&zd_sm_part, part->state), zd_world_rank(member));
	if (part->buffer && zd_buffer_is_in_place(part->buffer) && !TAILQ_EMPTY(&part->buffer->leases)) {
		char tags[128];
		zd_buffer_tags(part->buffer, tags, sizeof(tags));
		return zd_err_set(err, ZEROD_E_BUSY,
		                  "unit '%s' is held on rank %u by %s; its gathered buffer is in place: the "
		                  "shard cannot "
		                  "move under a lease",
		                  unit->name, zd_world_rank(member), tags);
	}
	/* A unit that was always frozen has no sums. */
	return unit->targeted || part->untargeted ? e->events->check_window_closed(member, unit, err) : 0;
}

static int check_move(const struct zd_engine *e, const struct zd_move *move, struct zd_err *err)
{
	const struct zd_unit *unit = move->unit;
	int status = 0;
	for (uint32_t rank = 0; rank < unit->group->local_world_size && status == 0; rank++)
		status = check_part(e, &unit->parts[rank], err);
	return status == 0 ? zd_layout_check_move(unit, !unit->on_host, err) : status;
}

/* ---- The request --------------------------------------------------------------------------------------- */

static int place_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_part *part;
	int status = zd_part_find(e, req->session, req->args->u.unit_place.unit, &part, err);
	if (status == 0)
		status = zd_session_check_poisoned(req->session, err);
	if (status == 0)
		status = zd_group_check(part->unit->group, err);
	if (status == 0 && part->unit->group->cluster) /* rejects moves to the device as well */
		status = zd_unit_check_place(zd_part_member(part), part->unit->name, true, err);
	if (status != 0)
		return status;
	part->users++;
	zd_request_set_member(req, zd_part_member(part));
	req->u.place.part = part;
	req->u.place.on_host = req->args->u.unit_place.on_host;
	return 0;
}

/* If the copies have not begun, the other ranks' requests wait for this rank's next call, until their
 * deadlines or the group's failure. */
static void withdraw(struct zd_engine *e, struct zd_request *req)
{
	struct zd_move *move = req->u.place.move;
	move->requests[req->u.place.part->rank] = NULL;
	move->nrequests--;
	req->u.place.move = NULL;
	if (move->state == ZD_MOVE_COPYING) {
		doom(e, move);
		return;
	}
	free_shards(e, move);
	open_parts(e, move->unit);
	move->state = ZD_MOVE_CALLED;
	if (move->nrequests == 0)
		move_free(e, move);
}

/* `failed`: the segment for its shard could not be created. */
static void place_cancel(struct zd_engine *e, struct zd_request *req)
{
	struct zd_move *move = req->u.place.move;
	struct zd_part *part = req->u.place.part;
	struct zd_err failure = ZD_ERR_NONE;
	part->users--;
	if (!move)
		return;
	if (!req->failed) {
		withdraw(e, req);
		return;
	}
	zd_err_set(&failure, req->failed, "unit '%s': rank %u: %s", part->unit->name,
	           zd_world_rank(req->member), req->failed_text ? req->failed_text : "");
	move_end(e, move, req->failed, failure.text);
}

static int wait_for(struct zd_request *req, enum zd_wait_kind kind, uint32_t rank, uint64_t a, uint64_t b)
{
	return zd_wait_for_unit(req, req->u.place.part->unit, kind, rank, a, b);
}

static int join(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_part *part = req->u.place.part;
	struct zd_unit *unit = part->unit;
	if (unit->move && unit->move->requests[part->rank])
		return zd_err_set(err, ZEROD_E_STATE, "unit '%s': rank %u has called unit_place already",
		                  unit->name, zd_world_rank(req->member));
	if (unit->move && unit->move->state == ZD_MOVE_COPYING) /* a move that its rank has left */
		return wait_for(req, ZD_WAIT_MOVE, 0, 0, 0);
	if (!unit->move)
		move_new(unit);
	unit->move->requests[part->rank] = req;
	unit->move->called[part->rank] = true;
	unit->move->nrequests++;
	req->u.place.move = unit->move;
	zd_dirty_group(e, unit->group); /* the others wait for another rank now */
	return 0;
}

/* Returns a rank that has never called. If there is none, returns a rank whose deadline has passed since. */
static uint32_t first_missing(const struct zd_move *move)
{
	uint32_t rank, world = move->unit->group->local_world_size;
	for (rank = 0; rank < world && move->called[rank]; rank++)
		;
	if (rank < world)
		return rank;
	for (rank = 0; move->requests[rank]; rank++)
		;
	return rank;
}

static void close_parts(struct zd_engine *e, struct zd_move *move)
{
	struct zd_unit *unit = move->unit;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++)
		zd_part_move(&unit->parts[rank], ZD_PART_MOVING);
	move->state = ZD_MOVE_CLOSED;
	zd_dirty_group(e, unit->group); /* each rank's request allocates its shard */
}

static int take_shard(struct zd_engine *e, struct zd_request *req, struct zd_move *move, struct zd_err *err)
{
	struct zd_part *part = req->u.place.part;
	struct zd_device *device = req->member->device, *memory = move->unit->on_host ? device : device->host;
	struct zd_job *job = move->unit->group->job;
	struct zd_extent *shard = &move->shards[part->rank];
	uint64_t bytes = zd_unit_part_bytes(move->unit);
	int status = zd_quota_check(e, job, bytes, err);
	if (status == 0)
		status = zd_pool_alloc(e, req, job, memory, zd_unit_purpose(move->unit, !move->unit->on_host),
		                       bytes, ZD_BLOCK_MIN_ALIGN, shard, err);
	if (status != 0)
		return status;
	zd_extent_own(e, shard, ZD_BLOCK_PART, part, zd_part_use(part));
	zd_charge(e, job, memory, ZD_CHARGE_SHARD, shard->bytes);
	return 0;
}

/* Waits until every rank has its new shard, and no operation reads the former ones. */
static int check_ready(struct zd_request *req, const struct zd_move *move)
{
	const struct zd_unit *unit = move->unit;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		if (!move->shards[rank].block)
			return wait_for(req, ZD_WAIT_MOVE, rank, 1, 0);
	}
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		const struct zd_part *part = &unit->parts[rank];
		if (zd_shadow_is_owed(part))
			return wait_for(req, ZD_WAIT_RESTORE, rank, 0, 0);
		if (part->readers + part->shadow_readers > 0)
			return wait_for(req, ZD_WAIT_READERS, rank, part->readers + part->shadow_readers,
			                part->viewers);
	}
	return 0;
}

/* Returns 0 if the move has ended, and the request is complete. */
static int advance(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_move *move = req->u.place.move;
	struct zd_err failure = ZD_ERR_NONE;
	int status = 0;
	zd_assert(move != NULL); /* it has joined */
	if (move->nrequests < move->unit->group->local_world_size)
		return wait_for(req, ZD_WAIT_PLACERS, first_missing(move), 0, 0);
	if (move->state == ZD_MOVE_CALLED) {
		status = check_flags(move, &failure);
		if (status == 0 && req->u.place.on_host == move->unit->on_host) {
			move_end(e, move, 0, NULL);
			return 0;
		}
		if (status == 0)
			status = check_move(e, move, &failure);
		if (status != 0)
			return move_fail(e, move, status, &failure, err);
		close_parts(e, move);
	}
	if (!move->shards[req->member->rank].block) {
		struct zd_err cause = ZD_ERR_NONE;
		status = take_shard(e, req, move, &cause);
		if (status == ZD_WAIT)
			return status;
		if (status != 0) {
			zd_err_set(&failure, status, "unit '%s': rank %u: %s", move->unit->name,
			           zd_world_rank(req->member), cause.text);
			return move_fail(e, move, status, &failure, err);
		}
		zd_dirty_group(e, move->unit->group); /* the reasons of the other ranks' waits have changed */
	}
	status = check_ready(req, move);
	if (status != 0)
		return status;
	begin_copies(e, move);
	return wait_for(req, ZD_WAIT_MOVE, 0, 0, 0);
}

static int place_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_part *part = req->u.place.part;
	const struct zd_move *move = req->u.place.move;
	int status = 0;
	if (move && move->state == ZD_MOVE_COPYING)
		return wait_for(req, ZD_WAIT_MOVE, 0, 0, 0);
	if (!req->u.place.complete) {
		status = zd_member_check(req->member, err);
		if (status == 0 && part->unit->mismatch)
			status = zd_err_set(err, ZEROD_E_MISMATCH, "%s", part->unit->mismatch);
		if (status == 0 && !move)
			status = join(e, req, err);
		if (status == 0)
			status = advance(e, req, err);
	}
	if (status == ZD_WAIT)
		return status;
	if (status != 0) {
		place_cancel(e, req);
		return status;
	}
	part->users--;
	e->reply.place = zd_part_location(part);
	e->reply.u.unit_place.target_offset_numel = part->unit->target_offset_numel;
	return 0;
}

const struct zd_request_type zd_req_unit_place = {
        .begin = place_begin, .attempt = place_attempt, .cancel = place_cancel};
