// SPDX-License-Identifier: Apache-2.0
/*
 * list.c - the daemon's tables, page by page, as arrays of JSON objects.
 */
#include "ctl.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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
		if (row->row_case != page->listing->row_case ||
		    json_array_append_new(page->rows, page->listing->row(row)))
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
		Zd__Request request = ZD__REQUEST__INIT;
		cursor = page.next;
		list.table = listing->table;
		list.cursor = cursor;
		list.job = (char *)ctl->job;
		list.segment = segment;
		request.body_case = ZD__REQUEST__BODY_LIST;
		request.list = &list;
		status = zd_ctl_call(ctl, &request, take_page, &page);
		/* A cursor that does not rise would keep us here for ever. */
		if (!status && (page.malformed || (page.next && page.next <= cursor)))
			status = zd_ctl_fail(ZEROD_E_PROTOCOL,
			                     "PROTOCOL: the daemon's listing makes no sense");
	} while (!status && page.next);
	if (status) {
		json_decref(page.rows);
		return status;
	}
	if (listing->complete)
		listing->complete(ctl, page.rows);
	*rows = page.rows;
	return 0;
}

int zd_ctl_list_print(const struct zd_ctl *ctl, const struct zd_ctl_listing *listing, const json_t *rows)
{
	if (json_array_size(rows) > 0)
		return zd_ctl_print_table(ctl, rows, listing->columns);
	char *text = zd_ctl_shown(
	        zd_ctl_text("no %s%s%s", listing->plural, *ctl->job ? " of job " : "", ctl->job));
	fprintf(stderr, "%s\n", text);
	free(text);
	return 0;
}

int zd_ctl_check_job(struct zd_ctl *ctl)
{
	json_t *jobs;
	if (!*ctl->job)
		return 0;
	int status = zd_ctl_list_fetch(ctl, &zd_ctl_jobs_listing, &jobs);
	if (status)
		return status;
	const bool found = json_array_size(jobs) > 0;
	json_decref(jobs);
	return found ? 0 : zd_ctl_fail(ZEROD_E_NOT_FOUND, "NOT_FOUND: no job is called '%s'", ctl->job);
}

int zd_ctl_list_run(struct zd_ctl *ctl, const struct zd_ctl_listing *listing)
{
	json_t *rows;
	/* Wrong usage is told before the daemon is asked, and whatever it has. */
	int status = zd_ctl_choose_columns(ctl, listing->columns, NULL);
	if (status)
		return status;
	status = zd_ctl_list_fetch(ctl, listing, &rows);
	if (status)
		return status;
	status = zd_ctl_sort(rows, listing->columns, ctl->sort);
	if (!status && json_array_size(rows) == 0)
		status = zd_ctl_check_job(ctl);
	if (!status && ctl->json)
		return zd_ctl_print_json(stdout, ctl->verb, rows);
	if (!status)
		status = zd_ctl_list_print(ctl, listing, rows);
	json_decref(rows);
	return status;
}

/* Does the row's `keys`, joined by '/', read `text`. */
static bool row_is(const json_t *row, const char *const *keys, const char *text)
{
	for (size_t i = 0; keys[i]; i++) {
		const char *part = json_string_value(json_object_get(row, keys[i]));
		size_t bytes = part ? strlen(part) : 0;
		if (!part || strncmp(text, part, bytes) != 0)
			return false;
		text += bytes;
		if (keys[i + 1] && *text++ != '/')
			return false;
	}
	return *text == '\0';
}

/* The same behind the row's uid and a '/'. */
static bool row_of_uid_is(const json_t *row, const char *const *keys, const char *text)
{
	const json_t *uid = json_object_get(row, "uid");
	char prefix[32];
	if (!uid)
		return false;
	int bytes = snprintf(prefix, sizeof(prefix), "%" JSON_INTEGER_FORMAT "/", json_integer_value(uid));
	return strncmp(text, prefix, (size_t)bytes) == 0 && row_is(row, keys, text + bytes);
}

