// SPDX-License-Identifier: Apache-2.0
/*
 * listings.c - the verbs that list one of the daemon's tables: their columns.
 */
#include "ctl.h"

#include <stdlib.h>
#include <string.h>

/* ---- Devices ------------------------------------------------------------------------------------------- */

/* A device that is emulated has neither. */
static char *text_or_dash(const json_t *row, const char *key)
{
	const char *text = zd_ctl_string(row, key);
	return zd_ctl_text("%s", *text ? text : "-");
}

static char *model_text(const json_t *row)
{
	return text_or_dash(row, "model");
}

static char *pci_address_text(const json_t *row)
{
	return text_or_dash(row, "pci_address");
}

static const struct zd_ctl_column devices_columns[] = {
        {"DEVICE", "index", ZD_CTL_COUNT, 0, NULL},
        {"NAME", "name", ZD_CTL_TEXT, 2, NULL},
        {"STATE", "state", ZD_CTL_STATE, 0, NULL},
        {"MODEL", "model", ZD_CTL_CUSTOM, 7, model_text},
        {"PCI", "pci_address", ZD_CTL_CUSTOM, 9, pci_address_text},
        {"ARENA", "arena_bytes", ZD_CTL_BYTES, 0, NULL},
        {"SEGMENTS", "segment_bytes", ZD_CTL_BYTES, 6, NULL},
        {"SEGMENTS%", "segment_bytes/arena_bytes", ZD_CTL_PERCENT, 3, NULL},
        {"BLOCKS", "block_bytes", ZD_CTL_BYTES, 5, NULL},
        {"BLOCKS%", "block_bytes/arena_bytes", ZD_CTL_PERCENT, 2, NULL},
        {"QUARANTINE", "quarantine_bytes", ZD_CTL_BYTES, 10, NULL},
        {"BUDGET", "gather_budget_bytes", ZD_CTL_BYTES, 8, NULL},
        {"GATHERED", "usage.gathered_bytes", ZD_CTL_BYTES, 4, NULL},
        {"GATHERED%", "usage.gathered_bytes/gather_budget_bytes", ZD_CTL_PERCENT, 5, NULL},
        {"GATHERED-PEAK", "usage.peak_gathered_bytes", ZD_CTL_BYTES, 16, NULL},
        {"SHARDS", "usage.shard_bytes", ZD_CTL_BYTES, 11, NULL},
        {"PEAK", "usage.peak_bytes", ZD_CTL_BYTES, 15, NULL},
        {"GATHERS", "gathers", ZD_CTL_COUNT, 12, NULL},
        {"JOINED", "joined_gathers", ZD_CTL_COUNT, 14, NULL},
        {"FALLBACK", "fallback_gathers", ZD_CTL_COUNT, 13, NULL},
        {"WAITING", "waiting", ZD_CTL_COUNT, 3, NULL},
        {"FAILURE", "failure", ZD_CTL_TEXT, 1, NULL},
        {NULL, NULL, ZD_CTL_TEXT, 0, NULL},
};

static void amend_device(json_t *row)
{
	json_int_t host = zd_ctl_integer(row, "host");
	json_object_set_new(row, "host", host ? json_integer(host - 1) : json_null());
}

const struct zd_ctl_listing zd_ctl_devices_listing = {
        .table = ZD__TABLE__DEVICES,
        .amend = amend_device,
        .columns = devices_columns,
        .plural = "devices",
};

/* ---- Jobs ---------------------------------------------------------------------------------------------- */

