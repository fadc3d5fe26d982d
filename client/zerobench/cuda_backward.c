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

static int register_unit(const struct zd_cuda_backward *backward, uint32_t index, uint64_t numel)
{
	const struct zd_cuda_trainer *trainer = backward->trainer;
	struct zd_cuda_unit *unit = &backward->units[index];
	struct zerod_unit_options options = ZEROD_INIT(options);
	char name[32];
	snprintf(name, sizeof(name), "backward%u", index);
	options.name = name;
	options.dtype = trainer->run->bench->options.dtype;
	options.numel = unit->numel = numel;
	int status = zd_cuda_check(trainer, zerod_unit_register(trainer->rank.group, &options, &unit->unit),
	                           "zerod_unit_register");
	return status ? status
	              : zd_cuda_check(trainer, zerod_shard_get(unit->unit, ZD_SIZED(&unit->shard)),
	                              "zerod_shard_get");
}

static int make_buckets(struct zd_cuda_backward *backward)
{
	const struct zd_cuda_trainer *trainer = backward->trainer;
	struct zd_err *err = trainer->member->err;
	struct zerod_bucket_options options = ZEROD_INIT(options);
	options.dtype = trainer->run->bench->options.dtype;
	options.slot_bytes = bucket_bytes(backward);
	options.nslots = ZD_CUDA_BUCKETS;
	int status = zd_cuda_check(trainer,
	                           zerod_bucket_create(trainer->rank.group, &options, &backward->bucket),
	                           "zerod_bucket_create");
	if (!status)
		status = zd_gpu_memory_new(&trainer->gpu, ZD_CUDA_BUCKETS * options.slot_bytes, 0,
		                           &backward->gradients, err);
	if (!status)
		status = zd_gpu_memory_new(&trainer->gpu,
		                           ZD_CUDA_BUCKETS * options.slot_bytes / trainer->run->ranks, 0,
		                           &backward->slices, err);
	return status;
}

/* Fills the first bucket of the gradients. All units have the same gradient. */
static int fill_gradient(const struct zd_cuda_backward *backward)
{
	const struct zd_cuda_trainer *trainer = backward->trainer;
	const struct zerod_shard *shard = &backward->units[0].shard;
	void *contents = zd_calloc(1, bucket_bytes(backward));
	zd_pattern_fill_gradient(contents, shard->dtype, shard->padded_numel, trainer->member->index);
	int status = zd_gpu_write(&trainer->gpu, backward->gradients.at, contents, bucket_bytes(backward),
	                          trainer->member->err);
	free(contents);
	return status;
}

int zd_cuda_backward_new(struct zd_cuda_trainer *trainer, uint64_t bytes, struct zd_gemm *gemm,
                         struct zd_cuda_backward **backward)
{
	const struct zd_bench_options *options = &trainer->run->bench->options;
	const uint64_t each = zd_min_u64(zd_min_u64(bytes, options->max_bytes), ZD_CUDA_BUCKET_BYTES);
	const uint64_t numel = zd_max_u64(each / zerod_dtype_bytes(options->dtype), 1);
	struct zd_cuda_backward *made = zd_calloc(1, sizeof(*made));
	int status = 0;
	*made = (struct zd_cuda_backward){
	        .trainer = trainer, .gemm = gemm, .count = (uint32_t)(bytes / each)};
	made->units = zd_calloc(made->count, sizeof(*made->units));
	for (uint32_t i = 0; i < made->count && !status; i++)
		status = register_unit(made, i, numel);
	if (!status)
		status = make_buckets(made);
	if (!status)
		status = fill_gradient(made);
	*backward = made; /* also if it is incomplete: then the process ends */
	return status;
}

int zd_cuda_backward_free(struct zd_cuda_backward *backward)
{
	struct zd_cuda_trainer *trainer = backward->trainer;
	int status = zd_cuda_check(trainer, zerod_bucket_destroy(backward->bucket), "zerod_bucket_destroy");
	zd_gpu_memory_free(&trainer->gpu, &backward->slices);
	zd_gpu_memory_free(&trainer->gpu, &backward->gradients);
	for (uint32_t i = 0; i < backward->count && !status; i++)
		status = zd_cuda_unit_free(trainer, &backward->units[i]);
	free(backward->units);
	free(backward);
	if (!status)
		zd_cuda_meet_trainers(trainer->run); /* the next backward's units have the same names */
	return status;
}

