/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_copy_stream.c - a stream of an executor, and its inflight copies. */
#include "executor/cuda/cuda_copy_stream.h"

#include "base/err.h"

#define COUNTER_BYTES 4096u /* the granularity of pinned memory */

/* ---- Life ---------------------------------------------------------------------------------------------- */

static int make_counter(struct zd_cuda_copy_stream *stream, struct zd_err *err)
{
	struct zd_cuda_device *device = stream->device;
	void *at = NULL;
	int rc = zd_cuda_device_err(
	        device,
	        device->cuda->memHostAlloc(&at, COUNTER_BYTES,
	                                   ZD_CU_HOST_ALLOC_PORTABLE | ZD_CU_HOST_ALLOC_DEVICEMAP),
	        err, "pinned memory for progress");
	if (rc)
		return rc;
	stream->counter = at;
	atomic_init(stream->counter, 0);
	return zd_cuda_device_err(device, device->cuda->memHostGetDevicePointer(&stream->counter_at, at, 0),
	                          err, "the progress on the GPU");
}

int zd_cuda_copy_stream_init(struct zd_cuda_copy_stream *stream, struct zd_cuda_devices *devices,
                             uint32_t device, uint64_t inflight_limit_bytes, struct zd_err *err)
{
	struct zd_cuda_device *own = &devices->all[device];
	*stream = (struct zd_cuda_copy_stream){
	        .devices = devices,
	        .device = own,
	        .inflight_limit_bytes = inflight_limit_bytes,
	};
	int rc = zd_cuda_device_err(
	        own, own->cuda->streamCreateWithPriority(&stream->cuda_stream, ZD_CU_STREAM_NON_BLOCKING, 0),
	        err, "a stream");
	if (!rc)
		rc = make_counter(stream, err);
	if (rc)
		zd_cuda_copy_stream_deinit(stream);
	return rc;
}

void zd_cuda_copy_stream_deinit(struct zd_cuda_copy_stream *stream)
{
	struct zd_cuda_device *device = stream->device;
	zd_assert(stream->count == 0);
	if (!device)
		return;
	bool pushed = zd_cuda_device_push(device);
	if (stream->cuda_stream)
		(void)device->cuda->streamDestroy(stream->cuda_stream);
	if (stream->counter)
		(void)device->cuda->memFreeHost((void *)stream->counter);
	zd_cuda_leave(device->cuda, pushed);
	*stream = (struct zd_cuda_copy_stream){.cuda_stream = NULL};
}

/* ---- Issuing ------------------------------------------------------------------------------------------- */

static void track_inflight(struct zd_cuda_copy_stream *stream, const struct zd_cuda_piece *piece)
{
	zd_assert(stream->count < ZD_CUDA_INFLIGHT_COPIES);
	bool awaited = piece->bytes > 0 && piece->ends && !piece->ends->gpu_stores;
	stream->ring[(stream->first + stream->count) % ZD_CUDA_INFLIGHT_COPIES] =
	        (struct zd_cuda_inflight_copy){.progress = stream->issued + (stream->group > 0),
	                                       .bytes = piece->bytes,
	                                       .awaited = awaited,
	                                       .ends = piece->ends};
	stream->count++;
	stream->nawaited += awaited;
	stream->inflight_bytes += piece->bytes;
}

/* The 2-D copies of the driver can fail for memory of another device. This one is as fast. */
static int enqueue_rows(struct zd_cuda_copy_stream *stream, const struct zd_cuda_piece *piece)
{
	uint64_t nrows = piece->bytes / piece->rows.bytes;
	struct zd_cu_copy_peer copy = {.source = {.type = ZD_CU_MEMORY_UNIFIED,
	                                          .at = piece->src,
	                                          .context = stream->device->context,
	                                          .pitch = piece->rows.stride,
	                                          .height = nrows},
	                               .destination = {.type = ZD_CU_MEMORY_UNIFIED,
	                                               .at = piece->dst,
	                                               .context = stream->devices->all[piece->target].context,
	                                               .pitch = piece->rows.bytes,
	                                               .height = nrows},
	                               .width = piece->rows.bytes,
	                               .height = nrows,
	                               .depth = 1};
	return stream->device->cuda->memcpy3DPeerAsync(&copy, stream->cuda_stream);
}

