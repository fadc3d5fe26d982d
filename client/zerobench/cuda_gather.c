// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_gather.c - gathers of one size in turns: by zerod, by NCCL in the same buffer, by pushes without
 * zerod.
 */
#include "client/zerobench/cuda_bench.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"

/* ---- Meeting ------------------------------------------------------------------------------------------- */

/* Waits until `count` threads have called. `arrived` counts the threads that have arrived, `passed` the times
 * that all have. No thread can pass twice, because it waits until `passed` has changed. */
static void wait_for(struct zd_spin_barrier *barrier, uint32_t count)
{
	const uint32_t passed = atomic_load(&barrier->passed);
	if (atomic_fetch_add(&barrier->arrived, 1) + 1 == count) {
		atomic_store(&barrier->arrived, 0);
		atomic_fetch_add(&barrier->passed, 1);
		return;
	}
	for (uint32_t spins = 0; atomic_load(&barrier->passed) == passed; spins++)
		if (spins > 1u << 14) /* more processes than CPUs */
			sched_yield();
}

void zd_cuda_meet_all(const struct zd_cuda_run *run)
{
	wait_for(&run->shared->all, run->ranks + run->devices);
}

void zd_cuda_meet_trainers(const struct zd_cuda_run *run)
{
	wait_for(&run->shared->trainers, run->ranks);
}

/* ---- Samples ------------------------------------------------------------------------------------------- */

uint64_t *zd_cuda_samples(const struct zd_cuda_run *run, enum zd_cuda_way way, uint32_t iteration)
{
	const size_t iters = run->bench->options.iters;
	return run->shared->samples + ((size_t)way * iters + iteration) * run->ranks;
}

void zd_cuda_time_of(const struct zd_cuda_run *run, enum zd_cuda_way way, struct zd_cuda_time *time)
{
	const struct zd_bench_options *options = &run->bench->options;
	const uint32_t width = options->alone && way != ZD_CUDA_NCCL ? 1 : run->ranks;
	uint64_t *each = zd_calloc((size_t)width * options->iters, sizeof(*each));
	uint64_t *slowest = zd_calloc(options->iters, sizeof(*slowest));
	struct zd_stats stats;
	for (uint32_t i = 0; i < options->iters; i++) {
		const uint64_t *samples = zd_cuda_samples(run, way, i);
		for (uint32_t rank = 0; rank < width; rank++) {
			each[(size_t)i * width + rank] = samples[rank];
			slowest[i] = zd_max_u64(slowest[i], samples[rank]);
		}
	}
	zd_stats_of(each, (size_t)width * options->iters, &time->each);
	zd_stats_of(slowest, options->iters, &stats);
	time->slowest_p50 = stats.p50;
	free(each);
	free(slowest);
}

/* ---- Turns --------------------------------------------------------------------------------------------- */

static bool is_timed(const struct zd_cuda_trainer *trainer)
{
	return trainer->member->index == 0 || !trainer->run->bench->options.alone;
}

void zd_cuda_meet(struct zd_cuda_trainer *trainer)
{
	zd_member_need(zd_gemm_fill(trainer->gemm, trainer->member->err));
	zd_cuda_meet_all(trainer->run);
}

static zd_cu_ptr gather_turn(struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit,
                             uint64_t took_ns[ZD_CUDA_CALLS + 1])
{
	zd_cu_ptr data = 0;
	if (!is_timed(trainer))
		data = zd_cuda_gather(trainer, unit);
	zd_cuda_meet(trainer);
	if (!is_timed(trainer))
		return data;
	const uint64_t start_ns = zd_bench_now_ns();
	data = zd_cuda_gather(trainer, unit);
	took_ns[ZD_CUDA_ZEROD] = zd_bench_now_ns() - start_ns;
	took_ns[ZD_CUDA_CALLS] = trainer->called_ns - start_ns;
	return data;
}

/* Prepares the memory in which NCCL gathers: it has the rank's own slice, and the others are overwritten.
 * Returns it. */
