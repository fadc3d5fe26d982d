/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shadow.c - restores the last commit of groups with shadows.
 *
 * A part of such a group has a second block of the same size directly after its shard: its shadow. The
 * shard's address never changes. Copies are made at these events:
 *
 *   update_begin   shard -> shadow, once after each commit; the update is granted when the copy is complete
 *   commit         no copy: the shadows' contents become invalid, for all parts at once and in one step of
 *                  the engine
 *   rank lost      shadow -> shard for everything written since the last commit, on all ranks; no copy
 *                  while a commit is in doubt (update.c): shards and shadows remain until the daemons know
 *                  which of them is the last commit
 *
 * A whole copy of the last commit exists at every moment. A shard is written only while its part is SAVED (or
 * DUE, until its writer has stopped). A shadow is written only while it is FREE or SAVING, when the shard may
 * not be written. FREE follows SAVED only in a commit, which makes the shard's content the last commit. If
 * one or all ranks end, or a copy is interrupted, the other block is therefore whole.
 *
 * Versions are restored with the content and will be published a second time. Buffers of the undone versions
 * are therefore stale. Remaining ranks that had published an undone version, or can be writing, must not
 * continue as before: they gather, update and commit again after a reset of their sessions. Shards that they
 * can be writing are restored at the reset, at the rank's next publish, which is rejected, or when the rank
 * leaves.
 */
#include "core/cluster/cluster.h"
#include "core/gather/buffer.h"
#include "core/gather/commit.h"
#include "core/gather/deferred.h"

static void shadow_move(struct zd_part *part, enum zd_shadow_state to)
{
	zd_part_take_commits(part);
	zd_sm_move(&zd_sm_shadow, &part->shadow, to);
	zd_part_changed(part);
	zd_journal_part_state(part);
}

/* ---- Copies -------------------------------------------------------------------------------------------- */

static void copy(struct zd_engine *e, struct zd_part *part, bool to_shadow, zd_op_fn *done)
{
	struct zd_location shard = zd_part_location(part), shadow = shard;
	uint32_t device = part->shard.segment->device->index;
	struct zd_command command = {.kind = ZD_CMD_COPY, .device = device};
	shadow.offset += shadow.bytes;
	command.u.copy.src = to_shadow ? shard : shadow;
	command.u.copy.dst = to_shadow ? shadow : shard;
	command.u.copy.dst_device = device;
	part->readers++;
	zd_op_submit(e, part->unit->group->job, &command, done, part, 0);
}

static void save_done(struct zd_engine *e, struct zd_op *op)
{
	struct zd_part *part = op->owner;
	struct zd_request *req;
	shadow_move(part, op->status == 0 ? ZD_SHADOW_SAVED : ZD_SHADOW_FREE);
	TAILQ_FOREACH (req, &zd_part_member(part)->device->queue, device_link) {
		if (op->status == 0 || req->kind != ZD_REQ_UPDATE_BEGIN)
			continue;
		for (uint32_t i = 0; i < req->u.publish.nparts; i++) {
			if (req->u.publish.parts[i] == part)
				zd_request_fail(req, op->status, op->error);
		}
	}
	zd_part_reader_done(e, part);
}

void zd_shadow_save(struct zd_engine *e, struct zd_part *part)
{
	if (zd_part_shadow(part) != ZD_SHADOW_FREE || part->shadow_readers > 0)
		return;
	zd_assert(part->version == zd_part_committed(part) && part->state == ZD_PART_UPDATE_WAIT);
	shadow_move(part, ZD_SHADOW_SAVING);
	copy(e, part, true, save_done);
}

/* Other daemons do not know that this group is torn. The daemon therefore fails the group: the other daemons
 * learn it when all ranks join again. */
static void restore_failed(struct zd_engine *e, struct zd_part *part, int status, const char *error)
{
	struct zd_group *group = part->unit->group;
	struct zd_err err = ZD_ERR_NONE;
	group->torn = true;
	zd_journal_group_state(group);
	if (!group->cluster)
		return;
	status = zd_err_set(&err, status,
	                    "group '%.64s': rank %u's shard of unit '%.64s' was not restored: %s",
	                    group->name, zd_world_rank(zd_part_member(part)), part->unit->name, error);
	zd_cluster_fail(e, group, status, err.text);
}

