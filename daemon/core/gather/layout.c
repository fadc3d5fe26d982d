/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.c - places of units: in the slots of ranks, and in the flat target.
 *
 * A unit receives its place in the target with its first shard, and another place when it is moved. A unit
 * without a shard has no place. A unit's description names the slot in which its parts start, and whether
 * they have a gradient. Each rank can change both for its own part: the slot between two uses of the unit,
 * the gradient between a step's end and the next backward. A rank whose frozen units differ from another
 * rank's receives MISMATCH when it begins a backward of the same window. `frozen_digest` reduces this to one
 * comparison.
 *
 * Invariant: a group's slot counts the registered parts of each rank that are in it, and has the size of the
 * largest unit that was put into it. A rank's block for a slot is freed when its last part has left the slot.
 */
#include <stdlib.h>

#include "core/engine/events.h"
#include "core/gather/buffer.h"
#include "core/gather/gather.h"
#include "core/gather/layout.h"
#include "core/gather/scope.h"

/* ---- Slots --------------------------------------------------------------------------------------------- */

struct zd_group_slot *zd_group_slot_find(struct zd_group *group, uint32_t number)
{
	struct zd_group_slot *slot;
	TAILQ_FOREACH (slot, &group->slots, link) {
		if (slot->number == number)
			break;
	}
	return slot;
}

void zd_slot_retire(struct zd_engine *e, struct zd_member *member, struct zd_slot *slot)
{
	TAILQ_REMOVE(&member->slots, slot, link);
	if (slot->occupant)
		slot->orphan = true;
	else
		zd_slot_free(e, slot);
}

static void slot_enter(struct zd_part *part, uint32_t number)
{
	struct zd_group *group = part->unit->group;
	struct zd_group_slot *slot = zd_group_slot_find(group, number);
	part->slot = number;
	if (number == ZEROD_NO_SLOT)
		return;
	if (!slot) {
		slot = zd_calloc(1, sizeof(*slot));
		slot->number = number;
		slot->parts = zd_calloc(group->local_world_size, sizeof(*slot->parts));
		TAILQ_INSERT_TAIL(&group->slots, slot, link);
	}
	uint64_t *bytes = &slot->bytes[part->unit->in_place];
	*bytes = zd_max_u64(*bytes, zd_unit_padded_bytes(part->unit));
	slot->parts[part->rank]++;
	slot->nparts++;
}

/* The part has no gathered buffer in the slot. */
static void slot_leave(struct zd_engine *e, struct zd_part *part)
{
	struct zd_member *member = zd_part_member(part);
	struct zd_group_slot *slot = zd_group_slot_find(member->group, part->slot);
	struct zd_slot *block;
	if (part->slot == ZEROD_NO_SLOT)
		return;
	part->slot = ZEROD_NO_SLOT;
	slot->nparts--;
	if (--slot->parts[part->rank] == 0) {
		TAILQ_FOREACH (block, &member->slots, link) {
			if (block->number != slot->number)
				continue;
			zd_slot_retire(e, member, block);
			break;
		}
	}
	if (slot->nparts > 0)
		return;
	TAILQ_REMOVE(&member->group->slots, slot, link);
	free(slot->parts);
	free(slot);
}

/* ---- Places -------------------------------------------------------------------------------------------- */

static int check_room(const struct zd_unit *unit, bool on_host, struct zd_err *err)
{
	uint64_t numel = unit->group->target_numel[on_host];
	if (zd_unit_target_numel(unit) <= INT64_MAX - numel)
		return 0;
	return zd_err_set(
	        err, ZEROD_E_LIMIT, "unit '%s': the group's target has %llu elements, %llu more are too many",
	        unit->name, (unsigned long long)numel, (unsigned long long)zd_unit_target_numel(unit));
}

static int target_check(const struct zd_unit *unit, struct zd_err *err)
{
	return unit->targeted ? 0 : check_room(unit, unit->on_host, err);
}

