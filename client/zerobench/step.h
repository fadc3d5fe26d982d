/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step.h - a synthetic training step, and the share of its time that zerod needs.
 *
 * A step is a forward and a backward over N units and an update, all on one stream. A unit is gathered before
 * its work and released after it, its gradient is reduced, and the update publishes every shard. Two others
 * are measured in turns with it: the same step without its gathers and releases, and the same work without
 * zerod. Before each measured step the work of a whole step is enqueued, so that the CPU is ahead of the
 * device, as under a framework.
 */
#ifndef ZD_BENCH_STEP_H
#define ZD_BENCH_STEP_H

#include "client/zerobench/bench.h"

/* The stream's work between zerod's calls. */
struct zd_step_work {
	void *arg;
	/* Appends `amount` pieces of computing. */
	void (*compute)(void *arg, uint32_t amount);
	/* Appends the writing of `bytes` of a gradient. `to` NULL: into other memory of the work. */
	void (*write)(void *arg, void *to, uint64_t bytes);
	/* Appends a mark of the device's time. measure() waits, and returns the time between the last two. */
	void (*mark)(void *arg);
	uint64_t (*measure)(void *arg);
};

/* The kinds of step that zerobench measures in turns. */
enum zd_step_kind { ZD_STEP_WHOLE, ZD_STEP_NO_GATHERS, ZD_STEP_PLAIN, ZD_STEP_NKINDS };

enum zd_step_phase { ZD_STEP_FORWARD, ZD_STEP_BACKWARD, ZD_STEP_UPDATE, ZD_STEP_NPHASES };

enum zd_step_figure {
	ZD_STEP_DEVICE,                                  /* ns of a step, of each kind */
	ZD_STEP_CPU = ZD_STEP_DEVICE + ZD_STEP_NKINDS,   /* ns of the thread's CPU time in calls, by phase */
	ZD_STEP_PACKETS = ZD_STEP_CPU + ZD_STEP_NPHASES, /* by phase */
	ZD_STEP_LONGEST = ZD_STEP_PACKETS +
	                  ZD_STEP_NPHASES, /* ns of the longest call, forward and backward */
	ZD_STEP_BLOCKED,                   /* ns in which the thread did not run, in all calls */
	ZD_STEP_NFIGURES
};

#define ZD_STEP_MAX_UNITS 512u
#define ZD_STEP_ROUNDS    64u /* recorded at most */

/* In shared memory, for each rank and round. */
struct zd_step_samples {
	uint64_t values[ZD_STEP_NFIGURES][ZD_BENCH_MAX_RANKS][ZD_STEP_ROUNDS];
	char longest_call[ZD_BENCH_MAX_RANKS][32];
	uint64_t longest_ns[ZD_BENCH_MAX_RANKS];
};

/* Makes a rank's steps, all rounds; the work is appended to `stream`. */
void zd_step_rank(const struct zd_bench *bench, const struct zd_rank *rank, zerod_stream *stream,
                  const struct zd_step_work *work, struct zd_step_samples *samples);
/* Prints the figures of all ranks, and the targets. */
void zd_step_report(struct zd_bench *bench, struct zd_step_samples *samples);
/* Returns the bytes of a rank's memory in the daemon for its steps. */
uint64_t zd_step_arena_bytes(const struct zd_bench *bench);

#endif
