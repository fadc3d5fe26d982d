/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reply_gather.c - replies to gathers and releases: who holds what, and the reads that follow.
 *
 * A reader waits on its stream for the fences of the reply and then must find one version of every shard,
 * whenever it comes to run before its release's fence.
 */
#include <string.h>

#include "sim.h"

void zd_sim_lease_read(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t group,
                       uint32_t unit, struct zd_sim_lease *lease, uint32_t stream, bool copies)
{
	const struct zd_sim_group_config *config = &world->config.groups[group];
	struct zd_sim_item *item = zd_sim_stream_append(world, session, stream, ZD_SIM_ITEM_WAIT);

	item->nfences = lease->nfences;
	memcpy(item->fences, lease->fences, lease->nfences * sizeof(*lease->fences));
	if (copies && lease->own_shard.segment) {
		uint32_t rank = zd_sim_rank(&world->config, session->actor, group);
		uint64_t bytes = zd_sim_shard_numel(config, unit) *
		                 zerod_dtype_bytes(config->units[unit].dtype);

		item = zd_sim_stream_append(world, session, stream, ZD_SIM_ITEM_OWN_COPY);
		item->from = lease->own_shard;
		item->at = lease->buffer;
		item->at.offset += rank * bytes;
		item->at.bytes = bytes;
	}
	lease->streams |= (uint8_t)(1u << stream);
	if (lease->doubtful)
		return;
	item = zd_sim_stream_append(world, session, stream, ZD_SIM_ITEM_READ);
	item->group = (uint8_t)group;
	item->unit = (uint8_t)unit;
	item->at = lease->buffer;
	item->value = lease->version;
	memcpy(item->keys, lease->keys, sizeof(item->keys));
}

static void check_gather(struct zd_sim_world *world, const struct zd_sim_session *session,
                         const struct zd_sim_handle *handle, const struct zd_sim_request *request,
                         const struct zd_reply *reply)
{
	const struct zd_sim_group_config *group = &world->config.groups[request->group];
	const char *unit = group->units[request->unit].name;
	uint64_t padded = zd_sim_gathered_bytes(&world->config, session->actor, request->group,
	                                        request->unit);

	if (reply->u.gather.version < request->least_version ||
	    (request->version && reply->u.gather.version != request->version))
		zd_sim_fail(world, "gather of %s/%s gives version %llu, asked for %llu, at least %llu",
		            group->name, unit, (unsigned long long)reply->u.gather.version,
		            (unsigned long long)request->version, (unsigned long long)request->least_version);
	if (request->prefetch) {
		if (reply->u.gather.buffer.segment)
			zd_sim_fail(world, "a prefetch of %s/%s gives a buffer", group->name, unit);
		return;
	}
	if (reply->u.gather.buffer.bytes != padded)
		zd_sim_fail(world, "gathered %s/%s has %llu bytes instead of %llu", group->name, unit,
		            (unsigned long long)reply->u.gather.buffer.bytes, (unsigned long long)padded);
	if (session->strict && reply->u.gather.buffer.offset % ZD_STRICT_ALIGN_BYTES != 0)
		zd_sim_fail(world, "gathered %s/%s of a strict session begins inside a page", group->name,
		            unit);
	if (session->strict && world->config.strict_by_segment && reply->u.gather.buffer.offset != 0)
		zd_sim_fail(world, "gathered %s/%s of a strict session begins inside a segment", group->name,
		            unit);
	if (reply->u.gather.nfences > ZD_SIM_FENCES)
		zd_sim_fail(world, "gather with %u fences", reply->u.gather.nfences);
	for (uint32_t f = 0; f < reply->u.gather.nfences; f++) {
		if (reply->u.gather.fences[f].timeline >= ZD_TIMELINES)
			zd_sim_fail(world, "gather with a fence on timeline %u",
			            reply->u.gather.fences[f].timeline);
	}
	if (reply->u.gather.own_shard.segment && (!world->config.client_copies || handle->updating))
		zd_sim_fail(world, "%s/%s: the client is to copy a shard that %s", group->name, unit,
		            handle->updating ? "is being written" : "the daemon copies");
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
	check_gather(world, session, handle, request, reply);
	if (request->prefetch)
		return;
	const struct zd_location *at = &reply->u.gather.buffer;
	if (session->members[request->group].set_back)
		zd_sim_fail(world, "session %llu gathers, though it does not know that it was set back",
		            (unsigned long long)session->id);
	if (world->groups[request->group].torn)
		zd_sim_fail(world,
		            "%s/%s is gathered, though a rank died while it wrote and nothing was committed "
		            "since",
		            group->name, group->units[request->unit].name);
	zd_sim_location_seen(world, session, at);
	/* An aliased buffer is the shard, which is checked when an update of it is granted. */
	if (!zd_sim_overlap(at, &handle->shard))
		zd_sim_residue_check(world, at);
	/* A unit with one shard is in its slot only while it is on the host. */
	if (group->units[request->unit].slot && (group->world > 1 || !world->config.has_host)) {
		if (handle->slot_at.segment && !zd_sim_same_place(&handle->slot_at, at))
			zd_sim_fail(world, "%s/%s was in its slot at %u+%llu and is now at %u+%llu",
			            group->name, group->units[request->unit].name, handle->slot_at.segment,
			            (unsigned long long)handle->slot_at.offset, at->segment,
			            (unsigned long long)at->offset);
		handle->slot_at = *at;
	}
	if (request->scope)
		hold_in_scope(world, session, request, lease);
	else
		lease->uses += request->uses;
	lease->doubtful = released_ahead(session, request);
	lease->version = reply->u.gather.version;
	lease->buffer = *at;
	lease->own_shard = reply->u.gather.own_shard;
	lease->nfences = reply->u.gather.nfences;
	for (uint32_t f = 0; f < lease->nfences; f++)
		lease->fences[f] = reply->u.gather.fences[f];
	if (session->poison)
		zd_sim_expose(world, session, request->group, request->unit, lease);
	for (uint32_t r = 0; r < group->world; r++)
		lease->keys[r] = world->groups[request->group]
		                         .shards[request->unit][r]
		                         .keys[reply->u.gather.version % ZD_SIM_VERSIONS];
	if (request->scope && zd_sim_scope_ending(session, request->scope))
		return; /* the client has said that it reads no more in it */
	if (!world->config.client_copies || lease->own_shard.segment)
		handle->home = request->stream;
	lease->held_off = world->config.client_copies && zd_sim_moves(session, request->group, request->unit);
	if (!lease->held_off)
		zd_sim_lease_read(world, session, request->group, request->unit, lease, handle->home, true);
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