static const struct zd_ctl_column jobs_columns[] = {
        {"ID", "id", ZD_CTL_ID, 6, NULL},
        {"JOB", "name", ZD_CTL_TEXT, 0, NULL},
        {"USER", "user", ZD_CTL_TEXT, 3, NULL},
        {"UID", "uid", ZD_CTL_COUNT, 3, NULL},
        {"DURABLE", "durable", ZD_CTL_YES_NO, 2, NULL},
        {"SESSIONS", "sessions", ZD_CTL_COUNT, 0, NULL},
        {"GROUPS", "groups", ZD_CTL_COUNT, 5, NULL},
        {"SHARDS", "usage.shard_bytes", ZD_CTL_BYTES, 1, NULL},
        {"GATHERED", "usage.gathered_bytes", ZD_CTL_BYTES, 0, NULL},
        {"BUCKETS", "usage.bucket_bytes", ZD_CTL_BYTES, 8, NULL},
        {"STAGING", "usage.staging_bytes", ZD_CTL_BYTES, 10, NULL},
        {"TARGETS", "usage.target_bytes", ZD_CTL_BYTES, 9, NULL},
        {"ALLOC", "usage.allocation_bytes", ZD_CTL_BYTES, 7, NULL},
        {"PEAK", "usage.peak_bytes", ZD_CTL_BYTES, 4, NULL},
        {"METADATA", "uid_metadata_bytes", ZD_CTL_BYTES, 11, NULL},
        {NULL, NULL, ZD_CTL_TEXT, 0, NULL},
};

const struct zd_ctl_listing zd_ctl_jobs_listing = {
        .table = ZD__TABLE__JOBS,
        .columns = jobs_columns,
        .plural = "jobs",
};

/* ---- Sessions ------------------------------------------------------------------------------------------ */

static const struct zd_ctl_column sessions_columns[] = {
        {"ID", "id", ZD_CTL_ID, 0, NULL},
        {"NAME", "name", ZD_CTL_TEXT, 2, NULL},
        {"USER", "user", ZD_CTL_TEXT, 4, NULL},
        {"UID", "uid", ZD_CTL_COUNT, 4, NULL},
        {"PID", "pid", ZD_CTL_COUNT, 0, NULL},
        {"PROCESS", "process", ZD_CTL_STATE, 0, NULL},
        {"STATE", "state", ZD_CTL_STATE, 0, NULL},
        {"JOB", "job", ZD_CTL_TEXT, 1, NULL},
        {"AGE", "age_ns", ZD_CTL_AGE, 3, NULL},
        {"IDLE", "idle_ns", ZD_CTL_AGE, 2, NULL},
        {"OUTSTANDING", "outstanding", ZD_CTL_COUNT, 5, NULL},
        {"REQUESTS", "requests", ZD_CTL_COUNT, 6, NULL},
        {"WAITS", "waits", ZD_CTL_LIST, 0, NULL},
        {NULL, NULL, ZD_CTL_TEXT, 0, NULL},
};

const struct zd_ctl_listing zd_ctl_sessions_listing = {
        .table = ZD__TABLE__SESSIONS,
        .columns = sessions_columns,
        .complete = zd_ctl_add_processes,
        .plural = "sessions",
};

static const struct zd_ctl_column reader_columns[] = {
        {"ID", "id", ZD_CTL_ID, 0, NULL},
        {"NAME", "name", ZD_CTL_TEXT, 2, NULL},
        {"USER", "user", ZD_CTL_TEXT, 4, NULL},
        {"UID", "uid", ZD_CTL_COUNT, 5, NULL},
        {"PID", "pid", ZD_CTL_COUNT, 0, NULL},
        {"PROCESS", "process", ZD_CTL_STATE, 3, NULL},
        {"JOB", "reads.job", ZD_CTL_TEXT, 0, NULL},
        {"GROUP", "reads.group", ZD_CTL_TEXT, 0, NULL},
        {"STEP", "reads.step", ZD_CTL_COUNT, 0, NULL},
        {"BYTES", "reads.bytes", ZD_CTL_BYTES, 1, NULL},
        {"COPIES", "reads.copies", ZD_CTL_COUNT, 1, NULL},
        {"IDLE", "idle_ns", ZD_CTL_AGE, 3, NULL},
        {"WAITS", "waits", ZD_CTL_LIST, 0, NULL},
        {NULL, NULL, ZD_CTL_TEXT, 0, NULL},
};

static void keep_readers(struct zd_ctl *ctl, json_t *rows)
{
	for (size_t i = json_array_size(rows); i-- > 0;) {
		const json_t *reads = json_object_get(json_array_get(rows, i), "reads");
		const char *job = zd_ctl_string(reads, "job");
		if (!job || !*job || (*ctl->job && strcmp(job, ctl->job) != 0))
			(void)json_array_remove(rows, i);
	}
	zd_ctl_add_processes(ctl, rows);
}

