/* SPDX-License-Identifier: Apache-2.0 */
/*
 * update_cpu.c - an optimizer's update by the CPU. GPUs do the same to each element (kernels/kernels.cu).
 *
 * A block of elements is widened to float32 masters, updated and stored, each in a plain loop over arrays in
 * the L1 cache, which compilers vectorise: for the widest registers that the processor has.
 */
#include <string.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("O3", "fp-contract=off")
#endif

#include "client/kernels/update.h"
#include "client/lib/compute/optimizer.h"

#define BLOCK 256u

#define INLINE static inline __attribute__((always_inline))

INLINE void load_masters(const struct zc_update *update, uint64_t first, unsigned n, float *master)
{
	const uint16_t *high = (const uint16_t *)update->shard + first;

	if (!update->low) {
		memcpy(master, (const float *)update->shard + first, n * sizeof(*master));
		return;
	}
	for (unsigned i = 0; i < n; i++)
		master[i] = zc_master_join(high[i], update->low[first + i]);
}

INLINE void store_masters(const struct zc_update *update, uint64_t first, unsigned n, const float *master)
{
	uint16_t *high = (uint16_t *)update->shard + first, *low = update->low;

	if (!low) {
		memcpy((float *)update->shard + first, master, n * sizeof(*master));
		return;
	}
	for (unsigned i = 0; i < n; i++)
		high[i] = zc_master_high(master[i]);
	for (unsigned i = 0; i < n; i++)
		low[first + i] = zc_master_low(master[i]);
}

INLINE void add_term(const struct zc_terms *terms, uint32_t i, uint64_t first, unsigned n,
                     float *restrict sum)
{
	const float *wide = (const float *)terms->each[i] + first;
	const uint16_t *narrow = (const uint16_t *)terms->each[i] + first;

	if (terms->dtype == ZEROD_FLOAT32) {
		for (unsigned j = 0; j < n; j++)
			sum[j] = sum[j] + wide[j] * terms->prescale;
	} else {
		for (unsigned j = 0; j < n; j++)
			sum[j] = sum[j] + zc_f32_from_bf16(narrow[j]) * terms->prescale;
	}
}

/* Returns n gradients, which are in `sum` if they are sums of terms. */
INLINE const float *load_gradients(const struct zc_update *update, uint64_t first, unsigned n, float *sum)
{
	const struct zc_terms *terms = &update->terms;

	if (terms->count == 0)
		return update->values + first;
	memset(sum, 0, n * sizeof(*sum));
	for (uint32_t i = 0; i < terms->count; i++)
		add_term(terms, i, first, n, sum);
	for (unsigned j = 0; j < n; j++)
		sum[j] = sum[j] * terms->postscale;
	return sum;
}

INLINE void update_adam(const struct zc_update *update, float factor, uint64_t first, unsigned n,
                        const float *restrict gradient, float *restrict master)
{
	float *restrict m = update->m + first, *restrict v = update->v + first;

	for (unsigned i = 0; i < n; i++) {
		struct zc_element_state at = {master[i], m[i], v[i]};

		at = zc_update_adam(at, gradient[i] * factor, &update->numbers);
		master[i] = at.master;
		m[i] = at.m;
		v[i] = at.v;
	}
}

INLINE void update_sgd(const struct zc_update *update, float factor, uint64_t first, unsigned n,
                       const float *gradient, float *master)
{
	for (unsigned i = 0; i < n; i++) {
		struct zc_element_state at = {.master = master[i], .m = update->m ? update->m[first + i] : 0};

		at = zc_update_sgd(at, gradient[i] * factor, &update->numbers);
		master[i] = at.master;
		if (update->m)
			update->m[first + i] = at.m;
	}
}

INLINE void run(const struct zc_update *update)
{
	float factor = update->numbers.sign * (update->scale ? *update->scale : 1.0f);
	float master[BLOCK], sum[BLOCK];

	if (update->overflow && *update->overflow != 0)
		return;
	for (uint64_t first = 0; first < update->numel; first += BLOCK) {
		unsigned n = update->numel - first < BLOCK ? (unsigned)(update->numel - first) : BLOCK;

		if (update->kind == ZC_UPDATE_SPLIT)
			memcpy(master, update->values + first, n * sizeof(*master));
		else
			load_masters(update, first, n, master);
		if (update->kind == ZC_UPDATE_ADAM)
			update_adam(update, factor, first, n, load_gradients(update, first, n, sum), master);
		else if (update->kind == ZC_UPDATE_SGD)
			update_sgd(update, factor, first, n, load_gradients(update, first, n, sum), master);
		if (update->kind == ZC_UPDATE_JOIN)
			memcpy(update->values + first, master, n * sizeof(*master));
		else
			store_masters(update, first, n, master);
	}
}

#if defined(__x86_64__)
/* No variant fuses operations: all compute the same bits. */
__attribute__((target("avx512f,avx512bw"))) static void run_avx512(const struct zc_update *update)
{
	run(update);
}

__attribute__((target("avx2"))) static void run_avx2(const struct zc_update *update)
{
	run(update);
}

void zc_update_run(const struct zc_update *update)
{
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"))
		run_avx512(update);
	else if (__builtin_cpu_supports("avx2"))
		run_avx2(update);
	else
		run(update);
}
#else
void zc_update_run(const struct zc_update *update)
{
	run(update);
}
#endif
