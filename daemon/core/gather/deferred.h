/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deferred.h - transfers that begin after the reply with their buffer's address.
 *
 * A gather is answered before its copies can begin, if no event that the copies wait for depends on a call
 * that a process has yet to make. There are three kinds of such events:
 *   - the former buffer in the same memory, which has no leases any more, is over: its own transfer, the
 *     fences of its releases, and in poison mode its fill have ended;
 *   - a publish that a rank has requested is complete: its fences have passed;
 *   - chunks of shards in host memory have landed on the devices of their ranks (landing.h).
 * Only buffers of one session follow each other: a stream of another process may be waiting for a collective
 * with this one.
 *
 * The reply's fences are values of ZD_TIMELINE_DEFERRED. The values are fixed with the reply, so the
 * transfers of a session begin in the order in which they were promised. The first of them may have begun
 * some of its copies, while others wait for chunks of landings; the next one begins behind the last copy.
 * The `readers` of a source include the deferred copies, so that an update waits for these. When a publish
 * or a deferred copy fails, no promised transfer of the session begins any more: the session's streams are
 * freed and the session is POISONED.
 *
 * A buffer in place also awaits the publish of its own part, for which it has no copy. One without frames has
 * no copy at all: the publish itself is promised, see in_place.c.
 */
#ifndef ZD_CORE_GATHER_DEFERRED_H
#define ZD_CORE_GATHER_DEFERRED_H

#include "core/gather/buffer.h"

/* A buffer's transfer that waits until the part is published. */
struct zd_await {
	struct zd_session *session; /* to which the transfer is promised */
	struct zd_buffer *buffer;
	struct zd_part *part;
	LIST_ENTRY(zd_await) buffer_link, part_link;
};

/* Whether the request's transfer may begin after the reply. False for strict sessions, whose clients change
 * the access to pages in an order that the daemon does not see; for collective gathers, which all daemons
 * make in one order; and for poisoned sessions. */
bool zd_may_defer(const struct zd_request *req);
/* The part is being published, and will have that version. */
bool zd_part_is_publishing_version(const struct zd_part *part, uint64_t version);
/* Returns a quarantined buffer whose memory, of that kind and size, a new buffer of the request may inherit;
 * NULL: none. */
struct zd_buffer *zd_deferred_find_former(const struct zd_request *req, bool in_place, uint64_t low_bytes,
                                          uint64_t high_bytes);

/* Makes the buffer's transfer wait until the part is published. */
void zd_deferred_await(struct zd_session *session, struct zd_buffer *buffer, struct zd_part *source);
/* Whether it still waits for that. */
bool zd_deferred_awaits(const struct zd_buffer *buffer, const struct zd_part *source);
/* Begins the promised transfers of the session, in order, as far as they wait for nothing. */
void zd_deferred_try(struct zd_engine *e, struct zd_session *session);
/* The same when a chunk has landed: no transfer can join landings that could not before. */
void zd_deferred_go_on(struct zd_engine *e, struct zd_session *session);
/* Passes the memory of a former buffer, which is over and about to be freed, to its heir. */
void zd_deferred_inherit(struct zd_engine *e, struct zd_buffer *former);
/* Reports that the part has the promised version to the transfers that wait for it. */
void zd_deferred_published(struct zd_engine *e, struct zd_part *part);
/* The part will not get the promised version: breaks the promises that depend on it. */
void zd_deferred_unpublished(struct zd_engine *e, struct zd_part *part);
/* Breaks the promises of all the session's transfers that have not begun, or not all of their copies. */
void zd_deferred_break(struct zd_engine *e, struct zd_session *session);
/* Drops these copies at the session's end, when none of its streams waits. */
void zd_deferred_drop(struct zd_engine *e, struct zd_session *session);

void zd_deferred_check(const struct zd_session *session);

#endif
