/* SPDX-License-Identifier: Apache-2.0 */
/*
 * promise.c - see promise.h.
 *
 * A session lists its promises that have not passed, in the order in which they were made. A promise on the
 * list belongs to its owner until it is kept, and to the list afterwards. A void promise is on no list.
 */
#include "core/engine/objects.h"
#include "core/engine/promise.h"

static void take_off(struct zd_promise *promise)
{
	TAILQ_REMOVE(&promise->session->promises, promise, link);
	promise->session = NULL;
	if (promise->kept)
		free(promise);
}

struct zd_promise *zd_promise_new(struct zd_engine *e, struct zd_session *session,
                                  const struct zd_device *device, enum zd_promise_kind kind)
{
	struct zd_promise *promise = zd_calloc(1, sizeof(*promise));
	uint32_t timeline = ZD_TIMELINE_PROMISES + kind * ZD_MAX_DEVICES + device->index;
	(void)e;
	promise->session = session;
	promise->fence = (struct zd_fence){timeline, ++session->timeline[timeline]};
	TAILQ_INSERT_TAIL(&session->promises, promise, link);
	return promise;
}

/* Passes the timeline's promises up to the first one that is not kept. */
static void pass(struct zd_engine *e, struct zd_session *session, uint32_t timeline)
{
	struct zd_promise *promise, *next;
	uint64_t value = 0;
	TAILQ_FOREACH_SAFE (promise, &session->promises, link, next) {
		if (promise->fence.timeline != timeline)
			continue;
		if (!promise->kept)
			break;
		value = promise->fence.value;
		take_off(promise);
	}
	if (value)
		zd_session_signal(e, session, timeline, value);
}

void zd_promise_keep(struct zd_engine *e, struct zd_promise *promise)
{
	if (!promise->session) {
		free(promise);
		return;
	}
	promise->kept = true;
	pass(e, promise->session, promise->fence.timeline);
}

void zd_promise_break(struct zd_engine *e, struct zd_promise *promise)
{
	struct zd_session *session = promise->session;
	uint32_t timeline = promise->fence.timeline;
	struct zd_promise *other, *next;
	promise->kept = true; /* the loop below frees it */
	if (!session) {
		free(promise);
		return;
	}
	TAILQ_FOREACH_SAFE (other, &session->promises, link, next) {
		if (other->fence.timeline == timeline)
			take_off(other);
	}
	zd_session_abort(e, session, timeline);
}

void zd_promises_void(struct zd_session *session)
{
	struct zd_promise *promise;
	while ((promise = TAILQ_FIRST(&session->promises)))
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): a freed promise is on no list */
		take_off(promise);
}
