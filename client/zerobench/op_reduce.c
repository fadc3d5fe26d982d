// SPDX-License-Identifier: Apache-2.0
/*
 * op_reduce.c - reductions of one unit's gradient by all ranks, against sums of the same bytes.
 *
 * An iteration is one whole backward of each rank: begin, reserve, submit, end. Timed iterations reduce the
 * zeros that the daemon has stored, because the trainer, not zerod, writes gradients. With -c another
 * iteration reduces real numbers, and every sum is compared with the float32 sum in rank order, bit for bit.
 * The baseline sums without moving any bytes first.
 */
#include "bench.h"

#include <string.h>

#include "base/mem.h"

/* Runs one whole backward. `fill`: with the rank's gradient. */
static void run_backward(const struct zd_rank *rank, bool fill, struct zd_interval *span)
{
	struct zerod_entry entry = ZEROD_INIT(entry);
	span->start_ns = zd_bench_now_ns();
	zd_rank_backward_begin(rank);
	ZD_CALL(rank, zerod_bucket_reserve, rank->bucket, rank->unit, NULL, &entry);
	if (fill)
		zd_pattern_fill_gradient(entry.data, rank->shard.dtype, entry.padded_numel,
		                         rank->member->index);
	ZD_CALL(rank, zerod_bucket_submit, rank->bucket, entry.id, NULL, 0, NULL, NULL);
	ZD_CALL(rank, zerod_backward_end, rank->group, NULL, NULL);
	span->end_ns = zd_bench_now_ns();
}

static void begin_reductions(struct zd_rank *rank)
{
	const uint64_t bytes = rank->shard.padded_numel * zerod_dtype_bytes(rank->shard.dtype);
	rank->bucket = zd_rank_bucket(rank, rank->shard.dtype, bytes, 1);
}

static void run_round(struct zd_rank *rank, struct zd_interval *span)
{
	run_backward(rank, false, span);
	zd_rank_step_begin(rank);
	zd_rank_step_end(rank);
}

static uint64_t check_reduction(struct zd_rank *rank, const struct zd_bench *bench, uint64_t numel)
{
	struct zerod_target target = ZEROD_INIT(target);
	struct zd_interval span;
	(void)numel;
	run_backward(rank, true, &span);
	zd_rank_step_begin(rank);
	ZD_CALL(rank, zerod_target_get, rank->unit, &target);
	const uint64_t wrong = zd_pattern_count_wrong_sums(target.data, rank->shard.dtype,
	                                                   rank->shard.offset_numel, target.true_numel,
	                                                   bench->options.ranks, bench->options.ranks);
	zd_rank_step_end(rank);
	return wrong;
}

/* ---- Baseline ------------------------------------------------------------------------------------------ */

/* A block's sums remain in the first-level cache while the gradients are added one by one. */
#define BLOCK_NUMEL 1024

static uint64_t gradient_bytes(const struct zd_bench *bench, uint64_t numel)
{
	return zd_bench_shard_numel(bench, numel) * bench->options.ranks *
	       zerod_dtype_bytes(bench->options.dtype);
}

/* A whole gradient of each rank, and then a slice of sums for each rank. */
static uint64_t memory_bytes(const struct zd_bench *bench, uint64_t numel)
{
	return bench->options.ranks *
	       (gradient_bytes(bench, numel) + zd_bench_shard_numel(bench, numel) * sizeof(float));
}

static void sum_block(const struct zd_bench *bench, const char *gradients, uint64_t each_bytes,
                      uint64_t first, uint64_t numel, float *target)
{
	for (uint64_t i = 0; i < numel; i++)
		target[i] = 0;
	for (uint32_t rank = 0; rank < bench->options.ranks; rank++) {
		const void *gradient = gradients + rank * each_bytes;
		if (bench->options.dtype == ZEROD_FLOAT32) {
			const float *values = (const float *)gradient + first;
			for (uint64_t i = 0; i < numel; i++)
				target[i] += values[i];
		} else {
			for (uint64_t i = 0; i < numel; i++)
				target[i] += zd_pattern_load(gradient, bench->options.dtype, first + i);
		}
	}
}

static void sum_device(const struct zd_bench *bench, uint64_t numel, uint32_t device, char *memory)
{
	const uint64_t shard_numel = zd_bench_shard_numel(bench, numel);
	const uint64_t each_bytes = gradient_bytes(bench, numel);
	float *targets = (float *)(memory + bench->options.ranks * each_bytes);
	for (uint32_t owner = device; owner < bench->options.ranks; owner += zd_bench_devices_used(bench))
		for (uint64_t i = owner * shard_numel; i < (owner + 1) * shard_numel; i += BLOCK_NUMEL)
			sum_block(bench, memory, each_bytes, i,
			          zd_min_u64(BLOCK_NUMEL, (owner + 1) * shard_numel - i), targets + i);
}

static const struct zd_round_ops rounds = {
        .begin = begin_reductions,
        .round = run_round,
        .check = check_reduction,
        .memory_bytes = memory_bytes,
        .baseline = sum_device,
};

int zd_bench_reduce(struct zd_bench *bench, struct zd_err *err)
{
	return zd_rounds_run(bench, &rounds, err);
}
