/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_peer_bounce.h - copies within one GPU bounced off another GPU that it has peer access to, and that has
 * access to it.
 *
 * A copy within a GPU waits for the kernels that run there, in every context and with every call: beside 8192
 * x 8192 matrix products half a product on average, 0.9 ms on an H200. A copy by another GPU's copy engine
 * does not wait.
 *
 * Small copies go across: the other GPU reads and writes this GPU's memory in one copy. Up to 1 MiB that
 * takes as long as a push, and three times as long for large copies (12 and 24 us at 256 KiB and 1 MiB; 217
 * us at 16 MiB). Large copies are pushed into the other GPU's memory, which pushes them back (107 us at 16
 * MiB). The CPU starts the second push when it sees the end of the first. An event or a wait on the stream
 * would cost 200 us there, because both use the channel of the compute engine, which the daemon shares with
 * the trainers.
 *
 * Large copies are cut into hops, each with a place in the other GPU's memory. Small ones, when there are
 * many, go out and back in groups. Hops go out, arrive and return in the order of the tasks. A task that
 * moves nothing but has to keep its place therefore has a hop too, without bytes. A task goes across only
 * when no hop is on its way out.
 *
 * The driver fills memory with a kernel, which waits likewise and delays the trainers' kernels. So the other
 * GPU holds zeros, and pushes them for small fills.
 */
#ifndef ZD_EXECUTOR_CUDA_PEER_BOUNCE_H
#define ZD_EXECUTOR_CUDA_PEER_BOUNCE_H

#include "executor/cuda/cuda_copy_stream.h"

#define ZD_CUDA_PEER_BOUNCE_HOPS         64u
#define ZD_CUDA_PEER_BOUNCE_HOP_BYTES    (4ull << 20)
#define ZD_CUDA_PEER_BOUNCE_MEMORY_BYTES (32ull << 20)
#define ZD_CUDA_PEER_BOUNCE_ACROSS_BYTES (4ull << 20)  /* in progress at once */
#define ZD_CUDA_PEER_BOUNCE_ZEROS_BYTES  (64ull << 10) /* behind the ring */

struct zd_cuda_hop {
	struct zd_cuda_task *task;
	uint64_t offset, bytes; /* of the task */
	uint64_t end;           /* the end of the hop's place in the ring; 0: no place, the bytes are zeros */
	bool last;              /* the task ends with this hop */
};

struct zd_cuda_peer_bounce {
	struct zd_cuda_device *other;
	struct zd_cuda_segment *memory; /* the ring, and the zeros behind it; NULL: there is no peer bounce */
	struct zd_cuda_copy_stream out, back; /* streams of this GPU and of the other one */
	struct zd_cuda_hop hops[ZD_CUDA_PEER_BOUNCE_HOPS];
	uint64_t sent, arrived, returned; /* hops; those that go across arrive when sent */
	uint64_t taken, left; /* positions in the ring, counted since its start: allocated, freed */
};

/* Sets up a bounce off the next GPU with peer access in both directions. Where there is none, or it lacks
 * memory, `memory` stays NULL. The device's context is current, here and below. On failure there is nothing
 * to deinit. Errors: DEVICE. */
int zd_cuda_peer_bounce_init(struct zd_cuda_peer_bounce *bounce, struct zd_cuda_devices *devices,
                             uint32_t device, struct zd_err *err) __attribute__((warn_unused_result));
/* Frees the bounce, which may have no hop in progress. */
void zd_cuda_peer_bounce_deinit(struct zd_cuda_peer_bounce *bounce);

/* Returns whether the other GPU has failed. Then nothing is sent or pushed back any more, and the hops in
 * progress do not complete. */
static inline bool zd_cuda_peer_bounce_has_failed(const struct zd_cuda_peer_bounce *bounce)
{
	return bounce->memory && zd_cuda_device_failed(bounce->other);
}
static inline bool zd_cuda_peer_bounce_has_room(const struct zd_cuda_peer_bounce *bounce)
{
	return bounce->sent - bounce->returned < ZD_CUDA_PEER_BOUNCE_HOPS &&
	       /* one hop, and the rest at the ring's end that is too short for a hop */
	       bounce->taken - bounce->left + 2 * ZD_CUDA_PEER_BOUNCE_HOP_BYTES <=
	               ZD_CUDA_PEER_BOUNCE_MEMORY_BYTES;
}
static inline bool zd_cuda_peer_bounce_is_idle(const struct zd_cuda_peer_bounce *bounce)
{
	return bounce->sent == bounce->returned;
}

/* Returns whether the task may bounce off the peer: a copy, or a small fill with zeros. */
static inline bool zd_cuda_peer_bounce_accepts(const struct zd_cuda_peer_bounce *bounce,
                                               const struct zd_cuda_task *task)
{
	return bounce->memory &&
	       (task->base.kind != ZD_CMD_FILL ||
	        (task->u.copy.pattern == 0 && task->u.copy.bytes <= ZD_CUDA_PEER_BOUNCE_ZEROS_BYTES));
}

/* Sends the task's next hop, or all of it; sets `*whole` if no hop is left. There must be room. On failure
 * nothing was sent. Copies that go across may be delayed until zd_cuda_peer_bounce_close(). Errors:
 * NO_MEMORY, DEVICE. */
int zd_cuda_peer_bounce_send(struct zd_cuda_peer_bounce *bounce, struct zd_cuda_task *task, bool *whole,
                             struct zd_err *err) __attribute__((warn_unused_result));
/* Adds a hop without bytes, for a task that moves nothing but has to keep its place in the order. There must
 * be room. */
void zd_cuda_peer_bounce_follow(struct zd_cuda_peer_bounce *bounce, struct zd_cuda_task *task);

void zd_cuda_peer_bounce_close(struct zd_cuda_peer_bounce *bounce);

/* Pushes back the hops that have arrived at the other GPU, unless one of the two has failed. Returns whether
 * there were any. */
bool zd_cuda_peer_bounce_push_back(struct zd_cuda_peer_bounce *bounce);
/* Removes the next hop that has returned; false when there is none. Sets `*ended` to the task that ends with
 * it, or NULL. */
bool zd_cuda_peer_bounce_reap(struct zd_cuda_peer_bounce *bounce, struct zd_cuda_task **ended);

/* See zd_cuda_copy_stream_check(). */
void zd_cuda_peer_bounce_check(struct zd_cuda_peer_bounce *bounce);

/* For the shutdown, or a failure of the other GPU. is_still() returns whether nothing moves any more. wait()
 * waits for that. drop() removes the next hop, wherever it is, with zd_cuda_peer_bounce_reap()'s results.
 * walk() calls fn for each task that ends with a hop in progress. */
bool zd_cuda_peer_bounce_is_still(struct zd_cuda_peer_bounce *bounce);
void zd_cuda_peer_bounce_wait(struct zd_cuda_peer_bounce *bounce);
bool zd_cuda_peer_bounce_drop(struct zd_cuda_peer_bounce *bounce, struct zd_cuda_task **ended);
void zd_cuda_peer_bounce_walk(const struct zd_cuda_peer_bounce *bounce,
                              void (*fn)(struct zd_cuda_task *task));

#endif
