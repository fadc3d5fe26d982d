/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slice.h - slices of running reductions, and the planners of their transfers.
 *
 * slice.c owns a slice: it queues the slice for staging memory, reports events to its plan, and ends it.
  * The planner of its group decides which commands fill and sum the slice:
 *
 *   zd_plan_sums       plan_sums.c       all ranks are in this daemon
 *   zd_plan_terms      plan_terms.c      the same, and the owner takes the terms of its sum
 *   zd_plan_rail_sums  plan_rail_sums.c  each daemon sums its ranks' pieces; the daemons' sums are exchanged
 *   zd_plan_exchange   plan_rail_sums.c  ranks exchange their pieces, without copies inside a daemon
 */
#ifndef ZD_CORE_REDUCE_SLICE_H
#define ZD_CORE_REDUCE_SLICE_H

#include "core/gather/collective.h"
#include "core/plan/plan.h"
#include "core/reduce/reduction.h"
#include "core/reduce/storage.h"

enum zd_slice_state {
	ZD_SLICE_WAITING, /* for staging memory */
	ZD_SLICE_OPEN,    /* its plan runs */
	ZD_SLICE_TURN,    /* its plan waits: earlier slices of the owner have not been exchanged */
	ZD_SLICE_DONE,
};

enum zd_slice_step {
	ZD_SLICE_PIECE,            /* COPY: one rank's chunk into the owner's staging memory */
	ZD_SLICE_SUM,              /* REDUCE of a chunk for this daemon's ranks */
	ZD_SLICE_LOAD,             /* COPY of the target's chunk in host memory into the staging memory */
	ZD_SLICE_BROADCAST,        /* COPY of a sum into another rank's target, or into one in host memory */
	ZD_SLICE_OWN,              /* no command: done when the owner's entry is READY */
	ZD_SLICE_AWAIT_RAIL_ORDER, /* no command: done when the slice is the owner's next one on the rail */
	ZD_SLICE_AGREE,            /* AGREE: all ranks of the rail compare what they reduce */
	ZD_SLICE_ZERO,             /* FILL: zeros of a daemon whose ranks have all skipped the unit */
	ZD_SLICE_EXCHANGE,         /* EXCHANGE of the daemons' sums, or of the ranks' pieces */
	ZD_SLICE_TOTAL,            /* REDUCE of the blocks that were exchanged */
	ZD_SLICE_ALL_GATHER,       /* EXCHANGE of the totals */
	ZD_SLICE_NSTEPS
};

struct zd_slice_chunk {
	uint32_t pushed;         /* READY inputs of its sum whose copies were submitted */
	uint32_t nfences;        /* fences of the copies of these inputs */
	struct zd_fence *fences; /* NULL: its sum is not submitted early */
};

/* The part of a reduction whose sum one rank, the owner, receives. */
struct zd_slice {
	struct zd_reduction *reduction;
	const struct zd_slice_planner *planner;
	struct zd_plan plan;
	uint32_t owner;
	uint8_t state;
	bool refused;  /* the owner's process has refused an early sum: no further one is submitted early */
	bool empty;    /* no rank of any daemon has contributed */
	bool held;     /* its terms are collected or lent: counts as an operation of the reduction */
	bool returned; /* the terms, whose readers have not ended yet */
	uint32_t chunk_steps; /* steps of one chunk: its pieces, its sum, its broadcast */
	struct zd_slice_chunk *chunks;
	uint64_t session;        /* the owner's, if sums can be submitted early; otherwise 0 */
	struct zd_fence *fences; /* of all chunks */
	uint64_t partial_offset, arrived_offset; /* in the staging memory, of blocks to send and received */
	uint32_t segment_wait;      /* id of the segment that is created for the staging memory */
	bool staged;                /* the unit is on the host, and its sums are computed in the staging
	                                 memory */
	bool fresh;                 /* an untargeted part: the sum's memory is new */
	struct zd_storage *staging; /* NULL: not needed */
	struct zd_storage *target;  /* the owner's; set when the slice is opened */
	struct zd_part *lent; /* the owner's part, while its terms are lent; with a reference to the unit */
	TAILQ_ENTRY(zd_slice) loan_link; /* of the member's loans, until the owner has returned them */
	struct zd_slice *prev, *next;    /* device->staging_queue */
	uint32_t overtaken;              /* by slices of other uids, while it waited */
};

