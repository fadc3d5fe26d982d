/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster.h - groups that span daemons: their communicators, and how such a group ends.
 *
 * Ranks are numbered daemon by daemon, as many in each. Inside a daemon the group's ranks reach each other by
 * copies; between daemons each has a rail, a communicator of the ranks with its place in all daemons. A group
 * with `nccl_collectives` makes no use of copies: all its ranks are on one rail, in the order of the world;
 * so are ranks that are alone in their daemons. In a hybrid group every daemon has all shards, and the rails
 * are for its gradients only. Every rail has a communicator for gathers and one for reductions.
 *
 * A communicator that fails, or whose ranks no longer give the same operations, is of no more use, and nor is
 * the group: it is ABORTED with the reason, and joined again with new ids when all its ranks have left.
 */
#ifndef ZD_CORE_CLUSTER_CLUSTER_H
#define ZD_CORE_CLUSTER_CLUSTER_H

#include "core/engine/objects.h"

/* Something that all daemons decide together, once their local ranks are there. */
struct zd_cluster_round {
	uint32_t pending; /* local ranks whose rail has not answered; 0: not asked */
};

struct zd_cluster {
	bool nccl_collectives, hybrid;
	uint32_t nranks;  /* of each communicator */
	uint32_t pending; /* commands under way that the group's connection waits for */
	uint64_t serial;  /* counts connections: what ends late is told apart by it */
	bool given;       /* the ids, by a rank; else they are made here */
	uint32_t ids_bytes, ids_rank;
	unsigned char *ids;
	char (*hosts)[ZD_MAX_NAME_BYTES + 1]; /* by rank of a communicator; "" before they have met */
	struct zd_cluster_round step, commit, barrier;
};

/* Can there be such a group: INVALID, LIMIT, UNSUPPORTED. */
int zd_cluster_check(const struct zd_engine *e, const struct zd_args *args, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Is it the group that the rank means: MISMATCH. */
int zd_cluster_check_group(const struct zd_group *group, const struct zd_args *args, struct zd_err *err)
        __attribute__((warn_unused_result));
/* NULL where all ranks are here and reach each other by copies. */
struct zd_cluster *zd_cluster_new(const struct zd_args *args);
/* The first rank that joins brings the ids. */
void zd_cluster_take_ids(struct zd_cluster *cluster, const struct zd_args *args);
/* NULL is allowed. */
void zd_cluster_free(struct zd_cluster *cluster);

/* All ranks of this daemon are there: the group is CONNECTING until those of the others are. */
void zd_cluster_connect(struct zd_engine *e, struct zd_group *group);
/* The group is ABORTED: its communicators are, and streams that wait for other daemons are freed. One that is
 * neither CONNECTING nor READY is left alone. */
void zd_cluster_fail(struct zd_engine *e, struct zd_group *group, int status, const char *text);
/* A rank goes, with or without an end in order; in order, what the others are to receive of it reaches
 * them. */
void zd_cluster_leave(struct zd_engine *e, struct zd_member *member, bool clean_exit);
/* The rank gives up what the others wait for: the group ends, with the rank's own end for a reason if that is
 * why. */
void zd_cluster_give_up(struct zd_engine *e, struct zd_member *member, const char *what);
/* The communicators of an ABORTED group end at once. */
void zd_cluster_abort(struct zd_engine *e, struct zd_group *group);

/* The rank's place on its rail. */
uint32_t zd_cluster_rank(const struct zd_member *member);
/* Of a rank of its rail, in the world. */
uint32_t zd_cluster_world_rank(const struct zd_member *member, uint32_t peer);
/* The member's part in the round: its value, on its rail. The owner of `done` is the group. */
void zd_cluster_ask(struct zd_engine *e, struct zd_member *member, struct zd_cluster_round *round,
                    const char *what, const void *value, uint32_t bytes, zd_op_fn *done);
/* For `done`: is this the last answer of a round that counts. One that failed has ended the group. */
bool zd_cluster_answered(struct zd_engine *e, const struct zd_op *op, struct zd_cluster_round *round,
                         int status, const char *error) __attribute__((warn_unused_result));
#endif
