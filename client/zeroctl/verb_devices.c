// SPDX-License-Identifier: Apache-2.0
/*
 * verb_devices.c - zeroctl devices: the content of each device's arena, and the devices that have failed.
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
	json_int_t host = json_integer_value(json_object_get(row, "host"));
	json_object_set_new(row, "host", host ? json_integer(host - 1) : json_null());
}

const struct zd_ctl_listing zd_ctl_devices_listing = {
        .table = ZD__TABLE__DEVICES,
        .row_case = ZD__ROW__ROW_DEVICE,
        .amend = amend_device,
        .columns = columns,
        .plural = "devices",
};

int zd_ctl_devices(struct zd_ctl *ctl)
{
	return zd_ctl_list_run(ctl, &zd_ctl_devices_listing);
}
