/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entry.c - one rank's gradient of one unit, from its reservation until its last read.
 *
 * An entry's memory is reused only when its rank has submitted the entry with fences, or has reported by
 * another call that its streams have drained. A group's failure alone does not release it.
 */
#include <math.h>
#include <string.h>

#include "core/engine/promise.h"
#include "core/gather/unit.h"
#include "core/reduce/bucket.h"
#include "core/reduce/entry.h"
#include "core/reduce/member.h"
#include "core/reduce/reduction.h"
#include "core/reduce/storage.h"
#include "core/reduce/target.h"
#include "core/reduce/window.h"

/* ---- Life ---------------------------------------------------------------------------------------------- */

static struct zd_entry *entry_new(struct zd_engine *e, struct zd_bucket *bucket, struct zd_part *part)
{
	struct zd_entry *entry = zd_calloc(1, sizeof(*entry));
	const struct zd_unit *unit = part->unit;
	entry->id = zd_next_id(e, unit->group->job->owner->ids, ZD_ID_ENTRY);
	entry->bucket = bucket;
	entry->part = part;
	entry->bytes =
	        zd_align_up(unit->group->nshards * unit->shard_numel * zerod_dtype_bytes(bucket->dtype),
	                    ZD_BLOCK_MIN_ALIGN);
	part->users++;
	entry->w = bucket->mr->w;
	entry->w->nentries++;
	bucket->mr->nentries++;
	bucket->mr->nunsubmitted++;
	TAILQ_INSERT_TAIL(&bucket->mr->waiting, entry, waiting_link);
	HASH_ADD(hh, bucket->entries, id, sizeof(entry->id), entry);
	zd_reduction_reserve(e, entry);
	return entry;
}

void zd_entry_free(struct zd_entry *entry)
{
	zd_failure_clear(&entry->failure);
	free(entry->refused);
	free(entry->absent);
	free(entry->producers);
	free(entry);
}

static void leave_window(struct zd_entry *entry)
{
	if (entry->w)
		entry->w->nentries--;
	entry->w = NULL;
}

/* Removes the entry from its bucket, frees its place and wakes the requests that wait for it. */
static void entry_leave(struct zd_engine *e, struct zd_entry *entry)
{
	struct zd_bucket *bucket = entry->bucket;
	struct zd_member_reduce *mr = bucket->mr;
	if (entry->state == ZD_ENTRY_WAITING)
		TAILQ_REMOVE(&mr->waiting, entry, waiting_link);
	else
		mr->nplaced--;
	if (entry->state < ZD_ENTRY_SUBMITTED)
		mr->nunsubmitted--;
	mr->nentries--;
	leave_window(entry);
	entry->part->users--;
	HASH_DEL(bucket->entries, entry);
	zd_entry_release_promise(e, entry);
	if (entry->slot)
		zd_bucket_slot_leave(e, entry);
	else
		zd_storage_drop(
		        e, entry->storage); /* the pointer stays valid while the pending operation uses it */
	entry->bucket = NULL;
	zd_dirty(e, mr->member->device);
}

void zd_entry_end(struct zd_engine *e, struct zd_entry *entry)
{
	if (entry->reduction && entry->state < ZD_ENTRY_SUBMITTED)
		zd_reduction_unreserve(e, entry);
	else if (entry->reduction)
		entry->reduction->ranks[entry->part->rank].entry = NULL;
	entry->reduction = NULL;
	entry_leave(e, entry);
	zd_sm_move(&zd_sm_entry, &entry->state, ZD_ENTRY_DRAINED);
	if (entry->ops == 0)
		zd_entry_free(entry);
}

void zd_entry_detach(struct zd_engine *e, struct zd_entry *entry)
{
	if (entry->reduction) /* otherwise its window was abandoned */
		zd_reduction_unreserve(e, entry);
}

void zd_entry_abandon(struct zd_engine *e, struct zd_entry *entry)
{
	zd_entry_detach(e, entry);
	leave_window(entry);
	zd_sm_move(&zd_sm_entry, &entry->state, ZD_ENTRY_ABANDONED);
	/* the reduction's result is discarded: the stream need not wait */
	zd_entry_release_promise(e, entry);
}

bool zd_entry_drains(const struct zd_engine *e, const struct zd_entry *entry)
{
	if (entry->state < ZD_ENTRY_SUBMITTED)
		return false;
	return !entry->reduction || zd_reduction_drains(e, entry->reduction);
}

