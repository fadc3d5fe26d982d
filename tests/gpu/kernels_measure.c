/* SPDX-License-Identifier: Apache-2.0 */
/* kernels_measure.c - how many bytes the library's kernels read and write in a second. */
#include <stdio.h>

#include "base/mem.h"
#include "tests/gpu/kernels_check.h"

#define MiB     (1ull << 20)
#define WARM_UP 3u
#define ROUNDS  20u

struct measured {
	struct checks *checks;
	struct zd_gpu_memory from, to, result;
	struct CUevent_st *begin, *end;
	struct zc_reduce reduce;
	struct zc_conversion conversion; /* unless numel is 0, this one */
	struct zc_update update;         /* so here */
};

static const struct {
	enum zerod_dtype input, target;
	bool overwrite;
} sums[] = {
        {ZEROD_BFLOAT16, ZEROD_BFLOAT16, true}, {ZEROD_BFLOAT16, ZEROD_FLOAT32, true},
        {ZEROD_BFLOAT16, ZEROD_FLOAT32, false}, {ZEROD_FLOAT16, ZEROD_FLOAT16, true},
        {ZEROD_FLOAT32, ZEROD_FLOAT32, true},
};

static const enum zerod_dtype casts[][2] = {
        {ZEROD_FLOAT32, ZEROD_BFLOAT16},     {ZEROD_FLOAT32, ZEROD_FLOAT16},
        {ZEROD_FLOAT32, ZEROD_FLOAT8_E4M3},  {ZEROD_BFLOAT16, ZEROD_FLOAT32},
        {ZEROD_BFLOAT16, ZEROD_FLOAT8_E5M2}, {ZEROD_FLOAT16, ZEROD_BFLOAT16},
};

static int launch(struct measured *measured)
{
	struct checks *checks = measured->checks;

	if (measured->update.numel > 0)
		return zc_kernels_update(&checks->kernels, checks->gpu.stream, &measured->update,
		                         &checks->err);
	if (measured->conversion.numel > 0)
		return zc_kernels_cast(&checks->kernels, checks->gpu.stream, &measured->conversion,
		                       &checks->err);
	return zc_kernels_reduce(&checks->kernels, checks->gpu.stream, &measured->reduce, measured->result.at,
	                         &checks->err);
}

static int mark(struct measured *measured, struct CUevent_st *event)
{
	struct checks *checks = measured->checks;

	return zd_cuda_err(checks->gpu.cuda, checks->gpu.cuda->eventRecord(event, checks->gpu.stream),
	                   &checks->err, "recording an event");
}

/* The mean of ROUNDS, in microseconds. */
static int time_launches(struct measured *measured, double *mean_us)
{
	struct checks *checks = measured->checks;
	float ms = 0;
	int rc = 0;

	for (unsigned i = 0; i < WARM_UP && !rc; i++)
		rc = launch(measured);
	if (!rc)
		rc = mark(measured, measured->begin);
	for (unsigned i = 0; i < ROUNDS && !rc; i++)
		rc = launch(measured);
	if (!rc)
		rc = mark(measured, measured->end);
	if (!rc)
		rc = zd_gpu_synchronize(&checks->gpu, checks->gpu.stream, &checks->err);
	if (!rc)
		rc = zd_cuda_err(checks->gpu.cuda,
		                 checks->gpu.cuda->eventElapsedTime(&ms, measured->begin, measured->end),
		                 &checks->err, "the time between events");
	*mean_us = (double)ms * 1000 / ROUNDS;
	return rc;
}

static int measure_sum(struct measured *measured, unsigned which, uint32_t ninputs, uint64_t input_bytes)
{
	zd_cu_ptr inputs[ZC_REDUCE_MOST_INPUTS];
	struct zc_reduce *reduce = &measured->reduce;
	uint64_t numel = input_bytes / ninputs / zerod_dtype_bytes(sums[which].input);
	uint64_t target_bytes = numel * zerod_dtype_bytes(sums[which].target);
	uint64_t bytes = input_bytes + target_bytes * (sums[which].overwrite ? 1 : 2);
	double us = 0;
	int rc;

	for (uint32_t i = 0; i < ninputs; i++)
		inputs[i] = measured->from.at + input_bytes / ninputs * i;
	*reduce = (struct zc_reduce){.input_dtype = sums[which].input,
	                             .target_dtype = sums[which].target,
	                             .ninputs = ninputs,
	                             .inputs = inputs,
	                             .target = measured->to.at,
	                             .numel = numel,
	                             .prescale = 1,
	                             .postscale = 1,
	                             .overwrite = sums[which].overwrite};
	measured->conversion.numel = 0;
	rc = time_launches(measured, &us);
	if (!rc)
		printf("# sum of %u x %s to %s%s, %4llu MiB in: %8.1f us, %6.0f GB/s\n", ninputs,
		       zerod_dtype_name(reduce->input_dtype), zerod_dtype_name(reduce->target_dtype),
		       reduce->overwrite ? "" : ", accumulated", (unsigned long long)(input_bytes / MiB), us,
		       (double)bytes / us / 1e3);
	return rc;
}

