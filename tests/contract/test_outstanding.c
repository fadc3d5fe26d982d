/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_outstanding.c - many requests of one client that the daemon has not answered: how many there may be,
 * what is still possible then, and what becomes of their answers when the client makes no call.
 */
#include "contract_reduce.h"

#include <stdio.h>

#define NUMEL 1000u
#define LIMIT 1024u /* requests; releases have as many more */

static zerod_ticket tickets[LIMIT];

struct scene {
	struct contract *c;
	struct contract_rank *rank;
	struct contract_unit held, wanted;
	zerod_bucket *bucket;
	struct zerod_entry entry;
};

/* The budget has room for one copy, and `held` has it. */
static void open_scene(struct scene *s)
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
}

/* Gathers of `wanted` wait for the room. */
static void fill(struct scene *s)
{
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
CONTRACT_TEST(test_a_release_always_has_room)
{
	struct contract_task *task;
	zerod_ticket ticket;
	struct scene s;

	open_scene(&s);
	fill(&s);
	FAILS(s.rank->client, zerod_gather_begin(s.wanted.at[0], NULL, &ticket), ZEROD_E_LIMIT,
	      "1024 requests are outstanding; at most 1024");
	task = contract_start(s.rank, gather, &s);
	OK(s.rank->client, zerod_release(s.held.at[0], NULL, 0, NULL, NULL));
	release_all(&s);
	contract_finish(task);
	contract_close(s.c);
}

/* ---- Calls that return at once ------------------------------------------------------------------------- */

static int begin_gather(struct scene *s, zerod_ticket *ticket)
{
	return zerod_gather_begin(s->wanted.at[0], NULL, ticket);
}

static int begin_prefetch(struct scene *s, zerod_ticket *ticket)
{
	struct zerod_gather_options options = ZEROD_INIT(options);

	options.flags = ZEROD_GATHER_PREFETCH;
	return zerod_gather_begin(s->wanted.at[0], &options, ticket);
}

static int begin_update(struct scene *s, zerod_ticket *ticket)
{
	return zerod_update_begin(s->wanted.at, 1, NULL, ticket);
}

static int publish(struct scene *s, zerod_ticket *ticket)
{
	return zerod_publish(s->held.at, 1, NULL, 0, NULL, ticket);
}

static int load(struct scene *s, zerod_ticket *ticket)
{
	return zerod_unit_load(s->held.at[0], NULL, NULL, NULL, ticket);
}

static int submit(struct scene *s, zerod_ticket *ticket)
{
	return zerod_bucket_submit(s->bucket, s->entry.id, NULL, 0, NULL, ticket);
}

static int submit_detached(struct scene *s, zerod_ticket *ticket)
{
	struct zerod_reduce_options options = ZEROD_INIT(options);

	(void)ticket;
	options.flags = ZEROD_REDUCE_DETACHED;
	return zerod_bucket_submit(s->bucket, s->entry.id, NULL, 0, &options, NULL);
}

static int leave_out(struct scene *s, zerod_ticket *ticket)
{
	return zerod_reduce_skip(s->wanted.at[0], NULL, ticket);
}

static int leave_out_detached(struct scene *s, zerod_ticket *ticket)
{
	struct zerod_skip_options options = ZEROD_INIT(options);

	(void)ticket;
	options.flags = ZEROD_SKIP_DETACHED;
	return zerod_reduce_skip(s->wanted.at[0], &options, NULL);
}

static int end_backward(struct scene *s, zerod_ticket *ticket)
{
	return zerod_backward_end(s->rank->group, NULL, ticket);
}

static int begin_step(struct scene *s, zerod_ticket *ticket)
{
	return zerod_step_begin(s->rank->group, NULL, NULL, ticket);
}

static int barrier(struct scene *s, zerod_ticket *ticket)
{
	return zerod_group_barrier(s->rank->group, NULL, ticket);
}

static int (*const calls[])(struct scene *s, zerod_ticket *ticket) = {
        begin_gather,    begin_prefetch, begin_update,       publish,      load,       submit,
        submit_detached, leave_out,      leave_out_detached, end_backward, begin_step, barrier,
};

/* Request 1025 is refused at once, whichever it is, and changes nothing; a detached release goes out. */
CONTRACT_TEST(test_every_call_that_returns_at_once)
{
	struct zerod_release_options options = ZEROD_INIT(options);
	zerod_ticket ticket = {.id = 0};
	struct scene s;

	open_scene(&s);
	OK(s.rank->client, zerod_update_begin(s.held.at, 1, NULL, NULL));
	OK(s.rank->client, zerod_backward_begin(s.rank->group, NULL));
	s.bucket = contract_bucket(s.rank, 65536, 1);
	s.entry.struct_size = sizeof(s.entry);
	OK(s.rank->client, zerod_bucket_reserve(s.bucket, s.wanted.at[0], NULL, &s.entry));
	fill(&s);
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		FAILS(s.rank->client, calls[i](&s, &ticket), ZEROD_E_LIMIT, "at most 1024");
		CHECK(ticket.id == 0);
	}
	options.flags = ZEROD_RELEASE_DETACHED;
	OK(s.rank->client, zerod_release(s.held.at[0], NULL, 0, &options, NULL));
	release_all(&s);
	OK(s.rank->client, submit(&s, &ticket));
	OK(s.rank->client, zerod_publish(s.held.at, 1, NULL, 0, NULL, NULL));
	contract_close(s.c);
}

