/* SPDX-License-Identifier: Apache-2.0 */
/*
 * target.c - a rank's targets for the sums of one window: one on its device, and for units on the host one in
 * host memory.
 *
 * A target is not zeroed when it is bound. On a GPU that would run a kernel of the daemon, for which the
 * driver suspends the client's kernels, and each first sum would read the zeros. Instead a unit's first sum
 * of a window overwrites its place. Places that no sum has written are zeroed when the rank begins the step,
 * before it can read any of them.
 *
 * A part can be without a place in the target. Each of its sums then has its own memory, which is allocated
 * with the slice's staging memory, and dropped when the rank returns it or its step ends. If the rank takes
 * the terms of the sum, that memory has the other ranks' terms.
 */
#include <stdlib.h>
#include <string.h>

#include "core/engine/promise.h"
#include "core/gather/unit.h"
#include "core/reduce/member.h"
#include "core/reduce/reduce.h"
#include "core/reduce/storage.h"
#include "core/reduce/target.h"
#include "core/reduce/window.h"

static int bind_target(struct zd_engine *e, struct zd_request *req, struct zd_window *w,
                       enum zd_target_memory memory, struct zd_err *err)
{
	struct zd_member *member = w->mr->member;
	struct zd_device *device = memory == ZD_TARGET_ON_HOST ? member->device->host : member->device;
	uint64_t numel = member->group->target_numel[memory], item_bytes = zerod_dtype_bytes(w->target_dtype);
	if (w->targets[memory].storage || numel == 0)
		return 0;
	if (numel > ZD_MAX_BYTES / item_bytes)
		return zd_err_set(err, ZEROD_E_NO_MEMORY, "a target of %llu elements of %s can never fit",
		                  (unsigned long long)numel, zerod_dtype_name(w->target_dtype));
	struct zd_storage *storage;
	int status = zd_storage_new(e, req, member, device, ZD_CHARGE_TARGET, numel * item_bytes, &storage,
	                            err);
	if (status < 0 && zd_window_gives_room(w->mr))
		return zd_wait_for(req, ZD_WAIT_SUMS, member->rank, 0, 0);
	if (status == 0)
		w->targets[memory] = (struct zd_target){storage, numel, w->mr->number, numel};
	return status;
}

int zd_targets_bind(struct zd_engine *e, struct zd_request *req, struct zd_window *w, struct zd_err *err)
{
	int status = bind_target(e, req, w, ZD_TARGET_ON_DEVICE, err);
	return status == 0 ? bind_target(e, req, w, ZD_TARGET_ON_HOST, err) : status;
}

static void drop_target(struct zd_engine *e, struct zd_target *target)
{
	zd_storage_drop(e, target->storage);
	*target = (struct zd_target){.storage = NULL};
}

void zd_targets_unbind(struct zd_engine *e, struct zd_window *w)
{
	for (uint32_t i = 0; i < ZD_NTARGETS; i++) {
		if (w->targets[i].number == w->mr->number)
			drop_target(e, &w->targets[i]);
	}
}

struct zd_storage *zd_window_storage(const struct zd_window *w, const struct zd_part *part)
{
	if (!part->untargeted)
		return zd_window_target(w, part->unit)->storage;
	return part->sum && part->sum->sum_of == w && !part->sum->returned ? part->sum : NULL;
}

int zd_sum_new(struct zd_engine *e, struct zd_request *req, struct zd_window *w, struct zd_part *part,
               uint64_t bytes, struct zd_err *err)
{
	struct zd_member *member = w->mr->member;
	struct zd_device *device = part->unit->on_host ? member->device->host : member->device;
	struct zd_storage *storage;
	int status = zd_storage_new(e, req, member, device, ZD_CHARGE_TARGET, bytes, &storage, err);
	if (status != 0)
		return status;
	storage->sum_of = w;
	storage->part = part;
	part->sum = storage;
	part->unit->refs++;
	TAILQ_INSERT_TAIL(&w->sums, storage, sum_link);
	return 0;
}