static int measure_cast(struct measured *measured, const enum zerod_dtype pair[2], uint64_t input_bytes)
{
	uint64_t numel = input_bytes / zerod_dtype_bytes(pair[0]);
	uint64_t bytes = input_bytes + numel * zerod_dtype_bytes(pair[1]);
	double us = 0;
	int rc;

	measured->conversion = (struct zc_conversion){.from_dtype = pair[0],
	                                              .to_dtype = pair[1],
	                                              .from = (const void *)measured->from.at,
	                                              .to = (void *)measured->to.at,
	                                              .numel = numel};
	rc = time_launches(measured, &us);
	if (!rc)
		printf("# cast of %s to %s, %4llu MiB in: %8.1f us, %6.0f GB/s\n", zerod_dtype_name(pair[0]),
		       zerod_dtype_name(pair[1]), (unsigned long long)(input_bytes / MiB), us,
		       (double)bytes / us / 1e3);
	return rc;
}

/* AdamW over split masters reads 16 bytes an element and writes 12, from float32 sums and from two terms of
 * bfloat16. */
static int measure_update(struct measured *measured, uint64_t numel, uint32_t terms)
{
	char *from = (void *)measured->from.at;
	char *at = (void *)measured->to.at;
	double us = 0;
	int rc;

	measured->update = (struct zc_update){.kind = ZC_UPDATE_ADAM,
	                                      .shard = at,
	                                      .low = (void *)(at + 2 * numel),
	                                      .m = (void *)(at + 4 * numel),
	                                      .v = (void *)(at + 8 * numel),
	                                      .values = terms ? NULL : (void *)from,
	                                      .terms = {.count = terms,
	                                                .dtype = ZEROD_BFLOAT16,
	                                                .prescale = 1,
	                                                .postscale = 1,
	                                                .each = {from, from + 2 * numel}},
	                                      .numel = numel,
	                                      .numbers = {.keep = 1, .root = 1, .eps = 1}};
	rc = time_launches(measured, &us);
	measured->update.numel = 0;
	if (!rc)
		printf("# AdamW of %4llu Mi split masters, from %s: %8.1f us, %6.0f GB/s\n",
		       (unsigned long long)(numel >> 20), terms ? "2 terms" : "sums", us,
		       28.0 * (double)numel / us / 1e3);
	return rc;
}

static int measure_all(struct measured *measured)
{
	static const uint64_t bytes[] = {64 * MiB, 1024 * MiB};
	static const uint32_t counts[] = {2, 4, 8};
	int rc = 0;

	for (size_t i = 0; i < ZD_ARRAY_LEN(bytes); i++) {
		for (unsigned j = 0; j < ZD_ARRAY_LEN(sums); j++)
			for (size_t k = 0; k < ZD_ARRAY_LEN(counts) && !rc; k++)
				rc = measure_sum(measured, j, counts[k], bytes[i]);
		for (size_t j = 0; j < ZD_ARRAY_LEN(casts) && !rc; j++)
			rc = measure_cast(measured, casts[j], bytes[i]);
		for (uint32_t terms = 0; terms <= 2 && !rc; terms += 2)
			rc = measure_update(measured, bytes[i] / 8, terms);
	}
	return rc;
}

static int open_all(struct measured *measured)
{
	struct checks *checks = measured->checks;
	const struct zd_cuda *cuda = checks->gpu.cuda;
	int rc = zd_gpu_memory_new(&checks->gpu, 1024 * MiB, 0, &measured->from, &checks->err);

	if (!rc)
		rc = zd_gpu_memory_new(&checks->gpu, 2048 * MiB, 0, &measured->to, &checks->err);
	if (!rc)
		rc = zd_gpu_memory_new(&checks->gpu, sizeof(struct zc_reduce_result), 0, &measured->result,
		                       &checks->err);
	if (!rc)
		rc = zd_cuda_err(cuda,
		                 cuda->memsetD8Async(measured->from.at, 0x3c, measured->from.bytes,
		                                     checks->gpu.stream),
		                 &checks->err, "filling memory");
	if (!rc)
		rc = zd_cuda_err(cuda, cuda->eventCreate(&measured->begin, 0), &checks->err, "an event");
	if (!rc)
		rc = zd_cuda_err(cuda, cuda->eventCreate(&measured->end, 0), &checks->err, "an event");
	return rc;
}

static void close_all(struct measured *measured)
{
	const struct zd_gpu *gpu = &measured->checks->gpu;

	if (measured->begin)
		(void)gpu->cuda->eventDestroy(measured->begin);
	if (measured->end)
		(void)gpu->cuda->eventDestroy(measured->end);
	zd_gpu_memory_free(gpu, &measured->from);
	zd_gpu_memory_free(gpu, &measured->to);
	zd_gpu_memory_free(gpu, &measured->result);
}

bool measure_kernels(struct checks *checks)
{
	struct measured measured = {.checks = checks};
	int rc = open_all(&measured);

	if (!rc)
		rc = measure_all(&measured);
	close_all(&measured);
	return rc ? checks_fail(checks, "%s", checks->err.text) : true;
}
