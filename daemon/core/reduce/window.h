/* SPDX-License-Identifier: Apache-2.0 */
/*
 * window.h - windows of one rank: the backwards from one step to the next, and that step (window.c). Also the
 * norms of the gradients that were reduced in a window (norms.c).
 */
#ifndef ZD_CORE_REDUCE_WINDOW_H
#define ZD_CORE_REDUCE_WINDOW_H

#include "base/sm.h"
#include "core/gather/unit.h"
#include "core/reduce/storage.h"

struct zd_member_reduce;

enum zd_backward_state { ZD_BACKWARD_IDLE, ZD_BACKWARD_STARTING, ZD_BACKWARD_RUNNING, ZD_BACKWARD_ENDING };
enum zd_step_state {
	ZD_STEP_NONE,
	ZD_STEP_READY,
	ZD_STEP_CALLED,    /* the rank has called step_begin before its backward has ended */
	ZD_STEP_ZEROING,   /* the elements that no sum has written are being zeroed */
	ZD_STEP_WAITING,   /* for the other ranks */
	ZD_STEP_TAKEN,     /* the rank reads its target */
	ZD_STEP_ABANDONED, /* the group has failed; the rank can still read its target */
};

/* Why the gradients of a window or of a reduction cannot be used. All zero: they can be used. */
struct zd_failure {
	int status;
	char *text;
	bool abandoned; /* of a window, without a status: `rank` (in the world) has abandoned it */
	uint32_t rank;
};

/* The squared norm of this owner's slice of a unit, at the slice's last reduction. Exists only for units that
 * were reduced or skipped after the last step. */
struct zd_slice_norm {
	uint64_t unit; /* id */
	uint64_t epoch;
	bool skipped; /* all ranks have skipped the unit in each backward */
	double sum_squares;
	struct zd_hash_node by_unit;
	struct zd_slice_norm *prev, *next; /* of all */
};

/* The sums of a rank's slices in one memory. */
struct zd_target {
	struct zd_storage *storage; /* NULL: not bound */
	uint64_t numel;
	uint64_t number;          /* of the backward that bound the target */
	uint64_t unwritten_numel; /* elements that no sum has written, undefined until they are zeroed */
};

/*
 * A window of one rank: its backwards from one step to the next, that step, and its targets.
 *
 * The rank starts its next window when the step is taken. It can start the next window earlier, if the step
 * was promised and step_end was called for it. The former window then is closing until its step has ended.
 */
struct zd_window {
	struct zd_member_reduce *mr;
	uint64_t number;    /* counts the rank's windows; all ranks number the same window alike */
	uint8_t backward;   /* enum zd_backward_state */
	uint8_t step;       /* enum zd_step_state */
	bool boundary;      /* of the last started backward; stage 1 only */
	bool told;          /* a reply has reported `failure` to the rank */
	bool end_requested; /* ENDING: a backward_end waits; false: it was cancelled */
	bool skips_rest;    /* ENDING: the rank skips the units that other ranks reduce and it does not */
	bool overflow;

	uint64_t count;          /* started backwards in this window; the last one may be running */
	uint64_t boundary_count; /* stage 1: the number of the boundary among these; 0: not started yet */
	uint32_t stage; /* 0: no backward has started. In a closing window: its step is taken or has failed */
	enum zerod_dtype target_dtype;

	struct zd_target targets[ZD_NTARGETS];
	TAILQ_HEAD(, zd_storage) sums; /* of units without a place in them */
	struct zd_norms norms;
	struct zd_failure failure;

	struct zd_storage *scalars; /* the result of the current step, for kernels; NULL: not requested */
	struct zd_promise *promise; /* promise of the target, until the step is taken or fails; NULL: none */
	uint32_t open;              /* reductions to which the rank has contributed and for which it waits */
	uint32_t nentries;          /* entries of its backwards that are not drained */
};

extern const struct zd_sm zd_sm_backward, zd_sm_step;

/* ---- Failures ------------------------------------------------------------------------------------------ */

/* Sets the failure, with a copy of the text, unless a failure is already set. */
void zd_failure_set(struct zd_failure *failure, int status, const char *text);
/* Clears the failure and frees its text. */
void zd_failure_clear(struct zd_failure *failure);
/* Copies `from`, unless `failure` has a status already. */
void zd_failure_copy(struct zd_failure *failure, const struct zd_failure *from);

/* ---- Windows ------------------------------------------------------------------------------------------- */

/* Returns the rank's window with that number, or NULL if the rank has closed or not started it. */
struct zd_window *zd_window_find(const struct zd_member_reduce *mr, uint64_t number);
/* The same for a rank of the group. Returns NULL also if the rank has left the group. */
struct zd_window *zd_window_of_rank(const struct zd_group *group, uint32_t rank, uint64_t number);
/* Returns the window for which the request was made (u.reduce.window), or NULL if the rank has closed it. */
struct zd_window *zd_window_of(const struct zd_request *req);
/* Creates a window without backwards. Never returns NULL. */
struct zd_window *zd_window_new(struct zd_member_reduce *mr, uint64_t number);
/* NULL is allowed. */
void zd_window_free(struct zd_engine *e, struct zd_window *w);
/* If the present window's step was promised and step_end was called for it, starts the rank's next window
 * while the present one closes. Does nothing while another window of the rank is closing. */
