/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot.h - all facts of the daemon's listings and events about memory, as one JSON object.
 */
#ifndef ZD_CTL_SNAPSHOT_H
#define ZD_CTL_SNAPSHOT_H

#include "ctl.h"

/* Older events than so many newest ones are not read: a page with more is not useful. */
#define ZD_CTL_SNAPSHOT_EVENTS (1u << 18)

/* Fetches the snapshot, of --device and --job or of all. NOT_FOUND: there is no such device or job. */
int zd_ctl_snapshot_fetch(struct zd_ctl *ctl, json_t **snapshot) __attribute__((warn_unused_result));

#endif
