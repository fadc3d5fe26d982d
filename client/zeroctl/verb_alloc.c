// SPDX-License-Identifier: Apache-2.0
/*
 * verb_alloc.c - zeroctl alloc: plain allocations.
 */
#include "ctl.h"

static const struct zd_ctl_column columns[] = {
        {"ID", "id", ZD_CTL_ID, 3, NULL},
        {"JOB", "job", ZD_CTL_TEXT, 0, NULL},
        {"NAME", "name", ZD_CTL_TEXT, 0, NULL},
        {"SESSION", "session", ZD_CTL_ID, 1, NULL},
        {"DEVICE", "device", ZD_CTL_COUNT, 0, NULL},
        {"BYTES", "bytes", ZD_CTL_BYTES, 0, NULL},
        {"AGE", "age_ns", ZD_CTL_AGE, 2, NULL},
        {NULL, NULL, ZD_CTL_TEXT, 0, NULL},
};

const struct zd_ctl_listing zd_ctl_allocations_listing = {
        .table = ZD__TABLE__ALLOCATIONS,
        .row_case = ZD__ROW__ROW_ALLOCATION,
        .columns = columns,
        .plural = "allocations",
};

int zd_ctl_alloc(struct zd_ctl *ctl)
{
	return zd_ctl_list_run(ctl, &zd_ctl_allocations_listing);
}
