// SPDX-License-Identifier: Apache-2.0
/*
 * table.c - rows as tables by libsmartcols, and objects as records.
 *
 * On a terminal no line is wider than the terminal: texts are cut, the longest first, and then the columns
 * with the highest `spare` are left out. libsmartcols cuts without an ellipsis and leaves out no column, so
 * the cells that it gets are as wide as they are to be.
 */
#include "ctl.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <libsmartcols/libsmartcols.h>

#include "base/mem.h"
#include "base/text.h"

#define GAP       "  " /* between two columns: sizes have a blank inside */
#define GAP_WIDTH 2u
#define LEAST_CUT 8u /* a text is cut to so many columns, or its title's, and no further */
#define BOLD      "\033[1m"
#define RED       "\033[31m"
#define YELLOW    "\033[33m"

struct table {
	const struct zd_ctl *ctl;
	struct zd_ctl_column *columns;
	size_t ncolumns, nrows;
	char **cells;   /* by row, then by column */
	size_t *widths; /* of the columns; of a column that is left out SIZE_MAX */
};

static const char *state_colour(const char *state)
{
	static const struct {
		const char *state, *colour;
	} colours[] = {
	        {"failed", RED},        {"FAILED", RED},     {"ABORTED", RED},        {"POISONED", RED},
	        {"denied", YELLOW},     {"WAITING", YELLOW}, {"QUARANTINED", YELLOW}, {"CLOSING", YELLOW},
	        {"CONNECTING", YELLOW}, {"FORMING", YELLOW}, {"GATHERING", YELLOW},   {"RETIRING", YELLOW},
	        {"DESTROYING", YELLOW}, {"LEFT", YELLOW},    {"stopped", RED},        {"zombie", RED},
	        {"gone", YELLOW},       {"traced", YELLOW},
	};
	for (size_t i = 0; i < ZD_ARRAY_LEN(colours); i++)
		if (strcmp(state, colours[i].state) == 0)
			return colours[i].colour;
	return NULL;
}

static bool wants_colours(const struct zd_ctl *ctl)
{
	const char *no_color = getenv("NO_COLOR"), *terminal = getenv("TERM");
	return !ctl->raw && isatty(STDOUT_FILENO) && !(no_color && *no_color) && terminal &&
	       strcmp(terminal, "dumb") != 0;
}

/* ---- Width --------------------------------------------------------------------------------------------- */

static bool is_shown(const struct table *table, size_t column)
{
	return table->widths[column] != SIZE_MAX;
}

/* The columns that this one is cut to if texts get at most `most`. */
static size_t cut_width(const struct table *table, size_t column, size_t most)
{
	const size_t width = table->widths[column], title = strlen(table->columns[column].title);
	if (zd_ctl_is_number(&table->columns[column]))
		return width;
	return zd_min_u64(width, zd_max_u64(most, zd_max_u64(title, LEAST_CUT)));
}

static size_t line_width(const struct table *table, size_t most)
{
	size_t width = 0;
	for (size_t c = 0; c < table->ncolumns; c++)
		width += is_shown(table, c) ? cut_width(table, c, most) + GAP_WIDTH : 0;
	return width ? width - GAP_WIDTH : 0;
}

/* Leaves out the column with the highest `spare`, of several the last one. Returns false for the only one. */
static bool leave_one_out(struct table *table)
{
	size_t shown = 0, least = 0;
	for (size_t c = 0; c < table->ncolumns; c++) {
		if (!is_shown(table, c))
			continue;
		if (shown == 0 || table->columns[c].spare >= table->columns[least].spare)
			least = c;
		shown++;
	}
	if (shown > 1)
		table->widths[least] = SIZE_MAX;
	return shown > 1;
}

static void tell_left_out(const struct table *table)
{
	size_t count = 0;
	for (size_t c = 0; c < table->ncolumns; c++)
		count += !is_shown(table, c);
	if (count > 0)
		fprintf(stderr, "zeroctl: %zu of %zu columns do not fit; --wide shows all, --columns some\n",
		        count, table->ncolumns);
}

static void fit(struct table *table, size_t width)
{
	size_t most = width;
	while (line_width(table, 0) > width && leave_one_out(table))
		continue;
	while (most > 0 && line_width(table, most) > width)
		most--;
	for (size_t c = 0; c < table->ncolumns; c++) {
		if (!is_shown(table, c))
			continue;
		/* Only a single column can still be too wide. */
		table->widths[c] = zd_min_u64(cut_width(table, c, most), width);
		for (size_t r = 0; r < table->nrows; r++) {
			char **cell = &table->cells[r * table->ncolumns + c];
			*cell = zd_ctl_cut(*cell, table->widths[c]);
		}
	}
}

/* ---- Printing ------------------------------------------------------------------------------------------ */

