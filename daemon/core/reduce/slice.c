/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slice.c - the slices of a running reduction: their staging memory, their plans, and their end.
 *
 * A slice waits for staging memory, and for streams that access its place in the target. Then its planner
 * builds its plan (slice.h), and events of the reduction run the steps. Slices of a device receive staging
 * memory in the order in which their reductions began, within the device's bound. The bound does not apply to
 * a single slice: a slice larger than the bound is reduced alone. It does not apply to the next slice of a
 * rail either, because later slices hold their memory until that slice has been exchanged. If there is
 * neither memory nor quota for a slice, it waits while other slices hold some. Otherwise it fails its
 * reduction.
 */
#include <stdlib.h>
#include <utlist.h>

#include "core/cluster/cluster.h"
#include "core/memory/empty.h"
#include "core/reduce/reduce.h"
#include "core/reduce/slice.h"
#include "core/reduce/target.h"

const struct zd_slice_planner *zd_slice_planner_of(const struct zd_group *group)
{
	if (!group->cluster)
		return &zd_plan_sums;
	return group->cluster->nccl_collectives ? &zd_plan_exchange : &zd_plan_rail_sums;
}

/* How often slices of other uids can overtake a slice for which the staging memory has no room. */
#define MOST_OVERTAKEN 16u

/* ---- Steps --------------------------------------------------------------------------------------------- */

/* Fails the reduction after a failure of the device. The session of the slice's owner is POISONED, because
 * the content of its target is undefined. */
static void slice_failed(struct zd_engine *e, struct zd_slice *slice, const char *what, const char *error)
{
	struct zd_reduction *r = slice->reduction;
	struct zd_member *owner = &r->group->members[slice->owner];
	struct zd_err err = ZD_ERR_NONE;
	int status = zd_err_set(&err, ZEROD_E_DEVICE, "%s of unit '%s' for rank %u on device %u: %s", what,
	                        r->unit->name, zd_world_rank(owner), owner->device->index, error);
	if (owner->session->state == ZD_SESSION_OPEN)
		zd_sm_move(&zd_sm_session, &owner->session->state, ZD_SESSION_POISONED);
	zd_reduction_fail(e, r, status, err.text);
}

static int sum_done(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step,
                    struct zd_err *err)
{
	(void)e;
	if (step->early && zd_early_sum_is_lost(slice, step->index))
		return zd_err_set(err, ZEROD_E_DEVICE, "a transfer before it has failed");
	return 0;
}

/* The functions of each kind of step. `what` names it in the text of a failure on the owner's device. NULL:
 * the communicator has its own text. */
static const struct {
	void (*run)(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step);
	int (*done)(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step,
	            struct zd_err *err);
	const char *what;
} steps[ZD_SLICE_NSTEPS] = {
        [ZD_SLICE_PIECE] = {zd_slice_run_piece, NULL, "a transfer"},
        [ZD_SLICE_SUM] = {zd_slice_run_sum, sum_done, "the reduction"},
        [ZD_SLICE_LOAD] = {zd_slice_run_load, NULL, "a transfer"},
        [ZD_SLICE_BROADCAST] = {zd_slice_run_broadcast, NULL, "a transfer"},
        [ZD_SLICE_OWN] = {zd_slice_run_own, NULL, NULL},
        [ZD_SLICE_AWAIT_RAIL_ORDER] = {zd_slice_run_await_rail_order, NULL, NULL},
        [ZD_SLICE_AGREE] = {zd_slice_run_agree, zd_slice_agreed, NULL},
        [ZD_SLICE_ZERO] = {zd_slice_run_zero, NULL, "zeros"},
        [ZD_SLICE_EXCHANGE] = {zd_slice_run_exchange, NULL, NULL},
        [ZD_SLICE_TOTAL] = {zd_slice_run_total, NULL, "the reduction"},
        [ZD_SLICE_ALL_GATHER] = {zd_slice_run_all_gather, NULL, NULL},
};

