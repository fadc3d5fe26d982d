/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mapping.c - segments that sessions have mapped, and let go when they are told to: soon, late, or never,
 * when they end first.
 *
 * The daemon gives the memory of a segment back only when the segment is empty, and no session still maps the
 * segment.
 */
#include "sim.h"

#define FIRST_ANSWER (1ull << 62) /* ids of requests that are no operation's */

static struct zd_sim_mapping *find(struct zd_sim_session *session, uint32_t segment)
{
	for (uint32_t i = 0; i < session->nmappings; i++) {
		if (session->mappings[i].segment == segment)
			return &session->mappings[i];
	}
	return NULL;
}

void zd_sim_map(struct zd_sim_world *world, uint64_t id, uint32_t segment)
{
	struct zd_sim_session *session = zd_sim_session_find(world, id);

	if (find(session, segment))
		return;
	session->mappings = zd_sim_grow(session->mappings, session->nmappings, &session->mappings_room,
	                                sizeof(*session->mappings));
	session->mappings[session->nmappings++] = (struct zd_sim_mapping){.segment = segment};
	zd_engine_segment_given(world->engine, id, segment);
}

void zd_sim_segment_retire(void *arg, uint64_t id, uint32_t segment)
{
	struct zd_sim_world *world = arg;
	struct zd_sim_session *session = zd_sim_session_find(world, id);
	struct zd_sim_mapping *mapping = session && session->open ? find(session, segment) : NULL;
	uint64_t usual = world->config.actor_ns;

	if (!mapping || mapping->told)
		zd_sim_fail(world, "session %llu is to unmap segment %u, which it %s", (unsigned long long)id,
		            segment, mapping ? "has been told before" : "has not");
	mapping->told = true;
	zd_sim_schedule(
	        world,
	        (struct zd_sim_event){.kind = ZD_SIM_EVENT_UNMAP, .index = session->index, .op = segment},
	        zd_sim_delay(&world->rng, zd_sim_percent(&world->rng, 20) ? 50 * usual : usual));
}

void zd_sim_unmap(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t segment)
{
	struct zd_sim_mapping *mapping = find(session, segment);
	struct zd_call call = {.session = session->id, .request = FIRST_ANSWER + world->next_order++};
	struct zd_args args = {.kind = ZD_REQ_SEGMENTS_UNMAPPED,
	                       .u.segments_unmapped = {.n_segments = 1, .segments = &segment}};

	if (!session->open)
		return;
	*mapping = session->mappings[--session->nmappings];
	zd_sim_trace(world, "session %llu has unmapped segment %u", (unsigned long long)session->id, segment);
	zd_engine_request(world->engine, &call, &args);
	zd_sim_called(world);
}

bool zd_sim_is_answer(struct zd_sim_world *world, const struct zd_reply *reply)
{
	if (reply->request < FIRST_ANSWER)
		return false;
	if (reply->kind != ZD_REQ_SEGMENTS_UNMAPPED || reply->status != 0)
		zd_sim_fail(world, "to segments_unmapped comes: %s", reply->error);
	return true;
}

/* A session that has ended maps the segment as long as its process lingers. */
static void check_session(struct zd_sim_world *world, struct zd_sim_session *session,
                          const struct zd_command *command)
{
	const struct zd_sim_mapping *mapping = find(session, command->u.segment.segment);
	bool ends = zd_sim_may_end(world, session->id); /* which we are told only afterwards */
	bool lives = session->open && !ends;
	bool lingers = session->lingers || (session->open && ends && world->config.linger);

	if (mapping && (lives || lingers))
		zd_sim_fail(world, "segment %u is given back, and session %llu has it mapped",
		            mapping->segment, (unsigned long long)session->id);
}

void zd_sim_destroy_check(struct zd_sim_world *world, const struct zd_command *command)
{
	struct zd_location whole = {.segment = command->u.segment.segment, .bytes = command->u.segment.bytes};

	for (uint32_t i = 0; i < world->nsessions; i++)
		check_session(world, world->sessions[i], command);
	zd_sim_owner_check(world, &whole, NULL);
	zd_sim_streams_check(world, &whole, NULL);
}
