// SPDX-License-Identifier: Apache-2.0
/*
 * verb_scopes.c - zeroctl scopes: forward scopes, claims and user contexts, and what they hold.
 */
#include "ctl.h"

static const struct zd_ctl_column columns[] = {
        {"ID", "id", ZD_CTL_COUNT, NULL},         {"JOB", "job", ZD_CTL_TEXT, NULL},
        {"GROUP", "group", ZD_CTL_TEXT, NULL},    {"RANK", "rank", ZD_CTL_COUNT, NULL},
        {"DEVICE", "device", ZD_CTL_COUNT, NULL}, {"TAG", "tag", ZD_CTL_TEXT, NULL},
        {"STATE", "state", ZD_CTL_TEXT, NULL},    {"PARENT", "parent", ZD_CTL_COUNT, NULL},
        {"AGE", "age_ns", ZD_CTL_AGE, NULL},      {"UNITS", "units", ZD_CTL_COUNT, NULL},
        {"BYTES", "bytes", ZD_CTL_BYTES, NULL},   {"SESSION", "session", ZD_CTL_COUNT, NULL},
        {NULL, NULL, ZD_CTL_TEXT, NULL},
};

static json_t *scope_row(const Zd__Row *row)
{
	const Zd__ScopeRow *s = row->scope;
	return json_pack("{s:I,s:s,s:s,s:I,s:I,s:s,s:s,s:b,s:I,s:I,s:I,s:I,s:I}", "id", ZD_CTL_INT(s->id),
	                 "job", s->job, "group", s->group, "rank", ZD_CTL_INT(s->rank), "device",
	                 ZD_CTL_INT(s->device), "tag", s->tag, "state", s->state, "context", (int)s->context,
	                 "parent", ZD_CTL_INT(s->parent), "age_ns", ZD_CTL_INT(s->age_ns), "units",
	                 ZD_CTL_INT(s->units), "bytes", ZD_CTL_INT(s->bytes), "session",
	                 ZD_CTL_INT(s->session));
}

static const struct zd_ctl_listing listing = {
        .table = ZD__TABLE__SCOPES,
        .row_case = ZD__ROW__ROW_SCOPE,
        .row = scope_row,
        .columns = columns,
};

int zd_ctl_scopes(struct zd_ctl *ctl)
{
	return zd_ctl_list_run(ctl, &listing);
}