static zd_cu_ptr prepare_nccl(struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit,
                              zd_cu_ptr data)
{
	const uint64_t slice_bytes = unit->shard.shard_numel * zerod_dtype_bytes(unit->shard.dtype);
	const uint64_t offset_bytes = trainer->member->index * slice_bytes;
	const zd_cu_ptr place = zd_nccl_rank_place(trainer->nccl, data);
	if (place != data)
		zd_cuda_check(trainer,
		              trainer->gpu.cuda->memcpyAsync(place + offset_bytes, data + offset_bytes,
		                                             slice_bytes, trainer->gpu.stream),
		              "copying the own slice");
	zd_cuda_words_spoil(trainer, unit, place);
	return place;
}

/* Returns the number of wrong elements. */
static uint64_t nccl_turn(struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit, zd_cu_ptr data,
                          uint64_t *took_ns)
{
	const zd_cu_ptr place = trainer->nccl ? prepare_nccl(trainer, unit, data) : 0;
	zd_cuda_meet(trainer);
	if (!trainer->nccl)
		return 0;
	const uint64_t start_ns = zd_bench_now_ns();
	zd_cuda_gather_by_nccl(trainer, unit, place);
	*took_ns = zd_bench_now_ns() - start_ns;
	return zd_cuda_words_check(trainer, unit, place);
}

/* Own slices are NCCL's input. They do not change until it has run. */
static uint64_t iterate(struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit,
                        uint64_t took_ns[ZD_CUDA_CALLS + 1])
{
	const zd_cu_ptr data = gather_turn(trainer, unit, took_ns);
	uint64_t wrong = zd_cuda_words_check(trainer, unit, data);
	if (trainer->run->bench->options.nodes > 1)
		zd_cuda_meet_trainers(trainer->run); /* other local ranks copy what this one has received */
	wrong += nccl_turn(trainer, unit, data, &took_ns[ZD_CUDA_NCCL]);
	zd_cuda_words_spoil(trainer, unit, data);
	zd_cuda_release(trainer, unit, NULL);
	zd_cuda_meet(trainer); /* the pusher's turn */
	return wrong;
}

static uint64_t check_all(struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit)
{
	const uint64_t bytes = unit->numel * zerod_dtype_bytes(unit->shard.dtype);
	zd_cuda_unit_publish(trainer, unit, 2);
	const zd_cu_ptr data = zd_cuda_gather(trainer, unit);
	void *contents = zd_calloc(1, bytes);
	zd_member_need(zd_gpu_read(&trainer->gpu, contents, data, bytes, trainer->member->err));
	const uint64_t wrong = zd_pattern_count_wrong_bits(contents, unit->shard.dtype, unit->numel, 2);
	free(contents);
	zd_cuda_release(trainer, unit, NULL);
	return wrong;
}

static void store_row(const struct zd_cuda_run *run, const struct zd_cuda_unit *unit)
{
	struct zd_cuda_shared *shared = run->shared;
	struct zd_cuda_row *row = &shared->rows[shared->nrows];
	row->count = unit->numel;
	row->bytes = unit->numel * zerod_dtype_bytes(unit->shard.dtype);
	row->wrong = atomic_exchange(&shared->wrong, 0);
	for (enum zd_cuda_way way = 0; way < ZD_CUDA_WAYS; way++)
		zd_cuda_time_of(run, way, &row->ways[way]);
	zd_cuda_time_of(run, ZD_CUDA_CALLS, &row->calls);
	shared->nrows++;
}

void zd_cuda_note(const struct zd_cuda_trainer *trainer, uint32_t iteration,
                  const uint64_t took_ns[ZD_CUDA_CALLS + 1])
{
	for (enum zd_cuda_way way = 0; way <= ZD_CUDA_CALLS; way++)
		if (way != ZD_CUDA_PUSHES) /* the pusher stores its own times */
			zd_cuda_samples(trainer->run, way, iteration)[trainer->member->index] = took_ns[way];
}

void zd_cuda_row_end(const struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit, uint64_t wrong)
{
	const struct zd_cuda_run *run = trainer->run;
	atomic_fetch_add(&run->shared->wrong, wrong);
	zd_cuda_meet_all(run);
	if (trainer->member->index == 0)
		store_row(run, unit);
}

