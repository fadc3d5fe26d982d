/* SPDX-License-Identifier: Apache-2.0 */
/*
 * part.c - ends of ranks' parts of units: which shards outlive their rank, and when they are freed.
 *
 * A rank that unregisters a unit, leaves its group or ends gives up its shard. The shard is uncharged at
 * once, and its block is freed after the last transfer that reads it. Two kinds of shards remain, as DETACHED
 * parts:
 *
 *   durable job             until the rank joins again and registers the unit, or the job ends
 *   rank that ended         while another rank has registered the unit, and until a session takes the rank's
 *   normally (`ended`)      place: other ranks gather it, and the unit is not published again
 *
 * A shard of the second kind has a version: it is published, and was not being written when its rank ended.
 */
#include "core/engine/deferred_teardown.h"
#include "core/gather/buffer.h"
#include "core/gather/host_copy.h"
#include "core/gather/layout.h"
#include "core/gather/save.h"
#include "core/gather/shadow.h"

static void part_absent(struct zd_engine *e, struct zd_part *part)
{
	struct zd_member *member = zd_part_member(part);
	zd_part_move(part, ZD_PART_ABSENT);
	zd_pool_free(e, &part->shard);
	part->version = 0;
	part->first = 0;
	part->committed = 0;
	part->persistent = false;
	if (part->shadow != ZD_SHADOW_NONE)
		zd_sm_move(&zd_sm_shadow, &part->shadow, ZD_SHADOW_NONE);
	zd_dirty_group(e, member->group);
	zd_unit_unref(e, part->unit);
}

/* Uncharges the shard now, and frees it when the last reader has ended. Gathered buffers that contain it
 * remain with their leases but are stale. No gather joins them, because a rank that replaces this one can
 * publish other bytes under the same version. */
static void drop(struct zd_engine *e, struct zd_part *part)
{
	struct zd_device *device = part->shard.segment->device;
	struct zd_unit *unit = part->unit;
	zd_assert(!part->buffer);
	zd_pin_revoke(e, unit->group);
	LIST_REMOVE(part, member_link);
	zd_layout_leave(e, part);
	unit->era++;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		if (unit->parts[rank].buffer)
			unit->parts[rank].buffer->stale = true;
	}
	zd_uncharge(e, unit->group->job, device, ZD_CHARGE_SHARD, part->shard.bytes);
	if (part->readers + part->shadow_readers == 0) {
		part_absent(e, part);
		return;
	}
	device->quarantine_bytes += part->shard.bytes;
	zd_part_move(part, ZD_PART_DYING);
}

static bool is_registered(const struct zd_unit *unit)
{
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		if (zd_part_is_registered(&unit->parts[rank]))
			return true;
	}
	return false;
}

/* Frees the shards of ranks that ended normally, when no rank can gather the unit any more. */
static void drop_kept(struct zd_engine *e, struct zd_unit *unit)
{
	if (unit->group->job->durable || is_registered(unit))
		return;
	unit->refs++;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		if (zd_part_is_kept(&unit->parts[rank]))
			drop(e, &unit->parts[rank]);
	}
	zd_unit_unref(e, unit);
}

void zd_part_drop(struct zd_engine *e, struct zd_part *part)
{
	struct zd_unit *unit = part->unit;
	unit->refs++;
	drop(e, part);
	drop_kept(e, unit);
	zd_unit_unref(e, unit);
}

/* Frees the shard of a DYING part after its last reader. */
static void die(struct zd_engine *e, struct zd_part *part)
{
	if (part->readers + part->shadow_readers > 0)
		return;
	part->shard.segment->device->quarantine_bytes -= part->shard.bytes;
	part_absent(e, part);
}

void zd_part_reader_done(struct zd_engine *e, struct zd_part *part)
{
	zd_assert(part->readers > 0);
	part->readers--;
	zd_host_copy_wake_for(e, part);
	if (part->readers > part->viewers)
		return;
	/* The shard's device, because the rank can have joined again on another one. */
	struct zd_device *device = part->shard.segment->device;
	zd_dirty(e, device); /* an update can be granted while viewers remain */
	if (part->readers > 0)
		return;
	if (part->state == ZD_PART_DYING)
		die(e, part);
	else
		zd_shadow_try(e, part);
}

void zd_part_shadow_reader_done(struct zd_engine *e, struct zd_part *part)
{
	zd_assert(part->shadow_readers > 0);
	part->shadow_readers--;
	zd_host_copy_wake_for(e, part);
	zd_dirty(e, part->shard.segment->device); /* the next commit can be saved there */
	if (part->state == ZD_PART_DYING)
		die(e, part);
}

static void end_part_hold(struct zd_engine *e, struct zd_op *op)
{
	zd_part_reader_done(e, op->owner);
}

void zd_part_hold(struct zd_engine *e, struct zd_session *session, struct zd_part *part)
{
	struct zd_record_hold object = {part->unit->id, ZD_RECORD_PART, part->rank};
	if (zd_deferred_teardown_hold_recorded(e, session, part->unit->group->job,
	                                       part->shard.segment->device, end_part_hold, part, object))
		part->readers++;
}

/* Whether the shard outlives its rank. A shard whose fill has not ended has no bytes to preserve. */
static bool part_stays(const struct zd_part *part)
{
	const struct zd_group *group = part->unit->group;
	if (group->job->durable)
		return part->state != ZD_PART_FILLING;
	return zd_part_member(part)->ended && !group->cluster && group->state != ZD_GROUP_ABORTED &&
	       part->state == ZD_PART_IDLE && !zd_part_is_unpublished(part);
}

static void part_detach(struct zd_engine *e, struct zd_part *part)
{
	struct zd_member *member = zd_part_member(part);
	if (part->buffer)
		zd_buffer_revoke(e, part->buffer);
	zd_part_hold(e, member->session, part);
	if (part_stays(part)) {
		struct zd_unit *unit = part->unit;
		zd_pin_revoke(e, unit->group);
		if (part->state != ZD_PART_DETACHED)
			zd_part_move(part, ZD_PART_DETACHED);
		LIST_REMOVE(part, member_link);
		LIST_INSERT_HEAD(&member->detached, part, member_link);
		zd_layout_leave(e, part);
		zd_shadow_try(e, part); /* its writer has ended */
		drop_kept(e, unit);
		return;
	}
	zd_part_drop(e, part);
}

bool zd_parts_detach(struct zd_engine *e, struct zd_member *member, uint32_t *budget)
{
	struct zd_part *part;
	while ((part = LIST_FIRST(&member->parts))) {
		if ((part->buffer && !zd_buffer_thin_out(e, part->buffer, budget)) ||
		    !zd_ending_may_free(budget))
			return false;
		part_detach(e, part);
	}
	zd_mismatches_forget(member);
	return true;
}

bool zd_parts_drop(struct zd_engine *e, struct zd_member *member, uint32_t *budget)
{
	struct zd_part *part;
	while ((part = LIST_FIRST(&member->detached))) {
		if (!zd_ending_may_free(budget))
			return false;
		zd_part_drop(e, part);
	}
	return true;
}

void zd_parts_move(struct zd_part_list *from, struct zd_part_list *to)
{
	zd_assert(LIST_EMPTY(to));
	*to = *from;
	if (!LIST_EMPTY(to))
		LIST_FIRST(to)->member_link.le_prev = &LIST_FIRST(to);
	LIST_INIT(from);
}
