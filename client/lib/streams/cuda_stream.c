/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_stream.c - the trainer's own streams on a GPU, wrapped.
 *
 * The GPU does the work. A wait makes the GPU compare counters of the daemon's page. A fence makes the GPU
 * write the next value of the stream's timeline into the client's page or, in a strict client, into a page
 * from which the value is forwarded. No call here waits for the GPU. Invariants:
 *   - reserving a value and enqueueing its write are one step under the stream's lock, so that values are
 *     written in order;
 *   - the value is written for every fence, also of an idle stream, because a query whether the stream is
 *     idle would be a driver call as well;
 *   - all events that a GPU waits for have been submitted: the daemon's copies are under way when the client
 *     receives their fences. Hardware queues are few, and a waiting stream blocks all streams in its queue;
 *   - the GPU does not report a wait that an abort has released. Each stream therefore remembers its waits
 *     until they are seen to have passed. The first wait that is found aborted poisons the session.
 */
#include <errno.h>
#include <stdlib.h>

#include <zerod_cuda.h>

#include "client/lib/base/enter.h"
#include "client/lib/conn/request.h"
#include "client/lib/device/cuda_internal.h"
#include "client/lib/segments/cuda_segment.h"
#include "client/lib/streams/stream.h"

#define BATCH 64u /* operations per call; the driver accepts fewer than 256 */

struct gpu_stream {
	struct zerod_stream base;
	struct CUstream_st *handle;
	struct CUctx_st *context;
	const struct zc_gpu *gpu;
	zd_cu_ptr gpu_page, daemon_page; /* in the context */

	pthread_mutex_t lock; /* all that follows */
	uint64_t value;       /* last reserved */
	bool unmarked;        /* waits were enqueued since */
	struct zc_open_waits open;
};

static struct gpu_stream *gpu_of(zerod_stream *stream)
{
	return (struct gpu_stream *)stream; /* `base` is the first member */
}

static const struct zd_cuda *driver_of(const struct gpu_stream *stream)
{
	const struct zc_cuda *cuda = stream->base.client->cuda;

	return cuda->driver;
}

/* ---- Enqueueing ---------------------------------------------------------------------------------------- */

/* A graph can be replayed, but fences pass once. */
static int check_capture(const struct gpu_stream *stream, struct zd_err *err)
{
	const struct zd_cuda *driver = driver_of(stream);
	int status = ZD_CU_CAPTURE_NONE;
	int result = driver->streamIsCapturing(stream->handle, &status);

	if (result == ZD_CU_STREAM_CAPTURE_IMPLICIT || (!result && status != ZD_CU_CAPTURE_NONE))
		return zd_err_set(
		        err, ZEROD_E_UNSUPPORTED,
		        "the stream is being captured into a graph, which cannot wait for the daemon "
		        "when it is replayed: gather before the capture, release after it");
	return zd_cuda_err(driver, result, err, "looking whether a stream is captured");
}

static bool has_passed(uint64_t counter, uint64_t value)
{
	return counter != ZD_FENCE_ABORTED && zc_fence_reached(counter, value);
}

/* Stream memory operations, collected so that one driver call enqueues up to BATCH of them. */
struct orders {
	unsigned count;
	union zd_cu_mem_op ops[BATCH];
};

static int submit_orders(const struct gpu_stream *stream, struct orders *orders, struct zd_err *err)
{
	const struct zd_cuda *driver = driver_of(stream);
	const union zd_cu_mem_op *first = orders->ops;
	int result = 0;

	if (orders->count > 1)
		result = driver->streamBatchMemOp(stream->handle, orders->count, orders->ops, 0);
	else if (orders->count == 1 && first->operation == ZD_CU_OP_WAIT_64)
		result = driver->streamWaitValue64(stream->handle, first->wait.address, first->wait.value,
		                                   ZD_CU_WAIT_GEQ);
	else if (orders->count == 1)
		result = driver->streamWriteValue64(stream->handle, first->write.address, first->write.value,
		                                    ZD_CU_WRITE_DEFAULT);
	orders->count = 0;
	return zd_cuda_err(driver, result, err, "ordering the work of a stream on %s", stream->gpu->name);
}