struct zd_slice_planner {
	bool in_order;             /* an owner's slices are exchanged one after the other */
	enum zd_slice_step result; /* the kind of the sums whose norms are those of the slice */
	/* Cuts the slices of the reduction into chunks. */
	void (*cut)(const struct zd_engine *e, struct zd_reduction *r);
	/* Returns how many steps of all slices read the entry of a rank that has submitted. */
	uint32_t (*entry_reads)(const struct zd_reduction *r);
	/* Returns the bytes of staging memory that the slice needs, and sets the slice's offsets in that
	 * memory. */
	uint64_t (*staging_bytes)(struct zd_slice *slice);
	/* Adds the steps to the slice's plan. */
	void (*build)(struct zd_slice *slice);
	/* Returns the step that waits until the rank's entry is READY, or ZD_PLAN_NOBODY. */
	uint32_t (*entry_step)(const struct zd_slice *slice, uint32_t rank, uint32_t chunk);
	/* Sets the target and the factors of ZD_SLICE_SUM. */
	void (*set_output)(const struct zd_slice *slice, uint32_t chunk, struct zd_reduce_desc *desc);
	/* Returns the first element of a target that the broadcasts of this index copy; *numel: their
	 * number. */
	uint64_t (*broadcast_begin)(const struct zd_slice *slice, uint32_t index, uint64_t *numel);
};

extern const struct zd_slice_planner zd_plan_sums, zd_plan_terms, zd_plan_rail_sums, zd_plan_exchange;
/* Returns the planner of the group's reductions (slice.c). */
const struct zd_slice_planner *zd_slice_planner_of(const struct zd_group *group);

/* Submits the step's command, for planners. The memory that the command uses remains until the command has
 * ended. */
void zd_slice_submit(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step,
                     struct zd_command *command);
extern const struct zd_plan_type zd_slice_plan_type;
extern const struct zd_sm zd_sm_slice;

/* ---- Slices of a reduction (slice.c) ------------------------------------------------------------------- */

/* Creates the slices of a starting reduction. Opens a slice that needs no staging memory at once, and queues
 * any other for its device. */
void zd_slices_start(struct zd_engine *e, struct zd_reduction *r);
/* Stops the slices: their plans run no further step, and their staging memory is dropped. */
void zd_slices_stop(struct zd_engine *e, struct zd_reduction *r);
void zd_slices_free(struct zd_reduction *r);
/* Called when the rank's entry is READY: runs the steps of OPEN slices that wait for the entry. */
void zd_slices_entry_ready(struct zd_engine *e, struct zd_reduction *r, uint32_t rank);
/* Whether the slice waits only for its sums, and their inputs are complete. */
bool zd_slice_awaits_sum(const struct zd_slice *slice);

/* ---- Terms of a slice that is DONE (plan_terms.c) ------------------------------------------------------ */

/* The slice whose terms the rank receives in place of a sum, or NULL. */
struct zd_slice *zd_terms_slice(const struct zd_reduction *r, uint32_t rank);
/* Lends the terms: the owner's entry and the copies of the other ranks' pieces remain. */
void zd_terms_lend(struct zd_slice *slice);
/* Removes and returns the loan of the part, or NULL. Its memory remains until zd_terms_end(). */
struct zd_slice *zd_terms_take_back(struct zd_member_reduce *mr, const struct zd_part *part);
/* Called when no stream reads the terms any more. Can end the reduction. */
void zd_terms_end(struct zd_engine *e, struct zd_slice *slice);
/* Called when the reduction stops. Terms that are lent remain. */
void zd_terms_stop(struct zd_slice *slice);
/* Fills the reply to a reduce_wait. */
void zd_terms_reply(struct zd_engine *e, const struct zd_slice *slice);

/* ---- Steps of plan_sums.c, shared by the planners ------------------------------------------------------ */

static inline bool zd_contribution_is_submitted(const struct zd_contribution *c)
{
	return c->state == ZD_CONTRIBUTION_SUBMITTED || c->state == ZD_CONTRIBUTION_READY;
}
/* Returns the number of pieces that are copied into the owner's staging memory. */
static inline uint32_t zd_slice_npieces(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	return r->nsubmitted - zd_contribution_is_submitted(&r->ranks[slice->owner]);
}
static inline uint32_t zd_slice_sum_step(const struct zd_slice *slice, uint32_t chunk)
{
	return chunk * slice->chunk_steps + zd_slice_npieces(slice);
}
/* Returns the bytes of these pieces. */
uint64_t zd_slice_pieces_bytes(const struct zd_slice *slice);
/* Returns the chunk of the rank's entry that is the slice's. */
struct zd_location zd_slice_entry_piece(const struct zd_slice *slice, uint32_t source, uint32_t chunk);
/* Cuts the slices into chunks, for planners of one daemon. */
void zd_slice_cut(const struct zd_engine *e, struct zd_reduction *r);
uint32_t zd_slice_entry_reads(const struct zd_reduction *r);
/* Adds the copies of the chunk's pieces. Returns the number of the first step. */
uint32_t zd_slice_add_pieces(struct zd_slice *slice, uint32_t chunk);
/* Adds the steps of each chunk: its pieces, its sum after the pieces, and `nbroadcast` copies after the
 * sum. */
