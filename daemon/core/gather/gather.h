/* SPDX-License-Identifier: Apache-2.0 */
/* gather.h - the interface between gathers (gather.c), their buffers (buffer.c) and buffers in place
 * (in_place.c). */
#ifndef ZD_CORE_GATHER_GATHER_H
#define ZD_CORE_GATHER_GATHER_H

#include "core/gather/buffer.h"

/* Checks that a client may use the tag. Errors: INVALID. */
int zd_tag_check(const char *tag, struct zd_err *err) __attribute__((warn_unused_result));
/* Clients that need no tags send "". */
static inline const char *zd_tag_or_default(const char *tag)
{
	return tag && tag[0] ? tag : "default";
}

/* Returns the bytes that a gathered buffer or slot of this padded size occupies: in a strict session, whole
 * pages or segments. */
static inline uint64_t zd_gathered_bytes(const struct zd_session *session, const struct zd_device *device,
                                         uint64_t padded_bytes)
{
	return session->strict ? zd_align_up(padded_bytes, device->strict_align_bytes) : padded_bytes;
}

/* The bytes of a gathered buffer's memory; see struct zd_space. */
struct zd_space_bytes {
	uint64_t low, high;
};

/* Creates the part's gathered buffer, charged, INFLIGHT without transfers. `space` moves to the buffer, or is
 * the part of the slot that the unit needs. `former` is the quarantined buffer that still uses the memory, or
 * NULL. */
struct zd_buffer *zd_buffer_new(struct zd_engine *e, struct zd_part *part, struct zd_slot *slot,
                                const struct zd_space *space, struct zd_buffer *former);
/* Called when an operation on the buffer has ended. Frees a quarantined buffer with its last operation. */
void zd_buffer_op_over(struct zd_engine *e, struct zd_buffer *buffer);

/* Whether buffers that the part's rank gathers from now on are in place. */
bool zd_part_is_in_place(const struct zd_part *part);
/* Returns the space for a buffer of the part if its unit's shards have that size. */
struct zd_space_bytes zd_part_space_bytes(const struct zd_part *part, uint64_t shard_bytes);
/* Returns the bytes of the part's gathered buffer. */
uint64_t zd_part_gathered_bytes(const struct zd_part *part);

/* Gathers the request's part, whose buffer is in place and without frames. `version` is the shard's, or is
 * being published. Returns 0 or ZD_WAIT, and the buffer in *out, which it creates if necessary. */
int zd_gather_frameless(struct zd_engine *e, struct zd_request *req, uint64_t version, struct zd_buffer **out)
        __attribute__((warn_unused_result));
/* Called when the part has the version that was promised with such a buffer, or never will have it. Either
 * can free the buffer. */
void zd_frameless_published(struct zd_engine *e, struct zd_buffer *buffer);
void zd_frameless_unpublished(struct zd_engine *e, struct zd_buffer *buffer);
/* Whether the version of the buffer's own part is still being published, and was promised to its session. */
bool zd_buffer_is_promised(const struct zd_buffer *buffer);
/* Adds a buffer in place to the part's viewers, if it has a lease and the version of its own part is
 * published. Called when either occurs. */
void zd_buffer_view(struct zd_buffer *buffer);
/* Called when a lease or watch of the buffer has ended: removes it from the part's viewers after the last
 * one. May free the part. */
void zd_buffer_view_done(struct zd_engine *e, struct zd_buffer *buffer);

/* Returns the version for a gather that names none, at the time of its request. 0: the newest version at the
 * time of its attempt. */
uint64_t zd_gather_version(const struct zd_part *part);
/* Returns the buffer for req->u.gather: joins the part's buffer, refreshes it, or creates a new one. The
 * caller adds a lease at once. Returns 0, ZD_WAIT, or an error without side effects. */
int zd_gather_buffer(struct zd_engine *e, struct zd_request *req, struct zd_buffer **out, struct zd_err *err)
        __attribute__((warn_unused_result));

/* Whether ranks have ended normally after publishing the version that the part's next update makes. */
bool zd_update_catches_up(const struct zd_part *part);
/* Completes the publishes of a session that sends its goodbye, because the streams that they wait for have
 * run. */
void zd_publishes_complete(struct zd_engine *e, struct zd_session *session);

/* Whether the waiting request has yet to gather the part. *version: the requested version. */
bool zd_gather_lacks(const struct zd_request *req, const struct zd_part *part, uint64_t *version);

struct zd_lease *zd_lease_find(struct zd_buffer *buffer, const char *tag);
/* Gives the lease another tag. */
void zd_lease_rename(struct zd_lease *lease, const char *tag);
struct zd_lease *zd_lease_add(struct zd_engine *e, struct zd_buffer *buffer, const char *tag, uint32_t uses);
/* Removes one use of the lease. Returns whether that has ended the lease. The buffer can be freed then. */
bool zd_lease_release(struct zd_engine *e, struct zd_buffer *buffer, struct zd_lease *lease,
                      const struct zd_fence_list *fences);
/* Ends the lease with all its uses. This can free the buffer. */
void zd_lease_end(struct zd_engine *e, struct zd_lease *lease);
/* Removes a watch of the fences of an ended lease, without which the block was not freed. */
void zd_buffer_unwatch(struct zd_engine *e, struct zd_buffer *buffer);

/* Lists the device's segments with prefetched buffers that can be dropped, with their bytes, and drops those
 * of one segment (prefetch.c). */
void zd_prefetches_list(struct zd_device *device);
void zd_prefetches_drop(struct zd_engine *e, struct zd_segment *segment);

#endif
