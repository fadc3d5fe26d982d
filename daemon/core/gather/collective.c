/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collective.c - the order of collective gathers, see collective.h.
 */
#include "core/cluster/cluster.h"
#include "core/gather/buffer.h"
#include "core/gather/collective.h"

#include <stdio.h>
#include <stdlib.h>

struct zd_collective *zd_collective_new(void)
{
	struct zd_collective *collective = zd_calloc(1, sizeof(*collective));
	TAILQ_INIT(&collective->sources);
	return collective;
}

void zd_collective_free(struct zd_collective *collective)
{
	zd_assert(!collective || TAILQ_EMPTY(&collective->sources));
	free(collective);
}

/* ---- Order --------------------------------------------------------------------------------------------- */

int zd_collective_check_order(struct zd_request *req)
{
	struct zd_request *before;
	if (!zd_gathers_are_collective(req->member->group))
		return 0;
	TAILQ_FOREACH (before, &req->session->requests, session_link) {
		if (before == req)
			return 0;
		if (zd_request_gathers(before) && zd_gathers_are_collective(before->member->group))
			return zd_wait_for_unit(req, before->u.gather.part->unit, ZD_WAIT_ORDER, 0, 0, 0);
	}
	return 0;
}

static void fail_group(struct zd_engine *e, struct zd_request *req, int status, const char *why)
{
	struct zd_err err = ZD_ERR_NONE;
	status = zd_err_set(&err, status, "group '%.64s': rank %u's gather of unit '%.64s': %s",
	                    req->member->group->name, zd_world_rank(req->member),
	                    req->u.gather.part->unit->name, why);
	zd_cluster_fail(e, req->member->group, status, err.text);
}

void zd_collective_missed(struct zd_engine *e, struct zd_request *req, int status, const char *why)
{
	if (zd_gathers_are_collective(req->member->group))
		fail_group(e, req, status, why);
}

void zd_collective_given_up(struct zd_engine *e, struct zd_request *req)
{
	char what[128];
	if (!zd_gathers_are_collective(req->member->group))
		return;
	(void)snprintf(what, sizeof(what), "its gather of unit '%.64s'", req->u.gather.part->unit->name);
	zd_cluster_give_up(e, req->member, what);
}

/* ---- Followers ----------------------------------------------------------------------------------------- */

/* Returns a rank that has not begun the transfer that copies from the source. local_world_size: all have. */
static uint32_t first_behind(const struct zd_unit *unit, const struct zd_buffer *source)
{
	uint32_t rank = 0;
	while (rank < unit->group->local_world_size &&
	       unit->parts[rank].collective->begun >= source->relay.ordinal)
		rank++;
	return rank;
}

uint32_t zd_collective_first_to_follow(const struct zd_part *part)
{
	const struct zd_group *group = part->unit->group;
	const struct zd_buffer *source;
	/* No rank can gather a version that was never published: no rank is awaited. */
	if (!zd_gathers_are_collective(group) || group->state != ZD_GROUP_READY ||
	    zd_part_is_unpublished(part))
		return group->local_world_size;
	TAILQ_FOREACH (source, &part->collective->sources, relay.source_link) {
		uint32_t rank = first_behind(part->unit, source);
		if (source->version == part->version && rank < group->local_world_size)
			return rank;
	}
	return group->local_world_size;
}

bool zd_collective_follows(const struct zd_part *part)
{
	const struct zd_group *group = part->unit->group;
	if (!zd_gathers_are_collective(group))
		return false;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		if (group->members[rank].device == zd_part_member(part)->device &&
		    part->unit->parts[rank].collective->begun > part->collective->begun)
			return true;
	}
	return false;
}

/* Finds a rank on the buffer's device that has not begun the transfer that filled the buffer. */
static const struct zd_member *find_follower(const struct zd_buffer *buffer)
{
	const struct zd_unit *unit = buffer->unit;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		if (unit->group->members[rank].device == buffer->device &&
		    unit->parts[rank].collective->begun < buffer->relay.ordinal)
			return &unit->group->members[rank];
	}
	return NULL;
}

/* A released buffer remains until the other ranks of its device have copied from it. Each of these ranks
 * needs as much memory for its own buffer. A rank therefore allocates no further buffer before the other
 * ranks have theirs. No rank then has more memory on the device than its program holds at once. If the device
 * has room for that on all ranks, no rank waits for ever. Counting the free memory would not prevent a
 * deadlock, because other requests can allocate it first. */
int zd_collective_check_followers(struct zd_request *req)
{
	const struct zd_buffer *buffer;
	if (!zd_gathers_are_collective(req->member->group))
		return 0;
	TAILQ_FOREACH (buffer, &req->device->buffers, device_link) {
		const struct zd_group *group = buffer->unit->group;
		if (buffer->state != ZD_BUFFER_QUARANTINED ||
		    zd_part_member(buffer->part)->session != req->session ||
		    !zd_gathers_are_collective(group) || group->state != ZD_GROUP_READY)
			continue;
		const struct zd_member *follower = find_follower(buffer);
		if (follower)
			return zd_wait_for_unit(req, buffer->unit, ZD_WAIT_FOLLOW, 0, zd_world_rank(follower),
			                        0);
	}
	return 0;
}

/* ---- The beginning ------------------------------------------------------------------------------------- */

static void align_counts(const struct zd_unit *unit)
{
	uint64_t begun = 0;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++)
		begun = zd_max_u64(begun, unit->parts[rank].collective->begun);
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++)
		unit->parts[rank].collective->begun = begun;
}

void zd_collective_start(struct zd_group *group)
{
	const struct zd_unit *unit;
	if (!zd_gathers_are_collective(group))
		return;
	TAILQ_FOREACH (unit, &group->units, group_link)
		align_counts(unit);
	TAILQ_FOREACH (unit, &group->former, group_link)
		align_counts(unit);
}
