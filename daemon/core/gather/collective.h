/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collective.h - collective gathers: all ranks of a group over several daemons gather the same units, in the
 * same order, since their transfers exchange shards with each other.
 *
 * The Nth transfer of a unit on one rank exchanges shards with the Nth on all others. So a rank begins the
 * transfers in the order of its gathers, and a rank that cannot begin one ends the group. Inside
 * a daemon, a rank copies what another local rank's exchange has brought from that rank's buffer, which stays
 * until the others have copied from it (plan_rail_gathers.c).
 */
#ifndef ZD_CORE_GATHER_COLLECTIVE_H
#define ZD_CORE_GATHER_COLLECTIVE_H

#include "core/cluster/cluster.h"
#include "core/gather/buffer.h"

/* The collective gathers of a part. */
struct zd_collective {
	uint64_t begun; /* counts the transfers that the rank has begun */
	/* Buffers that other local ranks have yet to copy from, by the ordinal of their transfer. */
	TAILQ_HEAD(zd_relay_sources, zd_buffer) sources;
};

static inline bool zd_gathers_are_collective(const struct zd_group *group)
{
	return group->cluster && !group->cluster->hybrid;
}

/* Whether ranks of other daemons took part in the buffer's transfer, and would not do so again: the buffer is
 * not evicted while the group is connected. */
static inline bool zd_buffer_is_shared(const struct zd_buffer *buffer)
{
	const struct zd_group *group = buffer->unit->group;
	return zd_gathers_are_collective(group) && group->state == ZD_GROUP_READY &&
	       buffer->connection == group->cluster->serial;
}

struct zd_collective *zd_collective_new(void);
void zd_collective_free(struct zd_collective *collective);

/* The functions below do nothing in groups whose gathers are not collective. */

/* A gather that begins a transfer waits for the session's earlier gathers. Returns 0 or ZD_WAIT. */
int zd_collective_check_order(struct zd_request *req) __attribute__((warn_unused_result));
/* The gather also waits before it takes memory, while other ranks on the device have yet to copy from buffers
 * that the session has released there. Returns 0 or ZD_WAIT. */
int zd_collective_check_followers(struct zd_request *req) __attribute__((warn_unused_result));
/* Whether another rank on its device has begun a transfer of the unit that this rank has not begun. */
bool zd_collective_follows(const struct zd_part *part);
/* This rank has gathered the part's version: returns a local rank that has not begun its transfer of that
 * version, and will, since all ranks gather the same. Otherwise local_world_size. */
uint32_t zd_collective_first_to_follow(const struct zd_part *part);
/* A request that waited is cancelled. The ranks of other daemons wait for its transfer, and would exchange
 * with the next one instead: the group ends. */
void zd_collective_given_up(struct zd_engine *e, struct zd_request *req);
/* A gather is rejected which ranks of other daemons may have begun: the group ends. */
void zd_collective_missed(struct zd_engine *e, struct zd_request *req, int status, const char *why);

/* The group begins, or begins again: from here on the ranks count their transfers from the same number. */
void zd_collective_start(struct zd_group *group);

/* plan_rail_gathers.c. The group has ended, or `member` leaves it: relays that were not run fail, and streams
 * that wait for them are freed. With `member`, these are the relays of that rank, and those without a source;
 * NULL: all. */
void zd_relays_stop(struct zd_engine *e, struct zd_group *group, struct zd_member *member);

/* Returns the number of relays into the buffer, from that local rank, that were not run. */
uint32_t zd_relays_waiting(const struct zd_buffer *buffer, uint32_t rank);

/* Assert the invariants of a part, a session, a group: collective_check.c */
void zd_collective_check(const struct zd_part *part);
void zd_relays_check(const struct zd_session *session);
void zd_cluster_check_members(const struct zd_group *group);

#endif
