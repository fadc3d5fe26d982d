/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.c - sessions come, go, and are killed; what the model forgets with them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "sim.h"

struct zd_sim_session *zd_sim_session_find(struct zd_sim_world *world, uint64_t id)
{
	for (uint32_t i = world->nsessions; i-- > 0;) {
		if (world->sessions[i]->id == id)
			return world->sessions[i];
	}
	return NULL;
}

struct zd_sim_request *zd_sim_request_find(struct zd_sim_session *session, uint64_t id)
{
	for (uint32_t i = 0; i < session->nrequests; i++) {
		if (session->requests[i].id == id)
			return &session->requests[i];
	}
	return NULL;
}

void zd_sim_session_open(struct zd_sim_world *world, uint32_t actor)
{
	const struct zd_sim_actor_config *config = &world->config.actors[actor];
	char name[16];
	snprintf(name, sizeof(name), "actor%u", actor);
	struct zd_peer peer = {.uid = config->uid,
	                       .pid = 100 + actor,
	                       .admin = config->admin,
	                       .strict = config->strict,
	                       .poison = config->poison,
	                       .maps_frames = config->maps_frames,
	                       .name = name};
	struct zd_err err = ZD_ERR_NONE;
	uint64_t id = zd_engine_session_open(world->engine, &peer, &err);

	if (id == 0)
		zd_sim_fail(world, "a session cannot be opened: %s", err.text);
	if (zd_sim_session_find(world, id))
		zd_sim_fail(world, "session id %llu is used again", (unsigned long long)id);
	struct zd_sim_session *session = zd_calloc(1, sizeof(*session));
	session->id = id;
	session->actor = actor;
	session->index = world->nsessions;
	session->open = true;
	session->strict = config->strict;
	session->poison = config->poison;
	session->daemon_page = zd_calloc(ZD_TIMELINES, sizeof(*session->daemon_page));
	session->told_ns = zd_calloc(ZD_TIMELINES, sizeof(*session->told_ns));
	session->given = zd_calloc(ZD_TIMELINES, sizeof(*session->given));
	world->sessions = zd_sim_grow(world->sessions, world->nsessions, &world->sessions_room,
	                              sizeof(struct zd_sim_session *));
	world->sessions[world->nsessions++] = session;
	world->actors[actor].session = session;
	zd_sim_called(world);
}

/* Nobody is in the group any more: sums of its next life can be predicted again. */
static void group_reset_if_empty(struct zd_sim_world *world, uint32_t group)
{
	struct zd_sim_group *model = &world->groups[group];

	for (uint32_t i = 0; i < world->nsessions; i++) {
		const struct zd_sim_member *member = &world->sessions[i]->members[group];
		if (world->sessions[i]->open && (member->id || member->joining))
			return;
	}
	for (uint32_t u = 0; u < ZD_SIM_UNITS; u++)
		for (uint32_t r = 0; r < ZD_SIM_WORLD; r++)
			model->shards[u][r].kept = false;
	model->tainted = false;
	model->step_first = UINT32_MAX;
	memset(model->gradients, 0, sizeof(model->gradients));
	memset(model->abandoned, 0, sizeof(model->abandoned));
}

void zd_sim_member_gone(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t group,
                        bool ended)
{
	const struct zd_sim_group_config *config = &world->config.groups[group];
	struct zd_sim_member *member = &session->members[group];
	uint32_t rank = zd_sim_rank(&world->config, session->actor, group);

	if (!member->id && !member->joining)
		return;
	if (world->config.jobs[config->job].shadow && member->id)
		zd_sim_roll_back(world, group);
	for (uint32_t u = 0; u < config->nunits; u++) {
		struct zd_sim_shard *shard = &world->groups[group].shards[u][rank];
		if (!world->config.jobs[config->job].durable) {
			shard->kept = ended && shard->exists;
			shard->exists = shard->maybe = false;
			continue;
		}
		shard->maybe = shard->maybe || member->handles[u].registering;
		if (member->handles[u].written && !world->config.jobs[config->job].shadow) {
			world->groups[group].torn = true;
			shard->keys[shard->version % ZD_SIM_VERSIONS] = ZD_SIM_UNKNOWN;
		}
	}
	memset(member, 0, sizeof(*member));
	zd_sim_group_lost(world, group);
	zd_sim_taint(world, group);
	group_reset_if_empty(world, group);
}

