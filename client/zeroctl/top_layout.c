// SPDX-License-Identifier: Apache-2.0
/*
 * top_layout.c - the picture of `zeroctl top`: the panes of devices, sessions and waits, in their frame
 * (top_frame.c).
 *
 * Each pane has a head line and a window of its rows. Devices and waits get at most a third and a quarter of
 * the lines, sessions the rest. The place of a session's row does not depend on the number of waits.
 */
#include "top.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "ctl.h"

/* One pane while its picture is made. */
struct pane {
	struct zd_top_picture *picture;
	struct zd_top_view *view;
	enum zd_top_pane number;
	size_t line, nlines;                 /* the head's line, and the number of lines including it */
	struct zd_top_table_column *columns; /* copies, whose titles can change */
	size_t ncolumns, nrows;              /* all rows, not only those in the window */
	char **cells;                        /* by row, then by column */
	size_t *widths;
};

/* ---- Panes --------------------------------------------------------------------------------------------- */

static void pane_init(struct pane *pane, const struct zd_top_table_column *columns, size_t ncolumns,
                      size_t nrows)
{
	pane->ncolumns = ncolumns;
	pane->nrows = nrows;
	pane->columns = zd_calloc(ncolumns, sizeof(*columns));
	memcpy(pane->columns, columns, ncolumns * sizeof(*columns));
	pane->cells = zd_calloc(nrows * ncolumns + 1, sizeof(*pane->cells));
	pane->widths = zd_calloc(ncolumns, sizeof(*pane->widths));
}

static void pane_deinit(struct pane *pane)
{
	for (size_t i = 0; i < pane->nrows * pane->ncolumns; i++)
		free(pane->cells[i]);
	free(pane->cells);
	free(pane->columns);
	free(pane->widths);
}

/* Draws the titles, and at the right which rows are shown if not all are. */
static void draw_head(struct pane *pane, enum zd_top_style style, size_t window)
{
	struct zd_top_picture *picture = pane->picture;
	const size_t first = pane->view->scroll[pane->number], total = picture->columns;
	char *which = pane->nrows > window
	                      ? zd_ctl_text(" %zu-%zu of %zu", first + 1, first + window, pane->nrows)
	                      : zd_ctl_text("%s", "");
	picture->columns = total - strlen(which);
	for (size_t c = 0; c < pane->ncolumns; c++) {
		const char *legend = pane->columns[c].legend;
		const bool fits = legend && strlen(legend) <= pane->widths[c];
		if (pane->widths[c])
			zd_top_add_cell(picture, pane->line, style, &pane->columns[c], pane->widths[c],
			                fits ? legend : pane->columns[c].title);
	}
	zd_top_pad(picture, pane->line, style, picture->columns);
	picture->columns = total;
	zd_top_add(picture, pane->line, style, which);
}

/* Fits the columns, corrects the scroll position, and draws the head: titles, and which rows are shown. */
static void begin_pane(struct pane *pane)
{
	struct zd_top_view *view = pane->view;
	const size_t window = pane->nlines - 1;
	const bool active = view->pane == pane->number;
	const enum zd_top_style style = active ? ZD_TOP_ACTIVE_HEAD : ZD_TOP_HEAD;
	size_t *scroll = &view->scroll[pane->number];

	view->lines[pane->number] = window;
	view->most_scroll[pane->number] = pane->nrows > window ? pane->nrows - window : 0;
	*scroll = zd_min_u64(*scroll, view->most_scroll[pane->number]);
	zd_top_fit(pane->columns, pane->ncolumns, pane->cells, pane->nrows, pane->picture->columns,
	           pane->widths);
	draw_head(pane, style, window);
}

static char **row_of(const struct pane *pane, size_t row)
{
	return &pane->cells[row * pane->ncolumns];
}

/* The row in this line of the window, or SIZE_MAX. */
static size_t row_in(const struct pane *pane, size_t line)
{
	const size_t row = pane->view->scroll[pane->number] + line;
	return row < pane->nrows ? row : SIZE_MAX;
}

/* ---- Devices ------------------------------------------------------------------------------------------- */

enum { DEVICE, MODEL, MEMORY, SHARE, USED, RATE, HISTORY, NDEVICE_COLUMNS };

