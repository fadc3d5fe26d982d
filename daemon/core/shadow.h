/* SPDX-License-Identifier: Apache-2.0 */
/* shadow.h - shards of the last commit, kept while new ones are written. */
#ifndef ZD_CORE_SHADOW_H
#define ZD_CORE_SHADOW_H

#include "core/internal.h"

/* What a rank's shard takes, with its shadow. */
static inline uint64_t zd_unit_part_bytes(const struct zd_unit *unit)
{
	return zd_unit_shard_bytes(unit) * (unit->group->shadow ? 2 : 1);
}

/* Its last commit may have been made, for all that this daemon knows; its shards and their shadows are
 * kept. */
static inline bool zd_group_in_doubt(const struct zd_group *group)
{
	return group->voted_step != 0 && group->state != ZD_GROUP_READY;
}

enum zd_shadow_state {
	ZD_SHADOW_NONE,      /* the part has no shadow block */
	ZD_SHADOW_FREE,      /* the shard holds the last commit, the shadow nothing of use */
	ZD_SHADOW_SAVING,    /* shard -> shadow under way */
	ZD_SHADOW_SAVED,     /* the shadow holds the last commit: the shard may be written */
	ZD_SHADOW_DUE,       /* the shard is to be set back, when nobody writes or reads it any more */
	ZD_SHADOW_RESTORING, /* shadow -> shard under way */
};

/* The shard does not hold yet what its version says. */
static inline bool zd_shadow_is_owed(const struct zd_part *part)
{
	return part->shadow == ZD_SHADOW_DUE || part->shadow == ZD_SHADOW_RESTORING;
}

/* The shard is about to be written: saves the last commit, unless that has been done. The copy counts as a
 * reader. */
void zd_shadow_save(struct zd_engine *e, struct zd_part *part);
/* What the shard holds is the last commit from now on; part->committed is still the former. */
void zd_shadow_commit(struct zd_part *part);
/* A rank goes: everything that the group has written since its last commit is undone, on all ranks. */
void zd_shadow_roll_back(struct zd_engine *e, struct zd_group *group);
/* The rank knows, and does not write any more: its updates that were undone are over. */
void zd_shadow_accept(struct zd_engine *e, struct zd_member *member);
/* A part of the rank that is being set back; NULL: none. */
const struct zd_part *zd_shadow_find_owed(const struct zd_engine *e, const struct zd_member *member);
/* Sets the shard back if that is due and nothing is in the way. To be called when something may have been. */
void zd_shadow_try(struct zd_engine *e, struct zd_part *part);
/* The update of a part that was undone: PEER_LOST, or why the group is ABORTED. */
int zd_shadow_undone(const struct zd_part *part, struct zd_err *err) __attribute__((warn_unused_result));
/* For zd_engine_check(). */
void zd_shadow_check(const struct zd_engine *e, const struct zd_part *part);

extern const struct zd_sm zd_sm_shadow;

#endif
