/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shadow.c - the model of commits: what a group is set back to when a rank of a job with shadow shards goes.
 *
 * Every shard that was published or is being written since the last commit has its version and its content
 * again. A rank that is still there must be told before it gathers, writes or commits again.
 */
#include "sim.h"

/* The open session that is this rank; NULL: none. */
static struct zd_sim_session *rank_session(struct zd_sim_world *world, uint32_t group, uint32_t rank)
{
	for (uint32_t i = 0; i < world->nsessions; i++) {
		struct zd_sim_session *session = world->sessions[i];
		if (session->members[group].id && zd_sim_rank(&world->config, session->actor, group) == rank)
			return session;
	}
	return NULL;
}

/* A step is one version of every unit, and written to its end. */
static void check_commit(struct zd_sim_world *world, uint32_t group, uint32_t unit)
{
	const struct zd_sim_group_config *config = &world->config.groups[group];
	const struct zd_sim_shard *first = NULL;

	for (uint32_t r = 0; r < config->world; r++) {
		const struct zd_sim_shard *shard = &world->groups[group].shards[unit][r];
		const struct zd_sim_session *session = rank_session(world, group, r);

		if (!shard->exists)
			continue;
		first = first ? first : shard;
		if (shard->version != first->version ||
		    (session && session->members[group].handles[unit].updating))
			zd_sim_fail(world, "%s/%s is committed with version %llu on rank %u, %s, beside %llu",
			            config->name, config->units[unit].name,
			            (unsigned long long)shard->version, r,
			            session && session->members[group].handles[unit].updating
			                    ? "which writes it"
			                    : "which does not write it",
			            (unsigned long long)first->version);
	}
}

void zd_sim_committed(struct zd_sim_world *world, uint32_t group, uint64_t step)
{
	struct zd_sim_group *model = &world->groups[group];

	for (uint32_t u = 0; u < world->config.groups[group].nunits; u++) {
		check_commit(world, group, u);
		for (uint32_t r = 0; r < world->config.groups[group].world; r++)
			model->shards[u][r].committed = model->shards[u][r].version;
	}
	model->torn = false;
	model->committed_step = step;
}

static void roll_back_rank(struct zd_sim_world *world, uint32_t group, uint32_t rank)
{
	struct zd_sim_session *session = rank_session(world, group, rank);

	for (uint32_t u = 0; u < world->config.groups[group].nunits; u++) {
		struct zd_sim_shard *shard = &world->groups[group].shards[u][rank];
		/* A shard that is undone, and whose publish has not been answered, is not undone again. */
		bool writes = session && session->members[group].handles[u].updating &&
		              !session->members[group].handles[u].undone;

		if (!shard->exists || (shard->version == shard->committed && !writes))
			continue;
		shard->version = shard->committed;
		/* who is killed or leaves is known to be gone behind the commands for it */
		shard->owed = shard->restored_in != world->calls;
		if (session)
			session->members[group].set_back = true;
		if (writes)
			session->members[group].handles[u].undone = true;
	}
}

void zd_sim_roll_back(struct zd_sim_world *world, uint32_t group)
{
	for (uint32_t rank = 0; rank < world->config.groups[group].world; rank++)
		roll_back_rank(world, group, rank);
}

void zd_sim_restore_failed(struct zd_sim_world *world, const struct zd_location *at)
{
	for (uint32_t g = 0; g < world->config.ngroups; g++) {
		for (uint32_t u = 0; u < ZD_SIM_UNITS; u++) {
			for (uint32_t r = 0; r < world->config.groups[g].world; r++) {
				struct zd_sim_shard *shard = &world->groups[g].shards[u][r];
				if (shard->exists && zd_sim_same_place(&shard->at, at))
					shard->keys[shard->version % ZD_SIM_VERSIONS] = ZD_SIM_UNKNOWN;
			}
		}
	}
}

static void check_shard(struct zd_sim_world *world, uint32_t group, uint32_t unit, uint32_t rank)
{
	const struct zd_sim_group_config *config = &world->config.groups[group];
	const struct zd_sim_shard *shard = &world->groups[group].shards[unit][rank];
	uint64_t key = shard->keys[shard->version % ZD_SIM_VERSIONS];
	uint64_t bytes = zd_sim_true_numel(config, unit, rank) * zerod_dtype_bytes(config->units[unit].dtype);
	size_t same = key == ZD_SIM_UNKNOWN
	                      ? bytes
	                      : zd_sim_pattern_check(key, zd_sim_memory(world, &shard->at, "shard"), bytes);

	if (same != bytes)
		zd_sim_fail(world, "shard of %s/%s, rank %u, version %llu: byte %zu of %llu is wrong",
		            config->name, config->units[unit].name, rank, (unsigned long long)shard->version,
		            same, (unsigned long long)bytes);
}

void zd_sim_shards_check(struct zd_sim_world *world, const struct zd_sim_session *session)
{
	for (uint32_t g = 0; g < world->config.ngroups; g++) {
		const struct zd_sim_member *member = &session->members[g];
		uint32_t rank = zd_sim_rank(&world->config, session->actor, g);

		if (!member->id || member->set_back)
			continue;
		for (uint32_t u = 0; u < world->config.groups[g].nunits; u++) {
			if (member->handles[u].id && !member->handles[u].updating)
				check_shard(world, g, u, rank);
		}
	}
}
