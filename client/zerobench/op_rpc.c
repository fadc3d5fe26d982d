// SPDX-License-Identifier: Apache-2.0
/*
 * op_rpc.c - requests that move no bytes: gathers of an available unit and their releases, singly and in
 * batches.
 *
 * The baseline is a ping-pong between two processes over a SOCK_SEQPACKET socket pair. The three series
 * alternate block by block. A pair is a gather and its release: two round trips.
 */
#include "bench.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"

#define BLOCKS       20
#define BATCH_PAIRS  32
#define PACKET_BYTES 32 /* a little more than a gather's request or reply */

enum { MEMBER_RANK, MEMBER_PING, MEMBER_PONG, NMEMBERS };

struct rpc_run {
	const struct zd_bench *bench;
	int sockets[2];  /* ping's and pong's end */
	size_t block;    /* pairs in one block */
	size_t nbatches; /* in one block */
	/* shared with the members: */
	uint64_t *gathers, *releases, *pings;        /* ns each: BLOCKS * block; pings twice as many */
	uint64_t *pair_ns, *batch_ns, *ping_pair_ns; /* of whole blocks: BLOCKS */
};

/* ---- The daemon's series ------------------------------------------------------------------------------- */

static void pair(const struct zd_rank *rank, uint64_t *gather_ns, uint64_t *release_ns)
{
	const uint64_t start_ns = zd_bench_now_ns();
	ZD_CALL(rank, zerod_gather, rank->unit, NULL, NULL, NULL);
	const uint64_t middle_ns = zd_bench_now_ns();
	ZD_CALL(rank, zerod_release, rank->unit, NULL, 0, NULL, NULL);
	*gather_ns = middle_ns - start_ns;
	*release_ns = zd_bench_now_ns() - middle_ns;
}

/* If a gather fails, its release fails as well: waiting for the releases is enough. */
static void batch(const struct zd_rank *rank)
{
	zerod_ticket gather, releases[BATCH_PAIRS];
	zerod_cork(rank->client);
	for (size_t i = 0; i < BATCH_PAIRS; i++) {
		ZD_CALL(rank, zerod_gather_begin, rank->unit, NULL, &gather);
		ZD_CALL(rank, zerod_release, rank->unit, NULL, 0, NULL, &releases[i]);
	}
	ZD_CALL(rank, zerod_uncork, rank->client);
	ZD_CALL(rank, zerod_wait_many, rank->client, releases, BATCH_PAIRS, NULL, NULL);
}

static void measure_block(const struct zd_rank *rank, const struct rpc_run *run, size_t block)
{
	const uint64_t start_ns = zd_bench_now_ns();
	for (size_t i = block * run->block; i < (block + 1) * run->block; i++)
		pair(rank, &run->gathers[i], &run->releases[i]);
	const uint64_t middle_ns = zd_bench_now_ns();
	for (size_t i = 0; i < run->nbatches; i++)
		batch(rank);
	run->pair_ns[block] = middle_ns - start_ns;
	run->batch_ns[block] = zd_bench_now_ns() - middle_ns;
}

static void warm_up(const struct zd_rank *rank, const struct rpc_run *run)
{
	uint64_t unused;
	/* Holds the unit available until the end. */
	struct zerod_gather_options keep = ZEROD_INIT(keep);
	keep.tag = "keep";
	zd_rank_publish(rank, &rank->unit, 1);
	ZD_CALL(rank, zerod_gather, rank->unit, &keep, NULL, NULL);
	for (uint32_t i = 0; i < run->bench->options.warmup; i++)
		pair(rank, &unused, &unused);
	batch(rank);
}

static void rank_main(const struct zd_member *member, const struct rpc_run *run)
{
	const struct zd_rank_options options = {.socket_path = run->bench->socket_path,
	                                        .world_size = 1,
	                                        .devices = run->bench->devices,
	                                        .dtype = ZEROD_FLOAT32,
	                                        .numel = 1024};
	struct zd_rank rank;
	zd_rank_init(&rank, member, &options);
	warm_up(&rank, run);
	for (size_t block = 0; block < BLOCKS; block++) {
		zd_member_barrier(member);
		measure_block(&rank, run, block);
		zd_member_barrier(member); /* the turn of ping */
	}
	zd_rank_deinit(&rank);
}

/* ---- The baseline's series ----------------------------------------------------------------------------- */

static void transfer(const struct zd_member *member, ssize_t done)
{
	if (done <= 0)
		zd_member_need(zd_err_errno(member->err, done < 0 ? errno : EPIPE, "ping-pong"));
}

