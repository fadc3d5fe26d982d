/* SPDX-License-Identifier: Apache-2.0 */
/* landing.c - see landing.h. */
#include "core/gather/landing.h"

#include <stdlib.h>

#include "core/gather/deferred.h"
#include "core/gather/gather.h"

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
	buffer->landings = 0;
}

/* ---- Pulls --------------------------------------------------------------------------------------------- */

static bool uses(const struct zd_buffer *buffer, const struct zd_landing *landing)
{
	for (uint32_t i = 0; i < buffer->plan.nsteps; i++) {
		if (buffer->plan.steps[i].memory == landing)
			return true;
	}
	return false;
}

/* The transfers that wait for the landing are promised ones of the group's sessions. */
static void notify(struct zd_engine *e, const struct zd_landing *landing)
{
	const struct zd_group *group = landing->part->unit->group;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_session *session = group->members[rank].session;
		struct zd_buffer *buffer;
		bool any = false;
		if (!session)
			continue;
		TAILQ_FOREACH (buffer, &session->deferred, deferred_link) {
			if (buffer->unit == landing->part->unit && uses(buffer, landing)) {
				buffer->landings--;
				any = true;
			}
		}
		if (any && landing->failed)
			zd_deferred_break(e, session);
		else if (any)
			zd_deferred_try(e, session);
	}
}

static void pulled(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                   const struct zd_op_result *result)
{
	struct zd_landing *landing = op->owner;
	struct zd_part *part = landing->part;
	(void)error;
	(void)result;
	landing->landed = status == 0;
	landing->failed = status != 0;
	notify(e, landing);
	zd_part_reader_done(e, part);
	leave(e, landing); /* which may free the unit */
}

static void pull(struct zd_engine *e, struct zd_landing *landing)
{
	struct zd_part *part = landing->part;
	struct zd_command command = {.kind = ZD_CMD_COPY, .device = landing->device->index};
	command.u.copy.src = zd_part_location(part);
	command.u.copy.dst = zd_landing_location(landing);
	command.u.copy.dst_device = landing->device->index;
	landing->users++;
	part->readers++;
	zd_op_submit(e, part->unit->group->job, &command, pulled, landing, 0);
}

/* ---- The begin ----------------------------------------------------------------------------------------- */

static struct zd_landing *find(const struct zd_part *part, const struct zd_buffer *buffer)
{
	struct zd_landing *landing;
	LIST_FOREACH (landing, &part->unit->landings, unit_link) {
		if (landing->part == part && landing->version == buffer->version &&
		    landing->era == buffer->era && !landing->failed)
			break;
	}
	return landing;
}

/* Takes a block of the device of the part's rank, if there is one at once and no request waits for room. */
static bool take_block(struct zd_engine *e, struct zd_part *part, struct zd_extent *extent)
{
	struct zd_device *device = zd_part_member(part)->device;
	struct zd_job *job = part->unit->group->job;
	uint64_t bytes = zd_unit_shard_bytes(part->unit);
	if (!TAILQ_EMPTY(&device->queue) || !zd_pool_has(e, device, job, ZD_PURPOSE_GATHERS, bytes) ||
	    zd_pool_alloc(e, NULL, job, device, ZD_PURPOSE_GATHERS, bytes, ZD_BLOCK_MIN_ALIGN, extent,
	                  NULL) != 0)
		return false;
	device->quarantine_bytes += extent->bytes; /* uncharged, and free soon */
	return true;
}

static struct zd_landing *landing_new(struct zd_engine *e, const struct zd_buffer *buffer,
                                      struct zd_part *part)
{
	struct zd_landing *landing;
	struct zd_extent extent;
	if (!take_block(e, part, &extent))
		return NULL;
	landing = zd_calloc(1, sizeof(*landing));
	landing->part = part;
	landing->version = buffer->version;
	landing->era = buffer->era;
	landing->device = zd_part_member(part)->device;
	landing->extent = extent;
	LIST_INSERT_HEAD(&part->unit->landings, landing, unit_link);
	part->unit->refs++;
	zd_extent_own(e, &landing->extent, ZD_BLOCK_LANDING, landing,
	              zd_member_use(zd_part_member(part), ZD_WORD_STAGING, part->unit->id));
	pull(e, landing);
	return landing;
}

/* NULL: the device of the part's rank copies the shard from the host, when the transfer begins. */
static struct zd_landing *join(struct zd_engine *e, struct zd_buffer *buffer, struct zd_part *part)
{
	struct zd_landing *landing = find(part, buffer);
	if (!landing)
		landing = landing_new(e, buffer, part);
	if (!landing)
		return NULL;
	landing->users++;
	buffer->landings += !landing->landed;
	return landing;
}

void zd_landings_join(struct zd_engine *e, struct zd_buffer *buffer)
{
	if (buffer->joined)
		return;
	buffer->joined = true;
	for (uint32_t i = 0; i < buffer->plan.nsteps; i++) {
		struct zd_plan_step *step = &buffer->plan.steps[i];
		step->memory = join(e, buffer, &buffer->unit->parts[step->source]);
	}
}
