// SPDX-License-Identifier: Apache-2.0
/*
 * text.c - texts for people: escaped names, widths on a terminal, ages.
 */
#include "ctl.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "base/mem.h"
#include "base/text.h"
#include "proto/limits.h"

#define ELLIPSIS "\u2026"

static char *format_text(const char *format, va_list args) __attribute__((format(printf, 1, 0)));
static char *format_text(const char *format, va_list args)
{
	char *text;
	if (vasprintf(&text, format, args) < 0) {
		fputs("zeroctl: out of memory\n", stderr);
		abort();
	}
	return text;
}

char *zd_ctl_text(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	char *text = format_text(format, args);
	va_end(args);
	return text;
}

char *zd_ctl_append(char *text, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	char *more = format_text(format, args);
	va_end(args);
	char *longer = zd_ctl_text("%s%s", text, more);
	free(more);
	free(text);
	return longer;
}

char *zd_ctl_shown(char *text)
{
	const size_t room = strlen(text) * ZD_TEXT_ESCAPE_GROWTH + 1;
	char *escaped = zd_calloc(1, room);
	zd_text_escape(text, escaped, room);
	free(text);
	return escaped;
}

void zd_ctl_print_shown(FILE *out, const char *text)
{
	for (;;) {
		const size_t bytes = strcspn(text, "\n");
		char *line = zd_ctl_shown(zd_ctl_text("%.*s", (int)bytes, text));
		fputs(line, out);
		free(line);
		if (!text[bytes])
			return;
		fputc('\n', out);
		text += bytes + 1;
	}
}

/* Returns the columns of the characters of `text` that fit into `most` columns, and their length. */
static size_t measure(const char *text, size_t most, size_t *bytes)
{
	mbstate_t state = {0};
	size_t width = 0, left = strlen(text), at = 0;
	while (left > 0) {
		wchar_t character;
		size_t length = mbrtowc(&character, text + at, left, &state);
		int columns = 1;
		if (length == 0 || length > left) { /* no UTF-8 locale: each byte is a column */
			length = 1;
			state = (mbstate_t){0};
		} else {
			columns = wcwidth(character);
		}
		columns = columns < 0 ? 1 : columns;
		if (width + (size_t)columns > most)
			break;
		width += (size_t)columns;
		at += length;
		left -= length;
	}
	*bytes = at;
	return width;
}

size_t zd_ctl_text_width(const char *text)
{
	size_t bytes;
	return measure(text, SIZE_MAX, &bytes);
}

char *zd_ctl_cut(char *text, size_t width)
{
	size_t bytes;
	if (zd_ctl_text_width(text) <= width)
		return text;
	(void)measure(text, width > 0 ? width - 1 : 0, &bytes);
	char *cut = zd_ctl_text("%.*s%s", (int)bytes, text, width > 0 ? ELLIPSIS : "");
	free(text);
	return cut;
}

char *zd_ctl_age_text(uint64_t ns, char out[ZD_CTL_AGE_TEXT])
{
	const uint64_t us = ns / 1000, s = ns / 1000000000;
	if (us < 1000)
		snprintf(out, ZD_CTL_AGE_TEXT, "%u us", (unsigned)us);
	else if (s < 1)
		snprintf(out, ZD_CTL_AGE_TEXT, "%u ms", (unsigned)(us / 1000));
	else if (s < 60) /* cut, not rounded: 59.97 s is not 60.0 s */
		snprintf(out, ZD_CTL_AGE_TEXT, "%u.%u s", (unsigned)s, (unsigned)(us / 100000 % 10));
	else if (s < 3600)
		snprintf(out, ZD_CTL_AGE_TEXT, "%um%02us", (unsigned)(s / 60), (unsigned)(s % 60));
	else if (s < 86400)
		snprintf(out, ZD_CTL_AGE_TEXT, "%uh%02um", (unsigned)(s / 3600), (unsigned)(s / 60 % 60));
	else
		snprintf(out, ZD_CTL_AGE_TEXT, "%llud%02uh", (unsigned long long)(s / 86400),
		         (unsigned)(s / 3600 % 24));
	return out;
}

json_int_t zd_ctl_number(json_int_t id)
{
	return (json_int_t)ZD_ID_NUMBER(id);
}
