// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_slowdown.c - the time of a trainer's matrix product alone, while zerod gathers or reduces, and while
 * NCCL does, both without pause on all ranks. Products are timed by events, in runs that are queued before
 * the other work starts. For reductions the number of bytes is recorded: the time that products lose for each
 * byte is the GPU's time for the sums and all other work.
 */
#include "client/zerobench/cuda_bench.h"

#include "base/mem.h"

#define ROUNDS 5u

/* The work that runs at the same time as the products. */
struct beside {
	struct zd_cuda_trainer *trainer;
	struct zd_cuda_unit unit;
	struct zd_cuda_backward *backward; /* NULL: gathers */
	enum zd_cuda_way way;              /* ZD_CUDA_PUSHES: no work */
	zd_cu_ptr held;                    /* NCCL's buffer */
	uint64_t reduced_bytes;
};

static void gather(const struct beside *beside)
{
	struct zd_cuda_trainer *trainer = beside->trainer;
	zerod_ticket released;
	if (beside->way == ZD_CUDA_NCCL) {
		zd_cuda_gather_by_nccl(trainer, &beside->unit,
		                       zd_nccl_rank_place(trainer->nccl, beside->held));
		return;
	}
	(void)zd_cuda_gather(trainer, &beside->unit);
	zd_cuda_release(trainer, &beside->unit, &released);
	ZD_CALL(&trainer->rank, zerod_wait, trainer->rank.client, released, NULL, NULL);
}

static void work_once(struct beside *beside)
{
	if (!beside->backward) {
		gather(beside);
		return;
	}
	beside->reduced_bytes += zd_cuda_backward_bytes(beside->backward);
	if (beside->way == ZD_CUDA_ZEROD)
		zd_cuda_backward_by_zerod(beside->backward);
	else
		zd_cuda_backward_by_nccl(beside->backward);
}

/* All ranks must call NCCL equally often. Before each call, also for zerod, they agree whether there is
 * another. */
static void work_until_end(struct beside *beside)
{
	struct zd_cuda_trainer *trainer = beside->trainer;
	const struct zd_cuda_run *run = trainer->run;
	bool runs = true;
	for (;;) {
		if (runs && !zd_gemm_runs(trainer->gemm)) {
			runs = false;
			atomic_fetch_sub(&run->shared->running, 1);
		}
		zd_cuda_meet_trainers(run);
		const bool go_on = atomic_load(&run->shared->running) > 0;
		zd_cuda_meet_trainers(run); /* all ranks have read it */
		if (!go_on)
			return;
		work_once(beside);
	}
}

static void measure_round(struct beside *beside, uint64_t *product_ns)
{
	struct zd_cuda_trainer *trainer = beside->trainer;
	const struct zd_cuda_run *run = trainer->run;
	zd_cuda_meet_trainers(run);
	if (trainer->member->index == 0)
		atomic_store(&run->shared->running, run->ranks);
	zd_cuda_meet_trainers(run);
	zd_member_need(zd_gemm_timed_begin(trainer->gemm, trainer->member->err));
	if (beside->way != ZD_CUDA_PUSHES)
		work_until_end(beside);
	zd_member_need(zd_gemm_timed_end(trainer->gemm, product_ns, trainer->member->err));
}

static void store_figures(const struct beside *beside)
{
	const struct zd_cuda_run *run = beside->trainer->run;
	struct zd_cuda_costs *costs = &run->shared->costs;
	costs->product_ns[beside->way] = atomic_exchange(&run->shared->total, 0) / run->ranks;
	costs->products = (uint64_t)ROUNDS * ZD_GEMM_RUNS * zd_gemm_run_products(beside->trainer->gemm);
	costs->reduced_bytes[beside->way] = beside->reduced_bytes;
}

/* Measures the median over runs and rounds, and the mean of the ranks. */
static void measure_way(struct beside *beside, enum zd_cuda_way way)
{
	const struct zd_cuda_trainer *trainer = beside->trainer;
	const struct zd_cuda_run *run = trainer->run;
	uint64_t samples[ROUNDS * ZD_GEMM_RUNS];
	struct zd_stats stats;
	beside->way = way;
	beside->reduced_bytes = 0;
	for (uint32_t round = 0; round < ROUNDS; round++)
		measure_round(beside, &samples[(size_t)round * ZD_GEMM_RUNS]);
	zd_stats_of(samples, ZD_ARRAY_LEN(samples), &stats);
	atomic_fetch_add(&run->shared->total, stats.p50);
	zd_cuda_meet_trainers(run);
	if (trainer->member->index == 0)
		store_figures(beside);
	zd_cuda_meet_trainers(run);
}

/* NCCL gathers into the unit's buffer, which is leased meanwhile. */
static void measure_all(struct beside *beside)
{
	struct zd_cuda_trainer *trainer = beside->trainer;
	zd_member_need(zd_gemm_settle(trainer->gemm, trainer->member->err));
	zd_member_need(zd_gemm_finish(trainer->gemm, trainer->member->err));
	measure_way(beside, ZD_CUDA_PUSHES);
	measure_way(beside, ZD_CUDA_ZEROD);
	if (!trainer->nccl)
		return;
	if (!beside->backward)
		beside->held = zd_cuda_gather(trainer, &beside->unit);
	measure_way(beside, ZD_CUDA_NCCL);
	if (!beside->backward)
		zd_cuda_release(trainer, &beside->unit, NULL);
}

void zd_cuda_slowdown(struct zd_cuda_trainer *trainer)
{
	const struct zd_bench_options *options = &trainer->run->bench->options;
	const uint64_t bytes = zd_min_u64(options->max_bytes, ZD_CUDA_PAUSELESS_BYTES);
	struct beside beside = {.trainer = trainer};
	zd_cuda_unit_new(trainer, "slowdown", bytes / zerod_dtype_bytes(options->dtype), &beside.unit);
	measure_all(&beside);
}

void zd_cuda_reduce_slowdown(struct zd_cuda_trainer *trainer)
{
	const struct zd_bench_options *options = &trainer->run->bench->options;
	struct beside beside = {.trainer = trainer};
	/* The arena has room for this size with any options. The backward queues no products itself: only the
	 * timed ones run. */
	beside.backward = zd_cuda_backward_new(trainer, zd_min_u64(options->max_bytes, ZD_CUDA_BESIDE_BYTES),
	                                       NULL);
	measure_all(&beside);
	zd_cuda_backward_free(beside.backward);
}
