/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_detour.h - the way round for what begins and ends on one GPU: by another GPU, which is reached and
 * reaches.
 *
 * A copy within a GPU waits until the kernels that run there let it: beside matrix products of 8192, for half
 * a product on average, 0.9 ms on an H200, in whatever context, by whatever call. What another GPU's engine
 * moves is not held up.
 *
 * A small copy goes across: the other GPU reads and writes this one's memory in a single copy. That takes as
 * long as a push of up to 1 MiB, and three times as long where it is large (12 and 24 us at 256 KiB and 1
 * MiB; 217 at 16 MiB). A large one is pushed into the other's memory and pushed back by that one (107 us).
 * The second push begins when the CPU has seen the end of the first. To leave that to an event or to a wait
 * on the stream costs 200 us, since such goes by the channel of the compute engine, which the daemon has to
 * share.
 *
 * Large copies are cut into legs, each with a place in the other GPU's memory; small ones, if there are many
 * at once, go out and back in groups. Legs go out, come in there, and come back in one order, that of the
 * tasks; so what signals nothing but has to keep its place takes a leg as well, without bytes. What goes
 * across does so when nothing is on its way out.
 *
 * The driver fills memory by a kernel, which is held up likewise, and stops the trainer's. The other GPU has
 * zeros, which it pushes: for small fills.
 */
#ifndef ZD_BACKEND_CUDA_DETOUR_H
#define ZD_BACKEND_CUDA_DETOUR_H

#include "backend/cuda_lane.h"

#define ZD_CUDA_DETOUR_LEGS         64u
#define ZD_CUDA_DETOUR_LEG_BYTES    (4ull << 20)
#define ZD_CUDA_DETOUR_MEMORY_BYTES (32ull << 20)
#define ZD_CUDA_DETOUR_ACROSS_BYTES (4ull << 20)  /* under way at once */
#define ZD_CUDA_DETOUR_ZEROS_BYTES  (64ull << 10) /* behind the memory */

struct zd_cuda_leg {
	struct zd_cuda_task *task;
	uint64_t offset, bytes; /* of the task's */
	uint64_t end;           /* of its place in the memory; 0: it has none, bytes are zeros */
	bool last;              /* the task ends with it */
};

struct zd_cuda_detour {
	struct zd_cuda_device *other;
	struct zd_cuda_segment *memory; /* NULL: there is no way round */
	struct zd_cuda_lane out, back;  /* of the GPU itself, and of the other */
	struct zd_cuda_leg legs[ZD_CUDA_DETOUR_LEGS];
	uint64_t sent, arrived, returned; /* legs; what goes across arrives as it is sent */
	uint64_t taken, left;             /* bytes of the memory, which is a ring: ever */
};

/* Opens a way round by the next GPU that reaches this one and is reached; where there is none, or no memory
 * on it, `memory` stays NULL. The device's context is current, as for all that follows. On failure there is
 * nothing to deinit. Errors: DEVICE. */
int zd_cuda_detour_init(struct zd_cuda_detour *detour, struct zd_cuda_devices *devices, uint32_t device,
                        struct zd_err *err) __attribute__((warn_unused_result));
/* Nothing is under way. */
void zd_cuda_detour_deinit(struct zd_cuda_detour *detour);

/* The other GPU has failed: nothing is sent or turned any more, and what is under way will not be seen to
 * land. */
static inline bool zd_cuda_detour_has_failed(const struct zd_cuda_detour *detour)
{
	return detour->memory && zd_cuda_device_failed(detour->other);
}
static inline bool zd_cuda_detour_has_room(const struct zd_cuda_detour *detour)
{
	return detour->sent - detour->returned < ZD_CUDA_DETOUR_LEGS &&
	       /* a leg, and as much at the memory's end that is too short for it */
	       detour->taken - detour->left + 2 * ZD_CUDA_DETOUR_LEG_BYTES <= ZD_CUDA_DETOUR_MEMORY_BYTES;
}
static inline bool zd_cuda_detour_is_idle(const struct zd_cuda_detour *detour)
{
	return detour->sent == detour->returned;
}

/* May the task go round: a copy, or a small fill with zeros. */
static inline bool zd_cuda_detour_takes(const struct zd_cuda_detour *detour, const struct zd_cuda_task *task)
{
	return detour->memory &&
	       (task->base.kind != ZD_CMD_FILL ||
	        (task->u.copy.pattern == 0 && task->u.copy.bytes <= ZD_CUDA_DETOUR_ZEROS_BYTES));
}

/* Sends the task's next leg, or all of it; `*whole` tells that it was the last. There is room. On failure the
 * task has not come further. What goes across may wait until the group is closed. Errors: NO_MEMORY,
 * DEVICE. */
int zd_cuda_detour_send(struct zd_cuda_detour *detour, struct zd_cuda_task *task, bool *whole,
                        struct zd_err *err) __attribute__((warn_unused_result));
/* The task goes with the others, and asks nothing of the GPUs. There is room. */
void zd_cuda_detour_follow(struct zd_cuda_detour *detour, struct zd_cuda_task *task);

void zd_cuda_detour_close(struct zd_cuda_detour *detour);

/* Pushes back what has come in at the other GPU, unless one of the two has failed. Has anything? */
bool zd_cuda_detour_turn(struct zd_cuda_detour *detour);
/* Takes the next leg that is back: false when there is none. `*ended` is the task that ends with it, or
 * NULL. */
bool zd_cuda_detour_land(struct zd_cuda_detour *detour, struct zd_cuda_task **ended);

/* As zd_cuda_lane_check(). */
void zd_cuda_detour_check(struct zd_cuda_detour *detour);

/* For the end, or the other GPU's: does nothing move any more; waits for that; takes the next leg, wherever
 * it is, as zd_cuda_detour_land(); calls fn for each task that ends with a leg under way. */
bool zd_cuda_detour_is_still(struct zd_cuda_detour *detour);
void zd_cuda_detour_wait(struct zd_cuda_detour *detour);
bool zd_cuda_detour_drop(struct zd_cuda_detour *detour, struct zd_cuda_task **ended);
void zd_cuda_detour_walk(const struct zd_cuda_detour *detour, void (*fn)(struct zd_cuda_task *task));

#endif
