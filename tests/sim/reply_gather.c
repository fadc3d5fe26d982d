/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reply_gather.c - replies to gathers and releases: who holds what, and the reads that follow.
 *
 * A reader waits on its stream for the fences of the reply and then must find one version of every shard,
 * whenever it comes to run before its release's fence.
 */
#include <string.h>

#include "base/mem.h"

#include "sim.h"

/* The parts have all slices in the order of ranks. */
void zd_sim_lease_read(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t group,
                       uint32_t unit, struct zd_sim_lease *lease, uint32_t stream)
{
	const struct zd_sim_group_config *config = &world->config.groups[group];
	uint64_t shard_bytes = zd_sim_shard_numel(config, unit) *
	                       zerod_dtype_bytes(config->units[unit].dtype);
	struct zd_sim_item *item = zd_sim_stream_append(world, session, stream, ZD_SIM_ITEM_WAIT);

	item->nfences = lease->nfences;
	memcpy(item->fences, lease->fences, lease->nfences * sizeof(*lease->fences));
	lease->streams |= (uint8_t)(1u << stream);
	uint64_t first = 0;
	for (uint32_t p = 0; p < ZD_SIM_PARTS && !lease->doubtful; p++) {
		if (!lease->at[p].segment)
			continue;
		item = zd_sim_stream_append(world, session, stream, ZD_SIM_ITEM_READ);
		item->group = (uint8_t)group;
		item->unit = (uint8_t)unit;
		item->at = lease->at[p];
		item->value = lease->version;
		item->begin = first;
		item->end = first = zd_min_u64(first + lease->at[p].bytes / shard_bytes, config->world);
		memcpy(item->keys, lease->keys, sizeof(item->keys));
	}
}

/* The parts border on each other: the low frame ends with its segment, the others begin with theirs. */
static void check_frames(struct zd_sim_world *world, const struct zd_sim_session *session,
                         const struct zd_sim_request *request, const struct zd_frames *frames)
{
	const struct zd_sim_group_config *group = &world->config.groups[request->group];
	const struct zd_sim_handle *handle = &session->members[request->group].handles[request->unit];
	uint32_t below = zd_sim_rank(&world->config, session->actor, request->group);
	uint64_t bytes = handle->shard.bytes;
	const struct zd_sim_segment *low = zd_sim_segment_find(world, frames->low.segment),
	                            *own = zd_sim_segment_find(world, frames->own.segment);

	if (!zd_sim_is_in_place(group, request->unit) || group->world == 1 ||
	    !zd_sim_maps_frames(&world->config.actors[session->actor]))
		zd_sim_fail(world, "operation %u gathers in place", request->op);
	if (!zd_sim_same_place(&frames->own, &handle->shard) || own->bytes != bytes)
		zd_sim_fail(world, "operation %u: the own part is not the shard, or not a segment",
		            request->op);
	if (frames->low.bytes != below * bytes || frames->high.bytes != (group->world - 1 - below) * bytes)
		zd_sim_fail(world, "operation %u: frames of %llu and %llu bytes around %llu", request->op,
		            (unsigned long long)frames->low.bytes, (unsigned long long)frames->high.bytes,
		            (unsigned long long)bytes);
	if ((below > 0 && frames->low.offset + frames->low.bytes != low->bytes) || frames->high.offset != 0)
		zd_sim_fail(world, "operation %u: the frames do not border on the own part", request->op);
	world->stats.in_place++;
}

static void check_copy(struct zd_sim_world *world, const struct zd_sim_session *session,
                       const struct zd_sim_request *request, const struct zd_location *at)
{
	const struct zd_sim_group_config *group = &world->config.groups[request->group];
	const char *unit = group->units[request->unit].name;
	uint64_t padded = zd_sim_copied_bytes(&world->config, session->actor, request->group, request->unit);

	if (at->bytes != padded)
		zd_sim_fail(world, "gathered %s/%s has %llu bytes instead of %llu", group->name, unit,
		            (unsigned long long)at->bytes, (unsigned long long)padded);
	if (session->strict && at->offset % ZD_STRICT_ALIGN_BYTES != 0)
		zd_sim_fail(world, "gathered %s/%s of a strict session begins inside a page", group->name,
		            unit);
	if (session->strict && world->config.strict_by_segment && at->offset != 0)
		zd_sim_fail(world, "gathered %s/%s of a strict session begins inside a segment", group->name,
		            unit);
	/* a copy may be left of a unit that was on the host */
	if (!world->config.has_host && zd_sim_is_in_place(group, request->unit) &&
	    zd_sim_maps_frames(&world->config.actors[session->actor]))
		zd_sim_fail(world, "gathered %s/%s is not in place", group->name, unit);
}

