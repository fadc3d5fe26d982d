// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_costs.c - the costs of gathers other than their time: the CPU time of the trainer and of the daemon,
 * and how much longer a batch of small units takes than one large unit. On idle GPUs.
 *
 * CPU clocks of some kernels count in ticks of 10 ms. Each figure is therefore measured for seconds.
 */
#include "client/zerobench/cuda_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PHASE_NS_AN_ITERATION 20000000ull /* of the options: 100 iterations are 2 s per phase */

struct costs {
	struct zd_cuda_trainer *trainer;
	struct zd_cuda_unit units[ZD_CUDA_BATCH], whole;
	uint64_t phase_ns;
};

static bool is_first(const struct zd_cuda_trainer *trainer)
{
	return trainer->member->index == 0;
}

/* ---- Clocks -------------------------------------------------------------------------------------------- */

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now = {0};
	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool daemon_cpu_ns(const struct zd_cuda_run *run, uint64_t *ns)
{
	clockid_t clock;
	if (!run->bench->daemon_pid || clock_getcpuclockid(run->bench->daemon_pid, &clock))
		return false;
	*ns = clock_ns(clock);
	return true;
}

/* ---- Gathers of several units -------------------------------------------------------------------------- */

static void gather_units(struct costs *costs, uint32_t count)
{
	const struct zd_rank *rank = &costs->trainer->rank;
	zerod_ticket tickets[ZD_CUDA_BATCH];
	zerod_cork(rank->client);
	for (uint32_t i = 0; i < count; i++)
		ZD_CALL(rank, zerod_gather_begin, costs->units[i].unit, NULL, &tickets[i]);
	ZD_CALL(rank, zerod_uncork, rank->client);
	ZD_CALL(rank, zerod_wait_many, rank->client, tickets, count, costs->trainer->stream, NULL);
}

/* Waits for the replies, so that all work is in the measured time. */
static void release_units(struct costs *costs, uint32_t count)
{
	zerod_unit *units[ZD_CUDA_BATCH];
	for (uint32_t i = 0; i < count; i++)
		units[i] = costs->units[i].unit;
	ZD_CALL(&costs->trainer->rank, zerod_release_many, units, count, &costs->trainer->stream, 1, NULL,
	        NULL);
}

/* ---- The trainer's CPU time ---------------------------------------------------------------------------- */

/* Returns the ns of this thread's CPU time for each gather and release, in batches of `count` units. */
static double measure_cpu(struct costs *costs, uint32_t count)
{
	uint64_t done = 0;
	zd_cuda_meet_trainers(costs->trainer->run);
	const uint64_t cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	const uint64_t end_ns = zd_bench_now_ns() + costs->phase_ns;
	while (zd_bench_now_ns() < end_ns) {
		gather_units(costs, count);
		release_units(costs, count);
		done += count;
	}
	return (double)(clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ns) / (double)(done ? done : 1);
}

/* Returns the mean over ranks, on the first rank. */
static double mean_over_ranks(struct costs *costs, double value)
{
	const struct zd_cuda_run *run = costs->trainer->run;
	atomic_fetch_add(&run->shared->total, (uint64_t)value);
	zd_cuda_meet_trainers(run);
	const double mean = (double)atomic_load(&run->shared->total) / run->ranks;
	zd_cuda_meet_trainers(run);
	if (is_first(costs->trainer))
		atomic_store(&run->shared->total, 0);
	zd_cuda_meet_trainers(run);
	return mean;
}

static void cpu_times(struct costs *costs)
{
	struct zd_cuda_costs *out = &costs->trainer->run->shared->costs;
	double single_ns = measure_cpu(costs, 1);
	double corked_ns = measure_cpu(costs, ZD_CUDA_CORKED);
	zd_cuda_reach(costs->trainer);
	single_ns = mean_over_ranks(costs, single_ns);
	corked_ns = mean_over_ranks(costs, corked_ns);
	if (is_first(costs->trainer)) {
		out->cpu_single_ns = single_ns;
		out->cpu_corked_ns = corked_ns;
	}
}

/* ---- A batch against a whole --------------------------------------------------------------------------- */

static uint64_t batch_once(struct costs *costs)
{
	zd_cuda_meet_trainers(costs->trainer->run);
	const uint64_t start_ns = zd_bench_now_ns();
	gather_units(costs, ZD_CUDA_BATCH);
	zd_cuda_reach(costs->trainer);
	const uint64_t took_ns = zd_bench_now_ns() - start_ns;
	release_units(costs, ZD_CUDA_BATCH);
	return took_ns;
}

static uint64_t whole_once(struct costs *costs)
{
	zd_cuda_meet_trainers(costs->trainer->run);
	const uint64_t start_ns = zd_bench_now_ns();
	(void)zd_cuda_gather(costs->trainer, &costs->whole);
	const uint64_t took_ns = zd_bench_now_ns() - start_ns;
	zd_cuda_release(costs->trainer, &costs->whole, NULL);
	return took_ns;
}

