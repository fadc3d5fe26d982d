/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_deaths.c - a rank that dies and is replaced: each survivor is told once, no gradient of the backward
 * in which it died reaches a later step, and nobody gathers a shard that its replacement has not published.
 */
#include "contract_reduce.h"

#define RANKS 3u
#define DEAD  2u
#define NUMEL 1000u

struct scene {
	struct contract *c;
	struct contract_unit unit;
	zerod_bucket *buckets[RANKS];
};

static void end_and_be_told(struct contract_rank *rank, void *arg)
{
	(void)arg;
	FAILS(rank->client, zerod_backward_end(rank->group, NULL, NULL), ZEROD_E_PEER_LOST, "rank 2");
}

static void step_and_be_told(struct contract_rank *rank, void *arg)
{
	struct zerod_step_info info = ZEROD_INIT(info);

	(void)arg;
	contract_backward_end(rank);
	FAILS(rank->client, zerod_step_begin(rank->group, NULL, &info, NULL), ZEROD_E_PEER_LOST, "rank 2");
}

static void open_ranks(struct scene *s)
{
	s->c = contract_open(&(struct contract_options){.world_size = RANKS});
	contract_plain_unit(s->c, "w", NUMEL, &s->unit);
}

static void open_scene(struct scene *s, uint32_t committed)
{
	open_ranks(s);
	contract_backward_all(s->c, 3, true);
	for (uint32_t i = 0; i < RANKS; i++) {
		s->buckets[i] = contract_bucket(&s->c->ranks[i], 65536, 2);
		if (i < committed)
			contract_reduce(&s->c->ranks[i], s->buckets[i], &s->unit, 1, NULL);
	}
}

static void join_again(struct contract_rank *rank, void *arg)
{
	(void)arg;
	contract_replace(rank);
}

static void replace_rank(struct scene *s, uint32_t number)
{
	struct contract_rank *rank = &s->c->ranks[number];
	struct zerod_unit_options options = ZEROD_INIT(options);

	contract_finish(contract_start(rank, join_again, NULL));
	options.name = "w";
	options.dtype = ZEROD_FLOAT32;
	options.numel = NUMEL;
	OK(rank->client, contract_register(rank->group, &options, &s->unit.at[number]));
	s->buckets[number] = contract_bucket(rank, 65536, 2);
}

static void replace(struct scene *s)
{
	replace_rank(s, DEAD);
}

/* All ranks reduce again. Nothing of the first window is in the sums. */
static void expect_the_next_window(struct scene *s)
{
	struct contract_sum sum = {&s->unit, CONTRACT_ALL(s->c), 2};

	contract_backward_all(s->c, 3, true);
	for (uint32_t i = 0; i < RANKS; i++)
		contract_reduce(&s->c->ranks[i], s->buckets[i], &s->unit, 2, NULL);
	contract_backward_end_all(s->c);
	contract_expect_step(s->c, &sum, 1);
}

/* Rank 0 waits when rank 2 dies and is told by that call; rank 1 is silent meanwhile and is told by its next
 * call. Neither is told again. */
static void expect_told_once(uint32_t committed, contract_fn *waits, const char *what)
{
	struct scene s;
	struct contract_task *task;

	open_scene(&s, committed);
	task = contract_start(&s.c->ranks[0], waits, NULL);
	AWAIT(contract_somebody_waits(s.c, what));
	contract_leave(&s.c->ranks[DEAD]);
	contract_finish(task);
	replace(&s);
	end_and_be_told(&s.c->ranks[1], NULL);
	expect_the_next_window(&s);
	contract_close(s.c);
}

/* The dead rank's gradient is missing. */
CONTRACT_TEST(test_death_before_its_gradient)
{
	contract_needs(CONTRACT_ONE_SIDED);
	expect_told_once(DEAD, end_and_be_told, "1 reduction, first unit 'w' (rank 2)");
}

/* All gradients are there, and may be summed already: no step takes them all the same. */
CONTRACT_TEST(test_death_behind_its_gradient)
{
	contract_needs(CONTRACT_ONE_SIDED);
	expect_told_once(RANKS, step_and_be_told, "rank 1 to begin the step");
}

