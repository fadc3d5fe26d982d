// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_slowdown.c - what a product of the trainer's takes alone, beside gathers by zerod, and beside NCCL's, both without
 * pause on all ranks. Products are timed by events, in runs that are queued before the gathers begin.
 */
#include "client/zerobench/cuda_bench.h"

#include "base/mem.h"

#define ROUNDS 5u

/* What runs beside the products. */
struct beside {
	struct zd_cuda_trainer *trainer;
	struct zd_cuda_unit unit;
	enum zd_cuda_way way; /* ZD_CUDA_PUSHES: nothing */
	zd_cu_ptr held;       /* NCCL's buffer */
};

static int gather_by_zerod(const struct beside *beside)
{
	struct zd_cuda_trainer *trainer = beside->trainer;
	zd_cu_ptr data;
	zerod_ticket released;
	int status = zd_cuda_gather(trainer, &beside->unit, &data);
	if (!status)
		status = zd_cuda_release(trainer, &beside->unit, &released);
	return status ? status
	              : zd_cuda_check(trainer, zerod_wait(trainer->rank.client, released, NULL, NULL),
	                              "zerod_wait");
}

static int gather_by_nccl(const struct beside *beside)
{
	struct zd_cuda_trainer *trainer = beside->trainer;
	const struct zerod_shard *shard = &beside->unit.shard;
	int status = zd_nccl_rank_all_gather(trainer->nccl, beside->held,
	                                     shard->shard_numel * zerod_dtype_bytes(shard->dtype),
	                                     trainer->gpu.stream, trainer->member->err);
	return status ? status : zd_cuda_reach(trainer);
}

/* NCCL's calls must be as many on all ranks: whether there is another one is agreed upon before each, for zerod too. */
static int gather_until_end(const struct beside *beside)
{
	struct zd_cuda_trainer *trainer = beside->trainer;
	const struct zd_cuda_run *run = trainer->run;
	bool runs = true;
	int status = 0;
	while (!status) {
		if (runs && !zd_gemm_runs(trainer->gemm)) {
			runs = false;
			atomic_fetch_sub(&run->shared->running, 1);
		}
		zd_cuda_meet_trainers(run);
		const bool go_on = atomic_load(&run->shared->running) > 0;
		zd_cuda_meet_trainers(run); /* all have looked */
		if (!go_on)
			return 0;
		status = beside->way == ZD_CUDA_ZEROD ? gather_by_zerod(beside) : gather_by_nccl(beside);
	}
	return status;
}

static int measure_round(const struct beside *beside, uint64_t *product_ns)
{
	struct zd_cuda_trainer *trainer = beside->trainer;
	const struct zd_cuda_run *run = trainer->run;
	zd_cuda_meet_trainers(run);
	if (trainer->member->index == 0)
		atomic_store(&run->shared->running, run->ranks);
	zd_cuda_meet_trainers(run);
	int status = zd_gemm_timed_begin(trainer->gemm, trainer->member->err);
	if (!status && beside->way != ZD_CUDA_PUSHES)
		status = gather_until_end(beside);
	return status ? status : zd_gemm_timed_end(trainer->gemm, product_ns, trainer->member->err);
}

/* The median over runs and rounds; of ranks, the mean. */
static int measure(struct beside *beside, enum zd_cuda_way way)
{
	const struct zd_cuda_trainer *trainer = beside->trainer;
	const struct zd_cuda_run *run = trainer->run;
	uint64_t samples[ROUNDS * ZD_GEMM_RUNS];
	struct zd_stats stats;
	int status = 0;
	beside->way = way;
	for (uint32_t round = 0; round < ROUNDS && !status; round++)
		status = measure_round(beside, &samples[(size_t)round * ZD_GEMM_RUNS]);
	if (status)
		return status;
	zd_stats_of(samples, ZD_ARRAY_LEN(samples), &stats);
	atomic_fetch_add(&run->shared->total, stats.p50);
	zd_cuda_meet_trainers(run);
	if (trainer->member->index == 0)
		run->shared->costs.product_ns[way] = atomic_exchange(&run->shared->total, 0) / run->ranks;
	zd_cuda_meet_trainers(run);
	return 0;
}

int zd_cuda_slowdown(struct zd_cuda_trainer *trainer)
{
	const struct zd_bench_options *options = &trainer->run->bench->options;
	const uint64_t bytes = zd_min_u64(options->max_bytes, ZD_CUDA_PAUSELESS_BYTES);
	struct beside beside = {.trainer = trainer};
	int status = zd_cuda_unit_new(trainer, "slowdown", bytes / zerod_dtype_bytes(options->dtype),
	                              &beside.unit);
	if (!status)
		status = zd_gemm_settle(trainer->gemm, trainer->member->err);
	if (!status)
		status = zd_gemm_finish(trainer->gemm, trainer->member->err);
	if (!status)
		status = measure(&beside, ZD_CUDA_PUSHES);
	if (!status)
		status = measure(&beside, ZD_CUDA_ZEROD);
	if (status || !trainer->nccl)
		return status;
	status = zd_cuda_gather(trainer, &beside.unit, &beside.held);
	if (!status)
		status = measure(&beside, ZD_CUDA_NCCL);
	return status ? status : zd_cuda_release(trainer, &beside.unit, NULL);
}
