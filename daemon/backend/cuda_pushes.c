/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_pushes.c - what an executor pushes to other GPUs. */
#include "backend/cuda_pushes.h"

#include "base/err.h"

int zd_cuda_pushes_init(struct zd_cuda_pushes *pushes, struct zd_cuda_devices *devices, uint32_t device,
                        uint64_t flight_bytes, struct zd_err *err)
{
	*pushes = (struct zd_cuda_pushes){.next = 0};
	for (uint32_t i = 0; i < ZD_CUDA_PUSH_LANES; i++) {
		int rc = zd_cuda_lane_init(&pushes->lanes[i], devices, device, flight_bytes, err);
		if (rc) {
			zd_cuda_pushes_deinit(pushes);
			return rc;
		}
	}
	return 0;
}

void zd_cuda_pushes_deinit(struct zd_cuda_pushes *pushes)
{
	for (uint32_t i = 0; i < ZD_CUDA_PUSH_LANES; i++)
		zd_cuda_lane_deinit(&pushes->lanes[i]);
}

struct zd_cuda_lane *zd_cuda_pushes_lane(struct zd_cuda_pushes *pushes, struct zd_cuda_task *task)
{
	if (zd_cuda_task_copies(task) && task->u.copy.issued_bytes == 0 && task->u.copy.turn &&
	    !task->session) {
		task->u.copy.lane = pushes->next;
		pushes->next = (pushes->next + 1) % ZD_CUDA_PUSH_LANES;
	}
	return &pushes->lanes[zd_cuda_task_copies(task) ? task->u.copy.lane : 0];
}

bool zd_cuda_pushes_have_room(const struct zd_cuda_pushes *pushes)
{
	for (uint32_t i = 0; i < ZD_CUDA_PUSH_LANES; i++)
		if (!zd_cuda_lane_has_room(&pushes->lanes[i]))
			return false;
	return true;
}

void zd_cuda_pushes_close(struct zd_cuda_pushes *pushes)
{
	for (uint32_t i = 0; i < ZD_CUDA_PUSH_LANES; i++)
		zd_cuda_lane_close(&pushes->lanes[i]);
}

bool zd_cuda_pushes_land(struct zd_cuda_pushes *pushes, struct zd_cuda_task **ended)
{
	for (uint32_t i = 0; i < ZD_CUDA_PUSH_LANES; i++)
		if (zd_cuda_lane_land(&pushes->lanes[i], ended))
			return true;
	return false;
}

bool zd_cuda_pushes_drop(struct zd_cuda_pushes *pushes, struct zd_cuda_task **ended)
{
	for (uint32_t i = 0; i < ZD_CUDA_PUSH_LANES; i++)
		if (zd_cuda_lane_drop(&pushes->lanes[i], ended))
			return true;
	return false;
}

void zd_cuda_pushes_walk(const struct zd_cuda_pushes *pushes, void (*fn)(struct zd_cuda_task *task))
{
	for (uint32_t i = 0; i < ZD_CUDA_PUSH_LANES; i++)
		zd_cuda_lane_walk(&pushes->lanes[i], fn);
}

void zd_cuda_pushes_check(struct zd_cuda_pushes *pushes)
{
	for (uint32_t i = 0; i < ZD_CUDA_PUSH_LANES; i++)
		zd_cuda_lane_check(&pushes->lanes[i]);
}

bool zd_cuda_pushes_are_still(struct zd_cuda_pushes *pushes)
{
	for (uint32_t i = 0; i < ZD_CUDA_PUSH_LANES; i++)
		if (pushes->lanes[i].count > 0 && !zd_cuda_lane_is_still(&pushes->lanes[i]))
			return false;
	return true;
}

void zd_cuda_pushes_wait(struct zd_cuda_pushes *pushes)
{
	for (uint32_t i = 0; i < ZD_CUDA_PUSH_LANES; i++)
		zd_cuda_lane_wait(&pushes->lanes[i]);
}

bool zd_cuda_pushes_fly(const struct zd_cuda_pushes *pushes)
{
	for (uint32_t i = 0; i < ZD_CUDA_PUSH_LANES; i++)
		if (pushes->lanes[i].count > 0)
			return true;
	return false;
}

uint64_t zd_cuda_pushes_flying_bytes(const struct zd_cuda_pushes *pushes)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < ZD_CUDA_PUSH_LANES; i++)
		bytes += pushes->lanes[i].flying_bytes;
	return bytes;
}

bool zd_cuda_pushes_are_awaited(const struct zd_cuda_pushes *pushes)
{
	for (uint32_t i = 0; i < ZD_CUDA_PUSH_LANES; i++)
		if (pushes->lanes[i].nawaited > 0)
			return true;
	return false;
}
