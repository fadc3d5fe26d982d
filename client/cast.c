/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cast.c - from the dtype of a source to that of a unit, on the CPU.
 *
 * A block of elements is widened to float32, which is exact, and then rounded once, each step a plain loop over arrays in the
 * first cache. The loops choose by value and never branch, so that compilers vectorise them. All bits are made by integer
 * arithmetic, but for subnormals, where one addition of floats rounds as the format wants it. No operand or result of those
 * is a subnormal float32, so that a trainer whose threads flush these gets the same bits.
 */
#include "client/cast.h"

#include <string.h>

#if !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define BLOCK         256u

#define F32_MAGNITUDE     0x7fffffffu
#define F32_INF           0x7f800000u
#define F32_MANTISSA_BITS 23u
#define F32_BIAS          127u

/* What float32 is narrowed to: sign, exponent with its bias, mantissa. */
struct format {
	unsigned bits, mantissa_bits, bias;
	uint32_t overflow; /* what is too large becomes; the pattern behind the largest finite value */
	uint32_t nan;      /* a quiet nan */
	uint32_t payload;  /* bits of a nan's mantissa that are kept */
};

static const struct format float16 = {16, 10, 15, 0x7c00, 0x7e00, 0x3ff};
static const struct format float8_e4m3 = {8, 3, 7, 0x7f, 0x7f, 0};
static const struct format float8_e5m2 = {8, 2, 15, 0x7c, 0x7f, 0};

static ALWAYS_INLINE uint32_t f32_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static ALWAYS_INLINE float f32_from_bits(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* ---- One element ------------------------------------------------------------------------------------------- */

/* Drops the lowest `count` bits, to nearest, ties to even. A carry into the exponent is what the format wants. */
static ALWAYS_INLINE uint32_t round_off(uint32_t bits, unsigned count)
{
	return (bits + (1u << (count - 1)) - 1 + (bits >> count & 1)) >> count;
}

static ALWAYS_INLINE uint32_t narrow(uint32_t bits, const struct format *to)
{
	unsigned dropped = F32_MANTISSA_BITS - to->mantissa_bits;
	uint32_t magnitude = bits & F32_MAGNITUDE;
	uint32_t sign = bits >> (32 - to->bits) & 1u << (to->bits - 1);
	uint32_t smallest_normal = (F32_BIAS - to->bias + 1) << F32_MANTISSA_BITS;
	/* A float32 whose last bit is worth the format's smallest subnormal: a sum with it is rounded there. */
	uint32_t anchor = (F32_BIAS - to->bias + 1 + dropped) << F32_MANTISSA_BITS;
	uint32_t small = magnitude < smallest_normal ? magnitude : 0;
	uint32_t subnormal = f32_bits(f32_from_bits(small) + f32_from_bits(anchor)) - anchor;
	uint32_t normal = round_off(magnitude - ((F32_BIAS - to->bias) << F32_MANTISSA_BITS), dropped);
	uint32_t finite = magnitude < smallest_normal ? subnormal : normal;
	uint32_t number = finite < to->overflow ? finite : to->overflow;
	uint32_t nan = to->nan | (magnitude >> dropped & to->payload);

	return sign | (magnitude > F32_INF ? nan : number);
}

static ALWAYS_INLINE uint16_t bf16_from_f32(uint32_t bits)
{
	uint32_t nan = bits >> 16 | 0x40; /* rounding could make it infinite */

	return (uint16_t)((bits & F32_MAGNITUDE) > F32_INF ? nan : round_off(bits, 16));
}

static ALWAYS_INLINE float f32_from_f16(uint16_t bits)
{
	uint32_t rebias = (F32_BIAS - 15) << F32_MANTISSA_BITS;
	uint32_t sign = (bits & 0x8000u) << 16;
	uint32_t magnitude = (bits & 0x7fffu) << 13;
	uint32_t normal = magnitude + rebias;
	uint32_t special = normal + rebias;       /* inf, nan: the exponent's highest value in float32, too */
	uint32_t one = 113u << F32_MANTISSA_BITS; /* 2^-14, of which a subnormal is the fraction */
	uint32_t subnormal = f32_bits(f32_from_bits(one | (magnitude & 0x7fffffu)) - f32_from_bits(one));
	uint32_t number = magnitude < 0x400u << 13 ? subnormal : normal;

	return f32_from_bits(sign | (magnitude < 0x7c00u << 13 ? number : special));
}

/* ---- A block: n elements ------------------------------------------------------------------------------------ */

static void widen(enum zerod_dtype from, const void *source, uint64_t first, unsigned n, float *wide)
{
	const uint16_t *halves = (const uint16_t *)source + first;

	if (from == ZEROD_FLOAT32)
		memcpy(wide, (const float *)source + first, n * sizeof(*wide));
	else if (from == ZEROD_FLOAT16)
		for (unsigned i = 0; i < n; i++)
			wide[i] = f32_from_f16(halves[i]);
	else
		for (unsigned i = 0; i < n; i++)
			wide[i] = f32_from_bits((uint32_t)halves[i] << 16);
}

static ALWAYS_INLINE void narrow_to_bytes(const float *wide, const struct format *to, uint8_t *target,
                                          unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		target[i] = (uint8_t)narrow(f32_bits(wide[i]), to);
}

static void narrow_to_f16(const float *wide, uint16_t *target, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		target[i] = (uint16_t)narrow(f32_bits(wide[i]), &float16);
}

static void narrow_to_bf16(const float *wide, uint16_t *target, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		target[i] = bf16_from_f32(f32_bits(wide[i]));
}

static void store(const float *wide, enum zerod_dtype to, void *target, uint64_t first, unsigned n)
{
	if (to == ZEROD_FLOAT32)
		memcpy((float *)target + first, wide, n * sizeof(*wide));
	else if (to == ZEROD_FLOAT16)
		narrow_to_f16(wide, (uint16_t *)target + first, n);
	else if (to == ZEROD_BFLOAT16)
		narrow_to_bf16(wide, (uint16_t *)target + first, n);
	else if (to == ZEROD_FLOAT8_E4M3)
		narrow_to_bytes(wide, &float8_e4m3, (uint8_t *)target + first, n);
	else
		narrow_to_bytes(wide, &float8_e5m2, (uint8_t *)target + first, n);
}

/* ---- All of it ---------------------------------------------------------------------------------------------- */

bool zc_cast_supported(enum zerod_dtype from, enum zerod_dtype to)
{
	bool wide = from == ZEROD_FLOAT32 || from == ZEROD_FLOAT16 || from == ZEROD_BFLOAT16;
	bool floating = to >= ZEROD_FLOAT32 && to <= ZEROD_FLOAT8_E5M2;

	return zerod_dtype_bytes(from) > 0 && (from == to || (wide && floating));
}

void zc_cast(enum zerod_dtype from, const void *source, enum zerod_dtype to, void *target, uint64_t numel)
{
	float wide[BLOCK];

	if (from == to) {
		memcpy(target, source, numel * zerod_dtype_bytes(to));
		return;
	}
	for (uint64_t first = 0; first < numel; first += BLOCK) {
		unsigned n = numel - first < BLOCK ? (unsigned)(numel - first) : BLOCK;

		widen(from, source, first, n, wide);
		store(wide, to, target, first, n);
	}
}