/* With the stream's lock, in its context. */
static int order(const struct gpu_stream *stream, struct orders *orders, int operation, zd_cu_ptr page,
                 struct zc_fence fence, struct zd_err *err)
{
	int rc = orders->count == BATCH ? submit_orders(stream, orders, err) : 0;

	/* A wait's flags are ZD_CU_WAIT_GEQ, a write's ZD_CU_WRITE_DEFAULT: both are 0. */
	orders->ops[orders->count++] =
	        (union zd_cu_mem_op){.wait = {.operation = operation,
	                                      .address = page + fence.timeline * sizeof(uint64_t),
	                                      .value = fence.value}};
	return rc;
}

/* Makes the stream wait for copies of another stream. With the stream's lock, in its context. */
static int order_behind(struct gpu_stream *stream, struct orders *orders, struct zc_fence fence,
                        struct zd_err *err)
{
	const uint64_t *page = stream->base.client->gpu_page;

	if (fence.value == 0 || fence.timeline == stream->base.timeline ||
	    has_passed(zc_counter_load(page, fence.timeline), fence.value))
		return 0;
	stream->unmarked = true;
	return order(stream, orders, ZD_CU_OP_WAIT_64, stream->gpu_page, fence, err);
}

/* Enqueues the waits that have not passed already. With the stream's lock, in its context. */
static int order_fences(struct gpu_stream *stream, struct orders *orders, const struct zc_fences *fences,
                        struct zd_err *err)
{
	const uint64_t *page = stream->base.client->daemon_page;
	const struct zc_fence *list = zc_fences_list(fences);
	int rc = 0;

	for (unsigned i = 0; i < fences->count && !rc; i++) {
		if (has_passed(zc_counter_load(page, list[i].timeline), list[i].value))
			continue;
		zc_open_waits_add(&stream->open, list[i].timeline, list[i].value);
		stream->unmarked = true;
		rc = order(stream, orders, ZD_CU_OP_WAIT_64, stream->daemon_page, list[i], err);
	}
	return rc;
}

/* With the stream's lock. */
static void note_vouched(struct gpu_stream *stream, const struct zc_fences *fences)
{
	const struct zc_fence *list = fences ? zc_fences_list(fences) : NULL;

	for (unsigned i = 0; list && i < fences->count; i++)
		zc_open_waits_add(&stream->open, list[i].timeline, list[i].value);
}

/* With the stream's lock, in its context. */
static int push_wait(struct gpu_stream *stream, const struct zc_stream_wait *wait, struct zd_err *err)
{
	const struct zc_fence *list = zc_fences_list(wait->copied);
	struct orders orders;
	int rc = 0;

	orders.count = 0; /* large: only the used part is written */
	for (unsigned i = 0; i < wait->copied->count && !rc; i++)
		rc = order_behind(stream, &orders, list[i], err);
	if (!rc)
		rc = order_fences(stream, &orders, wait->fences, err);
	if (!rc)
		rc = submit_orders(stream, &orders, err);
	if (!rc)
		note_vouched(stream, wait->vouched);
	return rc;
}

static int say_aborted(struct zerod_client *client, struct zd_err *err)
{
	client->poisoned = true;
	if (zc_is_hung_up(client))
		return zc_loss_say(client, err);
	return zd_err_set(err, ZEROD_E_ABORTED,
	                  "an abort has ended a wait of the stream: discard the results since then, and "
	                  "reset the session");
}

static int gpu_wait(zerod_stream *base, const struct zc_stream_wait *wait, struct zd_err *err)
{
	struct gpu_stream *stream = gpu_of(base);
	const struct zd_cuda *driver = driver_of(stream);
	struct zc_cuda_scope scope;
	int rc = zd_cuda_err(driver, zc_cuda_enter(driver, stream->context, &scope), err,
	                     "entering a stream's context");

	if (!rc)
		rc = check_capture(stream, err);
	if (!rc) {
		pthread_mutex_lock(&stream->lock);
		rc = push_wait(stream, wait, err);
		if (!rc && zc_open_waits_aborted(&stream->open, base->client))
			rc = say_aborted(base->client, err);
		pthread_mutex_unlock(&stream->lock);
	}
	zc_cuda_leave(driver, &scope);
	return rc;
}

/* Enqueues the next value; `holds` (unless NULL) last until the value is written. With the stream's lock, in
 * its context. */