/* Fails the reduction of an entry whose place was not zeroed. Returns false if that has ended the group, and
 * with it the entry. */
static bool fail_spoilt(struct zd_engine *e, struct zd_entry *entry)
{
	entry->ops++;
	zd_reduction_fail(e, entry->reduction, entry->failure.status, entry->failure.text);
	entry->ops--;
	if (entry->bucket)
		return true;
	if (entry->ops == 0)
		zd_entry_free(entry);
	return false;
}

void zd_entry_try_ready(struct zd_engine *e, struct zd_entry *entry)
{
	if (entry->state != ZD_ENTRY_SUBMITTED || entry->watched || entry->place != ZD_ENTRY_PLACE_THERE)
		return;
	if (entry->nabsent > 0) {
		zd_entry_zero_absent(e, entry);
		return;
	}
	if (entry->failure.status != 0 && entry->reduction && !fail_spoilt(e, entry))
		return;
	zd_sm_move(&zd_sm_entry, &entry->state, ZD_ENTRY_READY);
	if (entry->reduction)
		zd_reduction_ready(e, entry);
	else
		zd_entry_end(e, entry);
}

static void producers_failed(struct zd_engine *e, const struct zd_entry *entry, const char *error)
{
	struct zd_err err = ZD_ERR_NONE;
	int status = zd_err_set(&err, ZEROD_E_DEVICE, "the streams of rank %u that wrote unit '%s': %s",
	                        zd_world_rank(zd_part_member(entry->part)), entry->part->unit->name, error);
	zd_reduction_fail(e, entry->reduction, status, err.text);
}

static void fences_passed(struct zd_engine *e, struct zd_op *op)
{
	struct zd_entry *entry = op->owner;
	zd_storage_unuse(e, entry->storage);
	/* The op still counts: if this failure ends the group, it also ends the entry. */
	if (op->status != 0 && entry->bucket && entry->reduction)
		producers_failed(e, entry, op->error);
	entry->watched = false;
	entry->ops--;
	if (entry->bucket)
		zd_entry_try_ready(e, entry);
	else if (entry->ops == 0)
		zd_entry_free(entry);
}

/* Sets `watched` unless all fences have passed. */
static void entry_watch(struct zd_engine *e, struct zd_entry *entry, const struct zd_fence_list *fences)
{
	struct zd_member *member = entry->bucket->mr->member;
	entry->watched = zd_fences_watch(e, member->session, member->group->job, member->device->index,
	                                 fences, fences_passed, entry, 0);
	if (!entry->watched)
		return;
	entry->ops++;
	zd_storage_use(entry->storage);
}

/* For zd_entry_text(). */
static void note_producers(struct zd_entry *entry, const struct zd_fence_list *fences)
{
	entry->producers = zd_calloc(fences->count, sizeof(*entry->producers));
	memcpy(entry->producers, fences->fences, fences->count * sizeof(*entry->producers));
	entry->nproducers = fences->count;
}

static void entry_submit(struct zd_engine *e, struct zd_entry *entry, const struct zd_fence_list *fences)
{
	entry->bucket->mr->nunsubmitted--;
	zd_sm_move(&zd_sm_entry, &entry->state, ZD_ENTRY_SUBMITTED);
	entry_watch(e, entry, fences);
	if (entry->watched)
		note_producers(entry, fences);
	zd_entry_try_ready(e, entry);
}

void zd_entry_return(struct zd_engine *e, struct zd_entry *entry, const struct zd_fence_list *fences)
{
	zd_entry_detach(e, entry);
	entry_submit(e, entry, fences);
}

/* ---- Reserve ------------------------------------------------------------------------------------------- */

static int reserve_check(struct zd_engine *e, const struct zd_bucket *bucket, const struct zd_unit *unit,
                         struct zd_err *err)
{
	const struct zd_group *group = bucket->mr->member->group;
	if (unit->group != group)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s' and bucket %llu are of different groups",
		                  unit->name, ZD_ID_NUMBER(bucket->id));
	int status = zd_group_check(group, err);
	if (status == 0)
		status = zd_reduction_admit(e, bucket->mr, unit, "reduce", err);
	if (status != 0)
		return status;
	uint64_t limit = ZD_MAX_BYTES / zerod_dtype_bytes(bucket->dtype) / group->nshards;
	if (unit->shard_numel > limit)
		return zd_err_set(err, ZEROD_E_NO_MEMORY,
		                  "the gradient of unit '%s', %u times %llu elements of %s, can never fit",
		                  unit->name, group->nshards, (unsigned long long)unit->shard_numel,
		                  zerod_dtype_name(bucket->dtype));
	return 0;
}