/* A failed restore leaves the shard's content undefined. The shadow remains whole, for the next restore. */
static void restore_done(struct zd_engine *e, struct zd_op *op)
{
	struct zd_part *part = op->owner;
	if (op->status != 0)
		restore_failed(e, part, op->status, op->error);
	shadow_move(part, ZD_SHADOW_SAVED);
	for (uint32_t i = 0; i < e->ndevices; i++)
		zd_dirty(e, &e->devices[i]); /* a reset waits for all groups of its session */
	zd_part_reader_done(e, part);
}

void zd_shadow_try(struct zd_engine *e, struct zd_part *part)
{
	if (part->shadow != ZD_SHADOW_DUE || part->state == ZD_PART_DYING || zd_part_is_written(part) ||
	    part->readers > 0)
		return;
	shadow_move(part, ZD_SHADOW_RESTORING);
	copy(e, part, false, restore_done);
}

/* ---- The loss of a rank -------------------------------------------------------------------------------- */

/* Whether the buffer holds the last commit of every shard. */
static bool is_of_last_commit(const struct zd_buffer *buffer)
{
	for (uint32_t rank = 0; rank < buffer->unit->group->local_world_size; rank++) {
		if (zd_part_committed(&buffer->unit->parts[rank]) != buffer->version)
			return false;
	}
	return true;
}

void zd_shadow_roll_back_unit(struct zd_engine *e, struct zd_unit *unit)
{
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		struct zd_part *part = &unit->parts[rank];
		if (part->listed != ZD_PART_UNCOMMITTED || zd_part_missed_commit(part))
			continue;
		shadow_move(part, ZD_SHADOW_DUE);
		zd_deferred_unpublished(e, part);
		part->version = part->committed;
		zd_part_changed(part);
		zd_journal_part_state(part);
		/* a session that has joined as this rank since has published no version */
		if (part->state != ZD_PART_DETACHED)
			zd_part_member(part)->set_back = true;
	}
	unit->era++;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		struct zd_buffer *buffer = unit->parts[rank].buffer;
		if (buffer && !is_of_last_commit(buffer))
			buffer->stale = true;
		zd_shadow_try(e, &unit->parts[rank]);
	}
}

bool zd_shadow_roll_back(struct zd_engine *e, struct zd_group *group, uint32_t *budget)
{
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_part *part;
		while ((part = LIST_FIRST(&group->members[rank].uncommitted))) {
			if (!zd_ending_may_free(budget))
				return false;
			zd_shadow_roll_back_unit(e, part->unit);
		}
	}
	zd_dirty_group(e, group);
	return true;
}

bool zd_shadow_rolls_back(const struct zd_group *group)
{
	if (group->state == ZD_GROUP_READY || !zd_shadow_undoes(group))
		return false;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		if (group->members[rank].detaching)
			return true;
	}
	return false;
}

void zd_shadow_accept(struct zd_engine *e, struct zd_member *member)
{
	struct zd_part *part;
	if (member->group->shadow) /* the reset acknowledges the loss of a rank */
		member->told = member->group->generation;
	zd_member_note_told(member);
	member->set_back = false;
	LIST_FOREACH (part, &member->owed, commit_link) {
		if (part->shadow != ZD_SHADOW_DUE || part->state != ZD_PART_UPDATING)
			continue;
		zd_part_move(part, ZD_PART_IDLE);
		zd_shadow_try(e, part);
	}
}

int zd_shadow_undone(const struct zd_part *part, struct zd_err *err)
{
	const struct zd_group *group = part->unit->group;
	if (group->state == ZD_GROUP_ABORTED)
		return zd_group_check(group, err);
	return zd_err_set(err, ZEROD_E_PEER_LOST,
	                  "rank %u (pid %u) of group '%s' was lost during the update: unit '%s' is restored "
	                  "to step %llu",
	                  zd_group_lost(group)->rank, zd_group_lost(group)->pid, group->name,
	                  part->unit->name, (unsigned long long)group->committed_step);
}
