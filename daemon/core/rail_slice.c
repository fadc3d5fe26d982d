/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rail_slice.c - slices of groups that span daemons: what each daemon has of a slice, exchanged over its
 * owner's rail and summed.
 *
 * Inside a daemon its ranks' pieces are summed in float32, for the owners of that slice in all daemons
 * (slice.c). Those sums are exchanged, and added up in the order of the daemons: by each its own slices, or,
 * in a hybrid group, by all daemons all of them. Where all ranks are on one rail, their pieces are exchanged
 * as they are, and added up in the order of the ranks. Both are the same bits in every run.
 *
 * A rank's reductions go over its rail in the order in which it submitted or skipped them, which is the same
 * on all ranks of the rail. Before each, they tell each other what they take it for: a daemon whose ranks
 * have all skipped learns the others' options so, and sends zeros if there is anything to add to. The others
 * do not wait for that; but nothing is summed before all are known to mean the same, and a difference ends
 * what could hang.
 */
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "base/text.h"
#include "core/reduce_internal.h"

/* ---- Staging ------------------------------------------------------------------------------------------- */

/* Of an element that is exchanged. A rank that has skipped may learn of the others' only then. */
static uint64_t element_bytes(const struct zd_reduction *r)
{
	if (zd_reduction_has_partials(r) || r->nsubmitted == 0)
		return sizeof(float);
	return zerod_dtype_bytes(r->options.dtype);
}

/* What is exchanged with one rank of the rail. */
static uint64_t block_bytes(const struct zd_reduction *r)
{
	uint64_t each = zd_reduction_has_partials(r) ? sizeof(float) : zerod_dtype_bytes(r->options.dtype);
	return r->unit->shard_numel * each;
}

/* Does the owner send from its entry. */
static bool sends_entry(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	return zd_reduction_exchanges(r) && r->ranks[slice->owner].entry;
}

uint64_t zd_rail_slice_layout(struct zd_slice *slice, uint64_t pieces_bytes)
{
	const struct zd_reduction *r = slice->reduction;
	uint64_t bytes = r->unit->shard_numel * element_bytes(r);
	slice->partial_offset = pieces_bytes;
	slice->arrived_offset = pieces_bytes + (sends_entry(slice) ? 0 : zd_reduction_blocks(r) * bytes);
	return slice->arrived_offset + r->group->span->nranks * bytes;
}

struct zd_location zd_rail_partial(const struct zd_slice *slice, uint32_t node)
{
	uint64_t bytes = block_bytes(slice->reduction);
	return zd_storage_location(slice->staging, slice->partial_offset + node * bytes, bytes);
}

/* All that the owner sends, by rank of the rail, or to all of them alike. */
static struct zd_location sent(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	const struct zd_contribution *own = &r->ranks[slice->owner];
	uint64_t bytes = zd_reduction_blocks(r) * block_bytes(r);
	return sends_entry(slice) ? zd_storage_location(own->storage, own->offset, bytes)
	                          : zd_storage_location(slice->staging, slice->partial_offset, bytes);
}

static struct zd_location received(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	return zd_storage_location(slice->staging, slice->arrived_offset,
	                           r->group->span->nranks * block_bytes(r));
}

static struct zd_location block(struct zd_location blocks, uint32_t index, uint64_t bytes)
{
	return (struct zd_location){blocks.segment, blocks.offset + index * bytes, bytes};
}

/* Of what the owner sends, what is its own. */
static struct zd_location own_block(const struct zd_slice *slice, uint32_t own)
{
	const struct zd_reduction *r = slice->reduction;
	return block(sent(slice), zd_reduction_blocks(r) == 1 ? 0 : own, block_bytes(r));
}

/* ---- The sum over the rail ----------------------------------------------------------------------------- */

static struct zd_slice *op_slice(const struct zd_op *op)
{
	const struct zd_reduction *r = op->owner;
	return &r->slices[op->aux];
}

/* After each operation: what it used, and what it was the last to hold. */
static void op_over(struct zd_engine *e, struct zd_reduction *r, struct zd_slice *slice)
{
	if (r->state != ZD_REDUCTION_DROPPED)
		zd_reduction_drain(e, r, slice->owner);
	zd_reduction_op_end(e, r);
}

static void submit(struct zd_engine *e, struct zd_slice *slice, struct zd_command *command, zd_op_fn *done)
{
	struct zd_reduction *r = slice->reduction;
	command->device = r->group->members[slice->owner].device->index;
	zd_slice_use(slice);
	r->ops++;
	zd_op_submit(e, r->group->job, command, done, r, slice->owner);
}

