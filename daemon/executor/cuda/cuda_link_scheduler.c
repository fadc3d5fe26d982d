/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_link_scheduler.c - time slots on the links for large pushes between GPUs. */
#include "executor/cuda/cuda_link_scheduler.h"

#include "base/mem.h"
#include "executor/cuda/cuda_copy_stream.h"

#define PAUSE_NS 10000u /* a link is idle that long after a piece that ends its task */
#define GAP_NS   3000u  /* and that long after any other piece */
#define AHEAD_NS 10000u /* a push is issued that long before its slot, as its bytes do not move at once */
/* The grace for the owner of a place, before another GPU uses the place: a slot's length / GRACE_SHARE,
 * within the limit for an owner that has offered a push to that target, or for any other owner. */
#define GRACE_SHARE            3u
#define KNOWN_OWNER_GRACE_NS   60000u
#define UNKNOWN_OWNER_GRACE_NS 20000u
#define YIELD_NS               60000u /* the delay in favour of an idle GPU that has more to push */
#define STALE_NS               30000u /* a GPU without a slot for that long adopts the others' distance */

_Static_assert(ZD_MAX_DEVICES <= 64, "targets are bits");

uint64_t zd_cuda_link_slot_ns(uint64_t bytes)
{
	return bytes / ZD_CUDA_LINK_BYTES_NS + PAUSE_NS;
}

/* ---- Links --------------------------------------------------------------------------------------------- */

static uint64_t load_relaxed(const _Atomic uint64_t *value)
{
	return atomic_load_explicit(value, memory_order_relaxed);
}

/* The earliest time at which the next slot can be reserved. */
static uint64_t link_opens_ns(const _Atomic uint64_t *taken_ns)
{
	uint64_t ns = load_relaxed(taken_ns);
	return ns > AHEAD_NS ? ns - AHEAD_NS : 0;
}

/* Reserves the link for `lasts_ns`. Returns false if another GPU has reserved the link meanwhile. `prolongs`:
 * the caller has the current slot, and prolongs that slot. */
static bool reserve_link(_Atomic uint64_t *taken_ns, uint64_t lasts_ns, uint64_t now_ns, bool prolongs)
{
	uint64_t until_ns = load_relaxed(taken_ns), next_ns;
	do {
		if (until_ns > now_ns + AHEAD_NS && !prolongs)
			return false;
		next_ns = zd_max_u64(until_ns, now_ns) + lasts_ns;
	} while (!atomic_compare_exchange_weak_explicit(taken_ns, &until_ns, next_ns, memory_order_relaxed,
	                                                memory_order_relaxed));
	return true;
}

/* ---- Runs: tasks, each of which continues at the end of the task before -------------------------------- */

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

/* The scope of one slot: the first piece of a task, or whole tasks of a run, up to the bytes of a piece. */
struct slot {
	struct zd_cuda_task *last;
	uint64_t bytes, ns;
};

static struct slot first_slot(struct zd_cuda_task *task)
{
	uint64_t bytes = zd_cuda_piece_next(task, 0, ZD_CUDA_PIECE_BYTES).bytes;
	struct slot slot = {.last = task, .bytes = bytes, .ns = zd_cuda_link_slot_ns(bytes)};
	if (bytes < left_bytes(task)) {
		slot.ns = bytes / ZD_CUDA_LINK_BYTES_NS + GAP_NS;
		return slot;
	}
	while ((task = next_of_run(task)) && slot.bytes + left_bytes(task) <= ZD_CUDA_PIECE_BYTES) {
		slot.bytes += left_bytes(task);
		slot.ns += zd_cuda_link_slot_ns(left_bytes(task));
		slot.last = task;
	}
	return slot;
}

/* ---- Slots --------------------------------------------------------------------------------------------- */

void zd_cuda_link_scheduler_init(struct zd_cuda_link_scheduler *scheduler, struct zd_cuda_devices *devices,
                                 uint32_t self)
{
	*scheduler =
	        (struct zd_cuda_link_scheduler){.devices = devices, .self = self, .again_ns = UINT64_MAX};
}