/* Whether the step's command accesses no staging memory and no entry. */
static bool accesses_targets_only(const struct zd_slice *slice, const struct zd_plan_step *step)
{
	return step->kind == ZD_SLICE_ALL_GATHER || (step->kind == ZD_SLICE_BROADCAST && !slice->staged);
}

static bool reads_entry(const struct zd_plan_step *step)
{
	return step->kind != ZD_SLICE_ALL_GATHER && step->kind != ZD_SLICE_BROADCAST &&
	       step->kind != ZD_SLICE_LOAD;
}

/* Adds a use to the memory that a step's command accesses. A piece reads its rank's entry and writes the
 * staging memory. Any other step can access all memory of the slice, with the exceptions above. */
static void use_step_memory(struct zd_slice *slice, struct zd_plan_step *step)
{
	struct zd_reduction *r = slice->reduction;
	struct zd_contribution *c = &r->ranks[step->kind == ZD_SLICE_PIECE ? step->source : slice->owner];
	r->ops++;
	if (step->kind != ZD_SLICE_PIECE)
		zd_storage_use(slice->target);
	if (step->memory)
		zd_storage_use(step->memory);
	if (slice->staging && !accesses_targets_only(slice, step))
		zd_storage_use(slice->staging);
	if (c->storage && reads_entry(step)) {
		c->ops++;
		zd_storage_use(c->storage);
	}
}

static void unuse_step_memory(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step)
{
	struct zd_reduction *r = slice->reduction;
	struct zd_contribution *c = &r->ranks[step->kind == ZD_SLICE_PIECE ? step->source : slice->owner];
	if (step->kind != ZD_SLICE_PIECE)
		zd_storage_unuse(e, slice->target);
	if (step->memory)
		zd_storage_unuse(e, step->memory);
	if (slice->staging && !accesses_targets_only(slice, step))
		zd_storage_unuse(e, slice->staging);
	if (c->storage && reads_entry(step)) {
		c->ops--;
		zd_storage_unuse(e, c->storage);
	}
}

void zd_slice_submit(struct zd_engine *e, struct zd_slice *slice, struct zd_plan_step *step,
                     struct zd_command *command)
{
	use_step_memory(slice, step);
	zd_plan_submit(e, &slice->plan, step, command);
}

/* ---- The plan's owner ---------------------------------------------------------------------------------- */

static void step_run(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step)
{
	steps[step->kind].run(e, plan->owner, step);
}

static void step_ended(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step,
                       const struct zd_op *op)
{
	struct zd_slice *slice = plan->owner;
	if (step->kind == ZD_SLICE_PIECE && op->status != 0)
		zd_early_sums_note_failed(e, slice,
		                          slice->reduction->ranks[step->source].storage->device->index);
	unuse_step_memory(e, slice, step);
	if (step->early)
		zd_early_sum_ended(e, slice);
	slice->refused |= op->result && op->result->not_begun;
}

/* Counts the step as done for the entry that it has read. */
static int step_done(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step, struct zd_err *err)
{
	struct zd_slice *slice = plan->owner;
	struct zd_reduction *r = slice->reduction;
	int status = steps[step->kind].done ? steps[step->kind].done(e, slice, step, err) : 0;
	if (status == 0 && step->source != ZD_PLAN_NOBODY) {
		r->ranks[step->source].left--;
		zd_reduction_drain(e, r, step->source);
	}
	return status;
}

static void step_failed(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step, int status,
                        const char *error)
{
	struct zd_slice *slice = plan->owner;
	if (steps[step->kind].what)
		slice_failed(e, slice, steps[step->kind].what, error);
	else
		zd_reduction_fail(e, slice->reduction, status, error);
}