void zd_layout_put(struct zd_unit *unit, uint64_t offset_numel)
{
	struct zd_unit_list *places = &unit->group->places[unit->on_host];
	struct zd_unit *before = TAILQ_LAST(places, zd_unit_list);
	while (before && before->target_offset_numel > offset_numel)
		before = TAILQ_PREV(before, zd_unit_list, place_link);
	if (before)
		TAILQ_INSERT_AFTER(places, before, unit, place_link);
	else
		TAILQ_INSERT_HEAD(places, unit, place_link);
	unit->targeted = true;
	unit->target_offset_numel = offset_numel;
}

static void leave_place(struct zd_unit *unit)
{
	if (unit->targeted)
		TAILQ_REMOVE(&unit->group->places[unit->on_host], unit, place_link);
	unit->targeted = false;
}

static void target_take(struct zd_unit *unit)
{
	uint64_t *numel = &unit->group->target_numel[unit->on_host];
	if (unit->targeted)
		return;
	zd_layout_put(unit, *numel);
	*numel += zd_unit_target_numel(unit);
	zd_journal_unit(unit);
}

void zd_layout_give_back(struct zd_unit *unit)
{
	uint64_t *numel = &unit->group->target_numel[unit->on_host];
	if (!unit->targeted || unit->target_offset_numel + zd_unit_target_numel(unit) != *numel)
		return;
	*numel = unit->target_offset_numel;
	leave_place(unit);
}

void zd_layout_forget(struct zd_unit *unit)
{
	zd_layout_give_back(unit);
	leave_place(unit);
}

int zd_layout_check_move(const struct zd_unit *unit, bool on_host, struct zd_err *err)
{
	return unit->targeted ? check_room(unit, on_host, err) : 0;
}

/* Returns the offset of the first gap of `numel` elements between the places of the group's units in the
 * target, or otherwise the end of the last place. In both cases *end is the end of the last place. */
static uint64_t find_gap(const struct zd_group *group, bool on_host, uint64_t numel, uint64_t *end)
{
	const struct zd_unit *unit;
	uint64_t gap = UINT64_MAX;
	*end = 0;
	TAILQ_FOREACH (unit, &group->places[on_host], place_link) {
		if (gap == UINT64_MAX && unit->target_offset_numel - *end >= numel)
			gap = *end;
		*end = unit->target_offset_numel + zd_unit_target_numel(unit);
	}
	return gap == UINT64_MAX ? *end : gap;
}

void zd_layout_move(struct zd_unit *unit, bool on_host)
{
	struct zd_group *group = unit->group;
	bool targeted = unit->targeted, was_on_host = unit->on_host;
	uint64_t numel = zd_unit_target_numel(unit), end;
	leave_place(unit);
	unit->on_host = on_host;
	if (!targeted)
		return;
	(void)find_gap(group, was_on_host, 0, &end);
	group->target_numel[was_on_host] = end;
	zd_layout_put(unit, find_gap(group, on_host, numel, &end));
	group->target_numel[on_host] = zd_max_u64(end, unit->target_offset_numel + numel);
}

/* Returns how large another unit of the slot can be, because memory that a slot has already does not grow.
 * Sessions that map no frames copy all units. */
static uint64_t slot_room(const struct zd_group_slot *slot, bool in_place)
{
	uint64_t largest = zd_max_u64(slot->bytes[0], slot->bytes[1]);
	if (!slot->placed[0] && !slot->placed[1])
		return UINT64_MAX;
	return slot->placed[in_place] ? zd_min_u64(slot->placed[in_place], largest) : largest;
}

int zd_layout_check(struct zd_unit *unit, struct zd_err *err)
{
	const struct zd_group_slot *slot = zd_group_slot_find(unit->group, unit->slot);
	uint64_t bytes = zd_unit_padded_bytes(unit);
	if (unit->laid_out)
		return 0;
	if (slot && bytes > slot_room(slot, unit->in_place))
		return zd_err_set(
		        err, ZEROD_E_INVALID,
		        "unit '%s' needs %llu bytes; slot %u has %llu and was gathered into already: "
		        "register its largest unit before the first gather",
		        unit->name, (unsigned long long)bytes, unit->slot,
		        (unsigned long long)slot_room(slot, unit->in_place));
	return unit->frozen ? 0 : target_check(unit, err);
}

