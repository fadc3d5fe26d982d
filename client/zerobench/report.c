// SPDX-License-Identifier: Apache-2.0
/*
 * report.c - results as lines in nccl-tests' layout, or at the end as one JSON object. A speedup is always
 * the baseline's time / zerod's.
 *
 * Every line without a result starts with '#'. A line for a promised figure starts with "# target:".
 */
#include "bench.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/mem.h"

static void machine_cpu(char *cpu, size_t cpu_bytes)
{
	snprintf(cpu, cpu_bytes, "unknown");
	FILE *file = fopen("/proc/cpuinfo", "r");
	if (!file)
		return;
	char line[256];
	while (fgets(line, sizeof(line), file)) {
		const char *colon = strchr(line, ':');
		if (strncmp(line, "model name", 10) != 0 || !colon)
			continue;
		snprintf(cpu, cpu_bytes, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
		break;
	}
	fclose(file);
}

static json_t *machine_json(void)
{
	char cpu[128];
	struct utsname kernel;
	machine_cpu(cpu, sizeof(cpu));
	if (uname(&kernel))
		snprintf(kernel.release, sizeof(kernel.release), "unknown");
	return json_pack("{s:s,s:I,s:s,s:I}", "cpu", cpu, "cores", (json_int_t)sysconf(_SC_NPROCESSORS_ONLN),
	                 "kernel", kernel.release, "memory_bytes",
	                 (json_int_t)sysconf(_SC_PHYS_PAGES) * (json_int_t)sysconf(_SC_PAGESIZE));
}

static void date_text(char *date, size_t date_bytes)
{
	time_t now = time(NULL);
	struct tm utc;
	gmtime_r(&now, &utc);
	strftime(date, date_bytes, "%Y-%m-%dT%H:%M:%SZ", &utc);
}

static bool is_bandwidth(const struct zd_bench *bench)
{
	return bench->options.op == ZD_BENCH_GATHER || bench->options.op == ZD_BENCH_REDUCE;
}

static const char *plural(uint32_t count)
{
	return count == 1 ? "" : "s";
}

void zd_report_begin(const struct zd_bench *bench)
{
	const struct zd_bench_options *options = &bench->options;
	char date[32];
	if (bench->options.json)
		return;
	date_text(date, sizeof(date));
	json_t *machine = machine_json();
	printf("# zerobench %s, %s, %s\n", ZEROD_VERSION_TEXT, bench->daemon, date);
	printf("# %s, %d cores, Linux %s\n", json_string_value(json_object_get(machine, "cpu")),
	       (int)json_integer_value(json_object_get(machine, "cores")),
	       json_string_value(json_object_get(machine, "kernel")));
	json_decref(machine);
	printf("# op %s, %u rank%s on %u device%s, %u iterations after %u to warm up\n", bench->op_name,
	       options->ranks, plural(options->ranks), bench->devices, plural(bench->devices), options->iters,
	       options->warmup);
	if (bench->one_cpu)
		puts("# all processes on one CPU, so that no figure depends on where the scheduler puts "
		     "them");
	if (bench->on_gpus && bench->options.op == ZD_BENCH_GATHER) {
		fflush(stdout); /* the table has its own head */
		return;
	}
	if (bench->options.op == ZD_BENCH_STEP)
		printf("# %u units; each measured step is enqueued while the device has the work of a whole "
		       "one "
		       "before it\n",
		       options->units);
	else if (is_bandwidth(bench))
		puts("# time: median from the first rank's start to the last one's end; speedup: "
		     "baseline's time / time\n#\n"
		     "#         size        count      type |      time   algbw   busbw  #wrong |"
		     "       min       max       p99 |  baseline   busbw speedup\n"
		     "#          (B)   (elements)           |      (us)  (GB/s)  (GB/s)         |"
		     "      (us)      (us)      (us) |      (us)  (GB/s)");
	else
		puts("# speedup: baseline's time / time\n#\n"
		     "# request                        size |      p50       min       max       p99 |"
		     " baseline           p50       p99 |   p50          p99\n"
		     "#                                 (B) |     (us)      (us)      (us)      (us) |"
		     "                   (us)      (us) | speedup    speedup");
	fflush(stdout);
}

static json_t *stats_json(const struct zd_stats *stats)
{
	return json_pack("{s:I,s:I,s:I,s:I}", "min", (json_int_t)stats->min, "p50", (json_int_t)stats->p50,
	                 "p99", (json_int_t)stats->p99, "max", (json_int_t)stats->max);
}

static double us(uint64_t ns)
{
	return (double)ns / 1e3;
}

void zd_report_bandwidth(struct zd_bench *bench, const struct zd_bandwidth_row *row)
{
	bench->wrong += row->wrong;
	const struct zd_bench_options *options = &bench->options;
	const char *dtype = zerod_dtype_name(options->dtype);
	/* Bytes per nanosecond are GB/s. The bus factor of all-gather and reduce-scatter is NCCL's: (n - 1) /
	 * n. */
	const double factor = (double)(options->ranks - 1) / options->ranks;
	const double algbw = (double)row->bytes / (double)row->time.p50;
	const double baseline_busbw = (double)row->bytes / (double)row->baseline.p50 * factor;
	const double speedup = (double)row->baseline.p50 / (double)row->time.p50;
	zd_report_busbw(bench, algbw * factor);
	if (options->op == ZD_BENCH_GATHER && row->bytes == 64u << 20)
		zd_report_target(bench, "gather of 64 MiB: speed / parallel memcpy", speedup, false, 0.8);
	if (bench->options.json) {
		json_t *wrong = options->check ? json_integer((json_int_t)row->wrong) : json_null();
		json_array_append_new(bench->results,
		                      json_pack("{s:I,s:I,s:s,s:o,s:f,s:f,s:o,s:o,s:f,s:f}", "bytes",
		                                (json_int_t)row->bytes, "count", (json_int_t)row->count,
		                                "dtype", dtype, "time_ns", stats_json(&row->time),
		                                "algbw_gb_s", algbw, "busbw_gb_s", algbw * factor, "wrong",
		                                wrong, "baseline_ns", stats_json(&row->baseline),
		                                "baseline_busbw_gb_s", baseline_busbw, "speedup", speedup));
		return;
	}
	char wrong[24] = "N/A";
	if (options->check)
		snprintf(wrong, sizeof(wrong), "%llu", (unsigned long long)row->wrong);
	printf("%14llu %12llu %9s | %9.1f %7.2f %7.2f %7s | %9.1f %9.1f %9.1f | %9.1f %7.2f %7.2f\n",
	       (unsigned long long)row->bytes, (unsigned long long)row->count, dtype, us(row->time.p50),
	       algbw, algbw * factor, wrong, us(row->time.min), us(row->time.max), us(row->time.p99),
	       us(row->baseline.p50), baseline_busbw, speedup);
	fflush(stdout);
}

void zd_report_latency(const struct zd_bench *bench, const struct zd_latency_row *row)
{
	const double p50_speedup = (double)row->baseline.p50 / (double)row->time.p50;
	const double p99_speedup = (double)row->baseline.p99 / (double)row->time.p99;
	if (bench->options.json) {
		json_array_append_new(bench->results,
		                      json_pack("{s:s,s:I,s:o,s:s,s:o,s:f,s:f}", "what", row->what, "bytes",
		                                (json_int_t)row->bytes, "time_ns", stats_json(&row->time),
		                                "baseline", row->baseline_what, "baseline_ns",
		                                stats_json(&row->baseline), "p50_speedup", p50_speedup,
		                                "p99_speedup", p99_speedup));
		return;
	}
	char bytes[24] = "-";
	if (row->bytes)
		snprintf(bytes, sizeof(bytes), "%llu", (unsigned long long)row->bytes);
	printf("  %-22s %12s | %8.2f %9.2f %9.2f %9.2f | %-10s %9.2f %9.2f | %10.2f %10.2f\n", row->what,
	       bytes, us(row->time.p50), us(row->time.min), us(row->time.max), us(row->time.p99),
	       row->baseline_what, us(row->baseline.p50), us(row->baseline.p99), p50_speedup, p99_speedup);
	fflush(stdout);
}

void zd_report_figure(const struct zd_bench *bench, const char *what, double value, const char *unit)
{
	if (bench->options.json)
		json_array_append_new(bench->results,
		                      json_pack("{s:s,s:f,s:s}", "what", what, "value", value, "unit", unit));
	else if (*unit)
		printf("# %-40s %12.1f %s\n", what, value, unit);
	else /* a count */
		printf("# %-40s %12.0f\n", what, value);
}

void zd_report_stats(const struct zd_bench *bench, const struct zd_stats *stats, const char *what,
                     double ns_each, const char *unit)
{
	const struct {
		const char *name;
		uint64_t ns;
	} parts[] = {{"p50", stats->p50}, {"min", stats->min}, {"max", stats->max}};
	for (size_t i = 0; i < ZD_ARRAY_LEN(parts); i++) {
		char text[96];
		snprintf(text, sizeof(text), "%s, %s", what, parts[i].name);
		zd_report_figure(bench, text, (double)parts[i].ns / ns_each, unit);
	}
}

void zd_report_note(const struct zd_bench *bench, const char *what, const char *why)
{
	if (bench->options.json)
		json_array_append_new(bench->results, json_pack("{s:s,s:s}", "what", what, "why", why));
	else
		printf("# %s: %s\n", what, why);
}

void zd_report_busbw(struct zd_bench *bench, double gb_s)
{
	bench->busbw_sum += gb_s;
	bench->nbusbw++;
}

void zd_report_target(const struct zd_bench *bench, const char *what, double measured, bool at_most,
                      double bound)
{
	const bool met = at_most ? measured <= bound : measured >= bound;
	json_array_append_new(bench->targets,
	                      json_pack("{s:s,s:f,s:s,s:f,s:b}", "what", what, "measured", measured,
	                                "bound_is", at_most ? "at most" : "at least", "bound", bound, "met",
	                                (int)met));
}

bool zd_report_missed(const struct zd_bench *bench)
{
	size_t index;
	json_t *target;
	json_array_foreach(bench->targets, index, target)
	{
		if (!json_is_true(json_object_get(target, "met")))
			return true;
	}
	return false;
}

void zd_report_end(const struct zd_bench *bench)
{
	const struct zd_bench_options *options = &bench->options;
	const double average_busbw = bench->nbusbw ? bench->busbw_sum / bench->nbusbw : 0;
	if (!options->json) {
		if (bench->nbusbw)
			printf("# Avg bus bandwidth    : %g\n", average_busbw); /* the format of nccl-tests */
		size_t index;
		json_t *target;
		json_array_foreach(bench->targets, index, target)
		{
			printf("# target: %-42s %8.2f  %-8s %6.2f  %s\n",
			       json_string_value(json_object_get(target, "what")),
			       json_real_value(json_object_get(target, "measured")),
			       json_string_value(json_object_get(target, "bound_is")),
			       json_real_value(json_object_get(target, "bound")),
			       json_is_true(json_object_get(target, "met")) ? "met" : "MISSED");
		}
		return;
	}
	char date[32];
	date_text(date, sizeof(date));
	json_t *report = json_pack(
	        "{s:i,s:s,s:s,s:s,s:s,s:s,s:o,s:o,s:O,s:O}", "schema", ZD_BENCH_SCHEMA, "program",
	        "zerobench", "version", ZEROD_VERSION_TEXT, "daemon", bench->daemon, "op", bench->op_name,
	        "date", date, "machine", machine_json(), "options",
	        json_pack("{s:I,s:I,s:I,s:I,s:s,s:b,s:b,s:b,s:I,s:s}", "ranks", (json_int_t)options->ranks,
	                  "devices", (json_int_t)bench->devices, "iters", (json_int_t)options->iters,
	                  "warmup", (json_int_t)options->warmup, "dtype", zerod_dtype_name(options->dtype),
	                  "one_cpu", (int)bench->one_cpu, "on_gpus", (int)bench->on_gpus, "alone",
	                  (int)options->alone, "load_side", (json_int_t)options->load_side, "peer",
	                  options->copy_engines ? "nccl-ce" : "nccl"),
	        "results", bench->results, "targets", bench->targets);
	json_object_set_new(report, "average_busbw_gb_s",
	                    bench->nbusbw ? json_real(average_busbw) : json_null());
	json_dumpf(report, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(report);
}
