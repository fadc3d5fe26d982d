/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bucket.c - gradient buckets of one rank: slots that are filled in ring order, and freed when their entries
 * are drained.
 *
 * At most one slot of a bucket is open. An entry that does not fit closes it and opens the next free slot. A
 * closed slot is free again when its last entry is drained. A slot has memory from its first entry of a
 * backward to the backward's end, unless another reservation needs the memory while the slot is empty.
 * Abandoned entries hold the memory. They exist only between the group's failure and the rank's next
 * backward, and therefore never at the same time as new entries.
 *
 * Each opening of a slot starts a new generation. For a reservation with `ahead`, a closed slot is opened
 * before its entries are drained, if draining them needs no other call of any process. The entries of the new
 * generation are queued. When the last entry of the former generation is drained, they receive the slot's
 * memory and their promises are kept (entry_place.c). Several generations of a slot can be queued.
 */
#include <stdio.h>

#include "base/dtype.h"
#include "core/engine/objects.h"
#include "core/reduce/bucket.h"
#include "core/reduce/entry.h"
#include "core/reduce/member.h"
#include "core/reduce/reduce.h"
#include "core/reduce/storage.h"
#include "core/reduce/window.h"

#define DEFAULT_SLOT_BYTES (32ull << 20)
#define DEFAULT_SLOTS      2u

/* ---- Slots --------------------------------------------------------------------------------------------- */

static void slot_free(struct zd_bucket *bucket, struct zd_bucket_slot *slot)
{
	if (bucket->open == slot)
		bucket->open = NULL;
	slot->used_bytes = 0;
	zd_sm_move(&zd_sm_bucket_slot, &slot->state, ZD_BUCKET_SLOT_FREE);
}

/* Whether the entry receives the memory now: no entry of another generation has it, and none is queued. */
static bool is_current(const struct zd_bucket_slot *slot, const struct zd_entry *entry)
{
	return TAILQ_EMPTY(&slot->queue) && (slot->current == 0 || slot->generation == entry->generation);
}

static void slot_enter(struct zd_bucket_slot *slot, struct zd_entry *entry)
{
	entry->slot = slot;
	entry->storage = slot->storage;
	entry->offset = slot->used_bytes;
	entry->generation = slot->opened;
	slot->used_bytes += entry->bytes;
	slot->live++;
	if (is_current(slot, entry)) {
		slot->generation = entry->generation;
		slot->current++;
	} else {
		TAILQ_INSERT_TAIL(&slot->queue, entry, slot_link);
		entry->place = ZD_ENTRY_PLACE_QUEUED;
	}
}

/* Passes the memory to the queued entries of the next generation. Each can end at once. */
static void slot_advance(struct zd_engine *e, struct zd_bucket_slot *slot)
{
	struct zd_entry *entry;
	if (slot->advancing) /* the loop of an outer call continues with the queue */
		return;
	slot->advancing = true;
	while ((entry = TAILQ_FIRST(&slot->queue)) &&
	       (slot->current == 0 || slot->generation == entry->generation)) {
		TAILQ_REMOVE(&slot->queue, entry, slot_link);
		slot->generation = entry->generation;
		slot->current++;
		zd_entry_prepare(e, entry);
	}
	slot->advancing = false;
}

void zd_bucket_slot_leave(struct zd_engine *e, struct zd_entry *entry)
{
	struct zd_bucket_slot *slot = entry->slot;
	zd_assert(slot->live > 0);
	slot->live--;
	if (entry->place == ZD_ENTRY_PLACE_QUEUED)
		TAILQ_REMOVE(&slot->queue, entry, slot_link);
	else
		slot->current--;
	if (slot->live > 0)
		slot_advance(e, slot);
	else if (slot->state == ZD_BUCKET_SLOT_CLOSED)
		slot_free(entry->bucket, slot);
	else
		slot->used_bytes = 0; /* the slot has no entry: it is filled from its start again */
}

static struct zd_bucket_slot *free_slot(struct zd_bucket *bucket, bool with_storage)
{
	for (uint32_t i = 0; i < bucket->nslots; i++) {
		struct zd_bucket_slot *slot = &bucket->slots[(bucket->next + i) % bucket->nslots];
		if (slot->state == ZD_BUCKET_SLOT_FREE && (slot->storage || !with_storage))
			return slot;
	}
	return NULL;
}

