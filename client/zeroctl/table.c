// SPDX-License-Identifier: Apache-2.0
/*
 * table.c - rows as tables, and objects as records. On a terminal no line is wider than the terminal (fit.c).
 */
#include "ctl.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/mem.h"

#define GAP       "  " /* of ZD_CTL_GAP_WIDTH */
#define LEAST_CUT 8u   /* a text is cut to so many columns, or its title's, and no further */
#define BOLD      "\033[1m"
#define PLAIN     "\033[0m"
#define RED       "\033[31m"
#define YELLOW    "\033[33m"

struct table {
	const struct zd_ctl *ctl;
	bool coloured;
	struct zd_ctl_column *columns;
	size_t ncolumns, nrows;
	char **cells; /* by row, then by column */
	struct zd_ctl_fit *fits;
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

static void tell_left_out(const struct table *table)
{
	size_t count = 0;
	for (size_t c = 0; c < table->ncolumns; c++)
		count += !table->fits[c].shown;
	if (count > 0)
		fprintf(stderr, "zeroctl: %zu of %zu columns do not fit; --wide shows all, --columns some\n",
		        count, table->ncolumns);
}

/* ---- Printing ------------------------------------------------------------------------------------------ */

static void make_cells(struct table *table, const json_t *rows)
{
	table->nrows = json_array_size(rows);
	table->ncolumns = zd_ctl_count_columns(table->columns);
	table->fits = zd_calloc(table->ncolumns, sizeof(*table->fits));
	table->cells = zd_calloc(table->nrows * table->ncolumns + 1, sizeof(*table->cells));
	for (size_t c = 0; c < table->ncolumns; c++) {
		const struct zd_ctl_column *column = &table->columns[c];
		struct zd_ctl_fit *fit = &table->fits[c];
		const size_t title = strlen(column->title);
		*fit = (struct zd_ctl_fit){.width = table->ctl->no_headings ? 0 : title,
		                           .least = zd_ctl_is_number(column) ? SIZE_MAX
		                                                             : zd_max_u64(title, LEAST_CUT),
		                           .spare = column->spare,
		                           .shown = true};
		for (size_t r = 0; r < table->nrows; r++) {
			char *cell = zd_ctl_cell_text(table->ctl, json_array_get(rows, r), column);
			cell = zd_ctl_shown(cell);
			if (table->ctl->raw && !*cell) { /* an empty cell would shift the columns */
				free(cell);
				cell = zd_ctl_text("-");
			}
			fit->width = zd_max_u64(fit->width, zd_ctl_text_width(cell));
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
	while (column < table->ncolumns && !table->fits[column].shown)
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
		                        table->fits[c].width);
		const size_t width = zd_min_u64(zd_ctl_text_width(text), table->fits[c].width);
		const int fill = (int)(table->fits[c].width - width);
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
		zd_ctl_fit(table.fits, table.ncolumns, terminal_width());
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
	free(table.fits);
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
