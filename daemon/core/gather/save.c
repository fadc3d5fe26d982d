/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.c - pins of commits by readers, and saves of the bytes that hold them.
 *
 * A group has at most one pin: a commit that sessions read, or that is being copied to host memory
 * (host_copy.c). In a group without shadows every update after that commit copies the shard into a save,
 * before the update is granted or its promise is kept. A part without a save therefore holds the pinned
 * commit in its shard. A part with a save holds it in the save, whatever is committed later. A save is missed
 * if there was no memory for it, if its unit is `unsaved`, or if the shard did not have the commit, because
 * the rank was replaced or the unit was published later. Reads then fail with STALE_VERSION, as without a
 * pin.
 *
 * In a group with shadows an update preserves the last commit in the shadow. If the shadow has an earlier,
 * pinned commit, the update first copies that into a save. A shadow is FREE after a commit, and then holds
 * the commits before `shadow_until`: one of them is pinned, or the pinned commit is in the shard.
 *
 * The pin is revoked when a copy fails, when the rank's streams can have written during the copy, or when a
 * part leaves its rank. Each session's pin has a deadline, so that a stopped process does not occupy memory
 * for ever.
 *
 * Saves use memory that is not needed otherwise. They are not charged, and the pool revokes their pins before
 * a request waits for the device's memory or fails because of it. A rank therefore waits at most for the copy
 * into a save, and never for the reader. The segments of saves count against the quota of the job's user:
 * with a quota there are no saves.
 */
#include "core/gather/save.h"

#include <stdlib.h>

#include "core/gather/commit.h"
#include "core/gather/host_copy.h"

/* ---- Ends ---------------------------------------------------------------------------------------------- */

static void try_free(struct zd_engine *e, struct zd_part *part)
{
	struct zd_save *save = zd_save_of(part);
	if (!save || !save->revoked || save->copying || save->readers > 0)
		return;
	part->unit->saves[part->rank] = NULL;
	if (save->extent.segment) {
		save->extent.segment->device->quarantine_bytes -= save->extent.bytes;
		zd_pool_free(e, &save->extent);
	}
	free(save);
}

void zd_save_reader_done(struct zd_engine *e, struct zd_part *part)
{
	zd_save_of(part)->readers--;
	try_free(e, part);
}

void zd_pin_revoke(struct zd_engine *e, struct zd_group *group)
{
	struct zd_save *save;
	group->pin.serial = 0;
	zd_host_copy_wake(e, group);
	while ((save = LIST_FIRST(&group->pin.saves))) {
		LIST_REMOVE(save, group_link);
		if (save->extent.segment)
			LIST_REMOVE(save, device_link);
		save->revoked = true;
		try_free(e, save->part);
	}
}

static struct zd_save *find_save(const struct zd_device *device, const struct zd_owner *owner)
{
	struct zd_save *save = LIST_FIRST(&device->saves);
	while (save && owner && save->part->unit->group->job->owner != owner)
		save = LIST_NEXT(save, device_link);
	return save;
}

bool zd_saves_make_room(struct zd_engine *e, const struct zd_owner *owner, struct zd_device *device)
{
	struct zd_save *save = find_save(device, owner);
	bool any = save != NULL;
	for (; save; save = find_save(device, owner))
		zd_pin_revoke(e, save->part->unit->group);
	return any;
}

/* ---- Pins ---------------------------------------------------------------------------------------------- */

/* Returns the group of the owner's pin, unless the pin was revoked. NULL: none. */
static struct zd_group *find_pinned(const struct zd_engine *e, const struct zd_pinned *pinned)
{
	struct zd_group *group;
	HASH_FIND(hh, e->groups, &pinned->group, sizeof(pinned->group), group);
	return pinned->serial && group && group->pin.serial == pinned->serial ? group : NULL;
}

