/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h - places of units: slots, and offsets in the flat target. */
#ifndef ZD_CORE_GATHER_LAYOUT_H
#define ZD_CORE_GATHER_LAYOUT_H

#include "core/gather/unit.h"

struct zd_group_slot {
	uint32_t number;
	uint64_t bytes;  /* largest padded unit that was put into it */
	bool placed;     /* a rank has its block: a larger unit is rejected */
	uint32_t nparts; /* registered parts that are in it */
	uint32_t *parts; /* numbers of these, by rank; owned */
	TAILQ_ENTRY(zd_group_slot) link;
};

/* NULL: no part of the group is in that slot. */
struct zd_group_slot *zd_group_slot_find(struct zd_group *group, uint32_t number);
/* The rank does not need its block any more. The block is freed at once, or with its occupant, which no lease
 * holds. */
void zd_slot_retire(struct zd_engine *e, struct zd_member *member, struct zd_slot *slot);
/* INVALID or LIMIT if a part of the unit would find no place in its slot or in the target. */
int zd_layout_check(struct zd_unit *unit, struct zd_err *err) __attribute__((warn_unused_result));
/* The part is being registered: puts it into its slot and its unit into the target. */
void zd_layout_enter(struct zd_part *part);
/* The part's registration has ended, and it has no gathered buffer: removes it from its slot. */
void zd_layout_leave(struct zd_engine *e, struct zd_part *part);
/* The unit does not need its place in the target any more. A place at the target's end is freed; a gap is not
 * closed, since clients know the offsets of later units. */
void zd_layout_give_back(struct zd_unit *unit);
/* MISMATCH, which names a unit, if the two ranks have frozen different units. */
int zd_layout_compare(const struct zd_member *member, const struct zd_member *other, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
