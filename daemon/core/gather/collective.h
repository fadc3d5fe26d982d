/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collective.h - collective gathers: all ranks of a group that spans daemons gather the same units, in the
 * same order, because their transfers exchange shards with each other.
 *
 * The Nth transfer of a unit on one rank belongs to the Nth transfer of that unit on every other rank. A
 * gather that starts a transfer therefore retains its place among the rank's gathers, and a rank that cannot
 * make a transfer ends the group. If another local rank has received shards in its exchange, local ranks copy
 * them out of that rank's buffer. The buffer remains until all of them have copied (plan_rail_gathers.c).
 */
#ifndef ZD_CORE_GATHER_COLLECTIVE_H
#define ZD_CORE_GATHER_COLLECTIVE_H

#include "core/cluster/cluster.h"
#include "core/gather/buffer.h"

/* The collective gathers of a part. */
struct zd_collective {
	uint64_t begun; /* number of started transfers */
	/* Buffers that other local ranks have yet to copy from, by the ordinals of the buffers' transfers. */
	TAILQ_HEAD(zd_relay_sources, zd_buffer) sources;
};

static inline bool zd_gathers_are_collective(const struct zd_group *group)
{
	return group->cluster && !group->cluster->hybrid;
}

/* Whether a collective transfer of the present connection has filled the buffer. Ranks of other daemons have
 * also made that transfer and would not repeat it. The buffer is therefore not evicted. */
static inline bool zd_buffer_is_shared(const struct zd_buffer *buffer)
{
	const struct zd_group *group = buffer->unit->group;
	return zd_gathers_are_collective(group) && group->state == ZD_GROUP_READY &&
	       buffer->connection == group->cluster->serial;
}

struct zd_collective *zd_collective_new(void);
void zd_collective_free(struct zd_collective *collective);

/* The following functions do nothing in groups whose gathers are not collective. */

/* Returns ZD_WAIT while earlier gathers of the session have not started their transfers. */
int zd_collective_check_order(struct zd_request *req) __attribute__((warn_unused_result));
/* Returns ZD_WAIT, before the gather allocates memory, while another rank on the device has yet to copy from
 * a buffer that the session has released. */
int zd_collective_check_followers(struct zd_request *req) __attribute__((warn_unused_result));
/* Whether another rank on the same device has started a transfer of the unit that this rank has not made
 * yet. */
bool zd_collective_follows(const struct zd_part *part);
/* Returns a local rank that has not started a transfer of the part's version that this rank has made, or
 * local_world_size. All ranks make the same transfers. */
uint32_t zd_collective_first_to_follow(const struct zd_part *part);
/* Ends the group because a waiting gather was cancelled. Ranks of other daemons wait for the gather, and
 * would match the rank's next gather with it. */
void zd_collective_given_up(struct zd_engine *e, struct zd_request *req);
/* Ends the group because a gather is rejected that ranks of other daemons may have made. */
void zd_collective_missed(struct zd_engine *e, struct zd_request *req, int status, const char *why);

/* Makes the transfer counts of each unit equal on all local ranks, so that their next transfers match. Called
 * whenever the group connects. */
void zd_collective_start(struct zd_group *group);

/* After the group has ended, fails the relays that have not run, and releases the streams that wait for them
 * (plan_rail_gathers.c). With `member`: only the relays of that rank, and those that can no longer run. */
void zd_relays_stop(struct zd_engine *e, struct zd_group *group, struct zd_member *member);

/* Returns the number of relays into the buffer, from that local rank, that were not run. */
uint32_t zd_relays_waiting(const struct zd_buffer *buffer, uint32_t rank);

#endif
