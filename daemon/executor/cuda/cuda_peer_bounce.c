/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_peer_bounce.c - copies within a GPU, and small fills, by way of another GPU. */
#include "executor/cuda/cuda_peer_bounce.h"

#include "base/err.h"
#include "base/mem.h"

#define SEGMENT_ID UINT32_MAX /* the segment is in no table, so the id is never looked up */

/* ---- Life ---------------------------------------------------------------------------------------------- */

static bool find_other(const struct zd_cuda_devices *devices, uint32_t device, uint32_t *other)
{
	for (uint32_t step = 1; step < devices->count; step++) {
		*other = (device + step) % devices->count;
		if (zd_cuda_device_reaches(&devices->all[device], *other) &&
		    zd_cuda_device_reaches(&devices->all[*other], device))
			return true;
	}
	return false;
}

int zd_cuda_peer_bounce_init(struct zd_cuda_peer_bounce *bounce, struct zd_cuda_devices *devices,
                             uint32_t device, struct zd_err *err)
{
	uint32_t other;
	bool pushed;
	int rc;
	*bounce = (struct zd_cuda_peer_bounce){.memory = NULL};
	if (!find_other(devices, device, &other))
		return 0;
	bounce->other = &devices->all[other];
	rc = zd_cuda_copy_stream_init(&bounce->out, devices, device, UINT64_MAX, err);
	if (rc)
		return rc;
	pushed = zd_cuda_device_push(bounce->other);
	rc = zd_cuda_copy_stream_init(&bounce->back, devices, other, UINT64_MAX, err);
	if (!rc)
		rc = zd_cuda_segment_new(devices, other, SEGMENT_ID,
		                         ZD_CUDA_PEER_BOUNCE_MEMORY_BYTES + ZD_CUDA_PEER_BOUNCE_ZEROS_BYTES,
		                         bounce->back.cuda_stream, &bounce->memory, err);
	zd_cuda_leave(devices->cuda, pushed);
	if (rc)
		zd_cuda_peer_bounce_deinit(bounce);
	/* The daemon works without a peer bounce, but copies within this GPU then wait for the trainers'
	 * kernels. */
	return rc == ZEROD_E_NO_MEMORY ? 0 : rc;
}

void zd_cuda_peer_bounce_deinit(struct zd_cuda_peer_bounce *bounce)
{
	zd_cuda_copy_stream_deinit(&bounce->back);
	zd_cuda_copy_stream_deinit(&bounce->out);
	zd_cuda_segment_free(bounce->memory);
	bounce->memory = NULL;
}

/* ---- Sending ------------------------------------------------------------------------------------------- */

static struct zd_cuda_hop *hop_at(struct zd_cuda_peer_bounce *bounce, uint64_t number)
{
	return &bounce->hops[number % ZD_CUDA_PEER_BOUNCE_HOPS];
}

/* The address of the place that ends at `end`, a position counted since the start of the ring. */
static zd_cu_ptr place_at(const struct zd_cuda_peer_bounce *bounce, uint64_t end, uint64_t bytes)
{
	return bounce->memory->range + (end - bytes) % ZD_CUDA_PEER_BOUNCE_MEMORY_BYTES;
}

/* The end of the next place. A place never wraps around the end of the ring. */
static uint64_t next_place(const struct zd_cuda_peer_bounce *bounce, uint64_t bytes)
{
	uint64_t begin = bounce->taken % ZD_CUDA_PEER_BOUNCE_MEMORY_BYTES;
	if (begin + bytes > ZD_CUDA_PEER_BOUNCE_MEMORY_BYTES)
		return bounce->taken + ZD_CUDA_PEER_BOUNCE_MEMORY_BYTES - begin + bytes;
	return bounce->taken + bytes;
}

static zd_cu_ptr zeros(const struct zd_cuda_peer_bounce *bounce)
{
	return bounce->memory->range + ZD_CUDA_PEER_BOUNCE_MEMORY_BYTES;
}

static int send_across(struct zd_cuda_peer_bounce *bounce, struct zd_cuda_task *task, struct zd_err *err)
{
	struct zd_cuda_piece piece = {.dst = task->u.copy.dst,
	                              .src = task->base.kind == ZD_CMD_FILL ? zeros(bounce)
	                                                                    : task->u.copy.src,
	                              .bytes = task->u.copy.bytes,
	                              .target = bounce->out.device->index,
	                              .together = bounce->back.nmoves > 0 || STAILQ_NEXT(task, next),
	                              .ends = task};
	bool pushed = zd_cuda_device_push(bounce->other);
	int rc = zd_cuda_copy_stream_issue(&bounce->back, &piece, err);
	if (!rc && zd_cuda_copy_stream_group_is_full(&bounce->back))
		zd_cuda_copy_stream_close(&bounce->back);
	zd_cuda_leave(bounce->other->cuda, pushed);
	if (rc)
		return rc;
	*hop_at(bounce, bounce->sent) = (struct zd_cuda_hop){.task = task, .last = true};
	bounce->sent++;
	bounce->arrived++;
	return 0;
}

