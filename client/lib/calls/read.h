/* SPDX-License-Identifier: Apache-2.0 */
/* read.h - mappings of readers. */
#ifndef ZD_CLIENT_READ_H
#define ZD_CLIENT_READ_H

#include <sys/queue.h>

#include "client/lib/base/client.h"
#include "proto/zerod.pb-c.h"

struct zc_segment;

struct zerod_mapped {
	struct zerod_client *client;
	struct zc_segment *segment;
	Zd__UnitRead request; /* that zerod_unit_map_end() repeats; its unit is owned */
	LIST_ENTRY(zerod_mapped) link;
};

/* Frees a mapping at its client's end. */
void zc_mapped_free(struct zerod_mapped *mapped);

#endif
