/* SPDX-License-Identifier: Apache-2.0 */
/* core_check_reduce.c - invariants of gradient reduction. */
#include "core/gather/unit.h"
#include "core/reduce/reduce.h"
#include "core/reduce/slice.h"
#include "core/reduce/target.h"
#include "tests/support/core_check_parts.h"

static void check_storages(const struct zd_member_reduce *mr, uint64_t (*found)[ZD_NCHARGES],
                           uint64_t *quarantine)
{
	const struct zd_storage *storage;
	TAILQ_FOREACH (storage, &mr->storages, link) {
		uint32_t index = storage->device->index;
		const struct zd_extent *extent = &storage->extent;
		zd_assert(storage->member == mr->member && extent->block && !extent->block->free);
		zd_assert(extent->block->owner_type == ZD_BLOCK_STORAGE && extent->block->owner == storage);
		zd_assert(extent->segment->device == storage->device);
		zd_assert(extent->segment->job == mr->member->group->job);
		zd_assert(extent->segment->purpose == ZD_PURPOSE_GRADIENTS);
		zd_assert(mr->attached || storage->dropped);
		if (storage->dropped) {
			zd_assert(storage->uses > 0);
			quarantine[index] += extent->bytes;
		} else {
			found[index][storage->charge] += extent->bytes;
		}
	}
}

/* An entry whose place may not be written yet is not READY. If its trainer has received the place, the entry
 * has a promise. */
static void check_place(const struct zd_entry *entry)
{
	const struct zd_bucket_slot *slot = entry->slot;
	bool told = entry->state == ZD_ENTRY_RESERVED || (entry->state == ZD_ENTRY_SUBMITTED && entry->ahead);
	zd_assert((entry->state == ZD_ENTRY_WAITING) == (entry->place == ZD_ENTRY_PLACE_NONE));
	zd_assert((entry->place == ZD_ENTRY_PLACE_ZEROED) == (entry->fills > 0));
	zd_assert(entry->ops == entry->fills + entry->watched);
	zd_assert(!entry->promise || (entry->place != ZD_ENTRY_PLACE_THERE && entry->ahead));
	if (entry->place != ZD_ENTRY_PLACE_THERE)
		zd_assert(entry->state != ZD_ENTRY_READY && (!told || entry->promise || entry->absent));
	if (!slot) {
		zd_assert(entry->place != ZD_ENTRY_PLACE_QUEUED);
		return;
	}
	zd_assert(slot->state != ZD_BUCKET_SLOT_FREE && entry->storage == slot->storage);
	zd_assert(entry->generation <= slot->opened);
	if (entry->generation == slot->opened && slot->state == ZD_BUCKET_SLOT_OPEN)
		zd_assert(entry->offset + entry->bytes <= slot->used_bytes);
	if (entry->place == ZD_ENTRY_PLACE_QUEUED)
		zd_assert(entry->generation > slot->generation);
	else
		zd_assert(entry->generation == slot->generation);
}

static void check_entry(const struct zd_entry *entry)
{
	const struct zd_reduction *r = entry->reduction;
	zd_assert(entry->part->users > 0 && entry->state != ZD_ENTRY_DRAINED);
	zd_assert((entry->state == ZD_ENTRY_WAITING) == (entry->storage == NULL));
	check_place(entry);
	if (entry->state == ZD_ENTRY_ABANDONED) {
		zd_assert(!r && !entry->promise && !entry->w &&
		          entry->bucket->mr->w->backward == ZD_BACKWARD_IDLE);
		return;
	}
	if (!r && entry->state < ZD_ENTRY_SUBMITTED) {
		zd_assert(zd_window_is_abandoned(entry->w));
		return;
	}
	if (!r) { /* refused or given up: kept for its operations */
		zd_assert(entry->state == ZD_ENTRY_SUBMITTED);
		zd_assert(entry->ops > 0 || entry->place == ZD_ENTRY_PLACE_QUEUED);
		return;
	}
	static const uint8_t contribution_of[] = {
	        [ZD_ENTRY_WAITING] = ZD_CONTRIBUTION_RESERVED,
	        [ZD_ENTRY_FILLING] = ZD_CONTRIBUTION_RESERVED,
	        [ZD_ENTRY_RESERVED] = ZD_CONTRIBUTION_RESERVED,
	        [ZD_ENTRY_SUBMITTED] = ZD_CONTRIBUTION_SUBMITTED,
	        [ZD_ENTRY_READY] = ZD_CONTRIBUTION_READY,
	};
	zd_assert(r->ranks[entry->part->rank].entry == entry);
	zd_assert(r->ranks[entry->part->rank].state == contribution_of[entry->state]);
	zd_assert(zd_reduction_is_of(r, entry->w));
}

