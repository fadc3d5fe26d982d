/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cupti.c - a double of CUPTI, as far as zerobench calls it: it keeps the times and grids of the kernels that
 * the driver's double has run since they were enabled, and hands them over when it is told to.
 *
 * $ZD_DOUBLE_CUPTI "refuses": it cannot be enabled, as where another profiler is at work; "steady": each
 * kernel takes 13.2 us; "crowded": the same, and is two of 100 blocks at once; "untimed": no times are known;
 * "deaf": it records nothing; "full": it has dropped a record.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "client/zerobench/cuda_cupti.h"
#include "tests/double/kernel.h"

#define EXPORT        __attribute__((visibility("default")))
#define RECORD_BYTES  216 /* of CUDA 13: more than the part that is known */
#define MOST_KERNELS  256
#define INVALID_VALUE 1
#define INVALID_KIND  21
#define REFUSED       39
#define STEADY_NS     13200

#define DECLARE(member, name, args) EXPORT int name args;
ZD_CUPTI_FUNCTIONS(DECLARE)
#undef DECLARE

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct zd_cupti_kernel kernels[MOST_KERNELS];
static size_t nkernels;
static zd_cupti_requested_fn *requested_fn;
static zd_cupti_completed_fn *completed_fn;

static bool is(const char *what)
{
	const char *text = getenv("ZD_DOUBLE_CUPTI");

	return text && strcmp(text, what) == 0;
}

/* With the lock. */
static void keep(int blocks, uint64_t start_ns, uint64_t end_ns)
{
	if (nkernels < MOST_KERNELS)
		kernels[nkernels++] = (struct zd_cupti_kernel){.kind = ZD_CUPTI_CONCURRENT_KERNEL,
		                                               .start_ns = start_ns,
		                                               .end_ns = end_ns,
		                                               .grid_x = blocks,
		                                               .grid_y = 1,
		                                               .grid_z = 1};
}

static void on_ended(const int grid[3], uint64_t start_ns, uint64_t end_ns)
{
	int blocks = grid[0] * grid[1] * grid[2];

	if (is("deaf"))
		return;
	if (is("steady") || is("crowded"))
		end_ns = start_ns + STEADY_NS;
	if (is("untimed"))
		start_ns = end_ns = 0;
	(void)pthread_mutex_lock(&lock);
	for (int i = 0; i < 2 && is("crowded"); i++)
		keep(100, start_ns, end_ns);
	if (!is("crowded"))
		keep(blocks, start_ns, end_ns);
	(void)pthread_mutex_unlock(&lock);
}

/* False: the driver's double is not there. */
static bool listen(double_kernel_ended_fn *fn)
{
	void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	_Atomic(double_kernel_ended_fn *) *ended = driver ? dlsym(driver, "double_kernel_ended") : NULL;

	if (ended)
		atomic_store(ended, fn);
	if (driver)
		(void)dlclose(driver);
	return ended;
}

int cuptiActivityRegisterCallbacks(zd_cupti_requested_fn *requested, zd_cupti_completed_fn *completed)
{
	if (!requested || !completed)
		return INVALID_VALUE;
	requested_fn = requested;
	completed_fn = completed;
	return ZD_CUPTI_SUCCESS;
}

int cuptiActivityEnable(int kind)
{
	if (kind != ZD_CUPTI_CONCURRENT_KERNEL)
		return INVALID_KIND;
	if (is("refuses"))
		return REFUSED;
	return listen(on_ended) ? ZD_CUPTI_SUCCESS : INVALID_VALUE;
}

int cuptiActivityDisable(int kind)
{
	if (kind != ZD_CUPTI_CONCURRENT_KERNEL)
		return INVALID_KIND;
	return listen(NULL) ? ZD_CUPTI_SUCCESS : INVALID_VALUE;
}

int cuptiActivityFlushAll(uint32_t flag)
{
	uint8_t *buffer = NULL;
	size_t bytes = 0, most = 0, count;

	if (flag != ZD_CUPTI_FLUSH_FORCED || !requested_fn)
		return INVALID_VALUE;
	requested_fn(&buffer, &bytes, &most);
	if (!buffer)
		return ZD_CUPTI_SUCCESS; /* they are dropped */
	(void)pthread_mutex_lock(&lock);
	count = nkernels < bytes / RECORD_BYTES ? nkernels : bytes / RECORD_BYTES;
	for (size_t i = 0; i < count; i++)
		memcpy(buffer + i * RECORD_BYTES, &kernels[i], sizeof(kernels[i]));
	nkernels = 0;
	(void)pthread_mutex_unlock(&lock);
	completed_fn(NULL, 0, buffer, bytes, count * RECORD_BYTES);
	return ZD_CUPTI_SUCCESS;
}

int cuptiActivityGetNumDroppedRecords(struct CUctx_st *context, uint32_t stream, size_t *dropped)
{
	(void)context;
	(void)stream;
	*dropped = is("full");
	return ZD_CUPTI_SUCCESS;
}

int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid_bytes, struct zd_cupti_kernel **record)
{
	uint8_t *next = *record ? (uint8_t *)*record + RECORD_BYTES : buffer;

	if (next + RECORD_BYTES > buffer + valid_bytes)
		return ZD_CUPTI_NO_MORE_RECORDS;
	*record = (struct zd_cupti_kernel *)(void *)next;
	return ZD_CUPTI_SUCCESS;
}

int cuptiGetResultString(int result, const char **text)
{
	*text = result == REFUSED ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" : "CUPTI_ERROR";
	return ZD_CUPTI_SUCCESS;
}
