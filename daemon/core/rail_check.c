/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rail_check.c - the invariants of rails, found again from the objects themselves. For tests and the
 * simulator.
 */
#include "core/rail.h"

/* Will the rank take from the landing: it has begun to, or is to begin. */
static bool takes(const struct zd_part *source, const struct zd_landing *landing, uint32_t rank)
{
	const struct zd_group *group = source->unit->group;
	const struct zd_session *session = group->members[rank].session;
	const struct zd_onward *onward;
	if (rank == source->rank || !session)
		return false;
	if (group->state == ZD_GROUP_READY && source->unit->parts[rank].rail->begun < landing->ordinal)
		return true;
	TAILQ_FOREACH (onward, &session->onwards, link) {
		if (onward->source == source && onward->ordinal == landing->ordinal)
			return true;
	}
	return false;
}

/* A landing holds its buffer for exactly those who will take from it, and those who do. */
static void check_landing(const struct zd_part *part, const struct zd_landing *landing)
{
	const struct zd_buffer *buffer = landing->buffer;
	uint32_t left = 0;
	for (uint32_t rank = 0; rank < part->unit->group->local_world_size; rank++)
		left += takes(part, landing, rank);
	zd_assert(landing->left == left && landing->left + landing->copies > 0);
	zd_assert(buffer->part == part && buffer->watches > 0);
	zd_assert(landing->ordinal <= part->rail->begun);
	zd_assert(landing->landed || landing->copies == 0);
}

void zd_rail_check(const struct zd_part *part)
{
	const struct zd_landing *landing, *before;
	TAILQ_FOREACH (landing, &part->rail->landings, link) {
		before = TAILQ_PREV(landing, zd_landings, link);
		zd_assert(!before || before->ordinal < landing->ordinal);
		check_landing(part, landing);
	}
}

/* The copies that are not submitted yet belong to an open session and an existing group. */
void zd_onwards_check(const struct zd_session *session)
{
	const struct zd_onward *onward;
	TAILQ_FOREACH (onward, &session->onwards, link) {
		const struct zd_group *group = onward->buffer->unit->group;
		zd_assert(session == zd_part_member(onward->buffer->part)->session);
		zd_assert(group->state == ZD_GROUP_READY || group->state == ZD_GROUP_ABORTED);
		zd_assert(onward->source != onward->buffer->part &&
		          onward->source->unit == onward->buffer->unit);
		zd_assert(!onward->landing && onward->copies == group->span->nranks - 1);
		zd_assert(onward->copies <= onward->buffer->transfers);
	}
}

void zd_span_check_members(const struct zd_group *group)
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
		zd_assert(group->span->pending == 0);
	zd_assert(group->span->step.pending <= group->local_world_size);
	zd_assert(group->span->commit.pending <= group->local_world_size);
	zd_assert(group->voted_step == 0 || group->voted_step > group->committed_step);
	if (up && group->voted_step)
		zd_assert(group->span->commit.pending > 0);
}
