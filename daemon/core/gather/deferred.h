/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deferred.h - transfers that begin after the reply with their buffer's address.
 *
 * A gather is answered although its copies cannot begin yet, as long as nothing that they wait for depends on
 * a call that a process has yet to make. They wait for two kinds of events:
 *   - the former buffer in the same memory, which has no leases any more, has ended: its own transfer, the
 *     fences of its releases, and in poison mode its fill;
 *   - a rank's publish, whose request the daemon has, has completed: its fences have passed.
 * Only buffers of one session follow each other: a stream of another process may be waiting for a collective
 * with this one.
 *
 * The reply's fences are values of ZD_TIMELINE_DEFERRED. They are fixed with the reply, so the transfers of a
 * session begin in the order in which they were promised. The sources' `readers` count the copies from the
 * promise on, so that an update waits for them. When a publish or a deferred copy fails, all promised
 * transfers of the session that have not begun are given up: its streams are freed and the session is
 * POISONED.
 *
 * An aliased buffer has no copy that could be deferred: the publish itself is promised, see alias.c.
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

/* Whether the request's transfer may begin after its reply. Not in strict sessions, whose clients change the
 * access to pages in an order that the daemon does not see; not where gathers are collective, since all
 * daemons begin them in one order; and not in a poisoned session. */
bool zd_may_defer(const struct zd_request *req);
/* Whether a publish of that version of the part is under way. */
bool zd_part_is_publishing_version(const struct zd_part *part, uint64_t version);
/* The quarantined buffer whose block a new buffer of the request may take over; NULL: none. */
struct zd_buffer *zd_deferred_find_former(const struct zd_request *req, uint64_t bytes);

/* Makes the buffer's transfer wait until the part is published. */
void zd_deferred_await(struct zd_session *session, struct zd_buffer *buffer, struct zd_part *source);
/* Starts the session's deferred transfers, in order, up to the first one that still has to wait. */
void zd_deferred_try(struct zd_engine *e, struct zd_session *session);
/* The former buffer has no operation left and is about to be freed: its heir waits no longer. */
void zd_deferred_inherit(struct zd_engine *e, struct zd_buffer *former);
/* Reports that the part has the promised version to the transfers that wait for it. */
void zd_deferred_published(struct zd_engine *e, struct zd_part *part);
/* The publish has failed: breaks the promises that depend on it. */
void zd_deferred_unpublished(struct zd_engine *e, struct zd_part *part);
/* Gives up the session's transfers that have not begun, and aborts their timelines. */
void zd_deferred_break(struct zd_engine *e, struct zd_session *session);
/* The same without the aborts, when the session ends and none of its streams waits. */
void zd_deferred_drop(struct zd_engine *e, struct zd_session *session);

void zd_deferred_check(const struct zd_session *session);

#endif
