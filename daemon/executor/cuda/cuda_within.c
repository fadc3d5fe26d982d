/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_within.c - fills and copies within one GPU. */
#include "executor/cuda/cuda_within.h"

int zd_cuda_within_init(struct zd_cuda_within *within, struct zd_cuda_devices *devices, uint32_t device,
                        struct zd_err *err)
{
	int rc = zd_cuda_lane_init(&within->local, devices, device, UINT64_MAX, err);
	if (rc)
		return rc;
	rc = zd_cuda_detour_init(&within->detour, devices, device, err);
	if (rc)
		zd_cuda_lane_deinit(&within->local);
	return rc;
}

void zd_cuda_within_deinit(struct zd_cuda_within *within)
{
	zd_cuda_detour_deinit(&within->detour);
	zd_cuda_lane_deinit(&within->local);
}

/* ---- Issuing ------------------------------------------------------------------------------------------- */

/* The other GPU may fail at any time, so two calls may differ. While legs are left on the detour no copy is
 * made locally: it would overtake these, and maybe its own legs. */
static bool goes_round(const struct zd_cuda_within *within, const struct zd_cuda_task *task)
{
	const struct zd_cuda_detour *detour = &within->detour;
	return zd_cuda_detour_takes(detour, task) &&
	       !(zd_cuda_detour_has_failed(detour) && zd_cuda_detour_is_idle(detour));
}

/* Needs local room in any case, since the other GPU may fail while a task is sent. */
bool zd_cuda_within_has_room(const struct zd_cuda_within *within, const struct zd_cuda_task *task)
{
	if (zd_cuda_detour_has_failed(&within->detour) && !zd_cuda_detour_is_idle(&within->detour))
		return false;
	return zd_cuda_lane_has_room(&within->local) &&
	       (!goes_round(within, task) || zd_cuda_detour_has_room(&within->detour));
}

/* In one piece: each further piece would wait for the trainers' kernels again. */
static int keep(struct zd_cuda_within *within, struct zd_cuda_task *task, struct zd_err *err)
{
	struct zd_cuda_piece piece = {.dst = task->u.copy.dst,
	                              .src = task->base.kind == ZD_CMD_FILL ? 0 : task->u.copy.src,
	                              .pattern = task->u.copy.pattern,
	                              .bytes = task->u.copy.bytes,
	                              .target = task->target,
	                              .ends = task};
	int rc = zd_cuda_lane_issue(&within->local, &piece, err);
	zd_cuda_lane_close(&within->local);
	return rc;
}

int zd_cuda_within_issue(struct zd_cuda_within *within, struct zd_cuda_task *task, bool *whole,
                         struct zd_err *err)
{
	*whole = true;
	if (!goes_round(within, task))
		return keep(within, task, err);
	int rc = zd_cuda_detour_send(&within->detour, task, whole, err);
	if (rc && task->base.kind == ZD_CMD_FILL && zd_cuda_detour_has_failed(&within->detour)) {
		*whole = false; /* made locally, once the detour is idle */
		return 0;
	}
	return rc;
}

void zd_cuda_within_follow(struct zd_cuda_within *within, struct zd_cuda_task *task)
{
	if (goes_round(within, task))
		zd_cuda_detour_follow(&within->detour, task);
	else
		zd_cuda_lane_follow(&within->local, task);
}

void zd_cuda_within_close(struct zd_cuda_within *within)
{
	if (within->detour.memory)
		zd_cuda_detour_close(&within->detour);
}

/* ---- Completion ---------------------------------------------------------------------------------------- */

bool zd_cuda_within_turn(struct zd_cuda_within *within)
{
	return within->detour.memory && zd_cuda_detour_turn(&within->detour);
}

bool zd_cuda_within_land(struct zd_cuda_within *within, struct zd_cuda_task **ended)
{
	return zd_cuda_lane_land(&within->local, ended) ||
	       (within->detour.memory && !zd_cuda_detour_has_failed(&within->detour) &&
	        zd_cuda_detour_land(&within->detour, ended));
}

void zd_cuda_within_check(struct zd_cuda_within *within)
{
	zd_cuda_lane_check(&within->local);
	zd_cuda_detour_check(&within->detour);
}

/* ---- The end ------------------------------------------------------------------------------------------- */

bool zd_cuda_within_is_still(struct zd_cuda_within *within)
{
	return (within->local.count == 0 || zd_cuda_lane_is_still(&within->local)) &&
	       zd_cuda_detour_is_still(&within->detour);
}

void zd_cuda_within_wait(struct zd_cuda_within *within)
{
	zd_cuda_lane_wait(&within->local);
	zd_cuda_detour_wait(&within->detour);
}

bool zd_cuda_within_drop(struct zd_cuda_within *within, struct zd_cuda_task **ended)
{
	return zd_cuda_lane_drop(&within->local, ended) || zd_cuda_detour_drop(&within->detour, ended);
}

void zd_cuda_within_walk(const struct zd_cuda_within *within, void (*fn)(struct zd_cuda_task *task))
{
	zd_cuda_lane_walk(&within->local, fn);
	zd_cuda_detour_walk(&within->detour, fn);
}