/* Chunks end in any order. Their norms are added up in the chunks' order. */
static void plan_over(struct zd_engine *e, struct zd_plan *plan)
{
	struct zd_slice *slice = plan->owner;
	struct zd_reduction *r = slice->reduction;
	struct zd_member *owner = &r->group->members[slice->owner];
	struct zd_op_result result = {.overflow = false};
	for (uint32_t i = 0; i < plan->nsteps; i++) {
		if (plan->steps[i].kind != slice->planner->result)
			continue;
		result.sum_squares += plan->steps[i].result.sum_squares;
		result.overflow |= plan->steps[i].result.overflow;
	}
	if (!slice->empty)
		zd_norms_note(zd_reduction_window(r, slice->owner), r->unit, &result);
	zd_sm_move(&zd_sm_slice, &slice->state, ZD_SLICE_DONE);
	r->ndone++;
	if (slice->target->summing)
		zd_sum_made(e, slice->target);
	zd_storage_drop(e, slice->staging);
	slice->staging = NULL;
	if (zd_member_reduce(owner)->nlenders > 0)
		zd_dirty(e, owner->device);
	zd_reduction_try_settle(e, r, slice->owner);
}

static void command_over(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step)
{
	struct zd_slice *slice = plan->owner;
	struct zd_reduction *r = slice->reduction;
	if (step->kind == ZD_SLICE_SUM && r->state == ZD_REDUCTION_RUNNING)
		zd_early_sums_try(e, slice);
	if (r->state != ZD_REDUCTION_DROPPED)
		zd_reduction_drain(e, r, step->kind == ZD_SLICE_PIECE ? step->source : slice->owner);
	zd_reduction_op_end(e, r);
}

const struct zd_plan_type zd_slice_plan_type = {step_run,    step_ended, step_done,
                                                step_failed, plan_over,  command_over};

bool zd_slice_awaits_sum(const struct zd_slice *slice)
{
	for (uint32_t i = 0; i < slice->plan.nsteps; i++) {
		const struct zd_plan_step *step = &slice->plan.steps[i];
		bool behind = step->kind == ZD_SLICE_BROADCAST || step->kind == ZD_SLICE_ALL_GATHER;
		bool summing = step->kind == slice->planner->result && step->waits == 0;
		if (step->state != ZD_PLAN_DONE && !behind && !summing)
			return false;
	}
	return slice->state == ZD_SLICE_OPEN;
}

/* ---- Entries ------------------------------------------------------------------------------------------- */

/* Runs the step that waits for this chunk of the rank's entry, which is READY. */
static void entry_ready(struct zd_engine *e, struct zd_slice *slice, uint32_t rank, uint32_t chunk)
{
	uint32_t step = slice->planner->entry_step(slice, rank, chunk);
	if (step == ZD_PLAN_NOBODY)
		return;
	slice->chunks[chunk].pushed++;
	zd_plan_satisfy(e, &slice->plan, step);
}

/* The first chunks of all owners are copied before the second ones. */
void zd_slices_entry_ready(struct zd_engine *e, struct zd_reduction *r, uint32_t rank)
{
	uint32_t world = r->group->local_world_size;
	for (uint32_t chunk = 0; chunk < r->nchunks; chunk++) {
		for (uint32_t owner = 0; owner < world; owner++) {
			if (r->slices[owner].state == ZD_SLICE_OPEN)
				entry_ready(e, &r->slices[owner], rank, chunk);
		}
	}
	for (uint32_t owner = 0; owner < world; owner++)
		zd_early_sums_try(e, &r->slices[owner]);
}

static void slice_open(struct zd_engine *e, struct zd_slice *slice)
{
	struct zd_reduction *r = slice->reduction;
	zd_sm_move(&zd_sm_slice, &slice->state, ZD_SLICE_OPEN);
	slice->target = zd_slice_target_of(slice, slice->owner);
	slice->target->summing = slice->target->sum_of != NULL;
	if (slice->planner == &zd_plan_terms) {
		slice->held = true;
		r->ops++;
	}
	zd_early_sums_init(e, slice);
	slice->planner->build(slice);
	zd_plan_start(e, &slice->plan);
	for (uint32_t chunk = 0; chunk < r->nchunks; chunk++) {
		for (uint32_t rank = 0; rank < r->group->local_world_size; rank++) {
			if (r->ranks[rank].state == ZD_CONTRIBUTION_READY)
				entry_ready(e, slice, rank, chunk);
		}
	}
	zd_early_sums_try(e, slice);
}