static int reserve_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_bucket *bucket;
	struct zd_part *part;
	int status = zd_bucket_find(e, req->session, req->args->u.bucket_reserve.bucket, &bucket, err);
	if (status == 0)
		status = zd_part_find(e, req->session, req->args->u.bucket_reserve.unit, &part, err);
	if (status == 0)
		status = zd_backward_await(req, bucket->mr);
	if (status == 0)
		status = reserve_check(e, bucket, part->unit, err);
	if (status != 0)
		return status;
	zd_reduce_request_init(req, bucket->mr->member);
	struct zd_entry *entry = entry_new(e, bucket, part);
	entry->ahead = req->args->u.bucket_reserve.ahead;
	entry->zero_holes = req->args->u.bucket_reserve.zero_holes;
	req->u.reduce.entry = entry;
	return 0;
}

/* Sets the reason of the request's wait: the unit and rank that delay the first slot in ring order. */
static int reserve_wait(struct zd_request *req, const struct zd_entry *entry)
{
	const struct zd_bucket *bucket = entry->bucket;
	const struct zd_entry *oldest = NULL;
	for (const struct zd_entry *other = bucket->entries; other; other = other->hh.next) {
		if (other->state == ZD_ENTRY_WAITING)
			continue;
		if (!oldest || (other->slot == &bucket->slots[bucket->next] && oldest->slot != other->slot))
			oldest = other;
	}
	if (!oldest) /* this rank's other buckets hold the memory */
		return zd_wait_for(req, ZD_WAIT_MEMORY, 0, entry->bytes, 0);
	uint32_t rank = oldest->part->rank;
	if (oldest->reduction && oldest->state >= ZD_ENTRY_SUBMITTED)
		rank = zd_reduction_waits_for(oldest->reduction, rank);
	return zd_wait_for_unit(req, oldest->part->unit, ZD_WAIT_BUCKET, rank, 0, 0);
}

static int reserve_place(struct zd_engine *e, struct zd_request *req, struct zd_entry *entry,
                         struct zd_err *err)
{
	struct zd_bucket *bucket = entry->bucket;
	int status = zd_bucket_place(e, req, entry, err);
	if (status == ZD_WAIT && entry->wait != ZD_ENTRY_WAIT_NONE) {
		status = zd_capacity_check(e, entry, err);
		if (status == 0)
			return reserve_wait(req, entry);
	}
	if (status != 0)
		return status;
	TAILQ_REMOVE(&bucket->mr->waiting, entry, waiting_link);
	bucket->mr->nplaced++;
	zd_sm_move(&zd_sm_entry, &entry->state, ZD_ENTRY_FILLING);
	if (entry->place == ZD_ENTRY_PLACE_NONE)
		zd_entry_prepare(e, entry);
	return 0;
}

/* Called when the entry has a place. The stream waits for its memory, by a promise, or the request does. */
static int grant_reservation(struct zd_engine *e, struct zd_request *req, struct zd_entry *entry,
                             struct zd_err *err)
{
	const struct zd_member *member = entry->bucket->mr->member;
	if (entry->place != ZD_ENTRY_PLACE_THERE && !entry->ahead)
		return zd_wait_for(req, ZD_WAIT_FILL, 0, 0, 0);
	if (entry->failure.status != 0)
		return zd_err_set(err, entry->failure.status, "%s", entry->failure.text);
	if (entry->place != ZD_ENTRY_PLACE_THERE) {
		entry->promise = zd_promise_new(e, member->session, member->device, ZD_PROMISE_ENTRIES);
		e->reply.fence = entry->promise->fence;
	}
	zd_sm_move(&zd_sm_entry, &entry->state, ZD_ENTRY_RESERVED);
	return 0;
}

