/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_detour.h - copies within one GPU by way of another GPU that it has peer access to, and that has access
 * to it.
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
 * Large copies are cut into legs, each with a place in the other GPU's memory. Small ones, when there are
 * many, go out and back in groups. Legs go out, arrive and return in the order of the tasks. A task that
 * moves nothing but has to keep its place therefore has a leg too, without bytes. A task goes across only
 * when no leg is on its way out.
 *
 * The driver fills memory with a kernel, which waits likewise and delays the trainers' kernels. So the other
 * GPU holds zeros, and pushes them for small fills.
 */
#ifndef ZD_EXECUTOR_CUDA_DETOUR_H
#define ZD_EXECUTOR_CUDA_DETOUR_H

#include "executor/cuda/cuda_lane.h"

#define ZD_CUDA_DETOUR_LEGS         64u
#define ZD_CUDA_DETOUR_LEG_BYTES    (4ull << 20)
#define ZD_CUDA_DETOUR_MEMORY_BYTES (32ull << 20)
#define ZD_CUDA_DETOUR_ACROSS_BYTES (4ull << 20)  /* in progress at once */
#define ZD_CUDA_DETOUR_ZEROS_BYTES  (64ull << 10) /* behind the ring */

struct zd_cuda_leg {
	struct zd_cuda_task *task;
	uint64_t offset, bytes; /* of the task */
	uint64_t end;           /* the end of its place in the ring; 0: it has none, its bytes are zeros */
	bool last;              /* the task ends with this leg */
};

struct zd_cuda_detour {
	struct zd_cuda_device *other;
	struct zd_cuda_segment *memory; /* the ring, and the zeros behind it; NULL: there is no detour */
	struct zd_cuda_lane out, back;  /* streams of this GPU and of the other one */
	struct zd_cuda_leg legs[ZD_CUDA_DETOUR_LEGS];
	uint64_t sent, arrived, returned; /* legs; those that go across arrive when sent */
	uint64_t taken, left; /* positions in the ring, counted since its start: allocated, freed */
};

/* Sets up a detour by the next GPU with peer access in both directions. Where there is none, or it lacks
 * memory, `memory` stays NULL. The device's context is current, here and below. On failure there is nothing
 * to deinit. Errors: DEVICE. */
int zd_cuda_detour_init(struct zd_cuda_detour *detour, struct zd_cuda_devices *devices, uint32_t device,
                        struct zd_err *err) __attribute__((warn_unused_result));
/* Nothing may be in progress. */
void zd_cuda_detour_deinit(struct zd_cuda_detour *detour);

/* Returns whether the other GPU has failed. Then nothing is sent or pushed back any more, and the legs in
 * progress do not complete. */
static inline bool zd_cuda_detour_has_failed(const struct zd_cuda_detour *detour)
{
	return detour->memory && zd_cuda_device_failed(detour->other);
}
static inline bool zd_cuda_detour_has_room(const struct zd_cuda_detour *detour)
{
	return detour->sent - detour->returned < ZD_CUDA_DETOUR_LEGS &&
	       /* one leg, and the rest at the ring's end that is too short for a leg */
	       detour->taken - detour->left + 2 * ZD_CUDA_DETOUR_LEG_BYTES <= ZD_CUDA_DETOUR_MEMORY_BYTES;
}
static inline bool zd_cuda_detour_is_idle(const struct zd_cuda_detour *detour)
{
	return detour->sent == detour->returned;
}

/* Returns whether the task may use the detour: a copy, or a small fill with zeros. */
static inline bool zd_cuda_detour_takes(const struct zd_cuda_detour *detour, const struct zd_cuda_task *task)
{
	return detour->memory &&
	       (task->base.kind != ZD_CMD_FILL ||
	        (task->u.copy.pattern == 0 && task->u.copy.bytes <= ZD_CUDA_DETOUR_ZEROS_BYTES));
}

/* Sends the task's next leg, or all of it; sets `*whole` if no leg is left. There must be room. On failure
 * nothing was sent. Copies that go across may be delayed until zd_cuda_detour_close(). Errors: NO_MEMORY,
 * DEVICE. */
int zd_cuda_detour_send(struct zd_cuda_detour *detour, struct zd_cuda_task *task, bool *whole,
                        struct zd_err *err) __attribute__((warn_unused_result));
/* Gives a task that moves nothing its place behind the others. There must be room. */
void zd_cuda_detour_follow(struct zd_cuda_detour *detour, struct zd_cuda_task *task);

void zd_cuda_detour_close(struct zd_cuda_detour *detour);

/* Pushes back the legs that have arrived at the other GPU, unless one of the two has failed. Returns whether
 * there were any. */
bool zd_cuda_detour_turn(struct zd_cuda_detour *detour);
/* Removes the next leg that has returned; false when there is none. Sets `*ended` to the task that ends with
 * it, or NULL. */
bool zd_cuda_detour_land(struct zd_cuda_detour *detour, struct zd_cuda_task **ended);

/* See zd_cuda_lane_check(). */
void zd_cuda_detour_check(struct zd_cuda_detour *detour);

/* For the shutdown, or a failure of the other GPU. is_still() returns whether nothing moves any more. wait()
 * waits for that. drop() removes the next leg, wherever it is, with zd_cuda_detour_land()'s results. walk()
 * calls fn for each task that ends with a leg in progress. */
bool zd_cuda_detour_is_still(struct zd_cuda_detour *detour);
void zd_cuda_detour_wait(struct zd_cuda_detour *detour);
bool zd_cuda_detour_drop(struct zd_cuda_detour *detour, struct zd_cuda_task **ended);
void zd_cuda_detour_walk(const struct zd_cuda_detour *detour, void (*fn)(struct zd_cuda_task *task));

#endif
