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

/* The number of fences that need no allocation: most gathers have one fence a device. */
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
	uint16_t at[ZD_TIMELINES]; /* the index in the list, for timelines that were seen */
	struct zc_fence list[ZD_TIMELINES];
};

/* Whether the counter has reached the value. Signed and cyclic, like the daemon's comparison. */
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
/* Returns 1 if all fences have passed, 0 if not, or ZEROD_E_ABORTED. */
int zc_fences_poll(const struct zerod_client *client, const struct zc_fences *fences);
/* Blocks the calling thread, without the lock, until all fences have passed. Returns 0, ABORTED (the session
 * is POISONED then), DEADLINE, or the status with which the connection broke. `what` names the wait's reason
 * in texts. */
int zc_fences_wait(struct zerod_client *client, const struct zc_fences *fences, uint64_t deadline_ns,
                   const char *what, struct zd_err *err) __attribute__((warn_unused_result));
/* Blocks after a reset until the daemon has undone its aborts, or has ended. */
void zc_aborts_settle(struct zerod_client *client);
/* Finds an aborted counter, among those for which streams wait; NULL: none. */
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

/* Makes fences behind the work of the streams. An idle stream needs no fence, since its work has ended before
 * the request is sent. The other streams keep `holds` (unless NULL) until their fences have passed. May be
 * called with the client's lock. */
int zc_streams_fence_holding(struct zerod_client *client, zerod_stream *const *streams, uint32_t nstreams,
                             const struct zc_hold_list *holds, struct zc_fence_args *args, struct zd_err *err)
        __attribute__((warn_unused_result));
int zc_streams_fence(struct zerod_client *client, zerod_stream *const *streams, uint32_t nstreams,
                     struct zc_fence_args *args, struct zd_err *err) __attribute__((warn_unused_result));
/* Checks that the stream belongs to the client. Errors: INVALID. */
int zc_stream_check(const struct zerod_client *client, const zerod_stream *stream, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Whether an abort has freed a wait of a GPU's stream, which does not report the abort. With the client's
 * lock. */
bool zc_streams_aborted(struct zerod_client *client);
/* Lets streams whose wait was aborted accept work again. With the client's lock. */
void zc_streams_reset(struct zerod_client *client);
/* Frees the handle in a forked child, where nothing of the stream exists. */
void zc_stream_forget(zerod_stream *stream);

/* ---- lag.c --------------------------------------------------------------------------------------------- */

/* Reads $ZEROD_LAG. *seed is 0 if no stream lags. */
int zc_lag_seed(uint64_t *seed, struct zd_err *err) __attribute__((warn_unused_result));
/* Makes the client's streams that lag. Without the lock. */
int zc_lag_open(struct zerod_client *client, uint64_t seed, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Adds the fence of one of them, if there are any. */
int zc_lag_fence(struct zerod_client *client, struct zc_fence_args *args, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
