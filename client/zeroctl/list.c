// SPDX-License-Identifier: Apache-2.0
/*
 * list.c - the daemon's tables, page by page, as arrays of JSON objects.
 */
#include "ctl.h"

#include <inttypes.h>
#include <stdlib.h>

/* take_page() takes a row of a table by the table's number. */
#define SAME(table, row)                                                                                     \
	_Static_assert((int)ZD__TABLE__##table == (int)ZD__ROW__ROW_##row, "a table's number is its rows'")
SAME(DEVICES, DEVICE);
SAME(JOBS, JOB);
SAME(SESSIONS, SESSION);
SAME(GROUPS, GROUP);
SAME(UNITS, UNIT);
SAME(BUFFERS, BUFFER);
SAME(BUCKETS, BUCKET);
SAME(ALLOCATIONS, ALLOCATION);
SAME(SCOPES, SCOPE);
SAME(SEGMENTS, SEGMENT);
SAME(BLOCKS, BLOCK);

struct page {
	const struct zd_ctl_listing *listing;
	json_t *rows; /* of all pages up to now */
	uint64_t next;
	bool malformed;
};

static int take_page(const Zd__Reply *reply, void *arg)
{
	struct page *page = arg;
	if (reply->body_case != ZD__REPLY__BODY_LIST) {
		page->malformed = true;
		return 0;
	}
	for (size_t i = 0; i < reply->list->n_rows; i++) {
		const Zd__Row *row = reply->list->rows[i];
		/* All members of the union are pointers to messages. */
		json_t *object = (int)row->row_case == (int)page->listing->table
		                         ? zd_ctl_object(&row->device->base)
		                         : NULL;
		if (object && page->listing->amend)
			page->listing->amend(object);
		if (row->owner)
			(void)json_object_set_new(object, "uid", json_integer(ZD_CTL_INT(row->owner - 1)));
		if (json_array_append_new(page->rows, object))
			page->malformed = true;
	}
	page->next = reply->list->next;
	return 0;
}

int zd_ctl_list_fetch(struct zd_ctl *ctl, const struct zd_ctl_listing *listing, json_t **rows)
{
	return zd_ctl_list_fetch_of(ctl, listing, 0, rows);
}

int zd_ctl_list_fetch_of(struct zd_ctl *ctl, const struct zd_ctl_listing *listing, uint32_t segment,
                         json_t **rows)
{
	struct page page = {.listing = listing, .rows = json_array()};
	uint64_t cursor;
	int status;
	do {
		Zd__List list = ZD__LIST__INIT;
		Zd__Request request = ZD_REQUEST(LIST, list, &list);
		cursor = page.next;
		list.table = listing->table;
		list.cursor = cursor;
		list.job = (char *)ctl->job;
		list.job_owner = ctl->job_owner;
		list.segment = segment;
		status = zd_ctl_call(ctl, &request, take_page, &page);
		/* A cursor that does not rise would make this loop endless. */
		if (!status && (page.malformed || (page.next && page.next <= cursor)))
			status = zd_ctl_fail(ZEROD_E_PROTOCOL, "PROTOCOL: the daemon's listing is invalid");
	} while (!status && page.next);
	if (status) {
		json_decref(page.rows);
		return status;
	}
	zd_ctl_add_users(page.rows);
	if (listing->complete)
		listing->complete(ctl, page.rows);
	*rows = page.rows;
	return 0;
}

int zd_ctl_list_print(const struct zd_ctl *ctl, const json_t *rows, const struct zd_ctl_column *columns,
                      const char *plural)
{
	if (json_array_size(rows) > 0)
		return zd_ctl_print_table(ctl, rows, columns);
	if (!plural)
		return 0;
	char *text = zd_ctl_shown(zd_ctl_text("no %s%s%s", plural, *ctl->job ? " of job " : "", ctl->job));
	fprintf(stderr, "%s\n", text);
	free(text);
	return 0;
}

int zd_ctl_print_rows(const struct zd_ctl *ctl, json_t *rows, const struct zd_ctl_column *columns,
                      const char *plural)
{
	int status = zd_ctl_sort(rows, columns, ctl->sort);
	if (!status && ctl->json)
		return zd_ctl_print_json(stdout, ctl->verb, rows);
	if (!status)
		status = zd_ctl_list_print(ctl, rows, columns, plural);
	json_decref(rows);
	return status;
}

int zd_ctl_list_run(struct zd_ctl *ctl, const struct zd_ctl_listing *listing)
{
	json_t *rows;
	/* Wrong usage is reported before the daemon is asked, regardless of its state. */
	int status = zd_ctl_choose_columns(ctl, listing->columns, NULL);
	if (!status)
		status = zd_ctl_check_job(ctl);
	if (!status)
		status = zd_ctl_list_fetch(ctl, listing, &rows);
	return status ? status : zd_ctl_print_rows(ctl, rows, listing->columns, listing->plural);
}
