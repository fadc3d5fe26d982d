// SPDX-License-Identifier: Apache-2.0
/*
 * column.c - columns of tables: the texts of cells, the choice of columns, and sorting by one of them.
 */
#include "ctl.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/text.h"

/* The value at "a.b.c", or NULL. */
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

/* ZD_CTL_PERCENT: the first key's value in hundredths of the second key's; -1 if that is 0. */
static double percent_of(const json_t *row, const char *keys)
{
	const char *slash = strchr(keys, '/');
	char part_key[64];
	snprintf(part_key, sizeof(part_key), "%.*s", (int)(slash - keys), keys);
	const double part = (double)json_integer_value(value_at(row, part_key));
	const double whole = (double)json_integer_value(value_at(row, slash + 1));
	return whole > 0 ? 100 * part / whole : -1;
}

static char *percent_text(const json_t *row, const char *keys)
{
	const double percent = percent_of(row, keys);
	/* A small share must not read as 0, nor a large one as 100. */
	if (percent > 0 && percent < 1)
		return zd_ctl_text("<1%%");
	return percent < 0 ? zd_ctl_text("-") : zd_ctl_text("%d%%", (int)percent);
}

static char *list_text(const json_t *list)
{
	char *text = zd_ctl_text("%s", "");
	size_t index;
	json_t *item;
	json_array_foreach((json_t *)list, index, item)
	{
		text = zd_ctl_append(text, "%s%s", index ? "; " : "", json_string_value(item));
	}
	return text;
}

char *zd_ctl_cell_text(const struct zd_ctl *ctl, const json_t *row, const struct zd_ctl_column *column)
{
	char text[ZD_CTL_AGE_TEXT > ZD_BYTES_TEXT ? ZD_CTL_AGE_TEXT : ZD_BYTES_TEXT];
	if (column->format == ZD_CTL_CUSTOM)
		return column->text(row);
	if (column->format == ZD_CTL_PERCENT)
		return percent_text(row, column->key);
	const json_t *value = value_at(row, column->key);
	const json_int_t number = json_integer_value(value);
	if (!value)
		return zd_ctl_text("%s", "");
	switch (column->format) {
	case ZD_CTL_BYTES:
		if (!ctl->exact_bytes && !ctl->raw)
			return zd_ctl_text("%s", zd_bytes_text((uint64_t)number, text));
		return zd_ctl_text("%" JSON_INTEGER_FORMAT, number);
	case ZD_CTL_AGE:
		if (!ctl->raw)
			return zd_ctl_text("%s", zd_ctl_age_text((uint64_t)number, text));
		return zd_ctl_text("%" JSON_INTEGER_FORMAT, number);
	case ZD_CTL_ID:
		return zd_ctl_text("%" JSON_INTEGER_FORMAT, zd_ctl_number(number));
	case ZD_CTL_COUNT:
		return zd_ctl_text("%" JSON_INTEGER_FORMAT, number);
	case ZD_CTL_YES_NO:
		return zd_ctl_text("%s", json_is_true(value) ? "yes" : "no");
	case ZD_CTL_LIST:
		return list_text(value);
	case ZD_CTL_TEXT:
	case ZD_CTL_STATE:
	case ZD_CTL_PERCENT:
	case ZD_CTL_CUSTOM:
		break;
	}
	const char *string = json_string_value(value);
	return zd_ctl_text("%s", string ? string : "");
}

bool zd_ctl_is_number(const struct zd_ctl_column *column)
{
	return column->format == ZD_CTL_COUNT || column->format == ZD_CTL_ID ||
	       column->format == ZD_CTL_BYTES || column->format == ZD_CTL_AGE ||
	       column->format == ZD_CTL_PERCENT;
}

size_t zd_ctl_count_columns(const struct zd_ctl_column *columns)
{
	size_t count = 0;
	while (columns[count].title)
		count++;
	return count;
}

/* ---- Choosing ------------------------------------------------------------------------------------------ */

/* Returns the column with this title or key, or NULL after a message that lists all. `what` is an option. */
static const struct zd_ctl_column *find_column(const struct zd_ctl_column *columns, const char *name,
                                               const char *what)
{
	for (const struct zd_ctl_column *column = columns; column->title; column++)
		if (strcasecmp(name, column->title) == 0 ||
		    (column->key && strcasecmp(name, column->key) == 0))
			return column;
	char *all = zd_ctl_text("%s", columns->title);
	for (const struct zd_ctl_column *column = columns + 1; column->title; column++) {
		all = zd_ctl_append(all, ",%s", column->title);
	}
	(void)zd_ctl_fail(ZD_CTL_USAGE, "%s: no column '%s'; there are %s", what, name, all);
	free(all);
	return NULL;
}

int zd_ctl_choose_columns(const struct zd_ctl *ctl, const struct zd_ctl_column *columns,
                          struct zd_ctl_column **chosen)
{
	const size_t all = zd_ctl_count_columns(columns);
	size_t count = 0, most = all;
	for (const char *comma = ctl->columns; comma && (comma = strchr(comma, ',')); comma++)
		most++;
	struct zd_ctl_column *found = zd_calloc(most + 2, sizeof(*found));
	if (!ctl->columns)
		memcpy(found, columns, all * sizeof(*found));
	for (const char *name = ctl->columns; name;) {
		const size_t bytes = strcspn(name, ",");
		char *copy = zd_ctl_text("%.*s", (int)bytes, name);
		const struct zd_ctl_column *column = find_column(columns, copy, "--columns");
		free(copy);
		if (!column) {
			free(found);
			return ZD_CTL_USAGE;
		}
		found[count++] = *column;
		name = name[bytes] ? name + bytes + 1 : NULL;
	}
	if (chosen)
		*chosen = found;
	else
		free(found);
	return 0;
}

/* ---- Sorting ------------------------------------------------------------------------------------------- */

struct order {
	const struct zd_ctl_column *column;
	bool descending;
};

struct sorted_row {
	json_t *row;
	size_t index; /* the daemon's order, which qsort_r() alone does not preserve among equals */
};

static int compare_cells(const json_t *a, const json_t *b, const struct zd_ctl_column *column)
{
	static const struct zd_ctl exact = {.exact_bytes = true};
	if (column->format == ZD_CTL_PERCENT) {
		const double x = percent_of(a, column->key), y = percent_of(b, column->key);
		return (x > y) - (x < y);
	}
	if (zd_ctl_is_number(column)) {
		json_int_t x = json_integer_value(value_at(a, column->key));
		json_int_t y = json_integer_value(value_at(b, column->key));
		if (column->format == ZD_CTL_ID) {
			x = zd_ctl_number(x);
			y = zd_ctl_number(y);
		}
		return (x > y) - (x < y);
	}
	char *x = zd_ctl_cell_text(&exact, a, column), *y = zd_ctl_cell_text(&exact, b, column);
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

int zd_ctl_sort(json_t *rows, const struct zd_ctl_column *columns, const char *sort)
{
	if (!sort)
		return 0;
	struct order order = {.descending = *sort == '-'};
	order.column = find_column(columns, sort + order.descending, "--sort");
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
