/* SPDX-License-Identifier: Apache-2.0 */
/*
 * links_model.h - GPUs that push to each other, as a model: cuda_link_scheduler.c and cuda_order.c as they
 * are, with executors, streams and links that exist in numbers only.
 *
 * Time goes from one event to the next: an executor looks, a push's bytes begin to move or have moved, a
 * store is done. A GPU's stream moves one push at a time; those that meet at one GPU share the way into it
 * evenly. Executors issue what cuda_executor.c would, close groups where cuda_copy_stream.c would, and look
 * again when they would, but for what comes of a random number: how long a look takes, how late a sleep ends,
 * when a command arrives. Their spans of time are written here once more. The seed decides, so every run is
 * the same.
 */
#ifndef ZD_TEST_LINKS_MODEL_H
#define ZD_TEST_LINKS_MODEL_H

#include "base/mem.h"
#include "executor/cuda/cuda_copy_stream.h"
#include "executor/cuda/cuda_order.h"
#include "executor/cuda/cuda_link_scheduler.h"
#include "tests/support/test.h"

#define MIB                  (1ull << 20)
#define GIB                  (1ull << 30)
#define US                   1000ull
#define MOST_GPUS            8u
#define LINK_BYTES_NS        390u
#define START_NS             (8 * US) /* from a push's issue to its first byte */
#define STORE_NS             (7 * US) /* a store behind a push: the link is idle */
#define NEXT_NS              (2 * US) /* without one */
#define LOOK_NS              US       /* a look takes up to twice that */
#define SPIN_NS              (50 * US)
#define SLEEP_NS             (20 * US)
#define LATE_NS              (5 * US)
#define INFLIGHT_LIMIT_BYTES (ZD_CUDA_OPEN_BYTES + 2 * ZD_CUDA_PIECE_BYTES)
#define NEVER                UINT64_MAX

struct push {
	struct zd_cuda_task task; /* first */
	uint32_t source;
	uint64_t comes_ns;
	struct gather *gather;
};

/* A rank's: a push from each other GPU. */
struct gather {
	uint32_t rank;
	uint64_t bytes; /* of a slice */
	uint64_t comes_ns, ended_ns;
	struct gather *next; /* of the rank: comes when this one has ended, and is given so long behind it */
	uint32_t left;
};

/* A piece on a stream. */
struct copy {
	uint32_t target;
	uint64_t bytes, left_bytes, issued_ns;
	bool store;        /* behind it */
	struct push *ends; /* NULL: more follow */
};

struct gpu {
	struct zd_cuda_order order;
	struct zd_cuda_link_scheduler scheduler;
	struct zd_cuda_tasks coming;
	/* Copies have been issued, moved, stored and seen up to there. */
	uint32_t issued, moved, stored, seen;
	struct copy ring[ZD_CUDA_INFLIGHT_COPIES];
	uint64_t free_ns; /* the stream goes on */
	bool storing;     /* then what has moved is stored */
	uint64_t inflight_bytes, group_bytes;
	uint32_t group; /* copies behind the last store */
	bool due;       /* not all of them are open */
	uint64_t look_ns, event_ns;
	unsigned sleeps;
};

struct model {
	uint32_t count;
	bool scheduler;  /* executors ask for them */
	bool spins;      /* executors look again at once, where they would with processors to spare */
	uint32_t chunks; /* that a slice is cut into */
	uint32_t random;
	uint64_t now_ns;
	struct zd_cuda_device all[MOST_GPUS];
	struct zd_cuda_devices devices;
	struct gpu gpus[MOST_GPUS];
	uint32_t into[MOST_GPUS]; /* pushes that move there now */
	struct push *pushes;
	uint32_t npushes, nmost, nended;
};

/* ---- A model of its own for each run ------------------------------------------------------------------- */

static inline struct model *new_model(uint32_t count, uint32_t seed, uint32_t nmost)
{
	struct model *m = zd_calloc(1, sizeof(*m));
	*m = (struct model){.count = count,
	                    .scheduler = true,
	                    .spins = true,
	                    .chunks = 1,
	                    .random = seed * 2654435761u + 1};
	m->now_ns = 1000 * US;
	m->devices.count = count;
	m->devices.all = m->all;
	m->pushes = zd_calloc(nmost, sizeof(*m->pushes));
	m->nmost = nmost;
	for (uint32_t i = 0; i < count; i++) {
		zd_cuda_order_init(&m->gpus[i].order, &m->devices, i);
		zd_cuda_link_scheduler_init(&m->gpus[i].scheduler, &m->devices, i);
		STAILQ_INIT(&m->gpus[i].coming);
		m->gpus[i].look_ns = NEVER;
	}
	return m;
}

