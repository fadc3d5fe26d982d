// SPDX-License-Identifier: Apache-2.0
/*
 * top_table.c - pictures as lines of spans, and columns that are fitted into the width of a picture.
 */
#include "top.h"

#include <stdlib.h>

#include "base/mem.h"
#include "ctl.h"

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

void zd_top_fit(const struct zd_top_table_column *columns, size_t count, char *const *cells, size_t nrows,
                size_t total, size_t *widths)
{
	struct zd_ctl_fit *fits = zd_calloc(count, sizeof(*fits));
	for (size_t c = 0; c < count; c++) {
		size_t width = zd_max_u64(columns[c].width, zd_ctl_text_width(columns[c].title));
		for (size_t r = 0; r < nrows; r++)
			width = zd_max_u64(width, zd_ctl_text_width(cells[r * count + c]));
		fits[c] = (struct zd_ctl_fit){.width = width,
		                              .least = columns[c].least ? columns[c].least : SIZE_MAX,
		                              .spare = columns[c].spare,
		                              .shown = width > 0};
	}
	zd_ctl_fit(fits, count, total);
	for (size_t c = 0; c < count; c++)
		widths[c] = fits[c].shown ? fits[c].width : 0;
	free(fits);
}

void zd_top_add_cell(struct zd_top_picture *picture, size_t line, enum zd_top_style style,
                     const struct zd_top_table_column *column, size_t width, const char *text)
{
	const size_t first = picture->lines[line].width;
	const size_t start = first ? first + ZD_CTL_GAP_WIDTH : 0;
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
