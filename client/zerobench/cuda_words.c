// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_words.c - the first and last element of every slice of a gathered buffer, which are compared after
 * each gather. Before the next gather, these elements of other ranks' slices are overwritten, so that a
 * gather that moved nothing is detected. The own slice is not overwritten: it can be the shard.
 */
#include "client/zerobench/cuda_bench.h"

#include <string.h>

#include "base/mem.h"

/* Pinned host memory for the compared or written values, one word per element. */
#define WORDS ((size_t)2 * ZD_CUDA_MAX_RANKS)

struct words {
	uint32_t count;
	uint64_t index[WORDS];    /* of the element in the unit */
	uint64_t expected[WORDS]; /* its bytes, in the order of memory */
	uint32_t slice[WORDS];
};

static size_t element_bytes(const struct zd_cuda_unit *unit)
{
	return zerod_dtype_bytes(unit->shard.dtype);
}

static void find_words(const struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit,
                       struct words *words)
{
	words->count = 0;
	for (uint32_t slice = 0; slice < trainer->run->ranks; slice++) {
		const uint64_t first = slice * unit->shard.shard_numel;
		if (first >= unit->numel)
			return;
		const uint64_t last = zd_min_u64(first + unit->shard.shard_numel, unit->numel) - 1;
		for (int end = 0; end < 2; end++) {
			const uint32_t i = words->count++;
			words->slice[i] = slice;
			words->index[i] = end ? last : first;
			words->expected[i] = 0;
			zd_pattern_fill_bits(&words->expected[i], unit->shard.dtype, words->index[i], 1, 1);
		}
	}
}

void zd_cuda_words_new(struct zd_cuda_trainer *trainer)
{
	void *words = NULL;
	zd_cuda_check(trainer,
	              trainer->gpu.cuda->memHostAlloc(&words, WORDS * sizeof(*trainer->words),
	                                              ZD_CU_HOST_ALLOC_PORTABLE),
	              "pinned host memory");
	trainer->words = words;
}

void zd_cuda_words_free(struct zd_cuda_trainer *trainer)
{
	(void)trainer->gpu.cuda->memFreeHost(trainer->words);
	trainer->words = NULL;
}

static void synchronize(const struct zd_cuda_trainer *trainer)
{
	zd_member_need(zd_gpu_synchronize(&trainer->gpu, trainer->gpu.stream, trainer->member->err));
}

uint64_t zd_cuda_words_check(struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit, zd_cu_ptr data)
{
	const struct zd_cuda *cuda = trainer->gpu.cuda;
	const size_t bytes = element_bytes(unit);
	struct words words;
	uint64_t wrong = 0;
	find_words(trainer, unit, &words);
	memset(trainer->words, 0, words.count * sizeof(*trainer->words));
	for (uint32_t i = 0; i < words.count; i++)
		zd_cuda_check(trainer,
		              cuda->memcpyDtoHAsync(&trainer->words[i], data + words.index[i] * bytes, bytes,
		                                    trainer->gpu.stream),
		              "reading a gathered buffer");
	synchronize(trainer);
	for (uint32_t i = 0; i < words.count; i++)
		wrong += trainer->words[i] != words.expected[i];
	return wrong;
}

void zd_cuda_words_spoil(struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit, zd_cu_ptr data)
{
	const struct zd_cuda *cuda = trainer->gpu.cuda;
	const size_t bytes = element_bytes(unit);
	struct words words;
	find_words(trainer, unit, &words);
	for (uint32_t i = 0; i < words.count; i++) {
		trainer->words[i] = ~words.expected[i];
		if (words.slice[i] != trainer->member->index)
			zd_cuda_check(trainer,
			              cuda->memcpyHtoDAsync(data + words.index[i] * bytes, &trainer->words[i],
			                                    bytes, trainer->gpu.stream),
			              "spoiling a gathered buffer");
	}
	synchronize(trainer);
}
