/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core_check.c - zd_engine_check(): computes states and sums again from the objects, and asserts invariants.
 */
#include "tests/support/core_check.h"

#include <string.h>
#include <utlist.h>

#include "core/cluster/cluster.h"
#include "core/gather/buffer.h"
#include "core/gather/collective.h"
#include "core/gather/deferred.h"
#include "core/gather/gather.h"
#include "core/gather/landing.h"
#include "core/gather/host_copy.h"
#include "core/gather/save.h"
#include "core/gather/scope.h"
#include "core/gather/commit.h"
#include "core/memory/allocation.h"
#include "core/reduce/bucket.h"
#include "core/reduce/member.h"
#include "core/reduce/reduce.h"
#include "core/reduce/slice.h"
#include "tests/support/core_check_parts.h"

/* Sums over the objects, by device. */
struct found {
	uint64_t (*charged)[ZD_NCHARGES];
	uint64_t *quarantine, *idle_slots;
	uint32_t scope_leases, context_parts;
};

static void check_extent(const struct zd_extent *extent, const struct zd_device *device,
                         const struct zd_job *job, enum zd_purpose purpose, enum zd_block_owner owner_type,
                         const void *owner)
{
	zd_assert(extent->segment && extent->block && !extent->block->free);
	zd_assert(extent->block->owner_type == owner_type && extent->block->owner == owner);
	zd_assert(extent->segment->device == device && extent->segment->job == job);
	zd_assert(extent->segment->purpose == purpose && extent->segment->state == ZD_SEGMENT_READY);
	zd_assert(extent->block->offset + extent->block->bytes <= extent->segment->bytes);
}

/* An extent of a gathered buffer or slot. */
static void check_gathered(const struct zd_engine *e, const struct zd_extent *extent, bool is_frame,
                           const struct zd_device *device, const struct zd_job *job,
                           enum zd_block_owner owner_type, const void *owner)
{
	enum zd_purpose purpose = is_frame ? ZD_PURPOSE_FRAMES : ZD_PURPOSE_GATHERS;
	zd_assert(extent->segment);
	if (extent->segment->purpose == ZD_PURPOSE_STRICT)
		purpose = ZD_PURPOSE_STRICT;
	check_extent(extent, device, job, purpose, owner_type, owner);
	zd_assert(purpose != ZD_PURPOSE_STRICT || e->strict_by_segment);
	if (zd_purpose_is_single(purpose))
		zd_assert(extent->block->bytes == extent->segment->bytes);
}

/* Each of its extents may be empty. */
static void check_space(const struct zd_engine *e, const struct zd_space *space, bool are_frames,
                        const struct zd_device *device, const struct zd_job *job,
                        enum zd_block_owner owner_type, const void *owner)
{
	if (space->low.bytes > 0)
		check_gathered(e, &space->low, are_frames, device, job, owner_type, owner);
	if (space->high.bytes > 0)
		check_gathered(e, &space->high, are_frames, device, job, owner_type, owner);
	zd_assert(are_frames || space->high.bytes == 0);
}

static void check_strict(const struct zd_engine *e, const struct zd_buffer *buffer)
{
	const struct zd_block *block = buffer->space.low.block;
	zd_assert(block->offset % ZD_STRICT_ALIGN_BYTES == 0);
	if (e->strict_by_segment)
		zd_assert(buffer->space.low.segment->purpose == ZD_PURPOSE_STRICT);
}

/* From its own part's publish on a buffer in place counts as a viewer, while it is leased or fences of past
 * leases are pending. check_part() asserts that a shard under update has no readers. */
static void check_in_place(const struct zd_buffer *buffer)
{
	const struct zd_part *part = buffer->part;
	bool frameless = zd_buffer_bytes(buffer) == 0, early = zd_deferred_awaits(buffer, part);
	bool viewed = buffer->own == ZD_OWN_VIEWED;
	zd_assert(frameless == (buffer->unit->group->nshards == 1) && (!frameless || !buffer->slot));
	zd_assert(!frameless || buffer->plan.left == (buffer->promise != NULL));
	zd_assert(frameless || !buffer->promise);
	zd_assert(part->readers >= part->viewers && part->viewers >= viewed);
	/* copies into frames may outlast the shard */
	if (viewed || early || buffer->state != ZD_BUFFER_QUARANTINED)
		zd_assert(part->shard.block &&
		          (frameless || part->shard.segment->purpose == ZD_PURPOSE_OWN_PARTS));
	if (early)
		zd_assert(!viewed && zd_part_is_publishing_version(part, buffer->version));
	else if (!TAILQ_EMPTY(&buffer->leases))
		zd_assert(viewed && (buffer->version == part->version || buffer->stale));
	else /* a process that leaves with a persistent buffer is watched, and reads no shard */
		zd_assert(!viewed || buffer->watches > 0);
}

