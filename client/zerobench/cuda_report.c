// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_report.c - the times of gathers and reductions on GPUs: one line per size with zerod, NCCL and pushes
 * next to each other, and then the costs.
 */
#include "client/zerobench/cuda_bench.h"

#include <stdio.h>

#include "base/mem.h"

static const char *const ways[ZD_CUDA_WAYS] = {"zerod", "nccl", "pushes"};

static double us(uint64_t ns)
{
	return (double)ns / 1e3;
}

static double ratio(uint64_t of, uint64_t to)
{
	return to ? (double)of / (double)to : 0;
}

/* Bytes per nanosecond are GB/s. The factor is that of nccl-tests. */
static double busbw(const struct zd_cuda_run *run, uint64_t bytes, uint64_t ns)
{
	/* An all-reduce moves all bytes twice. */
	return ratio(bytes, ns) * (run->bench->options.all_reduce ? 2 : 1) * (run->ranks - 1) / run->ranks;
}

static bool has(const struct zd_cuda_run *run, enum zd_cuda_way way)
{
	return way == ZD_CUDA_NCCL ? run->shared->has_nccl
	                           : way == ZD_CUDA_ZEROD || run->ranks > 1 || run->bench->options.on_host;
}

/* ---- Text ---------------------------------------------------------------------------------------------- */

static void print_head(const struct zd_bench *bench, const struct zd_cuda_run *run)
{
	const struct zd_bench_options *options = &bench->options;
	printf("# %s\n", run->shared->nccl_text);
	if (options->load_side)
		printf("# beside bf16 products of %u x %u, back to back on every GPU\n", options->load_side,
		       options->load_side);
	if (options->nodes > 1)
		printf("# %u daemons of %u ranks each, which reach each other by NCCL\n", options->nodes,
		       run->node_ranks);
	if (options->collectives == ZEROD_COLLECTIVES_NCCL)
		printf("# zerod leaves all to NCCL\n");
	if (run->ranks > run->devices)
		printf("# several ranks share a GPU: copies within it take the place of pushes\n");
	if (options->alone)
		printf("# rank 0 gathers alone; NCCL's gather is always everybody's\n");
	puts(options->op == ZD_BENCH_REDUCE
	             ? "# time: median over ranks and iterations, from the submit until the backward has "
	               "ended; "
	               "calls: the submit's\n# sums are float32, NCCL's of the gradients' dtype"
	             : "# time: median over ranks and iterations, from the host's call until the rank's "
	               "stream "
	               "runs on; calls: what of it the host's calls take");
	puts("# slow: median of the slowest rank; speedup: NCCL's time / zerod's; floor: zerod's time / that "
	     "of "
	     "pushes without it\n#");
	puts("#         size      type |     zerod   algbw   busbw    calls     slow      min      p99      "
	     "max |"
	     "      nccl   busbw     slow      min      p99      max |    pushes   busbw | speedup   floor  "
	     "#wrong");
	puts("#          (B)           |      (us)  (GB/s)  (GB/s)     (us)     (us)     (us)     (us)     "
	     "(us) |"
	     "      (us)  (GB/s)     (us)     (us)     (us)     (us) |      (us)  (GB/s) |");
}

