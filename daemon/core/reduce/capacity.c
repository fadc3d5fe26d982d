/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capacity.c - finds ranks that wait for each other for ever, because they reduce in different orders, and
 * their buckets cannot hold the entries in between.
 *
 * A rank that waits in a reserve contributes to no reduction until the reserve is served. It is stuck if
 * every slot or entry that could free memory for it belongs to a reduction that lacks a stuck rank, or has
 * terms that the rank takes after such an entry. find_stuck() starts with all ranks that wait, and removes
 * each rank that does not depend on the others of the set. The ranks that remain wait for each other for
 * ever.
 */
#include <stdio.h>

#include "core/engine/objects.h"
#include "core/reduce/bucket.h"
#include "core/reduce/entry.h"
#include "core/reduce/member.h"
#include "core/reduce/reduction.h"
#include "core/reduce/slice.h"

static bool lacks_stuck(const struct zd_reduction *r)
{
	if (r->state != ZD_REDUCTION_COLLECTING)
		return false;
	for (uint32_t rank = 0; rank < r->group->local_world_size; rank++) {
		const struct zd_member_reduce *mr = zd_member_reduce(&r->group->members[rank]);
		if (mr && mr->stuck && !zd_contribution_made(&r->ranks[rank]))
			return true;
	}
	return false;
}

/* A rank takes terms in the order of its entries. It therefore does not take those of the entry while terms
 * of an earlier entry wait for a stuck rank. */
static bool terms_stuck(const struct zd_entry *entry)
{
	const struct zd_slice *slice = zd_terms_slice(entry->reduction, entry->part->rank);
	uint64_t first = entry->bucket->mr->first_stuck;
	return slice && slice->held && !slice->lent && first != 0 && first < entry->id;
}

static void note_first_stuck(struct zd_member_reduce *mr)
{
	const struct zd_bucket *bucket;
	mr->first_stuck = 0;
	TAILQ_FOREACH (bucket, &mr->buckets, link) {
		for (const struct zd_entry *entry = bucket->entries; entry; entry = entry->hh.next) {
			bool before = mr->first_stuck == 0 || entry->id < mr->first_stuck;
			if (before && entry->reduction && lacks_stuck(entry->reduction) &&
			    entry->reduction->ranks[entry->part->rank].lends)
				mr->first_stuck = entry->id;
		}
	}
}

static bool entry_stuck(const struct zd_entry *entry)
{
	if (!entry->reduction) /* in an abandoned window the rank's own submit frees it */
		return entry->state == ZD_ENTRY_RESERVED && entry->bucket->mr->stuck;
	return lacks_stuck(entry->reduction) || terms_stuck(entry);
}

static bool slot_stuck(const struct zd_bucket *bucket, const struct zd_bucket_slot *slot)
{
	for (const struct zd_entry *entry = bucket->entries; entry; entry = entry->hh.next) {
		if (entry->slot == slot && entry_stuck(entry))
			return true;
	}
	return false;
}

/* Whether a slot of the bucket is or will be drained. With `memory`, the slot must have memory, and a large
 * entry also counts. */
static bool bucket_helps(const struct zd_bucket *bucket, bool memory)
{
	for (uint32_t i = 0; i < bucket->nslots; i++) {
		const struct zd_bucket_slot *slot = &bucket->slots[i];
		if ((slot->storage || !memory) && !slot_stuck(bucket, slot))
			return true;
	}
	for (const struct zd_entry *entry = bucket->entries; memory && entry; entry = entry->hh.next) {
		if (!entry->slot && entry->state != ZD_ENTRY_WAITING && !entry_stuck(entry))
			return true;
	}
	return false;
}

/* Whether there is memory for the entry now: some can have been freed since its last attempt. */
static bool room_now(struct zd_engine *e, const struct zd_entry *entry)
{
	const struct zd_member *member = entry->bucket->mr->member;
	struct zd_job *job = member->group->job;
	uint64_t bytes = zd_max_u64(entry->bytes, entry->bucket->slot_bytes);
	struct zd_extent extent;
	if (zd_quota_check(e, job, bytes, NULL) != 0)
		return false;
	int status = zd_pool_alloc(e, NULL, job, member->device, ZD_PURPOSE_GRADIENTS, bytes,
	                           ZD_BLOCK_MIN_ALIGN, &extent, NULL);
	if (status == 0)
		zd_pool_free(e, &extent);
	return status >= 0;
}

