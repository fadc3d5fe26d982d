// SPDX-License-Identifier: Apache-2.0
/*
 * main.c - the command line of zeroctl: a table of verbs, a table of options, and help made from both.
 *
 * Options can stand before or after the verb. Each verb names the options that it accepts. Any other is an
 * error, so that users cannot rely on a filter without effect.
 */
#include "ctl.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <getopt.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/std_fds.h"
#include "base/text.h"
#include "proto/limits.h"

enum option_bit {
	OPT_SOCKET = 1 << 0,
	OPT_JSON = 1 << 1,
	OPT_BYTES = 1 << 2,
	OPT_JOB = 1 << 3,
	OPT_SORT = 1 << 4,
	OPT_INTERVAL = 1 << 5,
	OPT_COUNT = 1 << 6,
	OPT_HELP = 1 << 7,
	OPT_VERSION = 1 << 8,
	OPT_DEVICE = 1 << 9,
	OPT_KEEP = 1 << 10,
	OPT_COLUMNS = 1 << 11,
	OPT_WIDE = 1 << 12,
	OPT_RAW = 1 << 13,
	OPT_NO_HEADINGS = 1 << 14,
	OPT_HTTP = 1 << 15,
	OPT_DELAY = 1 << 16,
	OPT_FORMAT = 1 << 17,
	OPT_FOLLOW = 1 << 20,
	OPT_SINCE = 1 << 21,
	OPT_SECONDS = 1 << 22,
	OPT_OUTPUT = 1 << 23,
	OPT_END = 1 << 27,
};
#define OPT_ALWAYS (OPT_SOCKET | OPT_HELP | OPT_VERSION)
#define OPT_TABLE  (OPT_COLUMNS | OPT_WIDE | OPT_RAW | OPT_NO_HEADINGS)
#define OPT_LIST   (OPT_JSON | OPT_BYTES | OPT_SORT | OPT_TABLE)

static const struct {
	const char *name, *value;
	enum option_bit bit;
	const char *help;
} options[] = {
        {"socket", "PATH", OPT_SOCKET,
         "the daemon's socket (default: $ZEROD_SOCKET, otherwise " ZD_DEFAULT_SOCKET
         ", otherwise that of your only job's own daemon)"},
        {"json", NULL, OPT_JSON, "an object with a schema version instead of a table"},
        {"bytes", NULL, OPT_BYTES, "exact bytes instead of KiB, MiB, GiB"},
        {"columns", "A,B,...", OPT_COLUMNS, "only these columns, in this order"},
        {"wide", NULL, OPT_WIDE, "whole lines, even if the terminal is narrower"},
        {"raw", NULL, OPT_RAW,
         "one blank between columns, others as \\x20, with exact bytes and nanoseconds"},
        {"no-headings", NULL, OPT_NO_HEADINGS, "rows without the titles of the columns"},
        {"job", "NAME", OPT_JOB, "only rows of this job"},
        {"sort", "COLUMN", OPT_SORT, "sort by this column, or with -COLUMN from the highest"},
        {"interval", "SECONDS", OPT_INTERVAL, "time between two pictures (default: 2)"},
        {"delay", "SECONDS", OPT_DELAY, "time between two samples of top (default: 2)"},
        {"count", "N", OPT_COUNT, "end after N pictures (default: until interrupted)"},
        {"device", "N", OPT_DEVICE, "only this device (default: all)"},
        {"keep", "BYTES", OPT_KEEP, "bytes that may remain on each device, such as 2G (default: 0)"},
        {"http", NULL, OPT_HTTP, "answer HTTP requests for /metrics from standard input"},
        {"format", "NAME", OPT_FORMAT, "openmetrics, or prometheus: the text format 0.0.4"},
        {"follow", NULL, OPT_FOLLOW, "only events from now on, until interrupted or until --job's job ends"},
        {"since", "SEQ", OPT_SINCE, "only events after this number"},
        {"seconds", "N", OPT_SECONDS, "duration (default: 10)"},
        {"output", "FILE", OPT_OUTPUT, "the file to write (also -o), or - for standard output"},
        {"end", "SOCKET", OPT_END, "end the holder of this daemon's socket, and free the memory"},
        {"help", NULL, OPT_HELP, "this text"},
        {"version", NULL, OPT_VERSION, "the program's version"},
};