static void sum_drop(struct zd_engine *e, struct zd_storage *storage)
{
	struct zd_part *part = storage->part;
	TAILQ_REMOVE(&storage->sum_of->sums, storage, sum_link);
	storage->sum_of = NULL;
	if (part->sum == storage)
		part->sum = NULL;
	zd_storage_drop(e, storage);
	zd_unit_unref(e, part->unit);
}

void zd_sum_return(struct zd_engine *e, struct zd_storage *storage)
{
	storage->returned = true;
	if (!storage->summing)
		sum_drop(e, storage);
}

void zd_sum_made(struct zd_engine *e, struct zd_storage *storage)
{
	storage->summing = false;
	if (storage->returned)
		sum_drop(e, storage);
}

void zd_targets_drop(struct zd_engine *e, struct zd_window *w)
{
	zd_target_forget_lent(e, w);
	while (!TAILQ_EMPTY(&w->sums))
		sum_drop(e, TAILQ_FIRST(&w->sums));
	for (uint32_t i = 0; i < ZD_NTARGETS; i++)
		drop_target(e, &w->targets[i]);
	zd_storage_drop(e, w->scalars);
	w->scalars = NULL;
}

bool zd_target_has_place(const struct zd_window *w, const struct zd_part *part)
{
	const struct zd_unit *unit = part->unit;
	return zd_window_storage(w, part) &&
	       (part->untargeted ||
	        unit->target_offset_numel + zd_unit_target_numel(unit) <= zd_window_target(w, unit)->numel);
}

static int check_place(const struct zd_window *w, const struct zd_part *part, struct zd_err *err)
{
	const struct zd_unit *unit = part->unit;
	if (!w || !zd_target_has_place(w, part) || w->step == ZD_STEP_ABANDONED || part->frozen)
		return 0;
	if (part->untargeted)
		return zd_err_set(err, ZEROD_E_BUSY, "rank %u has not returned the sum of unit '%s'",
		                  zd_world_rank(w->mr->member), unit->name);
	return zd_err_set(err, ZEROD_E_BUSY,
	                  "unit '%s' has a place in the target that rank %u bound in backward %llu: the step "
	                  "has not ended",
	                  unit->name, zd_world_rank(w->mr->member),
	                  (unsigned long long)zd_window_target(w, unit)->number);
}

int zd_target_check_place(const struct zd_part *part, struct zd_err *err)
{
	const struct zd_member_reduce *mr = zd_member_reduce(zd_part_member(part));
	int status = mr ? check_place(mr->closing, part, err) : 0;
	return mr && status == 0 ? check_place(mr->w, part, err) : status;
}

/* ---- Scalars ------------------------------------------------------------------------------------------- */

int zd_target_bind_scalars(struct zd_engine *e, struct zd_request *req, struct zd_window *w,
                           struct zd_err *err)
{
	struct zd_member *member = w->mr->member;
	int status = zd_storage_new(e, req, member, member->device, ZD_CHARGE_TARGET, ZD_BLOCK_MIN_ALIGN,
	                            &w->scalars, err);
	if (status < 0 && w == w->mr->w && zd_window_gives_room(w->mr))
		return zd_wait_for(req, ZD_WAIT_SUMS, member->rank, 0, 0);
	return status;
}

struct zd_location zd_target_scalars(const struct zd_window *w)
{
	return zd_storage_location(w->scalars, 0, 2 * sizeof(float));
}

struct storing {
	struct zd_storage *storage;
	struct zd_promise *promise;
};

static void stored(struct zd_engine *e, struct zd_op *op)
{
	struct storing *storing = op->owner;
	zd_storage_unuse(e, storing->storage);
	if (op->status == 0)
		zd_promise_keep(e, storing->promise);
	else
		zd_promise_break(e, storing->promise);
	free(storing);
}

void zd_target_store_scalars(struct zd_engine *e, struct zd_window *w, struct zd_promise *promise)
{
	const float scalars[2] = {w->mr->result.overflow ? 1.0f : 0.0f, (float)w->mr->result.norm_squared};
	struct zd_command command = {.kind = ZD_CMD_FILL, .device = w->scalars->device->index};
	struct storing *storing = zd_calloc(1, sizeof(*storing));
	*storing = (struct storing){w->scalars, promise};
	command.u.fill.dst = zd_target_scalars(w);
	memcpy(&command.u.fill.pattern, scalars, sizeof(scalars));
	zd_storage_use(w->scalars);
	zd_op_submit(e, w->mr->member->group->job, &command, stored, storing, 0);
}

