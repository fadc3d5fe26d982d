/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_rail_sums.c - the planners of reductions over rails.
 *
 * Inside a daemon the pieces of its ranks are summed in float32, into one block for the owner of the slice in
 * each daemon (zd_plan_rail_sums). The blocks are exchanged over the owner's rail, and each owner adds them
 * up in the order of the daemons. In a hybrid group all daemons have the same slices. Each daemon then makes
 * one block, and every daemon adds up all of them. If all ranks are on one rail (zd_plan_exchange), their
 * pieces are exchanged unsummed, and added up in the order of the ranks. Two runs compute the same bits
 * either way.
 *
 *   PIECE.. -> SUM of each block -> AWAIT_RAIL_ORDER -+-> AGREE ----+-> TOTAL -> ALL_GATHER -> BROADCAST
 *                                               +-> EXCHANGE -+           (only of all-reduced units)
 *
 * A rank's slices are exchanged in the order in which the rank submitted or skipped them, which is the same
 * on all ranks of the rail. Before each exchange the ranks compare what they are reducing (rail_facts.c).
 * The exchange does not wait for the result of the comparison, but the sum does. A daemon whose ranks have
 * all skipped the unit copies the options from the result, and then exchanges zeros:
 *
 *   AWAIT_RAIL_ORDER -> AGREE -> ZERO -> EXCHANGE -> TOTAL
 */
#include <stdlib.h>
#include <string.h>

#include "core/cluster/cluster.h"
#include "core/reduce/slice.h"

