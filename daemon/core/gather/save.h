/* SPDX-License-Identifier: Apache-2.0 */
/* save.h - saves: copies of a pinned commit, made before updates overwrite it in shards and shadows. */
#ifndef ZD_CORE_GATHER_SAVE_H
#define ZD_CORE_GATHER_SAVE_H

#include "core/gather/commit.h"
#include "core/gather/unit.h"

struct zd_save {
	struct zd_part *part;
	/* not charged; a part of its device's quarantine_bytes; without a segment: missed, it has no bytes */
	struct zd_extent extent;
	bool copying;
	bool revoked;     /* in no list; freed when neither the copy nor a read uses it */
	uint32_t readers; /* copies that read it; control/read.c */
	uint64_t session; /* of the part's rank when the copy began, and how often it was reset then */
	uint64_t resets;
	LIST_ENTRY(zd_save) device_link, group_link;
};

/* Returns the save of the part, which may be revoked; NULL: none. */
static inline struct zd_save *zd_save_of(const struct zd_part *part)
{
	return part->unit->saves ? part->unit->saves[part->rank] : NULL;
}

static inline bool zd_part_is_being_saved(const struct zd_part *part)
{
	const struct zd_save *save = zd_save_of(part);
	return save && save->copying;
}

/* Pins the last commit for the owner, instead of what it has pinned before. It stays readable until the
 * owner unpins it, unless it is revoked. Does nothing if another commit of the group is pinned, an update has
 * written a part of this one, and the group has no shadows. */
void zd_pin(struct zd_engine *e, struct zd_pinned *pinned, struct zd_group *group);
/* The same, for so many ms (0: ZD_PIN_MS) at most. */
void zd_pin_for(struct zd_engine *e, struct zd_session *session, struct zd_group *group, uint32_t ms);
void zd_unpin(struct zd_engine *e, struct zd_pinned *pinned);
/* Unpins what sessions have pinned for too long. Returns when the next pin has its deadline. */
uint64_t zd_pins_expire(struct zd_engine *e);
/* Ends the group's pin, for all owners: reads of its step are STALE_VERSION where updates have written. */
void zd_pin_revoke(struct zd_engine *e, struct zd_group *group);
/* Saves what an update of the part is about to overwrite of the group's pin, unless that has been done: the
 * shard or, in a group with shadows, the shadow. The copy counts as a reader of it. Without memory the save
 * is a missed one. Returns false while memory is being created. */
bool zd_part_save(struct zd_engine *e, struct zd_part *part);
void zd_part_miss_save(struct zd_engine *e, struct zd_part *part);

enum zd_holder {
	ZD_HOLDER_NONE,
	ZD_HOLDER_SHARD,
	ZD_HOLDER_SHADOW,
	ZD_HOLDER_SAVE,
};
/* Returns where the part has the group's pinned commit, if its last commit was published. */
enum zd_holder zd_part_find_pin(struct zd_part *part);
/* Removes a reader of the part's save, which is freed if it is revoked and this was the last one. */
void zd_save_reader_done(struct zd_engine *e, struct zd_part *part);
/* Revokes the pins that have saves in memory of the device, of jobs of the owner; NULL: of all. Returns
 * whether there were any. */
bool zd_saves_make_room(struct zd_engine *e, const struct zd_owner *owner, struct zd_device *device);

#endif
