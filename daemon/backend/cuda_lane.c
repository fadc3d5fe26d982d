/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_lane.c - a stream of an executor, and what is in flight on it. */
#include "backend/cuda_lane.h"

#include "base/err.h"
#include "base/mem.h"

#define COUNTER_BYTES 4096u /* pinned memory comes in pages */

/* ---- Life --------------------------------------------------------------------------------------------------- */

static int make_counter(struct zd_cuda_lane *lane, struct zd_err *err)
{
	struct zd_cuda_device *device = lane->device;
	void *at = NULL;
	int rc = zd_cuda_device_err(
	        device,
	        device->cuda->memHostAlloc(&at, COUNTER_BYTES,
	                                   ZD_CU_HOST_ALLOC_PORTABLE | ZD_CU_HOST_ALLOC_DEVICEMAP),
	        err, "pinned memory for progress");
	if (rc)
		return rc;
	lane->counter = at;
	atomic_init(lane->counter, 0);
	return zd_cuda_device_err(device, device->cuda->memHostGetDevicePointer(&lane->counter_at, at, 0),
	                          err, "the progress on the GPU");
}

int zd_cuda_lane_init(struct zd_cuda_lane *lane, struct zd_cuda_devices *devices, uint32_t device,
                      uint64_t flight_bytes, struct zd_err *err)
{
	struct zd_cuda_device *own = &devices->all[device];
	*lane = (struct zd_cuda_lane){
	        .devices = devices,
	        .device = own,
	        .flight_bytes = flight_bytes,
	};
	int rc = zd_cuda_device_err(
	        own, own->cuda->streamCreateWithPriority(&lane->stream, ZD_CU_STREAM_NON_BLOCKING, 0), err,
	        "a stream");
	if (!rc)
		rc = make_counter(lane, err);
	if (rc)
		zd_cuda_lane_deinit(lane);
	return rc;
}

void zd_cuda_lane_deinit(struct zd_cuda_lane *lane)
{
	struct zd_cuda_device *device = lane->device;
	bool pushed;
	zd_assert(lane->count == 0);
	if (!device)
		return;
	pushed = zd_cuda_device_push(device);
	if (lane->stream)
		(void)device->cuda->streamDestroy(lane->stream);
	if (lane->counter)
		(void)device->cuda->memFreeHost((void *)lane->counter);
	zd_cuda_leave(device->cuda, pushed);
	*lane = (struct zd_cuda_lane){.stream = NULL};
}

/* ---- Taking off --------------------------------------------------------------------------------------------- */

static void fly(struct zd_cuda_lane *lane, uint64_t bytes, uint32_t target, struct zd_cuda_task *ends)
{
	zd_assert(lane->count < ZD_CUDA_FLIGHTS);
	lane->ring[(lane->first + lane->count) % ZD_CUDA_FLIGHTS] = (struct zd_cuda_flight){
	        .progress = lane->issued + (lane->group > 0), .bytes = bytes, .target = target, .ends = ends};
	lane->count++;
	lane->flying_bytes += bytes;
	atomic_fetch_add_explicit(&lane->devices->all[target].incoming_bytes, bytes, memory_order_relaxed);
}

static int move(struct zd_cuda_lane *lane, const struct zd_cuda_task *task, uint64_t bytes)
{
	const struct zd_cuda *cuda = lane->device->cuda;
	zd_cu_ptr dst = task->u.copy.dst + task->u.copy.issued_bytes;
	zd_cu_ptr src = task->u.copy.src + task->u.copy.issued_bytes;
	if (task->kind == ZD_CMD_FILL)
		return cuda->memsetD8Async(dst, 0, bytes, lane->stream);
	if (zd_cuda_device_reaches(lane->device, task->target))
		return cuda->memcpyAsync(dst, src, bytes, lane->stream);
	return cuda->memcpyPeerAsync(dst, lane->devices->all[task->target].context, src,
	                             lane->device->context, bytes, lane->stream);
}

