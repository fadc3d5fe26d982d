// SPDX-License-Identifier: Apache-2.0
/*
 * table.c - arrays of JSON objects as sorted, aligned tables, as records, or as JSON.
 */
#include "ctl.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/text.h"

#define GAP "  " /* between two columns */

char *zd_ctl_text(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	char *text;
	int length = vasprintf(&text, format, args);
	va_end(args);
	if (length < 0) {
		fputs("zeroctl: out of memory\n", stderr);
		abort();
	}
	return text;
}

/* The text with its hidden characters escaped. Takes ownership of it, and gives ownership away. */
static char *shown(char *text)
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
		char *line = shown(zd_ctl_text("%.*s", (int)bytes, text));
		fputs(line, out);
		free(line);
		if (!text[bytes])
			return;
		fputc('\n', out);
		text += bytes + 1;
	}
}

int zd_ctl_print_json_text(FILE *out, const json_t *object, size_t flags)
{
	char *text = json_dumps(object, flags);
	if (!text)
		return zd_ctl_fail(ZEROD_E_SYSTEM, "out of memory");
	zd_ctl_print_shown(out, text);
	fputc('\n', out);
	free(text);
	return 0;
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

/* The next character of a UTF-8 text; a byte that begins none counts as one. Advances *text. */
static uint32_t next_character(const char **text)
{
	const unsigned char *byte = (const unsigned char *)*text;
	uint32_t character = byte[0];
	size_t more = character >= 0xf0 ? 3 : character >= 0xe0 ? 2 : character >= 0xc0 ? 1 : 0;
	if (more)
		character &= 0x3fu >> more;
	size_t taken = 1;
	for (; taken <= more && (byte[taken] & 0xc0) == 0x80; taken++)
		character = character << 6 | (byte[taken] & 0x3f);
	*text += taken;
	return character;
}

size_t zd_ctl_text_width(const char *text)
{
	/* Marks that take no column of their own, and the blocks of ideographs and pictures that take two.
	 * wcwidth() knows more, but only in a UTF-8 locale, which a daemon's host need not have. */
	static const struct {
		uint32_t first, last;
		size_t columns;
	} ranges[] = {
	        {0x0300, 0x036f, 0},   {0x200b, 0x200f, 0}, {0xfe00, 0xfe0f, 0},   {0x1100, 0x115f, 2},
	        {0x2e80, 0xa4cf, 2},   {0xac00, 0xd7a3, 2}, {0xf900, 0xfaff, 2},   {0xfe30, 0xfe6f, 2},
	        {0xff00, 0xff60, 2},   {0xffe0, 0xffe6, 2}, {0x1f300, 0x1f64f, 2}, {0x1f900, 0x1f9ff, 2},
	        {0x20000, 0x3fffd, 2},
	};
	size_t width = 0;
	while (*text) {
		uint32_t character = next_character(&text);
		size_t columns = 1;
		for (size_t i = 0; i < ZD_ARRAY_LEN(ranges); i++)
			if (character >= ranges[i].first && character <= ranges[i].last)
				columns = ranges[i].columns;
		width += columns;
	}
	return width;
}

/* The value at "a.b.c", NULL when there is none. */
static const json_t *value_at(const json_t *row, const char *path)
{
	while (row && path) {
		const char *dot = strchr(path, '.');
		char key[64];
		snprintf(key, sizeof(key), "%.*s", dot ? (int)(dot - path) : (int)strlen(path), path);
		row = json_object_get(row, key);
		path = dot ? dot + 1 : NULL;
	}
	return row;
}

static char *list_text(const json_t *list)
{
	char *text = zd_ctl_text("%s", "");
	size_t index;
	json_t *item;
	json_array_foreach((json_t *)list, index, item)
	{
		char *longer = zd_ctl_text("%s%s%s", text, index ? "; " : "", json_string_value(item));
		free(text);
		text = longer;
	}
	return text;
}

static char *cell_text(const json_t *row, const struct zd_ctl_column *column, bool exact_bytes)
{
	if (column->format == ZD_CTL_CUSTOM)
		return column->text(row);
	const json_t *value = value_at(row, column->key);
	json_int_t number = json_integer_value(value);
	switch (column->format) {
	case ZD_CTL_BYTES:
		if (!exact_bytes) {
			char text[ZD_BYTES_TEXT];
			return zd_ctl_text("%s", zd_bytes_text((uint64_t)number, text));
		}
		/* fallthrough */
	case ZD_CTL_COUNT:
		return zd_ctl_text("%" JSON_INTEGER_FORMAT, number);
	case ZD_CTL_AGE: {
		char text[ZD_CTL_AGE_TEXT];
		return zd_ctl_text("%s", zd_ctl_age_text((uint64_t)number, text));
	}
	case ZD_CTL_YES_NO:
		return zd_ctl_text("%s", json_is_true(value) ? "yes" : "no");
	case ZD_CTL_LIST:
		return list_text(value);
	case ZD_CTL_TEXT:
	case ZD_CTL_CUSTOM:
		break;
	}
	const char *text = json_string_value(value);
	return zd_ctl_text("%s", text ? text : "");
}

static bool is_number(const struct zd_ctl_column *column)
{
	return column->format == ZD_CTL_COUNT || column->format == ZD_CTL_BYTES ||
	       column->format == ZD_CTL_AGE;
}

static size_t count_columns(const struct zd_ctl_column *columns)
{
	size_t count = 0;
	while (columns[count].title)
		count++;
	return count;
}

/* `last`: nothing follows on the line, so that no blanks are needed. */
static void print_cell(FILE *out, const char *text, size_t width, bool right, bool last)
{
	int blanks = (int)(width - zd_ctl_text_width(text));
	if (right)
		fprintf(out, "%*s%s", blanks, "", text);
	else
		fprintf(out, "%s%*s", text, last ? 0 : blanks, "");
	fputs(last ? "\n" : GAP, out);
}

void zd_ctl_print_table(FILE *out, const json_t *rows, const struct zd_ctl_column *columns, bool exact_bytes)
{
	const size_t ncolumns = count_columns(columns), nrows = json_array_size(rows);
	size_t *widths = zd_calloc(ncolumns, sizeof(*widths));
	char **cells = zd_calloc(nrows * ncolumns + 1, sizeof(*cells));
	for (size_t c = 0; c < ncolumns; c++) {
		widths[c] = zd_ctl_text_width(columns[c].title);
		for (size_t r = 0; r < nrows; r++) {
			char *cell = shown(cell_text(json_array_get(rows, r), &columns[c], exact_bytes));
			widths[c] = zd_max_u64(widths[c], zd_ctl_text_width(cell));
			cells[r * ncolumns + c] = cell;
		}
	}
	for (size_t c = 0; c < ncolumns; c++)
		print_cell(out, columns[c].title, widths[c], is_number(&columns[c]), c + 1 == ncolumns);
	for (size_t i = 0; i < nrows * ncolumns; i++) {
		const size_t c = i % ncolumns;
		print_cell(out, cells[i], widths[c], is_number(&columns[c]), c + 1 == ncolumns);
		free(cells[i]);
	}
	free(cells);
	free(widths);
}

void zd_ctl_print_record(FILE *out, const json_t *row, const struct zd_ctl_column *columns, bool exact_bytes)
{
	size_t width = 0;
	for (size_t c = 0; columns[c].title; c++)
		width = zd_max_u64(width, zd_ctl_text_width(columns[c].title));
	for (size_t c = 0; columns[c].title; c++) {
		char *cell = shown(cell_text(row, &columns[c], exact_bytes));
		print_cell(out, columns[c].title, width, false, false);
		fprintf(out, "%s\n", cell);
		free(cell);
	}
}

int zd_ctl_print_json(FILE *out, const char *verb, json_t *rows)
{
	json_t *object = json_pack("{s:i,s:s,s:o}", "schema", ZD_CTL_SCHEMA, "verb", verb, "rows", rows);
	if (!object)
		return zd_ctl_fail(ZEROD_E_SYSTEM, "out of memory");
	int status = zd_ctl_print_json_text(out, object, JSON_INDENT(2));
	json_decref(object);
	return status;
}

/* ---- Sorting ------------------------------------------------------------------------------------------- */

struct order {
	const struct zd_ctl_column *column;
	bool descending;
};

struct sorted_row {
	json_t *row;
	size_t index; /* as the daemon sent it: keeps equals in order, which qsort_r() alone does not */
};

static int compare_cells(const json_t *a, const json_t *b, const struct zd_ctl_column *column)
{
	if (is_number(column)) {
		json_int_t x = json_integer_value(value_at(a, column->key));
		json_int_t y = json_integer_value(value_at(b, column->key));
		return (x > y) - (x < y);
	}
	char *x = cell_text(a, column, true), *y = cell_text(b, column, true);
	int sign = strcmp(x, y);
	free(x);
	free(y);
	return sign;
}

static int compare_rows(const void *left, const void *right, void *arg)
{
	const struct sorted_row *a = left, *b = right;
	const struct order *order = arg;
	int sign = compare_cells(a->row, b->row, order->column);
	if (sign == 0)
		return a->index < b->index ? -1 : 1;
	return order->descending ? -sign : sign;
}

static const struct zd_ctl_column *find_column(const struct zd_ctl_column *columns, const char *name)
{
	for (const struct zd_ctl_column *column = columns; column->title; column++)
		if (strcasecmp(name, column->title) == 0 ||
		    (column->key && strcasecmp(name, column->key) == 0))
			return column;
	zd_ctl_fail(ZD_CTL_USAGE, "no column '%s' to sort by; there are:", name);
	for (const struct zd_ctl_column *column = columns; column->title; column++)
		fprintf(stderr, "  '%s'\n", column->title);
	return NULL;
}

int zd_ctl_sort(json_t *rows, const struct zd_ctl_column *columns, const char *sort)
{
	if (!sort)
		return 0;
	struct order order = {.descending = *sort == '-'};
	order.column = find_column(columns, sort + order.descending);
	if (!order.column)
		return ZD_CTL_USAGE;
	const size_t count = json_array_size(rows);
	struct sorted_row *sorted = zd_calloc(count + 1, sizeof(*sorted));
	for (size_t i = 0; i < count; i++)
		sorted[i] = (struct sorted_row){.row = json_incref(json_array_get(rows, i)), .index = i};
	qsort_r(sorted, count, sizeof(*sorted), compare_rows, &order);
	json_array_clear(rows);
	for (size_t i = 0; i < count; i++)
		json_array_append_new(rows, sorted[i].row);
	free(sorted);
	return 0;
}
