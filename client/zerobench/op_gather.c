// SPDX-License-Identifier: Apache-2.0
/*
 * op_gather.c - gathers of one unit by all ranks at once, against copies of the same bytes.
 *
 * A rank's time lasts from its request until the bytes have arrived. The time of an iteration lasts from the
 * first rank's start to the last rank's end. The baseline does only the work that the executors must do: one
 * process for each device copies the device's shards into every rank's buffer, in shared memory, of which the
 * segments of the host backend also are.
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

static uint64_t shard_bytes(const struct zd_bench *bench, uint64_t numel)
{
	return zd_bench_shard_numel(bench, numel) * zerod_dtype_bytes(bench->options.dtype);
}

/* The shards, and then a buffer for each rank. */
static uint64_t memory_bytes(const struct zd_bench *bench, uint64_t numel)
{
	return (uint64_t)(bench->options.ranks + 1) * bench->options.ranks * shard_bytes(bench, numel);
}

static void copy_device(const struct zd_bench *bench, uint64_t numel, uint32_t device, char *memory)
{
	const uint32_t ranks = bench->options.ranks;
	const uint64_t bytes = shard_bytes(bench, numel);
	for (uint32_t source = device; source < ranks; source += zd_bench_devices_used(bench))
		for (uint32_t target = 0; target < ranks; target++)
			memcpy(memory + ((uint64_t)(target + 1) * ranks + source) * bytes,
			       memory + source * bytes, bytes);
}

static const struct zd_round_ops rounds = {
        .begin = begin_gathers,
        .round = run_round,
        .check = check_gather,
        .memory_bytes = memory_bytes,
        .baseline = copy_device,
};

int zd_bench_gather(struct zd_bench *bench, struct zd_err *err)
{
	return zd_rounds_run(bench, &rounds, err);
}
