/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_link_scheduler_model.c - are slots a good schedule as a whole: gathers on modelled links
 * (links_model.h), beside the least time in which these links could carry the bytes.
 *
 * Figures are thousandths of that time. The bounds are the worst of a hundred seeds and a hundredth more, of
 * which each run tries a few: what makes the schedule worse is noticed, and for what makes it better they can
 * be lowered. Without slots each executor issues what it has, for the nearest GPU first.
 */
#include <inttypes.h>
#include <stdio.h>

#include "tests/unit/executor/links_model.h"

#define SEEDS        6u
#define MOST_NS      (1000000 * US) /* what has not ended by then starves */
#define MOST_GATHERS 128u
#define MOST_PUSHES  2048u

struct scenario {
	uint32_t count, ranks; /* GPUs; how many of their ranks gather */
	uint32_t slice_mib, chunks, rounds;
	uint32_t apart_us; /* the first gathers of two ranks; behind a gather, its rank's next one */
};

/* How it is to go. 0: that is no matter. */
struct bounds {
	uint64_t most, napping; /* with slots, and when executors sleep between two looks */
	uint64_t without;       /* without slots it takes so long at least */
	uint64_t slowest;       /* gather */
};

struct figures {
	uint64_t most, least; /* of all seeds */
	uint64_t slowest;     /* gather, beside the time that its own bytes need */
};

struct scene {
	struct model *m;
	struct gather gathers[MOST_GATHERS];
	uint32_t ngathers;
	uint64_t begin_ns;
};

enum mode { SPINNING, NAPPING, WITHOUT_TURNS, MODES };

static struct scene *open_scene(uint32_t count, enum mode mode, uint32_t seed)
{
	struct scene *scene = zd_calloc(1, sizeof(*scene));
	scene->m = new_model(count, seed, MOST_PUSHES);
	scene->m->scheduler = mode != WITHOUT_TURNS;
	scene->m->spins = mode != NAPPING;
	scene->begin_ns = scene->m->now_ns;
	return scene;
}

static void close_scene(struct scene *scene)
{
	free_model(scene->m);
	free(scene);
}

static struct gather *new_gather(struct scene *scene, uint32_t rank, uint64_t bytes, uint64_t comes_ns)
{
	assert_true(scene->ngathers < MOST_GATHERS);
	struct gather *gather = &scene->gathers[scene->ngathers++];
	*gather = (struct gather){.rank = rank, .bytes = bytes, .comes_ns = comes_ns};
	return gather;
}

/* Each rank's one behind the other. */
static void gather_all(struct scene *scene, const struct scenario *s)
{
	scene->m->chunks = s->chunks;
	for (uint32_t rank = 0; rank < s->ranks; rank++) {
		struct gather *last = NULL;
		for (uint32_t i = 0; i < s->rounds; i++) {
			uint64_t apart_ns = s->apart_us * US;
			struct gather *gather = new_gather(scene, rank, s->slice_mib * MIB,
			                                   i == 0 ? scene->begin_ns + rank * apart_ns
			                                          : apart_ns);
			if (last)
				last->next = gather;
			else
				add_gather(scene->m, gather);
			last = gather;
		}
	}
}

static void add_figures(struct figures *all, const struct scene *scene, uint64_t bound)
{
	uint64_t factor = (scene->m->now_ns - scene->begin_ns) * 1000 / bound;
	all->most = zd_max_u64(all->most, factor);
	all->least = all->least ? zd_min_u64(all->least, factor) : factor;
	for (uint32_t i = 0; i < scene->ngathers; i++) {
		const struct gather *gather = &scene->gathers[i];
		uint64_t took_ns = gather->ended_ns - gather->comes_ns;
		uint64_t needs_ns = gather->bytes * (scene->m->count - 1) / LINK_BYTES_NS;
		all->slowest = zd_max_u64(all->slowest, took_ns * 1000 / needs_ns);
	}
}

