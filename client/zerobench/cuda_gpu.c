// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_gpu.c - a GPU as a measuring process uses it: context, stream, marks and memory.
 */
#include "client/zerobench/cuda_gpu.h"

#include <string.h>

#include "client/zerobench/bench.h"

#define AWAIT_DEADLINE_NS 30000000000ull
#define ASK_AFTER_NS      1000000000ull /* between two queries of the stream, which cost more */
#define SPINS_A_LOOK      1024u         /* between two reads of the clock */

/* ---- Opening ------------------------------------------------------------------------------------------- */

static int make_marks(struct zd_gpu *gpu, struct zd_err *err)
{
	void *marks = NULL;
	int status =
	        zd_cuda_err(gpu->cuda,
	                    gpu->cuda->memHostAlloc(&marks, ZD_GPU_MARKS * sizeof(*gpu->marks),
	                                            ZD_CU_HOST_ALLOC_PORTABLE | ZD_CU_HOST_ALLOC_DEVICEMAP),
	                    err, "pinned host memory");
	if (status)
		return status;
	gpu->marks = marks;
	memset(marks, 0, ZD_GPU_MARKS * sizeof(*gpu->marks));
	return zd_cuda_err(gpu->cuda, gpu->cuda->memHostGetDevicePointer(&gpu->marks_at, marks, 0), err,
	                   "the address of pinned host memory");
}

static int open_context(struct zd_gpu *gpu, struct zd_err *err)
{
	int device = 0;
	int status = zd_cuda_err(gpu->cuda, gpu->cuda->deviceGet(&device, gpu->ordinal), err, "GPU %d",
	                         gpu->ordinal);
	if (!status)
		status = zd_cuda_err(gpu->cuda, gpu->cuda->devicePrimaryCtxRetain(&gpu->context, device), err,
		                     "the primary context of GPU %d", gpu->ordinal);
	if (!status)
		status = zd_gpu_enter(gpu, err);
	if (!status)
		status = zd_gpu_stream(gpu, true, &gpu->stream, err);
	return status ? status : make_marks(gpu, err);
}

int zd_gpu_open_ordinal(struct zd_gpu *gpu, int ordinal, struct zd_err *err)
{
	*gpu = (struct zd_gpu){.ordinal = ordinal};
	int status = zd_cuda_load(&gpu->cuda, err);
	if (status)
		return status;
	status = open_context(gpu, err);
	if (status)
		zd_gpu_close(gpu);
	return status;
}

int zd_gpu_open(struct zd_gpu *gpu, const char *name, struct zd_err *err)
{
	const struct zd_cuda *cuda;
	int ordinal = 0;
	*gpu = (struct zd_gpu){0};
	int status = zd_cuda_load(&cuda, err);
	if (!status)
		status = zd_cuda_find_device(cuda, name, &ordinal, err);
	return status ? status : zd_gpu_open_ordinal(gpu, ordinal, err);
}

void zd_gpu_close(struct zd_gpu *gpu)
{
	if (gpu->context) {
		if (gpu->marks)
			(void)gpu->cuda->memFreeHost((void *)gpu->marks);
		if (gpu->stream)
			(void)gpu->cuda->streamDestroy(gpu->stream);
		(void)gpu->cuda->ctxSetCurrent(NULL);
		(void)gpu->cuda->devicePrimaryCtxRelease(gpu->ordinal);
	}
	*gpu = (struct zd_gpu){0};
}

int zd_gpu_enter(const struct zd_gpu *gpu, struct zd_err *err)
{
	return zd_cuda_err(gpu->cuda, gpu->cuda->ctxSetCurrent(gpu->context), err, "entering GPU %d",
	                   gpu->ordinal);
}

/* ---- Streams and marks --------------------------------------------------------------------------------- */

int zd_gpu_stream(const struct zd_gpu *gpu, bool high_priority, struct CUstream_st **stream,
                  struct zd_err *err)
{
	int least = 0, greatest = 0;
	int status = zd_cuda_err(gpu->cuda, gpu->cuda->ctxGetStreamPriorityRange(&least, &greatest), err,
	                         "priorities of streams");
	if (status)
		return status;
	return zd_cuda_err(gpu->cuda,
	                   gpu->cuda->streamCreateWithPriority(stream, ZD_CU_STREAM_NON_BLOCKING,
	                                                       high_priority ? greatest : least),
	                   err, "a stream");
}

int zd_gpu_mark(const struct zd_gpu *gpu, struct CUstream_st *stream, unsigned mark, uint64_t value,
                struct zd_err *err)
{
	return zd_cuda_err(gpu->cuda,
	                   gpu->cuda->streamWriteValue64(stream, gpu->marks_at + mark * sizeof(*gpu->marks),
	                                                 value, ZD_CU_WRITE_DEFAULT),
	                   err, "a write-value");
}

