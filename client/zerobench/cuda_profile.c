// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_profile.c - the share of the GPU that this process's kernels occupy, as recorded by CUPTI. The kernels
 * are NCCL's and the library's.
 *
 * A kernel occupies one multiprocessor for each of its blocks, from its start to its end. All kernels
 * together occupy at most as many as the GPU has. CUPTI's callbacks have no argument: their records are those
 * of the process, which has one profile at a time. CUPTI is loaded when the profile starts, because it slows
 * everything that it records. It remains loaded until the process ends.
 */
#include "client/zerobench/cuda_cupti.h"
#include "client/zerobench/cuda_gpu.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

#define BUFFER_BYTES (1u << 20)
#define BUFFER_ALIGN 8u
#define MOST_KERNELS 64u /* that are recorded at a time */

#define MEMBER(member, name, args) int(*member) args; /* NOLINT: a declarator */
static struct {
	ZD_CUPTI_FUNCTIONS(MEMBER)
} cupti;
#undef MEMBER

struct kernel {
	uint64_t start_ns, end_ns, blocks;
};

static uint64_t multiprocessors;

/* Kernels that CUPTI's callbacks have reported, on CUPTI's own thread or on the thread that flushes. */
static struct {
	pthread_mutex_t lock;
	struct kernel kernels[MOST_KERNELS];
	uint32_t count;
	uint64_t lost; /* without times, or without room */
} recorded = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int check_cupti(int result, const char *call, struct zd_err *err)
{
	const char *text = "";
	if (result == ZD_CUPTI_SUCCESS)
		return 0;
	(void)cupti.getResultString(result, &text);
	return zd_err_set(err, ZEROD_E_UNSUPPORTED, "%s: %s (%d)", call, text, result);
}

/* ---- Records ------------------------------------------------------------------------------------------- */

/* Without a buffer CUPTI counts what it drops. */
static void on_requested(uint8_t **buffer, size_t *bytes, size_t *most)
{
	*buffer = aligned_alloc(BUFFER_ALIGN, BUFFER_BYTES);
	*bytes = *buffer ? BUFFER_BYTES : 0;
	*most = 0; /* as many as fit */
}

/* Called with the lock. */
static void add_kernel(const struct zd_cupti_kernel *record)
{
	const uint64_t blocks = (uint64_t)record->grid_x * (uint64_t)record->grid_y *
	                        (uint64_t)record->grid_z;
	if (record->start_ns == 0 || record->end_ns < record->start_ns || recorded.count == MOST_KERNELS)
		recorded.lost++;
	else
		recorded.kernels[recorded.count++] = (struct kernel){record->start_ns, record->end_ns,
		                                                     blocks};
}

static void on_completed(struct CUctx_st *context, uint32_t stream, uint8_t *buffer, size_t bytes,
                         size_t valid_bytes)
{
	struct zd_cupti_kernel *record = NULL;
	(void)context;
	(void)stream;
	(void)bytes;
	pthread_mutex_lock(&recorded.lock);
	while (valid_bytes > 0 && cupti.getNextRecord(buffer, valid_bytes, &record) == ZD_CUPTI_SUCCESS)
		if (record->kind == ZD_CUPTI_CONCURRENT_KERNEL)
			add_kernel(record);
	pthread_mutex_unlock(&recorded.lock);
	free(buffer);
}

/* ---- What they come to --------------------------------------------------------------------------------- */

/* Returns the multiprocessors that are occupied from `begin_ns` on, until the next kernel starts or ends.
 * *until_ns is that time. */
static uint64_t held_from(uint64_t begin_ns, uint64_t *until_ns)
{
	uint64_t blocks = 0;
	*until_ns = UINT64_MAX;
	for (uint32_t i = 0; i < recorded.count; i++) {
		const struct kernel *kernel = &recorded.kernels[i];
		if (kernel->start_ns <= begin_ns && begin_ns < kernel->end_ns)
			blocks += kernel->blocks;
		if (kernel->start_ns > begin_ns)
			*until_ns = zd_min_u64(*until_ns, kernel->start_ns);
		if (kernel->end_ns > begin_ns)
			*until_ns = zd_min_u64(*until_ns, kernel->end_ns);
	}
	return zd_min_u64(blocks, multiprocessors);
}

