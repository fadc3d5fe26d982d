/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stress.c - the stress's command line, its daemon and its processes, which are killed and started again with
 * --kill.
 *
 *   stress [--seconds N] [--ranks N] [--units N] [--max SIZE] [--arena SIZE] [--seed N] [--load gemm:N]
 *   [--cublas PATH] [--kill]
 *          [--strict]
 *
 * Ends with "PASSED" or "FAILED", and exits with 0 only when every compared byte was right, every call did
 * what it must, and the daemon holds nothing at the end. $BUILD/bin has the daemon; the GPUs are those that
 * this process may see.
 */
#include "tests/gpu/stress.h"

#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/text.h"
#include "client/zerobench/bench.h"
#include "tests/support/daemon_fixture.h"

#define END_DEADLINE_NS 120000000000ull
#define PRINT_NS        10000000000ull
#define TICK_NS         20000000
#define KILL_MEAN_TICKS 40 /* between kills of a trainer, once all have worked again */
#define KILL_ANYWAY     20 /* one of so many comes before that */

static struct stress stress;
static pid_t pids[STRESS_RANKS];  /* 0: has ended in order */
static bool killed[STRESS_RANKS]; /* by us */

/* ---- Command line -------------------------------------------------------------------------------------- */

enum {
	KEY_SECONDS = 256,
	KEY_RANKS,
	KEY_UNITS,
	KEY_MAX,
	KEY_ARENA,
	KEY_SEED,
	KEY_LOAD,
	KEY_CUBLAS,
	KEY_KILL,
	KEY_STRICT
};

static const struct argp_option argp_options[] = {
        {"seconds", KEY_SECONDS, "N", 0, "how long (default: 30)", 0},
        {"ranks", KEY_RANKS, "N", 0, "trainers (default: one a GPU)", 0},
        {"units", KEY_UNITS, "N", 0, "units, as far as there is room for them (default: 48)", 0},
        {"max", KEY_MAX, "SIZE", 0, "the largest unit (default: 1G, or a 64th of the GPUs' memory)", 0},
        {"arena", KEY_ARENA, "SIZE", 0, "of each GPU (default: 20G, or half of its memory)", 0},
        {"seed", KEY_SEED, "N", 0, "what is done (default: of the time)", 0},
        {"load", KEY_LOAD, "gemm:N", 0, "beside bf16 products of N x N matrices", 0},
        {"cublas", KEY_CUBLAS, "PATH", 0, "libcublas.so for them (default: searched for)", 0},
        {"kill", KEY_KILL, NULL, 0, "kill trainers at any time, and start them again", 0},
        {"strict", KEY_STRICT, NULL, 0, "released views fault: no kernel may touch one", 0},
        {0},
};

static uint64_t parse_number(struct argp_state *state, const char *text, uint64_t most)
{
	char *rest;
	const unsigned long long value = strtoull(text, &rest, 10);

	if (*text < '0' || *text > '9' || *rest || value > most)
		argp_error(state, "expected a number of at most %llu, found '%s'", (unsigned long long)most,
		           text);
	return value;
}

