/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_offloaded_sum.c - sums that the daemon requests, computed by the trainer's GPU.
 *
 * Each GPU has streams for sums, non-blocking, of the highest priority, and in the primary context. After
 * each sum the GPU writes the next value of the stream's timeline on the client's page. This value shows the
 * daemon that the sum and its result are complete. Several streams exist because a sum waits for the kernels
 * that fill the GPU: sums on one stream would wait for one kernel each, sums on several streams wait for the
 * same kernel. The streams are few because a process has 8 hardware queues unless CUDA_DEVICE_MAX_CONNECTIONS
 * sets another number. A stream without its own queue shares one. Its launches then wait for all work that
 * another stream has queued in it, which can be hundreds of milliseconds for a trainer that runs ahead.
 *
 * The daemon never requests two sums at a time that access the same bytes. It can request a sum before the
 * inputs are complete: the stream then waits for their fences, as trainers' streams do for gathers. A sum
 * that an abort has released computes an undefined result, which the daemon does not use. Streams, kernels
 * and the page of results are created when the GPU is opened. Only the worker's thread launches.
 */
#include <stddef.h>

#include "client/lib/device/cuda_internal.h"
#include "proto/work.h"

_Static_assert(offsetof(struct zd_work_result, sum_squares) ==
                               offsetof(struct zc_reduce_result, sum_squares) &&
                       offsetof(struct zd_work_result, overflow) ==
                               offsetof(struct zc_reduce_result, overflow) &&
                       sizeof(struct zc_reduce_result) <= sizeof(struct zd_work_result),
               "a kernel's result is what the daemon reads");

int zc_sum_streams_open(struct zerod_client *client, const struct zd_cuda *driver, struct zc_gpu *gpu,
                        struct zd_err *err)
{
	int least = 0, greatest = 0, rc;

	if (!client->worker.page)
		return 0;
	rc = zd_cuda_err(driver, driver->memHostGetDevicePointer(&gpu->results, client->worker.page, 0), err,
	                 "mapping the page of results into %s", gpu->name);
	if (!rc)
		rc = zd_cuda_err(driver, driver->ctxGetStreamPriorityRange(&least, &greatest), err,
		                 "the priorities of %s", gpu->name);
	if (!rc)
		rc = zd_cuda_err(driver,
		                 driver->memHostGetDevicePointer(&gpu->daemon_page, client->daemon_page, 0),
		                 err, "mapping the daemon's fence page into %s", gpu->name);
	for (uint32_t i = 0; i < ZC_SUM_STREAMS && !rc; i++)
		rc = zd_cuda_err(driver,
		                 driver->streamCreateWithPriority(&gpu->sum_streams[i].stream,
		                                                  ZD_CU_STREAM_NON_BLOCKING, greatest),
		                 err, "a stream for sums on %s", gpu->name);
	return rc;
}

void zc_sum_streams_close(const struct zd_cuda *driver, struct zc_gpu *gpu)
{
	for (uint32_t i = 0; i < ZC_SUM_STREAMS && gpu->sum_streams[i].stream; i++) {
		(void)driver->streamDestroy(gpu->sum_streams[i].stream);
		gpu->sum_streams[i].stream = NULL;
	}
}

static bool is_busy(const uint64_t *page, const struct zc_sum_stream *sum_stream)
{
	return !zc_fence_reached(zc_counter_load(page, sum_stream->timeline), sum_stream->value);
}

bool zc_sum_streams_are_busy(const uint64_t *page, const struct zc_gpu *gpu)
{
	for (uint32_t i = 0; i < ZC_SUM_STREAMS; i++)
		if (is_busy(page, &gpu->sum_streams[i]))
			return true;
	return false;
}

/* In turn, so that all streams wait equally long. */
static struct zc_sum_stream *choose_stream(struct zc_gpu *gpu, struct zc_reduce *reduce)
{
	reduce->lane = gpu->next_sum_stream;
	gpu->next_sum_stream = (gpu->next_sum_stream + 1) % ZC_SUM_STREAMS;
	return &gpu->sum_streams[reduce->lane];
}

/* Returns the location's address on that GPU. With the client's lock. */
static int find_sum_place(struct zerod_client *client, const struct zc_gpu *gpu,
                          const struct zc_location *place, zd_cu_ptr *at, struct zd_err *err)
{
	const struct zc_segment *segment = zc_segment_find(client, place->segment);
	void *data = NULL;
	int rc;

	if (!segment || !gpu || zc_gpu_find(client->cuda, segment->device) != gpu)
		return zd_err_set(err, ZEROD_E_INVALID, "segment %u is not on the GPU of the sum's target",
		                  place->segment);
	rc = zc_location_map(client, place, &data, err);
	if (!rc)
		*at = (zd_cu_ptr)data;
	return rc;
}

/* With the client's lock. The locations remain mapped, because the daemon does not retire their segments
 * before it sees the fence. */
static int find_sum_places(struct zerod_client *client, const struct zc_offloaded_sum *sum,
                           struct zc_gpu **gpu, zd_cu_ptr *inputs, zd_cu_ptr *target, struct zd_err *err)
{
	const struct zc_segment *segment = zc_segment_find(client, sum->target.segment);
	int rc;

	*gpu = segment ? zc_gpu_find(client->cuda, segment->device) : NULL;
	rc = find_sum_place(client, *gpu, &sum->target, target, err);
	for (uint32_t i = 0; i < sum->ninputs && !rc; i++)
		rc = find_sum_place(client, *gpu, &sum->inputs[i], &inputs[i], err);
	return rc;
}