/* ---- By zerod ------------------------------------------------------------------------------------------ */

static int write_gradient(const struct zd_cuda_backward *backward, const struct zerod_entry *entry)
{
	const struct zd_cuda_trainer *trainer = backward->trainer;
	const struct zd_cuda *cuda = trainer->gpu.cuda;
	return zd_cuda_err(cuda,
	                   cuda->memcpyAsync((zd_cu_ptr)(uintptr_t)entry->data, backward->gradients.at,
	                                     bucket_bytes(backward), trainer->gpu.stream),
	                   trainer->member->err, "writing a gradient");
}

static int reduce(const struct zd_cuda_backward *backward, uint32_t index, bool writes)
{
	struct zd_cuda_trainer *trainer = backward->trainer;
	struct zerod_entry entry = ZEROD_INIT(entry);
	int status = zd_cuda_check(
	        trainer, zerod_bucket_reserve(backward->bucket, backward->units[index].unit, NULL, &entry),
	        "zerod_bucket_reserve");
	if (!status && writes)
		status = write_gradient(backward, &entry);
	return status ? status
	              : zd_cuda_check(trainer,
	                              zerod_bucket_submit(backward->bucket, entry.id, &trainer->stream, 1,
	                                                  NULL, NULL),
	                              "zerod_bucket_submit");
}

static int reduce_all(const struct zd_cuda_backward *backward, bool writes)
{
	struct zd_cuda_trainer *trainer = backward->trainer;
	int status = 0;
	for (uint32_t i = 0; i < backward->count && !status; i++) {
		status = zd_gemm_fill(backward->gemm, trainer->member->err);
		if (!status)
			status = reduce(backward, i, writes);
	}
	return status ? status
	              : zd_cuda_check(trainer, zerod_backward_end(trainer->rank.group, NULL, NULL),
	                              "zerod_backward_end");
}

static int backward_begin(const struct zd_cuda_backward *backward)
{
	struct zerod_backward_options options = ZEROD_INIT(options);
	options.boundary = 1;
	return zd_cuda_check(backward->trainer, zerod_backward_begin(backward->trainer->rank.group, &options),
	                     "zerod_backward_begin");
}

static int check_sum(const struct zd_cuda_backward *backward, const struct zerod_target *target,
                     uint64_t index, uint64_t *wrong)
{
	const struct zd_cuda_trainer *trainer = backward->trainer;
	const struct zerod_shard *shard = &backward->units[0].shard;
	float sum = 0;
	int status = zd_gpu_read(&trainer->gpu, &sum,
	                         (zd_cu_ptr)(uintptr_t)target->data + index * sizeof(sum), sizeof(sum),
	                         trainer->member->err);
	if (!status)
		*wrong += zd_pattern_count_wrong_sums(&sum, shard->dtype, shard->offset_numel + index, 1,
		                                      trainer->run->ranks, trainer->run->node_ranks);
	return status;
}

static int check_unit(const struct zd_cuda_backward *backward, uint32_t index, uint64_t *wrong)
{
	struct zerod_target target = ZEROD_INIT(target);
	int status = zd_cuda_check(backward->trainer, zerod_target_get(backward->units[index].unit, &target),
	                           "zerod_unit_target");
	if (!status && target.true_numel)
		status = check_sum(backward, &target, 0, wrong);
	if (!status && target.true_numel)
		status = check_sum(backward, &target, target.true_numel - 1, wrong);
	return status;
}

/* Takes the step, which releases the target. If `wrong` is not NULL, checks all units. */
static int run_step(const struct zd_cuda_backward *backward, uint64_t *wrong)
{
	const struct zd_cuda_trainer *trainer = backward->trainer;
	struct zerod_step_info info = ZEROD_INIT(info);
	int status = zd_cuda_check(trainer, zerod_step_begin(trainer->rank.group, NULL, &info, NULL),
	                           "zerod_step_begin");
	for (uint32_t i = 0; i < backward->count && wrong && !status; i++)
		status = check_unit(backward, i, wrong);
	return status ? status
	              : zd_cuda_check(trainer, zerod_step_end(trainer->rank.group, NULL, 0, NULL),
	                              "zerod_step_end");
}

int zd_cuda_backward_by_zerod(const struct zd_cuda_backward *backward)
{
	int status = backward_begin(backward);
	if (!status)
		status = reduce_all(backward, false);
	return status ? status : run_step(backward, NULL);
}

