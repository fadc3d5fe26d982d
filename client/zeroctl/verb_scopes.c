// SPDX-License-Identifier: Apache-2.0
/*
 * verb_scopes.c - zeroctl scopes: forward scopes, claims and user contexts, and what they hold.
 */
#include "ctl.h"

static const struct zd_ctl_column columns[] = {
        {"ID", "id", ZD_CTL_COUNT, NULL, 8},         {"JOB", "job", ZD_CTL_TEXT, NULL, 0},
        {"GROUP", "group", ZD_CTL_TEXT, NULL, 3},    {"RANK", "rank", ZD_CTL_COUNT, NULL, 2},
        {"DEVICE", "device", ZD_CTL_COUNT, NULL, 5}, {"TAG", "tag", ZD_CTL_TEXT, NULL, 0},
        {"STATE", "state", ZD_CTL_STATE, NULL, 0},   {"PARENT", "parent", ZD_CTL_COUNT, NULL, 7},
        {"AGE", "age_ns", ZD_CTL_AGE, NULL, 1},      {"UNITS", "units", ZD_CTL_COUNT, NULL, 4},
        {"BYTES", "bytes", ZD_CTL_BYTES, NULL, 0},   {"SESSION", "session", ZD_CTL_COUNT, NULL, 6},
        {NULL, NULL, ZD_CTL_TEXT, NULL, 0},
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

const struct zd_ctl_listing zd_ctl_scopes_listing = {
        .table = ZD__TABLE__SCOPES,
        .row_case = ZD__ROW__ROW_SCOPE,
        .row = scope_row,
        .columns = columns,
        .plural = "scopes",
};

int zd_ctl_scopes(struct zd_ctl *ctl)
{
	return zd_ctl_list_run(ctl, &zd_ctl_scopes_listing);
}
