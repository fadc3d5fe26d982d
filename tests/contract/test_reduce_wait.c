/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_reduce_wait.c - reduced gradients unit by unit, before the step: an optimizer that runs in the
 * backward, a program that looks at gradients between two backwards.
 */
#include "contract_reduce.h"

#include <zerod_optimizer.h>

#include "base/mem.h"

static void wait_and_expect(struct contract_world *w, const struct contract_unit *unit, float factor)
{
	for (uint32_t i = 0; i < WORLD_RANKS; i++) {
		struct contract_rank *rank = &w->c->ranks[i];
		struct zerod_target target = ZEROD_INIT(target);

		OK(rank->client, zerod_reduce_wait(unit->at[i], NULL, NULL, &target));
		CHECK(target.data && target.dtype == ZEROD_FLOAT32);
		contract_expect_target(rank, unit, CONTRACT_ALL(w->c), factor);
	}
}

/* In the backward and behind it, again after a further contribution, and in the step. */
CONTRACT_TEST(test_the_sum_before_the_step)
{
	struct contract_world w;

	contract_open_world(&w);
	for (uint32_t step = 1; step <= 2; step++) {
		for (uint32_t i = 1; i <= 2; i++) {
			contract_backward_all(w.c, 3, true);
			contract_reduce_all(&w, &w.first, 1);
			wait_and_expect(&w, &w.first, (float)i);
			contract_reduce_all(&w, &w.second, 2);
			contract_backward_end_all(w.c);
			wait_and_expect(&w, &w.first, (float)i);
			wait_and_expect(&w, &w.second, 2 * (float)i);
		}
		contract_expect_step(w.c,
		                     (struct contract_sum[]){{&w.first, CONTRACT_ALL(w.c), 2},
		                                             {&w.second, CONTRACT_ALL(w.c), 4}},
		                     2);
	}
	contract_close(w.c);
}

/* The streams stand still in front of the gradients, and the call returns; their work behind it finds the
 * sum. */
CONTRACT_TEST(test_the_stream_waits)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract_gate *gates[WORLD_RANKS];
	struct contract_world w;

	contract_open_world(&w);
	contract_backward_all(w.c, 3, true);
	for (uint32_t i = 0; i < WORLD_RANKS; i++) {
		struct contract_rank *rank = &w.c->ranks[i];
		struct zerod_entry entry = ZEROD_INIT(entry);

		gates[i] = contract_block(rank, w.streams[i]);
		OK(rank->client, zerod_bucket_reserve(w.buckets[i], w.first.at[i], NULL, &entry));
		contract_write_gradient(rank, w.streams[i], &entry, 0, WORLD_NUMEL, 3);
		OK(rank->client, zerod_bucket_submit(w.buckets[i], entry.id, &w.streams[i], 1, NULL, NULL));
	}
	for (uint32_t i = 0; i < WORLD_RANKS; i++) {
		struct zerod_target target = ZEROD_INIT(target);

		OK(w.c->ranks[i].client, zerod_reduce_wait(w.first.at[i], NULL, w.streams[i], &target));
	}
	for (uint32_t i = 0; i < WORLD_RANKS; i++)
		contract_unblock(gates[i]);
	for (uint32_t i = 0; i < WORLD_RANKS; i++) {
		OK(w.c->ranks[i].client, zerod_stream_synchronize(w.streams[i]));
		contract_expect_target(&w.c->ranks[i], &w.first, CONTRACT_ALL(w.c), 3);
		OK(w.c->ranks[i].client, zerod_reduce_skip(w.second.at[i], NULL, NULL));
	}
	contract_backward_end_all(w.c);
	contract_expect_step(w.c, (struct contract_sum[]){{&w.first, CONTRACT_ALL(w.c), 3}}, 1);
	contract_close(w.c);
}

static void end_and_step(struct contract_rank *rank, void *arg)
{
	const struct contract_world *w = arg;

	contract_backward_end(rank);
	contract_step(rank);
	contract_expect_target(rank, &w->first, 1, 2);
	contract_step_end(rank);
}

/* A rank whose stream still reads its place skips the next gradient: the sum is not stored before that has
 * run. */