static const struct zd_top_table_column device_columns[NDEVICE_COLUMNS] = {
        [DEVICE] = {.title = "DEV", .right = true, .spare = 0},
        [MODEL] = {.title = "MODEL", .spare = 4, .least = 8},
        [MEMORY] = {.title = "MEMORY",
                    .legend = "#gathered =shards +other",
                    .spare = 0,
                    .least = 10,
                    .width = 40},
        [SHARE] = {.title = "", .right = true, .width = 4},
        [USED] = {.title = "USED", .right = true, .spare = 2},
        [RATE] = {.title = "GATHERED", .right = true, .spare = 1, .width = 10},
        [HISTORY] = {.title = "HISTORY", .spare = 3, .least = 8, .width = ZD_TOP_HISTORY},
};

static uint64_t used_bytes(const struct zd_top_device *device)
{
	return device->gathered_bytes + device->kept_bytes + device->other_bytes;
}

/* Rounded up: a small share must not read as 0. */
static char *share_text(const struct zd_top_device *device)
{
	const uint64_t used = used_bytes(device);
	if (!device->arena_bytes)
		return zd_ctl_text("-");
	return zd_ctl_text("%u%%", (unsigned)ceil((double)used * 100 / (double)device->arena_bytes));
}

static char *used_text(const struct zd_top_device *device)
{
	const bool small = device->arena_bytes < 1u << 30;
	const double unit = small ? 1 << 20 : 1 << 30;
	return zd_ctl_text("%.1f/%.1f %s", (double)used_bytes(device) / unit,
	                   (double)device->arena_bytes / unit, small ? "MiB" : "GiB");
}

static char *rate_text(const struct zd_top_device *device)
{
	if (!device->nrates)
		return zd_ctl_text("-");
	char *bytes = zd_top_bytes(device->rates[device->nrates - 1]);
	char *text = zd_ctl_text("%s/s", bytes);
	free(bytes);
	return text;
}

static void make_device_row(const struct zd_top_device *device, char **cells)
{
	cells[DEVICE] = zd_ctl_text("%u", device->index);
	cells[MODEL] = zd_ctl_text("%s", device->model);
	cells[SHARE] = share_text(device);
	cells[USED] = used_text(device);
	cells[RATE] = rate_text(device);
	cells[MEMORY] = zd_ctl_text("%s", ""); /* drawn, with the available width */
	cells[HISTORY] = zd_ctl_text("%s", "");
}

static void draw_repeated(struct pane *pane, size_t line, enum zd_top_style style, char character,
                          size_t count)
{
	char *text = zd_calloc(count + 1, 1);
	memset(text, character, count);
	zd_top_add(pane->picture, line, style, text);
}

/* A part that is not empty is at least one character wide, if there is room. */
static void draw_bar(struct pane *pane, size_t line, const struct zd_top_device *device, size_t width)
{
	const struct {
		uint64_t bytes;
		enum zd_top_style style;
		char character;
	} parts[] = {
	        {device->gathered_bytes, ZD_TOP_GATHERED, '#'},
	        {device->kept_bytes, ZD_TOP_KEPT, '='},
	        {device->other_bytes, ZD_TOP_OTHER, '+'},
	};
	const size_t room = width - 2;
	size_t left = room;
	zd_top_add(pane->picture, line, ZD_TOP_PLAIN, zd_ctl_text("["));
	for (size_t i = 0; i < ZD_ARRAY_LEN(parts) && device->arena_bytes; i++) {
		const double share = (double)parts[i].bytes / (double)device->arena_bytes;
		size_t count = (size_t)(share * (double)room + 0.5);
		if (parts[i].bytes && !count)
			count = 1;
		count = zd_min_u64(count, left);
		left -= count;
		if (count)
			draw_repeated(pane, line, parts[i].style, parts[i].character, count);
	}
	if (left)
		draw_repeated(pane, line, ZD_TOP_FREE, '.', left);
	zd_top_add(pane->picture, line, ZD_TOP_PLAIN, zd_ctl_text("]"));
}

/* The latest rate is at the right, next to the height of the highest. */
static void draw_history(struct pane *pane, size_t line, const struct zd_top_device *device, size_t width)
{
	static const char *const levels[] = {"\u2581", "\u2582", "\u2583", "\u2584",
	                                     "\u2585", "\u2586", "\u2587", "\u2588"};
	const size_t count = zd_min_u64(width, device->nrates);
	const double *rates = device->rates + device->nrates - count;
	double highest = 0;
	for (size_t i = 0; i < count; i++)
		highest = rates[i] > highest ? rates[i] : highest;
	zd_top_pad(pane->picture, line, ZD_TOP_PLAIN, pane->picture->lines[line].width + width - count);
	for (size_t i = 0; i < count; i++) {
		const size_t level = highest > 0 ? (size_t)(rates[i] / highest * 7 + 0.5) : 0;
		zd_top_add(pane->picture, line, ZD_TOP_GATHERED,
		           zd_ctl_text("%s", rates[i] > 0 ? levels[level] : " "));
	}
}