static int push_value(struct gpu_stream *stream, const struct zc_hold_list *holds, struct zd_err *err)
{
	const struct zd_cuda *driver = driver_of(stream);
	struct zc_fence fence = {stream->base.timeline, stream->value + 1};
	zd_cu_ptr counter = stream->gpu_page + fence.timeline * sizeof(uint64_t);
	struct zc_forwarded_fence *forwarded = NULL;
	int rc = zc_forwarded_fence_new(stream->base.client, holds, &forwarded, err);

	if (rc)
		return rc;
	rc = zd_cuda_err(
	        driver, driver->streamWriteValue64(stream->handle, counter, fence.value, ZD_CU_WRITE_DEFAULT),
	        err, "writing a stream's fence on %s", stream->gpu->name);
	zc_forwarded_fence_enqueue(stream->base.client, forwarded, fence, rc);
	if (rc)
		return rc;
	stream->value++;
	stream->unmarked = false;
	return 0;
}

static int gpu_fence(zerod_stream *base, const struct zc_hold_list *holds, uint64_t *value,
                     struct zd_err *err)
{
	struct gpu_stream *stream = gpu_of(base);
	const struct zd_cuda *driver = driver_of(stream);
	struct zc_cuda_scope scope;
	int rc = zd_cuda_err(driver, zc_cuda_enter(driver, stream->context, &scope), err,
	                     "entering a stream's context");

	if (!rc)
		rc = check_capture(stream, err);
	if (!rc) {
		pthread_mutex_lock(&stream->lock);
		rc = push_value(stream, holds, err);
		*value = stream->value;
		pthread_mutex_unlock(&stream->lock);
	}
	zc_cuda_leave(driver, &scope);
	return rc ? rc : 1;
}

/* Kernels are loaded in the GPU's primary context, and run on no stream of another one. */
static int gpu_converts(const zerod_stream *base, struct zd_err *err)
{
	const struct gpu_stream *stream = (const struct gpu_stream *)base;

	if (stream->context == stream->gpu->context)
		return 0;
	return zd_err_set(err, ZEROD_E_UNSUPPORTED,
	                  "the stream is not of the primary context of %s, which has the library's kernels",
	                  stream->gpu->name);
}

/* In the stream's context. */
static int enqueue_conversion(const struct gpu_stream *stream, const struct zc_conversion *conversion,
                              struct zd_err *err)
{
	const struct zd_cuda *driver = driver_of(stream);
	uint64_t bytes = conversion->numel * zerod_dtype_bytes(conversion->to_dtype);

	if (conversion->from_dtype != conversion->to_dtype)
		return zc_kernels_cast(&stream->gpu->kernels, stream->handle, conversion, err);
	return zd_cuda_err(driver,
	                   driver->memcpyAsync((zd_cu_ptr)conversion->to, (zd_cu_ptr)conversion->from, bytes,
	                                       stream->handle),
	                   err, "copying %llu bytes on %s", (unsigned long long)bytes, stream->gpu->name);
}

/* One of the two, the other is NULL. */
static int enqueue_work(zerod_stream *base, const struct zc_conversion *conversion,
                        const struct zc_update *update, struct zd_err *err)
{
	const struct gpu_stream *stream = gpu_of(base);
	const struct zd_cuda *driver = driver_of(stream);
	struct zc_cuda_scope scope;
	int rc = zd_cuda_err(driver, zc_cuda_enter(driver, stream->context, &scope), err,
	                     "entering a stream's context");

	if (!rc)
		rc = check_capture(stream, err);
	if (!rc && conversion)
		rc = enqueue_conversion(stream, conversion, err);
	else if (!rc)
		rc = zc_kernels_update(&stream->gpu->kernels, stream->handle, update, err);
	zc_cuda_leave(driver, &scope);
	return rc;
}

static int gpu_convert(zerod_stream *base, const struct zc_conversion *conversion, struct zd_err *err)
{
	return enqueue_work(base, conversion, NULL, err);
}

static int gpu_update(zerod_stream *base, const struct zc_update *update, struct zd_err *err)
{
	return enqueue_work(base, NULL, update, err);
}

/* ---- The stream as a whole ----------------------------------------------------------------------------- */

