/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.h - devices, their segments and the bytes charged for them; a part of internal.h.
 */
#ifndef ZD_CORE_MEMORY_H
#define ZD_CORE_MEMORY_H

#include <sys/queue.h>

/* Aborts on an exhausted heap like all of base/mem.h. */
#define uthash_fatal(msg) zd_assert(!(msg))
#include <uthash.h>

#include "base/err.h"
#include "base/mem.h"
#include "core/block.h"
#include "core/engine.h"

struct zd_job;
struct zd_request;
struct zd_session;
struct zd_slice;

/* ---- Memory (pool.c, account.c) ------------------------------------------------------------------------ */

enum zd_segment_state {
	ZD_SEGMENT_CREATING,
	ZD_SEGMENT_READY,
	ZD_SEGMENT_RETIRING,   /* empty: sessions are to unmap it */
	ZD_SEGMENT_DESTROYING, /* no session has it mapped; its executor frees the memory */
};

/* A session that has been given the segment. */
struct zd_mapping {
	struct zd_segment *segment;
	struct zd_session *session;
	TAILQ_ENTRY(zd_mapping) segment_link, session_link;
};

/* One physical allocation of one job for one purpose. */
struct zd_segment {
	uint32_t id;
	uint8_t state;
	enum zd_purpose purpose;
	struct zd_device *device;
	struct zd_job *job;
	uint64_t bytes;
	uint64_t prefetched_bytes; /* scratch of retire.c: bytes of prefetched buffers */
	uint64_t retire_serial;    /* when it began to retire */
	struct zd_block_range *range;
	TAILQ_HEAD(, zd_mapping) mappings;
	TAILQ_ENTRY(zd_segment) device_link;
	UT_hash_handle hh;
};

/* A block of a segment. block NULL: nothing. `bytes` are charged for it. */
struct zd_extent {
	struct zd_segment *segment;
	struct zd_block *block;
	uint64_t bytes;
};

enum zd_charge {
	ZD_CHARGE_SHARD,
	ZD_CHARGE_GATHERED,
	ZD_CHARGE_BUCKET,
	ZD_CHARGE_STAGING,
	ZD_CHARGE_TARGET,
	ZD_CHARGE_ALLOCATION,
	ZD_NCHARGES
};

struct zd_account {
	uint64_t bytes[ZD_NCHARGES];
	uint64_t total, peak, peak_gathered;
};

/* The account of one uid, against its quota. */
struct zd_owner {
	uint32_t uid;
	uint32_t jobs;
	struct zd_account account;
	UT_hash_handle hh;
};

TAILQ_HEAD(zd_request_list, zd_request);
TAILQ_HEAD(zd_buffer_list, zd_buffer);
TAILQ_HEAD(zd_segment_list, zd_segment);

struct zd_device {
	uint32_t index;
	struct zd_device_config config; /* budget and staging resolved, never 0 */
	uint64_t segment_default_bytes;
	uint64_t strict_align_bytes;    /* strict sessions' gathered buffers are multiples of it */
	uint64_t segment_bytes;         /* in segments */
	uint64_t retiring_bytes;        /* of these, in segments that are RETIRING or DESTROYING */
	uint64_t quarantine_bytes;      /* in uncharged blocks that are not free yet */
	uint64_t idle_slot_bytes;       /* in slots without a charged buffer */
	uint64_t staging_bytes;         /* charged for reductions under way */
	struct zd_slice *staging_queue; /* utlist: slices that wait for staging, in order; slice.c */
	struct zd_account account;
	struct zd_segment_list segments;
	struct zd_request_list queue;  /* waiting requests, in order of arrival */
	struct zd_buffer_list buffers; /* by id, quarantined ones too */
	uint32_t memory_waiters;       /* demand gathers in the queue that wait for room */
	bool pass_blocked;             /* during a pass over the queue: an earlier request waits for room */
	uint64_t gathers, joined_gathers;
	uint64_t fallback_gathers; /* leases of forward scopes */
};

/*
 * Allocates a block for `job`. 0 with *extent; ZD_WAIT when a segment is being created or retired, or
 * quarantined blocks may become free; NO_MEMORY when nothing will change by itself; or the error of a segment
 * that could not be created. On ZD_WAIT, sets the reason of `req` (may be NULL). Charges nothing. Retires
 * empty segments to make room, but not for a gather, which does so itself.
 */
int zd_pool_alloc(struct zd_engine *e, struct zd_request *req, struct zd_job *job, struct zd_device *device,
                  enum zd_purpose purpose, uint64_t bytes, uint64_t align, struct zd_extent *extent,
                  struct zd_err *err) __attribute__((warn_unused_result));
/* Whether a free block of the job and purpose has the bytes now. */
bool zd_pool_has(const struct zd_device *device, const struct zd_job *job, enum zd_purpose purpose,
                 uint64_t bytes);
/* Whether a segment, or room for a new one, could ever hold the bytes for this job and purpose. */
bool zd_pool_could_fit(const struct zd_device *device, const struct zd_job *job, enum zd_purpose purpose,
                       uint64_t bytes);
/* Frees the segment's bookkeeping: its memory is the executor's to free, or was never allocated. */
void zd_segment_free(struct zd_engine *e, struct zd_segment *segment);
/* Frees the block at once: nothing may use it any more. Marks the device dirty. Clears *extent. */
void zd_pool_free(struct zd_engine *e, struct zd_extent *extent);
struct zd_location zd_extent_location(const struct zd_extent *extent);
/* Destroys the job's segments; every block must be free. */
void zd_pool_job_end(struct zd_engine *e, struct zd_job *job);

/* QUOTA, with the sizes, if `bytes` more would exceed the uid's quota. */
int zd_quota_check(struct zd_engine *e, const struct zd_job *job, uint64_t bytes, struct zd_err *err)
        __attribute__((warn_unused_result));
void zd_charge(struct zd_engine *e, struct zd_job *job, struct zd_device *device, enum zd_charge kind,
               uint64_t bytes);
void zd_uncharge(struct zd_engine *e, struct zd_job *job, struct zd_device *device, enum zd_charge kind,
                 uint64_t bytes);
void zd_account_usage(const struct zd_account *account, struct zd_usage *usage);

#endif
