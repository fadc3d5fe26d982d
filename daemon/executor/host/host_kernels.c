/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_kernels.c - the reduction on the CPU.
 *
 * The same loops are compiled once for each instruction set, and cpuid selects one at run time. ifunc is not
 * used: its resolvers run before the sanitizers are ready. A block of elements passes the steps one after the
 * other (widen, sum, scale, round, count). Each step is a plain loop over arrays in the L1 cache, which
 * compilers vectorise.
 *
 * Every multiplication and addition rounds. If the compiler contracted them into fused operations, results
 * would depend on the instruction set. The pragma below forbids that in every build.
 */
#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "base/dtype.h"
#include "base/err.h"
#include "base/mem.h"
#include "executor/host/host_kernels.h"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("O3", "fp-contract=off")
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define BLOCK         ZD_HOST_REDUCE_BLOCK_NUMEL
#define SUMS          ZD_HOST_REDUCE_SUMS

_Static_assert(BLOCK % SUMS == 0, "each block begins with the first partial sum");

/* One instruction set. `supported` is NULL if it is not compiled in. */
struct isa {
	bool (*supported)(void);
	void (*reduce_block)(struct zd_host_reduce *reduce, uint64_t first, size_t n);
};

/* ---- One element --------------------------------------------------------------------------------------- */

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

static ALWAYS_INLINE float f32_from_bf16(uint16_t bits)
{
	return f32_from_bits((uint32_t)bits << 16);
}

/* A nan must be the canonical one, which remains the same. zd_f32_to_bf16() accepts every nan, but branches,
 * and therefore does not vectorise. */
static ALWAYS_INLINE uint16_t bf16_from_f32(float value)
{
	uint32_t bits = f32_bits(value);
	return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* ---- float16, a block at a time: a and b hold n elements ----------------------------------------------- */

static void widen_f16_generic(const uint16_t *a, float *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		b[i] = zd_f16_to_f32(a[i]);
}

static void narrow_f16_generic(const float *a, uint16_t *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		b[i] = zd_f32_to_f16(a[i]);
}

#if defined(__x86_64__)
#define TARGET_AVX2 __attribute__((target("avx2,f16c")))
/* gcc otherwise uses half of the register. For data in memory the full register is a tenth to a quarter
 * faster. */
#if defined(__clang__)
#define TARGET_AVX512 __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512vl")))
#else
#define TARGET_AVX512 __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512vl,prefer-vector-width=512")))
#endif

TARGET_AVX2 static void widen_f16_f16c(const uint16_t *a, float *b, size_t n)
{
	size_t i = 0;
	for (; i + 8 <= n; i += 8)
		_mm256_storeu_ps(b + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(a + i))));
	for (; i < n; i++)
		b[i] = _cvtsh_ss(a[i]);
}

TARGET_AVX2 static void narrow_f16_f16c(const float *a, uint16_t *b, size_t n)
{
	size_t i = 0;
	for (; i + 8 <= n; i += 8)
		_mm_storeu_si128((__m128i *)(b + i),
		                 _mm256_cvtps_ph(_mm256_loadu_ps(a + i), _MM_FROUND_TO_NEAREST_INT));
	for (; i < n; i++)
		b[i] = _cvtss_sh(a[i], _MM_FROUND_TO_NEAREST_INT);
}
#endif

/* ---- A block ------------------------------------------------------------------------------------------- */

typedef void (*widen_f16_fn)(const uint16_t *a, float *b, size_t n);
typedef void (*narrow_f16_fn)(const float *a, uint16_t *b, size_t n);

/* float8_e5m2 is the upper half of a float16. */
static ALWAYS_INLINE void widen_e5m2(const uint8_t *a, float *b, size_t n, widen_f16_fn widen_f16)
{
	uint16_t halves[BLOCK];
	for (size_t i = 0; i < n; i++)
		halves[i] = (uint16_t)(a[i] << 8);
	widen_f16(halves, b, n);
}

