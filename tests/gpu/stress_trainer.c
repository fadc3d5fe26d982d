/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stress_trainer.c - a trainer of the stress: joins, works round after round, and finds its way back to the
 * last commit when another rank was killed.
 */
#include "tests/gpu/stress.h"

#include <zerod_cuda.h>
#include "tests/support/options.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "client/zerobench/bench.h"

#define DEADLINE_MS   60000u
#define HARVEST_EVERY 4
#define RETRY_NS      2000000

static bool is_loss(const struct trainer *trainer, int status)
{
	return trainer->stress->options.kill &&
	       (status == ZEROD_E_PEER_LOST || status == ZEROD_E_ABORTED || status == ZEROD_E_POISONED);
}

/* Between tries of something that another process has to make possible. */
static void nap(void)
{
	(void)nanosleep(&(const struct timespec){.tv_nsec = RETRY_NS}, NULL);
}

/* ---- Beginning ----------------------------------------------------------------------------------------- */

static int open_streams(struct trainer *trainer)
{
	int status = 0;

	for (uint32_t i = 0; i < STRESS_STREAMS && !status; i++) {
		status = zd_gpu_stream(&trainer->gpu, i == 0, &trainer->cu_streams[i], &trainer->err);
		if (!status)
			status = stress_check(trainer,
			                      zerod_cuda_stream_wrap(trainer->client, trainer->cu_streams[i],
			                                             &trainer->streams[i]),
			                      "zerod_cuda_stream_wrap");
	}
	return status;
}

/* The daemon may hear of us before it hears that our predecessor has gone. */
static int join(struct trainer *trainer)
{
	const struct stress *stress = trainer->stress;
	const uint64_t give_up_ns = zd_bench_now_ns() + DEADLINE_MS * 1000000ull;
	struct zerod_group_options options = ZEROD_INIT(options);
	int status;

	options.job = "stress";
	options.world_size = stress->options.ranks;
	options.rank = trainer->rank;
	options.device = trainer->rank % stress->options.devices;
	options.flags = stress->options.kill ? ZEROD_GROUP_DURABLE | ZEROD_GROUP_SHADOW : 0;
	do {
		status = zerod_group_join(trainer->client, &options, &trainer->group);
		if (status == ZEROD_E_EXISTS)
			nap();
	} while (status == ZEROD_E_EXISTS && zd_bench_now_ns() < give_up_ns);
	return stress_check(trainer, status, "zerod_group_join");
}

/* Also says which version each unit has: of the last commit, when the group was set back. */
static int register_units(struct trainer *trainer)
{
	const struct stress *stress = trainer->stress;
	int status = 0;

	for (uint32_t i = 0; i < stress->options.units && !status; i++) {
		struct zerod_unit_options options = ZEROD_INIT(options);
		zerod_unit **unit = &trainer->units[i].unit;

		options.name = stress->units[i].name;
		options.dtype = stress->units[i].dtype;
		options.numel = stress->units[i].numel;
		options.slot = stress->units[i].slot;
		status = zerod_unit_register(trainer->group, &options, unit);
		if (!status)
			status = zerod_shard_get(*unit, SIZED(&trainer->units[i].shard));
		trainer->units[i].version = trainer->units[i].shard.version;
	}
	return stress_check(trainer, status, "zerod_unit_register");
}

/* A quarter of the arenas for leases: the rest is for shards, for what has been released and is still in use,
 * and so that there is a place for the largest unit between them. */
static void plan_memory(struct trainer *trainer)
{
	const struct stress_options *options = &trainer->stress->options;
	const uint32_t sharing = (options->ranks + options->devices - 1) / options->devices;

	trainer->held_limit = zd_max_u64(options->arena_bytes / 4 / sharing,
	                                 2 * zd_max_u64(options->max_bytes, STRESS_SEGMENT_BYTES));
}

static int begin(struct trainer *trainer)
{
	const struct stress *stress = trainer->stress;
	const struct stress_options *options = &stress->options;
	struct zerod_options connect = ZEROD_INIT(connect);
	int status = zd_gpu_open(&trainer->gpu, stress->device_names[trainer->rank % options->devices],
	                         &trainer->err);

	connect.socket_path = stress->socket_path;
	connect.name = "stress";
	connect.deadline_ms = DEADLINE_MS;
	connect.strict = options->strict;
	plan_memory(trainer);
	if (!status)
		status = stress_kernels_load(&trainer->kernels, &trainer->gpu, &trainer->err);
	if (!status && options->load_side)
		status = zd_gemm_new(&trainer->gpu, options->load_side, options->cublas_path, &trainer->gemm,
		                     &trainer->err);
	if (!status)
		status = stress_check(trainer, zerod_connect(&connect, &trainer->client), "zerod_connect");
	if (!status)
		status = join(trainer);
	return status ? status : open_streams(trainer);
}

static void end(struct trainer *trainer)
{
	zd_gemm_free(trainer->gemm);
	for (uint32_t i = 0; i < STRESS_STREAMS; i++)
		zerod_stream_destroy(trainer->streams[i]);
	(void)zerod_group_leave(trainer->group, NULL);
	zerod_close(trainer->client);
	for (uint32_t i = 0; i < STRESS_STREAMS; i++)
		if (trainer->cu_streams[i])
			(void)trainer->gpu.cuda->streamDestroy(trainer->cu_streams[i]);
	stress_kernels_unload(&trainer->kernels);
	zd_gpu_close(&trainer->gpu);
}