static const struct verb {
	const char *name;
	int (*run)(struct zd_ctl *ctl);
	const char *help;
	unsigned options;                     /* besides OPT_ALWAYS */
	const char *arg;                      /* the one argument, NULL: none */
	const struct zd_ctl_listing *listing; /* NULL: not of a table */
} verbs[] = {
        {"status", zd_ctl_status, "the daemon: version, uptime, totals, bytes by purpose",
         OPT_JSON | OPT_BYTES, NULL, NULL},
        {"self-test", zd_ctl_self_test, "two ranks gather and reduce, compare the bytes and free all",
         OPT_JSON | OPT_DEVICE, NULL, NULL},
        {"devices", NULL, "arenas, blocks and budgets of each device", OPT_LIST, NULL,
         &zd_ctl_devices_listing},
        {"jobs", NULL, "jobs and their charged memory", OPT_LIST | OPT_JOB, NULL, &zd_ctl_jobs_listing},
        {"sessions", NULL, "connected processes and the reasons of their waits", OPT_LIST | OPT_JOB, NULL,
         &zd_ctl_sessions_listing},
        {"readers", NULL, "processes that read commits of a job, and their last steps", OPT_LIST | OPT_JOB,
         NULL, &zd_ctl_readers_listing},
        {"groups", NULL, "groups, their ranks and last committed step", OPT_LIST | OPT_JOB, NULL,
         &zd_ctl_groups_listing},
        {"units", NULL, "registered units, versions and gathered buffers", OPT_LIST | OPT_JOB, NULL,
         &zd_ctl_units_listing},
        {"buffers", NULL, "every live gathered buffer and its holders", OPT_LIST | OPT_JOB, NULL,
         &zd_ctl_buffers_listing},
        {"scopes", NULL, "forward scopes, claims and contexts, and their buffers", OPT_LIST | OPT_JOB, NULL,
         &zd_ctl_scopes_listing},
        {"buckets", NULL, "gradient buckets and the reasons of their waits", OPT_LIST | OPT_JOB, NULL,
         &zd_ctl_buckets_listing},
        {"alloc", NULL, "plain allocations", OPT_LIST | OPT_JOB, NULL, &zd_ctl_allocations_listing},
        {"map", zd_ctl_map, "a device's arena: segments, blocks, holes, their owners and pins",
         OPT_LIST | OPT_DEVICE, NULL, NULL},
        {"snapshot", zd_ctl_snapshot, "an HTML page of all memory: the map, its history, holders and waits",
         OPT_OUTPUT | OPT_JSON | OPT_JOB | OPT_DEVICE, NULL, NULL},
        {"explain", zd_ctl_explain, "an object's holders, its wait, and how to free it", OPT_JSON, "OBJECT",
         NULL},
        {"watch", zd_ctl_watch, "status and buffers, repeatedly",
         OPT_LIST | OPT_JOB | OPT_INTERVAL | OPT_COUNT, NULL, NULL},
        {"top", zd_ctl_top, "devices, sessions and waits, live on the terminal",
         OPT_JOB | OPT_SORT | OPT_DELAY, NULL, NULL},
        {"metrics", zd_ctl_metrics, "counters and histograms for monitoring, as text for Prometheus",
         OPT_HTTP | OPT_FORMAT, NULL, NULL},
        {"events", zd_ctl_events, "past events of sessions, jobs, gathers, leases and memory",
         OPT_JSON | OPT_BYTES | OPT_JOB | OPT_FOLLOW | OPT_SINCE, NULL, NULL},
        {"trace", zd_ctl_trace, "a timeline of gathers, copies, leases and waits, for Perfetto",
         OPT_JOB | OPT_SECONDS | OPT_OUTPUT, NULL, NULL},
        {"trim", zd_ctl_trim, "release unused memory of the daemon to the devices",
         OPT_JSON | OPT_BYTES | OPT_TABLE | OPT_DEVICE | OPT_KEEP, NULL, NULL},
        {"drain", zd_ctl_drain, "reject new jobs and ranks. Running jobs continue", 0, NULL, NULL},
        {"undrain", zd_ctl_undrain, "end a drain: jobs can start and ranks can join again", 0, NULL, NULL},
        {"kill-session", zd_ctl_kill_session, "end a session, and free its leases, buckets and allocations",
         0, "SESSION", NULL},
        {"abort-group", zd_ctl_abort_group, "make all requests that wait in a group fail with ABORTED", 0,
         "GROUP", NULL},
        {"end-job", zd_ctl_end_job, "end a durable job without sessions, and free its shards", 0, "JOB",
         NULL},
        {"holders", zd_ctl_holders, "processes that preserve durable jobs across restarts of daemons",
         OPT_LIST | OPT_END, NULL, NULL},
        {"kill-job", zd_ctl_kill_job, "end all sessions of a job, and a durable job's memory", 0, "JOB",
         NULL},
        {"help", NULL, "this text, or a verb's options", 0, "[VERB]", NULL},
};

