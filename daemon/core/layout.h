/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h - places of units: slots, and offsets in the flat target. */
#ifndef ZD_CORE_LAYOUT_H
#define ZD_CORE_LAYOUT_H

#include "core/internal.h"

struct zd_group_slot {
	uint32_t number;
	uint64_t bytes;  /* largest padded unit that was put into it */
	bool placed;     /* a rank has its block: no larger unit is registered with it */
	uint32_t nparts; /* registered parts that are in it */
	uint32_t *parts; /* of them, by rank; owned */
	TAILQ_ENTRY(zd_group_slot) link;
};

/* NULL: no part of the group is in that slot. */
struct zd_group_slot *zd_group_slot_find(struct zd_group *group, uint32_t number);
/* The rank needs its block no longer; it goes now, or with its occupant, which nobody holds. */
void zd_slot_retire(struct zd_engine *e, struct zd_member *member, struct zd_slot *slot);
/* Would a part of the unit find its places: INVALID, LIMIT. */
int zd_layout_check(struct zd_unit *unit, struct zd_err *err) __attribute__((warn_unused_result));
/* The part is registered, as its unit is described. */
void zd_layout_enter(struct zd_part *part);
/* It is not any more, and has no copy. */
void zd_layout_leave(struct zd_engine *e, struct zd_part *part);
/* The unit needs its place in the target no longer. The target's end is given back, a gap in it is not, since
 * others' offsets are known to their trainers. */
void zd_layout_give_back(struct zd_unit *unit);
/* MISMATCH, with the unit, where two ranks have different units frozen. */
int zd_layout_compare(const struct zd_member *member, const struct zd_member *other, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
