/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_kernels.c - loads and launches the kernels of kernels/kernels.cu.
 *
 * The library contains the kernels as PTX, which every supported driver compiles for its GPU and caches, and,
 * if the build had the compiler, as machine code for some GPUs. The machine code is tried first, because it
 * shortens a trainer's first join.
 */
#include "client/lib/compute/cuda_kernels.h"

#include <stdio.h>

#include "base/dtype.h"
#include "base/embed.h"
#include "base/mem.h"

#define NAME_BYTES 64

ZD_EMBED(zc_kernels_ptx, "client/kernels/generated/kernels.ptx");

static unsigned place(enum zerod_dtype dtype)
{
	return (unsigned)dtype - ZEROD_FLOAT32;
}

/* ---- Loading ------------------------------------------------------------------------------------------- */

static int find_named(const struct zc_kernels *kernels, const char *name, struct CUfunc_st **function,
                      struct zd_err *err)
{
	return zd_cuda_err(kernels->driver,
	                   kernels->driver->moduleGetFunction(function, kernels->module, name), err,
	                   "kernel %s", name);
}

static int find_kernel(const struct zc_kernels *kernels, const char *what, enum zerod_dtype from,
                       enum zerod_dtype to, struct CUfunc_st **function, struct zd_err *err)
{
	char name[NAME_BYTES];

	(void)snprintf(name, sizeof(name), "zerod_%s_%s_%s", what, zerod_dtype_name(from),
	               zerod_dtype_name(to));
	return find_named(kernels, name, function, err);
}

static int find_updates(struct zc_kernels *kernels, struct zd_err *err)
{
	static const char *const names[ZC_UPDATE_KINDS][2] = {
	        [ZC_UPDATE_ADAM] = {"zerod_adam_float32", "zerod_adam_bfloat16"},
	        [ZC_UPDATE_SGD] = {"zerod_sgd_float32", "zerod_sgd_bfloat16"},
	        [ZC_UPDATE_SPLIT] = {NULL, "zerod_split_bfloat16"},
	        [ZC_UPDATE_JOIN] = {NULL, "zerod_join_bfloat16"},
	};
	int rc = 0;

	for (unsigned i = 0; i < ZC_UPDATE_KINDS && !rc; i++)
		for (unsigned split = 0; split < 2 && !rc; split++)
			if (names[i][split])
				rc = find_named(kernels, names[i][split], &kernels->update[i][split], err);
	return rc;
}

static int find_updates_of_terms(struct zc_kernels *kernels, struct zd_err *err)
{
	static const char *const rules[] = {[ZC_UPDATE_ADAM] = "adam", [ZC_UPDATE_SGD] = "sgd"};
	static const char *const dtypes[] = {"float32", "bfloat16"};
	char name[NAME_BYTES];
	int rc = 0;

	for (unsigned i = 0; i < 8 && !rc; i++) {
		unsigned rule = i / 4, split = i / 2 % 2, narrow = i % 2;

		(void)snprintf(name, sizeof(name), "zerod_%s_%s_of_%s", rules[rule], dtypes[split],
		               dtypes[narrow]);
		rc = find_named(kernels, name, &kernels->of_terms[rule][split][narrow], err);
	}
	return rc;
}

/* Finds all kernels now: a driver that loads kernels lazily loads them here, not at their first launch. */
static int find_all(struct zc_kernels *kernels, struct zd_err *err)
{
	int rc = 0;

	for (enum zerod_dtype wide = ZEROD_FLOAT32; wide <= ZEROD_BFLOAT16; wide++) {
		for (enum zerod_dtype any = ZEROD_FLOAT32; any <= ZEROD_FLOAT8_E5M2 && !rc; any++) {
			if (wide != any)
				rc = find_kernel(kernels, "cast", wide, any,
				                 &kernels->cast[place(wide)][place(any)], err);
			if (!rc)
				rc = find_kernel(kernels, "reduce", any, wide,
				                 &kernels->reduce[place(any)][place(wide)], err);
		}
	}
	return rc;
}

