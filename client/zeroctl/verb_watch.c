// SPDX-License-Identifier: Apache-2.0
/*
 * verb_watch.c - zeroctl watch: status and buffers, drawn again every few seconds until SIGINT or --count.
 *
 * On a terminal each picture covers the last one; elsewhere pictures follow one another. With --json each is
 * one line: an object like that of `buffers`, with a "status" in addition to its rows. It ends when the
 * daemon drains in order to end.
 */
#include "ctl.h"
#include "interrupt.h"

#include <unistd.h>

static int print_line(const struct zd_ctl *ctl, json_t *status_row, json_t *rows)
{
	json_t *line = json_pack("{s:i,s:s,s:O,s:O}", "schema", ZD_CTL_SCHEMA, "verb", ctl->verb, "status",
	                         status_row, "rows", rows);
	if (!line)
		return zd_ctl_fail(ZEROD_E_SYSTEM, "out of memory");
	int status = zd_ctl_print_json_text(stdout, line, JSON_COMPACT);
	json_decref(line);
	return status;
}

static int draw(struct zd_ctl *ctl, bool terminal)
{
	json_t *status_row = NULL, *rows = NULL;
	int status = zd_ctl_status_fetch(ctl, &status_row);
	if (!status)
		status = zd_ctl_list_fetch(ctl, &zd_ctl_buffers_listing, &rows);
	if (!status)
		status = zd_ctl_sort(rows, zd_ctl_buffers_listing.columns, ctl->sort);
	if (!status && ctl->json) {
		status = print_line(ctl, status_row, rows);
	} else if (!status) {
		if (terminal)
			fputs("\033[H\033[2J", stdout); /* cursor home, erase the screen */
		zd_ctl_print_record(ctl, status_row, zd_ctl_status_columns);
		putchar('\n');
		status = zd_ctl_list_print(ctl, rows, zd_ctl_buffers_listing.columns,
		                           zd_ctl_buffers_listing.plural);
		if (!terminal)
			putchar('\n');
	}
	/* A remaining session would delay its end. */
	if (!status && zd_ctl_status_ends(status_row))
		status = zd_ctl_fail(ZEROD_E_SHUTDOWN, "SHUTDOWN: the daemon is draining");
	json_decref(status_row);
	json_decref(rows);
	fflush(stdout);
	return status;
}

int zd_ctl_watch(struct zd_ctl *ctl)
{
	const bool terminal = isatty(STDOUT_FILENO);
	int wrong = zd_ctl_choose_columns(ctl, zd_ctl_buffers_listing.columns, NULL);
	if (wrong)
		return wrong;
	wrong = zd_ctl_check_job(ctl);
	if (wrong)
		return wrong;
	zd_ctl_catch_signals();
	for (uint64_t picture = 1; !zd_ctl_interrupted(); picture++) {
		int status = draw(ctl, terminal);
		if (status)
			return status;
		if (ferror(stdout) || picture == ctl->count) /* main() reports a closed output */
			break;
		zd_ctl_wait(ctl->interval_s, -1);
	}
	return 0;
}
