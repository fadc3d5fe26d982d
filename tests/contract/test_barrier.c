/* SPDX-License-Identifier: Apache-2.0 */
/* test_barrier.c - ranks that wait for each other, above all before they leave. */
#include "contract.h"

#define RANKS 4u

static void wait_twice(struct contract_rank *rank, void *arg)
{
	zerod_ticket ticket;

	(void)arg;
	OK(rank->client, zerod_group_barrier(rank->group, NULL, NULL));
	OK(rank->client, zerod_group_barrier(rank->group, NULL, &ticket));
	OK(rank->client, zerod_wait(rank->client, ticket, NULL, NULL));
}

CONTRACT_TEST(test_all_pass)
{
	struct contract *c = contract_open(&(struct contract_options){.world_size = RANKS, .devices = 2});

	contract_run(c, wait_twice, NULL);
	contract_run(c, wait_twice, NULL);
	contract_close(c);
}

CONTRACT_TEST(test_a_ticket_takes_no_stream)
{
	struct contract *c = contract_open(&(struct contract_options){.world_size = 1});
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *stream = contract_stream(rank);
	zerod_ticket ticket;

	OK(rank->client, zerod_group_barrier(rank->group, NULL, &ticket));
	FAILS(rank->client, zerod_wait(rank->client, ticket, stream, NULL), ZEROD_E_INVALID,
	      "the ticket of a barrier");
	OK(rank->client, zerod_wait(rank->client, ticket, NULL, NULL));
	contract_close(c);
}

static int third_time(void *context)
{
	int *calls = context;

	return ++*calls == 3 || *calls == 6;
}

CONTRACT_TEST(test_a_rank_gives_up)
{
	int calls = 6; /* while the ranks join */
	struct contract_options options = {.interrupted = third_time, .interrupted_context = &calls};
	struct zerod_wait_options never = ZEROD_INIT(never);
	zerod_ticket ticket;

	contract_needs(CONTRACT_ONE_SIDED);
	contract_needs(CONTRACT_ONE_DAEMON);
	struct contract *c = contract_open(&options);
	struct contract_rank *first = &c->ranks[0];
	calls = 0;
	never.deadline_ms = ZEROD_NO_DEADLINE;
	FAILS(first->client, zerod_group_barrier(first->group, &never, NULL), ZEROD_E_INTERRUPTED,
	      "rank 1 to reach the barrier");
	CHECK(calls == 3);
	OK(first->client, zerod_group_barrier(first->group, NULL, &ticket));
	FAILS(first->client, zerod_wait(first->client, ticket, NULL, NULL), ZEROD_E_INTERRUPTED,
	      "rank 1 to reach the barrier");
	CHECK(calls == 6);
	FAILS(first->client, zerod_wait(first->client, ticket, NULL, NULL), ZEROD_E_STALE, NULL);
	/* neither of them counts */
	contract_run(c, wait_twice, NULL);
	contract_close(c);
}
