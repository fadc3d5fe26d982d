// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_trainer.c - a trainer of the measurement: one rank on one GPU, with zerod, NCCL and its load.
 */
#include "client/zerobench/cuda_bench.h"

#include <zerod_cuda.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define SLICE_PADDING_BYTES (64u << 10) /* more than the daemon's padding of one slice */

void zd_cuda_check(const struct zd_cuda_trainer *trainer, int result, const char *what)
{
	zd_member_need(zd_cuda_err(trainer->gpu.cuda, result, trainer->member->err, "%s", what));
}

/* ---- Units --------------------------------------------------------------------------------------------- */

void zd_cuda_unit_publish(const struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit,
                          uint64_t seed)
{
	const struct zerod_shard *shard = &unit->shard;
	const uint64_t bytes = shard->true_numel * zerod_dtype_bytes(shard->dtype);
	void *contents = zd_calloc(1, bytes + 1);
	ZD_CALL(&trainer->rank, zerod_update_begin, &unit->unit, 1, NULL, NULL);
	zd_pattern_fill_bits(contents, shard->dtype, shard->offset_numel, shard->true_numel, seed);
	if (bytes && trainer->run->bench->options.on_host)
		memcpy(shard->data, contents, bytes);
	else if (bytes)
		zd_member_need(zd_gpu_write(&trainer->gpu, (zd_cu_ptr)(uintptr_t)shard->data, contents, bytes,
		                            trainer->member->err));
	free(contents);
	ZD_CALL(&trainer->rank, zerod_publish, &unit->unit, 1, NULL, 0, NULL, NULL);
}

void zd_cuda_unit_register(const struct zd_cuda_trainer *trainer, const char *name, uint64_t numel,
                           struct zd_cuda_unit *unit)
{
	struct zerod_unit_options options = ZEROD_INIT(options);
	options.name = name;
	options.dtype = trainer->run->bench->options.dtype;
	options.numel = numel;
	if (trainer->run->bench->options.all_reduce)
		options.flags |= ZEROD_UNIT_ALL_REDUCE;
	if (trainer->run->bench->options.on_host)
		options.flags |= ZEROD_UNIT_ON_HOST;
	*unit = (struct zd_cuda_unit){.numel = numel};
	unit->unit = zd_rank_register(&trainer->rank, &options, &unit->shard);
}

void zd_cuda_unit_new(const struct zd_cuda_trainer *trainer, const char *name, uint64_t numel,
                      struct zd_cuda_unit *unit)
{
	zd_cuda_unit_register(trainer, name, numel, unit);
	zd_cuda_unit_publish(trainer, unit, 1);
}

void zd_cuda_unit_free(const struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit)
{
	ZD_CALL(&trainer->rank, zerod_unit_unregister, unit->unit, NULL);
}

/* ---- Gathers ------------------------------------------------------------------------------------------- */

void zd_cuda_reach(struct zd_cuda_trainer *trainer)
{
	struct zd_gpu *gpu = &trainer->gpu;
	zd_member_need(zd_gpu_mark(gpu, gpu->stream, 0, ++trainer->mark, trainer->member->err));
	zd_member_need(zd_gpu_await(gpu, gpu->stream, 0, trainer->mark, trainer->member->err));
}

zd_cu_ptr zd_cuda_gather(struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit)
{
	zerod_ticket ticket;
	void *address = NULL;
	ZD_CALL(&trainer->rank, zerod_gather_begin, unit->unit, NULL, &ticket);
	ZD_CALL(&trainer->rank, zerod_wait, trainer->rank.client, ticket, trainer->stream, &address);
	trainer->called_ns = zd_bench_now_ns();
	zd_cuda_reach(trainer);
	return (zd_cu_ptr)(uintptr_t)address;
}

void zd_cuda_release(const struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit,
                     zerod_ticket *ticket)
{
	ZD_CALL(&trainer->rank, zerod_release, unit->unit, &trainer->stream, 1, NULL, ticket);
}

void zd_cuda_gather_by_nccl(struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit, zd_cu_ptr data)
{
	const uint64_t slice_bytes = unit->shard.shard_numel * zerod_dtype_bytes(unit->shard.dtype);
	zd_member_need(zd_nccl_rank_all_gather(trainer->nccl, data, slice_bytes, trainer->gpu.stream,
	                                       trainer->member->err));
	zd_cuda_reach(trainer);
}

/* ---- Gradients and sums -------------------------------------------------------------------------------- */