/* Counts buffers of a version whose publish has failed: they may be read during the next update. */
static uint32_t count_stale_readers(const struct zd_part *part)
{
	const struct zd_buffer *buffer;
	uint32_t n = 0;
	TAILQ_FOREACH (buffer, &zd_part_member(part)->device->buffers, device_link)
		n += buffer->part == part && buffer->own == ZD_OWN_VIEWED && buffer->stale;
	return n;
}

static void check_phase(const struct zd_buffer *buffer)
{
	const struct zd_plan *plan = &buffer->plan;
	if (zd_gathers_are_collective(buffer->unit->group))
		zd_assert(!zd_transfer_is_deferred(buffer));
	else
		zd_assert(buffer->phase != ZD_PHASE_EXCHANGED);
	if (buffer->phase == ZD_PHASE_LANDING) /* no copy has begun */
		zd_assert(plan->left == 0 || plan->left == plan->nsteps);
}

/* A copy stays when its unit is moved to where it is gathered in place. */
static void check_current(const struct zd_engine *e, const struct zd_buffer *buffer)
{
	const struct zd_session *session = zd_part_member(buffer->part)->session;
	bool in_place = zd_part_is_in_place(buffer->part);
	zd_assert(session);
	if (zd_buffer_is_in_place(buffer) == in_place)
		zd_assert(zd_buffer_bytes(buffer) == zd_part_gathered_bytes(buffer->part));
	else
		zd_assert(in_place && buffer->unit->placed);
	if (session->strict)
		check_strict(e, buffer);
}

static void check_buffer(const struct zd_engine *e, const struct zd_buffer *buffer, struct found *found)
{
	const struct zd_lease *lease;
	uint32_t index = buffer->device->index;
	zd_assert(buffer->unit->refs > 0);
	if (buffer->former)
		zd_assert(buffer->former->heir == buffer);
	if (buffer->poison == ZD_POISON_FILLING)
		zd_assert(buffer->state == ZD_BUFFER_QUARANTINED && buffer->plan.left == 0 &&
		          buffer->watches == 0 && !buffer->former);
	if (buffer->poison != ZD_POISON_NONE)
		zd_assert(buffer->own == ZD_OWN_COPIED && !buffer->prefetched);
	check_phase(buffer);
	if (buffer->heir) { /* check_buffer() of the heir checks the memory */
		zd_assert(buffer->heir->former == buffer && buffer->heir->slot == buffer->slot);
		zd_assert(buffer->state == ZD_BUFFER_QUARANTINED && TAILQ_EMPTY(&buffer->leases));
		zd_assert(zd_buffer_is_in_use(buffer));
		return;
	}
	if (zd_buffer_is_in_place(buffer))
		check_in_place(buffer);
	check_space(e, &buffer->space, zd_buffer_is_in_place(buffer), buffer->device,
	            buffer->unit->group->job, buffer->slot ? ZD_BLOCK_SLOT : ZD_BLOCK_BUFFER,
	            buffer->slot ? (const void *)buffer->slot : buffer);
	zd_assert((buffer->plan.steps != NULL) == (buffer->plan.left > 0)); /* there may be many buffers */
	zd_plan_check(&buffer->plan);
	TAILQ_FOREACH (lease, &buffer->leases, link) {
		zd_assert(lease->uses > 0 && lease->tag[0] && lease->buffer == buffer);
		zd_assert((lease->tag[0] == ZD_RESERVED_TAG) == (lease->scope != NULL));
		found->scope_leases += lease->scope != NULL;
	}
	if (buffer->slot)
		zd_assert(buffer->slot->occupant == buffer &&
		          (zd_buffer_is_in_place(buffer) ? &buffer->slot->frames : &buffer->slot->copy)
		                          ->low.block == buffer->space.low.block);
	if (buffer->state == ZD_BUFFER_QUARANTINED) {
		zd_assert(TAILQ_EMPTY(&buffer->leases) && zd_buffer_is_in_use(buffer));
		found->quarantine[index] += buffer->slot ? 0 : zd_buffer_bytes(buffer);
		if (!buffer->slot && zd_buffer_bytes(buffer) > 0)
			zd_assert(*buffer->use_link.tqe_prev == buffer); /* of `formers` */
		return;
	}
	check_current(e, buffer);
	found->charged[index][ZD_CHARGE_GATHERED] += zd_buffer_bytes(buffer);
	zd_assert(buffer->part->buffer == buffer);
	zd_assert((buffer->state == ZD_BUFFER_INFLIGHT) == (buffer->plan.left > 0));
	/* A current buffer is leased, prefetched or persistent. */
	zd_assert(!TAILQ_EMPTY(&buffer->leases) || buffer->prefetched || buffer->part->persistent);
}

