/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c - structured log lines, formatted here and written by the sink.
 *
 * Sink and level are set by the loop's thread (the level again at a reload) while executors may log: both are
 * atomic.
 */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/err.h"
#include "base/text.h"

#define LOG_TEXT_BYTES 1024

static void stderr_sink(const struct zd_log_line *line);

static _Atomic(zd_log_sink) current_sink = stderr_sink;
static _Atomic(enum zd_log_level) current_level = ZD_LOG_INFO;

const char *zd_log_level_name(enum zd_log_level level)
{
	switch (level) {
	case ZD_LOG_ERROR:
		return "error";
	case ZD_LOG_WARNING:
		return "warning";
	case ZD_LOG_NOTICE:
		return "notice";
	case ZD_LOG_INFO:
		return "info";
	case ZD_LOG_DEBUG:
		return "debug";
	}
	return "?";
}

/* Lines of several threads do not mix: one lock of the stream around the whole line. */
static void stderr_sink(const struct zd_log_line *line)
{
	flockfile(stderr);
	(void)fprintf(stderr, "%s: %s", zd_log_level_name(line->level), line->text);
	for (size_t i = 0; i < line->nfields; i++) {
		char shown[sizeof(line->fields[i].value) * ZD_TEXT_ESCAPE_GROWTH];
		(void)zd_text_escape(line->fields[i].value, shown, sizeof(shown));
		(void)fprintf(stderr, " %s=%s", line->fields[i].key, shown);
	}
	(void)fputc('\n', stderr);
	funlockfile(stderr);
}

void zd_log_set_sink(zd_log_sink sink)
{
	atomic_store(&current_sink, sink ? sink : stderr_sink);
}

void zd_log_set_level(enum zd_log_level level)
{
	atomic_store(&current_level, level);
}

bool zd_log_has(enum zd_log_level level)
{
	return level <= atomic_load(&current_level);
}

static void log_line(enum zd_log_level level, const struct zd_log_field *fields, size_t nfields,
                     const char *format, va_list args)
{
	char raw[LOG_TEXT_BYTES], text[LOG_TEXT_BYTES];
	struct zd_log_line line = {.level = level, .text = text, .nfields = nfields, .fields = fields};

	zd_assert(nfields <= ZD_LOG_MAX_FIELDS);
	if (!zd_log_has(level))
		return;
	zd_text_vformat(raw, sizeof(raw), format, args);
	(void)zd_text_escape(raw, text, sizeof(text));
	atomic_load (&current_sink)(&line);
}

void zd_log(enum zd_log_level level, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	log_line(level, NULL, 0, format, args);
	va_end(args);
}

void zd_log_with(enum zd_log_level level, const struct zd_log_field *fields, size_t nfields,
                 const char *format, ...)
{
	va_list args;

	va_start(args, format);
	log_line(level, fields, nfields, format, args);
	va_end(args);
}
