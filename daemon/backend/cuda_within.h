/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_within.h - what begins and ends on one GPU: fills, and copies within it.
 *
 * Such a copy would wait for the trainer's kernels, and so would a fill. They go round by another GPU
 * (cuda_detour.h); where none can be reached, they are made at home. Large fills always are, and those with
 * anything but zeros. Fills signal nobody, so that they and copies may overtake each other.
 */
#ifndef ZD_BACKEND_CUDA_WITHIN_H
#define ZD_BACKEND_CUDA_WITHIN_H

#include <stdbool.h>

#include "backend/cuda_detour.h"
#include "backend/cuda_lane.h"

struct zd_cuda_within {
	struct zd_cuda_lane local;
	struct zd_cuda_detour detour;
};

/* The device's context is current, as for all that follows. On failure there is nothing to deinit. Errors:
 * NO_MEMORY, DEVICE. */
int zd_cuda_within_init(struct zd_cuda_within *within, struct zd_cuda_devices *devices, uint32_t device,
                        struct zd_err *err) __attribute__((warn_unused_result));
/* Nothing is under way. */
void zd_cuda_within_deinit(struct zd_cuda_within *within);

/* May the task be issued now. */
bool zd_cuda_within_has_room(const struct zd_cuda_within *within, const struct zd_cuda_task *task);
/* Issues the task or its next leg; `*whole` tells that it was the last. There is room. On failure the task
 * has not come further. What is issued begins to move when the groups are closed, at the latest. Errors:
 * NO_MEMORY, DEVICE. */
int zd_cuda_within_issue(struct zd_cuda_within *within, struct zd_cuda_task *task, bool *whole,
                         struct zd_err *err) __attribute__((warn_unused_result));
/* The task goes behind the others, and asks nothing of the GPU. There is room. */
void zd_cuda_within_follow(struct zd_cuda_within *within, struct zd_cuda_task *task);
void zd_cuda_within_close(struct zd_cuda_within *within);

/* Moves on what has come half way. Has anything? */
bool zd_cuda_within_turn(struct zd_cuda_within *within);
/* Takes the next that has landed: false when there is none. `*ended` is the task that ends with it, or
 * NULL. */
bool zd_cuda_within_land(struct zd_cuda_within *within, struct zd_cuda_task **ended);

/* As zd_cuda_lane_check(). */
void zd_cuda_within_check(struct zd_cuda_within *within);

static inline bool zd_cuda_within_is_idle(const struct zd_cuda_within *within)
{
	return within->local.count == 0 && zd_cuda_detour_is_idle(&within->detour);
}

/* Is something half way: its second half begins when that is seen. */
static inline bool zd_cuda_within_hurries(const struct zd_cuda_within *within)
{
	return within->detour.out.count > 0;
}

/* For the end, as in cuda_detour.h. */
bool zd_cuda_within_is_still(struct zd_cuda_within *within);
void zd_cuda_within_wait(struct zd_cuda_within *within);
bool zd_cuda_within_drop(struct zd_cuda_within *within, struct zd_cuda_task **ended);
void zd_cuda_within_walk(const struct zd_cuda_within *within, void (*fn)(struct zd_cuda_task *task));

#endif
