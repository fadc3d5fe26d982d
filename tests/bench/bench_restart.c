/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_restart.c - how soon trainers work again after the daemon was killed.
 *
 *     bench_restart [UNITS [RANKS]]
 *
 * RANKS (64) processes form a durable group in a private daemon with --keep-state holder, and register UNITS
 * (10,000) units each. The daemon is killed and started again. The program prints the times of the phases:
 * until the daemon reports that it serves, until a client has a reply, and until the ranks go on. They go on
 * twice, each time with another daemon: in the first round with zerod_group_get(), and in the second as new
 * clients, which join and register unit by unit. On a busy machine the daemon's CPU time is the better
 * figure.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <zerod.h>

#include "tests/support/daemon_fixture.h"

#define UNITS       10000u
#define RANKS       64u
#define DEVICES     8u
#define DEADLINE_MS 300000u

static const char *const keep[] = {"--keep-state", "holder", NULL};
static const struct zd_daemon_options options_ = {.devices = DEVICES, .arena = "640M", .args = keep};

struct bench {
	struct zd_daemon daemon;
	uint32_t nunits, nranks;
	pid_t pids[RANKS];
	int begin[RANKS][2]; /* a byte begins the rank's next phase */
	int ended[2];        /* a byte from each rank that has finished a phase */
};

static double now_ms(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void check(int status, zerod_client *client, const char *call)
{
	if (status == 0)
		return;
	(void)fprintf(stderr, "%s: %s: %s\n", call, zerod_status_name(status), zerod_last_error(client));
	_exit(1);
}

/* ---- A rank -------------------------------------------------------------------------------------------- */

static void report(const struct bench *bench)
{
	if (write(bench->ended[1], "", 1) != 1)
		_exit(1);
}

static void wait_turn(const struct bench *bench, uint32_t rank)
{
	char byte;

	if (read(bench->begin[rank][0], &byte, 1) != 1)
		_exit(0);
}

static zerod_client *join(const struct bench *bench, uint32_t rank, zerod_group **group)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options group_options = ZEROD_INIT(group_options);
	zerod_client *client;

	options.socket_path = bench->daemon.socket_path;
	options.deadline_ms = DEADLINE_MS;
	options.reconnect_ms = DEADLINE_MS;
	check(zerod_connect(&options, &client), NULL, "zerod_connect");
	group_options.job = "restart";
	group_options.rank = rank;
	group_options.world_size = bench->nranks;
	group_options.device = (int)(rank % DEVICES);
	group_options.flags = ZEROD_GROUP_DURABLE;
	check(zerod_group_join(client, &group_options, group), client, "zerod_group_join");
	return client;
}

static void register_units(const struct bench *bench, zerod_client *client, zerod_group *group)
{
	struct zerod_unit_options options = ZEROD_INIT(options);
	zerod_unit *unit;
	char name[48];

	for (uint32_t i = 0; i < bench->nunits; i++) {
		(void)snprintf(name, sizeof(name), "layers.%u.weight", i);
		options.name = name;
		options.dtype = ZEROD_FLOAT32;
		options.numel = 1024;
		check(zerod_unit_register(group, &options, &unit), client, "zerod_unit_register");
	}
}

static void go_on(zerod_client *client, zerod_group *group)
{
	struct zerod_group_info info = ZEROD_INIT(info);

	check(zerod_group_get(group, &info), client, "zerod_group_get");
}

_Noreturn static void run_rank(const struct bench *bench, uint32_t rank)
{
	zerod_client *client = NULL;
	zerod_group *group = NULL;

	for (int round = 0; round < 2; round++) {
		wait_turn(bench, rank);
		zerod_close(client);
		client = join(bench, rank, &group);
		report(bench);
		wait_turn(bench, rank);
		register_units(bench, client, group);
		report(bench);
		if (round > 0)
			break;
		wait_turn(bench, rank);
		go_on(client, group);
		report(bench);
	}
	wait_turn(bench, rank);
	zerod_close(client);
	_exit(0);
}

/* ---- The phases ---------------------------------------------------------------------------------------- */

