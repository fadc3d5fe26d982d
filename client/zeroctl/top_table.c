// SPDX-License-Identifier: Apache-2.0
/*
 * top_table.c - pictures as lines of spans, and columns that are fitted into the width of a picture.
 */
#include "top.h"

#include <stdlib.h>

#include "base/mem.h"
#include "ctl.h"

#define GAP 2u

/* ---- Pictures ------------------------------------------------------------------------------------------ */

void zd_top_picture_deinit(struct zd_top_picture *picture)
{
	for (size_t i = 0; i < picture->nlines; i++) {
		for (size_t j = 0; j < picture->lines[i].nspans; j++)
			free(picture->lines[i].spans[j].text);
		free(picture->lines[i].spans);
	}
	free(picture->lines);
	*picture = (struct zd_top_picture){.columns = 0};
}

void zd_top_add(struct zd_top_picture *picture, size_t at, enum zd_top_style style, char *text)
{
	struct zd_top_line *line = &picture->lines[at];
	text = zd_ctl_cut(text, picture->columns - line->width);
	line->width += zd_ctl_text_width(text);
	line->spans = zd_realloc(line->spans, line->nspans + 1, sizeof(*line->spans));
	line->spans[line->nspans++] = (struct zd_top_span){.style = style, .text = text};
}

void zd_top_pad(struct zd_top_picture *picture, size_t at, enum zd_top_style style, size_t column)
{
	const size_t width = picture->lines[at].width;
	if (width < column)
		zd_top_add(picture, at, style, zd_ctl_text("%*s", (int)(column - width), ""));
}

/* ---- Columns ------------------------------------------------------------------------------------------- */

static size_t least_width(const struct zd_top_table_column *column, size_t width)
{
	return column->least && column->least < width ? column->least : width;
}

/* The width of the line if no column that may be cut has more than `most`. */
static size_t line_width(const struct zd_top_table_column *columns, size_t count, const size_t *widths,
                         size_t most)
{
	size_t total = 0;
	for (size_t c = 0; c < count; c++) {
		if (!widths[c])
			continue;
		const size_t least = least_width(&columns[c], widths[c]);
		total += zd_min_u64(widths[c], zd_max_u64(least, most)) + GAP;
	}
	return total ? total - GAP : 0;
}

/* Leaves out the column with the highest `spare`, of several the last one. Returns false for the only one. */
static bool leave_one_out(const struct zd_top_table_column *columns, size_t count, size_t *widths)
{
	size_t shown = 0, found = 0;
	for (size_t c = 0; c < count; c++) {
		if (!widths[c])
			continue;
		if (shown == 0 || columns[c].spare >= columns[found].spare)
			found = c;
		shown++;
	}
	if (shown > 1)
		widths[found] = 0;
	return shown > 1;
}

void zd_top_fit(const struct zd_top_table_column *columns, size_t count, char *const *cells, size_t nrows,
                size_t total, size_t *widths)
{
	size_t most = total;
	for (size_t c = 0; c < count; c++) {
		widths[c] = zd_max_u64(columns[c].width, zd_ctl_text_width(columns[c].title));
		for (size_t r = 0; r < nrows; r++)
			widths[c] = zd_max_u64(widths[c], zd_ctl_text_width(cells[r * count + c]));
	}
	while (line_width(columns, count, widths, 0) > total && leave_one_out(columns, count, widths))
		continue;
	while (most > 0 && line_width(columns, count, widths, most) > total)
		most--;
	for (size_t c = 0; c < count; c++) {
		const size_t least = least_width(&columns[c], widths[c]);
		if (widths[c])
			widths[c] = zd_min_u64(total, zd_min_u64(widths[c], zd_max_u64(least, most)));
	}
}

void zd_top_add_cell(struct zd_top_picture *picture, size_t line, enum zd_top_style style,
                     const struct zd_top_table_column *column, size_t width, const char *text)
{
	const size_t first = picture->lines[line].width;
	const size_t start = first ? first + GAP : 0;
	char *cut = zd_ctl_cut(zd_ctl_text("%s", text), width);
	const size_t used = zd_ctl_text_width(cut);
	zd_top_pad(picture, line, style, start + (column->right && used < width ? width - used : 0));
	zd_top_add(picture, line, style, cut);
	zd_top_pad(picture, line, style, start + width);
}

/* ---- Numbers ------------------------------------------------------------------------------------------- */

static char *scaled(double value, double step, const char *const *units, size_t nunits)
{
	size_t unit = 0;
	while (value >= step - step / 2000 && unit + 1 < nunits) { /* 1023.6 would be shown as 1024 */
		value /= step;
		unit++;
	}
	return zd_ctl_text(unit == 0 || value >= 99.95 ? "%.0f%s" : "%.1f%s", value, units[unit]);
}

char *zd_top_bytes(double bytes)
{
	static const char *const units[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
	return scaled(bytes, 1024, units, ZD_ARRAY_LEN(units));
}

char *zd_top_count(double count)
{
	static const char *const units[] = {"", "k", "M", "G"};
	return scaled(count, 1000, units, ZD_ARRAY_LEN(units));
}
