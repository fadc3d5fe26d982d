/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_outstanding.c - many requests of one client that the daemon has not answered: how many there may be,
 * what is still possible then, and what becomes of their answers when the client makes no call.
 */
#include "contract.h"

#include <stdio.h>
#include <stdlib.h>

#define NUMEL 1000u
#define LIMIT 1024u /* requests; releases have as many more */

static zerod_ticket tickets[LIMIT];

struct scene {
	struct contract *c;
	struct contract_rank *rank;
	struct contract_unit held, wanted;
};

/* The budget has room for one copy; `held` has it, and the gathers of `wanted` wait for it. */
static void open_full(struct scene *s)
{
	const struct contract_options options = {.config = "[devices]\ngather_budget = 4K\n"};

	contract_needs(CONTRACT_ONE_SIDED); /* rank 0 gathers alone; in a world of one there is no copy */
	*s = (struct scene){.c = contract_open(&options)};
	s->rank = &s->c->ranks[0];
	contract_plain_unit(s->c, "held", NUMEL, &s->held);
	contract_plain_unit(s->c, "wanted", NUMEL, &s->wanted);
	contract_publish_all(s->c, &s->held);
	contract_publish_all(s->c, &s->wanted);
	OK(s->rank->client, zerod_gather(s->held.at[0], NULL, NULL, NULL));
	for (uint32_t i = 0; i < LIMIT; i++)
		OK(s->rank->client, zerod_gather_begin(s->wanted.at[0], NULL, &tickets[i]));
}

static void release_all(struct scene *s)
{
	OK(s->rank->client, zerod_wait_many(s->rank->client, tickets, LIMIT, NULL, NULL));
	for (uint32_t i = 0; i < LIMIT; i++)
		OK(s->rank->client, zerod_release(s->wanted.at[0], NULL, 0, NULL, NULL));
}

static void gather(struct contract_rank *rank, void *arg)
{
	struct scene *s = arg;

	OK(rank->client, zerod_gather(s->held.at[0], NULL, NULL, NULL));
	OK(rank->client, zerod_release(s->held.at[0], NULL, 0, NULL, NULL));
}

/* One thread waits for room; the release of another, which all of them wait for, is not held up. */
static void test_a_release_always_has_room(void **state)
{
	struct contract_task *task;
	zerod_ticket ticket;
	struct scene s;

	(void)state;
	open_full(&s);
	FAILS(s.rank->client, zerod_gather_begin(s.wanted.at[0], NULL, &ticket), ZEROD_E_LIMIT,
	      "1024 requests are outstanding, the limit is 1024");
	task = contract_start(s.rank, gather, &s);
	OK(s.rank->client, zerod_release(s.held.at[0], NULL, 0, NULL, NULL));
	release_all(&s);
	contract_finish(task);
	contract_close(s.c);
}

/* ---- A client that makes no call ----------------------------------------------------------------------- */

#define UNITS 1000u /* their answers are more than rings and sockets hold */

/* Rank 0 has begun to gather all units, and is silent until rank 1 has published the last. */
static void test_silence_loses_nothing(void **state)
{
	struct contract_unit *units;
	struct contract *c;

	contract_needs(CONTRACT_ONE_SIDED);
	c = contract_open(NULL);
	units = calloc(UNITS, sizeof(*units));
	(void)state;
	for (uint32_t i = 0; i < UNITS; i++) {
		char name[16];

		(void)snprintf(name, sizeof(name), "u%u", i);
		contract_plain_unit(c, name, 64, &units[i]);
		contract_publish(&c->ranks[0], &units[i]);
	}
	for (uint32_t i = 0; i < UNITS; i++)
		OK(c->ranks[0].client, zerod_gather_begin(units[i].at[0], NULL, &tickets[i]));
	for (uint32_t i = 0; i < UNITS; i++)
		contract_publish(&c->ranks[1], &units[i]);
	OK(c->ranks[0].client, zerod_wait_many(c->ranks[0].client, tickets, UNITS, NULL, NULL));
	for (uint32_t i = 0; i < UNITS; i++)
		contract_release(&c->ranks[0], &units[i], NULL);
	contract_expect_version(&c->ranks[1], &units[UNITS - 1], 1);
	contract_close(c);
	free(units);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        CONTRACT_TEST(test_a_release_always_has_room),
	        CONTRACT_TEST(test_silence_loses_nothing),
	};

	return cmocka_run_group_tests_name("contract: outstanding requests", tests, NULL, NULL);
}
