// SPDX-License-Identifier: Apache-2.0
/*
 * verb_snapshot.c - zeroctl snapshot: one self-contained HTML page, or only its data as JSON.
 *
 * The page is snapshot/page.html, in which "@NAME@" stands for a file next to it, or for the data. Only the
 * data has names that users choose. Their hidden characters are escaped as in tables, because a browser does
 * not show them as escapes. No '<' of a name can end the element with the data.
 */
#include "output.h"
#include "snapshot.h"

#include <stdlib.h>
#include <string.h>

#include "base/embed.h"
#include "base/mem.h"

ZD_EMBED(zd_ctl_page_html, "client/zeroctl/snapshot/page.html");
ZD_EMBED(zd_ctl_page_style, "client/zeroctl/snapshot/style.css");
ZD_EMBED(zd_ctl_page_model, "client/zeroctl/snapshot/model.js");
ZD_EMBED(zd_ctl_page_chart, "client/zeroctl/snapshot/chart.js");
ZD_EMBED(zd_ctl_page_map, "client/zeroctl/snapshot/map.js");
ZD_EMBED(zd_ctl_page_history, "client/zeroctl/snapshot/history.js");
ZD_EMBED(zd_ctl_page_page, "client/zeroctl/snapshot/page.js");

/* Escapes the names in all strings of the value. */
static void show_strings(json_t *value)
{
	const char *key;
	size_t i;
	json_t *inner;
	if (json_is_object(value)) {
		json_object_foreach(value, key, inner) show_strings(inner);
	} else if (json_is_array(value)) {
		json_array_foreach(value, i, inner) show_strings(inner);
	} else if (json_is_string(value)) {
		char *shown = zd_ctl_shown(zd_ctl_text("%s", json_string_value(value)));
		(void)json_string_set(value, shown);
		free(shown);
	}
}

/* The three characters with a meaning in HTML. Outside of strings JSON has none of them. */
static int write_escaped(const char *text, size_t bytes, void *file)
{
	for (size_t i = 0; i < bytes; i++) {
		if (strchr("<>&", text[i]) && text[i])
			fprintf(file, "\\u%04x", (unsigned)text[i]);
		else
			fputc(text[i], file);
	}
	return 0;
}

static int write_part(FILE *file, const char *name, size_t bytes, const json_t *snapshot)
{
	static const struct {
		const char *name, *text;
	} parts[] = {
	        {"style.css", zd_ctl_page_style},    {"model.js", zd_ctl_page_model},
	        {"chart.js", zd_ctl_page_chart},     {"map.js", zd_ctl_page_map},
	        {"history.js", zd_ctl_page_history}, {"page.js", zd_ctl_page_page},
	};
	for (size_t i = 0; i < ZD_ARRAY_LEN(parts); i++) {
		if (strlen(parts[i].name) == bytes && memcmp(parts[i].name, name, bytes) == 0) {
			fputs(parts[i].text, file);
			return 0;
		}
	}
	if (json_dump_callback(snapshot, write_escaped, file, JSON_COMPACT))
		return zd_ctl_fail(ZEROD_E_SYSTEM, "out of memory");
	return 0;
}

static int write_page(FILE *file, const json_t *snapshot)
{
	const char *text = zd_ctl_page_html;
	for (;;) {
		const char *begin = strchr(text, '@'), *end = begin ? strchr(begin + 1, '@') : NULL;
		if (!end) {
			fputs(text, file);
			return 0;
		}
		fwrite(text, 1, (size_t)(begin - text), file);
		int status = write_part(file, begin + 1, (size_t)(end - begin - 1), snapshot);
		if (status)
			return status;
		text = end + 1;
	}
}

int zd_ctl_snapshot(struct zd_ctl *ctl)
{
	struct zd_ctl_output output;
	json_t *snapshot;
	if (!ctl->output && !ctl->json)
		return zd_ctl_fail(ZD_CTL_USAGE, "snapshot needs -o FILE, the file to write, or --json");
	/* Before the daemon is asked: a path that cannot be written is an error at once. */
	int status = zd_ctl_output_open(&output, ctl->output ? ctl->output : "-", false);
	if (status)
		return status;
	status = zd_ctl_snapshot_fetch(ctl, &snapshot);
	if (status)
		return zd_ctl_output_close(&output, status);
	if (ctl->json) {
		status = zd_ctl_print_json_text(output.file, snapshot, JSON_INDENT(1));
	} else {
		show_strings(snapshot);
		status = write_page(output.file, snapshot);
	}
	json_decref(snapshot);
	return zd_ctl_output_close(&output, status);
}