void zd_unpin(struct zd_engine *e, struct zd_pinned *pinned)
{
	struct zd_group *group = find_pinned(e, pinned);
	pinned->serial = 0;
	pinned->expired = false;
	if (group && --group->pin.owners == 0)
		zd_pin_revoke(e, group);
}

static void expire(struct zd_engine *e, struct zd_session *session)
{
	const struct zd_group *group = find_pinned(e, &session->pinned);
	struct zd_notice notice = {.kind = ZD_NOTICE_PIN_LATE,
	                           .uid = session->uid,
	                           .pid = session->pid,
	                           .session = session->id,
	                           .step = session->pinned.step};
	if (group && e->sink.notice) {
		notice.job = group->job->name;
		notice.group = group->name;
		e->sink.notice(e->sink.arg, &notice);
	}
	zd_unpin(e, &session->pinned);
	session->pinned.expired = group != NULL;
}

uint64_t zd_pins_expire(struct zd_engine *e)
{
	uint64_t next_ns = UINT64_MAX;
	for (struct zd_session *session = e->sessions; session; session = session->hh.next) {
		if (session->pinned.serial && session->pinned.until_ns > e->now_ns)
			next_ns = zd_min_u64(next_ns, session->pinned.until_ns);
		else if (session->pinned.serial)
			expire(e, session);
	}
	return next_ns;
}

void zd_pin(struct zd_engine *e, struct zd_pinned *pinned, struct zd_group *group)
{
	zd_unpin(e, pinned);
	bool is_new = !group->pin.serial;
	if (group->torn || (!is_new && group->pin.step != group->committed_step))
		return;
	/* Shadows always hold the last commit. */
	for (uint32_t rank = 0; rank < group->local_world_size && is_new && !group->shadow; rank++) {
		if (!LIST_EMPTY(&group->members[rank].uncommitted))
			return;
	}
	if (is_new) {
		group->pin.serial = ++e->pin_serial;
		group->pin.step = group->committed_step;
		group->pin.ncommits = group->ncommits;
		group->pin.owners = 0;
	}
	group->pin.owners++;
	pinned->group = group->id;
	pinned->serial = group->pin.serial;
	pinned->step = group->pin.step;
}

void zd_pin_for(struct zd_engine *e, struct zd_session *session, struct zd_group *group, uint32_t ms)
{
	zd_pin(e, &session->pinned, group);
	session->pinned.until_ns = e->now_ns + (uint64_t)(ms ? ms : ZD_PIN_MS) * 1000000u;
	if (session->pinned.serial)
		e->next_unpin_ns = zd_min_u64(e->next_unpin_ns, session->pinned.until_ns);
}

enum zd_holder zd_part_find_pin(struct zd_part *part)
{
	const struct zd_save *save = zd_save_of(part);
	if (save && !save->revoked && !save->copying)
		return save->extent.segment ? ZD_HOLDER_SAVE : ZD_HOLDER_NONE;
	zd_part_take_commits(part);
	bool is_shard = part->shadow == ZD_SHADOW_NONE || part->shadow == ZD_SHADOW_SAVING;
	if (part->shadow == ZD_SHADOW_FREE)
		is_shard = part->unit->group->pin.ncommits >= part->shadow_until;
	if (is_shard)
		return part->version == part->committed && !zd_part_is_unpublished(part) ? ZD_HOLDER_SHARD
		                                                                         : ZD_HOLDER_NONE;
	return part->shadow == ZD_SHADOW_FREE && part->shadow_unpublished ? ZD_HOLDER_NONE : ZD_HOLDER_SHADOW;
}

/* ---- Saves --------------------------------------------------------------------------------------------- */

/* Whether the rank's streams can write the shard that is being saved: an update was granted early, and its
 * promise can be broken. */
static bool may_be_written(const struct zd_save *save)
{
	const struct zd_session *session = zd_part_member(save->part)->session;
	return save->part->early && (!session || session->id != save->session ||
	                             session->resets != save->resets || session->state != ZD_SESSION_OPEN);
}

