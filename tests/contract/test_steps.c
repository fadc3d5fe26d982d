/* SPDX-License-Identifier: Apache-2.0 */
/* test_steps.c - steps with a ticket: streams wait for the target, and calls do not. */
#include "contract_reduce.h"

#include <math.h>

/* Reserves, has the rank's stream write the gradient, and submits behind it. */
static void reduce(struct contract_world *w, uint32_t i, float factor)
{
	struct contract_rank *rank = &w->c->ranks[i];
	struct zerod_entry entry = ZEROD_INIT(entry);
	zerod_ticket ticket;

	OK(rank->client, zerod_bucket_reserve(w->buckets[i], w->first.at[i], NULL, &entry));
	contract_write_gradient(rank, w->streams[i], &entry, 0, WORLD_NUMEL, factor);
	OK(rank->client, zerod_bucket_submit(w->buckets[i], entry.id, &w->streams[i], 1, NULL, &ticket));
}

static void expect_info(struct contract_rank *rank, const struct contract_world *w, uint64_t step,
                        float factor)
{
	struct zerod_step_info info = ZEROD_INIT(info);

	OK(rank->client, zerod_step_get(rank->group, NULL, &info));
	CHECK(info.step == step && !info.overflow && !info.abandoned);
	CHECK(info.norm_squared == contract_norm_squared(&w->first, CONTRACT_ALL(w->c), factor));
}

/* The streams stand still in front of all gradients, and every call of the step but the last returns. */
CONTRACT_TEST(test_no_call_waits_for_the_sums)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract_gate *gates[WORLD_RANKS];
	zerod_ticket ends[WORLD_RANKS], tickets[WORLD_RANKS];
	struct contract_world w;

	contract_open_world(&w);
	for (uint32_t step = 1; step <= 2; step++) {
		contract_backward_all(w.c, 3, true);
		for (uint32_t i = 0; i < WORLD_RANKS; i++) {
			struct contract_rank *rank = &w.c->ranks[i];

			gates[i] = contract_block(rank, w.streams[i]);
			reduce(&w, i, (float)step);
			OK(rank->client, zerod_backward_end(rank->group, NULL, &ends[i]));
			OK(rank->client, zerod_step_begin(rank->group, NULL, NULL, &tickets[i]));
		}
		for (uint32_t i = 0; i < WORLD_RANKS; i++) {
			struct zerod_target target = ZEROD_INIT(target);
			struct contract_rank *rank = &w.c->ranks[i];

			OK(rank->client, zerod_wait(rank->client, tickets[i], w.streams[i], NULL));
			OK(rank->client, zerod_target_get(w.first.at[i], &target));
		}
		for (uint32_t i = 0; i < WORLD_RANKS; i++)
			contract_unblock(gates[i]);
		for (uint32_t i = 0; i < WORLD_RANKS; i++) {
			struct contract_rank *rank = &w.c->ranks[i];

			OK(rank->client, zerod_stream_synchronize(w.streams[i]));
			contract_expect_target(rank, &w.first, CONTRACT_ALL(w.c), (float)step);
			contract_expect_target(rank, &w.second, CONTRACT_ALL(w.c), 0);
			OK(rank->client, zerod_wait(rank->client, ends[i], NULL, NULL));
			expect_info(rank, &w, step, (float)step);
			OK(rank->client, zerod_step_end(rank->group, &w.streams[i], 1, NULL));
			expect_info(rank, &w, step, (float)step);
		}
	}
	contract_close(w.c);
}