void zd_cuda_memory_new(const struct zd_cuda_trainer *trainer, uint64_t bytes, struct zd_gpu_memory *memory)
{
	zd_member_need(zd_gpu_memory_new(&trainer->gpu, bytes, 0, memory, trainer->member->err));
}

void zd_cuda_fill_gradient(const struct zd_cuda_trainer *trainer, const struct zerod_shard *shard,
                           zd_cu_ptr at)
{
	const uint64_t bytes = shard->padded_numel * zerod_dtype_bytes(shard->dtype);
	void *contents = zd_calloc(1, bytes);
	zd_pattern_fill_gradient(contents, shard->dtype, shard->padded_numel, trainer->member->index);
	zd_member_need(zd_gpu_write(&trainer->gpu, at, contents, bytes, trainer->member->err));
	free(contents);
}

void zd_cuda_reserve(const struct zd_cuda_trainer *trainer, zerod_bucket *bucket,
                     const struct zd_cuda_unit *unit, zd_cu_ptr gradient, struct zerod_entry *entry)
{
	const uint64_t bytes = unit->numel * zerod_dtype_bytes(unit->shard.dtype);
	ZD_CALL(&trainer->rank, zerod_bucket_reserve, bucket, unit->unit, NULL, ZD_SIZED(entry));
	if (gradient)
		zd_cuda_check(trainer,
		              trainer->gpu.cuda->memcpyAsync((zd_cu_ptr)(uintptr_t)entry->data, gradient,
		                                             bytes, trainer->gpu.stream),
		              "writing a gradient");
}

uint64_t zd_cuda_wrong_sums(const struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit,
                            const struct zerod_target *target, uint64_t first, uint64_t numel)
{
	const struct zd_cuda_run *run = trainer->run;
	const struct zd_bench_options *options = &run->bench->options;
	const uint64_t offset_numel = options->all_reduce ? 0 : unit->shard.offset_numel;
	const bool exchanged = options->collectives == ZEROD_COLLECTIVES_NCCL;
	float *sums = zd_calloc(numel + 1, sizeof(*sums));
	zd_member_need(zd_gpu_read(&trainer->gpu, sums,
	                           (zd_cu_ptr)(uintptr_t)target->data + first * sizeof(*sums),
	                           numel * sizeof(*sums), trainer->member->err));
	const uint64_t wrong = zd_pattern_count_wrong_sums(sums, unit->shard.dtype, offset_numel + first,
	                                                   numel, run->ranks,
	                                                   exchanged ? run->ranks : run->node_ranks);
	free(sums);
	return wrong;
}

uint64_t zd_cuda_wrong_ends(const struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit)
{
	struct zerod_target target = ZEROD_INIT(target);
	ZD_CALL(&trainer->rank, zerod_target_get, unit->unit, &target);
	if (!target.true_numel)
		return 0;
	return zd_cuda_wrong_sums(trainer, unit, &target, 0, 1) +
	       zd_cuda_wrong_sums(trainer, unit, &target, target.true_numel - 1, 1);
}

/* ---- Beginning and end --------------------------------------------------------------------------------- */

/* Returns the size with the padding of the slices. */
static uint64_t largest_unit_bytes(const struct zd_cuda_run *run)
{
	return run->bench->options.max_bytes + (uint64_t)run->ranks * SLICE_PADDING_BYTES;
}

/* NCCL accepts one rank per GPU. A missing NCCL is an error only if its path was given. */
static void join_nccl(struct zd_cuda_trainer *trainer)
{
	const struct zd_cuda_run *run = trainer->run;
	const struct zd_member *member = trainer->member;
	const char *path = run->bench->options.nccl_path;
	struct zd_cuda_shared *shared = run->shared;
	struct zd_err err = ZD_ERR_NONE;
	const bool unwanted = run->steps || (path && strcmp(path, "none") == 0);
	if (unwanted || run->ranks == 1 || run->ranks > run->devices) {
		snprintf(shared->nccl_text, sizeof(shared->nccl_text), "no NCCL: %s",
		         unwanted ? "not wanted" : "it needs at least two ranks, each on its own GPU");
		return;
	}
	if (zd_nccl_rank_new(path, run->bench->options.copy_engines, &trainer->nccl, &err)) {
		if (path || run->bench->options.copy_engines)
			zd_member_need(zd_err_set(member->err, err.status, "%s", err.text));
		snprintf(shared->nccl_text, sizeof(shared->nccl_text), "no NCCL: %s", err.text);
		return;
	}
	if (member->index == 0) {
		snprintf(shared->nccl_text, sizeof(shared->nccl_text), "%s",
		         zd_nccl_rank_version(trainer->nccl));
		shared->has_nccl = true;
		zd_member_need(zd_nccl_rank_make_id(trainer->nccl, &shared->nccl_id, member->err));
	}
	zd_cuda_meet_trainers(run);
	zd_member_need(
	        zd_nccl_rank_join(trainer->nccl, &shared->nccl_id, run->ranks, member->index, member->err));
	zd_member_need(zd_nccl_rank_make_window(trainer->nccl, largest_unit_bytes(run), member->err));
}