void zd_window_try_pass(struct zd_engine *e, struct zd_member_reduce *mr);
/* Called when the window's step has ended, if it had one, and its target is dropped. Frees a closing
 * window. */
void zd_window_end(struct zd_engine *e, struct zd_window *w);
/* Discards the sums and the failure of the window. The object then becomes the rank's next window, except for
 * a closing window, which already has a successor. */
void zd_window_close(struct zd_window *w);
/* Closes a window that has failed or was abandoned: drops its target unless that is promised, and moves its
 * step to `step`. */
void zd_window_leave(struct zd_engine *e, struct zd_window *w, enum zd_step_state step);
/* Fails the window on all ranks. Each rank that is in it, or starts it later, receives this failure in place
 * of the step. Also fails the reductions of the window that lack contributions. A group that spans daemons
 * fails as a whole. */
void zd_window_fail(struct zd_engine *e, struct zd_group *group, uint64_t window, int status,
                    const char *text);
/* Returns MISMATCH if the rank may not start another backward, because another rank has called the step of
 * the window after fewer backwards. */
int zd_window_check_begin(const struct zd_window *w, struct zd_err *err) __attribute__((warn_unused_result));
/* Returns MISMATCH if another rank has started more backwards than this rank, which calls the step, or has
 * called the step after fewer. */
int zd_window_check_step(const struct zd_window *w, struct zd_err *err) __attribute__((warn_unused_result));

/* Fails the agreements of ranks that have not started a backward which another rank has started. That other
 * rank does not wait in an agreement: it calls the agreement later, or never. */
void zd_window_fail_agreements(struct zd_engine *e, struct zd_group *group);

/* Returns the window's target that has the unit's place. */
static inline const struct zd_target *zd_window_target(const struct zd_window *w, const struct zd_unit *unit)
{
	return &w->targets[unit->on_host];
}

/* Whether the window has memory for sums. */
static inline bool zd_window_has_target(const struct zd_window *w)
{
	return w->targets[ZD_TARGET_ON_DEVICE].storage || w->targets[ZD_TARGET_ON_HOST].storage ||
	       !TAILQ_EMPTY(&w->sums);
}

/* Whether a rank has abandoned the window, which ends it for all ranks. */
static inline bool zd_window_is_abandoned(const struct zd_window *w)
{
	return w->failure.abandoned;
}

/* Whether the rank has called the step that closes the window and the step is not taken yet. If so, the rank
 * starts no further backward in the window. */
static inline bool zd_step_is_called(const struct zd_window *w)
{
	return w->step == ZD_STEP_CALLED || w->step == ZD_STEP_ZEROING || w->step == ZD_STEP_WAITING;
}

/* The number of units that are visited in the time in which an end frees an object. */
#define ZD_UNITS_PER_OBJECT 8u

/* Returns the number of units that one event may visit for a step. */
static inline uint32_t zd_step_units(const struct zd_engine *e)
{
	return e->sink.ends ? ZD_UNITS_PER_OBJECT * e->end_step_objects : UINT32_MAX;
}

/* ---- Norms (norms.c) ----------------------------------------------------------------------------------- */

/* Forgets the norms and the overflow of the window. */
void zd_norms_forget(struct zd_window *w);
/* Records the result of a reduced slice of this owner. */
void zd_norms_note(struct zd_window *w, const struct zd_unit *unit, const struct zd_op_result *result);
/* Whether a slice of the unit was reduced after the last step. If not, the content of its place in the target
 * is undefined. */
bool zd_norms_has(const struct zd_window *w, const struct zd_unit *unit);
/* Records that all ranks have skipped the unit in a backward of the window, unless the unit was reduced in
 * the window. */
void zd_norms_note_skipped(struct zd_window *w, const struct zd_unit *unit);
/* Whether all ranks have skipped the unit in the window and it was never reduced. */
bool zd_norms_skipped(const struct zd_window *w, const struct zd_unit *unit);
/* Adds the norms of all units of this owner to *sum, in the order of the units' ids. */
void zd_norms_add(const struct zd_window *w, double *sum);
/* Stores the norm of each unit, across the daemon's ranks, until the next step is taken. Called when the step
 * of the window is taken. */
void zd_norms_keep(struct zd_group *group, uint64_t window);
/* Adds the norms of all ranks in the order of ranks and units, for a bounded number of units, and stores them
 * as zd_norms_keep() does. Returns whether all are added. If not, the caller has to call again. */
bool zd_norms_sum(const struct zd_engine *e, struct zd_group *group, uint64_t window, double *sum);
/* Frees the memory, in steps of the owner's ends. */
void zd_norms_end(struct zd_engine *e, struct zd_owner *owner, struct zd_norms *norms);
/* Checks that STEP_GET may request the norms of its units. Errors: INVALID, NOT_FOUND, UNSUPPORTED. */
int zd_norms_check(struct zd_engine *e, struct zd_session *session, const struct zd_group *group,
                   const struct zd_args *args, struct zd_err *err) __attribute__((warn_unused_result));
/* Adds the norms of the request's units to the reply. */
void zd_norms_reply(struct zd_engine *e, struct zd_request *req);

#endif
