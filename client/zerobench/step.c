// SPDX-License-Identifier: Apache-2.0
/*
 * step.c - see step.h.
 *
 * Requests are corked as a framework corks them. A unit is gathered while the work of the previous unit runs,
 * in one packet with the release of the unit before that. In the backward this packet also has a gradient and
 * the next reservation. Calls are timed one by one, by the wall clock and by the thread's CPU time. The
 * difference is the time in which the call blocked.
 */
#include "client/zerobench/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "client/lib/conn/request.h"

#define LONGEST_NS      100000.0
#define BLOCKED_PERCENT 2.0
#define PACKETS_A_UNIT  2.0
#define CPU_US_A_UNIT   60.0
#define GATHERS_PERCENT 1.0 /* one rank alone */

#define STEPS_A_ROUND 3u /* the first is not measured */

struct steps {
	const struct zd_bench *bench;
	const struct zd_rank *rank;
	zerod_stream *stream;
	const struct zd_step_work *work;
	uint32_t count;
	uint64_t unit_bytes; /* of a gradient */
	zerod_unit **units;
	zerod_bucket *bucket;
	zerod_ticket *gathers;                   /* by unit, of the pass under way */
	zerod_ticket answers[2 * STEPS_A_ROUND]; /* of backward_end and publish; steps do not wait */
	uint32_t nanswers;
	bool with_gathers;
	/* of the current step: */
	enum zd_step_phase phase;
	uint64_t called_ns, called_cpu_ns;
	uint64_t longest_ns, blocked_ns, cpu_ns[ZD_STEP_NPHASES], packets[ZD_STEP_NPHASES];
	const char *longest;
};

/* ---- Timed calls --------------------------------------------------------------------------------------- */

static uint64_t cpu_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void call_begin(struct steps *steps)
{
	steps->called_cpu_ns = cpu_now_ns();
	steps->called_ns = zd_bench_now_ns();
}

static void call_end(struct steps *steps, int status, const char *name)
{
	const uint64_t wall_ns = zd_bench_now_ns() - steps->called_ns;
	const uint64_t cpu_ns = cpu_now_ns() - steps->called_cpu_ns;
	zd_member_check(steps->rank->member, status, steps->rank->client, name);
	steps->cpu_ns[steps->phase] += cpu_ns;
	if (steps->phase == ZD_STEP_UPDATE)
		return;
	steps->blocked_ns += wall_ns > cpu_ns ? wall_ns - cpu_ns : 0;
	if (wall_ns > steps->longest_ns) {
		steps->longest_ns = wall_ns;
		steps->longest = name;
	}
}

