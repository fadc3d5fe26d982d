/* SPDX-License-Identifier: Apache-2.0 */
/* location.h - places in the daemon's memory, as objects of the library have them. */
#ifndef ZD_CLIENT_LOCATION_H
#define ZD_CLIENT_LOCATION_H

#include <stdint.h>
#include <sys/queue.h>

struct zc_segment;

struct zc_location {
	uint32_t segment; /* 0: nowhere */
	uint64_t offset;
	uint64_t bytes;
};

/* The places of the slices of a buffer in place, except the rank's own shard. Each frame can be empty. */
struct zc_frames {
	struct zc_location low, own, high;
};

/* A holder's claim on the pages of a gathered buffer, which remain accessible while a hold exists (strict.c).
 * On GPUs a segment is one page. */
struct zc_hold {
	struct zc_segment *segment;
	uint64_t page, npages;
	LIST_ENTRY(zc_hold) link;
};

LIST_HEAD(zc_hold_list, zc_hold);

#endif