static struct figures run_scenario(const struct scenario *s, enum mode mode)
{
	struct figures all = {0};
	for (uint32_t seed = 1; seed <= SEEDS; seed++) {
		struct scene *scene = open_scene(s->count, mode, seed);
		gather_all(scene, s);
		run_model(scene->m, scene->begin_ns + MOST_NS);
		add_figures(&all, scene,
		            s->rounds > 1 ? busiest_ns(scene->m, scene->begin_ns)
		                          : bound_ns(scene->m, scene->begin_ns));
		close_scene(scene);
	}
	return all;
}

static void gather_at_random(struct scene *scene)
{
	enum { ROUNDS = 10 };
	uint64_t span_ns = (uint64_t)ROUNDS * (scene->m->count - 1) * 128 * MIB / LINK_BYTES_NS / 2;
	for (uint32_t rank = 0; rank < scene->m->count; rank++)
		for (uint32_t i = 0; i < ROUNDS; i++) {
			uint64_t bytes = (1 + random_below(scene->m, 256)) * MIB;
			add_gather(scene->m, new_gather(scene, rank, bytes,
			                                scene->begin_ns + random_below(scene->m, span_ns)));
		}
}

static struct figures run_at_random(uint32_t count, enum mode mode)
{
	struct figures all = {0};
	for (uint32_t seed = 1; seed <= SEEDS; seed++) {
		struct scene *scene = open_scene(count, mode, seed);
		gather_at_random(scene);
		run_model(scene->m, scene->begin_ns + MOST_NS);
		add_figures(&all, scene, bound_ns(scene->m, scene->begin_ns));
		close_scene(scene);
	}
	return all;
}

static void check_bounds(const char *what, const struct figures all[MODES], const struct bounds *bounds)
{
	const struct figures *spinning = &all[SPINNING], *napping = &all[NAPPING],
	                     *without = &all[WITHOUT_TURNS];
	print_message("%s: %" PRIu64 ", napping %" PRIu64 ", without slots %" PRIu64 " to %" PRIu64 "\n",
	              what, spinning->most, napping->most, without->least, without->most);
	for (uint32_t mode = 0; mode < MODES; mode++)
		assert_true(all[mode].least >= 1000); /* or the model is wrong */
	assert_true(spinning->most <= bounds->most);
	assert_true(napping->most <= bounds->napping);
	assert_true(without->least >= bounds->without);
	if (bounds->slowest == 0)
		return;
	print_message("\tits slowest gather: %" PRIu64 ", %" PRIu64 ", %" PRIu64 "\n", spinning->slowest,
	              napping->slowest, without->slowest);
	assert_in_range(spinning->slowest, 1000, bounds->slowest);
	assert_in_range(napping->slowest, 1000, bounds->slowest);
}

struct a_scenario {
	struct scenario scenario;
	struct bounds bounds;
};

static void run_all(const struct a_scenario *all, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		const struct scenario *s = &all[i].scenario;
		struct figures figures[MODES];
		char what[128];
		(void)snprintf(what, sizeof(what), "%u of %u GPUs, %u x %u MiB in %u, %u us apart", s->ranks,
		               s->count, s->rounds, s->slice_mib, s->chunks, s->apart_us);
		for (int mode = 0; mode < MODES; mode++)
			figures[mode] = run_scenario(s, (enum mode)mode);
		check_bounds(what, figures, &all[i].bounds);
	}
}

/* As trainers do: no link is left idle for the sake of another one. */
TEST(test_all_gather_at_once)
{
	static const struct a_scenario all[] = {
	        {{2, 2, 16, 1, 1, 0}, {1384, 1478, 0, 0}},    {{2, 2, 256, 1, 1, 0}, {1042, 1048, 0, 0}},
	        {{4, 4, 16, 1, 1, 0}, {1255, 1275, 0, 0}},    {{4, 4, 64, 1, 1, 0}, {1071, 1076, 0, 0}},
	        {{4, 4, 256, 1, 1, 0}, {1037, 1168, 0, 0}},   {{8, 8, 16, 1, 1, 0}, {1241, 1251, 1788, 0}},
	        {{8, 8, 64, 1, 1, 0}, {1068, 1070, 1616, 0}}, {{8, 8, 256, 1, 1, 0}, {1038, 1327, 1520, 0}},
	};
	run_all(all, ZD_ARRAY_LEN(all));
}

