/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slice.h - slices of running reductions, and the planners of their transfers.
 *
 * slice.c owns a slice: it queues the slice for staging memory, reports events to its plan, and ends it.
 * Which commands fill and sum the slice is decided by the planner of its group:
 *
 *   zd_plan_sums       plan_sums.c       all ranks are in this daemon
 *   zd_plan_rail_sums  plan_rail_sums.c  each daemon sums its ranks' pieces; the daemons' sums are exchanged
 *   zd_plan_exchange   plan_rail_sums.c  ranks exchange their pieces, without copies inside a daemon
 */
#ifndef ZD_CORE_REDUCE_SLICE_H
#define ZD_CORE_REDUCE_SLICE_H

#include "core/gather/collective.h"
#include "core/plan/plan.h"
#include "core/reduce/reduce_internal.h"

enum zd_slice_state {
	ZD_SLICE_WAITING, /* for staging memory */
	ZD_SLICE_OPEN,    /* its plan runs */
	ZD_SLICE_TURN,    /* its plan waits: earlier slices of the owner have not been exchanged */
	ZD_SLICE_DONE,
};

enum zd_slice_step {
	ZD_SLICE_PIECE,            /* COPY: one rank's chunk into the owner's staging memory */
	ZD_SLICE_SUM,              /* REDUCE: a chunk, over this daemon's ranks */
	ZD_SLICE_BROADCAST,        /* COPY: what was summed into another rank's target */
	ZD_SLICE_AWAIT_RAIL_ORDER, /* no command: done when the slice is the owner's next to be exchanged */
	ZD_SLICE_AGREE,            /* AGREE: do all ranks of the rail mean the same reduction */
	ZD_SLICE_ZERO,             /* FILL: zeros of a daemon whose ranks have all skipped the unit */
	ZD_SLICE_EXCHANGE,         /* EXCHANGE of the daemons' sums, or of the ranks' pieces */
	ZD_SLICE_TOTAL,            /* REDUCE: what was exchanged */
	ZD_SLICE_ALL_GATHER,       /* EXCHANGE of the totals */
	ZD_SLICE_NSTEPS
};

struct zd_slice_chunk {
	uint32_t pushed;         /* inputs of its sum that were submitted, or are the owner's own */
	uint32_t nfences;        /* of these inputs */
	struct zd_fence *fences; /* NULL: its sum is not submitted early */
};

/* One owner's part of a reduction. */
struct zd_slice {
	struct zd_reduction *reduction;
	const struct zd_slice_planner *planner;
	struct zd_plan plan;
	uint32_t owner;
	uint8_t state;
	bool refused; /* the owner's process has refused an early sum: no further one is submitted early */
	bool empty;   /* no rank of any daemon has contributed */
	uint32_t chunk_steps; /* steps of one chunk: its pieces, its sum, its broadcast */
	struct zd_slice_chunk *chunks;
	uint64_t session;                        /* the owner's, where sums may be submitted early; else 0 */
	struct zd_fence *fences;                 /* of all chunks */
	uint64_t partial_offset, arrived_offset; /* in the staging memory: what is sent, what is received */
	uint32_t segment_wait;                   /* id of the segment that is being created for it */
	struct zd_storage *staging;              /* NULL: only the owner itself contributes */
	struct zd_storage *target;               /* once it is OPEN */
	struct zd_slice *prev, *next;            /* device->staging_queue */
};

struct zd_slice_planner {
	bool in_order;             /* an owner's slices are exchanged one after the other */
	enum zd_slice_step result; /* the kind of the sums whose norms are those of the slice */
	/* Cuts the slices of the reduction into chunks. */
	void (*cut)(const struct zd_engine *e, struct zd_reduction *r);
	/* How many steps of all slices read the entry of a rank that has submitted. */
	uint32_t (*entry_reads)(const struct zd_reduction *r);
	/* Bytes of staging memory; also sets the offsets in it. */
	uint64_t (*staging_bytes)(struct zd_slice *slice);
	/* Adds the steps to the slice's plan. */
	void (*build)(struct zd_slice *slice);
	/* The step that waits for the rank's entry to be READY, or ZD_PLAN_NOBODY. */
	uint32_t (*entry_step)(const struct zd_slice *slice, uint32_t rank, uint32_t chunk);
	/* Where ZD_SLICE_SUM stores, and how it scales. */
	void (*set_output)(const struct zd_slice *slice, uint32_t chunk, struct zd_reduce_desc *desc);
	/* The elements of a target that the broadcasts of this index copy: where they begin. */
	uint64_t (*broadcast_begin)(const struct zd_slice *slice, uint32_t index, uint64_t *numel);
};

extern const struct zd_slice_planner zd_plan_sums, zd_plan_rail_sums, zd_plan_exchange;
/* The planner of the group's reductions. */
const struct zd_slice_planner *zd_slice_planner_of(const struct zd_group *group);

