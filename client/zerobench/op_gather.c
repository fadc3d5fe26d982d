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

static void publish_shard(const struct zd_rank *rank, uint64_t seed)
{
	ZD_CALL(rank, zerod_update_begin, &rank->unit, 1, NULL, NULL);
	zd_pattern_fill_bits(rank->shard.data, rank->shard.dtype, rank->shard.offset_numel,
	                     rank->shard.true_numel, seed);
	ZD_CALL(rank, zerod_publish, &rank->unit, 1, NULL, 0, NULL, NULL);
}

static void begin_gathers(struct zd_rank *rank)
{
	publish_shard(rank, 1);
}

static void run_round(struct zd_rank *rank, struct zd_interval *span)
{
	span->start_ns = zd_bench_now_ns();
	ZD_CALL(rank, zerod_gather, rank->unit, NULL, NULL, NULL);
	span->end_ns = zd_bench_now_ns();
	ZD_CALL(rank, zerod_release, rank->unit, NULL, 0, NULL, NULL);
}

/* Publishes new contents first, so that an earlier turn's contents are not mistaken for them. */
static uint64_t check_gather(struct zd_rank *rank, const struct zd_bench *bench, uint64_t numel)
{
	void *data;
	(void)bench;
	publish_shard(rank, 2);
	ZD_CALL(rank, zerod_gather, rank->unit, NULL, NULL, &data);
	const uint64_t wrong = zd_pattern_count_wrong_bits(data, rank->shard.dtype, numel, 2);
	ZD_CALL(rank, zerod_release, rank->unit, NULL, 0, NULL, NULL);
	return wrong;
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

static void *prepare_pushes(const struct zd_member *member, const struct zd_bench *bench, uint64_t numel)
{
	struct copies *copies = zd_calloc(1, sizeof(*copies));
	copies->ranks = bench->options.ranks;
	copies->devices = zd_bench_devices_used(bench);
	copies->shard_bytes = zd_bench_shard_numel(bench, numel) * zerod_dtype_bytes(bench->options.dtype);
	for (uint32_t i = 0; i < copies->ranks; i++) {
		copies->shards[i] = zd_map_memfd(member, copies->shard_bytes);
		copies->buffers[i] = zd_map_memfd(member, copies->shard_bytes * copies->ranks);
		memset(copies->shards[i], (int)i + 1,
		       copies->shard_bytes); /* pages of its own, not the zero page */
	}
	return copies;
}

static const struct zd_round_ops rounds = {
        .begin = begin_gathers,
        .round = run_round,
        .check = check_gather,
        .prepare = prepare_pushes,
        .work = copy_device,
};

int zd_bench_gather(struct zd_bench *bench, struct zd_err *err)
{
	return zd_rounds_run(bench, &rounds, err);
}