/* The bits of a float8_e4m3, shifted by 7, are a float16 of 2^-8 times its value; its nan is the
 * exception. */
static ALWAYS_INLINE void widen_e4m3(const uint8_t *a, float *b, size_t n, widen_f16_fn widen_f16)
{
	uint16_t halves[BLOCK];
	for (size_t i = 0; i < n; i++)
		halves[i] = (uint16_t)((a[i] & 0x80u) << 8 | (a[i] & 0x7fu) << 7);
	widen_f16(halves, b, n);
	for (size_t i = 0; i < n; i++)
		b[i] = (a[i] & 0x7f) == 0x7f ? f32_from_bits(0x7fc00000u) : b[i] * 256.0f;
}

/* Returns the elements as float32: in place, or converted into `room`. */
static ALWAYS_INLINE const float *widen(enum zerod_dtype dtype, const void *values, uint64_t first, size_t n,
                                        float *room, widen_f16_fn widen_f16)
{
	if (dtype == ZEROD_FLOAT32)
		return (const float *)values + first;
	const uint16_t *halves = (const uint16_t *)values + first;
	const uint8_t *bytes = (const uint8_t *)values + first;
	if (dtype == ZEROD_FLOAT16)
		widen_f16(halves, room, n);
	else if (dtype == ZEROD_FLOAT8_E4M3)
		widen_e4m3(bytes, room, n, widen_f16);
	else if (dtype == ZEROD_FLOAT8_E5M2)
		widen_e5m2(bytes, room, n, widen_f16);
	else
		for (size_t i = 0; i < n; i++)
			room[i] = f32_from_bf16(halves[i]);
	return room;
}

/* Stores acc in the target's dtype, and sets acc to the stored values. */
static ALWAYS_INLINE void store_sums(const struct zd_host_reduce *reduce, uint64_t first, size_t n,
                                     float *acc, widen_f16_fn widen_f16, narrow_f16_fn narrow_f16)
{
	for (size_t i = 0; i < n; i++)
		acc[i] = acc[i] != acc[i] ? f32_from_bits(0x7fc00000u) : acc[i];
	if (reduce->target_dtype == ZEROD_FLOAT32) {
		memcpy((float *)reduce->target + first, acc, n * sizeof(*acc));
		return;
	}
	uint16_t *halves = (uint16_t *)reduce->target + first;
	if (reduce->target_dtype == ZEROD_FLOAT16) {
		narrow_f16(acc, halves, n);
		widen_f16(halves, acc, n);
		return;
	}
	uint16_t rounded[BLOCK];
	for (size_t i = 0; i < n; i++)
		rounded[i] = bf16_from_f32(acc[i]);
	for (size_t i = 0; i < n; i++)
		acc[i] = f32_from_bf16(rounded[i]);
	memcpy(halves, rounded, n * sizeof(*rounded));
}

/* Adds the squares, and detects values that are not finite. acc must be zero after the n values, up to a
 * multiple of SUMS. */
static ALWAYS_INLINE void count(struct zd_host_reduce *reduce, size_t n, const float *acc)
{
	double sums[SUMS];
	memcpy(sums, reduce->sums, sizeof(sums));
	for (size_t i = 0; i < n; i += SUMS) {
		for (size_t j = 0; j < SUMS; j++) {
			double value = acc[i + j];
			sums[j] += value * value;
		}
	}
	memcpy(reduce->sums, sums, sizeof(sums));

	uint32_t bad = 0;
	for (size_t i = 0; i < n; i++)
		bad |= (f32_bits(acc[i]) & 0x7f800000u) == 0x7f800000u;
	reduce->overflow |= bad != 0;
}

