/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.h - the segments of a device, and blocks in them.
 */
#ifndef ZD_CORE_MEMORY_POOL_H
#define ZD_CORE_MEMORY_POOL_H

#include "base/sm.h"
#include "core/engine/objects.h"
#include "core/memory/block.h"

enum zd_segment_state {
	ZD_SEGMENT_CREATING,
	ZD_SEGMENT_READY,
	ZD_SEGMENT_RETIRING,   /* empty: sessions are to unmap it */
	ZD_SEGMENT_DESTROYING, /* no session maps it; its executor frees the memory */
};

/* A session that has received the segment. */
struct zd_mapping {
	struct zd_segment *segment;
	struct zd_session *session;
	TAILQ_ENTRY(zd_mapping) segment_link, session_link;
};

/* A physical allocation of one job for one purpose. */
struct zd_segment {
	uint32_t id;
	uint8_t state;
	enum zd_purpose purpose;
	struct zd_device *device;
	struct zd_job *job;
	uint64_t bytes;
	bool one_block;    /* created for one block, which has not been allocated yet */
	bool recorded;     /* the journal has it, and the sink preserves its descriptor */
	bool counted;      /* in `nkept` of the engine and of the owner */
	uint32_t nwaiting; /* requests in queues, and slices, that wait for its creation or their next try */
	uint64_t prefetched_bytes; /* scratch of retire.c: bytes of idle prefetched buffers */
	uint64_t retire_serial;    /* its position in the order in which segments started to retire */
	uint64_t unmap_until_ns;   /* RETIRING: sessions that have it mapped until then are ended */
	struct zd_block_range *range;
	uint64_t block_bytes; /* counted in the uid's `block_bytes`; empty.h */
	TAILQ_HEAD(, zd_mapping) mappings;
	TAILQ_ENTRY(zd_segment) device_link;
	TAILQ_ENTRY(zd_segment) shared_link; /* for purposes whose segments have many blocks */
	TAILQ_ENTRY(zd_segment)
	retiring_link, owner_link; /* of the device and of the uid, while it retires */
	TAILQ_ENTRY(zd_segment) prefetched_link;
	bool has_prefetched;                 /* in the device's `with_prefetched` */
	struct zd_id_node by_device, by_job; /* by_device.id 0: it is not empty; empty.h */
	/* its block is free, and it is the only one: the segments like it */
	struct zd_single_class *offered;
	TAILQ_ENTRY(zd_segment) offered_link;
	bool is_held; /* counted in the `held_bytes` of the job's pool */
	struct zd_id_node listed;
	UT_hash_handle hh;
};

/* A block of a segment, and the bytes that are charged for it. block NULL: no memory. */
struct zd_extent {
	struct zd_segment *segment;
	struct zd_block *block;
	uint64_t bytes;
};

/* The memory of a gathered copy: all of it in `low`, or the frames below and above the rank's own part. Each
 * frame can be empty. */
struct zd_space {
	struct zd_extent low, high;
};

static inline uint64_t zd_space_bytes(const struct zd_space *space)
{
	return space->low.bytes + space->high.bytes;
}

/* The use of an extent. */
struct zd_extent_use {
	enum zd_event_word purpose;
	uint64_t object; /* the id of the unit, group or allocation */
	uint64_t session;
	uint32_t rank; /* in the world */
};

/* Returns the use of the member's extent. */
static inline struct zd_extent_use zd_member_use(const struct zd_member *member, enum zd_event_word purpose,
                                                 uint64_t object)
{
	return (struct zd_extent_use){purpose, object, member->session ? member->session->id : 0,
	                              zd_world_rank(member)};
}

/* Records the owner of the extent, for listings and events. */
void zd_extent_own(struct zd_engine *e, const struct zd_extent *extent, enum zd_block_owner type,
                   const void *owner, struct zd_extent_use use);
void zd_space_own(struct zd_engine *e, const struct zd_space *space, enum zd_block_owner type,
                  const void *owner, struct zd_extent_use use);

/*
 * The granules of each device that a uid's segments can occupy beyond its quota. The uid can then use a quota
 * of a few bytes in full, although a segment has at least one granule.
 */
#define ZD_QUOTA_SLACK 16u

/*
 * Allocates a block for `job`, without a charge. Returns 0 with *extent. Returns ZD_WAIT, with the reason in
 * `req` (can be NULL), while a segment is being created or retired, or quarantined blocks can become free. If
 * waiting cannot help, returns NO_MEMORY, QUOTA for a new segment beyond the uid's quota, or the error of a
 * segment that could not be created. Retires empty segments to make room, except for gathers, which call
 * zd_pool_reclaim() themselves.
 */
