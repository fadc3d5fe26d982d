/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spread.c - all-reduce: what the owner of a slice has summed comes to all ranks' targets.
 *
 * Inside a daemon it is copied there as soon as it is summed. Where shards are in several daemons, it goes
 * over the owner's rail first, in its turn; what comes over that is copied on.
 */
#include "core/reduce_internal.h"

/* A copy to another rank's target, or the exchange. */
struct spread {
	struct zd_reduction *reduction;
	uint32_t owner;
	struct zd_storage *target; /* that is written */
};

uint64_t zd_slice_target_numel(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	const struct zd_unit *unit = r->unit;
	uint64_t index = unit->all_reduce ? zd_shard_index(&r->group->members[slice->owner]) : 0;
	return unit->target_offset_numel + index * unit->shard_numel;
}

static uint64_t target_element(const struct zd_slice *slice)
{
	return zerod_dtype_bytes(zd_reduction_window(slice->reduction, slice->owner)->target_dtype);
}

/* Elements of a rank's target. */
static struct zd_location elements(const struct zd_slice *slice, const struct zd_storage *target,
                                   uint64_t begin, uint64_t numel)
{
	uint64_t each = target_element(slice);
	return zd_storage_location(target, begin * each, numel * each);
}

/* ---- Copies -------------------------------------------------------------------------------------------- */

static void submit(struct zd_engine *e, struct zd_slice *slice, struct zd_storage *target,
                   struct zd_command *command, zd_op_fn *done)
{
	struct zd_reduction *r = slice->reduction;
	struct spread *spread = zd_calloc(1, sizeof(*spread));
	*spread = (struct spread){r, slice->owner, target};
	command->device = r->group->members[slice->owner].device->index;
	slice->nspread++;
	zd_storage_use(target);
	zd_storage_use(slice->target);
	r->ops++;
	zd_op_submit(e, r->group->job, command, done, spread, 0);
}

/* What the operation used. Returns its slice. */
static struct zd_slice *ended(struct zd_engine *e, const struct zd_op *op)
{
	struct spread *spread = op->owner;
	struct zd_slice *slice = &spread->reduction->slices[spread->owner];
	slice->nspread--;
	zd_storage_unuse(e, spread->target);
	zd_storage_unuse(e, slice->target);
	free(spread);
	return slice;
}

static void copied(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                   const struct zd_op_result *result)
{
	struct zd_slice *slice = ended(e, op);
	struct zd_reduction *r = slice->reduction;
	(void)result;
	if (r->state == ZD_REDUCTION_RUNNING && status == 0)
		zd_slice_try_end(e, slice);
	else if (r->state == ZD_REDUCTION_RUNNING)
		zd_slice_failed(e, slice, "a transfer", error);
	zd_reduction_op_end(e, r);
}

/* The elements from `begin` on of the owner's target. */
static void copy_to_ranks(struct zd_engine *e, struct zd_slice *slice, uint64_t begin, uint64_t numel)
{
	struct zd_group *group = slice->reduction->group;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_member *member = &group->members[rank];
		struct zd_storage *target = zd_reduction_window(slice->reduction, rank)->target;
		struct zd_command command = {.kind = ZD_CMD_COPY};
		if (rank == slice->owner)
			continue;
		command.u.copy.src = elements(slice, slice->target, begin, numel);
		command.u.copy.dst = elements(slice, target, begin, numel);
		command.u.copy.dst_device = member->device->index;
		submit(e, slice, target, &command, copied);
	}
}

/* ---- Over the rail ------------------------------------------------------------------------------------- */

/* Elements between what the ranks of a rail have in a target. */
static uint64_t rail_stride(const struct zd_reduction *r)
{
	return zd_reduction_exchanges(r) ? r->unit->shard_numel
	                                 : r->group->local_world_size * r->unit->shard_numel;
}

/* Where what the rail's first rank has begins. */
static uint64_t rail_begin(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	return zd_slice_target_numel(slice) - zd_span_rank(&r->group->members[slice->owner]) * rail_stride(r);
}

static void gathered(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                     const struct zd_op_result *result)
{
	struct zd_slice *slice = ended(e, op);
	struct zd_reduction *r = slice->reduction;
	(void)result;
	if (r->state == ZD_REDUCTION_RUNNING && status == 0) {
		for (uint32_t node = 0; node < r->group->span->nranks && !zd_reduction_exchanges(r); node++)
			copy_to_ranks(e, slice, rail_begin(slice) + node * rail_stride(r),
			              r->unit->shard_numel);
		zd_slice_try_end(e, slice);
	} else if (r->state == ZD_REDUCTION_RUNNING) {
		zd_reduction_fail(e, r, status, error);
	}
	zd_reduction_op_end(e, r);
}

static void gather(struct zd_engine *e, struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	const struct zd_member *member = &r->group->members[slice->owner];
	uint64_t each = target_element(slice), numel = r->unit->shard_numel;
	uint64_t all_numel = (r->group->span->nranks - 1) * rail_stride(r) + numel;
	struct zd_command command = {.kind = ZD_CMD_EXCHANGE};
	command.u.exchange = (struct zd_exchange_desc){
	        .comm = member->comm[ZD_COMM_REDUCTIONS],
	        .bytes = numel * each,
	        .send = elements(slice, slice->target, zd_slice_target_numel(slice), numel),
	        .receive = elements(slice, slice->target, rail_begin(slice), all_numel),
	        .receive_stride = rail_stride(r) * each,
	        .what = "reduced gradients",
	};
	submit(e, slice, slice->target, &command, gathered);
}

void zd_slice_spread(struct zd_engine *e, struct zd_slice *slice, uint64_t begin, uint64_t numel)
{
	const struct zd_reduction *r = slice->reduction;
	if (zd_reduction_gathers(r))
		gather(e, slice);
	else if (r->unit->all_reduce)
		copy_to_ranks(e, slice, zd_slice_target_numel(slice) + begin, numel);
}