static uint32_t next_distance(const struct zd_cuda_link_scheduler *scheduler, uint32_t distance)
{
	return distance % (scheduler->devices->count - 1) + 1;
}

static uint32_t distance_to(const struct zd_cuda_link_scheduler *scheduler, uint32_t target)
{
	uint32_t count = scheduler->devices->count;
	return (target + count - scheduler->self) % count;
}

static bool goes_on(const struct zd_cuda_link_scheduler *scheduler, const struct zd_cuda_task *task)
{
	return task->u.copy.dst + task->u.copy.issued_bytes == scheduler->dst &&
	       task->u.copy.src + task->u.copy.issued_bytes == scheduler->src &&
	       distance_to(scheduler, task->target) == scheduler->distance;
}

void zd_cuda_link_scheduler_offer(struct zd_cuda_link_scheduler *scheduler, const struct zd_cuda_task *task)
{
	uint64_t bytes = moves(task) ? run_bytes(task) : 0;
	if (bytes <= ZD_CUDA_LINK_SLOT_LEAST_BYTES)
		return;
	scheduler->offered_bytes += bytes;
	scheduler->offered_targets |= 1ull << task->target;
	scheduler->continues_last_slot |= goes_on(scheduler, task);
}

/* Stores only on a change, because other executors read the value often. */
static void store_if_changed(_Atomic uint64_t *at, uint64_t value)
{
	if (load_relaxed(at) != value)
		atomic_store_explicit(at, value, memory_order_relaxed);
}

uint32_t zd_cuda_link_scheduler_begin(struct zd_cuda_link_scheduler *scheduler, uint64_t now_ns)
{
	struct zd_cuda_device *own = &scheduler->devices->all[scheduler->self];
	uint32_t latest = atomic_load_explicit(&scheduler->devices->distance, memory_order_relaxed);
	scheduler->again_ns = UINT64_MAX;
	scheduler->had_no_recent_slot = scheduler->distance == 0 ||
	                                load_relaxed(&own->out_ns) + STALE_NS <= now_ns;
	if (scheduler->had_no_recent_slot)
		scheduler->first_distance = latest > 0 ? latest : 1;
	else
		scheduler->first_distance = scheduler->continues_last_slot
		                                    ? scheduler->distance
		                                    : next_distance(scheduler, scheduler->distance);
	store_if_changed(&own->offered_bytes, scheduler->offered_bytes);
	store_if_changed(&own->offered_targets, scheduler->offered_targets);
	scheduler->offered_bytes = scheduler->offered_targets = 0;
	scheduler->continues_last_slot = false;
	return scheduler->first_distance;
}

/* Returns whether the place at `target` belongs to this GPU. A GPU without a recent slot also owns the place
 * of the next distance if a slot into the target has just ended. */
static bool is_place(const struct zd_cuda_link_scheduler *scheduler, uint32_t target, uint64_t now_ns)
{
	uint32_t distance = distance_to(scheduler, target);
	if (distance == scheduler->first_distance)
		return true;
	return scheduler->had_no_recent_slot &&
	       distance == next_distance(scheduler, scheduler->first_distance) &&
	       load_relaxed(&scheduler->devices->all[target].in_ns) + STALE_NS > now_ns;
}

/* Returns the time from which this GPU may push to `target` although the place belongs to another GPU, the
 * owner. An owner that is pushing elsewhere is not waited for beyond the slot's length. */
static uint64_t other_place_opens_ns(const struct zd_cuda_link_scheduler *scheduler, uint32_t target,
                                     uint64_t lasts_ns, uint64_t free_ns, uint64_t now_ns)
{
	uint32_t count = scheduler->devices->count;
	const struct zd_cuda_device *owner =
	        &scheduler->devices->all[(target + count - scheduler->first_distance) % count];
	uint64_t grace_ns = zd_min_u64(lasts_ns / GRACE_SHARE, KNOWN_OWNER_GRACE_NS);
	uint64_t comes_ns = link_opens_ns(&owner->out_ns);
	if (load_relaxed(&owner->offered_targets) >> target & 1 && comes_ns < now_ns + lasts_ns &&
	    !zd_cuda_device_failed(owner))
		return zd_min_u64(zd_max_u64(free_ns, comes_ns) + grace_ns, free_ns + lasts_ns);
	return free_ns + zd_min_u64(grace_ns, UNKNOWN_OWNER_GRACE_NS);
}

