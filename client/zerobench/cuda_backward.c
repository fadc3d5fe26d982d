// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_backward.c - the gradients of a backward, bucket after bucket: by zerod, and by NCCL's reduce-scatters
 * of as many bytes.
 *
 * Each bucket is submitted as soon as there is room for it: the measured time is that of the gradients'
 * transfers and sums, with or without products at the same time. Both ways use ZD_CUDA_BUCKETS buckets in
 * turn, as a trainer does. Gradients are written only before the first backward, whose sums are checked.
 */
#include "client/zerobench/cuda_bench.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

struct zd_cuda_backward {
	struct zd_cuda_trainer *trainer;
	struct zd_gemm *gemm; /* busy meanwhile; NULL: no products */
	uint32_t count;       /* units, one per bucket */
	struct zd_cuda_unit *units;
	zerod_bucket *bucket;
	struct zd_gpu_memory gradients,
	        slices; /* NCCL's, ZD_CUDA_BUCKETS each; zerod's first gradient is copied from `gradients` */
};

static uint64_t bucket_bytes(const struct zd_cuda_backward *backward)
{
	const struct zerod_shard *shard = &backward->units[0].shard;
	return shard->padded_numel * zerod_dtype_bytes(shard->dtype);
}

uint64_t zd_cuda_backward_bytes(const struct zd_cuda_backward *backward)
{
	return backward->count * bucket_bytes(backward);
}

/* ---- Beginning and end --------------------------------------------------------------------------------- */

struct zd_cuda_backward *zd_cuda_backward_new(struct zd_cuda_trainer *trainer, uint64_t bytes,
                                              struct zd_gemm *gemm)
{
	const struct zd_bench *bench = trainer->run->bench;
	const uint64_t each = zd_min_u64(zd_min_u64(bytes, bench->options.max_bytes), ZD_CUDA_BUCKET_BYTES);
	struct zd_cuda_backward *backward = zd_calloc(1, sizeof(*backward));
	*backward = (struct zd_cuda_backward){
	        .trainer = trainer, .gemm = gemm, .count = (uint32_t)(bytes / each)};
	backward->units = zd_calloc(backward->count, sizeof(*backward->units));
	for (uint32_t i = 0; i < backward->count; i++) {
		char name[32];
		snprintf(name, sizeof(name), "backward%u", i);
		zd_cuda_unit_register(trainer, name, zd_bench_numel(bench, each), &backward->units[i]);
	}
	const uint64_t slot_bytes = bucket_bytes(backward);
	backward->bucket = zd_rank_bucket(&trainer->rank, bench->options.dtype, slot_bytes, ZD_CUDA_BUCKETS);
	zd_cuda_memory_new(trainer, ZD_CUDA_BUCKETS * slot_bytes, &backward->gradients);
	zd_cuda_memory_new(trainer, ZD_CUDA_BUCKETS * slot_bytes / trainer->run->ranks, &backward->slices);
	/* Only the first bucket of the gradients is filled. All units have the same gradient. */
	zd_cuda_fill_gradient(trainer, &backward->units[0].shard, backward->gradients.at);
	return backward;
}

void zd_cuda_backward_free(struct zd_cuda_backward *backward)
{
	struct zd_cuda_trainer *trainer = backward->trainer;
	ZD_CALL(&trainer->rank, zerod_bucket_destroy, backward->bucket);
	zd_gpu_memory_free(&trainer->gpu, &backward->slices);
	zd_gpu_memory_free(&trainer->gpu, &backward->gradients);
	for (uint32_t i = 0; i < backward->count; i++)
		zd_cuda_unit_free(trainer, &backward->units[i]);
	free(backward->units);
	free(backward);
	zd_cuda_meet_trainers(trainer->run); /* the next backward's units have the same names */
}

/* ---- By zerod ------------------------------------------------------------------------------------------ */

static void fill_products(const struct zd_cuda_backward *backward)
{
	zd_member_need(zd_gemm_fill(backward->gemm, backward->trainer->member->err));
}

static void reduce_all(const struct zd_cuda_backward *backward, bool writes)
{
	struct zd_cuda_trainer *trainer = backward->trainer;
	for (uint32_t i = 0; i < backward->count; i++) {
		struct zerod_entry entry = ZEROD_INIT(entry);
		fill_products(backward);
		zd_cuda_reserve(trainer, backward->bucket, &backward->units[i],
		                writes ? backward->gradients.at : 0, &entry);
		ZD_CALL(&trainer->rank, zerod_bucket_submit, backward->bucket, entry.id, &trainer->stream, 1,
		        NULL, NULL);
	}
	ZD_CALL(&trainer->rank, zerod_backward_end, trainer->rank.group, NULL, NULL);
}

/* Takes the step, which releases the target. */
static void run_step(const struct zd_cuda_backward *backward)
{
	zd_rank_step_begin(&backward->trainer->rank);
	zd_rank_step_end(&backward->trainer->rank);
}

void zd_cuda_backward_by_zerod(const struct zd_cuda_backward *backward)
{
	zd_rank_backward_begin(&backward->trainer->rank);
	reduce_all(backward, false);
	run_step(backward);
}

/* ---- By NCCL ------------------------------------------------------------------------------------------- */