static bool gpu_aborted(zerod_stream *base)
{
	struct gpu_stream *stream = gpu_of(base);
	ZC_LOCKED(&stream->lock);

	return zc_open_waits_aborted(&stream->open, base->client);
}

static int gpu_synchronize(zerod_stream *base, struct zd_err *err)
{
	struct gpu_stream *stream = gpu_of(base);
	const struct zd_cuda *driver = driver_of(stream);
	struct zc_cuda_scope scope;
	int rc = zd_cuda_err(driver, zc_cuda_enter(driver, stream->context, &scope), err,
	                     "entering a stream's context");

	if (!rc)
		rc = zd_cuda_err(driver, driver->streamSynchronize(stream->handle), err,
		                 "synchronizing a stream on %s", stream->gpu->name);
	zc_cuda_leave(driver, &scope);
	if (!rc)
		zc_fence_forwarder_settle(base->client);
	return !rc && gpu_aborted(base) ? say_aborted(base->client, err) : rc;
}

static int gpu_reach(const zerod_stream *base, struct zc_segment *segment, struct zd_err *err)
{
	const struct gpu_stream *stream = (const struct gpu_stream *)base;
	const struct zc_gpu *gpu = zc_gpu_find(base->client->cuda, segment->device);

	if (segment->is_file)
		return zc_cuda_segment_register(base->client, segment, err);
	if (gpu == stream->gpu)
		return 0;
	return zd_err_set(err, ZEROD_E_INVALID, "the stream is one of %s, the bytes are on %s",
	                  stream->gpu->name, gpu ? gpu->name : "a GPU that was not joined");
}

static void gpu_reset(zerod_stream *base)
{
	struct gpu_stream *stream = gpu_of(base);
	ZC_LOCKED(&stream->lock);

	zc_open_waits_reset(&stream->open);
}

/* In the stream's context. */
static int find_gpu(struct zc_cuda *cuda, struct gpu_stream *stream, struct zd_err *err)
{
	struct zerod_client *client = stream->base.client;
	const struct zd_cuda *driver = cuda->driver;
	struct zc_gpu *gpu = NULL;
	int device = 0;
	int rc = zd_cuda_err(driver, driver->ctxGetDevice(&device), err, "finding a stream's GPU");

	if (!rc)
		rc = zc_gpu_open(client, cuda, device, &gpu, err);
	if (rc)
		return rc;
	stream->gpu = gpu;
	rc = zd_cuda_err(driver, driver->memHostGetDevicePointer(&stream->gpu_page, client->gpu_page, 0), err,
	                 "mapping the client's fence page for a stream");
	if (!rc)
		rc = zd_cuda_err(
		        driver, driver->memHostGetDevicePointer(&stream->daemon_page, client->daemon_page, 0),
		        err, "mapping the daemon's fence page for a stream");
	return rc;
}

/* A last value after the waits without a later fence: the pages must outlive the GPU's remaining work with
 * them. */
static void mark_end(struct gpu_stream *stream)
{
	const struct zd_cuda *driver = driver_of(stream);
	struct zc_cuda_scope scope;
	struct zd_err err = ZD_ERR_NONE;

	if (!stream->unmarked)
		return;
	if (!zc_cuda_enter(driver, stream->context, &scope) && !check_capture(stream, &err))
		(void)push_value(stream, NULL, &err);
	zc_cuda_leave(driver, &scope);
}

/* find_gpu() in the stream's context. */
static int find_gpu_inside(struct zc_cuda *cuda, struct gpu_stream *stream, struct zd_err *err)
{
	struct zc_cuda_scope scope;
	int rc = zd_cuda_err(cuda->driver, zc_cuda_enter(cuda->driver, stream->context, &scope), err,
	                     "entering a stream's context");

	if (!rc)
		rc = find_gpu(cuda, stream, err);
	zc_cuda_leave(cuda->driver, &scope);
	return rc;
}

static int gpu_renew(zerod_stream *base, struct zd_err *err)
{
	struct gpu_stream *stream = gpu_of(base);
	struct zc_cuda *cuda;
	int rc = zc_cuda_load(base->client, &cuda, err);

	return rc ? rc : find_gpu_inside(cuda, stream, err);
}