/* ---- Staging ------------------------------------------------------------------------------------------- */

void zd_slices_start(struct zd_engine *e, struct zd_reduction *r)
{
	const struct zd_slice_planner *planner = zd_slice_planner_of(r->group);
	uint32_t world = r->group->local_world_size;
	planner->cut(e, r);
	r->slices = zd_calloc(world, sizeof(*r->slices));
	r->nslices = world;
	for (uint32_t rank = 0; rank < world; rank++)
		r->ranks[rank].left = zd_contribution_is_submitted(&r->ranks[rank]) ? planner->entry_reads(r)
		                                                                    : 0;
	for (uint32_t owner = 0; owner < world; owner++) {
		struct zd_slice *slice = &r->slices[owner];
		struct zd_device *device = r->group->members[owner].device;
		slice->reduction = r;
		/* in a window that has failed no rank takes terms */
		if (r->ranks[owner].lends)
			r->ranks[owner].lends = zd_reduction_window(r, owner)->failure.status == 0;
		slice->planner = r->ranks[owner].lends ? &zd_plan_terms : planner;
		slice->chunks = zd_calloc(r->nchunks, sizeof(*slice->chunks));
		slice->owner = owner;
		slice->staged = r->unit->on_host;
		if (slice->planner->staging_bytes(slice) == 0 && !zd_slice_target_is_accessed(slice) &&
		    zd_slice_target_of(slice, owner)) {
			slice_open(e, slice);
			continue;
		}
		DL_APPEND(device->staging_queue, slice);
		zd_dirty(e, device);
	}
}

void zd_slices_free(struct zd_reduction *r)
{
	for (uint32_t owner = 0; owner < r->nslices; owner++) {
		zd_plan_deinit(&r->slices[owner].plan);
		free(r->slices[owner].fences);
		free(r->slices[owner].chunks);
	}
	free(r->slices);
	r->slices = NULL;
	r->nslices = 0;
}

/* From now on the slice waits for this segment; 0: for none. */
static void await_segment(struct zd_engine *e, struct zd_slice *slice, uint32_t segment)
{
	if (slice->segment_wait)
		zd_empty_await(e, slice->segment_wait, -1);
	slice->segment_wait = segment;
	if (segment)
		zd_empty_await(e, segment, 1);
}

void zd_slices_stop(struct zd_engine *e, struct zd_reduction *r)
{
	for (uint32_t owner = 0; r->slices && owner < r->group->local_world_size; owner++) {
		struct zd_slice *slice = &r->slices[owner];
		struct zd_device *device = r->group->members[owner].device;
		struct zd_storage *sum = r->unit->parts[owner].sum; /* NULL: it was dropped already */
		slice->plan.stopped = true;
		zd_terms_stop(slice);
		if (slice->state == ZD_SLICE_WAITING) {
			await_segment(e, slice, 0);
			DL_DELETE(device->staging_queue, slice);
		} else if (slice->state != ZD_SLICE_DONE && sum && sum == slice->target)
			zd_sum_made(e, sum);
		zd_storage_drop(e, slice->staging); /* the pointer remains valid while a command uses it */
	}
}

/* Frees the empty bucket slots of the device's ranks, before a reduction fails for lack of memory. */
static bool trim_device(struct zd_engine *e, const struct zd_group *group, const struct zd_device *device)
{
	bool any = false;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_member_reduce *mr = zd_member_reduce(&group->members[rank]);
		if (mr && mr->member->device == device)
			any |= zd_bucket_trim(e, mr);
	}
	return any;
}

/* Returns the staging bytes of slices that follow this slice on the owner's rail, and that cannot be freed
 * before it. */
static uint64_t held_behind(const struct zd_slice *slice)
{
	const struct zd_group *group = slice->reduction->group;
	uint64_t rail_seq = slice->reduction->ranks[slice->owner].rail_seq, bytes = 0;
	const struct zd_reduction *r;
	TAILQ_FOREACH (r, &group->reductions, link) {
		if (slice->planner->in_order && r->state == ZD_REDUCTION_RUNNING &&
		    r->slices[slice->owner].staging && r->ranks[slice->owner].rail_seq > rail_seq)
			bytes += r->slices[slice->owner].staging->extent.bytes;
	}
	return bytes;
}