static void print_options(FILE *out, unsigned mask)
{
	for (size_t i = 0; i < ZD_ARRAY_LEN(options); i++) {
		if (!(options[i].bit & mask))
			continue;
		char left[32];
		snprintf(left, sizeof(left), "--%s %s", options[i].name,
		         options[i].value ? options[i].value : "");
		fprintf(out, "  %-21s %s\n", left, options[i].help);
	}
}

static void print_help(FILE *out)
{
	fputs("Usage: zeroctl [OPTION...] VERB [ARGUMENT]\n"
	      "Shows and administers the memory of this node's zerod daemon.\n\nVerbs\n",
	      out);
	for (size_t i = 0; i < ZD_ARRAY_LEN(verbs); i++) {
		char left[32];
		snprintf(left, sizeof(left), "%s %s", verbs[i].name, verbs[i].arg ? verbs[i].arg : "");
		fprintf(out, "  %-21s %s\n", left, verbs[i].help);
	}
	fputs("\nOptions\n", out);
	print_options(out, ~0u);
	fputs("\n`zeroctl VERB --help` lists the options of one verb. The exit code is 0, 2 for wrong usage, "
	      "or the\n"
	      "number of the daemon's status: 3 NOT_FOUND, 21 PERMISSION, 25 no daemon listens; zeroctl(1) "
	      "lists all.\n",
	      out);
}

static void print_verb_help(const struct verb *verb)
{
	printf("Usage: zeroctl %s [OPTION...]%s%s\n", verb->name, verb->arg ? " " : "",
	       verb->arg ? verb->arg : "");
	printf("%c%s.\n", toupper((unsigned char)verb->help[0]), verb->help + 1);
	if (verb->arg && strcmp(verb->arg, "SESSION") == 0)
		puts("SESSION is an id of `zeroctl sessions`, or USER/ID if several users have it.");
	if (verb->arg && strcmp(verb->arg, "GROUP") == 0)
		puts("GROUP is an id of `zeroctl groups`, or JOB/GROUP by their names.");
	if (verb->arg && strcmp(verb->arg, "JOB") == 0)
		puts("JOB is an id of `zeroctl jobs`, a name, USER/NAME or UID/NAME.");
	if (verb->arg && strcmp(verb->arg, "OBJECT") == 0)
		puts("OBJECT is a job as NAME, USER/NAME or UID/NAME, a group as JOB/GROUP, a unit as "
		     "JOB/GROUP/UNIT or JOB/GROUP/UNIT@RANK, or the id of a session.");
	puts("\nOptions");
	print_options(stdout, OPT_ALWAYS | verb->options);
}

static const struct verb *find_verb(const char *name)
{
	struct zd_ctl_near near = {.name = name};
	for (size_t i = 0; i < ZD_ARRAY_LEN(verbs); i++) {
		if (strcmp(verbs[i].name, name) == 0) {
			free(near.found);
			return &verbs[i];
		}
		zd_ctl_near_offer(&near, verbs[i].name);
	}
	char *what = zd_ctl_text("no verb '%s'%s", name, near.found ? "" : "; `zeroctl --help` lists them");
	(void)zd_ctl_near_fail(&near, ZD_CTL_USAGE, what);
	free(what);
	return NULL;
}

/* ---- Values of options: each parser prints its failure ------------------------------------------------- */

static int fail_value(const char *option, const char *expected, const char *text)
{
	return zd_ctl_fail(ZD_CTL_USAGE, "--%s: expected %s, found '%s'", option, expected, text);
}

static int parse_seconds(const char *option, const char *text, double least, double most,
                         const char *expected, double *out)
{
	char *end;
	const double seconds = strtod(text, &end);
	if (end == text || *end || !isfinite(seconds) || seconds < least || seconds > most)
		return fail_value(option, expected, text);
	*out = seconds;
	return 0;
}