static ALWAYS_INLINE void reduce_block(struct zd_host_reduce *reduce, uint64_t first, size_t n,
                                       widen_f16_fn widen_f16, narrow_f16_fn narrow_f16)
{
	_Alignas(64) float acc[BLOCK] = {0};
	_Alignas(64) float room[BLOCK];
	float prescale = reduce->prescale;
	float postscale = reduce->postscale;
	for (uint32_t k = 0; k < reduce->ninputs; k++) {
		const float *x = widen(reduce->input_dtype, reduce->inputs[k], first, n, room, widen_f16);
		for (size_t i = 0; i < n; i++)
			acc[i] = acc[i] + x[i] * prescale;
	}
	for (size_t i = 0; i < n; i++)
		acc[i] = acc[i] * postscale;
	if (!reduce->overwrite) {
		const float *old = widen(reduce->target_dtype, reduce->target, first, n, room, widen_f16);
		for (size_t i = 0; i < n; i++)
			acc[i] = acc[i] + old[i];
	}
	store_sums(reduce, first, n, acc, widen_f16, narrow_f16);
	count(reduce, n, acc);
}

static void reduce_block_generic(struct zd_host_reduce *reduce, uint64_t first, size_t n)
{
	reduce_block(reduce, first, n, widen_f16_generic, narrow_f16_generic);
}

#if defined(__x86_64__)
TARGET_AVX2 static void reduce_block_avx2(struct zd_host_reduce *reduce, uint64_t first, size_t n)
{
	reduce_block(reduce, first, n, widen_f16_f16c, narrow_f16_f16c);
}

TARGET_AVX512 static void reduce_block_avx512(struct zd_host_reduce *reduce, uint64_t first, size_t n)
{
	reduce_block(reduce, first, n, widen_f16_f16c, narrow_f16_f16c);
}
#endif

/* ---- Selecting the instruction set --------------------------------------------------------------------- */

static bool always(void)
{
	return true;
}

#if defined(__x86_64__)
/* __builtin_cpu_supports() also checks that the system saves the wide registers. Not every compiler accepts
 * F16C in it. F16C uses only registers that AVX2 also needs. */
static bool avx2_and_f16c(void)
{
	unsigned eax, ebx, ecx, edx;
	return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

static bool avx512(void)
{
	return avx2_and_f16c() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512vl");
}
#endif

static const struct isa isas[ZD_HOST_NISAS] = {
        [ZD_HOST_ISA_GENERIC] = {always, reduce_block_generic},
#if defined(__x86_64__)
        [ZD_HOST_ISA_AVX2] = {avx2_and_f16c, reduce_block_avx2},
        [ZD_HOST_ISA_AVX512] = {avx512, reduce_block_avx512},
#endif
};

bool zd_host_isa_supported(enum zd_host_isa isa)
{
	return isa < ZD_HOST_NISAS && isas[isa].supported && isas[isa].supported();
}

static enum zd_host_isa best_isa; /* the last supported one: they are in ascending order */

static void find_best_isa(void)
{
	for (enum zd_host_isa isa = ZD_HOST_ISA_GENERIC; isa < ZD_HOST_NISAS; isa++)
		if (zd_host_isa_supported(isa))
			best_isa = isa;
}

enum zd_host_isa zd_host_isa_best(void)
{
	/* cpuid traps under virtualisation and takes tens of microseconds. */
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, find_best_isa);
	return best_isa;
}

bool zd_host_reduce_run(struct zd_host_reduce *reduce, uint64_t numel)
{
	zd_assert(numel % BLOCK == 0);
	uint64_t end = reduce->done_numel + zd_min_u64(numel, reduce->numel - reduce->done_numel);
	while (reduce->done_numel < end) {
		size_t n = zd_min_u64(BLOCK, end - reduce->done_numel);
		isas[reduce->isa].reduce_block(reduce, reduce->done_numel, n);
		reduce->done_numel += n;
	}
	return reduce->done_numel == reduce->numel;
}

struct zd_op_result zd_host_reduce_result(const struct zd_host_reduce *reduce)
{
	struct zd_op_result result = {.overflow = reduce->overflow};
	for (size_t i = 0; i < SUMS; i++)
		result.sum_squares += reduce->sums[i];
	return result;
}
