/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_turns.c - time slots on the links for large pushes between GPUs. */
#include "executor/cuda/cuda_turns.h"

#include "base/mem.h"

#define PAUSE_NS      10000u /* on a link, after a piece that ends its task */
#define GAP_NS        3000u  /* the same, after any other piece */
#define AHEAD_NS      10000u /* a push is issued that long before its turn: until its bytes move */
#define GRACE_SHARE   3u     /* wait for the owner of a place: at most a third of a turn */
#define MOST_GRACE_NS 60000u /* at most, if the owner is known to push there */
#define LEAST_NS      20000u /* at most, if it is not */
#define YIELD_NS      60000u /* wait for another GPU with more to push */
#define STALE_NS      30000u /* that long after its last turn a GPU joins the others' distance */

_Static_assert(ZD_MAX_DEVICES <= 64, "targets are bits");

uint64_t zd_cuda_turn_ns(uint64_t bytes)
{
	return bytes / ZD_CUDA_LINK_BYTES_NS + PAUSE_NS;
}

/* ---- Links --------------------------------------------------------------------------------------------- */

static uint64_t load(const _Atomic uint64_t *value)
{
	return atomic_load_explicit(value, memory_order_relaxed);
}

/* The earliest time at which the next turn can be reserved. */
static uint64_t opens_ns(const _Atomic uint64_t *taken_ns)
{
	uint64_t ns = load(taken_ns);
	return ns > AHEAD_NS ? ns - AHEAD_NS : 0;
}

/* Reserves the link for `lasts_ns`. Returns false if another GPU has reserved it meanwhile. `has_it`: the
 * caller has the current turn, and prolongs it. */
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

/* ---- Runs: tasks that go on where the one before ends -------------------------------------------------- */

static bool moves(const struct zd_cuda_task *task)
{
	return zd_cuda_task_copies(task) && task->completion.status == 0;
}

static uint64_t left_bytes(const struct zd_cuda_task *task)
{
	return task->u.copy.bytes - task->u.copy.issued_bytes;
}

