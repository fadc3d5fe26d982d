/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_lane.c - a stream of an executor, and its flights. */
#include "executor/cuda/cuda_lane.h"

#include "base/err.h"
#include "base/mem.h"

#define COUNTER_BYTES 4096u /* the granularity of pinned memory */

/* ---- Life ---------------------------------------------------------------------------------------------- */

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

/* ---- Issuing ------------------------------------------------------------------------------------------- */

static void fly(struct zd_cuda_lane *lane, const struct zd_cuda_piece *piece)
{
	zd_assert(lane->count < ZD_CUDA_FLIGHTS);
	bool awaited = piece->bytes > 0 && piece->ends && !piece->ends->gpu_stores;
	lane->ring[(lane->first + lane->count) % ZD_CUDA_FLIGHTS] =
	        (struct zd_cuda_flight){.progress = lane->issued + (lane->group > 0),
	                                .bytes = piece->bytes,
	                                .awaited = awaited,
	                                .ends = piece->ends};
	lane->count++;
	lane->nawaited += awaited;
	lane->flying_bytes += piece->bytes;
}

static int move(struct zd_cuda_lane *lane, const struct zd_cuda_piece *piece)
{
	const struct zd_cuda *cuda = lane->device->cuda;
	if (!piece->src && (piece->pattern == 0 || piece->pattern == ZD_FILL_NAN))
		return cuda->memsetD8Async(piece->dst, (unsigned char)piece->pattern, piece->bytes,
		                           lane->stream);
	if (!piece->src) /* a kernel would wait for the trainers' kernels */
		return cuda->streamWriteValue64(lane->stream, piece->dst, piece->pattern,
		                                ZD_CU_WRITE_DEFAULT);
	if (zd_cuda_device_reaches(lane->device, piece->target))
		return cuda->memcpyAsync(piece->dst, piece->src, piece->bytes, lane->stream);
	return cuda->memcpyPeerAsync(piece->dst, lane->devices->all[piece->target].context, piece->src,
	                             lane->device->context, piece->bytes, lane->stream);
}

static bool may_wait(const struct zd_cuda_lane *lane, const struct zd_cuda_piece *piece)
{
	return piece->together && piece->src && zd_cuda_device_reaches(lane->device, piece->target);
}

static void move_later(struct zd_cuda_lane *lane, const struct zd_cuda_piece *piece)
{
	lane->dsts[lane->nmoves] = piece->dst;
	lane->srcs[lane->nmoves] = piece->src;
	lane->sizes[lane->nmoves] = piece->bytes;
	lane->nmoves++;
}

/* One call for all copies takes less than half the time. Copies one by one if the driver lacks the call, or
 * it fails. */
static int move_together(struct zd_cuda_lane *lane)
{
	const struct zd_cuda *cuda = lane->device->cuda;
	struct zd_cu_copy_attributes attributes = {.source_order = ZD_CU_SOURCE_ORDER_STREAM};
	size_t first = 0;
	int result = 0;
	if (lane->nmoves > 1 && cuda->memcpyBatchAsync &&
	    !cuda->memcpyBatchAsync(lane->dsts, lane->srcs, lane->sizes, lane->nmoves, &attributes, &first, 1,
	                            lane->stream))
		return 0;
	for (unsigned i = 0; i < lane->nmoves && !result; i++)
		result = cuda->memcpyAsync(lane->dsts[i], lane->srcs[i], lane->sizes[i], lane->stream);
	return result;
}

/* Counters only grow, so the later of two stores into one counter replaces the earlier. */
static void store(struct zd_cuda_lane *lane, zd_cu_ptr counter_at, uint64_t value)
{
	unsigned i = 0;
	while (i < lane->nstores && lane->stores[i].counter_at != counter_at)
		i++;
	lane->stores[i] = (struct zd_cuda_store){counter_at, value};
	if (i == lane->nstores)
		lane->nstores++;
}