static inline void free_model(struct model *m)
{
	free(m->pushes);
	free(m);
}

static inline uint64_t random_below(struct model *m, uint64_t most)
{
	m->random ^= m->random << 13;
	m->random ^= m->random >> 17;
	m->random ^= m->random << 5;
	return m->random % most;
}

static inline struct push *push_of(struct zd_cuda_task *task)
{
	return (struct push *)task;
}

/* By the time that they come. */
static inline void insert_coming(struct gpu *gpu, struct push *push)
{
	struct zd_cuda_task *before = NULL, *task;
	STAILQ_FOREACH(task, &gpu->coming, next)
	{
		if (push_of(task)->comes_ns <= push->comes_ns)
			before = task;
	}
	if (before)
		STAILQ_INSERT_AFTER(&gpu->coming, before, &push->task, next);
	else
		STAILQ_INSERT_HEAD(&gpu->coming, &push->task, next);
}

static inline void add_push(struct model *m, struct gather *gather, uint32_t source, uint64_t at,
                            uint64_t bytes, uint64_t comes_ns)
{
	assert_true(m->npushes < m->nmost);
	struct push *push = &m->pushes[m->npushes++];
	*push = (struct push){.source = source, .comes_ns = comes_ns, .gather = gather};
	push->task.target = gather->rank;
	push->task.base.kind = ZD_CMD_COPY;
	push->task.u.copy.dst = push->task.u.copy.src = at;
	push->task.u.copy.bytes = bytes;
	insert_coming(&m->gpus[source], push);
	gather->left++;
}

/* The pushes of one gather reach the executors shortly after each other. */
static inline void add_gather(struct model *m, struct gather *gather)
{
	uint64_t begin = (m->npushes + 1) * GIB; /* nothing goes on where another slice ends */
	for (uint32_t source = 0; source < m->count; source++) {
		uint64_t comes_ns = gather->comes_ns + random_below(m, 2 * US), offset = 0;
		for (uint32_t i = 0; i < m->chunks && source != gather->rank; i++) {
			uint64_t bytes = i + 1 < m->chunks ? gather->bytes / m->chunks
			                                   : gather->bytes - offset;
			add_push(m, gather, source, begin + offset, bytes, comes_ns);
			offset += bytes;
		}
	}
}

/* ---- Streams and links --------------------------------------------------------------------------------- */

static inline struct copy *moving(struct gpu *gpu)
{
	return gpu->moved < gpu->issued ? &gpu->ring[gpu->moved % ZD_CUDA_INFLIGHT_COPIES] : NULL;
}

static inline uint64_t begins_ns(const struct gpu *gpu, const struct copy *copy)
{
	return zd_max_u64(gpu->free_ns, copy->issued_ns + START_NS);
}

static inline bool moves_now(const struct model *m, struct gpu *gpu)
{
	struct copy *copy = moving(gpu);
	return copy && begins_ns(gpu, copy) <= m->now_ns;
}

static inline void end_gather(struct model *m, struct gather *gather)
{
	struct gather *next = gather->next;
	gather->ended_ns = m->now_ns;
	if (!next)
		return;
	next->comes_ns += m->now_ns;
	add_gather(m, next);
}

/* The store behind a group is done: whoever waits for what it had goes on. */
static inline void stored(struct model *m, struct gpu *gpu)
{
	gpu->storing = false;
	for (; gpu->stored < gpu->moved; gpu->stored++) {
		struct push *push = gpu->ring[gpu->stored % ZD_CUDA_INFLIGHT_COPIES].ends;
		if (!push)
			continue;
		m->nended++;
		if (--push->gather->left == 0)
			end_gather(m, push->gather);
	}
}

static inline void moved(struct model *m, struct gpu *gpu)
{
	struct copy *copy = moving(gpu);
	gpu->storing = copy->store;
	gpu->free_ns = m->now_ns + (copy->store ? STORE_NS : NEXT_NS);
	gpu->moved++;
}

static inline uint64_t stream_event_ns(const struct model *m, struct gpu *gpu)
{
	struct copy *copy = moving(gpu);
	uint64_t ns = gpu->storing ? gpu->free_ns : NEVER;
	if (!copy)
		return ns;
	if (!moves_now(m, gpu))
		return zd_min_u64(ns, begins_ns(gpu, copy));
	return m->now_ns + (copy->left_bytes * m->into[copy->target] + LINK_BYTES_NS - 1) / LINK_BYTES_NS;
}

