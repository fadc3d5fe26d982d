/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduction.h - reductions: one unit's gradients of all ranks in one backward (reduce.c).
 */
#ifndef ZD_CORE_REDUCE_REDUCTION_H
#define ZD_CORE_REDUCE_REDUCTION_H

#include "base/sm.h"
#include "core/gather/unit.h"
#include "core/reduce/entry.h"
#include "core/reduce/member.h"
#include "core/reduce/window.h"

enum zd_reduction_state {
	ZD_REDUCTION_COLLECTING, /* contributions of ranks are missing */
	ZD_REDUCTION_RUNNING,
	ZD_REDUCTION_COMPLETE,
	ZD_REDUCTION_FAILED,  /* will not complete; the windows of all ranks have failed */
	ZD_REDUCTION_DROPPED, /* the group has failed: remains only for its operations */
};

enum zd_contribution_state {
	ZD_CONTRIBUTION_NONE,
	ZD_CONTRIBUTION_RESERVED,
	ZD_CONTRIBUTION_SUBMITTED,
	ZD_CONTRIBUTION_READY,
	ZD_CONTRIBUTION_SKIPPED,
};

struct zd_contribution {
	uint8_t state;
	bool lends;             /* the rank takes the terms of its slice: no sum is made */
	struct zd_entry *entry; /* until it is drained */
	uint64_t rail_seq;      /* the place among all contributions of this rank */
	/* Set when the reduction starts: */
	struct zd_storage *storage;
	uint64_t offset;
	uint32_t order; /* the place among the ranks that submitted */
	uint32_t left;  /* steps of slices that have yet to read the entry */
	uint32_t ops;   /* operations in progress that read the entry */
	bool settled;   /* the rank's slice and entry are done, though perhaps not other ranks' slices */
};

/* The key of a reduction: the unit's id, the window, and the backward's place in the window. */
enum { ZD_REDUCTION_UNIT, ZD_REDUCTION_WINDOW, ZD_REDUCTION_BACKWARD, ZD_REDUCTION_NKEYS };

struct zd_reduction_options {
	uint32_t op; /* enum zerod_reduce_op */
	float prescale;
	bool overwrite;
	enum zerod_dtype dtype; /* of the gradients */
};

#define ZD_REDUCTION_CHUNKS 5u /* at most */

struct zd_reduction {
	uint64_t key[ZD_REDUCTION_NKEYS];
	struct zd_group *group;
	struct zd_unit *unit; /* NULL: the reduction has ended, or is dropped */
	uint8_t state;
	bool over;           /* COMPLETE or FAILED, without remaining operations */
	uint32_t first_rank; /* the first rank that submitted, whose options count */
	struct zd_reduction_options options;
	uint32_t nreserved, nsubmitted, nskipped; /* ranks */
	uint32_t ndone;                           /* slices */
	uint32_t ops;                             /* operations in progress */
	uint32_t nslices; /* local_world_size from its start on, because operations can outlive the group */
	/* Set when the reduction starts. Chunk i of each slice ends at the start of chunk i + 1. */
	uint32_t nchunks;
	uint64_t chunk_begin[ZD_REDUCTION_CHUNKS + 1];
	uint32_t block_stride; /* not 0: chunks are other daemons' blocks, this many slices apart */
	uint64_t begin_ns;     /* the first rank's contribution */
	struct zd_failure failure;
	struct zd_contribution *ranks;  /* local_world_size; NULL when COMPLETE and ended */
	struct zd_slice *slices;        /* local_world_size; NULL before the reduction runs */
	TAILQ_ENTRY(zd_reduction) link; /* until it has ended */
	struct zd_hash_node by_key;
	struct zd_reduction *prev, *next; /* of all records */
};

extern const struct zd_sm zd_sm_reduction, zd_sm_contribution;

/* Whether the reduction belongs to the last backward that the rank has started in the window. */
static inline bool zd_reduction_is_of(const struct zd_reduction *r, const struct zd_window *w)
{
	return r->key[ZD_REDUCTION_WINDOW] == w->number && r->key[ZD_REDUCTION_BACKWARD] == w->count;
}

/* Returns the rank's window to which the reduction belongs, or NULL if the rank has closed the window. Never
 * NULL while the rank's backward waits for the reduction. */
static inline struct zd_window *zd_reduction_window(const struct zd_reduction *r, uint32_t rank)
{
	return zd_window_of_rank(r->group, rank, r->key[ZD_REDUCTION_WINDOW]);
}

/* Whether the rank has submitted or skipped. */
static inline bool zd_contribution_made(const struct zd_contribution *c)
{
	return c->state >= ZD_CONTRIBUTION_SUBMITTED;
}

/* ---- Contributions ------------------------------------------------------------------------------------- */

/* Ends a group that spans daemons if a rank's contribution was rejected with MISMATCH, because ranks of other
 * daemons would wait for it. Does nothing for any other status. */
