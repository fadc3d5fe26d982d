// SPDX-License-Identifier: Apache-2.0
/*
 * verb_events.c - zeroctl events: past events of sessions, jobs, gathers, leases and memory, one per line;
 * with --follow also future events.
 *
 * A line is made of an event's fields, for any kind: a daemon can have kinds that zeroctl does not know.
 */
#include "events.h"
#include "interrupt.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/text.h"
#include "proto/limits.h"

#define FOLLOW_S     0.25
#define NS_PER_S     1000000000ll
#define LINE_TEXT    1024
#define TIME_TEXT    32
#define OWNER_COLUMN 30u

struct printing {
	struct zd_ctl *ctl;
	struct zd_ctl_events at;
	int64_t offset_ns; /* of the clock of this machine's time to that of the events */
	uint64_t printed;
	bool job_ended; /* an event has reported the end of --job's job */
	int status;
};

/* ---- Texts --------------------------------------------------------------------------------------------- */

/* A line under construction. Text that does not fit is cut. */
struct line {
	char text[LINE_TEXT];
	size_t used;
};

static void add(struct line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct line *line, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	int bytes = vsnprintf(line->text + line->used, sizeof(line->text) - line->used, format, args);
	va_end(args);
	if (bytes > 0)
		line->used += (size_t)bytes;
	if (line->used >= sizeof(line->text))
		line->used = sizeof(line->text) - 1;
}

static void add_time(const struct printing *printing, uint64_t time_ns, struct line *line)
{
	const int64_t real_ns = (int64_t)time_ns + printing->offset_ns;
	const time_t seconds = (time_t)(real_ns / NS_PER_S);
	char text[TIME_TEXT];
	struct tm tm;
	if (!localtime_r(&seconds, &tm) || strftime(text, sizeof(text), "%H:%M:%S", &tm) == 0)
		text[0] = '\0';
	add(line, "%s.%06u", text, (unsigned)(real_ns % NS_PER_S / 1000));
}

/* "block_give" as "block give" */
static void add_words(struct line *line, const char *before, const char *name)
{
	const size_t begin = line->used;
	add(line, "%s%s", before, name);
	for (size_t i = begin; i < line->used; i++)
		line->text[i] = line->text[i] == '_' ? ' ' : line->text[i];
}

/* "lm/world/layers.0@3", in a column of its own */
static void add_owner(struct line *line, const Zd__Event *event)
{
	if (event->job_id || *event->group || *event->name)
		add(line, "%*s", line->used < OWNER_COLUMN ? (int)(OWNER_COLUMN - line->used) : 0, "");
	if (*event->job)
		add(line, " %s", event->job);
	else if (event->job_id)
		add(line, " job %llu", ZD_ID_NUMBER(event->job_id));
	if (*event->group)
		add(line, "/%s", event->group);
	if (*event->name)
		add(line, "%s%s", event->job_id ? "/" : " ", event->name);
	if (*event->group && event->session)
		add(line, "@%u", event->rank);
}

static void add_bytes(const struct zd_ctl *ctl, struct line *line, uint64_t bytes)
{
	char text[ZD_BYTES_TEXT];
	if (ctl->exact_bytes)
		add(line, ", %" PRIu64 " bytes", bytes);
	else
		add(line, ", %s", zd_bytes_text(bytes, text));
}

static void add_details(const struct zd_ctl *ctl, struct line *line, const Zd__Event *event)
{
	char age[ZD_CTL_AGE_TEXT];
	const bool is_wait = *event->request && strncmp(event->kind, "wait", 4) == 0;
	if (*event->request)
		add(line, ": %s", event->request);
	if (*event->reason)
		add_words(line, is_wait ? " for " : ": ", event->reason);
	if (event->bytes)
		add_bytes(ctl, line, event->bytes);
	if (event->n_devices == 1)
		add(line, ", device %u", event->devices[0]);
	if (event->n_devices == 2)
		add(line, ", device %u to %u", event->devices[0], event->devices[1]);
	if (event->segment)
		add(line, ", segment %u", event->segment);
	if (event->segment && strncmp(event->kind, "block", 5) == 0)
		add(line, " at %" PRIu64, event->offset);
	if (event->begin_ns && event->begin_ns <= event->time_ns)
		add(line, ", after %s", zd_ctl_age_text(event->time_ns - event->begin_ns, age));
	if (event->session)
		add(line, ", session %llu", ZD_ID_NUMBER(event->session));
	if (strcmp(event->kind, "commit") == 0)
		add(line, ", step %" PRIu64, event->number);
	else if (strcmp(event->kind, "update") == 0 || strcmp(event->kind, "publish") == 0)
		add(line, ", %" PRIu64 " unit%s", event->number, event->number == 1 ? "" : "s");
	else if (strncmp(event->kind, "session", 7) == 0)
		add(line, ", pid %" PRIu64, event->number);
}

