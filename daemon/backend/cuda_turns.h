/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_turns.h - whose turn it is to push, from which GPU to which.
 *
 * Pushes that meet at one GPU share the way into it; meanwhile what is queued behind them at their sources waits, and the ways
 * into other GPUs are idle. So a large push takes a turn on both of its ways first: out of its GPU and into the other one. A turn is
 * a span of time, in which a link carries the push if it carries nothing else. So nobody has to see a push land before the next
 * turn begins, and nobody gives a turn back: those of a GPU that fails pass like all others.
 *
 * When all GPUs push to all, the least time is taken where each is at the same distance from its target as the others are,
 * and they go on to the next distance together. So a GPU looks there first, and waits for a moment before it takes
 * another one's place.
 *
 * Each executor has its own; the links are the devices', and shared.
 */
#ifndef ZD_BACKEND_CUDA_TURNS_H
#define ZD_BACKEND_CUDA_TURNS_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda_device.h"
#include "backend/cuda_task.h"

#define ZD_CUDA_TURN_LEAST_BYTES (4ull << 20) /* up to so many go at once: about 10 us of a link */
#define ZD_CUDA_LINK_BYTES_NS    390u /* what a link carries at most; a slower one is shared now and then */
#define ZD_CUDA_PIECE_BYTES      (64ull << 20) /* what is more is issued in pieces */

struct zd_cuda_turns {
	struct zd_cuda_devices *devices;
	uint32_t self;
	uint32_t distance;  /* of the last turn; 0: none yet */
	zd_cu_ptr dst, src; /* where that ended */
	uint32_t place;     /* the distance that is looked at first */
	bool joins;         /* it has had no turn lately */
	uint64_t again_ns;  /* when a push that waits for its turn may have it; UINT64_MAX: none does */
};

/* How long a task's turn is. */
uint64_t zd_cuda_turn_ns(uint64_t bytes);

void zd_cuda_turns_init(struct zd_cuda_turns *turns, struct zd_cuda_devices *devices, uint32_t self);

/* Before each look: the distance at which it begins. 1 is the next GPU. */
uint32_t zd_cuda_turns_begin(struct zd_cuda_turns *turns, uint64_t now_ns);
/* May the task, the first for its target, be issued now. Takes the turn, if so, for all tasks behind it that only go on where it
 * ends. */
bool zd_cuda_turns_take(struct zd_cuda_turns *turns, struct zd_cuda_task *task, uint64_t now_ns);

#endif
