/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ids.h - the ids of a uid's objects: the uid's prefix, the kind of object, and a number from 1.
 *
 * Ids are unique. An id does not reveal other users' objects to a user, and people type only its number. An
 * id is never assigned again, even if the uid has held no objects in between: the numbers outlive struct
 * zd_owner. A restore continues them. For this the journal has a mark of each kind, which the numbers have
 * not exceeded.
 */
#ifndef ZD_CORE_ENGINE_IDS_H
#define ZD_CORE_ENGINE_IDS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/engine/id_tree.h"
#include "proto/limits.h"

struct zd_engine;

/* These numbers are in the journal and in ids. */
enum zd_id_kind {
	ZD_ID_JOB,
	ZD_ID_SESSION,
	ZD_ID_GROUP,
	ZD_ID_UNIT,
	ZD_ID_BUFFER, /* also waiting requests, because waiting gathers are rows of the table of buffers */
	ZD_ID_BUCKET,
	ZD_ID_ALLOCATION,
	ZD_ID_SCOPE,
	ZD_ID_ENTRY,
	ZD_NIDS
};

struct zd_ids {
	uint32_t uid;
	uint64_t last[ZD_NIDS];              /* the last assigned numbers */
	uint64_t mark[ZD_NIDS];              /* recorded: greater numbers have not been assigned */
	struct zd_id_node by_prefix, by_uid; /* of the uid plus 1 */
};

/* Returns the uid's numbers, and creates them if necessary. They last as long as the engine. */
struct zd_ids *zd_ids_get(struct zd_engine *e, uint32_t uid);
/* Returns the uid plus 1 of the user whose object has this id, or 0 if no object has it. */
uint64_t zd_ids_owner(const struct zd_engine *e, uint64_t id);
/* Whether the uid can have numbers. Prefixes are limited, and a uid retains its prefix. */
bool zd_ids_have_room(const struct zd_engine *e, uint32_t uid);
/* Raises the mark of a kind, and records it. */
void zd_ids_raise(struct zd_engine *e, struct zd_ids *ids, enum zd_id_kind kind);
/* Records the marks of all kinds. */
void zd_ids_journal(struct zd_engine *e, const struct zd_ids *ids);

/* Returns the common leading bits of all ids of the uid and kind. */
static inline uint64_t zd_id_first(const struct zd_ids *ids, uint32_t kind)
{
	return (ids->by_prefix.id << ZD_ID_KIND_BITS | kind) << ZD_ID_NUMBER_BITS;
}

static inline uint64_t zd_next_id(struct zd_engine *e, struct zd_ids *ids, enum zd_id_kind kind)
{
	if (ids->last[kind] == ids->mark[kind])
		zd_ids_raise(e, ids, kind);
	return zd_id_first(ids, kind) | ++ids->last[kind];
}

/* Frees the numbers of all uids. */
void zd_ids_free(struct zd_engine *e);

/* ---- In a restore -------------------------------------------------------------------------------------- */

/* Restores a mark. Returns whether the record is valid. */
bool zd_ids_restore(struct zd_engine *e, uint32_t uid, uint64_t prefix, uint32_t kind, uint64_t mark);
/* Sets the next id of the uid and kind to `id`. Returns whether the former daemon can have assigned it. */
bool zd_ids_set_next(struct zd_engine *e, uint32_t uid, enum zd_id_kind kind, uint64_t id);
/* Counts all ids up to the marks as assigned. */
void zd_ids_end_restore(struct zd_engine *e);

#endif
