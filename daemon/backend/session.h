/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.h - a session's fence pages and the counters in them, and the table of a backend's sessions.
 *
 * Each session has two memfds of ZD_FENCE_PAGE_BYTES: the client page, which the client writes and the daemon
 * reads, and the daemon page the other way round. Both have ZD_TIMELINES 64-bit counters that start at 0.
 * What the client can write is read as a number that either has or has not reached a value, never as anything
 * else; what the daemon writes it never reads back.
 *
 * References: the table holds one until the session is closed, each queued command that names it another.
 * Embedded in what else a backend keeps of a session, which `release` frees.
 */
#ifndef ZD_BACKEND_SESSION_H
#define ZD_BACKEND_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/limits.h"

struct zd_err;

struct zd_fence_page {
	_Atomic uint64_t counters[ZD_TIMELINES];
};

struct zd_backend_session {
	uint64_t id;
	atomic_uint references;
	atomic_bool closed;                /* its watches abort */
	atomic_bool lingers;               /* its connection is gone: nobody hurries */
	struct zd_fence_page *client_page; /* mapped read-only */
	struct zd_fence_page *daemon_page;
	bool aborted[ZD_TIMELINES]; /* of the daemon page, or about to be; a timeline's own thread only */
	void (*release)(struct zd_backend_session *session);
	LIST_ENTRY(zd_backend_session) in_bucket; /* of the table; the loop's thread only */
};

/* Makes the pages and the first reference. `client_writes`: the client may write the daemon page too, which
 * then harms nobody but itself. `release` is called with the last reference, by whoever drops it: it calls
 * deinit. The descriptors are the caller's. On failure there is nothing to deinit. Errors: NO_MEMORY,
 * SYSTEM. */
int zd_backend_session_init(struct zd_backend_session *session, uint64_t id, bool client_writes,
                            void (*release)(struct zd_backend_session *session), int *client_fd,
                            int *daemon_fd, struct zd_err *err) __attribute__((warn_unused_result));
/* Unmaps. */
void zd_backend_session_deinit(struct zd_backend_session *session);
/* Both from any thread; NULL is allowed. */
struct zd_backend_session *zd_backend_session_ref(struct zd_backend_session *session);
void zd_backend_session_unref(struct zd_backend_session *session);

/* Its watches abort; drops the reference that the table had. NULL is allowed. From any thread. */
void zd_backend_session_end(struct zd_backend_session *session);

/* A counter of the client page; what the client wrote before it is visible afterwards. */
uint64_t zd_backend_session_counter(struct zd_backend_session *session, uint32_t timeline);
/*
 * Both store a counter of the daemon page, after all that the calling thread wrote, and wake who waits for
 * it. All stores of one timeline come from one thread. An aborted timeline stays so, whatever commands behind
 * the one that failed signal, until it is set to something else.
 */
void zd_backend_session_signal(struct zd_backend_session *session, uint32_t timeline, uint64_t value);
void zd_backend_session_set(struct zd_backend_session *session, uint32_t timeline, uint64_t value);
/* Wakes who waits for a counter that something else has stored. */
void zd_backend_session_wake(struct zd_backend_session *session, uint32_t timeline);

/* ---- The table; the loop's thread only ----------------------------------------------------------------- */

#define ZD_SESSION_BUCKETS 256u

LIST_HEAD(zd_backend_session_bucket, zd_backend_session);

struct zd_backend_sessions {
	struct zd_backend_session_bucket buckets[ZD_SESSION_BUCKETS]; /* by id; ids are counted up */
};

void zd_backend_sessions_init(struct zd_backend_sessions *sessions);
/* Drops the table's references. */
void zd_backend_sessions_deinit(struct zd_backend_sessions *sessions);
/* Takes the first reference over. */
void zd_backend_sessions_add(struct zd_backend_sessions *sessions, struct zd_backend_session *session);
/* NULL if there is none. */
struct zd_backend_session *zd_backend_sessions_find(const struct zd_backend_sessions *sessions, uint64_t id);
/* Takes it out of the table: the reference is the caller's. NULL if there is none. */
struct zd_backend_session *zd_backend_sessions_take(struct zd_backend_sessions *sessions, uint64_t id);
/* As zd_backend_ops.timeline_read. */
uint64_t zd_backend_sessions_read(const struct zd_backend_sessions *sessions, uint64_t id, uint32_t timeline);

#endif
