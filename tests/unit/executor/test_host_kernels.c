/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_host_kernels.c - the reduction against a scalar reference, bit by bit: all dtypes, every instruction
 * set of this machine, odd sizes, inf, nan and subnormal numbers, any cut into pieces.
 */
#include <float.h>
#include <math.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "client/kernels/element.h"
#include "executor/host/host_kernels.h"
#include "tests/support/test.h"

#define MAX_INPUTS 5
#define MAX_NUMEL  7919u

static const enum zerod_dtype dtypes[] = {ZEROD_FLOAT32, ZEROD_FLOAT16, ZEROD_BFLOAT16};
static const enum zerod_dtype input_dtypes[] = {ZEROD_FLOAT32, ZEROD_FLOAT16, ZEROD_BFLOAT16,
                                                ZEROD_FLOAT8_E4M3, ZEROD_FLOAT8_E5M2};
static const uint64_t numels[] = {0, 1, 2, 7, 15, 16, 17, 1021, 1023, 1024, 1025, 2048, MAX_NUMEL};

static const float special[] = {
        0.0f,     -0.0f,    INFINITY,    -INFINITY, NAN,      -NAN,     FLT_MAX,
        -FLT_MAX, FLT_MIN,  FLT_MIN / 3, -0x1p-149, 65504.0f, 65519.9f, 65520.0f,
        0x1p-24f, 0x1p-25f, 1.0f,        0x1.01p0f, 3e38f,    -3e38f,
};

/* xorshift64*: the same numbers in every run. */
static uint64_t next_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dull;
}

static void put(void *values, enum zerod_dtype dtype, size_t i, float value)
{
	if (dtype == ZEROD_FLOAT32)
		((float *)values)[i] = value;
	else if (dtype == ZEROD_FLOAT16)
		((uint16_t *)values)[i] = zd_f32_to_f16(value);
	else if (dtype == ZEROD_FLOAT8_E4M3)
		((uint8_t *)values)[i] = zc_e4m3_from_f32(value);
	else if (dtype == ZEROD_FLOAT8_E5M2)
		((uint8_t *)values)[i] = zc_e5m2_from_f32(value);
	else
		((uint16_t *)values)[i] = zd_f32_to_bf16(value);
}

static float get(const void *values, enum zerod_dtype dtype, size_t i)
{
	if (dtype == ZEROD_FLOAT32)
		return ((const float *)values)[i];
	if (dtype == ZEROD_FLOAT16)
		return zd_f16_to_f32(((const uint16_t *)values)[i]);
	if (dtype == ZEROD_FLOAT8_E4M3)
		return zd_e4m3_to_f32(((const uint8_t *)values)[i]);
	if (dtype == ZEROD_FLOAT8_E5M2)
		return zd_e5m2_to_f32(((const uint8_t *)values)[i]);
	return zd_bf16_to_f32(((const uint16_t *)values)[i]);
}

/* Gradient-like numbers, or with `wild` any bit pattern and the special ones. */
static void fill(void *values, enum zerod_dtype dtype, size_t numel, bool wild, uint64_t *random)
{
	for (size_t i = 0; i < numel; i++) {
		uint64_t r = next_random(random);
		if (!wild) {
			put(values, dtype, i, ((float)(r >> 40) / 0x1p23f - 1.0f) * 0.37f);
		} else if (r % 3 == 0) {
			put(values, dtype, i, special[(r >> 8) % ZD_ARRAY_LEN(special)]);
		} else {
			memcpy((char *)values + i * zerod_dtype_bytes(dtype), &r, zerod_dtype_bytes(dtype));
		}
	}
}

static void put_canonical(void *values, enum zerod_dtype dtype, size_t i, float value)
{
	static const uint32_t nan32 = 0x7fc00000u;
	if (!isnan(value))
		put(values, dtype, i, value);
	else if (dtype == ZEROD_FLOAT32)
		memcpy((float *)values + i, &nan32, sizeof(nan32));
	else
		((uint16_t *)values)[i] = dtype == ZEROD_FLOAT16 ? 0x7e00 : 0x7fc0;
}

