/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.c - a session's fence pages with their counters, and the table of sessions.
 *
 * Waiters sleep in futex(2), which compares 32 bits: the counter's low word. The full 64 bits decide whether
 * a fence has passed. The low word decides only whether to sleep. A client reads the counter. If its value is
 * not reached and the low word has not changed, the client sleeps. It misses a store in between only if the
 * store does not change the low word: a step of a multiple of 2^32, or ZD_FENCE_ABORTED over a counter that
 * ends in 2^32-1. Clients therefore sleep with a time limit and read the counter again.
 */
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/err.h"
#include "executor/memfd.h"
#include "executor/session.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define PAGE_BYTES sizeof(struct zd_fence_page)
_Static_assert((unsigned)PAGE_BYTES == ZD_FENCE_PAGE_BYTES, "counters fill the page");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "other processes use the counters");

#define LOW_WORD (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 0 : 1)

static int make_page(const char *name, int protection, int more_seals, struct zd_fence_page **page, int *fd,
                     struct zd_err *err)
{
	void *mapped;
	int rc = zd_memfd_map(name, PAGE_BYTES, protection, more_seals, &mapped, fd, err);
	if (!rc)
		*page = mapped;
	return rc;
}

int zd_backend_session_init(struct zd_backend_session *session, uint64_t id, bool client_writes,
                            void (*release)(struct zd_backend_session *session), int *client_fd,
                            int *daemon_fd, struct zd_err *err)
{
	int fds[2] = {-1, -1};
	*session = (struct zd_backend_session){.id = id, .release = release};
	atomic_init(&session->references, 1);
	atomic_init(&session->closed, false);
	atomic_init(&session->lingers, false);
	int rc = make_page("zerod-fences-client", PROT_READ, 0, &session->client_page, &fds[0], err);
	if (!rc)
		rc = make_page("zerod-fences-daemon", PROT_READ | PROT_WRITE,
		               client_writes ? 0 : F_SEAL_FUTURE_WRITE, &session->daemon_page, &fds[1], err);
	if (rc) {
		if (fds[0] >= 0)
			close(fds[0]);
		zd_backend_session_deinit(session);
		return rc;
	}
	*client_fd = fds[0];
	*daemon_fd = fds[1];
	return 0;
}

static void drop_page(struct zd_fence_page *page, bool left)
{
	if (page && left)
		zd_memfd_drop(page, PAGE_BYTES);
	else if (page)
		munmap(page, PAGE_BYTES);
}

void zd_backend_session_deinit(struct zd_backend_session *session)
{
	drop_page(session->client_page, session->left);
	drop_page(session->daemon_page, session->left);
	session->client_page = session->daemon_page = NULL;
}

struct zd_backend_session *zd_backend_session_ref(struct zd_backend_session *session)
{
	if (session)
		atomic_fetch_add_explicit(&session->references, 1, memory_order_relaxed);
	return session;
}

void zd_backend_session_unref(struct zd_backend_session *session)
{
	if (session && atomic_fetch_sub_explicit(&session->references, 1, memory_order_acq_rel) == 1)
		session->release(session);
}

void zd_backend_session_end(struct zd_backend_session *session, bool left)
{
	if (!session)
		return;
	session->left = left;
	atomic_store_explicit(&session->closed, true, memory_order_relaxed);
	zd_backend_session_unref(session);
}

/* ---- Counters ------------------------------------------------------------------------------------------ */

uint64_t zd_backend_session_counter(struct zd_backend_session *session, uint32_t timeline)
{
	zd_assert(timeline < ZD_TIMELINES);
	return atomic_load_explicit(&session->client_page->counters[timeline], memory_order_acquire);
}

void zd_backend_session_wake(struct zd_backend_session *session, uint32_t timeline)
{
	_Atomic uint64_t *counter = &session->daemon_page->counters[timeline];
	/* FUTEX_WAKE without the private flag, because the waiters are in another process. The call cannot
	 * fail, because the address is mapped. */
	(void)syscall(SYS_futex, (uint32_t *)counter + LOW_WORD, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void store_and_wake(struct zd_backend_session *session, uint32_t timeline, uint64_t value)
{
	atomic_store_explicit(&session->daemon_page->counters[timeline], value, memory_order_release);
	zd_backend_session_wake(session, timeline);
}

void zd_backend_session_signal(struct zd_backend_session *session, uint32_t timeline, uint64_t value)
{
	zd_assert(timeline < ZD_TIMELINES);
	if (!session->aborted[timeline])
		store_and_wake(session, timeline, value);
}

void zd_backend_session_set(struct zd_backend_session *session, uint32_t timeline, uint64_t value)
{
	zd_assert(timeline < ZD_TIMELINES);
	session->aborted[timeline] = value == ZD_FENCE_ABORTED;
	store_and_wake(session, timeline, value);
}

/* ---- The table ----------------------------------------------------------------------------------------- */

void zd_backend_sessions_init(struct zd_backend_sessions *sessions)
{
	for (size_t i = 0; i < ZD_SESSION_BUCKETS; i++)
		LIST_INIT(&sessions->buckets[i]);
}

void zd_backend_sessions_deinit(struct zd_backend_sessions *sessions)
{
	for (size_t i = 0; i < ZD_SESSION_BUCKETS; i++) {
		struct zd_backend_session *session = LIST_FIRST(&sessions->buckets[i]);
		while (session) {
			struct zd_backend_session *next = LIST_NEXT(session, in_bucket);
			zd_backend_session_unref(session);
			session = next;
		}
	}
}

void zd_backend_sessions_add(struct zd_backend_sessions *sessions, struct zd_backend_session *session)
{
	zd_assert(session->id != 0 && !zd_backend_sessions_find(sessions, session->id));
	LIST_INSERT_HEAD(&sessions->buckets[session->id % ZD_SESSION_BUCKETS], session, in_bucket);
}

struct zd_backend_session *zd_backend_sessions_find(const struct zd_backend_sessions *sessions, uint64_t id)
{
	struct zd_backend_session *session;
	LIST_FOREACH (session, &sessions->buckets[id % ZD_SESSION_BUCKETS], in_bucket) {
		if (session->id == id)
			break;
	}
	return session;
}

struct zd_backend_session *zd_backend_sessions_take(struct zd_backend_sessions *sessions, uint64_t id)
{
	struct zd_backend_session *found = zd_backend_sessions_find(sessions, id);
	if (found)
		LIST_REMOVE(found, in_bucket);
	return found;
}

uint64_t zd_backend_sessions_read(const struct zd_backend_sessions *sessions, uint64_t id, uint32_t timeline)
{
	struct zd_backend_session *found = zd_backend_sessions_find(sessions, id);
	if (!found || timeline >= ZD_TIMELINES)
		return UINT64_MAX / 2;
	return zd_backend_session_counter(found, timeline);
}
