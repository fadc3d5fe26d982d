/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_lane.h - a stream of an executor, and what is in flight on it.
 *
 * Pieces are issued in groups. A group is closed by stores behind it on the stream: of the sessions' counters
 * whose tasks end with it, and then of the lane's progress, a counter in host memory. So the CPU sees how far
 * the stream is without asking the driver, and small copies do not pay for stores of their own. Pieces land
 * in the order in which they were issued. A caller closes what it has begun before it does anything else.
 *
 * Not thread-safe: an executor's own. The device's context is current.
 */
#ifndef ZD_BACKEND_CUDA_LANE_H
#define ZD_BACKEND_CUDA_LANE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda_device.h"
#include "backend/cuda_task.h"

#define ZD_CUDA_FLIGHTS     128u
#define ZD_CUDA_GROUP       16u            /* pieces */
#define ZD_CUDA_GROUP_BYTES (4ull << 20)   /* about 10 us of a link: that much later may the first be seen */
#define ZD_CUDA_OPEN_BYTES  (256ull << 20) /* of open pieces: each store idles the link for 7 us */

struct zd_cuda_flight {
	uint64_t progress;         /* has landed when the counter has reached it */
	uint64_t bytes;            /* 0: nothing moves */
	bool awaited;              /* it ends a task without a fence */
	struct zd_cuda_task *ends; /* the task whose last piece it is; NULL: more follow */
};

/* What is issued: a task's, or a part of it. */
struct zd_cuda_piece {
	zd_cu_ptr dst, src;        /* src 0: fill with the pattern */
	uint64_t pattern;          /* as of a command */
	uint64_t bytes;            /* 0: nothing moves */
	uint32_t target;           /* device that is written to */
	bool together;             /* moves with others when the group is closed */
	bool open;                 /* nobody has to see it land before a next one, which will come */
	struct zd_cuda_task *ends; /* its session's counter is stored behind the piece; NULL: more follow */
};

struct zd_cuda_store {
	zd_cu_ptr counter_at;
	uint64_t value;
};

struct zd_cuda_lane {
	struct zd_cuda_devices *devices;
	struct zd_cuda_device *device; /* whose stream it is */
	uint64_t flight_bytes;         /* in flight, about; one piece always may be */
	struct CUstream_st *stream;
	_Atomic uint64_t *counter; /* pinned; NULL: none */
	zd_cu_ptr counter_at;      /* the same for the GPU */
	uint64_t issued;           /* the last progress that was asked for */
	uint64_t flying_bytes;
	uint64_t group_bytes; /* of the group that is not closed */
	unsigned group, nstores, nmoves;
	bool due;                                           /* not all of the group is open */
	zd_cu_ptr dsts[ZD_CUDA_GROUP], srcs[ZD_CUDA_GROUP]; /* of the group's pieces that move together */
	size_t sizes[ZD_CUDA_GROUP];
	struct zd_cuda_store stores[ZD_CUDA_GROUP + 1];
	uint32_t first, count; /* of the ring */
	uint32_t nawaited;     /* of them, that somebody goes on with who hears of it from the CPU */
	struct zd_cuda_flight ring[ZD_CUDA_FLIGHTS];
};

/* On failure there is nothing to deinit. Errors: NO_MEMORY, DEVICE. */
int zd_cuda_lane_init(struct zd_cuda_lane *lane, struct zd_cuda_devices *devices, uint32_t device,
                      uint64_t flight_bytes, struct zd_err *err) __attribute__((warn_unused_result));
/* Nothing is in flight. */
void zd_cuda_lane_deinit(struct zd_cuda_lane *lane);

static inline bool zd_cuda_lane_has_room(const struct zd_cuda_lane *lane)
{
	return lane->count < ZD_CUDA_FLIGHTS && (lane->count == 0 || lane->flying_bytes < lane->flight_bytes);
}

/* Issues a piece. There is room. On failure it has not been. Errors: NO_MEMORY;
 * DEVICE, then the device is marked failed. Of those that move together the copies are given to the driver
 * when the group is closed. */
int zd_cuda_lane_issue(struct zd_cuda_lane *lane, const struct zd_cuda_piece *piece, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Is the group large enough to be closed. */
static inline bool zd_cuda_lane_group_is_full(const struct zd_cuda_lane *lane)
{
	return lane->group == ZD_CUDA_GROUP || lane->group_bytes >= ZD_CUDA_GROUP_BYTES;
}
/* Closes the group, if there is one and it is due. When that fails the device is marked failed. */
void zd_cuda_lane_close(struct zd_cuda_lane *lane);
/* Something lands when all before it have, and asks nothing of the GPU: `ends` with it. There is room. */
void zd_cuda_lane_follow(struct zd_cuda_lane *lane, struct zd_cuda_task *ends);

/* Takes the next piece that has landed: false when there is none. `*ended` is the task that ends with it, or
 * NULL. */
bool zd_cuda_lane_land(struct zd_cuda_lane *lane, struct zd_cuda_task **ended);
/* Takes the next piece, landed or not, of a lane on which nothing moves any more: NULL and false likewise. */
bool zd_cuda_lane_drop(struct zd_cuda_lane *lane, struct zd_cuda_task **ended);
/* Calls fn for each task that ends with a piece in flight. */
void zd_cuda_lane_walk(const struct zd_cuda_lane *lane, void (*fn)(struct zd_cuda_task *task));
/* Has what is in flight gone wrong: then the device is marked failed. Nothing lands then, and no call
 * tells. */
void zd_cuda_lane_check(struct zd_cuda_lane *lane);
/* Does nothing move any more: the stream has run dry, or the driver has given it up. */
bool zd_cuda_lane_is_still(struct zd_cuda_lane *lane);
/* Waits for that. */
void zd_cuda_lane_wait(struct zd_cuda_lane *lane);

#endif
