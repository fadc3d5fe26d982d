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

/* Each rank may leave as soon as it has passed, while the others have not even read their answers. */
static void wait_and_leave(struct contract_rank *rank, void *arg)
{
	(void)arg;
	OK(rank->client, zerod_group_barrier(rank->group, NULL, NULL));
	OK(rank->client, zerod_group_leave(rank->group, NULL));
	rank->group = NULL;
}

CONTRACT_TEST(test_ranks_leave_behind_it)
{
	struct contract *c = contract_open(&(struct contract_options){.world_size = RANKS, .devices = 2});

	contract_run(c, wait_and_leave, NULL);
	contract_close(c);
}

/* Rank 1 has reached it already. */
static void reach_once(struct contract_rank *rank, void *arg)
{
	const zerod_ticket *ticket = arg;

	if (rank->number == 1)
		OK(rank->client, zerod_wait(rank->client, *ticket, NULL, NULL));
	else
		OK(rank->client, zerod_group_barrier(rank->group, NULL, NULL));
}

CONTRACT_TEST(test_deadline_names_the_missing_rank)
{
	contract_needs(CONTRACT_ONE_SIDED); /* elsewhere it is the group's end */
	contract_needs(CONTRACT_ONE_DAEMON);
	struct contract *c = contract_open(&(struct contract_options){.world_size = 3, .devices = 2});
	struct zerod_wait_options soon = ZEROD_INIT(soon), flagged = ZEROD_INIT(flagged);
	struct contract_rank *first = &c->ranks[0], *second = &c->ranks[1];
	zerod_ticket late, stays;

	soon.deadline_ms = 1;
	flagged.struct_size = 1;
	FAILS(first->client, zerod_group_barrier(first->group, &flagged, NULL), ZEROD_E_INVALID,
	      "zerod_wait_options: struct_size is 1");
	OK(second->client, zerod_group_barrier(second->group, NULL, &stays));
	AWAIT(contract_somebody_waits(c, "rank 0 to reach the barrier"));
	FAILS(first->client, zerod_group_barrier(first->group, &soon, NULL), ZEROD_E_DEADLINE,
	      "rank 2 to reach the barrier");
	OK(first->client, zerod_group_barrier(first->group, &soon, &late));
	FAILS(first->client, zerod_wait(first->client, late, NULL, NULL), ZEROD_E_DEADLINE,
	      "rank 2 to reach the barrier");
	FAILS(first->client, zerod_wait(first->client, late, NULL, NULL), ZEROD_E_STALE, NULL);
	/* what has failed does not count: rank 1's first barrier is still the others' first one */
	contract_run(c, reach_once, &stays);
	contract_run(c, wait_twice, NULL);
	contract_close(c);
}

CONTRACT_TEST(test_lost_rank_is_named)
{
	contract_needs(CONTRACT_ONE_DAEMON);
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	zerod_ticket ticket;

	OK(rank->client, zerod_group_barrier(rank->group, NULL, &ticket));
	AWAIT(contract_somebody_waits(c, "rank 1 to reach the barrier"));
	contract_leave(&c->ranks[1]);
	FAILS(rank->client, zerod_wait(rank->client, ticket, NULL, NULL), ZEROD_E_PEER_LOST, "rank 1");
	FAILS(rank->client, zerod_group_barrier(rank->group, NULL, NULL), ZEROD_E_PEER_LOST, "rank 1");
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
