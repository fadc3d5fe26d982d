// SPDX-License-Identifier: Apache-2.0
/*
 * metrics_text.c - metric families of the daemon as OpenMetrics text, or as Prometheus's older format.
 *
 * The daemon sends names, units, types and texts with the figures, so that this program prints metrics that
 * it does not know.
 */
#include "metrics.h"

#include <inttypes.h>
#include <string.h>

#include <zerod.h>

/* A name of OpenMetrics, without the ':' of recording rules. */
static bool is_name(const char *text)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_",
	                  digits[] = "0123456789";
	size_t first = strspn(text, letters);
	if (first == 0)
		return false;
	while (*text && (strchr(letters, *text) || strchr(digits, *text)))
		text++;
	return *text == '\0';
}

static bool is_sample_of(const Zd__Sample *sample, const Zd__Metric *metric)
{
	bool histogram = metric->type == ZD__METRIC_TYPE__HISTOGRAM;
	return sample->n_labels == metric->n_labels &&
	       sample->n_counts == (histogram ? metric->n_bounds + 1 : 0);
}

static bool is_valid(const Zd__Metric *metric)
{
	if (!is_name(metric->name) || (*metric->unit && !is_name(metric->unit)) || metric->parts == 0)
		return false;
	for (size_t i = 0; i < metric->n_labels; i++) {
		if (!is_name(metric->labels[i]))
			return false;
	}
	for (size_t i = 0; i < metric->n_samples; i++) {
		if (!is_sample_of(metric->samples[i], metric))
			return false;
	}
	return true;
}

/* Label values and help texts have these characters escaped. The help of the older format does not escape
 * quotes. */
static void print_escaped(FILE *out, const char *text, const char *escaped)
{
	for (; *text; text++) {
		if (strchr(escaped, *text))
			fputc('\\', out);
		if (*text == '\n')
			fputs("\\n", out);
		else
			fputc(*text, out);
	}
}

/* Prints value / parts exactly, as far as `parts` is a power of ten: 1500000000 nanoseconds as "1.5". */
static void print_number(FILE *out, uint64_t value, uint64_t parts)
{
	fprintf(out, "%" PRIu64, value / parts);
	uint64_t rest = value % parts;
	if (rest)
		fputc('.', out);
	for (; rest && parts >= 10; rest %= parts) {
		parts /= 10;
		fprintf(out, "%" PRIu64, rest / parts);
	}
}

static void print_family_name(FILE *out, const Zd__Metric *metric)
{
	fprintf(out, "zerod_%s%s%s", metric->name, *metric->unit ? "_" : "", metric->unit);
}

/* Prints "zerod_name_unit<suffix>{labels} ", with the bound of a bucket as the last label: NULL for none. */
static void print_series(FILE *out, const Zd__Metric *metric, const char *suffix, const Zd__Sample *sample,
                         const char *bound)
{
	const char *before = "{";
	print_family_name(out, metric);
	fputs(suffix, out);
	for (size_t i = 0; i < sample->n_labels; i++) {
		fprintf(out, "%s%s=\"", before, metric->labels[i]);
		print_escaped(out, sample->labels[i], "\\\"");
		fputc('"', out);
		before = ",";
	}
	if (bound)
		fprintf(out, "%sle=\"%s\"", before, bound);
	fputs(sample->n_labels || bound ? "} " : " ", out);
}

/* Writes the bound of bucket i. OpenMetrics writes it as a float: "2.0". */
static void bound_text(const Zd__Metric *metric, size_t i, char *out, size_t out_bytes)
{
	if (i == metric->n_bounds) {
		(void)snprintf(out, out_bytes, "+Inf");
		return;
	}
	int used = snprintf(out, out_bytes, "%.15g", (double)metric->bounds[i] / (double)metric->parts);
	if (!strpbrk(out, ".e"))
		(void)snprintf(out + used, out_bytes - (size_t)used, ".0");
}

static void print_histogram(FILE *out, const Zd__Metric *metric, const Zd__Sample *sample)
{
	uint64_t count = 0;
	for (size_t i = 0; i < sample->n_counts; i++) {
		char bound[32];
		bound_text(metric, i, bound, sizeof(bound));
		count += sample->counts[i];
		print_series(out, metric, "_bucket", sample, bound);
		fprintf(out, "%" PRIu64 "\n", count);
	}
	print_series(out, metric, "_count", sample, NULL);
	fprintf(out, "%" PRIu64 "\n", count);
	print_series(out, metric, "_sum", sample, NULL);
	print_number(out, sample->value, metric->parts);
	fputc('\n', out);
}

static const struct {
	const char *name, *suffix, *prometheus;
} types[] = {
        [ZD__METRIC_TYPE__METRIC_NONE] = {"unknown", "", "untyped"},
        [ZD__METRIC_TYPE__COUNTER] = {"counter", "_total", "counter"},
        [ZD__METRIC_TYPE__GAUGE] = {"gauge", "", "gauge"},
        [ZD__METRIC_TYPE__HISTOGRAM] = {"histogram", "", "histogram"},
        [ZD__METRIC_TYPE__INFO] = {"info", "_info", "gauge"},
};

/* Prints "# WHAT zerod_name_unit ". In the older format a family is called as its samples are. */
static void begin_comment(FILE *out, const char *what, const Zd__Metric *metric, const char *suffix)
{
	fprintf(out, "# %s ", what);
	print_family_name(out, metric);
	fprintf(out, "%s ", suffix);
}

static void print_family(FILE *out, enum zd_ctl_metrics_format format, const Zd__Metric *metric)
{
	/* A later daemon's type is unknown to this program. */
	const size_t type = (size_t)metric->type < sizeof(types) / sizeof(types[0]) ? (size_t)metric->type
	                                                                            : 0;
	const bool openmetrics = format == ZD_CTL_OPENMETRICS;
	const char *suffix = openmetrics ? "" : types[type].suffix;
	begin_comment(out, "TYPE", metric, suffix);
	fprintf(out, "%s\n", openmetrics ? types[type].name : types[type].prometheus);
	if (*metric->unit && openmetrics) {
		begin_comment(out, "UNIT", metric, suffix);
		fprintf(out, "%s\n", metric->unit);
	}
	begin_comment(out, "HELP", metric, suffix);
	print_escaped(out, metric->help, openmetrics ? "\\\"" : "\\");
	fputc('\n', out);
	for (size_t i = 0; i < metric->n_samples; i++) {
		if (metric->type == ZD__METRIC_TYPE__HISTOGRAM) {
			print_histogram(out, metric, metric->samples[i]);
			continue;
		}
		print_series(out, metric, types[type].suffix, metric->samples[i], NULL);
		print_number(out, metric->samples[i]->value, metric->parts);
		fputc('\n', out);
	}
}

int zd_ctl_metrics_print(FILE *out, enum zd_ctl_metrics_format format, const Zd__MetricsReply *reply)
{
	for (size_t i = 0; i < reply->n_metrics; i++) {
		if (!is_valid(reply->metrics[i]))
			return ZEROD_E_PROTOCOL;
		print_family(out, format, reply->metrics[i]);
	}
	if (format == ZD_CTL_OPENMETRICS)
		fputs("# EOF\n", out);
	return 0;
}