void zd_layout_enter(struct zd_part *part)
{
	struct zd_unit *unit = part->unit;
	unit->laid_out = true;
	if (!unit->frozen)
		target_take(unit);
	part->frozen = unit->frozen;
	slot_enter(part, unit->slot);
}

/* The changes that the rank has made to its part, as bits. */
static uint64_t changes_of(const struct zd_part *part)
{
	return (uint64_t)(part->frozen != part->unit->frozen) + (part->untargeted ? 2 : 0);
}

/* The part's bits in its rank's `frozen_digest`. */
static uint64_t digest_of(const struct zd_part *part)
{
	uint64_t x = part->unit->id * 0x9E3779B97F4A7C15ull;
	x = (x ^ x >> 32) * 0xD6E8FEB86659FD93ull;
	return (x ^ x >> 32) * changes_of(part);
}

static void set_frozen(struct zd_part *part, bool frozen, bool untargeted)
{
	uint64_t before = digest_of(part);
	part->frozen = frozen;
	part->untargeted = untargeted;
	zd_part_member(part)->frozen_digest ^= before ^ digest_of(part);
}

void zd_layout_leave(struct zd_engine *e, struct zd_part *part)
{
	set_frozen(part, part->unit->frozen, false);
	slot_leave(e, part);
}

/* ---- Frozen units -------------------------------------------------------------------------------------- */

static const char *word_of(const struct zd_part *part)
{
	return part->frozen ? "frozen" : part->untargeted ? "without a place in the target" : "trainable";
}

int zd_layout_compare(const struct zd_member *member, const struct zd_member *other, struct zd_err *err)
{
	const struct zd_unit *unit = TAILQ_FIRST(&member->group->units);
	if (member->frozen_digest == other->frozen_digest)
		return 0;
	while (unit && changes_of(&unit->parts[member->rank]) == changes_of(&unit->parts[other->rank]))
		unit = TAILQ_NEXT(unit, group_link);
	zd_assert(unit);
	return zd_err_set(err, ZEROD_E_MISMATCH, "unit '%s' is %s for rank %u and %s for rank %u", unit->name,
	                  word_of(&unit->parts[member->rank]), zd_world_rank(member),
	                  word_of(&unit->parts[other->rank]), zd_world_rank(other));
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

/* Returns BUSY if the part's gathered buffer is leased or being filled, or a gather of it waits. */
static int check_unused(const struct zd_request *req, const struct zd_part *part, struct zd_err *err)
{
	const struct zd_request *other;
	const char *name = part->unit->name;
	uint64_t version;
	TAILQ_FOREACH (other, &req->session->requests, session_link) {
		if (zd_gather_lacks(other, part, &version))
			return zd_err_set(err, ZEROD_E_BUSY, "unit '%s': a gather under %s '%s' waits", name,
			                  other->u.gather.scope ? "scope" : "tag",
			                  other->u.gather.scope ? other->u.gather.scope->tag
			                                        : other->u.gather.tag);
	}
	if (part->buffer && !TAILQ_EMPTY(&part->buffer->leases)) {
		char tags[128];
		zd_buffer_tags(part->buffer, tags, sizeof(tags));
		return zd_err_set(err, ZEROD_E_BUSY, "unit '%s' is held on rank %u by %s", name,
		                  zd_world_rank(zd_part_member(part)), tags);
	}
	if (part->buffer && part->buffer->state == ZD_BUFFER_INFLIGHT)
		return zd_err_set(err, ZEROD_E_BUSY, "unit '%s': a gather of rank %u is under way", name,
		                  zd_world_rank(zd_part_member(part)));
	return 0;
}

static int set_slot_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_part *part;
	uint32_t slot = req->args->u.set_slot.slot;
	int status = zd_part_find(e, req->session, req->args->u.set_slot.unit, &part, err);
	if (status != 0)
		return status;
	if (slot > ZD_MAX_SLOTS)
		return zd_err_set(err, ZEROD_E_LIMIT, "unit '%s': slot %u; the highest is %u",
		                  part->unit->name, slot, ZD_MAX_SLOTS);
	if (slot == part->slot)
		return 0;
	status = check_unused(req, part, err);
	if (status != 0)
		return status;
	if (part->buffer)
		zd_buffer_drop(e, part->buffer);
	slot_leave(e, part);
	slot_enter(part, slot);
	zd_dirty(e, zd_part_member(part)->device);
	return 0;
}

