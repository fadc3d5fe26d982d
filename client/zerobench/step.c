// SPDX-License-Identifier: Apache-2.0
/*
 * step.c - see step.h.
 *
 * Requests are corked as a framework corks them: the gather of a unit goes with the release of the one before
 * it, and in the backward with that one's gradient and with the next reservation. Calls are timed one by one,
 * by the wall clock and by the thread's CPU time; the difference is time in which the call blocked.
 */
#include "client/zerobench/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "client/internal.h"

#define LONGEST_NS      100000.0
#define BLOCKED_PERCENT 2.0
#define PACKETS_A_UNIT  2.0
#define CPU_US_A_UNIT   60.0
#define LOSS_PERCENT    1.0 /* one rank alone */

struct steps {
	const struct zd_member *member;
	const struct zd_bench *bench;
	const struct zd_rank *rank;
	zerod_stream *stream;
	const struct zd_step_work *work;
	uint32_t count;
	uint64_t unit_bytes; /* of a gradient */
	zerod_unit **units;
	zerod_bucket *bucket;
	zerod_ticket backward_ended, published;
	/* Of the step under way: */
	bool counts; /* between the first gather and the end of backward_end */
	uint64_t called_ns, called_cpu_ns;
	uint64_t longest_ns, blocked_ns, cpu_ns, packets;
	const char *longest;
};

/* ---- Timed calls --------------------------------------------------------------------------------------- */

static uint64_t cpu_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct steps *call_begin(struct steps *steps)
{
	steps->called_cpu_ns = cpu_now_ns();
	steps->called_ns = zd_bench_now_ns();
	return steps;
}

static int call_end(struct steps *steps, int status, const char *name)
{
	const uint64_t wall_ns = zd_bench_now_ns() - steps->called_ns;
	const uint64_t cpu_ns = cpu_now_ns() - steps->called_cpu_ns;
	steps->cpu_ns += cpu_ns;
	if (steps->counts) {
		steps->blocked_ns += wall_ns > cpu_ns ? wall_ns - cpu_ns : 0;
		if (wall_ns > steps->longest_ns) {
			steps->longest_ns = wall_ns;
			steps->longest = name;
		}
	}
	return zd_member_check(steps->member, status, steps->rank->client, name);
}