int zd_pool_alloc(struct zd_engine *e, struct zd_request *req, struct zd_job *job, struct zd_device *device,
                  enum zd_purpose purpose, uint64_t bytes, uint64_t align, struct zd_extent *extent,
                  struct zd_err *err) __attribute__((warn_unused_result));
/* As zd_pool_alloc(), but does not make room or wait for it: NO_MEMORY, without a text. */
int zd_pool_take(struct zd_engine *e, struct zd_request *req, struct zd_job *job, struct zd_device *device,
                 enum zd_purpose purpose, uint64_t bytes, uint64_t align, struct zd_extent *extent,
                 struct zd_err *err) __attribute__((warn_unused_result));
/* As zd_pool_alloc(), for two blocks in their own segments, both or none. A block of 0 bytes is empty. */
int zd_pool_alloc_frames(struct zd_engine *e, struct zd_request *req, struct zd_job *job,
                         struct zd_device *device, uint64_t low_bytes, uint64_t high_bytes,
                         struct zd_space *space, struct zd_err *err) __attribute__((warn_unused_result));
/* Whether a free block of the job and purpose has the bytes now, or a new segment can have them: a small pool
 * grows to the usual size of a segment, as long as the device has room. */
bool zd_pool_has(const struct zd_engine *e, const struct zd_device *device, const struct zd_job *job,
                 enum zd_purpose purpose, uint64_t bytes);
/* Returns the bytes that the uid's segments can still occupy, on all devices. */
uint64_t zd_pool_quota_left(const struct zd_engine *e, const struct zd_owner *owner);
/* Whether a segment, or the room for a new one, could ever have the bytes for this job and purpose. For
 * frames: the bytes of both. */
bool zd_pool_could_fit(const struct zd_engine *e, const struct zd_device *device, const struct zd_job *job,
                       enum zd_purpose purpose, uint64_t bytes);
/* Returns the size of the segment's bookkeeping, without the headers of blocks. */
uint64_t zd_segment_metadata_bytes(const struct zd_segment *segment);
/* Frees the segment's bookkeeping. The executor frees the memory, or the memory was never allocated. */
void zd_segment_free(struct zd_engine *e, struct zd_segment *segment);
/* Adds an event of the segment; `session` 0: no session. */
void zd_segment_event(struct zd_engine *e, const struct zd_segment *segment, enum zd_event_kind kind,
                      uint64_t session);
/* Records that the segment no longer outlives the daemon: its executor is about to free the memory. */
void zd_segment_forget(struct zd_engine *e, struct zd_segment *segment);
/* Frees the block at once, marks the device dirty and clears *extent. The block must not be in use. */
void zd_pool_free(struct zd_engine *e, struct zd_extent *extent);
void zd_pool_free_space(struct zd_engine *e, struct zd_space *space);
struct zd_location zd_extent_location(const struct zd_extent *extent);
/* Removes the segment from its device's `with_prefetched`. */
void zd_segment_unlist_prefetched(struct zd_segment *segment);
/* Called when a restore has allocated a block of the segment. */
void zd_segment_take(struct zd_engine *e, struct zd_segment *segment);
/* Called when the segment starts to retire: no block is allocated from it. */
void zd_segment_withdraw(struct zd_engine *e, struct zd_segment *segment);
/* Creates a segment that the device's executor already has. It is READY, and its range is free. */
struct zd_segment *zd_segment_restore(struct zd_engine *e, struct zd_job *job, uint32_t id,
                                      struct zd_device *device, enum zd_purpose purpose, uint64_t bytes);
/* Records the segment if its job has a journal, and it outlives the daemon. */
void zd_journal_segment(struct zd_engine *e, struct zd_segment *segment);
/* Returns LIMIT if the driver or the uid's limit has no room for a job that becomes durable. */
int zd_pool_check_kept(const struct zd_engine *e, const struct zd_job *job, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Records the job's segments that hold shards and allocations, if the job has a journal. */
void zd_pool_journal_job(struct zd_engine *e, const struct zd_job *job);
struct zd_record_extent zd_journal_extent(const struct zd_extent *extent);
/* Retires the job's segments; every block must be free. */
void zd_pool_job_end(struct zd_engine *e, struct zd_job *job);

extern const struct zd_sm zd_sm_segment;

#endif