static void make_cells(struct table *table, const json_t *rows)
{
	table->nrows = json_array_size(rows);
	table->ncolumns = zd_ctl_count_columns(table->columns);
	table->widths = zd_calloc(table->ncolumns, sizeof(*table->widths));
	table->cells = zd_calloc(table->nrows * table->ncolumns + 1, sizeof(*table->cells));
	for (size_t c = 0; c < table->ncolumns; c++) {
		table->widths[c] = table->ctl->no_headings ? 0 : strlen(table->columns[c].title);
		for (size_t r = 0; r < table->nrows; r++) {
			char *cell = zd_ctl_cell_text(table->ctl, json_array_get(rows, r),
			                              &table->columns[c]);
			cell = zd_ctl_shown(cell);
			if (table->ctl->raw && !*cell) { /* else the next column would be taken for it */
				free(cell);
				cell = zd_ctl_text("-");
			}
			table->widths[c] = zd_max_u64(table->widths[c], zd_ctl_text_width(cell));
			table->cells[r * table->ncolumns + c] = cell;
		}
	}
}

static int add_column(struct libscols_table *out, const struct table *table, size_t c)
{
	const struct zd_ctl_column *column = &table->columns[c];
	const int flags = zd_ctl_is_number(column) ? SCOLS_FL_RIGHT : 0;
	/* A title that is not shown would make its column wide all the same. */
	char *title = zd_ctl_text("%s", table->ctl->no_headings ? "" : column->title);
	title = zd_ctl_cut(title, table->widths[c]);
	struct libscols_column *added = scols_table_new_column(out, title, 0, flags);
	free(title);
	return added ? scols_cell_set_color(scols_column_get_header(added), BOLD) : -1;
}

/* Adds a row, whose cells libsmartcols then owns. */
static int add_row(struct libscols_table *out, const struct table *table, size_t r)
{
	struct libscols_line *line = scols_table_new_line(out, NULL);
	size_t at = 0;
	for (size_t c = 0; line && c < table->ncolumns; c++) {
		char **cell = &table->cells[r * table->ncolumns + c];
		if (!is_shown(table, c))
			continue;
		const char *colour = table->columns[c].format == ZD_CTL_STATE ? state_colour(*cell) : NULL;
		if (scols_line_refer_data(line, at, *cell))
			return -1;
		*cell = NULL;
		if (colour && scols_cell_set_color(scols_line_get_cell(line, at), colour))
			return -1;
		at++;
	}
	return line ? 0 : -1;
}

static int print(const struct table *table, struct libscols_table *out)
{
	const struct zd_ctl *ctl = table->ctl;
	if (scols_table_set_stream(out, stdout) || scols_table_enable_noencoding(out, 1) ||
	    scols_table_set_termforce(out, SCOLS_TERMFORCE_NEVER) ||
	    scols_table_set_column_separator(out, ctl->raw ? " " : GAP) ||
	    scols_table_enable_raw(out, ctl->raw) || scols_table_enable_minout(out, !ctl->raw) ||
	    scols_table_enable_noheadings(out, ctl->no_headings) ||
	    scols_table_enable_colors(out, wants_colours(ctl)))
		return -1;
	for (size_t c = 0; c < table->ncolumns; c++) {
		if (is_shown(table, c) && add_column(out, table, c))
			return -1;
	}
	for (size_t r = 0; r < table->nrows; r++) {
		if (add_row(out, table, r))
			return -1;
	}
	return scols_print_table(out);
}

int zd_ctl_print_table(const struct zd_ctl *ctl, const json_t *rows, const struct zd_ctl_column *columns)
{
	struct table table = {.ctl = ctl};
	int status = zd_ctl_choose_columns(ctl, columns, &table.columns);
	if (status)
		return status;
	struct libscols_table *out = scols_new_table();
	make_cells(&table, rows);
	if (out && isatty(STDOUT_FILENO) && !ctl->wide && !ctl->raw) {
		fit(&table, scols_table_get_termwidth(out));
		if (strcmp(ctl->verb, "watch") != 0)
			tell_left_out(&table);
	}
	if (!out || print(&table, out))
		status = zd_ctl_fail(ZEROD_E_SYSTEM, "cannot print the table");
	scols_unref_table(out);
	for (size_t i = 0; i < table.nrows * table.ncolumns; i++)
		free(table.cells[i]);
	free(table.cells);
	free(table.widths);
	free(table.columns);
	return status;
}

void zd_ctl_print_record(const struct zd_ctl *ctl, const json_t *row, const struct zd_ctl_column *columns)
{
	int width = 0;
	for (size_t c = 0; columns[c].title; c++)
		width = (int)strlen(columns[c].title) > width ? (int)strlen(columns[c].title) : width;
	for (size_t c = 0; columns[c].title; c++) {
		char *cell = zd_ctl_shown(zd_ctl_cell_text(ctl, row, &columns[c]));
		printf("%-*s" GAP "%s\n", width, columns[c].title, cell);
		free(cell);
	}
}
