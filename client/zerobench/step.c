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
	const struct zd_member *member;
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
	steps->cpu_ns[steps->phase] += cpu_ns;
	if (steps->phase != ZD_STEP_UPDATE) {
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

static int gather_unit(struct steps *steps, uint32_t unit)
{
	int status = 0;
	if (steps->with_gathers && unit < steps->count)
		CALL(status, steps, zerod_gather_begin, steps->units[unit], NULL, &steps->gathers[unit]);
	return status;
}

static int await(struct steps *steps, uint32_t unit)
{
	void *data;
	int status = 0;
	if (steps->with_gathers)
		CALL(status, steps, zerod_wait, steps->rank->client, steps->gathers[unit], steps->stream,
		     &data);
	return status;
}

static int release_unit(struct steps *steps, uint32_t unit)
{
	struct zerod_release_options options = ZEROD_INIT(options);
	int status = 0;
	options.flags = ZEROD_RELEASE_DETACHED;
	if (steps->with_gathers && unit < steps->count)
		CALL(status, steps, zerod_release, steps->units[unit], &steps->stream, 1, &options, NULL);
	return status;
}

/* Sends one packet: the release of the previous unit (of the first, its gather), and the gather of the
 * next. */
static int run_unit(struct steps *steps, uint32_t unit)
{
	zerod_cork(steps->rank->client);
	int status = unit == 0 ? gather_unit(steps, 0) : release_unit(steps, unit - 1);
	if (!status)
		status = gather_unit(steps, unit + 1);
	CALL(status, steps, zerod_uncork, steps->rank->client);
	return status;
}

static int run_forward(struct steps *steps)
{
	int status = 0;
	steps->phase = ZD_STEP_FORWARD;
	for (uint32_t i = 0; i < steps->count && !status; i++) {
		if (i == 0 || i + 1 < steps->count) /* the last unit has no next one */
			status = run_unit(steps, i);
		if (!status)
			status = await(steps, i);
		if (!status)
			status = steps->work->compute(steps->work->arg, 1);
	}
	return status;
}

static int submit(struct steps *steps, const struct zerod_entry *entry)
{
	struct zerod_reduce_options options = ZEROD_INIT(options);
	int status = 0;
	options.flags = ZEROD_REDUCE_DETACHED;
	CALL(status, steps, zerod_bucket_submit, steps->bucket, entry->id, &steps->stream, 1, &options, NULL);
	return status;
}

/* Corks the last releases of the forward, the start of the backward, and the gather of its first unit. */
static int begin_backward(struct steps *steps)
{
	struct zerod_backward_options options = ZEROD_INIT(options);
	int status = 0;
	options.flags = ZEROD_BACKWARD_DETACHED;
	zerod_cork(steps->rank->client);
	for (uint32_t i = steps->count > 1 ? steps->count - 2 : 0; i < steps->count && !status; i++)
		status = release_unit(steps, i);
	CALL(status, steps, zerod_backward_begin, steps->rank->group, &options);
	return status ? status : gather_unit(steps, steps->count - 1);
}

static int end_unit(struct steps *steps, uint32_t unit, const struct zerod_entry *entry)
{
	int status = submit(steps, entry);
	return status ? status : release_unit(steps, unit);
}

/* The reservation blocks until its reply, and sends the requests that were corked since the last one. */
static int backward_unit(struct steps *steps, uint32_t unit, struct zerod_entry *entry)
{
	struct zerod_reserve_options options = ZEROD_INIT(options);
	int status = unit > 0 ? gather_unit(steps, unit - 1) : 0;
	options.stream = steps->stream;
	CALL(status, steps, zerod_bucket_reserve, steps->bucket, steps->units[unit], &options, entry);
	if (!status)
		status = await(steps, unit);
	if (!status)
		status = steps->work->compute(steps->work->arg, 2);
	return status ? status : steps->work->write(steps->work->arg, entry->data, steps->unit_bytes);
}

static int run_backward(struct steps *steps)
{
	struct zerod_entry entry = ZEROD_INIT(entry);
	int status;
	steps->phase = ZD_STEP_BACKWARD;
	status = begin_backward(steps);
	for (uint32_t i = steps->count; i-- > 0 && !status;) {
		status = backward_unit(steps, i, &entry);
		if (!status)
			status = end_unit(steps, i, &entry);
	}
	CALL(status, steps, zerod_backward_end, steps->rank->group, NULL, &steps->answers[steps->nanswers]);
	CALL(status, steps, zerod_uncork, steps->rank->client);
	return status;
}

static int run_update(struct steps *steps)
{
	zerod_client *client = steps->rank->client;
	zerod_ticket begun, granted;
	int status = 0;
	steps->phase = ZD_STEP_UPDATE;
	CALL(status, steps, zerod_step_begin, steps->rank->group, NULL, NULL, &begun);
	CALL(status, steps, zerod_wait, client, begun, steps->stream, NULL);
	/* After the step: other ranks' gathers are for the version of an update that has begun. */
	CALL(status, steps, zerod_update_begin, steps->units, steps->count, NULL, &granted);
	CALL(status, steps, zerod_wait, client, granted, steps->stream, NULL);
	if (!status)
		status = steps->work->compute(steps->work->arg, 1);
	zerod_cork(client);
	CALL(status, steps, zerod_publish, steps->units, steps->count, &steps->stream, 1, NULL,
	     &steps->answers[steps->nanswers + 1]);
	CALL(status, steps, zerod_step_end, steps->rank->group, &steps->stream, 1, NULL);
	CALL(status, steps, zerod_uncork, client);
	steps->nanswers += 2;
	return status;
}

static uint64_t packets_since(const struct steps *steps, uint64_t *before)
{
	const uint64_t sent = zc_packets_sent(steps->rank->client) - *before;
	*before += sent;
	return sent;
}

static int run_step(struct steps *steps)
{
	uint64_t before = zc_packets_sent(steps->rank->client);
	steps->longest_ns = steps->blocked_ns = 0;
	memset(steps->cpu_ns, 0, sizeof(steps->cpu_ns));
	int status = run_forward(steps);
	steps->packets[ZD_STEP_FORWARD] = packets_since(steps, &before);
	if (!status)
		status = run_backward(steps);
	steps->packets[ZD_STEP_BACKWARD] = packets_since(steps, &before);
	if (!status)
		status = run_update(steps);
	steps->packets[ZD_STEP_UPDATE] = packets_since(steps, &before);
	return status;
}

/* The same work without zerod. */
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

/* Waits for the replies that the steps have not needed. */
static int collect_figures(struct steps *steps)
{
	int status = 0;
	for (uint32_t i = 0; i < steps->nanswers && !status; i++)
		status = zd_member_check(steps->member,
		                         zerod_wait(steps->rank->client, steps->answers[i], NULL, NULL),
		                         steps->rank->client, "zerod_wait");
	steps->nanswers = 0;
	return status;
}

/* Waits until the sums of the previous step are known, which is how far a trainer can be ahead. Its update
 * has yet to run. */
static int await_sums(const struct steps *steps)
{
	struct zerod_step_info info = ZEROD_INIT(info);
	return zd_member_check(steps->member, zerod_step_get(steps->rank->group, NULL, &info),
	                       steps->rank->client, "zerod_step_get");
}

static int one_step(struct steps *steps, enum zd_step_kind kind)
{
	steps->with_gathers = kind == ZD_STEP_WHOLE;
	return kind == ZD_STEP_PLAIN ? plain_step(steps) : run_step(steps);
}

static void note(const struct steps *steps, uint32_t round, struct zd_step_samples *samples)
{
	const unsigned rank = steps->member->index;
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
static int measure_kind(struct steps *steps, enum zd_step_kind kind, uint32_t round,
                        struct zd_step_samples *samples)
{
	const struct zd_step_work *work = steps->work;
	uint64_t device_ns = 0;
	int status = one_step(steps, kind);
	if (!status && kind != ZD_STEP_PLAIN)
		status = await_sums(steps);
	if (!status)
		status = plain_step(steps);
	if (!status)
		status = work->mark(work->arg);
	if (!status)
		status = one_step(steps, kind);
	if (!status && samples && kind == ZD_STEP_WHOLE)
		note(steps, round, samples);
	if (!status)
		status = one_step(steps, kind);
	if (!status)
		status = work->measure(work->arg, &device_ns);
	if (!status && samples)
		samples->values[ZD_STEP_DEVICE + kind][steps->member->index][round] = device_ns / 2;
	return status ? status : collect_figures(steps);
}

static int rounds(struct steps *steps, struct zd_step_samples *samples)
{
	const struct zd_bench_options *options = &steps->bench->options;
	int status = 0;
	for (uint32_t i = 0; i < options->warmup + options->iters && !status; i++) {
		const bool counts = i >= options->warmup;
		for (unsigned kind = 0; kind < ZD_STEP_NKINDS && !status; kind++) {
			zd_member_barrier(steps->member);
			status = measure_kind(steps, (enum zd_step_kind)kind,
			                      counts ? (i - options->warmup) % ZD_STEP_ROUNDS : 0,
			                      counts ? samples : NULL);
		}
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
	options.slot_bytes = steps->unit_bytes + ZD_BENCH_MAX_RANKS * 256ull; /* with padding */
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
	                      .units = zd_calloc(bench->options.units, sizeof(zerod_unit *)),
	                      .gathers = zd_calloc(bench->options.units, sizeof(zerod_ticket))};
	int status = make_units(&steps);
	if (!status)
		status = make_bucket(&steps);
	if (!status)
		status = rounds(&steps, samples);
	zd_member_barrier(member); /* a rank that leaves earlier would be a lost peer for the others */
	free(steps.units);
	free(steps.gathers);
	return status;
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
		figure(bench, whats[kind], &stats, 1e3, "us");
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
	figure(bench, "longest call", &longest, 1e3, "us");
	zd_report_note(bench, "the longest call of all", longest_call(bench, samples));
	figure(bench, "blocked in calls", &blocked, 1e3, "us");
	figure(bench, "library's CPU time a unit", &cpu, 1e3 * units, "us");
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
