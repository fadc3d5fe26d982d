/* SPDX-License-Identifier: Apache-2.0 */
/* update_kernels.c - the updates of client/kernels/kernels.cu, by the library's code for the CPU. */
#include <string.h>

#include "base/mem.h"
#include "client/lib/compute/optimizer.h"
#include "tests/double/kernel.h"

static bool reach_array(struct double_reach *reach, uint64_t address, uint64_t first, size_t each, void **at,
                        uint64_t *numel)
{
	size_t bytes = *numel * each;

	if (!address)
		return true;
	*at = reach->at(reach, address + first * each, &bytes);
	*numel = bytes / each;
	return *at && *numel > 0;
}

/* Of as many elements as are in one piece of every array. Returns their number; 0: an illegal address. */
static uint64_t reach_piece(struct double_reach *reach, const struct zc_update_args *args, uint64_t first,
                            struct zc_update *update)
{
	uint64_t numel = args->numel - first;
	size_t each = args->low ? sizeof(uint16_t) : sizeof(float);
	bool legal = reach_array(reach, args->shard, first, each, &update->shard, &numel) &&
	             reach_array(reach, args->low, first, sizeof(uint16_t), (void **)&update->low, &numel) &&
	             reach_array(reach, args->m, first, sizeof(float), (void **)&update->m, &numel) &&
	             reach_array(reach, args->v, first, sizeof(float), (void **)&update->v, &numel) &&
	             reach_array(reach, args->values, first, sizeof(float), (void **)&update->values, &numel);

	return legal ? numel : 0;
}

static bool reach_terms(struct double_reach *reach, const struct zc_terms_args *args, uint64_t first,
                        struct zc_terms *terms, uint64_t *numel)
{
	size_t each = terms->dtype == ZEROD_FLOAT32 ? sizeof(float) : sizeof(uint16_t);
	bool legal = true;

	for (uint32_t i = 0; i < terms->count && legal; i++)
		legal = reach_array(reach, args->terms[i], first, each, (void **)&terms->each[i], numel);
	return legal;
}

/* `terms` is NULL for gradients in one array. */
static bool run(struct double_reach *reach, const struct zc_update_args *args, enum zc_update_kind kind,
                const struct zc_terms_args *terms, enum zerod_dtype dtype)
{
	uint64_t bits = args->shard | args->low | args->m | args->v | args->values, one = 1, numel;
	struct zc_update update = {.kind = kind, .numbers = args->numbers};

	if (terms)
		update.terms = (struct zc_terms){.count = terms->count,
		                                 .dtype = dtype,
		                                 .prescale = terms->prescale,
		                                 .postscale = terms->postscale};
	for (uint32_t i = 0; i < update.terms.count; i++)
		bits |= terms->terms[i];
	if ((args->vectors && bits % ZC_VECTOR_BYTES != 0) ||
	    !reach_array(reach, args->scale, 0, sizeof(float), (void **)&update.scale, &one) ||
	    !reach_array(reach, args->overflow, 0, sizeof(float), (void **)&update.overflow, &one))
		return false;
	for (uint64_t first = 0; first < args->numel; first += numel) {
		numel = reach_piece(reach, args, first, &update);
		if (numel == 0 || !reach_terms(reach, terms, first, &update.terms, &numel))
			return false;
		update.numel = numel;
		zc_update_run(&update);
	}
	return true;
}

#define RUN(name, kind)                                                                                      \
	static bool name(struct double_reach *reach, const uint64_t *args)                                   \
	{                                                                                                    \
		return run(reach, (const struct zc_update_args *)(const void *)args, kind, NULL, 0);         \
	}
RUN(adam, ZC_UPDATE_ADAM)
RUN(sgd, ZC_UPDATE_SGD)
RUN(split, ZC_UPDATE_SPLIT)
RUN(join, ZC_UPDATE_JOIN)

#define RUN_OF_TERMS(name, kind, dtype)                                                                      \
	static bool name(struct double_reach *reach, const uint64_t *args)                                   \
	{                                                                                                    \
		const struct zc_terms_args *terms = (const void *)args;                                      \
		return run(reach, &terms->update, kind, terms, dtype);                                       \
	}
RUN_OF_TERMS(adam_of_float32, ZC_UPDATE_ADAM, ZEROD_FLOAT32)
RUN_OF_TERMS(adam_of_bfloat16, ZC_UPDATE_ADAM, ZEROD_BFLOAT16)
RUN_OF_TERMS(sgd_of_float32, ZC_UPDATE_SGD, ZEROD_FLOAT32)
RUN_OF_TERMS(sgd_of_bfloat16, ZC_UPDATE_SGD, ZEROD_BFLOAT16)

const struct double_kernel *double_update_kernel(const char *name)
{
	enum { bytes = sizeof(struct zc_update_args), all = sizeof(struct zc_terms_args) };
	static const struct {
		const char *name;
		struct double_kernel kernel;
	} kernels[] = {
	        {"zerod_adam_float32", {1, adam, bytes}},
	        {"zerod_adam_bfloat16", {1, adam, bytes}},
	        {"zerod_sgd_float32", {1, sgd, bytes}},
	        {"zerod_sgd_bfloat16", {1, sgd, bytes}},
	        {"zerod_split_bfloat16", {1, split, bytes}},
	        {"zerod_join_bfloat16", {1, join, bytes}},
	        {"zerod_adam_float32_of_float32", {1, adam_of_float32, all}},
	        {"zerod_adam_float32_of_bfloat16", {1, adam_of_bfloat16, all}},
	        {"zerod_adam_bfloat16_of_float32", {1, adam_of_float32, all}},
	        {"zerod_adam_bfloat16_of_bfloat16", {1, adam_of_bfloat16, all}},
	        {"zerod_sgd_float32_of_float32", {1, sgd_of_float32, all}},
	        {"zerod_sgd_float32_of_bfloat16", {1, sgd_of_bfloat16, all}},
	        {"zerod_sgd_bfloat16_of_float32", {1, sgd_of_float32, all}},
	        {"zerod_sgd_bfloat16_of_bfloat16", {1, sgd_of_bfloat16, all}},
	};

	for (size_t i = 0; i < ZD_ARRAY_LEN(kernels); i++)
		if (strcmp(kernels[i].name, name) == 0)
			return &kernels[i].kernel;
	return NULL;
}
