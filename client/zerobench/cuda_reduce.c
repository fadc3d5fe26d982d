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

static int fill_gradient(const struct reduction *reduction)
{
	const struct zd_cuda_trainer *trainer = reduction->trainer;
	const struct zerod_shard *shard = &reduction->unit.shard;
	void *contents = zd_calloc(shard->padded_numel, element_bytes(reduction));
	zd_pattern_fill_gradient(contents, shard->dtype, shard->padded_numel, trainer->member->index);
	int status = zd_gpu_write(&trainer->gpu, reduction->gradient.at, contents,
	                          shard->padded_numel * element_bytes(reduction), trainer->member->err);
	free(contents);
	return status;
}

static int begin_reduction(struct reduction *reduction, uint64_t numel)
{
	struct zd_cuda_trainer *trainer = reduction->trainer;
	const struct zerod_shard *shard = &reduction->unit.shard;
	struct zerod_bucket_options options = ZEROD_INIT(options);
	char name[32];
	snprintf(name, sizeof(name), "bench%llu", (unsigned long long)numel);
	int status = zd_cuda_unit_new(trainer, name, numel, &reduction->unit);
	if (status)
		return status;
	options.dtype = shard->dtype;
	options.slot_bytes = shard->padded_numel * element_bytes(reduction);
	options.nslots = 1;
	status = zd_cuda_check(trainer,
	                       zerod_bucket_create(trainer->rank.group, &options, &reduction->bucket),
	                       "zerod_bucket_create");
	if (!status)
		status = zd_gpu_memory_new(&trainer->gpu, options.slot_bytes, 0, &reduction->gradient,
		                           trainer->member->err);
	if (!status)
		status = zd_gpu_memory_new(&trainer->gpu, sum_numel(reduction) * element_bytes(reduction), 0,
		                           &reduction->slice, trainer->member->err);
	return status ? status : fill_gradient(reduction);
}

static int end_reduction(struct reduction *reduction)
{
	struct zd_cuda_trainer *trainer = reduction->trainer;
	zd_gpu_memory_free(&trainer->gpu, &reduction->slice);
	zd_gpu_memory_free(&trainer->gpu, &reduction->gradient);
	int status = zd_cuda_check(trainer, zerod_bucket_destroy(reduction->bucket), "zerod_bucket_destroy");
	return status ? status : zd_cuda_unit_free(trainer, &reduction->unit);
}

/* ---- A backward ---------------------------------------------------------------------------------------- */

/* Begins a backward and writes the gradient into its bucket. A trainer needs this time in any case. */
static int prepare_reduction(struct reduction *reduction)
{
	struct zd_cuda_trainer *trainer = reduction->trainer;
	const struct zd_cuda *cuda = trainer->gpu.cuda;
	struct zerod_backward_options options = ZEROD_INIT(options);
	options.boundary = 1;
	int status = zd_cuda_check(trainer, zerod_backward_begin(trainer->rank.group, &options),
	                           "zerod_backward_begin");
	if (!status)
		status = zd_cuda_check(trainer,
		                       zerod_bucket_reserve(reduction->bucket, reduction->unit.unit, NULL,
		                                            ZD_SIZED(&reduction->entry)),
		                       "zerod_bucket_reserve");
	if (!status)
		status = zd_cuda_err(cuda,
		                     cuda->memcpyAsync((zd_cu_ptr)(uintptr_t)reduction->entry.data,
		                                       reduction->gradient.at,
		                                       reduction->unit.numel * element_bytes(reduction),
		                                       trainer->gpu.stream),
		                     trainer->member->err, "writing a gradient");
	return status ? status : zd_gpu_synchronize(&trainer->gpu, trainer->gpu.stream, trainer->member->err);
}

static int by_zerod(const struct reduction *reduction, uint64_t took_ns[ZD_CUDA_CALLS + 1])
{
	const struct zd_cuda_trainer *trainer = reduction->trainer;
	const uint64_t start_ns = zd_bench_now_ns();
	int status = zd_cuda_check(
	        trainer,
	        zerod_bucket_submit(reduction->bucket, reduction->entry.id, &trainer->stream, 1, NULL, NULL),
	        "zerod_bucket_submit");
	took_ns[ZD_CUDA_CALLS] = zd_bench_now_ns() - start_ns;
	if (!status)
		status = zd_cuda_check(trainer, zerod_backward_end(trainer->rank.group, NULL, NULL),
		                       "zerod_backward_end");
	took_ns[ZD_CUDA_ZEROD] = zd_bench_now_ns() - start_ns;
	return status;
}

