// SPDX-License-Identifier: Apache-2.0
/*
 * verb_sessions.c - zeroctl sessions: connected processes, the waits of their requests, and whether they run;
 * zeroctl readers: processes that read commits.
 */
#include "ctl.h"

#include <string.h>

static const struct zd_ctl_column columns[] = {
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
        .row_case = ZD__ROW__ROW_SESSION,
        .columns = columns,
        .complete = zd_ctl_add_processes,
        .plural = "sessions",
};

int zd_ctl_sessions(struct zd_ctl *ctl)
{
	return zd_ctl_list_run(ctl, &zd_ctl_sessions_listing);
}

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
		const char *job = json_string_value(json_object_get(reads, "job"));
		if (!job || !*job || (*ctl->job && strcmp(job, ctl->job) != 0))
			(void)json_array_remove(rows, i);
	}
	zd_ctl_add_processes(ctl, rows);
}

int zd_ctl_readers(struct zd_ctl *ctl)
{
	static const struct zd_ctl_listing listing = {
	        .table = ZD__TABLE__SESSIONS,
	        .row_case = ZD__ROW__ROW_SESSION,
	        .columns = reader_columns,
	        .complete = keep_readers,
	        .plural = "readers",
	};
	return zd_ctl_list_run(ctl, &listing);
}
