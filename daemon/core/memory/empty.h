/* SPDX-License-Identifier: Apache-2.0 */
/*
 * empty.h - the empty segments of a device: READY, without a block, and not awaited by a request or a slice.
 *
 * A user can have 10^5 of them, and every request for memory on a full device needs their sum, or the next
 * one to retire. The sums are therefore kept up to date, and the segments are in trees of their device and of
 * their job. The order in a tree is that in which segments retire: first segments that no session has mapped,
 * then the larger ones, so that few segments retire and few sessions have to unmap them. Sizes that differ by
 * less than a 32nd count as equal, and the older segment is first.
 */
#ifndef ZD_CORE_MEMORY_EMPTY_H
#define ZD_CORE_MEMORY_EMPTY_H

#include "core/memory/pool.h"

/* Called after each change of the segment's state, blocks, mappings or `nwaiting`. Adds an empty segment to
 * the sums and trees, and removes another one. Adds the change of its blocks to the uid's `block_bytes`. */
void zd_empty_note(struct zd_segment *segment);
/* Counts a request or slice that starts (1) or ends (-1) to wait for the segment, which can be gone. */
void zd_empty_await(struct zd_engine *e, uint32_t segment, int more);
/* The bytes of the device's empty segments. With `owner`, only those of its jobs. */
uint64_t zd_empty_bytes(const struct zd_device *device, const struct zd_owner *owner);
/* Returns the next segment to retire: of those with equal mappings, the first one of `job`, or of all if the
 * job has none. With `owner`, considers only segments of its jobs. NULL: none. */
struct zd_segment *zd_empty_choose(const struct zd_device *device, const struct zd_owner *owner,
                                   const struct zd_job *job);
/* The device's empty segments in that order: the first one, and the one after `segment`. */
struct zd_segment *zd_empty_first(const struct zd_device *device);
struct zd_segment *zd_empty_next(const struct zd_segment *segment);

#endif
