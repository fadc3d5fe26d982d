/* SPDX-License-Identifier: Apache-2.0 */
/* test_agree.c - scalars that all ranks of a group agree on. */
#include "contract.h"

#define RANKS 3u

struct round {
	enum zerod_agree_op op;
	double first, second;
};

static void agree(struct contract_rank *rank, void *arg)
{
	const struct round *round = arg;
	double values[2] = {rank->number + 1.0, -0.5 * rank->number};

	OK(rank->client, zerod_group_agree(rank->group, round->op, values, 2, NULL));
	CHECK(values[0] == round->first && values[1] == round->second);
}

/* 1e17 + 1 - 1e17 is 0 from left to right, and 1 in another order. */
static void agree_on_many(struct contract_rank *rank, void *arg)
{
	static const double first[RANKS] = {1e17, 1.0, -1e17};
	double values[ZEROD_MAX_AGREED] = {first[rank->number]};

	(void)arg;
	for (uint32_t i = 1; i < ZEROD_MAX_AGREED; i++)
		values[i] = rank->number + i;
	OK(rank->client, zerod_group_agree(rank->group, ZEROD_AGREE_SUM, values, ZEROD_MAX_AGREED, NULL));
	CHECK(values[0] == 0.0);
	for (uint32_t i = 1; i < ZEROD_MAX_AGREED; i++)
		CHECK(values[i] == 3.0 + RANKS * i);
}

CONTRACT_TEST(test_every_operation)
{
	static struct round rounds[] = {{ZEROD_AGREE_SUM, 6.0, -1.5},
	                                {ZEROD_AGREE_MAX, 3.0, 0.0},
	                                {ZEROD_AGREE_MIN, 1.0, -1.0},
	                                {ZEROD_AGREE_SUM, 6.0, -1.5}};

	contract_needs(CONTRACT_ONE_SIDED); /* groups that span daemons are refused */
	contract_needs(CONTRACT_ONE_DAEMON);
	struct contract *c = contract_open(&(struct contract_options){.world_size = RANKS});
	for (size_t i = 0; i < sizeof(rounds) / sizeof(rounds[0]); i++)
		contract_run(c, agree, &rounds[i]);
	contract_run(c, agree_on_many, NULL);
	contract_close(c);
}

static void differ(struct contract_rank *rank, void *arg)
{
	double values[2] = {7, 8};

	(void)arg;
	FAILS(rank->client,
	      zerod_group_agree(rank->group, ZEROD_AGREE_SUM, values, rank->number == 2 ? 1 : 2, NULL),
	      ZEROD_E_MISMATCH, "rank 2 says the sum of 1");
	CHECK(values[0] == 7 && values[1] == 8);
}

CONTRACT_TEST(test_ranks_that_differ)
{
	static struct round round = {ZEROD_AGREE_MAX, 3.0, 0.0};
	double values[ZEROD_MAX_AGREED + 1] = {0};

	contract_needs(CONTRACT_ONE_SIDED);
	contract_needs(CONTRACT_ONE_DAEMON);
	struct contract *c = contract_open(&(struct contract_options){.world_size = RANKS});
	struct contract_rank *rank = &c->ranks[0];
	FAILS(rank->client, zerod_group_agree(rank->group, ZEROD_AGREE_SUM, values, 0, NULL), ZEROD_E_INVALID,
	      "no values");
	FAILS(rank->client, zerod_group_agree(rank->group, ZEROD_AGREE_SUM, NULL, 1, NULL), ZEROD_E_INVALID,
	      "values is NULL");
	FAILS(rank->client,
	      zerod_group_agree(rank->group, ZEROD_AGREE_SUM, values, ZEROD_MAX_AGREED + 1, NULL),
	      ZEROD_E_LIMIT, "at most 1024");
	contract_run(c, differ, NULL);
	contract_run(c, agree, &round);
	contract_close(c);
}
