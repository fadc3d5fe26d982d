/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collective_check.c - the invariants of collective gathers, recomputed from the objects. For tests and the
 * simulator.
 */
#include "core/gather/buffer.h"
#include "core/gather/collective.h"

/* Counts the relays that the rank will still run from the source. */
static uint32_t count_expected(const struct zd_buffer *source, uint32_t rank)
{
	const struct zd_group *group = source->unit->group;
	const struct zd_session *session = group->members[rank].session;
	const struct zd_buffer *buffer;
	uint32_t n = 0;
	if (rank == source->part->rank || !session)
		return 0;
	if (group->state == ZD_GROUP_READY &&
	    source->unit->parts[rank].collective->begun < source->relay.ordinal)
		return group->cluster->nranks - 1;
	TAILQ_FOREACH (buffer, &session->relaying, relay.taker_link) {
		if (buffer->unit == source->unit && buffer->relay.ordinal == source->relay.ordinal)
			n += zd_relays_waiting(buffer, source->part->rank);
	}
	return n;
}

/* A source counts exactly the relays that will be run from it, and is watched until they have ended. */
static void check_source(const struct zd_part *part, const struct zd_buffer *source)
{
	uint32_t expected = 0;
	for (uint32_t rank = 0; rank < part->unit->group->local_world_size; rank++)
		expected += count_expected(source, rank);
	zd_assert(source->relay.expected == expected && expected + source->relay.running > 0);
	zd_assert(source->part == part && source->watches > 0);
	zd_assert(source->relay.ordinal <= part->collective->begun);
	zd_assert(source->phase == ZD_PHASE_EXCHANGED || source->relay.running == 0);
}

void zd_collective_check(const struct zd_part *part)
{
	const struct zd_buffer *source, *before;
	TAILQ_FOREACH (source, &part->collective->sources, relay.source_link) {
		before = TAILQ_PREV(source, zd_relay_sources, relay.source_link);
		zd_assert(!before || before->relay.ordinal < source->relay.ordinal);
		check_source(part, source);
	}
}

/* The relays that were not run belong to an open session and an existing group. */
void zd_relays_check(const struct zd_session *session)
{
	const struct zd_buffer *buffer;
	TAILQ_FOREACH (buffer, &session->relaying, relay.taker_link) {
		const struct zd_group *group = buffer->unit->group;
		uint32_t waiting = 0;
		for (uint32_t rank = 0; rank < group->local_world_size; rank++)
			waiting += zd_relays_waiting(buffer, rank);
		zd_assert(session == zd_part_member(buffer->part)->session);
		zd_assert(group->state == ZD_GROUP_READY || group->state == ZD_GROUP_ABORTED);
		zd_assert(waiting > 0 && waiting == buffer->relay.waiting && waiting <= buffer->plan.left);
	}
}

void zd_cluster_check_members(const struct zd_group *group)
{
	bool up = group->state == ZD_GROUP_READY, ended = group->state == ZD_GROUP_ABORTED;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_member *member = &group->members[rank];
		for (uint32_t role = 0; role < ZD_NCOMM_ROLES; role++) {
			bool open = member->comm[role] != 0;
			/* A communicator that other ranks have left in order ends with its rank. */
			zd_assert(!open || (member->session && group->state != ZD_GROUP_FORMING &&
			                    group->state != ZD_GROUP_FAILED));
			zd_assert(open || !up);
		}
	}
	zd_assert(!ended || group->attached > 0 || group->over);
	if (up)
		zd_assert(group->cluster->pending == 0);
	zd_assert(group->cluster->step.pending <= group->local_world_size);
	zd_assert(group->cluster->commit.pending <= group->local_world_size);
	zd_assert(group->voted_step == 0 || group->voted_step > group->committed_step);
	if (up && group->voted_step)
		zd_assert(group->cluster->commit.pending > 0);
}