static void draw_device(struct pane *pane, size_t line, const struct zd_top_device *device, char **cells)
{
	for (size_t c = 0; c < NDEVICE_COLUMNS; c++) {
		const size_t width = pane->widths[c];
		if (!width)
			continue;
		if (c == MEMORY || c == HISTORY) {
			zd_top_pad(pane->picture, line, ZD_TOP_PLAIN, pane->picture->lines[line].width + 2);
			if (c == MEMORY)
				draw_bar(pane, line, device, width);
			else
				draw_history(pane, line, device, width);
			continue;
		}
		zd_top_add_cell(pane->picture, line, device->usable ? ZD_TOP_PLAIN : ZD_TOP_WARNING,
		                &pane->columns[c], width, cells[c]);
	}
}

static void draw_devices(struct pane *pane, const struct zd_top_model *model)
{
	pane_init(pane, device_columns, NDEVICE_COLUMNS, model->ndevices);
	for (size_t r = 0; r < pane->nrows; r++)
		make_device_row(&model->devices[r], row_of(pane, r));
	begin_pane(pane);
	for (size_t i = 0; i + 1 < pane->nlines; i++) {
		const size_t row = row_in(pane, i);
		if (row != SIZE_MAX)
			draw_device(pane, pane->line + 1 + i, &model->devices[row], row_of(pane, row));
	}
	pane_deinit(pane);
}

/* ---- Sessions and waits -------------------------------------------------------------------------------- */

static const struct zd_top_table_column session_columns[ZD_TOP_NCOLUMNS] = {
        [ZD_TOP_ID] = {.right = true, .spare = 0, .width = 3},
        [ZD_TOP_NAME] = {.spare = 1, .least = 8, .width = 8},
        [ZD_TOP_USER] = {.spare = 5, .least = 5},
        [ZD_TOP_PID] = {.right = true, .spare = 6, .width = 6},
        [ZD_TOP_JOB] = {.spare = 4, .least = 8},
        [ZD_TOP_RANK] = {.spare = 2, .least = 7},
        [ZD_TOP_HELD] = {.right = true, .spare = 0, .width = 9},
        [ZD_TOP_RATE] = {.right = true, .spare = 3, .width = 6},
        [ZD_TOP_WAITS] = {.spare = 1, .least = 8},
};

static void make_session_row(const struct zd_top_session *session, char **cells)
{
	cells[ZD_TOP_ID] = zd_ctl_text("%" JSON_INTEGER_FORMAT, zd_ctl_number(ZD_CTL_INT(session->id)));
	cells[ZD_TOP_NAME] = zd_ctl_text("%s", session->name);
	cells[ZD_TOP_USER] = zd_ctl_text("%s", session->user);
	cells[ZD_TOP_PID] = zd_ctl_text("%u", session->pid);
	cells[ZD_TOP_JOB] = zd_ctl_text("%s", session->job);
	cells[ZD_TOP_RANK] = zd_ctl_text("%s", session->rank);
	cells[ZD_TOP_HELD] = zd_top_bytes((double)session->held_bytes);
	cells[ZD_TOP_RATE] = session->rate < 0 ? zd_ctl_text("-") : zd_top_count(session->rate);
	cells[ZD_TOP_WAITS] = zd_ctl_text("%s", session->waits);
}

/* Draws the rows of the window as plain text. */
static void draw_rows(struct pane *pane, size_t bold)
{
	for (size_t i = 0; i + 1 < pane->nlines; i++) {
		const size_t row = row_in(pane, i);
		for (size_t c = 0; row != SIZE_MAX && c < pane->ncolumns; c++) {
			if (pane->widths[c])
				zd_top_add_cell(pane->picture, pane->line + 1 + i,
				                c == bold ? ZD_TOP_BOLD : ZD_TOP_PLAIN, &pane->columns[c],
				                pane->widths[c], row_of(pane, row)[c]);
		}
	}
}