CONTRACT_TEST(test_a_reader_holds_the_next_sum)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract_task *tasks[WORLD_RANKS];
	struct contract_gate *gate;
	struct zerod_target target = ZEROD_INIT(target);
	float *before, *after;
	struct contract_world w;

	contract_open_world(&w);
	contract_backward_all(w.c, 3, true);
	contract_reduce(&w.c->ranks[0], w.buckets[0], &w.first, 1, NULL);
	OK(w.c->ranks[1].client, zerod_reduce_skip(w.first.at[1], NULL, NULL));
	contract_backward_end_all(w.c);
	OK(w.c->ranks[1].client, zerod_reduce_wait(w.first.at[1], NULL, w.streams[1], &target));
	OK(w.c->ranks[1].client, zerod_stream_synchronize(w.streams[1]));
	before = contract_target(&w.c->ranks[1], &w.first, &target);
	gate = contract_block(&w.c->ranks[1], w.streams[1]);
	contract_backward_all(w.c, 3, true);
	contract_reduce(&w.c->ranks[0], w.buckets[0], &w.first, 1, NULL);
	OK(w.c->ranks[1].client, zerod_reduce_skip(w.first.at[1], NULL, NULL));
	FAILS(w.c->ranks[1].client, zerod_target_get(w.first.at[1], &target), ZEROD_E_STATE, "no target");
	for (uint32_t i = 0; i < WORLD_RANKS; i++)
		tasks[i] = contract_start(&w.c->ranks[i], end_and_step, &w);
	AWAIT(contract_somebody_waits(w.c, "first unit 'w'"));
	after = zd_calloc(target.shard_numel, sizeof(*after));
	contract_read(NULL, after, target.data, target.shard_numel * sizeof(*after));
	assert_memory_equal(after, before, target.shard_numel * sizeof(*after));
	contract_unblock(gate);
	for (uint32_t i = 0; i < WORLD_RANKS; i++)
		contract_finish(tasks[i]);
	free(before);
	free(after);
	contract_close(w.c);
}

/* A rank that has begun the step waits for the others, which may give the window up, and then for the sum. */
CONTRACT_TEST(test_in_a_step)
{
	struct zerod_wait_options soon = ZEROD_INIT(soon);
	struct zerod_target target = ZEROD_INIT(target);
	zerod_ticket tickets[WORLD_RANKS];
	struct contract_world w;

	contract_open_world(&w);
	soon.deadline_ms = 1;
	for (uint32_t step = 1; step <= 2; step++) {
		contract_backward_all(w.c, 3, true);
		contract_reduce_all(&w, &w.first, 1);
		contract_reduce_all(&w, &w.second, 2);
		contract_backward_end_all(w.c);
		for (uint32_t i = 0; i < WORLD_RANKS; i++) {
			struct contract_rank *rank = &w.c->ranks[i];

			OK(rank->client, zerod_step_begin(rank->group, NULL, NULL, &tickets[i]));
			if (i == 0 && !contract_gathers_together())
				FAILS(rank->client, zerod_reduce_wait(w.first.at[0], &soon, NULL, &target),
				      ZEROD_E_DEADLINE, "rank 1 to begin the step");
		}
		wait_and_expect(&w, &w.first, 1);
		for (uint32_t i = 0; i < WORLD_RANKS; i++)
			OK(w.c->ranks[i].client,
			   zerod_wait(w.c->ranks[i].client, tickets[i], w.streams[i], NULL));
		wait_and_expect(&w, &w.second, 2);
		for (uint32_t i = 0; i < WORLD_RANKS; i++)
			contract_step_end(&w.c->ranks[i]);
	}
	FAILS(w.c->ranks[0].client, zerod_reduce_wait(w.first.at[0], NULL, NULL, &target), ZEROD_E_STATE,
	      "neither reduced nor skipped");
	contract_close(w.c);
}