static void batch_times(struct costs *costs)
{
	const struct zd_cuda_run *run = costs->trainer->run;
	const struct zd_bench_options *options = &run->bench->options;
	const unsigned rank = costs->trainer->member->index;
	struct zd_cuda_time batch, whole;
	for (uint32_t i = 0; i < options->warmup + options->iters; i++) {
		const uint64_t batch_ns = batch_once(costs), whole_ns = whole_once(costs);
		if (i < options->warmup)
			continue;
		zd_cuda_samples(run, ZD_CUDA_ZEROD, i - options->warmup)[rank] = batch_ns;
		zd_cuda_samples(run, ZD_CUDA_NCCL, i - options->warmup)[rank] = whole_ns;
	}
	zd_cuda_meet_trainers(run);
	if (is_first(costs->trainer)) {
		zd_cuda_time_of(run, ZD_CUDA_ZEROD, &batch);
		zd_cuda_time_of(run, ZD_CUDA_NCCL, &whole);
		run->shared->costs.batch = batch.each;
		run->shared->costs.whole = whole.each;
	}
}

/* ---- At a training step's pace, without pause, and with nothing to do ---------------------------------- */

/* Returns the daemon's CPU time since the last call, divided by the elapsed time: in cores. */
static double daemon_cores(const struct zd_cuda_run *run, uint64_t *cpu_ns, uint64_t *at_ns)
{
	const uint64_t now_ns = zd_bench_now_ns();
	uint64_t used_ns = 0;
	run->shared->costs.has_daemon_cpu = daemon_cpu_ns(run, &used_ns);
	const double cores = (double)(used_ns - *cpu_ns) / (double)(now_ns - *at_ns);
	*cpu_ns = used_ns;
	*at_ns = now_ns;
	return cores;
}

static void sleep_until(uint64_t ns)
{
	const uint64_t now_ns = zd_bench_now_ns();
	if (ns > now_ns)
		usleep((useconds_t)((ns - now_ns) / 1000));
}

/* Sends the next request when the bytes have arrived and the last copy is released, but not before `each_ns`
 * have passed since the last request. Returns the number of gathers. */
static uint64_t gather_at_pace(struct costs *costs, uint64_t each_ns)
{
	const struct zd_rank *rank = &costs->trainer->rank;
	const uint64_t begin_ns = zd_bench_now_ns(), end_ns = begin_ns + costs->phase_ns;
	uint64_t gathers = 0;
	for (; zd_bench_now_ns() < end_ns; gathers++) {
		zerod_ticket released;
		sleep_until(begin_ns + gathers * each_ns);
		(void)zd_cuda_gather(costs->trainer, &costs->whole);
		zd_cuda_release(costs->trainer, &costs->whole, &released);
		ZD_CALL(rank, zerod_wait, rank->client, released, NULL, NULL);
	}
	zd_cuda_meet_trainers(costs->trainer->run);
	return gathers;
}

static void daemon_times(struct costs *costs)
{
	const struct zd_cuda_run *run = costs->trainer->run;
	struct zd_cuda_costs *out = &run->shared->costs;
	const double seconds = (double)costs->phase_ns / 1e9;
	uint64_t cpu_ns = 0, at_ns = 0;
	zd_cuda_meet_trainers(run);
	if (is_first(costs->trainer))
		(void)daemon_cores(run, &cpu_ns, &at_ns);
	(void)gather_at_pace(costs, ZD_CUDA_PACE_NS);
	if (is_first(costs->trainer))
		out->daemon_paced_cores = daemon_cores(run, &cpu_ns, &at_ns);
	zd_cuda_meet_trainers(run);
	const double each = mean_over_ranks(costs, (double)gather_at_pace(costs, 0));
	if (is_first(costs->trainer)) {
		const double bytes = (double)costs->whole.numel *
		                     (double)zerod_dtype_bytes(costs->whole.shard.dtype);
		out->daemon_busy_cores = daemon_cores(run, &cpu_ns, &at_ns);
		out->pauseless_gathers_s = each / seconds;
		out->pauseless_busbw = each / seconds * bytes * (run->ranks - 1) / run->ranks / 1e9;
		usleep((useconds_t)(costs->phase_ns / 1000));
		out->daemon_idle_cores = daemon_cores(run, &cpu_ns, &at_ns);
	}
	zd_cuda_meet_trainers(run);
}

/* ---- All of it ----------------------------------------------------------------------------------------- */

void zd_cuda_costs(struct zd_cuda_trainer *trainer)
{
	const struct zd_bench_options *options = &trainer->run->bench->options;
	const uint64_t numel = ZD_CUDA_BATCH_BYTES / zerod_dtype_bytes(options->dtype);
	struct costs costs = {.trainer = trainer, .phase_ns = options->iters * PHASE_NS_AN_ITERATION};
	zd_cuda_unit_new(trainer, "whole", numel * ZD_CUDA_BATCH, &costs.whole);
	for (uint32_t i = 0; i < ZD_CUDA_BATCH; i++) {
		char name[32];
		snprintf(name, sizeof(name), "batch%u", i);
		zd_cuda_unit_new(trainer, name, numel, &costs.units[i]);
	}
	batch_times(&costs);
	cpu_times(&costs);
	daemon_times(&costs);
}
