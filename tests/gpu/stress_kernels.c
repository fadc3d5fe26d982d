/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stress_kernels.c - loads and launches the stress's kernels.
 */
#include "tests/gpu/stress.h"

#include <string.h>

#include "base/embed.h"

#define THREADS     256
#define MOST_BLOCKS 264

ZD_EMBED(stress_kernels_ptx, "tests/gpu/generated/kernels.ptx");

static int find(struct stress_kernels *kernels, const char *name, struct CUfunc_st **function,
                struct zd_err *err)
{
	const struct zd_cuda *cuda = kernels->gpu->cuda;

	return zd_cuda_err(cuda, cuda->moduleGetFunction(function, kernels->module, name), err, "kernel %s",
	                   name);
}

static int clear(const struct stress_kernels *kernels, struct zd_err *err)
{
	static const uint64_t zero[STRESS_FOUND_WORDS];

	return zd_gpu_write(kernels->gpu, kernels->found.at, zero, sizeof(zero), err);
}

int stress_kernels_load(struct stress_kernels *kernels, const struct zd_gpu *gpu, struct zd_err *err)
{
	int status;

	*kernels = (struct stress_kernels){.gpu = gpu};
	status = zd_cuda_err(gpu->cuda, gpu->cuda->moduleLoadData(&kernels->module, stress_kernels_ptx), err,
	                     "loading the kernels");
	if (!status)
		status = find(kernels, "stress_fill", &kernels->fill, err);
	if (!status)
		status = find(kernels, "stress_compare", &kernels->compare, err);
	if (!status)
		status = find(kernels, "stress_delay", &kernels->delay, err);
	if (!status)
		status = zd_gpu_memory_new(gpu, STRESS_FOUND_WORDS * sizeof(uint64_t), 0, &kernels->found,
		                           err);
	return status ? status : clear(kernels, err);
}

void stress_kernels_unload(struct stress_kernels *kernels)
{
	if (!kernels->module)
		return;
	zd_gpu_memory_free(kernels->gpu, &kernels->found);
	(void)kernels->gpu->cuda->moduleUnload(kernels->module);
	kernels->module = NULL;
}

static int launch(const struct stress_kernels *kernels, struct CUfunc_st *function, uint64_t threads,
                  struct CUstream_st *stream, uint64_t *args, unsigned nargs, struct zd_err *err)
{
	const struct zd_cuda *cuda = kernels->gpu->cuda;
	uint64_t blocks = (threads + THREADS - 1) / THREADS;
	void *places[8];

	for (unsigned i = 0; i < nargs; i++)
		places[i] = &args[i];
	blocks = blocks < 1 ? 1 : blocks > MOST_BLOCKS ? MOST_BLOCKS : blocks;
	return zd_cuda_err(cuda,
	                   cuda->launchKernel(function, (unsigned)blocks, 1, 1, threads > 1 ? THREADS : 1, 1,
	                                      1, 0, stream, places, NULL),
	                   err, "launching a kernel");
}

int stress_fill(const struct stress_kernels *kernels, struct CUstream_st *stream, zd_cu_ptr at,
                uint64_t first_word, uint64_t words, uint64_t true_bytes, uint64_t seed, struct zd_err *err)
{
	uint64_t args[] = {at, first_word, words, true_bytes, seed};

	return launch(kernels, kernels->fill, words, stream, args, 5, err);
}

int stress_compare(const struct stress_kernels *kernels, struct CUstream_st *stream, zd_cu_ptr at,
                   uint64_t words, uint64_t true_bytes, uint64_t seed, struct zd_err *err)
{
	uint64_t args[] = {at, words, true_bytes, seed, kernels->found.at};

	return launch(kernels, kernels->compare, words, stream, args, 5, err);
}

int stress_delay(const struct stress_kernels *kernels, struct CUstream_st *stream, uint64_t ns,
                 struct zd_err *err)
{
	uint64_t args[] = {ns};

	return launch(kernels, kernels->delay, 1, stream, args, 1, err);
}

int stress_look(const struct stress_kernels *kernels, uint64_t found[STRESS_FOUND_WORDS], struct zd_err *err)
{
	int status = zd_gpu_read(kernels->gpu, found, kernels->found.at, STRESS_FOUND_WORDS * sizeof(*found),
	                         err);

	if (!status && found[0])
		status = clear(kernels, err);
	return status;
}
