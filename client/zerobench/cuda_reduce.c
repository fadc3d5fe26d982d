// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_reduce.c - reductions of one size on GPUs in turns: by zerod, by NCCL's reduce-scatter or all-reduce
 * of the same gradients, and pushes of as many bytes without a sum.
 *
 * A turn of zerod starts with the submit, when the gradient is in its bucket, and ends with the backward: the
 * rank's slice is then in its target. zerod sums in float32 for any dtype of the gradients. NCCL's sums have
 * the dtype of the gradients.
 */
#include "client/zerobench/cuda_bench.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

struct reduction {
	struct zd_cuda_trainer *trainer;
	struct zd_cuda_unit unit;
	zerod_bucket *bucket;
	struct zerod_entry entry;
	struct zd_gpu_memory gradient, slice; /* slice: NCCL's result */
};

static bool is_all_reduce(const struct reduction *reduction)
{
	return reduction->trainer->run->bench->options.all_reduce;
}

/* Returns the number of elements of the sum that each rank receives. */
static uint64_t sum_numel(const struct reduction *reduction)
{
	const struct zerod_shard *shard = &reduction->unit.shard;
	return is_all_reduce(reduction) ? shard->padded_numel : shard->shard_numel;
}

static uint64_t element_bytes(const struct reduction *reduction)
{
	return zerod_dtype_bytes(reduction->unit.shard.dtype);
}

/* ---- Beginning and end --------------------------------------------------------------------------------- */

static void begin_reduction(struct reduction *reduction, uint64_t numel)
{
	struct zd_cuda_trainer *trainer = reduction->trainer;
	const struct zerod_shard *shard = &reduction->unit.shard;
	char name[32];
	snprintf(name, sizeof(name), "bench%llu", (unsigned long long)numel);
	zd_cuda_unit_new(trainer, name, numel, &reduction->unit);
	const uint64_t slot_bytes = shard->padded_numel * element_bytes(reduction);
	reduction->bucket = zd_rank_bucket(&trainer->rank, shard->dtype, slot_bytes, 1);
	zd_cuda_memory_new(trainer, slot_bytes, &reduction->gradient);
	zd_cuda_memory_new(trainer, sum_numel(reduction) * element_bytes(reduction), &reduction->slice);
	zd_cuda_fill_gradient(trainer, shard, reduction->gradient.at);
}

static void end_reduction(struct reduction *reduction)
{
	struct zd_cuda_trainer *trainer = reduction->trainer;
	zd_gpu_memory_free(&trainer->gpu, &reduction->slice);
	zd_gpu_memory_free(&trainer->gpu, &reduction->gradient);
	ZD_CALL(&trainer->rank, zerod_bucket_destroy, reduction->bucket);
	zd_cuda_unit_free(trainer, &reduction->unit);
}

/* ---- A backward ---------------------------------------------------------------------------------------- */

/* Begins a backward and writes the gradient into its bucket. A trainer needs this time in any case. */
static void prepare_reduction(struct reduction *reduction)
{
	struct zd_cuda_trainer *trainer = reduction->trainer;
	zd_rank_backward_begin(&trainer->rank);
	zd_cuda_reserve(trainer, reduction->bucket, &reduction->unit, reduction->gradient.at,
	                &reduction->entry);
	zd_member_need(zd_gpu_synchronize(&trainer->gpu, trainer->gpu.stream, trainer->member->err));
}

static void by_zerod(const struct reduction *reduction, uint64_t took_ns[ZD_CUDA_CALLS + 1])
{
	const struct zd_cuda_trainer *trainer = reduction->trainer;
	const uint64_t start_ns = zd_bench_now_ns();
	ZD_CALL(&trainer->rank, zerod_bucket_submit, reduction->bucket, reduction->entry.id, &trainer->stream,
	        1, NULL, NULL);
	took_ns[ZD_CUDA_CALLS] = zd_bench_now_ns() - start_ns;
	ZD_CALL(&trainer->rank, zerod_backward_end, trainer->rank.group, NULL, NULL);
	took_ns[ZD_CUDA_ZEROD] = zd_bench_now_ns() - start_ns;
}

static void by_nccl(const struct reduction *reduction, uint64_t *took_ns)
{
	struct zd_cuda_trainer *trainer = reduction->trainer;
	const uint64_t start_ns = zd_bench_now_ns();
	zd_member_need((is_all_reduce(reduction) ? zd_nccl_rank_all_reduce : zd_nccl_rank_reduce_scatter)(
	        trainer->nccl, reduction->gradient.at, reduction->slice.at, sum_numel(reduction),
	        reduction->unit.shard.dtype, trainer->gpu.stream, trainer->member->err));
	zd_cuda_reach(trainer);
	*took_ns = zd_bench_now_ns() - start_ns;
}

/* Takes the step after the backward. Returns how many are wrong of its first and last sum, or of all. */
static uint64_t run_step(const struct reduction *reduction, bool all)
{
	const struct zd_cuda_trainer *trainer = reduction->trainer;
	struct zerod_target target = ZEROD_INIT(target);
	uint64_t wrong = 0;
	zd_rank_step_begin(&trainer->rank);
	if (all) {
		ZD_CALL(&trainer->rank, zerod_target_get, reduction->unit.unit, &target);
		wrong = zd_cuda_wrong_sums(trainer, &reduction->unit, &target, 0, target.true_numel);
	} else {
		wrong = zd_cuda_wrong_ends(trainer, &reduction->unit);
	}
	zd_rank_step_end(&trainer->rank);
	return wrong;
}

static uint64_t iterate(struct reduction *reduction, bool last, uint64_t took_ns[ZD_CUDA_CALLS + 1])
{
	struct zd_cuda_trainer *trainer = reduction->trainer;
	zd_cuda_meet(trainer);
	by_zerod(reduction, took_ns);
	const uint64_t wrong = run_step(reduction, last && trainer->run->bench->options.check);
	zd_cuda_meet(trainer);
	if (trainer->nccl)
		by_nccl(reduction, &took_ns[ZD_CUDA_NCCL]);
	if (!last)
		prepare_reduction(reduction);
	zd_cuda_meet(trainer); /* the pusher's turn */
	return wrong;
}

void zd_cuda_reduce_turns(struct zd_cuda_trainer *trainer, uint64_t numel)
{
	const struct zd_cuda_run *run = trainer->run;
	const uint32_t warmup = run->bench->options.warmup, count = warmup + run->bench->options.iters;
	struct reduction reduction = {.trainer = trainer};
	uint64_t wrong = 0;
	begin_reduction(&reduction, numel);
	prepare_reduction(&reduction);
	for (uint32_t i = 0; i < count; i++) {
		uint64_t took_ns[ZD_CUDA_CALLS + 1] = {0};
		wrong += iterate(&reduction, i + 1 == count, took_ns);
		if (i >= warmup)
			zd_cuda_note(trainer, i - warmup, took_ns);
	}
	zd_cuda_row_end(trainer, &reduction.unit, wrong);
	end_reduction(&reduction);
}