static bool waiting_helped(struct zd_engine *e, const struct zd_entry *entry)
{
	const struct zd_bucket *bucket;
	if (entry->wait == ZD_ENTRY_WAIT_NONE || entry->refused)
		return true;
	if (entry->wait == ZD_ENTRY_WAIT_SLOT)
		return bucket_helps(entry->bucket, false);
	if (room_now(e, entry))
		return true;
	TAILQ_FOREACH (bucket, &entry->bucket->mr->buckets, link) {
		if (bucket_helps(bucket, true))
			return true;
	}
	return false;
}

static bool rank_helped(struct zd_engine *e, struct zd_member_reduce *mr)
{
	const struct zd_entry *entry;
	note_first_stuck(mr);
	TAILQ_FOREACH (entry, &mr->waiting, waiting_link) {
		if (waiting_helped(e, entry))
			return true;
	}
	return false;
}

static void find_stuck(struct zd_engine *e, struct zd_group *group)
{
	bool changed = true;
	while (changed) {
		changed = false;
		for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
			struct zd_member_reduce *mr = zd_member_reduce(&group->members[rank]);
			if (mr && mr->stuck && rank_helped(e, mr)) {
				mr->stuck = false;
				changed = true;
			}
		}
	}
}

/* Returns an entry that keeps the rank waiting, and a stuck rank that its reduction lacks. */
static const struct zd_entry *find_obstacle(const struct zd_member_reduce *mr, uint32_t *missing)
{
	const struct zd_bucket *bucket;
	TAILQ_FOREACH (bucket, &mr->buckets, link) {
		for (const struct zd_entry *entry = bucket->entries; entry; entry = entry->hh.next) {
			if (entry->state == ZD_ENTRY_WAITING || !entry->reduction || !entry_stuck(entry))
				continue;
			const struct zd_reduction *r = entry->reduction;
			for (*missing = 0; *missing < r->group->local_world_size; ++*missing) {
				const struct zd_member_reduce *other =
				        zd_member_reduce(&r->group->members[*missing]);
				if (other && other->stuck && !zd_contribution_made(&r->ranks[*missing]))
					return entry;
			}
		}
	}
	return NULL;
}

static void circle_text(const struct zd_group *group, char *out, size_t out_bytes)
{
	size_t used = (size_t)snprintf(out, out_bytes,
	                               "ranks reduce in orders that their buckets cannot hold:");
	for (uint32_t rank = 0; rank < group->local_world_size && used < out_bytes; rank++) {
		const struct zd_member_reduce *mr = zd_member_reduce(&group->members[rank]);
		uint32_t missing = 0;
		const struct zd_entry *obstacle = mr && mr->stuck ? find_obstacle(mr, &missing) : NULL;
		if (!obstacle)
			continue;
		used += (size_t)snprintf(
		        out + used, out_bytes - used,
		        " rank %u wants room for '%.40s' and holds '%.40s', which rank %u has "
		        "not reduced;",
		        group->first_rank + rank, TAILQ_FIRST(&mr->waiting)->part->unit->name,
		        obstacle->part->unit->name, group->first_rank + missing);
	}
	if (used < out_bytes)
		out[used - 1] = '\0'; /* replaces the last semicolon */
}

int zd_capacity_check(struct zd_engine *e, struct zd_entry *entry, struct zd_err *err)
{
	struct zd_group *group = entry->part->unit->group;
	struct zd_member_reduce *me = entry->bucket->mr;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_member_reduce *mr = zd_member_reduce(&group->members[rank]);
		if (mr)
			mr->stuck = !TAILQ_EMPTY(&mr->waiting);
	}
	if (rank_helped(e, me)) /* by ranks that do not wait: the usual case */
		return 0;
	find_stuck(e, group);
	if (!me->stuck)
		return 0;
	char text[ZD_ERR_TEXT_BYTES];
	circle_text(group, text, sizeof(text));
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		struct zd_member_reduce *mr = zd_member_reduce(&group->members[rank]);
		struct zd_entry *other;
		if (!mr || !mr->stuck)
			continue;
		TAILQ_FOREACH (other, &mr->waiting, waiting_link) {
			if (other != entry && !other->refused)
				other->refused = zd_strdup(text);
		}
		zd_dirty(e, mr->member->device);
	}
	return zd_err_set(err, ZEROD_E_CAPACITY, "%s", text);
}