void zd_cuda_measure_gathers(struct zd_cuda_trainer *trainer, uint64_t numel)
{
	const struct zd_bench_options *options = &trainer->run->bench->options;
	struct zd_cuda_unit unit;
	uint64_t wrong = 0;
	char name[32];
	/* The name has the size, because some ranks can still have the unit of the last size. */
	snprintf(name, sizeof(name), "bench%llu", (unsigned long long)numel);
	zd_cuda_unit_new(trainer, name, numel, &unit);
	zd_member_need(zd_gemm_settle(trainer->gemm, trainer->member->err));
	for (uint32_t i = 0; i < options->warmup + options->iters; i++) {
		uint64_t took_ns[ZD_CUDA_CALLS + 1] = {0};
		wrong += iterate(trainer, &unit, took_ns);
		if (i >= options->warmup)
			zd_cuda_note(trainer, i - options->warmup, took_ns);
	}
	if (options->check)
		wrong += check_all(trainer, &unit);
	zd_cuda_row_end(trainer, &unit, wrong);
	zd_cuda_unit_free(trainer, &unit);
}

/* ---- A rank that is late ------------------------------------------------------------------------------- */

/* All ranks meet, but the last rank starts later than the others. */
static void meet_with_one_late(const struct zd_cuda_trainer *trainer)
{
	zd_cuda_meet_trainers(trainer->run);
	if (trainer->member->index == trainer->run->ranks - 1)
		usleep(ZD_CUDA_LATE_US);
}

static void all_on_time(struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit, uint64_t *took_ns)
{
	zd_cuda_meet_trainers(trainer->run);
	const uint64_t start_ns = zd_bench_now_ns();
	(void)zd_cuda_gather(trainer, unit);
	*took_ns = zd_bench_now_ns() - start_ns;
	zd_cuda_release(trainer, unit, NULL);
}

static uint64_t one_late(struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit,
                         uint64_t took_ns[ZD_CUDA_SKEWS])
{
	meet_with_one_late(trainer);
	uint64_t start_ns = zd_bench_now_ns();
	const zd_cu_ptr data = zd_cuda_gather(trainer, unit);
	took_ns[ZD_CUDA_LATE] = zd_bench_now_ns() - start_ns;
	uint64_t wrong = zd_cuda_words_check(trainer, unit, data);
	if (trainer->nccl) {
		const zd_cu_ptr place = prepare_nccl(trainer, unit, data);
		meet_with_one_late(trainer);
		start_ns = zd_bench_now_ns();
		zd_cuda_gather_by_nccl(trainer, unit, place);
		took_ns[ZD_CUDA_LATE_NCCL] = zd_bench_now_ns() - start_ns;
		wrong += zd_cuda_words_check(trainer, unit, place);
	}
	zd_cuda_release(trainer, unit, NULL);
	return wrong;
}

void zd_cuda_skew(struct zd_cuda_trainer *trainer)
{
	const struct zd_cuda_run *run = trainer->run;
	const struct zd_bench_options *options = &run->bench->options;
	const uint64_t bytes = zd_min_u64(options->max_bytes, ZD_CUDA_SKEW_BYTES);
	uint64_t *samples = zd_calloc((size_t)ZD_CUDA_SKEWS * options->iters, sizeof(*samples)), wrong = 0;
	struct zd_cuda_unit unit;
	zd_cuda_unit_new(trainer, "skew", bytes / zerod_dtype_bytes(options->dtype), &unit);
	for (uint32_t i = 0; i < options->warmup + options->iters; i++) {
		uint64_t took_ns[ZD_CUDA_SKEWS] = {0};
		all_on_time(trainer, &unit, &took_ns[ZD_CUDA_ON_TIME]);
		wrong += one_late(trainer, &unit, took_ns);
		for (uint32_t way = 0; way < ZD_CUDA_SKEWS && i >= options->warmup; way++)
			samples[(size_t)way * options->iters + i - options->warmup] = took_ns[way];
	}
	for (uint32_t way = 0; way < ZD_CUDA_SKEWS && trainer->member->index == 0; way++)
		zd_stats_of(samples + (size_t)way * options->iters, options->iters,
		            &run->shared->costs.skew[way]);
	free(samples);
	atomic_fetch_add(&run->shared->costs.skew_wrong, wrong);
	zd_cuda_meet_trainers(run);
	zd_cuda_unit_free(trainer, &unit);
}
