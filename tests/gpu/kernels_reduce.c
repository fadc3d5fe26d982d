/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels_reduce.c - sums by the GPU beside those by the CPU. Targets have the same bits. Of the sum of
 * squares, which the GPU adds in another order, two things are checked: that it is in the order that
 * client/kernels/kernels.h says, to the last bit, and that it is as near to the CPU's as
 * client/lib/compute/cuda_kernels.h says.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "executor/host/host_kernels.h"
#include "tests/gpu/kernels_check.h"

#define WARP     32u
#define LAUNCHES 100u /* on two streams */

struct sum {
	struct zc_reduce reduce;
	uint64_t inputs[ZC_REDUCE_MOST_INPUTS], target, result; /* places in the image */
	struct zd_op_result wanted;
};

/* Where things lie: elements that each address is behind an aligned one. */
enum layout { ALIGNED, ALL_BY_ONE, TARGET_BY_ONE, ALL_DIFFERENT, IN_PLACE, LAYOUTS };

/* Sizes around a vector, a warp's and a block's; the last go once round all parts. */
static const uint64_t numels[] = {0,
                                  1,
                                  2,
                                  3,
                                  7,
                                  8,
                                  9,
                                  15,
                                  16,
                                  17,
                                  31,
                                  33,
                                  1000,
                                  1023,
                                  4095,
                                  4097,
                                  8191,
                                  8193,
                                  20011,
                                  ZC_REDUCE_PARTS *ZC_THREADS * 4 + 5,
                                  ZC_REDUCE_PARTS *ZC_THREADS * 8 + 5};
static const uint32_t counts[] = {1, 2, 3, 4, 5, 6, 7, 8, ZC_REDUCE_MOST_INPUTS};
static const float scales[][2] = {{1, 1}, {0.125f, 1}, {1, 1.0f / 3}, {0.3f, 7}};

/* ---- The order of squares ------------------------------------------------------------------------------ */

static double fold(double *values, unsigned count)
{
	for (unsigned half = count / 2; half > 0; half /= 2)
		for (unsigned i = 0; i < half; i++)
			values[i] += values[i + half];
	return values[0];
}

static double fold_block(double *values)
{
	double of_warp[ZC_THREADS / WARP];

	for (unsigned i = 0; i < ZC_THREADS / WARP; i++)
		of_warp[i] = fold(values + (size_t)i * WARP, WARP);
	return fold(of_warp, ZC_THREADS / WARP);
}

static float element(enum zerod_dtype dtype, const void *values, uint64_t i)
{
	if (dtype == ZEROD_FLOAT32)
		return ((const float *)values)[i];
	if (dtype == ZEROD_FLOAT16)
		return zd_f16_to_f32(((const uint16_t *)values)[i]);
	return zd_bf16_to_f32(((const uint16_t *)values)[i]);
}

/* Of what was stored. Parts without an element are zeros. */
static double sum_in_order(const struct zc_reduce *reduce, const void *stored)
{
	uint64_t per_vector = ZC_VECTOR_NUMEL(zerod_dtype_bytes(reduce->input_dtype));
	uint64_t nparts = zd_min_u64(reduce->numel / (per_vector * ZC_THREADS) + 1, ZC_REDUCE_PARTS);
	double(*squares)[ZC_THREADS] = zd_calloc(nparts, sizeof(*squares));
	double parts[ZC_THREADS] = {0}, sum;

	for (uint64_t i = 0; i < reduce->numel; i++) {
		uint64_t vector = i / per_vector;
		double value = element(reduce->target_dtype, stored, i);

		squares[vector / ZC_THREADS % ZC_REDUCE_PARTS][vector % ZC_THREADS] += value * value;
	}
	for (uint64_t i = 0; i < nparts; i++)
		parts[i] = fold_block(squares[i]);
	sum = fold_block(parts);
	free(squares);
	return sum;
}