static void check_slot_queue(const struct zd_bucket_slot *slot)
{
	const struct zd_entry *entry;
	uint64_t generation = slot->generation;
	uint32_t queued = 0;
	TAILQ_FOREACH (entry, &slot->queue, slot_link) {
		zd_assert(entry->slot == slot && entry->generation >= generation);
		zd_assert(entry->place == ZD_ENTRY_PLACE_QUEUED);
		generation = entry->generation;
		queued++;
	}
	zd_assert(slot->live == slot->current + queued && !slot->advancing);
	zd_assert(queued == 0 || slot->current > 0);
}

static void check_bucket(const struct zd_bucket *bucket, uint32_t *placed, uint32_t *unsubmitted)
{
	uint32_t live[ZD_MAX_BUCKET_SLOTS] = {0};
	for (const struct zd_entry *entry = bucket->entries; entry; entry = entry->hh.next) {
		zd_assert(entry->bucket == bucket);
		check_entry(entry);
		*placed += entry->state != ZD_ENTRY_WAITING;
		*unsubmitted += entry->state < ZD_ENTRY_SUBMITTED;
		if (entry->slot)
			live[entry->slot - bucket->slots]++;
	}
	for (uint32_t i = 0; i < bucket->nslots; i++) {
		const struct zd_bucket_slot *slot = &bucket->slots[i];
		check_slot_queue(slot);
		zd_assert(slot->live == live[i] && slot->used_bytes <= bucket->slot_bytes);
		zd_assert((slot->state == ZD_BUCKET_SLOT_OPEN) == (bucket->open == slot));
		zd_assert(slot->state == ZD_BUCKET_SLOT_FREE || slot->storage);
		zd_assert(slot->live > 0 || (slot->used_bytes == 0 && slot->state != ZD_BUCKET_SLOT_CLOSED));
	}
}

static void check_window_state(const struct zd_window *w)
{
	if (w->backward == ZD_BACKWARD_IDLE)
		zd_assert(w->nentries == 0 && w->open == 0);
	else
		zd_assert(w->step == ZD_STEP_NONE || w->step == ZD_STEP_CALLED);
	zd_assert(w->step != ZD_STEP_CALLED || w->backward == ZD_BACKWARD_ENDING);
	zd_assert(!w->end_requested || w->backward == ZD_BACKWARD_ENDING);
	zd_assert(w->backward != ZD_BACKWARD_ENDING || w->end_requested || w->step == ZD_STEP_CALLED);
	zd_assert(!w->promise || zd_step_is_called(w));
	if (w->step == ZD_STEP_READY || zd_step_is_called(w))
		zd_assert(w->stage > 1 || w->told || w->boundary_count == w->count);
	zd_assert((w->stage == 0) == (w->count == 0) && w->count <= w->mr->number);
	zd_assert(!w->skips_rest || w->backward == ZD_BACKWARD_ENDING);
	if (w->stage > 1 && w->backward == ZD_BACKWARD_IDLE)
		zd_assert(w->step == ZD_STEP_READY || zd_step_is_called(w));
}

static void check_sums(const struct zd_window *w)
{
	const struct zd_storage *sum;
	TAILQ_FOREACH (sum, &w->sums, sum_link) {
		zd_assert(sum->sum_of == w && !sum->dropped && sum->charge == ZD_CHARGE_TARGET);
		zd_assert(sum->part->unit->refs > 0 && zd_part_member(sum->part) == w->mr->member);
		zd_assert(!sum->returned || sum->summing);
	}
}

