// SPDX-License-Identifier: Apache-2.0
/*
 * top_frame.c - the lines around the panes: the title above them, keys or an entry below them, and the help
 * in their place.
 */
#include "top.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "ctl.h"

static const char *const help_texts[] = {
        "q          quit",
        "s > <      sort by the next or previous column",
        "r          reverse the order",
        "/          filter by name, user or job; Esc clears",
        "p, space   pause",
        "d          delay between samples",
        "Tab        the pane that arrows scroll",
        "arrows     scroll; PgUp PgDn Home End",
        "h ?        this text; any key leaves it",
        "",
        "#          gathered buffers",
        "=          shards, durable allocations",
        "+          gradients, staging, allocations",
        ".          free",
        "HELD       a session's allocations and gathered",
        "           buffers; shards are not in it",
        "REQ/S      its requests per second",
};

void zd_top_draw_title(struct zd_top_picture *picture, const struct zd_top_model *model,
                       const struct zd_top_view *view)
{
	if (view->paused)
		zd_top_add(picture, 0, ZD_TOP_WARNING, zd_ctl_text("PAUSED "));
	if (model->trouble)
		zd_top_add(picture, 0, ZD_TOP_WARNING,
		           zd_ctl_text("no daemon, trying every %g s: %s", view->delay_s, model->trouble));
	else
		zd_top_add(
		        picture, 0, ZD_TOP_BOLD,
		        zd_ctl_text("%s, every %g s", model->title ? model->title : "zerod", view->delay_s));
}

/* Adds whole items as long as they fit. */
static void draw_keys(struct zd_top_picture *picture, size_t line, const struct zd_top_view *view)
{
	static const char *const items[] = {"q quit",  "h help",    "/ filter", "< > sort",
	                                    "p pause", "r reverse", "d delay",  "Tab pane"};
	if (view->filter[0])
		zd_top_add(picture, line, ZD_TOP_WARNING,
		           zd_ctl_shown(zd_ctl_text("filter '%s', Esc clears", view->filter)));
	for (size_t i = 0; i < ZD_ARRAY_LEN(items); i++) {
		const size_t used = picture->lines[line].width, gap = used ? 2 : 0;
		if (used + gap + strlen(items[i]) > picture->columns)
			continue;
		zd_top_pad(picture, line, ZD_TOP_PLAIN, used + gap);
		zd_top_add(picture, line, ZD_TOP_BOLD,
		           zd_ctl_text("%.*s", (int)strcspn(items[i], " "), items[i]));
		zd_top_add(picture, line, ZD_TOP_PLAIN, zd_ctl_text("%s", strchr(items[i], ' ')));
	}
}

/* Shows the end of the typed text, with the cursor after it. */
void zd_top_draw_bottom(struct zd_top_picture *picture, const struct zd_top_view *view)
{
	const size_t line = picture->nlines - 1;
	const bool filter = view->mode == ZD_TOP_FILTER;
	if (!filter && view->mode != ZD_TOP_DELAY) {
		draw_keys(picture, line, view);
		return;
	}
	zd_top_add(picture, line, ZD_TOP_WARNING,
	           filter ? zd_ctl_text("filter: ") : zd_ctl_text("delay in seconds: "));
	char *entry = zd_ctl_shown(zd_ctl_text("%s_", filter ? view->filter : view->entry));
	const char *end = entry;
	while (zd_ctl_text_width(end) > picture->columns - picture->lines[line].width) {
		do
			end++;
		while (((unsigned char)*end & 0xc0) == 0x80);
	}
	zd_top_add(picture, line, ZD_TOP_BOLD, zd_ctl_text("%s", end));
	free(entry);
	zd_top_add(picture, line, ZD_TOP_PLAIN,
	           zd_ctl_text("  Enter: done, Esc: %s", filter ? "clear" : "cancel"));
}

void zd_top_draw_help(struct zd_top_picture *picture, struct zd_top_view *view)
{
	const size_t count = ZD_ARRAY_LEN(help_texts), window = picture->nlines - 2;
	view->help_lines = window;
	view->help_most_scroll = count > window ? count - window : 0;
	view->help_scroll = zd_min_u64(view->help_scroll, view->help_most_scroll);
	for (size_t i = 0; i < window && view->help_scroll + i < count; i++)
		zd_top_add(picture, 1 + i, ZD_TOP_PLAIN,
		           zd_ctl_text("%s", help_texts[view->help_scroll + i]));
}