static void check_gather(struct zd_sim_world *world, const struct zd_sim_session *session,
                         const struct zd_sim_request *request, const struct zd_reply *reply)
{
	const struct zd_sim_group_config *group = &world->config.groups[request->group];
	const char *unit = group->units[request->unit].name;

	if (reply->u.gather.version < request->least_version ||
	    (request->version && reply->u.gather.version != request->version))
		zd_sim_fail(world, "gather of %s/%s gives version %llu, asked for %llu, at least %llu",
		            group->name, unit, (unsigned long long)reply->u.gather.version,
		            (unsigned long long)request->version, (unsigned long long)request->least_version);
	if (request->prefetch) {
		if (reply->place.segment || reply->frames.own.segment)
			zd_sim_fail(world, "a prefetch of %s/%s gives a buffer", group->name, unit);
		return;
	}
	if (reply->frames.own.segment)
		check_frames(world, session, request, &reply->frames);
	else
		check_copy(world, session, request, &reply->place);
	if (reply->fences.count > ZD_SIM_FENCES)
		zd_sim_fail(world, "gather with %u fences", reply->fences.count);
	for (uint32_t f = 0; f < reply->fences.count; f++) {
		if (reply->fences.fences[f].timeline >= ZD_TIMELINES)
			zd_sim_fail(world, "gather with a fence on timeline %u",
			            reply->fences.fences[f].timeline);
	}
}

/* Noise has released the lease already, without fences, before it had its answer: whoever reads now reads too
 * late. */
static bool released_ahead(const struct zd_sim_session *session, const struct zd_sim_request *gather)
{
	for (uint32_t i = 0; i < session->nrequests; i++) {
		const struct zd_sim_request *request = &session->requests[i];
		if (request->kind == ZD_REQ_RELEASE && request->group == gather->group &&
		    request->unit == gather->unit && request->tag == gather->tag)
			return true;
	}
	return false;
}

/* A scope holds a unit once, and a context from its beginning. */
static void hold_in_scope(struct zd_sim_world *world, const struct zd_sim_session *session,
                          const struct zd_sim_request *request, struct zd_sim_lease *lease)
{
	const struct zd_sim_scope *scope =
	        &session->members[request->group].scopes[request->tag - ZD_SIM_TAGS];

	if (scope->id != request->scope || scope->state == ZD_SIM_SCOPE_NONE)
		zd_sim_fail(world, "operation %u gathers in scope %llu, which has ended", request->op,
		            (unsigned long long)request->scope);
	if (scope->state == ZD_SIM_SCOPE_CONTEXT && !lease->uses)
		zd_sim_fail(world, "operation %u gathers in context %llu what is not in it", request->op,
		            (unsigned long long)request->scope);
	world->fallbacks += !lease->uses;
	lease->uses = 1;
}

/* Memory of a slot is the same for one kind of buffer, unless a unit that was moved needs more. */
static void check_slot(struct zd_sim_world *world, struct zd_sim_handle *handle,
                       const struct zd_sim_request *request, const struct zd_sim_lease *lease)
{
	const struct zd_sim_group_config *group = &world->config.groups[request->group];
	struct zd_location *before = handle->slot_at[lease->at[ZD_SIM_OWN].segment != 0];

	for (uint32_t p = 0; p < ZD_SIM_PARTS; p++) {
		if (p == ZD_SIM_OWN || !lease->at[p].segment)
			continue;
		if (before[p].segment && !zd_sim_same_place(&before[p], &lease->at[p]))
			zd_sim_fail(world, "%s/%s was in its slot at %u+%llu and is now at %u+%llu",
			            group->name, group->units[request->unit].name, before[p].segment,
			            (unsigned long long)before[p].offset, lease->at[p].segment,
			            (unsigned long long)lease->at[p].offset);
		before[p] = lease->at[p];
	}
}