static void check_window(const struct zd_window *w)
{
	const struct zd_member_reduce *mr = w->mr;
	const struct zd_member *member = mr->member;
	const struct zd_bucket *bucket;
	const struct zd_reduction *r;
	uint32_t nentries = 0, open = 0;
	check_window_state(w);
	check_sums(w);
	TAILQ_FOREACH (bucket, &mr->buckets, link) {
		for (const struct zd_entry *entry = bucket->entries; entry; entry = entry->hh.next)
			nentries += entry->w == w;
	}
	TAILQ_FOREACH (r, &member->group->reductions, link)
		open += zd_contribution_made(&r->ranks[member->rank]) && !r->ranks[member->rank].settled &&
		        zd_window_find(mr, r->key[ZD_REDUCTION_WINDOW]) == w;
	zd_assert(nentries == w->nentries && open == w->open);
	zd_assert(!w->told || w->failure.status != 0 || w->failure.abandoned);
	zd_assert(!w->failure.abandoned || (w->failure.status == 0 && !member->group->cluster));
	zd_assert(!w->failure.abandoned || !zd_window_has_target(w) || !w->stage || mr->nlent > 0);
	for (uint32_t i = 0; i < ZD_NTARGETS; i++) {
		const struct zd_target *target = &w->targets[i];
		zd_assert(target->unwritten_numel <= target->numel &&
		          (target->storage || target->numel == 0));
		zd_assert(target->unwritten_numel == 0 ||
		          (w->step != ZD_STEP_WAITING && w->step != ZD_STEP_TAKEN));
		zd_assert(!target->storage || target->storage->device->config.host_memory == i);
	}
	/* A target lives from its backward to the step's end. */
	zd_assert(!zd_window_has_target(w) || w->stage > 0 || w->step == ZD_STEP_TAKEN ||
	          w->step == ZD_STEP_ABANDONED);
}

/* The step of a closing window was promised. It is not taken yet, or not ended, and waits for no call. */
static void check_closing(const struct zd_window *w)
{
	zd_assert(!w->mr->member->group->cluster && !w->failure.abandoned);
	zd_assert(w->promise || w->step == ZD_STEP_TAKEN || w->step == ZD_STEP_ABANDONED);
	zd_assert((w->stage > 0) == (w->promise != NULL));
	zd_assert(w->stage == 0 || (w->number < w->mr->w->number && w->mr->w->step != ZD_STEP_TAKEN));
	check_window(w);
}

/* All lent places belong to the target of the rank's window, and their count is right. */
static void check_lent(const struct zd_member *member)
{
	const struct zd_member_reduce *mr = zd_member_reduce(member);
	const struct zd_unit *unit;
	uint32_t nlent = 0;
	TAILQ_FOREACH (unit, &member->group->units, group_link) {
		const struct zd_part *part = &unit->parts[member->rank];
		nlent += part->target_lent;
		zd_assert(!part->target_lent || zd_window_storage(mr->w, part));
		zd_assert(!part->sum || part->sum->part == part);
	}
	zd_assert(nlent == (mr ? mr->nlent : 0) && (nlent == 0 || zd_window_has_target(mr->w)));
	const struct zd_slice *slice = mr ? TAILQ_FIRST(&mr->loans) : NULL;
	for (; slice; slice = TAILQ_NEXT(slice, loan_link)) {
		const struct zd_contribution *c = &slice->reduction->ranks[slice->owner];
		zd_assert(slice->held && slice->lent->target_lent && c->ops > 0 && slice->reduction->ops > 0);
	}
}

static void check_member(const struct zd_member *member)
{
	const struct zd_member_reduce *mr = zd_member_reduce(member);
	const struct zd_bucket *bucket;
	const struct zd_entry *entry;
	uint32_t nbuckets = 0, nentries = 0, placed = 0, waiting = 0, unsubmitted = 0;
	check_lent(member);
	if (!mr)
		return;
	zd_assert(member->session && mr->member == member);
	bool idle = mr->w->backward == ZD_BACKWARD_IDLE &&
	            (!mr->closing || mr->closing->backward == ZD_BACKWARD_IDLE);
	TAILQ_FOREACH (bucket, &mr->buckets, link) {
		nbuckets++;
		nentries += HASH_COUNT(bucket->entries);
		check_bucket(bucket, &placed, &unsubmitted);
		/* Outside of a backward only abandoned entries have memory. */
		for (uint32_t i = 0; i < bucket->nslots && idle; i++)
			zd_assert(!bucket->slots[i].storage || bucket->slots[i].live > 0);
	}
	TAILQ_FOREACH (entry, &mr->waiting, waiting_link) {
		zd_assert(entry->state == ZD_ENTRY_WAITING && entry->bucket->mr == mr);
		waiting++;
	}
	zd_assert(nbuckets == mr->nbuckets && nentries == mr->nentries && nentries == placed + waiting);
	zd_assert(placed == mr->nplaced && unsubmitted == mr->nunsubmitted);
	if (mr->w->backward == ZD_BACKWARD_STARTING || mr->w->backward == ZD_BACKWARD_ENDING)
		zd_assert(mr->nunsubmitted == 0);
	if (idle) /* all are abandoned: check_entry() */
		zd_assert(mr->nentries == mr->nunsubmitted && mr->nentries == mr->nplaced);
	check_window(mr->w);
	if (mr->closing)
		check_closing(mr->closing);
}

