/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_deaths.c - a rank that dies inside a backward and is replaced: each survivor is told once, and no
 * gradient of that window reaches a later step.
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

static void open_scene(struct scene *s, uint32_t committed)
{
	s->c = contract_open(&(struct contract_options){.world_size = RANKS});
	contract_plain_unit(s->c, "w", NUMEL, &s->unit);
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

static void replace(struct scene *s)
{
	struct contract_rank *rank = &s->c->ranks[DEAD];
	struct zerod_unit_options options = ZEROD_INIT(options);

	contract_finish(contract_start(rank, join_again, NULL));
	options.name = "w";
	options.dtype = ZEROD_FLOAT32;
	options.numel = NUMEL;
	OK(rank->client, zerod_unit_register(rank->group, &options, &s->unit.at[DEAD]));
	s->buckets[DEAD] = contract_bucket(rank, 65536, 2);
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
static void test_death_before_its_gradient(void **state)
{
	(void)state;
	contract_needs(CONTRACT_ONE_SIDED);
	expect_told_once(DEAD, end_and_be_told, "1 reduction, first unit 'w' (rank 2)");
}

/* All gradients are there, and may be summed already: no step takes them all the same. */
static void test_death_behind_its_gradient(void **state)
{
	(void)state;
	contract_needs(CONTRACT_ONE_SIDED);
	expect_told_once(RANKS, step_and_be_told, "rank 1 to begin the step");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        CONTRACT_TEST(test_death_before_its_gradient),
	        CONTRACT_TEST(test_death_behind_its_gradient),
	};

	return cmocka_run_group_tests_name("deaths inside backwards", tests, NULL, NULL);
}
