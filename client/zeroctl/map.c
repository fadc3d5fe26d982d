// SPDX-License-Identifier: Apache-2.0
/*
 * map.c - the arenas of devices as segments, blocks and holes, made from the daemon's listings.
 *
 * The segments of a device, the sum of other users' segments, and the rest add up to its arena. The blocks
 * and holes of a segment add up to the segment. Memory that changes its owner between two pages of the
 * daemon's is a hole of kind "changed".
 */
#include "ctl.h"

#include <stdlib.h>
#include <string.h>

#define MOST_PURPOSES 8

static void amend_segment(json_t *row)
{
	json_object_set_new(row, "kind", json_string("segment"));
	json_object_set(row, "segment", json_object_get(row, "id"));
	json_object_del(row, "id");
}

static void amend_block(json_t *row)
{
	json_object_set_new(row, "kind",
	                    json_string(json_is_true(json_object_get(row, "free")) ? "hole" : "block"));
	json_object_del(row, "free");
}

static const struct zd_ctl_listing segments_listing = {
        .table = ZD__TABLE__SEGMENTS,
        .amend = amend_segment,
};

static const struct zd_ctl_listing blocks_listing = {
        .table = ZD__TABLE__BLOCKS,
        .amend = amend_block,
};

/* Blocks of one segment, by purpose. */
struct census {
	struct {
		const char *purpose;
		unsigned count, quarantined;
	} purposes[MOST_PURPOSES];
	unsigned npurposes;
	uint64_t largest_hole_bytes;
};

static void count_block(struct census *census, const json_t *block)
{
	const char *purpose = zd_ctl_string(block, "purpose");
	const char *state = zd_ctl_string(block, "state");
	unsigned i = 0;
	if (zd_ctl_is(block, "kind", "hole")) {
		const uint64_t bytes = (uint64_t)zd_ctl_integer(block, "bytes");
		if (bytes > census->largest_hole_bytes)
			census->largest_hole_bytes = bytes;
		return;
	}
	while (i < census->npurposes && strcmp(census->purposes[i].purpose, purpose) != 0)
		i++;
	if (i == MOST_PURPOSES)
		return;
	if (i == census->npurposes)
		census->purposes[census->npurposes++].purpose = purpose;
	census->purposes[i].count++;
	/* These are free as soon as their waits have ended. */
	census->purposes[i].quarantined += strcmp(state, "QUARANTINED") == 0 || strcmp(state, "FREED") == 0 ||
	                                   strcmp(state, "DROPPED") == 0 || strcmp(state, "DYING") == 0;
}

/* "shard×3, gathered×1 (1 in quarantine)", or the daemon's text for a segment that retires. */
static char *segment_pins(const json_t *segment, const struct census *census)
{
	const char *pins = zd_ctl_string(segment, "pins");
	char *text = zd_ctl_text("%s", pins);
	if (*pins || *zd_ctl_string(segment, "job") == '\0')
		return text;
	for (unsigned i = 0; i < census->npurposes; i++) {
		char quarantined[48] = "";
		if (census->purposes[i].quarantined)
			snprintf(quarantined, sizeof(quarantined), " (%u in quarantine)",
			         census->purposes[i].quarantined);
		text = zd_ctl_append(text, "%s%s\u00d7%u%s", i ? ", " : "", census->purposes[i].purpose,
		                     census->purposes[i].count, quarantined);
	}
	return text;
}

static void add_row(json_t *rows, const json_t *segment, json_t *row)
{
	(void)json_object_set(row, "device", json_object_get(segment, "device"));
	(void)json_object_set(row, "segment", json_object_get(segment, "segment"));
	(void)json_array_append_new(rows, row);
}

static void add_changed(json_t *rows, const json_t *segment, uint64_t from, uint64_t to)
{
	if (from < to)
		add_row(rows, segment,
		        json_pack("{s:s,s:I,s:I}", "kind", "changed", "offset", ZD_CTL_INT(from), "bytes",
		                  ZD_CTL_INT(to - from)));
}

