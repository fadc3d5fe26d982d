/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_copies.c - the planner of gathers inside one daemon: the device of each shard copies it. For a shard
 * in host memory this is the device of the buffer. A small own slice is copied by the device of a neighbour's
 * shard, in one group with that shard. The buffer's device would copy it after the trainer's kernels, and
 * with its own stores and fence.
 *
 * No copy depends on another one. If a shard is being published, or the buffer's memory is still in use, the
 * whole transfer is deferred (deferred.h), and its copies signal their own timelines.
 */
#include "core/gather/buffer.h"
#include "core/gather/deferred.h"
#include "core/gather/landing.h"
#include "core/gather/transfer.h"

#define SMALL_BYTES (4ull << 20) /* of an own slice; a larger one would delay the neighbour's shard */

static bool reaches(const struct zd_device *device, const struct zd_device *other)
{
	return !(device->config.unreached >> other->index & 1);
}

/* Returns the device that copies the part's shard into the buffer. */
static uint32_t copy_device(const struct zd_buffer *buffer, const struct zd_part *part)
{
	const struct zd_unit *unit = buffer->unit;
	const struct zd_device *from = part->shard.segment->device, *to = buffer->device;
	if (from == to && zd_unit_shard_bytes(unit) <= SMALL_BYTES) {
		for (uint32_t i = 1; i < unit->group->local_world_size; i++) {
			uint32_t rank = (part->rank + i) % unit->group->local_world_size;
			const struct zd_device *other = unit->parts[rank].shard.segment->device;
			if (other != to && !other->config.host_memory && reaches(to, other) &&
			    reaches(other, to))
				return other->index;
		}
	}
	return zd_copy_device(from, to);
}

static uint32_t timelines_of(const struct zd_buffer *buffer)
{
	return zd_transfer_is_deferred(buffer) ? ZD_TIMELINE_DEFERRED : ZD_TIMELINE_COPIES;
}

void zd_transfer_add_copies(struct zd_buffer *buffer)
{
	struct zd_session *session = zd_part_member(buffer->part)->session;
	const struct zd_unit *unit = buffer->unit;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		struct zd_part *source = &unit->parts[rank];
		struct zd_plan_step step = {.kind = ZD_TRANSFER_COPY, .source = rank};
		bool is_own = zd_buffer_is_in_place(buffer) && source == buffer->part;
		if (source->version != buffer->version)
			zd_deferred_await(session, buffer, source);
		else if (!is_own)
			source->readers++;
		if (is_own)
			continue;
		zd_transfer_add(buffer, step, timelines_of(buffer) + copy_device(buffer, source));
	}
}

void zd_transfer_run_copy(struct zd_engine *e, struct zd_buffer *buffer, struct zd_plan_step *step)
{
	const struct zd_unit *unit = buffer->unit;
	const struct zd_part *source = &unit->parts[step->source];
	const struct zd_landing *landing = step->memory;
	struct zd_command command = {.kind = ZD_CMD_COPY,
	                             .device = step->signal.timeline - timelines_of(buffer)};
	command.u.copy.src = landing ? zd_landing_location(landing) : zd_part_location(source);
	command.u.copy.dst = zd_buffer_slice(buffer, zd_shard_index(zd_part_member(source)));
	if (zd_transfer_lands(buffer)) {
		command.u.copy.src = zd_landing_chunk(e, unit, command.u.copy.src, step->index);
		command.u.copy.dst = zd_landing_chunk(e, unit, command.u.copy.dst, step->index);
	}
	command.u.copy.dst_device = buffer->device->index;
	zd_transfer_submit(e, buffer, step, &command);
}

static uint32_t max_steps(const struct zd_engine *e, const struct zd_buffer *buffer)
{
	(void)e;
	return buffer->unit->group->local_world_size;
}

static void build(struct zd_engine *e, struct zd_buffer *buffer)
{
	(void)e;
	zd_transfer_add_copies(buffer);
}

const struct zd_gather_planner zd_plan_copies = {
        .max_steps = max_steps,
        .build = build,
};

/* ---- By way of the shards' devices --------------------------------------------------------------------- */

static uint32_t max_chunk_copies(const struct zd_engine *e, const struct zd_buffer *buffer)
{
	return buffer->unit->group->local_world_size * zd_landing_chunks(e, buffer->unit);
}

/* Each copy waits for one event: the chunk is on the shard's device, and the transfer can start. */
static void add_chunks(struct zd_engine *e, struct zd_buffer *buffer, struct zd_part *source)
{
	uint32_t n = zd_landing_chunks(e, buffer->unit);
	uint32_t timeline = ZD_TIMELINE_DEFERRED + zd_part_member(source)->device->index;
	for (uint32_t i = 0; i < n; i++) {
		struct zd_plan_step step = {
		        .kind = ZD_TRANSFER_COPY, .source = source->rank, .index = i, .waits = 1};
		zd_transfer_add(buffer, step, timeline);
	}
	if (source->version == buffer->version)
		source->readers += n;
	else
		zd_deferred_await(zd_part_member(buffer->part)->session, buffer, source);
}

static void build_landings(struct zd_engine *e, struct zd_buffer *buffer)
{
	for (uint32_t rank = 0; rank < buffer->unit->group->local_world_size; rank++)
		add_chunks(e, buffer, &buffer->unit->parts[rank]);
}

const struct zd_gather_planner zd_plan_landings = {
        .max_steps = max_chunk_copies,
        .build = build_landings,
};