static double cpu_ms(const struct zd_daemon *daemon)
{
	clockid_t clock;
	struct timespec used;

	if (clock_getcpuclockid(daemon->pid, &clock) != 0 || clock_gettime(clock, &used) != 0)
		return 0;
	return (double)used.tv_sec * 1e3 + (double)used.tv_nsec / 1e6;
}

/* Lets all ranks run to their next report, and returns the time. */
static void run_phase(const struct bench *bench, const char *what)
{
	double began = now_ms(), cpu = cpu_ms(&bench->daemon);
	char byte;

	for (uint32_t i = 0; i < bench->nranks; i++)
		assert_int_equal(write(bench->begin[i][1], "", 1), 1);
	for (uint32_t i = 0; i < bench->nranks; i++)
		assert_int_equal(read(bench->ended[0], &byte, 1), 1);
	(void)printf("%-44s %9.1f ms, of the daemon's processor %9.1f\n", what, now_ms() - began,
	             cpu_ms(&bench->daemon) - cpu);
	(void)fflush(stdout);
}

static void start_ranks(struct bench *bench)
{
	assert_int_equal(pipe(bench->ended), 0);
	for (uint32_t rank = 0; rank < bench->nranks; rank++) {
		assert_int_equal(pipe(bench->begin[rank]), 0);
		bench->pids[rank] = fork();
		assert_true(bench->pids[rank] >= 0);
		if (bench->pids[rank] == 0) {
			(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
			run_rank(bench, rank);
		}
		(void)close(bench->begin[rank][0]);
	}
	(void)close(bench->ended[1]);
}

/* Returns when the daemon was started again. */
static double restart(struct bench *bench)
{
	struct zerod_options options = ZEROD_INIT(options);
	zerod_client *client;
	double began, ready;

	assert_int_equal(zd_daemon_kill(&bench->daemon), 0);
	began = now_ms();
	assert_int_equal(zd_daemon_restart(&options_, &bench->daemon), 0);
	ready = now_ms();
	(void)printf("%-44s %9.1f ms, of the daemon's processor %9.1f\n", "start to \"ready\"", ready - began,
	             cpu_ms(&bench->daemon));
	options.socket_path = bench->daemon.socket_path;
	check(zerod_connect(&options, &client), NULL, "zerod_connect");
	(void)printf("%-44s %9.1f ms\n", "start to a client's first reply", now_ms() - began);
	(void)fflush(stdout);
	zerod_close(client);
	return began;
}

static void measure_restarts(struct bench *bench)
{
	double began = restart(bench);

	run_phase(bench, "all ranks go on with zerod_group_get()");
	(void)printf("%-44s %9.1f ms\n", "start to the last registration", now_ms() - began);
	began = restart(bench);
	run_phase(bench, "all ranks connect and join again");
	run_phase(bench, "all ranks register all units again");
	(void)printf("%-44s %9.1f ms\n", "start to the last registration", now_ms() - began);
}

int main(int argc, char **argv)
{
	struct bench bench = {.nunits = argc > 1 ? (uint32_t)atoi(argv[1]) : UNITS,
	                      .nranks = argc > 2 ? (uint32_t)atoi(argv[2]) : RANKS};

	if (bench.nranks == 0 || bench.nranks > RANKS) {
		(void)fprintf(stderr, "1 to %u ranks\n", RANKS);
		return 2;
	}
	(void)signal(SIGPIPE, SIG_IGN);
	assert_int_equal(zd_daemon_start(&options_, &bench.daemon), 0);
	start_ranks(&bench);
	(void)printf("%u units, %u ranks, %u parts\n", bench.nunits, bench.nranks,
	             bench.nunits * bench.nranks);
	run_phase(&bench, "all ranks connect and join");
	run_phase(&bench, "all ranks register all units");
	measure_restarts(&bench);
	for (uint32_t rank = 0; rank < bench.nranks; rank++) {
		assert_int_equal(write(bench.begin[rank][1], "", 1), 1);
		(void)waitpid(bench.pids[rank], NULL, 0);
	}
	assert_int_equal(zd_daemon_zeroctl(&bench.daemon, "end-job restart"), 0);
	return zd_daemon_stop(&bench.daemon) == 0 ? 0 : 1;
}
