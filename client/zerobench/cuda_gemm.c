// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_gemm.c - a trainer's load: bf16 matrix products by cuBLAS. The operands are random, because a product
 * of zeros runs faster than one of real data.
 */
#include "client/zerobench/cuda_gpu.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "base/mem.h"
#include "client/zerobench/bench.h"

/* cuBLAS' interface, as far as it is used. */
enum { CUBLAS_OP_N = 0, CUBLAS_GEMM_DEFAULT = -1, CUBLAS_COMPUTE_32F = 68, CUDA_R_16BF = 14 };

struct cublas {
	int (*create)(void **handle);
	int (*destroy)(void *handle);
	int (*setStream)(void *handle, struct CUstream_st *stream);
	int (*gemmEx)(void *handle, int transa, int transb, int m, int n, int k, const void *alpha,
	              const void *a, int a_type, int lda, const void *b, int b_type, int ldb,
	              const void *beta, void *c, int c_type, int ldc, int compute, int algorithm);
};

static const struct zd_library_function functions[] = {
        {"cublasCreate_v2", offsetof(struct cublas, create)},
        {"cublasDestroy_v2", offsetof(struct cublas, destroy)},
        {"cublasSetStream_v2", offsetof(struct cublas, setStream)},
        {"cublasGemmEx", offsetof(struct cublas, gemmEx)},
};

/* A batch has products of about 1.5 ms, so that the queued ones last for the longest gather. */
#define BATCHES     6
#define WARM_UP     5
#define LARGE_SIDE  8192u /* one product per batch */
#define BATCH_LIMIT 64u   /* launches; a hardware queue has room for some hundred */
#define SETTLE_NS   500000000u
#define PAUSE_NS    1000000 /* less than the time of the queued products */

struct zd_gemm {
	const struct zd_gpu *gpu;
	struct cublas cublas;
	void *handle;
	struct CUstream_st *stream;
	struct zd_gpu_memory matrices;
	uint32_t side;
	uint32_t batch, run;              /* products */
	struct CUevent_st *ends[BATCHES]; /* of batches, in a ring */
	unsigned first, queued;
	struct CUevent_st *marks[ZD_GEMM_RUNS + 1]; /* between timed runs */
};

static uint64_t matrix_bytes(const struct zd_gemm *gemm)
{
	return (uint64_t)gemm->side * gemm->side * sizeof(uint16_t);
}

static int cublas_status(int result, struct zd_err *err, const char *call)
{
	return result ? zd_err_set(err, ZEROD_E_DEVICE, "%s: cuBLAS status %d", call, result) : 0;
}

/* Values between -0.5 and 0.5. Bits of bfloat16 are the upper half of float32's. */
static int fill_matrix(const struct zd_gemm *gemm, unsigned index, struct zd_err *err)
{
	const uint64_t numel = (uint64_t)gemm->side * gemm->side;
	uint16_t *values = zd_calloc(numel, sizeof(*values));
	uint32_t random = 12345 + index;
	for (uint64_t i = 0; i < numel; i++) {
		uint32_t bits;
		random = random * 1664525u + 1013904223u;
		const float value = (float)(random >> 8) * 0x1p-24f - 0.5f;
		memcpy(&bits, &value, sizeof(bits));
		values[i] = (uint16_t)(bits >> 16);
	}
	int status = zd_gpu_write(gemm->gpu, gemm->matrices.at + index * matrix_bytes(gemm), values,
	                          matrix_bytes(gemm), err);
	free(values);
	return status;
}

