/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_within.h - fills and copies within one GPU.
 *
 * Both would wait for the trainers' kernels. So they use a detour by way of another GPU (cuda_detour.h).
 * Without a detour they are made locally, and so are fills that are large or not of zeros. Fills signal no
 * timeline, so fills and copies may overtake each other.
 */
#ifndef ZD_EXECUTOR_CUDA_WITHIN_H
#define ZD_EXECUTOR_CUDA_WITHIN_H

#include <stdbool.h>

#include "executor/cuda/cuda_detour.h"
#include "executor/cuda/cuda_lane.h"

struct zd_cuda_within {
	struct zd_cuda_lane local;
	struct zd_cuda_detour detour;
};

/* The device's context is current, here and below. On failure there is nothing to deinit. Errors: NO_MEMORY,
 * DEVICE. */
int zd_cuda_within_init(struct zd_cuda_within *within, struct zd_cuda_devices *devices, uint32_t device,
                        struct zd_err *err) __attribute__((warn_unused_result));
/* Nothing may be in progress. */
void zd_cuda_within_deinit(struct zd_cuda_within *within);

/* Returns whether the task may be issued now. */
bool zd_cuda_within_has_room(const struct zd_cuda_within *within, const struct zd_cuda_task *task);
/* Issues the task or its next leg; sets `*whole` if nothing of it is left. There must be room. On failure
 * nothing was issued. Copies may be delayed until zd_cuda_within_close(). Errors: NO_MEMORY, DEVICE. */
int zd_cuda_within_issue(struct zd_cuda_within *within, struct zd_cuda_task *task, bool *whole,
                         struct zd_err *err) __attribute__((warn_unused_result));
/* Gives a task that moves nothing its place behind the others. There must be room. */
void zd_cuda_within_follow(struct zd_cuda_within *within, struct zd_cuda_task *task);
void zd_cuda_within_close(struct zd_cuda_within *within);

/* Starts the second half of detours whose first half has ended. Returns whether there were any. */
bool zd_cuda_within_turn(struct zd_cuda_within *within);
/* Removes the next task or leg that has completed; false when there is none. Sets `*ended` to the task that
 * ends with it, or NULL. */
bool zd_cuda_within_land(struct zd_cuda_within *within, struct zd_cuda_task **ended);

/* See zd_cuda_lane_check(). */
void zd_cuda_within_check(struct zd_cuda_within *within);

static inline bool zd_cuda_within_is_idle(const struct zd_cuda_within *within)
{
	return within->local.count == 0 && zd_cuda_detour_is_idle(&within->detour);
}

/* Returns whether the first half of a detour is in progress; the executor then polls often, since it starts
 * the second half. */
static inline bool zd_cuda_within_hurries(const struct zd_cuda_within *within)
{
	return within->detour.out.count > 0;
}

/* For the shutdown; see cuda_detour.h. */
bool zd_cuda_within_is_still(struct zd_cuda_within *within);
void zd_cuda_within_wait(struct zd_cuda_within *within);
bool zd_cuda_within_drop(struct zd_cuda_within *within, struct zd_cuda_task **ended);
void zd_cuda_within_walk(const struct zd_cuda_within *within, void (*fn)(struct zd_cuda_task *task));

#endif
