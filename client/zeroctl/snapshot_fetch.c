// SPDX-License-Identifier: Apache-2.0
/*
 * snapshot_fetch.c - the rows of the daemon's listings that concern memory, and the events of blocks and
 * segments, as one object.
 *
 * The daemon continues between its answers. The events are read last: an event that is newer than a listing
 * shows a later change, and the page prefers the event.
 */
#include "snapshot.h"

#include <string.h>
#include <sys/utsname.h>

#include "base/mem.h"
#include "events.h"

/* ---- Events -------------------------------------------------------------------------------------------- */

struct history {
	long long device;     /* -1: of all */
	json_t *rows;         /* of all pages up to now */
	json_t *page;         /* of the page that is being read */
	uint64_t last_ns;     /* up to this time all events have been read */
	uint64_t first_ns;    /* the time of the first event of the rows' pages, of any kind; 0: none yet */
	uint64_t complete_ns; /* the same of the events that were not overwritten */
	struct zd_ctl_events at;
};

static bool is_wanted(const struct history *history, const Zd__Event *event)
{
	static const char *const kinds[] = {"block_give", "block_free", "segment_begin", "segment_end"};
	if (event->n_devices == 0 || (history->device >= 0 && event->devices[0] != history->device))
		return false;
	for (size_t i = 0; i < ZD_ARRAY_LEN(kinds); i++) {
		if (strcmp(event->kind, kinds[i]) == 0)
			return true;
	}
	return false;
}

static int take_event(const Zd__Event *event, void *arg)
{
	struct history *history = arg;
	if (history->first_ns == 0)
		history->first_ns = event->time_ns;
	if (history->complete_ns == 0 && event->seq > history->at.overwritten)
		history->complete_ns = event->time_ns;
	if (history->last_ns < event->time_ns)
		history->last_ns = event->time_ns;
	if (!is_wanted(history, event))
		return 0;
	if (json_array_append_new(history->page,
	                          json_pack("{s:I,s:s,s:I,s:I,s:I,s:I,s:s,s:s,s:s,s:s,s:I,s:I,s:I}",
	                                    "time_ns", ZD_CTL_INT(event->time_ns), "kind", event->kind,
	                                    "device", ZD_CTL_INT(event->devices[0]), "segment",
	                                    ZD_CTL_INT(event->segment), "offset", ZD_CTL_INT(event->offset),
	                                    "bytes", ZD_CTL_INT(event->bytes), "purpose", event->reason,
	                                    "job", event->job, "group", event->group, "name", event->name,
	                                    "rank", ZD_CTL_INT(event->rank), "session",
	                                    ZD_CTL_INT(event->session), "uid", ZD_CTL_INT(event->owner) - 1)))
		return zd_ctl_fail(ZEROD_E_PROTOCOL, "PROTOCOL: the daemon's events are invalid");
	return 0;
}

/* Reads all pages. If events were overwritten before a page was made, the rows start with that page. */
static int read_pages(struct zd_ctl *ctl, struct history *history, bool *whole)
{
	struct zd_ctl_events *at = &history->at;
	const uint64_t until = at->last;
	int status = 0;
	*whole = at->after == 0 && until > 0;
	do {
		const uint64_t first_ns = history->first_ns, complete_ns = history->complete_ns;
		history->page = json_array();
		history->first_ns = history->complete_ns = 0;
		status = zd_ctl_events_read(ctl, at, take_event, history);
		if (at->lost > 0) {
			json_array_clear(history->rows);
			*whole = false;
		} else {
			history->first_ns = first_ns ? first_ns : history->first_ns;
			history->complete_ns = complete_ns ? complete_ns : history->complete_ns;
		}
		(void)json_array_extend(history->rows, history->page);
		json_decref(history->page);
	} while (!status && at->after < until);
	return status;
}

/* "now_ns": when the newest event of the rows happened, or there was none that is newer. From "known_from_ns"
 * on the rows have all segments, and the blocks that were in use for long; "whole": that is the daemon's
 * start. From "complete_from_ns" on they have all blocks. */
