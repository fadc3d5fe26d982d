/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_link_scheduler.h - time slots on the links for large pushes between GPUs.
 *
 * Concurrent pushes into one GPU share the link into that GPU. In this time the pushes after them in their
 * streams wait, and links into other GPUs are idle. A large push therefore first reserves a link slot on both
 * of its links: out of its own GPU and into the target. A link slot is a span of time, calculated for an
 * otherwise idle link. No executor has to see a push end before the next slot starts, and no slot has to be
 * released: the slots of a failed GPU expire like all others. A slot is for one piece. Larger pushes reserve
 * several.
 *
 * When all GPUs push to all, the total time is shortest if all push at the same distance, source to target,
 * and advance to the next distance together. A GPU therefore remains at its distance until its push is
 * complete, then tries the next distance, and waits for a moment before it uses a place of another GPU. When
 * a GPU starts late, three other GPUs can push in a ring and leave no link free. After each piece, a GPU
 * therefore leaves the link for a moment to an idle GPU that has more to push.
 *
 * Each executor has its own struct zd_cuda_link_scheduler. The links' state is in the devices, and shared.
 */
#ifndef ZD_EXECUTOR_CUDA_LINK_SCHEDULER_H
#define ZD_EXECUTOR_CUDA_LINK_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "executor/cuda/cuda_device.h"
#include "executor/cuda/cuda_task.h"

#define ZD_CUDA_LINK_SLOT_LEAST_BYTES (4ull << 20) /* smaller pushes, of about 10 us, need no slot */
#define ZD_CUDA_LINK_BYTES_NS         390u /* the assumed speed; pushes on slower links sometimes overlap */
#define ZD_CUDA_PIECE_BYTES           (64ull << 20) /* larger pushes are issued in pieces, each with a slot */

struct zd_cuda_link_scheduler {
	struct zd_cuda_devices *devices;
	uint32_t self;
	uint32_t distance;        /* of the last slot; 0: no slot yet */
	zd_cu_ptr dst, src;       /* the ends of the last slot's ranges */
	uint64_t bytes;           /* of the last slot and of all slots that it prolonged */
	uint64_t offered_bytes;   /* of the large pushes that were offered in this round */
	uint64_t offered_targets; /* the devices that these pushes write to, as bits */
	bool continues_last_slot; /* an offered push continues at the end of the last slot */
	uint32_t first_distance;  /* the distance that is tried first */
	bool had_no_recent_slot;  /* this GPU has had no slot for a while: it adopts the others' distance */
	uint64_t again_ns;        /* the earliest time for a waiting push; UINT64_MAX: none waits */
};

/* Returns the length of a link slot for a piece that ends its task. */
uint64_t zd_cuda_link_slot_ns(uint64_t bytes);

void zd_cuda_link_scheduler_init(struct zd_cuda_link_scheduler *scheduler, struct zd_cuda_devices *devices,
                                 uint32_t self);

/* Offers the first task for a target. A round starts with an offer for each target. */
void zd_cuda_link_scheduler_offer(struct zd_cuda_link_scheduler *scheduler, const struct zd_cuda_task *task);
/* Ends the offers, and returns the distance that is tried first. 1 is the next GPU. */
uint32_t zd_cuda_link_scheduler_begin(struct zd_cuda_link_scheduler *scheduler, uint64_t now_ns);
/* Returns whether a piece of the task, the first task for its target, can be issued now. If so, reserves a
 * link slot for that piece. The slot includes the following tasks that continue at the end of the piece, up
 * to ZD_CUDA_PIECE_BYTES. */
bool zd_cuda_link_scheduler_reserve(struct zd_cuda_link_scheduler *scheduler, struct zd_cuda_task *task,
                                    uint64_t now_ns);

#endif