/* A place that is being zeroed is not reused, because the fill could overwrite the next entry's bytes. */
static void reserve_cancel(struct zd_engine *e, struct zd_request *req)
{
	struct zd_entry *entry = req->u.reduce.entry;
	if (zd_reduce_request_lost(req))
		return;
	if (entry->ops == 0) {
		zd_entry_end(e, entry);
		return;
	}
	zd_entry_detach(e, entry);
	entry->bucket->mr->nunsubmitted--;
	zd_sm_move(&zd_sm_entry, &entry->state, ZD_ENTRY_SUBMITTED);
}

static int reserve_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	int status = zd_reduce_request_check(req, err);
	if (status != 0)
		return status;
	struct zd_entry *entry = req->u.reduce.entry;
	if (entry->w->told && zd_window_is_abandoned(entry->w)) {
		reserve_cancel(e, req);
		return zd_err_set(err, ZEROD_E_STATE, "the rank has abandoned its backward");
	}
	if (entry->refused)
		status = zd_err_set(err, ZEROD_E_CAPACITY, "%s", entry->refused);
	else if (entry->state == ZD_ENTRY_WAITING)
		status = reserve_place(e, req, entry, err);
	if (status == 0)
		status = grant_reservation(e, req, entry, err);
	if (status == ZD_WAIT)
		return status;
	if (status != 0) {
		zd_entry_end(e, entry);
		return status;
	}
	const struct zd_unit *unit = entry->part->unit;
	uint64_t bytes = unit->group->nshards * unit->shard_numel * zerod_dtype_bytes(entry->bucket->dtype);
	e->reply.u.bucket_reserve.entry = entry->id;
	e->reply.place = zd_storage_location(entry->storage, entry->offset, bytes);
	return 0;
}

/* ---- Submit -------------------------------------------------------------------------------------------- */

static int check_absent(const struct zd_args *args, const struct zd_unit *unit, struct zd_err *err)
{
	const uint32_t *absent = args->u.bucket_submit.absent;
	for (uint32_t i = 0; i < args->u.bucket_submit.n_absent; i++) {
		if (absent[i] >= unit->nviews)
			return zd_err_set(err, ZEROD_E_INVALID, "absent[%u] is view %u; unit '%s' has %u", i,
			                  absent[i], unit->name, unit->nviews);
		for (uint32_t j = 0; j < i; j++) {
			if (absent[j] == absent[i])
				return zd_err_set(err, ZEROD_E_INVALID,
				                  "absent[%u] and absent[%u] are both view %u of unit '%s'",
				                  j, i, absent[i], unit->name);
		}
	}
	return 0;
}

/* For zd_entry_try_ready(). */
static void note_absent(struct zd_entry *entry, const struct zd_args *args)
{
	uint32_t n = args->u.bucket_submit.n_absent;
	if (n == 0)
		return;
	entry->nabsent = n;
	entry->absent = zd_calloc(n, sizeof(*entry->absent));
	memcpy(entry->absent, args->u.bucket_submit.absent, n * sizeof(*entry->absent));
}

/* The terms are in the memory that a sum without a place in the target would have. A sum that is there would
 * be lost. */
static int check_terms(const struct zd_entry *entry, struct zd_err *err)
{
	const struct zd_part *part = entry->part;
	const struct zd_unit *unit = part->unit;
	if (!part->untargeted)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "ZEROD_REDUCE_TERMS: unit '%s' has a place in the target, see "
		                  "zerod_unit_set_target()",
		                  unit->name);
	if (unit->on_host)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "ZEROD_REDUCE_TERMS: the shards of unit '%s' are in host memory",
		                  unit->name);
	return entry->reduction && zd_window_storage(entry->w, part)
	               ? zd_err_set(err, ZEROD_E_STATE,
	                            "ZEROD_REDUCE_TERMS: rank %u has not returned the sum of unit '%s'",
	                            zd_world_rank(zd_part_member(part)), unit->name)
	               : 0;
}

static int submit_options(const struct zd_args *args, const struct zd_bucket *bucket,
                          struct zd_reduction_options *options, struct zd_err *err)
{
	uint32_t op = args->u.bucket_submit.op;
	float prescale = args->u.bucket_submit.prescale;
	if (op != ZEROD_SUM && op != ZEROD_MEAN)
		return zd_err_set(err, ZEROD_E_INVALID, "unknown reduction %u", op);
	if (!isfinite(prescale))
		return zd_err_set(err, ZEROD_E_INVALID, "prescale %g is not finite", (double)prescale);
	*options = (struct zd_reduction_options){
	        .op = op,
	        .prescale = prescale == 0.0f ? 1.0f : prescale,
	        .overwrite = args->u.bucket_submit.overwrite,
	        .dtype = bucket->dtype,
	};
	return 0;
}

