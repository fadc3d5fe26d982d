// SPDX-License-Identifier: Apache-2.0
/*
 * verb_devices.c - zeroctl devices: what each device's arena holds, and which devices have failed.
 */
#include "ctl.h"

static const struct zd_ctl_column columns[] = {
        {"DEVICE", "index", ZD_CTL_COUNT, NULL},
        {"NAME", "name", ZD_CTL_TEXT, NULL},
        {"STATE", "state", ZD_CTL_TEXT, NULL},
        {"ARENA", "arena_bytes", ZD_CTL_BYTES, NULL},
        {"SEGMENTS", "segment_bytes", ZD_CTL_BYTES, NULL},
        {"BLOCKS", "block_bytes", ZD_CTL_BYTES, NULL},
        {"QUARANTINE", "quarantine_bytes", ZD_CTL_BYTES, NULL},
        {"BUDGET", "gather_budget_bytes", ZD_CTL_BYTES, NULL},
        {"GATHERED", "usage.gathered_bytes", ZD_CTL_BYTES, NULL},
        {"GATHERED-PEAK", "usage.peak_gathered_bytes", ZD_CTL_BYTES, NULL},
        {"SHARDS", "usage.shard_bytes", ZD_CTL_BYTES, NULL},
        {"PEAK", "usage.peak_bytes", ZD_CTL_BYTES, NULL},
        {"GATHERS", "gathers", ZD_CTL_COUNT, NULL},
        {"JOINED", "joined_gathers", ZD_CTL_COUNT, NULL},
        {"FALLBACK", "fallback_gathers", ZD_CTL_COUNT, NULL},
        {"WAITING", "waiting", ZD_CTL_COUNT, NULL},
        {"FAILURE", "failure", ZD_CTL_TEXT, NULL},
        {NULL, NULL, ZD_CTL_TEXT, NULL},
};

static json_t *device_row(const Zd__Row *row)
{
	const Zd__DeviceRow *d = row->device;
	return json_pack(
	        "{s:I,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:o,s:I,s:I,s:I,s:I}", "index", ZD_CTL_INT(d->index),
	        "name", d->name, "state", d->state, "failure", d->failure, "arena_bytes",
	        ZD_CTL_INT(d->arena_bytes), "segment_bytes", ZD_CTL_INT(d->segment_bytes), "block_bytes",
	        ZD_CTL_INT(d->block_bytes), "quarantine_bytes", ZD_CTL_INT(d->quarantine_bytes),
	        "gather_budget_bytes", ZD_CTL_INT(d->gather_budget_bytes), "usage", zd_ctl_usage(d->usage),
	        "gathers", ZD_CTL_INT(d->gathers), "joined_gathers", ZD_CTL_INT(d->joined_gathers),
	        "fallback_gathers", ZD_CTL_INT(d->fallback_gathers), "waiting", ZD_CTL_INT(d->waiting));
}

const struct zd_ctl_listing zd_ctl_devices_listing = {
        .table = ZD__TABLE__DEVICES,
        .row_case = ZD__ROW__ROW_DEVICE,
        .row = device_row,
        .columns = columns,
};

int zd_ctl_devices(struct zd_ctl *ctl)
{
	return zd_ctl_list_run(ctl, &zd_ctl_devices_listing);
}