int zd_gpu_await(const struct zd_gpu *gpu, struct CUstream_st *stream, unsigned mark, uint64_t value,
                 struct zd_err *err)
{
	const uint64_t begin_ns = zd_bench_now_ns();
	for (;;) {
		for (unsigned spin = 0; spin < SPINS_A_LOOK; spin++)
			if (atomic_load_explicit(&gpu->marks[mark], memory_order_acquire) >= value)
				return 0;
		const uint64_t waited_ns = zd_bench_now_ns() - begin_ns;
		if (waited_ns < ASK_AFTER_NS)
			continue;
		const int result = gpu->cuda->streamQuery(stream);
		if (result != ZD_CU_SUCCESS && result != ZD_CU_NOT_READY)
			return zd_cuda_err(gpu->cuda, result, err, "a stream that was waited for");
		if (waited_ns > AWAIT_DEADLINE_NS)
			return zd_err_set(err, ZEROD_E_DEADLINE, "a stream did not reach its mark in %d s",
			                  (int)(AWAIT_DEADLINE_NS / 1000000000));
	}
}

int zd_gpu_synchronize(const struct zd_gpu *gpu, struct CUstream_st *stream, struct zd_err *err)
{
	return zd_cuda_err(gpu->cuda, gpu->cuda->streamSynchronize(stream), err, "synchronizing a stream");
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

static int map_memory(const struct zd_gpu *gpu, uint32_t ngpus, struct zd_gpu_memory *memory,
                      struct zd_err *err)
{
	struct zd_cu_access access[ZD_GPU_MAX];
	const uint32_t count = ngpus ? ngpus : 1;
	for (uint32_t i = 0; i < count; i++)
		access[i] = (struct zd_cu_access){
		        .location = {ZD_CU_LOCATION_DEVICE, ngpus ? (int)i : gpu->ordinal},
		        .flags = ZD_CU_ACCESS_READWRITE};
	int status = zd_cuda_err(gpu->cuda, gpu->cuda->memAddressReserve(&memory->at, memory->bytes, 0, 0, 0),
	                         err, "addresses for %llu bytes", (unsigned long long)memory->bytes);
	if (!status)
		status = zd_cuda_err(gpu->cuda,
		                     gpu->cuda->memMap(memory->at, memory->bytes, 0, memory->handle, 0), err,
		                     "mapping %llu bytes", (unsigned long long)memory->bytes);
	if (!status)
		status = zd_cuda_err(gpu->cuda,
		                     gpu->cuda->memSetAccess(memory->at, memory->bytes, access, count), err,
		                     "giving %u GPUs access", count);
	return status;
}

int zd_gpu_memory_new(const struct zd_gpu *gpu, uint64_t bytes, uint32_t ngpus, struct zd_gpu_memory *memory,
                      struct zd_err *err)
{
	const struct zd_cu_allocation allocation = {
	        .type = ZD_CU_ALLOCATION_PINNED,
	        .location = {ZD_CU_LOCATION_DEVICE, gpu->ordinal},
	};
	size_t granularity = 0;
	*memory = (struct zd_gpu_memory){0};
	int status = zd_cuda_err(
	        gpu->cuda,
	        gpu->cuda->memGetAllocationGranularity(&granularity, &allocation, ZD_CU_GRANULARITY_MINIMUM),
	        err, "the granularity of GPU %d", gpu->ordinal);
	if (status)
		return status;
	memory->bytes = (bytes + granularity - 1) / granularity * granularity;
	status = zd_cuda_err(gpu->cuda, gpu->cuda->memCreate(&memory->handle, memory->bytes, &allocation, 0),
	                     err, "%llu bytes on GPU %d", (unsigned long long)memory->bytes, gpu->ordinal);
	return status ? status : map_memory(gpu, ngpus, memory, err);
}

void zd_gpu_memory_free(const struct zd_gpu *gpu, struct zd_gpu_memory *memory)
{
	if (memory->at) {
		(void)gpu->cuda->memUnmap(memory->at, memory->bytes);
		(void)gpu->cuda->memAddressFree(memory->at, memory->bytes);
		(void)gpu->cuda->memRelease(memory->handle);
	}
	*memory = (struct zd_gpu_memory){0};
}

int zd_gpu_write(const struct zd_gpu *gpu, zd_cu_ptr to, const void *from, uint64_t bytes, struct zd_err *err)
{
	int status = zd_cuda_err(gpu->cuda, gpu->cuda->memcpyHtoDAsync(to, from, bytes, gpu->stream), err,
	                         "writing %llu bytes", (unsigned long long)bytes);
	return status ? status : zd_gpu_synchronize(gpu, gpu->stream, err);
}

int zd_gpu_read(const struct zd_gpu *gpu, void *to, zd_cu_ptr from, uint64_t bytes, struct zd_err *err)
{
	int status = zd_cuda_err(gpu->cuda, gpu->cuda->memcpyDtoHAsync(to, from, bytes, gpu->stream), err,
	                         "reading %llu bytes", (unsigned long long)bytes);
	return status ? status : zd_gpu_synchronize(gpu, gpu->stream, err);
}