static void check_save(const struct zd_part *part, struct found *found)
{
	const struct zd_save *save = zd_save_of(part);
	if (!save)
		return;
	zd_assert(save->part == part && (!save->copying || part->readers + part->shadow_readers > 0));
	zd_assert(save->revoked ? save->copying || save->readers > 0
	                        : part->unit->group->pin.serial && !zd_part_is_gone(part));
	if (!save->extent.segment) /* missed */
		return;
	const struct zd_device *device = save->extent.segment->device;
	check_extent(&save->extent, device, part->unit->group->job, ZD_PURPOSE_SAVES, ZD_BLOCK_SAVE, save);
	found->quarantine[device->index] += save->extent.bytes;
}

static void check_part(const struct zd_part *part, struct found *found)
{
	const struct zd_member *member = zd_part_member(part);
	zd_shadow_check(part);
	found->context_parts += part->context != NULL;
	check_save(part, found);
	if (part->state == ZD_PART_ABSENT) {
		zd_assert(!part->context);
		zd_assert(!part->shard.block && !part->buffer && part->readers == 0 && part->viewers == 0 &&
		          part->shadow_readers == 0);
		return;
	}
	/* The rank of a DYING part may have joined again, on another device. */
	const struct zd_device *device = part->state == ZD_PART_DYING ? part->shard.segment->device
	                                                              : zd_part_memory(part);
	uint32_t index = device->index;
	check_extent(&part->shard, device, part->unit->group->job,
	             zd_unit_purpose(part->unit, device->config.host_memory), ZD_BLOCK_PART, part);
	zd_assert(part->shard.bytes == zd_unit_part_bytes(part->unit));
	if (part->state == ZD_PART_DYING) {
		zd_assert(part->readers + part->shadow_readers > 0 && !part->buffer);
		found->quarantine[index] += part->shard.bytes;
		return;
	}
	found->charged[index][ZD_CHARGE_SHARD] += part->shard.bytes;
	if (part->state == ZD_PART_DETACHED)
		/* the rank may have joined again, but has not registered the unit */
		zd_assert((part->unit->group->job->durable || part->unit->group->ends ||
		           zd_part_is_kept(part)) &&
		          !part->buffer);
	else
		zd_assert(member->session && !member->joining);
	if (part->context)
		zd_assert(part->context->context && part->context->member == member);
	/* A shard under update has no readers (exceptions: a load, an update granted early, stale buffers,
	 * the rest of a session that ends), and the outcome of a commit is not awaited. */
	if (zd_part_is_written(part))
		zd_assert((part->state == ZD_PART_LOADING || part->early || member->session->ends ||
		           member->detaching || part->readers == count_stale_readers(part)) &&
		          !part->unit->group->voted_step);
	zd_assert(!part->early || zd_part_is_written(part));
	if (part->buffer)
		zd_assert(part->buffer->part == part && part->buffer->state != ZD_BUFFER_QUARANTINED);
}

static void check_landings(const struct zd_unit *unit, struct found *found)
{
	const struct zd_landing *landing;
	LIST_FOREACH (landing, &unit->landings, unit_link) {
		zd_assert(landing->users > 0 && unit->on_host && landing->part->unit == unit);
		check_extent(&landing->extent, landing->device, unit->group->job, ZD_PURPOSE_GATHERS,
		             ZD_BLOCK_LANDING, landing);
		found->quarantine[landing->device->index] += landing->extent.bytes;
	}
}

static void check_unit(const struct zd_group *group, const struct zd_unit *unit, struct found *found)
{
	bool kept = false, registered = false;
	zd_assert(unit->group == group && unit->refs > 0 && unit->refs >= unit->registrations);
	zd_load_check(unit);
	zd_move_check(unit, found->charged, found->quarantine);
	zd_assert(unit->placed || unit->on_host == unit->first_on_host);
	check_landings(unit, found);
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		check_part(&unit->parts[rank], found);
		kept |= zd_part_is_kept(&unit->parts[rank]);
		registered |= zd_part_is_registered(&unit->parts[rank]);
		if (unit->parts[rank].collective)
			zd_collective_check(&unit->parts[rank]);
	}
	/* A shard is kept for ranks that can gather it. */
	zd_assert(!kept || registered || group->job->durable || group->ends);
}

