/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_loading.c - weights that one rank has read, on the shards of all: a reduction that it alone
 * contributes to.
 */
#include "contract_reduce.h"

#include <stdlib.h>

#include "base/mem.h"

#define NUMEL  1000u
#define RANKS  4u
#define READER 2u

struct loading {
	struct contract *c;
	struct contract_unit unit;
	zerod_bucket *bucket; /* the reader's */
};

/* The rank's slice of what came becomes its shard. */
static void take_slice(struct contract_rank *rank, struct contract_unit *unit)
{
	zerod_unit *handle = unit->at[rank->number];
	struct zerod_target target;
	struct zerod_source source = {.unit = handle};

	(void)contract_step(rank);
	OK(rank->client, zerod_unit_target(handle, &target));
	source.data = target.data;
	OK(rank->client, zerod_update_begin(&handle, 1));
	OK(rank->client, zerod_publish_from(&source, 1, target.dtype, NULL, 0));
	contract_step_end(rank);
}

static void expect_weights(struct contract_rank *rank, const struct contract_unit *unit)
{
	float *weights = zd_calloc(NUMEL, sizeof(*weights));
	zerod_unit *handle = unit->at[rank->number];
	void *data;
	bool right = true;

	OK(rank->client, zerod_gather(handle, NULL, NULL, &data));
	contract_read(NULL, weights, data, NUMEL * sizeof(*weights));
	for (uint32_t i = 0; i < NUMEL; i++)
		right &= weights[i] == contract_gradient(READER, i) * 0.5f;
	CHECK(right);
	free(weights);
	OK(rank->client, zerod_release(handle, NULL, NULL, 0, NULL));
}

static void load(struct contract_rank *rank, void *arg)
{
	struct loading *loading = arg;
	struct zerod_reduce_options options = ZEROD_INIT(options);

	options.flags = ZEROD_REDUCE_OVERWRITE;
	contract_backward(rank, 3, true);
	if (rank->number == READER)
		contract_reduce(rank, loading->bucket, &loading->unit, 0.5f, &options);
	else
		OK(rank->client, zerod_reduce_skip(loading->unit.at[rank->number]));
	contract_backward_end(rank);
	take_slice(rank, &loading->unit);
	expect_weights(rank, &loading->unit);
}

static void test_one_rank_loads_for_all(void **state)
{
	struct loading loading;

	(void)state;
	loading.c = contract_open(&(struct contract_options){.world_size = RANKS, .devices = 2});
	contract_plain_unit(loading.c, "w", NUMEL, &loading.unit);
	loading.bucket = contract_bucket(&loading.c->ranks[READER], 65536, 1);
	contract_run(loading.c, load, &loading);
	contract_close(loading.c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        CONTRACT_TEST(test_one_rank_loads_for_all),
	};

	return cmocka_run_group_tests_name("contract: weights of one rank", tests, NULL, NULL);
}
