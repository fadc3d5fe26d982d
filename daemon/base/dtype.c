/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtype.c - float16 and bfloat16 to float32 and back, bit by bit.
 *
 * No hardware conversion is used, so that every machine gives the same bits: reductions are compared bit for bit.
 * Layouts: float32 is 1 sign, 8 exponent, 23 mantissa bits; bfloat16 its upper half; float16 1, 5, 10.
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

/* Drops the lowest `count` bits (1..31), rounding to nearest, ties to even. A carry into the exponent is what the
 * format wants: the next binade, or infinity. */
static uint32_t round_off(uint32_t bits, unsigned count)
{
	uint32_t odd = (bits >> count) & 1;

	return (bits + (1u << (count - 1)) - 1 + odd) >> count;
}

bool zd_dtype_reducible(enum zerod_dtype dtype)
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
	/* Subnormal: the mantissa with its hidden bit, in units of 2^-24. The exponent field is 102..112 here. */
	shift = 126 - (magnitude >> 23);
	return (uint16_t)(sign | round_off((magnitude & 0x7fffff) | 0x800000, shift));
}
