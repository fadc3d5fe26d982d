// SPDX-License-Identifier: Apache-2.0
/*
 * fit.c - the widths of columns in a limited line: texts are cut, the longest first, and then the columns
 * with the highest `spare` are left out.
 */
#include "ctl.h"

#include "base/mem.h"

/* The width of the column if texts have at most `most` columns. */
static size_t cut_width(const struct zd_ctl_fit *column, size_t most)
{
	return zd_min_u64(column->width, zd_max_u64(most, column->least));
}

static size_t line_width(const struct zd_ctl_fit *columns, size_t count, size_t most)
{
	size_t width = 0;
	for (size_t c = 0; c < count; c++)
		width += columns[c].shown ? cut_width(&columns[c], most) + ZD_CTL_GAP_WIDTH : 0;
	return width ? width - ZD_CTL_GAP_WIDTH : 0;
}

/* Leaves out the column with the highest `spare`, of several the last one. Returns false for the only one. */
static bool leave_one_out(struct zd_ctl_fit *columns, size_t count)
{
	size_t shown = 0, found = 0;
	for (size_t c = 0; c < count; c++) {
		if (!columns[c].shown)
			continue;
		if (shown == 0 || columns[c].spare >= columns[found].spare)
			found = c;
		shown++;
	}
	if (shown > 1)
		columns[found].shown = false;
	return shown > 1;
}

void zd_ctl_fit(struct zd_ctl_fit *columns, size_t count, size_t total)
{
	size_t most = total;
	while (line_width(columns, count, 0) > total && leave_one_out(columns, count))
		continue;
	while (most > 0 && line_width(columns, count, most) > total)
		most--;
	for (size_t c = 0; c < count; c++) /* only a single column can be too wide now */
		columns[c].width = zd_min_u64(cut_width(&columns[c], most), total);
}