/* Counters only grow: of two stores into one the later is enough. */
static void store(struct zd_cuda_lane *lane, zd_cu_ptr counter_at, uint64_t value)
{
	unsigned i = 0;
	while (i < lane->nstores && lane->stores[i].write.address != counter_at)
		i++;
	lane->stores[i] = (union zd_cu_mem_op){.write = {.operation = ZD_CU_OP_WRITE_64,
	                                                 .address = counter_at,
	                                                 .value = value,
	                                                 .flags = ZD_CU_WRITE_DEFAULT}};
	if (i == lane->nstores)
		lane->nstores++;
}

int zd_cuda_lane_issue(struct zd_cuda_lane *lane, struct zd_cuda_task *task, uint64_t piece_bytes,
                       bool *whole, struct zd_err *err)
{
	uint64_t left = task->u.copy.bytes - task->u.copy.issued_bytes;
	uint64_t bytes = zd_min_u64(left, piece_bytes);
	bool stores = bytes == left && task->session && !task->session->base.aborted[task->timeline];
	zd_cu_ptr counter_at = 0;
	int rc = 0;
	zd_assert(lane->group < ZD_CUDA_GROUP);
	if (stores)
		rc = zd_cuda_session_counter_at(task->session, lane->device, task->timeline, &counter_at,
		                                err);
	if (!rc && bytes > 0)
		rc = zd_cuda_device_err(lane->device, move(lane, task, bytes), err, "a copy");
	if (rc)
		return rc;
	if (stores)
		store(lane, counter_at, task->value);
	lane->group++;
	lane->group_bytes += bytes;
	task->u.copy.issued_bytes += bytes;
	task->gpu_stores = stores;
	*whole = bytes == left;
	fly(lane, bytes, task->target, *whole ? task : NULL);
	return 0;
}

void zd_cuda_lane_close(struct zd_cuda_lane *lane)
{
	struct zd_err err = ZD_ERR_NONE;
	if (lane->group == 0)
		return;
	/* The sessions' counters first: who sees the progress may rely on them. */
	store(lane, lane->counter_at, ++lane->issued);
	/* Bytes that move unseen: whatever went wrong, nobody would know when they have landed. */
	if (zd_cuda_err(lane->device->cuda,
	                lane->device->cuda->streamBatchMemOp(lane->stream, lane->nstores, lane->stores, 0),
	                &err, "storing progress"))
		zd_cuda_device_fail(lane->device, err.text);
	lane->group = lane->nstores = 0;
	lane->group_bytes = 0;
}

void zd_cuda_lane_follow(struct zd_cuda_lane *lane, struct zd_cuda_task *task)
{
	fly(lane, 0, task->target, task);
}

/* ---- Landing ------------------------------------------------------------------------------------------------ */

bool zd_cuda_lane_drop(struct zd_cuda_lane *lane, struct zd_cuda_task **ended)
{
	if (lane->count == 0)
		return false;
	const struct zd_cuda_flight *flight = &lane->ring[lane->first];
	*ended = flight->ends;
	lane->flying_bytes -= flight->bytes;
	atomic_fetch_sub_explicit(&lane->devices->all[flight->target].incoming_bytes, flight->bytes,
	                          memory_order_relaxed);
	lane->first = (lane->first + 1) % ZD_CUDA_FLIGHTS;
	lane->count--;
	return true;
}

bool zd_cuda_lane_land(struct zd_cuda_lane *lane, struct zd_cuda_task **ended)
{
	if (lane->count == 0)
		return false;
	uint64_t progress = atomic_load_explicit(lane->counter, memory_order_acquire);
	if (!zd_fence_reached(progress, lane->ring[lane->first].progress))
		return false;
	return zd_cuda_lane_drop(lane, ended);
}

bool zd_cuda_lane_is_still(struct zd_cuda_lane *lane)
{
	return lane->device->cuda->streamQuery(lane->stream) != ZD_CU_NOT_READY;
}

void zd_cuda_lane_wait(struct zd_cuda_lane *lane)
{
	(void)lane->device->cuda->streamSynchronize(lane->stream);
}