static uint64_t true_bytes(const struct zd_sim_world *world, const struct zd_sim_session *session,
                           uint32_t group, uint32_t unit)
{
	const struct zd_sim_group_config *config = &world->config.groups[group];

	return zd_sim_true_numel(config, unit, zd_sim_rank(&world->config, session->actor, group)) *
	       zerod_dtype_bytes(config->units[unit].dtype);
}

/* `quarantined`: the engine has to count it so, once, until the process is gone. */
static void keep(struct zd_sim_world *world, struct zd_sim_session *session, const struct zd_location *at,
                 bool quarantined)
{
	if (!at->segment || at->bytes == 0)
		return;
	for (uint32_t i = 0; i < session->nresidue && quarantined; i++)
		quarantined = !zd_sim_overlap(&session->residue[i], at);
	if (quarantined)
		session->quarantined[zd_sim_segment_find(world, at->segment)->device] += at->bytes;
	session->residue = zd_sim_grow(session->residue, session->nresidue, &session->residue_room,
	                               sizeof(*session->residue));
	session->residue[session->nresidue++] = *at;
}

static void keep_handle(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t group,
                        uint32_t unit)
{
	struct zd_sim_handle *handle = &session->members[group].handles[unit];
	struct zd_location shard = handle->shard;
	const struct zd_sim_group_config *config = &world->config.groups[group];
	bool durable = world->config.jobs[config->job].durable, slot = config->units[unit].slot != 0;

	if (handle->updating) {
		handle->written = true;
		shard.bytes = true_bytes(world, session, group, unit); /* never the padding */
		keep(world, session, &shard, !durable);
	}
	if (zd_sim_entry_held(&session->members[group], &handle->entry))
		keep(world, session, &handle->entry.at, true);
	if (handle->lent && !session->members[group].beginning)
		keep(world, session, &handle->lent_at, true);
	for (uint32_t h = 0; h < ZD_SIM_HOLDERS; h++) {
		for (uint32_t p = 0; handle->leases[h].uses && p < ZD_SIM_PARTS; p++) {
			if (p != ZD_SIM_OWN) /* which is only read */
				keep(world, session, &handle->leases[h].at[p], !slot);
		}
	}
}

/* All that a process which lingers could write when its session ended. */
static void keep_all(struct zd_sim_world *world, struct zd_sim_session *session)
{
	for (uint32_t i = 0; i < ZD_SIM_ALLOCS; i++) {
		if (session->allocs[i].id)
			keep(world, session, &session->allocs[i].at, true);
	}
	for (uint32_t g = 0; g < world->config.ngroups; g++) {
		const struct zd_sim_member *member = &session->members[g];
		for (uint32_t m = 0; m < ZD_NTARGETS && member->stepping && !member->beginning; m++)
			keep(world, session, &member->targets[m], true);
		for (uint32_t u = 0; member->id && u < ZD_SIM_UNITS; u++)
			keep_handle(world, session, g, u);
	}
}

/* It has written there to its end. */
void zd_sim_process_gone(struct zd_sim_world *world, struct zd_sim_session *session)
{
	for (uint32_t i = 0; i < session->nresidue; i++) {
		const struct zd_location *at = &session->residue[i];
		zd_sim_pattern_write(zd_sim_next(&world->rng),
		                     zd_sim_memory(world, at, "what a process keeps"), at->bytes);
	}
	session->nresidue = 0;
	memset(session->quarantined, 0, sizeof(session->quarantined));
	session->lingers = false;
	zd_sim_streams_drop(session);
	zd_sim_watches_run(world, session->id);
	zd_sim_sums_kick(world, session->id);
}

/* Long enough for others to come as far as the process was, or too short for anything. */
static uint64_t linger_scale(struct zd_sim_world *world)
{
	return (zd_sim_percent(&world->rng, 50) ? 100 : 10000) * world->config.actor_ns;
}

