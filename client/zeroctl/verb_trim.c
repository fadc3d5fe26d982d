// SPDX-License-Identifier: Apache-2.0
/*
 * verb_trim.c - zeroctl trim: releases unused memory to the devices.
 *
 * If a process prevents the release on a device, this is reported as a failure, and the other devices are
 * trimmed nevertheless. If no memory was freed, the device's map shows the reason.
 */
#include "ctl.h"

#include <stdlib.h>
#include <string.h>

#define MOST_SEGMENTS 4u /* that are named */

static const struct zd_ctl_column columns[] = {
        {"DEVICE", "index", ZD_CTL_COUNT, 0, NULL},
        {"NAME", "name", ZD_CTL_TEXT, 0, NULL},
        {"FREED", "freed_bytes", ZD_CTL_BYTES, 0, NULL},
        {"WHY", "why", ZD_CTL_TEXT, 0, NULL},
        {NULL, NULL, ZD_CTL_TEXT, 0, NULL},
};

static int take_freed(const Zd__Reply *reply, void *arg)
{
	uint64_t *freed_bytes = arg;
	if (reply->body_case != ZD__REPLY__BODY_TRIM)
		return zd_ctl_fail(ZEROD_E_PROTOCOL, "the daemon answered a trim with another reply");
	*freed_bytes = reply->trim->freed_bytes;
	return 0;
}

static int trim(struct zd_ctl *ctl, json_int_t device, uint64_t *freed_bytes)
{
	Zd__Trim body = ZD__TRIM__INIT;
	Zd__Request request = ZD_REQUEST(TRIM, trim, &body);
	body.device = (uint32_t)device;
	body.keep_bytes = ctl->keep_bytes;
	return zd_ctl_call(ctl, &request, take_freed, freed_bytes);
}

/* "segment 3 of job 'lm' has shard×3, gathered×2". Other users' segments are only counted. */
static char *add_reason(char *text, const json_t *segment)
{
	const char *job = zd_ctl_string(segment, "job");
	const char *pins = zd_ctl_string(segment, "pins");
	return zd_ctl_append(text, "%ssegment %" JSON_INTEGER_FORMAT " of job '%s' has %s", *text ? "; " : "",
	                     zd_ctl_integer(segment, "segment"), job,
	                     *pins ? pins : "requests that wait for it");
}

/* Returns why no segment of the device was released, from its map. */
static char *why_nothing(const struct zd_ctl *ctl, const json_t *map)
{
	uint64_t bytes = 0;
	size_t i, nsegments = 0, nothers = 0, nnamed = 0;
	json_t *row;
	char *text = zd_ctl_text("%s", "");
	json_array_foreach((json_t *)map, i, row)
	{
		if (!zd_ctl_is(row, "kind", "segment"))
			continue;
		nsegments++;
		bytes += (uint64_t)zd_ctl_integer(row, "bytes");
		if (!*zd_ctl_string(row, "job"))
			nothers++;
		else if (nnamed++ < MOST_SEGMENTS)
			text = add_reason(text, row);
	}
	char *why;
	if (nsegments == 0)
		why = zd_ctl_text("no memory of it is in segments");
	else if (bytes <= ctl->keep_bytes)
		why = zd_ctl_text("segments have at most --keep bytes");
	else if (nnamed > MOST_SEGMENTS)
		why = zd_ctl_text("%s; and %zu more segments", text, nnamed - MOST_SEGMENTS);
	else
		why = zd_ctl_text("%s", text);
	free(text);
	if (nothers == 0)
		return why;
	text = zd_ctl_text("%s%s%zu segment%s of other users", why, *why ? "; " : "", nothers,
	                   nothers == 1 ? "" : "s");
	free(why);
	return text;
}

static int tell_why(struct zd_ctl *ctl, json_int_t index, json_t *row)
{
	struct zd_ctl of_device = *ctl;
	json_t *map;
	of_device.device = index;
	int status = zd_ctl_map_fetch(&of_device, &map);
	if (status)
		return status;
	char *why = why_nothing(ctl, map);
	(void)json_object_set_new(row, "why", json_string(why));
	free(why);
	json_decref(map);
	return 0;
}

/* Fills `rows`. Returns the first failure when all have been tried. */
static int trim_all(struct zd_ctl *ctl, const json_t *devices, json_t *rows)
{
	int first = 0;
	size_t i;
	const json_t *device;
	json_array_foreach(devices, i, device)
	{
		json_int_t index = zd_ctl_integer(device, "index");
		uint64_t freed_bytes = 0;
		if (ctl->device >= 0 && index != ctl->device)
			continue;
		int status = trim(ctl, index, &freed_bytes);
		first = first ? first : status;
		if (status)
			continue;
		json_t *row = json_pack("{s:I,s:O,s:I,s:s}", "index", index, "name",
		                        json_object_get(device, "name"), "freed_bytes",
		                        ZD_CTL_INT(freed_bytes), "why", "");
		if (freed_bytes == 0)
			status = tell_why(ctl, index, row);
		first = first ? first : status;
		(void)json_array_append_new(rows, row);
	}
	return first;
}

int zd_ctl_trim(struct zd_ctl *ctl)
{
	json_t *devices, *rows;
	int printed = 0, status = zd_ctl_list_fetch(ctl, &zd_ctl_devices_listing, &devices);
	if (status)
		return status;
	status = zd_ctl_check_device(ctl, devices);
	if (status) {
		json_decref(devices);
		return status;
	}
	rows = json_array();
	status = trim_all(ctl, devices, rows);
	json_decref(devices);
	printed = zd_ctl_print_rows(ctl, rows, columns, NULL);
	return status ? status : printed;
}
