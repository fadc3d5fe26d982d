/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce.h - the interface of buckets, reductions, targets and steps to the rest of the core. The objects are
 * in reduce_internal.h.
 */
#ifndef ZD_CORE_REDUCE_H
#define ZD_CORE_REDUCE_H

#include "core/gather/unit.h"

/* The member's session ends or it leaves: frees its buckets, entries and target, and removes it from
 * reductions (blocks that an op still uses are freed at its end). member->reduce is NULL or detached
 * afterwards. The member's waiting requests have been dropped already. */
void zd_reduce_member_detach(struct zd_engine *e, struct zd_member *member);
/* The group failed or was aborted: drops the reductions that are not complete, entries' storage and staging
 * as their ops end, every member's target, and resets every member's backward and step. Entries that a rank
 * has reserved and not submitted, and the target of a step that it has begun, are kept and abandoned, since
 * the rank's streams may still use them. Called before waiting requests are tried. */
void zd_reduce_group_failed(struct zd_engine *e, struct zd_group *group);
/* The rank's streams have drained: drops its abandoned entries and target. */
void zd_reduce_give_up(struct zd_engine *e, struct zd_member *member);
/* All ranks have joined again: makes the backward and step counters of all members equal. */
void zd_reduce_group_revived(struct zd_engine *e, struct zd_group *group);
/* In a group that spans daemons, an agreement comes after all reductions of earlier backwards: STATE while
 * this rank's backward runs. */
int zd_backward_check_ended(const struct zd_member *member, struct zd_err *err)
        __attribute__((warn_unused_result));
/* The group is about to be freed. */
void zd_norms_group_end(struct zd_group *group);
/* Whether the rank's streams may access its target: the rank is between the reply to step_begin and step_end,
 * or a unit's place in the target is lent. */
bool zd_step_is_taken(const struct zd_member *member);
/* Whether a target of the group is bound on any rank. */
bool zd_reduce_has_target(const struct zd_group *group);
/* BUSY while the rank's bound target has a place for the unit: the rank has not read the sum there. */
int zd_target_check_place(const struct zd_part *part, struct zd_err *err) __attribute__((warn_unused_result));
/* The rank unregisters the unit after its group's failure: ends the lending of its place. The target stays
 * until it is dropped. */
void zd_target_unlend(struct zd_part *part);
/* STATE, which names the unit, while the rank is between its first backward of a window and the end of its
 * step. */
int zd_backward_check_closed(const struct zd_member *member, const struct zd_unit *unit, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Called by zd_settle() for a dirty device before its queue is tried: retries the reductions that wait for
 * staging. Must not mark devices dirty unless something changed. */
void zd_reduce_settle(struct zd_engine *e, struct zd_device *device);
/* Whether the segment was created for a reduction that still waits for staging. */
bool zd_reduce_awaits(const struct zd_device *device, uint32_t segment);
/* The text of a ZD_WAIT_REDUCTIONS. Returns its length. */
int zd_reductions_text(const struct zd_engine *e, const struct zd_request *req, char *out, size_t out_bytes);
/* For zd_engine_check(): asserts that the group's reductions, buckets and targets are consistent; adds the
 * charged bytes per device and kind to found[device][kind], and quarantined bytes to quarantine[device]. */
void zd_reduce_check(struct zd_engine *e, struct zd_group *group, uint64_t (*found)[ZD_NCHARGES],
                     uint64_t *quarantine);
/* Fills in row->u.bucket for one bucket of a listing. Its text arrays are in the scratch. */
struct zd_bucket_scratch {
	char waits[8][ZD_WAIT_TEXT];
	const char *wait_ptrs[8];
	const char *slots[ZD_MAX_BUCKET_SLOTS];
};
void zd_bucket_row(struct zd_engine *e, struct zd_bucket *bucket, struct zd_row *row,
                   struct zd_bucket_scratch *scratch);
#endif