/* Keeps the task's place behind the hops that are on their way out; push_hop_back() sends the zeros. */
static void send_zeros(struct zd_cuda_peer_bounce *bounce, struct zd_cuda_task *task)
{
	zd_cuda_copy_stream_follow(&bounce->out, NULL);
	*hop_at(bounce,
	        bounce->sent) = (struct zd_cuda_hop){.task = task, .bytes = task->u.copy.bytes, .last = true};
	bounce->sent++;
}

static int send_out(struct zd_cuda_peer_bounce *bounce, struct zd_cuda_task *task, bool *whole,
                    struct zd_err *err)
{
	uint64_t left = task->u.copy.bytes - task->u.copy.issued_bytes;
	uint64_t bytes = zd_min_u64(left, ZD_CUDA_PEER_BOUNCE_HOP_BYTES);
	uint64_t end = next_place(bounce, bytes);
	struct zd_cuda_piece piece = {.dst = place_at(bounce, end, bytes),
	                              .src = task->u.copy.src + task->u.copy.issued_bytes,
	                              .bytes = bytes,
	                              .target = bounce->other->index,
	                              .together = bounce->out.nmoves > 0 || STAILQ_NEXT(task, next)};
	int rc = zd_cuda_copy_stream_issue(&bounce->out, &piece, err);
	if (rc)
		return rc;
	if (!piece.together || zd_cuda_copy_stream_group_is_full(&bounce->out))
		zd_cuda_copy_stream_close(&bounce->out);
	*whole = bytes == left;
	*hop_at(bounce, bounce->sent) = (struct zd_cuda_hop){.task = task,
	                                                     .offset = task->u.copy.issued_bytes,
	                                                     .bytes = bytes,
	                                                     .end = end,
	                                                     .last = *whole};
	bounce->sent++;
	bounce->taken = end;
	task->u.copy.issued_bytes += bytes;
	return 0;
}

int zd_cuda_peer_bounce_send(struct zd_cuda_peer_bounce *bounce, struct zd_cuda_task *task, bool *whole,
                             struct zd_err *err)
{
	bool across = bounce->back.inflight_bytes + task->u.copy.bytes <= ZD_CUDA_PEER_BOUNCE_ACROSS_BYTES &&
	              bounce->arrived == bounce->sent;
	if (!across && task->base.kind != ZD_CMD_FILL)
		return send_out(bounce, task, whole, err);
	*whole = true;
	if (across)
		return send_across(bounce, task, err);
	send_zeros(bounce, task);
	return 0;
}

void zd_cuda_peer_bounce_follow(struct zd_cuda_peer_bounce *bounce, struct zd_cuda_task *task)
{
	zd_cuda_copy_stream_follow(&bounce->out, NULL);
	*hop_at(bounce, bounce->sent) = (struct zd_cuda_hop){.task = task, .last = true};
	bounce->sent++;
}

void zd_cuda_peer_bounce_close(struct zd_cuda_peer_bounce *bounce)
{
	bool pushed;
	zd_cuda_copy_stream_close(&bounce->out);
	if (bounce->back.group == 0)
		return;
	pushed = zd_cuda_device_push(bounce->other);
	zd_cuda_copy_stream_close(&bounce->back);
	zd_cuda_leave(bounce->other->cuda, pushed);
}

/* ---- Back ---------------------------------------------------------------------------------------------- */

/* Fails a hop, whose bytes are then missing. The timeline is marked aborted at once, so that nothing issued
 * from now on stores into it: a waiter could take that store for complete data. Stores issued earlier may
 * still follow, and their waiters must not be freed before them; so the task's completion stores the
 * abort. */
static void lose_hop(struct zd_cuda_task *task, int status, const struct zd_err *why)
{
	zd_completion_fail(&task->completion, status, why->text);
	if (task->session)
		task->session->base.aborted[task->base.timeline] = true;
}

