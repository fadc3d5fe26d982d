/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.h - what streams of all kinds share.
 *
 * A stream is a handle with a timeline: a counter on the client's page that only it writes, with values that
 * never go back. What differs is behind a table of operations: a host stream runs its work on a thread of its
 * own (host_stream.c), a wrapped CUstream lets the GPU do it (cuda_stream.c). stream.c has the public calls
 * and knows neither.
 */
#ifndef ZD_CLIENT_STREAM_H
#define ZD_CLIENT_STREAM_H

#include "client/internal.h"

struct zc_conversion;
struct zc_copy;

/* The conditions under which a stream may use gathered bytes. */
struct zc_stream_wait {
	const struct zc_fences *fences; /* on the daemon's page */
	const struct zc_fences *copied; /* on the client's page */
	/* NULL: none. On the daemon's page, not to be waited for: `copied` says the same. But a GPU's stream
	 * that goes on although one of these is aborted has run on garbage. */
	const struct zc_fences *vouched;
	/* To be made by a GPU's stream, and their fences to be filled in: with the client's lock, if there
	 * are any. */
	struct zc_copy *copies;
	unsigned ncopies;
};

struct zc_stream_ops {
	/* Work appended from now on runs when all that is listed has happened. */
	int (*wait)(zerod_stream *stream, const struct zc_stream_wait *wait, struct zd_err *err);
	/* 0: the stream is idle and needs no fence; 1: *value stands for all that is in it now, and the
	 * stream has `holds` (NULL: nothing) until that is reached. May be called with the client's lock. */
	int (*fence)(zerod_stream *stream, const struct zc_hold_list *holds, uint64_t *value,
	             struct zd_err *err);
	/* `owned` (NULL: nothing) is freed when fn has run, or never will; an error leaves it to the caller.
	 * NULL: the stream runs no functions. */
	int (*launch)(zerod_stream *stream, void (*fn)(void *), void *arg, void *owned, struct zd_err *err);
	/* Appends a conversion, or a copy where the dtypes are equal, to memory of the stream's GPU. NULL: it
	 * is none of a GPU. */
	int (*convert)(zerod_stream *stream, const struct zc_conversion *conversion, struct zd_err *err);
	/* UNSUPPORTED unless the kernels of its GPU may run on it. NULL as above. */
	int (*converts)(const zerod_stream *stream, struct zd_err *err);
	/* Blocks until all that is in the stream now has run. ABORTED if a wait in it was freed by an
	 * abort. */
	int (*synchronize)(zerod_stream *stream, struct zd_err *err);
	/* INVALID unless the stream's work may touch the segment. NULL: it may touch any. */
	int (*reach)(const zerod_stream *stream, const struct zc_segment *segment, struct zd_err *err);
	/* With the client's lock: has an abort freed a wait of it? NULL: the stream notices itself. */
	bool (*aborted)(zerod_stream *stream);
	/* With the client's lock: takes work again after an abort. */
	void (*reset)(zerod_stream *stream);
	/* Ends the stream, out of the client's list already, gives its timeline back and frees it. */
	void (*end)(zerod_stream *stream);
	/* Frees the handle in a forked child, where nothing of the stream exists. */
	void (*forget)(zerod_stream *stream);
};

/* The first member of each kind. All but `link` is fixed once the stream is in the client's list. */
struct zerod_stream {
	const struct zc_stream_ops *ops;
	struct zerod_client *client;
	uint32_t timeline;
	bool reads_targets; /* with the lock: it may access places that are lent (target.c) */
	LIST_ENTRY(zerod_stream) link;
};

/* All three without the client's lock. Takes a timeline whose last value has been written; LIMIT when none is
 * left. */
int zc_timeline_take(struct zerod_client *client, uint32_t *timeline, uint64_t *value, struct zd_err *err)
        __attribute__((warn_unused_result));
/* `value` is the last that was taken; it need not have been written yet. */
void zc_timeline_give(struct zerod_client *client, uint32_t timeline, uint64_t value);
/* Into the client's list: from here on others see it. */
void zc_stream_add(zerod_stream *stream);

#endif
