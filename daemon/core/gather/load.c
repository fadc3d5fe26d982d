/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - loads of units: copies an allocation of one rank into the shards of all ranks.
 *
 * Every rank of the group sends unit_load for a unit under update. Exactly one rank names an allocation of
 * its session, which has the unit's elements. When all ranks have sent the request and the writers of the
 * allocation have passed, each rank's slice is copied from the allocation into its shard. All requests
 * receive their replies when the last copy has ended.
 *
 * A part is LOADING from its rank's request until the load has ended for that rank. Meanwhile it can be
 * neither published nor unregistered. Copies count as `readers` of the shard, which therefore outlives a rank
 * that leaves. After the first copy requests have no deadline: the copies always end, and no caller may
 * continue while they write its shard.
 *
 * The request owns the allocation, which is dropped when the request ends, with any status. The memory is
 * freed when the allocation's writers and the copies have ended.
 */
#include "core/gather/load.h"
#include "core/gather/shadow.h"
#include "core/memory/allocation.h"

static bool is_copying(const struct zd_load *load)
{
	return load->source != NULL;
}

/* ---- The allocation ------------------------------------------------------------------------------------ */

static void source_written(struct zd_engine *e, struct zd_op *op)
{
	struct zd_allocation *source = op->owner;
	if (source->loader)
		zd_dirty(e, source->loader->device);
	if (op->status != 0 && source->loader)
		zd_request_fail(source->loader, op->status, op->error);
	zd_allocation_op_end(e, source);
}

/* Takes the allocation from its session's client. Its memory remains until its writers have passed. */
static int source_take(struct zd_engine *e, struct zd_request *req, const struct zd_args *args,
                       struct zd_allocation **out, struct zd_err *err)
{
	struct zd_allocation *source;
	if (args->u.unit_load.allocation == 0)
		return 0;
	int status = zd_allocation_find(e, req->session, args->u.unit_load.allocation, &source, err);
	if (status == 0 && source->durable)
		status = zd_err_set(err, ZEROD_E_INVALID, "allocation '%s' is durable", source->name);
	if (status != 0)
		return status;
	source->loader = req;
	if (zd_fences_watch(e, req->session, source->job, source->device->index, &args->fences,
	                    source_written, source, 0))
		source->pending++;
	*out = source;
	return 0;
}

static void source_drop(struct zd_engine *e, struct zd_allocation *source)
{
	if (!source)
		return;
	source->loader = NULL;
	zd_allocation_drop(e, source);
}

/* ---- Loads --------------------------------------------------------------------------------------------- */

static void load_new(struct zd_unit *unit)
{
	struct zd_load *load = zd_calloc(1, sizeof(*load));
	load->unit = unit;
	load->requests = zd_calloc(unit->group->local_world_size, sizeof(struct zd_request *));
	load->called = zd_calloc(unit->group->local_world_size, sizeof(bool));
	unit->refs++;
	unit->load = load;
}

static void load_free(struct zd_engine *e, struct zd_load *load)
{
	struct zd_unit *unit = load->unit;
	unit->load = NULL;
	free(load->requests);
	free(load->called);
	free(load);
	zd_unit_unref(e, unit);
}

/* Returns the part to its rank for writing. If the rank has reset its session meanwhile, restores it
 * instead. */
static void part_leave(struct zd_engine *e, struct zd_part *part)
{
	zd_part_move(part, ZD_PART_UPDATING);
	if (!zd_shadow_is_owed(part) || zd_part_member(part)->set_back)
		return;
	zd_part_move(part, ZD_PART_IDLE);
	zd_shadow_try(e, part);
}

/* Ends the load for all ranks: complete, or with a status. */
static void load_end(struct zd_engine *e, struct zd_load *load, int status, const char *text)
{
	struct zd_unit *unit = load->unit;
	struct zd_group *group = unit->group;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_request *req = load->requests[rank];
		if (unit->parts[rank].state == ZD_PART_LOADING)
			part_leave(e, &unit->parts[rank]);
		if (!req)
			continue;
		req->u.load.load = NULL;
		req->u.load.complete = status == 0;
		if (status != 0)
			zd_request_fail(req, status, text);
	}
	zd_dirty_group(e, group);
	load_free(e, load);
}

