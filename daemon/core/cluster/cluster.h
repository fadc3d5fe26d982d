/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster.h - groups that span daemons: their communicators, and how such a group ends.
 *
 * Ranks are numbered daemon by daemon, with the same number in each. Inside a daemon the group's ranks reach
 * each other by copies. Between daemons each rank has a rail: a communicator of the ranks with its place in
 * all daemons. A group with `nccl_collectives` makes no copies. All its ranks are on one rail, in world
 * order, as in a group with one rank in each daemon. In a hybrid group every daemon has all shards, and the
 * rails carry only gradients.
 *
 * Every rail has a communicator for gathers and one for reductions. A communicator cannot be used any more
 * after an error, or after its ranks have submitted different operations. The group is then ABORTED with the
 * reason. When all its ranks have left, they join the group again, with new ids.
 */
#ifndef ZD_CORE_CLUSTER_CLUSTER_H
#define ZD_CORE_CLUSTER_CLUSTER_H

#include "core/engine/objects.h"

/* A decision of all daemons. When all local ranks have called, each local rank takes part on its rail. */
struct zd_cluster_round {
	uint32_t pending; /* local ranks whose agreement has not completed; 0: no round in progress */
};

struct zd_cluster {
	bool nccl_collectives, hybrid;
	uint32_t nranks;  /* of each communicator */
	uint32_t pending; /* commands in progress that the group's connection waits for */
	uint64_t serial;  /* counts connections; completions of an earlier connection are ignored */
	bool given;       /* a rank has passed the ids; false: this daemon creates them */
	uint32_t ids_bytes, ids_rank;
	uint64_t ids_until_ns; /* the driver rejects the ids after this time */
	unsigned char *ids;
	char (*hosts)[ZD_MAX_NAME_BYTES + 1]; /* by rank of a communicator; "" before its greeting */
	struct zd_cluster_round step, commit, barrier;
};

/* The first id of a group that has connected. */
struct zd_used_id {
	unsigned char id[ZD_UNIQUE_ID_BYTES];
	uint64_t until_ns;
	struct zd_owner *owner;
	UT_hash_handle hh;
};

/* Checks that such a group is possible. Errors: INVALID, LIMIT, UNSUPPORTED. */
int zd_cluster_check(const struct zd_engine *e, const struct zd_args *args, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Checks that the rank's arguments describe this group. Errors: MISMATCH. */
int zd_cluster_check_group(const struct zd_group *group, const struct zd_args *args, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Checks that no group has connected with the ids of this first rank. Errors: PERMISSION. */
int zd_cluster_check_new(const struct zd_engine *e, const struct zd_args *args, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Makes the cluster of a group. NULL: all ranks are in this daemon and use copies. */
struct zd_cluster *zd_cluster_new(const struct zd_args *args);
/* Copies the ids of the first rank that joins, if that rank has brought any. */
void zd_cluster_take_ids(const struct zd_engine *e, struct zd_cluster *cluster, const struct zd_args *args);
/* Returns the bytes that zd_cluster_new() allocates for these arguments. */
size_t zd_cluster_metadata_bytes(const struct zd_args *args);
/* Frees the cluster; NULL is allowed. */
void zd_cluster_free(struct zd_cluster *cluster);

/* Connects the group's ranks, when all ranks of this daemon have joined. The group is CONNECTING until the
 * ranks of all daemons are connected. */
void zd_cluster_connect(struct zd_engine *e, struct zd_group *group);
/* Changes a group from CONNECTING or READY to ABORTED: aborts its communicators, and releases the streams
 * that wait for other daemons. Does nothing in any other state. */
void zd_cluster_fail(struct zd_engine *e, struct zd_group *group, int status, const char *text);
/* Ends the group when a rank leaves, and closes the rank's communicators. After a clean exit, other ranks
 * still receive the data that they expect from this rank. */
void zd_cluster_leave(struct zd_engine *e, struct zd_member *member, bool clean_exit);
/* Ends the group because the rank has given up `what`, which other ranks wait for. If the rank's session is
 * CLOSING, the reason names the end of the session. */
void zd_cluster_give_up(struct zd_engine *e, struct zd_member *member, const char *what);
/* Aborts the communicators of an ABORTED group. */
void zd_cluster_abort(struct zd_engine *e, struct zd_group *group);

/* Records that the group connects with its ids. Neither another group nor this one may use them again. */
void zd_ids_use(struct zd_engine *e, const struct zd_group *group);
bool zd_ids_are_used(const struct zd_engine *e, const unsigned char *ids);
void zd_used_ids_free(struct zd_engine *e);

/* Returns the rank's place on its rail. */
uint32_t zd_cluster_rank(const struct zd_member *member);
/* Returns the world rank of a peer on the member's rail. */
uint32_t zd_cluster_world_rank(const struct zd_member *member, uint32_t peer);
/* Makes the member take part in the round: starts an agreement on its value, on its rail. The operation's
 * owner is the group. */
void zd_cluster_ask(struct zd_engine *e, struct zd_member *member, struct zd_cluster_round *round,
                    const char *what, const void *value, uint32_t bytes, zd_op_fn *done);
/* For `done`: returns whether this agreement was the last one of the round, and the round counts. A failed
 * agreement ends the group. */
bool zd_cluster_answered(struct zd_engine *e, const struct zd_op *op, struct zd_cluster_round *round)
        __attribute__((warn_unused_result));
#endif