void zd_reduction_refused(struct zd_engine *e, struct zd_group *group, int status, const struct zd_err *err);
/* Checks that the rank may still reserve or skip the unit in its running backward. `wants`: the verb of an
 * error, "reduce" or "skip". Errors: STATE, INVALID, MISMATCH, DUPLICATE, or a failure's status. */
int zd_reduction_admit(struct zd_engine *e, const struct zd_member_reduce *mr, const struct zd_unit *unit,
                       const char *wants, struct zd_err *err) __attribute__((warn_unused_result));
/* Finds the unit's reduction in the window's last backward. Returns NULL if no rank has reserved, submitted
 * or skipped the unit in it. */
struct zd_reduction *zd_reduction_find(const struct zd_window *w, uint64_t unit);
/* Adds the entry's contribution to its unit's reduction, and creates the reduction if necessary. Does nothing
 * in an abandoned window. */
void zd_reduction_reserve(struct zd_engine *e, struct zd_entry *entry);
/* Removes the contribution of an entry that is not submitted. */
void zd_reduction_unreserve(struct zd_engine *e, struct zd_entry *entry);
/* Returns MISMATCH if the options differ from those of a rank that has submitted. */
int zd_reduction_check_options(const struct zd_entry *entry, const struct zd_reduction_options *options,
                               struct zd_err *err) __attribute__((warn_unused_result));
/* Returns MISMATCH if a rank has ended its backward without a contribution, or the reduction's failure. */
int zd_reduction_check_ranks(const struct zd_entry *entry, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Submits the entry's contribution. The last missing contribution starts the reduction. `lends`: the rank
 * takes the terms of its slice. */
void zd_reduction_submit(struct zd_engine *e, struct zd_entry *entry,
                         const struct zd_reduction_options *options, bool lends);
/* Makes the entry's contribution READY: its fences have passed. */
void zd_reduction_ready(struct zd_engine *e, struct zd_entry *entry);

/* ---- Ends ---------------------------------------------------------------------------------------------- */

/* Fails the reduction, and with it the windows of all ranks. A group that spans daemons fails as a whole. */
void zd_reduction_fail(struct zd_engine *e, struct zd_reduction *r, int status, const char *text);
/* Called when the window has failed: fails its reductions with terms that are not lent, because no rank takes
 * them any more. */
void zd_reduction_fail_untaken(struct zd_engine *e, const struct zd_group *group, uint64_t window, int status,
                               const char *text);
/* Called when the rank ends its backward: fails the reductions to which other ranks have contributed and this
 * rank has not. */
void zd_reduction_fail_without(struct zd_engine *e, struct zd_window *w);
/* Called when the rank ends its backward and skips the rest: skips these reductions on its behalf. */
void zd_reduction_skip_rest(struct zd_engine *e, struct zd_window *w);
/* Ends the rank's entry if no step or operation reads it any more. Called whenever this can be the case. */
void zd_reduction_drain(struct zd_engine *e, struct zd_reduction *r, uint32_t rank);
/* Settles the rank's contribution if its entry is drained and its slice is done: the rank's backward does not
 * wait for the reduction any more. */
void zd_reduction_try_settle(struct zd_engine *e, struct zd_reduction *r, uint32_t rank);
/* Called when an operation of the reduction has ended. May complete or free the reduction. */
void zd_reduction_op_end(struct zd_engine *e, struct zd_reduction *r);
/* Called when a rank has ended the window's backward of that number, or the window. Frees records of
 * reductions whose backward every rank has ended. */
void zd_reduction_forget(const struct zd_engine *e, struct zd_group *group, uint64_t window,
                         uint64_t backward);
/* Drops all reductions of a group that has failed. */
void zd_reduction_drop_all(struct zd_engine *e, struct zd_group *group);

/* ---- Waiting ------------------------------------------------------------------------------------------- */

/* Returns the first reduction of the window's last backward that the rank's backward waits for, or NULL. */
const struct zd_reduction *zd_reduction_first_open(const struct zd_window *w);
/* Whether executors, and streams whose fences the engine has, will drain the reduction's entries without a
 * call of any process: all ranks have contributed, no slice waits for memory, and processes that compute sums
 * have launched them. */
bool zd_reduction_drains(const struct zd_engine *e, const struct zd_reduction *r);
/* Whether zd_reduction_drains() is true of all reductions of the window. */
bool zd_reductions_drain(const struct zd_engine *e, const struct zd_group *group, uint64_t window);
/* Whether the reduction waits only until the rank has returned its terms. */
bool zd_reduction_lends(const struct zd_reduction *r, uint32_t rank);
/* Returns the first rank for which the rank `mine` waits in the reduction. */
uint32_t zd_reduction_waits_for(const struct zd_reduction *r, uint32_t mine);

#endif