int zd_cuda_lane_issue(struct zd_cuda_lane *lane, const struct zd_cuda_piece *piece, struct zd_err *err)
{
	struct zd_cuda_task *ends = piece->ends;
	bool stores = ends && ends->session && !ends->session->base.aborted[ends->base.timeline];
	zd_cu_ptr counter_at = 0;
	int rc = 0;
	zd_assert(lane->group < ZD_CUDA_GROUP);
	if (stores)
		rc = zd_cuda_session_counter_at(ends->session, lane->device, ends->base.timeline, &counter_at,
		                                err);
	if (!rc && piece->bytes > 0 && may_wait(lane, piece))
		move_later(lane, piece);
	else if (!rc && piece->bytes > 0)
		rc = zd_cuda_device_err(lane->device, move(lane, piece), err, "a copy");
	if (rc)
		return rc;
	if (stores)
		store(lane, counter_at, ends->base.value);
	if (ends)
		ends->gpu_stores = stores;
	lane->group++;
	lane->group_bytes += piece->bytes;
	lane->due |= !piece->open;
	fly(lane, piece);
	return 0;
}

/* One call per store: a batched call is 4 us slower on an H200. */
static int write_stores(struct zd_cuda_lane *lane)
{
	int result = 0;
	for (unsigned i = 0; i < lane->nstores && !result; i++)
		result = lane->device->cuda->streamWriteValue64(lane->stream, lane->stores[i].counter_at,
		                                                lane->stores[i].value, ZD_CU_WRITE_DEFAULT);
	return result;
}

void zd_cuda_lane_close(struct zd_cuda_lane *lane)
{
	struct zd_err err = ZD_ERR_NONE;
	if (lane->group == 0 || (!lane->due && lane->group_bytes < ZD_CUDA_OPEN_BYTES))
		return;
	/* The sessions' counters come first: a thread that sees the progress may rely on them. */
	store(lane, lane->counter_at, ++lane->issued);
	/* The copies may have begun, but nothing would show their end. So any error fails the device. */
	if (zd_cuda_err(lane->device->cuda, move_together(lane), &err, "copies of a group") ||
	    zd_cuda_err(lane->device->cuda, write_stores(lane), &err, "storing progress"))
		zd_cuda_device_fail(lane->device, err.text);
	lane->group = lane->nstores = lane->nmoves = 0;
	lane->group_bytes = 0;
	lane->due = false;
}

void zd_cuda_lane_follow(struct zd_cuda_lane *lane, struct zd_cuda_task *ends)
{
	lane->due = lane->group > 0;
	fly(lane, &(struct zd_cuda_piece){.ends = ends});
}

/* ---- Completion ---------------------------------------------------------------------------------------- */

bool zd_cuda_lane_drop(struct zd_cuda_lane *lane, struct zd_cuda_task **ended)
{
	if (lane->count == 0)
		return false;
	const struct zd_cuda_flight *flight = &lane->ring[lane->first];
	*ended = flight->ends;
	lane->flying_bytes -= flight->bytes;
	lane->nawaited -= flight->awaited;
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

void zd_cuda_lane_walk(const struct zd_cuda_lane *lane, void (*fn)(struct zd_cuda_task *task))
{
	for (uint32_t i = 0; i < lane->count; i++) {
		struct zd_cuda_task *task = lane->ring[(lane->first + i) % ZD_CUDA_FLIGHTS].ends;
		if (task)
			fn(task);
	}
}

void zd_cuda_lane_check(struct zd_cuda_lane *lane)
{
	if (lane->count > 0)
		zd_cuda_device_check(lane->device, lane->stream);
}

bool zd_cuda_lane_is_still(struct zd_cuda_lane *lane)
{
	return lane->device->cuda->streamQuery(lane->stream) != ZD_CU_NOT_READY;
}

void zd_cuda_lane_wait(struct zd_cuda_lane *lane)
{
	(void)lane->device->cuda->streamSynchronize(lane->stream);
}
