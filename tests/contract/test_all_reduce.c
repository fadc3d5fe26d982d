/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_all_reduce.c - units whose reduced gradient all ranks want whole: the same sums, norms and accounts as
 * of sliced ones, beside which they are reduced.
 */
#include "contract_reduce.h"

#define NUMEL 1000u
#define RANKS 4u

struct world {
	struct contract *c;
	zerod_bucket *buckets[RANKS];
};

static void open_world(struct world *w)
{
	w->c = contract_open(&(struct contract_options){.world_size = RANKS, .devices = 2});
	for (uint32_t i = 0; i < RANKS; i++)
		w->buckets[i] = contract_bucket(&w->c->ranks[i], 65536, 2);
}

static void whole_unit(struct contract *c, const char *name, uint64_t numel, struct contract_unit *unit)
{
	struct zerod_unit_options options = ZEROD_INIT(options);

	options.name = name;
	options.dtype = ZEROD_FLOAT32;
	options.numel = numel;
	options.flags = ZEROD_UNIT_ALL_REDUCE;
	contract_unit(c, &options, unit);
}

static void reduce_all(struct world *w, const struct contract_unit *unit, float factor,
                       const struct zerod_reduce_options *options)
{
	for (uint32_t i = 0; i < RANKS; i++)
		contract_reduce(&w->c->ranks[i], w->buckets[i], unit, factor, options);
}

/* ---- Sums ---------------------------------------------------------------------------------------------- */

#define MICRO_STEPS 3u

CONTRACT_TEST(test_whole_sums_beside_slices)
{
	struct contract_unit whole, sliced;
	struct world w;

	open_world(&w);
	whole_unit(w.c, "whole", NUMEL, &whole);
	contract_plain_unit(w.c, "sliced", NUMEL, &sliced);
	for (uint32_t stage = 2; stage <= 3; stage++) {
		struct contract_sum sums[] = {{&whole, CONTRACT_ALL(w.c), 1 + 2 + 3},
		                              {&sliced, CONTRACT_ALL(w.c), MICRO_STEPS}};

		for (uint32_t i = 1; i <= MICRO_STEPS; i++) {
			contract_backward_all(w.c, stage, i == MICRO_STEPS);
			reduce_all(&w, &whole, (float)i, NULL);
			reduce_all(&w, &sliced, 1, NULL);
			contract_backward_end_all(w.c);
		}
		contract_expect_step(w.c, sums, 2);
	}
	contract_close(w.c);
}

CONTRACT_TEST(test_whole_sums_of_awkward_sizes)
{
	static const uint64_t sizes[] = {1, 3, 64, 65, 257, 1009};
	enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };
	struct contract_unit units[SIZES];
	struct contract_sum sums[SIZES];
	struct world w;

	open_world(&w);
	for (uint32_t k = 0; k < SIZES; k++) {
		char name[8] = {'u', (char)('a' + k)};

		whole_unit(w.c, name, sizes[k], &units[k]);
		sums[k] = (struct contract_sum){&units[k], CONTRACT_ALL(w.c), (float)(k + 1)};
	}
	contract_backward_all(w.c, 3, true);
	for (uint32_t k = 0; k < SIZES; k++)
		reduce_all(&w, &units[k], (float)(k + 1), NULL);
	contract_backward_end_all(w.c);
	contract_expect_step(w.c, sums, SIZES);
	contract_close(w.c);
}

/* Ranks without a gradient get the sum of the others; where nobody has one it is zero. */
CONTRACT_TEST(test_whole_sums_of_some_ranks)
{
	struct contract_unit some, none;
	struct contract_sum sums[] = {{&some, 1u << 1 | 1u << 2, 2}, {&none, 0, 1}};
	struct world w;

	open_world(&w);
	whole_unit(w.c, "some", NUMEL, &some);
	whole_unit(w.c, "none", NUMEL, &none);
	contract_backward_all(w.c, 3, true);
	for (uint32_t i = 0; i < RANKS; i++) {
		struct contract_rank *rank = &w.c->ranks[i];

		if (sums[0].contributors & 1u << i)
			contract_reduce(rank, w.buckets[i], &some, 2, NULL);
		else
			OK(rank->client, zerod_reduce_skip(some.at[i], NULL, NULL));
		OK(rank->client, zerod_reduce_skip(none.at[i], NULL, NULL));
	}
	contract_backward_end_all(w.c);
	contract_expect_step(w.c, sums, 2);
	contract_close(w.c);
}

/* ---- Targets ------------------------------------------------------------------------------------------- */

static void check_targets(struct contract_rank *rank, void *arg)
{
	struct contract_unit *const *units = arg;
	struct zerod_target whole = ZEROD_INIT(whole), sliced = ZEROD_INIT(sliced);

	(void)contract_step(rank);
	OK(rank->client, zerod_target_get(units[0]->at[rank->number], &whole));
	OK(rank->client, zerod_target_get(units[1]->at[rank->number], &sliced));
	CHECK(whole.shard_numel == units[0]->padded_numel && whole.true_numel == NUMEL);
	CHECK(sliced.shard_numel == units[1]->shard_numel);
	CHECK((float *)sliced.data == (float *)whole.data + whole.shard_numel);
	contract_step_end(rank);
}

/* The whole has its place in the flat target, and is charged. */
CONTRACT_TEST(test_target_holds_the_whole)
{
	struct contract_unit whole, sliced, *units[] = {&whole, &sliced};
	struct world w;

	open_world(&w);
	whole_unit(w.c, "whole", NUMEL, &whole);
	contract_plain_unit(w.c, "sliced", NUMEL, &sliced);
	contract_backward_all(w.c, 3, true);
	assert_int_equal(contract_devices(w.c).target_bytes,
	                 RANKS * (whole.padded_numel + sliced.shard_numel) * sizeof(float));
	reduce_all(&w, &whole, 1, NULL);
	reduce_all(&w, &sliced, 1, NULL);
	contract_backward_end_all(w.c);
	contract_run(w.c, check_targets, units);
	assert_int_equal(contract_devices(w.c).target_bytes, 0);
	contract_close(w.c);
}