static void turns_go_on(struct zd_engine *e, struct zd_member_reduce *mr);

static void summed(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                   const struct zd_op_result *result)
{
	struct zd_reduction *r = op->owner;
	struct zd_slice *slice = op_slice(op);
	zd_slice_unuse(e, slice);
	if (r->state == ZD_REDUCTION_RUNNING && status == 0) {
		slice->chunks[0].result = *result;
		if (sends_entry(slice))
			r->ranks[slice->owner].left--;
		zd_slice_spread(e, slice, 0, r->unit->shard_numel);
		zd_slice_try_end(e, slice);
		if (zd_reduction_gathers(r))
			turns_go_on(e, zd_member_reduce(&r->group->members[slice->owner]));
	} else if (r->state == ZD_REDUCTION_RUNNING) {
		zd_slice_failed(e, slice, "the reduction", error);
	}
	op_over(e, r, slice);
}

static void sum(struct zd_engine *e, struct zd_slice *slice)
{
	struct zd_reduction *r = slice->reduction;
	const struct zd_member *member = &r->group->members[slice->owner];
	const struct zd_member_reduce *mr = zd_member_reduce(member);
	uint32_t nranks = r->group->span->nranks, own = zd_span_rank(member);
	uint64_t bytes = block_bytes(r), target_bytes = zerod_dtype_bytes(mr->w->target_dtype);
	struct zd_location *inputs = zd_calloc(nranks, sizeof(*inputs));
	for (uint32_t i = 0; i < nranks; i++)
		inputs[i] = i == own ? own_block(slice, own) : block(received(slice), i, bytes);
	struct zd_command command = {.kind = ZD_CMD_REDUCE};
	command.u.reduce = (struct zd_reduce_desc){
	        .session = member->session->id,
	        .numel = r->unit->shard_numel,
	        .input_dtype = zd_reduction_has_partials(r) ? ZEROD_FLOAT32 : r->options.dtype,
	        .target_dtype = mr->w->target_dtype,
	        .ninputs = nranks,
	        .inputs = inputs,
	        .target = zd_storage_location(slice->target, zd_slice_target_numel(slice) * target_bytes,
	                                      r->unit->shard_numel * target_bytes),
	        .prescale = zd_reduction_has_partials(r) ? 1.0f : r->options.prescale,
	        .postscale = zd_reduction_postscale(r),
	        .overwrite = r->options.overwrite || !zd_norms_has(mr->w, r->unit),
	};
	zd_sm_move(&zd_sm_slice, &slice->state, ZD_SLICE_REDUCING);
	submit(e, slice, &command, summed);
	free(inputs);
}

/* ---- The exchange -------------------------------------------------------------------------------------- */

static void exchanged(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                      const struct zd_op_result *result)
{
	struct zd_reduction *r = op->owner;
	struct zd_slice *slice = op_slice(op);
	(void)result;
	zd_slice_unuse(e, slice);
	slice->arrived = true;
	if (r->state == ZD_REDUCTION_RUNNING && status != 0)
		zd_reduction_fail(e, r, status, error);
	else if (r->state == ZD_REDUCTION_RUNNING && slice->agreed)
		sum(e, slice);
	op_over(e, r, slice);
}

static void exchange(struct zd_engine *e, struct zd_slice *slice)
{
	struct zd_reduction *r = slice->reduction;
	const struct zd_member *member = &r->group->members[slice->owner];
	struct zd_command command = {.kind = ZD_CMD_EXCHANGE};
	command.u.exchange = (struct zd_exchange_desc){
	        .comm = member->comm[ZD_COMM_REDUCTIONS],
	        .bytes = block_bytes(r),
	        .send = sent(slice),
	        .send_stride = r->group->span->hybrid ? 0 : block_bytes(r),
	        .receive = received(slice),
	        .receive_stride = block_bytes(r),
	        .what = "gradients",
	};
	zd_sm_move(&zd_sm_slice, &slice->state, ZD_SLICE_EXCHANGING);
	submit(e, slice, &command, exchanged);
}

static void zeroed(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                   const struct zd_op_result *result)
{
	struct zd_reduction *r = op->owner;
	struct zd_slice *slice = op_slice(op);
	(void)result;
	zd_slice_unuse(e, slice);
	if (r->state == ZD_REDUCTION_RUNNING && status == 0) {
		exchange(e, slice);
		if (!zd_reduction_gathers(r))
			turns_go_on(e, zd_member_reduce(&r->group->members[slice->owner]));
	} else if (r->state == ZD_REDUCTION_RUNNING) {
		zd_slice_failed(e, slice, "zeros", error);
	}
	op_over(e, r, slice);
}

