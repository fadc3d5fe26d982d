// SPDX-License-Identifier: Apache-2.0
/*
 * verb_units.c - zeroctl units: what is registered, which versions, how many ranks hold a gathered buffer.
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

static json_t *unit_row(const Zd__Row *row)
{
	const Zd__UnitRow *u = row->unit;
	return json_pack("{s:I,s:s,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:b,s:b}", "id",
	                 ZD_CTL_INT(u->id), "job", u->job, "group", u->group, "name", u->name, "dtype",
	                 zerod_dtype_name((enum zerod_dtype)u->dtype), "numel", ZD_CTL_INT(u->numel),
	                 "padded_bytes", ZD_CTL_INT(u->padded_bytes), "slot", ZD_CTL_INT(u->slot), "views",
	                 ZD_CTL_INT(u->views), "version_min", ZD_CTL_INT(u->version_min), "version_max",
	                 ZD_CTL_INT(u->version_max), "registered", ZD_CTL_INT(u->registered), "gathered",
	                 ZD_CTL_INT(u->gathered), "frozen", (int)u->frozen, "all_reduce", (int)u->all_reduce);
}

const struct zd_ctl_listing zd_ctl_units_listing = {
        .table = ZD__TABLE__UNITS,
        .row_case = ZD__ROW__ROW_UNIT,
        .row = unit_row,
        .columns = columns,
        .plural = "units",
};

int zd_ctl_units(struct zd_ctl *ctl)
{
	return zd_ctl_list_run(ctl, &zd_ctl_units_listing);
}
