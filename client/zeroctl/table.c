// SPDX-License-Identifier: Apache-2.0
/*
 * table.c - rows as tables, and objects as records.
 *
 * On a terminal no line is wider than the terminal: texts are cut, the longest first, and then the columns
 * with the highest `spare` are left out.
 */
#include "ctl.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/mem.h"

#define GAP       "  " /* between two columns: sizes have a blank inside */
#define GAP_WIDTH 2u
#define LEAST_CUT 8u /* a text is cut to so many columns, or its title's, and no further */
#define BOLD      "\033[1m"
#define PLAIN     "\033[0m"
#define RED       "\033[31m"
#define YELLOW    "\033[33m"

struct table {
	const struct zd_ctl *ctl;
	bool coloured;
	struct zd_ctl_column *columns;
	size_t ncolumns, nrows;
	char **cells;   /* by row, then by column */
	size_t *widths; /* of the columns; SIZE_MAX for a column that is left out */
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

static size_t terminal_width(void)
{
	struct winsize size = {.ws_col = 0};
	const char *columns = getenv("COLUMNS");
	size_t width = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
	if (width == 0 && columns)
		width = strtoul(columns, NULL, 10);
	return width ? width : 80;
}

static bool is_shown(const struct table *table, size_t column)
{
	return table->widths[column] != SIZE_MAX;
}

/* The width to which this column is cut if texts have at most `most` columns. */
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
		/* Now only a single column can be too wide. */
		if (is_shown(table, c))
			table->widths[c] = zd_min_u64(cut_width(table, c, most), width);
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
			if (table->ctl->raw && !*cell) { /* an empty cell would shift the columns */
				free(cell);
				cell = zd_ctl_text("-");
			}
			table->widths[c] = zd_max_u64(table->widths[c], zd_ctl_text_width(cell));
			table->cells[r * table->ncolumns + c] = cell;
		}
	}
}

/* The bytes that would end a word of a line, or that a script could not read in every locale, as "\x20". */
static void print_raw(const char *text)
{
	for (; *text; text++) {
		const unsigned char byte = (unsigned char)*text;
		if (byte <= ' ' || byte > '~' || byte == '\\')
			printf("\\x%02x", byte);
		else
			putchar(byte);
	}
}

static size_t next_shown(const struct table *table, size_t column)
{
	while (column < table->ncolumns && !is_shown(table, column))
		column++;
	return column;
}

/* `cells`: NULL for the titles. A colour has its text alone, and no blanks end a line. */
static void print_line(const struct table *table, char *const *cells)
{
	for (size_t c = next_shown(table, 0); c < table->ncolumns;) {
		const struct zd_ctl_column *column = &table->columns[c];
		const size_t next = next_shown(table, c + 1);
		const bool right = zd_ctl_is_number(column), last = next == table->ncolumns;
		char *text = zd_ctl_cut(zd_ctl_text("%s", cells ? cells[c] : column->title),
		                        table->widths[c]);
		const size_t width = zd_min_u64(zd_ctl_text_width(text), table->widths[c]);
		const int fill = (int)(table->widths[c] - width);
		const char *colour = NULL;
		if (table->coloured && (!cells || column->format == ZD_CTL_STATE))
			colour = cells ? state_colour(cells[c]) : BOLD;
		if (table->ctl->raw)
			print_raw(text);
		else
			printf("%*s%s%s%s%*s", right ? fill : 0, "", colour ? colour : "", text,
			       colour ? PLAIN : "", right || last ? 0 : fill, "");
		fputs(last ? "\n" : table->ctl->raw ? " " : GAP, stdout);
		free(text);
		c = next;
	}
}

int zd_ctl_print_table(const struct zd_ctl *ctl, const json_t *rows, const struct zd_ctl_column *columns)
{
	struct table table = {.ctl = ctl, .coloured = wants_colours(ctl)};
	int status = zd_ctl_choose_columns(ctl, columns, &table.columns);
	if (status)
		return status;
	make_cells(&table, rows);
	if (isatty(STDOUT_FILENO) && !ctl->wide && !ctl->raw) {
		fit(&table, terminal_width());
		if (strcmp(ctl->verb, "watch") != 0)
			tell_left_out(&table);
	}
	if (!ctl->no_headings && table.nrows > 0)
		print_line(&table, NULL);
	for (size_t r = 0; r < table.nrows; r++)
		print_line(&table, &table.cells[r * table.ncolumns]);
	for (size_t i = 0; i < table.nrows * table.ncolumns; i++)
		free(table.cells[i]);
	free(table.cells);
	free(table.widths);
	free(table.columns);
	return 0;
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