static bool check_result(struct checks *checks, const struct sum *sum, const struct zc_reduce_result *found)
{
	double wanted = sum->wanted.sum_squares;
	double exact = sum_in_order(&sum->reduce, checks->wanted + sum->target);

	if (found->overflow != sum->wanted.overflow)
		return checks_fail(checks, "overflow is %llu", (unsigned long long)found->overflow);
	if (isnan(wanted) && isnan(exact) && isnan(found->sum_squares))
		return true;
	if (memcmp(&found->sum_squares, &exact, sizeof(exact)) != 0)
		return checks_fail(checks, "the sum of squares is %a, not %a", found->sum_squares, exact);
	if (wanted != exact && !(fabs(exact - wanted) <= (double)sum->reduce.numel * 0x1p-52 * wanted))
		return checks_fail(checks, "the sum of squares is %a, on the CPU %a", exact, wanted);
	return true;
}

/* ---- One sum ------------------------------------------------------------------------------------------- */

static unsigned skipped(enum layout layout, uint32_t which)
{
	if (layout == ALL_BY_ONE || (layout == TARGET_BY_ONE && which == 0))
		return 1;
	return layout == ALL_DIFFERENT ? which % 8 : 0;
}

/* Inputs, target and result get their places, and random contents. */
static void place_all(struct checks *checks, struct sum *sum, enum layout layout, bool wild)
{
	const struct zc_reduce *reduce = &sum->reduce;

	checks->used = 0;
	for (uint32_t i = 0; i < reduce->ninputs; i++) {
		sum->inputs[i] = checks_place(checks, reduce->input_dtype, reduce->numel,
		                              skipped(layout, i + 1));
		checks_fill(checks, reduce->input_dtype, checks->wanted + sum->inputs[i], reduce->numel,
		            wild);
	}
	sum->target = sum->inputs[0];
	if (layout != IN_PLACE) {
		sum->target = checks_place(checks, reduce->target_dtype, reduce->numel, skipped(layout, 0));
		checks_fill(checks, reduce->target_dtype, checks->wanted + sum->target, reduce->numel, wild);
	}
	sum->result = checks_place(checks, ZEROD_INT64, sizeof(struct zc_reduce_result) / 8, 0);
}

static bool sum_on_gpu(struct checks *checks, const struct sum *sum, struct CUstream_st *stream,
                       uint64_t result)
{
	zd_cu_ptr inputs[ZC_REDUCE_MOST_INPUTS];
	struct zc_reduce reduce = sum->reduce;

	for (uint32_t i = 0; i < reduce.ninputs; i++)
		inputs[i] = checks_on_gpu(checks, sum->inputs[i]);
	reduce.inputs = inputs;
	reduce.target = checks_on_gpu(checks, sum->target);
	if (zc_kernels_reduce(&checks->kernels, stream, &reduce, checks_on_gpu(checks, result), &checks->err))
		return checks_fail(checks, "%s", checks->err.text);
	return true;
}

static void sum_on_cpu(struct checks *checks, struct sum *sum)
{
	const void *inputs[ZC_REDUCE_MOST_INPUTS];
	struct zd_host_reduce run = {
	        .numel = sum->reduce.numel,
	        .input_dtype = sum->reduce.input_dtype,
	        .target_dtype = sum->reduce.target_dtype,
	        .ninputs = sum->reduce.ninputs,
	        .inputs = inputs,
	        .target = checks->wanted + sum->target,
	        .prescale = sum->reduce.prescale,
	        .postscale = sum->reduce.postscale,
	        .overwrite = sum->reduce.overwrite,
	        .isa = zd_host_isa_best(),
	};

	for (uint32_t i = 0; i < run.ninputs; i++)
		inputs[i] = checks->wanted + sum->inputs[i];
	(void)zd_host_reduce_run(&run, zd_align_up(run.numel, ZD_HOST_REDUCE_BLOCK_NUMEL));
	sum->wanted = zd_host_reduce_result(&run);
}

static bool check_sum(struct checks *checks, struct sum *sum, enum layout layout, bool wild)
{
	struct zc_reduce_result found;

	place_all(checks, sum, layout, wild);
	if (!checks_upload(checks) || !sum_on_gpu(checks, sum, checks->gpu.stream, sum->result))
		return false;
	sum_on_cpu(checks, sum);
	if (!checks_download(checks))
		return false;
	memcpy(&found, checks->found + sum->result, sizeof(found));
	memcpy(checks->wanted + sum->result, &found, sizeof(found)); /* has its own rules */
	return checks_compare(checks) && check_result(checks, sum, &found);
}