/* ---- What it is ---------------------------------------------------------------------------------------- */

/* What a daemon, or a rank, takes a reduction for. Every byte is set, and means the same in all daemons. */
struct meaning {
	uint64_t unit; /* a hash of its name */
	uint64_t shard_numel;
	uint32_t contributes; /* else the options say nothing */
	uint32_t op, dtype, overwrite;
	float prescale;
	uint32_t all_reduce;
	uint64_t target_dtype;
};

static bool contributes(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	return zd_reduction_exchanges(r) ? r->ranks[slice->owner].entry != NULL : r->nsubmitted > 0;
}

static struct meaning meaning_of(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	const struct zd_member_reduce *mr = zd_member_reduce(&r->group->members[slice->owner]);
	return (struct meaning){
	        .unit = zd_text_hash(r->unit->name),
	        .shard_numel = r->unit->shard_numel,
	        .contributes = contributes(slice),
	        .op = r->options.op,
	        .dtype = r->options.dtype,
	        .overwrite = r->options.overwrite,
	        .prescale = r->options.prescale,
	        .all_reduce = r->unit->all_reduce,
	        .target_dtype = mr->w->target_dtype,
	};
}

/* What all have, whether they contribute or not. A sum that goes over the rail has the target's size. */
static bool units_differ(const struct meaning *a, const struct meaning *b)
{
	return a->unit != b->unit || a->shard_numel != b->shard_numel || a->all_reduce != b->all_reduce ||
	       a->target_dtype != b->target_dtype;
}

static bool options_differ(const struct meaning *a, const struct meaning *b)
{
	return a->op != b->op || a->dtype != b->dtype || a->overwrite != b->overwrite ||
	       a->prescale != b->prescale;
}

/* Could it be a rank's own: those options become this daemon's where it has none. */
static bool options_valid(const struct meaning *meaning)
{
	return (meaning->op == ZEROD_SUM || meaning->op == ZEROD_MEAN) &&
	       zd_dtype_reducible(meaning->dtype) && isfinite(meaning->prescale);
}

static int meanings_differ(const struct zd_slice *slice, const struct meaning *first, uint32_t first_peer,
                           const struct meaning *other, uint32_t other_peer, struct zd_err *err)
{
	const struct zd_reduction *r = slice->reduction;
	const struct zd_member *member = &r->group->members[slice->owner];
	bool same = first->unit == other->unit;
	return zd_err_set(
	        err, ZEROD_E_MISMATCH,
	        "unit '%.64s' of rank %u: rank %u reduces %llu elements a rank by %s of %s into %s, prescale "
	        "%.9g, %s%s; rank %u says %llu by %s of %s into %s, prescale %.9g, %s%s%s",
	        r->unit->name, zd_world_rank(member), zd_span_world_rank(member, first_peer),
	        (unsigned long long)first->shard_numel, first->op == ZEROD_MEAN ? "mean" : "sum",
	        zerod_dtype_name(first->dtype), zerod_dtype_name((uint32_t)first->target_dtype),
	        (double)first->prescale, first->overwrite ? "overwrite" : "accumulate",
	        first->all_reduce ? ", all-reduced" : "", zd_span_world_rank(member, other_peer),
	        (unsigned long long)other->shard_numel, other->op == ZEROD_MEAN ? "mean" : "sum",
	        zerod_dtype_name(other->dtype), zerod_dtype_name((uint32_t)other->target_dtype),
	        (double)other->prescale, other->overwrite ? "overwrite" : "accumulate",
	        other->all_reduce ? ", all-reduced" : "", same ? "" : ", of another unit");
}

/* Do all on the rail mean the same; `options`: what those who contribute want, of them there are `*n`. */
static int meanings_check(const struct zd_slice *slice, const unsigned char *values, struct meaning *options,
                          uint32_t *n, struct zd_err *err)
{
	const struct zd_member *member = &slice->reduction->group->members[slice->owner];
	struct meaning own = meaning_of(slice);
	uint32_t rank = zd_span_rank(member), first = rank;
	*n = 0;
	for (uint32_t peer = 0; peer < slice->reduction->group->span->nranks; peer++) {
		struct meaning other;
		memcpy(&other, values + peer * sizeof(other), sizeof(other));
		if (units_differ(&own, &other))
			return meanings_differ(slice, &own, rank, &other, peer, err);
		if (!other.contributes)
			continue;
		if (!options_valid(&other))
			return zd_err_set(err, ZEROD_E_MISMATCH,
			                  "unit '%.64s' of rank %u: rank %u reduces by options that are none",
			                  slice->reduction->unit->name, zd_world_rank(member),
			                  zd_span_world_rank(member, peer));
		if (*n > 0 && options_differ(options, &other))
			return meanings_differ(slice, options, first, &other, peer, err);
		if ((*n)++ > 0)
			continue;
		*options = other;
		first = peer;
	}
	return 0;
}