/* Whether the slice would exceed the device's bound of staging memory. The bound does not apply to a single
 * slice, or to the next slice of a rail. */
static bool exceeds_staging(const struct zd_device *device, struct zd_slice *slice)
{
	uint64_t bytes = slice->planner->staging_bytes(slice);
	return device->staging_bytes > 0 && device->staging_bytes + bytes > device->config.staging_bytes &&
	       !zd_slice_is_next(slice);
}

static uint64_t entry_id(const struct zd_reduction *r, uint32_t rank)
{
	return r->ranks[rank].entry ? r->ranks[rank].entry->id : 0;
}

/* Whether the rank takes these terms after those of the slice that waits for memory. */
static bool are_taken_later(const struct zd_slice *terms, const struct zd_slice *waiting)
{
	return terms->held && !terms->lent && terms->owner == waiting->owner &&
	       waiting->planner == &zd_plan_terms &&
	       entry_id(terms->reduction, terms->owner) > entry_id(waiting->reduction, waiting->owner);
}

/* Whether the memory of a sum, or of its terms, is freed without the step: its rank can return it before. */
static bool comes_back(const struct zd_storage *sum, const struct zd_window *w,
                       const struct zd_slice *waiting)
{
	const struct zd_unit *unit = sum->part->unit;
	const struct zd_slice *terms = zd_terms_slice(zd_reduction_find(w, unit->id), sum->part->rank);
	if (terms && are_taken_later(terms, waiting))
		return false;
	return !zd_step_is_called(w) && (sum->summing || zd_norms_has(w, unit));
}

/* Whether sums of untargeted parts will be freed on the device that lacks memory or, if the status is QUOTA,
 * for the uid. */
static bool has_sums(const struct zd_slice *slice, const struct zd_device *device, int status)
{
	const struct zd_reduction *r = slice->reduction;
	bool found = false;
	for (uint32_t rank = 0; rank < r->group->local_world_size && !found; rank++) {
		const struct zd_window *w = zd_reduction_window(r, rank);
		const struct zd_storage *sum = w ? TAILQ_FIRST(&w->sums) : NULL;
		for (; sum && !found; sum = TAILQ_NEXT(sum, sum_link))
			found = (sum->device == device || status == ZEROD_E_QUOTA) &&
			        comes_back(sum, w, slice);
	}
	return found;
}

/* Returns the size of the memory for an untargeted part's sum, or for the terms in its place. */
static uint64_t sum_bytes(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	if (slice->planner == &zd_plan_terms)
		return zd_max_u64(zd_slice_pieces_bytes(slice), 1);
	return zd_unit_target_numel(r->unit) *
	       zerod_dtype_bytes(zd_reduction_window(r, slice->owner)->target_dtype);
}

/* Allocates memory of a kind: for the slice's sum (ZD_CHARGE_TARGET) or its pieces. */
static int take_kind(struct zd_engine *e, struct zd_slice *slice, enum zd_charge charge, uint64_t bytes,
                     struct zd_err *err)
{
	struct zd_reduction *r = slice->reduction;
	struct zd_member *owner = &r->group->members[slice->owner];
	struct zd_part *part = &r->unit->parts[slice->owner];
	struct zd_device *device = charge == ZD_CHARGE_TARGET && r->unit->on_host ? owner->device->host
	                                                                          : owner->device;
	struct zd_request probe = {0}; /* only to learn which segment is being created */
	int status;
	do {
		status = charge == ZD_CHARGE_TARGET
		                 ? zd_sum_new(e, &probe, zd_reduction_window(r, slice->owner), part, bytes,
		                              err)
		                 : zd_storage_new(e, &probe, owner, owner->device, charge, bytes,
		                                  &slice->staging, err);
	} while (status < 0 && trim_device(e, r->group, owner->device));
	await_segment(e, slice, probe.segment_wait);
	if (status >= 0)
		return status;
	/* Other reductions release their staging memory without a call, unless they wait for this one. */
	uint64_t held = status == ZEROD_E_QUOTA ? r->group->job->owner->account.bytes[ZD_CHARGE_STAGING]
	                                        : owner->device->staging_bytes;
	bool gives = zd_window_gives_room(zd_member_reduce(owner)) || has_sums(slice, device, status);
	return held > held_behind(slice) || gives ? ZD_WAIT : status;
}

