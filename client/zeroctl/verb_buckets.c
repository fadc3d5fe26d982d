// SPDX-License-Identifier: Apache-2.0
/*
 * verb_buckets.c - zeroctl buckets: gradient buckets, their slots, and whom their reductions wait for.
 */
#include "ctl.h"

static const struct zd_ctl_column columns[] = {
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
        .row_case = ZD__ROW__ROW_BUCKET,
        .columns = columns,
        .plural = "buckets",
};

int zd_ctl_buckets(struct zd_ctl *ctl)
{
	return zd_ctl_list_run(ctl, &zd_ctl_buckets_listing);
}