static int load_find_source(const struct zd_load *load, struct zd_request **found, struct zd_err *err)
{
	const struct zd_unit *unit = load->unit;
	*found = NULL;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		struct zd_request *req = load->requests[rank];
		if (!req->u.load.source)
			continue;
		if (*found)
			return zd_err_set(err, ZEROD_E_MISMATCH,
			                  "unit '%s': ranks %u and %u both give data to load", unit->name,
			                  zd_world_rank((*found)->member), zd_world_rank(req->member));
		*found = req;
	}
	if (!*found)
		return zd_err_set(err, ZEROD_E_MISMATCH,
		                  "unit '%s': none of the ranks %u .. %u gives data to load", unit->name,
		                  unit->group->first_rank,
		                  unit->group->first_rank + unit->group->local_world_size - 1);
	return 0;
}

static void copied(struct zd_engine *e, struct zd_op *op)
{
	struct zd_load *load = op->owner;
	struct zd_part *part = &load->unit->parts[op->aux];
	if (op->status != 0 && load->failure.status == 0)
		zd_err_set(&load->failure, op->status, "unit '%s': copying rank %u's slice: %s",
		           load->unit->name, zd_world_rank(zd_part_member(part)), op->error);
	zd_allocation_op_end(e, load->source);
	zd_part_reader_done(e, part);
	if (--load->ops == 0)
		load_end(e, load, load->failure.status, load->failure.text);
}

static void copy_slice(struct zd_engine *e, struct zd_load *load, struct zd_part *part)
{
	const struct zd_unit *unit = load->unit;
	uint64_t itemsize = zerod_dtype_bytes(unit->dtype);
	const struct zd_device *from = load->source->device, *to = part->shard.segment->device;
	struct zd_command command = {.kind = ZD_CMD_COPY, .device = zd_copy_device(from, to)};
	command.u.copy.src = zd_extent_location(&load->source->extent);
	command.u.copy.src.offset += zd_shard_index(zd_part_member(part)) * zd_unit_shard_bytes(unit);
	command.u.copy.src.bytes = zd_part_true_numel(part) * itemsize;
	command.u.copy.dst = zd_part_location(part);
	command.u.copy.dst.bytes = command.u.copy.src.bytes;
	command.u.copy.dst_device = to->index;
	load->ops++;
	load->source->pending++;
	part->readers++;
	zd_op_submit(e, unit->group->job, &command, copied, load, part->rank);
}

/* The padding of the shards remains zero. */
static void load_copy(struct zd_engine *e, struct zd_load *load, struct zd_allocation *source)
{
	const struct zd_unit *unit = load->unit;
	load->source = source;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		zd_request_drop_deadline(e, load->requests[rank]);
		if (zd_part_true_numel(&unit->parts[rank]) > 0)
			copy_slice(e, load, &unit->parts[rank]);
	}
	zd_dirty_group(e, unit->group); /* the reasons of the ranks' waits have changed */
}

/* ---- The request --------------------------------------------------------------------------------------- */

static int load_check(const struct zd_request *req, const struct zd_part *part,
                      const struct zd_allocation *source, struct zd_err *err)
{
	const struct zd_unit *unit = part->unit;
	uint64_t bytes = unit->numel * zerod_dtype_bytes(unit->dtype);
	int status = zd_session_check_poisoned(req->session, err);
	if (status != 0)
		return status;
	if (unit->group->cluster)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "unit '%s': group '%s' spans daemons, or its collectives are NCCL's; "
		                  "unit_load copies between the shards of one daemon only",
		                  unit->name, unit->group->name);
	if (source && source->extent.bytes < bytes)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "unit '%s' has %llu bytes; allocation '%s' to load has %llu", unit->name,
		                  (unsigned long long)bytes, source->name,
		                  (unsigned long long)source->extent.bytes);
	return 0;
}

static int load_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_allocation *source = NULL;
	struct zd_part *part;
	int status = source_take(e, req, req->args, &source, err);
	if (status != 0)
		return status;
	status = zd_part_find(e, req->session, req->args->u.unit_load.unit, &part, err);
	if (status == 0)
		status = load_check(req, part, source, err);
	if (status != 0) {
		source_drop(e, source);
		return status;
	}
	part->users++;
	zd_request_set_member(req, zd_part_member(part));
	req->u.load.part = part;
	req->u.load.source = source;
	return 0;
}

