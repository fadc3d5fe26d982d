/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl.h - the parts that zeroctl's verbs share: the invocation, listings, tables.
 *
 * A reading verb converts each row of the daemon's answer to a JSON object; --json prints the objects, and
 * the table is printed from the same objects, so that both always agree.
 *
 * The function that detects a failure prints it with zd_ctl_fail() and returns the resulting status. Callers
 * return the status without a further message, and main() exits with its positive value.
 */
#ifndef ZD_CTL_H
#define ZD_CTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include <jansson.h>
#include <zerod.h>

#include "proto/envelope.h"

#define ZD_CTL_SCHEMA      1     /* of --json; raised when a key changes its meaning or is removed */
#define ZD_CTL_DEADLINE_MS 10000 /* for each request: a daemon that answers no sooner is in trouble */
/* Wrong usage of the command line: between the statuses of zerod.h, which reserves it. */
#define ZD_CTL_USAGE (-2)

/* Jansson's integers are signed. Every count and byte figure of the protocol is far below 2^63. */
#define ZD_CTL_INT(value) ((json_int_t)(value))

/* ---- One invocation ------------------------------------------------------------------------------------ */

struct zd_ctl {
	const char *verb;
	int nargs;
	char **args;             /* the arguments after the verb, without options */
	const char *socket_path; /* never NULL */
	bool socket_given;
	const char *job;     /* as given, zd_ctl_check_job() makes it a name; "": all */
	uint64_t job_owner;  /* the job's uid + 1; 0: jobs of this name of all users */
	char *job_owned;     /* the name that zd_ctl_keep_job() has made; NULL: none */
	const char *sort;    /* NULL: the daemon's order */
	const char *columns; /* the titles or keys of those to show, with commas between; NULL: all */
	bool json, exact_bytes, wide, raw, no_headings;
	double interval_s;    /* watch, top */
	uint64_t count;       /* watch; 0: until interrupted */
	long long device;     /* trim, map, snapshot, self-test; -1: all */
	uint64_t keep_bytes;  /* trim */
	bool http;            /* metrics */
	bool prometheus;      /* metrics: the older format */
	uint32_t deadline_ms; /* of each request; ZD_CTL_DEADLINE_MS but in `top` */
	bool follow;          /* events */
	bool has_since;       /* events */
	uint64_t since;       /* events; 0 without --since */
	double seconds;       /* trace */
	const char *end;      /* holders; NULL: not given */
	const char *output;   /* trace, snapshot; "-": standard output; NULL: not given */
	json_int_t pid_here;  /* of this process, as the daemon sees it; 0 until zd_ctl_add_processes() */
	zerod_client *client; /* NULL until zd_ctl_connect() */
};

/* Prints "zeroctl: <text>" to stderr and returns `status`. */
int zd_ctl_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* While failures are kept, zd_ctl_fail() prints nothing, and zd_ctl_kept_failure() returns the last text. */
void zd_ctl_keep_failures(bool keep);
const char *zd_ctl_kept_failure(void) __attribute__((returns_nonnull));

/* Finds the sockets of daemons that jobs of this user have started for themselves, as lines of a new text.
 * Returns how many there are. */
unsigned zd_ctl_private_sockets(char **paths);
/* Connects unless that was done: if no socket was given and no daemon serves the system, to the only daemon
 * of a job of this user. The message for a missing daemon has the socket's path and a remedy. */
int zd_ctl_connect(struct zd_ctl *ctl) __attribute__((warn_unused_result));

/* Sends the request. `fn` receives the reply if its status is 0. */
int zd_ctl_call(struct zd_ctl *ctl, Zd__Request *request, int (*fn)(const Zd__Reply *reply, void *arg),
                void *arg) __attribute__((warn_unused_result));

static inline uint64_t zd_ctl_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- Texts --------------------------------------------------------------------------------------------- */

/* Formats like asprintf(), but ends the program if there is no memory. */
char *zd_ctl_text(const char *format, ...) __attribute__((format(printf, 1, 2), returns_nonnull));
/* Returns `text` followed by the formatted text. Takes ownership of `text`. */
char *zd_ctl_append(char *text, const char *format, ...)
        __attribute__((format(printf, 2, 3), returns_nonnull));