static int multiply(struct zd_gemm *gemm, uint32_t products, struct zd_err *err)
{
	const float one = 1, zero = 0;
	const int side = (int)gemm->side;
	const uint64_t bytes = matrix_bytes(gemm);
	const char *at =
	        (const char *)gemm->matrices.at; /* NOLINT(performance-no-int-to-ptr): cuBLAS wants it so */
	for (uint32_t i = 0; i < products; i++) {
		int status = cublas_status(gemm->cublas.gemmEx(gemm->handle, CUBLAS_OP_N, CUBLAS_OP_N, side,
		                                               side, side, &one, at, CUDA_R_16BF, side,
		                                               at + bytes, CUDA_R_16BF, side, &zero,
		                                               (void *)(at + 2 * bytes), CUDA_R_16BF, side,
		                                               CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
		                           err, "cublasGemmEx");
		if (status)
			return status;
	}
	return 0;
}

static int make_events(struct zd_gemm *gemm, struct zd_err *err)
{
	int result = 0;
	for (unsigned i = 0; i < BATCHES && !result; i++)
		result = gemm->gpu->cuda->eventCreate(&gemm->ends[i], ZD_CU_EVENT_DISABLE_TIMING);
	for (unsigned i = 0; i <= ZD_GEMM_RUNS && !result; i++)
		result = gemm->gpu->cuda->eventCreate(&gemm->marks[i], 0);
	return zd_cuda_err(gemm->gpu->cuda, result, err, "events");
}

static int prepare_product(struct zd_gemm *gemm, struct zd_err *err)
{
	int status = cublas_status(gemm->cublas.create(&gemm->handle), err, "cublasCreate");
	if (!status)
		status = zd_gpu_stream(gemm->gpu, false, &gemm->stream, err);
	if (!status)
		status = cublas_status(gemm->cublas.setStream(gemm->handle, gemm->stream), err,
		                       "cublasSetStream");
	if (!status)
		status = zd_gpu_memory_new(gemm->gpu, 3 * matrix_bytes(gemm), 0, &gemm->matrices, err);
	for (unsigned i = 0; i < 2 && !status; i++)
		status = fill_matrix(gemm, i, err);
	if (!status)
		status = make_events(gemm, err);
	if (!status)
		status = multiply(gemm, WARM_UP, err);
	return status ? status : zd_gemm_finish(gemm, err);
}

int zd_gemm_new(const struct zd_gpu *gpu, uint32_t side, const char *cublas_path, struct zd_gemm **gemm,
                struct zd_err *err)
{
	static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", NULL};
	char where[256];
	void *library;
	struct zd_gemm *made = zd_calloc(1, sizeof(*made));
	made->gpu = gpu;
	made->side = side;
	const uint32_t ratio = side < LARGE_SIDE ? LARGE_SIDE / side : 1;
	made->batch = (uint32_t)zd_min_u64((uint64_t)ratio * ratio * ratio, BATCH_LIMIT);
	made->run = 10 * (uint32_t)zd_min_u64(ratio, 4);
	int status = zd_library_load(names, cublas_path, &library, where, sizeof(where), err);
	if (!status)
		status = zd_library_functions(library, where, functions, ZD_ARRAY_LEN(functions),
		                              &made->cublas, err);
	if (!status)
		status = prepare_product(made, err);
	if (status) {
		zd_gemm_free(made);
		return status;
	}
	*gemm = made;
	return 0;
}

void zd_gemm_free(struct zd_gemm *gemm)
{
	if (!gemm)
		return;
	const struct zd_cuda *cuda = gemm->gpu->cuda;
	if (gemm->stream)
		(void)cuda->streamSynchronize(gemm->stream);
	for (unsigned i = 0; i < BATCHES; i++)
		if (gemm->ends[i])
			(void)cuda->eventDestroy(gemm->ends[i]);
	for (unsigned i = 0; i <= ZD_GEMM_RUNS; i++)
		if (gemm->marks[i])
			(void)cuda->eventDestroy(gemm->marks[i]);
	if (gemm->handle)
		(void)gemm->cublas.destroy(gemm->handle);
	zd_gpu_memory_free(gemm->gpu, &gemm->matrices);
	if (gemm->stream)
		(void)cuda->streamDestroy(gemm->stream);
	free(gemm);
}

static int queue_batch(struct zd_gemm *gemm, struct zd_err *err)
{
	int status = multiply(gemm, gemm->batch, err);
	if (status)
		return status;
	struct CUevent_st *end = gemm->ends[(gemm->first + gemm->queued) % BATCHES];
	gemm->queued++;
	return zd_cuda_err(gemm->gpu->cuda, gemm->gpu->cuda->eventRecord(end, gemm->stream), err, "an event");
}

static int drop_passed(struct zd_gemm *gemm, struct zd_err *err)
{
	while (gemm->queued) {
		const int result = gemm->gpu->cuda->eventQuery(gemm->ends[gemm->first]);
		if (result == ZD_CU_NOT_READY)
			return 0;
		if (result)
			return zd_cuda_err(gemm->gpu->cuda, result, err, "products of matrices");
		gemm->first = (gemm->first + 1) % BATCHES;
		gemm->queued--;
	}
	return 0;
}

int zd_gemm_fill(struct zd_gemm *gemm, struct zd_err *err)
{
	int status = 0;
	if (!gemm)
		return 0;
	status = drop_passed(gemm, err);
	while (!status && gemm->queued < BATCHES)
		status = queue_batch(gemm, err);
	return status;
}

int zd_gemm_settle(struct zd_gemm *gemm, struct zd_err *err)
{
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	const uint64_t begin_ns = zd_bench_now_ns();
	int status = 0;
	while (gemm && !status && zd_bench_now_ns() - begin_ns < SETTLE_NS) {
		status = zd_gemm_fill(gemm, err);
		nanosleep(&pause, NULL);
	}
	return status;
}

int zd_gemm_append(struct zd_gemm *gemm, struct CUstream_st *stream, uint32_t products, struct zd_err *err)
{
	int status = cublas_status(gemm->cublas.setStream(gemm->handle, stream), err, "cublasSetStream");
	if (!status)
		status = multiply(gemm, products, err);
	return status ? status
	              : cublas_status(gemm->cublas.setStream(gemm->handle, gemm->stream), err,
	                              "cublasSetStream");
}

bool zd_gemm_runs(struct zd_gemm *gemm)
{
	return gemm->gpu->cuda->streamQuery(gemm->stream) == ZD_CU_NOT_READY;
}

int zd_gemm_finish(struct zd_gemm *gemm, struct zd_err *err)
{
	return zd_gpu_synchronize(gemm->gpu, gemm->stream, err);
}

uint32_t zd_gemm_run_products(const struct zd_gemm *gemm)
{
	return gemm->run;
}

int zd_gemm_timed_begin(struct zd_gemm *gemm, struct zd_err *err)
{
	const struct zd_cuda *cuda = gemm->gpu->cuda;
	int status = zd_cuda_err(cuda, cuda->eventRecord(gemm->marks[0], gemm->stream), err, "an event");
	for (unsigned i = 0; i < ZD_GEMM_RUNS && !status; i++) {
		status = multiply(gemm, gemm->run, err);
		if (!status)
			status = zd_cuda_err(cuda, cuda->eventRecord(gemm->marks[i + 1], gemm->stream), err,
			                     "an event");
	}
	return status;
}

int zd_gemm_timed_end(struct zd_gemm *gemm, uint64_t product_ns[ZD_GEMM_RUNS], struct zd_err *err)
{
	const struct zd_cuda *cuda = gemm->gpu->cuda;
	int status = zd_gemm_finish(gemm, err);
	for (unsigned i = 0; i < ZD_GEMM_RUNS && !status; i++) {
		float ms = 0;
		status = zd_cuda_err(cuda, cuda->eventElapsedTime(&ms, gemm->marks[i], gemm->marks[i + 1]),
		                     err, "the time between events");
		product_ns[i] = (uint64_t)((double)ms * 1e6 / gemm->run);
	}
	return status;
}