static int parse_number(const char *option, const char *text, uint64_t least, uint64_t most,
                        const char *expected, uint64_t *out)
{
	char *end;
	errno = 0;
	const unsigned long long number = strtoull(text, &end, 10);
	if (!isdigit((unsigned char)*text) || *end || errno || number < least || number > most)
		return fail_value(option, expected, text);
	*out = number;
	return 0;
}

static int parse_text(const char *option, const char *text, const char *expected, const char **out)
{
	*out = text;
	return *text ? 0 : zd_ctl_fail(ZD_CTL_USAGE, "--%s: expected %s", option, expected);
}

static int parse_device(struct zd_ctl *ctl, const char *text)
{
	char expected[32];
	uint64_t device = 0;
	(void)snprintf(expected, sizeof(expected), "a number below %u", ZD_MAX_DEVICES);
	int status = parse_number("device", text, 0, ZD_MAX_DEVICES - 1, expected, &device);
	ctl->device = (long long)device;
	return status;
}

static int parse_keep(struct zd_ctl *ctl, const char *text)
{
	struct zd_err err;
	if (zd_bytes_parse(text, &ctl->keep_bytes, &err))
		return zd_ctl_fail(ZD_CTL_USAGE, "--keep: %s", err.text);
	return 0;
}

static int parse_format(struct zd_ctl *ctl, const char *text)
{
	ctl->prometheus = strcmp(text, "prometheus") == 0;
	if (ctl->prometheus || strcmp(text, "openmetrics") == 0)
		return 0;
	return fail_value("format", "openmetrics or prometheus", text);
}

static int take_option(struct zd_ctl *ctl, enum option_bit bit, const char *value)
{
	ctl->json |= bit == OPT_JSON;
	ctl->exact_bytes |= bit == OPT_BYTES;
	ctl->http |= bit == OPT_HTTP;
	ctl->follow |= bit == OPT_FOLLOW;
	ctl->wide |= bit == OPT_WIDE;
	ctl->raw |= bit == OPT_RAW;
	ctl->no_headings |= bit == OPT_NO_HEADINGS;
	ctl->socket_given |= bit == OPT_SOCKET;
	ctl->has_since |= bit == OPT_SINCE;
	switch (bit) {
	case OPT_SOCKET:
		ctl->socket_path = value;
		return 0;
	case OPT_SORT:
		ctl->sort = value;
		return 0;
	case OPT_JOB:
		return parse_text("job", value, "a name", &ctl->job);
	case OPT_OUTPUT:
		return parse_text("output", value, "a file, or -", &ctl->output);
	case OPT_END:
		return parse_text("end", value, "the path of a socket", &ctl->end);
	case OPT_COLUMNS:
		return parse_text("columns", value, "titles of columns", &ctl->columns);
	case OPT_INTERVAL:
	case OPT_DELAY:
		return parse_seconds(bit == OPT_DELAY ? "delay" : "interval", value, 0.05, 86400,
		                     "0.05 to 86400 seconds", &ctl->interval_s);
	case OPT_SECONDS:
		return parse_seconds("seconds", value, DBL_TRUE_MIN, 3600, "more than 0 and at most 3600",
		                     &ctl->seconds);
	case OPT_COUNT:
		return parse_number("count", value, 1, UINT64_MAX, "a number from 1", &ctl->count);
	case OPT_SINCE:
		return parse_number("since", value, 0, UINT64_MAX, "an event's number", &ctl->since);
	case OPT_DEVICE:
		return parse_device(ctl, value);
	case OPT_KEEP:
		return parse_keep(ctl, value);
	case OPT_FORMAT:
		return parse_format(ctl, value);
	default: /* has no value */
		return 0;
	}
}

/* Fills `ctl`, with the verb and its arguments moved to the front of argv. Sets a bit in `given` for each
 * option. */
static int parse(struct zd_ctl *ctl, int argc, char **argv, unsigned *given)
{
	struct option table[ZD_ARRAY_LEN(options) + 1] = {{0}};
	for (size_t i = 0; i < ZD_ARRAY_LEN(options); i++)
		table[i] = (struct option){.name = options[i].name,
		                           .has_arg = options[i].value ? required_argument : no_argument,
		                           .val = 256 + (int)i};
	unsigned seen = 0;
	int nwords = 0, code;
	/* '-' returns words as option 1, at any position and regardless of POSIXLY_CORRECT. */
	while ((code = getopt_long(argc, argv, "-hVo:", table, NULL)) != -1) {
		if (code == 1) {
			argv[nwords++] = optarg;
			continue;
		}
		if (code == '?') {
			fputs("`zeroctl --help` lists the options.\n", stderr);
			return ZD_CTL_USAGE;
		}
		enum option_bit bit = code == 'h'   ? OPT_HELP
		                      : code == 'V' ? OPT_VERSION
		                      : code == 'o' ? OPT_OUTPUT
		                                    : options[code - 256].bit;
		seen |= bit;
		int status = take_option(ctl, bit, optarg);
		if (status)
			return status;
	}
	while (optind < argc)
		argv[nwords++] = argv[optind++];
	ctl->verb = nwords ? argv[0] : NULL;
	ctl->args = argv + 1;
	ctl->nargs = nwords ? nwords - 1 : 0;
	*given = seen;
	return 0;
}

