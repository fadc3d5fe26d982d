/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_copy_stream.h - a stream of an executor, and its inflight copies.
 *
 * Pieces are issued in groups. A group is closed by stores after its pieces on the stream: first into the
 * sessions' counters of the tasks that end with it, then into the stream's progress, a counter in host
 * memory. The CPU therefore sees the stream's progress without a driver call, and small copies share the
 * stores. Pieces complete in the order in which they were issued.
 *
 * After a caller has started a group, it must close the group before any other call.
 *
 * Not thread-safe: only the executor calls these functions, with the device's context current.
 */
#ifndef ZD_EXECUTOR_CUDA_COPY_STREAM_H
#define ZD_EXECUTOR_CUDA_COPY_STREAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "executor/cuda/cuda_device.h"
#include "executor/cuda/cuda_task.h"

#define ZD_CUDA_INFLIGHT_COPIES 128u
#define ZD_CUDA_GROUP           16u            /* pieces */
#define ZD_CUDA_GROUP_BYTES     (4ull << 20)   /* 10 us of a link: delays the first piece */
#define ZD_CUDA_PIECE_ROWS      (128ull << 10) /* 200 us of a copy engine, for short rows */
#define ZD_CUDA_OPEN_BYTES      (256ull << 20) /* of open pieces: each store idles the link for 7 us */

struct zd_cuda_inflight_copy {
	uint64_t progress;         /* the copy has completed when the counter has reached it */
	uint64_t bytes;            /* 0: the piece copies nothing */
	bool awaited;              /* the copy ends a task whose end the CPU has to report */
	struct zd_cuda_task *ends; /* NULL: more pieces follow */
};

/* A piece to issue: a task, or a part of one. */
struct zd_cuda_piece {
	zd_cu_ptr dst, src;        /* src 0: fill with the pattern */
	uint64_t pattern;          /* as of a command */
	uint64_t bytes;            /* 0: the piece copies nothing */
	struct zd_rows rows;       /* of src */
	uint32_t target;           /* the device that is written to */
	bool together;             /* submitted in one batch when the group is closed */
	bool open;                 /* another piece will follow, and the CPU need not see this one's end */
	struct zd_cuda_task *ends; /* its counter is stored after the piece; NULL: more pieces follow */
};

/* The next piece of a copy to `target`, or of a fill, of `most_bytes` bytes at most. Pieces of rows can be
 * small and take long: the CPU has to see the end of each. */
static inline struct zd_cuda_piece zd_cuda_piece_next(struct zd_cuda_task *task, uint32_t target,
                                                      uint64_t most_bytes)
{
	uint64_t issued = task->u.copy.issued_bytes, at = issued;
	uint64_t bytes = task->u.copy.bytes - issued;
	struct zd_rows rows = task->u.copy.rows;
	if (rows.bytes) {
		at = issued / rows.bytes * rows.stride;
		most_bytes = zd_min_u64(most_bytes / rows.bytes, ZD_CUDA_PIECE_ROWS) * rows.bytes;
	}
	return (struct zd_cuda_piece){.dst = task->u.copy.dst + issued,
	                              .src = task->u.copy.src ? task->u.copy.src + at : 0,
	                              .pattern = task->u.copy.pattern,
	                              .bytes = zd_min_u64(bytes, most_bytes),
	                              .rows = rows,
	                              .target = target,
	                              .open = bytes > most_bytes && !rows.bytes,
	                              .ends = bytes > most_bytes ? NULL : task};
}

struct zd_cuda_store {
	zd_cu_ptr counter_at;
	uint64_t value;
};

