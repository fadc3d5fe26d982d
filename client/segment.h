/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment.h - the daemon's memory in this process: segments, locations in them, and the accessible pages of a
 * strict client.
 */
#ifndef ZD_CLIENT_SEGMENT_H
#define ZD_CLIENT_SEGMENT_H

#include <stdint.h>
#include <sys/queue.h>

#define HASH_NONFATAL_OOM 1 /* an element that could not be added has hh.tbl NULL */
#include <uthash.h>

#include <zerod.h>

#include "base/err.h"
#include "proto/zerod.pb-c.h"

struct zc_gpu;
struct zerod_mapping;
struct zc_stream_wait;
struct zc_op;
struct zc_unit;

struct zc_location {
	uint32_t segment; /* 0: nowhere */
	uint64_t offset;
	uint64_t bytes;
};

struct zc_segment {
	uint32_t id;
	uint32_t device;
	uint64_t bytes;
	bool is_file;                  /* memory of the host; else of a GPU */
	bool registered;               /* of a file: GPUs of this process may access it */
	int fd;                        /* -1 once the segment is mapped */
	void *map;                     /* NULL until the first use; on GPUs a GPU address */
	struct zerod_mapping *mapping; /* of a mapped file */
	const struct zc_gpu *gpu;      /* the GPU that has the segment mapped; NULL: an emulated device */
	uint32_t *page_holders; /* strict: of each page, or of the segment; NULL until the first hold */
	uint64_t nholds;        /* strict: holds that name the segment */
	struct zc_segment *next_retired;
	UT_hash_handle hh;
};

/* Where the slices of a buffer in place are, beside the rank's own shard. Each frame may be nowhere. */
struct zc_frames {
	struct zc_location low, own, high;
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

/* ---- Pages of strict clients --------------------------------------------------------------------------- */

/* A holder's claim on the pages of a gathered buffer, which stay accessible while there is a hold (strict.c).
 * On GPUs a segment is one page. */
struct zc_hold {
	struct zc_segment *segment;
	uint64_t page, npages;
	LIST_ENTRY(zc_hold) link;
};

LIST_HEAD(zc_hold_list, zc_hold);

/* ---- range.c ------------------------------------------------------------------------------------------- */

/* All with the lock. */

/* Returns in *data the address of the first slice of a buffer in place, whose frames were checked. Errors: as
 * zc_location_map(). */
int zc_range_map(struct zerod_client *client, const struct zc_frames *frames, void **data, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Unmaps all ranges that contain the segment. */
void zc_ranges_drop(struct zerod_client *client, uint32_t segment);
/* Frees all ranges; those of GPUs are unmapped already. */
void zc_ranges_free(struct zerod_client *client);

/* ---- segment.c ----------------------------------------------------------------------------------------- */

/* All functions of segment.c that have a client: with the lock. */

/* Finds the segment; NULL: the daemon never sent it. */
struct zc_segment *zc_segment_find(struct zerod_client *client, uint32_t id);
/* Adds a segment. Takes ownership of the descriptor, also after an error. PROTOCOL for a description that
 * does not match the descriptor. */
int zc_segment_add(struct zerod_client *client, const Zd__Segment *segment, int fd, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Maps `bytes` of a page that the daemon has sealed against shrinking. Takes ownership of the descriptor.
 * `what` is the page's name in texts. */
int zc_page_map(int fd, size_t bytes, int protection, const char *what, void **page, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Maps the fence pages. Takes ownership of both descriptors. */
int zc_pages_map(struct zerod_client *client, int client_fd, int daemon_fd, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Checks that the location lies in a known segment, holds `min_bytes`, and is aligned for elements of `align`
 * bytes. */
int zc_location_take(struct zerod_client *client, const Zd__Location *from, uint64_t min_bytes, size_t align,
                     struct zc_location *location, struct zd_err *err) __attribute__((warn_unused_result));
/* Returns in *data the address of a location that was checked. Maps the segment at the first use. Errors:
 * SYSTEM if mapping fails; STALE if the location was released meanwhile and its segment has retired. */
int zc_location_map(struct zerod_client *client, const struct zc_location *location, void **data,
                    struct zd_err *err) __attribute__((warn_unused_result));
/* Unmaps a segment that the daemon retires, and in which it names no location any more; the unmapping will be
 * reported. PROTOCOL if the segment was never sent. */
int zc_segment_retire(struct zerod_client *client, uint32_t id, struct zd_err *err)
        __attribute__((warn_unused_result));
void zc_segments_free(struct zerod_client *client);

/* ---- strict.c ------------------------------------------------------------------------------------------ */

/* These functions do nothing in a client that is not strict. After an error there is no hold. */

/* Makes the ticket's buffer accessible until its lease ends. STALE if the lease has ended. With the lock. */
int zc_strict_open(struct zerod_client *client, struct zc_op *op, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Makes this part of the unit's gathered buffer accessible until the hold is dropped. With the lock. */
int zc_strict_hold(struct zerod_client *client, const struct zc_unit *unit, const struct zc_location *part,
                   struct zc_hold_list *list, struct zd_err *err) __attribute__((warn_unused_result));
/* The same for a whole segment, on GPUs. With the lock. */
int zc_strict_hold_segment(struct zerod_client *client, struct zc_segment *segment, struct zc_hold_list *list,
                           struct zd_err *err) __attribute__((warn_unused_result));
/* Keeps the unit's gathered buffer accessible after the end of its leases, until unit->kept is dropped. With
 * the lock. */
int zc_strict_keep(struct zerod_client *client, struct zc_unit *unit, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Copy and drop a list of holds. With or without the lock. */
int zc_holds_copy(struct zerod_client *client, const struct zc_hold_list *from, struct zc_hold_list *to,
                  struct zd_err *err) __attribute__((warn_unused_result));
void zc_holds_drop(struct zerod_client *client, struct zc_hold_list *list);

#endif
