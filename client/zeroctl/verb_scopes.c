// SPDX-License-Identifier: Apache-2.0
/*
 * verb_scopes.c - zeroctl scopes: forward scopes, claims and user contexts, and their buffers.
 */
#include "ctl.h"

static const struct zd_ctl_column columns[] = {
        {"ID", "id", ZD_CTL_ID, 8, NULL},
        {"JOB", "job", ZD_CTL_TEXT, 0, NULL},
        {"GROUP", "group", ZD_CTL_TEXT, 3, NULL},
        {"RANK", "rank", ZD_CTL_COUNT, 2, NULL},
        {"DEVICE", "device", ZD_CTL_COUNT, 5, NULL},
        {"TAG", "tag", ZD_CTL_TEXT, 0, NULL},
        {"STATE", "state", ZD_CTL_STATE, 0, NULL},
        {"PARENT", "parent", ZD_CTL_ID, 7, NULL},
        {"AGE", "age_ns", ZD_CTL_AGE, 1, NULL},
        {"UNITS", "units", ZD_CTL_COUNT, 4, NULL},
        {"BYTES", "bytes", ZD_CTL_BYTES, 0, NULL},
        {"SESSION", "session", ZD_CTL_ID, 6, NULL},
        {NULL, NULL, ZD_CTL_TEXT, 0, NULL},
};

const struct zd_ctl_listing zd_ctl_scopes_listing = {
        .table = ZD__TABLE__SCOPES,
        .row_case = ZD__ROW__ROW_SCOPE,
        .columns = columns,
        .plural = "scopes",
};

int zd_ctl_scopes(struct zd_ctl *ctl)
{
	return zd_ctl_list_run(ctl, &zd_ctl_scopes_listing);
}