static void check_host_copies(const struct zd_group *group, struct found *found)
{
	const struct zd_host_copy *copy;
	const struct zd_unit *unit;
	uint32_t nmissing = group->saved != NULL, nhere = 0;
	nmissing += group->saving != NULL;
	LIST_FOREACH (copy, &group->host_copies, link) {
		bool saved = group->saved == copy, saving = group->saving == copy;
		zd_assert(copy->group == group && !(saved && saving));
		zd_assert(saved || copy->requests + copy->copies > 0);
		zd_assert(!saving || (copy->requests > 0 && copy->status == 0));
		zd_assert(!saved || (copy->nplaced == copy->nunits && copy->unit == copy->nunits));
		zd_assert(saving || !copy->pinned.serial);
		nmissing -= saved || saving;
		for (uint32_t i = 0; i < copy->nplaced; i++) {
			const struct zd_copied_unit *to = &copy->units[i];
			const struct zd_device *device = to->extent.segment->device;
			check_extent(&to->extent, device, group->job, ZD_PURPOSE_HOST_COPIES,
			             ZD_BLOCK_HOST_COPY, to);
			zd_assert(device->config.host_memory && to->copy == copy);
			zd_assert(!saved || !to->unit || to->unit->host_copy == to);
			nhere += saved && to->unit;
			found->charged[device->index][ZD_CHARGE_ALLOCATION] += to->extent.bytes;
		}
	}
	TAILQ_FOREACH (unit, &group->units, group_link)
		nhere -= unit->host_copy != NULL;
	TAILQ_FOREACH (unit, &group->former, group_link)
		nhere -= unit->host_copy != NULL;
	zd_assert(nhere == 0 && nmissing == 0);
}

/* A rank's parts that are not gone are in one of its lists. */
static void check_lists(const struct zd_member *member)
{
	const struct zd_part *part;
	const struct zd_unit *unit;
	uint32_t nparts = 0;
	LIST_FOREACH (part, &member->parts, member_link) {
		zd_assert(zd_part_member(part) == member && !zd_part_is_gone(part));
		nparts++;
	}
	LIST_FOREACH (part, &member->detached, member_link) {
		zd_assert(zd_part_member(part) == member && part->state == ZD_PART_DETACHED);
		nparts++;
	}
	TAILQ_FOREACH (unit, &member->group->units, group_link)
		nparts -= !zd_part_is_gone(&unit->parts[member->rank]);
	zd_assert(nparts == 0);
	zd_assert(member->session || LIST_EMPTY(&member->parts));
	zd_assert(!member->ended || !member->session || member->detaching);
	zd_assert(!member->detaching || !TAILQ_EMPTY(&member->group->job->owner->endings));
	zd_assert(member->detaching || !member->session || LIST_EMPTY(&member->detached));
}

static void check_units(const struct zd_engine *e, const struct zd_group *group, struct found *found)
{
	const struct zd_unit *unit;
	uint32_t nunits = 0, nformer = 0;
	TAILQ_FOREACH (unit, &group->units, group_link) {
		zd_assert(!unit->is_former && zd_unit_find(e, unit->id) == unit &&
		          zd_unit_find_name(group, unit->name, false) == unit);
		check_unit(group, unit, found);
		nunits++;
	}
	TAILQ_FOREACH (unit, &group->former, group_link) {
		zd_assert(unit->is_former && zd_unit_is_left(unit));
		check_unit(group, unit, found);
		nformer++;
	}
	zd_commit_check(group);
	zd_assert(nunits == group->nunits && nunits + nformer == group->unit_names.nnodes);
}

static void check_group(struct zd_engine *e, struct zd_group *group, struct found *found)
{
	uint32_t attached = 0;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_member *member = &group->members[rank];
		const struct zd_slot *slot;
		attached += member->session != NULL;
		zd_assert(!member->session || zd_member_of(e, member->session, group) == member);
		zd_assert(member->untold == (member->session && member->told != group->generation));
		check_lists(member);
		TAILQ_FOREACH (slot, &member->slots, link) {
			zd_assert(member->session && !slot->orphan && slot->member == member);
			{
				check_space(e, &slot->copy, false, member->device, group->job, ZD_BLOCK_SLOT,
				            slot);
				check_space(e, &slot->frames, true, member->device, group->job, ZD_BLOCK_SLOT,
				            slot);
			}
		}
	}
	zd_assert(attached == group->attached && group->refs >= attached);
	zd_assert(!group->over || attached == 0);
	if (group->state == ZD_GROUP_READY)
		zd_assert(attached == group->local_world_size && group->loss == group->generation);
	zd_assert(group->loss <= group->generation);
	if (group->cluster)
		zd_cluster_check_members(group);
	zd_barrier_check(group);
	check_host_copies(group, found);
	check_units(e, group, found);
	zd_reduce_check(group, found->charged, found->quarantine);
}