static int load_kernels(struct zc_kernels *kernels, const void *image, struct zd_err *err)
{
	int rc = zd_cuda_err(kernels->driver, kernels->driver->moduleLoadData(&kernels->module, image), err,
	                     "loading kernels");

	if (rc)
		return rc;
	rc = find_all(kernels, err);
	if (!rc)
		rc = find_updates(kernels, err);
	if (!rc)
		rc = find_updates_of_terms(kernels, err);
	if (rc)
		zc_kernels_unload(kernels);
	return rc;
}

void zc_kernels_load(const struct zd_cuda *driver, const char *name, struct zc_kernels *kernels)
{
	const void *fatbin = zc_kernels_fatbin();
	struct zd_err err = ZD_ERR_NONE;

	*kernels = (struct zc_kernels){.driver = driver};
	if (fatbin && !load_kernels(kernels, fatbin, &err))
		return;
	if (load_kernels(kernels, zc_kernels_ptx, &err))
		(void)zd_err_set(&kernels->failure, ZEROD_E_UNSUPPORTED,
		                 "%s cannot run the library's kernels: %s", name, err.text);
}

void zc_kernels_unload(struct zc_kernels *kernels)
{
	if (kernels->module)
		(void)kernels->driver->moduleUnload(kernels->module);
	kernels->module = NULL;
}

int zc_kernels_check(const struct zc_kernels *kernels, struct zd_err *err)
{
	if (kernels->failure.status)
		*err = kernels->failure;
	return kernels->failure.status;
}

/* ---- Launching ----------------------------------------------------------------------------------------- */

static int launch_kernel(const struct zc_kernels *kernels, struct CUfunc_st *function, uint64_t blocks,
                         unsigned threads, struct CUstream_st *stream, void *args, const char *what,
                         struct zd_err *err)
{
	void *params[] = {args};

	return zd_cuda_err(kernels->driver,
	                   kernels->driver->launchKernel(function, (unsigned)blocks, 1, 1, threads, 1, 1, 0,
	                                                 stream, params, NULL),
	                   err, "launching a %s", what);
}

/* One for each `each` elements, 1 to `most`. */
static uint64_t count_blocks(uint64_t numel, uint64_t each, uint64_t most)
{
	uint64_t blocks = numel / each + (numel % each != 0);

	return blocks < 1 ? 1 : zd_min_u64(blocks, most);
}

static uint64_t block_numel(enum zerod_dtype dtype)
{
	return (uint64_t)ZC_THREADS * ZC_VECTOR_NUMEL(zerod_dtype_bytes(dtype));
}

static int check_aligned(zd_cu_ptr at, enum zerod_dtype dtype, const char *what, struct zd_err *err)
{
	if (at % zerod_dtype_bytes(dtype) == 0)
		return 0;
	return zd_err_set(err, ZEROD_E_INVALID, "%s at 0x%llx is not aligned for %s", what,
	                  (unsigned long long)at, zerod_dtype_name(dtype));
}

int zc_kernels_cast(const struct zc_kernels *kernels, struct CUstream_st *stream,
                    const struct zc_conversion *conversion, struct zd_err *err)
{
	enum zerod_dtype from = conversion->from_dtype, to = conversion->to_dtype;
	struct zc_cast_args args = {.from = (zd_cu_ptr)conversion->from,
	                            .to = (zd_cu_ptr)conversion->to,
	                            .numel = conversion->numel};
	int rc = zc_kernels_check(kernels, err);

	zd_assert(from != to && zc_cast_supported(from, to));
	if (!rc)
		rc = check_aligned(args.from, from, "a cast's source", err);
	if (!rc)
		rc = check_aligned(args.to, to, "a cast's target", err);
	if (rc || args.numel == 0)
		return rc;
	args.vectors = (args.from | args.to) % ZC_VECTOR_BYTES == 0;
	return launch_kernel(kernels, kernels->cast[place(from)][place(to)],
	                     count_blocks(args.numel, block_numel(from), ZC_CAST_BLOCKS), ZC_THREADS, stream,
	                     &args, "cast", err);
}

static int check_reduce(const struct zc_kernels *kernels, const struct zc_reduce *reduce, zd_cu_ptr result,
                        struct zd_err *err)
{
	int rc = zc_kernels_check(kernels, err);

