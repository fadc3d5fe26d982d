/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_detour.c - copies within a GPU, and small fills, by way of another GPU. */
#include "executor/cuda/cuda_detour.h"

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

int zd_cuda_detour_init(struct zd_cuda_detour *detour, struct zd_cuda_devices *devices, uint32_t device,
                        struct zd_err *err)
{
	uint32_t other;
	bool pushed;
	int rc;
	*detour = (struct zd_cuda_detour){.memory = NULL};
	if (!find_other(devices, device, &other))
		return 0;
	detour->other = &devices->all[other];
	rc = zd_cuda_lane_init(&detour->out, devices, device, UINT64_MAX, err);
	if (rc)
		return rc;
	pushed = zd_cuda_device_push(detour->other);
	rc = zd_cuda_lane_init(&detour->back, devices, other, UINT64_MAX, err);
	if (!rc)
		rc = zd_cuda_segment_new(devices, other, SEGMENT_ID,
		                         ZD_CUDA_DETOUR_MEMORY_BYTES + ZD_CUDA_DETOUR_ZEROS_BYTES,
		                         detour->back.stream, &detour->memory, err);
	zd_cuda_leave(devices->cuda, pushed);
	if (rc)
		zd_cuda_detour_deinit(detour);
	/* The daemon works without a detour, but copies within this GPU then wait for the trainers'
	 * kernels. */
	return rc == ZEROD_E_NO_MEMORY ? 0 : rc;
}

void zd_cuda_detour_deinit(struct zd_cuda_detour *detour)
{
	zd_cuda_lane_deinit(&detour->back);
	zd_cuda_lane_deinit(&detour->out);
	zd_cuda_segment_free(detour->memory);
	detour->memory = NULL;
}

/* ---- Sending ------------------------------------------------------------------------------------------- */

static struct zd_cuda_leg *leg_at(struct zd_cuda_detour *detour, uint64_t number)
{
	return &detour->legs[number % ZD_CUDA_DETOUR_LEGS];
}

/* The address of the place that ends at `end`, a position counted since the start of the ring. */
static zd_cu_ptr place_at(const struct zd_cuda_detour *detour, uint64_t end, uint64_t bytes)
{
	return detour->memory->range + (end - bytes) % ZD_CUDA_DETOUR_MEMORY_BYTES;
}

/* The end of the next place. A place never wraps around the end of the ring. */
static uint64_t next_place(const struct zd_cuda_detour *detour, uint64_t bytes)
{
	uint64_t begin = detour->taken % ZD_CUDA_DETOUR_MEMORY_BYTES;
	if (begin + bytes > ZD_CUDA_DETOUR_MEMORY_BYTES)
		return detour->taken + ZD_CUDA_DETOUR_MEMORY_BYTES - begin + bytes;
	return detour->taken + bytes;
}

static zd_cu_ptr zeros(const struct zd_cuda_detour *detour)
{
	return detour->memory->range + ZD_CUDA_DETOUR_MEMORY_BYTES;
}

static int send_across(struct zd_cuda_detour *detour, struct zd_cuda_task *task, struct zd_err *err)
{
	struct zd_cuda_piece piece = {.dst = task->u.copy.dst,
	                              .src = task->base.kind == ZD_CMD_FILL ? zeros(detour)
	                                                                    : task->u.copy.src,
	                              .bytes = task->u.copy.bytes,
	                              .target = detour->out.device->index,
	                              .together = detour->back.nmoves > 0 || STAILQ_NEXT(task, next),
	                              .ends = task};
	bool pushed = zd_cuda_device_push(detour->other);
	int rc = zd_cuda_lane_issue(&detour->back, &piece, err);
	if (!rc && zd_cuda_lane_group_is_full(&detour->back))
		zd_cuda_lane_close(&detour->back);
	zd_cuda_leave(detour->other->cuda, pushed);
	if (rc)
		return rc;
	*leg_at(detour, detour->sent) = (struct zd_cuda_leg){.task = task, .last = true};
	detour->sent++;
	detour->arrived++;
	return 0;
}

