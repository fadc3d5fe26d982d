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
	const struct zd_member *member;
	zerod_client *client;
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

static int launch_work(struct host_work *work, void (*fn)(void *), void *arg)
{
	return zd_member_check(work->member, zerod_host_stream_launch(work->stream, fn, arg), work->client,
	                       "zerod_host_stream_launch");
}

static int compute(void *arg, uint32_t amount)
{
	int status = 0;
	for (uint32_t i = 0; i < amount && !status; i++)
		status = launch_work(arg, run_compute, arg);
	return status;
}

static int write_gradient(void *arg, void *to, uint64_t bytes)
{
	struct host_work *work = arg;
	struct write *write = zd_calloc(1, sizeof(*write));
	*write = (struct write){to ? to : work->scratch, bytes};
	return launch_work(work, run_write, write);
}

static int mark(void *arg)
{
	struct host_work *work = arg;
	return launch_work(work, run_mark, &work->marks[0]);
}

static int measure_work(void *arg, uint64_t *ns)
{
	struct host_work *work = arg;
	int status = launch_work(work, run_mark, &work->marks[1]);
	if (!status)
		status = zd_member_check(work->member, zerod_stream_synchronize(work->stream), work->client,
		                         "zerod_stream_synchronize");
	if (!status)
		*ns = work->marks[1] - work->marks[0];
	return status;
}

struct run {
	const struct zd_bench *bench;
	struct zd_step_samples *samples;
};

static int member_main(struct zd_member *member, void *arg)
{
	const struct run *run = arg;
	const struct zd_bench *bench = run->bench;
	const struct zd_rank_options options = {.socket_path = bench->socket_path,
	                                        .rank = member->index,
	                                        .world_size = bench->options.ranks,
	                                        .devices = bench->devices};
	struct zd_rank rank;
	struct host_work host = {.member = member};
	const struct zd_step_work work = {&host, compute, write_gradient, mark, measure_work};
	int status = zd_rank_init(&rank, member, &options);
	if (!status)
		status = zd_member_check(member, zerod_host_stream_create(rank.client, &host.stream),
		                         rank.client, "zerod_host_stream_create");
	if (status)
		return status;
	host.client = rank.client;
	host.scratch = zd_calloc(1, zd_max_u64(COMPUTE_BYTES, bench->options.max_bytes));
	status = zd_step_rank(member, bench, &rank, host.stream, &work, run->samples);
	zd_rank_deinit(&rank);
	free(host.scratch);
	return status;
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
