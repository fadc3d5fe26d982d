/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ids.c - the numbers of each uid's objects.
 *
 * A prefix is a hash of the uid. Except for collisions, it does not depend on other uids, and it is the same
 * in the next daemon.
 */
#include "core/engine/ids.h"

#include <stdlib.h>
#include <string.h>

#include "core/engine/objects.h"

#define PREFIXES    (UINT64_C(1) << (63 - ZD_ID_KIND_BITS - ZD_ID_NUMBER_BITS)) /* ids are below 2^63 */
#define MOST_UIDS   (PREFIXES / 2) /* so that a free prefix is found soon */
#define LEAST_BLOCK 16u            /* numbers up to the next mark; a restore skips at most these */
#define MOST_BLOCK  4096u          /* one record for so many gathers */

static struct zd_ids *find(const struct zd_engine *e, uint32_t uid)
{
	struct zd_id_node *node = zd_id_tree_after(&e->uids, uid);
	return node && node->id == (uint64_t)uid + 1 ? ZD_CONTAINER_OF(node, struct zd_ids, by_uid) : NULL;
}

static struct zd_ids *find_prefix(const struct zd_engine *e, uint64_t prefix)
{
	struct zd_id_node *node = zd_id_tree_after(&e->prefixes, prefix - 1);
	return node && node->id == prefix ? ZD_CONTAINER_OF(node, struct zd_ids, by_prefix) : NULL;
}

uint64_t zd_ids_owner(const struct zd_engine *e, uint64_t id)
{
	const struct zd_ids *ids = find_prefix(e, ZD_ID_OWNER(id));
	return ids ? (uint64_t)ids->uid + 1 : 0;
}

static struct zd_ids *ids_new(struct zd_engine *e, uint32_t uid, uint64_t prefix)
{
	struct zd_ids *ids = zd_calloc(1, sizeof(*ids));
	ids->uid = uid;
	zd_id_tree_insert(&e->prefixes, &ids->by_prefix, prefix);
	zd_id_tree_insert(&e->uids, &ids->by_uid, (uint64_t)uid + 1);
	e->nuids++;
	return ids;
}

struct zd_ids *zd_ids_get(struct zd_engine *e, uint32_t uid)
{
	struct zd_ids *ids = find(e, uid);
	uint64_t prefix = zd_hash_id((uint64_t)uid + 1) % PREFIXES;
	while (!ids && (prefix == 0 || find_prefix(e, prefix)))
		prefix = (prefix + 1) % PREFIXES;
	return ids ? ids : ids_new(e, uid, prefix);
}

bool zd_ids_have_room(const struct zd_engine *e, uint32_t uid)
{
	return e->nuids < MOST_UIDS || find(e, uid);
}

static void journal_mark(struct zd_engine *e, const struct zd_ids *ids, uint32_t kind)
{
	struct zd_record_ids *record = zd_journal_add(&e->journal, ZD_RECORD_IDS, ids->uid, kind,
	                                              sizeof(*record));
	record->prefix = ids->by_prefix.id;
	record->mark = ids->mark[kind];
}

void zd_ids_raise(struct zd_engine *e, struct zd_ids *ids, enum zd_id_kind kind)
{
	uint64_t last = ids->last[kind];
	ids->mark[kind] = last + zd_min_u64(zd_max_u64(last, LEAST_BLOCK), MOST_BLOCK);
	zd_assert(ids->mark[kind] <= ZD_ID_NUMBER(UINT64_MAX));
	if (e->journal.on)
		journal_mark(e, ids, kind);
}

void zd_ids_journal(struct zd_engine *e, const struct zd_ids *ids)
{
	for (uint32_t kind = 0; kind < ZD_NIDS; kind++) {
		if (ids->mark[kind] > 0)
			journal_mark(e, ids, kind);
	}
}

bool zd_ids_restore(struct zd_engine *e, uint32_t uid, uint64_t prefix, uint32_t kind, uint64_t mark)
{
	struct zd_ids *ids = find(e, uid);
	if (kind >= ZD_NIDS || prefix == 0 || prefix >= PREFIXES || mark > ZD_ID_NUMBER(UINT64_MAX) / 2)
		return false;
	if (find_prefix(e, prefix) != ids)
		return false;
	if (!ids)
		ids = ids_new(e, uid, prefix);
	ids->mark[kind] = mark;
	return true;
}

bool zd_ids_set_next(struct zd_engine *e, uint32_t uid, enum zd_id_kind kind, uint64_t id)
{
	struct zd_ids *ids = find(e, uid);
	uint64_t number = ZD_ID_NUMBER(id);
	if (!ids || id - number != zd_id_first(ids, kind) || number == 0 || number > ids->mark[kind])
		return false;
	ids->last[kind] = number - 1;
	return true;
}

void zd_ids_end_restore(struct zd_engine *e)
{
	for (struct zd_id_node *node = zd_id_tree_after(&e->uids, 0); node; node = zd_id_tree_next(node)) {
		struct zd_ids *ids = ZD_CONTAINER_OF(node, struct zd_ids, by_uid);
		memcpy(ids->last, ids->mark, sizeof(ids->last));
	}
}

void zd_ids_free(struct zd_engine *e)
{
	struct zd_id_node *node;
	while ((node = e->uids.root)) {
		zd_id_tree_remove(&e->uids, node);
		free(ZD_CONTAINER_OF(node, struct zd_ids, by_uid));
	}
}