/* Sums up the idle bytes of slots, orphans included. */
static void find_slots(struct zd_engine *e, struct found *found)
{
	const struct zd_group *group;
	for (group = e->groups; group; group = group->hh.next) {
		for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
			const struct zd_slot *slot;
			TAILQ_FOREACH (slot, &group->members[rank].slots, link) {
				const struct zd_buffer *occupant = slot->occupant;
				bool used = occupant && occupant->state != ZD_BUFFER_QUARANTINED;
				found->idle_slots[slot->device->index] +=
				        zd_slot_bytes(slot) - (used ? zd_buffer_bytes(occupant) : 0);
			}
		}
	}
	for (uint32_t i = 0; i < e->ndevices; i++) {
		const struct zd_buffer *buffer;
		TAILQ_FOREACH (buffer, &e->devices[i].buffers, device_link) {
			if (buffer->slot && buffer->slot->orphan && buffer->slot->occupant == buffer)
				found->idle_slots[i] += zd_slot_bytes(buffer->slot);
		}
	}
}

/* A segment that retires has no blocks, and none is mapped while its executor destroys it. */
static uint64_t check_retiring(const struct zd_segment *segment)
{
	const struct zd_mapping *mapping;
	TAILQ_FOREACH (mapping, &segment->mappings, segment_link)
		zd_assert(mapping->segment == segment && segment->state != ZD_SEGMENT_CREATING);
	if (segment->state != ZD_SEGMENT_RETIRING && segment->state != ZD_SEGMENT_DESTROYING)
		return 0;
	zd_assert(zd_block_used_bytes(segment->range) == 0);
	zd_assert((segment->state == ZD_SEGMENT_DESTROYING) == TAILQ_EMPTY(&segment->mappings));
	return segment->bytes;
}

/* Returns how many requests and slices wait for the segment. */
static uint32_t count_waiting(const struct zd_engine *e, const struct zd_segment *segment)
{
	const struct zd_request *req;
	const struct zd_slice *slice;
	uint32_t count = 0;
	for (uint32_t i = 0; i < e->ndevices; i++) {
		TAILQ_FOREACH (req, &e->devices[i].queue, device_link)
			count += req->segment_wait == segment->id;
		DL_FOREACH(e->devices[i].staging_queue, slice)
		count += slice->segment_wait == segment->id;
	}
	return count;
}

/* Returns the segment's bytes if it is empty. */
static uint64_t check_empty(const struct zd_engine *e, const struct zd_segment *segment)
{
	uint64_t key = segment->by_device.id;
	uint32_t device = segment->device->index;
	bool empty = segment->state == ZD_SEGMENT_READY && zd_block_used_bytes(segment->range) == 0 &&
	             segment->nwaiting == 0;
	zd_assert(segment->nwaiting == count_waiting(e, segment));
	zd_assert(empty == (key != 0));
	if (!empty)
		return 0;
	zd_assert(segment->by_job.id == key && key >> 63 == !TAILQ_EMPTY(&segment->mappings));
	zd_assert(zd_id_tree_after(&segment->device->empty, key - 1) == &segment->by_device);
	zd_assert(zd_id_tree_after(&segment->job->pools[device].empty, key - 1) == &segment->by_job);
	return segment->bytes;
}

/* Blocks are allocated from segments that offer some. */
static void check_offers(const struct zd_segment *segment)
{
	bool single = zd_purpose_is_single(segment->purpose), used = zd_block_used_bytes(segment->range) > 0;
	zd_assert(segment->is_held == (segment->state <= ZD_SEGMENT_READY));
	zd_assert((segment->offered != NULL) == (single && segment->is_held && !used));
}

/* Returns how many of the device's requests wait for memory. */
static uint32_t check_queue(struct zd_engine *e, const struct zd_device *device)
{
	const struct zd_owner_queue *queue;
	const struct zd_request *req;
	uint32_t waiters = 0, nqueued = 0;
	TAILQ_FOREACH (req, &device->queue, device_link) {
		zd_assert(req->queued && req->device == device && req->wait.kind != ZD_WAIT_NONE);
		zd_assert(!req->cancelled && zd_session_find(e, req->session->id) == req->session);
		waiters += req->wants_memory;
		nqueued++;
		zd_assert(!req->deadline_at || e->deadlines.heap[req->deadline_at - 1] == req);
	}
	zd_assert(nqueued == device->nqueued);
	TAILQ_FOREACH (queue, &device->owners, link) {
		zd_assert(!TAILQ_EMPTY(&queue->requests) && (queue->walks || !queue->next));
		TAILQ_FOREACH (req, &queue->requests, owner_link)
			nqueued--;
	}
	zd_assert(nqueued == 0);
	return waiters;
}

