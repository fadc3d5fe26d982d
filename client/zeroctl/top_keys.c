// SPDX-License-Identifier: Apache-2.0
/*
 * top_keys.c - the effects of the keys of `zeroctl top` on the view.
 */
#include "top.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <wctype.h>

#include "base/mem.h"

/* ---- Entries ------------------------------------------------------------------------------------------- */

static void append(char text[ZD_TOP_ENTRY], int key)
{
	char bytes[MB_LEN_MAX];
	mbstate_t state = {0};
	if (key < ' ' || !iswprint((wint_t)key))
		return;
	const size_t count = wcrtomb(bytes, (wchar_t)key, &state), used = strlen(text);
	if (count == (size_t)-1 || used + count >= ZD_TOP_ENTRY)
		return;
	memcpy(text + used, bytes, count);
	text[used + count] = '\0';
}

static void remove_last(char *text)
{
	size_t used = strlen(text);
	while (used > 0 && ((unsigned char)text[used - 1] & 0xc0) == 0x80) /* the rest of a UTF-8 character */
		used--;
	text[used > 0 ? used - 1 : 0] = '\0';
}

static void edit(char text[ZD_TOP_ENTRY], int key)
{
	if (key == ZD_TOP_KEY_BACKSPACE)
		remove_last(text);
	else
		append(text, key);
}

/* An entry that is not a delay has no effect. */
static void take_delay(struct zd_top_view *view)
{
	char *end;
	const double seconds = strtod(view->entry, &end);
	if (end != view->entry && !*end && isfinite(seconds) && seconds >= ZD_TOP_LEAST_DELAY_S &&
	    seconds <= ZD_TOP_MOST_DELAY_S)
		view->delay_s = seconds;
}

static void press_in_entry(struct zd_top_view *view, int key)
{
	char *text = view->mode == ZD_TOP_FILTER ? view->filter : view->entry;
	if (key == ZD_TOP_KEY_ENTER && view->mode == ZD_TOP_DELAY)
		take_delay(view);
	if (key == ZD_TOP_KEY_ESCAPE)
		text[0] = '\0';
	if (key == ZD_TOP_KEY_ENTER || key == ZD_TOP_KEY_ESCAPE)
		view->mode = ZD_TOP_BROWSE;
	else
		edit(text, key);
}

/* ---- Browsing ------------------------------------------------------------------------------------------ */

/* Returns whether the key scrolls. */
static bool scroll(size_t *at, size_t page, size_t most, int key)
{
	page = page > 0 ? page : 1;
	switch (key) {
	case ZD_TOP_KEY_UP:
		*at -= *at > 0;
		return true;
	case ZD_TOP_KEY_DOWN:
		*at += *at < most;
		return true;
	case ZD_TOP_KEY_PAGE_UP:
		*at -= zd_min_u64(page, *at);
		return true;
	case ZD_TOP_KEY_PAGE_DOWN:
		*at += zd_min_u64(page, most > *at ? most - *at : 0);
		return true;
	case ZD_TOP_KEY_HOME:
		*at = 0;
		return true;
	case ZD_TOP_KEY_END:
		*at = most;
		return true;
	default:
		return false;
	}
}

static void choose_sort(struct zd_top_view *view, unsigned step)
{
	view->sort = (enum zd_top_column)((view->sort + step) % ZD_TOP_NCOLUMNS);
	view->descending = zd_top_is_number(view->sort);
	view->scroll[ZD_TOP_SESSIONS] = 0;
}

static void press_command(struct zd_top_view *view, int key)
{
	switch (key) {
	case 's':
	case '>':
		choose_sort(view, 1);
		break;
	case '<':
		choose_sort(view, ZD_TOP_NCOLUMNS - 1);
		break;
	case 'r':
		view->descending = !view->descending;
		break;
	case '/':
		view->mode = ZD_TOP_FILTER;
		break;
	case ZD_TOP_KEY_ESCAPE:
		view->filter[0] = '\0';
		break;
	case 'p':
	case ' ':
		view->paused = !view->paused;
		break;
	case 'd':
		view->mode = ZD_TOP_DELAY;
		view->entry[0] = '\0';
		break;
	case '\t':
		view->pane = (enum zd_top_pane)((view->pane + 1) % ZD_TOP_NPANES);
		break;
	case 'h':
	case '?':
		view->mode = ZD_TOP_HELP;
		view->help_scroll = 0;
		break;
	default:
		break;
	}
}

bool zd_top_press(struct zd_top_view *view, int key)
{
	if (key == ZD_TOP_KEY_SIGNAL)
		return false;
	if (key == ZD_TOP_KEY_RESIZE || key == ZD_TOP_KEY_NONE)
		return true;
	if (view->mode == ZD_TOP_FILTER || view->mode == ZD_TOP_DELAY) {
		press_in_entry(view, key);
		return true;
	}
	if (key == 'q')
		return false;
	if (view->mode == ZD_TOP_HELP) {
		if (!scroll(&view->help_scroll, view->help_lines, view->help_most_scroll, key))
			view->mode = ZD_TOP_BROWSE;
		return true;
	}
	if (!scroll(&view->scroll[view->pane], view->lines[view->pane], view->most_scroll[view->pane], key))
		press_command(view, key);
	return true;
}
