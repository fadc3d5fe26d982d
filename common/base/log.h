/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - structured log lines: a text and up to 8 KEY=value fields.
 *
 * The sink is set once, at the start: the journal or stderr (daemon/main/log.c). Without a sink, lines go to
 * stderr. The core does not log.
 */
#ifndef ZD_BASE_LOG_H
#define ZD_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

enum zd_log_level { /* syslog's numbers */
	            ZD_LOG_ERROR = 3,
	            ZD_LOG_WARNING = 4,
	            ZD_LOG_NOTICE = 5,
	            ZD_LOG_INFO = 6,
	            ZD_LOG_DEBUG = 7,
};

#define ZD_LOG_MAX_FIELDS 8

struct zd_log_field {
	const char *key; /* upper case, e.g. "ZEROD_SESSION" */
	char value[96];
};

struct zd_log_line {
	enum zd_log_level level;
	const char *text;
	size_t nfields;
	const struct zd_log_field *fields;
};

typedef void (*zd_log_sink)(const struct zd_log_line *line);

void zd_log_set_sink(zd_log_sink sink);
void zd_log_set_level(enum zd_log_level level); /* lines above the level are dropped; default INFO */
/* "error", "warning", ... */
const char *zd_log_level_name(enum zd_log_level level);
/* Returns whether lines of this level are written. */
bool zd_log_has(enum zd_log_level level);

/* The text is written as people can read it, in one line: see zd_text_escape(). */
void zd_log(enum zd_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
void zd_log_with(enum zd_log_level level, const struct zd_log_field *fields, size_t nfields,
                 const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif
