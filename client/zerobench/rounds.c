// SPDX-License-Identifier: Apache-2.0
/*
 * rounds.c - rounds in which first the ranks run, and then the baseline's processes, one for each device.
 *
 * An iteration has two barriers, one before and one after the ranks' turn. One more barrier is at the end.
 * The baseline is not the ranks' work, because its CPU time would delay them on a busy machine.
 */
#include "bench.h"

#include <stdatomic.h>

#include "base/mem.h"

struct rounds {
	const struct zd_bench *bench;
	const struct zd_round_ops *ops;
	uint64_t numel;
	/* shared with the members: */
	char *memory;                 /* the baseline's */
	struct zd_interval *ranks;    /* [iters][ranks] */
	struct zd_interval *baseline; /* [iters][devices] */
	_Atomic uint64_t *wrong;
};

uint32_t zd_bench_devices_used(const struct zd_bench *bench)
{
	return bench->devices < bench->options.ranks ? bench->devices : bench->options.ranks;
}

uint64_t zd_bench_shard_numel(const struct zd_bench *bench, uint64_t numel)
{
	const uint64_t bytes_each = zerod_dtype_bytes(bench->options.dtype);
	const uint64_t shard_numel = (numel + bench->options.ranks - 1) / bench->options.ranks;
	return zd_align_up(shard_numel * bytes_each, 256) / bytes_each;
}

uint64_t zd_bench_numel(const struct zd_bench *bench, uint64_t bytes)
{
	return zd_max_u64(bytes / zerod_dtype_bytes(bench->options.dtype), 1);
}

static void rank_main(const struct zd_member *member, const struct rounds *rounds)
{
	const struct zd_bench_options *options = &rounds->bench->options;
	const struct zd_rank_options rank_options = {.socket_path = rounds->bench->socket_path,
	                                             .rank = member->index,
	                                             .world_size = options->ranks,
	                                             .devices = rounds->bench->devices,
	                                             .dtype = options->dtype,
	                                             .numel = rounds->numel};
	struct zd_rank rank;
	zd_rank_init(&rank, member, &rank_options);
	rounds->ops->begin(&rank);
	for (uint32_t i = 0; i < options->warmup + options->iters; i++) {
		struct zd_interval span;
		zd_member_barrier(member);
		rounds->ops->round(&rank, &span);
		if (i >= options->warmup)
			rounds->ranks[(size_t)(i - options->warmup) * options->ranks + member->index] = span;
		zd_member_barrier(member);
	}
	if (options->check)
		atomic_fetch_add(rounds->wrong, rounds->ops->check(&rank, rounds->bench, rounds->numel));
	zd_member_barrier(member); /* a rank that leaves earlier would be a lost peer for the others */
	zd_rank_deinit(&rank);
}

static void baseline_main(const struct zd_member *member, const struct rounds *rounds)
{
	const struct zd_bench_options *options = &rounds->bench->options;
	const uint32_t devices = zd_bench_devices_used(rounds->bench);
	const uint32_t device = member->index - options->ranks;
	for (uint32_t i = 0; i < options->warmup + options->iters; i++) {
		struct zd_interval span;
		zd_member_barrier(member);
		zd_member_barrier(member); /* the ranks' part of the round has ended */
		span.start_ns = zd_bench_now_ns();
		rounds->ops->baseline(rounds->bench, rounds->numel, device, rounds->memory);
		span.end_ns = zd_bench_now_ns();
		if (i >= options->warmup)
			rounds->baseline[(size_t)(i - options->warmup) * devices + device] = span;
	}
	zd_member_barrier(member); /* the ranks leave */
}

static void member_main(const struct zd_member *member, void *arg)
{
	const struct rounds *rounds = arg;
	if (member->index < rounds->bench->options.ranks)
		rank_main(member, rounds);
	else
		baseline_main(member, rounds);
}

static int measure_size(struct zd_bench *bench, const struct zd_round_ops *ops, uint64_t numel,
                        struct zd_err *err)
{
	const size_t iters = bench->options.iters, ranks = bench->options.ranks;
	const uint32_t devices = zd_bench_devices_used(bench);
	const size_t memory_bytes = ops->memory_bytes(bench, numel);
	const size_t shared_bytes = memory_bytes + iters * (ranks + devices) * sizeof(struct zd_interval) +
	                            sizeof(uint64_t);
	char *shared = zd_shared_new(shared_bytes, err);
	if (!shared)
		return ZEROD_E_SYSTEM;
	struct rounds rounds = {.bench = bench, .ops = ops, .numel = numel, .memory = shared};
	rounds.ranks = (struct zd_interval *)(shared + memory_bytes);
	rounds.baseline = rounds.ranks + iters * ranks;
	rounds.wrong = (_Atomic uint64_t *)(rounds.baseline + iters * devices);
	int status = zd_team_run((unsigned)ranks + devices, member_main, &rounds, err);
	if (!status) {
		struct zd_bandwidth_row row = {.bytes = numel * zerod_dtype_bytes(bench->options.dtype),
		                               .count = numel,
		                               .wrong = *rounds.wrong};
		zd_stats_of_rounds(rounds.ranks, ranks, iters, &row.time);
		zd_stats_of_rounds(rounds.baseline, devices, iters, &row.baseline);
		zd_report_bandwidth(bench, &row);
	}
	zd_shared_free(shared, shared_bytes);
	return status;
}

int zd_rounds_run(struct zd_bench *bench, const struct zd_round_ops *ops, struct zd_err *err)
{
	int status = 0;
	for (uint64_t bytes = bench->options.min_bytes; bytes <= bench->options.max_bytes && !status;
	     bytes *= bench->options.factor)
		status = measure_size(bench, ops, zd_bench_numel(bench, bytes), err);
	return status;
}