/* Returns the first closed slot in ring order whose entries are drained without another call. */
static struct zd_bucket_slot *draining_slot(const struct zd_engine *e, struct zd_bucket *bucket)
{
	for (uint32_t i = 0; i < bucket->nslots; i++) {
		struct zd_bucket_slot *slot = &bucket->slots[(bucket->next + i) % bucket->nslots];
		const struct zd_entry *entry = bucket->entries;
		if (slot->state != ZD_BUCKET_SLOT_CLOSED)
			continue;
		while (entry && (entry->slot != slot || zd_entry_drains(e, entry)))
			entry = entry->hh.next;
		if (!entry)
			return slot;
	}
	return NULL;
}

bool zd_bucket_trim(struct zd_engine *e, struct zd_member_reduce *mr)
{
	struct zd_bucket *bucket;
	bool any = false;
	TAILQ_FOREACH (bucket, &mr->buckets, link) {
		for (uint32_t i = 0; i < bucket->nslots; i++) {
			struct zd_bucket_slot *slot = &bucket->slots[i];
			if (slot->live > 0)
				continue;
			if (slot->state != ZD_BUCKET_SLOT_FREE)
				slot_free(bucket, slot);
			any |= slot->storage != NULL;
			zd_storage_drop(e, slot->storage);
			slot->storage = NULL;
		}
	}
	return any;
}

/* Allocates memory for a slot or a large entry. If there is none, the reservation waits until this rank's
 * buckets release some, slot by slot. */
static int place_storage(struct zd_engine *e, struct zd_request *req, struct zd_entry *entry, uint64_t bytes,
                         struct zd_storage **storage, struct zd_err *err)
{
	struct zd_member_reduce *mr = entry->bucket->mr;
	int status;
	do {
		status = zd_storage_new(e, req, mr->member, mr->member->device, ZD_CHARGE_BUCKET, bytes,
		                        storage, err);
	} while (status < 0 && zd_bucket_trim(e, mr));
	if (status < 0 && zd_window_gives_room(mr))
		return ZD_WAIT;
	if (status < 0 && mr->nplaced > 0) {
		entry->wait = ZD_ENTRY_WAIT_MEMORY;
		return ZD_WAIT;
	}
	return status;
}

static int place_open(struct zd_engine *e, struct zd_request *req, struct zd_entry *entry, struct zd_err *err)
{
	struct zd_bucket *bucket = entry->bucket;
	/* before memory is allocated for another slot */
	struct zd_bucket_slot *slot = free_slot(bucket, true);
	if (!slot)
		slot = free_slot(bucket, false);
	if (!slot && entry->ahead)
		slot = draining_slot(e, bucket);
	if (!slot) {
		entry->wait = ZD_ENTRY_WAIT_SLOT;
		return ZD_WAIT;
	}
	if (!slot->storage) {
		int status = place_storage(e, req, entry, bucket->slot_bytes, &slot->storage, err);
		if (status == ZD_WAIT && entry->wait == ZD_ENTRY_WAIT_MEMORY && entry->ahead)
			slot = draining_slot(e, bucket);
		if (status != 0 && (status != ZD_WAIT || !slot || !slot->storage))
			return status;
		entry->wait = ZD_ENTRY_WAIT_NONE;
	}
	zd_sm_move(&zd_sm_bucket_slot, &slot->state, ZD_BUCKET_SLOT_OPEN);
	slot->opened++;
	slot->used_bytes = 0;
	bucket->open = slot;
	bucket->next = ((uint32_t)(slot - bucket->slots) + 1) % bucket->nslots;
	return 0;
}

int zd_bucket_place(struct zd_engine *e, struct zd_request *req, struct zd_entry *entry, struct zd_err *err)
{
	struct zd_bucket *bucket = entry->bucket;
	entry->wait = ZD_ENTRY_WAIT_NONE;
	if (entry->bytes > bucket->slot_bytes)
		return place_storage(e, req, entry, entry->bytes, &entry->storage, err);
	if (bucket->open && bucket->slot_bytes - bucket->open->used_bytes < entry->bytes) {
		zd_sm_move(&zd_sm_bucket_slot, &bucket->open->state, ZD_BUCKET_SLOT_CLOSED);
		bucket->open = NULL;
	}
	if (!bucket->open) {
		int status = place_open(e, req, entry, err);
		if (status != 0)
			return status;
	}
	slot_enter(bucket->open, entry);
	return 0;
}

