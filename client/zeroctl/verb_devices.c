// SPDX-License-Identifier: Apache-2.0
/*
 * verb_devices.c - zeroctl devices: what each device's arena holds, and which devices have failed.
 */
#include "ctl.h"

/* A device that is emulated has neither. */
static char *text_or_dash(const json_t *row, const char *key)
{
	const char *text = json_string_value(json_object_get(row, key));
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

static const struct zd_ctl_column columns[] = {
        {"DEVICE", "index", ZD_CTL_COUNT, NULL, 0},
        {"NAME", "name", ZD_CTL_TEXT, NULL, 2},
        {"STATE", "state", ZD_CTL_STATE, NULL, 0},
        {"MODEL", "model", ZD_CTL_CUSTOM, model_text, 7},
        {"PCI", "pci_address", ZD_CTL_CUSTOM, pci_address_text, 9},
        {"ARENA", "arena_bytes", ZD_CTL_BYTES, NULL, 0},
        {"SEGMENTS", "segment_bytes", ZD_CTL_BYTES, NULL, 6},
        {"SEGMENTS%", "segment_bytes/arena_bytes", ZD_CTL_PERCENT, NULL, 3},
        {"BLOCKS", "block_bytes", ZD_CTL_BYTES, NULL, 5},
        {"BLOCKS%", "block_bytes/arena_bytes", ZD_CTL_PERCENT, NULL, 2},
        {"QUARANTINE", "quarantine_bytes", ZD_CTL_BYTES, NULL, 10},
        {"BUDGET", "gather_budget_bytes", ZD_CTL_BYTES, NULL, 8},
        {"GATHERED", "usage.gathered_bytes", ZD_CTL_BYTES, NULL, 4},
        {"GATHERED%", "usage.gathered_bytes/gather_budget_bytes", ZD_CTL_PERCENT, NULL, 5},
        {"GATHERED-PEAK", "usage.peak_gathered_bytes", ZD_CTL_BYTES, NULL, 16},
        {"SHARDS", "usage.shard_bytes", ZD_CTL_BYTES, NULL, 11},
        {"PEAK", "usage.peak_bytes", ZD_CTL_BYTES, NULL, 15},
        {"GATHERS", "gathers", ZD_CTL_COUNT, NULL, 12},
        {"JOINED", "joined_gathers", ZD_CTL_COUNT, NULL, 14},
        {"FALLBACK", "fallback_gathers", ZD_CTL_COUNT, NULL, 13},
        {"WAITING", "waiting", ZD_CTL_COUNT, NULL, 3},
        {"FAILURE", "failure", ZD_CTL_TEXT, NULL, 1},
        {NULL, NULL, ZD_CTL_TEXT, NULL, 0},
};

static json_t *device_row(const Zd__Row *row)
{
	const Zd__DeviceRow *d = row->device;
	return json_pack(
	        "{s:I,s:s,s:s,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:o,s:I,s:I,s:I,s:I}", "index",
	        ZD_CTL_INT(d->index), "name", d->name, "model", d->model, "pci_address", d->pci_address,
	        "state", d->state, "failure", d->failure, "arena_bytes", ZD_CTL_INT(d->arena_bytes),
	        "segment_bytes", ZD_CTL_INT(d->segment_bytes), "block_bytes", ZD_CTL_INT(d->block_bytes),
	        "quarantine_bytes", ZD_CTL_INT(d->quarantine_bytes), "gather_budget_bytes",
	        ZD_CTL_INT(d->gather_budget_bytes), "usage", zd_ctl_usage(d->usage), "gathers",
	        ZD_CTL_INT(d->gathers), "joined_gathers", ZD_CTL_INT(d->joined_gathers), "fallback_gathers",
	        ZD_CTL_INT(d->fallback_gathers), "waiting", ZD_CTL_INT(d->waiting));
}

const struct zd_ctl_listing zd_ctl_devices_listing = {
        .table = ZD__TABLE__DEVICES,
        .row_case = ZD__ROW__ROW_DEVICE,
        .row = device_row,
        .columns = columns,
        .plural = "devices",
};

int zd_ctl_devices(struct zd_ctl *ctl)
{
	return zd_ctl_list_run(ctl, &zd_ctl_devices_listing);
}
