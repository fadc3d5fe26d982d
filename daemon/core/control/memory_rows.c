/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_rows.c - rows of segments and blocks: what a device's arena holds, and for which objects.
 */
#include "core/control/memory_rows.h"

#include <stdio.h>

#include "core/control/control.h"
#include "core/gather/buffer.h"
#include "core/gather/host_copy.h"
#include "core/gather/landing.h"
#include "core/gather/save.h"
#include "core/memory/allocation.h"
#include "core/reduce/storage.h"

#define PLURAL(count) ((count) == 1 ? "" : "s")
#define MOST_LEASES   64u /* counted at most */

static const char *purpose_name(enum zd_purpose purpose)
{
	static const char *const names[ZD_NPURPOSES] = {
	        [ZD_PURPOSE_SHARDS] = "shards",           [ZD_PURPOSE_GATHERS] = "gathers",
	        [ZD_PURPOSE_STRICT] = "strict",           [ZD_PURPOSE_GRADIENTS] = "gradients",
	        [ZD_PURPOSE_ALLOCATIONS] = "allocations", [ZD_PURPOSE_OWN_PARTS] = "own parts",
	        [ZD_PURPOSE_FRAMES] = "frames",           [ZD_PURPOSE_SAVES] = "saves",
	        [ZD_PURPOSE_HOST_COPIES] = "host copies",
	};
	return names[purpose];
}