/* Returns the text with its hidden characters escaped (zd_text_escape()). Takes ownership of `text`. */
char *zd_ctl_shown(char *text) __attribute__((returns_nonnull));
/* Prints a text of lines; other hidden characters are escaped. */
void zd_ctl_print_shown(FILE *out, const char *text);
/* Returns the number of columns of a UTF-8 text on a terminal. */
size_t zd_ctl_text_width(const char *text);
/* Returns the text, with an ellipsis as its last character if it has more columns. Takes ownership. */
char *zd_ctl_cut(char *text, size_t width) __attribute__((returns_nonnull));
/* "350 us", "4.2 s", "3m07s", "5h12m", "9d03h" */
#define ZD_CTL_AGE_TEXT 32
char *zd_ctl_age_text(uint64_t ns, char out[ZD_CTL_AGE_TEXT]);

/* Prints one text of JSON with these flags of jansson, and a newline. Hidden characters are escaped, as JSON
 * allows, and all ids in `object` become their numbers. */
int zd_ctl_print_json_text(FILE *out, json_t *object, size_t flags) __attribute__((warn_unused_result));
/* Prints {"schema": 1, "verb": ..., "rows": rows}. Takes ownership of `rows`. */
int zd_ctl_print_json(FILE *out, const char *verb, json_t *rows) __attribute__((warn_unused_result));

/* ---- Columns and tables -------------------------------------------------------------------------------- */

enum zd_ctl_format {
	ZD_CTL_TEXT,
	ZD_CTL_STATE, /* a text that may have a colour */
	ZD_CTL_COUNT,
	ZD_CTL_ID, /* of an object: its number is shown */
	ZD_CTL_BYTES,
	ZD_CTL_AGE,     /* nanoseconds */
	ZD_CTL_PERCENT, /* key "part/whole": both are keys */
	ZD_CTL_YES_NO,
	ZD_CTL_LIST,   /* an array of strings */
	ZD_CTL_CUSTOM, /* the column's own function, left-aligned */
};

struct zd_ctl_column {
	const char *title; /* heads the column, ASCII; NULL ends an array of columns */
	const char *key;   /* of the row's object; "usage.peak_bytes" reaches into an inner one */
	enum zd_ctl_format format;
	unsigned spare; /* if a terminal is too narrow, columns with a higher one are left out first */
	char *(*text)(const json_t *row); /* ZD_CTL_CUSTOM: returns a text from malloc() */
};

/* Returns what the cell says, not escaped; the caller frees it. */
char *zd_ctl_cell_text(const struct zd_ctl *ctl, const json_t *row, const struct zd_ctl_column *column)
        __attribute__((returns_nonnull));
bool zd_ctl_is_number(const struct zd_ctl_column *column);
size_t zd_ctl_count_columns(const struct zd_ctl_column *columns);
/* Returns a new array of the columns that --columns names, in that order; without it of all. An unknown
 * column is a USAGE failure. `chosen` NULL: only checks. */
int zd_ctl_choose_columns(const struct zd_ctl *ctl, const struct zd_ctl_column *columns,
                          struct zd_ctl_column **chosen) __attribute__((warn_unused_result));
/* Sorts the array `rows` by the column that `sort` names by title or key, without regard to case. A '-'
 * before the name reverses the order. Rows that compare equal remain in their order. An unknown column is a
 * USAGE failure. */
int zd_ctl_sort(json_t *rows, const struct zd_ctl_column *columns, const char *sort)
        __attribute__((warn_unused_result));

/* A column to fit into a line: fit.c. */
struct zd_ctl_fit {
	size_t width, least; /* it is cut to `least` and no further */
	unsigned spare;      /* columns with a higher one are left out first */
	bool shown;
};
#define ZD_CTL_GAP_WIDTH 2u /* between two columns: sizes have a blank inside */
/* Cuts the widths, and leaves columns out, until the line has at most `total` columns. */
void zd_ctl_fit(struct zd_ctl_fit *columns, size_t count, size_t total);

/* Prints a head line and a line for each row, with numbers to the right, all else to the left. */
int zd_ctl_print_table(const struct zd_ctl *ctl, const json_t *rows, const struct zd_ctl_column *columns)
        __attribute__((warn_unused_result));
/* Prints an object as "title  value" lines. */
void zd_ctl_print_record(const struct zd_ctl *ctl, const json_t *row, const struct zd_ctl_column *columns);

/* ---- Listings ------------------------------------------------------------------------------------------ */

struct zd_ctl_listing {
	Zd__Table table;
	void (*amend)(json_t *row); /* changes the row; NULL: no change */
	const struct zd_ctl_column *columns;
	void (*complete)(struct zd_ctl *ctl, json_t *rows); /* adds facts of this process; NULL: none */
	const char *plural; /* "live buffers": for the message of an empty table */
};

