/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block allocator against an owner map: one entry a granule, filled and searched naively. The map says
 * whether a block may lie where it was put, and, when a request failed, whether it really had to.
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "core/memory/block.h"
#include "tests/support/core_check.h"
#include "tests/support/test.h"

#define GRANULE ((uint64_t)ZD_BLOCK_MIN_ALIGN)
#define MIB     (1ull << 20)

static uint64_t random_next(uint64_t *seed)
{
	*seed += 0x9e3779b97f4a7c15ull;
	uint64_t x = *seed;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

/* ---- The owner map ------------------------------------------------------------------------------------- */

struct model {
	struct zd_block_range *range;
	uint64_t ngranules;
	uint32_t *owner; /* 0: free */
	uint64_t used_granules;
};

static void model_init(struct model *model, uint64_t bytes)
{
	*model = (struct model){
	        .range = zd_block_range_new(bytes),
	        .ngranules = bytes / GRANULE,
	        .owner = zd_calloc(bytes / GRANULE, sizeof(uint32_t)),
	};
}

static void model_deinit(struct model *model)
{
	zd_block_range_free(model->range);
	free(model->owner);
}

static uint64_t model_longest_free(const struct model *model)
{
	uint64_t longest = 0, run = 0;

	for (uint64_t i = 0; i < model->ngranules; i++) {
		run = model->owner[i] ? 0 : run + 1;
		longest = zd_max_u64(longest, run);
	}
	return longest;
}

/* Is there a free run with room for so many granules at a multiple of `align`? */
static bool model_has_room(const struct model *model, uint64_t granules, uint64_t align)
{
	uint64_t step = align / GRANULE, run = 0;

	/* From the end: `run` is the length of the free run that begins at i. */
	for (uint64_t i = model->ngranules; i-- > 0;) {
		run = model->owner[i] ? 0 : run + 1;
		if (i % step == 0 && run >= granules)
			return true;
	}
	return false;
}

static struct zd_block *model_alloc(struct model *model, uint64_t bytes, uint64_t align, uint32_t owner)
{
	struct zd_block *block = zd_block_alloc(model->range, bytes, align);
	uint64_t granules = (bytes + GRANULE - 1) / GRANULE;

	if (!block) {
		assert_false(model_has_room(model, granules, align));
		return NULL;
	}
	assert_false(block->free);
	assert_int_equal(block->bytes, granules * GRANULE);
	assert_int_equal(block->offset % align, 0);
	assert_true(block->offset / GRANULE + granules <= model->ngranules);
	for (uint64_t i = 0; i < granules; i++) {
		assert_int_equal(model->owner[block->offset / GRANULE + i], 0);
		model->owner[block->offset / GRANULE + i] = owner;
	}
	model->used_granules += granules;
	return block;
}

static void model_release(struct model *model, struct zd_block *block, uint32_t owner)
{
	for (uint64_t i = 0; i < block->bytes / GRANULE; i++) {
		assert_int_equal(model->owner[block->offset / GRANULE + i], owner);
		model->owner[block->offset / GRANULE + i] = 0;
	}
	model->used_granules -= block->bytes / GRANULE;
	zd_block_free(model->range, block);
}

static void model_check(const struct model *model)
{
	zd_block_range_check(model->range);
	assert_int_equal(zd_block_used_bytes(model->range), model->used_granules * GRANULE);
	assert_int_equal(zd_block_largest_free(model->range), model_longest_free(model) * GRANULE);
}

static void assert_one_free_block(struct zd_block_range *range)
{
	zd_block_range_check(range);
	assert_null(zd_block_behind(range, 0)->after);
	assert_int_equal(zd_block_used_bytes(range), 0);
	assert_int_equal(zd_block_largest_free(range), range->bytes);
}

/* ---- Random programs ----------------------------------------------------------------------------------- */

struct mix {
	uint64_t range_bytes;
	unsigned max_live, steps;
	uint64_t max_bytes;
	unsigned max_align_shift; /* above 8 */
};

static uint64_t random_bytes(const struct mix *mix, uint64_t *seed)
{
	uint64_t r = random_next(seed), most = mix->max_bytes;

	if (r % 4 == 0) /* the same few sizes again and again, as training does */
		return zd_max_u64(1, most / (1 + (r >> 8) % 4));
	while (most > 1 && (r >>= 1) % 2)
		most /= 2;
	return 1 + random_next(seed) % most;
}

/* From any offset on: the first block that begins there or behind it. */
static void check_behind(const struct zd_block_range *range, uint64_t *seed)
{
	uint64_t offset = random_next(seed) % (range->bytes + GRANULE);
	const struct zd_block *block = zd_block_behind(range, 0);

	assert_true(block->offset == 0);
	while (block && block->offset < offset)
		block = block->after;
	assert_ptr_equal(zd_block_behind(range, offset), block);
}

static void run_random(const struct mix *mix, uint64_t seed)
{
	struct zd_block **live = zd_calloc(mix->max_live, sizeof(struct zd_block *));
	struct model model;
	unsigned refused = 0;

	model_init(&model, mix->range_bytes);
	for (unsigned step = 0; step < mix->steps; step++) {
		unsigned i = (unsigned)(random_next(&seed) % mix->max_live);

		if (live[i]) {
			model_release(&model, live[i], i + 1);
			live[i] = NULL;
		} else {
			uint64_t align = GRANULE << random_next(&seed) % (mix->max_align_shift + 1);

			live[i] = model_alloc(&model, random_bytes(mix, &seed), align, i + 1);
			refused += !live[i];
		}
		model_check(&model);
		check_behind(model.range, &seed);
	}
	assert_true(refused >
	            mix->steps / 100); /* else the range never was full, and half of this was not tried */
	for (unsigned i = 0; i < mix->max_live; i++)
		if (live[i])
			model_release(&model, live[i], i + 1);
	assert_one_free_block(model.range);
	model_deinit(&model);
	free(live);
}

TEST(random_programs)
{
	static const struct mix mixes[] = {
	        {64 * GRANULE, 20, 3000, 12 * GRANULE, 0},    /* exact bins only */
	        {1000 * GRANULE, 60, 3000, 100 * GRANULE, 0}, /* a range that is no power of two */
	        {1024 * GRANULE, 200, 3000, 40 * GRANULE, 3},
	        {4096 * GRANULE, 30, 2000, 700 * GRANULE, 5}, /* alignments beyond most sizes */
	        {8 * MIB, 40, 800, 1 * MIB, 13},              /* up to 2 MiB */
	};

	for (size_t i = 0; i < ZD_ARRAY_LEN(mixes); i++)
		for (uint64_t seed = 1; seed <= 4; seed++)
			run_random(&mixes[i], seed * 1000 + i);
}

/* ---- Single properties --------------------------------------------------------------------------------- */

TEST(smallest_and_largest_ranges)
{
	struct zd_block_range *range = zd_block_range_new(GRANULE);
	struct zd_block *block = zd_block_alloc(range, 1, GRANULE);

	assert_non_null(block);
	assert_int_equal(zd_block_largest_free(range), 0);
	assert_null(zd_block_alloc(range, 1, GRANULE));
	zd_block_free(range, block);
	assert_one_free_block(range);
	zd_block_range_free(range);

	range = zd_block_range_new(1ull << 50);
	block = zd_block_alloc(range, 1ull << 50, ZD_BLOCK_MAX_ALIGN);
	assert_non_null(block);
	assert_null(zd_block_alloc(range, 1, GRANULE));
	zd_block_free(range, block);
	assert_null(zd_block_alloc(range, (1ull << 50) + 1, GRANULE));
	assert_null(zd_block_alloc(range, UINT64_MAX, GRANULE));
	assert_one_free_block(range);
	zd_block_range_free(range);
	zd_block_range_free(NULL);
}

/* The only hole that fits lies in the request's own bin, behind many that are a little too small. */
TEST(last_hole_is_found)
{
	enum { DECOYS = 200 };
	const uint64_t bytes = 1000 * GRANULE; /* its bin holds 992..1023 granules */
	struct zd_block *holes[DECOYS + 1], *walls[DECOYS + 1];
	struct zd_block_range *range = zd_block_range_new(1400 * GRANULE * (DECOYS + 1));
	struct zd_block *again;

	for (unsigned i = 0; i <= DECOYS; i++) {
		holes[i] = zd_block_alloc(range, i == 0 ? bytes : bytes - GRANULE, GRANULE);
		walls[i] = zd_block_alloc(range, (i == 0 ? 400 : 401) * GRANULE, GRANULE);
		assert_non_null(walls[i]);
	}
	assert_int_equal(zd_block_largest_free(range), 0);
	for (unsigned i = 0; i <= DECOYS; i++)
		zd_block_free(range, holes[i]);
	zd_block_range_check(range);
	again = zd_block_alloc(range, bytes, GRANULE);
	assert_non_null(again);
	assert_null(zd_block_alloc(range, bytes, GRANULE));
	zd_block_free(range, again);
	for (unsigned i = 0; i <= DECOYS; i++)
		zd_block_free(range, walls[i]);
	assert_one_free_block(range);
	zd_block_range_free(range);
}

/* Of the holes of one bin, the one that leaves least over. */
TEST(tightest_hole_is_taken)
{
	static const uint64_t granules[3] = {1010, 1000, 1005};
	struct zd_block_range *range = zd_block_range_new(5000 * GRANULE);
	struct zd_block *holes[3], *again;
	uint64_t wanted;

	for (unsigned i = 0; i < 3; i++) {
		holes[i] = zd_block_alloc(range, granules[i] * GRANULE, GRANULE);
		assert_non_null(zd_block_alloc(range, 100 * GRANULE, GRANULE));
	}
	wanted = holes[1]->offset;
	for (unsigned i = 0; i < 3; i++)
		zd_block_free(range, holes[i]);
	for (unsigned spare = 0; spare <= 6; spare += 3) {
		again = zd_block_alloc(range, (1000 - spare) * GRANULE, GRANULE);
		assert_int_equal(again->offset, wanted);
		zd_block_range_check(range);
		zd_block_free(range, again);
	}
	zd_block_range_free(range);
}

/* A unit that stays for ever does not end up between two large ones that come and go. */
TEST(small_blocks_keep_out_of_the_way)
{
	struct zd_block_range *range = zd_block_range_new(64 * MIB);
	struct zd_block *large[4], *norms[4], *whole;

	for (unsigned i = 0; i < 4; i++) {
		large[i] = zd_block_alloc(range, 10 * MIB, GRANULE);
		norms[i] = zd_block_alloc(range, 8192, 4096);
		assert_int_equal(norms[i]->offset, 64 * MIB - 8192ull * (i + 1));
	}
	for (unsigned i = 0; i < 4; i++)
		zd_block_free(range, large[i]);
	zd_block_range_check(range);
	whole = zd_block_alloc(range, 64 * MIB - 4 * 8192ull, GRANULE);
	assert_non_null(whole);
	zd_block_free(range, whole);
	for (unsigned i = 0; i < 4; i++)
		zd_block_free(range, norms[i]);
	assert_one_free_block(range);
	zd_block_range_free(range);
}

/* ---- Blocks at given places ---------------------------------------------------------------------------- */

#define PLACES 512

struct places {
	struct zd_block blocks[PLACES]; /* copies */
	unsigned count;
};

static void note_places(const struct zd_block_range *range, struct places *places)
{
	for (const struct zd_block *block = zd_block_behind(range, 0); block; block = block->after) {
		assert_true(places->count < PLACES);
		places->blocks[places->count++] = *block;
	}
}

static void assert_same_places(const struct zd_block_range *range, const struct places *expected)
{
	struct places found = {.count = 0};

	note_places(range, &found);
	assert_int_equal(found.count, expected->count);
	for (unsigned i = 0; i < found.count; i++) {
		assert_true(found.blocks[i].offset == expected->blocks[i].offset);
		assert_true(found.blocks[i].bytes == expected->blocks[i].bytes);
		assert_int_equal(found.blocks[i].free, expected->blocks[i].free);
	}
}

/* A range after some random allocations and releases. */
static struct zd_block_range *random_range(uint64_t bytes, uint64_t seed)
{
	struct zd_block_range *range = zd_block_range_new(bytes);
	struct zd_block *live[PLACES / 4] = {NULL};

	for (unsigned step = 0; step < 4 * ZD_ARRAY_LEN(live); step++) {
		unsigned i = (unsigned)(random_next(&seed) % ZD_ARRAY_LEN(live));

		if (live[i])
			zd_block_free(range, live[i]);
		live[i] = live[i] ? NULL
		                  : zd_block_alloc(range, 1 + random_next(&seed) % (bytes / 32),
		                                   GRANULE << random_next(&seed) % 4);
	}
	return range;
}

/* Bytes that are in use already, in whole or in part, are not taken. */
static void assert_taken(struct zd_block_range *range, const struct zd_block *block)
{
	assert_null(zd_block_take(range, NULL, block->offset, block->bytes));
	assert_null(zd_block_take(range, NULL, block->offset + block->bytes - GRANULE, GRANULE));
	if (block->offset > 0)
		assert_null(zd_block_take(range, NULL, block->offset - GRANULE, 2 * GRANULE));
	assert_null(zd_block_take(range, NULL, block->offset, range->bytes));
}

TEST(ranges_are_built_again)
{
	for (uint64_t seed = 1; seed <= 60; seed++) {
		const uint64_t bytes = 256 * GRANULE << seed % 4;
		struct zd_block_range *range = random_range(bytes, seed), *again = zd_block_range_new(bytes);
		struct zd_block *taken[PLACES], *last = NULL;
		struct places places = {.count = 0};
		unsigned ntaken = 0;

		note_places(range, &places);
		for (unsigned i = 0; i < places.count; i++) {
			/* by address, or, for every other seed, from the middle on and then from the start */
			const struct zd_block *block =
			        &places.blocks[seed % 2 ? i : (i + places.count / 2) % places.count];
			if (block->free)
				continue;
			last = zd_block_take(again, seed % 2 ? last : NULL, block->offset, block->bytes);
			assert_true(last && !last->free && last->offset == block->offset &&
			            last->bytes == block->bytes);
			zd_block_range_check(again);
			assert_taken(again, block);
			taken[ntaken++] = last;
		}
		assert_true(ntaken > 8 && ntaken < places.count);
		assert_same_places(again, &places);
		assert_int_equal(zd_block_used_bytes(again), zd_block_used_bytes(range));
		assert_int_equal(zd_block_largest_free(again), zd_block_largest_free(range));
		while (ntaken > 0)
			zd_block_free(again, taken[--ntaken]);
		assert_one_free_block(again);
		zd_block_range_free(range);
		zd_block_range_free(again);
	}
}

TEST(places_that_are_none)
{
	struct zd_block_range *range = zd_block_range_new(16 * GRANULE);
	assert_null(zd_block_take(range, NULL, 0, 0));
	assert_null(zd_block_take(range, NULL, 1, GRANULE));
	assert_null(zd_block_take(range, NULL, 0, GRANULE + 1));
	assert_null(zd_block_take(range, NULL, 0, 17 * GRANULE));
	assert_null(zd_block_take(range, NULL, GRANULE, 16 * GRANULE));
	assert_null(zd_block_take(range, NULL, 16 * GRANULE, GRANULE));
	assert_null(zd_block_take(range, NULL, UINT64_MAX - GRANULE + 1, GRANULE));
	assert_null(zd_block_take(range, NULL, GRANULE, UINT64_MAX - GRANULE + 1));
	assert_one_free_block(range);
	struct zd_block *all = zd_block_take(range, NULL, 0, 16 * GRANULE);
	assert_non_null(all);
	assert_null(zd_block_take(range, all, 0, GRANULE));
	zd_block_free(range, all);
	assert_one_free_block(range);
	zd_block_range_free(range);
}

static void release_twice(void)
{
	struct zd_block_range *range = zd_block_range_new(MIB);
	struct zd_block *block = zd_block_alloc(range, GRANULE, GRANULE);

	zd_block_free(range, block);
	zd_block_free(range, block);
}

TEST(releasing_twice_aborts)
{
	int status = 0;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		(void)signal(SIGABRT, SIG_DFL);
		close(STDERR_FILENO);
		release_twice();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}
