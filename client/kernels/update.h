/* SPDX-License-Identifier: Apache-2.0 */
/*
 * update.h - masters in two halves, and the update of one element by an optimizer, for the CPU (optimizer.c)
 * and for GPUs (kernels.cu).
 *
 * The upper half is the master rounded to 16 bits. The lower half is the master's own lower bits: read as a
 * signed number, it is the difference that the rounding made. The two halves therefore give back every
 * float32. The upper half of a NaN would not always be a NaN. All NaNs therefore become the same one.
 *
 * Every operation rounds separately: both compilers have options against fusing them. CPUs and GPUs therefore
 * compute the same bits, except the bits of a NaN. The file is valid C and CUDA C++.
 */
#ifndef ZD_CLIENT_KERNELS_UPDATE_H
#define ZD_CLIENT_KERNELS_UPDATE_H

#include "client/kernels/element.h"
#include "client/kernels/kernels.h"

#if defined(__CUDACC__)
#define ZC_SQRT(x) __fsqrt_rn(x)
#else
#define ZC_SQRT(x) __builtin_sqrtf(x)
#endif

#define ZC_HIGH_NAN 0x7fc0u

ZC_ELEMENT uint16_t zc_master_high(float master)
{
	uint32_t bits = zc_f32_bits(master);
	uint32_t rounded = (bits + 0x8000u) >> 16;

	return (uint16_t)((bits & ZC_F32_MAGNITUDE) > ZC_F32_INF ? ZC_HIGH_NAN : rounded);
}

ZC_ELEMENT uint16_t zc_master_low(float master)
{
	uint32_t bits = zc_f32_bits(master);

	return (uint16_t)((bits & ZC_F32_MAGNITUDE) > ZC_F32_INF ? 0 : bits & 0xffffu);
}

ZC_ELEMENT float zc_master_join(uint16_t high, uint16_t low)
{
	return zc_f32_from_bits(((uint32_t)high << 16) + (uint32_t)(int32_t)(int16_t)low);
}

/* The state of one element. A rule does not change the parts that it does not use. */
struct zc_element_state {
	float master, m, v;
};

ZC_ELEMENT struct zc_element_state zc_update_adam(struct zc_element_state at, float gradient,
                                                  const struct zc_update_numbers *numbers)
{
	float decayed = gradient + numbers->decay * at.master;
	float kept = at.master * numbers->keep;

	at.m = numbers->beta1 * at.m + numbers->rest1 * decayed;
	at.v = numbers->beta2 * at.v + numbers->rest2 * (decayed * decayed);
	at.master = kept - numbers->lr * (at.m / (ZC_SQRT(at.v) / numbers->root + numbers->eps));
	return at;
}

ZC_ELEMENT struct zc_element_state zc_update_sgd(struct zc_element_state at, float gradient,
                                                 const struct zc_update_numbers *numbers)
{
	float decayed = gradient + numbers->decay * at.master;
	float moved = numbers->first ? decayed : numbers->beta1 * at.m + numbers->rest1 * decayed;
	float ahead = numbers->nesterov ? decayed + numbers->beta1 * moved : moved;

	at.m = moved;
	at.master = at.master - numbers->lr * ahead;
	return at;
}

#endif
