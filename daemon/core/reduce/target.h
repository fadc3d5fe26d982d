/* SPDX-License-Identifier: Apache-2.0 */
/* target.h - a rank's targets for a window's sums (target.c), and their lent places (lent_target.c). */
#ifndef ZD_CORE_REDUCE_TARGET_H
#define ZD_CORE_REDUCE_TARGET_H

#include "core/reduce/member.h"
#include "core/reduce/window.h"

/* Allocates the targets that the window lacks, for all present units of the group. Returns as
 * zd_storage_new(), but ZD_WAIT in place of an error while the target of a closing window will be freed.
 * After ZD_WAIT or an error, one of two targets may be bound. */
int zd_targets_bind(struct zd_engine *e, struct zd_request *req, struct zd_window *w, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Drops the targets that the last backward has bound, because it does not start. */
void zd_targets_unbind(struct zd_engine *e, struct zd_window *w);
/* Drops the window's targets and scalars. */
void zd_targets_drop(struct zd_engine *e, struct zd_window *w);
/* Whether operations use a target that has elements to be zeroed. */
bool zd_targets_are_in_use(const struct zd_window *w);
/* Zeroes the elements of the targets that no sum has written, by operations of the request, for a bounded
 * number of units at a time. Returns ZD_WAIT, or 0 when all are zeroed. */
int zd_targets_zero_rest(struct zd_engine *e, struct zd_request *req, const struct zd_window *w)
        __attribute__((warn_unused_result));
/* Records that no element is to be zeroed: all are written, or the content of the targets is undefined. */
void zd_targets_set_written(struct zd_window *w);

/* Returns the storage of the part's sums of the window, or NULL if it has none yet or it was returned. */
struct zd_storage *zd_window_storage(const struct zd_window *w, const struct zd_part *part);
/* Whether the window's targets, or the part's own sum, have memory for the part's sum. */
bool zd_target_has_place(const struct zd_window *w, const struct zd_part *part);
/* Returns the first element of the part's sum in that memory. */
static inline uint64_t zd_part_target_offset(const struct zd_part *part)
{
	return part->untargeted ? 0 : part->unit->target_offset_numel;
}
/* Allocates the memory for a sum of an untargeted part, or for the terms of one. Returns as
 * zd_storage_new(). */
int zd_sum_new(struct zd_engine *e, struct zd_request *req, struct zd_window *w, struct zd_part *part,
               uint64_t bytes, struct zd_err *err) __attribute__((warn_unused_result));
/* Drops the memory of a sum, now or when zd_sum_made() is called. */
void zd_sum_return(struct zd_engine *e, struct zd_storage *storage);
/* Called when the slice of a sum is done or stopped. */
void zd_sum_made(struct zd_engine *e, struct zd_storage *storage);

/* Allocates the window's scalars, the result of a step for kernels. They are two float32: the first is 1
 * after an overflow, otherwise 0, and the second is the squared norm. Returns as zd_targets_bind(). */
int zd_target_bind_scalars(struct zd_engine *e, struct zd_request *req, struct zd_window *w,
                           struct zd_err *err) __attribute__((warn_unused_result));
/* Returns the location of the window's scalars. */
struct zd_location zd_target_scalars(const struct zd_window *w);
/* Stores the rank's result in the window's scalars. Keeps the promise when the store has completed, or breaks
 * the promise if the store fails. */
void zd_target_store_scalars(struct zd_engine *e, struct zd_window *w, struct zd_promise *promise);

/* ---- Lent places (lent_target.c) ----------------------------------------------------------------------- */

/* Whether a rank's streams, or fills, can still access the elements into which the slice's sum will be
 * stored. */
bool zd_slice_target_is_accessed(const struct zd_slice *slice);
/* Ends the lending of all places of the window's target: the target is dropped, or the window closes. */
void zd_target_forget_lent(struct zd_engine *e, struct zd_window *w);

#endif
