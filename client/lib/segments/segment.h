/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment.h - the daemon's memory in this process: segments, and ranges in which several are side by side.
 */
#ifndef ZD_CLIENT_SEGMENT_H
#define ZD_CLIENT_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>

#define HASH_NONFATAL_OOM 1 /* an element that could not be added has hh.tbl NULL */
#include <uthash.h>

#include <zerod.h>

#include "base/err.h"
#include "client/lib/base/client.h"
#include "client/lib/base/location.h"
#include "proto/zerod.pb-c.h"

struct zc_gpu;
struct zerod_mapping;

struct zc_segment {
	uint32_t id;
	uint32_t device;
	uint64_t bytes;
	bool is_file;                  /* memory of the host; otherwise of a GPU */
	bool registered;               /* for a file: GPUs of this process can access it */
	int fd;                        /* -1 once the segment is mapped */
	void *map;                     /* NULL until the first use; on GPUs a GPU address */
	bool read_only;                /* the mapping: no member of its job has used it */
	bool is_retired;               /* unmapped when the last of these ends: */
	uint32_t nmapped;              /* struct zerod_mapped in it */
	struct zerod_mapping *mapping; /* of a mapped file */
	const struct zc_gpu *gpu;      /* the GPU that maps the segment; NULL: an emulated device */
	uint32_t *page_holders; /* strict: of each page, or of the segment; NULL before the first hold */
	uint64_t nholds;        /* strict: holds that name the segment */
	struct zc_segment *next_retired;
	UT_hash_handle hh;
};

#define ZC_RANGE_PARTS 3u

/* Addresses at which the segments of such a buffer are mapped side by side (range.c). */
struct zc_range {
	uint32_t segments[ZC_RANGE_PARTS]; /* 0: none */
	void *map;
	uint64_t bytes;
	struct zerod_mapping *mapping; /* of host memory; NULL: of a GPU, which is: */
	const struct zc_gpu *gpu;
	UT_hash_handle hh;
};

/* ---- segment.c ----------------------------------------------------------------------------------------- */

/* All functions below: with the lock. */

/* Returns the segment, or NULL if the daemon never sent it. */
struct zc_segment *zc_segment_find(struct zerod_client *client, uint32_t id);
/* Adds a segment. Takes ownership of the descriptor, also after an error. PROTOCOL for a description that
 * does not match the descriptor. */
int zc_segment_add(struct zerod_client *client, const Zd__Segment *segment, int fd, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Checks that the location lies in a known segment, holds `min_bytes`, and is aligned for elements of `align`
 * bytes. */
int zc_location_take(struct zerod_client *client, const Zd__Location *from, uint64_t min_bytes, size_t align,
                     struct zc_location *location, struct zd_err *err) __attribute__((warn_unused_result));
/* Returns the address of a checked location in *data. Maps the segment at its first use. Errors: SYSTEM if
 * mapping fails; STALE if the location was released meanwhile and its segment has retired. */
int zc_location_map(struct zerod_client *client, const struct zc_location *location, void **data,
                    struct zd_err *err) __attribute__((warn_unused_result));

/* As zc_location_map(), for a caller that only reads. */
int zc_location_map_read(struct zerod_client *client, const struct zc_location *location, const void **data,
                         struct zd_err *err) __attribute__((warn_unused_result));

/* ---- range.c ------------------------------------------------------------------------------------------- */

/* Returns the address of the first slice of a buffer in place, with checked frames, in *data. Errors: as
 * zc_location_map(). */
int zc_range_map(struct zerod_client *client, const struct zc_frames *frames, void **data, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Unmaps all ranges that contain the segment. */
void zc_ranges_drop(struct zerod_client *client, uint32_t segment);
/* Frees all ranges. Ranges of GPUs must already be unmapped. */
void zc_ranges_free(struct zerod_client *client);

/* ---- retire.c ------------------------------------------------------------------------------------------ */

/* Unmaps a segment that the daemon retires, and names in no location any more. The unmapping will be
 * reported. A reader's mapping delays it until the mapping ends. PROTOCOL if the segment was never sent. */
int zc_segment_retire(struct zerod_client *client, uint32_t id, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Ends a reader's mapping of the segment, and can free the segment. An error ends the connection. */
int zc_segment_unread(struct zerod_client *client, struct zc_segment *segment, struct zd_err *err)
        __attribute__((warn_unused_result));
void zc_segments_free(struct zerod_client *client);

#endif