static int enqueue_move(struct zd_cuda_copy_stream *stream, const struct zd_cuda_piece *piece)
{
	const struct zd_cuda *cuda = stream->device->cuda;
	if (!piece->src && (piece->pattern == 0 || piece->pattern == ZD_FILL_NAN))
		return cuda->memsetD8Async(piece->dst, (unsigned char)piece->pattern, piece->bytes,
		                           stream->cuda_stream);
	if (!piece->src) /* a kernel would wait for the trainers' kernels */
		return cuda->streamWriteValue64(stream->cuda_stream, piece->dst, piece->pattern,
		                                ZD_CU_WRITE_DEFAULT);
	if (piece->rows.bytes)
		return enqueue_rows(stream, piece);
	if (zd_cuda_device_reaches(stream->device, piece->target))
		return cuda->memcpyAsync(piece->dst, piece->src, piece->bytes, stream->cuda_stream);
	return cuda->memcpyPeerAsync(piece->dst, stream->devices->all[piece->target].context, piece->src,
	                             stream->device->context, piece->bytes, stream->cuda_stream);
}

static bool may_batch(const struct zd_cuda_copy_stream *stream, const struct zd_cuda_piece *piece)
{
	return piece->together && piece->src && !piece->rows.bytes &&
	       zd_cuda_device_reaches(stream->device, piece->target);
}

static void batch_move(struct zd_cuda_copy_stream *stream, const struct zd_cuda_piece *piece)
{
	stream->dsts[stream->nmoves] = piece->dst;
	stream->srcs[stream->nmoves] = piece->src;
	stream->sizes[stream->nmoves] = piece->bytes;
	stream->nmoves++;
}

/* One call for all copies takes less than half the time. If the driver lacks the call, or it fails, the
 * copies are made one by one. */
static int submit_batch(struct zd_cuda_copy_stream *stream)
{
	const struct zd_cuda *cuda = stream->device->cuda;
	struct zd_cu_copy_attributes attributes = {.source_order = ZD_CU_SOURCE_ORDER_STREAM};
	size_t first = 0;
	int result = 0;
	if (stream->nmoves > 1 && cuda->memcpyBatchAsync &&
	    !cuda->memcpyBatchAsync(stream->dsts, stream->srcs, stream->sizes, stream->nmoves, &attributes,
	                            &first, 1, stream->cuda_stream))
		return 0;
	for (unsigned i = 0; i < stream->nmoves && !result; i++)
		result = cuda->memcpyAsync(stream->dsts[i], stream->srcs[i], stream->sizes[i],
		                           stream->cuda_stream);
	return result;
}

/* Counters only grow. The later of two stores into one counter therefore replaces the earlier. */
static void batch_store(struct zd_cuda_copy_stream *stream, zd_cu_ptr counter_at, uint64_t value)
{
	unsigned i = 0;
	while (i < stream->nstores && stream->stores[i].counter_at != counter_at)
		i++;
	stream->stores[i] = (struct zd_cuda_store){counter_at, value};
	if (i == stream->nstores)
		stream->nstores++;
}

int zd_cuda_copy_stream_issue(struct zd_cuda_copy_stream *stream, const struct zd_cuda_piece *piece,
                              struct zd_err *err)
{
	struct zd_cuda_task *ends = piece->ends;
	bool stores = ends && ends->session && !ends->session->base.aborted[ends->base.timeline];
	zd_cu_ptr counter_at = 0;
	int rc = 0;
	zd_assert(stream->group < ZD_CUDA_GROUP);
	if (stores)
		rc = zd_cuda_session_counter_at(ends->session, stream->device, ends->base.timeline,
		                                &counter_at, err);
	if (!rc && piece->bytes > 0 && may_batch(stream, piece))
		batch_move(stream, piece);
	else if (!rc && piece->bytes > 0)
		rc = zd_cuda_device_err(stream->device, enqueue_move(stream, piece), err, "a copy");
	if (rc)
		return rc;
	if (stores)
		batch_store(stream, counter_at, ends->base.value);
	if (ends)
		ends->gpu_stores = stores;
	stream->group++;
	stream->group_bytes += piece->bytes;
	stream->due |= !piece->open;
	track_inflight(stream, piece);
	return 0;
}

