/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_turns.c - whose turn it is to push, from which GPU to which. */
#include "backend/cuda_turns.h"

#include "base/mem.h"

#define PAUSE_NS      10000u /* of a link, between two pieces */
#define AHEAD_NS      10000u /* a push is issued before its turn: so long until its bytes move */
#define MOST_GRACE_NS 60000u /* for another GPU, whose place it is: a part of what would be lost */
#define GRACE_SHARE   3u
#define STALE_NS      30000u /* behind its last turn a GPU goes with the others */

uint64_t zd_cuda_turn_ns(uint64_t bytes)
{
	return bytes / ZD_CUDA_LINK_BYTES_NS + (1 + bytes / ZD_CUDA_PIECE_BYTES) * PAUSE_NS;
}

/* ---- Links ------------------------------------------------------------------------------------------------------ */

static uint64_t load(const _Atomic uint64_t *value)
{
	return atomic_load_explicit(value, memory_order_relaxed);
}

/* When the next turn may be taken. */
static uint64_t opens_ns(const _Atomic uint64_t *taken_ns)
{
	uint64_t ns = load(taken_ns);
	return ns > AHEAD_NS ? ns - AHEAD_NS : 0;
}

/* False: somebody else was sooner. Whoever has the link may keep it for longer. */
static bool take(_Atomic uint64_t *taken_ns, uint64_t lasts_ns, uint64_t now_ns, bool has_it)
{
	uint64_t until_ns = load(taken_ns), next_ns;
	do {
		if (until_ns > now_ns + AHEAD_NS && !has_it)
			return false;
		next_ns = zd_max_u64(until_ns, now_ns) + lasts_ns;
	} while (!atomic_compare_exchange_weak_explicit(taken_ns, &until_ns, next_ns, memory_order_relaxed,
	                                                memory_order_relaxed));
	return true;
}

/* ---- Runs: tasks that go on where the one before ends ------------------------------------------------------------- */

static uint64_t left_bytes(const struct zd_cuda_task *task)
{
	return task->u.copy.bytes - task->u.copy.issued_bytes;
}

static struct zd_cuda_task *next_of_run(const struct zd_cuda_task *task)
{
	struct zd_cuda_task *next = STAILQ_NEXT(task, next);
	bool goes_on = next && zd_cuda_task_copies(next) && next->completion.status == 0 &&
	               next->u.copy.dst == task->u.copy.dst + task->u.copy.bytes &&
	               next->u.copy.src == task->u.copy.src + task->u.copy.bytes;
	return goes_on ? next : NULL;
}

static uint64_t run_bytes(const struct zd_cuda_task *task)
{
	uint64_t bytes = 0;
	for (; task; task = next_of_run(task))
		bytes += left_bytes(task);
	return bytes;
}

static uint64_t run_ns(const struct zd_cuda_task *task)
{
	uint64_t ns = 0;
	for (; task; task = next_of_run(task))
		ns += zd_cuda_turn_ns(left_bytes(task));
	return ns;
}

/* Notes where it ends, for those that may still come. */
static void give(struct zd_cuda_turns *turns, struct zd_cuda_task *task)
{
	for (; task; task = next_of_run(task)) {
		task->u.copy.turn = true;
		turns->dst = task->u.copy.dst + task->u.copy.bytes;
		turns->src = task->u.copy.src + task->u.copy.bytes;
	}
}

/* ---- Turns ---------------------------------------------------------------------------------------------------------- */

void zd_cuda_turns_init(struct zd_cuda_turns *turns, struct zd_cuda_devices *devices, uint32_t self)
{
	*turns = (struct zd_cuda_turns){.devices = devices, .self = self, .again_ns = UINT64_MAX};
}

static uint32_t next_distance(const struct zd_cuda_turns *turns, uint32_t distance)
{
	return distance % (turns->devices->count - 1) + 1;
}

uint32_t zd_cuda_turns_begin(struct zd_cuda_turns *turns, uint64_t now_ns)
{
	uint32_t latest = atomic_load_explicit(&turns->devices->distance, memory_order_relaxed);
	turns->again_ns = UINT64_MAX;
	turns->joins = turns->distance == 0 ||
	               load(&turns->devices->all[turns->self].out_ns) + STALE_NS <= now_ns;
	turns->place = !turns->joins ? next_distance(turns, turns->distance) : latest > 0 ? latest : 1;
	return turns->place;
}

static uint32_t distance_to(const struct zd_cuda_turns *turns, uint32_t target)
{
	uint32_t count = turns->devices->count;
	return (target + count - turns->self) % count;
}

/* Is it this GPU's place to push there. It is the next one's when a turn into that GPU has just ended, and who has had none lately
 * may be that. */
static bool is_place(const struct zd_cuda_turns *turns, uint32_t target, uint64_t now_ns)
{
	uint32_t distance = distance_to(turns, target);
	if (distance == turns->place)
		return true;
	return turns->joins && distance == next_distance(turns, turns->place) &&
	       load(&turns->devices->all[target].in_ns) + STALE_NS > now_ns;
}

static bool take_both(struct zd_cuda_turns *turns, struct zd_cuda_task *task, uint64_t lasts_ns,
                      uint64_t now_ns, bool has_it)
{
	struct zd_cuda_device *own = &turns->devices->all[turns->self],
	                      *other = &turns->devices->all[task->target];
	if (!take(&other->in_ns, lasts_ns, now_ns, has_it))
		return false;
	(void)take(&own->out_ns, lasts_ns, now_ns, has_it); /* nobody else does */
	turns->distance = distance_to(turns, task->target);
	atomic_store_explicit(&turns->devices->distance, turns->distance, memory_order_relaxed);
	give(turns, task);
	return true;
}

bool zd_cuda_turns_take(struct zd_cuda_turns *turns, struct zd_cuda_task *task, uint64_t now_ns)
{
	struct zd_cuda_device *own = &turns->devices->all[turns->self],
	                      *other = &turns->devices->all[task->target];
	uint64_t lasts_ns, free_ns;
	if (!zd_cuda_task_copies(task) || task->completion.status != 0 || task->u.copy.turn)
		return true;
	lasts_ns = run_ns(task);
	if (task->u.copy.dst == turns->dst && task->u.copy.src == turns->src)
		return take_both(turns, task, lasts_ns, now_ns, true);
	if (run_bytes(task) <= ZD_CUDA_TURN_LEAST_BYTES)
		return true;
	free_ns = zd_max_u64(opens_ns(&own->out_ns), opens_ns(&other->in_ns));
	free_ns = zd_max_u64(free_ns, task->u.copy.seen_ns);
	if (!is_place(turns, task->target, now_ns))
		free_ns += zd_min_u64(lasts_ns / GRACE_SHARE, MOST_GRACE_NS);
	if (free_ns <= now_ns && take_both(turns, task, lasts_ns, now_ns, false))
		return true;
	turns->again_ns = zd_min_u64(turns->again_ns, zd_max_u64(free_ns, now_ns));
	return false;
}
