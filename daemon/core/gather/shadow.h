/* SPDX-License-Identifier: Apache-2.0 */
/* shadow.h - shadows: copies of shards as of the last commit, kept while the shards are written. */
#ifndef ZD_CORE_GATHER_SHADOW_H
#define ZD_CORE_GATHER_SHADOW_H

#include "core/gather/unit.h"

/* Returns the bytes of a rank's shard with its shadow, if it has one. */
static inline uint64_t zd_unit_part_bytes(const struct zd_unit *unit)
{
	return zd_unit_shard_bytes(unit) * (unit->group->shadow ? 2 : 1);
}

/* Whether other daemons may have made a commit that this daemon has voted for. Shards and shadows are then
 * kept until the daemons connect again. */
static inline bool zd_group_in_doubt(const struct zd_group *group)
{
	return group->voted_step != 0 && group->state != ZD_GROUP_READY;
}

/* Whether the loss of a rank undoes what the group has written since its last commit. With a commit in doubt,
 * the next join decides. */
static inline bool zd_shadow_undoes(const struct zd_group *group)
{
	return group->shadow && group->job->durable && !group->voted_step;
}

enum zd_shadow_state {
	ZD_SHADOW_NONE,      /* the part has no shadow block */
	ZD_SHADOW_FREE,      /* the shard holds the last commit, the shadow holds nothing */
	ZD_SHADOW_SAVING,    /* shard -> shadow under way */
	ZD_SHADOW_SAVED,     /* the shadow holds the last commit: the shard may be written */
	ZD_SHADOW_DUE,       /* the shard is to be restored, when it is neither written nor read any more */
	ZD_SHADOW_RESTORING, /* shadow -> shard under way */
};

/* Whether the shard has yet to be restored to the content of its version. */
static inline bool zd_shadow_is_owed(const struct zd_part *part)
{
	return part->shadow == ZD_SHADOW_DUE || part->shadow == ZD_SHADOW_RESTORING;
}

/* Saves the last commit before the shard is written, unless that has been done. The copy counts as a
 * reader. */
void zd_shadow_save(struct zd_engine *e, struct zd_part *part);
/* Undoes, after the loss of a rank, all that ranks of the group have written since its last commit, until the
 * budget is used up. Returns whether all is undone. */
bool zd_shadow_roll_back(struct zd_engine *e, struct zd_group *group, uint32_t *budget);
/* The same of one unit. */
void zd_shadow_roll_back_unit(struct zd_engine *e, struct zd_unit *unit);
/* Whether the end of a rank is incomplete, so that units may not be undone yet. */
bool zd_shadow_rolls_back(const struct zd_group *group);
/* Ends the updates of the rank that were undone. Called when its session is reset, so that its streams do not
 * write any more. */
void zd_shadow_accept(struct zd_engine *e, struct zd_member *member);
/* Restores the shard if the restore is DUE and the shard is neither written nor read. Called whenever a
 * writer or reader ends. */
void zd_shadow_try(struct zd_engine *e, struct zd_part *part);
/* Returns the error for an update that was undone: PEER_LOST, or the reason why the group is ABORTED. */
int zd_shadow_undone(const struct zd_part *part, struct zd_err *err) __attribute__((warn_unused_result));

extern const struct zd_sm zd_sm_shadow;

#endif