struct zd_cuda_copy_stream {
	struct zd_cuda_devices *devices;
	struct zd_cuda_device *device; /* the owner of the stream */
	uint64_t inflight_limit_bytes; /* limit of the bytes in flight; one piece is always allowed */
	struct CUstream_st *cuda_stream;
	_Atomic uint64_t *counter; /* pinned; NULL: none */
	zd_cu_ptr counter_at;      /* the counter's address for the GPU */
	uint64_t issued;           /* the last progress value that the stream was asked to store */
	uint64_t inflight_bytes;
	uint64_t group_bytes; /* of the group that is not closed */
	unsigned group, nstores, nmoves;
	bool due;                                           /* the group has a piece that is not open */
	zd_cu_ptr dsts[ZD_CUDA_GROUP], srcs[ZD_CUDA_GROUP]; /* of pieces with `together` */
	size_t sizes[ZD_CUDA_GROUP];
	struct zd_cuda_store stores[ZD_CUDA_GROUP + 1];
	uint32_t first, count; /* of the ring */
	uint32_t nawaited;     /* inflight copies with `awaited` */
	struct zd_cuda_inflight_copy ring[ZD_CUDA_INFLIGHT_COPIES];
};

/* Creates the stream. On failure there is nothing to deinit. Errors: NO_MEMORY, DEVICE. */
int zd_cuda_copy_stream_init(struct zd_cuda_copy_stream *stream, struct zd_cuda_devices *devices,
                             uint32_t device, uint64_t inflight_limit_bytes, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Frees the stream, on which nothing may be in flight. */
void zd_cuda_copy_stream_deinit(struct zd_cuda_copy_stream *stream);

static inline bool zd_cuda_copy_stream_has_room(const struct zd_cuda_copy_stream *stream)
{
	return stream->count < ZD_CUDA_INFLIGHT_COPIES &&
	       (stream->count == 0 || stream->inflight_bytes < stream->inflight_limit_bytes);
}

/* Issues a piece, for which there must be room. On failure it was not issued. Pieces with `together` are
 * submitted to the driver when the group is closed. Errors: NO_MEMORY; DEVICE, and then the device is marked
 * failed. */
int zd_cuda_copy_stream_issue(struct zd_cuda_copy_stream *stream, const struct zd_cuda_piece *piece,
                              struct zd_err *err) __attribute__((warn_unused_result));
/* Returns whether the group has to be closed. */
static inline bool zd_cuda_copy_stream_group_is_full(const struct zd_cuda_copy_stream *stream)
{
	return stream->group == ZD_CUDA_GROUP || stream->group_bytes >= ZD_CUDA_GROUP_BYTES;
}
/* Closes the group, if there is one with a piece that is not open, or it has ZD_CUDA_OPEN_BYTES. On failure
 * the device is marked failed. */
void zd_cuda_copy_stream_close(struct zd_cuda_copy_stream *stream);
/* Adds an entry without GPU work, which completes when all entries before it have completed. `ends` ends with
 * it. There must be room. */
void zd_cuda_copy_stream_follow(struct zd_cuda_copy_stream *stream, struct zd_cuda_task *ends);

/* If the next inflight copy has completed, removes it, otherwise returns false. Sets `*ended` to the task
 * that ends with it, or NULL. */
bool zd_cuda_copy_stream_reap(struct zd_cuda_copy_stream *stream, struct zd_cuda_task **ended);
/* Removes the next inflight copy, completed or not, of a stream without running work. Results as above. */
bool zd_cuda_copy_stream_drop(struct zd_cuda_copy_stream *stream, struct zd_cuda_task **ended);
/* Calls fn for each task that ends with an inflight copy of the stream. */
void zd_cuda_copy_stream_walk(const struct zd_cuda_copy_stream *stream,
                              void (*fn)(struct zd_cuda_task *task));
/* Asks the driver whether the work in flight has failed. If so, the device is marked failed. After such a
 * failure no piece completes, and no other call reports the failure. */
void zd_cuda_copy_stream_check(struct zd_cuda_copy_stream *stream);
/* Returns whether no work runs any more: the stream is empty, or the driver has aborted it. */
bool zd_cuda_copy_stream_is_still(struct zd_cuda_copy_stream *stream);
/* Waits until no work runs any more. */
void zd_cuda_copy_stream_wait(struct zd_cuda_copy_stream *stream);

#endif
