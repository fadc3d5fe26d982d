/* SPDX-License-Identifier: Apache-2.0 */
/*
 * element.h - converts an element from one floating dtype to another, for the CPU (cast.c) and for GPUs
 * (kernels.cu).
 *
 * Widening to float32 is exact. Narrowing rounds once, to nearest, ties to even. The functions select values
 * without branches, so that compilers vectorise loops of them. Bits are computed by integer arithmetic. For
 * subnormals an addition of floats does the rounding. Neither its result nor a relevant operand is a
 * subnormal float32. A thread that flushes subnormals to zero therefore computes the same bits. The file is
 * valid C and CUDA C++.
 */
#ifndef ZD_CLIENT_KERNELS_ELEMENT_H
#define ZD_CLIENT_KERNELS_ELEMENT_H

#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define ZC_ELEMENT static __device__ __forceinline__
#else
#define ZC_ELEMENT static inline __attribute__((always_inline, unused))
#endif

#define ZC_F32_MAGNITUDE     0x7fffffffu
#define ZC_F32_INF           0x7f800000u
#define ZC_F32_MANTISSA_BITS 23u
#define ZC_F32_BIAS          127u

/* A format to which float32 is narrowed: sign, exponent with its bias, mantissa. */
struct zc_format {
	unsigned bits, mantissa_bits, bias;
	uint32_t overflow; /* the result for values that are too large: the pattern after the largest finite
	                      value */
	uint32_t nan;      /* a quiet nan */
	uint32_t payload;  /* preserved bits of a nan's mantissa */
};

ZC_ELEMENT uint32_t zc_f32_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

ZC_ELEMENT float zc_f32_from_bits(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* ---- To float32 ---------------------------------------------------------------------------------------- */

ZC_ELEMENT float zc_f32_from_bf16(uint16_t bits)
{
	return zc_f32_from_bits((uint32_t)bits << 16);
}

ZC_ELEMENT float zc_f32_from_f16(uint16_t bits)
{
	uint32_t rebias = (ZC_F32_BIAS - 15) << ZC_F32_MANTISSA_BITS;
	uint32_t sign = (bits & 0x8000u) << 16;
	uint32_t magnitude = (bits & 0x7fffu) << 13;
	uint32_t normal = magnitude + rebias;
	uint32_t special = normal + rebias; /* inf, nan: the highest value of the exponent, also in float32 */
	uint32_t one = 113u << ZC_F32_MANTISSA_BITS; /* 2^-14, the unit of a subnormal's fraction */
	uint32_t subnormal =
	        zc_f32_bits(zc_f32_from_bits(one | (magnitude & 0x7fffffu)) - zc_f32_from_bits(one));
	uint32_t number = magnitude < 0x400u << 13 ? subnormal : normal;

	return zc_f32_from_bits(sign | (magnitude < 0x7c00u << 13 ? number : special));
}

/* A float8_e5m2 has the bits of the upper half of a float16. */
ZC_ELEMENT float zc_f32_from_e5m2(uint8_t bits)
{
	return zc_f32_from_f16((uint16_t)(bits << 8));
}

/* Moves the bits of a float8_e4m3 to the positions of a float16. The float16's value is 2^-8 of the
 * number. */
ZC_ELEMENT uint16_t zc_f16_of_e4m3(uint8_t bits)
{
	return (uint16_t)((bits & 0x80u) << 8 | (bits & 0x7fu) << 7);
}

ZC_ELEMENT float zc_f32_from_e4m3(uint8_t bits)
{
	float number = zc_f32_from_f16(zc_f16_of_e4m3(bits)) * 256.0f;

	return (bits & 0x7fu) == 0x7fu ? zc_f32_from_bits((bits & 0x80u) << 24 | 0x7fc00000u) : number;
}

/* ---- From float32 -------------------------------------------------------------------------------------- */

/* Drops the lowest `count` bits, to nearest, ties to even. A carry into the exponent yields the correct
 * result. */
ZC_ELEMENT uint32_t zc_round_off(uint32_t bits, unsigned count)
{
	return (bits + (1u << (count - 1)) - 1 + (bits >> count & 1)) >> count;
}

ZC_ELEMENT uint32_t zc_narrow(float value, struct zc_format to)
{
	unsigned dropped = ZC_F32_MANTISSA_BITS - to.mantissa_bits;
	uint32_t bits = zc_f32_bits(value);
	uint32_t magnitude = bits & ZC_F32_MAGNITUDE;
	uint32_t sign = bits >> (32 - to.bits) & 1u << (to.bits - 1);
	uint32_t smallest_normal = (ZC_F32_BIAS - to.bias + 1) << ZC_F32_MANTISSA_BITS;
	/* A float32 whose last bit has the value of the format's smallest subnormal: a sum with the anchor is
	 * rounded at that bit. */
	uint32_t anchor = (ZC_F32_BIAS - to.bias + 1 + dropped) << ZC_F32_MANTISSA_BITS;
	uint32_t small = magnitude < smallest_normal ? magnitude : 0;
	uint32_t subnormal = zc_f32_bits(zc_f32_from_bits(small) + zc_f32_from_bits(anchor)) - anchor;
	uint32_t normal = zc_round_off(magnitude - ((ZC_F32_BIAS - to.bias) << ZC_F32_MANTISSA_BITS),
	                               dropped);
	uint32_t finite = magnitude < smallest_normal ? subnormal : normal;
	uint32_t number = finite < to.overflow ? finite : to.overflow;
	uint32_t nan = to.nan | (magnitude >> dropped & to.payload);

	return sign | (magnitude > ZC_F32_INF ? nan : number);
}

ZC_ELEMENT uint16_t zc_f16_from_f32(float value)
{
	struct zc_format f16 = {16, 10, 15, 0x7c00, 0x7e00, 0x3ff};

	return (uint16_t)zc_narrow(value, f16);
}

ZC_ELEMENT uint8_t zc_e4m3_from_f32(float value)
{
	struct zc_format e4m3 = {8, 3, 7, 0x7f, 0x7f, 0};

	return (uint8_t)zc_narrow(value, e4m3);
}

ZC_ELEMENT uint8_t zc_e5m2_from_f32(float value)
{
	struct zc_format e5m2 = {8, 2, 15, 0x7c, 0x7f, 0};

	return (uint8_t)zc_narrow(value, e5m2);
}

ZC_ELEMENT uint16_t zc_bf16_from_f32(float value)
{
	uint32_t bits = zc_f32_bits(value);
	uint32_t nan = bits >> 16 | 0x40; /* rounding could make it infinite */

	return (uint16_t)((bits & ZC_F32_MAGNITUDE) > ZC_F32_INF ? nan : zc_round_off(bits, 16));
}

#endif
