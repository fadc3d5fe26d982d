/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.h - the parts that all kinds of streams share.
 *
 * A stream is a handle with a timeline: a counter on the client's page that only the stream writes, and whose
 * values never decrease. A table of operations hides the kinds: a host stream runs its work on its own thread
 * (host_stream.c), a wrapped CUstream on the GPU (cuda_stream.c). stream_calls.c has the public calls and
 * does not depend on the kind.
 */
#ifndef ZD_CLIENT_STREAM_H
#define ZD_CLIENT_STREAM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include <zerod.h>

#include "base/err.h"
#include "client/lib/base/client.h"
#include "client/lib/base/fence.h"
#include "client/lib/base/location.h"

struct zc_conversion;
struct zc_copy;
struct zc_update;

/* The conditions under which a stream can use gathered bytes. */
struct zc_stream_wait {
	const struct zc_fences *fences; /* on the daemon's page */
	const struct zc_fences *copied; /* on the client's page */
	/* Fences on the daemon's page that `copied` implies, or NULL. The stream need not wait for them. But
	 * a GPU's stream that continues although one of these is aborted has used garbage. */
	const struct zc_fences *vouched;
};

struct zc_stream_ops {
	/* Makes work that is appended from now on wait until all listed fences have passed. */
	int (*wait)(zerod_stream *stream, const struct zc_stream_wait *wait, struct zd_err *err);
	/* Makes a fence. Returns 0 if the stream is idle and needs no fence. Returns 1 if *value follows all
	 * work now in the stream. The stream then retains `holds` (unless NULL) until the value is reached.
	 * Can be called with the client's lock. */
	int (*fence)(zerod_stream *stream, const struct zc_hold_list *holds, uint64_t *value,
	             struct zd_err *err);
	/* Appends a call of fn. `owned` (unless NULL) is freed when fn has run, or never will. After an error
	 * the caller still owns it. NULL: the stream cannot run functions. */
	int (*launch)(zerod_stream *stream, void (*fn)(void *), void *arg, void *owned, struct zd_err *err);
	/* Appends a conversion, or a copy if the dtypes are equal, to memory of the stream's GPU. NULL: the
	 * stream is not a GPU's. */
	int (*convert)(zerod_stream *stream, const struct zc_conversion *conversion, struct zd_err *err);
	/* Appends an optimizer's update of memory that the stream's GPU reaches. NULL as above. */
	int (*update)(zerod_stream *stream, const struct zc_update *update, struct zd_err *err);
	/* Checks that the library's kernels can run on the stream. Errors: UNSUPPORTED. NULL as above. */
	int (*converts)(const zerod_stream *stream, struct zd_err *err);
	/* Blocks until all work that is in the stream now has run. ABORTED if an abort has freed a wait in
	 * the stream. */
	int (*synchronize)(zerod_stream *stream, struct zd_err *err);
	/* Checks that the stream's work can access the segment. Errors: INVALID. NULL: it can access any
	 * segment. */
	int (*reach)(const zerod_stream *stream, struct zc_segment *segment, struct zd_err *err);
	/* Whether an abort has freed a wait of the stream. With the client's lock. NULL: the stream detects
	 * the abort itself. */
	bool (*aborted)(zerod_stream *stream);
	/* Lets the stream accept work again after an abort. With the client's lock. */
	void (*reset)(zerod_stream *stream);
	/* Looks up again the facts that the stream needs of the client's connection, which is a new one.
	 * NULL: it needs none. */
	int (*renew)(zerod_stream *stream, struct zd_err *err);
	/* Ends the stream, which is not in the client's list any more, returns its timeline and frees it. */
	void (*end)(zerod_stream *stream);
	/* Frees the handle in a forked child, in which the stream does not exist. */
	void (*forget)(zerod_stream *stream);
};