/* ---- By NCCL ------------------------------------------------------------------------------------------- */

int zd_cuda_backward_by_nccl(const struct zd_cuda_backward *backward)
{
	struct zd_cuda_trainer *trainer = backward->trainer;
	struct zd_gpu *gpu = &trainer->gpu;
	const struct zerod_shard *shard = &backward->units[0].shard;
	const uint64_t begin = trainer->mark, slice_bytes = bucket_bytes(backward) / trainer->run->ranks;
	int status = 0;
	for (uint32_t i = 0; i < backward->count && !status; i++) {
		const uint32_t bucket = i % ZD_CUDA_BUCKETS;
		status = zd_gemm_fill(backward->gemm, trainer->member->err);
		if (!status && i >= ZD_CUDA_BUCKETS) /* until NCCL has read the bucket */
			status = zd_gpu_await(gpu, gpu->stream, 0, begin + i - ZD_CUDA_BUCKETS + 1,
			                      trainer->member->err);
		if (!status)
			status = zd_nccl_rank_reduce_scatter(
			        trainer->nccl, backward->gradients.at + bucket * bucket_bytes(backward),
			        backward->slices.at + bucket * slice_bytes, shard->shard_numel, shard->dtype,
			        gpu->stream, trainer->member->err);
		if (!status)
			status = zd_gpu_mark(gpu, gpu->stream, 0, ++trainer->mark, trainer->member->err);
	}
	return status ? status : zd_gpu_await(gpu, gpu->stream, 0, trainer->mark, trainer->member->err);
}

/* ---- What a backward takes ----------------------------------------------------------------------------- */

static int meet(const struct zd_cuda_backward *backward)
{
	struct zd_cuda_trainer *trainer = backward->trainer;
	int status = zd_gemm_fill(backward->gemm, trainer->member->err);
	zd_cuda_meet_trainers(trainer->run);
	return status;
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

static int zerod_round(const struct zd_cuda_backward *backward, uint32_t round)
{
	int status = meet(backward);
	uint64_t start_ns = zd_bench_now_ns();
	if (!status)
		status = backward_begin(backward);
	note(backward, ZD_CUDA_BACKWARD_BEGIN, round, start_ns);
	if (!status)
		status = meet(backward);
	start_ns = zd_bench_now_ns();
	if (!status)
		status = reduce_all(backward, false);
	note(backward, ZD_CUDA_BACKWARD_ZEROD, round, start_ns);
	return status ? status : run_step(backward, NULL);
}

static int nccl_round(const struct zd_cuda_backward *backward, uint32_t round)
{
	int status = meet(backward);
	const uint64_t start_ns = zd_bench_now_ns();
	if (!status)
		status = zd_cuda_backward_by_nccl(backward);
	note(backward, ZD_CUDA_BACKWARD_NCCL, round, start_ns);
	return status;
}

/* Makes the first backward of both, which is not timed. */
static int warm_up(const struct zd_cuda_backward *backward)
{
	const struct zd_cuda_trainer *trainer = backward->trainer;
	uint64_t wrong = 0;
	int status = backward_begin(backward);
	if (!status)
		status = reduce_all(backward, true);
	if (!status)
		status = run_step(backward, &wrong);
	atomic_fetch_add(&trainer->run->shared->wrong, wrong);
	if (!status && trainer->nccl)
		status = zd_cuda_backward_by_nccl(backward);
	return status;
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

int zd_cuda_backwards(struct zd_cuda_trainer *trainer)
{
	const struct zd_bench_options *options = &trainer->run->bench->options;
	const uint32_t rounds = (uint32_t)zd_min_u64(options->iters, ZD_CUDA_MOST_BACKWARDS);
	struct zd_cuda_backward *backward;
	int status = zd_cuda_backward_new(trainer, options->backward_bytes, trainer->gemm, &backward);
	if (!status)
		status = zd_gemm_settle(trainer->gemm, trainer->member->err);
	if (!status)
		status = warm_up(backward);
	for (uint32_t i = 0; i < rounds && !status; i++) {
		status = zerod_round(backward, i);
		if (!status && trainer->nccl)
			status = nccl_round(backward, i);
	}
	if (status)
		return status;
	store_figures(backward, rounds);
	return zd_cuda_backward_free(backward);
}