/* Nor for the end of the step, nor does the next window, up to the end of its step. The third one waits. */
CONTRACT_TEST(test_two_steps_are_enqueued)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct zerod_backward_options brief = ZEROD_INIT(brief);
	struct contract_gate *gates[WORLD_RANKS] = {NULL};
	zerod_ticket end, tickets[WORLD_RANKS];
	struct contract_world w;

	contract_open_world(&w);
	brief.deadline_ms = 50;
	for (uint32_t step = 1; step <= 4; step++) {
		for (uint32_t i = 0; i < WORLD_RANKS && step % 2 == 1; i++)
			gates[i] = contract_block(&w.c->ranks[i], w.streams[i]);
		contract_backward_all(w.c, 3, true);
		for (uint32_t i = 0; i < WORLD_RANKS; i++) {
			struct contract_rank *rank = &w.c->ranks[i];

			reduce(&w, i, (float)step);
			OK(rank->client, zerod_backward_end(rank->group, NULL, &end));
			OK(rank->client, zerod_step_begin(rank->group, NULL, NULL, &tickets[i]));
		}
		for (uint32_t i = 0; i < WORLD_RANKS; i++) {
			struct zerod_target target = ZEROD_INIT(target);
			struct contract_rank *rank = &w.c->ranks[i];

			OK(rank->client, zerod_wait(rank->client, tickets[i], w.streams[i], NULL));
			OK(rank->client, zerod_step_end(rank->group, &w.streams[i], 1, NULL));
			FAILS(rank->client, zerod_target_get(w.first.at[i], &target), ZEROD_E_STATE, NULL);
		}
		if (step % 2 == 1)
			continue;
		FAILS(w.c->ranks[0].client, zerod_backward_begin(w.c->ranks[0].group, &brief),
		      ZEROD_E_DEADLINE, "waited for the sums of the step that was ended");
		for (uint32_t i = 0; i < WORLD_RANKS; i++)
			contract_unblock(gates[i]);
		for (uint32_t i = 0; i < WORLD_RANKS; i++)
			expect_info(&w.c->ranks[i], &w, step, (float)step);
	}
	for (uint32_t i = 0; i < WORLD_RANKS; i++) {
		OK(w.c->ranks[i].client, zerod_unit_set_frozen(w.second.at[i], 1));
		OK(w.c->ranks[i].client, zerod_unit_unregister(w.first.at[i], NULL));
	}
	contract_close(w.c);
}

/* The rank leaves before its step is over. */
CONTRACT_TEST(test_a_rank_leaves_before_the_end_of_its_step)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract_gate *gate;
	zerod_ticket end, ticket;
	struct contract_rank *rank;
	struct contract_world w;

	contract_open_world(&w);
	contract_backward_all(w.c, 3, true);
	gate = contract_block(&w.c->ranks[0], w.streams[0]);
	for (uint32_t i = 0; i < WORLD_RANKS; i++) {
		rank = &w.c->ranks[i];
		reduce(&w, i, 1);
		OK(rank->client, zerod_backward_end(rank->group, NULL, &end));
		OK(rank->client, zerod_step_begin(rank->group, NULL, NULL, &ticket));
	}
	OK(rank->client, zerod_wait(rank->client, ticket, w.streams[1], NULL));
	OK(rank->client, zerod_step_end(rank->group, &w.streams[1], 1, NULL));
	OK(rank->client, zerod_group_leave(rank->group, NULL));
	rank->group = NULL;
	contract_unblock(gate);
	FAILS(w.c->ranks[0].client, zerod_group_barrier(w.c->ranks[0].group, NULL, NULL), ZEROD_E_PEER_LOST,
	      "rank 1");
	OK(rank->client, zerod_stream_synchronize(w.streams[1]));
	contract_close(w.c);
}

static void step_with_a_ticket(struct contract_rank *rank, void *arg)
{
	const struct contract_world *w = arg;
	zerod_ticket end, ticket;

	OK(rank->client, zerod_backward_end(rank->group, NULL, &end));
	OK(rank->client, zerod_step_begin(rank->group, NULL, NULL, &ticket));
	OK(rank->client, zerod_wait(rank->client, ticket, NULL, NULL));
	contract_expect_target(rank, &w->first, CONTRACT_ALL(w->c), 2);
	expect_info(rank, w, 1, 2);
	contract_step_end(rank);
}

/* Without a stream the wait is the caller's; in groups over several daemons too. */
CONTRACT_TEST(test_the_caller_waits)
{
	struct contract_world w;

	contract_open_world(&w);
	contract_backward_all(w.c, 3, true);
	for (uint32_t i = 0; i < WORLD_RANKS; i++) {
		contract_reduce(&w.c->ranks[i], w.buckets[i], &w.first, 2, NULL);
		OK(w.c->ranks[i].client, zerod_reduce_skip(w.second.at[i], NULL, NULL));
	}
	contract_run(w.c, step_with_a_ticket, &w);
	contract_close(w.c);
}

/* Compares the scalars in device memory, as a kernel would read them. */
static void expect_scalars(struct contract_rank *rank, float overflow, float norm_squared)
{
	struct zerod_step_scalars scalars = ZEROD_INIT(scalars);
	float values[2];

	OK(rank->client, zerod_step_scalars_get(rank->group, &scalars));
	contract_read(NULL, &values[0], scalars.overflow, sizeof(float));
	contract_read(NULL, &values[1], scalars.norm_squared, sizeof(float));
	CHECK(values[0] == overflow && (overflow != 0 || values[1] == norm_squared));
}