static void check_slice(const struct zd_reduction *r, const struct zd_slice *slice)
{
	zd_plan_check(&slice->plan);
	zd_assert((slice->state == ZD_SLICE_DONE) == slice->plan.over);
	zd_assert((slice->state == ZD_SLICE_WAITING) == (slice->plan.nsteps == 0));
	zd_assert(slice->state == ZD_SLICE_OPEN || slice->state == ZD_SLICE_TURN || !slice->staging);
	for (uint32_t i = 0; i < r->nchunks; i++)
		zd_assert(slice->chunks[i].pushed <= r->nsubmitted);
}

static void check_running(const struct zd_reduction *r)
{
	uint32_t done = 0, held = 0;
	for (uint32_t rank = 0; rank < r->group->local_world_size; rank++) {
		const struct zd_slice *slice = &r->slices[rank];
		done += slice->state == ZD_SLICE_DONE;
		held += slice->held;
		zd_assert(!slice->held || (r->ranks[rank].entry && r->ranks[rank].left >= r->nchunks));
		check_slice(r, slice);
	}
	zd_assert(done == r->ndone && held <= r->ops && (done < r->group->local_world_size || held > 0));
}

static void check_reduction(const struct zd_reduction *r)
{
	uint32_t reserved = 0, submitted = 0, skipped = 0, ops = 0;
	if (r->over) {
		zd_assert(!r->unit && r->ops == 0);
		return;
	}
	for (uint32_t rank = 0; rank < r->group->local_world_size; rank++) {
		const struct zd_contribution *c = &r->ranks[rank];
		reserved += c->state == ZD_CONTRIBUTION_RESERVED;
		submitted += c->state == ZD_CONTRIBUTION_SUBMITTED || c->state == ZD_CONTRIBUTION_READY;
		skipped += c->state == ZD_CONTRIBUTION_SKIPPED;
		ops += c->ops;
		zd_assert(c->state != ZD_CONTRIBUTION_NONE || !c->entry);
		if (zd_contribution_made(c) && !c->settled)
			zd_assert(r->unit->parts[rank].users > 0);
		zd_assert(!c->settled || !c->entry);
	}
	zd_assert(r->unit->refs > 0 && r->unit->id == r->key[ZD_REDUCTION_UNIT]);
	zd_assert(reserved == r->nreserved && submitted == r->nsubmitted && skipped == r->nskipped);
	zd_assert(reserved + submitted + skipped > 0 && ops <= r->ops);
	if (r->state == ZD_REDUCTION_COLLECTING)
		zd_assert(submitted + skipped < r->group->local_world_size && r->ops == 0);
	else if (r->state == ZD_REDUCTION_RUNNING)
		check_running(r);
	else
		zd_assert(r->state == ZD_REDUCTION_FAILED && r->ops > 0);
}

void zd_reduce_check(const struct zd_group *group, uint64_t (*found)[ZD_NCHARGES], uint64_t *quarantine)
{
	const struct zd_reduction *r;
	uint32_t listed = 0, under_way = 0;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_member *member = &group->members[rank];
		if (member->reduce)
			check_storages(member->reduce, found, quarantine);
		check_member(member);
	}
	for (r = group->reduction_index.first; r; r = r->next) {
		under_way += !r->over;
		check_reduction(r);
	}
	TAILQ_FOREACH (r, &group->reductions, link)
		listed++;
	zd_assert(listed == under_way);
	if (group->state != ZD_GROUP_READY)
		zd_assert(!group->reduction_index.first);
}
