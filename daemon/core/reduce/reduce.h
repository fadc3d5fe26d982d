/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce.h - the interface of buckets, reductions, targets and steps to the rest of the core. The objects are
 * in the other headers of this folder.
 */
#ifndef ZD_CORE_REDUCE_REDUCE_H
#define ZD_CORE_REDUCE_REDUCE_H

#include "core/gather/unit.h"

/* Detaches a member when its session ends or it leaves. Frees its buckets, entries and target, and removes
 * the member from reductions. Blocks that an operation still uses are freed at the operation's end.
 * Afterwards member->reduce is NULL or detached. The member's waiting requests must have been dropped. */
void zd_reduce_member_detach(struct zd_engine *e, struct zd_member *member);
/* Called after a failure or abort of the group, before waiting requests are attempted. Drops incomplete
 * reductions, the storage of entries and staging as their operations end, and every member's target. Resets
 * every member's backward and step. Entries that a rank has reserved and not submitted, and the target of a
 * step that the rank has started, are abandoned: they remain, because the rank's streams can still use
 * them. */
void zd_reduce_group_failed(struct zd_engine *e, struct zd_group *group);
/* Drops the rank's abandoned entries and targets. Called when the rank's streams have drained. */
void zd_reduce_give_up(struct zd_engine *e, struct zd_member *member);
/* Makes the backward and step counters of all members equal, when all ranks have joined again. */
void zd_reduce_group_revived(struct zd_engine *e, struct zd_group *group);
/* Returns STATE while the rank's backward runs: in a group that spans daemons, an agreement must follow all
 * reductions of earlier backwards. */
int zd_backward_check_ended(const struct zd_member *member, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Frees the norms of a group that is about to be freed. */
void zd_norms_group_end(struct zd_engine *e, struct zd_group *group);
/* Whether the rank's streams can access its target: the rank is between the reply to step_begin and step_end,
 * or a unit's place in the target is lent. */
bool zd_step_is_taken(const struct zd_member *member);
/* Whether a target of the group is bound on any rank. */
bool zd_reduce_has_target(const struct zd_group *group);
/* Returns BUSY while the rank's bound target has a place for the unit with a sum that the rank has not read
 * yet. */
int zd_target_check_place(const struct zd_part *part, struct zd_err *err) __attribute__((warn_unused_result));
/* Ends the loan of the unit's place when the rank unregisters the unit after its group's failure. The target
 * remains until it is dropped. */
void zd_target_unlend(struct zd_part *part);
/* Returns STATE, which names the unit, while the rank is between the first backward of a window and the end
 * of its step. */
int zd_backward_check_closed(const struct zd_member *member, const struct zd_unit *unit, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Retries the slices that wait for staging on a dirty device. Called by zd_settle() before the device's queue
 * is attempted. Marks devices dirty only on a change. */
void zd_reduce_settle(struct zd_engine *e, struct zd_device *device);
/* Writes the text of a ZD_WAIT_REDUCTIONS. Returns its length. */
int zd_reductions_text(const struct zd_engine *e, const struct zd_request *req, char *out, size_t out_bytes);

/* The text arrays of a row. */
struct zd_bucket_scratch {
	char waits[8][ZD_WAIT_TEXT];
	char *wait_ptrs[8];
	char *slots[ZD_MAX_BUCKET_SLOTS];
};
/* Fills in the row of a bucket, with its texts in the scratch. */
void zd_bucket_row(const struct zd_engine *e, const struct zd_bucket *bucket, Zd__BucketRow *row,
                   struct zd_bucket_scratch *scratch);
#endif