/* Called if the group has failed since the reservation. The submit is rejected, but it releases the entry:
 * its memory is freed when the fences have passed. */
static int submit_abandoned(struct zd_engine *e, struct zd_entry *entry, const struct zd_fence_list *fences,
                            struct zd_err *err)
{
	struct zd_member_reduce *mr = entry->bucket->mr;
	int status;
	entry_watch(e, entry, fences);
	zd_entry_end(e, entry);
	(void)zd_bucket_trim(e, mr);
	status = zd_member_enter(mr->member, err);
	return status != 0 ? status : zd_reduce_lost(mr->member->group, err);
}

/* Returns NULL if the rank has not reserved an entry with that id. */
static struct zd_entry *submit_find(const struct zd_bucket *bucket, uint64_t id)
{
	struct zd_entry *entry;
	HASH_FIND(hh, bucket->entries, &id, sizeof(id), entry);
	return entry && entry->state >= ZD_ENTRY_RESERVED ? entry : NULL;
}

static int submit_check(const struct zd_bucket *bucket, const struct zd_entry *entry, uint64_t id,
                        struct zd_err *err)
{
	int status = zd_member_enter(bucket->mr->member, err);
	if (status != 0)
		return status;
	if (!entry)
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "bucket %llu has no entry %llu",
		                  ZD_ID_NUMBER(bucket->id), ZD_ID_NUMBER(id));
	if (entry->state != ZD_ENTRY_RESERVED)
		return zd_err_set(err, ZEROD_E_STATE, "entry %llu of unit '%s' is submitted already",
		                  ZD_ID_NUMBER(id), entry->part->unit->name);
	return 0;
}

/* The pieces of the reduction will be copied soon if the other ranks also submit. The executors are told in
 * advance, because waking one takes longer than copying a small piece. */
static void expect_pieces(struct zd_engine *e, const struct zd_group *group)
{
	for (uint32_t rank = 0; rank < group->local_world_size && e->sink.expect; rank++)
		e->sink.expect(e->sink.arg, group->members[rank].device->index);
}

static int submit_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_bucket *bucket;
	struct zd_reduction_options options;
	const struct zd_fence_list *fences = &req->args->fences;
	int status = zd_bucket_find(e, req->session, req->args->u.bucket_submit.bucket, &bucket, err);
	if (status != 0)
		return status;
	struct zd_entry *entry = submit_find(bucket, req->args->u.bucket_submit.entry);
	if (entry && entry->state == ZD_ENTRY_ABANDONED)
		return submit_abandoned(e, entry, fences, err);
	status = submit_check(bucket, entry, req->args->u.bucket_submit.entry, err);
	if (status == 0)
		status = check_absent(req->args, entry->part->unit, err);
	if (status == 0 && req->args->u.bucket_submit.terms)
		status = check_terms(entry, err);
	if (status == 0)
		status = submit_options(req->args, bucket, &options, err);
	if (status == 0 && !entry->reduction) { /* its window was abandoned */
		entry_submit(e, entry, fences);
		return 0;
	}
	if (status == 0)
		status = zd_reduction_check_options(entry, &options, err);
	if (status != 0)
		return status;
	status = zd_reduction_check_ranks(entry, err);
	if (status != 0) {
		/* The entry will never be reduced. Its memory is freed when its fences have passed, so that
		 * the backward can end. */
		zd_reduction_unreserve(e, entry);
		entry_submit(e, entry, fences);
		zd_reduction_refused(e, bucket->mr->member->group, status, err);
		return status;
	}
	expect_pieces(e, bucket->mr->member->group);
	note_absent(entry, req->args);
	zd_reduction_submit(e, entry, &options, req->args->u.bucket_submit.terms);
	entry_submit(e, entry, fences);
	return 0;
}

const struct zd_request_type zd_req_bucket_reserve = {
        .begin = reserve_begin, .attempt = reserve_attempt, .cancel = reserve_cancel};
const struct zd_request_type zd_req_bucket_submit = {.begin = submit_begin};