/* Keeps the task's place behind the legs that are on their way out; push_back() sends the zeros. */
static void send_zeros(struct zd_cuda_detour *detour, struct zd_cuda_task *task)
{
	zd_cuda_lane_follow(&detour->out, NULL);
	*leg_at(detour,
	        detour->sent) = (struct zd_cuda_leg){.task = task, .bytes = task->u.copy.bytes, .last = true};
	detour->sent++;
}

static int send_out(struct zd_cuda_detour *detour, struct zd_cuda_task *task, bool *whole, struct zd_err *err)
{
	uint64_t left = task->u.copy.bytes - task->u.copy.issued_bytes;
	uint64_t bytes = zd_min_u64(left, ZD_CUDA_DETOUR_LEG_BYTES);
	uint64_t end = next_place(detour, bytes);
	struct zd_cuda_piece piece = {.dst = place_at(detour, end, bytes),
	                              .src = task->u.copy.src + task->u.copy.issued_bytes,
	                              .bytes = bytes,
	                              .target = detour->other->index,
	                              .together = detour->out.nmoves > 0 || STAILQ_NEXT(task, next)};
	int rc = zd_cuda_lane_issue(&detour->out, &piece, err);
	if (rc)
		return rc;
	if (!piece.together || zd_cuda_lane_group_is_full(&detour->out))
		zd_cuda_lane_close(&detour->out);
	*whole = bytes == left;
	*leg_at(detour, detour->sent) = (struct zd_cuda_leg){.task = task,
	                                                     .offset = task->u.copy.issued_bytes,
	                                                     .bytes = bytes,
	                                                     .end = end,
	                                                     .last = *whole};
	detour->sent++;
	detour->taken = end;
	task->u.copy.issued_bytes += bytes;
	return 0;
}

int zd_cuda_detour_send(struct zd_cuda_detour *detour, struct zd_cuda_task *task, bool *whole,
                        struct zd_err *err)
{
	bool across = detour->back.flying_bytes + task->u.copy.bytes <= ZD_CUDA_DETOUR_ACROSS_BYTES &&
	              detour->arrived == detour->sent;
	if (!across && task->base.kind != ZD_CMD_FILL)
		return send_out(detour, task, whole, err);
	*whole = true;
	if (across)
		return send_across(detour, task, err);
	send_zeros(detour, task);
	return 0;
}

void zd_cuda_detour_follow(struct zd_cuda_detour *detour, struct zd_cuda_task *task)
{
	zd_cuda_lane_follow(&detour->out, NULL);
	*leg_at(detour, detour->sent) = (struct zd_cuda_leg){.task = task, .last = true};
	detour->sent++;
}

void zd_cuda_detour_close(struct zd_cuda_detour *detour)
{
	bool pushed;
	zd_cuda_lane_close(&detour->out);
	if (detour->back.group == 0)
		return;
	pushed = zd_cuda_device_push(detour->other);
	zd_cuda_lane_close(&detour->back);
	zd_cuda_leave(detour->other->cuda, pushed);
}

/* ---- Back ---------------------------------------------------------------------------------------------- */

/* Fails a leg, whose bytes are then missing. The timeline is marked aborted at once, so that nothing issued
 * from now on stores into it: a waiter could take that store for complete data. Stores issued earlier may
 * still follow, and their waiters must not be freed before them; so the task's completion stores the
 * abort. */
static void lose_leg(struct zd_cuda_task *task, int status, const struct zd_err *why)
{
	zd_completion_fail(&task->completion, status, why->text);
	if (task->session)
		task->session->base.aborted[task->base.timeline] = true;
}

