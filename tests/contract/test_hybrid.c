/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hybrid.c - groups whose daemons have all shards each: gathers that no other rank takes part in, and
 * gradients that are summed over all ranks of all daemons.
 */
#include "contract_reduce.h"

#define NUMEL 1000u
#define RANKS 4u
#define UNITS 4u

struct world {
	struct contract *c;
	struct contract_unit units[UNITS];
	zerod_bucket *buckets[RANKS];
	uint64_t version;
};

static void open_world(struct world *w)
{
	const struct contract_options options = {
	        .world_size = RANKS, .devices = 2, .flags = ZEROD_GROUP_HYBRID};

	*w = (struct world){.c = contract_open(&options)};
	for (uint32_t i = 0; i < UNITS; i++) {
		char name[8] = {'u', (char)('a' + i)};

		contract_plain_unit(w->c, name, NUMEL + i, &w->units[i]);
	}
	for (uint32_t i = 0; i < RANKS; i++)
		w->buckets[i] = contract_bucket(&w->c->ranks[i], 65536, 2);
}

static void publish(struct world *w)
{
	for (uint32_t i = 0; i < UNITS; i++)
		contract_publish_all(w->c, &w->units[i]);
	w->version++;
}

/* ---- Gathers ------------------------------------------------------------------------------------------- */

static void gather_in_own_order(struct contract_rank *rank, void *arg)
{
	struct world *w = arg;

	for (uint32_t i = 0; i < 2 * UNITS; i++) {
		uint32_t at = (rank->number % 2 ? 2 * UNITS - i : i) + rank->number;

		contract_expect_version(rank, &w->units[at % UNITS], w->version);
	}
}

CONTRACT_TEST(test_ranks_gather_in_any_order)
{
	contract_needs(CONTRACT_TWO_DAEMONS);
	struct world w;

	open_world(&w);
	for (uint32_t round = 0; round < 3; round++) {
		publish(&w);
		contract_run(w.c, gather_in_own_order, &w);
	}
	contract_close(w.c);
}

/* The other daemon has not even published. */
CONTRACT_TEST(test_rank_gathers_from_its_daemon_alone)
{
	contract_needs(CONTRACT_TWO_DAEMONS);
	struct contract_rank *rank;
	struct contract_unit *unit;
	struct world w;

	open_world(&w);
	unit = &w.units[0];
	rank = &w.c->ranks[RANKS - 1];
	assert_int_equal(unit->shard_numel * (RANKS / 2), unit->padded_numel);
	w.version = 1;
	for (uint32_t i = RANKS / 2; i < RANKS; i++)
		contract_publish(&w.c->ranks[i], unit);
	for (uint32_t i = 1; i < UNITS; i++)
		contract_publish_all(w.c, &w.units[i]);
	contract_finish(contract_start(rank, gather_in_own_order, &w));
	contract_close(w.c);
}

/* ---- Sums ---------------------------------------------------------------------------------------------- */

CONTRACT_TEST(test_sums_are_over_all_daemons)
{
	contract_needs(CONTRACT_TWO_DAEMONS);
	struct world w;

	open_world(&w);
	for (uint32_t step = 1; step <= 3; step++) {
		struct contract_sum sums[UNITS];

		for (uint32_t micro = 0; micro < 2; micro++) {
			contract_backward_all(w.c, 3, micro == 1);
			for (uint32_t u = 0; u < UNITS; u++)
				for (uint32_t i = 0; i < RANKS; i++)
					contract_reduce(&w.c->ranks[i], w.buckets[i], &w.units[u],
					                (float)(u + step), NULL);
			contract_backward_end_all(w.c);
		}
		for (uint32_t u = 0; u < UNITS; u++)
			sums[u] = (struct contract_sum){&w.units[u], CONTRACT_ALL(w.c),
			                                2 * (float)(u + step)};
		contract_expect_step(w.c, sums, UNITS);
	}
	contract_close(w.c);
}