static void draw_sessions(struct pane *pane, const struct zd_top_model *model)
{
	const struct zd_top_view *view = pane->view;
	char *sorted = zd_ctl_text("%s%s", zd_top_column_title(view->sort),
	                           view->descending ? "\u25bc" : "\u25b2");
	pane_init(pane, session_columns, ZD_TOP_NCOLUMNS, model->nsessions);
	pane->nrows = 0;
	for (size_t i = 0; i < model->nsessions; i++) {
		const struct zd_top_session *session = &model->sessions[i];
		if (zd_top_matches(view->filter, session->name, session->user, session->job))
			make_session_row(session, row_of(pane, pane->nrows++));
	}
	for (size_t c = 0; c < ZD_TOP_NCOLUMNS; c++)
		pane->columns[c].title = c == view->sort ? sorted
		                                         : zd_top_column_title((enum zd_top_column)c);
	begin_pane(pane);
	draw_rows(pane, ZD_TOP_NAME);
	pane_deinit(pane);
	free(sorted);
}

static const struct zd_top_table_column wait_columns[] = {
        {.title = "WHO", .least = 10},
        {.title = "WAITS FOR", .least = 10},
};

static size_t count_waits(const struct zd_top_model *model, const struct zd_top_view *view)
{
	size_t count = 0;
	for (size_t i = 0; i < model->nwaits; i++) {
		const struct zd_top_wait *wait = &model->waits[i];
		count += zd_top_matches(view->filter, wait->name, wait->user, wait->job);
	}
	return count;
}

static void draw_waits(struct pane *pane, const struct zd_top_model *model, size_t nwaits)
{
	pane_init(pane, wait_columns, ZD_ARRAY_LEN(wait_columns), nwaits);
	for (size_t i = 0, row = 0; i < model->nwaits; i++) {
		const struct zd_top_wait *wait = &model->waits[i];
		if (!zd_top_matches(pane->view->filter, wait->name, wait->user, wait->job))
			continue;
		char **cells = row_of(pane, row++);
		cells[0] = zd_ctl_text("%s", wait->subject);
		cells[1] = zd_ctl_text("%s", wait->text);
	}
	begin_pane(pane);
	draw_rows(pane, SIZE_MAX);
	pane_deinit(pane);
}

/* ---- All ----------------------------------------------------------------------------------------------- */

static void draw_panes(struct zd_top_picture *picture, const struct zd_top_model *model,
                       struct zd_top_view *view)
{
	const size_t body = picture->nlines - 2, nwaits = count_waits(model, view);
	const size_t device_rows = zd_min_u64(zd_max_u64(model->ndevices, 1), zd_max_u64(body / 3 - 1, 1));
	const size_t wait_rows = zd_min_u64(nwaits, zd_max_u64(body / 4 - 1, 1));
	const size_t wait_lines = wait_rows ? wait_rows + 1 : 0;
	struct pane devices = {.picture = picture,
	                       .view = view,
	                       .number = ZD_TOP_DEVICES,
	                       .line = 1,
	                       .nlines = device_rows + 1};
	struct pane sessions = {.picture = picture,
	                        .view = view,
	                        .number = ZD_TOP_SESSIONS,
	                        .line = 2 + device_rows,
	                        .nlines = body - device_rows - 1 - wait_lines};
	struct pane waits = {.picture = picture,
	                     .view = view,
	                     .number = ZD_TOP_PANE_WAITS,
	                     .line = picture->nlines - 1 - wait_lines,
	                     .nlines = wait_lines};
	draw_devices(&devices, model);
	draw_sessions(&sessions, model);
	view->lines[ZD_TOP_PANE_WAITS] = view->most_scroll[ZD_TOP_PANE_WAITS] = 0;
	if (wait_lines)
		draw_waits(&waits, model, nwaits);
}

void zd_top_layout(const struct zd_top_model *model, struct zd_top_view *view, size_t columns, size_t nlines,
                   struct zd_top_picture *picture)
{
	*picture = (struct zd_top_picture){.columns = columns, .nlines = nlines};
	picture->lines = zd_calloc(nlines + 1, sizeof(*picture->lines));
	if (columns < ZD_TOP_LEAST_COLUMNS || nlines < ZD_TOP_LEAST_LINES) {
		if (nlines > 0)
			zd_top_add(picture, 0, ZD_TOP_WARNING,
			           zd_ctl_text("terminal too small (%zux%zu; needs %ux%u)", columns, nlines,
			                       ZD_TOP_LEAST_COLUMNS, ZD_TOP_LEAST_LINES));
		return;
	}
	zd_top_draw_title(picture, model, view);
	if (view->mode == ZD_TOP_HELP)
		zd_top_draw_help(picture, view);
	else
		draw_panes(picture, model, view);
	zd_top_draw_bottom(picture, view);
}
