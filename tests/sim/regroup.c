/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regroup.c - what is left of a group waits until somebody has taken the place of a rank that went.
 *
 * Then all give up what is left of their step and go on with its update, as the newcomer does, so that they
 * come to the next step together. Without this they would run to the end of their programs, with an error for
 * every request.
 */
#include "sim.h"

/* Is the actor in the group, or will not be in it any more. */
static bool is_settled(const struct zd_sim_world *world, uint32_t index, uint32_t group)
{
	const struct zd_sim_actor *actor = &world->actors[index];

	if (actor->done || (actor->session && actor->session->members[group].id))
		return true;
	for (uint32_t i = actor->next; i < world->program.first[index + 1]; i++) {
		const struct zd_sim_op *op = &world->program.ops[i];
		if (op->kind == ZD_SIM_JOIN && op->group == group && !op->noise)
			return false;
	}
	return !actor->session || !actor->session->members[group].joining;
}

static bool needs_all_ranks(const struct zd_sim_op *op)
{
	return !op->noise && op->kind >= ZD_SIM_UPDATE_BEGIN && op->kind <= ZD_SIM_STEP_END;
}

bool zd_sim_regroups(struct zd_sim_world *world, struct zd_sim_actor *actor, const struct zd_sim_op *op)
{
	int job = (int)world->config.groups[op->group].job;
	bool missing = false;

	if (!world->config.regroups || !needs_all_ranks(op) || !actor->session->members[op->group].id)
		return false;
	for (uint32_t a = 0; a < world->config.nactors && !missing; a++)
		missing = world->config.actors[a].job == job && !is_settled(world, a, op->group);
	if (missing)
		actor->gives_up |= 1u << op->group;
	return missing;
}

bool zd_sim_is_given_up(struct zd_sim_actor *actor, const struct zd_sim_op *op)
{
	if (!(actor->gives_up & (1u << op->group)) || op->noise)
		return false;
	switch (op->kind) {
	case ZD_SIM_GATHER:
	case ZD_SIM_PREFETCH:
	case ZD_SIM_USE:
	case ZD_SIM_SET_PERSISTENT:
	case ZD_SIM_FORWARD_BEGIN:
	case ZD_SIM_CONTEXT_BEGIN:
	case ZD_SIM_BACKWARD_BEGIN:
	case ZD_SIM_RESERVE:
	case ZD_SIM_BUCKET_SUBMIT:
	case ZD_SIM_SKIP:
	case ZD_SIM_REDUCE_WAIT:
	case ZD_SIM_BACKWARD_END:
	case ZD_SIM_BACKWARD_ABANDON:
	case ZD_SIM_STEP_BEGIN:
	case ZD_SIM_STEP_END:
		return true;
	case ZD_SIM_UPDATE_BEGIN:
		actor->gives_up &= ~(1u << op->group);
		return false;
	case ZD_SIM_OPEN:
		actor->gives_up = 0;
		return false;
	default:
		return false;
	}
}

void zd_sim_regroup_wake(struct zd_sim_world *world)
{
	for (uint32_t a = 0; world->config.regroups && a < world->config.nactors; a++)
		zd_sim_actor_wake(world, a);
}