/* What the others want is known to an owner that has nothing to send. */
static void learned(struct zd_engine *e, struct zd_slice *slice, const struct meaning *options, uint32_t n)
{
	struct zd_reduction *r = slice->reduction;
	struct zd_member_reduce *mr = zd_member_reduce(&r->group->members[slice->owner]);
	if (n == 0) { /* as if it had not been reduced */
		zd_slice_end(e, slice);
		turns_go_on(e, mr);
		return;
	}
	if (r->nsubmitted == 0)
		r->options = (struct zd_reduction_options){
		        .op = options->op,
		        .prescale = options->prescale,
		        .overwrite = options->overwrite,
		        .dtype = options->dtype,
		};
	struct zd_command command = {.kind = ZD_CMD_FILL};
	command.u.fill.dst = sent(slice);
	submit(e, slice, &command, zeroed);
}

static void answered(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                     const struct zd_op_result *result)
{
	struct zd_reduction *r = op->owner;
	struct zd_slice *slice = op_slice(op);
	struct zd_err err = ZD_ERR_NONE;
	struct meaning options;
	uint32_t n;
	zd_slice_unuse(e, slice);
	if (r->state == ZD_REDUCTION_RUNNING && status == 0) {
		status = meanings_check(slice, result->values, &options, &n, &err);
		error = err.text;
		slice->agreed = status == 0;
		if (status == 0 && !contributes(slice))
			learned(e, slice, &options, n);
		else if (status == 0 && slice->arrived)
			sum(e, slice);
	}
	if (r->state == ZD_REDUCTION_RUNNING && status != 0)
		zd_reduction_fail(e, r, status, error);
	op_over(e, r, slice);
}

/* ---- Turns --------------------------------------------------------------------------------------------- */

static void ask(struct zd_engine *e, struct zd_slice *slice)
{
	const struct zd_member *member = &slice->reduction->group->members[slice->owner];
	struct zd_command command = {.kind = ZD_CMD_AGREE};
	struct meaning own = meaning_of(slice);
	command.u.agree.comm = member->comm[ZD_COMM_REDUCTIONS];
	command.u.agree.bytes = sizeof(own);
	command.u.agree.what = "reduction";
	memcpy(command.u.agree.value, &own, sizeof(own));
	submit(e, slice, &command, answered);
}

/* The slice whose turn is next, if this daemon's part of it is there. */
static struct zd_slice *next_turn(const struct zd_member_reduce *mr)
{
	uint32_t rank = mr->member->rank;
	const struct zd_reduction *r;
	TAILQ_FOREACH (r, &mr->member->group->reductions, link) {
		if (zd_contribution_made(&r->ranks[rank]) && r->ranks[rank].turn == mr->turn + 1)
			return r->slices && r->slices[rank].state == ZD_SLICE_TURN ? &r->slices[rank] : NULL;
	}
	return NULL;
}

bool zd_rail_slice_is_next(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	const struct zd_member_reduce *mr = zd_member_reduce(&r->group->members[slice->owner]);
	return r->group->span && r->ranks[slice->owner].turn == mr->turn + 1;
}

/* What has the turn is asked for and exchanged, and then the next has it: as soon as all is given, since a
 * communicator keeps the order. Who has nothing to send has it until it is known what the others want, and an
 * all-reduce until it has gone over the rail once more. */
static void turns_go_on(struct zd_engine *e, struct zd_member_reduce *mr)
{
	struct zd_slice *slice;
	mr->asking = false;
	while (!mr->asking && (slice = next_turn(mr))) {
		mr->turn++;
		mr->asking = !contributes(slice) || zd_reduction_gathers(slice->reduction);
		zd_dirty(e, mr->member->device); /* the one behind may have staging now */
		ask(e, slice);
		if (contributes(slice))
			exchange(e, slice);
	}
}

void zd_rail_slice_ready(struct zd_engine *e, struct zd_slice *slice)
{
	struct zd_member_reduce *mr = zd_member_reduce(&slice->reduction->group->members[slice->owner]);
	zd_sm_move(&zd_sm_slice, &slice->state, ZD_SLICE_TURN);
	if (!mr->asking)
		turns_go_on(e, mr);
}
