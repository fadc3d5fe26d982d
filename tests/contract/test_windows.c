/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_windows.c - backwards between two steps: as many as the trainer runs, as long as all ranks run the
 * same.
 *
 * A framework knows that a backward was the last one when its optimizer steps, and not when the backward
 * begins. It also runs two backwards for two losses, and a second one through a graph that it has kept.
 */
#include "contract_reduce.h"

/* The trainer does not say which backward is the last. */
static void begin_all(struct contract_world *w)
{
	for (uint32_t i = 0; i < WORLD_RANKS; i++)
		OK(w->c->ranks[i].client, zerod_backward_begin(w->c->ranks[i].group, NULL));
}

/* Each loss has a backward of its own, which reaches some units only. */
CONTRACT_TEST(test_two_losses)
{
	struct contract_world w;

	contract_open_world(&w);
	for (uint32_t step = 1; step <= 3; step++) {
		begin_all(&w);
		contract_reduce_all(&w, &w.first, 1);
		contract_reduce_all(&w, &w.second, (float)step);
		contract_backward_end_all(w.c);
		begin_all(&w);
		contract_reduce_all(&w, &w.first, 2);
		contract_backward_end_all(w.c);
		contract_expect_sums(&w, 3, (float)step);
	}
	contract_close(w.c);
}

/* As many backwards through one graph as the trainer likes, another number in each step. */
CONTRACT_TEST(test_a_graph_that_is_kept)
{
	struct contract_world w;

	contract_open_world(&w);
	for (uint32_t count = 1; count <= 3; count++) {
		for (uint32_t i = 0; i < count; i++) {
			begin_all(&w);
			contract_reduce_all(&w, &w.first, 1);
			contract_reduce_all(&w, &w.second, 1);
			contract_backward_end_all(w.c);
		}
		contract_expect_sums(&w, (float)count, (float)count);
	}
	contract_close(w.c);
}

CONTRACT_TEST(test_a_step_without_a_backward)
{
	struct zerod_step_info info = ZEROD_INIT(info);
	struct contract_world w;

	contract_open_world(&w);
	FAILS(w.c->ranks[0].client, zerod_step_begin(w.c->ranks[0].group, NULL, &info, NULL), ZEROD_E_STATE,
	      "no backward of rank 0 has ended since its last step");
	begin_all(&w);
	FAILS(w.c->ranks[0].client, zerod_step_begin(w.c->ranks[0].group, NULL, &info, NULL), ZEROD_E_STATE,
	      "backward 1 of rank 0 runs");
	contract_backward_end_all(w.c);
	contract_expect_sums(&w, 0, 0);
	FAILS(w.c->ranks[1].client, zerod_step_begin(w.c->ranks[1].group, NULL, &info, NULL), ZEROD_E_STATE,
	      "no backward of rank 1 has ended since its last step");
	contract_close(w.c);
}

/* ---- Given up ----------------------------------------------------------------------------------------- */

static void expect_abandoned(struct contract_rank *rank, void *arg)
{
	struct zerod_step_info info = contract_step(rank);
	const struct contract_unit *unit = arg;
	struct zerod_target target = ZEROD_INIT(target);

	CHECK(info.abandoned && info.abandoned_rank == 1);
	FAILS(rank->client, zerod_target_get(unit->at[rank->number], &target), ZEROD_E_STATE, "no target");
	contract_step_end(rank);
}

static void end_and_step(struct contract_rank *rank, void *arg)
{
	contract_backward_end(rank);
	expect_abandoned(rank, arg);
}

/* Where the exception is raised on rank 1. */
enum point { BEFORE_THE_FIRST_SUBMIT, INSIDE, BEHIND_THE_LAST_SUBMIT, BEHIND_THE_END };

static void raise_at(struct contract_world *w, enum point point)
{
	struct contract_rank *rank = &w->c->ranks[1];
	struct contract_task *task = NULL;

	begin_all(w);
	for (uint32_t i = 0; i < WORLD_RANKS; i++) {
		if (i == 0 || point > BEFORE_THE_FIRST_SUBMIT)
			contract_reduce(&w->c->ranks[i], w->buckets[i], &w->first, 1, NULL);
		if (i == 0 || point > INSIDE)
			contract_reduce(&w->c->ranks[i], w->buckets[i], &w->second, 1, NULL);
	}
	if (point == BEHIND_THE_END)
		contract_backward_end_all(w->c);
	else
		task = contract_start(&w->c->ranks[0], end_and_step, &w->first);
	OK(rank->client, zerod_backward_abandon(rank->group, NULL, 0, NULL));
	if (task)
		contract_finish(task);
	else
		expect_abandoned(&w->c->ranks[0], &w->first);
}

/* Nobody hangs, nothing of the window is left, and training goes on. */
CONTRACT_TEST(test_a_rank_raises_anywhere)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract_world w;

	contract_open_world(&w);
	for (enum point point = BEFORE_THE_FIRST_SUBMIT; point <= BEHIND_THE_END; point++) {
		raise_at(&w, point);
		assert_int_equal(contract_devices(w.c).target_bytes, 0);
		assert_int_equal(contract_devices(w.c).bucket_bytes, 0);
		begin_all(&w);
		contract_reduce_all(&w, &w.first, 3);
		contract_reduce_all(&w, &w.second, 2);
		contract_backward_end_all(w.c);
		contract_expect_sums(&w, 3, 2);
	}
	contract_close(w.c);
}

