// SPDX-License-Identifier: Apache-2.0
/*
 * verb_trace.c - zeroctl trace: a timeline of the events of the next seconds, as a file for Perfetto.
 *
 * The file is written while the events are read, under another name. It is also complete after an interrupt.
 * Perfetto also reads it compressed.
 */
#include "events.h"
#include "interrupt.h"
#include "output.h"
#include "trace.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#define POLL_S 0.02

struct tracing {
	struct zd_ctl *ctl;
	struct zd_ctl_events at;
	struct zd_ctl_trace *trace;
	struct zd_ctl_output output;
	uint64_t lost;
};

static double now_s(void)
{
	return (double)zd_ctl_now_ns() / 1e9;
}

static int take_event(const Zd__Event *event, void *arg)
{
	struct tracing *tracing = arg;
	zd_ctl_trace_add(tracing->trace, event);
	return 0;
}

/* Reads up to the newest event of now. */
static int read_on(struct tracing *tracing)
{
	uint64_t until = 0;
	do {
		int status = zd_ctl_events_read(tracing->ctl, &tracing->at, take_event, tracing);
		if (status)
			return status;
		until = until ? until : tracing->at.last;
		zd_ctl_trace_lose(tracing->trace, tracing->at.lost);
		tracing->lost += tracing->at.lost;
	} while (tracing->at.after < until && !ferror(tracing->output.file));
	return 0;
}

static int run(struct tracing *tracing)
{
	const struct zd_ctl *ctl = tracing->ctl;
	const double end_s = now_s() + ctl->seconds;
	int status = 0;
	zd_ctl_catch_signals();
	while (!status && !ferror(tracing->output.file) && !zd_ctl_interrupted()) {
		const double left_s = end_s - now_s();
		if (left_s <= 0)
			break;
		zd_ctl_wait(left_s < POLL_S ? left_s : POLL_S, -1);
		status = read_on(tracing);
	}
	return status;
}

static bool is_compressed(const char *path)
{
	const char *end = strrchr(path, '.');
	return end && strcmp(end, ".gz") == 0;
}

/* Events from before the trace are skipped. No output is written before the daemon has answered. */
static int begin(struct tracing *tracing)
{
	struct zd_ctl *ctl = tracing->ctl;
	tracing->at.after = UINT64_MAX;
	tracing->at.copies = true;
	int status = zd_ctl_check_job(ctl);
	if (!status)
		status = zd_ctl_events_read(ctl, &tracing->at, take_event, tracing);
	if (status)
		return status;
	status = zd_ctl_output_open(&tracing->output, ctl->output, is_compressed(ctl->output));
	if (status)
		return status;
	tracing->trace = zd_ctl_trace_new(tracing->output.file, tracing->at.now_ns,
	                                  (int64_t)tracing->at.now_ns + zd_ctl_clock_offset_ns());
	return 0;
}

int zd_ctl_trace(struct zd_ctl *ctl)
{
	struct tracing tracing = {.ctl = ctl};
	if (!ctl->output)
		return zd_ctl_fail(ZD_CTL_USAGE, "trace: expected -o FILE; - is standard output");
	int status = begin(&tracing);
	if (status)
		return status;
	status = run(&tracing);
	const uint64_t count = zd_ctl_trace_count(tracing.trace);
	zd_ctl_trace_end(tracing.trace, tracing.at.now_ns);
	/* The part from before the daemon's end is also a trace. */
	int written = zd_ctl_output_close(&tracing.output, 0);
	if (written)
		return written;
	if (tracing.lost)
		fprintf(stderr, "%" PRIu64 " events were overwritten before they were read\n", tracing.lost);
	if (strcmp(ctl->output, "-") != 0)
		fprintf(stderr, "%s: %" PRIu64 " entries; open it with https://ui.perfetto.dev\n",
		        ctl->output, count);
	return status;
}
