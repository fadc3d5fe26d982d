/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_local_copy.c - fills and copies within one GPU. */
#include "executor/cuda/cuda_local_copy.h"

int zd_cuda_local_copy_init(struct zd_cuda_local_copy *local, struct zd_cuda_devices *devices,
                            uint32_t device, struct zd_err *err)
{
	int rc = zd_cuda_copy_stream_init(&local->direct, devices, device, UINT64_MAX, err);
	if (rc)
		return rc;
	rc = zd_cuda_peer_bounce_init(&local->bounce, devices, device, err);
	if (rc)
		zd_cuda_copy_stream_deinit(&local->direct);
	return rc;
}

void zd_cuda_local_copy_deinit(struct zd_cuda_local_copy *local)
{
	zd_cuda_peer_bounce_deinit(&local->bounce);
	zd_cuda_copy_stream_deinit(&local->direct);
}

/* ---- Issuing ------------------------------------------------------------------------------------------- */

/* The other GPU may fail at any time, so two calls may differ. While hops are left on the bounce no copy is
 * made locally: it would overtake these, and maybe its own hops. */
static bool uses_bounce(const struct zd_cuda_local_copy *local, const struct zd_cuda_task *task)
{
	const struct zd_cuda_peer_bounce *bounce = &local->bounce;
	return zd_cuda_peer_bounce_accepts(bounce, task) &&
	       !(zd_cuda_peer_bounce_has_failed(bounce) && zd_cuda_peer_bounce_is_idle(bounce));
}

/* Needs local room in any case, since the other GPU may fail while a task is sent. */
bool zd_cuda_local_copy_has_room(const struct zd_cuda_local_copy *local, const struct zd_cuda_task *task)
{
	if (zd_cuda_peer_bounce_has_failed(&local->bounce) && !zd_cuda_peer_bounce_is_idle(&local->bounce))
		return false;
	return zd_cuda_copy_stream_has_room(&local->direct) &&
	       (!uses_bounce(local, task) || zd_cuda_peer_bounce_has_room(&local->bounce));
}

/* In one piece: each further piece would wait for the trainers' kernels again. */
static int issue_direct(struct zd_cuda_local_copy *local, struct zd_cuda_task *task, struct zd_err *err)
{
	struct zd_cuda_piece piece = {.dst = task->u.copy.dst,
	                              .src = task->base.kind == ZD_CMD_FILL ? 0 : task->u.copy.src,
	                              .pattern = task->u.copy.pattern,
	                              .bytes = task->u.copy.bytes,
	                              .target = task->target,
	                              .ends = task};
	int rc = zd_cuda_copy_stream_issue(&local->direct, &piece, err);
	zd_cuda_copy_stream_close(&local->direct);
	return rc;
}

int zd_cuda_local_copy_issue(struct zd_cuda_local_copy *local, struct zd_cuda_task *task, bool *whole,
                             struct zd_err *err)
{
	*whole = true;
	if (!uses_bounce(local, task))
		return issue_direct(local, task, err);
	int rc = zd_cuda_peer_bounce_send(&local->bounce, task, whole, err);
	if (rc && task->base.kind == ZD_CMD_FILL && zd_cuda_peer_bounce_has_failed(&local->bounce)) {
		*whole = false; /* made locally, once the bounce is idle */
		return 0;
	}
	return rc;
}

void zd_cuda_local_copy_follow(struct zd_cuda_local_copy *local, struct zd_cuda_task *task)
{
	if (uses_bounce(local, task))
		zd_cuda_peer_bounce_follow(&local->bounce, task);
	else
		zd_cuda_copy_stream_follow(&local->direct, task);
}

void zd_cuda_local_copy_close(struct zd_cuda_local_copy *local)
{
	if (local->bounce.memory)
		zd_cuda_peer_bounce_close(&local->bounce);
}

/* ---- Completion ---------------------------------------------------------------------------------------- */

bool zd_cuda_local_copy_push_back(struct zd_cuda_local_copy *local)
{
	return local->bounce.memory && zd_cuda_peer_bounce_push_back(&local->bounce);
}

bool zd_cuda_local_copy_reap(struct zd_cuda_local_copy *local, struct zd_cuda_task **ended)
{
	return zd_cuda_copy_stream_reap(&local->direct, ended) ||
	       (local->bounce.memory && !zd_cuda_peer_bounce_has_failed(&local->bounce) &&
	        zd_cuda_peer_bounce_reap(&local->bounce, ended));
}

void zd_cuda_local_copy_check(struct zd_cuda_local_copy *local)
{
	zd_cuda_copy_stream_check(&local->direct);
	zd_cuda_peer_bounce_check(&local->bounce);
}

/* ---- The end ------------------------------------------------------------------------------------------- */

bool zd_cuda_local_copy_is_still(struct zd_cuda_local_copy *local)
{
	return (local->direct.count == 0 || zd_cuda_copy_stream_is_still(&local->direct)) &&
	       zd_cuda_peer_bounce_is_still(&local->bounce);
}

void zd_cuda_local_copy_wait(struct zd_cuda_local_copy *local)
{
	zd_cuda_copy_stream_wait(&local->direct);
	zd_cuda_peer_bounce_wait(&local->bounce);
}

bool zd_cuda_local_copy_drop(struct zd_cuda_local_copy *local, struct zd_cuda_task **ended)
{
	return zd_cuda_copy_stream_drop(&local->direct, ended) ||
	       zd_cuda_peer_bounce_drop(&local->bounce, ended);
}

void zd_cuda_local_copy_walk(const struct zd_cuda_local_copy *local, void (*fn)(struct zd_cuda_task *task))
{
	zd_cuda_copy_stream_walk(&local->direct, fn);
	zd_cuda_peer_bounce_walk(&local->bounce, fn);
}