/* Returns whether an idle GPU would push to `target`, and has more to push than this one. */
static bool yields(const struct zd_cuda_link_scheduler *scheduler, uint32_t target, uint64_t now_ns)
{
	uint64_t most = load_relaxed(&scheduler->devices->all[scheduler->self].offered_bytes) +
	                ZD_CUDA_PIECE_BYTES / 2;
	for (uint32_t i = 0; i < scheduler->devices->count; i++) {
		const struct zd_cuda_device *other = &scheduler->devices->all[i];
		if (i != scheduler->self && load_relaxed(&other->offered_targets) >> target & 1 &&
		    load_relaxed(&other->offered_bytes) > most && link_opens_ns(&other->out_ns) <= now_ns &&
		    !zd_cuda_device_failed(other))
			return true;
	}
	return false;
}

static bool reserve_links(struct zd_cuda_link_scheduler *scheduler, struct zd_cuda_task *task,
                          const struct slot *slot, uint64_t now_ns, bool prolongs)
{
	struct zd_cuda_device *own = &scheduler->devices->all[scheduler->self],
	                      *other = &scheduler->devices->all[task->target];
	uint64_t done = slot->last == task ? task->u.copy.issued_bytes + slot->bytes
	                                   : slot->last->u.copy.bytes;
	if (!reserve_link(&other->in_ns, slot->ns, now_ns, prolongs))
		return false;
	(void)reserve_link(&own->out_ns, slot->ns, now_ns,
	                   prolongs); /* only this executor reserves its own output */
	scheduler->distance = distance_to(scheduler, task->target);
	atomic_store_explicit(&scheduler->devices->distance, scheduler->distance, memory_order_relaxed);
	scheduler->dst = slot->last->u.copy.dst + done;
	scheduler->src = slot->last->u.copy.src + done;
	scheduler->bytes = (prolongs ? scheduler->bytes : 0) + slot->bytes;
	for (; task != slot->last; task = STAILQ_NEXT(task, next))
		task->u.copy.has_link_slot = true;
	task->u.copy.has_link_slot = true;
	return true;
}

bool zd_cuda_link_scheduler_reserve(struct zd_cuda_link_scheduler *scheduler, struct zd_cuda_task *task,
                                    uint64_t now_ns)
{
	struct zd_cuda_device *own = &scheduler->devices->all[scheduler->self],
	                      *other = &scheduler->devices->all[task->target];
	uint64_t free_ns;
	if (!moves(task) || task->u.copy.has_link_slot)
		return true;
	struct slot slot = first_slot(task);
	if (goes_on(scheduler, task) && scheduler->bytes + slot.bytes <= ZD_CUDA_PIECE_BYTES)
		return reserve_links(scheduler, task, &slot, now_ns, true);
	if (run_bytes(task) <= ZD_CUDA_LINK_SLOT_LEAST_BYTES)
		return true;
	free_ns = zd_max_u64(link_opens_ns(&own->out_ns), link_opens_ns(&other->in_ns));
	free_ns = zd_max_u64(free_ns, task->u.copy.seen_ns);
	if (!is_place(scheduler, task->target, now_ns))
		free_ns = other_place_opens_ns(scheduler, task->target, slot.ns, free_ns, now_ns);
	if (yields(scheduler, task->target, now_ns))
		free_ns += YIELD_NS;
	if (free_ns <= now_ns && reserve_links(scheduler, task, &slot, now_ns, false))
		return true;
	scheduler->again_ns = zd_min_u64(scheduler->again_ns, zd_max_u64(free_ns, now_ns));
	return false;
}