/* The other GPU's context is current. */
static void push_back(struct zd_cuda_detour *detour, const struct zd_cuda_leg *leg)
{
	struct zd_cuda_device *home = detour->out.device;
	struct zd_cuda_task *ends = leg->last ? leg->task : NULL;
	int rc;
	struct zd_cuda_piece piece = {.dst = leg->task->u.copy.dst + leg->offset,
	                              .src = leg->end > 0 ? place_at(detour, leg->end, leg->bytes)
	                                                  : zeros(detour),
	                              .bytes = leg->bytes,
	                              .target = home->index,
	                              .together = leg->bytes < ZD_CUDA_DETOUR_LEG_BYTES,
	                              .ends = ends};
	struct zd_err err = ZD_ERR_NONE;
	if (!zd_cuda_task_copies(leg->task) || leg->task->completion.status != 0) {
		zd_cuda_lane_follow(&detour->back, ends);
		return;
	}
	rc = zd_cuda_lane_issue(&detour->back, &piece, &err);
	if (rc) {
		lose_leg(leg->task, rc, &err);
		zd_cuda_lane_follow(&detour->back, ends);
	}
}

bool zd_cuda_detour_turn(struct zd_cuda_detour *detour)
{
	struct zd_cuda_task *none;
	bool any = false, pushed = false;
	/* A push into a failed GPU would make the other GPU fail too. */
	if (zd_cuda_detour_has_failed(detour) || zd_cuda_device_failed(detour->out.device))
		return false;
	while (zd_cuda_lane_land(&detour->out, &none)) {
		if (!any)
			pushed = zd_cuda_device_push(detour->other);
		any = true;
		push_back(detour, leg_at(detour, detour->arrived));
		detour->arrived++;
		if (zd_cuda_lane_group_is_full(&detour->back))
			zd_cuda_lane_close(&detour->back);
	}
	if (!any)
		return false;
	zd_cuda_lane_close(&detour->back);
	zd_cuda_leave(detour->other->cuda, pushed);
	return true;
}

static void returned(struct zd_cuda_detour *detour)
{
	const struct zd_cuda_leg *leg = leg_at(detour, detour->returned);
	if (leg->end > 0)
		detour->left = leg->end;
	detour->returned++;
}

bool zd_cuda_detour_land(struct zd_cuda_detour *detour, struct zd_cuda_task **ended)
{
	if (!zd_cuda_lane_land(&detour->back, ended))
		return false;
	returned(detour);
	return true;
}

void zd_cuda_detour_check(struct zd_cuda_detour *detour)
{
	bool pushed;
	zd_cuda_lane_check(&detour->out);
	if (detour->back.count == 0)
		return;
	pushed = zd_cuda_device_push(detour->other);
	zd_cuda_lane_check(&detour->back);
	zd_cuda_leave(detour->other->cuda, pushed);
}

/* ---- The end ------------------------------------------------------------------------------------------- */

bool zd_cuda_detour_is_still(struct zd_cuda_detour *detour)
{
	return (detour->out.count == 0 || zd_cuda_lane_is_still(&detour->out)) &&
	       (detour->back.count == 0 || zd_cuda_lane_is_still(&detour->back));
}

void zd_cuda_detour_wait(struct zd_cuda_detour *detour)
{
	if (!detour->memory)
		return;
	zd_cuda_lane_wait(&detour->out);
	(void)zd_cuda_detour_turn(detour);
	zd_cuda_lane_wait(&detour->back);
}

bool zd_cuda_detour_drop(struct zd_cuda_detour *detour, struct zd_cuda_task **ended)
{
	const struct zd_cuda_leg *leg = leg_at(detour, detour->returned);
	struct zd_cuda_task *none;
	if (zd_cuda_detour_is_idle(detour))
		return false;
	*ended = leg->last ? leg->task : NULL;
	if (!zd_cuda_lane_drop(&detour->back, &none)) {
		(void)zd_cuda_lane_drop(&detour->out, &none);
		detour->arrived++;
	}
	returned(detour);
	return true;
}

void zd_cuda_detour_walk(const struct zd_cuda_detour *detour, void (*fn)(struct zd_cuda_task *task))
{
	for (uint64_t i = detour->returned; i < detour->sent; i++) {
		const struct zd_cuda_leg *leg = &detour->legs[i % ZD_CUDA_DETOUR_LEGS];
		if (leg->last)
			fn(leg->task);
	}
}