/* ---- A client that makes no call ----------------------------------------------------------------------- */

#define UNITS 1000u /* their answers are more than rings and sockets hold */

/* Rank 0 has begun to gather all units, and is silent until rank 1 has published the last. */
CONTRACT_TEST(test_silence_loses_nothing)
{
	struct contract_unit *units;
	struct contract *c;

	contract_needs(CONTRACT_ONE_SIDED);
	c = contract_open(NULL);
	units = calloc(UNITS, sizeof(*units));
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

#define MANY 6000u /* more than the library keeps tickets of */

/* Releases without number, whose answers nobody asks for: the daemon has carried all of them out. */
CONTRACT_TEST(test_thousands_of_detached_releases)
{
	struct zerod_gather_options uses = ZEROD_INIT(uses);
	struct zerod_release_options options = ZEROD_INIT(options);
	struct contract_rank *rank;
	struct contract_gate *gate;
	struct contract_unit unit;
	zerod_stream *stream;
	struct contract *c;

	contract_needs(CONTRACT_ONE_SIDED);
	c = contract_open(NULL);
	rank = &c->ranks[0];
	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_publish_all(c, &unit);
	uses.uses = MANY;
	options.flags = ZEROD_RELEASE_DETACHED;
	OK(rank->client, zerod_gather(unit.at[0], &uses, NULL, NULL));
	stream = contract_stream(rank);
	for (uint32_t i = 1; i < MANY; i++)
		AWAIT(zerod_release(unit.at[0], &stream, 1, &options, NULL) != ZEROD_E_LIMIT);
	gate = contract_block(
	        rank, stream); /* not before: a GPU's stream that is blocked has room for about 1000 fences */
	OK(rank->client, zerod_release(unit.at[0], &stream, 1, &options, NULL));
	AWAIT(contract_device(c, 0).gathered_bytes == 0);
	contract_unblock(gate);
	AWAIT(contract_device(c, 0).quarantine_bytes == 0);
	FAILS(rank->client, zerod_release(unit.at[0], NULL, 0, NULL, NULL), ZEROD_E_NOT_HELD, "'w'");
	contract_close(c);
}

/* Of all kinds, answered and not answered: the client ends, and nothing is left of it. */
CONTRACT_TEST(test_thousands_of_tickets_nobody_waits_for)
{
	struct zerod_gather_options uses = ZEROD_INIT(uses);
	zerod_ticket ticket;
	struct scene s;

	open_scene(&s);
	uses.uses = MANY;
	OK(s.rank->client, zerod_gather(s.held.at[0], &uses, NULL, NULL));
	OK(s.rank->client, zerod_backward_begin(s.rank->group, NULL));
	for (uint32_t i = 0; i < MANY; i++)
		AWAIT(zerod_release(s.held.at[0], NULL, 0, NULL, &ticket) != ZEROD_E_LIMIT);
	for (uint32_t i = 0; i < MANY / 2; i++)
		AWAIT(leave_out(&s, &ticket) != ZEROD_E_LIMIT);
	OK(s.rank->client, end_backward(&s, &ticket));
	OK(s.rank->client, begin_step(&s, &ticket));
	OK(s.rank->client, begin_update(&s, &ticket));
	for (uint32_t i = 0; i < LIMIT / 2 - 8; i++) {
		AWAIT(begin_gather(&s, &ticket) != ZEROD_E_LIMIT);
		AWAIT(barrier(&s, &ticket) != ZEROD_E_LIMIT);
	}
	contract_leave(s.rank);
	contract_close(s.c);
}
