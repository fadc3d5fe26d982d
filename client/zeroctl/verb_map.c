// SPDX-License-Identifier: Apache-2.0
/*
 * verb_map.c - zeroctl map: the content of a device's arena, and why it remains.
 */
#include "ctl.h"

#include <string.h>

/* "lm/world/layers.0@3": job, group, unit or allocation, rank. */
static char *owner_text(const json_t *row)
{
	const char *job = zd_ctl_string(row, "job");
	const char *group = zd_ctl_string(row, "group");
	const char *name = zd_ctl_string(row, "name");
	const char *kind = zd_ctl_string(row, "kind");
	if (!job || strcmp(kind, "hole") == 0)
		return zd_ctl_text("%s", "");
	group = group ? group : "";
	name = name ? name : "";
	if (!*group)
		return zd_ctl_text("%s%s%s", job, *name ? "/" : "", name);
	return zd_ctl_text("%s/%s%s%s@%" JSON_INTEGER_FORMAT, job, group, *name ? "/" : "", name,
	                   zd_ctl_integer(row, "rank"));
}

static const struct zd_ctl_column columns[] = {
        {"DEVICE", "device", ZD_CTL_COUNT, 5, NULL},
        {"SEGMENT", "segment", ZD_CTL_COUNT, 0, NULL},
        {"KIND", "kind", ZD_CTL_TEXT, 0, NULL},
        {"OFFSET", "offset", ZD_CTL_BYTES, 0, NULL},
        {"BYTES", "bytes", ZD_CTL_BYTES, 0, NULL},
        {"PURPOSE", "purpose", ZD_CTL_TEXT, 2, NULL},
        {"STATE", "state", ZD_CTL_STATE, 1, NULL},
        {"OWNER", NULL, ZD_CTL_CUSTOM, 0, owner_text},
        {"LARGEST-HOLE", "largest_hole_bytes", ZD_CTL_BYTES, 4, NULL},
        {"MAPPED", "mappings", ZD_CTL_COUNT, 6, NULL},
        {"PINS", "pins", ZD_CTL_TEXT, 3, NULL},
        {NULL, NULL, ZD_CTL_TEXT, 0, NULL},
};

int zd_ctl_map(struct zd_ctl *ctl)
{
	json_t *rows;
	int status = zd_ctl_choose_columns(ctl, columns, NULL);
	if (!status)
		status = zd_ctl_map_fetch(ctl, &rows);
	return status ? status : zd_ctl_print_rows(ctl, rows, columns, "devices");
}