static struct zd_cuda_task *next_of_run(const struct zd_cuda_task *task)
{
	struct zd_cuda_task *next = STAILQ_NEXT(task, next);
	bool goes_on = next && moves(next) && next->u.copy.dst == task->u.copy.dst + task->u.copy.bytes &&
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

/* The scope of one turn: the first piece of a task, or whole tasks of a run, up to the bytes of a piece. */
struct part {
	struct zd_cuda_task *last;
	uint64_t bytes, ns;
};

static struct part first_part(struct zd_cuda_task *task)
{
	uint64_t bytes = zd_min_u64(left_bytes(task), ZD_CUDA_PIECE_BYTES);
	struct part part = {.last = task, .bytes = bytes, .ns = zd_cuda_turn_ns(bytes)};
	if (bytes < left_bytes(task)) {
		part.ns = bytes / ZD_CUDA_LINK_BYTES_NS + GAP_NS;
		return part;
	}
	while ((task = next_of_run(task)) && part.bytes + left_bytes(task) <= ZD_CUDA_PIECE_BYTES) {
		part.bytes += left_bytes(task);
		part.ns += zd_cuda_turn_ns(left_bytes(task));
		part.last = task;
	}
	return part;
}

/* ---- Turns --------------------------------------------------------------------------------------------- */

void zd_cuda_turns_init(struct zd_cuda_turns *turns, struct zd_cuda_devices *devices, uint32_t self)
{
	*turns = (struct zd_cuda_turns){.devices = devices, .self = self, .again_ns = UINT64_MAX};
}

static uint32_t next_distance(const struct zd_cuda_turns *turns, uint32_t distance)
{
	return distance % (turns->devices->count - 1) + 1;
}

static uint32_t distance_to(const struct zd_cuda_turns *turns, uint32_t target)
{
	uint32_t count = turns->devices->count;
	return (target + count - turns->self) % count;
}

static bool goes_on(const struct zd_cuda_turns *turns, const struct zd_cuda_task *task)
{
	return task->u.copy.dst + task->u.copy.issued_bytes == turns->dst &&
	       task->u.copy.src + task->u.copy.issued_bytes == turns->src &&
	       distance_to(turns, task->target) == turns->distance;
}

void zd_cuda_turns_offer(struct zd_cuda_turns *turns, const struct zd_cuda_task *task)
{
	uint64_t bytes = moves(task) ? run_bytes(task) : 0;
	if (bytes <= ZD_CUDA_TURN_LEAST_BYTES)
		return;
	turns->due_bytes += bytes;
	turns->due_to |= 1ull << task->target;
	turns->stays |= goes_on(turns, task);
}

/* Stores only on a change, because other executors read the value often. */
static void publish(_Atomic uint64_t *at, uint64_t value)
{
	if (load(at) != value)
		atomic_store_explicit(at, value, memory_order_relaxed);
}

uint32_t zd_cuda_turns_begin(struct zd_cuda_turns *turns, uint64_t now_ns)
{
	struct zd_cuda_device *own = &turns->devices->all[turns->self];
	uint32_t latest = atomic_load_explicit(&turns->devices->distance, memory_order_relaxed);
	turns->again_ns = UINT64_MAX;
	turns->joins = turns->distance == 0 || load(&own->out_ns) + STALE_NS <= now_ns;
	if (turns->joins)
		turns->place = latest > 0 ? latest : 1;
	else
		turns->place = turns->stays ? turns->distance : next_distance(turns, turns->distance);
	publish(&own->due_bytes, turns->due_bytes);
	publish(&own->due_to, turns->due_to);
	turns->due_bytes = turns->due_to = 0;
	turns->stays = false;
	return turns->place;
}

/* Returns whether the place at `target` belongs to this GPU. A GPU without a recent turn also owns the place
 * of the next distance if a turn into the target has just ended. */
static bool is_place(const struct zd_cuda_turns *turns, uint32_t target, uint64_t now_ns)
{
	uint32_t distance = distance_to(turns, target);
	if (distance == turns->place)
		return true;
	return turns->joins && distance == next_distance(turns, turns->place) &&
	       load(&turns->devices->all[target].in_ns) + STALE_NS > now_ns;
}

/* The time from which this GPU may push to `target` although the place belongs to another one. The owner may
 * be pushing elsewhere for long. */
static uint64_t leave_place(const struct zd_cuda_turns *turns, uint32_t target, uint64_t lasts_ns,
                            uint64_t free_ns, uint64_t now_ns)
{
	uint32_t count = turns->devices->count;
	const struct zd_cuda_device *owner = &turns->devices->all[(target + count - turns->place) % count];
	uint64_t grace_ns = zd_min_u64(lasts_ns / GRACE_SHARE, MOST_GRACE_NS);
	uint64_t comes_ns = opens_ns(&owner->out_ns);
	if (load(&owner->due_to) >> target & 1 && comes_ns < now_ns + lasts_ns &&
	    !zd_cuda_device_failed(owner))
		return zd_min_u64(zd_max_u64(free_ns, comes_ns) + grace_ns, free_ns + lasts_ns);
	return free_ns + zd_min_u64(grace_ns, LEAST_NS);
}

/* Returns whether an idle GPU would push to `target`, and has more to push than this one. */
static bool yields(const struct zd_cuda_turns *turns, uint32_t target, uint64_t now_ns)
{
	uint64_t most = load(&turns->devices->all[turns->self].due_bytes) + ZD_CUDA_PIECE_BYTES / 2;
	for (uint32_t i = 0; i < turns->devices->count; i++) {
		const struct zd_cuda_device *other = &turns->devices->all[i];
		if (i != turns->self && load(&other->due_to) >> target & 1 &&
		    load(&other->due_bytes) > most && opens_ns(&other->out_ns) <= now_ns &&
		    !zd_cuda_device_failed(other))
			return true;
	}
	return false;
}

static bool take_both(struct zd_cuda_turns *turns, struct zd_cuda_task *task, const struct part *part,
                      uint64_t now_ns, bool has_it)
{
	struct zd_cuda_device *own = &turns->devices->all[turns->self],
	                      *other = &turns->devices->all[task->target];
	uint64_t done = part->last == task ? task->u.copy.issued_bytes + part->bytes
	                                   : part->last->u.copy.bytes;
	if (!take(&other->in_ns, part->ns, now_ns, has_it))
		return false;
	(void)take(&own->out_ns, part->ns, now_ns, has_it); /* only this executor reserves its own output */
	turns->distance = distance_to(turns, task->target);
	atomic_store_explicit(&turns->devices->distance, turns->distance, memory_order_relaxed);
	turns->dst = part->last->u.copy.dst + done;
	turns->src = part->last->u.copy.src + done;
	turns->bytes = (has_it ? turns->bytes : 0) + part->bytes;
	for (; task != part->last; task = STAILQ_NEXT(task, next))
		task->u.copy.turn = true;
	task->u.copy.turn = true;
	return true;
}

bool zd_cuda_turns_take(struct zd_cuda_turns *turns, struct zd_cuda_task *task, uint64_t now_ns)
{
	struct zd_cuda_device *own = &turns->devices->all[turns->self],
	                      *other = &turns->devices->all[task->target];
	uint64_t free_ns;
	if (!moves(task) || task->u.copy.turn)
		return true;
	struct part part = first_part(task);
	if (goes_on(turns, task) && turns->bytes + part.bytes <= ZD_CUDA_PIECE_BYTES)
		return take_both(turns, task, &part, now_ns, true);
	if (run_bytes(task) <= ZD_CUDA_TURN_LEAST_BYTES)
		return true;
	free_ns = zd_max_u64(opens_ns(&own->out_ns), opens_ns(&other->in_ns));
	free_ns = zd_max_u64(free_ns, task->u.copy.seen_ns);
	if (!is_place(turns, task->target, now_ns))
		free_ns = leave_place(turns, task->target, part.ns, free_ns, now_ns);
	if (yields(turns, task->target, now_ns))
		free_ns += YIELD_NS;
	if (free_ns <= now_ns && take_both(turns, task, &part, now_ns, false))
		return true;
	turns->again_ns = zd_min_u64(turns->again_ns, zd_max_u64(free_ns, now_ns));
	return false;
}
