/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_sums.c - the planner of reductions inside one daemon.
 *
 *   PIECE (rank 1, chunk) --+
 *   PIECE (rank 2, chunk) --+--> SUM (chunk) --> BROADCAST (chunk, rank): only of all-reduced units, and of
 *   the owner's own entry --+                                            units on the host
 *   LOAD (chunk) -----------+
 *
 * A piece is copied as soon as its rank's entry is READY. The sum reads the owner's own piece from the entry.
 * Slices are cut into chunks, so that one chunk is summed while the next one is copied.
 *
 * The target of a unit on the host is in host memory, in which no GPU sums. The sum is made in the staging
 * memory, after the pieces, and broadcast from there, also to the owner's target. If the target has a sum
 * already, LOAD copies that up first. One chunk is copied down while the next chunk is copied and summed.
 */
#include <stdlib.h>

#include "core/gather/unit.h"
#include "core/reduce/slice.h"
#include "core/reduce/target.h"

#define CUT_BYTES         (32ull << 20) /* of gradients: smaller slices are one chunk */
#define HALVE_CUTS        3u
#define CHUNK_ALIGN_NUMEL 64u

/* ---- Chunks -------------------------------------------------------------------------------------------- */

/* Halves a large slice repeatedly, and cuts the rest 7 to 3. A sum takes less than half the time of its
 * pieces' copies. All sums except the last one are therefore hidden by the next chunk's copies, and the last
 * one is small. Chunks are few, because each idles a link for a moment and waits for a busy GPU. The cut
 * depends only on the reduction, because a squared norm is the sum of the chunks' norms. */
void zd_slice_cut(const struct zd_engine *e, struct zd_reduction *r)
{
	uint64_t each = zd_max_u64(zerod_dtype_bytes(r->options.dtype), 1); /* 0: all ranks have skipped */
	uint64_t least = (e->reduction_cut_bytes ? e->reduction_cut_bytes : CUT_BYTES) / each;
	uint64_t left = r->unit->shard_numel;
	while (r->nchunks + 1 < ZD_REDUCTION_CHUNKS && left >= least) {
		bool halve = left >= HALVE_CUTS * least && r->nchunks + 2 < ZD_REDUCTION_CHUNKS;
		uint64_t numel = halve ? left / 2 : left - left * 3 / 10;
		numel = zd_min_u64(zd_align_up(numel, CHUNK_ALIGN_NUMEL), left);
		r->chunk_begin[r->nchunks + 1] = r->chunk_begin[r->nchunks] + numel;
		r->nchunks++;
		left -= numel;
	}
	if (left > 0 || r->nchunks == 0)
		r->chunk_begin[++r->nchunks] = r->unit->shard_numel;
}

/* Returns the chunk's first element in a piece. Blocks for other daemons have the size of a slice each. */
static uint64_t chunk_begin(const struct zd_reduction *r, uint32_t chunk)
{
	return r->block_stride ? chunk * r->unit->shard_numel : r->chunk_begin[chunk];
}

static uint64_t chunk_numel(const struct zd_reduction *r, uint32_t chunk)
{
	return chunk_begin(r, chunk + 1) - chunk_begin(r, chunk);
}

static struct zd_location chunk_at(const struct zd_reduction *r, const struct zd_storage *storage,
                                   uint64_t offset, uint64_t begin, uint32_t chunk)
{
	uint64_t each = zerod_dtype_bytes(r->options.dtype);
	return zd_storage_location(storage, offset + begin * each, chunk_numel(r, chunk) * each);
}

/* Terms are collected in the memory of the sum that they replace. */
static struct zd_storage *pieces_memory(const struct zd_slice *slice)
{
	return slice->planner == &zd_plan_terms ? slice->target : slice->staging;
}

static struct zd_location staged_piece(const struct zd_slice *slice, uint32_t source, uint32_t chunk)
{
	const struct zd_reduction *r = slice->reduction;
	uint32_t index = zd_slice_chunk_step(slice, source, 0);
	return chunk_at(r, pieces_memory(slice), 0,
	                index * chunk_begin(r, r->nchunks) + chunk_begin(r, chunk), chunk);
}