static void print_row(const struct zd_bench *bench, const struct zd_cuda_run *run,
                      const struct zd_cuda_row *row)
{
	const struct zd_cuda_time *zerod = &row->ways[ZD_CUDA_ZEROD];
	const struct zd_cuda_time *nccl = &row->ways[ZD_CUDA_NCCL];
	const struct zd_cuda_time *pushes = &row->ways[ZD_CUDA_PUSHES];
	printf("%14llu %9s | %9.1f %7.2f %7.2f %8.1f %8.1f %8.1f %8.1f %8.1f | ",
	       (unsigned long long)row->bytes, zerod_dtype_name(bench->options.dtype), us(zerod->each.p50),
	       ratio(row->bytes, zerod->each.p50), busbw(run, row->bytes, zerod->each.p50),
	       us(row->calls.each.p50), us(zerod->slowest_p50), us(zerod->each.min), us(zerod->each.p99),
	       us(zerod->each.max));
	if (has(run, ZD_CUDA_NCCL))
		printf("%9.1f %7.2f %8.1f %8.1f %8.1f %8.1f | ", us(nccl->each.p50),
		       busbw(run, row->bytes, nccl->each.p50), us(nccl->slowest_p50), us(nccl->each.min),
		       us(nccl->each.p99), us(nccl->each.max));
	else
		printf("%9s %7s %8s %8s %8s %8s | ", "-", "-", "-", "-", "-", "-");
	if (has(run, ZD_CUDA_PUSHES))
		printf("%9.1f %7.2f | ", us(pushes->each.p50), busbw(run, row->bytes, pushes->each.p50));
	else
		printf("%9s %7s | ", "-", "-");
	printf("%7.2f %7.2f %7llu\n", has(run, ZD_CUDA_NCCL) ? ratio(nccl->each.p50, zerod->each.p50) : 0.0,
	       has(run, ZD_CUDA_PUSHES) ? ratio(zerod->each.p50, pushes->each.p50) : 0.0,
	       (unsigned long long)row->wrong);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static json_t *time_json(const struct zd_cuda_run *run, const struct zd_cuda_row *row, enum zd_cuda_way way)
{
	const struct zd_cuda_time *time = &row->ways[way];
	if (!has(run, way))
		return json_null();
	return json_pack("{s:I,s:I,s:I,s:I,s:I,s:f,s:f}", "min", (json_int_t)time->each.min, "p50",
	                 (json_int_t)time->each.p50, "p99", (json_int_t)time->each.p99, "max",
	                 (json_int_t)time->each.max, "slowest_p50", (json_int_t)time->slowest_p50,
	                 "algbw_gb_s", ratio(row->bytes, time->each.p50), "busbw_gb_s",
	                 busbw(run, row->bytes, time->each.p50));
}

static json_t *row_json(const struct zd_bench *bench, const struct zd_cuda_run *run,
                        const struct zd_cuda_row *row)
{
	json_t *made = json_pack("{s:I,s:I,s:s,s:I,s:I}", "bytes", (json_int_t)row->bytes, "count",
	                         (json_int_t)row->count, "dtype", zerod_dtype_name(bench->options.dtype),
	                         "load_side", (json_int_t)bench->options.load_side, "wrong",
	                         (json_int_t)row->wrong);
	json_object_set_new(made, "calls_p50_ns", json_integer((json_int_t)row->calls.each.p50));
	for (enum zd_cuda_way way = 0; way < ZD_CUDA_WAYS; way++) {
		char key[24];
		snprintf(key, sizeof(key), "%s_ns", ways[way]);
		json_object_set_new(made, key, time_json(run, row, way));
	}
	if (has(run, ZD_CUDA_NCCL))
		json_object_set_new(made, "speedup",
		                    json_real(ratio(row->ways[ZD_CUDA_NCCL].each.p50,
		                                    row->ways[ZD_CUDA_ZEROD].each.p50)));
	return made;
}

/* ---- Promised figures, each where it was measured ------------------------------------------------------ */

/* Whether NCCL makes at least a part of the collectives. */
static bool is_left_to_nccl(const struct zd_bench *bench)
{
	return bench->options.nodes > 1 || bench->options.collectives == ZEROD_COLLECTIVES_NCCL;
}

enum measure { MICROSECONDS, SPEEDUP, BUSBW };

/* The promises for sizes from `least` to `most`, on idle GPUs or during products. */
static const struct promise {
	enum zd_bench_op op;
	uint64_t least, most;
	bool loaded, over_copy_engines;
	enum measure measure;
	double bound;
} promises[] = {
        {ZD_BENCH_GATHER, 64u << 10, 1u << 20, false, false, MICROSECONDS, 30},
        {ZD_BENCH_GATHER, 64u << 10, 1u << 20, false, true, MICROSECONDS, 30},
        {ZD_BENCH_GATHER, 16u << 20, 16u << 20, false, false, SPEEDUP, 1.2},
        {ZD_BENCH_GATHER, 64u << 20, 64u << 20, false, false, SPEEDUP, 1.25},
        {ZD_BENCH_GATHER, 1u << 30, 1u << 30, false, false, SPEEDUP, 1.15},
        {ZD_BENCH_GATHER, 64u << 20, 64u << 20, false, true, SPEEDUP, 1.05},
        {ZD_BENCH_GATHER, 256u << 20, 256u << 20, false, true, SPEEDUP, 1},
        {ZD_BENCH_GATHER, 1u << 30, 1u << 30, false, true, SPEEDUP, 0.99},
        {ZD_BENCH_GATHER, 1u << 30, 1u << 30, false, false, BUSBW, 380},
        {ZD_BENCH_GATHER, 1u << 30, 1u << 30, false, true, BUSBW, 380},
        {ZD_BENCH_GATHER, 1u << 20, 1u << 20, true, false, SPEEDUP, 8},
        {ZD_BENCH_GATHER, 16u << 20, 16u << 20, true, false, SPEEDUP, 8},
        {ZD_BENCH_GATHER, 64u << 20, 64u << 20, true, false, SPEEDUP, 8},
        {ZD_BENCH_GATHER, 8u << 20, 8u << 20, true, true, SPEEDUP, 0.9},
        {ZD_BENCH_GATHER, 64u << 20, 64u << 20, true, true, SPEEDUP, 1.1},
        {ZD_BENCH_REDUCE, 64u << 10, 1u << 20, false, false, MICROSECONDS, 40},
        {ZD_BENCH_REDUCE, 64u << 20, 64u << 20, false, false, SPEEDUP, 1.05},
        {ZD_BENCH_REDUCE, 1u << 30, 1u << 30, false, false, SPEEDUP, 1.15},
        {ZD_BENCH_REDUCE, 64u << 20, 64u << 20, true, false, SPEEDUP, 1},
        {ZD_BENCH_REDUCE, 1u << 30, 1u << 30, true, false, SPEEDUP, 1.25},
};

static void report_promise(struct zd_bench *bench, const struct zd_cuda_run *run,
                           const struct zd_cuda_row *row, enum measure measure, double bound)
{
	const uint64_t zerod_ns = row->ways[ZD_CUDA_ZEROD].each.p50;
	const uint64_t nccl_ns = row->ways[ZD_CUDA_NCCL].each.p50;
	const double measured = measure == MICROSECONDS ? us(zerod_ns)
	                        : measure == SPEEDUP    ? ratio(nccl_ns, zerod_ns)
	                                                : busbw(run, row->bytes, zerod_ns);
	const bool small = row->bytes < 1u << 20 || measure == MICROSECONDS;
	char what[64];
	snprintf(what, sizeof(what), "%s of %llu %s%s%s",
	         bench->options.op == ZD_BENCH_REDUCE ? "reduction" : "gather",
	         (unsigned long long)(row->bytes >> (small ? 10 : 20)), small ? "KiB" : "MiB",
	         bench->options.load_side ? " under load" : "",
	         measure == MICROSECONDS ? ", us"
	         : measure == SPEEDUP    ? ": speed / NCCL's"
	                                 : ": busbw, GB/s");
	if (measure != SPEEDUP || has(run, ZD_CUDA_NCCL))
		zd_report_target(bench, what, measured, measure == MICROSECONDS, bound);
}

static void size_targets(struct zd_bench *bench, const struct zd_cuda_run *run, const struct zd_cuda_row *row)
{
	const struct zd_bench_options *options = &bench->options;
	char what[64];
	if (options->on_host) {
		snprintf(what, sizeof(what), "gather of %llu MiB: pulls without zerod / zerod's",
		         (unsigned long long)(row->bytes >> 20));
		if (row->bytes >= 64u << 20)
			zd_report_target(
			        bench, what,
			        ratio(row->ways[ZD_CUDA_PUSHES].each.p50, row->ways[ZD_CUDA_ZEROD].each.p50),
			        false, 0.9);
		return;
	}
	/* On idle GPUs, for any transport that NCCL uses. */
	if (is_left_to_nccl(bench) && !options->load_side && row->bytes >= 1u << 20)
		report_promise(bench, run, row, SPEEDUP, 0.95);
	if (options->alone || options->all_reduce || run->ranks == 1 || run->ranks > run->devices ||
	    is_left_to_nccl(bench) || (options->load_side && options->load_side != 8192))
		return; /* without promised figures */
	for (size_t i = 0; i < ZD_ARRAY_LEN(promises); i++) {
		const struct promise *promise = &promises[i];
		if (promise->op == options->op && row->bytes >= promise->least &&
		    row->bytes <= promise->most && promise->loaded == (options->load_side > 0) &&
		    promise->over_copy_engines == options->copy_engines)
			report_promise(bench, run, row, promise->measure, promise->bound);
	}
}

static void report_costs(struct zd_bench *bench, const struct zd_cuda_run *run)
{
	const struct zd_cuda_costs *costs = &run->shared->costs;
	if (!costs->batch.p50 || bench->options.on_host)
		return;
	zd_report_figure(bench, "32 units of 1 MiB in a batch, p50", us(costs->batch.p50), "us");
	zd_report_figure(bench, "32 units of 1 MiB in a batch, p99", us(costs->batch.p99), "us");
	zd_report_figure(bench, "one unit of 32 MiB, p50", us(costs->whole.p50), "us");
	zd_report_figure(bench, "gathers of 32 MiB without pause, a rank", costs->pauseless_gathers_s,
	                 "a second");
	zd_report_figure(bench, "their busbw", costs->pauseless_busbw, "GB/s");
	zd_report_target(bench, "32 x 1 MiB in a batch: speed / one of 32 MiB",
	                 ratio(costs->whole.p50, costs->batch.p50), false, 0.8);
	zd_report_target(bench, "trainer's CPU, gather and release, us", costs->cpu_single_ns / 1e3, true,
	                 15);
	zd_report_target(bench, "trainer's CPU, 16 units at once, us a unit", costs->cpu_corked_ns / 1e3,
	                 true, 3);
	if (!costs->has_daemon_cpu)
		return;
	zd_report_figure(bench, "daemon's CPU without pause", 100 * costs->daemon_busy_cores / run->devices,
	                 "% of a core a GPU");
	zd_report_target(bench, "daemon's CPU, 2000 of 32 MiB a second, % of a core",
	                 100 * costs->daemon_paced_cores / run->devices, true, 25);
	zd_report_target(bench, "daemon's CPU, nothing to do, % of a core", 100 * costs->daemon_idle_cores,
	                 true, 1);
}

/* Reports how much longer the products take together while reductions run, for each GiB reduced. It is time
 * of the whole GPU. */
static void report_lost(const struct zd_bench *bench, const struct zd_cuda_costs *costs, enum zd_cuda_way way)
{
	const int64_t longer_ns = (int64_t)(costs->product_ns[way] - costs->product_ns[ZD_CUDA_PUSHES]);
	const double gib = (double)costs->reduced_bytes[way] / (1u << 30);
	const char *const name = way == ZD_CUDA_NCCL ? "NCCL" : "zerod";
	char what[64];
	if (gib == 0)
		return;
	snprintf(what, sizeof(what), "reduced by %s beside products, a rank", name);
	zd_report_figure(bench, what, gib, "GiB");
	snprintf(what, sizeof(what), "GPU time that products lose to %s", name);
	zd_report_figure(bench, what, (double)longer_ns * (double)costs->products / 1e3 / gib, "us a GiB");
}

static void report_slowdown(struct zd_bench *bench, const struct zd_cuda_run *run)
{
	const uint64_t *product_ns = run->shared->costs.product_ns;
	const uint64_t alone_ns = product_ns[ZD_CUDA_PUSHES];
	const bool reduces = bench->options.op == ZD_BENCH_REDUCE;
	const char *const works = reduces ? "reductions" : "gathers";
	char what[64];
	if (!product_ns[ZD_CUDA_ZEROD])
		return;
	const double zerod = 100 * (ratio(product_ns[ZD_CUDA_ZEROD], alone_ns) - 1);
	const double nccl = 100 * (ratio(product_ns[ZD_CUDA_NCCL], alone_ns) - 1);
	zd_report_figure(bench, "a product alone", us(alone_ns), "us");
	snprintf(what, sizeof(what), "a product beside zerod's %s", works);
	zd_report_figure(bench, what, us(product_ns[ZD_CUDA_ZEROD]), "us");
	report_lost(bench, &run->shared->costs, ZD_CUDA_ZEROD);
	snprintf(what, sizeof(what), "products of %u: slowdown by zerod, %%", bench->options.load_side);
	if (is_left_to_nccl(bench))
		zd_report_figure(bench, what, zerod, "%");
	else
		zd_report_target(bench, what, zerod, true, reduces ? 8 : bench->options.on_host ? 1 : 7);
	if (!product_ns[ZD_CUDA_NCCL])
		return;
	snprintf(what, sizeof(what), "a product beside NCCL's %s", works);
	zd_report_figure(bench, what, us(product_ns[ZD_CUDA_NCCL]), "us");
	report_lost(bench, &run->shared->costs, ZD_CUDA_NCCL);
	zd_report_figure(bench, "products' slowdown by NCCL", nccl, "%");
	snprintf(what, sizeof(what), "products of %u: zerod's %% - NCCL's %%", bench->options.load_side);
	if (!is_left_to_nccl(bench))
		zd_report_target(bench, what, zerod - nccl, true, 0);
}

static void report_skew(struct zd_bench *bench, const struct zd_cuda_run *run)
{
	const struct zd_cuda_costs *costs = &run->shared->costs;
	const struct zd_stats *skew = costs->skew;
	bench->wrong += atomic_load(&costs->skew_wrong);
	if (!skew[ZD_CUDA_LATE].p50)
		return;
	zd_report_stats(bench, &skew[ZD_CUDA_ON_TIME], "rank 0's gather, all on time", 1e3, "us");
	zd_report_stats(bench, &skew[ZD_CUDA_LATE], "rank 0's gather, the last rank 5 ms late", 1e3, "us");
	if (has(run, ZD_CUDA_NCCL))
		zd_report_stats(bench, &skew[ZD_CUDA_LATE_NCCL], "the same by NCCL", 1e3, "us");
	zd_report_target(bench, "rank 0's gather: a rank 5 ms late / all on time",
	                 ratio(skew[ZD_CUDA_LATE].p50, skew[ZD_CUDA_ON_TIME].p50), true, 1.1);
}

static void report_backward(struct zd_bench *bench, const struct zd_cuda_run *run)
{
	const struct zd_cuda_costs *costs = &run->shared->costs;
	const struct zd_stats *parts = costs->backward;
	if (!costs->backward_bytes)
		return;
	bench->wrong += costs->backward_wrong;
	zd_report_figure(bench, "a backward's gradients", (double)costs->backward_bytes / (1u << 20), "MiB");
	zd_report_figure(bench, "its buckets", costs->backward_buckets, "");
	zd_report_stats(bench, &parts[ZD_CUDA_BACKWARD_ZEROD], "backward by zerod", 1e6, "ms");
	zd_report_stats(bench, &parts[ZD_CUDA_BACKWARD_BEGIN], "backward_begin", 1e6, "ms");
	if (!has(run, ZD_CUDA_NCCL))
		return;
	zd_report_stats(bench, &parts[ZD_CUDA_BACKWARD_NCCL], "backward by NCCL", 1e6, "ms");
	zd_report_target(bench, "a backward: speed / NCCL's",
	                 ratio(parts[ZD_CUDA_BACKWARD_NCCL].p50, parts[ZD_CUDA_BACKWARD_ZEROD].p50), false,
	                 1 / 0.7);
}

void zd_cuda_report(struct zd_bench *bench, const struct zd_cuda_run *run)
{
	const struct zd_cuda_shared *shared = run->shared;
	if (!bench->options.json)
		print_head(bench, run);
	for (uint32_t i = 0; i < shared->nrows; i++) {
		const struct zd_cuda_row *row = &shared->rows[i];
		bench->wrong += row->wrong;
		zd_report_busbw(bench, busbw(run, row->bytes, row->ways[ZD_CUDA_ZEROD].each.p50));
		if (bench->options.json)
			json_array_append_new(bench->results, row_json(bench, run, row));
		else
			print_row(bench, run, row);
		size_targets(bench, run, row);
	}
	report_skew(bench, run);
	report_costs(bench, run);
	report_slowdown(bench, run);
	report_backward(bench, run);
	fflush(stdout);
}