static int by_nccl(const struct reduction *reduction, uint64_t *took_ns)
{
	struct zd_cuda_trainer *trainer = reduction->trainer;
	const uint64_t start_ns = zd_bench_now_ns();
	int status;
	if (is_all_reduce(reduction))
		status = zd_nccl_rank_all_reduce(trainer->nccl, reduction->gradient.at, reduction->slice.at,
		                                 sum_numel(reduction), reduction->unit.shard.dtype,
		                                 trainer->gpu.stream, trainer->member->err);
	else
		status = zd_nccl_rank_reduce_scatter(
		        trainer->nccl, reduction->gradient.at, reduction->slice.at, sum_numel(reduction),
		        reduction->unit.shard.dtype, trainer->gpu.stream, trainer->member->err);
	if (!status)
		status = zd_cuda_reach(trainer);
	*took_ns = zd_bench_now_ns() - start_ns;
	return status;
}

/* Compares `numel` sums of the rank's slice, starting with its element `first`. */
static int count_wrong(const struct reduction *reduction, const struct zerod_target *target, uint64_t first,
                       uint64_t numel, uint64_t *wrong)
{
	const struct zd_cuda_trainer *trainer = reduction->trainer;
	const struct zerod_shard *shard = &reduction->unit.shard;
	const struct zd_cuda_run *run = trainer->run;
	const bool exchanged = run->bench->options.collectives == ZEROD_COLLECTIVES_NCCL;
	const uint64_t offset_numel = is_all_reduce(reduction) ? 0 : shard->offset_numel;
	float *sums = zd_calloc(numel + 1, sizeof(*sums));
	int status = zd_gpu_read(&trainer->gpu, sums,
	                         (zd_cu_ptr)(uintptr_t)target->data + first * sizeof(*sums),
	                         numel * sizeof(*sums), trainer->member->err);
	if (!status)
		*wrong += zd_pattern_count_wrong_sums(sums, shard->dtype, offset_numel + first, numel,
		                                      run->ranks, exchanged ? run->ranks : run->node_ranks);
	free(sums);
	return status;
}

/* Takes the step after the backward, and checks its first and last sum, or all. */
static int run_step(const struct reduction *reduction, bool all, uint64_t *wrong)
{
	const struct zd_cuda_trainer *trainer = reduction->trainer;
	struct zerod_step_info info = ZEROD_INIT(info);
	struct zerod_target target = ZEROD_INIT(target);
	int status = zd_cuda_check(trainer, zerod_step_begin(trainer->rank.group, NULL, &info, NULL),
	                           "zerod_step_begin");
	if (!status)
		status = zd_cuda_check(trainer, zerod_target_get(reduction->unit.unit, &target),
		                       "zerod_unit_target");
	if (!status && all)
		status = count_wrong(reduction, &target, 0, target.true_numel, wrong);
	if (!status && !all && target.true_numel)
		status = count_wrong(reduction, &target, 0, 1, wrong);
	if (!status && !all && target.true_numel)
		status = count_wrong(reduction, &target, target.true_numel - 1, 1, wrong);
	return status ? status
	              : zd_cuda_check(trainer, zerod_step_end(trainer->rank.group, NULL, 0, NULL),
	                              "zerod_step_end");
}

static int iterate(struct reduction *reduction, bool last, uint64_t took_ns[ZD_CUDA_CALLS + 1],
                   uint64_t *wrong)
{
	struct zd_cuda_trainer *trainer = reduction->trainer;
	int status = zd_cuda_meet(trainer);
	if (!status)
		status = by_zerod(reduction, took_ns);
	if (!status)
		status = run_step(reduction, last && trainer->run->bench->options.check, wrong);
	if (!status)
		status = zd_cuda_meet(trainer);
	if (!status && trainer->nccl)
		status = by_nccl(reduction, &took_ns[ZD_CUDA_NCCL]);
	if (!status && !last)
		status = prepare_reduction(reduction);
	return status ? status : zd_cuda_meet(trainer); /* the pusher's turn */
}

int zd_cuda_reduce_turns(struct zd_cuda_trainer *trainer, uint64_t numel)
{
	const struct zd_cuda_run *run = trainer->run;
	const uint32_t warmup = run->bench->options.warmup, count = warmup + run->bench->options.iters;
	struct reduction reduction = {.trainer = trainer};
	uint64_t wrong = 0;
	int status = begin_reduction(&reduction, numel);
	if (!status)
		status = prepare_reduction(&reduction);
	for (uint32_t i = 0; i < count && !status; i++) {
		uint64_t took_ns[ZD_CUDA_CALLS + 1] = {0};
		status = iterate(&reduction, i + 1 == count, took_ns, &wrong);
		if (i >= warmup)
			zd_cuda_note(trainer, i - warmup, took_ns);
	}
	if (!status)
		zd_cuda_row_end(trainer, &reduction.unit, wrong);
	return status ? status : end_reduction(&reduction);
}