/* ---- Buckets ------------------------------------------------------------------------------------------- */

int zd_bucket_find(struct zd_engine *e, const struct zd_session *session, uint64_t id, struct zd_bucket **out,
                   struct zd_err *err)
{
	struct zd_bucket *bucket;
	HASH_FIND(hh, e->buckets, &id, sizeof(id), bucket);
	if (!bucket || bucket->mr->member->session != session)
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "this session has no bucket %llu",
		                  ZD_ID_NUMBER(id));
	*out = bucket;
	return 0;
}

/* Entries end from the last to the first, so that no slot's memory passes to an ending entry. */
static struct zd_entry *last_entry(const struct zd_bucket *bucket)
{
	const struct zd_entry *first = bucket->entries;
	return first ? ELMT_FROM_HH(first->hh.tbl, first->hh.tbl->tail) : NULL;
}

void zd_bucket_drop_entries(struct zd_engine *e, struct zd_bucket *bucket)
{
	while (bucket->entries)
		zd_entry_end(e, last_entry(bucket));
}

void zd_bucket_abandon_entries(struct zd_engine *e, struct zd_bucket *bucket)
{
	struct zd_entry *entry, *previous;
	for (entry = last_entry(bucket); entry; entry = previous) {
		previous = entry->hh.prev;
		if (entry->state == ZD_ENTRY_RESERVED)
			zd_entry_abandon(e, entry);
		else if (entry->state != ZD_ENTRY_ABANDONED)
			zd_entry_end(e, entry);
	}
}

void zd_bucket_free(struct zd_engine *e, struct zd_bucket *bucket)
{
	zd_assert(!bucket->entries);
	for (uint32_t i = 0; i < bucket->nslots; i++)
		zd_storage_drop(e, bucket->slots[i].storage);
	HASH_DEL(e->buckets, bucket);
	zd_id_tree_remove(&e->listed[ZD__TABLE__BUCKETS], &bucket->listed);
	TAILQ_REMOVE(&bucket->mr->buckets, bucket, link);
	bucket->mr->nbuckets--;
	zd_metadata_uncharge(bucket->mr->member->group->job->owner, sizeof(*bucket));
	free(bucket);
}

static int create_check(const struct zd_args *args, struct zd_err *err)
{
	uint32_t dtype = args->u.bucket_create.dtype;
	if (zerod_dtype_bytes(dtype) == 0)
		return zd_err_set(err, ZEROD_E_INVALID, "unknown dtype %u", dtype);
	if (!zd_dtype_reducible(dtype))
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "gradients of dtype %s; only floating ones are reduced",
		                  zerod_dtype_name(dtype));
	if (args->u.bucket_create.slot_bytes > ZD_MAX_BYTES)
		return zd_err_set(err, ZEROD_E_LIMIT, "slots of %llu bytes; at most %llu",
		                  (unsigned long long)args->u.bucket_create.slot_bytes, ZD_MAX_BYTES);
	if (args->u.bucket_create.nslots > ZD_MAX_BUCKET_SLOTS)
		return zd_err_set(err, ZEROD_E_LIMIT, "%u slots; at most %u", args->u.bucket_create.nslots,
		                  ZD_MAX_BUCKET_SLOTS);
	return 0;
}

