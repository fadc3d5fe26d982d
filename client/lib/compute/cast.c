/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cast.c - converts elements from the dtype of a source to that of a unit, on the CPU.
 *
 * A block of elements is widened to float32 and then narrowed, each in a plain loop over arrays in the L1
 * cache, which compilers vectorise. GPUs do the same to each element (kernels/kernels.cu).
 */
#include "client/lib/compute/cast.h"

#include <string.h>

#include "client/kernels/element.h"

#if !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#define BLOCK 256u

/* ---- A block: n elements ------------------------------------------------------------------------------- */

static void widen(enum zerod_dtype from, const void *source, uint64_t first, unsigned n, float *wide)
{
	const uint16_t *halves = (const uint16_t *)source + first;
	const uint8_t *bytes = (const uint8_t *)source + first;

	if (from == ZEROD_FLOAT32)
		memcpy(wide, (const float *)source + first, n * sizeof(*wide));
	else if (from == ZEROD_FLOAT16)
		for (unsigned i = 0; i < n; i++)
			wide[i] = zc_f32_from_f16(halves[i]);
	else if (from == ZEROD_FLOAT8_E4M3)
		for (unsigned i = 0; i < n; i++)
			wide[i] = zc_f32_from_e4m3(bytes[i]);
	else if (from == ZEROD_FLOAT8_E5M2)
		for (unsigned i = 0; i < n; i++)
			wide[i] = zc_f32_from_e5m2(bytes[i]);
	else
		for (unsigned i = 0; i < n; i++)
			wide[i] = zc_f32_from_bf16(halves[i]);
}

static void narrow_to_e4m3(const float *wide, uint8_t *target, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		target[i] = zc_e4m3_from_f32(wide[i]);
}

static void narrow_to_e5m2(const float *wide, uint8_t *target, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		target[i] = zc_e5m2_from_f32(wide[i]);
}

static void narrow_to_f16(const float *wide, uint16_t *target, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		target[i] = zc_f16_from_f32(wide[i]);
}

static void narrow_to_bf16(const float *wide, uint16_t *target, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		target[i] = zc_bf16_from_f32(wide[i]);
}

static void store_elements(const float *wide, enum zerod_dtype to, void *target, uint64_t first, unsigned n)
{
	if (to == ZEROD_FLOAT32)
		memcpy((float *)target + first, wide, n * sizeof(*wide));
	else if (to == ZEROD_FLOAT16)
		narrow_to_f16(wide, (uint16_t *)target + first, n);
	else if (to == ZEROD_BFLOAT16)
		narrow_to_bf16(wide, (uint16_t *)target + first, n);
	else if (to == ZEROD_FLOAT8_E4M3)
		narrow_to_e4m3(wide, (uint8_t *)target + first, n);
	else
		narrow_to_e5m2(wide, (uint8_t *)target + first, n);
}

/* ---- All of it ----------------------------------------------------------------------------------------- */

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
		store_elements(wide, to, target, first, n);
	}
}
