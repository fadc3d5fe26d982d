// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_profile.c - what this process's kernels hold of its GPU, as CUPTI records them: NCCL's and the library's alike.
 *
 * A kernel holds one multiprocessor for each of its blocks, from its begin to its end, and all of them at most. CUPTI's callbacks have
 * no argument: what they add up is the process's, and there is one profile at a time. CUPTI is loaded when that begins, since
 * whatever it watches is slower; it stays until the process ends.
 */
#include "client/zerobench/cuda_cupti.h"
#include "client/zerobench/cuda_gpu.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

#define BUFFER_BYTES (1u << 20)
#define BUFFER_ALIGN 8u

#define MEMBER(member, name, args) int(*member) args;
static struct {
	ZD_CUPTI_FUNCTIONS(MEMBER)
} cupti;
#undef MEMBER

/* What the callbacks add up: on CUPTI's own thread, or on the one that flushes. */
static _Atomic uint64_t held_ns, kernels, untimed;
static uint64_t multiprocessors;

static int check(int result, const char *call, struct zd_err *err)
{
	const char *text = "";
	if (result == ZD_CUPTI_SUCCESS)
		return 0;
	(void)cupti.getResultString(result, &text);
	return zd_err_set(err, ZEROD_E_UNSUPPORTED, "%s: %s (%d)", call, text, result);
}

static void on_requested(uint8_t **buffer, size_t *bytes, size_t *most)
{
	*buffer = aligned_alloc(BUFFER_ALIGN, BUFFER_BYTES);
	*bytes = *buffer ? BUFFER_BYTES : 0;
	*most = 0; /* as many as fit */
}

static void add(const struct zd_cupti_kernel *record)
{
	const uint64_t blocks = (uint64_t)record->grid_x * (uint64_t)record->grid_y *
	                        (uint64_t)record->grid_z;
	atomic_fetch_add(&kernels, 1);
	if (record->start_ns == 0 || record->end_ns < record->start_ns)
		atomic_fetch_add(&untimed, 1);
	else
		atomic_fetch_add(&held_ns,
		                 (record->end_ns - record->start_ns) * zd_min_u64(blocks, multiprocessors));
}

static void on_completed(struct CUctx_st *context, uint32_t stream, uint8_t *buffer, size_t bytes,
                         size_t valid_bytes)
{
	struct zd_cupti_kernel *record = NULL;
	(void)context;
	(void)stream;
	(void)bytes;
	while (valid_bytes > 0 && cupti.getNextRecord(buffer, valid_bytes, &record) == ZD_CUPTI_SUCCESS)
		if (record->kind == ZD_CUPTI_CONCURRENT_KERNEL)
			add(record);
	free(buffer);
}

static int load(struct zd_err *err)
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
	int count = 0;
	int status = zd_cuda_err(
	        gpu->cuda, gpu->cuda->deviceGetAttribute(&count, ZD_CU_ATTR_MULTIPROCESSORS, gpu->ordinal),
	        err, "cuDeviceGetAttribute");
	if (!status)
		status = load(err);
	if (!status)
		status = check(cupti.registerCallbacks(on_requested, on_completed),
		               "cuptiActivityRegisterCallbacks", err);
	if (!status)
		status = check(cupti.enable(ZD_CUPTI_CONCURRENT_KERNEL), "cuptiActivityEnable", err);
	multiprocessors = (uint64_t)count;
	return status;
}

int zd_profile_take(uint64_t *sm_ns, struct zd_err *err)
{
	int status = check(cupti.flushAll(ZD_CUPTI_FLUSH_FORCED), "cuptiActivityFlushAll", err);
	const uint64_t lost = atomic_exchange(&untimed, 0);
	const uint64_t seen = atomic_exchange(&kernels, 0);
	*sm_ns = atomic_exchange(&held_ns, 0) / multiprocessors;
	if (!status && lost)
		status = zd_err_set(err, ZEROD_E_UNSUPPORTED, "CUPTI has no times of %llu of %llu kernels",
		                    (unsigned long long)lost, (unsigned long long)seen);
	return status;
}

void zd_profile_end(void)
{
	(void)cupti.disable(ZD_CUPTI_CONCURRENT_KERNEL);
	(void)cupti.flushAll(ZD_CUPTI_FLUSH_FORCED);
}
