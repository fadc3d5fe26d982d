/* SPDX-License-Identifier: Apache-2.0 */
/* holder.h - where parts hold a commit, and copies of it. */
#ifndef ZD_CORE_GATHER_HOLDER_H
#define ZD_CORE_GATHER_HOLDER_H

#include "core/gather/save.h"

/* Returns a rank's part with this shard, if possible in memory of the device. Replicas of a hybrid group are
 * equal. */
struct zd_part *zd_holder_part(const struct zd_unit *unit, uint64_t index, const struct zd_device *device);
/* Checks that the step is the last commit, or pinned. Errors: TORN, STALE_VERSION, STATE. */
int zd_holder_check_step(const struct zd_group *group, uint64_t step, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Checks that the part still holds the commit, and returns in which memory. Errors: STALE_VERSION, STATE,
 * BUSY. */
int zd_holder_locate(struct zd_part *part, uint64_t committed, enum zd_holder *holder, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Returns the memory of the shard, with its shadow, or of the save. */
const struct zd_extent *zd_holder_extent(const struct zd_part *part, enum zd_holder holder);
/* Returns the location of so many bytes of the commit, from the offset `at` of the shard on. Adds a reader of
 * it, and a reference of the unit. */
struct zd_location zd_holder_read(struct zd_part *part, enum zd_holder holder, uint64_t at, uint64_t bytes);
/* Removes them. May free the unit. */
void zd_holder_done(struct zd_engine *e, struct zd_part *part, enum zd_holder holder);

#endif