static int check_usage(const struct zd_ctl *ctl, const struct verb *verb, unsigned given)
{
	for (size_t i = 0; i < ZD_ARRAY_LEN(options); i++)
		if (given & options[i].bit & ~(OPT_ALWAYS | verb->options))
			return zd_ctl_fail(ZD_CTL_USAGE, "%s takes no --%s", verb->name, options[i].name);
	for (size_t i = 0; ctl->json && i < ZD_ARRAY_LEN(options); i++)
		if (given & options[i].bit & OPT_TABLE)
			return zd_ctl_fail(ZD_CTL_USAGE, "--%s is for tables: --json has all keys",
			                   options[i].name);
	if (verb->arg && ctl->nargs != 1)
		return zd_ctl_fail(ZD_CTL_USAGE, "%s takes one argument, %s; %d given", verb->name, verb->arg,
		                   ctl->nargs);
	if (!verb->arg && ctl->nargs)
		return zd_ctl_fail(ZD_CTL_USAGE, "%s takes no argument, found '%s'", verb->name,
		                   ctl->args[0]);
	return 0;
}

static int run_verb(struct zd_ctl *ctl, int argc, char **argv)
{
	unsigned given;
	int status = parse(ctl, argc, argv, &given);
	if (status)
		return status;
	if (given & OPT_VERSION) {
		puts("zeroctl " ZEROD_VERSION_TEXT);
		return 0;
	}
	if (!ctl->verb) {
		print_help(given & OPT_HELP ? stdout : stderr);
		return given & OPT_HELP ? 0 : ZD_CTL_USAGE;
	}
	const struct verb *verb = find_verb(ctl->verb);
	if (!verb)
		return ZD_CTL_USAGE;
	const bool helps = !verb->run && !verb->listing; /* `help VERB` is `VERB --help` */
	if (helps && ctl->nargs == 0) {
		print_help(stdout);
		return 0;
	}
	if (helps && ctl->nargs > 1)
		return zd_ctl_fail(ZD_CTL_USAGE, "help takes one argument, a verb; %d given", ctl->nargs);
	if (helps)
		verb = find_verb(ctl->args[0]);
	if (!verb)
		return ZD_CTL_USAGE;
	if (helps || (given & OPT_HELP)) {
		print_verb_help(verb);
		return 0;
	}
	status = check_usage(ctl, verb, given);
	if (status)
		return status;
	return verb->listing ? zd_ctl_list_run(ctl, verb->listing) : verb->run(ctl);
}

int main(int argc, char **argv)
{
	const char *socket_path = getenv("ZEROD_SOCKET");
	struct zd_ctl ctl = {
	        .socket_path = socket_path && *socket_path ? socket_path : ZD_DEFAULT_SOCKET,
	        .socket_given = socket_path && *socket_path,
	        .job = "",
	        .interval_s = 2,
	        .seconds = 10,
	        .device = -1,
	        .deadline_ms = ZD_CTL_DEADLINE_MS,
	};
	zd_std_fds_fill();
	/* Names are UTF-8 in every locale of the terminal's user. */
	if (!setlocale(LC_CTYPE, "C.UTF-8"))
		(void)setlocale(LC_CTYPE, "");
	int status = run_verb(&ctl, argc, argv);
	zerod_close(ctl.client);
	free(ctl.job_owned);
	/* A full disk must not look like an empty table. */
	if (fflush(stdout) && status == 0)
		status = zd_ctl_fail(ZEROD_E_SYSTEM, "cannot write the output: %s", strerror(errno));
	else if (ferror(stdout) && status == 0) /* an earlier failure, whose reason is lost */
		status = zd_ctl_fail(ZEROD_E_SYSTEM, "cannot write the output");
	return -status;
}