static int take_staging(struct zd_engine *e, struct zd_device *device, struct zd_slice *slice,
                        struct zd_err *err)
{
	struct zd_reduction *r = slice->reduction;
	uint64_t bytes = slice->planner->staging_bytes(slice);
	bool lacks_sum = !zd_slice_target_of(slice, slice->owner);
	if (bytes == 0 && !lacks_sum) /* the slice has only waited for its target */
		return 0;
	if (exceeds_staging(device, slice))
		return ZD_WAIT;
	struct zd_segment *segment = NULL;
	if (slice->segment_wait)
		HASH_FIND(hh, e->segments, &slice->segment_wait, sizeof(slice->segment_wait), segment);
	if (slice->segment_wait && !segment)
		return zd_err_set(
		        err, ZEROD_E_NO_MEMORY,
		        "unit '%s' cannot be reduced: device %u gave no segment for %llu bytes of %s",
		        r->unit->name, device->index,
		        (unsigned long long)(lacks_sum ? sum_bytes(slice) : bytes),
		        lacks_sum ? "its sum" : "staging");
	if (lacks_sum) {
		int status = take_kind(e, slice, ZD_CHARGE_TARGET, sum_bytes(slice), err);
		if (status != 0)
			return status;
		slice->fresh = true;
	}
	return bytes == 0 ? 0 : take_kind(e, slice, ZD_CHARGE_STAGING, bytes, err);
}

static struct zd_owner *uid_of(const struct zd_slice *slice)
{
	return slice->reduction->group->job->owner;
}

/* Whether this is the uid's first slice in this walk over the staging queue. */
static bool is_first_of_uid(struct zd_device *device, const struct zd_slice *slice)
{
	struct zd_owner_queue *queue = &uid_of(slice)->queues[device->index];
	bool first = queue->staging_pass != device->staging_pass;
	queue->staging_pass = device->staging_pass;
	return first;
}

static void slice_leave_queue(struct zd_engine *e, struct zd_device *device, struct zd_slice *slice)
{
	await_segment(e, slice, 0);
	struct zd_slice *before;
	for (before = device->staging_queue; before != slice; before = before->next)
		before->overtaken += uid_of(before) != uid_of(slice);
	DL_DELETE(device->staging_queue, slice);
}

/* Serves a uid's first slice that waits only for staging, or a slice that is next on its rail. If others have
 * overtaken a slice often enough, they wait for it: staging memory is freed without another call. Returns
 * false if nothing has changed. */
static bool serve_one(struct zd_engine *e, struct zd_device *device)
{
	struct zd_slice *slice;
	bool held_up = false;
	device->staging_pass++;
	DL_FOREACH(device->staging_queue, slice)
	{
		struct zd_err err = ZD_ERR_NONE;
		if (zd_slice_target_is_accessed(slice))
			continue;
		bool served = is_first_of_uid(device, slice) && !held_up;
		if (!served && !zd_slice_is_next(slice))
			continue;
		held_up |= slice->overtaken >= MOST_OVERTAKEN && exceeds_staging(device, slice);
		int status = take_staging(e, device, slice, &err);
		if (status == ZD_WAIT)
			continue;
		if (status != 0) {
			zd_reduction_fail(e, slice->reduction, status, err.text);
			return true;
		}
		slice_leave_queue(e, device, slice);
		slice_open(e, slice);
		zd_dirty_group(e, slice->reduction->group); /* its entries can be promised to others now */
		return true;
	}
	return false;
}

void zd_reduce_settle(struct zd_engine *e, struct zd_device *device)
{
	while (serve_one(e, device))
		;
}
