/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bucket.h - a rank's buckets, whose slots hold its entries (bucket.c).
 */
#ifndef ZD_CORE_REDUCE_BUCKET_H
#define ZD_CORE_REDUCE_BUCKET_H

#include "base/sm.h"
#include "core/reduce/member.h"
#include "core/reduce/storage.h"

enum zd_bucket_slot_state { ZD_BUCKET_SLOT_FREE, ZD_BUCKET_SLOT_OPEN, ZD_BUCKET_SLOT_CLOSED };

struct zd_bucket_slot {
	uint8_t state;
	struct zd_storage *storage;   /* from the first entry of a backward to the backward's end */
	uint64_t used_bytes;          /* of the last generation, whose entries lie one after the other */
	uint32_t live;                /* entries of all generations that are not drained */
	uint64_t opened;              /* how often the slot was opened: the number of its last generation */
	uint64_t generation;          /* the generation that has the memory */
	uint32_t current;             /* entries of that generation that are not drained */
	bool advancing;               /* the memory is being passed to queued entries */
	TAILQ_HEAD(, zd_entry) queue; /* entries of later generations, in order */
};

struct zd_bucket {
	uint64_t id;
	struct zd_member_reduce *mr;
	enum zerod_dtype dtype;
	uint64_t slot_bytes;
	uint32_t nslots, next;       /* slots are opened in ring order */
	struct zd_bucket_slot *open; /* NULL: none */
	struct zd_bucket_slot slots[ZD_MAX_BUCKET_SLOTS];
	struct zd_entry *entries; /* hash by id, in order of reservation */
	TAILQ_ENTRY(zd_bucket) link;
	struct zd_id_node listed;
	UT_hash_handle hh;
};

extern const struct zd_sm zd_sm_bucket_slot;

/* Finds the session's bucket: NOT_FOUND. */
int zd_bucket_find(struct zd_engine *e, const struct zd_session *session, uint64_t id,
                   struct zd_bucket **bucket, struct zd_err *err) __attribute__((warn_unused_result));
/* Finds a place for a WAITING entry. Returns 0, ZD_WAIT with entry->wait set, or an error. Without a place
 * the entry remains WAITING. */
int zd_bucket_place(struct zd_engine *e, struct zd_request *req, struct zd_entry *entry, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Removes the entry from its slot. The slot's memory can pass to queued entries, or the slot becomes free. */
void zd_bucket_slot_leave(struct zd_engine *e, struct zd_entry *entry);
/* Drops the storage of all slots without entries. Returns whether it dropped any. */
bool zd_bucket_trim(struct zd_engine *e, struct zd_member_reduce *mr);
/* Ends all entries of the bucket, in whatever state they are. */
void zd_bucket_drop_entries(struct zd_engine *e, struct zd_bucket *bucket);
/* Called when the group has failed: abandons the entries that the rank has reserved and not submitted, and
 * ends the others. */
void zd_bucket_abandon_entries(struct zd_engine *e, struct zd_bucket *bucket);
/* Frees a bucket that has no entries. */
void zd_bucket_free(struct zd_engine *e, struct zd_bucket *bucket);

#endif
