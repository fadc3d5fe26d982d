// SPDX-License-Identifier: Apache-2.0
/*
 * verb_jobs.c - zeroctl jobs: their users, the bytes that each is charged, and the daemon's own memory for
 * all jobs and sessions of its user.
 */
#include "ctl.h"

static const struct zd_ctl_column columns[] = {
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
        .row_case = ZD__ROW__ROW_JOB,
        .columns = columns,
        .plural = "jobs",
};

int zd_ctl_jobs(struct zd_ctl *ctl)
{
	return zd_ctl_list_run(ctl, &zd_ctl_jobs_listing);
}