static void step_with_scalars(struct contract_rank *rank, void *arg)
{
	struct zerod_step_options options = ZEROD_INIT(options);
	struct zerod_step_info info = ZEROD_INIT(info);
	const struct contract_world *w = arg;

	options.flags = ZEROD_STEP_SCALARS;
	OK(rank->client, zerod_step_begin(rank->group, &options, &info, NULL));
	expect_scalars(rank, 0, (float)contract_norm_squared(&w->first, CONTRACT_ALL(w->c), 2));
	contract_step_end(rank);
}

/* With a ticket they are there when the stream may go on, without one when the call returns. */
CONTRACT_TEST(test_scalars_for_kernels)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct zerod_step_options options = ZEROD_INIT(options);
	struct zerod_step_scalars scalars = ZEROD_INIT(scalars);
	zerod_ticket ends[WORLD_RANKS], tickets[WORLD_RANKS];
	struct contract_gate *gates[WORLD_RANKS];
	struct contract_world w;

	contract_open_world(&w);
	options.flags = ZEROD_STEP_SCALARS;
	for (uint32_t step = 0; step < 2; step++) {
		const float factor = step == 0 ? 1 : INFINITY;
		const double norm = contract_norm_squared(&w.first, CONTRACT_ALL(w.c), 1);

		contract_backward_all(w.c, 3, true);
		for (uint32_t i = 0; i < WORLD_RANKS; i++) {
			struct contract_rank *rank = &w.c->ranks[i];

			gates[i] = contract_block(rank, w.streams[i]);
			reduce(&w, i, factor);
			OK(rank->client, zerod_backward_end(rank->group, NULL, &ends[i]));
			OK(rank->client, zerod_step_begin(rank->group, &options, NULL, &tickets[i]));
		}
		for (uint32_t i = 0; i < WORLD_RANKS; i++)
			OK(w.c->ranks[i].client,
			   zerod_wait(w.c->ranks[i].client, tickets[i], w.streams[i], NULL));
		for (uint32_t i = 0; i < WORLD_RANKS; i++)
			contract_unblock(gates[i]);
		for (uint32_t i = 0; i < WORLD_RANKS; i++) {
			struct contract_rank *rank = &w.c->ranks[i];

			OK(rank->client, zerod_stream_synchronize(w.streams[i]));
			expect_scalars(rank, step == 0 ? 0 : 1, (float)norm);
			OK(rank->client, zerod_wait(rank->client, ends[i], NULL, NULL));
			OK(rank->client, zerod_step_end(rank->group, &w.streams[i], 1, NULL));
			FAILS(rank->client, zerod_step_scalars_get(rank->group, &scalars), ZEROD_E_STATE,
			      "ZEROD_STEP_SCALARS");
		}
	}
	contract_backward_all(w.c, 3, true);
	for (uint32_t i = 0; i < WORLD_RANKS; i++) {
		contract_reduce(&w.c->ranks[i], w.buckets[i], &w.first, 2, NULL);
		OK(w.c->ranks[i].client, zerod_reduce_skip(w.second.at[i], NULL, NULL));
	}
	contract_backward_end_all(w.c);
	contract_run(w.c, step_with_scalars, &w);
	assert_int_equal(contract_devices(w.c).target_bytes, 0);
	contract_close(w.c);
}

CONTRACT_TEST(test_arguments)
{
	struct zerod_step_info info = ZEROD_INIT(info);
	struct contract_rank *rank;
	zerod_ticket ticket;
	struct contract_world w;

	contract_open_world(&w);
	rank = &w.c->ranks[0];
	FAILS(rank->client, zerod_step_get(rank->group, NULL, &info), ZEROD_E_STATE, "has begun no step");
	FAILS(rank->client, zerod_step_get(rank->group, NULL, NULL), ZEROD_E_INVALID, "info");
	FAILS(rank->client, zerod_step_begin(rank->group, NULL, &info, &ticket), ZEROD_E_INVALID, "info");
	OK(rank->client, zerod_step_begin(rank->group, NULL, NULL, &ticket));
	FAILS(rank->client, zerod_wait(rank->client, ticket, NULL, NULL), ZEROD_E_STATE,
	      "no backward of rank 0 has ended since its last step");
	contract_close(w.c);
}

int main(void)
{
	(void)setenv("ZEROD_RUN_AHEAD", "1",
	             1); /* streams are held here, and pageable memory is not copied to */
	return test_run(NULL, NULL);
}
