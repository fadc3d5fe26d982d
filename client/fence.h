/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fence.h - fences of the daemon, for which streams and threads wait, and fences of streams, for which the
 * daemon waits.
 */
#ifndef ZD_CLIENT_FENCE_H
#define ZD_CLIENT_FENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <zerod.h>

#include "base/err.h"
#include "proto/limits.h"
#include "proto/zerod.pb-c.h"

struct zc_hold_list;

struct zc_fence {
	uint32_t timeline;
	uint64_t value;
};

/* Most gathers have one fence a device: they fit without an allocation. */
#define ZC_FEW_FENCES 8u

struct zc_fences {
	unsigned count;
	struct zc_fence few[ZC_FEW_FENCES];
	struct zc_fence *many; /* NULL: `few` holds them */
};

static inline const struct zc_fence *zc_fences_list(const struct zc_fences *fences)
{
	return fences->many ? fences->many : fences->few;
}

/* The highest fence of each timeline: values of a timeline rise, so that this fence implies the others. */
struct zc_fence_merge {
	struct zc_fences fences; /* of `list`: not to be deinitialised */
	uint64_t seen[ZD_TIMELINES / 64];
	uint16_t at[ZD_TIMELINES]; /* of timelines that were seen: where in the list */
	struct zc_fence list[ZD_TIMELINES];
};

/* Signed and cyclic, as the daemon compares. */
static inline bool zc_fence_reached(uint64_t counter, uint64_t value)
{
	return (int64_t)(counter - value) >= 0;
}

/* ---- fence.c ------------------------------------------------------------------------------------------- */

/* Copies and checks fences on the daemon's page. */
int zc_fences_take(const struct zerod_client *client, size_t count, Zd__Fence *const *from,
                   struct zc_fences *fences, struct zd_err *err) __attribute__((warn_unused_result));
void zc_fences_deinit(struct zc_fences *fences);
void zc_fence_merge_init(struct zc_fence_merge *merge);
void zc_fence_merge_add(struct zc_fence_merge *merge, struct zc_fence fence);
/* 1 when all have passed, 0 when not, or ZEROD_E_ABORTED. */
int zc_fences_poll(const struct zerod_client *client, const struct zc_fences *fences);
/* Blocks the calling thread, without the lock, until all have passed: 0, ABORTED (the session is poisoned
 * then), DEADLINE, or the status with which the connection broke. `what` names the wait's reason in texts. */
int zc_fences_wait(struct zerod_client *client, const struct zc_fences *fences, uint64_t deadline_ns,
                   const char *what, struct zd_err *err) __attribute__((warn_unused_result));
/* The session was reset, and the daemon is about to undo its aborts. Blocks until the daemon has, or has
 * ended. */
void zc_aborts_settle(struct zerod_client *client);
/* A counter with an abort, among those for which streams wait; NULL: there is none. */
const uint64_t *zc_abort_find(const struct zerod_client *client);
/* Stores into the client's page and wakes the threads that sleep on it. */
void zc_timeline_signal(struct zerod_client *client, uint32_t timeline, uint64_t value);

/* ---- stream.c ------------------------------------------------------------------------------------------ */

/* Fences behind all work that is now in some streams, as a request carries them. */
struct zc_fence_args {
	size_t count;
	Zd__Fence fences[ZD_MAX_FENCES];
	Zd__Fence *pointers[ZD_MAX_FENCES];
};

/* An idle stream needs no fence: its work has ended before the request is sent. The other streams get `holds`
 * (NULL: nothing) until their fence has passed. May be called with the client's lock. */
int zc_streams_fence_holding(struct zerod_client *client, zerod_stream *const *streams, uint32_t nstreams,
                             const struct zc_hold_list *holds, struct zc_fence_args *args, struct zd_err *err)
        __attribute__((warn_unused_result));
int zc_streams_fence(struct zerod_client *client, zerod_stream *const *streams, uint32_t nstreams,
                     struct zc_fence_args *args, struct zd_err *err) __attribute__((warn_unused_result));
/* INVALID unless the stream is the client's. */
int zc_stream_check(const struct zerod_client *client, const zerod_stream *stream, struct zd_err *err)
        __attribute__((warn_unused_result));
/* With the client's lock: has an abort freed a wait of a GPU's stream, which does not report it? */
bool zc_streams_aborted(struct zerod_client *client);
/* With the client's lock: streams whose wait was aborted accept work again. */
void zc_streams_reset(struct zerod_client *client);
/* In a forked child, where nothing of the stream exists. */
void zc_stream_forget(zerod_stream *stream);

#endif