/* A block starts `block_stride` slices after the start of the previous block. */
struct zd_location zd_slice_entry_piece(const struct zd_slice *slice, uint32_t source, uint32_t chunk)
{
	const struct zd_reduction *r = slice->reduction;
	const struct zd_contribution *c = &r->ranks[source];
	uint64_t stride = r->block_stride ? r->block_stride : 1;
	return chunk_at(r, c->storage, c->offset,
	                slice->owner * r->unit->shard_numel + chunk_begin(r, chunk) * stride, chunk);
}

uint64_t zd_slice_pieces_bytes(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	return zd_slice_npieces(slice) * chunk_begin(r, r->nchunks) * zerod_dtype_bytes(r->options.dtype);
}

static uint64_t target_item_bytes(const struct zd_slice *slice)
{
	return zerod_dtype_bytes(zd_reduction_window(slice->reduction, slice->owner)->target_dtype);
}

static uint64_t staged_sums_offset(const struct zd_slice *slice)
{
	return zd_align_up(zd_slice_pieces_bytes(slice), ZD_BLOCK_MIN_ALIGN);
}

static struct zd_location staged_sum(const struct zd_slice *slice, uint32_t chunk)
{
	const struct zd_reduction *r = slice->reduction;
	uint64_t each = target_item_bytes(slice);
	return zd_storage_location(slice->staging, staged_sums_offset(slice) + chunk_begin(r, chunk) * each,
	                           chunk_numel(r, chunk) * each);
}

/* ---- Places in targets --------------------------------------------------------------------------------- */

uint64_t zd_slice_target_numel(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	const struct zd_unit *unit = r->unit;
	uint64_t index = unit->all_reduce ? zd_shard_index(&r->group->members[slice->owner]) : 0;
	return zd_part_target_offset(&unit->parts[slice->owner]) + index * unit->shard_numel;
}

struct zd_location zd_slice_elements(const struct zd_slice *slice, const struct zd_storage *target,
                                     uint64_t begin, uint64_t numel)
{
	uint64_t each = target_item_bytes(slice);
	return zd_storage_location(target, begin * each, numel * each);
}

struct zd_storage *zd_slice_target_of(const struct zd_slice *slice, uint32_t rank)
{
	const struct zd_reduction *r = slice->reduction;
	return zd_window_storage(zd_reduction_window(r, rank), &r->unit->parts[rank]);
}

bool zd_slice_overwrites(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	return r->options.overwrite || slice->fresh ||
	       !zd_norms_has(zd_reduction_window(r, slice->owner), r->unit);
}

bool zd_slice_loads(const struct zd_slice *slice)
{
	return slice->staged && !zd_slice_overwrites(slice);
}