/* Fetches all rows of the listing, page by page, as a new array. */
int zd_ctl_list_fetch(struct zd_ctl *ctl, const struct zd_ctl_listing *listing, json_t **rows)
        __attribute__((warn_unused_result));
/* The same of the segment's blocks. */
int zd_ctl_list_fetch_of(struct zd_ctl *ctl, const struct zd_ctl_listing *listing, uint32_t segment,
                         json_t **rows) __attribute__((warn_unused_result));
/* Prints the rows as a table, or to stderr that there are none, unless `plural` is NULL. */
int zd_ctl_list_print(const struct zd_ctl *ctl, const json_t *rows, const struct zd_ctl_column *columns,
                      const char *plural) __attribute__((warn_unused_result));
/* Sorts the rows and prints them, also as JSON. Takes ownership of `rows`. */
int zd_ctl_print_rows(const struct zd_ctl *ctl, json_t *rows, const struct zd_ctl_column *columns,
                      const char *plural) __attribute__((warn_unused_result));
/* Fetches, sorts and prints a listing, as most reading verbs do. */
int zd_ctl_list_run(struct zd_ctl *ctl, const struct zd_ctl_listing *listing)
        __attribute__((warn_unused_result));

/* Adds to each session's row "process" ("running", "stopped", "traced", "zombie", "gone", "unknown") and
 * "process_unknown", why it is. */
void zd_ctl_add_processes(struct zd_ctl *ctl, json_t *sessions);
/* How long the process has run; 0: there is none. */
uint64_t zd_ctl_process_age_ns(json_int_t pid);

/* ---- Rows: object.c ------------------------------------------------------------------------------------ */

/* Returns the member of the row; "" or 0: it has none. */
const char *zd_ctl_string(const json_t *row, const char *key) __attribute__((returns_nonnull));
json_int_t zd_ctl_integer(const json_t *row, const char *key);
/* Whether the member is this text. */
bool zd_ctl_is(const json_t *row, const char *key, const char *text);
/* Finds the row with this id; NULL: none. */
json_t *zd_ctl_row_of_id(const json_t *rows, json_int_t id);
/* Finds the member with this rank in the groups of the name that have not ended; NULL: none. */
json_t *zd_ctl_find_rank(const json_t *groups, const char *job, const char *name, json_int_t rank);
/* The ranks of the group without a session: "1, 3". The caller frees it. */
char *zd_ctl_missing_ranks(const json_t *group) __attribute__((returns_nonnull));

/* ---- Names: name.c ------------------------------------------------------------------------------------- */

/* The candidate that was probably meant: an abbreviation, or at most a third of its letters wrong. */
struct zd_ctl_near {
	const char *name;
	char *found; /* NULL: none; freed by zd_ctl_near_fail() */
	size_t distance;
};

void zd_ctl_near_offer(struct zd_ctl_near *near, const char *candidate);
/* Prints `what` and, if there is one, the candidate, and returns `status`. */
int zd_ctl_near_fail(struct zd_ctl_near *near, int status, const char *what);

/* The name of the user; NULL: the uid has none. The caller frees it. */
char *zd_ctl_user_text(uint32_t uid);
/* Adds to each row with a "uid" the "user". */
void zd_ctl_add_users(json_t *rows);

/* If `text` starts with the name of this row, or with UID/NAME or USER/NAME: the part after a '/', or "".
 * NULL: it does not. */
const char *zd_ctl_behind_name(const json_t *row, const char *name, const char *text);
/* "USER/NAME", which the caller frees. */
char *zd_ctl_job_text(const json_t *job) __attribute__((returns_nonnull));
/* Restricts listings and events to this job. NULL: of all jobs. */
void zd_ctl_keep_job(struct zd_ctl *ctl, const json_t *job);
/* Each prints the failure and returns its status. `jobs`: the jobs that the text names, or all. */
int zd_ctl_fail_ambiguous(const json_t *jobs, const char *text);
int zd_ctl_fail_no_job(const json_t *jobs, const char *text);
/* Finds the one job that --job names. Errors: NOT_FOUND, also for jobs that the caller may not see; INVALID:
 * several users have such a job. */