/* Notes where the gathered buffer is. The only shard of a unit is its buffer, as a rule. */
static void take_parts(struct zd_sim_world *world, struct zd_sim_session *session,
                       const struct zd_sim_request *request, const struct zd_reply *reply)
{
	const struct zd_sim_group_config *group = &world->config.groups[request->group];
	struct zd_sim_handle *handle = &session->members[request->group].handles[request->unit];
	struct zd_sim_lease *lease = &handle->leases[request->tag];
	const struct zd_frames *frames = &reply->frames;
	const struct zd_location *copy = &reply->place;
	bool is_shard = zd_sim_overlap(copy, &handle->shard);

	memset(lease->at, 0, sizeof(lease->at));
	lease->at[is_shard ? ZD_SIM_OWN : ZD_SIM_LOW] = *copy;
	if (frames->own.segment)
		memcpy(lease->at, (struct zd_location[]){frames->low, frames->own, frames->high},
		       sizeof(lease->at));
	for (uint32_t p = 0; p < ZD_SIM_PARTS; p++) {
		if (!lease->at[p].segment)
			continue;
		zd_sim_location_seen(world, session, &lease->at[p]);
		if (p != ZD_SIM_OWN)
			zd_sim_residue_check(world, &lease->at[p]);
	}
	/* the only shard of a unit may have been moved, and its rank not told yet */
	if (group->units[request->unit].slot &&
	    (!world->config.has_host || (!group->granule_bytes && group->world > 1)))
		check_slot(world, handle, request, lease);
}

static void replied_gather(struct zd_sim_world *world, struct zd_sim_session *session,
                           const struct zd_sim_request *request, const struct zd_reply *reply)
{
	const struct zd_sim_group_config *group = &world->config.groups[request->group];
	struct zd_sim_handle *handle = &session->members[request->group].handles[request->unit];
	struct zd_sim_lease *lease = &handle->leases[request->tag];

	if (!request->prefetch)
		lease->pending--;
	if (reply->status != 0)
		return;
	check_gather(world, session, request, reply);
	if (request->prefetch)
		return;
	if (session->members[request->group].set_back)
		zd_sim_fail(world, "session %llu gathers, though it does not know that it was set back",
		            (unsigned long long)session->id);
	if (world->groups[request->group].torn)
		zd_sim_fail(world,
		            "%s/%s is gathered, though a rank died while it wrote and nothing was committed "
		            "since",
		            group->name, group->units[request->unit].name);
	take_parts(world, session, request, reply);
	if (request->scope)
		hold_in_scope(world, session, request, lease);
	else
		lease->uses += request->uses;
	lease->doubtful = released_ahead(session, request);
	lease->version = reply->u.gather.version;
	lease->nfences = reply->fences.count;
	for (uint32_t f = 0; f < lease->nfences; f++)
		lease->fences[f] = reply->fences.fences[f];
	if (session->poison)
		zd_sim_expose(world, session, request->group, request->unit, lease);
	for (uint32_t r = 0; r < group->world; r++)
		lease->keys[r] = world->groups[request->group]
		                         .shards[request->unit][r]
		                         .keys[reply->u.gather.version % ZD_SIM_VERSIONS];
	if (request->scope && zd_sim_scope_ending(session, request->scope))
		return; /* the client has said that it reads no more in it */
	zd_sim_lease_read(world, session, request->group, request->unit, lease, request->stream);
}

static void replied_release(struct zd_sim_world *world, struct zd_sim_session *session,
                            const struct zd_sim_request *request, const struct zd_reply *reply)
{
	struct zd_sim_lease *lease =
	        &session->members[request->group].handles[request->unit].leases[request->tag];

	if (reply->status != 0 && reply->status != ZEROD_E_NOT_HELD)
		return;
	if ((reply->status == 0) != (lease->uses > 0))
		zd_sim_fail(world, "release of what is held %u times: %s (%s)", lease->uses,
		            zerod_status_name(reply->status), reply->error);
	if (reply->status != 0)
		return;
	lease->uses--;
	if (reply->u.release.lease_ended != (lease->uses == 0))
		zd_sim_fail(world, "release with %u uses left says that the lease %s", lease->uses,
		            reply->u.release.lease_ended ? "ended" : "did not end");
}

void zd_sim_reply_gather(struct zd_sim_world *world, struct zd_sim_session *session,
                         const struct zd_sim_request *request, const struct zd_reply *reply)
{
	if (request->kind == ZD_REQ_GATHER)
		replied_gather(world, session, request, reply);
	else
		replied_release(world, session, request, reply);
}