void zd_slice_add_chunks(struct zd_slice *slice, uint32_t nbroadcast);
/* Adds the copies of the chunk or node `index`: to each other rank for an all-reduced unit, and to the owner
 * for a unit on the host. Returns the number of the first step. */
uint32_t zd_slice_add_broadcast(struct zd_slice *slice, uint32_t index);
/* Returns the number of the step that reads the rank's part of the chunk: the copy of its piece, or the sum
 * if the rank is the owner. */
uint32_t zd_slice_chunk_step(const struct zd_slice *slice, uint32_t rank, uint32_t chunk);
/* Returns the first element of the owner's slice in a target; of an all-reduced unit, in all ranks'
 * targets. */
uint64_t zd_slice_target_numel(const struct zd_slice *slice);
/* Returns the location of `numel` elements of a target. */
struct zd_location zd_slice_elements(const struct zd_slice *slice, const struct zd_storage *target,
                                     uint64_t begin, uint64_t numel);
/* Returns the rank's target for the slice's sum. */
struct zd_storage *zd_slice_target_of(const struct zd_slice *slice, uint32_t rank);
/* Whether the sum replaces the target's content. Otherwise it is added. Constant while the slice runs. */
bool zd_slice_overwrites(const struct zd_slice *slice);
/* Whether the target's content is copied up before the sum. */
bool zd_slice_loads(const struct zd_slice *slice);
/* Returns the factor of a sum of all ranks. */
float zd_slice_postscale(const struct zd_reduction *r);

void zd_slice_run_piece(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);
void zd_slice_run_sum(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);
void zd_slice_run_load(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);
void zd_slice_run_broadcast(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);
void zd_slice_run_own(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);

/* ---- Early sums (early_sum.c) -------------------------------------------------------------------------- */

/* Allocates the fences of the slice's pieces if its sums can be submitted early. */
void zd_early_sums_init(struct zd_engine *e, struct zd_slice *slice);
/* Submits the sums of the slice's chunks with inputs that were all submitted, within the session's limit. */
void zd_early_sums_try(struct zd_engine *e, struct zd_slice *slice);
/* Makes the piece's command signal a fence, for which the early sum of its chunk waits. */
void zd_early_sum_sign(struct zd_engine *e, struct zd_slice *slice, uint32_t chunk,
                       struct zd_command *command);
/* Called when an early sum of the slice has ended. */
void zd_early_sum_ended(struct zd_engine *e, struct zd_slice *slice);
/* Called when a piece from the device has failed: early sums that wait for that device's timeline are not
 * valid any more. */
void zd_early_sums_note_failed(struct zd_engine *e, const struct zd_slice *slice, uint32_t device);
/* Whether the timeline of a piece of the chunk was aborted. If so, the chunk's early sum may not have waited
 * for all pieces. */
bool zd_early_sum_is_lost(const struct zd_slice *slice, uint32_t chunk);

/* ---- Steps of plan_rail_sums.c ------------------------------------------------------------------------- */

void zd_slice_run_await_rail_order(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);
void zd_slice_run_agree(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);
/* Compares the values of an AGREE that has completed, and copies the options to a daemon that has none. */
int zd_slice_agreed(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step,
                    struct zd_err *err);
void zd_slice_run_zero(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);
void zd_slice_run_exchange(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);
void zd_slice_run_total(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);
void zd_slice_run_all_gather(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);
/* Whether the slice is the owner's next one on the rail. */
bool zd_slice_is_next(const struct zd_slice *slice);
/* Whether every rank receives the totals of all daemons, in an exchange. */
static inline bool zd_slice_gathers(const struct zd_reduction *r)
{
	return r->unit->all_reduce && zd_gathers_are_collective(r->group);
}

/* The facts that the ranks of a rail compare before they exchange a slice (rail_facts.c). Every byte is set,
 * and has the same meaning in all daemons. */
struct zd_rail_facts {
	uint64_t unit; /* a hash of its name */
	uint64_t shard_numel;
	uint32_t contributes; /* 0: the options are not set */
	uint32_t op, dtype, overwrite;
	float prescale;
	uint32_t all_reduce;
	uint64_t target_dtype;
};
/* Whether the owner, or a rank of its daemon whose piece it sums, has a gradient to send. */
bool zd_slice_contributes(const struct zd_slice *slice);
struct zd_rail_facts zd_rail_facts_of(const struct zd_slice *slice);
/* Returns MISMATCH unless the values of all ranks of the rail agree. *options: of a contributing rank, of
 * which *n exist. */
int zd_rail_facts_check(const struct zd_slice *slice, const unsigned char *values,
                        struct zd_rail_facts *options, uint32_t *n, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