static inline void count_pushes(struct model *m)
{
	for (uint32_t i = 0; i < m->count; i++)
		m->into[i] = 0;
	for (uint32_t i = 0; i < m->count; i++)
		if (moves_now(m, &m->gpus[i]))
			m->into[moving(&m->gpus[i])->target]++;
}

/* All links carry what they can until then. */
static inline void carry(struct model *m, uint64_t until_ns)
{
	for (uint32_t i = 0; i < m->count; i++) {
		struct copy *copy = moving(&m->gpus[i]);
		if (!moves_now(m, &m->gpus[i]))
			continue;
		uint64_t bytes = (until_ns - m->now_ns) * LINK_BYTES_NS / m->into[copy->target];
		copy->left_bytes -= zd_min_u64(bytes, copy->left_bytes);
	}
	m->now_ns = until_ns;
}

static inline void go_on(struct model *m, struct gpu *gpu)
{
	struct copy *copy = moving(gpu);
	if (gpu->storing && gpu->free_ns <= m->now_ns)
		stored(m, gpu);
	if (copy && copy->left_bytes == 0)
		moved(m, gpu);
}

/* ---- Executors ----------------------------------------------------------------------------------------- */

static inline void event(const struct model *m, struct gpu *gpu)
{
	gpu->event_ns = m->now_ns;
	gpu->sleeps = 0;
}

static inline void take_coming(struct model *m, struct gpu *gpu)
{
	struct zd_cuda_task *task;
	while ((task = STAILQ_FIRST(&gpu->coming)) && push_of(task)->comes_ns <= m->now_ns) {
		STAILQ_REMOVE_HEAD(&gpu->coming, next);
		event(m, gpu);
		task->u.copy.seen_ns = m->now_ns;
		zd_cuda_order_add(&gpu->order, task);
	}
}

static inline void land(struct model *m, struct gpu *gpu)
{
	for (; gpu->seen < gpu->stored; gpu->seen++) {
		gpu->inflight_bytes -= gpu->ring[gpu->seen % ZD_CUDA_INFLIGHT_COPIES].bytes;
		event(m, gpu);
	}
}

static inline struct zd_cuda_task *next_push(struct model *m, struct gpu *gpu)
{
	struct zd_cuda_task *firsts[MOST_GPUS];
	uint32_t others = m->count - 1, begin = 1;
	for (uint32_t i = 0; i < others; i++) {
		firsts[i] = zd_cuda_order_first(&gpu->order, (gpu->order.self + i + 1) % m->count);
		if (firsts[i] && m->scheduler)
			zd_cuda_link_scheduler_offer(&gpu->scheduler, firsts[i]);
	}
	if (m->scheduler)
		begin = zd_cuda_link_scheduler_begin(&gpu->scheduler, m->now_ns);
	for (uint32_t i = 0; i < others; i++) {
		struct zd_cuda_task *task = firsts[(begin - 1 + i) % others];
		if (task &&
		    (!m->scheduler || zd_cuda_link_scheduler_reserve(&gpu->scheduler, task, m->now_ns)))
			return task;
	}
	return NULL;
}

static inline void close_group(struct gpu *gpu)
{
	if (gpu->group == 0 || (!gpu->due && gpu->group_bytes < ZD_CUDA_OPEN_BYTES))
		return;
	gpu->ring[(gpu->issued - 1) % ZD_CUDA_INFLIGHT_COPIES].store = true;
	gpu->group = 0;
	gpu->group_bytes = 0;
	gpu->due = false;
}

static inline void issue(struct model *m, struct gpu *gpu, struct zd_cuda_task *task)
{
	uint64_t left = task->u.copy.bytes - task->u.copy.issued_bytes;
	uint64_t bytes = zd_min_u64(left, ZD_CUDA_PIECE_BYTES);
	struct push *ends = bytes == left ? push_of(task) : NULL;
	gpu->ring[gpu->issued++ % ZD_CUDA_INFLIGHT_COPIES] = (struct copy){.target = task->target,
	                                                                   .bytes = bytes,
	                                                                   .left_bytes = bytes,
	                                                                   .issued_ns = m->now_ns,
	                                                                   .ends = ends};
	gpu->inflight_bytes += bytes;
	gpu->group_bytes += bytes;
	gpu->group++;
	gpu->due |= ends != NULL;
	event(m, gpu);
	task->u.copy.issued_bytes += bytes;
	task->u.copy.has_link_slot = false;
	if (ends)
		zd_cuda_order_take(&gpu->order, task, false);
	if (gpu->group == ZD_CUDA_GROUP || gpu->group_bytes >= ZD_CUDA_GROUP_BYTES)
		close_group(gpu);
}

