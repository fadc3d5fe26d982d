/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_turns.h - whose turn it is to push, from which GPU to which.
 *
 * Pushes that meet at one GPU share the way into it; meanwhile what is queued behind them at their sources
 * waits, and the ways into other GPUs are idle. So a large push takes a turn on both of its ways first: out
 * of its GPU and into the other one. A turn is a span of time, in which a link carries the push if it carries
 * nothing else. So nobody has to see a push land before the next turn begins, and nobody gives a turn back:
 * those of a GPU that fails pass like all others. A turn is for one piece: what is larger takes several.
 *
 * When all GPUs push to all, the least time is taken where each is at the same distance from its target as
 * the others are, and they go on to the next distance together. So a GPU stays where it is until its push is
 * whole, looks at the next distance then, and waits for a moment before it takes another one's place. Those
 * who come late may find three that push to each other in a ring, and no way into any: so behind each piece
 * the way is left for a moment to a GPU that stands idle and has more to push.
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
#define ZD_CUDA_PIECE_BYTES      (64ull << 20) /* what is more is issued in pieces, each in a turn */

struct zd_cuda_turns {
	struct zd_cuda_devices *devices;
	uint32_t self;
	uint32_t distance;  /* of the last turn; 0: none yet */
	zd_cu_ptr dst, src; /* where that ended */
	uint64_t bytes;     /* that it was for */
	uint64_t due_bytes; /* large pushes that are offered */
	uint64_t due_to;    /* their targets, a bit each */
	bool stays;         /* one of them goes on where the last turn ended */
	uint32_t place;     /* the distance that is looked at first */
	bool joins;         /* it has had no turn lately */
	uint64_t again_ns;  /* when a push that waits for its turn may have it; UINT64_MAX: none does */
};

/* How long the turn of a piece is that ends its task. */
uint64_t zd_cuda_turn_ns(uint64_t bytes);

void zd_cuda_turns_init(struct zd_cuda_turns *turns, struct zd_cuda_devices *devices, uint32_t self);

/* A look begins with the first task for each target... */
void zd_cuda_turns_offer(struct zd_cuda_turns *turns, const struct zd_cuda_task *task);
/* ... then says at which distance to begin. 1 is the next GPU. */
uint32_t zd_cuda_turns_begin(struct zd_cuda_turns *turns, uint64_t now_ns);
/* May a piece of the task, the first for its target, be issued now. Takes the turn, if so, and for tasks
 * behind it that only go on where it ends, as far as they belong to the same piece. */
bool zd_cuda_turns_take(struct zd_cuda_turns *turns, struct zd_cuda_task *task, uint64_t now_ns);

#endif
