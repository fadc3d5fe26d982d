// SPDX-License-Identifier: Apache-2.0
/*
 * verb_buffers.c - zeroctl buffers: every live gathered buffer, with its holders, their times and reasons.
 */
#include "ctl.h"

#include <stdlib.h>

/* "7:plan×2, 7:eager×1": session, tag, uses left. */
static char *holders_text(const json_t *row)
{
	char *text = zd_ctl_text("%s", "");
	size_t index;
	json_t *holder;
	json_array_foreach(json_object_get(row, "holders"), index, holder)
	{
		char *longer = zd_ctl_text(
		        "%s%s%" JSON_INTEGER_FORMAT ":%s\u00d7%" JSON_INTEGER_FORMAT, text, index ? ", " : "",
		        zd_ctl_number(json_integer_value(json_object_get(holder, "session"))),
		        json_string_value(json_object_get(holder, "tag")),
		        json_integer_value(json_object_get(holder, "uses")));
		free(text);
		text = longer;
	}
	return text;
}

/* The reason why the buffer remains without holders. */
static char *kept_text(const json_t *row)
{
	if (json_is_true(json_object_get(row, "persistent")))
		return zd_ctl_text("persistent");
	return zd_ctl_text("%s", json_is_true(json_object_get(row, "prefetched")) ? "prefetch" : "");
}

static const struct zd_ctl_column columns[] = {
        {"JOB", "job", ZD_CTL_TEXT, 0, NULL},          {"GROUP", "group", ZD_CTL_TEXT, 5, NULL},
        {"UNIT", "unit", ZD_CTL_TEXT, 0, NULL},        {"RANK", "rank", ZD_CTL_COUNT, 0, NULL},
        {"DEVICE", "device", ZD_CTL_COUNT, 6, NULL},   {"STATE", "state", ZD_CTL_STATE, 0, NULL},
        {"TRUE", "true_bytes", ZD_CTL_BYTES, 8, NULL}, {"MEMORY", "padded_bytes", ZD_CTL_BYTES, 2, NULL},
        {"VERSION", "version", ZD_CTL_COUNT, 4, NULL}, {"AGE", "age_ns", ZD_CTL_AGE, 3, NULL},
        {"KEPT", NULL, ZD_CTL_CUSTOM, 7, kept_text},   {"HOLDERS", "holders", ZD_CTL_CUSTOM, 1, holders_text},
        {"WAITS", "waits_for", ZD_CTL_TEXT, 0, NULL},  {NULL, NULL, ZD_CTL_TEXT, 0, NULL},
};

const struct zd_ctl_listing zd_ctl_buffers_listing = {
        .table = ZD__TABLE__BUFFERS,
        .row_case = ZD__ROW__ROW_BUFFER,
        .columns = columns,
        .plural = "live buffers",
};

int zd_ctl_buffers(struct zd_ctl *ctl)
{
	return zd_ctl_list_run(ctl, &zd_ctl_buffers_listing);
}