const struct zd_ctl_listing zd_ctl_readers_listing = {
        .table = ZD__TABLE__SESSIONS,
        .columns = reader_columns,
        .complete = keep_readers,
        .plural = "readers",
};

/* ---- Groups -------------------------------------------------------------------------------------------- */

/* "3/4": joined ranks, of the ranks of this daemon. */
static char *present_text(const json_t *row)
{
	size_t index, present = 0;
	json_t *member;

	json_array_foreach(json_object_get(row, "members"), index, member)
	{
		if (zd_ctl_integer(member, "session"))
			present++;
	}
	return zd_ctl_text("%zu/%" JSON_INTEGER_FORMAT, present, zd_ctl_integer(row, "local_world_size"));
}

/* "4..7 of 16": which ones these are, in a group over several daemons; "all". */
static char *ranks_text(const json_t *row)
{
	json_int_t world_size = zd_ctl_integer(row, "world_size");
	json_int_t here = zd_ctl_integer(row, "local_world_size");
	json_int_t first = zd_ctl_integer(row, "first_rank");
	if (here == world_size)
		return zd_ctl_text("all");
	return zd_ctl_text("%" JSON_INTEGER_FORMAT "..%" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT,
	                   first, first + here - 1, world_size);
}

/* Why it has ended, preceded by "step 42 is in doubt: " if it ended inside that commit. */
static char *why_text(const json_t *row)
{
	const char *why = zd_ctl_string(row, "why");
	json_int_t doubt = zd_ctl_integer(row, "doubt_step");
	why = why ? why : "";
	if (!doubt)
		return zd_ctl_text("%s", why);
	return zd_ctl_text("step %" JSON_INTEGER_FORMAT " is in doubt%s%s", doubt, why[0] ? ": " : "", why);
}

/* "0:7@0 1:8@1": rank, session, device. A rank without a session reads "2:-@2". */
static char *members_text(const json_t *row)
{
	char *text = zd_ctl_text("%s", "");
	size_t index;
	json_t *member;
	json_array_foreach(json_object_get(row, "members"), index, member)
	{
		json_int_t session = zd_ctl_integer(member, "session");
		char *who = session ? zd_ctl_text("%" JSON_INTEGER_FORMAT, zd_ctl_number(session))
		                    : zd_ctl_text("-");
		text = zd_ctl_append(text, "%s%" JSON_INTEGER_FORMAT ":%s@%" JSON_INTEGER_FORMAT,
		                     index ? " " : "", zd_ctl_integer(member, "rank"), who,
		                     zd_ctl_integer(member, "device"));
		free(who);
	}
	return text;
}

static const struct zd_ctl_column groups_columns[] = {
        {"ID", "id", ZD_CTL_ID, 9, NULL},
        {"JOB", "job", ZD_CTL_TEXT, 0, NULL},
        {"GROUP", "name", ZD_CTL_TEXT, 0, NULL},
        {"STATE", "state", ZD_CTL_STATE, 0, NULL},
        {"HERE", NULL, ZD_CTL_CUSTOM, 0, present_text},
        {"RANKS", NULL, ZD_CTL_CUSTOM, 4, ranks_text},
        {"BY", "collectives", ZD_CTL_TEXT, 7, NULL},
        {"UNITS", "units", ZD_CTL_COUNT, 6, NULL},
        {"STEP", "committed_step", ZD_CTL_COUNT, 2, NULL},
        {"TORN", "torn", ZD_CTL_YES_NO, 5, NULL},
        {"SHADOW", "shadow", ZD_CTL_YES_NO, 8, NULL},
        {"MEMBERS", "members", ZD_CTL_CUSTOM, 3, members_text},
        {"WHY", "why", ZD_CTL_CUSTOM, 1, why_text},
        {NULL, NULL, ZD_CTL_TEXT, 0, NULL},
};

const struct zd_ctl_listing zd_ctl_groups_listing = {
        .table = ZD__TABLE__GROUPS,
        .columns = groups_columns,
        .plural = "groups",
};