/* ---- What kernels hold --------------------------------------------------------------------------------- */

/* If kernels cannot be recorded, this is not a failure. The reason is stored once, for all ranks. */
static void unprofiled(const struct zd_cuda_run *run, const char *why)
{
	struct zd_cuda_shared *shared = run->shared;
	if (!atomic_exchange(&shared->unprofiled, true))
		snprintf(shared->unprofiled_text, sizeof(shared->unprofiled_text), "%s", why);
}

static uint64_t take_result(const struct zd_cuda_trainer *trainer, bool expected)
{
	struct zd_err err = ZD_ERR_NONE;
	uint64_t sm_ns = 0;
	if (zd_profile_take(&trainer->gpu, &sm_ns, &err))
		unprofiled(trainer->run, err.text);
	else if (expected && sm_ns == 0)
		unprofiled(trainer->run, "CUPTI has recorded no kernel of a reduction");
	return sm_ns;
}

/* Records one reduction of zerod and one of NCCL. Only the rank's kernels are recorded, because the daemon
 * runs none for these reductions. */
static int profile_once(struct reduction *reduction, uint64_t sm_ns[ZD_CUDA_PUSHES], uint64_t *wrong)
{
	const struct zd_cuda_trainer *trainer = reduction->trainer;
	uint64_t took_ns[ZD_CUDA_CALLS + 1];
	int status = prepare_reduction(reduction);
	(void)take_result(trainer, false);
	zd_cuda_meet_trainers(trainer->run);
	if (!status)
		status = by_zerod(reduction, took_ns);
	sm_ns[ZD_CUDA_ZEROD] = take_result(trainer, true);
	if (!status)
		status = run_step(reduction, false, wrong);
	(void)take_result(trainer, false);
	zd_cuda_meet_trainers(trainer->run);
	if (!status)
		status = by_nccl(reduction, took_ns);
	sm_ns[ZD_CUDA_NCCL] = take_result(trainer, true);
	return status;
}

/* Called by one rank, after all ranks are done. */
static void store_figures(const struct zd_cuda_run *run, uint64_t bytes)
{
	struct zd_cuda_shared *shared = run->shared;
	shared->costs.profiled_wrong = atomic_exchange(&shared->wrong, 0);
	if (!atomic_load(&shared->unprofiled))
		shared->costs.profiled_bytes = bytes;
}

static int profile(struct zd_cuda_trainer *trainer)
{
	const struct zd_cuda_run *run = trainer->run;
	struct zd_cuda_costs *costs = &run->shared->costs;
	const uint64_t bytes_each = zerod_dtype_bytes(run->bench->options.dtype);
	const uint64_t most = zd_min_u64(run->bench->options.max_bytes, ZD_CUDA_PAUSELESS_BYTES);
	const uint64_t numel = zd_max_u64(most / bytes_each, 1);
	struct reduction reduction = {.trainer = trainer};
	uint64_t wrong = 0;
	int status = begin_reduction(&reduction, numel);
	for (uint32_t i = 0; i < ZD_CUDA_PROFILED + 1 && !status; i++) {
		uint64_t sm_ns[ZD_CUDA_PUSHES] = {0};
		status = profile_once(&reduction, sm_ns, &wrong);
		for (enum zd_cuda_way way = 0; way < ZD_CUDA_PUSHES && i > 0;
		     way++) /* not the first, which warms up */
			costs->sm_ns[way][(i - 1) * run->ranks + trainer->member->index] = sm_ns[way];
	}
	zd_profile_end();
	if (!status)
		status = end_reduction(&reduction);
	if (status)
		return status;
	atomic_fetch_add(&run->shared->wrong, wrong);
	zd_cuda_meet_trainers(run);
	if (trainer->member->index == 0)
		store_figures(run, numel * bytes_each);
	return 0;
}

int zd_cuda_reduce_profile(struct zd_cuda_trainer *trainer)
{
	const struct zd_cuda_run *run = trainer->run;
	struct zd_err err = ZD_ERR_NONE;
	if (!trainer->nccl)
		return 0;
	const bool recorded = zd_profile_begin(&trainer->gpu, &err) == 0;
	if (!recorded)
		unprofiled(run, err.text);
	zd_cuda_meet_trainers(run);
	const bool all_recorded = !atomic_load(&run->shared->unprofiled);
	zd_cuda_meet_trainers(run); /* all ranks have read it, before a rank's profile can fail */
	if (all_recorded)
		return profile(trainer);
	if (recorded)
		zd_profile_end();
	return 0;
}