static void ping_main(const struct zd_member *member, const struct rpc_run *run)
{
	uint8_t packet[PACKET_BYTES] = {0};
	const int sock = run->sockets[0];
	for (size_t block = 0; block < BLOCKS; block++) {
		zd_member_barrier(member); /* the turn of the daemon */
		zd_member_barrier(member);
		const uint64_t start_ns = zd_bench_now_ns();
		for (size_t i = 0; i < 2 * run->block; i++) {
			const uint64_t sent_ns = zd_bench_now_ns();
			transfer(member, send(sock, packet, sizeof(packet), 0));
			transfer(member, recv(sock, packet, sizeof(packet), 0));
			run->pings[block * 2 * run->block + i] = zd_bench_now_ns() - sent_ns;
		}
		run->ping_pair_ns[block] = zd_bench_now_ns() - start_ns;
	}
}

static void pong_main(const struct zd_member *member, const struct rpc_run *run)
{
	uint8_t packet[PACKET_BYTES] = {0};
	const int sock = run->sockets[1];
	for (size_t block = 0; block < BLOCKS; block++) {
		zd_member_barrier(member);
		zd_member_barrier(member);
		for (size_t i = 0; i < 2 * run->block; i++) {
			transfer(member, recv(sock, packet, sizeof(packet), 0));
			transfer(member, send(sock, packet, sizeof(packet), 0));
		}
	}
}

static void member_main(const struct zd_member *member, void *arg)
{
	static void (*const mains[NMEMBERS])(const struct zd_member *member, const struct rpc_run *run) = {
	        [MEMBER_RANK] = rank_main, [MEMBER_PING] = ping_main, [MEMBER_PONG] = pong_main};
	mains[member->index](member, arg);
}

/* ---- Figures ------------------------------------------------------------------------------------------- */

static double rate(uint64_t *block_ns, size_t pairs)
{
	struct zd_stats stats;
	zd_stats_of(block_ns, BLOCKS, &stats);
	return (double)pairs * 1e9 / (double)stats.p50;
}

static void report(const struct zd_bench *bench, const struct rpc_run *run)
{
	const size_t npairs = BLOCKS * run->block;
	struct zd_latency_row gather = {.what = "gather, available", .baseline_what = "ping-pong"};
	zd_stats_of(run->gathers, npairs, &gather.time);
	zd_stats_of(run->pings, 2 * npairs, &gather.baseline);
	struct zd_latency_row release = {
	        .what = "release", .baseline_what = "ping-pong", .baseline = gather.baseline};
	zd_stats_of(run->releases, npairs, &release.time);
	zd_report_latency(bench, &gather);
	zd_report_latency(bench, &release);
	const double one_by_one = rate(run->pair_ns, run->block);
	const double batched = rate(run->batch_ns, run->nbatches * BATCH_PAIRS);
	const double ping_pong = rate(run->ping_pair_ns, run->block);
	zd_report_figure(bench, "gather+release one by one", one_by_one, "pairs/s");
	zd_report_figure(bench, "gather+release in batches of 32", batched, "pairs/s");
	zd_report_figure(bench, "ping-pong, two round trips a pair", ping_pong, "pairs/s");
	zd_report_target(bench, "gather request: p50 / ping-pong",
	                 (double)gather.time.p50 / (double)gather.baseline.p50, true, 2.5);
	zd_report_target(bench, "gather request: p99 / ping-pong",
	                 (double)gather.time.p99 / (double)gather.baseline.p99, true, 6);
	zd_report_target(bench, "batches of 32: pairs/s / ping-pong", batched / ping_pong, false, 10);
}

int zd_bench_rpc(struct zd_bench *bench, struct zd_err *err)
{
	struct rpc_run run = {.bench = bench, .block = zd_max_u64(bench->options.iters / BLOCKS, 1)};
	run.nbatches = zd_max_u64(run.block / BATCH_PAIRS, 1);
	const size_t npairs = BLOCKS * run.block;
	const size_t shared_bytes = (4 * npairs + (size_t)3 * BLOCKS) * sizeof(uint64_t);
	uint64_t *shared = zd_shared_new(shared_bytes, err);
	if (!shared)
		return ZEROD_E_SYSTEM;
	run.gathers = shared;
	run.releases = run.gathers + npairs;
	run.pings = run.releases + npairs;
	run.pair_ns = run.pings + 2 * npairs;
	run.batch_ns = run.pair_ns + BLOCKS;
	run.ping_pair_ns = run.batch_ns + BLOCKS;
	int status = 0;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, run.sockets))
		status = zd_err_errno(err, errno, "socketpair");
	if (!status) {
		status = zd_team_run(NMEMBERS, member_main, &run, err);
		close(run.sockets[0]);
		close(run.sockets[1]);
	}
	if (!status)
		report(bench, &run);
	zd_shared_free(shared, shared_bytes);
	return status;
}
