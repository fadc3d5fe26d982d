// SPDX-License-Identifier: Apache-2.0
/*
 * verb_buckets.c - zeroctl buckets: gradient buckets, their slots, and whom their reductions wait for.
 */
#include "ctl.h"

static const struct zd_ctl_column columns[] = {
        {"ID", "id", ZD_CTL_COUNT, NULL, 7},
        {"JOB", "job", ZD_CTL_TEXT, NULL, 0},
        {"GROUP", "group", ZD_CTL_TEXT, NULL, 1},
        {"RANK", "rank", ZD_CTL_COUNT, NULL, 0},
        {"DEVICE", "device", ZD_CTL_COUNT, NULL, 4},
        {"DTYPE", "dtype", ZD_CTL_TEXT, NULL, 6},
        {"SLOT", "slot_bytes", ZD_CTL_BYTES, NULL, 5},
        {"HELD", "held_bytes", ZD_CTL_BYTES, NULL, 2},
        {"RESERVED", "reserved", ZD_CTL_COUNT, NULL, 3},
        {"SUBMITTED", "submitted", ZD_CTL_COUNT, NULL, 3},
        {"SLOTS", "slots", ZD_CTL_LIST, NULL, 1},
        {"WAITS", "waits", ZD_CTL_LIST, NULL, 0},
        {NULL, NULL, ZD_CTL_TEXT, NULL, 0},
};

static json_t *bucket_row(const Zd__Row *row)
{
	const Zd__BucketRow *b = row->bucket;
	return json_pack("{s:I,s:s,s:s,s:I,s:I,s:s,s:I,s:I,s:I,s:I,s:I,s:o,s:o}", "id", ZD_CTL_INT(b->id),
	                 "job", b->job, "group", b->group, "rank", ZD_CTL_INT(b->rank), "device",
	                 ZD_CTL_INT(b->device), "dtype", zerod_dtype_name((enum zerod_dtype)b->dtype),
	                 "slot_bytes", ZD_CTL_INT(b->slot_bytes), "nslots", ZD_CTL_INT(b->nslots),
	                 "held_bytes", ZD_CTL_INT(b->held_bytes), "reserved", ZD_CTL_INT(b->reserved),
	                 "submitted", ZD_CTL_INT(b->submitted), "slots", zd_ctl_strings(b->slots, b->n_slots),
	                 "waits", zd_ctl_strings(b->waits, b->n_waits));
}

static const struct zd_ctl_listing listing = {
        .table = ZD__TABLE__BUCKETS,
        .row_case = ZD__ROW__ROW_BUCKET,
        .row = bucket_row,
        .columns = columns,
        .plural = "buckets",
};

int zd_ctl_buckets(struct zd_ctl *ctl)
{
	return zd_ctl_list_run(ctl, &listing);
}
