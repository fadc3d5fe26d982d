// SPDX-License-Identifier: Apache-2.0
/*
 * op_scale.c - measures whether many units and sessions make requests slower, and how much memory they need.
 *
 * It starts two daemons: one with ten units and one session, one with as many units (10,000) and sessions
 * (16) as the options request, of all ranks of one group. The first member is connected to both and measures
 * them in turns: the same process on the same processor, at the same time. Each request is for another unit,
 * because a table that fits a cache would give better figures.
 */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

#define SMALL_UNITS 10
#define BLOCKS      20
#define STRIDE      7919 /* prime: every unit is used */

struct scale_run {
	const struct zd_bench *bench;
	const char *small_path, *large_path;
	size_t block; /* pairs in one block */
	/* shared with the members: */
	uint64_t *small, *large;  /* ns of each pair: BLOCKS * block */
	uint64_t *resident_bytes; /* of the small and of the large daemon */
};

/* A session with all its units. Units of the measuring session are gathered: its requests move no bytes. */
struct site {
	struct zd_rank rank;
	uint32_t nunits;
	zerod_unit **units;
};

static void site_init(struct site *site, const struct zd_member *member,
                      const struct zd_rank_options *options, uint32_t nunits)
{
	*site = (struct site){.nunits = nunits, .units = zd_calloc(nunits, sizeof(zerod_unit *))};
	zd_rank_init(&site->rank, member, options);
	for (uint32_t i = 0; i < nunits; i++) {
		char name[32];
		snprintf(name, sizeof(name), "layers.%u.weight", i);
		struct zerod_unit_options unit = ZEROD_INIT(unit);
		unit.name = name;
		unit.dtype = ZEROD_FLOAT32;
		unit.numel = 1024;
		site->units[i] = zd_rank_register(&site->rank, &unit, NULL);
	}
	zd_rank_publish(&site->rank, site->units, nunits);
}

static void keep_units(const struct site *site)
{
	struct zerod_gather_options keep = ZEROD_INIT(keep);
	keep.tag = "keep";
	for (uint32_t i = 0; i < site->nunits; i++)
		ZD_CALL(&site->rank, zerod_gather, site->units[i], &keep, NULL, NULL);
}

static void site_deinit(struct site *site)
{
	zd_rank_deinit(&site->rank);
	free(site->units);
}

/* Measures `count` pairs, and stores the time of each in `times`. `turn` continues from block to block. */
static void measure_pairs(const struct site *site, size_t count, uint64_t *turn, uint64_t *times)
{
	for (size_t i = 0; i < count; i++) {
		zerod_unit *unit = site->units[(*turn)++ * STRIDE % site->nunits];
		const uint64_t start_ns = zd_bench_now_ns();
		ZD_CALL(&site->rank, zerod_gather, unit, NULL, NULL, NULL);
		ZD_CALL(&site->rank, zerod_release, unit, NULL, 0, NULL, NULL);
		times[i] = zd_bench_now_ns() - start_ns;
	}
}

static uint64_t resident_bytes(const struct site *site)
{
	struct zd_bench_status daemon;
	ZD_CALL(&site->rank, zd_bench_status, site->rank.client, &daemon);
	return daemon.resident_bytes;
}

static void measure_both(const struct site *small, const struct site *large, const struct scale_run *run)
{
	uint64_t small_turn = 0, large_turn = 0;
	/* The first pass is a warm-up, and is overwritten. */
	for (size_t pass = 0; pass <= BLOCKS; pass++) {
		const size_t first = (pass ? pass - 1 : 0) * run->block;
		measure_pairs(small, run->block, &small_turn, run->small + first);
		measure_pairs(large, run->block, &large_turn, run->large + first);
	}
	run->resident_bytes[0] = resident_bytes(small);
	run->resident_bytes[1] = resident_bytes(large);
}

static void member_main(const struct zd_member *member, void *arg)
{
	const struct scale_run *run = arg;
	const struct zd_rank_options few = {
	        .socket_path = run->small_path, .world_size = 1, .devices = run->bench->devices};
	const struct zd_rank_options many = {.socket_path = run->large_path,
	                                     .rank = member->index,
	                                     .world_size = run->bench->options.ranks,
	                                     .devices = run->bench->devices};
	struct site small, large;
	site_init(&large, member, &many, run->bench->options.units);
	zd_member_barrier(member); /* all units are registered */
	if (member->index == 0) {
		keep_units(&large);
		site_init(&small, member, &few, SMALL_UNITS);
		keep_units(&small);
		measure_both(&small, &large, run);
		site_deinit(&small);
	}
	zd_member_barrier(member); /* all sessions remain until here */
	site_deinit(&large);
}

static void report(const struct zd_bench *bench, const struct scale_run *run)
{
	const struct zd_bench_options *options = &bench->options;
	const size_t npairs = BLOCKS * run->block;
	struct zd_latency_row row = {.what = "gather+release, many", .baseline_what = "few"};
	zd_stats_of(run->large, npairs, &row.time);
	zd_stats_of(run->small, npairs, &row.baseline);
	zd_report_latency(bench, &row);
	const double mib = 1 << 20;
	zd_report_figure(bench, "units", options->units, "");
	zd_report_figure(bench, "sessions", options->ranks, "");
	zd_report_figure(bench, "memory outside segments, few units", (double)run->resident_bytes[0] / mib,
	                 "MiB");
	zd_report_figure(bench, "memory outside segments, many units", (double)run->resident_bytes[1] / mib,
	                 "MiB");
	zd_report_target(bench, "request time, many units / few",
	                 (double)row.time.p50 / (double)row.baseline.p50, true, 1.2);
	zd_report_target(bench, "memory outside segments, MiB", (double)run->resident_bytes[1] / mib, true,
	                 64);
}

static int run_with(struct zd_bench *bench, const struct zd_private *small, const struct zd_private *large,
                    struct zd_err *err)
{
	struct scale_run run = {.bench = bench,
	                        .small_path = small->socket_path,
	                        .large_path = large->socket_path,
	                        .block = zd_max_u64(bench->options.iters / BLOCKS, 1)};
	const size_t npairs = BLOCKS * run.block, shared_bytes = (2 * npairs + 2) * sizeof(uint64_t);
	uint64_t *shared = zd_shared_new(shared_bytes, err);
	if (!shared)
		return ZEROD_E_SYSTEM;
	run.small = shared;
	run.large = run.small + npairs;
	run.resident_bytes = run.large + npairs;
	int status = zd_team_run(bench->options.ranks, member_main, &run, err);
	if (!status)
		report(bench, &run);
	zd_shared_free(shared, shared_bytes);
	return status;
}

int zd_bench_scale(struct zd_bench *bench, struct zd_err *err)
{
	const struct zd_private_options options = {.devices = bench->devices, .arena_bytes = 256u << 20};
	struct zd_private small = {0}, large = {0};
	int status = zd_private_start(&options, &small, err);
	if (!status)
		status = zd_private_start(&options, &large, err);
	if (!status)
		status = run_with(bench, &small, &large, err);
	zd_private_stop(&large);
	zd_private_stop(&small);
	return status;
}