/* Times the call; `status` becomes its status, as zd_member_check() returns it. */
#define CALL(status, steps, function, ...)                                                                   \
	do {                                                                                                 \
		if (!(status)) {                                                                             \
			call_begin(steps);                                                                   \
			(status) = call_end(steps, function(__VA_ARGS__), #function);                        \
		}                                                                                            \
	} while (0)

/* ---- A step -------------------------------------------------------------------------------------------- */

static int gather(struct steps *steps, uint32_t unit, zerod_ticket *ticket)
{
	int status = 0;
	CALL(status, steps, zerod_gather_begin, steps->units[unit], NULL, ticket);
	return status;
}

static int release(struct steps *steps, uint32_t unit)
{
	struct zerod_release_options options = ZEROD_INIT(options);
	int status = 0;
	options.flags = ZEROD_RELEASE_DETACHED;
	CALL(status, steps, zerod_release, steps->units[unit], &steps->stream, 1, &options, NULL);
	return status;
}

static int forward(struct steps *steps)
{
	int status = 0;
	for (uint32_t i = 0; i < steps->count && !status; i++) {
		zerod_ticket ticket;
		void *data;
		zerod_cork(steps->rank->client);
		if (i > 0)
			status = release(steps, i - 1);
		if (!status)
			status = gather(steps, i, &ticket);
		CALL(status, steps, zerod_uncork, steps->rank->client);
		CALL(status, steps, zerod_wait, steps->rank->client, ticket, steps->stream, &data);
		if (!status)
			status = steps->work->compute(steps->work->arg, 1);
	}
	return status ? status : release(steps, steps->count - 1);
}

static int commit(struct steps *steps, const struct zerod_entry *entry)
{
	struct zerod_reduce_options options = ZEROD_INIT(options);
	int status = 0;
	options.flags = ZEROD_REDUCE_DETACHED;
	CALL(status, steps, zerod_bucket_submit, steps->bucket, entry->id, &steps->stream, 1, &options, NULL);
	return status;
}

/* The gradient of the unit behind it is committed with the unit's gather; both go with the reservation. */
static int backward_unit(struct steps *steps, uint32_t unit, struct zerod_entry *entry)
{
	struct zerod_reserve_options options = ZEROD_INIT(options);
	const bool first = unit == steps->count - 1;
	zerod_ticket ticket;
	void *data;
	int status = 0;
	options.stream = steps->stream;
	zerod_cork(steps->rank->client);
	if (!first)
		status = commit(steps, entry);
	if (!first && !status)
		status = release(steps, unit + 1);
	if (!status)
		status = gather(steps, unit, &ticket);
	CALL(status, steps, zerod_bucket_reserve, steps->bucket, steps->units[unit], &options, entry);
	CALL(status, steps, zerod_uncork, steps->rank->client);
	CALL(status, steps, zerod_wait, steps->rank->client, ticket, steps->stream, &data);
	if (!status)
		status = steps->work->compute(steps->work->arg, 2);
	return status ? status : steps->work->write(steps->work->arg, entry->data, steps->unit_bytes);
}

static int backward(struct steps *steps)
{
	struct zerod_entry entry = ZEROD_INIT(entry);
	int status = 0;
	CALL(status, steps, zerod_backward_begin, steps->rank->group, NULL);
	for (uint32_t i = steps->count; i-- > 0 && !status;)
		status = backward_unit(steps, i, &entry);
	zerod_cork(steps->rank->client);
	if (!status)
		status = commit(steps, &entry);
	if (!status)
		status = release(steps, 0);
	CALL(status, steps, zerod_backward_end, steps->rank->group, NULL, &steps->backward_ended);
	CALL(status, steps, zerod_uncork, steps->rank->client);
	return status;
}

static int update(struct steps *steps)
{
	zerod_client *client = steps->rank->client;
	zerod_ticket begun, granted;
	int status = 0;
	CALL(status, steps, zerod_step_begin, steps->rank->group, NULL, NULL, &begun);
	CALL(status, steps, zerod_wait, client, begun, steps->stream, NULL);
	/* Behind the step: other ranks' gathers ask for the version of an update that has begun. */
	CALL(status, steps, zerod_update_begin, steps->units, steps->count, NULL, &granted);
	CALL(status, steps, zerod_wait, client, granted, steps->stream, NULL);
	if (!status)
		status = steps->work->compute(steps->work->arg, 1);
	CALL(status, steps, zerod_publish, steps->units, steps->count, &steps->stream, 1, NULL,
	     &steps->published);
	CALL(status, steps, zerod_step_end, steps->rank->group, &steps->stream, 1, NULL);
	return status;
}

/* The answers that no one has needed in the step. */
static int collect(struct steps *steps)
{
	int status = zd_member_check(steps->member,
	                             zerod_wait(steps->rank->client, steps->backward_ended, NULL, NULL),
	                             steps->rank->client, "zerod_backward_end");
	return status ? status
	              : zd_member_check(steps->member,
	                                zerod_wait(steps->rank->client, steps->published, NULL, NULL),
	                                steps->rank->client, "zerod_publish");
}

static int step(struct steps *steps)
{
	const uint64_t packets = zc_packets_sent(steps->rank->client);
	steps->longest_ns = steps->blocked_ns = steps->cpu_ns = 0;
	steps->counts = true;
	int status = forward(steps);
	if (!status)
		status = backward(steps);
	steps->counts = false;
	steps->packets = zc_packets_sent(steps->rank->client) - packets;
	return status ? status : update(steps);
}

/* The same work. */
static int plain_step(struct steps *steps)
{
	const struct zd_step_work *work = steps->work;
	int status = 0;
	for (uint32_t i = 0; i < steps->count && !status; i++)
		status = work->compute(work->arg, 1);
	for (uint32_t i = 0; i < steps->count && !status; i++) {
		status = work->compute(work->arg, 2);
		if (!status)
			status = work->write(work->arg, NULL, steps->unit_bytes);
	}
	return status ? status : work->compute(work->arg, 1);
}

/* ---- Rounds -------------------------------------------------------------------------------------------- */

static int zerod_round(struct steps *steps, uint64_t *device_ns)
{
	int status = step(steps); /* the device is behind by this one */
	if (!status)
		status = steps->work->mark(steps->work->arg);
	if (!status)
		status = step(steps);
	if (!status)
		status = steps->work->measure(steps->work->arg, device_ns);
	return status ? status : collect(steps);
}

static int plain_round(struct steps *steps, uint64_t *device_ns)
{
	int status = plain_step(steps);
	if (!status)
		status = steps->work->mark(steps->work->arg);
	if (!status)
		status = plain_step(steps);
	return status ? status : steps->work->measure(steps->work->arg, device_ns);
}

static void note(const struct steps *steps, uint32_t round, const uint64_t device_ns[2],
                 struct zd_step_samples *samples)
{
	const unsigned rank = steps->member->index;
	const uint64_t values[ZD_STEP_NFIGURES] = {
	        [ZD_STEP_DEVICE] = device_ns[0],       [ZD_STEP_LONGEST] = steps->longest_ns,
	        [ZD_STEP_BLOCKED] = steps->blocked_ns, [ZD_STEP_CPU] = steps->cpu_ns,
	        [ZD_STEP_PACKETS] = steps->packets,    [ZD_STEP_PLAIN_DEVICE] = device_ns[1],
	};
	for (unsigned i = 0; i < ZD_STEP_NFIGURES; i++)
		samples->values[i][rank][round % ZD_STEP_ROUNDS] = values[i];
	if (steps->longest_ns > samples->longest_ns[rank]) {
		samples->longest_ns[rank] = steps->longest_ns;
		snprintf(samples->longest_call[rank], sizeof(samples->longest_call[rank]), "%s",
		         steps->longest);
	}
}

static int rounds(struct steps *steps, struct zd_step_samples *samples)
{
	const struct zd_bench_options *options = &steps->bench->options;
	int status = 0;
	for (uint32_t i = 0; i < options->warmup + options->iters && !status; i++) {
		uint64_t device_ns[2];
		zd_member_barrier(steps->member);
		status = zerod_round(steps, &device_ns[0]);
		if (!status)
			zd_member_barrier(steps->member);
		if (!status)
			status = plain_round(steps, &device_ns[1]);
		if (!status && i >= options->warmup)
			note(steps, i - options->warmup, device_ns, samples);
	}
	return status;
}

/* ---- Beginning and end --------------------------------------------------------------------------------- */

static int make_units(struct steps *steps)
{
	const struct zd_bench_options *options = &steps->bench->options;
	int status = 0;
	for (uint32_t i = 0; i < steps->count && !status; i++) {
		struct zerod_unit_options unit = ZEROD_INIT(unit);
		char name[32];
		snprintf(name, sizeof(name), "step%u", i);
		unit.name = name;
		unit.dtype = options->dtype;
		unit.numel = zd_max_u64(options->max_bytes / zerod_dtype_bytes(options->dtype), 1);
		steps->unit_bytes = unit.numel * zerod_dtype_bytes(options->dtype);
		status = zd_member_check(steps->member,
		                         zerod_unit_register(steps->rank->group, &unit, &steps->units[i]),
		                         steps->rank->client, "zerod_unit_register");
	}
	return status ? status : zd_rank_publish(steps->member, steps->rank, steps->units, steps->count);
}

static int make_bucket(struct steps *steps)
{
	struct zerod_bucket_options options = ZEROD_INIT(options);
	options.dtype = steps->bench->options.dtype;
	options.slot_bytes = steps->unit_bytes + ZD_BENCH_MAX_RANKS * 256ull; /* with its padding */
	options.nslots = 2;
	return zd_member_check(steps->member,
	                       zerod_bucket_create(steps->rank->group, &options, &steps->bucket),
	                       steps->rank->client, "zerod_bucket_create");
}

int zd_step_rank(const struct zd_member *member, const struct zd_bench *bench, const struct zd_rank *rank,
                 zerod_stream *stream, const struct zd_step_work *work, struct zd_step_samples *samples)
{
	struct steps steps = {.member = member,
	                      .bench = bench,
	                      .rank = rank,
	                      .stream = stream,
	                      .work = work,
	                      .count = bench->options.units,
	                      .units = zd_calloc(bench->options.units, sizeof(zerod_unit *))};
	int status = make_units(&steps);
	if (!status)
		status = make_bucket(&steps);
	if (!status)
		status = rounds(&steps, samples);
	zd_member_barrier(member); /* a rank that leaves sooner is a lost peer to the others */
	free(steps.units);
	return status;
}

uint64_t zd_step_arena_bytes(const struct zd_bench *bench)
{
	const struct zd_bench_options *options = &bench->options;
	const uint64_t all = options->units * options->max_bytes;
	/* Shards, float32 targets of any dtype, two slots of a bucket, gathered copies, staging. */
	return 4 * all / options->ranks + 12 * options->max_bytes + all;
}

/* ---- Report -------------------------------------------------------------------------------------------- */

/* Over ranks and rounds. */
static void stats_of(const struct zd_bench *bench, struct zd_step_samples *samples,
                     enum zd_step_figure figure, struct zd_stats *stats)
{
	const struct zd_bench_options *options = &bench->options;
	const uint32_t each = (uint32_t)zd_min_u64(options->iters, ZD_STEP_ROUNDS);
	uint64_t *all = zd_calloc((size_t)each * options->ranks, sizeof(*all));
	for (uint32_t rank = 0; rank < options->ranks; rank++)
		memcpy(all + (size_t)rank * each, samples->values[figure][rank], each * sizeof(*all));
	zd_stats_of(all, (size_t)each * options->ranks, stats);
	free(all);
}

static void figure(const struct zd_bench *bench, const char *what, const struct zd_stats *stats, double scale,
                   const char *unit)
{
	char text[96];
	snprintf(text, sizeof(text), "%s, median", what);
	zd_report_figure(bench, text, (double)stats->p50 / scale, unit);
	snprintf(text, sizeof(text), "%s, least", what);
	zd_report_figure(bench, text, (double)stats->min / scale, unit);
	snprintf(text, sizeof(text), "%s, most", what);
	zd_report_figure(bench, text, (double)stats->max / scale, unit);
}

void zd_step_report(struct zd_bench *bench, struct zd_step_samples *samples)
{
	const double units = bench->options.units;
	struct zd_stats stats[ZD_STEP_NFIGURES];
	uint32_t slowest = 0;
	for (unsigned i = 0; i < ZD_STEP_NFIGURES; i++)
		stats_of(bench, samples, (enum zd_step_figure)i, &stats[i]);
	for (uint32_t rank = 1; rank < bench->options.ranks; rank++)
		if (samples->longest_ns[rank] > samples->longest_ns[slowest])
			slowest = rank;
	const double device_ns = (double)stats[ZD_STEP_DEVICE].p50;
	const double plain_ns = (double)stats[ZD_STEP_PLAIN_DEVICE].p50;
	const double loss_percent = 100 * (device_ns / plain_ns - 1);
	figure(bench, "step of the device", &stats[ZD_STEP_DEVICE], 1e3, "us");
	figure(bench, "the same work without zerod", &stats[ZD_STEP_PLAIN_DEVICE], 1e3, "us");
	figure(bench, "longest call", &stats[ZD_STEP_LONGEST], 1e3, "us");
	zd_report_note(bench, "the longest call of all", samples->longest_call[slowest]);
	figure(bench, "blocked in calls", &stats[ZD_STEP_BLOCKED], 1e3, "us");
	figure(bench, "library's CPU time a unit", &stats[ZD_STEP_CPU], 1e3 * units, "us");
	figure(bench, "packets a unit", &stats[ZD_STEP_PACKETS], units, "packets");
	zd_report_figure(bench, "device time that zerod takes", loss_percent, "%");
	zd_report_target(bench, "longest call, us", (double)stats[ZD_STEP_LONGEST].p50 / 1e3, true,
	                 LONGEST_NS / 1e3);
	zd_report_target(bench, "blocked, % of the step",
	                 100 * (double)stats[ZD_STEP_BLOCKED].p50 / device_ns, true, BLOCKED_PERCENT);
	zd_report_target(bench, "packets a unit", (double)stats[ZD_STEP_PACKETS].p50 / units, true,
	                 PACKETS_A_UNIT);
	zd_report_target(bench, "library's CPU time a unit, us", (double)stats[ZD_STEP_CPU].p50 / 1e3 / units,
	                 true, CPU_US_A_UNIT);
	if (bench->options.ranks == 1)
		zd_report_target(bench, "device time lost, %", loss_percent, true, LOSS_PERCENT);
}
