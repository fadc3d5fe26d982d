/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deferred.h - transfers that start after the reply with their buffer's address.
 *
 * A gather is answered before its copies can start, if the events that the copies wait for do not depend on a
 * future call of a process. The copies can wait for three kinds of these events:
 *   - The former buffer in the same memory, which has no leases any more, has ended: its own transfer, the
 *     fences of its releases, and in poison mode its fill.
 *   - A publish that a rank has requested is complete: its fences have passed.
 *   - Chunks of shards in host memory have landed on the devices of their ranks (landing.h).
 * Only buffers of one session reuse each other's memory in this way, because a stream of another process
 * could be waiting for a collective with this process.
 *
 * The reply's fences are values of ZD_TIMELINE_DEFERRED. The reply fixes these values. The transfers of a
 * session therefore start in the order in which they were promised. The first of them can have started some
 * of its copies while others wait for chunks of landings. The next transfer starts after the last copy. The
 * `readers` of a source include the deferred copies, for which an update therefore waits. When a publish or a
 * deferred copy fails, no further promised transfer of the session starts: the session's streams are released
 * and the session is POISONED.
 *
 * A buffer in place also waits for the publish of its own part, for which it has no copy. A buffer without
 * frames has no copy at all: the publish itself is promised, see in_place.c.
 */
#ifndef ZD_CORE_GATHER_DEFERRED_H
#define ZD_CORE_GATHER_DEFERRED_H

#include "core/gather/buffer.h"

/* A buffer's transfer that waits for the publish of a part. */
struct zd_await {
	struct zd_session *session; /* to which the transfer is promised */
	struct zd_buffer *buffer;
	struct zd_part *part;
	LIST_ENTRY(zd_await) buffer_link, part_link;
};

/* Whether the request's transfer can start after the reply. False for strict sessions, whose clients change
 * the access to pages in an order that the daemon does not see, for collective gathers, which all daemons
 * make in one order, and for poisoned sessions. */
bool zd_may_defer(const struct zd_request *req);
/* The part is being published, and will have that version. */
bool zd_part_is_publishing_version(const struct zd_part *part, uint64_t version);
/* Returns a quarantined buffer whose memory, of that kind and size, a new buffer of the request can inherit,
 * or NULL. */
struct zd_buffer *zd_deferred_find_former(const struct zd_request *req, bool in_place, uint64_t low_bytes,
                                          uint64_t high_bytes);

/* Makes the buffer's transfer wait until the part is published. */
void zd_deferred_await(struct zd_session *session, struct zd_buffer *buffer, struct zd_part *source);
/* Whether it still waits for that. */
bool zd_deferred_awaits(const struct zd_buffer *buffer, const struct zd_part *source);
/* Starts the promised transfers of the session, in order, up to the first that has to wait. */
void zd_deferred_try(struct zd_engine *e, struct zd_session *session);
/* As zd_deferred_try(), when a chunk has landed. No further transfer can join landings then. */
void zd_deferred_go_on(struct zd_engine *e, struct zd_session *session);
/* Passes the memory of a former buffer, which has ended and is about to be freed, to its heir. */
void zd_deferred_inherit(struct zd_engine *e, struct zd_buffer *former);
/* Reports that the part has the promised version to the transfers that wait for it. */
void zd_deferred_published(struct zd_engine *e, struct zd_part *part);
/* Breaks the promises that depend on the part's promised version, which the part will not receive. */
void zd_deferred_unpublished(struct zd_engine *e, struct zd_part *part);
/* Breaks the promises of all the session's transfers that have not started all of their copies. */
void zd_deferred_break(struct zd_engine *e, struct zd_session *session);
/* Drops these copies at the session's end, when none of its streams waits. */
void zd_deferred_drop(struct zd_engine *e, struct zd_session *session);

#endif