/* Updates the driver's model when the connection has ended; the engine is informed before or right after. */
static void forget(struct zd_sim_world *world, struct zd_sim_session *session)
{
	session->open = false;
	zd_sim_trace(world, "session %llu of actor %u ends with %u requests outstanding",
	             (unsigned long long)session->id, session->actor, session->nrequests);
	if (world->config.linger && !session->clean_exit)
		keep_all(world, session);
	if (world->config.actors[session->actor].job >= 0) {
		for (uint32_t g = 0; g < world->config.ngroups; g++)
			zd_sim_member_gone(world, session, g, session->clean_exit);
	}
	session->nrequests = 0;
	zd_sim_poison_end(world, session->id);
	session->lingers = world->config.linger && !session->clean_exit;
	if (session->lingers)
		zd_sim_schedule(world,
		                (struct zd_sim_event){.kind = ZD_SIM_EVENT_GONE, .index = session->index},
		                zd_sim_delay(&world->rng, linger_scale(world)));
	else
		zd_sim_process_gone(world, session);
	struct zd_sim_actor *actor = &world->actors[session->actor];
	if (actor->session == session) {
		actor->session = NULL;
		actor->blocked_on = 0;
		zd_sim_actor_wake(world, session->actor);
	}
}

void zd_sim_session_close(struct zd_sim_world *world, struct zd_sim_session *session)
{
	forget(world, session);
	zd_engine_session_close(world->engine, session->id);
	zd_sim_called(world);
}

void zd_sim_session_goodbye(struct zd_sim_world *world, struct zd_sim_session *session)
{
	session->clean_exit = true;
	zd_engine_session_goodbye(world->engine, session->id);
	zd_sim_called(world);
	zd_sim_session_close(world, session);
}

void zd_sim_session_killed(void *arg, uint64_t id, const char *why)
{
	struct zd_sim_world *world = arg;
	struct zd_sim_session *session = zd_sim_session_find(world, id);

	if (!session || !session->open)
		zd_sim_fail(world, "session %llu is killed, but it is not open", (unsigned long long)id);
	if (!why || !*why)
		zd_sim_fail(world, "session %llu is killed without a reason", (unsigned long long)id);
	forget(world, session);
}

/* Its effects are there with the request; the reply may come later. */
void zd_sim_reset(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t op)
{
	struct zd_args args = {.kind = ZD_REQ_SESSION_RESET};
	struct zd_sim_request request = {.kind = ZD_REQ_SESSION_RESET, .op = op};

	session->poisoned = session->told = session->aborted = false;
	for (uint32_t s = 0; s < ZD_SIM_STREAMS; s++)
		session->streams[s].garbage = false;
	for (uint32_t g = 0; g < world->config.ngroups; g++) {
		struct zd_sim_member *member = &session->members[g];
		member->set_back = false;
		if (member->lost)
			zd_sim_give_up(member);
		for (uint32_t u = 0; member->id && u < ZD_SIM_UNITS; u++) {
			struct zd_sim_handle *handle = &member->handles[u];
			if (handle->undone && !handle->publishing)
				handle->undone = handle->updating = handle->written = false;
			for (uint32_t h = 0; h < ZD_SIM_HOLDERS; h++)
				handle->leases[h].doubtful = true;
		}
	}
	zd_sim_send(world, session, &request, &args);
}

/* A durable job that nobody was attached to was ended: its shards are gone. */
void zd_sim_job_gone(struct zd_sim_world *world, uint32_t job)
{
	const struct zd_sim_job_config *config = &world->config.jobs[job];

	for (uint32_t g = config->first_group; g < config->first_group + config->ngroups; g++) {
		for (uint32_t i = 0; i < world->nsessions; i++) {
			if (world->sessions[i]->open && world->sessions[i]->members[g].id)
				zd_sim_fail(world, "job %s was ended while session %llu is in it",
				            config->name, (unsigned long long)world->sessions[i]->id);
		}
		world->groups[g].torn = false;
		world->groups[g].committed_step = 0;
		for (uint32_t u = 0; u < ZD_SIM_UNITS; u++)
			for (uint32_t r = 0; r < ZD_SIM_WORLD; r++)
				world->groups[g].shards[u][r].exists = world->groups[g].shards[u][r].maybe =
				        false;
	}
}