/* The arguments that zerod_reduce_wait() rejects, and the states in which it fails. */
CONTRACT_TEST(test_refusals)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct zerod_wait_options soon = ZEROD_INIT(soon);
	struct zerod_target target = ZEROD_INIT(target);
	struct contract_rank *rank;
	struct contract_world w;

	contract_open_world(&w);
	rank = &w.c->ranks[0];
	soon.deadline_ms = 1;
	FAILS(rank->client, zerod_reduce_wait(w.first.at[0], NULL, NULL, NULL), ZEROD_E_INVALID, "target");
	FAILS(rank->client, zerod_reduce_wait(w.first.at[0], NULL, w.streams[1], &target), ZEROD_E_INVALID,
	      "another client");
	FAILS(rank->client, zerod_reduce_wait(w.first.at[0], NULL, NULL, &target), ZEROD_E_STATE,
	      "rank 0 has neither reduced nor skipped unit 'w'");
	contract_backward_all(w.c, 3, true);
	contract_reduce(rank, w.buckets[0], &w.first, 1, NULL);
	FAILS(rank->client, zerod_reduce_wait(w.first.at[0], &soon, NULL, &target), ZEROD_E_DEADLINE,
	      "unit 'w' (rank 1)");
	contract_reduce(&w.c->ranks[1], w.buckets[1], &w.first, 1, NULL);
	contract_skip_all(&w, &w.second);
	FAILS(rank->client, zerod_reduce_wait(w.second.at[0], NULL, NULL, &target), ZEROD_E_NOT_FOUND,
	      "all ranks have skipped it");
	wait_and_expect(&w, &w.first, 1);
	contract_backward_end_all(w.c);
	FAILS(rank->client, zerod_reduce_wait(w.second.at[0], NULL, NULL, &target), ZEROD_E_NOT_FOUND,
	      "all ranks have skipped it");
	OK(w.c->ranks[1].client, zerod_backward_abandon(w.c->ranks[1].group, NULL, 0, NULL));
	OK(rank->client, zerod_target_get(w.first.at[0], &target)); /* its streams may read it still */
	FAILS(rank->client, zerod_reduce_wait(w.first.at[0], NULL, NULL, &target), ZEROD_E_STATE,
	      "rank 1 has abandoned");
	contract_step(rank);
	FAILS(rank->client, zerod_target_get(w.first.at[0], &target), ZEROD_E_STATE, "no target");
	contract_step_end(rank);
	assert_int_equal(contract_devices(w.c).target_bytes, 0);
	contract_close(w.c);
}

/* A rank dies while another one's streams may read a place: the place stays until the rank says so. */
CONTRACT_TEST(test_the_group_fails)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct zerod_target target = ZEROD_INIT(target);
	struct contract_rank *rank;
	struct contract_world w;

	contract_open_world(&w);
	rank = &w.c->ranks[0];
	contract_backward_all(w.c, 3, true);
	contract_reduce_all(&w, &w.first, 1);
	OK(rank->client, zerod_reduce_wait(w.first.at[0], NULL, w.streams[0], &target));
	OK(rank->client, zerod_stream_synchronize(w.streams[0]));
	contract_leave(&w.c->ranks[1]);
	AWAIT(zerod_reduce_wait(w.first.at[0], NULL, NULL, &target) == ZEROD_E_PEER_LOST);
	CHECK(strstr(zerod_last_error(rank->client), "rank 1"));
	assert_int_not_equal(contract_devices(w.c).target_bytes, 0);
	contract_expect_target(rank, &w.first, CONTRACT_ALL(w.c), 1);
	OK(rank->client, zerod_step_end(rank->group, &w.streams[0], 1, NULL));
	assert_int_equal(contract_devices(w.c).target_bytes, 0);
	contract_close(w.c);
}

static void expect_norms(struct contract_rank *rank, void *arg)
{
	const struct contract_world *w = arg;
	zerod_unit *const units[] = {w->second.at[rank->number], w->first.at[rank->number]};
	double norms[2];

	contract_step(rank);
	OK(rank->client, zerod_step_norms_get(rank->group, units, 2, NULL, norms));
	CHECK(norms[0] == 0 && norms[1] == contract_norm_squared(&w->first, CONTRACT_ALL(w->c), 3));
	FAILS(rank->client, zerod_step_norms_get(rank->group, units, 0, NULL, norms), ZEROD_E_INVALID,
	      "count");
	contract_step_end(rank);
	OK(rank->client, zerod_step_norms_get(rank->group, units, 1, NULL, norms));
}

CONTRACT_TEST(test_norms_by_unit)
{
	contract_needs(CONTRACT_ONE_SIDED);
	double norm = 5;
	struct contract_world w;

	contract_open_world(&w);
	FAILS(w.c->ranks[0].client, zerod_step_norms_get(w.c->ranks[0].group, &w.first.at[0], 1, NULL, &norm),
	      ZEROD_E_STATE, "has begun no step");
	CHECK(norm == 5);
	contract_backward_all(w.c, 3, true);
	contract_reduce_all(&w, &w.first, 3);
	contract_skip_all(&w, &w.second);
	contract_backward_end_all(w.c);
	contract_run(w.c, expect_norms, &w);
	contract_close(w.c);
}

/* ---- Sums without a place in the target ---------------------------------------------------------------- */

static void set_target(const struct contract_world *w, int target)
{
	for (uint32_t i = 0; i < WORLD_RANKS; i++)
		OK(w->c->ranks[i].client, zerod_unit_set_target(w->first.at[i], target));
}

static void return_all(const struct contract_world *w)
{
	for (uint32_t i = 0; i < WORLD_RANKS; i++)
		OK(w->c->ranks[i].client, zerod_target_return(w->first.at[i]));
}

