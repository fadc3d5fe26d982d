/* SPDX-License-Identifier: Apache-2.0 */
/* landing.c - see landing.h. */
#include "core/gather/landing.h"

#include <stdlib.h>

#include "core/gather/deferred.h"
#include "core/gather/gather.h"

/* A chunk has at least CHUNK_BYTES, or landing_chunk_bytes: the copies of a smaller chunk would cost the
 * engine more time than its pull. Each rank has a copy of each chunk. With many ranks a shard therefore has
 * fewer chunks. */
#define CHUNK_BYTES     (4ull << 20)
#define SHARD_CHUNKS    8u
#define TRANSFER_CHUNKS 32u

bool zd_landings_help(const struct zd_unit *unit, const struct zd_session *session)
{
	const struct zd_group *group = unit->group;
	uint64_t devices = 0, unreached = 0;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		devices |= 1ull << group->members[rank].device->index;
		unreached |= group->members[rank].device->config.unreached;
	}
	bool several = (devices & (devices - 1)) != 0;
	return unit->on_host && several && !(devices & unreached) && session->state == ZD_SESSION_OPEN &&
	       !session->strict;
}

struct zd_location zd_landing_location(const struct zd_landing *landing)
{
	struct zd_location at = zd_extent_location(&landing->extent);
	at.bytes = zd_unit_shard_bytes(landing->part->unit);
	return at;
}

/* ---- Chunks -------------------------------------------------------------------------------------------- */

static uint64_t chunk_bytes(const struct zd_engine *e, const struct zd_unit *unit)
{
	uint64_t least = e->landing_chunk_bytes ? e->landing_chunk_bytes : CHUNK_BYTES;
	uint64_t most = zd_min_u64(SHARD_CHUNKS,
	                           zd_max_u64(TRANSFER_CHUNKS / unit->group->local_world_size, 1));
	uint64_t bytes = (zd_unit_shard_bytes(unit) + most - 1) / most;
	return zd_align_up(zd_max_u64(bytes, least), ZD_BLOCK_MIN_ALIGN);
}

uint32_t zd_landing_chunks(const struct zd_engine *e, const struct zd_unit *unit)
{
	uint64_t bytes = chunk_bytes(e, unit);
	return (uint32_t)((zd_unit_shard_bytes(unit) + bytes - 1) / bytes);
}

struct zd_location zd_landing_chunk(const struct zd_engine *e, const struct zd_unit *unit,
                                    struct zd_location shard, uint32_t index)
{
	uint64_t bytes = chunk_bytes(e, unit), offset = index * bytes;
	shard.offset += offset;
	shard.bytes = zd_min_u64(bytes, zd_unit_shard_bytes(unit) - offset);
	return shard;
}

/* ---- The end ------------------------------------------------------------------------------------------- */

static void leave(struct zd_engine *e, struct zd_landing *landing)
{
	struct zd_unit *unit = landing->part->unit;
	zd_assert(landing->users > 0);
	if (--landing->users > 0)
		return;
	LIST_REMOVE(landing, unit_link);
	landing->device->quarantine_bytes -= landing->extent.bytes;
	zd_pool_free(e, &landing->extent);
	free(landing);
	zd_unit_unref(e, unit);
}

void zd_landings_leave(struct zd_engine *e, struct zd_buffer *buffer)
{
	for (uint32_t i = 0; i < buffer->plan.nsteps; i++) {
		struct zd_landing *landing = buffer->plan.steps[i].memory;
		buffer->plan.steps[i].memory = NULL;
		if (landing)
			leave(e, landing);
	}
}

/* ---- Pulls --------------------------------------------------------------------------------------------- */

static bool uses(const struct zd_buffer *buffer, const struct zd_landing *landing)
{
	for (uint32_t i = 0; buffer->unit == landing->part->unit && i < buffer->plan.nsteps; i++) {
		if (buffer->plan.steps[i].memory == landing)
			return true;
	}
	return false;
}

static bool is_awaited_in(const struct zd_session *session, const struct zd_landing *landing)
{
	const struct zd_buffer *buffer;
	TAILQ_FOREACH (buffer, &session->deferred, deferred_link) {
		if (uses(buffer, landing))
			return true;
	}
	return false;
}

/* All transfers that wait for chunks of the landing are promised. Some can be of sessions that have left the
 * group since. Only the first transfer of a session can start copies. */