/* The first member of each kind. All but `link` is fixed once the stream is in the client's list. */
struct zerod_stream {
	const struct zc_stream_ops *ops;
	struct zerod_client *client;
	uint32_t timeline;
	/* With the lock. Called before the handle is freed, if the stream can access lent places: target.c
	 * sets it. NULL: the stream cannot. */
	void (*end_reader)(const zerod_stream *stream);
	LIST_ENTRY(zerod_stream) link;
};

/* ---- stream.c ------------------------------------------------------------------------------------------ */

/* Reserves a timeline whose last value has been written. LIMIT if none is free. This function and the next
 * two: without the client's lock. */
int zc_timeline_take(struct zerod_client *client, uint32_t *timeline, uint64_t *value, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Frees the timeline. `value` is the last used value, which need not have been written yet. */
void zc_timeline_give(struct zerod_client *client, uint32_t timeline, uint64_t value);
/* Launches fn, as ops->launch does, on a stream that has it. If the daemon's end is why the stream accepts no
 * work, returns the status of that. */
int zc_stream_launch(zerod_stream *stream, void (*fn)(void *), void *arg, void *owned, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Runs fn(owned) on the host stream, or at once (NULL), and frees `owned`, also after an error. */
int zc_stream_run(zerod_stream *stream, void (*fn)(void *), void *owned, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Appends a copy between equal dtypes to a stream of any kind. NULL: the calling thread copies. */
int zc_stream_copy(zerod_stream *stream, const struct zc_conversion *copy, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Checks that the stream (NULL: the calling thread) can access the segment. With the client's lock. */
int zc_stream_reach(struct zerod_client *client, const zerod_stream *stream, uint32_t segment,
                    struct zd_err *err) __attribute__((warn_unused_result));
/* As zc_location_map(), for memory that the stream accesses, as of zc_stream_reach(). */
int zc_stream_map(struct zerod_client *client, const zerod_stream *stream, const struct zc_location *location,
                  void **data, struct zd_err *err) __attribute__((warn_unused_result));
/* Adds the stream to the client's list, where other threads find it. */
void zc_stream_add(zerod_stream *stream);
/* Checks that the stream belongs to the client. Errors: INVALID. */
int zc_stream_check(const struct zerod_client *client, const zerod_stream *stream, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Frees the handle in a forked child, in which the stream does not exist. */
void zc_stream_forget(zerod_stream *stream);

/* ---- streams.c ----------------------------------------------------------------------------------------- */

/* Makes fences after the work of the streams. An idle stream needs no fence, because its work has ended
 * before the request is sent. The other streams retain `holds` (unless NULL) until their fences have passed.
 * Can be called with the client's lock. */
int zc_streams_fence_holding(struct zerod_client *client, zerod_stream *const *streams, uint32_t nstreams,
                             const struct zc_hold_list *holds, struct zc_fence_args *args, struct zd_err *err)
        __attribute__((warn_unused_result));
int zc_streams_fence(struct zerod_client *client, zerod_stream *const *streams, uint32_t nstreams,
                     struct zc_fence_args *args, struct zd_err *err) __attribute__((warn_unused_result));
/* Lets streams whose wait was aborted accept work again. With the client's lock. */
void zc_streams_reset(struct zerod_client *client);
/* Returns POISONED if an abort has ended a wait of this session, and the connection's status if the
 * connection's end has ended the wait. */
int zc_streams_check_poison(struct zerod_client *client, struct zd_err *err)
        __attribute__((warn_unused_result));

/* ---- lag.c --------------------------------------------------------------------------------------------- */

/* Reads $ZEROD_LAG. *seed is 0 if no stream lags. */
int zc_lag_seed(uint64_t *seed, struct zd_err *err) __attribute__((warn_unused_result));
/* Makes the client's streams that lag. Without the lock. */
int zc_lag_open(struct zerod_client *client, uint64_t seed, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Adds the fence of a lagging stream, if any exists. */
int zc_lag_fence(struct zerod_client *client, struct zc_fence_args *args, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