/* The other GPU's context is current. */
static void push_hop_back(struct zd_cuda_peer_bounce *bounce, const struct zd_cuda_hop *hop)
{
	struct zd_cuda_device *home = bounce->out.device;
	struct zd_cuda_task *ends = hop->last ? hop->task : NULL;
	int rc;
	struct zd_cuda_piece piece = {.dst = hop->task->u.copy.dst + hop->offset,
	                              .src = hop->end > 0 ? place_at(bounce, hop->end, hop->bytes)
	                                                  : zeros(bounce),
	                              .bytes = hop->bytes,
	                              .target = home->index,
	                              .together = hop->bytes < ZD_CUDA_PEER_BOUNCE_HOP_BYTES,
	                              .ends = ends};
	struct zd_err err = ZD_ERR_NONE;
	if (!zd_cuda_task_copies(hop->task) || hop->task->completion.status != 0) {
		zd_cuda_copy_stream_follow(&bounce->back, ends);
		return;
	}
	rc = zd_cuda_copy_stream_issue(&bounce->back, &piece, &err);
	if (rc) {
		lose_hop(hop->task, rc, &err);
		zd_cuda_copy_stream_follow(&bounce->back, ends);
	}
}

bool zd_cuda_peer_bounce_push_back(struct zd_cuda_peer_bounce *bounce)
{
	struct zd_cuda_task *none;
	bool any = false, pushed = false;
	/* A push into a failed GPU would make the other GPU fail too. */
	if (zd_cuda_peer_bounce_has_failed(bounce) || zd_cuda_device_failed(bounce->out.device))
		return false;
	while (zd_cuda_copy_stream_reap(&bounce->out, &none)) {
		if (!any)
			pushed = zd_cuda_device_push(bounce->other);
		any = true;
		push_hop_back(bounce, hop_at(bounce, bounce->arrived));
		bounce->arrived++;
		if (zd_cuda_copy_stream_group_is_full(&bounce->back))
			zd_cuda_copy_stream_close(&bounce->back);
	}
	if (!any)
		return false;
	zd_cuda_copy_stream_close(&bounce->back);
	zd_cuda_leave(bounce->other->cuda, pushed);
	return true;
}

static void end_hop(struct zd_cuda_peer_bounce *bounce)
{
	const struct zd_cuda_hop *hop = hop_at(bounce, bounce->returned);
	if (hop->end > 0)
		bounce->left = hop->end;
	bounce->returned++;
}

bool zd_cuda_peer_bounce_reap(struct zd_cuda_peer_bounce *bounce, struct zd_cuda_task **ended)
{
	if (!zd_cuda_copy_stream_reap(&bounce->back, ended))
		return false;
	end_hop(bounce);
	return true;
}

void zd_cuda_peer_bounce_check(struct zd_cuda_peer_bounce *bounce)
{
	bool pushed;
	zd_cuda_copy_stream_check(&bounce->out);
	if (bounce->back.count == 0)
		return;
	pushed = zd_cuda_device_push(bounce->other);
	zd_cuda_copy_stream_check(&bounce->back);
	zd_cuda_leave(bounce->other->cuda, pushed);
}

/* ---- The end ------------------------------------------------------------------------------------------- */

bool zd_cuda_peer_bounce_is_still(struct zd_cuda_peer_bounce *bounce)
{
	return (bounce->out.count == 0 || zd_cuda_copy_stream_is_still(&bounce->out)) &&
	       (bounce->back.count == 0 || zd_cuda_copy_stream_is_still(&bounce->back));
}

void zd_cuda_peer_bounce_wait(struct zd_cuda_peer_bounce *bounce)
{
	if (!bounce->memory)
		return;
	zd_cuda_copy_stream_wait(&bounce->out);
	(void)zd_cuda_peer_bounce_push_back(bounce);
	zd_cuda_copy_stream_wait(&bounce->back);
}

bool zd_cuda_peer_bounce_drop(struct zd_cuda_peer_bounce *bounce, struct zd_cuda_task **ended)
{
	const struct zd_cuda_hop *hop = hop_at(bounce, bounce->returned);
	struct zd_cuda_task *none;
	if (zd_cuda_peer_bounce_is_idle(bounce))
		return false;
	*ended = hop->last ? hop->task : NULL;
	if (!zd_cuda_copy_stream_drop(&bounce->back, &none)) {
		(void)zd_cuda_copy_stream_drop(&bounce->out, &none);
		bounce->arrived++;
	}
	end_hop(bounce);
	return true;
}

void zd_cuda_peer_bounce_walk(const struct zd_cuda_peer_bounce *bounce, void (*fn)(struct zd_cuda_task *task))
{
	for (uint64_t i = bounce->returned; i < bounce->sent; i++) {
		const struct zd_cuda_hop *hop = &bounce->hops[i % ZD_CUDA_PEER_BOUNCE_HOPS];
		if (hop->last)
			fn(hop->task);
	}
}
