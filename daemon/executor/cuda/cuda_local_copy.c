/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_local_copy.c - fills and copies within one GPU. */
#include "executor/cuda/cuda_local_copy.h"

int zd_cuda_local_copy_init(struct zd_cuda_local_copy *local, struct zd_cuda_devices *devices,
                            uint32_t device, struct zd_err *err)
{
	int rc = zd_cuda_copy_stream_init(&local->direct, devices, device, UINT64_MAX, err);
	if (rc)
		return rc;
	rc = zd_cuda_across_init(&local->across, devices, device, err);
	if (rc)
		zd_cuda_copy_stream_deinit(&local->direct);
	return rc;
}

void zd_cuda_local_copy_deinit(struct zd_cuda_local_copy *local)
{
	zd_cuda_across_deinit(&local->across);
	zd_cuda_copy_stream_deinit(&local->direct);
}

/* ---- Issuing ------------------------------------------------------------------------------------------- */

/* The other GPU can fail at any time: two calls can return different results. While it has copies in
 * progress, no copy is made locally, because it would overtake these. */
static bool goes_across(const struct zd_cuda_local_copy *local, const struct zd_cuda_task *task)
{
	const struct zd_cuda_across *across = &local->across;
	return zd_cuda_across_accepts(across, task) &&
	       !(zd_cuda_across_has_failed(across) && zd_cuda_across_is_idle(across));
}

/* Always needs local room, because the other GPU can fail while a task is issued. */
bool zd_cuda_local_copy_has_room(const struct zd_cuda_local_copy *local, const struct zd_cuda_task *task)
{
	if (zd_cuda_across_has_failed(&local->across) && !zd_cuda_across_is_idle(&local->across))
		return false;
	return zd_cuda_copy_stream_has_room(&local->direct) &&
	       (!goes_across(local, task) || zd_cuda_copy_stream_has_room(&local->across.stream));
}

/* In one piece, except short rows: each further piece would wait for the trainers' kernels again. */
static int issue_direct(struct zd_cuda_local_copy *local, struct zd_cuda_task *task, bool *whole,
                        struct zd_err *err)
{
	struct zd_cuda_piece piece = zd_cuda_piece_next(task, task->target, UINT64_MAX);
	*whole = piece.ends;
	piece.open = false;
	int rc = zd_cuda_copy_stream_issue(&local->direct, &piece, err);
	if (!rc)
		task->u.copy.issued_bytes += piece.bytes;
	zd_cuda_copy_stream_close(&local->direct);
	return rc;
}

int zd_cuda_local_copy_issue(struct zd_cuda_local_copy *local, struct zd_cuda_task *task, bool *whole,
                             struct zd_err *err)
{
	*whole = true;
	if (!goes_across(local, task))
		return issue_direct(local, task, whole, err);
	int rc = zd_cuda_across_issue(&local->across, task, err);
	if (rc && task->base.kind == ZD_CMD_FILL && zd_cuda_across_has_failed(&local->across)) {
		*whole = false; /* made locally, when no copy is in progress across */
		return 0;
	}
	return rc;
}

void zd_cuda_local_copy_follow(struct zd_cuda_local_copy *local, struct zd_cuda_task *task)
{
	zd_cuda_copy_stream_follow(goes_across(local, task) ? &local->across.stream : &local->direct, task);
}

void zd_cuda_local_copy_close(struct zd_cuda_local_copy *local)
{
	if (local->across.zeros)
		zd_cuda_across_close(&local->across);
}
