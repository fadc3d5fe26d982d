/* SPDX-License-Identifier: Apache-2.0 */
/*
 * promise.h - fences that the engine issues before it knows when they will pass.
 *
 * With a promised fence in a reply, a stream waits in place of the client's CPU. The engine makes a promise
 * only for an event that does not depend on a future call of any process, including the driver. Such events
 * are work of executors, sums that processes have launched, and fences of streams that a request has already
 * named. A stream that waits for a promise and a CPU that waits for the stream therefore cannot block each
 * other. Promises of one kind and device share a timeline and pass in the order in which they were made. A
 * promise that is kept early passes with the last promise before it.
 */
#ifndef ZD_CORE_ENGINE_PROMISE_H
#define ZD_CORE_ENGINE_PROMISE_H

#include "core/engine/objects.h"

/* Kinds of promises. A promise delays only later ones of its own kind. */
enum zd_promise_kind {
	ZD_PROMISE_GATHERS, /* a shard that is gathered in place has the new version */
	ZD_PROMISE_ENTRIES, /* a bucket's entry can be written */
	ZD_PROMISE_STEPS,   /* shards can be written, targets can be read */
	ZD_NPROMISE_KINDS
};

struct zd_promise {
	struct zd_session *session; /* NULL: void, no stream waits for it any more */
	struct zd_fence fence;      /* on the session's daemon page */
	bool kept;
	TAILQ_ENTRY(zd_promise) link;
};

/* Makes a promise to the session. Its fence is signalled by the device's executor. The caller owns the
 * promise, and ends it with one of the two calls below. */
struct zd_promise *zd_promise_new(struct zd_engine *e, struct zd_session *session,
                                  const struct zd_device *device, enum zd_promise_kind kind);
/* Keeps the promise, when the promised event has happened: the fence passes when all earlier fences of its
 * kind have passed. The session's list owns the promise from then on. A void promise is only freed. */
void zd_promise_keep(struct zd_engine *e, struct zd_promise *promise);
/* Breaks the promise, when the promised event will never happen: aborts the timeline of its kind, which frees
 * the streams that wait for it, and marks the session POISONED. All promises of its kind are void afterwards.
 * A void promise is only freed. */
void zd_promise_break(struct zd_engine *e, struct zd_promise *promise);
/* Makes all promises of the session void, at its end. Their owners end them as before. */
void zd_promises_void(struct zd_session *session);

#endif