/* Without slots, the first one's slices all travel at once. */
TEST(test_requests_come_one_after_the_other)
{
	static const struct a_scenario all[] = {
	        {{2, 2, 256, 1, 1, 30}, {1041, 1047, 0, 0}},
	        {{4, 4, 16, 1, 1, 30}, {1156, 1174, 1292, 0}},
	        {{4, 4, 64, 1, 1, 30}, {1063, 1070, 1730, 0}},
	        {{4, 4, 100, 1, 1, 30}, {1054, 1108, 1817, 0}},
	        {{4, 4, 256, 1, 1, 30}, {1037, 1069, 2052, 0}},
	        {{4, 4, 256, 1, 1, 100}, {1198, 1143, 1866, 0}},
	        {{8, 8, 64, 1, 1, 30}, {1561, 1515, 3176, 0}},
	        {{8, 8, 256, 1, 1, 30}, {1382, 1501, 2377, 0}},
	};
	run_all(all, ZD_ARRAY_LEN(all));
}

TEST(test_some_ranks_gather)
{
	static const struct a_scenario all[] = {
	        {{2, 1, 256, 1, 1, 0}, {1042, 1048, 0, 0}},
	        {{4, 1, 16, 1, 1, 0}, {1239, 1269, 0, 0}},
	        {{4, 1, 256, 1, 1, 0}, {1038, 1040, 0, 0}},
	        {{8, 1, 256, 1, 1, 0}, {1038, 1039, 0, 0}},
	        {{4, 2, 256, 1, 1, 30}, {1103, 1105, 1632, 0}},
	        {{4, 3, 256, 1, 1, 30}, {1230, 1175, 1933, 0}},
	};
	run_all(all, ZD_ARRAY_LEN(all));
}

/* As reductions send them; each chunk has a store behind it. */
TEST(test_slices_in_chunks)
{
	static const struct a_scenario all[] = {
	        {{4, 4, 64, 4, 1, 0}, {1226, 1231, 0, 0}},
	        {{4, 4, 256, 4, 1, 30}, {1066, 1068, 2034, 0}},
	        {{8, 8, 256, 4, 1, 30}, {1428, 1416, 2315, 0}},
	};
	run_all(all, ZD_ARRAY_LEN(all));
}

/* Ranks that gather again and again do not keep each other out. */
TEST(test_nobody_starves)
{
	static const struct a_scenario all[] = {
	        {{4, 4, 256, 1, 6, 30}, {1221, 1316, 1870, 1885}},
	        {{4, 3, 256, 1, 6, 30}, {1281, 1231, 1890, 1636}},
	        {{4, 4, 32, 1, 20, 30}, {1452, 1436, 1561, 2084}},
	        {{8, 8, 64, 1, 6, 30}, {1638, 1564, 2262, 2144}},
	};
	run_all(all, ZD_ARRAY_LEN(all));
}

/* Ten gathers a rank, of 1 to 256 MiB from each other GPU, which come in half the time that they need. */
TEST(test_random_arrivals)
{
	static const struct {
		uint32_t count;
		struct bounds bounds;
	} all[] = {{2, {1053, 1054, 0, 0}}, {4, {1277, 1261, 0, 0}}, {8, {1342, 1345, 0, 0}}};
	for (size_t i = 0; i < ZD_ARRAY_LEN(all); i++) {
		uint32_t count = all[i].count;
		struct figures figures[MODES];
		char what[64];
		(void)snprintf(what, sizeof(what), "random gathers of %u GPUs", count);
		for (int mode = 0; mode < MODES; mode++)
			figures[mode] = run_at_random(count, (enum mode)mode);
		check_bounds(what, figures, &all[i].bounds);
	}
}