/* ---- Skipping ----------------------------------------------------------------------------------------- */

/* A unit that every rank skips has a step of zeros, whatever else the window reduces. */
CONTRACT_TEST(test_units_that_were_only_skipped)
{
	struct contract_world w;

	contract_open_world(&w);
	for (uint32_t stage = 1; stage <= 3; stage++) {
		contract_backward_all(w.c, stage, true);
		contract_skip_all(&w, &w.first);
		contract_skip_all(&w, &w.second);
		contract_backward_end_all(w.c);
		contract_expect_sums(&w, 0, 0);
		contract_backward_all(w.c, stage, true);
		contract_skip_all(&w, &w.first);
		contract_reduce_all(&w, &w.second, 2);
		contract_backward_end_all(w.c);
		contract_expect_sums(&w, 0, 2);
	}
	begin_all(&w);
	contract_skip_all(&w, &w.first);
	contract_backward_end_all(w.c);
	begin_all(&w);
	contract_reduce_all(&w, &w.first, 4);
	contract_backward_end_all(w.c);
	contract_expect_sums(&w, 4, 0);
	contract_close(w.c);
}

CONTRACT_TEST(test_skip_rest)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct zerod_backward_end_options options = ZEROD_INIT(options);
	struct contract_rank *rank;
	zerod_ticket ticket;
	struct contract_world w;

	contract_open_world(&w);
	rank = &w.c->ranks[1];
	options.flags = ZEROD_BACKWARD_SKIP_REST;
	begin_all(&w);
	contract_reduce(&w.c->ranks[0], w.buckets[0], &w.first, 1, NULL);
	OK(rank->client, zerod_backward_end(rank->group, &options, &ticket));
	contract_reduce(&w.c->ranks[0], w.buckets[0], &w.second, 1, NULL);
	contract_backward_end(&w.c->ranks[0]);
	OK(rank->client, zerod_wait(rank->client, ticket, NULL, NULL));
	struct contract_sum sums[] = {{&w.first, 1, 1}, {&w.second, 1, 1}};
	contract_expect_step(w.c, sums, 2);
	options.flags = 2;
	FAILS(rank->client, zerod_backward_end(rank->group, &options, NULL), ZEROD_E_INVALID, "flag");
	contract_close(w.c);
}

/* Nobody waits for the beginning: the requests of the backward follow it, in the same packet, also while its
 * target gets memory. */
CONTRACT_TEST(test_a_beginning_that_is_not_awaited)
{
	struct zerod_backward_options detached = ZEROD_INIT(detached);
	struct zerod_skip_options skip = ZEROD_INIT(skip);
	struct contract_world w;

	contract_open_world(&w);
	detached.flags = ZEROD_BACKWARD_DETACHED;
	skip.flags = ZEROD_SKIP_DETACHED;
	for (uint32_t step = 1; step <= 2; step++) {
		for (uint32_t i = 0; i < WORLD_RANKS; i++) {
			struct contract_rank *rank = &w.c->ranks[i];

			zerod_cork(rank->client);
			OK(rank->client, zerod_backward_begin(rank->group, &detached));
			OK(rank->client, zerod_reduce_skip(w.second.at[i], &skip, NULL));
			contract_reduce(rank, w.buckets[i], &w.first, (float)step, NULL);
			OK(rank->client, zerod_uncork(rank->client));
		}
		contract_backward_end_all(w.c);
		contract_expect_sums(&w, (float)step, 0);
	}
	contract_close(w.c);
}

/* The next call says so. What was reserved before stays the caller's. */
CONTRACT_TEST(test_a_detached_beginning_that_is_refused)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct zerod_backward_options detached = ZEROD_INIT(detached);
	struct zerod_reduce_options submit = ZEROD_INIT(submit);
	struct zerod_entry entry = ZEROD_INIT(entry);
	struct contract_rank *rank;
	struct contract_world w;

	contract_open_world(&w);
	rank = &w.c->ranks[0];
	begin_all(&w);
	OK(rank->client, zerod_bucket_reserve(w.buckets[0], w.first.at[0], NULL, &entry));
	contract_write_gradient(rank, NULL, &entry, 0, WORLD_NUMEL, 1);
	detached.flags = ZEROD_BACKWARD_DETACHED;
	OK(rank->client, zerod_backward_begin(rank->group, &detached));
	OK(rank->client, zerod_reduce_skip(w.second.at[0], NULL, NULL)); /* reads both answers */
	submit.flags = ZEROD_REDUCE_DETACHED;
	FAILS(rank->client, zerod_bucket_submit(w.buckets[0], entry.id, NULL, 0, &submit, NULL),
	      ZEROD_E_STATE, "a detached zerod_backward_begin() failed: backward 1 of rank 0 runs");
	OK(rank->client, zerod_bucket_submit(w.buckets[0], entry.id, NULL, 0, &submit, NULL));
	contract_reduce(&w.c->ranks[1], w.buckets[1], &w.first, 1, NULL);
	OK(w.c->ranks[1].client, zerod_reduce_skip(w.second.at[1], NULL, NULL));
	contract_backward_end_all(w.c);
	contract_expect_sums(&w, 1, 0);
	contract_close(w.c);
}
