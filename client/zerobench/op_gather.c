// SPDX-License-Identifier: Apache-2.0
/*
 * op_gather.c - gathers of one unit by all ranks at once, against copies of the same bytes by as many
 * threads.
 *
 * A rank's time lasts from its request until the bytes have arrived. The time of an iteration lasts from the
 * first rank's start to the last rank's end. The baseline does only the work that the executors must do: one
 * thread for each device copies the device's shards into every rank's buffer, between mappings of memfds,
 * which are also the segments of the host backend.
 */
#include "bench.h"

#include <string.h>

#include "base/mem.h"

static int publish_shard(const struct zd_member *member, struct zd_rank *rank, uint64_t seed)
{
	int status = zd_member_check(member, zerod_update_begin(&rank->unit, 1, NULL, NULL), rank->client,
	                             "zerod_update_begin");
	if (status)
		return status;
	zd_pattern_fill_bits(rank->shard.data, rank->shard.dtype, rank->shard.offset_numel,
	                     rank->shard.true_numel, seed);
	return zd_member_check(member, zerod_publish(&rank->unit, 1, NULL, 0, NULL, NULL), rank->client,
	                       "zerod_publish");
}

static int release_gathered(const struct zd_member *member, const struct zd_rank *rank)
{
	return zd_member_check(member, zerod_release(rank->unit, NULL, 0, NULL, NULL), rank->client,
	                       "zerod_release");
}

static int begin_gathers(const struct zd_member *member, struct zd_rank *rank)
{
	return publish_shard(member, rank, 1);
}

static int run_round(const struct zd_member *member, struct zd_rank *rank, struct zd_interval *span)
{
	span->start_ns = zd_bench_now_ns();
	int status = zerod_gather(rank->unit, NULL, NULL, NULL);
	span->end_ns = zd_bench_now_ns();
	if (status)
		return zd_member_check(member, status, rank->client, "zerod_gather");
	return release_gathered(member, rank);
}

/* Publishes new contents first, so that an earlier turn's contents are not mistaken for them. */
static int check_gather(const struct zd_member *member, struct zd_rank *rank, const struct zd_bench *bench,
                        uint64_t numel, uint64_t *wrong)
{
	void *data;
	(void)bench;
	int status = publish_shard(member, rank, 2);
	if (!status)
		status = zd_member_check(member, zerod_gather(rank->unit, NULL, NULL, &data), rank->client,
		                         "zerod_gather");
	if (status)
		return status;
	*wrong = zd_pattern_count_wrong_bits(data, rank->shard.dtype, numel, 2);
	return release_gathered(member, rank);
}

/* ---- Baseline ------------------------------------------------------------------------------------------ */

struct copies {
	uint32_t ranks, devices;
	uint64_t shard_bytes;
	void *shards[ZD_BENCH_MAX_RANKS];
	void *buffers[ZD_BENCH_MAX_RANKS];
};

static void copy_device(unsigned device, void *arg)
{
	const struct copies *copies = arg;
	for (uint32_t source = device; source < copies->ranks; source += copies->devices)
		for (uint32_t target = 0; target < copies->ranks; target++)
			memcpy((char *)copies->buffers[target] + source * copies->shard_bytes,
			       copies->shards[source], copies->shard_bytes);
}

static int prepare_pushes(const struct zd_bench *bench, uint64_t numel, void **arg, struct zd_err *err)
{
	struct copies *copies = zd_calloc(1, sizeof(*copies));
	copies->ranks = bench->options.ranks;
	copies->devices = zd_bench_devices_used(bench);
	copies->shard_bytes = zd_bench_shard_numel(bench, numel) * zerod_dtype_bytes(bench->options.dtype);
	*arg = copies;
	for (uint32_t i = 0; i < copies->ranks; i++) {
		int status = zd_map_memfd(copies->shard_bytes, &copies->shards[i], err);
		if (!status)
			status = zd_map_memfd(copies->shard_bytes * copies->ranks, &copies->buffers[i], err);
		if (status)
			return status;
		memset(copies->shards[i], (int)i + 1,
		       copies->shard_bytes); /* pages of its own, not the zero page */
	}
	return 0;
}

static const struct zd_round_ops rounds = {
        .begin = begin_gathers,
        .round = run_round,
        .check = check_gather,
        .prepare = prepare_pushes,
        .work = copy_device,
};

static int measure_gathers(struct zd_bench *bench, uint64_t numel, struct zd_err *err)
{
	struct zd_bandwidth_row row;
	int status = zd_rounds_run(bench, &rounds, numel, &row, err);
	if (status)
		return status;
	zd_report_bandwidth(bench, &row);
	if (row.bytes == 64u << 20)
		zd_report_target(bench, "gather of 64 MiB: speed / parallel memcpy",
		                 (double)row.baseline.p50 / (double)row.time.p50, false, 0.8);
	return 0;
}

int zd_bench_gather(struct zd_bench *bench, struct zd_err *err)
{
	return zd_bench_sizes(bench, measure_gathers, err);
}
