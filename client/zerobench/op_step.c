// SPDX-License-Identifier: Apache-2.0
/*
 * op_step.c - synthetic training steps on emulated devices: a host stream computes, by touching memory.
 */
#include "client/zerobench/step.h"

#include <stdlib.h>
#include <string.h>

#include <zerod_host.h>

#include "base/mem.h"

#define COMPUTE_BYTES (8u << 20) /* touched by one piece of computing */

struct host_work {
	const struct zd_rank *rank;
	zerod_stream *stream;
	unsigned char *scratch;
	uint64_t marks[2];
};

struct write {
	unsigned char *to;
	uint64_t bytes;
};

static void run_compute(void *arg)
{
	struct host_work *work = arg;
	for (size_t i = 0; i < COMPUTE_BYTES; i += 64)
		work->scratch[i]++;
}

static void run_write(void *arg)
{
	struct write *write = arg;
	memset(write->to, 0, write->bytes);
	free(write);
}

static void run_mark(void *arg)
{
	*(uint64_t *)arg = zd_bench_now_ns();
}

static void launch_work(struct host_work *work, void (*fn)(void *), void *arg)
{
	ZD_CALL(work->rank, zerod_host_stream_launch, work->stream, fn, arg);
}

static void compute(void *arg, uint32_t amount)
{
	for (uint32_t i = 0; i < amount; i++)
		launch_work(arg, run_compute, arg);
}

static void write_gradient(void *arg, void *to, uint64_t bytes)
{
	struct host_work *work = arg;
	struct write *write = zd_calloc(1, sizeof(*write));
	*write = (struct write){to ? to : work->scratch, bytes};
	launch_work(work, run_write, write);
}

static void mark(void *arg)
{
	struct host_work *work = arg;
	launch_work(work, run_mark, &work->marks[0]);
}

static uint64_t measure_work(void *arg)
{
	struct host_work *work = arg;
	launch_work(work, run_mark, &work->marks[1]);
	ZD_CALL(work->rank, zerod_stream_synchronize, work->stream);
	return work->marks[1] - work->marks[0];
}

struct run {
	const struct zd_bench *bench;
	struct zd_step_samples *samples;
};

static void member_main(const struct zd_member *member, void *arg)
{
	const struct run *run = arg;
	const struct zd_bench *bench = run->bench;
	const struct zd_rank_options options = {.socket_path = bench->socket_path,
	                                        .rank = member->index,
	                                        .world_size = bench->options.ranks,
	                                        .devices = bench->devices};
	struct zd_rank rank;
	struct host_work host = {.rank = &rank};
	const struct zd_step_work work = {&host, compute, write_gradient, mark, measure_work};
	zd_rank_init(&rank, member, &options);
	ZD_CALL(&rank, zerod_host_stream_create, rank.client, &host.stream);
	host.scratch = zd_calloc(1, zd_max_u64(COMPUTE_BYTES, bench->options.max_bytes));
	zd_step_rank(bench, &rank, host.stream, &work, run->samples);
	zd_rank_deinit(&rank);
	free(host.scratch);
}

int zd_bench_step(struct zd_bench *bench, struct zd_err *err)
{
	struct run run = {.bench = bench, .samples = zd_shared_new(sizeof(*run.samples), err)};
	if (!run.samples)
		return ZEROD_E_SYSTEM;
	int status = zd_team_run(bench->options.ranks, member_main, &run, err);
	if (!status)
		zd_step_report(bench, run.samples);
	zd_shared_free(run.samples, sizeof(*run.samples));
	return status;
}
