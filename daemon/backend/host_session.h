/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_session.h - a session's fence pages, and the counters in them.
 *
 * Each session has two memfds of ZD_FENCE_PAGE_BYTES: the client page, which the client writes and the daemon reads,
 * and the daemon page the other way round. Both have ZD_TIMELINES 64-bit counters that start at 0. What the client can
 * write is read as a number that either has or has not reached a value, never as anything else; what the daemon writes
 * it never reads back.
 *
 * References: the backend's table holds one until session_close, each queued command that names the session another.
 */
#ifndef ZD_BACKEND_HOST_SESSION_H
#define ZD_BACKEND_HOST_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/limits.h"

struct zd_err;

struct zd_host_fence_page {
	_Atomic uint64_t counters[ZD_TIMELINES];
};

struct zd_host_session {
	uint64_t id;
	atomic_uint references;
	atomic_bool closed;                     /* its watches abort */
	struct zd_host_fence_page *client_page; /* mapped read-only */
	struct zd_host_fence_page *daemon_page;
	bool aborted[ZD_TIMELINES];            /* of the daemon page; a timeline's own executor only */
	LIST_ENTRY(zd_host_session) in_bucket; /* of the backend's table; the loop's thread only */
};

LIST_HEAD(zd_host_session_bucket, zd_host_session);

/* Makes the pages and the first reference. The descriptors are the caller's. Errors: NO_MEMORY, SYSTEM. */
int zd_host_session_new(uint64_t id, struct zd_host_session **session, int *client_fd, int *daemon_fd,
                        struct zd_err *err) __attribute__((warn_unused_result));
/* Both from any thread; NULL is allowed. The last unref unmaps. */
struct zd_host_session *zd_host_session_ref(struct zd_host_session *session);
void zd_host_session_unref(struct zd_host_session *session);

/* A counter of the client page; what the client wrote before it is visible afterwards. */
uint64_t zd_host_session_counter(struct zd_host_session *session, uint32_t timeline);
/*
 * Both store a counter of the daemon page, after all that the calling thread wrote, and wake who waits for it. All
 * stores of one timeline come from one thread. An aborted timeline stays so, whatever commands behind the one that
 * failed signal, until it is set to something else.
 */
void zd_host_session_signal(struct zd_host_session *session, uint32_t timeline, uint64_t value);
void zd_host_session_set(struct zd_host_session *session, uint32_t timeline, uint64_t value);

#endif