static void print_line(const struct printing *printing, const Zd__Event *event)
{
	struct line line = {.used = 0};
	add_time(printing, event->time_ns, &line);
	add_words(&line, " ", event->kind);
	add_owner(&line, event);
	add_details(printing->ctl, &line, event);
	char *shown = zd_ctl_shown(zd_ctl_text("%s", line.text));
	printf("%s\n", shown);
	free(shown);
}

static int print_json(const struct printing *printing, const Zd__Event *event)
{
	json_t *row = json_pack("{s:i,s:I}", "schema", ZD_CTL_SCHEMA, "real_ns",
	                        (json_int_t)event->time_ns + printing->offset_ns);
	json_t *fields = zd_ctl_object(&event->base);
	if (!fields) {
		json_decref(row);
		return zd_ctl_fail(ZEROD_E_PROTOCOL, "PROTOCOL: the daemon's events are invalid");
	}
	(void)json_object_update(row, fields);
	(void)json_object_del(row, "owner");
	json_decref(fields);
	if (event->owner)
		(void)json_object_set_new(row, "uid", json_integer(ZD_CTL_INT(event->owner - 1)));
	int status = zd_ctl_print_json_text(stdout, row, JSON_COMPACT);
	json_decref(row);
	return status;
}

static int print_event(const Zd__Event *event, void *arg)
{
	struct printing *printing = arg;
	printing->printed++;
	printing->job_ended |= strcmp(event->kind, "job_end") == 0 &&
	                       strcmp(event->job, printing->ctl->job) == 0;
	if (printing->ctl->json)
		return print_json(printing, event);
	print_line(printing, event);
	return 0;
}

/* ---- The verb ------------------------------------------------------------------------------------------ */

/* Reads the pages up to the newest event. `tells`: reports missing events. */
static int read_on(struct printing *printing, bool tells)
{
	uint64_t until = 0;
	do {
		int status = zd_ctl_events_read(printing->ctl, &printing->at, print_event, printing);
		if (status)
			return status;
		until = until ? until : printing->at.last;
		if (tells && printing->at.lost) {
			fflush(stdout);
			fprintf(stderr, "%" PRIu64 " events were overwritten before they were read\n",
			        printing->at.lost);
		}
		tells = true;
	} while (printing->at.after < until && !ferror(stdout) && !zd_ctl_interrupted());
	fflush(stdout);
	return 0;
}

/* Whether --job names a job whose last event has been printed. Another job can have the name now. */
static bool is_over(struct printing *printing)
{
	json_t *jobs;
	bool over = false;
	if (!printing->job_ended || !*printing->ctl->job)
		return false;
	printing->job_ended = false;
	printing->status = zd_ctl_list_fetch(printing->ctl, &zd_ctl_jobs_listing, &jobs);
	if (printing->status)
		return true;
	over = json_array_size(jobs) == 0;
	json_decref(jobs);
	if (over)
		fprintf(stderr, "job '%s' has ended\n", printing->ctl->job);
	return over;
}

static int follow(struct printing *printing)
{
	struct zd_ctl *ctl = printing->ctl;
	int status = zd_ctl_check_job(ctl);
	if (!status && !ctl->has_since) { /* a page after the newest event has none */
		printing->at.after = UINT64_MAX;
		status = zd_ctl_events_read(ctl, &printing->at, print_event, printing);
	}
	zd_ctl_catch_signals();
	while (!status && !zd_ctl_interrupted()) {
		status = read_on(printing, true);
		if (status || ferror(stdout) || is_over(printing) || zd_ctl_reader_is_gone(STDOUT_FILENO))
			break;
		zd_ctl_wait(FOLLOW_S, STDOUT_FILENO);
	}
	return status ? status : printing->status;
}

int zd_ctl_events(struct zd_ctl *ctl)
{
	struct printing printing = {
	        .ctl = ctl, .offset_ns = zd_ctl_clock_offset_ns(), .at = {.after = ctl->since}};
	if (ctl->follow)
		return follow(&printing);
	const char *job = ctl->job;
	int status = zd_ctl_check_past_job(ctl);
	if (!status)
		status = read_on(&printing, ctl->has_since);
	if (status || printing.printed > 0)
		return status;
	/* If a job has no stored event, its name may not exist. */
	zd_ctl_keep_job(ctl, NULL);
	ctl->job = job;
	return zd_ctl_check_job(ctl);
}