static bool has_blocks(const struct zd_slice *slice)
{
	return slice->planner == &zd_plan_rail_sums;
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

/* Returns the number of blocks that are sent: one for each daemon, or one for all daemons. */
static uint32_t count_blocks(const struct zd_reduction *r)
{
	return r->group->cluster->hybrid ? 1 : r->group->cluster->nranks;
}

static uint64_t block_bytes(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	return r->unit->shard_numel *
	       (has_blocks(slice) ? sizeof(float) : zerod_dtype_bytes(r->options.dtype));
}

/* Whether the owner's entry is sent from its place, without a copy. */
static bool sends_entry(const struct zd_slice *slice)
{
	return !has_blocks(slice) && slice->reduction->ranks[slice->owner].entry;
}

/* A rank that has skipped the unit can learn the others' dtype later: it reserves room for float32. */
static uint64_t staging_bytes(struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	uint64_t each = has_blocks(slice) || r->nsubmitted == 0 ? sizeof(float)
	                                                        : zerod_dtype_bytes(r->options.dtype);
	uint64_t bytes = r->unit->shard_numel * each;
	slice->partial_offset = has_blocks(slice) ? zd_slice_pieces_bytes(slice) : 0;
	slice->arrived_offset = slice->partial_offset + (sends_entry(slice) ? 0 : count_blocks(r) * bytes);
	return slice->arrived_offset + r->group->cluster->nranks * bytes;
}

/* Returns the location of the blocks that the owner sends: one for each rank of the rail, or one for all. */
static struct zd_location sent(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	const struct zd_contribution *own = &r->ranks[slice->owner];
	uint64_t bytes = count_blocks(r) * block_bytes(slice);
	return sends_entry(slice) ? zd_storage_location(own->storage, own->offset, bytes)
	                          : zd_storage_location(slice->staging, slice->partial_offset, bytes);
}

static struct zd_location received(const struct zd_slice *slice)
{
	return zd_storage_location(slice->staging, slice->arrived_offset,
	                           slice->reduction->group->cluster->nranks * block_bytes(slice));
}

static struct zd_location block(struct zd_location blocks, uint32_t index, uint64_t bytes)
{
	return (struct zd_location){blocks.segment, blocks.offset + index * bytes, bytes};
}

/* ---- The order of a rank's exchanges ------------------------------------------------------------------- */

static struct zd_member_reduce *owner_of(const struct zd_slice *slice)
{
	return zd_member_reduce(&slice->reduction->group->members[slice->owner]);
}

bool zd_slice_is_next(const struct zd_slice *slice)
{
	return slice->planner->in_order &&
	       slice->reduction->ranks[slice->owner].rail_seq == owner_of(slice)->begun_rail_seq + 1;
}

/* Returns the rank's next slice on the rail if the slice waits for its turn; otherwise NULL. */
static struct zd_slice *next_in_rail_order(const struct zd_member_reduce *mr)
{
	uint32_t rank = mr->member->rank;
	const struct zd_reduction *r;
	TAILQ_FOREACH (r, &mr->member->group->reductions, link) {
		if (zd_contribution_made(&r->ranks[rank]) &&
		    r->ranks[rank].rail_seq == mr->begun_rail_seq + 1)
			return r->slices && r->slices[rank].state == ZD_SLICE_TURN ? &r->slices[rank] : NULL;
	}
	return NULL;
}

/* A communicator preserves the order of its operations. The next slice is therefore opened as soon as the
 * last operation of the former slice has been submitted. That is at once, except for a slice that first needs
 * the other ranks' options, and for an all-reduced unit, whose totals use the rail a second time. */
static void open_next_slices(struct zd_engine *e, struct zd_member_reduce *mr)
{
	struct zd_slice *slice;
	mr->holds_rail = false;
	while (!mr->holds_rail && (slice = next_in_rail_order(mr))) {
		mr->begun_rail_seq++;
		mr->holds_rail = !zd_slice_contributes(slice) || zd_slice_gathers(slice->reduction);
		zd_dirty(e, mr->member->device); /* the next slice can have staging memory now */
		zd_sm_move(&zd_sm_slice, &slice->state, ZD_SLICE_OPEN);
		for (uint32_t i = 0; i < slice->plan.nsteps; i++) {
			if (slice->plan.steps[i].kind == ZD_SLICE_AWAIT_RAIL_ORDER) {
				zd_plan_complete(e, &slice->plan, &slice->plan.steps[i]);
				break;
			}
		}
	}
}

void zd_slice_run_await_rail_order(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step)
{
	struct zd_member_reduce *mr = owner_of(slice);
	(void)step;
	zd_sm_move(&zd_sm_slice, &slice->state, ZD_SLICE_TURN);
	if (!mr->holds_rail)
		open_next_slices(e, mr);
}

/* Called when the slice's last operation on the rail has been submitted. */
static void leave_rail(struct zd_engine *e, struct zd_slice *slice)
{
	if (owner_of(slice)->holds_rail)
		open_next_slices(e, owner_of(slice));
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

void zd_slice_run_agree(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step)
{
	const struct zd_member *member = &slice->reduction->group->members[slice->owner];
	struct zd_command command = {.kind = ZD_CMD_AGREE, .device = member->device->index};
	struct zd_rail_facts own = zd_rail_facts_of(slice);
	command.u.agree.comm = member->comm[ZD_COMM_REDUCTIONS];
	command.u.agree.bytes = sizeof(own);
	command.u.agree.what = "reduction";
	memcpy(command.u.agree.value, &own, sizeof(own));
	zd_slice_submit(e, slice, step, &command);
}

int zd_slice_agreed(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step,
                    struct zd_err *err)
{
	struct zd_reduction *r = slice->reduction;
	struct zd_rail_facts options;
	uint32_t n;
	int status = zd_rail_facts_check(slice, step->result.values, &options, &n, err);
	if (status != 0 || zd_slice_contributes(slice))
		return status;
	if (n == 0) { /* as if the unit had not been reduced */
		slice->empty = true;
		zd_plan_skip_rest(&slice->plan);
		leave_rail(e, slice);
		return 0;
	}
	if (r->nsubmitted == 0)
		r->options = (struct zd_reduction_options){
		        .op = options.op,
		        .prescale = options.prescale,
		        .overwrite = options.overwrite,
		        .dtype = options.dtype,
		};
	return 0;
}

void zd_slice_run_zero(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step)
{
	struct zd_command command = {.kind = ZD_CMD_FILL};
	command.device = slice->reduction->group->members[slice->owner].device->index;
	command.u.fill.dst = sent(slice);
	zd_slice_submit(e, slice, step, &command);
}

void zd_slice_run_exchange(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step)
{
	const struct zd_group *group = slice->reduction->group;
	const struct zd_member *member = &group->members[slice->owner];
	uint64_t bytes = block_bytes(slice);
	struct zd_command command = {.kind = ZD_CMD_EXCHANGE, .device = member->device->index};
	command.u.exchange = (struct zd_exchange_desc){
	        .comm = member->comm[ZD_COMM_REDUCTIONS],
	        .bytes = bytes,
	        .send = sent(slice),
	        .send_stride = group->cluster->hybrid ? 0 : bytes,
	        .receive = received(slice),
	        .receive_stride = bytes,
	        .what = "gradients",
	};
	zd_slice_submit(e, slice, step, &command);
	if (!zd_slice_gathers(slice->reduction))
		leave_rail(e, slice);
}

void zd_slice_run_total(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step)
{
	struct zd_reduction *r = slice->reduction;
	const struct zd_member *member = &r->group->members[slice->owner];
	const struct zd_window *w = zd_reduction_window(r, slice->owner);
	uint32_t nranks = r->group->cluster->nranks, own = zd_cluster_rank(member);
	uint64_t bytes = block_bytes(slice), numel = r->unit->shard_numel;
	struct zd_location *inputs = zd_calloc(nranks, sizeof(*inputs));
	for (uint32_t i = 0; i < nranks; i++)
		inputs[i] = i == own ? block(sent(slice), count_blocks(r) == 1 ? 0 : own, bytes)
		                     : block(received(slice), i, bytes);
	struct zd_command command = {.kind = ZD_CMD_REDUCE, .device = member->device->index};
	command.u.reduce = (struct zd_reduce_desc){
	        .session = member->session->id,
	        .numel = numel,
	        .input_dtype = has_blocks(slice) ? ZEROD_FLOAT32 : r->options.dtype,
	        .target_dtype = w->target_dtype,
	        .ninputs = nranks,
	        .inputs = inputs,
	        .target = zd_slice_elements(slice, slice->target, zd_slice_target_numel(slice), numel),
	        .prescale = has_blocks(slice) ? 1.0f : r->options.prescale,
	        .postscale = zd_slice_postscale(r),
	        .overwrite = r->options.overwrite || !zd_norms_has(w, r->unit),
	};
	zd_slice_submit(e, slice, step, &command);
	free(inputs);
}

/* Returns the distance in elements between the slices of successive ranks of the rail, in a target. */
static uint64_t rail_stride(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	return has_blocks(slice) ? r->group->local_world_size * r->unit->shard_numel : r->unit->shard_numel;
}

/* Returns the first element of the slice of the rail's first rank, in a target. */
static uint64_t rail_begin(const struct zd_slice *slice)
{
	const struct zd_member *member = &slice->reduction->group->members[slice->owner];
	return zd_slice_target_numel(slice) - zd_cluster_rank(member) * rail_stride(slice);
}

void zd_slice_run_all_gather(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step)
{
	const struct zd_reduction *r = slice->reduction;
	const struct zd_member *member = &r->group->members[slice->owner];
	uint64_t each = zerod_dtype_bytes(zd_reduction_window(r, slice->owner)->target_dtype);
	uint64_t numel = r->unit->shard_numel, stride = rail_stride(slice);
	uint64_t all_numel = (r->group->cluster->nranks - 1) * stride + numel;
	struct zd_command command = {.kind = ZD_CMD_EXCHANGE, .device = member->device->index};
	command.u.exchange = (struct zd_exchange_desc){
	        .comm = member->comm[ZD_COMM_REDUCTIONS],
	        .bytes = numel * each,
	        .send = zd_slice_elements(slice, slice->target, zd_slice_target_numel(slice), numel),
	        .receive = zd_slice_elements(slice, slice->target, rail_begin(slice), all_numel),
	        .receive_stride = stride * each,
	        .what = "reduced gradients",
	};
	zd_slice_submit(e, slice, step, &command);
	leave_rail(e, slice);
}

/* ---- The planners -------------------------------------------------------------------------------------- */

static uint32_t add_step(struct zd_slice *slice, enum zd_slice_step kind, uint32_t waits)
{
	return zd_plan_add(
	        &slice->plan,
	        (struct zd_plan_step){.kind = (uint8_t)kind, .source = ZD_PLAN_NOBODY, .waits = waits});
}

/* Adds AWAIT_RAIL_ORDER, which depends on `waits` events, and all later steps. Returns the number of
 * AWAIT_RAIL_ORDER. */
static uint32_t add_exchange(struct zd_slice *slice, uint32_t waits)
{
	const struct zd_reduction *r = slice->reduction;
	struct zd_plan *plan = &slice->plan;
	bool contributes = zd_slice_contributes(slice);
	uint32_t in_order = add_step(slice, ZD_SLICE_AWAIT_RAIL_ORDER, waits);
	uint32_t agree = add_step(slice, ZD_SLICE_AGREE, 0);
	uint32_t zero = contributes ? 0 : add_step(slice, ZD_SLICE_ZERO, 0);
	uint32_t exchange = add_step(slice, ZD_SLICE_EXCHANGE, 0);
	uint32_t total = add_step(slice, ZD_SLICE_TOTAL, 0), last = total;
	plan->steps[total].source = sends_entry(slice) ? slice->owner : ZD_PLAN_NOBODY;
	zd_plan_then(plan, in_order, agree, contributes ? 2 : 1);
	zd_plan_then(plan, agree, contributes ? total : zero, 1);
	if (!contributes)
		zd_plan_then(plan, zero, exchange, 1);
	zd_plan_then(plan, exchange, total, 1);
	if (!r->unit->all_reduce)
		return in_order;
	bool gathers = zd_slice_gathers(r);
	if (gathers) {
		last = add_step(slice, ZD_SLICE_ALL_GATHER, 0);
		zd_plan_then(plan, total, last, 1);
	}
	uint32_t first = plan->nsteps;
	for (uint32_t node = 0; node < (gathers ? r->group->cluster->nranks : 1) && has_blocks(slice); node++)
		(void)zd_slice_add_broadcast(slice, node);
	zd_plan_then(plan, last, first, plan->nsteps - first);
	return in_order;
}

static void init(struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	uint32_t world = r->group->local_world_size;
	uint32_t nchunks = r->nchunks * (zd_slice_npieces(slice) + 1);
	zd_plan_init(&slice->plan, &zd_slice_plan_type, r->group->job, slice,
	             nchunks + 6 + r->group->cluster->nranks * world);
}

static void cut_blocks(const struct zd_engine *e, struct zd_reduction *r)
{
	(void)e;
	r->nchunks = count_blocks(r);
	r->block_stride = r->group->local_world_size;
}

static uint32_t block_reads(const struct zd_reduction *r)
{
	return r->group->local_world_size * r->nchunks;
}

static void build_blocks(struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	init(slice);
	if (r->nsubmitted > 0)
		zd_slice_add_chunks(slice, 0);
	uint32_t in_order = add_exchange(slice, 0);
	for (uint32_t i = 0; i < r->nchunks && r->nsubmitted > 0; i++)
		zd_plan_then(&slice->plan, zd_slice_sum_step(slice, i), in_order, 1);
}

/* The sum of this daemon's ranks is stored for the exchange. */
static void set_block_output(const struct zd_slice *slice, uint32_t chunk, struct zd_reduce_desc *desc)
{
	desc->target_dtype = ZEROD_FLOAT32;
	desc->target = block(sent(slice), chunk, block_bytes(slice));
	desc->postscale = 1.0f;
	desc->overwrite = true;
}

static uint64_t broadcast_begin(const struct zd_slice *slice, uint32_t index, uint64_t *numel)
{
	const struct zd_reduction *r = slice->reduction;
	*numel = r->unit->shard_numel;
	return zd_slice_gathers(r) ? rail_begin(slice) + index * rail_stride(slice)
	                           : zd_slice_target_numel(slice);
}

const struct zd_slice_planner zd_plan_rail_sums = {
        .in_order = true,
        .result = ZD_SLICE_TOTAL,
        .cut = cut_blocks,
        .entry_reads = block_reads,
        .staging_bytes = staging_bytes,
        .build = build_blocks,
        .entry_step = zd_slice_chunk_step,
        .set_output = set_block_output,
        .broadcast_begin = broadcast_begin,
};

static void cut_nothing(const struct zd_engine *e, struct zd_reduction *r)
{
	(void)e;
	r->nchunks = 1;
	r->chunk_begin[1] = r->unit->shard_numel;
}

static uint32_t one_read(const struct zd_reduction *r)
{
	(void)r;
	return 1;
}

static void build_exchange(struct zd_slice *slice)
{
	const struct zd_contribution *own = &slice->reduction->ranks[slice->owner];
	init(slice);
	(void)add_exchange(slice, zd_contribution_is_submitted(own));
}

/* AWAIT_RAIL_ORDER is the first step. */
static uint32_t exchange_entry_step(const struct zd_slice *slice, uint32_t rank, uint32_t chunk)
{
	(void)chunk;
	return rank == slice->owner ? 0 : ZD_PLAN_NOBODY;
}

const struct zd_slice_planner zd_plan_exchange = {
        .in_order = true,
        .result = ZD_SLICE_TOTAL,
        .cut = cut_nothing,
        .entry_reads = one_read,
        .staging_bytes = staging_bytes,
        .build = build_exchange,
        .entry_step = exchange_entry_step,
        .broadcast_begin = broadcast_begin,
};