int zd_ctl_check_job(struct zd_ctl *ctl) __attribute__((warn_unused_result));
/* The same, but a job of which only events can be left is not an error. */
int zd_ctl_check_past_job(struct zd_ctl *ctl) __attribute__((warn_unused_result));
/* Calls `fn` for each job with whose name `text` starts, with the rest of the text, until it fails. Meanwhile
 * listings are of that job only. */
int zd_ctl_each_job(struct zd_ctl *ctl, const char *text,
                    int (*fn)(struct zd_ctl *ctl, const json_t *job, const char *rest, void *arg), void *arg)
        __attribute__((warn_unused_result));
/* Finds the job with the id or the name `text`. `what` receives its name and the sizes of its objects, as a
 * text that the caller frees. */
int zd_ctl_find_job(struct zd_ctl *ctl, const char *text, uint64_t *id, char **what)
        __attribute__((warn_unused_result));

/* ---- Ids: id.c ----------------------------------------------------------------------------------------- */

/* Parses a decimal number from 1. Errors: INVALID, without a message. */
int zd_ctl_parse_id(const char *text, uint64_t *id) __attribute__((warn_unused_result));
/* Returns the part of an id that people see. */
json_int_t zd_ctl_number(json_int_t id);
/* Replaces all ids in the value by their numbers. */
void zd_ctl_show_ids(json_t *value);
/* Finds the id of the row that `text` names by NUMBER, USER/NUMBER or UID/NUMBER. 0: none. Errors: INVALID:
 * rows of several users have this number. */
int zd_ctl_find_id(const json_t *rows, const char *text, uint64_t *id) __attribute__((warn_unused_result));
/* The same, or the id of `named`, if the text is its name. NULL: none. Errors: also INVALID: the text is the
 * id of one row, and the name of another. */
int zd_ctl_choose_id(const json_t *rows, const json_t *named, const char *text, uint64_t *id)
        __attribute__((warn_unused_result));

/* Converts the message to an object with all of its fields. NULL: a text is not UTF-8. A data type becomes
 * its name, an enumerator its name in lower case, and a missing message one of zeros. */
json_t *zd_ctl_object(const ProtobufCMessage *message);

extern const struct zd_ctl_listing zd_ctl_devices_listing, zd_ctl_jobs_listing, zd_ctl_sessions_listing,
        zd_ctl_readers_listing, zd_ctl_groups_listing, zd_ctl_units_listing, zd_ctl_buffers_listing,
        zd_ctl_scopes_listing, zd_ctl_allocations_listing, zd_ctl_buckets_listing;

/* Fetches the daemon's status as a new object, which is printed by these columns. */
int zd_ctl_status_fetch(struct zd_ctl *ctl, json_t **row) __attribute__((warn_unused_result));
extern const struct zd_ctl_column zd_ctl_status_columns[];
/* Whether the daemon ends, as soon as its sessions have ended. */
bool zd_ctl_status_ends(const json_t *row);

/* Fetches the arena of --device, or of all devices. Each row of kind segment is followed by its blocks and
 * holes. Then follow the rows others and unused. With --job: the segments of this job, without unused. */
int zd_ctl_map_fetch(struct zd_ctl *ctl, json_t **rows) __attribute__((warn_unused_result));
/* NOT_FOUND: --device names none of these. */
int zd_ctl_check_device(const struct zd_ctl *ctl, const json_t *devices) __attribute__((warn_unused_result));

/* ---- Verbs --------------------------------------------------------------------------------------------- */

int zd_ctl_status(struct zd_ctl *ctl);
int zd_ctl_self_test(struct zd_ctl *ctl);
int zd_ctl_map(struct zd_ctl *ctl);
int zd_ctl_snapshot(struct zd_ctl *ctl);
int zd_ctl_explain(struct zd_ctl *ctl);
int zd_ctl_watch(struct zd_ctl *ctl);
int zd_ctl_top(struct zd_ctl *ctl);
int zd_ctl_metrics(struct zd_ctl *ctl);
int zd_ctl_events(struct zd_ctl *ctl);
int zd_ctl_trace(struct zd_ctl *ctl);
int zd_ctl_trim(struct zd_ctl *ctl);
int zd_ctl_drain(struct zd_ctl *ctl);
int zd_ctl_undrain(struct zd_ctl *ctl);
int zd_ctl_kill_session(struct zd_ctl *ctl);
int zd_ctl_abort_group(struct zd_ctl *ctl);
int zd_ctl_end_job(struct zd_ctl *ctl);
int zd_ctl_holders(struct zd_ctl *ctl);
int zd_ctl_kill_job(struct zd_ctl *ctl);

#endif