static uint64_t parse_bytes(struct argp_state *state, const char *text)
{
	struct zd_err err = ZD_ERR_NONE;
	uint64_t bytes = 0;

	if (zd_bytes_parse(text, &bytes, &err))
		argp_error(state, "%s", err.text);
	return bytes;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
	struct stress_options *options = &stress.options;

	switch (key) {
	case KEY_SECONDS:
		options->seconds = (uint32_t)parse_number(state, arg, 86400);
		return 0;
	case KEY_RANKS:
		options->ranks = (uint32_t)parse_number(state, arg, STRESS_RANKS);
		return 0;
	case KEY_UNITS:
		options->units = (uint32_t)parse_number(state, arg, STRESS_UNITS);
		return 0;
	case KEY_MAX:
		options->max_bytes = parse_bytes(state, arg);
		return 0;
	case KEY_ARENA:
		options->arena_bytes = parse_bytes(state, arg);
		return 0;
	case KEY_SEED:
		options->seed = parse_number(state, arg, UINT64_MAX);
		return 0;
	case KEY_LOAD:
		if (strncmp(arg, "gemm:", 5) != 0)
			argp_error(state, "expected gemm:N, found '%s'", arg);
		options->load_side = (uint32_t)parse_number(state, arg + 5, 32768);
		return 0;
	case KEY_CUBLAS:
		options->cublas_path = arg;
		return 0;
	case KEY_KILL:
		options->kill = true;
		return 0;
	case KEY_STRICT:
		options->strict = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static int set_defaults(struct zd_err *err)
{
	struct stress_options *options = &stress.options;
	struct zd_gpu_list list = {0};
	int status = zd_gpu_list(&list, err);

	if (status)
		return status;
	if (!options->ranks)
		options->ranks = list.count;
	options->devices = options->ranks < list.count ? options->ranks : list.count;
	if (!options->arena_bytes)
		options->arena_bytes = zd_min_u64(20ull << 30, list.memory_bytes / 2) & ~((2ull << 20) - 1);
	if (!options->max_bytes)
		options->max_bytes = zd_min_u64(1ull << 30, list.memory_bytes / 64);
	return 0;
}

/* ---- Daemon -------------------------------------------------------------------------------------------- */

static int start_daemon(struct zd_daemon *node)
{
	const char *const args[] = {"--backend", "cuda", NULL};
	char arena[32];
	struct zd_daemon_options options = {.devices = stress.options.devices, .arena = arena, .args = args};

	(void)snprintf(arena, sizeof(arena), "%llu", (unsigned long long)stress.options.arena_bytes);
	return zd_daemon_start(&options, node);
}

/* The parent's own connection, without a device: `use` is called for each. */
static int each_device(int (*use)(zerod_client *client, uint32_t device, struct zd_err *err),
                       struct zd_err *err)
{
	struct zerod_options connect = ZEROD_INIT(connect);
	zerod_client *client;
	int status;

	connect.socket_path = stress.socket_path;
	status = zerod_connect(&connect, &client);
	if (status)
		return zd_err_set(err, status, "zerod_connect: %s", zerod_last_error(NULL));
	for (uint32_t i = 0; i < stress.options.devices && !status; i++)
		status = use(client, i, err);
	zerod_close(client);
	return status;
}

static int learn_name(zerod_client *client, uint32_t device, struct zd_err *err)
{
	struct zerod_device_info info = ZEROD_INIT(info);
	int status = zerod_device_get(client, device, &info);

	if (status)
		return zd_err_set(err, status, "zerod_device_get: %s", zerod_last_error(client));
	(void)snprintf(stress.device_names[device], sizeof(stress.device_names[device]), "%s", info.name);
	return 0;
}

/* The end of a session is noticed by the daemon, not told to it. */
static int expect_nothing(zerod_client *client, uint32_t device, struct zd_err *err)
{
	const uint64_t give_up_ns = zd_bench_now_ns() + END_DEADLINE_NS;
	struct zerod_device_info info = ZEROD_INIT(info);
	int status;

	do {
		status = zerod_device_get(client, device, &info);
		(void)nanosleep(&(const struct timespec){.tv_nsec = TICK_NS}, NULL);
	} while (!status && info.allocated_bytes && zd_bench_now_ns() < give_up_ns);
	if (status)
		return zd_err_set(err, status, "zerod_device_get: %s", zerod_last_error(client));
	if (info.allocated_bytes)
		return zd_err_set(err, ZEROD_E_STATE, "%s still holds %llu bytes", info.name,
		                  (unsigned long long)info.allocated_bytes);
	return 0;
}

/* ---- Trainers ------------------------------------------------------------------------------------------ */

static int start_trainer(uint32_t rank)
{
	const pid_t parent = getpid();

	(void)fflush(NULL);
	pids[rank] = fork();
	if (pids[rank] == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		exit(getppid() == parent ? stress_trainer_main(&stress, rank) : 1);
	}
	if (pids[rank] < 0) {
		pids[rank] = 0;
		return stress_fail(&stress, rank, ZEROD_E_SYSTEM, "fork: %s", strerror(errno));
	}
	return 0;
}

/* One that was killed is started again; another end than in order is a failure. */
static void take_end(uint32_t rank, int wait_status)
{
	pids[rank] = 0;
	if (killed[rank] && WIFSIGNALED(wait_status)) {
		killed[rank] = false;
		(void)start_trainer(rank);
		return;
	}
	if (WIFSIGNALED(wait_status))
		(void)stress_fail(&stress, rank, ZEROD_E_SYSTEM, "ended by signal %d (%s)",
		                  WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
	else if (WEXITSTATUS(wait_status))
		(void)stress_fail(&stress, rank, ZEROD_E_SYSTEM, "exit code %d", WEXITSTATUS(wait_status));
}

static bool collect(void)
{
	bool any = false;

	for (uint32_t i = 0; i < stress.options.ranks; i++) {
		int wait_status;

		if (pids[i] && waitpid(pids[i], &wait_status, WNOHANG) == pids[i])
			take_end(i, wait_status);
		any |= pids[i] != 0;
	}
	return any;
}

/* Starting again takes seconds on GPUs: mostly, the ranks get some rounds done in between. */
static bool may_kill(uint64_t *random)
{
	static uint64_t rounds_then;
	const uint64_t rounds = atomic_load(&stress.shared->counts.rounds);

	if (stress_random(random) % KILL_MEAN_TICKS)
		return false;
	if (rounds < rounds_then + 4ull * stress.options.ranks && stress_random(random) % KILL_ANYWAY)
		return false;
	rounds_then = rounds;
	return true;
}

static void kill_one(uint64_t *random)
{
	const uint32_t rank = (uint32_t)(stress_random(random) % stress.options.ranks);

	if (!pids[rank] || killed[rank])
		return;
	killed[rank] = true;
	atomic_fetch_add(&stress.shared->counts.kills, 1);
	(void)kill(pids[rank], SIGKILL);
}

static void print_counts(const char *when)
{
	const struct stress_counts *c = &stress.shared->counts;

	printf("%s: %llu rounds, %llu gathers, %.3f GB compared, %llu stale, %llu publishes", when,
	       (unsigned long long)c->rounds, (unsigned long long)c->gathers, (double)c->compared_bytes / 1e9,
	       (unsigned long long)c->stale, (unsigned long long)c->publishes);
	if (stress.options.kill)
		printf("; %llu killed, %llu set back, %.3f GB left out of account",
		       (unsigned long long)c->kills, (unsigned long long)c->set_backs,
		       (double)c->dropped_bytes / 1e9);
	printf("; %llu words wrong\n", (unsigned long long)c->wrong_words);
	(void)fflush(stdout);
}

static uint64_t tick(void)
{
	(void)nanosleep(&(const struct timespec){.tv_nsec = TICK_NS}, NULL);
	return zd_bench_now_ns();
}

static bool goes_on(bool any, uint64_t now_ns, uint64_t deadline_ns)
{
	return any && now_ns < deadline_ns && !atomic_load(&stress.shared->failed);
}

/* Until the time is over, which begins with the first round, or something has failed; then until all have
 * ended. */
static void run(void)
{
	uint64_t random = stress.options.seed, now_ns = zd_bench_now_ns(), end_ns = now_ns, print_ns;
	bool any = true;

	for (uint32_t i = 0; i < stress.options.ranks; i++)
		(void)start_trainer(i);
	while (goes_on(any, now_ns, end_ns + END_DEADLINE_NS) && atomic_load(&stress.shared->round) == 0) {
		now_ns = tick();
		any = collect();
	}
	end_ns = now_ns + stress.options.seconds * 1000000000ull;
	print_ns = now_ns + PRINT_NS;
	while (goes_on(any, now_ns, end_ns + END_DEADLINE_NS)) {
		now_ns = tick();
		if (now_ns >= end_ns)
			stress_end_rounds(&stress);
		else if (stress.options.kill && may_kill(&random))
			kill_one(&random);
		any = collect();
		if (now_ns >= print_ns && now_ns < end_ns) {
			print_counts("so far");
			print_ns += PRINT_NS;
		}
	}
	if (any && !atomic_load(&stress.shared->failed))
		(void)stress_fail(&stress, 0, ZEROD_E_DEADLINE, "trainers do not end");
	for (uint32_t i = 0; i < stress.options.ranks; i++)
		if (pids[i]) {
			(void)kill(pids[i], SIGKILL);
			(void)waitpid(pids[i], NULL, 0);
		}
}

/* ---- All of it ----------------------------------------------------------------------------------------- */

static void print_head(void)
{
	const struct stress_options *o = &stress.options;
	uint64_t total = 0;

	for (uint32_t i = 0; i < o->units; i++)
		total += stress.units[i].padded_bytes;
	printf("stress: %u ranks on %u GPUs, %u units of 1 element to %llu bytes (%.3f GB), arena %.1f GB, "
	       "seed %llu, %u s",
	       o->ranks, o->devices, o->units, (unsigned long long)o->max_bytes, (double)total / 1e9,
	       (double)o->arena_bytes / 1e9, (unsigned long long)o->seed, o->seconds);
	if (o->load_side)
		printf(", products of %u", o->load_side);
	printf("%s%s\n", o->strict ? ", strict" : "", o->kill ? ", trainers are killed" : "");
	(void)fflush(stdout);
}

static int run_stress(struct zd_err *err)
{
	struct zd_daemon node;
	int status;

	if (start_daemon(&node))
		return zd_err_set(err, ZEROD_E_CONNECT, "the daemon did not start");
	stress.socket_path = node.socket_path;
	status = each_device(learn_name, err);
	if (!status) {
		run();
		print_counts("in all");
	}
	if (!status && atomic_load(&stress.shared->failed))
		status = zd_err_set(err, ZEROD_E_STATE, "%s", stress.shared->failure);
	if (!status && stress.shared->counts.wrong_words)
		status = zd_err_set(err, ZEROD_E_DEVICE, "wrong: %s", stress.shared->mismatch);
	if (!status && stress.shared->counts.compared_bytes == 0)
		status = zd_err_set(err, ZEROD_E_STATE, "nothing was compared");
	if (!status && !stress.options.kill) /* a durable group's shards stay */
		status = each_device(expect_nothing, err);
	if (zd_daemon_stop(&node) && !status)
		status = zd_err_set(err, ZEROD_E_STATE, "the daemon did not end in order");
	return status;
}

int main(int argc, char **argv)
{
	const struct argp argp = {.options = argp_options, .parser = parse_option};
	struct zd_err err = ZD_ERR_NONE;
	int status;

	stress.options = (struct stress_options){.seconds = 30, .units = 48, .seed = (uint64_t)time(NULL)};
	argp_parse(&argp, argc, argv, 0, NULL, NULL);
	stress.shared = zd_shared_new(sizeof(*stress.shared), &err);
	status = stress.shared ? set_defaults(&err) : ZEROD_E_SYSTEM;
	if (!status) {
		stress_plan_units(&stress);
		print_head();
		status = run_stress(&err);
	}
	printf("%s%s%s\n", status ? "FAILED: " : "PASSED", status ? err.text : "", "");
	return status ? 1 : 0;
}