/* Times the call. */
#define CALL(steps, function, ...)                                                                           \
	do {                                                                                                 \
		call_begin(steps);                                                                           \
		call_end(steps, function(__VA_ARGS__), #function);                                           \
	} while (0)

/* ---- A step -------------------------------------------------------------------------------------------- */

static void gather_unit(struct steps *steps, uint32_t unit)
{
	if (steps->with_gathers && unit < steps->count)
		CALL(steps, zerod_gather_begin, steps->units[unit], NULL, &steps->gathers[unit]);
}

static void await(struct steps *steps, uint32_t unit)
{
	void *data;
	if (steps->with_gathers)
		CALL(steps, zerod_wait, steps->rank->client, steps->gathers[unit], steps->stream, &data);
}

static void release_unit(struct steps *steps, uint32_t unit)
{
	struct zerod_release_options options = ZEROD_INIT(options);
	options.flags = ZEROD_RELEASE_DETACHED;
	if (steps->with_gathers && unit < steps->count)
		CALL(steps, zerod_release, steps->units[unit], &steps->stream, 1, &options, NULL);
}

/* Sends one packet: the release of the previous unit (of the first, its gather), and the gather of the
 * next. */
static void run_unit(struct steps *steps, uint32_t unit)
{
	zerod_cork(steps->rank->client);
	if (unit == 0)
		gather_unit(steps, 0);
	else
		release_unit(steps, unit - 1);
	gather_unit(steps, unit + 1);
	CALL(steps, zerod_uncork, steps->rank->client);
}

static void run_forward(struct steps *steps)
{
	steps->phase = ZD_STEP_FORWARD;
	for (uint32_t i = 0; i < steps->count; i++) {
		if (i == 0 || i + 1 < steps->count) /* the last unit has no next one */
			run_unit(steps, i);
		await(steps, i);
		steps->work->compute(steps->work->arg, 1);
	}
}

/* Corks the last releases of the forward, the start of the backward, and the gather of its first unit. */
static void begin_backward(struct steps *steps)
{
	struct zerod_backward_options options = ZEROD_INIT(options);
	options.flags = ZEROD_BACKWARD_DETACHED;
	zerod_cork(steps->rank->client);
	for (uint32_t i = steps->count > 1 ? steps->count - 2 : 0; i < steps->count; i++)
		release_unit(steps, i);
	CALL(steps, zerod_backward_begin, steps->rank->group, &options);
	gather_unit(steps, steps->count - 1);
}

/* The reservation blocks until its reply, and sends the requests that were corked since the last one. */
static void backward_unit(struct steps *steps, uint32_t unit)
{
	struct zerod_reserve_options reserve = ZEROD_INIT(reserve);
	struct zerod_reduce_options reduce = ZEROD_INIT(reduce);
	struct zerod_entry entry = ZEROD_INIT(entry);
	if (unit > 0)
		gather_unit(steps, unit - 1);
	reserve.stream = steps->stream;
	CALL(steps, zerod_bucket_reserve, steps->bucket, steps->units[unit], &reserve, &entry);
	await(steps, unit);
	steps->work->compute(steps->work->arg, 2);
	steps->work->write(steps->work->arg, entry.data, steps->unit_bytes);
	reduce.flags = ZEROD_REDUCE_DETACHED;
	CALL(steps, zerod_bucket_submit, steps->bucket, entry.id, &steps->stream, 1, &reduce, NULL);
	release_unit(steps, unit);
}

static void run_backward(struct steps *steps)
{
	steps->phase = ZD_STEP_BACKWARD;
	begin_backward(steps);
	for (uint32_t i = steps->count; i-- > 0;)
		backward_unit(steps, i);
	CALL(steps, zerod_backward_end, steps->rank->group, NULL, &steps->answers[steps->nanswers]);
	CALL(steps, zerod_uncork, steps->rank->client);
}

static void run_update(struct steps *steps)
{
	zerod_client *client = steps->rank->client;
	zerod_ticket begun, granted;
	steps->phase = ZD_STEP_UPDATE;
	CALL(steps, zerod_step_begin, steps->rank->group, NULL, NULL, &begun);
	CALL(steps, zerod_wait, client, begun, steps->stream, NULL);
	/* After the step: other ranks' gathers are for the version of an update that has begun. */
	CALL(steps, zerod_update_begin, steps->units, steps->count, NULL, &granted);
	CALL(steps, zerod_wait, client, granted, steps->stream, NULL);
	steps->work->compute(steps->work->arg, 1);
	zerod_cork(client);
	CALL(steps, zerod_publish, steps->units, steps->count, &steps->stream, 1, NULL,
	     &steps->answers[steps->nanswers + 1]);
	CALL(steps, zerod_step_end, steps->rank->group, &steps->stream, 1, NULL);
	CALL(steps, zerod_uncork, client);
	steps->nanswers += 2;
}

static uint64_t packets_since(const struct steps *steps, uint64_t *before)
{
	const uint64_t sent = zc_packets_sent(steps->rank->client) - *before;
	*before += sent;
	return sent;
}

static void run_step(struct steps *steps)
{
	uint64_t before = zc_packets_sent(steps->rank->client);
	steps->longest_ns = steps->blocked_ns = 0;
	memset(steps->cpu_ns, 0, sizeof(steps->cpu_ns));
	run_forward(steps);
	steps->packets[ZD_STEP_FORWARD] = packets_since(steps, &before);
	run_backward(steps);
	steps->packets[ZD_STEP_BACKWARD] = packets_since(steps, &before);
	run_update(steps);
	steps->packets[ZD_STEP_UPDATE] = packets_since(steps, &before);
}

/* The same work without zerod. */
static void plain_step(struct steps *steps)
{
	const struct zd_step_work *work = steps->work;
	for (uint32_t i = 0; i < steps->count; i++)
		work->compute(work->arg, 1);
	for (uint32_t i = 0; i < steps->count; i++) {
		work->compute(work->arg, 2);
		work->write(work->arg, NULL, steps->unit_bytes);
	}
	work->compute(work->arg, 1);
}

/* ---- Rounds -------------------------------------------------------------------------------------------- */

/* Waits for the replies that the steps have not needed. */
static void collect_figures(struct steps *steps)
{
	for (uint32_t i = 0; i < steps->nanswers; i++)
		ZD_CALL(steps->rank, zerod_wait, steps->rank->client, steps->answers[i], NULL, NULL);
	steps->nanswers = 0;
}

/* Waits until the sums of the previous step are known, which is how far a trainer can be ahead. Its update
 * has yet to run. */
static void await_sums(const struct steps *steps)
{
	struct zerod_step_info info = ZEROD_INIT(info);
	ZD_CALL(steps->rank, zerod_step_get, steps->rank->group, NULL, &info);
}

static void one_step(struct steps *steps, enum zd_step_kind kind)
{
	steps->with_gathers = kind == ZD_STEP_WHOLE;
	if (kind == ZD_STEP_PLAIN)
		plain_step(steps);
	else
		run_step(steps);
}

static void note(const struct steps *steps, uint32_t round, struct zd_step_samples *samples)
{
	const unsigned rank = steps->rank->member->index;
	for (unsigned i = 0; i < ZD_STEP_NPHASES; i++) {
		samples->values[ZD_STEP_CPU + i][rank][round] = steps->cpu_ns[i];
		samples->values[ZD_STEP_PACKETS + i][rank][round] = steps->packets[i];
	}
	samples->values[ZD_STEP_LONGEST][rank][round] = steps->longest_ns;
	samples->values[ZD_STEP_BLOCKED][rank][round] = steps->blocked_ns;
	if (steps->longest_ns > samples->longest_ns[rank]) {
		samples->longest_ns[rank] = steps->longest_ns;
		snprintf(samples->longest_call[rank], sizeof(samples->longest_call[rank]), "%s",
		         steps->longest);
	}
}

/* Records the calls of the first measured step, which starts when the device is a whole step behind. The
 * device's time is measured over two steps, so that it includes the transition between them. `samples` NULL:
 * a warm-up. */
static void measure_kind(struct steps *steps, enum zd_step_kind kind, uint32_t round,
                         struct zd_step_samples *samples)
{
	const struct zd_step_work *work = steps->work;
	one_step(steps, kind);
	if (kind != ZD_STEP_PLAIN)
		await_sums(steps);
	plain_step(steps);
	work->mark(work->arg);
	one_step(steps, kind);
	if (samples && kind == ZD_STEP_WHOLE)
		note(steps, round, samples);
	one_step(steps, kind);
	const uint64_t device_ns = work->measure(work->arg);
	if (samples)
		samples->values[ZD_STEP_DEVICE + kind][steps->rank->member->index][round] = device_ns / 2;
	collect_figures(steps);
}

static void rounds(struct steps *steps, struct zd_step_samples *samples)
{
	const struct zd_bench_options *options = &steps->bench->options;
	for (uint32_t i = 0; i < options->warmup + options->iters; i++) {
		const bool counts = i >= options->warmup;
		for (unsigned kind = 0; kind < ZD_STEP_NKINDS; kind++) {
			zd_member_barrier(steps->rank->member);
			measure_kind(steps, (enum zd_step_kind)kind,
			             counts ? (i - options->warmup) % ZD_STEP_ROUNDS : 0,
			             counts ? samples : NULL);
		}
	}
}

/* ---- Beginning and end --------------------------------------------------------------------------------- */

static void make_units(struct steps *steps)
{
	struct zerod_unit_options unit = ZEROD_INIT(unit);
	char name[32];
	unit.name = name;
	unit.dtype = steps->bench->options.dtype;
	unit.numel = zd_bench_numel(steps->bench, steps->bench->options.max_bytes);
	steps->unit_bytes = unit.numel * zerod_dtype_bytes(unit.dtype);
	for (uint32_t i = 0; i < steps->count; i++) {
		snprintf(name, sizeof(name), "step%u", i);
		steps->units[i] = zd_rank_register(steps->rank, &unit, NULL);
	}
	zd_rank_publish(steps->rank, steps->units, steps->count);
}

void zd_step_rank(const struct zd_bench *bench, const struct zd_rank *rank, zerod_stream *stream,
                  const struct zd_step_work *work, struct zd_step_samples *samples)
{
	struct steps steps = {.bench = bench,
	                      .rank = rank,
	                      .stream = stream,
	                      .work = work,
	                      .count = bench->options.units,
	                      .units = zd_calloc(bench->options.units, sizeof(zerod_unit *)),
	                      .gathers = zd_calloc(bench->options.units, sizeof(zerod_ticket))};
	make_units(&steps);
	steps.bucket = zd_rank_bucket(rank, bench->options.dtype,
	                              steps.unit_bytes + ZD_BENCH_MAX_RANKS * 256ull, 2); /* with padding */
	rounds(&steps, samples);
	zd_member_barrier(rank->member); /* a rank that leaves earlier would be a lost peer for the others */
	free(steps.units);
	free(steps.gathers);
}

uint64_t zd_step_arena_bytes(const struct zd_bench *bench)
{
	const struct zd_bench_options *options = &bench->options;
	const uint64_t all = options->units * options->max_bytes;
	/* Shards, float32 targets of any dtype, two slots of a bucket, gathered buffers, staging. */
	return 4 * all / options->ranks + 12 * options->max_bytes + all;
}

/* ---- Report -------------------------------------------------------------------------------------------- */

/* The sum of `nfigures` figures, over ranks and rounds. */
static struct zd_stats stats_of(const struct zd_bench *bench, const struct zd_step_samples *samples,
                                unsigned first, unsigned nfigures)
{
	const struct zd_bench_options *options = &bench->options;
	const uint32_t each = (uint32_t)zd_min_u64(options->iters, ZD_STEP_ROUNDS);
	uint64_t *all = zd_calloc((size_t)each * options->ranks, sizeof(*all));
	struct zd_stats stats;
	for (uint32_t rank = 0; rank < options->ranks; rank++) {
		for (uint32_t round = 0; round < each; round++) {
			for (unsigned i = first; i < first + nfigures; i++)
				all[(size_t)rank * each + round] += samples->values[i][rank][round];
		}
	}
	zd_stats_of(all, (size_t)each * options->ranks, &stats);
	free(all);
	return stats;
}

static const char *longest_call(const struct zd_bench *bench, const struct zd_step_samples *samples)
{
	uint32_t slowest = 0;
	for (uint32_t rank = 1; rank < bench->options.ranks; rank++)
		if (samples->longest_ns[rank] > samples->longest_ns[slowest])
			slowest = rank;
	return samples->longest_call[slowest];
}

/* Returns the share of the gathers, in percent. *step_ns: the device's time of a step. */
static double report_device(struct zd_bench *bench, const struct zd_step_samples *samples, double *step_ns)
{
	static const char *const whats[ZD_STEP_NKINDS] = {
	        "step of the device", "the same step without its gathers", "the same work without zerod"};
	double ns[ZD_STEP_NKINDS];
	for (unsigned kind = 0; kind < ZD_STEP_NKINDS; kind++) {
		const struct zd_stats stats = stats_of(bench, samples, ZD_STEP_DEVICE + kind, 1);
		zd_report_stats(bench, &stats, whats[kind], 1e3, "us");
		ns[kind] = (double)stats.p50;
	}
	const double gathers_percent = 100 * (ns[ZD_STEP_WHOLE] / ns[ZD_STEP_NO_GATHERS] - 1);
	zd_report_figure(bench, "device time that gathers take", gathers_percent, "%");
	zd_report_figure(bench, "device time that zerod takes",
	                 100 * (ns[ZD_STEP_WHOLE] / ns[ZD_STEP_PLAIN] - 1), "%");
	zd_report_note(bench, "what zerod takes beside gathers",
	               "sums of gradients into the target, in float32, and fences");
	*step_ns = ns[ZD_STEP_WHOLE];
	return gathers_percent;
}

void zd_step_report(struct zd_bench *bench, struct zd_step_samples *samples)
{
	static const char *const phases[ZD_STEP_NPHASES] = {"forward", "backward", "update"};
	const double units = bench->options.units;
	const struct zd_stats longest = stats_of(bench, samples, ZD_STEP_LONGEST, 1);
	const struct zd_stats blocked = stats_of(bench, samples, ZD_STEP_BLOCKED, 1);
	const struct zd_stats cpu = stats_of(bench, samples, ZD_STEP_CPU, ZD_STEP_NPHASES);
	const struct zd_stats packets = stats_of(bench, samples, ZD_STEP_PACKETS, ZD_STEP_UPDATE);
	double step_ns;
	const double gathers_percent = report_device(bench, samples, &step_ns);
	zd_report_stats(bench, &longest, "longest call", 1e3, "us");
	zd_report_note(bench, "the longest call of all", longest_call(bench, samples));
	zd_report_stats(bench, &blocked, "blocked in calls", 1e3, "us");
	zd_report_stats(bench, &cpu, "library's CPU time a unit", 1e3 * units, "us");
	for (unsigned phase = 0; phase < ZD_STEP_NPHASES; phase++) {
		const struct zd_stats part = stats_of(bench, samples, ZD_STEP_CPU + phase, 1);
		const struct zd_stats sent = stats_of(bench, samples, ZD_STEP_PACKETS + phase, 1);
		char text[64];
		snprintf(text, sizeof(text), "of this, %s", phases[phase]);
		zd_report_figure(bench, text, (double)part.p50 / 1e3 / units, "us");
		snprintf(text, sizeof(text), "packets, %s", phases[phase]);
		zd_report_figure(bench, text, (double)sent.p50, "packets");
	}
	zd_report_target(bench, "longest call, us", (double)longest.p50 / 1e3, true, LONGEST_NS / 1e3);
	zd_report_target(bench, "blocked, % of the step", 100 * (double)blocked.p50 / step_ns, true,
	                 BLOCKED_PERCENT);
	zd_report_target(bench, "packets a unit, forward and backward", (double)packets.p50 / units, true,
	                 PACKETS_A_UNIT);
	zd_report_target(bench, "library's CPU time a unit, us", (double)cpu.p50 / 1e3 / units, true,
	                 CPU_US_A_UNIT);
	if (bench->options.ranks == 1)
		zd_report_target(bench, "device time that gathers take, %", gathers_percent, true,
		                 GATHERS_PERCENT);
}