static void saved(struct zd_engine *e, struct zd_op *op)
{
	struct zd_part *part = op->owner;
	struct zd_save *save = zd_save_of(part);
	save->copying = false;
	if (!save->revoked && (op->status != 0 || may_be_written(save)))
		zd_pin_revoke(e, part->unit->group);
	try_free(e, part);
	if (part->shadow == ZD_SHADOW_NONE)
		zd_part_reader_done(e, part);
	else
		zd_part_shadow_reader_done(e, part);
}

static void copy(struct zd_engine *e, struct zd_save *save)
{
	struct zd_part *part = save->part;
	struct zd_command command = {.kind = ZD_CMD_COPY, .device = save->extent.segment->device->index};
	bool in_shadow = part->shadow != ZD_SHADOW_NONE;
	command.u.copy.src = zd_part_location(part);
	command.u.copy.src.offset += in_shadow ? command.u.copy.src.bytes : 0;
	command.u.copy.dst = zd_extent_location(&save->extent);
	command.u.copy.dst.bytes = command.u.copy.src.bytes;
	command.u.copy.dst_device = command.device;
	part->shadow_readers += in_shadow;
	part->readers += !in_shadow;
	zd_op_submit(e, part->unit->group->job, &command, saved, part, 0);
}

static struct zd_save *save_new(struct zd_part *part)
{
	struct zd_unit *unit = part->unit;
	struct zd_save *save = zd_calloc(1, sizeof(*save));
	save->part = part;
	if (!unit->saves)
		unit->saves = zd_calloc(unit->group->local_world_size, sizeof(struct zd_save *));
	unit->saves[part->rank] = save;
	LIST_INSERT_HEAD(&unit->group->pin.saves, save, group_link);
	return save;
}

static void begin(struct zd_engine *e, struct zd_part *part, struct zd_extent extent)
{
	const struct zd_session *session = zd_part_member(part)->session;
	struct zd_device *device = extent.segment->device;
	struct zd_save *save = save_new(part);
	save->extent = extent;
	save->copying = true;
	save->session = session->id;
	save->resets = session->resets;
	device->quarantine_bytes += extent.bytes; /* not charged, and freed when a request needs it */
	zd_extent_own(e, &save->extent, ZD_BLOCK_SAVE, save,
	              zd_member_use(zd_part_member(part), ZD_WORD_SAVE, part->unit->id));
	LIST_INSERT_HEAD(&device->saves, save, device_link);
	copy(e, save);
}

void zd_part_miss_save(struct zd_engine *e, struct zd_part *part)
{
	zd_host_copy_wake_for(e, part);
	if (zd_save_of(part)) /* a revoked save is in use */
		zd_pin_revoke(e, part->unit->group);
	else
		(void)save_new(part);
}

bool zd_part_save(struct zd_engine *e, struct zd_part *part)
{
	struct zd_group *group = part->unit->group;
	const struct zd_save *save = zd_save_of(part);
	enum zd_holder holder = zd_part_find_pin(part);
	struct zd_extent extent;
	int status = ZEROD_E_NO_MEMORY; /* also while a revoked save is in use */
	if ((save && !save->revoked) ||
	    (group->shadow && (part->shadow != ZD_SHADOW_FREE || holder == ZD_HOLDER_SHARD)))
		return true; /* the shadow holds the commit */
	if (!save && !part->unit->unsaved && e->quota_bytes == 0 && holder != ZD_HOLDER_NONE)
		status = zd_pool_take(e, NULL, group->job, part->shard.segment->device, ZD_PURPOSE_SAVES,
		                      zd_unit_shard_bytes(part->unit), ZD_BLOCK_MIN_ALIGN, &extent, NULL);
	if (status == ZD_WAIT)
		return false;
	if (status == 0)
		begin(e, part, extent);
	else
		zd_part_miss_save(e, part);
	return true;
}
