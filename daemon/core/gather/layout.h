/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h - places of units: slots, and offsets in the flat target. */
#ifndef ZD_CORE_GATHER_LAYOUT_H
#define ZD_CORE_GATHER_LAYOUT_H

#include "core/gather/unit.h"

struct zd_group_slot {
	uint32_t number;
	/* by `in_place` of units */
	uint64_t bytes[2];  /* of the largest padded unit that was put into the slot */
	uint64_t placed[2]; /* the largest that fits into every rank's memory; 0: no rank has memory */
	uint32_t nparts;    /* registered parts in the slot */
	uint32_t *parts;    /* numbers of these parts, by rank; owned */
	TAILQ_ENTRY(zd_group_slot) link;
};

/* Finds the group's slot with that number, or returns NULL if no part of the group is in it. */
struct zd_group_slot *zd_group_slot_find(struct zd_group *group, uint32_t number);
/* Frees the rank's block of a slot that is not needed any more: at once, or with its occupant, which no lease
 * holds. */
void zd_slot_retire(struct zd_engine *e, struct zd_member *member, struct zd_slot *slot);
/* Checks that a part of the unit fits into its slot and into the target. Errors: INVALID, LIMIT. */
int zd_layout_check(struct zd_unit *unit, struct zd_err *err) __attribute__((warn_unused_result));
/* Puts a part that is being registered into its slot, and its unit into the target. */
void zd_layout_enter(struct zd_part *part);
/* Removes a part from its slot. Its registration has ended, and it has no gathered buffer. */
void zd_layout_leave(struct zd_engine *e, struct zd_part *part);
/* Gives the unit a place in the target. */
void zd_layout_put(struct zd_unit *unit, uint64_t offset_numel);
/* Frees the unit's place: the unit ends. */
void zd_layout_forget(struct zd_unit *unit);
/* Frees the unit's place in the target if it is at the target's end. A gap is not closed, because clients
 * know the offsets of later units. */
void zd_layout_give_back(struct zd_unit *unit);
/* Checks that a unit can be moved to that memory. Errors: LIMIT. */
int zd_layout_check_move(const struct zd_unit *unit, bool on_host, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Moves the unit to that memory. The unit leaves its place in one target, and receives the first place in the
 * other target that is large enough. No target is bound. */
void zd_layout_move(struct zd_unit *unit, bool on_host);
/* Checks that the two ranks have frozen the same units. Errors: MISMATCH, which names a unit. */
int zd_layout_compare(const struct zd_member *member, const struct zd_member *other, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