static void load_finish(struct zd_engine *e, struct zd_request *req)
{
	req->u.load.part->users--;
	source_drop(e, req->u.load.source);
}

/* The other ranks' requests wait for this rank, until their deadlines or the group's failure. */
static void load_cancel(struct zd_engine *e, struct zd_request *req)
{
	struct zd_load *load = req->u.load.load;
	struct zd_part *part = req->u.load.part;
	if (load) {
		load->requests[part->rank] = NULL;
		load->nrequests--;
	}
	if (load && !is_copying(load)) {
		part_leave(e, part);
		zd_dirty_group(e, req->member->group);
		if (load->nrequests == 0)
			load_free(e, load);
	}
	load_finish(e, req);
}

static int load_join(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_part *part = req->u.load.part;
	struct zd_unit *unit = part->unit;
	if (part->state != ZD_PART_UPDATING)
		return zd_err_set(err, ZEROD_E_STATE, "unit '%s' is %s; unit_load needs it UPDATING",
		                  unit->name, zd_sm_name(&zd_sm_part, part->state));
	if (zd_shadow_is_owed(part))
		return zd_shadow_undone(part, err);
	if (part->early)
		return zd_wait_for_unit(req, unit, ZD_WAIT_READERS, part->rank, part->readers, part->viewers);
	if (unit->load && is_copying(unit->load)) { /* a load that its rank has left */
		return zd_wait_for_unit(req, unit, ZD_WAIT_LOAD, 0, 0, 0);
	}
	if (!unit->load)
		load_new(unit);
	zd_part_move(part, ZD_PART_LOADING);
	unit->load->requests[part->rank] = req;
	unit->load->called[part->rank] = true;
	unit->load->nrequests++;
	req->u.load.load = unit->load;
	zd_dirty_group(e, unit->group); /* the others wait for another rank now */
	return 0;
}

static int wait_for(struct zd_request *req, enum zd_wait_kind kind, uint32_t rank)
{
	return zd_wait_for_unit(req, req->u.load.part->unit, kind, rank, 0, 0);
}

/* Returns a rank that has never called. If there is none, returns a rank whose deadline has passed since. */
static uint32_t first_missing(const struct zd_load *load)
{
	uint32_t rank, world = load->unit->group->local_world_size;
	for (rank = 0; rank < world && load->called[rank]; rank++)
		;
	if (rank < world)
		return rank;
	for (rank = 0; load->requests[rank]; rank++)
		;
	return rank;
}

/* Adds the request to the load, and starts the copies when all ranks have called. */
static int load_advance(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_load *load = req->u.load.load;
	struct zd_request *source;
	zd_assert(load != NULL); /* it has joined */
	if (load->nrequests < load->unit->group->local_world_size)
		return wait_for(req, ZD_WAIT_LOADERS, first_missing(load));
	struct zd_err mismatch = ZD_ERR_NONE;
	int status = load_find_source(load, &source, &mismatch);
	if (status != 0) {
		load_end(e, load, status, mismatch.text);
		zd_assert(!req->u.load.load);
		return zd_err_set(err, status, "%s", mismatch.text);
	}
	if (source->u.load.source->pending > 0)
		return wait_for(req, ZD_WAIT_SOURCE, source->member->rank);
	load_copy(e, load, source->u.load.source);
	return wait_for(req, ZD_WAIT_LOAD, 0);
}

static int load_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	const struct zd_unit *unit = req->u.load.part->unit;
	if (req->u.load.complete) {
		load_finish(e, req);
		return 0;
	}
	if (req->u.load.load && is_copying(req->u.load.load))
		return wait_for(req, ZD_WAIT_LOAD, 0);
	int status = zd_member_check(req->member, err);
	if (status == 0 && unit->mismatch)
		status = zd_err_set(err, ZEROD_E_MISMATCH, "%s", unit->mismatch);
	if (status == 0 && !req->u.load.load)
		status = load_join(e, req, err);
	if (status == 0)
		status = load_advance(e, req, err);
	if (status < 0)
		load_cancel(e, req);
	return status;
}

const struct zd_request_type zd_req_unit_load = {
        .begin = load_begin, .attempt = load_attempt, .cancel = load_cancel};
