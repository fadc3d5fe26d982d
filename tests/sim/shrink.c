/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shrink.c - the smallest program that still fails in the same way.
 *
 * Each try runs the seed in a child with some operations left out; it counts when the first line that it
 * prints is the same but for numbers. A program without mistakes would make mistakes if single operations
 * went: there whole classes go (a unit, a job, all prefetches, what one rank gathers). Noisy ones lose runs
 * of operations, halved as long as that helps.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "sim.h"

#define LINE_BYTES 256

struct shrink {
	uint64_t seed;
	time_t end;
	char wanted[LINE_BYTES];
	struct zd_sim_config config;
	struct zd_sim_program program;
	bool removed[ZD_SIM_OPS], tried[ZD_SIM_OPS];
};

/* Runs the seed in a child; the first line of what it says, without digits. "": it did not fail. */
static void try_run(uint64_t seed, const bool *removed, char line[LINE_BYTES])
{
	struct zd_sim_stats stats = {0};
	size_t used = 0, kept = 0;
	char text[LINE_BYTES];
	int ends[2], status;
	ssize_t n;

	line[0] = '\0';
	if (pipe(ends) != 0)
		return;
	pid_t child = fork();
	if (child == 0) {
		(void)dup2(ends[1], STDOUT_FILENO);
		(void)dup2(ends[1], STDERR_FILENO);
		(void)close(ends[0]);
		(void)close(ends[1]);
		zd_sim_run(seed, false, removed, &stats);
		_exit(0);
	}
	(void)close(ends[1]);
	while ((n = read(ends[0], text + used, sizeof(text) - used)) > 0)
		used = (size_t)n + used < sizeof(text) ? (size_t)n + used : 0; /* only the beginning counts */
	(void)close(ends[0]);
	if (child < 0 || waitpid(child, &status, 0) != child || status == 0)
		return;
	for (size_t i = 0; i < used && text[i] != '\n' && kept + 1 < LINE_BYTES; i++) {
		if (!isdigit((unsigned char)text[i]))
			line[kept++] = text[i];
	}
	if (kept == 0)
		line[kept++] = '?';
	line[kept] = '\0';
}

/* Leaves tried[] out if it fails all the same. */
static bool keep_if_failing(struct shrink *shrink)
{
	char line[LINE_BYTES];

	if (time(NULL) >= shrink->end)
		return false;
	try_run(shrink->seed, shrink->tried, line);
	if (strcmp(line, shrink->wanted) != 0)
		return false;
	memcpy(shrink->removed, shrink->tried, sizeof(shrink->removed));
	return true;
}

static void shrink_runs(struct shrink *shrink)
{
	uint32_t nops = shrink->program.nops;

	for (uint32_t run = nops / 2; run > 0; run = run == 1 ? 0 : run / 2) {
		for (uint32_t first = 0; first < nops && time(NULL) < shrink->end; first += run) {
			bool any = false;
			memcpy(shrink->tried, shrink->removed, sizeof(shrink->tried));
			for (uint32_t i = first; i < first + run && i < nops; i++) {
				any = any || !shrink->tried[i];
				shrink->tried[i] = true;
			}
			if (any)
				(void)keep_if_failing(shrink);
		}
	}
}

/* ---- Programs without mistakes ------------------------------------------------------------------------- */

enum class { CLASS_JOB, CLASS_UNIT, CLASS_KIND, CLASS_GATHERS, CLASS_COUNT };

static bool gathers(const struct zd_sim_op *op)
{
	return op->kind == ZD_SIM_GATHER || op->kind == ZD_SIM_PREFETCH || op->kind == ZD_SIM_USE ||
	       op->kind == ZD_SIM_RELEASE;
}

static bool of_unit(const struct zd_sim_op *op)
{
	return gathers(op) || op->kind == ZD_SIM_REGISTER || op->kind == ZD_SIM_UNREGISTER ||
	       op->kind == ZD_SIM_UPDATE_BEGIN || op->kind == ZD_SIM_PUBLISH || op->kind == ZD_SIM_RESERVE ||
	       op->kind == ZD_SIM_BUCKET_SUBMIT || op->kind == ZD_SIM_SKIP ||
	       op->kind == ZD_SIM_REDUCE_WAIT || op->kind == ZD_SIM_TARGET_RETURN ||
	       op->kind == ZD_SIM_SET_PERSISTENT;
}

static bool optional(const struct zd_sim_op *op)
{
	return op->kind == ZD_SIM_PREFETCH || op->kind == ZD_SIM_USE || op->kind == ZD_SIM_SET_PERSISTENT ||
	       op->kind == ZD_SIM_REDUCE_WAIT || op->kind == ZD_SIM_TARGET_RETURN;
}

/* Does `op` go when `like`'s class goes. */
static bool same_class(const struct zd_sim_config *config, enum class class, const struct zd_sim_op *like,
                       const struct zd_sim_op *op)
{
	switch (class) {
	case CLASS_JOB:
		return config->actors[like->actor].job == config->actors[op->actor].job;
	case CLASS_UNIT:
		return of_unit(like) && of_unit(op) && like->group == op->group && like->unit == op->unit;
	case CLASS_KIND:
		return (optional(like) && like->kind == op->kind) ||
		       ((like->kind == ZD_SIM_ALLOC || like->kind == ZD_SIM_FREE) &&
		        (op->kind == ZD_SIM_ALLOC || op->kind == ZD_SIM_FREE));
	default:
		return gathers(like) && gathers(op) && like->actor == op->actor && like->group == op->group &&
		       like->unit == op->unit;
	}
}

static void shrink_classes(struct shrink *shrink)
{
	const struct zd_sim_op *ops = shrink->program.ops;

	for (enum class class = CLASS_JOB; class < CLASS_COUNT; class ++) {
		for (uint32_t like = 0; like < shrink->program.nops && time(NULL) < shrink->end; like++) {
			bool first = !shrink->removed[like];

			for (uint32_t i = 0; i < like && first; i++)
				first = !same_class(&shrink->config, class, &ops[like], &ops[i]);
			if (!first || !same_class(&shrink->config, class, &ops[like], &ops[like]))
				continue;
			memcpy(shrink->tried, shrink->removed, sizeof(shrink->tried));
			for (uint32_t i = 0; i < shrink->program.nops; i++)
				shrink->tried[i] = shrink->tried[i] ||
				                   same_class(&shrink->config, class, &ops[like], &ops[i]);
			(void)keep_if_failing(shrink);
		}
	}
}

void zd_sim_shrink(uint64_t seed, uint32_t seconds)
{
	struct shrink *shrink = zd_calloc(1, sizeof(*shrink));
	uint32_t left = 0;

	shrink->seed = seed;
	shrink->end = time(NULL) + seconds;
	zd_sim_config_derive(seed, &shrink->config);
	zd_sim_program_generate(&shrink->config, &shrink->program);
	try_run(seed, NULL, shrink->wanted);
	if (shrink->wanted[0] && seconds) {
		if (shrink->config.clean)
			shrink_classes(shrink);
		else
			shrink_runs(shrink);
	}
	for (uint32_t i = 0; i < shrink->program.nops; i++)
		left += !shrink->removed[i];
	zd_sim_config_print(&shrink->config);
	printf("  %u of %u operations are enough:\n", left, shrink->program.nops);
	zd_sim_program_print(&shrink->config, &shrink->program, shrink->removed);
	if (!shrink->wanted[0])
		printf("  the seed does not fail when it is run again\n");
	(void)fflush(stdout);
	free(shrink);
}
