/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.h - a session's fence pages with their counters, and a backend's table of sessions.
 *
 * Each session has two memfds of ZD_FENCE_PAGE_BYTES: the client page, which the client writes and the daemon
 * reads, and the daemon page for the other direction. Both have ZD_TIMELINES 64-bit counters that start at 0.
 * The daemon only compares the client's counters with fence values, and never reads its own stores. A client
 * can therefore write any value without harm to the daemon.
 *
 * The table has one reference until the session is closed. Each queued command that names the session has
 * another. Backends embed the struct in their own, which `release` frees.
 */
#ifndef ZD_EXECUTOR_SESSION_H
#define ZD_EXECUTOR_SESSION_H

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
	atomic_bool closed;                /* the session's watches abort */
	bool left;                         /* by a goodbye: the client uses the pages no more */
	atomic_bool lingers;               /* the connection has ended: no caller waits for the watches */
	struct zd_fence_page *client_page; /* mapped read-only */
	struct zd_fence_page *daemon_page;
	bool aborted[ZD_TIMELINES]; /* the abort is stored, or will be; private to the timeline's thread */
	void (*release)(struct zd_backend_session *session);
	LIST_ENTRY(zd_backend_session) in_bucket; /* in the table; used by the loop's thread only */
};

/* Creates the pages and the first reference. `client_writes`: the client can also write the daemon page,
 * which harms only that client. The thread that drops the last reference calls `release`, which calls deinit.
 * The caller owns the descriptors. On failure there is nothing to deinit. Errors: NO_MEMORY, SYSTEM. */
int zd_backend_session_init(struct zd_backend_session *session, uint64_t id, bool client_writes,
                            void (*release)(struct zd_backend_session *session), int *client_fd,
                            int *daemon_fd, struct zd_err *err) __attribute__((warn_unused_result));
/* Unmaps the pages. After a goodbye it also frees them, even if other processes map them. Without a goodbye
 * the client can still read its counters. */
void zd_backend_session_deinit(struct zd_backend_session *session);
/* Add and drop a reference. Thread-safe; NULL is allowed. */
struct zd_backend_session *zd_backend_session_ref(struct zd_backend_session *session);
void zd_backend_session_unref(struct zd_backend_session *session);

/* Aborts the session's watches and drops the table's reference. `left`: the client has sent its goodbye. NULL
 * is allowed. Thread-safe. */
void zd_backend_session_end(struct zd_backend_session *session, bool left);

/* Reads a counter of the client page with acquire order. */
uint64_t zd_backend_session_counter(struct zd_backend_session *session, uint32_t timeline);
/*
 * These functions store a counter of the daemon page with release order, and wake its waiters. Only one
 * thread may store into a timeline. zd_backend_session_signal() does not change an aborted timeline;
 * zd_backend_session_set() overwrites the abort.
 */
void zd_backend_session_signal(struct zd_backend_session *session, uint32_t timeline, uint64_t value);
void zd_backend_session_set(struct zd_backend_session *session, uint32_t timeline, uint64_t value);
/* Wakes the waiters of a counter that was stored by other means. */
void zd_backend_session_wake(struct zd_backend_session *session, uint32_t timeline);

/* ---- The table; the loop's thread only ----------------------------------------------------------------- */

#define ZD_SESSION_BUCKETS 256u

LIST_HEAD(zd_backend_session_bucket, zd_backend_session);

struct zd_backend_sessions {
	struct zd_backend_session_bucket buckets[ZD_SESSION_BUCKETS]; /* by id; ids are consecutive */
};

void zd_backend_sessions_init(struct zd_backend_sessions *sessions);
/* Drops the table's references. */
void zd_backend_sessions_deinit(struct zd_backend_sessions *sessions);
/* Adds the session, whose first reference the table then owns. */
void zd_backend_sessions_add(struct zd_backend_sessions *sessions, struct zd_backend_session *session);
/* Finds the session; NULL if there is none. */
struct zd_backend_session *zd_backend_sessions_find(const struct zd_backend_sessions *sessions, uint64_t id);
/* Removes the session, whose reference the caller then owns. NULL if there is none. */
struct zd_backend_session *zd_backend_sessions_take(struct zd_backend_sessions *sessions, uint64_t id);
/* Implements zd_backend_ops.timeline_read. */
uint64_t zd_backend_sessions_read(const struct zd_backend_sessions *sessions, uint64_t id, uint32_t timeline);

#endif