static void check_device(struct zd_engine *e, struct zd_device *device, struct found *found)
{
	uint64_t segment_bytes = 0, block_bytes = 0, retiring_bytes = 0, listed_bytes = 0, empty_bytes = 0,
	         charged = 0;
	uint32_t waiters = check_queue(e, device), nbuffers = 0, i = device->index;
	const struct zd_buffer *buffer;
	const struct zd_segment *segment;
	TAILQ_FOREACH (segment, &device->segments, device_link) {
		zd_block_range_check(segment->range);
		segment_bytes += segment->bytes;
		block_bytes += zd_block_used_bytes(segment->range);
		retiring_bytes += check_retiring(segment);
		empty_bytes += check_empty(e, segment);
		check_offers(segment);
	}
	TAILQ_FOREACH (segment, &device->retiring, retiring_link)
		listed_bytes += segment->bytes;
	zd_assert(retiring_bytes == device->retiring_bytes && retiring_bytes == listed_bytes);
	zd_assert(empty_bytes == device->empty_bytes);
	zd_assert(segment_bytes == device->segment_bytes && segment_bytes <= device->config.arena_bytes);
	for (uint32_t kind = 0; kind < ZD_NCHARGES; kind++) {
		zd_assert(found->charged[i][kind] == device->account.bytes[kind]);
		charged += device->account.bytes[kind];
	}
	zd_assert(charged == device->account.total);
	zd_assert(found->quarantine[i] == device->quarantine_bytes);
	zd_assert(found->idle_slots[i] == device->idle_slot_bytes);
	zd_assert(block_bytes == charged + device->quarantine_bytes + device->idle_slot_bytes);
	zd_assert(device->account.bytes[ZD_CHARGE_STAGING] == device->staging_bytes);
	TAILQ_FOREACH (buffer, &device->buffers, device_link)
		nbuffers++;
	zd_assert(nbuffers == device->nbuffers);
	zd_assert(waiters == device->memory_waiters);
	for (const struct zd_owner *owner = e->owners; owner; owner = owner->hh.next)
		waiters -= owner->queues[i].nwaiters;
	zd_assert(waiters == 0);
	zd_assert(!device->favoured || device->favoured->wants_memory);
}

/* Every object is listed once, by ascending id. */
static void check_listed(const struct zd_id_tree *tree, uint32_t count)
{
	const struct zd_id_node *last = NULL;
	for (const struct zd_id_node *node = zd_id_tree_after(tree, 0); node; node = zd_id_tree_next(node)) {
		zd_assert(count > 0 && (!last || node->id > last->id));
		last = node;
		count--;
	}
	zd_assert(count == 0 && tree->last == last);
}

static void check_tables(const struct zd_engine *e)
{
	uint32_t nqueued = zd_commit_waits(e)->nqueued, nbuffers = 0;
	for (uint32_t i = 0; i < e->ndevices; i++) {
		nqueued += e->devices[i].nqueued;
		nbuffers += e->devices[i].nbuffers;
	}
	check_listed(&e->waiting, nqueued);
	check_listed(&e->listed[ZD__TABLE__BUFFERS], nbuffers);
	check_listed(&e->listed[ZD__TABLE__JOBS], HASH_COUNT(e->jobs));
	check_listed(&e->listed[ZD__TABLE__SESSIONS], HASH_COUNT(e->sessions));
	check_listed(&e->listed[ZD__TABLE__GROUPS], HASH_COUNT(e->groups));
	check_listed(&e->listed[ZD__TABLE__UNITS], e->units.nnodes);
	check_listed(&e->listed[ZD__TABLE__ALLOCATIONS], HASH_COUNT(e->allocations));
	check_listed(&e->listed[ZD__TABLE__SCOPES], HASH_COUNT(e->scopes));
	check_listed(&e->listed[ZD__TABLE__SEGMENTS], HASH_COUNT(e->segments));
}

/* A scope's leases are its rank's, one for each unit, on current buffers. Returns the number of units that
 * its context has not gathered yet. */
static uint32_t check_scope(const struct zd_scope *scope)
{
	const struct zd_lease *lease;
	const struct zd_request *req;
	uint32_t nleases = 0, missing = 0;
	zd_assert(scope->refs > 0 && scope->state != ZD_SCOPE_ENDED && !scope->ending);
	zd_assert(scope->member->session);
	zd_assert(scope->context ? scope->state != ZD_SCOPE_CLAIMED && !scope->parent
	                         : scope->state != ZD_SCOPE_GATHERING);
	TAILQ_FOREACH (lease, &scope->leases, scope_link) {
		zd_assert(lease->scope == scope && lease->uses == 1 && strcmp(lease->tag, scope->tag) == 0);
		zd_assert(lease->buffer->state != ZD_BUFFER_QUARANTINED);
		zd_assert(zd_lease_find(lease->buffer, scope->tag) == lease);
		zd_assert(zd_part_member(lease->buffer->part) == scope->member);
		zd_assert(!scope->context || lease->buffer->part->context == scope);
		nleases++;
	}
	zd_assert(nleases == scope->nleases);
	if (scope->state != ZD_SCOPE_GATHERING)
		return 0;
	TAILQ_FOREACH (req, &scope->member->session->requests, session_link) {
		if (req->kind == ZD_REQ_CONTEXT_BEGIN && req->u.gather.scope == scope)
			missing += req->u.gather.nparts - req->u.gather.nheld;
	}
	zd_assert(missing > 0); /* otherwise its request would have ended */
	return missing;
}

