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

int zd_cuda_check(const struct zd_cuda_trainer *trainer, int status, const char *call)
{
	return zd_member_check(trainer->member, status, trainer->rank.client, call);
}

/* ---- Units --------------------------------------------------------------------------------------------- */

int zd_cuda_unit_publish(const struct zd_cuda_trainer *trainer, struct zd_cuda_unit *unit, uint64_t seed)
{
	const struct zerod_shard *shard = &unit->shard;
	const uint64_t bytes = shard->true_numel * zerod_dtype_bytes(shard->dtype);
	int status = zd_cuda_check(trainer, zerod_update_begin(&unit->unit, 1, NULL, NULL),
	                           "zerod_update_begin");
	if (status)
		return status;
	void *contents = zd_calloc(1, bytes + 1);
	zd_pattern_fill_bits(contents, shard->dtype, shard->offset_numel, shard->true_numel, seed);
	if (bytes && trainer->run->bench->options.on_host)
		memcpy(shard->data, contents, bytes);
	else if (bytes)
		status = zd_gpu_write(&trainer->gpu, (zd_cu_ptr)(uintptr_t)shard->data, contents, bytes,
		                      trainer->member->err);
	free(contents);
	if (status)
		return status;
	return zd_cuda_check(trainer, zerod_publish(&unit->unit, 1, NULL, 0, NULL, NULL), "zerod_publish");
}

int zd_cuda_unit_new(const struct zd_cuda_trainer *trainer, const char *name, uint64_t numel,
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
	int status = zd_cuda_check(trainer, zerod_unit_register(trainer->rank.group, &options, &unit->unit),
	                           "zerod_unit_register");
	if (!status)
		status = zd_cuda_check(trainer, zerod_shard_get(unit->unit, ZD_SIZED(&unit->shard)),
		                       "zerod_shard_get");
	return status ? status : zd_cuda_unit_publish(trainer, unit, 1);
}

int zd_cuda_unit_free(const struct zd_cuda_trainer *trainer, struct zd_cuda_unit *unit)
{
	return zd_cuda_check(trainer, zerod_unit_unregister(unit->unit, NULL), "zerod_unit_unregister");
}

/* ---- Gathers ------------------------------------------------------------------------------------------- */

int zd_cuda_reach(struct zd_cuda_trainer *trainer)
{
	struct zd_gpu *gpu = &trainer->gpu;
	int status = zd_gpu_mark(gpu, gpu->stream, 0, ++trainer->mark, trainer->member->err);
	return status ? status : zd_gpu_await(gpu, gpu->stream, 0, trainer->mark, trainer->member->err);
}

int zd_cuda_gather(struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit, zd_cu_ptr *data)
{
	zerod_ticket ticket;
	void *address = NULL;
	int status = zerod_gather_begin(unit->unit, NULL, &ticket);
	if (status)
		return zd_cuda_check(trainer, status, "zerod_gather_begin");
	status = zerod_wait(trainer->rank.client, ticket, trainer->stream, &address);
	if (status)
		return zd_cuda_check(trainer, status, "zerod_wait");
	*data = (zd_cu_ptr)(uintptr_t)address;
	trainer->called_ns = zd_bench_now_ns();
	return zd_cuda_reach(trainer);
}

int zd_cuda_release(const struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit,
                    zerod_ticket *ticket)
{
	return zd_cuda_check(trainer, zerod_release(unit->unit, &trainer->stream, 1, NULL, ticket),
	                     "zerod_release");
}

/* ---- Beginning and end --------------------------------------------------------------------------------- */

/* Returns the size with the padding of the slices. */
static uint64_t largest_unit_bytes(const struct zd_cuda_run *run)
{
	return run->bench->options.max_bytes + (uint64_t)run->ranks * SLICE_PADDING_BYTES;
}