/* Joins the group. If the group spans daemons, the first rank makes its id. */
static void join_group(struct zd_cuda_trainer *trainer)
{
	const struct zd_cuda_run *run = trainer->run;
	const struct zd_member *member = trainer->member;
	const struct zd_bench_options *options = &run->bench->options;
	struct zd_cuda_shared *shared = run->shared;
	struct zd_rank_options rank = {
	        .socket_path = run->bench->socket_paths[member->index / run->node_ranks],
	        .rank = member->index,
	        .world_size = run->ranks,
	        .devices = run->devices / options->nodes,
	        .dtype = options->dtype,
	        .local_world_size = run->node_ranks,
	        .collectives = options->collectives,
	        .unique_id = options->nodes > 1 ? &shared->unique_id : NULL,
	};
	zd_rank_connect(&trainer->rank, member, &rank);
	if (rank.unique_id && member->index == 0)
		zd_rank_make_id(&trainer->rank, &rank, &shared->unique_id);
	zd_cuda_meet_trainers(run);
	zd_rank_join(&trainer->rank, &rank);
}

static void begin_trainer(struct zd_cuda_trainer *trainer)
{
	const struct zd_cuda_run *run = trainer->run;
	const struct zd_member *member = trainer->member;
	const uint32_t side = run->bench->options.load_side;
	zd_member_need(zd_gpu_open(&trainer->gpu, run->names[member->index % run->devices], member->err));
	join_group(trainer);
	ZD_CALL(&trainer->rank, zerod_cuda_stream_wrap, trainer->rank.client, trainer->gpu.stream,
	        &trainer->stream);
	zd_cuda_words_new(trainer);
	join_nccl(trainer);
	if (side)
		zd_member_need(zd_gemm_new(&trainer->gpu, side, NULL, &trainer->gemm, member->err));
}

static void end_trainer(struct zd_cuda_trainer *trainer)
{
	zd_gemm_free(trainer->gemm);
	zd_nccl_rank_free(trainer->nccl);
	zerod_stream_destroy(trainer->stream);
	zd_rank_deinit(&trainer->rank);
	zd_cuda_words_free(trainer);
	zd_gpu_close(&trainer->gpu);
}

static void measure_sizes(struct zd_cuda_trainer *trainer)
{
	const struct zd_bench *bench = trainer->run->bench;
	const struct zd_bench_options *options = &bench->options;
	for (uint64_t bytes = options->min_bytes; bytes <= options->max_bytes; bytes *= options->factor) {
		if (options->op == ZD_BENCH_REDUCE)
			zd_cuda_reduce_turns(trainer, zd_bench_numel(bench, bytes));
		else
			zd_cuda_measure_gathers(trainer, zd_bench_numel(bench, bytes));
	}
}

static void measure_rest(struct zd_cuda_trainer *trainer)
{
	const struct zd_bench_options *options = &trainer->run->bench->options;
	const bool gathers = options->op == ZD_BENCH_GATHER;
	if (gathers && trainer->gemm) {
		zd_cuda_slowdown(trainer);
		return;
	}
	/* The costs are measured for a fixed time. Ranks of collective gathers must gather equally often. */
	if (options->nodes > 1 || options->collectives != ZEROD_COLLECTIVES_COPIES || options->all_reduce ||
	    (gathers && options->alone))
		return;
	if (gathers) {
		if (trainer->run->ranks > 1)
			zd_cuda_skew(trainer);
		zd_cuda_costs(trainer);
		return;
	}
	if (trainer->gemm)
		zd_cuda_reduce_slowdown(trainer);
	if (options->backward_bytes)
		zd_cuda_backwards(trainer);
}

void zd_cuda_trainer_main(const struct zd_member *member, const struct zd_cuda_run *run)
{
	struct zd_cuda_trainer trainer = {.member = member, .run = run};
	begin_trainer(&trainer);
	if (run->steps) {
		zd_cuda_step(&trainer);
	} else {
		measure_sizes(&trainer);
		measure_rest(&trainer);
		zd_cuda_meet_trainers(
		        run); /* a rank that leaves earlier would be a lost peer for the others */
	}
	end_trainer(&trainer);
}