void zd_segment_row(const struct zd_segment *segment, Zd__SegmentRow *row, char text[ZD_WAIT_TEXT])
{
	const struct zd_mapping *mapping;
	row->id = segment->id;
	row->state = (char *)zd_sm_name(&zd_sm_segment, segment->state);
	row->device = segment->device->index;
	row->bytes = segment->bytes;
	row->used_bytes = zd_block_used_bytes(segment->range);
	row->job = segment->job->name;
	row->purpose = (char *)purpose_name(segment->purpose);
	/* They are of one job's sessions: at most ZD_MAX_WORLD for each of its groups. */
	TAILQ_FOREACH (mapping, &segment->mappings, segment_link)
		row->mappings++;
	mapping = TAILQ_FIRST(&segment->mappings);
	if (segment->state != ZD_SEGMENT_RETIRING || !mapping)
		return;
	(void)snprintf(text, ZD_WAIT_TEXT, "%u session%s to unmap it, first session %llu (pid %u)",
	               row->mappings, PLURAL(row->mappings), ZD_ID_NUMBER(mapping->session->id),
	               mapping->session->pid);
	row->pins = text;
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

static void name_member(Zd__BlockRow *row, const struct zd_member *member)
{
	row->job = member->group->job->name;
	row->group = member->group->name;
	row->rank = zd_world_rank(member);
}

static void part_row(Zd__BlockRow *row, const struct zd_part *part, char text[ZD_WAIT_TEXT])
{
	name_member(row, zd_part_member(part));
	row->name = part->unit->name;
	row->state = (char *)zd_sm_name(&zd_sm_part, part->state);
	row->purpose = (char *)(part->unit->group->shadow ? "shard and shadow" : "shard");
	if (part->readers > 0)
		(void)snprintf(text, ZD_WAIT_TEXT, "copies, fills and holds: %u", part->readers);
}

/* Leases pin a buffer until their release. Then the fences that it waits for do. */
static void buffer_row(Zd__BlockRow *row, const struct zd_buffer *buffer, char text[ZD_WAIT_TEXT])
{
	const struct zd_lease *lease;
	unsigned count = 0;
	row->name = buffer->unit->name;
	row->state = (char *)zd_sm_name(&zd_sm_buffer, buffer->state);
	TAILQ_FOREACH (lease, &buffer->leases, link) {
		if (++count == MOST_LEASES)
			break;
	}
	if (count > 0)
		(void)snprintf(text, ZD_WAIT_TEXT, "%u%s lease%s", count,
		               count == MOST_LEASES ? " or more" : "", PLURAL(count));
	else if (buffer->state != ZD_BUFFER_QUARANTINED && buffer->part->persistent)
		(void)snprintf(text, ZD_WAIT_TEXT, "its unit is persistent");
	else
		zd_buffer_wait_text(buffer, text);
}

static void storage_row(Zd__BlockRow *row, const struct zd_storage *storage, char text[ZD_WAIT_TEXT])
{
	name_member(row, storage->member);
	row->state = (char *)(storage->dropped ? "DROPPED" : "USED");
	row->purpose = (char *)(storage->charge == ZD_CHARGE_BUCKET    ? "bucket"
	                        : storage->charge == ZD_CHARGE_STAGING ? "staging"
	                                                               : "target");
	if (storage->uses > 0)
		(void)snprintf(text, ZD_WAIT_TEXT, "%u operation%s", storage->uses, PLURAL(storage->uses));
}

static void allocation_row(Zd__BlockRow *row, const struct zd_allocation *allocation, char text[ZD_WAIT_TEXT])
{
	row->name = (char *)allocation->name;
	row->state = (char *)(allocation->session ? "USED" : allocation->durable ? "DETACHED" : "FREED");
	row->purpose = (char *)"allocation";
	if (allocation->session)
		(void)snprintf(text, ZD_WAIT_TEXT, "session %llu (pid %u)",
		               ZD_ID_NUMBER(allocation->session->id), allocation->session->pid);
	else if (allocation->pending > 0)
		(void)snprintf(text, ZD_WAIT_TEXT, "fences and fills: %u", allocation->pending);
}

static void slot_row(Zd__BlockRow *row, const struct zd_slot *slot, char text[ZD_WAIT_TEXT])
{
	name_member(row, slot->member);
	row->state = (char *)"EMPTY";
	row->purpose = (char *)"slot";
	if (slot->occupant)
		buffer_row(row, slot->occupant, text);
	else
		(void)snprintf(text, ZD_WAIT_TEXT, "slot %u of the rank", slot->number);
}

void zd_block_row(const struct zd_segment *segment, const struct zd_block *block, Zd__BlockRow *row,
                  char text[ZD_WAIT_TEXT])
{
	row->offset = block->offset;
	row->bytes = block->bytes;
	row->free = block->free;
	row->pins = text;
	if (block->free)
		return;
	row->job = segment->job->name;
	switch ((enum zd_block_owner)block->owner_type) {
	case ZD_BLOCK_PART:
		part_row(row, block->owner, text);
		break;
	case ZD_BLOCK_BUFFER: {
		const struct zd_buffer *buffer = block->owner;
		row->group = buffer->unit->group->name;
		row->rank = zd_world_rank(zd_part_member(buffer->part));
		row->purpose = (char *)(zd_buffer_is_in_place(buffer) ? "frame" : "gathered");
		buffer_row(row, buffer, text);
		break;
	}
	case ZD_BLOCK_SLOT:
		slot_row(row, block->owner, text);
		break;
	case ZD_BLOCK_STORAGE:
		storage_row(row, block->owner, text);
		break;
	case ZD_BLOCK_ALLOCATION:
		allocation_row(row, block->owner, text);
		break;
	case ZD_BLOCK_LANDING: {
		const struct zd_landing *landing = block->owner;
		row->group = landing->part->unit->group->name;
		row->rank = zd_world_rank(zd_part_member(landing->part));
		row->purpose = (char *)"staging";
		break;
	}
	case ZD_BLOCK_SAVE: {
		const struct zd_save *save = block->owner;
		const struct zd_group *group = save->part->unit->group;
		const struct zd_pin *pin = &group->pin;
		bool is_copied = group->saving && group->saving->pinned.serial == pin->serial;
		name_member(row, zd_part_member(save->part));
		row->name = save->part->unit->name;
		row->state = (char *)(save->copying ? "SAVING" : "SAVED");
		row->purpose = (char *)"save";
		if (!save->revoked)
			(void)snprintf(text, ZD_WAIT_TEXT, "step %llu, pinned by %u session%s%s",
			               (unsigned long long)pin->step, pin->owners - is_copied,
			               PLURAL(pin->owners - is_copied), is_copied ? " and a host copy" : "");
		break;
	}
	case ZD_BLOCK_HOST_COPY: {
		const struct zd_copied_unit *unit = block->owner;
		const struct zd_host_copy *copy = unit->copy;
		bool saved = copy->group->saved == copy, saving = copy->group->saving == copy;
		row->name = (saved || saving) && unit->unit ? unit->unit->name : NULL;
		row->state = (char *)(saved ? "SAVED" : saving ? "SAVING" : "DROPPED");
		row->purpose = (char *)"host copy"; /* of no rank, and so without a group */
		(void)snprintf(text, ZD_WAIT_TEXT, "step %llu of group %s, %u cop%s under way",
		               (unsigned long long)copy->step, copy->group->name, copy->copies,
		               copy->copies == 1 ? "y" : "ies");
		break;
	}
	case ZD_BLOCK_NOBODY:
		break;
	}
}
