/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_layout.c - what a rank may change of a unit that is registered: its slot between two uses, and whether
 * it has a gradient between two steps.
 */
#include "contract_reduce.h"

#define NUMEL 1000u

static void open_units(struct contract **c, struct contract_unit *unit, struct contract_unit *other)
{
	*c = contract_open(NULL);
	contract_plain_unit(*c, "w", NUMEL, unit);
	contract_plain_unit(*c, "v", 2 * NUMEL, other);
	contract_publish_all(*c, unit);
	contract_publish_all(*c, other);
}

static void *use(struct contract_rank *rank, struct contract_unit *unit)
{
	void *data = contract_gather(rank, unit, NULL);

	contract_expect_bytes(unit, data, 1);
	contract_release(rank, unit, NULL);
	return data;
}

CONTRACT_TEST(test_units_move_into_one_slot)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract_unit unit, other;
	struct contract_rank *rank;
	struct contract *c;
	void *data;

	open_units(&c, &unit, &other);
	rank = &c->ranks[0];
	OK(rank->client, zerod_unit_set_slot(unit.at[0], 1));
	data = use(rank, &unit);
	CHECK(use(rank, &unit) == data);
	OK(rank->client, zerod_unit_set_slot(other.at[0], 1)); /* a larger one: the slot moves, once */
	data = use(rank, &other);
	CHECK(use(rank, &unit) == data);
	CHECK(use(rank, &other) == data);
	(void)contract_gather(rank, &unit, NULL);
	FAILS(rank->client, zerod_gather(other.at[0], NULL, NULL, &data), ZEROD_E_SLOT_CONFLICT,
	      "slot 1 holds unit 'w'");
	contract_release(rank, &unit, NULL);
	contract_close(c);
}

CONTRACT_TEST(test_gather_outside_the_slot)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct zerod_gather_options options = ZEROD_INIT(options);
	struct contract_unit unit, other;
	struct contract_rank *rank;
	struct contract *c;
	void *slot, *data;

	open_units(&c, &unit, &other);
	rank = &c->ranks[0];
	OK(rank->client, zerod_unit_set_slot(unit.at[0], 1));
	OK(rank->client, zerod_unit_set_slot(other.at[0], 1));
	slot = contract_gather(rank, &other, NULL);
	options.flags = ZEROD_GATHER_NO_SLOT;
	OK(rank->client, zerod_gather(unit.at[0], &options, NULL, &data)); /* no conflict */
	CHECK(data != slot);
	contract_expect_bytes(&unit, data, 1);
	contract_expect_bytes(&other, slot, 1);
	contract_release(rank, &unit, NULL);
	contract_release(rank, &other, NULL);
	CHECK(use(rank, &unit) == slot);
	contract_close(c);
}

static void reduce_one(struct contract *c, zerod_bucket **buckets, struct contract_unit *unit)
{
	struct contract_sum sum = {unit, CONTRACT_ALL(c), 1};

	contract_backward_all(c, 3, true);
	for (uint32_t i = 0; i < c->world_size; i++)
		contract_reduce(&c->ranks[i], buckets[i], unit, 1, NULL);
	contract_backward_end_all(c);
	contract_expect_step(c, &sum, 1);
}

CONTRACT_TEST(test_units_are_frozen_and_unfrozen)
{
	struct contract_unit unit, other;
	struct zerod_entry entry = ZEROD_INIT(entry);
	struct contract *c;
	zerod_bucket *buckets[2];

	open_units(&c, &unit, &other);
	for (uint32_t i = 0; i < 2; i++) {
		buckets[i] = contract_bucket(&c->ranks[i], 65536, 2);
		OK(c->ranks[i].client, zerod_unit_set_frozen(unit.at[i], 1));
	}
	reduce_one(c, buckets, &other);
	contract_backward_all(c, 3, true);
	FAILS(c->ranks[0].client, zerod_bucket_reserve(buckets[0], unit.at[0], NULL, &entry), ZEROD_E_INVALID,
	      "unit 'w' is frozen");
	FAILS(c->ranks[0].client, zerod_unit_set_frozen(unit.at[0], 0), ZEROD_E_STATE,
	      "rank 0 is between backward 2 and the end of its step: unit 'w' stays as it is");
	contract_backward_end_all(c);
	contract_expect_step(c, NULL, 0);
	for (uint32_t i = 0; i < 2; i++)
		OK(c->ranks[i].client, zerod_unit_set_frozen(unit.at[i], 0));
	reduce_one(c, buckets, &unit);
	contract_close(c);
}
