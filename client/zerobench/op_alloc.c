// SPDX-License-Identifier: Apache-2.0
/*
 * op_alloc.c - plain allocations, against mappings of a memfd of the same size.
 *
 * Both provide zeroed memory, which is written once per page, because a mapping without accesses costs no
 * time, and then freed. All of this is in the measured time.
 */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct alloc_run {
	const struct zd_bench *bench;
	uint64_t bytes;
	/* shared with the member: ns, [iters] */
	uint64_t *allocs, *maps;
};

static void touch(void *data, uint64_t bytes)
{
	const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
	for (uint64_t offset = 0; offset < bytes; offset += page_bytes)
		((volatile char *)data)[offset] = 1;
}

static int alloc_once(const struct zd_member *member, const struct zd_rank *rank, uint64_t bytes,
                      uint64_t *took_ns)
{
	char job[64];
	snprintf(job, sizeof(job), "zerobench-%d", (int)getppid());
	struct zerod_alloc_options options = ZEROD_INIT(options);
	options.job = job;
	options.name = "bench";
	options.bytes = bytes;
	zerod_allocation *buffer;
	void *data;
	const uint64_t start_ns = zd_bench_now_ns();
	int status = zd_member_check(member, zerod_alloc(rank->client, &options, &buffer, &data),
	                             rank->client, "zerod_alloc");
	if (status)
		return status;
	touch(data, bytes);
	status = zd_member_check(member, zerod_free(buffer, NULL, 0), rank->client, "zerod_free");
	*took_ns = zd_bench_now_ns() - start_ns;
	return status;
}

static int map_once(const struct zd_member *member, uint64_t bytes, uint64_t *took_ns)
{
	void *data;
	const uint64_t start_ns = zd_bench_now_ns();
	int status = zd_map_memfd(bytes, &data, member->err);
	if (status)
		return status;
	touch(data, bytes);
	munmap(data, bytes);
	*took_ns = zd_bench_now_ns() - start_ns;
	return 0;
}

static int member_main(struct zd_member *member, void *arg)
{
	const struct alloc_run *run = arg;
	const struct zd_bench_options *options = &run->bench->options;
	const struct zd_rank_options rank_options = {
	        .socket_path = run->bench->socket_path, .world_size = 1, .devices = run->bench->devices};
	struct zd_rank rank;
	int status = zd_rank_init(&rank, member, &rank_options);
	for (uint32_t i = 0; i < options->warmup + options->iters && !status; i++) {
		uint64_t alloc_ns, map_ns;
		status = alloc_once(member, &rank, run->bytes, &alloc_ns);
		if (!status)
			status = map_once(member, run->bytes, &map_ns);
		if (!status && i >= options->warmup) {
			run->allocs[i - options->warmup] = alloc_ns;
			run->maps[i - options->warmup] = map_ns;
		}
	}
	if (!status)
		zd_rank_deinit(&rank);
	return status;
}

static int measure_allocs(struct zd_bench *bench, uint64_t numel, struct zd_err *err)
{
	const size_t iters = bench->options.iters, shared_bytes = 2 * iters * sizeof(uint64_t);
	struct alloc_run run = {.bench = bench, .bytes = numel * zerod_dtype_bytes(bench->options.dtype)};
	run.allocs = zd_shared_new(shared_bytes, err);
	if (!run.allocs)
		return ZEROD_E_SYSTEM;
	run.maps = run.allocs + iters;
	int status = zd_team_run(1, member_main, &run, err);
	if (!status) {
		struct zd_latency_row row = {
		        .what = "alloc, touch, free", .baseline_what = "memfd", .bytes = run.bytes};
		zd_stats_of(run.allocs, iters, &row.time);
		zd_stats_of(run.maps, iters, &row.baseline);
		zd_report_latency(bench, &row);
	}
	zd_shared_free(run.allocs, shared_bytes);
	return status;
}

int zd_bench_alloc(struct zd_bench *bench, struct zd_err *err)
{
	return zd_bench_sizes(bench, measure_allocs, err);
}
