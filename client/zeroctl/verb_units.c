// SPDX-License-Identifier: Apache-2.0
/*
 * verb_units.c - zeroctl units: the registered units, their versions, and the number of ranks with a gathered
 * buffer.
 */
#include "ctl.h"

/* "7", or "6..7" while ranks differ. */
static char *version_text(const json_t *row)
{
	json_int_t min = json_integer_value(json_object_get(row, "version_min"));
	json_int_t max = json_integer_value(json_object_get(row, "version_max"));
	if (min == max)
		return zd_ctl_text("%" JSON_INTEGER_FORMAT, max);
	return zd_ctl_text("%" JSON_INTEGER_FORMAT "..%" JSON_INTEGER_FORMAT, min, max);
}

static const struct zd_ctl_column columns[] = {
        {"ID", "id", ZD_CTL_ID, 10, NULL},
        {"JOB", "job", ZD_CTL_TEXT, 0, NULL},
        {"GROUP", "group", ZD_CTL_TEXT, 3, NULL},
        {"UNIT", "name", ZD_CTL_TEXT, 0, NULL},
        {"DTYPE", "dtype", ZD_CTL_TEXT, 5, NULL},
        {"NUMEL", "numel", ZD_CTL_COUNT, 4, NULL},
        {"PADDED", "padded_bytes", ZD_CTL_BYTES, 1, NULL},
        {"SLOT", "slot", ZD_CTL_COUNT, 9, NULL},
        {"VIEWS", "views", ZD_CTL_COUNT, 8, NULL},
        {"VERSION", NULL, ZD_CTL_CUSTOM, 0, version_text},
        {"RANKS", "registered", ZD_CTL_COUNT, 2, NULL},
        {"GATHERED", "gathered", ZD_CTL_COUNT, 0, NULL},
        {"FROZEN", "frozen", ZD_CTL_YES_NO, 6, NULL},
        {"ALL-REDUCE", "all_reduce", ZD_CTL_YES_NO, 7, NULL},
        {NULL, NULL, ZD_CTL_TEXT, 0, NULL},
};

const struct zd_ctl_listing zd_ctl_units_listing = {
        .table = ZD__TABLE__UNITS,
        .row_case = ZD__ROW__ROW_UNIT,
        .columns = columns,
        .plural = "units",
};

int zd_ctl_units(struct zd_ctl *ctl)
{
	return zd_ctl_list_run(ctl, &zd_ctl_units_listing);
}