static void expect_unplaced(const struct contract_world *w)
{
	struct zerod_target target = ZEROD_INIT(target);

	for (uint32_t i = 0; i < WORLD_RANKS; i++)
		FAILS(w->c->ranks[i].client, zerod_target_get(w->first.at[i], &target), ZEROD_E_STATE,
		      "no place in the target");
}

static void step_of_the_other(struct contract_rank *rank, void *arg)
{
	const struct contract_world *w = arg;

	contract_step(rank);
	contract_expect_target(rank, &w->second, CONTRACT_ALL(w->c), 4);
	contract_step_end(rank);
}

/* The memory is there from the sum to its return, and the loan outlives the backward. */
CONTRACT_TEST(test_a_sum_that_goes)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct zerod_target target = ZEROD_INIT(target);
	uint64_t least;
	struct contract_world w;

	contract_open_world(&w);
	set_target(&w, 0);
	for (uint32_t step = 0; step < 2; step++) {
		for (uint32_t i = 1; i <= 2; i++) {
			contract_backward_all(w.c, 3, true);
			least = contract_devices(w.c).target_bytes;
			contract_reduce_all(&w, &w.first, (float)i);
			wait_and_expect(&w, &w.first, (float)i);
			CHECK(contract_devices(w.c).target_bytes >= least + WORLD_NUMEL * sizeof(float));
			contract_reduce_all(&w, &w.second, 2);
			contract_backward_end_all(w.c);
			wait_and_expect(&w, &w.first, (float)i);
			return_all(&w);
			AWAIT(contract_devices(w.c).target_bytes == least);
			FAILS(w.c->ranks[0].client, zerod_reduce_wait(w.first.at[0], NULL, NULL, &target),
			      ZEROD_E_STATE, "rank 0 has returned the sum of unit 'w'");
			expect_unplaced(&w);
		}
		contract_run(w.c, step_of_the_other, &w);
		assert_int_equal(contract_devices(w.c).target_bytes, 0);
	}
	set_target(&w, 1);
	contract_backward_all(w.c, 3, true);
	contract_reduce_all(&w, &w.first, 3);
	contract_reduce_all(&w, &w.second, 1);
	contract_backward_end_all(w.c);
	contract_expect_step(
	        w.c,
	        (struct contract_sum[]){{&w.first, CONTRACT_ALL(w.c), 3}, {&w.second, CONTRACT_ALL(w.c), 1}},
	        2);
	contract_close(w.c);
}

static void step_without(struct contract_rank *rank, void *arg)
{
	const struct contract_world *w = arg;

	contract_step(rank);
	expect_unplaced(w);
	contract_step_end(rank);
}

/* Sums that nobody waits for add up as others do, and go with the step. */
CONTRACT_TEST(test_a_sum_that_stays)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract_world w;

	contract_open_world(&w);
	set_target(&w, 0);
	for (uint32_t i = 1; i <= 2; i++) {
		contract_backward_all(w.c, 3, true);
		contract_reduce_all(&w, &w.first, 1);
		contract_reduce_all(&w, &w.second, 1);
		contract_backward_end_all(w.c);
	}
	wait_and_expect(&w, &w.first, 2);
	contract_run(w.c, step_without, &w);
	assert_int_equal(contract_devices(w.c).target_bytes, 0);
	contract_close(w.c);
}

/* A stream still reads the sum that was returned: its memory is not used again before that has run. */
CONTRACT_TEST(test_a_reader_of_a_sum_that_goes)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct zerod_target target = ZEROD_INIT(target);
	struct contract_gate *gate;
	float *before, *after;
	struct contract_world w;

	contract_open_world(&w);
	set_target(&w, 0);
	contract_backward_all(w.c, 3, true);
	contract_reduce_all(&w, &w.first, 1);
	wait_and_expect(&w, &w.first, 1);
	OK(w.c->ranks[1].client, zerod_reduce_wait(w.first.at[1], NULL, w.streams[1], &target));
	OK(w.c->ranks[1].client, zerod_stream_synchronize(w.streams[1]));
	before = contract_target(&w.c->ranks[1], &w.first, &target);
	gate = contract_block(&w.c->ranks[1], w.streams[1]);
	return_all(&w);
	contract_reduce_all(&w, &w.second, 1);
	contract_backward_end_all(w.c);
	contract_backward_all(w.c, 3, true);
	contract_reduce(&w.c->ranks[0], w.buckets[0], &w.first, 5, NULL);
	contract_reduce(&w.c->ranks[1], w.buckets[1], &w.first, 5, NULL);
	after = zd_calloc(target.shard_numel, sizeof(*after));
	contract_read(NULL, after, target.data, target.shard_numel * sizeof(*after));
	assert_memory_equal(after, before, target.shard_numel * sizeof(*after));
	contract_unblock(gate);
	wait_and_expect(&w, &w.first, 5);
	free(before);
	free(after);
	contract_close(w.c);
}