	zd_assert(reduce->lane < ZC_REDUCE_LANES);
	if (rc)
		return rc;
	if (!zd_dtype_reducible(reduce->input_dtype) || !zd_dtype_holds_sums(reduce->target_dtype))
		return zd_err_set(err, ZEROD_E_UNSUPPORTED, "%s is not reduced to %s",
		                  zerod_dtype_name(reduce->input_dtype),
		                  zerod_dtype_name(reduce->target_dtype));
	if (reduce->ninputs == 0 || reduce->ninputs > ZC_REDUCE_MOST_INPUTS)
		return zd_err_set(err, ZEROD_E_LIMIT, "a GPU adds 1 to %u inputs, not %u",
		                  ZC_REDUCE_MOST_INPUTS, reduce->ninputs);
	if (result % sizeof(uint64_t) != 0)
		return zd_err_set(err, ZEROD_E_INVALID, "a reduction's result at 0x%llx is not aligned",
		                  (unsigned long long)result);
	for (uint32_t i = 0; i < reduce->ninputs && !rc; i++)
		rc = check_aligned(reduce->inputs[i], reduce->input_dtype, "a reduction's input", err);
	return rc ? rc : check_aligned(reduce->target, reduce->target_dtype, "a reduction's target", err);
}

int zc_kernels_reduce(const struct zc_kernels *kernels, struct CUstream_st *stream,
                      const struct zc_reduce *reduce, zd_cu_ptr result, struct zd_err *err)
{
	struct zc_reduce_args args = {
	        .target = reduce->target,
	        .result = result,
	        .numel = reduce->numel,
	        .prescale = reduce->prescale,
	        .postscale = reduce->postscale,
	        .ninputs = reduce->ninputs,
	        .overwrite = reduce->overwrite,
	        .lane = reduce->lane,
	};
	zd_cu_ptr bits = reduce->target;
	int rc = check_reduce(kernels, reduce, result, err);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < reduce->ninputs; i++) {
		args.inputs[i] = reduce->inputs[i];
		bits |= reduce->inputs[i];
	}
	args.vectors = bits % ZC_VECTOR_BYTES == 0;
	return launch_kernel(kernels,
	                     kernels->reduce[place(reduce->input_dtype)][place(reduce->target_dtype)],
	                     count_blocks(reduce->numel, block_numel(reduce->input_dtype), ZC_REDUCE_PARTS),
	                     ZC_THREADS, stream, &args, "reduction", err);
}

int zc_kernels_update(const struct zc_kernels *kernels, struct CUstream_st *stream,
                      const struct zc_update *update, struct zd_err *err)
{
	const struct zc_terms *terms = &update->terms;
	bool split = update->low != NULL;
	struct zc_terms_args all = {
	        .prescale = terms->prescale, .postscale = terms->postscale, .count = terms->count};
	struct zc_update_args *args = &all.update;
	struct CUfunc_st *function = kernels->update[update->kind][split];
	zd_cu_ptr bits;
	uint64_t each = (uint64_t)ZC_UPDATE_THREADS * ZC_UPDATE_NUMEL;
	int rc = zc_kernels_check(kernels, err);

	if (rc)
		return rc;
	*args = (struct zc_update_args){
	        .shard = (zd_cu_ptr)update->shard,
	        .low = (zd_cu_ptr)update->low,
	        .m = (zd_cu_ptr)update->m,
	        .v = (zd_cu_ptr)update->v,
	        .values = (zd_cu_ptr)update->values,
	        .numel = update->numel,
	        .scale = (zd_cu_ptr)update->scale,
	        .overflow = (zd_cu_ptr)update->overflow,
	        .numbers = update->numbers,
	};
	bits = args->shard | args->low | args->m | args->v | args->values;
	for (uint32_t i = 0; i < terms->count; i++) {
		all.terms[i] = (zd_cu_ptr)terms->each[i];
		bits |= all.terms[i];
	}
	args->vectors = bits % ZC_VECTOR_BYTES == 0;
	if (terms->count > 0)
		function = kernels->of_terms[update->kind][split][terms->dtype == ZEROD_BFLOAT16];
	return launch_kernel(kernels, function, count_blocks(update->numel, each, ZC_UPDATE_BLOCKS),
	                     ZC_UPDATE_THREADS, stream, &all, "update", err);
}
