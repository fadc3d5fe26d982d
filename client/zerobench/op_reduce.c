// SPDX-License-Identifier: Apache-2.0
/*
 * op_reduce.c - reductions of one unit's gradient by all ranks, against sums of the same bytes by as many
 * threads.
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
static int run_backward(const struct zd_member *member, const struct zd_rank *rank, bool fill,
                        struct zd_interval *span)
{
	struct zerod_backward_options options = ZEROD_INIT(options);
	options.boundary = 1;
	struct zerod_entry entry = ZEROD_INIT(entry);
	span->start_ns = zd_bench_now_ns();
	int status = zd_member_check(member, zerod_backward_begin(rank->group, &options), rank->client,
	                             "zerod_backward_begin");
	if (!status)
		status = zd_member_check(member, zerod_bucket_reserve(rank->bucket, rank->unit, NULL, &entry),
		                         rank->client, "zerod_bucket_reserve");
	if (!status && fill)
		zd_pattern_fill_gradient(entry.data, rank->shard.dtype, entry.padded_numel, member->index);
	if (!status)
		status = zd_member_check(member,
		                         zerod_bucket_submit(rank->bucket, entry.id, NULL, 0, NULL, NULL),
		                         rank->client, "zerod_bucket_submit");
	if (!status)
		status = zd_member_check(member, zerod_backward_end(rank->group, NULL, NULL), rank->client,
		                         "zerod_backward_end");
	span->end_ns = zd_bench_now_ns();
	return status;
}

static int step_begin(const struct zd_member *member, const struct zd_rank *rank)
{
	struct zerod_step_info info = ZEROD_INIT(info);
	return zd_member_check(member, zerod_step_begin(rank->group, NULL, &info, NULL), rank->client,
	                       "zerod_step_begin");
}

static int step_end(const struct zd_member *member, const struct zd_rank *rank)
{
	return zd_member_check(member, zerod_step_end(rank->group, NULL, 0, NULL), rank->client,
	                       "zerod_step_end");
}

static int begin_reductions(const struct zd_member *member, struct zd_rank *rank)
{
	struct zerod_bucket_options options = ZEROD_INIT(options);
	options.dtype = rank->shard.dtype;
	options.slot_bytes = rank->shard.padded_numel * zerod_dtype_bytes(rank->shard.dtype);
	options.nslots = 1;
	return zd_member_check(member, zerod_bucket_create(rank->group, &options, &rank->bucket),
	                       rank->client, "zerod_bucket_create");
}

static int run_round(const struct zd_member *member, struct zd_rank *rank, struct zd_interval *span)
{
	int status = run_backward(member, rank, false, span);
	if (!status)
		status = step_begin(member, rank);
	return status ? status : step_end(member, rank);
}

static int check_reduction(const struct zd_member *member, struct zd_rank *rank, const struct zd_bench *bench,
                           uint64_t numel, uint64_t *wrong)
{
	struct zerod_target target = ZEROD_INIT(target);
	struct zd_interval span;
	(void)numel;
	int status = run_backward(member, rank, true, &span);
	if (!status)
		status = step_begin(member, rank);
	if (!status)
		status = zd_member_check(member, zerod_target_get(rank->unit, &target), rank->client,
		                         "zerod_unit_target");
	if (status)
		return status;
	*wrong = zd_pattern_count_wrong_sums(target.data, rank->shard.dtype, rank->shard.offset_numel,
	                                     target.true_numel, bench->options.ranks, bench->options.ranks);
	return step_end(member, rank);
}

/* ---- Baseline ------------------------------------------------------------------------------------------ */

struct sums {
	uint32_t ranks, devices;
	enum zerod_dtype dtype;
	uint64_t shard_numel;
	void *gradients[ZD_BENCH_MAX_RANKS]; /* whole gradients, one of each rank */
	void *targets[ZD_BENCH_MAX_RANKS];   /* float32 slices */
};

/* A block's sums remain in the first-level cache while the gradients are added one by one. */
#define BLOCK_NUMEL 1024

static void sum_block(const struct sums *sums, uint64_t first, uint64_t numel, float *target)
{
	for (uint64_t i = 0; i < numel; i++)
		target[i] = 0;
	for (uint32_t rank = 0; rank < sums->ranks; rank++) {
		const void *gradient = sums->gradients[rank];
		if (sums->dtype == ZEROD_FLOAT32) {
			const float *values = (const float *)gradient + first;
			for (uint64_t i = 0; i < numel; i++)
				target[i] += values[i];
		} else {
			for (uint64_t i = 0; i < numel; i++)
				target[i] += zd_pattern_load(gradient, sums->dtype, first + i);
		}
	}
}

static void sum_device(unsigned device, void *arg)
{
	const struct sums *sums = arg;
	for (uint32_t owner = device; owner < sums->ranks; owner += sums->devices) {
		float *target = sums->targets[owner];
		for (uint64_t i = 0; i < sums->shard_numel; i += BLOCK_NUMEL)
			sum_block(sums, owner * sums->shard_numel + i,
			          zd_min_u64(BLOCK_NUMEL, sums->shard_numel - i), target + i);
	}
}

static int prepare_sums(const struct zd_bench *bench, uint64_t numel, void **arg, struct zd_err *err)
{
	struct sums *sums = zd_calloc(1, sizeof(*sums));
	sums->ranks = bench->options.ranks;
	sums->devices = zd_bench_devices_used(bench);
	sums->dtype = bench->options.dtype;
	sums->shard_numel = zd_bench_shard_numel(bench, numel);
	*arg = sums;
	const uint64_t gradient_bytes = sums->shard_numel * sums->ranks * zerod_dtype_bytes(sums->dtype);
	for (uint32_t i = 0; i < sums->ranks; i++) {
		int status = zd_map_memfd(gradient_bytes, &sums->gradients[i], err);
		if (!status)
			status = zd_map_memfd(sums->shard_numel * sizeof(float), &sums->targets[i], err);
		if (status)
			return status;
		memset(sums->gradients[i], 0, gradient_bytes); /* pages of its own, not the zero page */
	}
	return 0;
}

static const struct zd_round_ops rounds = {
        .begin = begin_reductions,
        .round = run_round,
        .check = check_reduction,
        .prepare = prepare_sums,
        .work = sum_device,
};

static int measure_reductions(struct zd_bench *bench, uint64_t numel, struct zd_err *err)
{
	struct zd_bandwidth_row row;
	int status = zd_rounds_run(bench, &rounds, numel, &row, err);
	if (!status)
		zd_report_bandwidth(bench, &row);
	return status;
}

int zd_bench_reduce(struct zd_bench *bench, struct zd_err *err)
{
	return zd_bench_sizes(bench, measure_reductions, err);
}