/* NCCL accepts one rank per GPU. A missing NCCL is an error only if its path was given. */
static int join_nccl(struct zd_cuda_trainer *trainer)
{
	const struct zd_cuda_run *run = trainer->run;
	const struct zd_member *member = trainer->member;
	const char *path = run->bench->options.nccl_path;
	struct zd_cuda_shared *shared = run->shared;
	struct zd_err err = ZD_ERR_NONE;
	int status = 0;
	const bool unwanted = run->steps || (path && strcmp(path, "none") == 0);
	if (unwanted || run->ranks == 1 || run->ranks > run->devices) {
		snprintf(shared->nccl_text, sizeof(shared->nccl_text), "no NCCL: %s",
		         unwanted ? "not wanted" : "it needs at least two ranks, each on its own GPU");
		return 0;
	}
	if (zd_nccl_rank_new(path, run->bench->options.copy_engines, &trainer->nccl, &err)) {
		if (path || run->bench->options.copy_engines)
			return zd_err_set(member->err, err.status, "%s", err.text);
		snprintf(shared->nccl_text, sizeof(shared->nccl_text), "no NCCL: %s", err.text);
		return 0;
	}
	if (member->index == 0) {
		snprintf(shared->nccl_text, sizeof(shared->nccl_text), "%s",
		         zd_nccl_rank_version(trainer->nccl));
		shared->has_nccl = true;
		status = zd_nccl_rank_make_id(trainer->nccl, &shared->nccl_id, member->err);
	}
	if (status)
		return status;
	zd_cuda_meet_trainers(run);
	status = zd_nccl_rank_join(trainer->nccl, &shared->nccl_id, run->ranks, member->index, member->err);
	return status ? status
	              : zd_nccl_rank_make_window(trainer->nccl, largest_unit_bytes(run), member->err);
}

/* Joins the group. If the group spans daemons, the first rank makes its id. */
static int join_group(struct zd_cuda_trainer *trainer)
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
	int status = zd_rank_connect(&trainer->rank, member, &rank);
	if (!status && rank.unique_id && member->index == 0)
		status = zd_rank_make_id(&trainer->rank, member, &rank, &shared->unique_id);
	if (status)
		return status;
	zd_cuda_meet_trainers(run);
	return zd_rank_join(&trainer->rank, member, &rank);
}

static int begin_trainer(struct zd_cuda_trainer *trainer)
{
	const struct zd_cuda_run *run = trainer->run;
	const struct zd_member *member = trainer->member;
	const struct zd_bench_options *options = &run->bench->options;
	int status = zd_gpu_open(&trainer->gpu, run->names[member->index % run->devices], member->err);
	if (!status)
		status = join_group(trainer);
	if (!status)
		status = zd_cuda_check(
		        trainer,
		        zerod_cuda_stream_wrap(trainer->rank.client, trainer->gpu.stream, &trainer->stream),
		        "zerod_cuda_stream_wrap");
	if (!status)
		status = zd_cuda_words_new(trainer);
	if (!status)
		status = join_nccl(trainer);
	if (!status && options->load_side)
		status = zd_gemm_new(&trainer->gpu, options->load_side, NULL, &trainer->gemm, member->err);
	return status;
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

static int measure_size(void *arg, uint64_t numel)
{
	struct zd_cuda_trainer *trainer = arg;
	return trainer->run->bench->options.op == ZD_BENCH_REDUCE ? zd_cuda_reduce_turns(trainer, numel)
	                                                          : zd_cuda_measure_gathers(trainer, numel);
}

static int measure_rest(struct zd_cuda_trainer *trainer)
{
	const struct zd_bench_options *options = &trainer->run->bench->options;
	int status = 0;
	if (options->op == ZD_BENCH_GATHER && trainer->gemm)
		return zd_cuda_slowdown(trainer);
	/* The costs are measured for a fixed time. Ranks of collective gathers must gather equally often. */
	if (options->nodes > 1 || options->collectives != ZEROD_COLLECTIVES_COPIES || options->all_reduce)
		return 0;
	if (options->op == ZD_BENCH_GATHER && options->alone)
		return 0;
	if (options->op == ZD_BENCH_GATHER && trainer->run->ranks > 1)
		status = zd_cuda_skew(trainer);
	if (options->op == ZD_BENCH_GATHER)
		return status ? status : zd_cuda_costs(trainer);
	if (trainer->gemm)
		status = zd_cuda_reduce_slowdown(trainer);
	if (!status && options->backward_bytes)
		status = zd_cuda_backwards(trainer);
	if (!status && !trainer->gemm) /* the last measurement, because CUPTI slows all later ones */
		status = zd_cuda_reduce_profile(trainer);
	return status;
}

int zd_cuda_trainer_main(const struct zd_member *member, const struct zd_cuda_run *run)
{
	struct zd_cuda_trainer trainer = {.member = member, .run = run};
	int status = begin_trainer(&trainer);
	if (!status && run->steps) {
		status = zd_cuda_step(&trainer);
		if (!status)
			end_trainer(&trainer);
		return status;
	}
	if (!status)
		status = zd_cuda_each_size(run, measure_size, &trainer);
	if (!status)
		status = measure_rest(&trainer);
	if (status) /* the end of the process ends its session */
		return status;
	zd_cuda_meet_trainers(run); /* a rank that leaves earlier would be a lost peer for the others */
	end_trainer(&trainer);
	return 0;
}
