/* SPDX-License-Identifier: Apache-2.0 */
/*
 * member.h - one rank's side of gradient reduction: its windows, buckets and steps (backward.c, step.c).
 *
 * A rank's gradient of a unit lies in an entry of a bucket. Entries of all ranks for one unit and one
 * backward make a reduction, which is cut into one slice per owner. An owner's slice gathers the ranks'
 * pieces in staging memory, and is then summed into the owner's target. In a group that spans daemons, the
 * sums of the daemons are added up once more: see slice.h.
 *
 *   member -> zd_member_reduce -> buckets -> slots -> entries --+
 *   group  -> reductions -> contributions (one a rank) <--------+
 *                        -> slices (one an owner) -> staging
 */
#ifndef ZD_CORE_REDUCE_MEMBER_H
#define ZD_CORE_REDUCE_MEMBER_H

#include "core/engine/objects.h"
#include "core/reduce/storage.h"
#include "core/reduce/window.h"

struct zd_bucket;
struct zd_entry;

/* The result of the last step that the rank has begun. */
struct zd_step_result {
	bool known;
	uint64_t step;
	bool overflow;
	double norm_squared;
	struct zd_failure failure;
};

/* A rank's windows, at most one of which is closing, and its buckets. */
struct zd_member_reduce {
	struct zd_member *member;
	bool attached;             /* false: only dropped storage keeps the object allocated */
	bool stuck;                /* scratch of capacity.c */
	uint64_t number;           /* of the last backward begun, from 1; for texts */
	struct zd_window *w;       /* in which the rank begins backwards */
	struct zd_window *closing; /* NULL: none */
	struct zd_window *spare;   /* the next one's memory, with that of its norms; NULL: none */
	struct zd_failure past;    /* of the last window that was closed with a failure */

	uint32_t nlent;    /* units whose places in the window's target are lent */
	uint32_t nlenders; /* reduce_wait requests, each of which waits for a unit's sum */

	uint64_t steps;   /* steps that were taken so far */
	uint32_t nenders; /* step_end requests that wait; the first one is for the closing window's step */
	struct zd_step_result result;
	struct zd_failure untold; /* of a promised step: no reply has told the rank of it */

	uint32_t nbuckets;
	uint32_t nentries;       /* of all buckets */
	uint32_t nplaced;        /* of these, entries that have a place */
	uint32_t nunsubmitted;   /* of these, entries that are not submitted yet */
	uint64_t last_rail_seq;  /* rail sequence of the rank's last contribution */
	uint64_t begun_rail_seq; /* rail sequence of the last slice that began on the rail */
	bool holds_rail;         /* its last slice still has operations to submit on the rail */
	TAILQ_HEAD(, zd_bucket) buckets;
	TAILQ_HEAD(, zd_entry) waiting; /* entries without a place, in order */
	TAILQ_HEAD(, zd_storage) storages;
};

/* Returns the member's object, which is made if there is none; never NULL. */
struct zd_member_reduce *zd_member_reduce_get(struct zd_member *member);
/* Returns the member's object; NULL if it has none, or has left the group. */
static inline struct zd_member_reduce *zd_member_reduce(const struct zd_member *member)
{
	return member->reduce && member->reduce->attached ? member->reduce : NULL;
}
/* Frees the object if its member has left the group and no storage is left. */
void zd_member_reduce_release(struct zd_engine *e, struct zd_member_reduce *mr);

/* Whether the rank's closing window has a target that is freed without a further call of any process. */
static inline bool zd_window_gives_room(const struct zd_member_reduce *mr)
{
	return mr->closing && zd_window_has_target(mr->closing) && mr->nenders > 0;
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

/* Makes the request one of the member's, and records how often the group has failed so far. */
void zd_reduce_request_init(struct zd_request *req, struct zd_member *member);
/* Whether the group has failed since the request began. */
bool zd_reduce_request_lost(const struct zd_request *req);
/* Returns the error for work that the group's last failure has ended: PEER_LOST or ABORTED. */
int zd_reduce_lost(const struct zd_group *group, struct zd_err *err) __attribute__((warn_unused_result));
/* Returns 0 if the group is READY and has been READY since the request began. Otherwise returns an error, and
 * the objects that the request refers to may have been freed. */
int zd_reduce_request_check(const struct zd_request *req, struct zd_err *err)
        __attribute__((warn_unused_result));

/* ---- Backwards (backward.c) ---------------------------------------------------------------------------- */

/* For the begin() of requests that belong to a backward: returns ZD_WAIT while the rank's backward is
 * STARTING, else 0. */
int zd_backward_await(struct zd_request *req, const struct zd_member_reduce *mr)
        __attribute__((warn_unused_result));
/* Whether the member has ended, or asked to end, the last backward of `w`, which is another rank's window:
 * the member makes no further contribution to that backward. */
bool zd_backward_ended(const struct zd_member *member, const struct zd_window *w);
/* Ends the backward of a window whose step is CALLED, unless a backward_end request waits to end it. Returns
 * 0 when the backward has ended, otherwise ZD_WAIT. */
int zd_backward_end_for_step(struct zd_engine *e, struct zd_request *req, struct zd_window *w)
        __attribute__((warn_unused_result));
/* Called when a CALLED step is cancelled: the backward runs again, unless a backward_end request waits to end
 * it. */
void zd_backward_step_given_up(struct zd_window *w);

/* ---- Steps (step.c) ------------------------------------------------------------------------------------ */

/* Called when the group has failed: abandons the window's target if the rank's streams may access it,
 * otherwise drops the target. */
void zd_step_abandon(struct zd_engine *e, struct zd_window *w);
/* Drops the rank's abandoned targets, which its streams do not access any more. */
void zd_step_give_up(struct zd_engine *e, struct zd_member_reduce *mr);
/* Whether a rank was promised the step that closes the window. */
bool zd_step_is_promised(const struct zd_window *w);
/* Returns the first rank that has not begun the window's step; local_world_size if all have. */
uint32_t zd_step_first_uncalled(const struct zd_window *w);
/* Returns the failure of a promised step, once, if no reply has told the rank of it; otherwise 0. */
int zd_step_tell(struct zd_member_reduce *mr, struct zd_err *err) __attribute__((warn_unused_result));
/* Clears the result of the last step. */
void zd_step_forget_result(struct zd_member_reduce *mr);

#endif
