/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_block.c - what the block allocator costs, and how well it fills a gather pool.
 *
 * Time: a release and an allocation with 10, 1000 and 100,000 blocks live, beside malloc's with the same
 * sizes in the same run. For reading; nothing is judged by it.
 *
 * Fragmentation: training steps with the parameter shapes of Qwen3-8B, gathered over 8 ranks in bfloat16. The
 * demand on a pool is pressed up to 95 % of it - a gather that would go beyond waits until something is
 * released - and whenever the load is 93 % or more, external fragmentation, 1 - largest free block / all free
 * bytes, is sampled. The program fails when the median of a judged workload, over all seeds, is above 15 %.
 * The 90th percentile and the worst are shown beside it, and how many requests were refused: the pool had the
 * bytes, but no block held them. In the judged workloads those are the embedding and the output alone, each
 * 15 % of a pool of 8 GiB; the daemon lets them wait for the next release.
 *
 * Workloads that are not judged are shown because they are hard for every allocator that may not move blocks.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "base/mem.h"
#include "core/memory/block.h"

static uint64_t random_next(uint64_t *seed)
{
	uint64_t x = *seed += 0x9e3779b97f4a7c15ull;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* ---- Time ---------------------------------------------------------------------------------------------- */

#define ROUNDS    2000u
#define MOST_LIVE 100000u

/* One allocator under test; `range` is NULL for malloc's. */
struct heap {
	struct zd_block_range *range;
	void **live;
	unsigned nlive;
};

struct cost {
	double alloc_ns, free_ns;
};

static double now_ns(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

/* 256 bytes to 64 KiB, every power of two as likely. */
static uint64_t random_size(uint64_t *seed)
{
	uint64_t r = random_next(seed);

	return (256ull << r % 8) + (r >> 8) % (256ull << r % 8);
}

static void *heap_alloc(const struct heap *heap, uint64_t bytes)
{
	void *memory = heap->range ? (void *)zd_block_alloc(heap->range, bytes, ZD_BLOCK_MIN_ALIGN)
	                           : malloc(bytes);

	zd_assert(memory);
	return memory;
}

static void heap_free(const struct heap *heap, void *memory)
{
	if (heap->range)
		zd_block_free(heap->range, memory);
	else
		free(memory);
}

/* Medians over rounds, in each of which a part of the live blocks, chosen at random, is released and
 * replaced. */
static struct cost measure(struct heap *heap)
{
	static double alloc_ns[ROUNDS], free_ns[ROUNDS];
	unsigned batch = heap->nlive < 128 ? heap->nlive / 2 : 64, picked[64];
	uint64_t seed = 1, sizes[64];

	for (unsigned i = 0; i < heap->nlive; i++)
		heap->live[i] = heap_alloc(heap, random_size(&seed));
	for (unsigned round = 0; round < ROUNDS; round++) {
		unsigned first = (unsigned)(random_next(&seed) % heap->nlive);
		double start, middle, end;

		/* Apart by a stride that is no divisor of the count: no block twice, and no neighbours. */
		for (unsigned i = 0; i < batch; i++) {
			picked[i] =
			        (unsigned)((first + i * (heap->nlive > 64 ? 101ull : 1ull)) % heap->nlive);
			sizes[i] = random_size(&seed);
		}
		start = now_ns();
		for (unsigned i = 0; i < batch; i++)
			heap_free(heap, heap->live[picked[i]]);
		middle = now_ns();
		for (unsigned i = 0; i < batch; i++)
			heap->live[picked[i]] = heap_alloc(heap, sizes[i]);
		end = now_ns();
		free_ns[round] = (middle - start) / batch;
		alloc_ns[round] = (end - middle) / batch;
	}
	for (unsigned i = 0; i < heap->nlive; i++)
		heap_free(heap, heap->live[i]);
	qsort(alloc_ns, ROUNDS, sizeof(double), by_value);
	qsort(free_ns, ROUNDS, sizeof(double), by_value);
	return (struct cost){.alloc_ns = alloc_ns[ROUNDS / 2], .free_ns = free_ns[ROUNDS / 2]};
}

static void bench_time(void)
{
	static const unsigned counts[] = {10, 1000, MOST_LIVE};
	void **live = zd_calloc(MOST_LIVE, sizeof(void *));

	printf("# block allocator: median ns per operation, 256 B to 64 KiB\n");
	printf("# %10s %10s %10s %14s %12s\n", "live", "alloc", "free", "malloc alloc", "malloc free");
	for (size_t i = 0; i < ZD_ARRAY_LEN(counts); i++) {
		struct heap blocks = {.range = zd_block_range_new(counts[i] * (128ull << 10)),
		                      .live = live,
		                      .nlive = counts[i]};
		struct heap baseline = {.live = live, .nlive = counts[i]};
		struct cost ours = measure(&blocks), theirs = measure(&baseline);

		printf("  %10u %10.1f %10.1f %14.1f %12.1f\n", counts[i], ours.alloc_ns, ours.free_ns,
		       theirs.alloc_ns, theirs.free_ns);
		zd_block_range_free(blocks.range);
	}
	free(live);
}

/* ---- The model ----------------------------------------------------------------------------------------- */

#define LAYERS           36u
#define LAYER_UNITS      11u
#define NUNITS           (LAYERS * LAYER_UNITS + 3)
#define WORLD            8u
#define SMALL_UNIT_BYTES (1u << 20) /* norms: ZeRO-3 keeps those gathered */

static uint64_t unit_bytes[NUNITS]; /* gathered and padded, in the order of the forward pass */
static uint64_t model_bytes;

static void add_unit(unsigned *count, uint64_t numel)
{
	uint64_t shard_numel = (numel + WORLD - 1) / WORLD;

	unit_bytes[*count] = zd_align_up(shard_numel * 2, ZD_BLOCK_MIN_ALIGN) * WORLD;
	model_bytes += unit_bytes[*count];
	++*count;
}

static void build_model(void)
{
	const uint64_t hidden = 4096, heads = 128, kv = 1024, mlp = 12288, vocabulary = 151936;
	const uint64_t layer[LAYER_UNITS] = {
	        hidden,          hidden * hidden, kv * hidden,  kv * hidden,  heads,        heads,
	        hidden * hidden, hidden,          mlp * hidden, mlp * hidden, hidden * mlp,
	};
	unsigned count = 0;

	add_unit(&count, vocabulary * hidden);
	for (unsigned i = 0; i < LAYERS; i++)
		for (unsigned k = 0; k < LAYER_UNITS; k++)
			add_unit(&count, layer[k]);
	add_unit(&count, hidden);
	add_unit(&count, vocabulary * hidden);
	zd_assert(count == NUNITS);
}

/* Embedding, layers, final norm with output. */
static unsigned layer_of(unsigned unit)
{
	return unit == 0 ? 0 : (unit - 1) / LAYER_UNITS + 1;
}

/* ---- A pool under load --------------------------------------------------------------------------------- */

#define LOAD         0.95
#define SAMPLED_LOAD 0.93
#define STEPS        30u
#define SEEDS        8u
#define MAX_SAMPLES  400000u

/* Of one workload, over all seeds. */
struct results {
	double samples[MAX_SAMPLES];
	unsigned nsamples, nrequests, nrefused;
	double refused_load; /* the lowest load that a refused request would have led to */
};

struct pool {
	struct zd_block_range *range;
	struct zd_block *held[NUNITS];
	bool persistent[NUNITS];
	double bytes; /* of the range */
	uint64_t seed;
	struct results *results;
};

static void sample(struct pool *pool)
{
	struct results *results = pool->results;
	double used = (double)zd_block_used_bytes(pool->range);

	if (used < SAMPLED_LOAD * pool->bytes)
		return;
	zd_assert(results->nsamples < MAX_SAMPLES);
	results->samples[results->nsamples++] = 1 - (double)zd_block_largest_free(pool->range) /
	                                                    (pool->bytes - used);
}

/* NULL when it has to wait: for the budget, or, and that is counted, for a block. */
static struct zd_block *request(struct pool *pool, uint64_t bytes)
{
	double load = (double)(zd_block_used_bytes(pool->range) + bytes) / pool->bytes;
	struct zd_block *block;

	if (load > LOAD)
		return NULL;
	block = zd_block_alloc(pool->range, bytes, ZD_BLOCK_MIN_ALIGN);
	pool->results->nrequests++;
	if (!block) {
		pool->results->nrefused++;
		if (load < pool->results->refused_load)
			pool->results->refused_load = load;
	}
	return block;
}

static bool gather(struct pool *pool, unsigned unit)
{
	if (!pool->held[unit])
		pool->held[unit] = request(pool, unit_bytes[unit]);
	sample(pool);
	return pool->held[unit];
}

static void release(struct pool *pool, unsigned unit)
{
	if (!pool->held[unit] || pool->persistent[unit])
		return;
	zd_block_free(pool->range, pool->held[unit]);
	pool->held[unit] = NULL;
}

/* The i-th unit of a forward or backward pass. */
static unsigned unit_at(unsigned i, bool backward)
{
	return backward ? NUNITS - 1 - i : i;
}

/* Units are used one by one; gathers run ahead as far as the pool has room. */
static void greedy_pass(struct pool *pool, bool backward)
{
	unsigned ahead = 0;

	for (unsigned i = 0; i < NUNITS; i++) {
		if (ahead < i)
			ahead = i;
		while (ahead < NUNITS && gather(pool, unit_at(ahead, backward)))
			ahead++;
		release(pool, unit_at(i, backward));
	}
}

/* Layers are used one by one; gathers run two layers ahead. */
static void prefetch_pass(struct pool *pool, bool backward)
{
	unsigned ahead = 0;

	for (unsigned i = 0; i < NUNITS; i++) {
		unsigned now = layer_of(unit_at(i, backward));

		for (; ahead < NUNITS; ahead++) {
			unsigned then = layer_of(unit_at(ahead, backward));

			if ((backward ? now - then : then - now) > 2 ||
			    !gather(pool, unit_at(ahead, backward)))
				break;
		}
		if (ahead <= i)
			ahead = i + 1;
		if (i + 1 == NUNITS || layer_of(unit_at(i + 1, backward)) != now)
			for (unsigned unit = 0; unit < NUNITS; unit++)
				if (layer_of(unit) == now)
					release(pool, unit);
	}
}

/* ---- Workloads ----------------------------------------------------------------------------------------- */

enum persistence {
	NONE,
	NORMS,    /* small units, from their first use on */
	CHOSEN,   /* and one of twenty others, gathered before the first step */
	CHANGING, /* and one of twenty others, chosen anew and gathered before each step */
	LATE,     /* as CHOSEN, but gathered at first use, in the stream of units that come and go */
	FILLING,  /* embedding, output and random others, as many as leave room for the prefetch window */
};

struct workload {
	const char *name;
	unsigned gib;
	enum persistence persistence;
	bool gradients; /* bucket slots and step-local targets in the same range */
	bool judged;
};

static const struct workload workloads[] = {
        {"gather as far ahead as fits", 8, NONE, false, true},
        {"gather as far ahead as fits", 12, NONE, false, true},
        {"norms persistent from first use", 8, NORMS, false, true},
        {"norms persistent from first use", 12, NORMS, false, true},
        {"5 % more persistent, chosen once", 8, CHOSEN, false, true},
        {"5 % more persistent, chosen once", 12, CHOSEN, false, true},
        {"5 % more persistent, new each step", 8, CHANGING, false, true},
        {"5 % more persistent, new each step", 12, CHANGING, false, true},
        {"prefetch 2, rest persistent", 4, FILLING, false, true},
        {"prefetch 2, rest persistent", 6, FILLING, false, true},
        {"buckets and targets beside gathers", 10, NORMS, true, true},
        {"largest unit is 30 % of the pool", 4, NORMS, false, false},
        {"persistent from first use on", 8, LATE, false, false},
};

/* An embedding among the persistent ones would leave no pool to speak of. */
static bool may_be_chosen(unsigned unit)
{
	return unit_bytes[unit] >= SMALL_UNIT_BYTES && unit_bytes[unit] < (1ull << 30);
}

static void choose_one_of_twenty(struct pool *pool)
{
	for (unsigned unit = 0; unit < NUNITS; unit++) {
		if (!may_be_chosen(unit))
			continue;
		pool->persistent[unit] = random_next(&pool->seed) % 20 == 0;
		release(pool, unit); /* what was persistent and is not any more */
	}
}

static void choose_filling(struct pool *pool)
{
	uint64_t ends_bytes = unit_bytes[0] + unit_bytes[NUNITS - 1];
	uint64_t window_bytes = 3 * ((model_bytes - ends_bytes) / LAYERS);
	uint64_t room_bytes = (uint64_t)(LOAD * pool->bytes) - window_bytes - ends_bytes;

	pool->persistent[0] = pool->persistent[NUNITS - 1] = true;
	for (unsigned tries = 0; tries < 50 * NUNITS; tries++) {
		unsigned unit = (unsigned)(random_next(&pool->seed) % NUNITS);

		if (pool->persistent[unit] || !may_be_chosen(unit) || unit_bytes[unit] > room_bytes)
			continue;
		pool->persistent[unit] = true;
		room_bytes -= unit_bytes[unit];
	}
}

static void prepare_step(struct pool *pool, enum persistence persistence, unsigned step)
{
	if (step == 0 && persistence != NONE)
		for (unsigned unit = 0; unit < NUNITS; unit++)
			pool->persistent[unit] = unit_bytes[unit] < SMALL_UNIT_BYTES;
	if (step == 0 && persistence == FILLING)
		choose_filling(pool);
	if (persistence == CHANGING || (step == 0 && (persistence == CHOSEN || persistence == LATE)))
		choose_one_of_twenty(pool);
	if (persistence == NORMS || persistence == LATE)
		return;
	for (unsigned unit = 0; unit < NUNITS; unit++)
		if (pool->persistent[unit])
			(void)gather(pool, unit);
}

static void run_step(struct pool *pool, const struct workload *workload, unsigned step)
{
	void (*pass)(struct pool *, bool) = workload->persistence == FILLING ? prefetch_pass : greedy_pass;
	struct zd_block *target = NULL;

	prepare_step(pool, workload->persistence, step);
	pass(pool, false);
	if (workload->gradients) /* float32, this rank's slice of the model */
		target = request(pool, zd_align_up(model_bytes / 2 / WORLD * 4, ZD_BLOCK_MIN_ALIGN));
	pass(pool, true);
	if (target)
		zd_block_free(pool->range, target);
}

static void run_seed(const struct workload *workload, uint64_t seed, struct results *results)
{
	uint64_t bytes = (uint64_t)workload->gib << 30;
	struct pool pool = {
	        .range = zd_block_range_new(bytes),
	        .bytes = (double)bytes,
	        .seed = seed,
	        .results = results,
	};

	if (workload->gradients)
		for (unsigned slot = 0; slot < 2; slot++)
			(void)request(&pool, 512ull << 20);
	for (unsigned step = 0; step < STEPS; step++)
		run_step(&pool, workload, step);
	zd_block_range_check(pool.range);
	zd_block_range_free(pool.range);
}

/* Prints a line; returns the median. */
static double run_workload(const struct workload *workload)
{
	struct results *results = zd_calloc(1, sizeof(*results));
	double median, p90, worst;

	results->refused_load = 1;
	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		run_seed(workload, seed, results);
	zd_assert(results->nsamples > 0);

	qsort(results->samples, results->nsamples, sizeof(double), by_value);
	median = results->samples[results->nsamples / 2];
	p90 = results->samples[results->nsamples * 9ul / 10];
	worst = results->samples[results->nsamples - 1];
	printf("  %-36s %3u %8u %7.1f %7.1f %7.1f %9u %8u", workload->name, workload->gib, results->nsamples,
	       100 * median, 100 * p90, 100 * worst, results->nrequests, results->nrefused);
	if (results->nrefused > 0)
		printf(" %7.1f", 100 * results->refused_load);
	else
		printf(" %7s", "-");
	printf("%s\n", workload->judged ? "" : "  not judged");
	free(results);
	return median;
}

static bool bench_fragmentation(void)
{
	const double target = 0.15;
	double worst = 0;
	bool met;

	build_model();
	printf("# external fragmentation, %%, at 93 to 95 %% load; %u x %u steps of Qwen3-8B, %u units, %.1f "
	       "GiB\n",
	       SEEDS, STEPS, NUNITS, (double)model_bytes / (1u << 30));
	printf("# %-36s %3s %8s %7s %7s %7s %9s %8s %7s\n", "workload", "GiB", "samples", "median", "p90",
	       "max", "requests", "refused", "at load");
	for (size_t i = 0; i < ZD_ARRAY_LEN(workloads); i++) {
		double median = run_workload(&workloads[i]);

		if (workloads[i].judged && median > worst)
			worst = median;
	}
	/* The line that tests/bench/run.sh collects. */
	met = worst <= target;
	printf("# target: %-42s %8.2f  %-8s %6.2f  %s\n", "external fragmentation at 95 % load, median",
	       worst, "at most", target, met ? "met" : "MISSED");
	return met;
}

int main(void)
{
	bench_time();
	return bench_fragmentation() ? EXIT_SUCCESS : EXIT_FAILURE;
}