/* ---- Units --------------------------------------------------------------------------------------------- */

/* "7", or "6..7" while ranks differ. */
static char *version_text(const json_t *row)
{
	json_int_t min = zd_ctl_integer(row, "version_min");
	json_int_t max = zd_ctl_integer(row, "version_max");
	if (min == max)
		return zd_ctl_text("%" JSON_INTEGER_FORMAT, max);
	return zd_ctl_text("%" JSON_INTEGER_FORMAT "..%" JSON_INTEGER_FORMAT, min, max);
}

static const struct zd_ctl_column units_columns[] = {
        {"ID", "id", ZD_CTL_ID, 10, NULL},
        {"JOB", "job", ZD_CTL_TEXT, 0, NULL},
        {"GROUP", "group", ZD_CTL_TEXT, 3, NULL},
        {"UNIT", "name", ZD_CTL_TEXT, 0, NULL},
        {"DTYPE", "dtype", ZD_CTL_TEXT, 5, NULL},
        {"NUMEL", "numel", ZD_CTL_COUNT, 4, NULL},
        {"PADDED", "padded_bytes", ZD_CTL_BYTES, 1, NULL},
        {"SLOT", "slot", ZD_CTL_COUNT, 9, NULL},
        {"VIEWS", "views", ZD_CTL_COUNT, 8, NULL},
        {"VERSION", NULL, ZD_CTL_CUSTOM, 0, version_text},
        {"RANKS", "registered", ZD_CTL_COUNT, 2, NULL},
        {"GATHERED", "gathered", ZD_CTL_COUNT, 0, NULL},
        {"FROZEN", "frozen", ZD_CTL_YES_NO, 6, NULL},
        {"ALL-REDUCE", "all_reduce", ZD_CTL_YES_NO, 7, NULL},
        {NULL, NULL, ZD_CTL_TEXT, 0, NULL},
};

const struct zd_ctl_listing zd_ctl_units_listing = {
        .table = ZD__TABLE__UNITS,
        .columns = units_columns,
        .plural = "units",
};

/* ---- Buffers ------------------------------------------------------------------------------------------- */

/* "7:plan×2, 7:eager×1": session, tag, uses left. */
static char *holders_text(const json_t *row)
{
	char *text = zd_ctl_text("%s", "");
	size_t index;
	json_t *holder;
	json_array_foreach(json_object_get(row, "holders"), index, holder)
	{
		text = zd_ctl_append(text, "%s%" JSON_INTEGER_FORMAT ":%s\u00d7%" JSON_INTEGER_FORMAT,
		                     index ? ", " : "", zd_ctl_number(zd_ctl_integer(holder, "session")),
		                     zd_ctl_string(holder, "tag"), zd_ctl_integer(holder, "uses"));
	}
	return text;
}

/* The reason why the buffer remains without holders. */
static char *kept_text(const json_t *row)
{
	if (json_is_true(json_object_get(row, "persistent")))
		return zd_ctl_text("persistent");
	return zd_ctl_text("%s", json_is_true(json_object_get(row, "prefetched")) ? "prefetch" : "");
}

static const struct zd_ctl_column buffers_columns[] = {
        {"JOB", "job", ZD_CTL_TEXT, 0, NULL},          {"GROUP", "group", ZD_CTL_TEXT, 5, NULL},
        {"UNIT", "unit", ZD_CTL_TEXT, 0, NULL},        {"RANK", "rank", ZD_CTL_COUNT, 0, NULL},
        {"DEVICE", "device", ZD_CTL_COUNT, 6, NULL},   {"STATE", "state", ZD_CTL_STATE, 0, NULL},
        {"TRUE", "true_bytes", ZD_CTL_BYTES, 8, NULL}, {"MEMORY", "padded_bytes", ZD_CTL_BYTES, 2, NULL},
        {"VERSION", "version", ZD_CTL_COUNT, 4, NULL}, {"AGE", "age_ns", ZD_CTL_AGE, 3, NULL},
        {"KEPT", NULL, ZD_CTL_CUSTOM, 7, kept_text},   {"HOLDERS", "holders", ZD_CTL_CUSTOM, 1, holders_text},
        {"WAITS", "waits_for", ZD_CTL_TEXT, 0, NULL},  {NULL, NULL, ZD_CTL_TEXT, 0, NULL},
};

