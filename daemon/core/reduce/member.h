/* SPDX-License-Identifier: Apache-2.0 */
/*
 * member.h - one rank's side of gradient reduction: its windows, buckets and steps (backward.c, step.c).
 *
  * A rank's gradient of a unit is in an entry of a bucket. The entries of all ranks for one unit and one
 * backward form a reduction. It has one slice per owner. An owner's slice gathers the ranks' pieces in
 * staging memory, and is then summed into the owner's target. In a group that spans daemons, the sums of the
 * daemons are then added: see slice.h.
 *
 *   member -> zd_member_reduce -> buckets -> slots -> entries --+
 *   group  -> reductions -> contributions (one per rank) <------+
 *                        -> slices (one per owner) -> staging
 */
#ifndef ZD_CORE_REDUCE_MEMBER_H
#define ZD_CORE_REDUCE_MEMBER_H

#include "core/engine/objects.h"
#include "core/reduce/storage.h"
#include "core/reduce/window.h"

struct zd_bucket;
struct zd_entry;
struct zd_slice;

/* The result of the last step that the rank has started. */
struct zd_step_result {
	bool known;
	uint64_t step;
	bool overflow;
	double norm_squared;
	struct zd_failure failure;
};

/* A rank's windows and buckets. At most one window is closing. */
struct zd_member_reduce {
	struct zd_member *member;
	bool attached;             /* false: only dropped storage keeps the object allocated */
	bool stuck;                /* scratch of capacity.c, like the next */
	uint64_t first_stuck;      /* the id of the first entry with terms that lack a stuck rank; 0: none */
	uint64_t number;           /* of the last started backward, from 1; for texts */
	struct zd_window *w;       /* the window in which the rank starts backwards */
	struct zd_window *closing; /* NULL: none */
	struct zd_window *spare;   /* memory of the next window, with its norms; NULL: none */
	struct zd_failure past;    /* of the last window that was closed with a failure */

	uint32_t nlent;               /* units whose places in the window's target are lent */
	TAILQ_HEAD(, zd_slice) loans; /* of these, terms */
	uint32_t nlenders;            /* reduce_wait requests, each waiting for a unit's sum */

	uint64_t steps;   /* number of taken steps */
	uint32_t nenders; /* waiting step_end requests; the first is for the closing window's step */
	struct zd_step_result result;
	struct zd_failure untold; /* failure of a promised step that no reply has reported to the rank */

	uint32_t nbuckets;
	uint32_t nentries;       /* of all buckets */
	uint32_t nplaced;        /* of these, entries that have a place */
	uint32_t nunsubmitted;   /* of these, entries that are not submitted yet */
	uint64_t last_rail_seq;  /* rail sequence of the rank's last contribution */
	uint64_t begun_rail_seq; /* rail sequence of the last slice that started on the rail */
	bool holds_rail;         /* its last slice still has operations to submit on the rail */
	TAILQ_HEAD(, zd_bucket) buckets;
	TAILQ_HEAD(, zd_entry) waiting; /* entries without a place, in order */
	TAILQ_HEAD(, zd_storage) storages;
};

/* Returns the member's object, and creates it if necessary. Never returns NULL. */
struct zd_member_reduce *zd_member_reduce_get(struct zd_member *member);
/* Returns the member's object, or NULL if it has none or has left the group. */
static inline struct zd_member_reduce *zd_member_reduce(const struct zd_member *member)
{
	return member->reduce && member->reduce->attached ? member->reduce : NULL;
}
/* Frees the object if its member has left the group and no storage remains. */
void zd_member_reduce_release(struct zd_engine *e, struct zd_member_reduce *mr);

/* Whether the rank's closing window has a target that is freed without a further call of any process. */
static inline bool zd_window_gives_room(const struct zd_member_reduce *mr)
{
	return mr->closing && zd_window_has_target(mr->closing) && mr->nenders > 0;
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

/* Assigns the request to the member, and records how often the group has failed before. */
void zd_reduce_request_init(struct zd_request *req, struct zd_member *member);
/* Whether the group has failed after the request started. */
bool zd_reduce_request_lost(const struct zd_request *req);
/* Returns the error for work that the group's last failure has ended: PEER_LOST or ABORTED. */
int zd_reduce_lost(const struct zd_group *group, struct zd_err *err) __attribute__((warn_unused_result));
/* Returns 0 if the group is READY and has been READY since the request's start. Otherwise returns an error.
 * The objects that the request refers to can then be freed. */
int zd_reduce_request_check(const struct zd_request *req, struct zd_err *err)
        __attribute__((warn_unused_result));

/* ---- Backwards (backward.c) ---------------------------------------------------------------------------- */

/* For the begin() of requests that belong to a backward: returns ZD_WAIT while the rank's backward is
 * STARTING, otherwise 0. */
int zd_backward_await(struct zd_request *req, const struct zd_member_reduce *mr)
        __attribute__((warn_unused_result));
/* Whether the member has ended, or has requested to end, the last backward of `w`, another rank's window. If
 * so, the member makes no further contribution to that backward. */
bool zd_backward_ended(const struct zd_member *member, const struct zd_window *w);
/* Ends the backward of a window whose step is CALLED, unless a backward_end request waits to end it. Returns
 * 0 when the backward has ended, otherwise ZD_WAIT. */
int zd_backward_end_for_step(struct zd_engine *e, struct zd_request *req, struct zd_window *w)
        __attribute__((warn_unused_result));
/* Called when a CALLED step is cancelled: the backward runs again, unless a backward_end request waits to end
 * it. */
void zd_backward_step_given_up(struct zd_window *w);

/* ---- Steps (step.c) ------------------------------------------------------------------------------------ */

/* Called when the group has failed. If the rank's streams can access the window's target, abandons it,
 * otherwise drops it. */
void zd_step_abandon(struct zd_engine *e, struct zd_window *w);
/* Drops the rank's abandoned targets, which its streams do not access any more. */
void zd_step_give_up(struct zd_engine *e, struct zd_member_reduce *mr);
/* Whether a rank was promised the step that closes the window. */
bool zd_step_is_promised(const struct zd_window *w);
/* Returns the first rank that has not started the window's step, or local_world_size. */
uint32_t zd_step_first_uncalled(const struct zd_window *w);
/* Returns the failure of a promised step once, if no reply has reported it to the rank. Otherwise returns
 * 0. */
int zd_step_tell(struct zd_member_reduce *mr, struct zd_err *err) __attribute__((warn_unused_result));
/* Clears the result of the last step. */
void zd_step_forget_result(struct zd_member_reduce *mr);

#endif