/* host_kernels.h, word by word. `volatile` keeps the compiler from contracting. */
static struct zd_op_result reference(const struct zd_host_reduce *reduce)
{
	double sums[ZD_HOST_REDUCE_SUMS] = {0};
	struct zd_op_result result = {.overflow = false};
	for (uint64_t i = 0; i < reduce->numel; i++) {
		volatile float acc = 0.0f;
		for (uint32_t k = 0; k < reduce->ninputs; k++) {
			volatile float product = get(reduce->inputs[k], reduce->input_dtype, i) *
			                         reduce->prescale;
			acc = acc + product;
		}
		acc = acc * reduce->postscale;
		if (!reduce->overwrite)
			acc = acc + get(reduce->target, reduce->target_dtype, i);
		put_canonical(reduce->target, reduce->target_dtype, i, acc);
		float stored = get(reduce->target, reduce->target_dtype, i);
		volatile double square = (double)stored * (double)stored;
		sums[i % ZD_HOST_REDUCE_SUMS] += square;
		result.overflow |= !isfinite(stored);
	}
	for (size_t i = 0; i < ZD_HOST_REDUCE_SUMS; i++)
		result.sum_squares += sums[i];
	return result;
}

struct buffers {
	void *inputs[MAX_INPUTS];
	void *old, *expected, *found;
	size_t bytes;
};

static int make_buffers(void **state)
{
	struct buffers *b = zd_calloc(1, sizeof(*b));
	b->bytes = (MAX_NUMEL + 8) * sizeof(float);
	for (size_t k = 0; k < MAX_INPUTS; k++)
		b->inputs[k] = zd_calloc(1, b->bytes);
	b->old = zd_calloc(1, b->bytes);
	b->expected = zd_calloc(1, b->bytes);
	b->found = zd_calloc(1, b->bytes);
	*state = b;
	return 0;
}

static int free_buffers(void **state)
{
	struct buffers *b = *state;
	for (size_t k = 0; k < MAX_INPUTS; k++)
		free(b->inputs[k]);
	free(b->old);
	free(b->expected);
	free(b->found);
	free(b);
	return 0;
}

#define BUFFERS_TEST(name) FIXTURE_TEST(name, struct buffers *b, make_buffers, free_buffers)

static void assert_same_result(struct zd_op_result found, struct zd_op_result expected)
{
	assert_int_equal(found.overflow, expected.overflow);
	if (isnan(expected.sum_squares))
		assert_true(isnan(found.sum_squares));
	else
		assert_memory_equal(&found.sum_squares, &expected.sum_squares, sizeof(double));
}

/* Runs `wanted` by the reference and on every instruction set, in pieces of `piece` elements. The bytes
 * behind the target must stay as they are. */
static void check(struct buffers *b, const struct zd_host_reduce *wanted, uint64_t piece)
{
	struct zd_host_reduce reduce = *wanted;
	memcpy(b->expected, b->old, b->bytes);
	reduce.target = b->expected;
	struct zd_op_result expected = reference(&reduce);
	for (enum zd_host_isa isa = 0; isa < ZD_HOST_NISAS; isa++) {
		if (!zd_host_isa_supported(isa))
			continue;
		reduce = *wanted;
		reduce.isa = isa;
		reduce.target = b->found;
		memcpy(b->found, b->old, b->bytes);
		while (!zd_host_reduce_run(&reduce, piece))
			;
		assert_memory_equal(b->found, b->expected, b->bytes);
		assert_same_result(zd_host_reduce_result(&reduce), expected);
	}
}

static void check_all_dtypes(struct buffers *b, bool wild, uint32_t ninputs, float prescale, float postscale)
{
	uint64_t random = 88172645463325252ull;
	for (size_t in = 0; in < ZD_ARRAY_LEN(input_dtypes); in++) {
		for (size_t out = 0; out < ZD_ARRAY_LEN(dtypes); out++) {
			for (uint32_t k = 0; k < ninputs; k++)
				fill(b->inputs[k], input_dtypes[in], MAX_NUMEL, wild, &random);
			fill(b->old, dtypes[out], MAX_NUMEL, wild, &random);
			for (size_t n = 0; n < 2 * ZD_ARRAY_LEN(numels); n++) {
				struct zd_host_reduce reduce = {
				        .numel = numels[n / 2],
				        .input_dtype = input_dtypes[in],
				        .target_dtype = dtypes[out],
				        .ninputs = ninputs,
				        .inputs = (const void *const *)b->inputs,
				        .prescale = prescale,
				        .postscale = postscale,
				        .overwrite = n % 2 == 0,
				};
				check(b, &reduce, UINT64_C(64) * ZD_HOST_REDUCE_BLOCK_NUMEL);
			}
		}
	}
}

BUFFERS_TEST(test_equals_reference)
{
	check_all_dtypes(b, false, 1, 1.0f, 1.0f);
	check_all_dtypes(b, false, 4, 1.0f, 0.25f);
	check_all_dtypes(b, false, MAX_INPUTS, 1.0f / 3.0f, 0.7f);
}