/* In the GPU's context. */
static int order_fences(const struct zerod_client *client, const struct zc_gpu *gpu,
                        const struct zc_sum_stream *sum_stream, const struct zc_offloaded_sum *sum,
                        struct zd_err *err)
{
	const struct zd_cuda *driver = ((const struct zc_cuda *)client->cuda)->driver;
	int rc = 0;

	for (uint32_t i = 0; i < sum->nfences && !rc; i++) {
		const struct zc_fence *fence = &sum->fences[i];

		if (zc_fence_reached(zc_counter_load(client->daemon_page, fence->timeline), fence->value))
			continue;
		rc = zd_cuda_err(
		        driver,
		        driver->streamWaitValue64(sum_stream->stream,
		                                  gpu->daemon_page + fence->timeline * sizeof(uint64_t),
		                                  fence->value, ZD_CU_WAIT_GEQ),
		        err, "ordering a sum behind its inputs on %s", gpu->name);
	}
	return rc;
}

/* In the GPU's context. */
static int launch_sum(const struct zd_cuda *driver, struct zc_gpu *gpu, struct zc_sum_stream *sum_stream,
                      const struct zc_reduce *reduce, uint32_t slot, bool *launched, struct zd_err *err)
{
	zd_cu_ptr counter = gpu->gpu_page + sum_stream->timeline * sizeof(uint64_t);
	zd_cu_ptr result = gpu->results + slot * sizeof(struct zd_work_result);
	int rc = zc_kernels_reduce(&gpu->kernels, sum_stream->stream, reduce, result, err);

	if (rc)
		return rc;
	*launched = true;
	rc = zd_cuda_err(driver,
	                 driver->streamWriteValue64(sum_stream->stream, counter, sum_stream->value + 1,
	                                            ZD_CU_WRITE_DEFAULT),
	                 err, "writing a fence on %s", gpu->name);
	if (rc) /* no counter will show the kernel's end. A lost context runs no kernels */
		(void)driver->streamSynchronize(sum_stream->stream);
	else
		sum_stream->value++;
	return rc;
}

static int launch_in_context(struct zerod_client *client, struct zc_gpu *gpu,
                             struct zc_sum_stream *sum_stream, const struct zc_reduce *reduce,
                             const struct zc_offloaded_sum *sum, bool *launched, struct zd_err *err)
{
	const struct zd_cuda *driver = ((const struct zc_cuda *)client->cuda)->driver;
	struct zc_forwarded_fence *forwarded = NULL;
	struct zc_cuda_scope scope;
	int rc = zc_forwarded_fence_new(client, NULL, &forwarded, err);

	if (rc)
		return rc;
	rc = zd_cuda_err(driver, zc_cuda_enter(driver, gpu->context, &scope), err, "entering %s", gpu->name);
	if (!rc)
		rc = order_fences(client, gpu, sum_stream, sum, err);
	if (!rc)
		rc = launch_sum(driver, gpu, sum_stream, reduce, sum->slot, launched, err);
	zc_cuda_leave(driver, &scope);
	zc_forwarded_fence_enqueue(client, forwarded,
	                           (struct zc_fence){sum_stream->timeline, sum_stream->value}, rc);
	return rc;
}

int zc_cuda_offloaded_sum(struct zerod_client *client, const struct zc_offloaded_sum *sum,
                          struct zc_fence *fence, bool *launched, struct zd_err *err)
{
	zd_cu_ptr inputs[ZD_MAX_WORLD];
	struct zc_reduce reduce = {
	        .input_dtype = sum->input_dtype,
	        .target_dtype = sum->target_dtype,
	        .ninputs = sum->ninputs,
	        .inputs = inputs,
	        .numel = sum->numel,
	        .prescale = sum->prescale,
	        .postscale = sum->postscale,
	        .overwrite = sum->overwrite,
	};
	struct zc_sum_stream *sum_stream;
	struct zc_gpu *gpu;
	int rc;

	pthread_mutex_lock(&client->lock);
	rc = find_sum_places(client, sum, &gpu, inputs, &reduce.target, err);
	pthread_mutex_unlock(&client->lock);
	if (rc)
		return rc;
	sum_stream = choose_stream(gpu, &reduce);
	rc = launch_in_context(client, gpu, sum_stream, &reduce, sum, launched, err);
	if (!rc)
		*fence = (struct zc_fence){sum_stream->timeline, sum_stream->value};
	return rc;
}

/* ---- GPUs that fail ------------------------------------------------------------------------------------ */

bool zc_cuda_offloaded_sums_are_open(const struct zerod_client *client)
{
	const struct zc_cuda *cuda = client->cuda;

	for (unsigned i = 0; i < cuda->ngpus; i++)
		if (zc_sum_streams_are_busy(client->gpu_page, &cuda->gpus[i]))
			return true;
	return false;
}

/* A lost context returns the error that caused the loss, for every call. */
static int check_gpu(const struct zd_cuda *driver, const struct zc_gpu *gpu, struct zd_err *err)
{
	struct zc_cuda_scope scope;
	size_t available, total;
	int result = zc_cuda_enter(driver, gpu->context, &scope);

	if (!result)
		result = driver->memGetInfo(&available, &total);
	zc_cuda_leave(driver, &scope);
	return zd_cuda_err(driver, result, err, "a sum on %s", gpu->name);
}

int zc_cuda_offloaded_sums_check(struct zerod_client *client, struct zd_err *err)
{
	const struct zc_cuda *cuda = client->cuda;
	int rc = 0;

	for (unsigned i = 0; i < cuda->ngpus && !rc; i++)
		if (zc_sum_streams_are_busy(client->gpu_page, &cuda->gpus[i]))
			rc = check_gpu(cuda->driver, &cuda->gpus[i], err);
	return rc;
}