static void skip_the_rest(struct contract_rank *rank, void *arg)
{
	struct zerod_backward_end_options options = ZEROD_INIT(options);

	(void)arg;
	options.flags = ZEROD_BACKWARD_SKIP_REST;
	OK(rank->client, zerod_backward_end(rank->group, &options, NULL));
}

/* A rank keeps the sum that it was lent, and skips the unit as the rest of the next backward. */
CONTRACT_TEST(test_a_sum_of_the_backward_before)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct zerod_target target = ZEROD_INIT(target);
	struct contract_world w;

	contract_open_world(&w);
	set_target(&w, 0);
	contract_backward_all(w.c, 3, true);
	contract_reduce_all(&w, &w.first, 1);
	contract_backward_end_all(w.c);
	OK(w.c->ranks[0].client, zerod_reduce_wait(w.first.at[0], NULL, NULL, &target));
	contract_backward_all(w.c, 3, true);
	contract_reduce(&w.c->ranks[1], w.buckets[1], &w.first, 4, NULL);
	contract_run(w.c, skip_the_rest, NULL);
	OK(w.c->ranks[0].client, zerod_reduce_wait(w.first.at[0], NULL, NULL, &target));
	contract_expect_target(&w.c->ranks[0], &w.first, 2, 4);
	contract_close(w.c);
}

static void begin_expecting(struct contract_rank *rank, void *arg)
{
	struct zerod_backward_options options = ZEROD_INIT(options);
	int status;

	(void)arg;
	options.stage = 3;
	status = zerod_backward_begin(rank->group, &options);
	CHECK(status == 0 || (status == ZEROD_E_MISMATCH &&
	                      strstr(zerod_last_error(rank->client), "without a place in the target")));
}

CONTRACT_TEST(test_refusals_of_sums_that_go)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct zerod_unit_options options = ZEROD_INIT(options);
	struct zerod_target target = ZEROD_INIT(target);
	struct contract_unit whole;
	struct contract_rank *rank;
	struct contract_world w;

	contract_open_world(&w);
	rank = &w.c->ranks[0];
	options.name = "whole";
	options.dtype = ZEROD_FLOAT32;
	options.numel = 10;
	options.flags = ZEROD_UNIT_ALL_REDUCE;
	contract_unit(w.c, &options, &whole);
	FAILS(rank->client, zerod_unit_set_target(whole.at[0], 0), ZEROD_E_UNSUPPORTED,
	      "every rank gets all of its gradient");
	OK(rank->client, zerod_target_return(w.first.at[0])); /* nothing is lent */
	set_target(&w, 0);
	contract_backward_all(w.c, 3, true);
	FAILS(rank->client, zerod_unit_set_target(w.first.at[0], 1), ZEROD_E_STATE, "unit 'w'");
	contract_reduce_all(&w, &w.first, 1);
	OK(rank->client, zerod_reduce_wait(w.first.at[0], NULL, w.streams[0], &target));
	AWAIT(zerod_unit_unregister(w.first.at[0], NULL) == ZEROD_E_BUSY &&
	      strstr(zerod_last_error(rank->client), "rank 0 has not returned the sum of unit 'w'"));
	OK(w.c->ranks[1].client, zerod_backward_abandon(w.c->ranks[1].group, NULL, 0, NULL));
	contract_expect_target(rank, &w.first, CONTRACT_ALL(w.c), 1); /* its streams may read it still */
	OK(rank->client, zerod_target_return(w.first.at[0]));
	AWAIT(contract_devices(w.c).target_bytes == 0);
	OK(rank->client, zerod_backward_abandon(rank->group, NULL, 0, NULL));
	for (uint32_t i = 0; i < WORLD_RANKS; i++) {
		contract_step(&w.c->ranks[i]);
		contract_step_end(&w.c->ranks[i]);
	}
	OK(rank->client, zerod_unit_set_target(w.first.at[0], 1));
	contract_run(w.c, begin_expecting, &w);
	contract_close(w.c);
}

int main(void)
{
	(void)setenv("ZEROD_RUN_AHEAD", "1",
	             1); /* streams are held here, and pageable memory is not copied to */
	return test_run(NULL, NULL);
}
