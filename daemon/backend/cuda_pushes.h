/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_pushes.h - what an executor pushes to other GPUs: two streams, and what is in flight on them.
 *
 * Behind each task its progress is stored, and the stream's next copy waits for that, some 7 us. So large tasks that no timeline
 * orders, the chunks of reductions, take the streams by turns: one's bytes move while the other's progress is stored. All others keep
 * their order, on the first stream.
 */
#ifndef ZD_BACKEND_CUDA_PUSHES_H
#define ZD_BACKEND_CUDA_PUSHES_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda_lane.h"

#define ZD_CUDA_PUSH_LANES 2u

struct zd_cuda_pushes {
	struct zd_cuda_lane lanes[ZD_CUDA_PUSH_LANES];
	uint32_t next; /* lane that a chunk takes */
};

/* On failure there is nothing to deinit. Errors: NO_MEMORY, DEVICE. */
int zd_cuda_pushes_init(struct zd_cuda_pushes *pushes, struct zd_cuda_devices *devices, uint32_t device,
                        uint64_t flight_bytes, struct zd_err *err) __attribute__((warn_unused_result));
/* Nothing is in flight. */
void zd_cuda_pushes_deinit(struct zd_cuda_pushes *pushes);

/* The task's lane; taken when its first piece is issued. */
struct zd_cuda_lane *zd_cuda_pushes_lane(struct zd_cuda_pushes *pushes, struct zd_cuda_task *task);
/* Is there room for a piece, on whichever lane. */
bool zd_cuda_pushes_have_room(const struct zd_cuda_pushes *pushes);
/* As of lanes, of both. */
void zd_cuda_pushes_close(struct zd_cuda_pushes *pushes);
bool zd_cuda_pushes_land(struct zd_cuda_pushes *pushes, struct zd_cuda_task **ended);
bool zd_cuda_pushes_drop(struct zd_cuda_pushes *pushes, struct zd_cuda_task **ended);
void zd_cuda_pushes_walk(const struct zd_cuda_pushes *pushes, void (*fn)(struct zd_cuda_task *task));
void zd_cuda_pushes_check(struct zd_cuda_pushes *pushes);
bool zd_cuda_pushes_are_still(struct zd_cuda_pushes *pushes);
void zd_cuda_pushes_wait(struct zd_cuda_pushes *pushes);
/* Is anything in flight. */
bool zd_cuda_pushes_fly(const struct zd_cuda_pushes *pushes);
uint64_t zd_cuda_pushes_flying_bytes(const struct zd_cuda_pushes *pushes);
/* Does somebody go on with something in flight who hears of it from the CPU. */
bool zd_cuda_pushes_are_awaited(const struct zd_cuda_pushes *pushes);

#endif