void zd_cuda_backward_by_nccl(const struct zd_cuda_backward *backward)
{
	struct zd_cuda_trainer *trainer = backward->trainer;
	struct zd_gpu *gpu = &trainer->gpu;
	struct zd_err *err = trainer->member->err;
	const struct zerod_shard *shard = &backward->units[0].shard;
	const uint64_t begin = trainer->mark, slice_bytes = bucket_bytes(backward) / trainer->run->ranks;
	for (uint32_t i = 0; i < backward->count; i++) {
		const uint32_t bucket = i % ZD_CUDA_BUCKETS;
		fill_products(backward);
		if (i >= ZD_CUDA_BUCKETS) /* until NCCL has read the bucket */
			zd_member_need(
			        zd_gpu_await(gpu, gpu->stream, 0, begin + i - ZD_CUDA_BUCKETS + 1, err));
		zd_member_need(zd_nccl_rank_reduce_scatter(
		        trainer->nccl, backward->gradients.at + bucket * bucket_bytes(backward),
		        backward->slices.at + bucket * slice_bytes, shard->shard_numel, shard->dtype,
		        gpu->stream, err));
		zd_member_need(zd_gpu_mark(gpu, gpu->stream, 0, ++trainer->mark, err));
	}
	zd_member_need(zd_gpu_await(gpu, gpu->stream, 0, trainer->mark, err));
}

/* ---- What a backward takes ----------------------------------------------------------------------------- */

/* Returns the time when all trainers have met. */
static uint64_t meet(const struct zd_cuda_backward *backward)
{
	fill_products(backward);
	zd_cuda_meet_trainers(backward->trainer->run);
	return zd_bench_now_ns();
}

/* Stores the time of the slowest rank. */
static void note(const struct zd_cuda_backward *backward, enum zd_cuda_backward_part part, uint32_t round,
                 uint64_t start_ns)
{
	_Atomic uint64_t *slowest = &backward->trainer->run->shared->backward_ns[part][round];
	const uint64_t took_ns = zd_bench_now_ns() - start_ns;
	uint64_t had_ns = atomic_load(slowest);
	while (had_ns < took_ns && !atomic_compare_exchange_weak(slowest, &had_ns, took_ns))
		continue;
}

static void zerod_round(const struct zd_cuda_backward *backward, uint32_t round)
{
	uint64_t start_ns = meet(backward);
	zd_rank_backward_begin(&backward->trainer->rank);
	note(backward, ZD_CUDA_BACKWARD_BEGIN, round, start_ns);
	start_ns = meet(backward);
	reduce_all(backward, false);
	note(backward, ZD_CUDA_BACKWARD_ZEROD, round, start_ns);
	run_step(backward);
}

static void nccl_round(const struct zd_cuda_backward *backward, uint32_t round)
{
	const uint64_t start_ns = meet(backward);
	zd_cuda_backward_by_nccl(backward);
	note(backward, ZD_CUDA_BACKWARD_NCCL, round, start_ns);
}

/* Makes the first backward of both, which is not timed. Its sums are checked. */
static void warm_up(const struct zd_cuda_backward *backward)
{
	const struct zd_cuda_trainer *trainer = backward->trainer;
	zd_rank_backward_begin(&trainer->rank);
	reduce_all(backward, true);
	zd_rank_step_begin(&trainer->rank);
	for (uint32_t i = 0; i < backward->count; i++)
		atomic_fetch_add(&trainer->run->shared->wrong,
		                 zd_cuda_wrong_ends(trainer, &backward->units[i]));
	zd_rank_step_end(&trainer->rank);
	if (trainer->nccl)
		zd_cuda_backward_by_nccl(backward);
}

static void store_figures(const struct zd_cuda_backward *backward, uint32_t rounds)
{
	const struct zd_cuda_trainer *trainer = backward->trainer;
	struct zd_cuda_shared *shared = trainer->run->shared;
	struct zd_cuda_costs *costs = &shared->costs;
	uint64_t samples[ZD_CUDA_MOST_BACKWARDS];
	zd_cuda_meet_trainers(trainer->run);
	if (trainer->member->index != 0)
		return;
	costs->backward_bytes = zd_cuda_backward_bytes(backward);
	costs->backward_buckets = backward->count;
	costs->backward_wrong = atomic_exchange(&shared->wrong, 0);
	for (unsigned part = 0; part < ZD_CUDA_BACKWARD_PARTS; part++) {
		for (uint32_t i = 0; i < rounds; i++)
			samples[i] = atomic_load(&shared->backward_ns[part][i]);
		zd_stats_of(samples, rounds, &costs->backward[part]);
	}
}

void zd_cuda_backwards(struct zd_cuda_trainer *trainer)
{
	const struct zd_bench_options *options = &trainer->run->bench->options;
	const uint32_t rounds = (uint32_t)zd_min_u64(options->iters, ZD_CUDA_MOST_BACKWARDS);
	struct zd_cuda_backward *backward = zd_cuda_backward_new(trainer, options->backward_bytes,
	                                                         trainer->gemm);
	zd_member_need(zd_gemm_settle(trainer->gemm, trainer->member->err));
	warm_up(backward);
	for (uint32_t i = 0; i < rounds; i++) {
		zerod_round(backward, i);
		if (trainer->nccl)
			nccl_round(backward, i);
	}
	store_figures(backward, rounds);
	zd_cuda_backward_free(backward);
}