static void gpu_forget(zerod_stream *base)
{
	free(base);
}

static void gpu_end(zerod_stream *base)
{
	struct gpu_stream *stream = gpu_of(base);

	mark_end(stream);
	zc_open_waits_leave(base->client, &stream->open);
	zc_timeline_give(base->client, base->timeline, stream->value);
	pthread_mutex_destroy(&stream->lock);
	free(stream);
}

static const struct zc_stream_ops gpu_ops = {
        .wait = gpu_wait,
        .fence = gpu_fence,
        .convert = gpu_convert,
        .update = gpu_update,
        .converts = gpu_converts,
        .synchronize = gpu_synchronize,
        .reach = gpu_reach,
        .aborted = gpu_aborted,
        .reset = gpu_reset,
        .renew = gpu_renew,
        .end = gpu_end,
        .forget = gpu_forget,
};

/* ---- Wrapping ------------------------------------------------------------------------------------------ */

/* Asking a stream for its context may need a current one: any. */
static int ask_stream(struct zc_cuda *cuda, struct CUstream_st *handle, struct CUctx_st **context)
{
	const struct zd_cuda *driver = cuda->driver;
	struct zc_cuda_scope scope;
	int result = driver->streamGetCtx(handle, context);

	if (result != ZD_CU_INVALID_CONTEXT || cuda->ngpus == 0)
		return result;
	result = zc_cuda_enter(driver, cuda->gpus[0].context, &scope);
	if (!result)
		result = driver->streamGetCtx(handle, context);
	zc_cuda_leave(driver, &scope);
	return result;
}

static int find_context(struct zc_cuda *cuda, struct CUstream_st *handle, struct CUctx_st **context,
                        struct zd_err *err)
{
	bool legacy = !handle || handle == ZD_CU_STREAM_LEGACY;
	int result = legacy ? cuda->driver->ctxGetCurrent(context) : ask_stream(cuda, handle, context);
	int rc = zd_cuda_err(cuda->driver, result, err, "finding a stream's context");

	if (!rc && !*context)
		rc = zd_err_set(err, ZEROD_E_INVALID,
		                "the default stream needs a context, and this thread has no current one");
	return rc;
}

static int adopt(struct zc_cuda *cuda, struct gpu_stream *stream, struct zd_err *err)
{
	int rc = find_context(cuda, stream->handle, &stream->context, err);

	if (rc)
		return rc;
	rc = find_gpu_inside(cuda, stream, err);
	return rc ? rc : zc_timeline_take(stream->base.client, &stream->base.timeline, &stream->value, err);
}

static int check_arguments(const struct zerod_client *client, const void *cu_stream,
                           const zerod_stream *const *stream, struct zd_err *err)
{
	if (!stream)
		return zd_err_set(err, ZEROD_E_INVALID, "stream is NULL");
	if (!client->on_gpus)
		return zd_err_set(
		        err, ZEROD_E_UNSUPPORTED,
		        "the daemon's devices are emulated: there is no GPU whose stream could wait");
	if (cu_stream == ZD_CU_STREAM_PER_THREAD)
		return zd_err_set(
		        err, ZEROD_E_INVALID,
		        "CU_STREAM_PER_THREAD is another stream in each thread: wrap a stream of your "
		        "own, or the legacy default stream");
	return 0;
}

int zerod_cuda_stream_wrap(zerod_client *client, void *cu_stream, zerod_stream **stream)
{
	struct gpu_stream *made;
	struct zc_cuda *cuda;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_quietly(client, &err);

	if (!rc)
		rc = check_arguments(client, cu_stream, (const zerod_stream *const *)stream, err);
	if (!rc)
		rc = zc_cuda_load(client, &cuda, err);
	if (rc)
		return rc;
	made = calloc(1, sizeof(*made));
	if (!made)
		return zd_err_errno(err, ENOMEM, "wrapping a stream");
	made->base.ops = &gpu_ops;
	made->base.client = client;
	made->handle = cu_stream;
	pthread_mutex_init(&made->lock, NULL);
	rc = adopt(cuda, made, err);
	if (rc) {
		pthread_mutex_destroy(&made->lock);
		free(made);
		return rc;
	}
	zc_stream_add(&made->base);
	*stream = &made->base;
	return 0;
}