BUFFERS_TEST(test_equals_reference_for_any_bits)
{
	check_all_dtypes(b, true, 2, 1.0f, 1.0f);
	check_all_dtypes(b, true, 3, 0.1f, 3.3f);
}

BUFFERS_TEST(test_pieces_do_not_matter)
{
	uint64_t random = 4711;
	for (size_t k = 0; k < MAX_INPUTS; k++)
		fill(b->inputs[k], ZEROD_BFLOAT16, MAX_NUMEL, false, &random);
	fill(b->old, ZEROD_FLOAT32, MAX_NUMEL, false, &random);
	for (uint64_t blocks = 1; blocks < 9; blocks++) {
		struct zd_host_reduce reduce = {
		        .numel = MAX_NUMEL,
		        .input_dtype = ZEROD_BFLOAT16,
		        .target_dtype = ZEROD_FLOAT32,
		        .ninputs = MAX_INPUTS,
		        .inputs = (const void *const *)b->inputs,
		        .prescale = 0.3f,
		        .postscale = 1.0f,
		};
		check(b, &reduce, blocks * ZD_HOST_REDUCE_BLOCK_NUMEL);
	}
}

/* 1 + 2^-12 squared needs more bits than a float has; a fused multiply-add would keep those that rounding
 * drops. */
BUFFERS_TEST(test_product_is_rounded_before_the_sum)
{
	const float x = 1.0f + 0x1p-12f;
	for (size_t i = 0; i < MAX_NUMEL; i++) {
		put(b->inputs[0], ZEROD_FLOAT32, i, -1.0f);
		put(b->inputs[1], ZEROD_FLOAT32, i, x);
	}
	for (enum zd_host_isa isa = 0; isa < ZD_HOST_NISAS; isa++) {
		if (!zd_host_isa_supported(isa))
			continue;
		struct zd_host_reduce reduce = {
		        .numel = MAX_NUMEL,
		        .input_dtype = ZEROD_FLOAT32,
		        .target_dtype = ZEROD_FLOAT32,
		        .ninputs = 2,
		        .inputs = (const void *const *)b->inputs,
		        .target = b->found,
		        .prescale = x,
		        .postscale = 1.0f,
		        .overwrite = true,
		        .isa = isa,
		};
		assert_true(zd_host_reduce_run(&reduce, UINT64_C(64) * ZD_HOST_REDUCE_BLOCK_NUMEL));
		const float rounded_square = 1.0f + 0x1p-11f;
		for (size_t i = 0; i < MAX_NUMEL; i++)
			assert_true(((float *)b->found)[i] == rounded_square - x);
	}
}

BUFFERS_TEST(test_no_input_overwrites_with_zeros)
{
	for (size_t out = 0; out < ZD_ARRAY_LEN(dtypes); out++) {
		uint64_t random = 5;
		fill(b->old, dtypes[out], MAX_NUMEL, false, &random);
		struct zd_host_reduce reduce = {
		        .numel = MAX_NUMEL,
		        .input_dtype = ZEROD_FLOAT16,
		        .target_dtype = dtypes[out],
		        .prescale = 1.0f,
		        .postscale = 1.0f,
		        .overwrite = true,
		};
		check(b, &reduce, UINT64_C(64) * ZD_HOST_REDUCE_BLOCK_NUMEL);
		for (size_t i = 0; i < MAX_NUMEL; i++)
			assert_true(get(b->found, dtypes[out], i) == 0.0f);
	}
}

/* 60000 + 60000 is finite in float32, but not in a float16 target. */
BUFFERS_TEST(test_overflow_is_of_the_stored_values)
{
	static const float big = 60000.0f;
	for (size_t k = 0; k < 2; k++) {
		memset(b->inputs[k], 0, b->bytes);
		put(b->inputs[k], ZEROD_FLOAT32, 1000, big);
	}
	for (size_t out = 0; out < ZD_ARRAY_LEN(dtypes); out++) {
		struct zd_host_reduce reduce = {
		        .numel = 1001,
		        .input_dtype = ZEROD_FLOAT32,
		        .target_dtype = dtypes[out],
		        .ninputs = 2,
		        .inputs = (const void *const *)b->inputs,
		        .target = b->found,
		        .prescale = 1.0f,
		        .postscale = 1.0f,
		        .overwrite = true,
		        .isa = zd_host_isa_best(),
		};
		assert_true(zd_host_reduce_run(&reduce, UINT64_C(64) * ZD_HOST_REDUCE_BLOCK_NUMEL));
		assert_int_equal(zd_host_reduce_result(&reduce).overflow, dtypes[out] == ZEROD_FLOAT16);
	}
}
