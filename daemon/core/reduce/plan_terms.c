/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_terms.c - the planner of slices that are not summed: the owner takes the terms, for a kernel that sums
 * them and updates its shard at once.
 *
 *   PIECE (rank 1, chunk) --> the memory that a sum of the untargeted part would have (target.c)
 *   PIECE (rank 2, chunk) --> likewise
 *   OWN: the owner's own term remains in its entry
 *
 * The slice is DONE when all terms are there. Then a reduce_wait lends them. The owner's entry is drained
 * when the owner has returned the terms, so its backward does not end before. From the slice's start until
 * the return the slice counts as an operation of its reduction, which therefore remains.
 *
 * Invariant: while the terms are lent, the owner's contribution has an operation and its storage a use.
 */
#include "core/gather/unit.h"
#include "core/reduce/reduce.h"
#include "core/reduce/slice.h"
#include "core/reduce/target.h"

struct zd_slice *zd_terms_slice(const struct zd_reduction *r, uint32_t rank)
{
	bool lends = r && r->slices && r->slices[rank].planner == &zd_plan_terms;
	return lends ? &r->slices[rank] : NULL;
}

/* ---- The plan ------------------------------------------------------------------------------------------ */

static uint64_t staging_bytes(struct zd_slice *slice)
{
	(void)slice;
	return 0;
}

static void build(struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	slice->chunk_steps = zd_slice_npieces(slice);
	zd_plan_init(&slice->plan, &zd_slice_plan_type, r->group->job, slice,
	             r->nchunks * slice->chunk_steps + 1);
	for (uint32_t chunk = 0; chunk < r->nchunks; chunk++)
		(void)zd_slice_add_pieces(slice, chunk);
	(void)zd_plan_add(
	        &slice->plan,
	        (struct zd_plan_step){.kind = ZD_SLICE_OWN, .source = ZD_PLAN_NOBODY, .waits = r->nchunks});
}

static uint32_t entry_step(const struct zd_slice *slice, uint32_t rank, uint32_t chunk)
{
	return rank == slice->owner ? slice->plan.nsteps - 1 : zd_slice_chunk_step(slice, rank, chunk);
}

void zd_slice_run_own(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step)
{
	zd_plan_complete(e, &slice->plan, step);
}

const struct zd_slice_planner zd_plan_terms = {
        .result = ZD_SLICE_OWN,
        .cut = zd_slice_cut,
        .entry_reads = zd_slice_entry_reads,
        .staging_bytes = staging_bytes,
        .build = build,
        .entry_step = entry_step,
};

/* ---- Loans --------------------------------------------------------------------------------------------- */

static struct zd_contribution *own(const struct zd_slice *slice)
{
	return &slice->reduction->ranks[slice->owner];
}

void zd_terms_lend(struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	if (slice->lent)
		return;
	zd_assert(slice->held && slice->state == ZD_SLICE_DONE);
	slice->lent = &r->unit->parts[slice->owner];
	r->unit->refs++;
	own(slice)->ops++;
	zd_storage_use(own(slice)->storage);
	TAILQ_INSERT_TAIL(&zd_member_reduce(&r->group->members[slice->owner])->loans, slice, loan_link);
}

struct zd_slice *zd_terms_take_back(struct zd_member_reduce *mr, const struct zd_part *part)
{
	struct zd_slice *slice;
	TAILQ_FOREACH (slice, &mr->loans, loan_link) {
		if (slice->lent == part)
			break;
	}
	if (slice) {
		TAILQ_REMOVE(&mr->loans, slice, loan_link);
		slice->returned = true;
	}
	return slice;
}

void zd_terms_end(struct zd_engine *e, struct zd_slice *slice)
{
	struct zd_reduction *r = slice->reduction;
	struct zd_storage *storage = own(slice)->storage;
	struct zd_unit *unit = slice->lent->unit;
	slice->held = slice->returned = false;
	slice->lent = NULL;
	own(slice)->ops--;
	own(slice)->left -= r->nchunks;
	if (r->state != ZD_REDUCTION_DROPPED)
		zd_reduction_drain(e, r, slice->owner);
	zd_reduction_op_end(e, r);
	zd_storage_unuse(e, storage);
	zd_unit_unref(e, unit);
}

void zd_terms_stop(struct zd_slice *slice)
{
	if (!slice->held || slice->lent)
		return;
	slice->held = false;
	slice->reduction->ops--;
}

/* The terms have the order in which a sum would add them. */
void zd_terms_reply(struct zd_engine *e, const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	uint64_t each = zerod_dtype_bytes(r->options.dtype);
	Zd__ReduceWaitReply *reply = &e->reply.u.reduce_wait;
	reply->target_dtype = r->options.dtype;
	reply->nterms = r->nsubmitted;
	reply->own = own(slice)->order;
	reply->prescale = r->options.prescale;
	reply->postscale = zd_slice_postscale(r);
	e->reply.places[0] = zd_slice_entry_piece(slice, slice->owner, 0);
	e->reply.places[0].bytes = r->unit->shard_numel * each;
	if (r->nsubmitted > 1)
		e->reply.places[1] = zd_storage_location(slice->target, 0, zd_slice_pieces_bytes(slice));
}