/* Returns the occupied time, in ns of one multiprocessor. */
static uint64_t held_ns(void)
{
	uint64_t sum = 0, at_ns = 0, until_ns;
	uint64_t held = held_from(at_ns, &until_ns);
	while (until_ns != UINT64_MAX) {
		sum += held * (until_ns - at_ns);
		at_ns = until_ns;
		held = held_from(at_ns, &until_ns);
	}
	return sum;
}

/* ---- Beginning and end --------------------------------------------------------------------------------- */

static int load_cupti(struct zd_err *err)
{
	static const char *const libraries[] = {"libcupti.so.13", "libcupti.so.12", NULL};
#define FUNCTION(member, name, args) {#name, offsetof(__typeof__(cupti), member)},
	static const struct zd_library_function functions[] = {ZD_CUPTI_FUNCTIONS(FUNCTION)};
#undef FUNCTION
	char where[256];
	void *library;
	int status = zd_library_load(libraries, NULL, &library, where, sizeof(where), err);
	return status ? status
	              : zd_library_functions(library, where, functions, ZD_ARRAY_LEN(functions), &cupti, err);
}

int zd_profile_begin(const struct zd_gpu *gpu, struct zd_err *err)
{
	int count = 1;
	int status = zd_cuda_err(
	        gpu->cuda, gpu->cuda->deviceGetAttribute(&count, ZD_CU_ATTR_MULTIPROCESSORS, gpu->ordinal),
	        err, "cuDeviceGetAttribute");
	multiprocessors = (uint64_t)count;
	if (!status)
		status = load_cupti(err);
	if (!status)
		status = check_cupti(cupti.registerCallbacks(on_requested, on_completed),
		                     "cuptiActivityRegisterCallbacks", err);
	if (!status)
		status = check_cupti(cupti.enable(ZD_CUPTI_CONCURRENT_KERNEL), "cuptiActivityEnable", err);
	return status;
}

/* All records are complete when the GPU is idle. */
static int flush(const struct zd_gpu *gpu, struct zd_err *err)
{
	size_t dropped = 0;
	int status = zd_cuda_err(gpu->cuda, gpu->cuda->ctxSynchronize(), err, "cuCtxSynchronize");
	if (!status)
		status = check_cupti(cupti.flushAll(ZD_CUPTI_FLUSH_FORCED), "cuptiActivityFlushAll", err);
	if (!status)
		status = check_cupti(cupti.getNumDroppedRecords(NULL, 0, &dropped),
		                     "cuptiActivityGetNumDroppedRecords", err);
	if (!status && dropped)
		status = zd_err_set(err, ZEROD_E_UNSUPPORTED, "CUPTI has dropped %zu records", dropped);
	return status;
}

int zd_profile_take(const struct zd_gpu *gpu, uint64_t *sm_ns, struct zd_err *err)
{
	int status = flush(gpu, err);
	pthread_mutex_lock(&recorded.lock);
	if (!status && recorded.lost)
		status = zd_err_set(err, ZEROD_E_UNSUPPORTED, "CUPTI has no times of %llu kernels",
		                    (unsigned long long)recorded.lost);
	if (!status)
		*sm_ns = held_ns() / multiprocessors;
	recorded.count = 0;
	recorded.lost = 0;
	pthread_mutex_unlock(&recorded.lock);
	return status;
}

void zd_profile_end(void)
{
	(void)cupti.disable(ZD_CUPTI_CONCURRENT_KERNEL);
	(void)cupti.flushAll(ZD_CUPTI_FLUSH_FORCED);
}