/* For planners (slice.c). Submits the step's command, on the owner's device unless the command names another
 * one, and reserves the memory that it uses until it has ended. */
void zd_slice_submit(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step,
                     struct zd_command *command);
extern const struct zd_plan_type zd_slice_plan_type;

/* ---- Steps of plan_sums.c, shared by the planners ------------------------------------------------------ */

static inline bool zd_contribution_is_submitted(const struct zd_contribution *c)
{
	return c->state == ZD_CONTRIBUTION_SUBMITTED || c->state == ZD_CONTRIBUTION_READY;
}
/* Pieces that are copied into the owner's staging memory. */
static inline uint32_t zd_slice_npieces(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	return r->nsubmitted - zd_contribution_is_submitted(&r->ranks[slice->owner]);
}
static inline uint32_t zd_slice_sum_step(const struct zd_slice *slice, uint32_t chunk)
{
	return chunk * slice->chunk_steps + zd_slice_npieces(slice);
}
uint64_t zd_slice_pieces_bytes(const struct zd_slice *slice);
/* Adds the steps of each chunk: its pieces, its sum behind them, and `nbroadcast` copies behind that. */
void zd_slice_add_chunks(struct zd_slice *slice, uint32_t nbroadcast);
/* Adds copies to all other ranks; `index` is the chunk, or the node. Returns the first one's number. */
uint32_t zd_slice_add_broadcast(struct zd_slice *slice, uint32_t index);
uint32_t zd_slice_chunk_step(const struct zd_slice *slice, uint32_t rank, uint32_t chunk);
/* The owner's slice begins there in a target: in all ranks' targets, where the unit is all-reduced. */
uint64_t zd_slice_target_numel(const struct zd_slice *slice);
/* Elements of a target. */
struct zd_location zd_slice_elements(const struct zd_slice *slice, const struct zd_storage *target,
                                     uint64_t begin, uint64_t numel);
/* The factor of a sum over all ranks. */
float zd_slice_postscale(const struct zd_reduction *r);

void zd_slice_run_piece(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);
void zd_slice_run_sum(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);
void zd_slice_run_broadcast(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);

/* ---- Early sums (early_sum.c) -------------------------------------------------------------------------- */

/* Makes room for the fences of the slice's pieces, where its sums may be submitted early. */
void zd_early_sums_init(struct zd_engine *e, struct zd_slice *slice);
/* Submits the sums whose inputs are all submitted. */
void zd_early_sums_try(struct zd_engine *e, struct zd_slice *slice);
/* The piece's command signals a fence, for which the early sum of its chunk waits. */
void zd_early_sum_sign(struct zd_engine *e, struct zd_slice *slice, uint32_t chunk,
                       struct zd_command *command);
/* An early sum of the slice has ended. */
void zd_early_sum_ended(struct zd_engine *e, struct zd_slice *slice);
/* A piece from the device has failed: early sums that wait for its timeline are not valid any more. */
void zd_early_sums_note_failed(struct zd_engine *e, const struct zd_slice *slice, uint32_t device);
/* Was the timeline of one of the chunk's pieces aborted, so that its early sum may not have waited. */
bool zd_early_sum_is_lost(const struct zd_slice *slice, uint32_t chunk);

/* ---- Steps of plan_rail_sums.c ------------------------------------------------------------------------- */

void zd_slice_run_await_rail_order(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);
void zd_slice_run_agree(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);
int zd_slice_agreed(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step,
                    struct zd_err *err);
void zd_slice_run_zero(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);
void zd_slice_run_exchange(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);
void zd_slice_run_total(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);
void zd_slice_run_all_gather(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);
/* Is it the owner's next slice to be exchanged. */
bool zd_slice_is_next(const struct zd_slice *slice);
/* Do the totals of all daemons go to all ranks. */
static inline bool zd_slice_gathers(const struct zd_reduction *r)
{
	return r->unit->all_reduce && zd_gathers_are_collective(r->group);
}

/* The facts that the ranks of a rail compare before they exchange a slice (rail_terms.c). Every byte is
 * set, and means the same in all daemons. */
struct zd_reduction_terms {
	uint64_t unit; /* a hash of its name */
	uint64_t shard_numel;
	uint32_t contributes; /* else the options say nothing */
	uint32_t op, dtype, overwrite;
	float prescale;
	uint32_t all_reduce;
	uint64_t target_dtype;
};
/* Has the owner, or any rank of its daemon, anything to send. */
bool zd_slice_contributes(const struct zd_slice *slice);
struct zd_reduction_terms zd_reduction_terms_of(const struct zd_slice *slice);
/* MISMATCH unless all ranks of the rail mean the same. *options: of a contributing rank, of which there are
 * *n. */
int zd_reduction_terms_check(const struct zd_slice *slice, const unsigned char *values,
                             struct zd_reduction_terms *options, uint32_t *n, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