/* Nobody can come back to it, and what has its name now is meant. */
static bool is_over(const json_t *row)
{
	const char *state = json_string_value(json_object_get(row, "state"));
	return state && strcmp(state, "OVER") == 0;
}

int zd_ctl_parse_id(const char *text, uint64_t *id)
{
	char *end;
	errno = 0;
	unsigned long long number = strtoull(text, &end, 10);
	if (!isdigit((unsigned char)*text) || *end || errno || number == 0)
		return ZEROD_E_INVALID;
	*id = number;
	return 0;
}

/* The rows that a text on the command line matches, by id or by name. */
struct found {
	bool is_id;
	uint64_t named, named_id; /* so many rows have this name, the last one this id */
};

static struct found find_row(const json_t *rows, const char *const *keys, const char *text, uint64_t number)
{
	struct found found = {.is_id = false};
	size_t index;
	json_t *row;
	json_array_foreach(rows, index, row)
	{
		uint64_t id = (uint64_t)json_integer_value(json_object_get(row, "id"));
		if (id == number) {
			found.is_id = true;
		} else if ((row_is(row, keys, text) || row_of_uid_is(row, keys, text)) && !is_over(row)) {
			found.named++;
			found.named_id = id;
		}
	}
	return found;
}

int zd_ctl_list_find(struct zd_ctl *ctl, const struct zd_ctl_listing *listing, const char *const *keys,
                     const char *text, uint64_t *id)
{
	uint64_t number;
	json_t *rows;
	if (zd_ctl_parse_id(text, &number))
		number = 0; /* nobody's */
	int status = zd_ctl_list_fetch(ctl, listing, &rows);
	if (status)
		return status;
	struct found found = find_row(rows, keys, text, number);
	json_decref(rows);
	if (found.is_id && found.named > 0)
		return zd_ctl_fail(ZEROD_E_INVALID,
		                   "INVALID: '%s' is the id of one, and the name of another, whose id is "
		                   "%" PRIu64 ": give that, or the first one's name",
		                   text, found.named_id);
	if (!found.is_id && found.named == 0)
		return zd_ctl_fail(ZEROD_E_NOT_FOUND, "NOT_FOUND: nothing is called '%s', or has this id",
		                   text);
	/* Two uids may have jobs of one name: an administrator sees both. */
	if (found.named > 1)
		return zd_ctl_fail(ZEROD_E_INVALID,
		                   "INVALID: %" PRIu64 " are called '%s'; give the id, or a job as UID/NAME",
		                   found.named, text);
	*id = found.is_id ? number : found.named_id;
	return 0;
}

json_t *zd_ctl_usage(const Zd__Usage *usage)
{
	static const Zd__Usage nothing = ZD__USAGE__INIT;
	if (!usage) /* a message of zeroes may be left out */
		usage = &nothing;
	return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "shard_bytes", ZD_CTL_INT(usage->shard_bytes),
	                 "gathered_bytes", ZD_CTL_INT(usage->gathered_bytes), "bucket_bytes",
	                 ZD_CTL_INT(usage->bucket_bytes), "staging_bytes", ZD_CTL_INT(usage->staging_bytes),
	                 "target_bytes", ZD_CTL_INT(usage->target_bytes), "allocation_bytes",
	                 ZD_CTL_INT(usage->allocation_bytes), "peak_bytes", ZD_CTL_INT(usage->peak_bytes),
	                 "peak_gathered_bytes", ZD_CTL_INT(usage->peak_gathered_bytes));
}

json_t *zd_ctl_strings(char *const *strings, size_t count)
{
	json_t *array = json_array();
	for (size_t i = 0; i < count; i++) {
		if (json_array_append_new(array, json_string(strings[i]))) {
			json_decref(array);
			return NULL;
		}
	}
	return array;
}
