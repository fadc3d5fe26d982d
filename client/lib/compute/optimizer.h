/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer.h - the update of a range of a shard by an optimizer, and its masters in two halves. */
#ifndef ZD_CLIENT_OPTIMIZER_H
#define ZD_CLIENT_OPTIMIZER_H

#include <stdbool.h>
#include <stdint.h>

#include <zerod.h>

#include "client/kernels/kernels.h"

enum zc_update_kind { ZC_UPDATE_ADAM, ZC_UPDATE_SGD, ZC_UPDATE_SPLIT, ZC_UPDATE_JOIN, ZC_UPDATE_KINDS };

/* Gradients that are sums: ((0 + each[0] * prescale) + ...) * postscale. */
struct zc_terms {
	uint32_t count;         /* 0: none */
	enum zerod_dtype dtype; /* float32 or bfloat16 */
	float prescale, postscale;
	const void *each[ZC_MOST_TERMS];
};

/* The arrays do not overlap, have numel elements each, and are aligned for them. */
struct zc_update {
	enum zc_update_kind kind;
	void *shard;   /* bfloat16; float32 without `low` */
	uint16_t *low; /* not NULL for SPLIT and JOIN */
	float *m, *v;  /* NULL: not used by the rule */
	float *values; /* gradients, or masters; NULL: the gradients are sums of terms */
	struct zc_terms terms;
	uint64_t numel;
	const float *scale, *overflow; /* NULL: none */
	struct zc_update_numbers numbers;
};

/* Runs it on the calling thread. */
void zc_update_run(const struct zc_update *update);

#endif
