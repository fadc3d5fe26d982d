/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce.h - what the rest of the core asks of buckets, reductions, targets and steps; they are in
 * reduce_internal.h.
 */
#ifndef ZD_CORE_REDUCE_H
#define ZD_CORE_REDUCE_H

#include "core/internal.h"

/* Its elements in a rank's target. */
static inline uint64_t zd_unit_target_numel(const struct zd_unit *unit)
{
	return unit->shard_numel * (unit->all_reduce ? unit->group->nshards : 1);
}

/* The member's session ends or it leaves: its buckets, entries, target and part in reductions go (blocks that
 * an op still uses go with its end). member->reduce is NULL or detached afterwards. Waiting requests are gone
 * already. */
void zd_reduce_member_detach(struct zd_engine *e, struct zd_member *member);
/* The group failed or was aborted: reductions that are not complete are dropped, entries' storage and staging
 * go as their ops end, every member's backward and step are reset and targets dropped. What a rank was given
 * and has not given back yet - entries that it has not committed, the target of a step that it has begun - is
 * kept, since its streams may use it still: it is abandoned. Called before waiters are tried. */
void zd_reduce_group_failed(struct zd_engine *e, struct zd_group *group);
/* The rank's streams have drained: what it was given before its group failed goes. */
void zd_reduce_give_up(struct zd_engine *e, struct zd_member *member);
/* All ranks are there again: backward and step counters of all members are made equal. */
void zd_reduce_group_revived(struct zd_engine *e, struct zd_group *group);
/* Where a group spans daemons, what ranks agree on is behind all reductions of their backwards: STATE while
 * this rank's runs. */
int zd_backward_check_ended(const struct zd_member *member, struct zd_err *err)
        __attribute__((warn_unused_result));
/* The group is about to be freed. */
void zd_norms_group_end(struct zd_group *group);
/* May the rank's streams access its target: the rank is between the answer to step_begin and step_end, or a
 * unit's place in it is lent. */
bool zd_step_is_taken(const struct zd_member *member);
/* Is a flat target of the group bound on any rank. */
bool zd_reduce_has_target(const struct zd_group *group);
/* BUSY while the rank's bound target has a place for the unit: what was reduced there is still to be read. */
int zd_target_check_place(const struct zd_part *part, struct zd_err *err) __attribute__((warn_unused_result));
/* The rank unregisters the unit, behind its group's failure: the target stays until it is given up. */
void zd_target_unlend(struct zd_part *part);
/* STATE, with the unit, while the rank is between its first backward of a window and the end of its step. */
int zd_backward_check_closed(const struct zd_member *member, const struct zd_unit *unit, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Called by zd_settle() for a dirty device before its queue is tried: reductions that wait for staging may go
 * on. Must not mark devices dirty unless something changed. */
void zd_reduce_settle(struct zd_engine *e, struct zd_device *device);
/* Was the segment made for a reduction that still waits for staging. */
bool zd_reduce_awaits(const struct zd_device *device, uint32_t segment);
/* What a backward_end that waits for reductions waits for. Returns the text's length. */
int zd_reductions_text(const struct zd_engine *e, const struct zd_request *req, char *out, size_t out_bytes);
/* For zd_engine_check(): aborts if something of the group's reductions, buckets or targets is inconsistent;
 * adds the charged bytes found per device and kind into found[device][kind], and quarantined bytes into
 * quarantine[device]. */
void zd_reduce_check(struct zd_engine *e, struct zd_group *group, uint64_t (*found)[ZD_NCHARGES],
                     uint64_t *quarantine);
/* Adds the group's buckets to a listing: fills row->u.bucket etc. for one bucket. Text arrays live in the
 * scratch. */
struct zd_bucket_scratch {
	char waits[8][ZD_WAIT_TEXT];
	const char *wait_ptrs[8];
	const char *slots[ZD_MAX_BUCKET_SLOTS];
};
void zd_bucket_row(struct zd_engine *e, struct zd_bucket *bucket, struct zd_row *row,
                   struct zd_bucket_scratch *scratch);
/* For the listing: id and group of a bucket; iterate with e->buckets (uthash, next by zd_bucket_next). */
uint64_t zd_bucket_id(const struct zd_bucket *bucket);
struct zd_group *zd_bucket_group(const struct zd_bucket *bucket);
struct zd_bucket *zd_bucket_next(const struct zd_bucket *bucket);

#endif