/* ---- Looking at what was found ------------------------------------------------------------------------- */

static int synchronize(struct trainer *trainer)
{
	int first = 0;

	for (uint32_t i = 0; i < STRESS_STREAMS; i++) {
		int status = zerod_stream_synchronize(trainer->streams[i]);

		if (status && !first)
			first = stress_check(trainer, status, "zerod_stream_synchronize");
	}
	return first;
}

static int look(struct trainer *trainer, bool counts)
{
	struct stress_shared *shared = trainer->stress->shared;
	uint64_t found[STRESS_FOUND_WORDS];
	int status = stress_look(&trainer->kernels, found, &trainer->err);

	if (status)
		return status;
	atomic_fetch_add(counts ? &shared->counts.compared_bytes : &shared->counts.dropped_bytes,
	                 trainer->unlooked_bytes);
	trainer->unlooked_bytes = 0;
	if (!counts || !found[0])
		return 0;
	if (atomic_fetch_add(&shared->counts.wrong_words, found[0]) == 0)
		(void)snprintf(shared->mismatch, sizeof(shared->mismatch),
		               "rank %u: %llu words, the first of a unit's at %llu, the last seen %016llx",
		               trainer->rank, (unsigned long long)found[0],
		               (unsigned long long)(UINT64_MAX - found[1]), (unsigned long long)found[2]);
	return 0;
}

int stress_harvest(struct trainer *trainer)
{
	int status = synchronize(trainer);

	return status ? status : look(trainer, true);
}

/* ---- Rounds -------------------------------------------------------------------------------------------- */

static int run_round(struct trainer *trainer, uint64_t round)
{
	int status = stress_release_updated(trainer, round);

	if (!status)
		status = stress_update(trainer, round);
	if (!status)
		status = stress_gathers(trainer);
	if (!status && (round % HARVEST_EVERY == 0 || stress_commits(trainer->stress, round)))
		status = stress_harvest(trainer);
	if (!status && stress_commits(trainer->stress, round))
		status = stress_check(trainer, zerod_commit(trainer->group, round, NULL), "zerod_commit");
	if (status)
		return status;
	atomic_fetch_add(&trainer->stress->shared->counts.rounds, 1);
	atomic_fetch_add(&trainer->stress->shared->counts.set_backs, trainer->lost ? 1 : 0);
	trainer->lost = false;
	return 0;
}

/* Releases all leases, and ignores the daemon's errors. */
static void drop_leases(struct trainer *trainer)
{
	while (trainer->nheld) {
		int status = stress_release_all(trainer);

		(void)status;
	}
	trainer->held_bytes = 0;
}

/* Another rank was killed: what was computed since the last commit is dropped, and the group is whole again
 * when units can be registered. Comparisons behind a wait that an abort has freed say nothing. */
static int find_back(struct trainer *trainer)
{
	const uint64_t give_up_ns = zd_bench_now_ns() + DEADLINE_MS * 1000000ull;
	int status = synchronize(trainer);

	if (status && !is_loss(trainer, status))
		return status;
	status = look(trainer, status == 0);
	drop_leases(trainer);
	if (status)
		return status;
	do {
		status = stress_check(trainer, zerod_session_reset(trainer->client, NULL),
		                      "zerod_session_reset");
		if (!status)
			status = register_units(trainer);
		if (is_loss(trainer, status))
			nap();
	} while (is_loss(trainer, status) && zd_bench_now_ns() < give_up_ns);
	trainer->lost = true;
	return status;
}

static int run_rounds(struct trainer *trainer)
{
	uint64_t round = 0;
	int status;

	do {
		struct zerod_group_info info = ZEROD_INIT(info);

		status = stress_check(trainer, zerod_group_get(trainer->group, &info), "zerod_group_get");
		if (status)
			return status;
		for (round = info.committed_step + 1; !status && stress_enter_round(trainer->stress, round);
		     round++)
			status = run_round(trainer, round);
		/* All ranks end with the same round. */
		if (!status)
			status = stress_release_all(trainer);
		if (!status)
			status = stress_harvest(trainer);
		if (!status && !stress_commits(trainer->stress, round - 1))
			status = stress_check(trainer, zerod_commit(trainer->group, round - 1, NULL),
			                      "the last zerod_commit");
		if (is_loss(trainer, status))
			status = find_back(trainer);
		else
			return status;
	} while (!status);
	return status;
}

int stress_trainer_main(const struct stress *stress, uint32_t rank)
{
	struct trainer trainer = {.stress = stress, .rank = rank};
	int status;

	trainer.random = stress->options.seed * 1000003 + rank +
	                 (atomic_fetch_add(&stress->shared->counts.starts, 1) << 32);
	status = begin(&trainer);
	if (!status || is_loss(&trainer, status))
		status = register_units(&trainer);
	while (is_loss(&trainer, status))
		status = find_back(&trainer);
	if (!status)
		status = run_rounds(&trainer);
	if (status) {
		(void)stress_fail(stress, rank, status, "%s", trainer.err.text);
		return 1;
	}
	end(&trainer);
	return 0;
}