static void check_scopes(struct zd_engine *e, const struct found *found)
{
	uint32_t nscopes = 0, nleases = 0, ncontext_parts = 0;
	for (const struct zd_scope *scope = e->scopes; scope; scope = scope->hh.next) {
		ncontext_parts += check_scope(scope) + (scope->context ? scope->nleases : 0);
		nleases += scope->nleases;
	}
	for (const struct zd_group *group = e->groups; group; group = group->hh.next) {
		for (uint32_t rank = 0; rank < group->local_world_size; rank++)
			nscopes += group->members[rank].nscopes;
	}
	zd_assert(nscopes == HASH_COUNT(e->scopes));
	zd_assert(nleases == found->scope_leases && ncontext_parts == found->context_parts);
}

static void check_job(const struct zd_job *job)
{
	const struct zd_group *group;
	zd_assert(job->refs > 0);
	if (job->durable || job->ends)
		return;
	/* A job without sessions is charged for allocations at most. */
	TAILQ_FOREACH (group, &job->groups, job_link) {
		if (group->attached > 0)
			return;
	}
	for (uint32_t kind = 0; kind < ZD_NCHARGES; kind++)
		zd_assert(kind == ZD_CHARGE_ALLOCATION || job->account.bytes[kind] == 0);
}

static void check_jobs(struct zd_engine *e)
{
	uint32_t ndurable = 0;
	for (const struct zd_job *job = e->jobs; job; job = job->hh.next) {
		zd_assert(zd_job_find(e, job->owner->uid, job->name) == job);
		ndurable += job->durable;
		check_job(job);
	}
	zd_assert(ndurable == e->ndurable);
}

/* ---- Metadata ------------------------------------------------------------------------------------------ */

static void find(const struct zd_job *job, uint64_t bytes)
{
	job->owner->found_bytes += bytes;
}

static void find_of_sessions(const struct zd_engine *e)
{
	const struct zd_request *req;
	for (const struct zd_session *session = e->sessions; session; session = session->hh.next) {
		zd_assert(session->owner->uid == session->uid);
		session->owner->found_bytes += ZD_SESSION_METADATA_BYTES;
		TAILQ_FOREACH (req, &session->requests, session_link)
			session->owner->found_bytes += req->metadata_bytes;
	}
}

static void find_of_groups(const struct zd_engine *e)
{
	for (const struct zd_group *group = e->groups; group; group = group->hh.next) {
		const struct zd_host_copy *copy;
		const struct zd_unit *unit;
		find(group->job, group->metadata_bytes);
		LIST_FOREACH (copy, &group->host_copies, link)
			find(group->job, zd_host_copy_metadata_bytes(copy));
		TAILQ_FOREACH (unit, &group->units, group_link)
			find(group->job, unit->metadata_bytes);
		TAILQ_FOREACH (unit, &group->former, group_link)
			find(group->job, unit->metadata_bytes);
	}
	for (const struct zd_bucket *bucket = e->buckets; bucket; bucket = bucket->hh.next)
		find(bucket->mr->member->group->job, sizeof(*bucket));
	for (const struct zd_scope *scope = e->scopes; scope; scope = scope->hh.next)
		find(scope->member->group->job, sizeof(*scope));
}

static void find_of_device(const struct zd_device *device)
{
	const struct zd_segment *segment;
	const struct zd_mapping *mapping;
	const struct zd_buffer *buffer;
	const struct zd_lease *lease;
	TAILQ_FOREACH (segment, &device->segments, device_link) {
		find(segment->job, zd_segment_metadata_bytes(segment));
		TAILQ_FOREACH (mapping, &segment->mappings, segment_link)
			mapping->session->owner->found_bytes += sizeof(*mapping);
	}
	TAILQ_FOREACH (buffer, &device->buffers, device_link) {
		find(buffer->unit->group->job, sizeof(*buffer));
		TAILQ_FOREACH (lease, &buffer->leases, link)
			find(buffer->unit->group->job, sizeof(*lease));
	}
}

/* The ended jobs whose segments retire. */
static uint32_t count_over(const struct zd_engine *e)
{
	uint32_t count = 0;
	for (const struct zd_segment *segment = e->segments; segment; segment = segment->hh.next) {
		const struct zd_segment *first = e->segments;
		while (first->job != segment->job)
			first = first->hh.next;
		count += segment->job->over && first == segment;
		zd_assert(!segment->job->over || segment->state >= ZD_SEGMENT_RETIRING);
	}
	return count;
}