float zd_slice_postscale(const struct zd_reduction *r)
{
	return r->options.op == ZEROD_MEAN ? 1.0f / (float)r->group->world_size : 1.0f;
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

/* In rank order, without the owner. */
uint32_t zd_slice_chunk_step(const struct zd_slice *slice, uint32_t rank, uint32_t chunk)
{
	const struct zd_reduction *r = slice->reduction;
	const struct zd_contribution *own = &r->ranks[slice->owner], *c = &r->ranks[rank];
	if (rank == slice->owner)
		return zd_slice_sum_step(slice, chunk);
	bool behind_own = zd_contribution_is_submitted(own) && own->order < c->order;
	return chunk * slice->chunk_steps + c->order - behind_own;
}

uint32_t zd_slice_add_broadcast(struct zd_slice *slice, uint32_t index)
{
	const struct zd_reduction *r = slice->reduction;
	uint32_t first = slice->plan.nsteps;
	for (uint32_t rank = 0; rank < r->group->local_world_size; rank++) {
		if (rank == slice->owner ? slice->staged : r->unit->all_reduce)
			(void)zd_plan_add(&slice->plan, (struct zd_plan_step){.kind = ZD_SLICE_BROADCAST,
			                                                      .index = index,
			                                                      .rank = rank,
			                                                      .source = ZD_PLAN_NOBODY});
	}
	return first;
}

uint32_t zd_slice_add_pieces(struct zd_slice *slice, uint32_t chunk)
{
	const struct zd_reduction *r = slice->reduction;
	uint32_t first = slice->plan.nsteps;
	for (uint32_t rank = 0; rank < r->group->local_world_size; rank++) {
		if (rank != slice->owner && zd_contribution_is_submitted(&r->ranks[rank]))
			(void)zd_plan_add(&slice->plan, (struct zd_plan_step){.kind = ZD_SLICE_PIECE,
			                                                      .index = chunk,
			                                                      .source = rank,
			                                                      .waits = 1});
	}
	return first;
}

void zd_slice_add_chunks(struct zd_slice *slice, uint32_t nbroadcast)
{
	const struct zd_reduction *r = slice->reduction;
	uint32_t npieces = zd_slice_npieces(slice);
	bool own = zd_contribution_is_submitted(&r->ranks[slice->owner]);
	slice->chunk_steps = npieces + 1 + nbroadcast + zd_slice_loads(slice);
	for (uint32_t chunk = 0; chunk < r->nchunks; chunk++) {
		uint32_t first = zd_slice_add_pieces(slice, chunk);
		uint32_t sum = zd_plan_add(
		        &slice->plan, (struct zd_plan_step){.kind = ZD_SLICE_SUM,
		                                            .index = chunk,
		                                            .source = own ? slice->owner : ZD_PLAN_NOBODY,
		                                            .waits = own});
		for (uint32_t i = first; i < sum; i++)
			zd_plan_then(&slice->plan, i, sum, 1);
		if (nbroadcast > 0) {
			uint32_t copies = zd_slice_add_broadcast(slice, chunk);
			zd_plan_then(&slice->plan, sum, copies, nbroadcast);
		}
		if (zd_slice_loads(slice)) {
			struct zd_plan_step load = {
			        .kind = ZD_SLICE_LOAD, .index = chunk, .source = ZD_PLAN_NOBODY};
			zd_plan_then(&slice->plan, zd_plan_add(&slice->plan, load), sum, 1);
		}
	}
}

void zd_slice_run_piece(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step)
{
	struct zd_reduction *r = slice->reduction;
	struct zd_command command = {.kind = ZD_CMD_COPY};
	struct zd_storage *to = pieces_memory(slice);
	command.device = r->ranks[step->source].storage->device->index;
	command.u.copy.src = zd_slice_entry_piece(slice, step->source, step->index);
	command.u.copy.dst_device = to->device->index;
	command.u.copy.dst = staged_piece(slice, step->source, step->index);
	if (to != slice->staging)
		step->memory = to;
	zd_early_sum_sign(e, slice, step->index, &command);
	zd_slice_submit(e, slice, step, &command);
}

/* Sums in rank order, so that two runs agree bit by bit. Ranks that skipped are left out, because zeros do
 * not change a sum. An early sum waits for the fences of its pieces. */
void zd_slice_run_sum(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step)
{
	struct zd_reduction *r = slice->reduction;
	const struct zd_member *member = &r->group->members[slice->owner];
	const struct zd_slice_chunk *chunk = &slice->chunks[step->index];
	struct zd_location *inputs = zd_calloc(r->nsubmitted, sizeof(*inputs));
	for (uint32_t rank = 0; rank < r->group->local_world_size; rank++) {
		const struct zd_contribution *c = &r->ranks[rank];
		if (zd_contribution_is_submitted(c))
			inputs[c->order] = rank == slice->owner
			                           ? zd_slice_entry_piece(slice, rank, step->index)
			                           : staged_piece(slice, rank, step->index);
	}
	struct zd_command command = {.kind = ZD_CMD_REDUCE, .device = member->device->index};
	command.u.reduce = (struct zd_reduce_desc){
	        .session = member->session->id,
	        .nfences = step->early ? chunk->nfences : 0,
	        .fences = chunk->fences,
	        .numel = chunk_numel(r, step->index),
	        .input_dtype = r->options.dtype,
	        .ninputs = r->nsubmitted,
	        .inputs = inputs,
	        .prescale = r->options.prescale,
	};
	slice->planner->set_output(slice, step->index, &command.u.reduce);
	zd_slice_submit(e, slice, step, &command);
	free(inputs);
}

void zd_slice_run_broadcast(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step)
{
	struct zd_reduction *r = slice->reduction;
	struct zd_storage *target = step->rank == slice->owner ? slice->target /* maybe returned */
	                                                       : zd_slice_target_of(slice, step->rank);
	struct zd_command command = {.kind = ZD_CMD_COPY};
	uint64_t numel, begin = slice->planner->broadcast_begin(slice, step->index, &numel);
	command.device = r->group->members[slice->owner].device->index;
	command.u.copy.src = slice->staged ? staged_sum(slice, step->index)
	                                   : zd_slice_elements(slice, slice->target, begin, numel);
	command.u.copy.dst = zd_slice_elements(slice, target, begin, numel);
	command.u.copy.dst_device = target->device->index;
	step->memory = target;
	zd_slice_submit(e, slice, step, &command);
}

/* No other step writes that part of the staging memory before the sum. */
void zd_slice_run_load(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step)
{
	const struct zd_reduction *r = slice->reduction;
	struct zd_device *to = slice->staging->device;
	struct zd_command command = {.kind = ZD_CMD_COPY,
	                             .device = zd_copy_device(slice->target->device, to)};
	command.u.copy.src = zd_slice_elements(slice, slice->target,
	                                       zd_slice_target_numel(slice) + chunk_begin(r, step->index),
	                                       chunk_numel(r, step->index));
	command.u.copy.dst = staged_sum(slice, step->index);
	command.u.copy.dst_device = to->index;
	zd_slice_submit(e, slice, step, &command);
}

/* ---- The planner --------------------------------------------------------------------------------------- */

uint32_t zd_slice_entry_reads(const struct zd_reduction *r)
{
	return r->group->local_world_size * r->nchunks;
}

static uint64_t staging_bytes(struct zd_slice *slice)
{
	if (!slice->staged)
		return zd_slice_pieces_bytes(slice);
	return staged_sums_offset(slice) + slice->reduction->unit->shard_numel * target_item_bytes(slice);
}

static void build(struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	uint32_t nbroadcast = (r->unit->all_reduce ? r->group->local_world_size - 1 : 0) + slice->staged;
	zd_plan_init(&slice->plan, &zd_slice_plan_type, r->group->job, slice,
	             r->nchunks * (zd_slice_npieces(slice) + 1 + nbroadcast + zd_slice_loads(slice)));
	zd_slice_add_chunks(slice, nbroadcast);
}

static void set_output(const struct zd_slice *slice, uint32_t chunk, struct zd_reduce_desc *desc)
{
	const struct zd_reduction *r = slice->reduction;
	const struct zd_window *w = zd_reduction_window(r, slice->owner);
	desc->target_dtype = w->target_dtype;
	desc->target = slice->staged ? staged_sum(slice, chunk)
	                             : zd_slice_elements(slice, slice->target,
	                                                 zd_slice_target_numel(slice) + chunk_begin(r, chunk),
	                                                 desc->numel);
	desc->postscale = zd_slice_postscale(r);
	desc->overwrite = zd_slice_overwrites(slice);
}

static uint64_t broadcast_begin(const struct zd_slice *slice, uint32_t chunk, uint64_t *numel)
{
	*numel = chunk_numel(slice->reduction, chunk);
	return zd_slice_target_numel(slice) + chunk_begin(slice->reduction, chunk);
}

const struct zd_slice_planner zd_plan_sums = {
        .result = ZD_SLICE_SUM,
        .cut = zd_slice_cut,
        .entry_reads = zd_slice_entry_reads,
        .staging_bytes = staging_bytes,
        .build = build,
        .entry_step = zd_slice_chunk_step,
        .set_output = set_output,
        .broadcast_begin = broadcast_begin,
};
