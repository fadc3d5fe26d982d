/* SPDX-License-Identifier: Apache-2.0 */
/* host_copy.h - host copies: a commit of a group's units in host memory, for readers. */
#ifndef ZD_CORE_GATHER_HOST_COPY_H
#define ZD_CORE_GATHER_HOST_COPY_H

#include "core/gather/unit.h"

/* The bytes of a unit, in their order and without padding. */
struct zd_copied_unit {
	struct zd_host_copy *copy;
	struct zd_unit *unit; /* with a reference while the copy is in progress; NULL: it was freed since */
	struct zd_extent extent; /* charged to the job */
};

struct zd_host_copy {
	struct zd_group *group;
	uint64_t step;
	struct zd_pinned pinned; /* while it is in progress */
	int status;              /* why it has failed, with `text`; 0: it has not */
	char *text;
	uint32_t requests; /* that wait for it, or have yet to be told of its end */
	uint32_t copies;   /* under way, into it and from it */
	uint32_t nunits, nplaced;
	uint32_t unit, shard; /* of the next copy into it */
	uint64_t bytes;       /* of all units */
	LIST_ENTRY(zd_host_copy) link;
	struct zd_copied_unit units[];
};

/* Returns the unit in the group's host copy of that step; NULL: it is not there. */
static inline struct zd_copied_unit *zd_host_copy_find(const struct zd_unit *unit, uint64_t step)
{
	return unit->host_copy && unit->host_copy->copy->step == step ? unit->host_copy : NULL;
}

/* Whether the group has a host copy of that step. */
static inline bool zd_host_copy_is_of(const struct zd_group *group, uint64_t step)
{
	return group->saved && group->saved->step == step;
}

size_t zd_host_copy_metadata_bytes(const struct zd_host_copy *copy);
/* Removes a copy from it, which has ended. Frees it if it was replaced, and this was the last one. */
void zd_host_copy_done(struct zd_engine *e, struct zd_host_copy *copy);
/* Frees the group's host copy when the last copy from it has ended. */
void zd_host_copy_drop(struct zd_engine *e, struct zd_group *group);
/* Tries the requests that wait for a host copy of the group: a part may hold the commit now, or no longer. */
static inline void zd_host_copy_wake(struct zd_engine *e, struct zd_group *group)
{
	if (group->saving)
		zd_dirty_group(e, group);
}
/* The same, if the next copy is of the part's unit. */
static inline void zd_host_copy_wake_for(struct zd_engine *e, const struct zd_part *part)
{
	const struct zd_host_copy *copy = part->unit->group->saving;
	if (copy && copy->unit < copy->nunits && copy->units[copy->unit].unit == part->unit)
		zd_dirty_group(e, part->unit->group);
}

#endif