/* Adds the segment and its blocks. A segment that was freed after its listing has none. */
static int add_segment(struct zd_ctl *ctl, json_t *segment, json_t *rows)
{
	struct census census = {.npurposes = 0};
	uint64_t end = 0;
	size_t i;
	json_t *blocks, *block;
	int status = zd_ctl_list_fetch_of(ctl, &blocks_listing,
	                                  (uint32_t)(uint64_t)zd_ctl_integer(segment, "segment"), &blocks);
	if (status)
		return status;
	json_array_foreach(blocks, i, block) count_block(&census, block);
	char *pins = segment_pins(segment, &census);
	(void)json_object_set_new(segment, "pins", json_string(pins));
	(void)json_object_set_new(segment, "largest_hole_bytes",
	                          json_integer(ZD_CTL_INT(census.largest_hole_bytes)));
	free(pins);
	(void)json_array_append(rows, segment);
	json_array_foreach(blocks, i, block)
	{
		if ((uint64_t)zd_ctl_integer(block, "offset") < end)
			continue;
		add_changed(rows, segment, end, (uint64_t)zd_ctl_integer(block, "offset"));
		end = (uint64_t)zd_ctl_integer(block, "offset") + (uint64_t)zd_ctl_integer(block, "bytes");
		add_row(rows, segment, json_incref(block));
	}
	add_changed(rows, segment, end, (uint64_t)zd_ctl_integer(segment, "bytes"));
	json_decref(blocks);
	return 0;
}

static int add_device(struct zd_ctl *ctl, const json_t *device, const json_t *segments, json_t *rows)
{
	const json_int_t index = zd_ctl_integer(device, "index");
	uint64_t bytes = 0, all_bytes = (uint64_t)zd_ctl_integer(device, "segment_bytes");
	const uint64_t arena_bytes = (uint64_t)zd_ctl_integer(device, "arena_bytes");
	size_t i;
	json_t *segment;
	json_array_foreach((json_t *)segments, i, segment)
	{
		if (zd_ctl_integer(segment, "device") != index)
			continue;
		bytes += (uint64_t)zd_ctl_integer(segment, "bytes");
		int status = add_segment(ctl, segment, rows);
		if (status)
			return status;
	}
	if (*ctl->job)
		return 0;
	if (bytes < all_bytes)
		(void)json_array_append_new(rows, json_pack("{s:s,s:I,s:I}", "kind", "others", "device",
		                                            index, "bytes", ZD_CTL_INT(all_bytes - bytes)));
	bytes = bytes < all_bytes ? all_bytes : bytes;
	return json_array_append_new(rows,
	                             json_pack("{s:s,s:I,s:I}", "kind", "unused", "device", index, "bytes",
	                                       bytes < arena_bytes ? ZD_CTL_INT(arena_bytes - bytes) : 0));
}

int zd_ctl_check_device(const struct zd_ctl *ctl, const json_t *devices)
{
	if (ctl->device < (long long)json_array_size(devices))
		return 0;
	return zd_ctl_fail(ZEROD_E_NOT_FOUND, "NOT_FOUND: no device %lld; there are %zu", ctl->device,
	                   json_array_size(devices));
}

int zd_ctl_map_fetch(struct zd_ctl *ctl, json_t **out)
{
	json_t *devices, *device, *segments = NULL, *rows = json_array();
	size_t i;
	int status = zd_ctl_list_fetch(ctl, &zd_ctl_devices_listing, &devices);
	if (status) {
		json_decref(rows);
		return status;
	}
	status = zd_ctl_check_device(ctl, devices);
	if (!status)
		status = zd_ctl_list_fetch(ctl, &segments_listing, &segments);
	json_array_foreach(devices, i, device)
	{
		if (!status && (ctl->device < 0 || (long long)i == ctl->device))
			status = add_device(ctl, device, segments, rows);
	}
	json_decref(devices);
	json_decref(segments);
	if (status) {
		json_decref(rows);
		return status;
	}
	*out = rows;
	return 0;
}
