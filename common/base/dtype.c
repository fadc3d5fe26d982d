/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtype.c - conversions of the floating dtypes to float32, and of float32 to float16 and bfloat16.
 *
 * No hardware conversion is used, so that every machine computes the same bits: reductions are compared bit
 * for bit. Layouts: float32 is 1 sign, 8 exponent, 23 mantissa bits; bfloat16 its upper half; float16 1, 5,
 * 10; float8_e5m2 its upper half; float8_e4m3 1, 4, 3.
 */
#include "base/dtype.h"

#include <string.h>

#define F32_SIGN 0x80000000u
#define F32_INF  0x7f800000u

static uint32_t f32_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static float f32_from_bits(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* Drops the lowest `count` bits (1..31), rounding to nearest, ties to even. A carry into the exponent is what
 * the format wants: the next binade, or infinity. */
static uint32_t round_off(uint32_t bits, unsigned count)
{
	uint32_t odd = (bits >> count) & 1;

	return (bits + (1u << (count - 1)) - 1 + odd) >> count;
}

bool zd_dtype_reducible(enum zerod_dtype dtype)
{
	return zd_dtype_holds_sums(dtype) || dtype == ZEROD_FLOAT8_E4M3 || dtype == ZEROD_FLOAT8_E5M2;
}

bool zd_dtype_holds_sums(enum zerod_dtype dtype)
{
	return dtype == ZEROD_FLOAT32 || dtype == ZEROD_FLOAT16 || dtype == ZEROD_BFLOAT16;
}

float zd_bf16_to_f32(uint16_t bits)
{
	return f32_from_bits((uint32_t)bits << 16);
}

uint16_t zd_f32_to_bf16(float value)
{
	uint32_t bits = f32_bits(value);

	if ((bits & ~F32_SIGN) > F32_INF) /* rounding could make a nan infinite: keep it, quiet */
		return (uint16_t)(bits >> 16 | 0x40);
	return (uint16_t)round_off(bits, 16);
}

float zd_f16_to_f32(uint16_t bits)
{
	uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
	uint32_t exponent = bits >> 10 & 0x1f;
	uint32_t mantissa = bits & 0x3ff;

	if (exponent == 0x1f)
		return f32_from_bits(sign | F32_INF | mantissa << 13);
	if (exponent == 0) { /* zero or subnormal: a multiple of 2^-24, exact in float32 */
		float magnitude = (float)mantissa * 0x1p-24f;

		return f32_from_bits(sign | f32_bits(magnitude));
	}
	return f32_from_bits(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
}

uint16_t zd_f32_to_f16(float value)
{
	uint32_t bits = f32_bits(value);
	uint32_t magnitude = bits & ~F32_SIGN;
	uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
	unsigned shift;

	if (magnitude > F32_INF)
		return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
	if (magnitude >= 0x477ff000) /* 65520: half way from the largest float16 to the next would-be one */
		return (uint16_t)(sign | 0x7c00);
	if (magnitude >= 0x38800000) /* 2^-14, the smallest normal float16 */
		return (uint16_t)(sign | round_off(magnitude - ((127u - 15u) << 23), 13));
	if (magnitude <= 0x33000000) /* 2^-25, half of the smallest subnormal: ties to zero */
		return sign;
	/* Subnormal: the mantissa with its hidden bit, in units of 2^-24. The exponent field is 102..112
	 * here. */
	shift = 126 - (magnitude >> 23);
	return (uint16_t)(sign | round_off((magnitude & 0x7fffff) | 0x800000, shift));
}

float zd_e4m3_to_f32(uint8_t bits)
{
	/* As a float16 the pattern has 2^-8 of the value, because the exponent's bias is 15 instead of 7. */
	uint16_t half = (uint16_t)((bits & 0x80u) << 8 | (bits & 0x7fu) << 7);

	if ((bits & 0x7f) == 0x7f)
		return f32_from_bits((uint32_t)(bits & 0x80) << 24 | F32_INF | 1u << 22);
	return zd_f16_to_f32(half) * 256.0f;
}

float zd_e5m2_to_f32(uint8_t bits)
{
	return zd_f16_to_f32((uint16_t)(bits << 8));
}