/* Rank 1 has ended its backward, and never waits for the ticket: its step is refused with the reason, and not
 * with the state that the death has left. */
CONTRACT_TEST(test_death_behind_an_end_nobody_waits_for)
{
	struct zerod_step_info info = ZEROD_INIT(info);
	struct contract_rank *rank;
	zerod_ticket ended;
	struct scene s;

	contract_needs(CONTRACT_ONE_SIDED);
	open_scene(&s, DEAD);
	rank = &s.c->ranks[1];
	OK(rank->client, zerod_backward_end(rank->group, NULL, &ended));
	AWAIT(contract_somebody_waits(s.c, "1 reduction, first unit 'w' (rank 2)"));
	contract_leave(&s.c->ranks[DEAD]);
	replace(&s);
	FAILS(rank->client, zerod_step_begin(rank->group, NULL, &info, NULL), ZEROD_E_PEER_LOST, "rank 2");
	FAILS(s.c->ranks[0].client, zerod_backward_end(s.c->ranks[0].group, NULL, NULL), ZEROD_E_PEER_LOST,
	      "rank 2");
	expect_the_next_window(&s);
	contract_close(s.c);
}

/* ---- Outside backwards --------------------------------------------------------------------------------- */

static const char *const wait_for_dead = "rank 2 to publish version 1";

/* The dead rank's shard is no version's any more, until its replacement has published. */
static void expect_published_anew(struct scene *s, zerod_ticket ticket)
{
	struct contract_rank *rank = &s->c->ranks[1];
	void *data;

	AWAIT(contract_somebody_waits(s->c, wait_for_dead));
	s->unit.version[DEAD] = 0;
	contract_publish(&s->c->ranks[DEAD], &s->unit);
	OK(rank->client, zerod_wait(rank->client, ticket, NULL, &data));
	contract_expect_bytes(&s->unit, data, 1);
	contract_release(rank, &s->unit, NULL);
}

/* ---- Between a gather and its wait --------------------------------------------------------------------- */

/* An answered gather has its bytes, and those of one version, whatever became of the rank that had them. */
CONTRACT_TEST(test_death_behind_a_gathers_answer)
{
	struct contract_rank *rank;
	zerod_ticket ticket, next;
	struct scene s;
	void *data;

	contract_needs(CONTRACT_ONE_SIDED);
	open_ranks(&s);
	rank = &s.c->ranks[1];
	contract_publish_all(s.c, &s.unit);
	OK(rank->client, zerod_gather_begin(s.unit.at[1], NULL, &ticket));
	AWAIT(strcmp(contract_buffer(s.c, 1, "w").state, "AVAILABLE") == 0);
	contract_leave(&s.c->ranks[DEAD]);
	replace(&s);
	OK(rank->client, zerod_wait(rank->client, ticket, NULL, &data));
	contract_expect_bytes(&s.unit, data, 1);
	FAILS(rank->client, zerod_backward_begin(rank->group, NULL), ZEROD_E_PEER_LOST, "rank 2");
	contract_release(rank, &s.unit, NULL);
	OK(rank->client, zerod_gather_begin(s.unit.at[1], NULL, &next));
	expect_published_anew(&s, next);
	contract_close(s.c);
}

/* One that is not answered yet tells of the death at its wait, also when the rank is replaced by then. */
CONTRACT_TEST(test_death_before_a_gathers_answer)
{
	struct contract_rank *rank;
	zerod_ticket ticket, next;
	struct scene s;

	contract_needs(CONTRACT_ONE_SIDED);
	open_ranks(&s);
	rank = &s.c->ranks[1];
	for (uint32_t i = 0; i < DEAD; i++)
		contract_publish(&s.c->ranks[i], &s.unit);
	OK(rank->client, zerod_gather_begin(s.unit.at[1], NULL, &ticket));
	AWAIT(contract_somebody_waits(s.c, wait_for_dead));
	contract_leave(&s.c->ranks[DEAD]);
	replace(&s);
	FAILS(rank->client, zerod_wait(rank->client, ticket, NULL, NULL), ZEROD_E_PEER_LOST, "rank 2");
	OK(rank->client, zerod_gather_begin(s.unit.at[1], NULL, &next));
	expect_published_anew(&s, next);
	contract_close(s.c);
}
