/* SPDX-License-Identifier: Apache-2.0 */
/* gather.h - what gather.c asks of buffer.c. */
#ifndef ZD_CORE_GATHER_GATHER_H
#define ZD_CORE_GATHER_GATHER_H

#include "core/gather/buffer.h"

/* Is it a tag that a client may name. */
int zd_tag_check(const char *tag, struct zd_err *err) __attribute__((warn_unused_result));

/* Bytes that a gathered buffer (or slot) of so many padded bytes takes: in a strict session, whole pages or
 * segments. */
static inline uint64_t zd_gathered_bytes(const struct zd_session *session, const struct zd_device *device,
                                         uint64_t padded_bytes)
{
	return session->strict ? zd_align_up(padded_bytes, device->strict_align_bytes) : padded_bytes;
}

/* The part's new gathered buffer, charged, INFLIGHT without transfers. `extent` moves to the buffer, or is
 * the part of the slot that the unit needs; NULL: the buffer is aliased. `former` (NULL: none) is the
 * quarantined buffer that is still in use there. */
struct zd_buffer *zd_buffer_new(struct zd_engine *e, struct zd_part *part, struct zd_slot *slot,
                                const struct zd_extent *extent, struct zd_buffer *former);
/* An operation on the buffer is over: frees one that is quarantined and has no other. */
void zd_buffer_op_over(struct zd_engine *e, struct zd_buffer *buffer);

/* Is the shard all there is to gather, and may it be given out: alias.c. */
bool zd_part_is_aliased(const struct zd_part *part);
/* Of the request's part, the aliased buffer at `version`, which is the shard's, or is being published; made
 * if there is none. As an attempt. */
int zd_alias_gather(struct zd_engine *e, struct zd_request *req, uint64_t version, struct zd_buffer **out)
        __attribute__((warn_unused_result));
/* Has the buffer a version that is still being published, and that its session may rely on. */
bool zd_alias_is_promised(const struct zd_buffer *buffer);
/* The part has the version that was promised with the buffer; it never will have it. The buffer may be gone
 * then. */
void zd_alias_published(struct zd_engine *e, struct zd_buffer *buffer);
void zd_alias_unpublished(struct zd_engine *e, struct zd_buffer *buffer);
/* A lease begins on the buffer. Does nothing unless it is aliased, nor before its version is published. */
void zd_alias_read(struct zd_buffer *buffer);
/* The buffer's last lease or watch may be over. Does nothing unless it is aliased. May free the part. */
void zd_alias_read_done(struct zd_engine *e, struct zd_buffer *buffer);
/* Bytes of the part's gathered buffer: none if it is aliased. */
uint64_t zd_part_gathered_bytes(const struct zd_part *part);
/* Its bytes. */
struct zd_location zd_buffer_location(const struct zd_buffer *buffer);

/* The version that a gather which names none is for, as of when it was asked for; 0: the newest there is when
 * its turn comes. */
uint64_t zd_gather_version(const struct zd_part *part);
/* For req->u.gather: joins the part's copy, refreshes it, or finds room for it; the caller takes a lease on
 * it at once. As an attempt: ZD_WAIT, or an error with nothing left behind. */
int zd_gather_buffer(struct zd_engine *e, struct zd_request *req, struct zd_buffer **out, struct zd_err *err)
        __attribute__((warn_unused_result));

/* Is the part one that the request, which waits, is to gather still; *version: which of it. */
bool zd_gather_lacks(const struct zd_request *req, const struct zd_part *part, uint64_t *version);

struct zd_lease *zd_lease_find(struct zd_buffer *buffer, const char *tag);
struct zd_lease *zd_lease_add(struct zd_engine *e, struct zd_buffer *buffer, const char *tag, uint32_t uses);
/* One use less. Returns true if that ended the lease; the buffer may be gone then. */
bool zd_lease_release(struct zd_engine *e, struct zd_buffer *buffer, struct zd_lease *lease,
                      const struct zd_fence_list *fences);
/* Ends it, whatever uses are left; the buffer may be gone then. */
void zd_lease_end(struct zd_engine *e, struct zd_lease *lease);
/* Fences of a lease that ends are awaited elsewhere: the block is not free before the matching
 * zd_buffer_unwatch(). */
void zd_buffer_watch(struct zd_buffer *buffer);
void zd_buffer_unwatch(struct zd_engine *e, struct zd_buffer *buffer);

/* prefetch.c. Counts in each segment the bytes of prefetched buffers that can be dropped; drops those of one
 * segment. */
void zd_prefetches_count(struct zd_device *device);
void zd_prefetches_drop(struct zd_engine *e, struct zd_segment *segment);

#endif
