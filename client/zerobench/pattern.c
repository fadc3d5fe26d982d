// SPDX-License-Identifier: Apache-2.0
/*
 * pattern.c - contents in which all elements differ, so that a byte in the wrong place is detected.
 */
#include "bench.h"

#include <string.h>

#include "base/dtype.h"

/* The finalizer of a 64-bit mix: neighbouring inputs give unrelated bits. */
static uint64_t mix(uint64_t value)
{
	value = (value ^ value >> 33) * 0xff51afd7ed558ccdull;
	value = (value ^ value >> 33) * 0xc4ceb9fe1a85ec53ull;
	return value ^ value >> 33;
}

void zd_pattern_fill_bits(void *data, enum zerod_dtype dtype, uint64_t first, uint64_t numel, uint64_t seed)
{
	if (dtype == ZEROD_FLOAT32) {
		uint32_t *words = data;
		for (uint64_t i = 0; i < numel; i++)
			words[i] = (uint32_t)mix(seed << 48 ^ (first + i));
	} else {
		uint16_t *halves = data;
		for (uint64_t i = 0; i < numel; i++)
			halves[i] = (uint16_t)mix(seed << 48 ^ (first + i));
	}
}

uint64_t zd_pattern_count_wrong_bits(const void *data, enum zerod_dtype dtype, uint64_t numel, uint64_t seed)
{
	uint64_t wrong = 0;
	if (dtype == ZEROD_FLOAT32) {
		const uint32_t *words = data;
		for (uint64_t i = 0; i < numel; i++)
			wrong += words[i] != (uint32_t)mix(seed << 48 ^ i);
	} else {
		const uint16_t *halves = data;
		for (uint64_t i = 0; i < numel; i++)
			wrong += halves[i] != (uint16_t)mix(seed << 48 ^ i);
	}
	return wrong;
}

/* Returns the gradient of a rank at an index, between -1 and 1, rounded to the dtype. */
static float gradient(enum zerod_dtype dtype, uint32_t rank, uint64_t index)
{
	float value = (float)(int32_t)mix((uint64_t)rank << 48 ^ index) * 0x1p-31f;
	if (dtype == ZEROD_BFLOAT16)
		return zd_bf16_to_f32(zd_f32_to_bf16(value));
	if (dtype == ZEROD_FLOAT16)
		return zd_f16_to_f32(zd_f32_to_f16(value));
	return value;
}

void zd_pattern_fill_gradient(void *data, enum zerod_dtype dtype, uint64_t numel, uint32_t rank)
{
	for (uint64_t i = 0; i < numel; i++) {
		float value = gradient(dtype, rank, i);
		if (dtype == ZEROD_BFLOAT16)
			((uint16_t *)data)[i] = zd_f32_to_bf16(value);
		else if (dtype == ZEROD_FLOAT16)
			((uint16_t *)data)[i] = zd_f32_to_f16(value);
		else
			((float *)data)[i] = value;
	}
}

uint64_t zd_pattern_count_wrong_sums(const float *sum, enum zerod_dtype dtype, uint64_t first, uint64_t numel,
                                     uint32_t ranks, uint32_t node_ranks)
{
	uint64_t wrong = 0;
	for (uint64_t i = 0; i < numel; i++) {
		float expected = 0, partial = 0;
		for (uint32_t rank = 0; rank < ranks; rank++) {
			partial += gradient(dtype, rank, first + i);
			if ((rank + 1) % node_ranks != 0)
				continue;
			expected += partial;
			partial = 0;
		}
		uint32_t expected_bits, found_bits;
		memcpy(&expected_bits, &expected, sizeof(expected_bits));
		memcpy(&found_bits, &sum[i], sizeof(found_bits));
		wrong += found_bits != expected_bits;
	}
	return wrong;
}

float zd_pattern_load(const void *data, enum zerod_dtype dtype, uint64_t index)
{
	if (dtype == ZEROD_BFLOAT16)
		return zd_bf16_to_f32(((const uint16_t *)data)[index]);
	if (dtype == ZEROD_FLOAT16)
		return zd_f16_to_f32(((const uint16_t *)data)[index]);
	return ((const float *)data)[index];
}