static int create_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_member *member;
	int status = zd_member_find(e, req->session, req->args->u.bucket_create.group, &member, err);
	if (status == 0)
		status = zd_group_check(member->group, err);
	if (status == 0)
		status = create_check(req->args, err);
	if (status != 0)
		return status;
	struct zd_member_reduce *mr = zd_member_reduce_get(member);
	if (mr->nbuckets == ZD_MAX_BUCKETS)
		return zd_err_set(err, ZEROD_E_LIMIT, "rank %u has %u buckets already", zd_world_rank(member),
		                  ZD_MAX_BUCKETS);
	char name[16];
	(void)snprintf(name, sizeof(name), "%u", mr->nbuckets);
	status = zd_metadata_check(e, req->session, "bucket", name, sizeof(struct zd_bucket), err);
	if (status != 0)
		return status;
	struct zd_bucket *bucket = zd_calloc(1, sizeof(*bucket));
	zd_metadata_charge(req->session->owner, sizeof(*bucket));
	uint64_t slot_bytes = req->args->u.bucket_create.slot_bytes;
	bucket->id = zd_next_id(e, req->session->owner->ids, ZD_ID_BUCKET);
	bucket->mr = mr;
	bucket->dtype = req->args->u.bucket_create.dtype;
	bucket->slot_bytes = zd_align_up(slot_bytes ? slot_bytes : DEFAULT_SLOT_BYTES, ZD_BLOCK_MIN_ALIGN);
	bucket->nslots = req->args->u.bucket_create.nslots ? req->args->u.bucket_create.nslots
	                                                   : DEFAULT_SLOTS;
	for (uint32_t i = 0; i < bucket->nslots; i++)
		TAILQ_INIT(&bucket->slots[i].queue);
	HASH_ADD(hh, e->buckets, id, sizeof(bucket->id), bucket);
	zd_id_tree_insert(&e->listed[ZD__TABLE__BUCKETS], &bucket->listed, bucket->id);
	TAILQ_INSERT_TAIL(&mr->buckets, bucket, link);
	mr->nbuckets++;
	req->u.reduce.bucket = bucket;
	return 0;
}

static int create_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	(void)err;
	e->reply.u.bucket_create.bucket = req->u.reduce.bucket->id;
	return 0;
}

static int destroy_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_bucket *bucket;
	int status = zd_bucket_find(e, req->session, req->args->u.bucket_destroy.bucket, &bucket, err);
	if (status != 0)
		return status;
	if (bucket->entries && bucket->entries->state != ZD_ENTRY_ABANDONED) {
		char text[ZD_WAIT_TEXT];
		unsigned count = HASH_COUNT(bucket->entries);
		zd_entry_text(e, bucket->entries, text, sizeof(text));
		return zd_err_set(err, ZEROD_E_BUSY, "%u %s not reduced yet: %s", count,
		                  count == 1 ? "entry is" : "entries are", text);
	}
	zd_bucket_drop_entries(e, bucket);
	zd_bucket_free(e, bucket);
	return 0;
}

/* ---- Listing ------------------------------------------------------------------------------------------- */

void zd_bucket_row(const struct zd_engine *e, const struct zd_bucket *bucket, Zd__BucketRow *row,
                   struct zd_bucket_scratch *scratch)
{
	const struct zd_member *member = bucket->mr->member;
	row->id = bucket->id;
	row->job = member->group->job->name;
	row->group = member->group->name;
	row->rank = member->rank;
	row->device = member->device->index;
	row->dtype = bucket->dtype;
	row->nslots = bucket->nslots;
	row->slot_bytes = bucket->slot_bytes;
	for (uint32_t i = 0; i < bucket->nslots; i++) {
		const struct zd_bucket_slot *slot = &bucket->slots[i];
		scratch->slots[i] = (char *)zd_sm_name(&zd_sm_bucket_slot, slot->state);
		row->held_bytes += slot->storage ? slot->storage->extent.bytes : 0;
	}
	for (const struct zd_entry *entry = bucket->entries; entry; entry = entry->hh.next) {
		size_t n = row->n_waits;
		if (entry->state < ZD_ENTRY_SUBMITTED)
			row->reserved++;
		else
			row->submitted++;
		if (!entry->slot && entry->storage)
			row->held_bytes += entry->storage->extent.bytes;
		if (n == ZD_ARRAY_LEN(scratch->waits))
			continue;
		zd_entry_text(e, entry, scratch->waits[n], sizeof(scratch->waits[n]));
		scratch->wait_ptrs[n] = scratch->waits[n];
		row->n_waits++;
	}
	row->slots = scratch->slots;
	row->n_slots = bucket->nslots;
	row->waits = scratch->wait_ptrs;
}

const struct zd_request_type zd_req_bucket_create = {.begin = create_begin, .attempt = create_attempt};
const struct zd_request_type zd_req_bucket_destroy = {.begin = destroy_begin};