/* ---- Many ---------------------------------------------------------------------------------------------- */

/* Sums that are long are not made in every way. */
static bool is_wanted(const struct zc_reduce *reduce, enum layout layout)
{
	if (layout == IN_PLACE && reduce->input_dtype != reduce->target_dtype)
		return false;
	if (reduce->numel > 100000)
		return reduce->ninputs == 2 && layout <= ALL_BY_ONE;
	return reduce->numel < 10000 || reduce->ninputs < 5;
}

/* Sums in all layouts. Parameters that are not enumerated are drawn: scales, overwriting, special values. */
static bool check_layouts(struct checks *checks, const struct zc_reduce *given)
{
	for (enum layout layout = ALIGNED; layout < LAYOUTS; layout++) {
		uint64_t r = checks_random(checks);
		const float *scale = scales[r >> 8 & 3];
		struct sum sum = {.reduce = *given};
		char why[sizeof(checks->why)];

		if (!is_wanted(given, layout))
			continue;
		sum.reduce.overwrite = r >> 16 & 1;
		sum.reduce.prescale = scale[0];
		sum.reduce.postscale = scale[1];
		if (check_sum(checks, &sum, layout, r >> 17 & 1))
			continue;
		(void)memcpy(why, checks->why, sizeof(why));
		return checks_fail(checks, "%llu elements, %u inputs, layout %d, %s: %.400s",
		                   (unsigned long long)given->numel, given->ninputs, (int)layout,
		                   sum.reduce.overwrite ? "overwritten" : "accumulated", why);
	}
	return true;
}

bool check_reduce_pair(struct checks *checks, enum zerod_dtype input, enum zerod_dtype target)
{
	struct zc_reduce reduce = {.input_dtype = input, .target_dtype = target};

	for (size_t i = 0; i < ZD_ARRAY_LEN(numels); i++) {
		for (size_t j = 0; j < ZD_ARRAY_LEN(counts); j++) {
			reduce.numel = numels[i];
			reduce.ninputs = counts[j];
			if (!check_layouts(checks, &reduce))
				return false;
		}
	}
	return true;
}

/* Reductions beside each other, and one after the other in one lane, have the results of one alone. */
bool check_reduce_lanes(struct checks *checks)
{
	struct zc_reduce_result results[LAUNCHES];
	struct CUstream_st *streams[2] = {checks->gpu.stream, NULL};
	uint64_t numel = ZC_REDUCE_PARTS * ZC_THREADS * 8 / 3;
	struct sum sum[2];
	bool good = true;

	if (zd_gpu_stream(&checks->gpu, false, &streams[1], &checks->err))
		return checks_fail(checks, "%s", checks->err.text);
	for (unsigned i = 0; i < 2; i++)
		sum[i].reduce = (struct zc_reduce){.input_dtype = ZEROD_BFLOAT16,
		                                   .target_dtype = ZEROD_FLOAT32,
		                                   .ninputs = 4,
		                                   .numel = numel,
		                                   .prescale = 1,
		                                   .postscale = 0.25f,
		                                   .overwrite = true,
		                                   .lane = i};
	place_all(checks, &sum[0], ALIGNED, false);
	memcpy(sum[1].inputs, sum[0].inputs, sizeof(sum[1].inputs));
	sum[1].target = checks_place(checks, ZEROD_FLOAT32, numel, 0);
	sum[0].result = checks_place(checks, ZEROD_INT64, LAUNCHES * sizeof(results[0]) / 8, 0);
	good = checks_upload(checks);
	for (unsigned i = 0; i < LAUNCHES && good; i++)
		good = sum_on_gpu(checks, &sum[i % 2], streams[i % 2],
		                  sum[0].result + i * sizeof(results[0]));
	if (zd_gpu_synchronize(&checks->gpu, streams[1], &checks->err))
		good = checks_fail(checks, "%s", checks->err.text);
	good = good && checks_download(checks);
	sum_on_cpu(checks, &sum[0]);
	memcpy(results, checks->found + sum[0].result, sizeof(results));
	for (unsigned i = 0; i < LAUNCHES && good; i++)
		good = check_result(checks, &sum[0], &results[i]);
	(void)checks->gpu.cuda->streamDestroy(streams[1]);
	return good;
}