/* Whether no rank has a place for the unit's sums, and no target that could contain one is bound. */
static bool is_placeless(const struct zd_engine *e, const struct zd_unit *unit)
{
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		const struct zd_part *part = &unit->parts[rank];
		if (zd_part_is_registered(part) && !part->frozen && !part->untargeted)
			return false;
	}
	return !e->events->has_target(unit->group);
}

static void give_up_place(struct zd_unit *unit)
{
	uint64_t end;
	if (!unit->targeted)
		return;
	leave_place(unit);
	(void)find_gap(unit->group, unit->on_host, 0, &end);
	unit->group->target_numel[unit->on_host] = end;
}

static int check_untargeted(const struct zd_unit *unit, struct zd_err *err)
{
	const char *why = unit->group->cluster        ? "its group spans daemons"
	                  : unit->group->job->durable ? "its job is durable"
	                  : unit->all_reduce          ? "every rank gets all of its gradient"
	                                              : NULL;
	return why ? zd_err_set(err, ZEROD_E_UNSUPPORTED, "unit '%s' has a place in the target: %s",
	                        unit->name, why)
	           : 0;
}

static int set_frozen_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_part *part;
	bool frozen = req->args->u.set_frozen.frozen;
	uint32_t target = req->args->u.set_frozen.target;
	if (target > ZD_TARGET_NONE)
		return zd_err_set(err, ZEROD_E_INVALID, "set_frozen: target is %u", target);
	int status = zd_part_find(e, req->session, req->args->u.set_frozen.unit, &part, err);
	if (status != 0)
		return status;
	bool untargeted = target == ZD_TARGET_KEEP ? part->untargeted : target == ZD_TARGET_NONE;
	if (untargeted)
		status = check_untargeted(part->unit, err);
	if (status == 0 && part->untargeted != untargeted && (part->target_lent || part->sum))
		status = zd_err_set(err, ZEROD_E_STATE, "rank %u has not returned the sum of unit '%s'",
		                    zd_world_rank(zd_part_member(part)), part->unit->name);
	if (status == 0 && (part->frozen != frozen || part->untargeted != untargeted))
		status = e->events->check_window_closed(zd_part_member(part), part->unit, err);
	if (status == 0 && !frozen && !untargeted)
		status = target_check(part->unit, err);
	if (status != 0)
		return status;
	set_frozen(part, frozen, untargeted);
	if (!frozen && !untargeted)
		target_take(part->unit);
	else if (is_placeless(e, part->unit) && untargeted)
		give_up_place(part->unit);
	else if (is_placeless(e, part->unit)) /* its place remains as a gap: it can be unfrozen */
		zd_layout_give_back(part->unit);
	zd_journal_unit(part->unit);
	req->u.reg.part = part;
	return 0;
}

static int set_frozen_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	(void)err;
	e->reply.u.set_frozen.target_offset_numel = req->u.reg.part->unit->target_offset_numel;
	e->reply.u.set_frozen.no_target = req->u.reg.part->untargeted;
	return 0;
}

const struct zd_request_type zd_req_set_slot = {.begin = set_slot_begin};
const struct zd_request_type zd_req_set_frozen = {.begin = set_frozen_begin, .attempt = set_frozen_attempt};
