/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - zdsim: many seeds, each a random node with random trainers, against the core.
 *
 * Seeds run in child processes, so that a failed assertion of the core is a failed seed and not the end: the
 * parent knows from shared memory which seed it was, prints a shrunk program, and goes on behind it.
 */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim.h"

#define MAX_JOBS         64
#define SEED_CPU_SECONDS 120 /* a seed takes milliseconds; more than this is an endless loop */

struct options {
	uint64_t seeds, first, jobs, max_failures, shrink_seconds;
	bool verbose, inline_run;
};

/* A worker's progress, in memory that outlives it. */
struct worker {
	pid_t pid; /* 0: done */
	uint64_t seed, runs;
	struct zd_sim_stats stats;
};

static uint64_t parse_number(struct argp_state *state, const char *text)
{
	char *end;
	uint64_t value = strtoull(text, &end, 10);

	if (!*text || *end)
		argp_error(state, "'%s' is no number", text);
	return value;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct options *options = state->input;

	switch (key) {
	case 'n':
		options->seeds = parse_number(state, arg);
		return 0;
	case 'f':
		options->first = parse_number(state, arg);
		return 0;
	case 's':
		options->first = parse_number(state, arg);
		options->seeds = 1;
		return 0;
	case 'j':
		options->jobs = parse_number(state, arg);
		if (options->jobs < 1 || options->jobs > MAX_JOBS)
			argp_error(state, "--jobs: 1 to %d", MAX_JOBS);
		return 0;
	case 'm':
		options->max_failures = parse_number(state, arg);
		return 0;
	case 't':
		options->shrink_seconds = parse_number(state, arg);
		return 0;
	case 'i':
		options->inline_run = true;
		return 0;
	case 'v':
		options->verbose = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option argp_options[] = {
        {"seeds", 'n', "N", 0, "how many seeds (100)", 0},
        {"first", 'f', "S", 0, "the first one (1)", 0},
        {"seed", 's', "S", 0, "only this one", 0},
        {"jobs", 'j', "N", 0, "processes at once (one a processor)", 0},
        {"max-failures", 'm', "N", 0, "give up after so many (10)", 0},
        {"shrink", 't', "SECONDS", 0, "time for shrinking one failure (20)", 0},
        {"inline", 'i', NULL, 0, "in this process, for a debugger", 0},
        {"verbose", 'v', NULL, 0, "print programs, requests and replies", 0},
        {0},
};

/* Runs the worker's seeds: every `stride`-th one from `seed` on. */
static void work(const struct options *options, struct worker *worker, uint64_t seed, uint64_t stride)
{
	for (; seed < options->first + options->seeds; seed += stride) {
		struct itimerval limit = {.it_value = {.tv_sec = SEED_CPU_SECONDS}};
		worker->seed = seed;
		(void)setitimer(ITIMER_VIRTUAL, &limit, NULL);
		zd_sim_run(seed, options->verbose, NULL, &worker->stats);
		worker->runs++;
	}
}

static void start_worker(const struct options *options, struct worker *worker, uint64_t seed)
{
	if (seed >= options->first + options->seeds) {
		worker->pid = 0;
		return;
	}
	(void)fflush(stdout);
	worker->seed = seed;
	pid_t pid = fork();
	if (pid == 0) {
		work(options, worker, seed, options->jobs);
		exit(0); /* not _exit: the leak sanitizer reports now */
	}
	worker->pid = pid;
	if (pid < 0) {
		perror("fork");
		exit(2);
	}
}

static void report(const struct options *options, const struct worker *worker, int status)
{
	if (WIFSIGNALED(status))
		printf("FAILED seed %llu: signal %d (%s)\n", (unsigned long long)worker->seed,
		       WTERMSIG(status), strsignal(WTERMSIG(status)));
	else
		printf("FAILED seed %llu\n", (unsigned long long)worker->seed);
	zd_sim_shrink(worker->seed, (uint32_t)options->shrink_seconds);
}

static uint64_t run_all(const struct options *options, struct worker *workers)
{
	uint64_t failures = 0;
	int status;
	pid_t pid;

	for (uint64_t w = 0; w < options->jobs; w++)
		start_worker(options, &workers[w], options->first + w);
	while ((pid = wait(&status)) > 0) {
		struct worker *worker = workers;
		while (worker->pid != pid)
			worker++;
		worker->pid = 0;
		if (status == 0)
			continue;
		report(options, worker, status);
		if (++failures >= options->max_failures) {
			printf("gave up after %llu failures\n", (unsigned long long)failures);
			for (uint64_t w = 0; w < options->jobs; w++) {
				if (workers[w].pid)
					(void)kill(workers[w].pid, SIGKILL);
			}
			return failures;
		}
		start_worker(options, worker, worker->seed + options->jobs);
	}
	return failures;
}

int main(int argc, char **argv)
{
	static const struct argp argp = {argp_options, parse, NULL, "Random programs against zerod's core.",
	                                 NULL,         NULL,  NULL};
	long processors = sysconf(_SC_NPROCESSORS_ONLN);
	struct options options = {.seeds = 100, .first = 1, .max_failures = 10, .shrink_seconds = 20};
	struct zd_sim_stats sum = {0};
	uint64_t failures = 0, runs = 0;

	options.jobs = processors < 1 ? 1 : processors > MAX_JOBS ? MAX_JOBS : (uint64_t)processors;
	if (argp_parse(&argp, argc, argv, 0, NULL, &options) != 0)
		return 2;
	struct worker *workers = mmap(NULL, MAX_JOBS * sizeof(*workers), PROT_READ | PROT_WRITE,
	                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (workers == MAP_FAILED) {
		perror("mmap");
		return 2;
	}
	if (options.inline_run)
		work(&options, &workers[0], options.first, 1);
	else
		failures = run_all(&options, workers);
	for (uint32_t w = 0; w < MAX_JOBS; w++) {
		runs += workers[w].runs;
		sum.requests += workers[w].stats.requests;
		sum.ops += workers[w].stats.ops;
		sum.gathers_checked += workers[w].stats.gathers_checked;
		sum.reductions_checked += workers[w].stats.reductions_checked;
		sum.loans_checked += workers[w].stats.loans_checked;
		sum.terms_checked += workers[w].stats.terms_checked;
		sum.restores += workers[w].stats.restores;
		sum.resumed += workers[w].stats.resumed;
		sum.end_steps += workers[w].stats.end_steps;
		sum.moves += workers[w].stats.moves;
		sum.in_place += workers[w].stats.in_place;
	}
	runs += failures;
	printf("%llu seeds, %llu failures, %llu requests, %llu ops, %llu gathered parts, %llu gathers in "
	       "place, %llu targets"
	       ", %llu lent places and %llu terms compared, %llu engines restored, %llu units resumed, %llu "
	       "moved, %llu "
	       "further steps of ends\n",
	       (unsigned long long)runs, (unsigned long long)failures, (unsigned long long)sum.requests,
	       (unsigned long long)sum.ops, (unsigned long long)sum.gathers_checked,
	       (unsigned long long)sum.in_place, (unsigned long long)sum.reductions_checked,
	       (unsigned long long)sum.loans_checked, (unsigned long long)sum.terms_checked,
	       (unsigned long long)sum.restores, (unsigned long long)sum.resumed,
	       (unsigned long long)sum.moves, (unsigned long long)sum.end_steps);
	return failures ? 1 : 0;
}