static inline bool has_room(const struct gpu *gpu)
{
	uint32_t count = gpu->issued - gpu->seen;
	return count == 0 || (count < ZD_CUDA_INFLIGHT_COPIES && gpu->inflight_bytes < INFLIGHT_LIMIT_BYTES);
}

static inline uint64_t rest_ns(struct model *m, struct gpu *gpu)
{
	bool waiting = !zd_cuda_order_is_empty(&gpu->order);
	uint64_t again_ns = gpu->scheduler.again_ns, soon_ns = m->now_ns + LATE_NS, ns;
	if (m->spins && m->now_ns - gpu->event_ns < SPIN_NS)
		return LOOK_NS + random_below(m, LOOK_NS);
	if (!waiting && gpu->seen == gpu->issued)
		return NEVER;
	ns = zd_min_u64(SLEEP_NS << zd_min_u64(gpu->sleeps++, 8), waiting ? SLEEP_NS : 5 * SLEEP_NS);
	ns = zd_max_u64(ns, gpu->inflight_bytes / 2 / ZD_CUDA_LINK_BYTES_NS);
	ns = zd_min_u64(ns, again_ns > soon_ns ? again_ns - soon_ns : 0);
	return ns + (ns > 0 ? random_below(m, LATE_NS) : LOOK_NS + random_below(m, LOOK_NS));
}

static inline void look(struct model *m, struct gpu *gpu)
{
	struct zd_cuda_task *task;
	uint64_t ns;
	take_coming(m, gpu);
	land(m, gpu);
	gpu->scheduler.again_ns = NEVER;
	while (has_room(gpu) && (task = next_push(m, gpu)))
		issue(m, gpu, task);
	close_group(gpu);
	ns = rest_ns(m, gpu);
	gpu->look_ns = ns == NEVER ? NEVER : m->now_ns + ns;
}

/* A command ends its executor's sleep. */
static inline uint64_t looks_ns(const struct model *m, const struct gpu *gpu)
{
	struct zd_cuda_task *task = STAILQ_FIRST(&gpu->coming);
	uint64_t woken_ns = task ? push_of(task)->comes_ns + (m->spins ? US : LATE_NS) : NEVER;
	return zd_min_u64(gpu->look_ns, woken_ns);
}

/* ---- Time ---------------------------------------------------------------------------------------------- */

static inline uint64_t next_event_ns(struct model *m)
{
	uint64_t ns = NEVER;
	for (uint32_t i = 0; i < m->count; i++) {
		ns = zd_min_u64(ns, stream_event_ns(m, &m->gpus[i]));
		ns = zd_min_u64(ns, looks_ns(m, &m->gpus[i]));
	}
	return ns;
}

/* Until all pushes have ended. One that has not by `until_ns` starves. */
static inline void run_model(struct model *m, uint64_t until_ns)
{
	while (m->nended < m->npushes) {
		count_pushes(m);
		uint64_t ns = next_event_ns(m);
		assert_in_range(ns, m->now_ns, until_ns);
		carry(m, ns);
		for (uint32_t i = 0; i < m->count; i++)
			go_on(m, &m->gpus[i]);
		for (uint32_t i = 0; i < m->count; i++)
			if (looks_ns(m, &m->gpus[i]) <= m->now_ns)
				look(m, &m->gpus[i]);
	}
}

/* How long the busiest link has to carry what comes from then on. */
static inline uint64_t busiest_ns(const struct model *m, uint64_t since_ns)
{
	uint64_t in[MOST_GPUS] = {0}, out[MOST_GPUS] = {0}, most = 0;
	for (uint32_t i = 0; i < m->npushes; i++) {
		const struct push *push = &m->pushes[i];
		uint64_t bytes = push->comes_ns >= since_ns ? push->task.u.copy.bytes : 0;
		in[push->task.target] += bytes;
		out[push->source] += bytes;
	}
	for (uint32_t i = 0; i < m->count; i++)
		most = zd_max_u64(most, zd_max_u64(in[i], out[i]));
	return most / LINK_BYTES_NS;
}

/* No order of pushes, each of which comes when it did, is done sooner. */
static inline uint64_t bound_ns(const struct model *m, uint64_t begin_ns)
{
	uint64_t bound = 0;
	for (uint32_t i = 0; i < m->npushes; i++) {
		uint64_t comes_ns = m->pushes[i].comes_ns;
		bound = zd_max_u64(bound, comes_ns - begin_ns + busiest_ns(m, comes_ns));
	}
	return bound;
}

#endif
