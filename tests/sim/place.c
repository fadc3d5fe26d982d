/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place.c - moves of units between devices and host memory, as the model sees them.
 *
 * The engine moves the shards of all ranks at once, and its replies tell each rank where its own is. The
 * first reply is the model's news: what is not known of the other ranks until theirs is a place without a
 * segment. Until the replies the engine may use the former shards for other things, and writes the new ones.
 */
#include "issue.h"

/* ---- Where units are ----------------------------------------------------------------------------------- */

bool zd_sim_on_host(const struct zd_sim_world *world, uint32_t group, uint32_t unit)
{
	return world->config.groups[group].units[unit].on_host != world->groups[group].moved[unit];
}

/* The device whose memory has the shard. */
static uint32_t memory_of(const struct zd_sim_world *world, uint32_t group, uint32_t unit, uint32_t rank)
{
	for (uint32_t a = 0; a < world->config.nactors && !zd_sim_on_host(world, group, unit); a++) {
		if (world->config.actors[a].job == (int)world->config.groups[group].job &&
		    zd_sim_rank(&world->config, a, group) == rank)
			return world->config.actors[a].device;
	}
	return world->config.ndevices;
}

void zd_sim_place_shard(struct zd_sim_world *world, uint32_t group, uint32_t unit, uint32_t rank)
{
	world->groups[group].shards[unit][rank].device = memory_of(world, group, unit, rank);
}

void zd_sim_register_place(struct zd_sim_world *world, uint32_t group, uint32_t unit)
{
	struct zd_sim_group *model = &world->groups[group];
	bool any = false;

	for (uint32_t r = 0; r < world->config.groups[group].world; r++)
		any = any || model->shards[unit][r].exists || model->shards[unit][r].maybe;
	for (uint32_t i = 0; i < world->nsessions; i++)
		any = any || (world->sessions[i]->open &&
		              world->sessions[i]->members[group].handles[unit].registering);
	if (!any) /* it is where its registration says */
		model->moved[unit] = false;
}

/* If no rank is known to have the unit, it is not known whether the engine has taken it for a new one. */
void zd_sim_placed_check(struct zd_sim_world *world, uint32_t group, uint32_t unit, uint32_t rank,
                         Zd__Placed placed)
{
	struct zd_sim_group *model = &world->groups[group];
	bool on_host = placed == ZD__PLACED__ON_HOST, known = false;

	if (placed == ZD__PLACED__AS_REGISTERED)
		on_host = world->config.groups[group].units[unit].on_host;
	for (uint32_t r = 0; r < world->config.groups[group].world; r++)
		known = known || model->shards[unit][r].exists;
	if (!known)
		model->moved[unit] = on_host != world->config.groups[group].units[unit].on_host;
	zd_sim_place_shard(world, group, unit, rank);
	if (on_host != zd_sim_on_host(world, group, unit))
		zd_sim_fail(world, "%s/%s is said to be %s", world->config.groups[group].name,
		            world->config.groups[group].units[unit].name,
		            on_host ? "on the host" : "on its devices");
}

/* ---- While a unit is moved ----------------------------------------------------------------------------- */

static bool moves(const struct zd_sim_session *session, uint32_t group, uint32_t unit)
{
	for (uint32_t r = 0; r < session->nrequests; r++) {
		const struct zd_sim_request *request = &session->requests[r];
		if (request->kind == ZD_REQ_UNIT_PLACE && request->group == group && request->unit == unit)
			return true;
	}
	return false;
}

bool zd_sim_is_moving(const struct zd_sim_world *world, uint32_t group, uint32_t unit)
{
	for (uint32_t i = 0; i < world->nsessions; i++) {
		if (moves(world->sessions[i], group, unit))
			return true;
	}
	return false;
}

/* ---- The operation ------------------------------------------------------------------------------------- */

bool zd_sim_issue_place(struct zd_sim_issue *issue)
{
	issue->args.kind = ZD_REQ_UNIT_PLACE;
	issue->args.u.unit_place.unit = issue->handle->id;
	issue->args.u.unit_place.on_host = issue->op->arg & ZD_SIM_PLACE_ON_HOST;
	return issue->handle->id && zd_sim_issue_send(issue);
}

/* All ranks' shards are elsewhere now. */
static void moved(struct zd_sim_world *world, uint32_t group, uint32_t unit)
{
	struct zd_sim_group *model = &world->groups[group];

	model->moved[unit] = !model->moved[unit];
	world->stats.moves++;
	for (uint32_t r = 0; r < world->config.groups[group].world; r++) {
		zd_sim_place_shard(world, group, unit, r);
		model->shards[unit][r].at.segment = 0;
	}
}

void zd_sim_reply_place(struct zd_sim_world *world, struct zd_sim_session *session,
                        const struct zd_sim_request *request, const struct zd_reply *reply)
{
	uint32_t group = request->group, unit = request->unit;
	struct zd_sim_handle *handle = &session->members[group].handles[unit];
	struct zd_sim_shard *shard =
	        &world->groups[group].shards[unit][zd_sim_rank(&world->config, session->actor, group)];
	const struct zd_location *at = &reply->place;
	const struct zd_sim_segment *segment = zd_sim_segment_find(world, at->segment);
	bool on_host = world->program.ops[request->op].arg & ZD_SIM_PLACE_ON_HOST;

	if (reply->status != 0)
		return;
	if (on_host != zd_sim_on_host(world, group, unit))
		moved(world, group, unit);
	zd_sim_location_seen(world, session, at);
	if (segment->device != shard->device)
		zd_sim_fail(world, "the shard of %s/%s, rank %u, is moved to device %u, not %u",
		            world->config.groups[group].name, world->config.groups[group].units[unit].name,
		            zd_sim_rank(&world->config, session->actor, group), segment->device,
		            shard->device);
	if (!zd_sim_same_place(at, &handle->shard))
		zd_sim_residue_check(world, at);
	handle->shard = shard->at = *at;
	handle->target_offset_numel = reply->u.unit_place.target_offset_numel;
}
