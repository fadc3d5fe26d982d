// SPDX-License-Identifier: Apache-2.0
/*
 * verb_buffers.c - zeroctl buffers: every live gathered buffer, who holds it, since when and why.
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

/* The reason why the buffer stays without holders. */
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

static json_t *holders_of(const Zd__BufferRow *buffer)
{
	json_t *holders = json_array();
	for (size_t i = 0; i < buffer->n_holders; i++) {
		const Zd__Holder *h = buffer->holders[i];
		if (json_array_append_new(holders,
		                          json_pack("{s:I,s:s,s:I,s:I}", "session", ZD_CTL_INT(h->session),
		                                    "tag", h->tag, "uses", ZD_CTL_INT(h->uses), "age_ns",
		                                    ZD_CTL_INT(h->age_ns)))) {
			json_decref(holders);
			return NULL;
		}
	}
	return holders;
}

static json_t *buffer_row(const Zd__Row *row)
{
	const Zd__BufferRow *b = row->buffer;
	return json_pack("{s:I,s:s,s:s,s:s,s:I,s:I,s:s,s:I,s:I,s:I,s:I,s:b,s:b,s:b,s:o,s:s}", "id",
	                 ZD_CTL_INT(b->id), "job", b->job, "group", b->group, "unit", b->unit, "rank",
	                 ZD_CTL_INT(b->rank), "device", ZD_CTL_INT(b->device), "state", b->state,
	                 "true_bytes", ZD_CTL_INT(b->true_bytes), "padded_bytes", ZD_CTL_INT(b->padded_bytes),
	                 "version", ZD_CTL_INT(b->version), "age_ns", ZD_CTL_INT(b->age_ns), "persistent",
	                 (int)b->persistent, "prefetched", (int)b->prefetched, "in_place", (int)b->in_place,
	                 "holders", holders_of(b), "waits_for", b->waits_for);
}

const struct zd_ctl_listing zd_ctl_buffers_listing = {
        .table = ZD__TABLE__BUFFERS,
        .row_case = ZD__ROW__ROW_BUFFER,
        .row = buffer_row,
        .columns = columns,
        .plural = "live buffers",
};

int zd_ctl_buffers(struct zd_ctl *ctl)
{
	return zd_ctl_list_run(ctl, &zd_ctl_buffers_listing);
}