static void notify(struct zd_engine *e, const struct zd_landing *landing)
{
	for (struct zd_session *session = e->sessions; session; session = session->hh.next) {
		const struct zd_buffer *first = TAILQ_FIRST(&session->deferred);
		if (!landing->failed && first && uses(first, landing))
			zd_deferred_go_on(e, session);
		else if (landing->failed && is_awaited_in(session, landing))
			zd_deferred_break(e, session);
	}
}

static void pulled(struct zd_engine *e, struct zd_op *op)
{
	struct zd_landing *landing = op->owner;
	struct zd_part *part = landing->part;
	if (op->status == 0)
		landing->landed |= 1ull << op->aux;
	else
		landing->failed = true;
	notify(e, landing);
	zd_part_reader_done(e, part);
	leave(e, landing); /* this can free the unit */
}

static void pull(struct zd_engine *e, struct zd_landing *landing)
{
	struct zd_part *part = landing->part;
	const struct zd_unit *unit = part->unit;
	uint32_t n = zd_landing_chunks(e, unit);
	landing->users += n;
	part->readers += n;
	for (uint32_t i = 0; i < n; i++) {
		struct zd_command command = {.kind = ZD_CMD_COPY, .device = landing->device->index};
		command.u.copy.src = zd_landing_chunk(e, unit, zd_part_location(part), i);
		command.u.copy.dst = zd_landing_chunk(e, unit, zd_landing_location(landing), i);
		command.u.copy.dst_device = landing->device->index;
		zd_op_submit(e, unit->group->job, &command, pulled, landing, i);
	}
}

/* ---- The begin ----------------------------------------------------------------------------------------- */

static struct zd_landing *find(const struct zd_part *part, const struct zd_buffer *buffer,
                               const struct zd_device *device)
{
	struct zd_landing *landing;
	LIST_FOREACH (landing, &part->unit->landings, unit_link) {
		if (landing->part == part && landing->version == buffer->version &&
		    landing->era == buffer->era && landing->device == device && !landing->failed)
			break;
	}
	return landing;
}

/* Takes a block of the device, if one is free at once and no request waits for memory. */
static bool take_block(struct zd_engine *e, const struct zd_unit *unit, struct zd_device *device,
                       struct zd_extent *extent)
{
	struct zd_job *job = unit->group->job;
	uint64_t bytes = zd_unit_shard_bytes(unit);
	if (!TAILQ_EMPTY(&device->queue) || !zd_pool_has(e, device, job, ZD_PURPOSE_GATHERS, bytes) ||
	    zd_pool_alloc(e, NULL, job, device, ZD_PURPOSE_GATHERS, bytes, ZD_BLOCK_MIN_ALIGN, extent,
	                  NULL) != 0)
		return false;
	device->quarantine_bytes += extent->bytes; /* not charged, and freed soon */
	return true;
}

static struct zd_landing *landing_new(struct zd_engine *e, const struct zd_buffer *buffer,
                                      struct zd_part *part, struct zd_device *device)
{
	struct zd_extent extent;
	if (!take_block(e, part->unit, device, &extent))
		return NULL;
	struct zd_landing *landing = zd_calloc(1, sizeof(*landing));
	landing->part = part;
	landing->version = buffer->version;
	landing->era = buffer->era;
	landing->device = device;
	landing->extent = extent;
	LIST_INSERT_HEAD(&part->unit->landings, landing, unit_link);
	part->unit->refs++;
	zd_extent_own(e, &landing->extent, ZD_BLOCK_LANDING, landing,
	              zd_member_use(zd_part_member(part), ZD_WORD_STAGING, part->unit->id));
	pull(e, landing);
	return landing;
}

/* Returns NULL if the landing has no memory: the device then copies the shard from the host when the transfer
 * starts. The device is that of the copy's timeline, because the part's rank can have another device by
 * now. */
static struct zd_landing *find_or_begin(struct zd_engine *e, struct zd_buffer *buffer,
                                        const struct zd_plan_step *step)
{
	struct zd_part *part = &buffer->unit->parts[step->source];
	struct zd_device *device = &e->devices[step->signal.timeline - ZD_TIMELINE_DEFERRED];
	struct zd_landing *landing = find(part, buffer, device);
	return landing ? landing : landing_new(e, buffer, part, device);
}

void zd_landings_join(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_landing *landing = NULL;
	zd_sm_move(&zd_sm_transfer, &buffer->phase, ZD_PHASE_JOINED);
	for (uint32_t i = 0; i < buffer->plan.nsteps; i++) {
		struct zd_plan_step *step = &buffer->plan.steps[i];
		if (step->index == 0) /* the other chunks of the shard follow */
			landing = find_or_begin(e, buffer, step);
		step->memory = landing;
		if (landing)
			landing->users++;
	}
}
