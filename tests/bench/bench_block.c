/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_block.c - how well the block allocator fills a gather pool.
 *
 * Fragmentation: training steps with the parameter shapes of Qwen3-8B, gathered over 8 ranks in bfloat16. The
 * demand on a pool is pressed up to 95 % of it - a gather that would go beyond waits until something is
 * released - and whenever the load is 93 % or more, external fragmentation, 1 - largest free block / all free
 * bytes, is sampled. The program fails when the median of a workload, over all seeds, is above 15 %.
 * The 90th percentile and the worst are shown beside it, and how many requests were refused: the pool had the
 * bytes, but no block held them. Those are the embedding and the output alone, each
 * 15 % of a pool of 8 GiB; the daemon lets them wait for the next release.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
	FILLING,  /* embedding, output and random others, as many as leave room for the prefetch window */
};

struct workload {
	const char *name;
	unsigned gib;
	enum persistence persistence;
	bool gradients; /* bucket slots and step-local targets in the same range */
};

static const struct workload workloads[] = {
        {"gather as far ahead as fits", 8, NONE, false},
        {"gather as far ahead as fits", 12, NONE, false},
        {"norms persistent from first use", 8, NORMS, false},
        {"norms persistent from first use", 12, NORMS, false},
        {"5 % more persistent, chosen once", 8, CHOSEN, false},
        {"5 % more persistent, chosen once", 12, CHOSEN, false},
        {"5 % more persistent, new each step", 8, CHANGING, false},
        {"5 % more persistent, new each step", 12, CHANGING, false},
        {"prefetch 2, rest persistent", 4, FILLING, false},
        {"prefetch 2, rest persistent", 6, FILLING, false},
        {"buckets and targets beside gathers", 10, NORMS, true},
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
	if (persistence == CHANGING || (step == 0 && persistence == CHOSEN))
		choose_one_of_twenty(pool);
	if (persistence == NORMS)
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
	printf("\n");
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

		if (median > worst)
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
	return bench_fragmentation() ? EXIT_SUCCESS : EXIT_FAILURE;
}