/* One call per store: a batched call is 4 us slower on an H200. */
static int write_stores(struct zd_cuda_copy_stream *stream)
{
	int result = 0;
	for (unsigned i = 0; i < stream->nstores && !result; i++)
		result = stream->device->cuda->streamWriteValue64(
		        stream->cuda_stream, stream->stores[i].counter_at, stream->stores[i].value,
		        ZD_CU_WRITE_DEFAULT);
	return result;
}

void zd_cuda_copy_stream_close(struct zd_cuda_copy_stream *stream)
{
	struct zd_err err = ZD_ERR_NONE;
	if (stream->group == 0 || (!stream->due && stream->group_bytes < ZD_CUDA_OPEN_BYTES))
		return;
	/* The sessions' counters are stored first, because a thread that sees the progress may rely on
	 * them. */
	batch_store(stream, stream->counter_at, ++stream->issued);
	/* The copies can have started, but their end would not be visible. Any error therefore fails the
	 * device. */
	if (zd_cuda_err(stream->device->cuda, submit_batch(stream), &err, "copies of a group") ||
	    zd_cuda_err(stream->device->cuda, write_stores(stream), &err, "storing progress"))
		zd_cuda_device_fail(stream->device, err.text);
	stream->group = stream->nstores = stream->nmoves = 0;
	stream->group_bytes = 0;
	stream->due = false;
}

void zd_cuda_copy_stream_follow(struct zd_cuda_copy_stream *stream, struct zd_cuda_task *ends)
{
	stream->due = stream->group > 0;
	track_inflight(stream, &(struct zd_cuda_piece){.ends = ends});
}

/* ---- Completion ---------------------------------------------------------------------------------------- */

bool zd_cuda_copy_stream_drop(struct zd_cuda_copy_stream *stream, struct zd_cuda_task **ended)
{
	if (stream->count == 0)
		return false;
	const struct zd_cuda_inflight_copy *copy = &stream->ring[stream->first];
	*ended = copy->ends;
	stream->inflight_bytes -= copy->bytes;
	stream->nawaited -= copy->awaited;
	stream->first = (stream->first + 1) % ZD_CUDA_INFLIGHT_COPIES;
	stream->count--;
	return true;
}

bool zd_cuda_copy_stream_reap(struct zd_cuda_copy_stream *stream, struct zd_cuda_task **ended)
{
	if (stream->count == 0)
		return false;
	uint64_t progress = atomic_load_explicit(stream->counter, memory_order_acquire);
	if (!zd_fence_reached(progress, stream->ring[stream->first].progress))
		return false;
	return zd_cuda_copy_stream_drop(stream, ended);
}

void zd_cuda_copy_stream_walk(const struct zd_cuda_copy_stream *stream, void (*fn)(struct zd_cuda_task *task))
{
	for (uint32_t i = 0; i < stream->count; i++) {
		struct zd_cuda_task *task = stream->ring[(stream->first + i) % ZD_CUDA_INFLIGHT_COPIES].ends;
		if (task)
			fn(task);
	}
}

void zd_cuda_copy_stream_check(struct zd_cuda_copy_stream *stream)
{
	if (stream->count == 0)
		return;
	bool pushed = zd_cuda_device_push(stream->device);
	zd_cuda_device_check(stream->device, stream->cuda_stream);
	zd_cuda_leave(stream->device->cuda, pushed);
}

bool zd_cuda_copy_stream_is_still(struct zd_cuda_copy_stream *stream)
{
	return stream->device->cuda->streamQuery(stream->cuda_stream) != ZD_CU_NOT_READY;
}

void zd_cuda_copy_stream_wait(struct zd_cuda_copy_stream *stream)
{
	(void)stream->device->cuda->streamSynchronize(stream->cuda_stream);
}