/* Each uid's metadata is the sum of what its objects hold; each account is of a job or session. */
static void check_owners(struct zd_engine *e)
{
	uint32_t refs = 0;
	struct zd_owner *owner;
	zd_owned_segments_check(e);
	for (owner = e->owners; owner; owner = owner->hh.next)
		owner->found_bytes = 0;
	find_of_sessions(e);
	for (const struct zd_job *job = e->jobs; job; job = job->hh.next)
		find(job, job->metadata_bytes);
	find_of_groups(e);
	for (const struct zd_used_id *used = e->used_ids; used; used = used->hh.next)
		used->owner->found_bytes += sizeof(*used);
	for (const struct zd_allocation *a = e->allocations; a; a = a->hh.next)
		find(a->job, ZD_ALLOCATION_METADATA_BYTES);
	for (const struct zd_op *op = e->ops; op; op = op->hh.next) {
		if (op->job)
			find(op->job, op->metadata_bytes);
	}
	for (uint32_t i = 0; i < e->ndevices; i++)
		find_of_device(&e->devices[i]);
	for (owner = e->owners; owner; owner = owner->hh.next) {
		zd_assert(owner->found_bytes == owner->metadata_bytes);
		refs += owner->refs;
	}
	zd_assert(refs == HASH_COUNT(e->jobs) + count_over(e) + HASH_COUNT(e->sessions) +
	                          HASH_COUNT(e->used_ids) + e->nendings);
}

static void check_endings(const struct zd_engine *e)
{
	const struct zd_ending *ending;
	uint32_t nclosing = 0, nendings = 0;
	for (const struct zd_session *session = e->sessions; session; session = session->hh.next) {
		nclosing += session->state == ZD_SESSION_CLOSING;
		zd_assert(!session->ends ||
		          (session->state == ZD_SESSION_CLOSING && TAILQ_EMPTY(&session->requests)));
	}
	for (const struct zd_owner *owner = e->owners; owner; owner = owner->hh.next)
		TAILQ_FOREACH (ending, &owner->endings, link)
			nendings++;
	zd_assert(nclosing == e->nclosing && nendings == e->nendings);
}

void zd_engine_check(struct zd_engine *e)
{
	struct found found = {.scope_leases = 0};
	found.charged = zd_calloc(e->ndevices, sizeof(*found.charged));
	found.quarantine = zd_calloc(e->ndevices, sizeof(uint64_t));
	found.idle_slots = zd_calloc(e->ndevices, sizeof(uint64_t));
	for (uint32_t i = 0; i < e->ndevices; i++) {
		const struct zd_buffer *buffer;
		TAILQ_FOREACH (buffer, &e->devices[i].buffers, device_link)
			check_buffer(e, buffer, &found);
	}
	for (struct zd_group *group = e->groups; group; group = group->hh.next)
		check_group(e, group, &found);
	for (const struct zd_allocation *a = e->allocations; a; a = a->hh.next) {
		if (!a->extent.block)
			continue;
		check_extent(&a->extent, a->device, a->job, ZD_PURPOSE_ALLOCATIONS, ZD_BLOCK_ALLOCATION, a);
		zd_assert(!a->durable || a->job->durable || a->job->ends);
		if (a->session || a->durable)
			found.charged[a->device->index][ZD_CHARGE_ALLOCATION] += a->extent.bytes;
		else
			found.quarantine[a->device->index] += a->extent.bytes;
	}
	for (const struct zd_session *session = e->sessions; session; session = session->hh.next) {
		zd_relays_check(session);
		zd_deferred_check(session);
	}
	check_scopes(e, &found);
	find_slots(e, &found);
	for (uint32_t i = 0; i < e->ndevices; i++)
		check_device(e, &e->devices[i], &found);
	zd_assert(check_queue(e, zd_commit_waits(e)) == 0);
	check_jobs(e);
	check_owners(e);
	check_tables(e);
	/* The steps of an end mark devices, and its last one tries the requests that wait; zd_engine_resume()
	 * does after several completions. */
	zd_assert((e->dirty_mask == 0 && !e->commits_dirty) || e->nendings > 0 || e->settling);
	check_endings(e);
	free(found.charged);
	free(found.quarantine);
	free(found.idle_slots);
}

void zd_engine_journal_all(struct zd_engine *e)
{
	const uint8_t *cleared;
	(void)zd_engine_journal_take(e, &cleared);
	zd_engine_journal_begin(e);
	(void)zd_engine_journal_step(e, UINT32_MAX);
}