static int fetch_events(struct zd_ctl *ctl, json_t **out)
{
	struct history history = {.device = ctl->device,
	                          .rows = json_array(),
	                          .page = json_array(),
	                          .at = {.after = UINT64_MAX}};
	struct zd_ctl_events *at = &history.at;
	bool whole;
	int status = zd_ctl_events_read(ctl, at, take_event, &history);
	json_decref(history.page);
	history.last_ns = at->now_ns; /* later events are read only up to the end of the last page */
	if (!status) {
		const bool all = at->last - at->overwritten <= ZD_CTL_SNAPSHOT_EVENTS;
		at->after = all ? 0 : at->last - ZD_CTL_SNAPSHOT_EVENTS;
		at->overwritten = 0;
		status = read_pages(ctl, &history, &whole);
	}
	if (status) {
		json_decref(history.rows);
		return status;
	}
	*out = json_pack("{s:I,s:I,s:I,s:b,s:o}", "now_ns", ZD_CTL_INT(history.last_ns), "known_from_ns",
	                 ZD_CTL_INT(history.first_ns ? history.first_ns : history.last_ns),
	                 "complete_from_ns",
	                 ZD_CTL_INT(history.complete_ns ? history.complete_ns : history.last_ns), "whole",
	                 (int)whole, "rows", history.rows);
	return 0;
}

/* ---- Listings ------------------------------------------------------------------------------------------ */

/* Removes the rows of other devices than --device. */
static void keep_device(const struct zd_ctl *ctl, json_t *rows, const char *key)
{
	size_t i = json_array_size(rows);
	while (ctl->device >= 0 && i-- > 0) {
		const json_t *device = json_object_get(json_array_get(rows, i), key);
		if (json_integer_value(device) != ctl->device)
			(void)json_array_remove(rows, i);
	}
}

static int add_listings(struct zd_ctl *ctl, json_t *snapshot)
{
	static const struct {
		const char *key;
		const struct zd_ctl_listing *listing;
		const char *device_key; /* NULL: its rows are of no device */
	} all[] = {
	        {"devices", &zd_ctl_devices_listing, "index"},
	        {"jobs", &zd_ctl_jobs_listing, NULL},
	        {"sessions", &zd_ctl_sessions_listing, NULL},
	        {"groups", &zd_ctl_groups_listing, NULL},
	        {"buffers", &zd_ctl_buffers_listing, "device"},
	        {"buckets", &zd_ctl_buckets_listing, "device"},
	        {"allocations", &zd_ctl_allocations_listing, "device"},
	};
	for (size_t i = 0; i < ZD_ARRAY_LEN(all); i++) {
		json_t *rows;
		int status = zd_ctl_list_fetch(ctl, all[i].listing, &rows);
		if (status)
			return status;
		if (all[i].device_key)
			keep_device(ctl, rows, all[i].device_key);
		(void)json_object_set_new(snapshot, all[i].key, rows);
	}
	return 0;
}

static int add_rows(struct zd_ctl *ctl, json_t *snapshot)
{
	json_t *part;
	int status = zd_ctl_status_fetch(ctl, &part);
	if (status)
		return status;
	(void)json_object_set_new(snapshot, "status", part);
	status = zd_ctl_map_fetch(ctl, &part);
	if (status)
		return status;
	(void)json_object_set_new(snapshot, "map", part);
	status = add_listings(ctl, snapshot);
	if (!status)
		status = fetch_events(ctl, &part);
	if (!status)
		(void)json_object_set_new(snapshot, "events", part);
	return status;
}

int zd_ctl_snapshot_fetch(struct zd_ctl *ctl, json_t **out)
{
	struct utsname node = {.nodename = ""};
	json_t *snapshot = json_object();
	int status = zd_ctl_check_job(ctl);
	if (!status)
		status = add_rows(ctl, snapshot);
	if (status) {
		json_decref(snapshot);
		return status;
	}
	(void)uname(&node);
	const json_int_t now_ns = zd_ctl_integer(json_object_get(snapshot, "events"), "now_ns");
	json_t *head = json_pack("{s:i,s:s,s:s,s:s,s:I,s:s,s:I}", "schema", ZD_CTL_SCHEMA, "verb", ctl->verb,
	                         "zeroctl", ZEROD_VERSION_TEXT, "node", node.nodename, "time_ns",
	                         now_ns + zd_ctl_clock_offset_ns(), "job", ctl->job, "device",
	                         ZD_CTL_INT(ctl->device));
	(void)json_object_update(head, snapshot);
	json_decref(snapshot);
	zd_ctl_show_ids(head);
	*out = head;
	return 0;
}
