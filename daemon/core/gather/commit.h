/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit.h - which units forbid a commit, and what a commit has changed.
 *
 * A group may have 10^5 units, and a commit is one event. So it visits none of them: it adds one to the
 * group's count of commits. A part whose own count is lower has missed a commit, since it has not changed
 * from then on. Its committed version and its shadow are read by the functions below, and brought up to date
 * before its state, version or shadow changes.
 *
 * After each such change zd_part_changed() keeps three lists: the group's units that forbid a commit, each
 * rank's parts that were written since the last commit, and its parts that have yet to be restored to it.
 */
#ifndef ZD_CORE_GATHER_COMMIT_H
#define ZD_CORE_GATHER_COMMIT_H

#include "core/gather/shadow.h"

/* Parts that are gone miss none. */
static inline bool zd_part_missed_commit(const struct zd_part *part)
{
	return part->ncommits != part->unit->group->ncommits && !zd_part_is_gone(part);
}

/* Returns the part's version at the last commit. */
static inline uint64_t zd_part_committed(const struct zd_part *part)
{
	return zd_part_missed_commit(part) ? part->version : part->committed;
}

/* A shard that was not published since the last commit still holds it, and so does its shadow. */
static inline enum zd_shadow_state zd_part_shadow(const struct zd_part *part)
{
	bool is_newer = part->shadow == ZD_SHADOW_SAVED && part->version != part->committed;
	return is_newer && zd_part_missed_commit(part) ? ZD_SHADOW_FREE : (enum zd_shadow_state)part->shadow;
}

void zd_part_take_missed(struct zd_part *part);
/* Called before the part's state, version or shadow changes. */
static inline void zd_part_take_commits(struct zd_part *part)
{
	if (part->ncommits != part->unit->group->ncommits)
		zd_part_take_missed(part);
}

/* Called after it. */
void zd_part_changed(struct zd_part *part);

/* Resolves a commit in doubt when the daemons connect: all are at `step` or in doubt about it, so the group
 * is at that step now. */
void zd_commit_resolve(struct zd_engine *e, struct zd_group *group, uint64_t step, bool torn);

#endif