/* ---- Zeroing ------------------------------------------------------------------------------------------- */

struct fill {
	struct zd_storage *storage;
	struct zd_request *req;
};

static void filled(struct zd_engine *e, struct zd_op *op)
{
	struct fill *fill = op->owner;
	zd_dirty(e, fill->storage->device); /* another request can wait for the fill */
	fill->storage->fills--;
	zd_storage_unuse(e, fill->storage);
	op->owner = fill->req;
	free(fill);
	zd_request_op_done(e, op);
}

static void zero_range(struct zd_engine *e, struct zd_request *req, const struct zd_window *w,
                       struct zd_storage *target, uint64_t begin, uint64_t end)
{
	uint64_t each = zerod_dtype_bytes(w->target_dtype);
	if (begin >= end)
		return;
	struct fill *fill = zd_calloc(1, sizeof(*fill));
	*fill = (struct fill){target, req};
	target->fills++;
	zd_storage_use(target);
	req->pending_ops++;
	zd_op_fill(e, w->mr->member->group->job, target->device->index,
	           zd_storage_location(target, begin * each, (end - begin) * each), filled, fill, 0);
}

/* Returns the place at which the request's zeroing continues. NULL: the end. If that unit has ended, returns
 * the first place: elements can be zeroed twice. */
static struct zd_unit *next_place(struct zd_engine *e, struct zd_request *req, const struct zd_window *w)
{
	uint32_t memory = req->u.reduce.zeroed_targets;
	struct zd_unit *unit = zd_unit_find(e, req->u.reduce.zeroes_unit);
	if (unit && unit->group == req->member->group && unit->targeted && unit->on_host == memory)
		return unit;
	req->u.reduce.zeroed_numel = 0;
	return TAILQ_FIRST(&w->mr->member->group->places[memory]);
}

/* Returns whether the zeroing has reached the target's end. */
static bool zero_rest(struct zd_engine *e, struct zd_request *req, const struct zd_window *w,
                      const struct zd_target *target)
{
	uint32_t most = zd_step_units(e);
	struct zd_unit *unit = next_place(e, req, w);
	uint64_t at = req->u.reduce.zeroed_numel;
	for (; unit && most > ZD_UNITS_PER_OBJECT * req->pending_ops; unit = TAILQ_NEXT(unit, place_link)) {
		most--;
		if (unit->is_former || !zd_norms_has(w, unit))
			continue;
		zero_range(e, req, w, target->storage, at, unit->target_offset_numel);
		at = unit->target_offset_numel + zd_unit_target_numel(unit);
	}
	req->u.reduce.zeroed_numel = at;
	req->u.reduce.zeroes_unit = unit ? unit->id : 0;
	if (!unit)
		zero_range(e, req, w, target->storage, at, target->numel);
	return !unit;
}

bool zd_targets_are_in_use(const struct zd_window *w)
{
	bool any = false;
	for (uint32_t i = 0; i < ZD_NTARGETS; i++)
		any |= w->targets[i].unwritten_numel > 0 && w->targets[i].storage->uses > 0;
	return any;
}

void zd_targets_set_written(struct zd_window *w)
{
	for (uint32_t i = 0; i < ZD_NTARGETS; i++)
		w->targets[i].unwritten_numel = 0;
}

int zd_targets_zero_rest(struct zd_engine *e, struct zd_request *req, const struct zd_window *w)
{
	uint32_t *memory = &req->u.reduce.zeroed_targets;
	while (*memory < ZD_NTARGETS) {
		const struct zd_target *target = &w->targets[*memory];
		if (target->unwritten_numel > 0 && !zero_rest(e, req, w, target)) {
			req->goes_on = req->pending_ops == 0;
			break;
		}
		++*memory;
	}
	return req->pending_ops > 0 || req->goes_on ? zd_wait_for(req, ZD_WAIT_FILL, 0, 0, 0) : 0;
}
