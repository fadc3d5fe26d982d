/* SPDX-License-Identifier: Apache-2.0 */
/*
 * holder.c - where parts hold a commit, for copies of it to readers and to host memory.
 *
 * A part holds the last commit in its shard until an update is granted, and in its shadow from then on, if it
 * has one (shadow.c). It holds a pinned commit there as well or, once an update has made one, in its save
 * (save.c). From an update's request on no copy of the shard begins. Until its shadow or save is complete,
 * the part is BUSY.
 */
#include "core/gather/holder.h"

#include "core/gather/commit.h"

struct zd_part *zd_holder_part(const struct zd_unit *unit, uint64_t index, const struct zd_device *device)
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

int zd_holder_locate(struct zd_part *part, uint64_t committed, enum zd_holder *holder, struct zd_err *err)
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

int zd_holder_check_step(const struct zd_group *group, uint64_t step, struct zd_err *err)
{
	if (group->torn)
		return zd_err_set(err, ZEROD_E_TORN, "group '%s' is torn", group->name);
	if ((step == group->committed_step && step > 0) || is_pinned(group, step))
		return 0;
	return zd_err_set(err, step < group->committed_step ? ZEROD_E_STALE_VERSION : ZEROD_E_STATE,
	                  "step %llu of group '%s': the last commit is step %llu", (unsigned long long)step,
	                  group->name, (unsigned long long)group->committed_step);
}

const struct zd_extent *zd_holder_extent(const struct zd_part *part, enum zd_holder holder)
{
	return holder == ZD_HOLDER_SAVE ? &zd_save_of(part)->extent : &part->shard;
}

struct zd_location zd_holder_read(struct zd_part *part, enum zd_holder holder, uint64_t at, uint64_t bytes)
{
	struct zd_save *save = zd_save_of(part);
	struct zd_location location = zd_extent_location(zd_holder_extent(part, holder));
	location.offset += at + (holder == ZD_HOLDER_SHADOW ? zd_unit_shard_bytes(part->unit) : 0);
	location.bytes = bytes;
	part->unit->refs++;
	if (holder == ZD_HOLDER_SAVE)
		save->readers++;
	else if (holder == ZD_HOLDER_SHADOW)
		part->shadow_readers++;
	else
		part->readers++;
	return location;
}

void zd_holder_done(struct zd_engine *e, struct zd_part *part, enum zd_holder holder)
{
	struct zd_unit *unit = part->unit;
	if (holder == ZD_HOLDER_SAVE)
		zd_save_reader_done(e, part);
	else if (holder == ZD_HOLDER_SHADOW)
		zd_part_shadow_reader_done(e, part);
	else
		zd_part_reader_done(e, part);
	zd_unit_unref(e, unit);
}