const struct zd_ctl_listing zd_ctl_buffers_listing = {
        .table = ZD__TABLE__BUFFERS,
        .columns = buffers_columns,
        .plural = "live buffers",
};

/* ---- Scopes -------------------------------------------------------------------------------------------- */

static const struct zd_ctl_column scopes_columns[] = {
        {"ID", "id", ZD_CTL_ID, 8, NULL},
        {"JOB", "job", ZD_CTL_TEXT, 0, NULL},
        {"GROUP", "group", ZD_CTL_TEXT, 3, NULL},
        {"RANK", "rank", ZD_CTL_COUNT, 2, NULL},
        {"DEVICE", "device", ZD_CTL_COUNT, 5, NULL},
        {"TAG", "tag", ZD_CTL_TEXT, 0, NULL},
        {"STATE", "state", ZD_CTL_STATE, 0, NULL},
        {"PARENT", "parent", ZD_CTL_ID, 7, NULL},
        {"AGE", "age_ns", ZD_CTL_AGE, 1, NULL},
        {"UNITS", "units", ZD_CTL_COUNT, 4, NULL},
        {"BYTES", "bytes", ZD_CTL_BYTES, 0, NULL},
        {"SESSION", "session", ZD_CTL_ID, 6, NULL},
        {NULL, NULL, ZD_CTL_TEXT, 0, NULL},
};

const struct zd_ctl_listing zd_ctl_scopes_listing = {
        .table = ZD__TABLE__SCOPES,
        .columns = scopes_columns,
        .plural = "scopes",
};

/* ---- Buckets ------------------------------------------------------------------------------------------- */

static const struct zd_ctl_column buckets_columns[] = {
        {"ID", "id", ZD_CTL_ID, 7, NULL},
        {"JOB", "job", ZD_CTL_TEXT, 0, NULL},
        {"GROUP", "group", ZD_CTL_TEXT, 1, NULL},
        {"RANK", "rank", ZD_CTL_COUNT, 0, NULL},
        {"DEVICE", "device", ZD_CTL_COUNT, 4, NULL},
        {"DTYPE", "dtype", ZD_CTL_TEXT, 6, NULL},
        {"SLOT", "slot_bytes", ZD_CTL_BYTES, 5, NULL},
        {"HELD", "held_bytes", ZD_CTL_BYTES, 2, NULL},
        {"RESERVED", "reserved", ZD_CTL_COUNT, 3, NULL},
        {"SUBMITTED", "submitted", ZD_CTL_COUNT, 3, NULL},
        {"SLOTS", "slots", ZD_CTL_LIST, 1, NULL},
        {"WAITS", "waits", ZD_CTL_LIST, 0, NULL},
        {NULL, NULL, ZD_CTL_TEXT, 0, NULL},
};

const struct zd_ctl_listing zd_ctl_buckets_listing = {
        .table = ZD__TABLE__BUCKETS,
        .columns = buckets_columns,
        .plural = "buckets",
};

/* ---- Alloc --------------------------------------------------------------------------------------------- */

static const struct zd_ctl_column alloc_columns[] = {
        {"ID", "id", ZD_CTL_ID, 3, NULL},
        {"JOB", "job", ZD_CTL_TEXT, 0, NULL},
        {"NAME", "name", ZD_CTL_TEXT, 0, NULL},
        {"SESSION", "session", ZD_CTL_ID, 1, NULL},
        {"DEVICE", "device", ZD_CTL_COUNT, 0, NULL},
        {"BYTES", "bytes", ZD_CTL_BYTES, 0, NULL},
        {"AGE", "age_ns", ZD_CTL_AGE, 2, NULL},
        {NULL, NULL, ZD_CTL_TEXT, 0, NULL},
};

const struct zd_ctl_listing zd_ctl_allocations_listing = {
        .table = ZD__TABLE__ALLOCATIONS,
        .columns = alloc_columns,
        .plural = "allocations",
};
