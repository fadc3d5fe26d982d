/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_pr8036.c - gradient targets and buckets live for a step, not for a run.
 *
 * Upstream, targets that compilation had set up stayed bound into the optimizer's step, and bucket storage
 * stayed when the backward's first graph reduced nothing. Here a target is there from the backward that
 * reduces to the end of the step, and a bucket's storage from its first entry to the end of its backward.
 */
#include "contract_reduce.h"

#include <math.h>

#include "base/mem.h"

static uint64_t flat_target_bytes(const struct contract_world *w)
{
	return WORLD_RANKS * (w->first.shard_numel + w->second.shard_numel) * sizeof(float);
}

/* Neither targets nor buckets nor staging. */
static void expect_nothing_held(struct contract_world *w)
{
	struct contract_device all = contract_devices(w->c);

	assert_int_equal(all.target_bytes, 0);
	assert_int_equal(all.bucket_bytes, 0);
	assert_int_equal(all.staging_bytes, 0);
}

/* ---- Between steps ------------------------------------------------------------------------------------- */

CONTRACT_TEST(test_nothing_is_held_between_steps)
{
	struct contract_world w;

	contract_open_world(&w);
	expect_nothing_held(&w);
	for (uint32_t step = 1; step <= 3; step++) {
		contract_backward_all(w.c, 3, true);
		assert_int_equal(contract_devices(w.c).target_bytes, flat_target_bytes(&w));
		assert_int_equal(contract_devices(w.c).bucket_bytes, 0); /* until an entry needs it */
		contract_reduce_all(&w, &w.first, (float)step);
		assert_int_not_equal(contract_devices(w.c).bucket_bytes, 0);
		contract_reduce_all(&w, &w.second, 1);
		contract_backward_end_all(w.c);
		assert_int_equal(contract_devices(w.c).bucket_bytes, 0);
		assert_int_equal(contract_devices(w.c).staging_bytes, 0);
		assert_int_equal(contract_devices(w.c).target_bytes, flat_target_bytes(&w));
		contract_expect_sums(&w, (float)step, 1);
		expect_nothing_held(&w);
	}
	contract_close(w.c);
}

/* Leaves garbage in the target, as an optimizer may, and runs the next window. */
static void spoil_and_end(struct contract_rank *rank, void *arg)
{
	const struct contract_unit *unit = arg;
	struct zerod_target target = ZEROD_INIT(target);
	float *spoilt;

	(void)contract_step(rank);
	OK(rank->client, zerod_target_get(unit->at[rank->number], &target));
	spoilt = zd_calloc(target.shard_numel, sizeof(*spoilt));
	memset(spoilt, 0x41, target.shard_numel * sizeof(*spoilt));
	contract_write(NULL, target.data, spoilt, target.shard_numel * sizeof(*spoilt));
	free(spoilt);
	contract_step_end(rank);
	FAILS(rank->client, zerod_target_get(unit->at[rank->number], &target), ZEROD_E_STATE, "no target");
}

CONTRACT_TEST(test_every_window_begins_with_zeros)
{
	struct contract_world w;

	contract_open_world(&w);
	contract_backward_all(w.c, 3, true);
	contract_reduce_all(&w, &w.first, 3);
	contract_reduce_all(&w, &w.second, 3);
	contract_backward_end_all(w.c);
	contract_run(w.c, spoil_and_end, &w.first);
	expect_nothing_held(&w);
	contract_backward_all(w.c, 3, true);
	contract_reduce_all(&w, &w.first, 1);
	contract_skip_all(&w, &w.second);
	contract_backward_end_all(w.c);
	contract_expect_sums(&w, 1, 0);
	contract_close(w.c);
}

/* One flat buffer a rank, each unit's slice at its offset. */
static void check_layout(struct contract_rank *rank, void *arg)
{
	const struct contract_world *w = arg;
	struct zerod_target first = ZEROD_INIT(first), second = ZEROD_INIT(second);

	(void)contract_step(rank);
	OK(rank->client, zerod_target_get(w->first.at[rank->number], &first));
	OK(rank->client, zerod_target_get(w->second.at[rank->number], &second));
	CHECK((float *)second.data == (float *)first.data + w->first.shard_numel);
	CHECK(first.shard_numel == w->first.shard_numel && second.shard_numel == w->second.shard_numel);
	CHECK(second.true_numel == (rank->number == 0 ? 3 : 0));
	contract_step_end(rank);
}

CONTRACT_TEST(test_target_is_one_flat_buffer)
{
	struct zerod_unit_options frozen = ZEROD_INIT(frozen);
	struct contract_unit unit;
	struct zerod_target target = ZEROD_INIT(target);
	struct contract_world w;

	contract_open_world(&w);
	frozen.name = "frozen";
	frozen.dtype = ZEROD_FLOAT32;
	frozen.numel = WORLD_NUMEL;
	frozen.flags = ZEROD_UNIT_FROZEN;
	contract_unit(w.c, &frozen, &unit);
	contract_backward_all(w.c, 3, true);
	assert_int_equal(contract_devices(w.c).target_bytes,
	                 flat_target_bytes(&w)); /* nothing for the frozen one */
	FAILS(w.c->ranks[0].client, zerod_reduce_skip(unit.at[0], NULL, NULL), ZEROD_E_INVALID,
	      "unit 'frozen' is frozen");
	FAILS(w.c->ranks[0].client, zerod_target_get(unit.at[0], &target), ZEROD_E_INVALID, "frozen");
	FAILS(w.c->ranks[0].client, zerod_target_get(w.first.at[0], &target), ZEROD_E_STATE, "no target");
	contract_reduce_all(&w, &w.first, 1);
	contract_reduce_all(&w, &w.second, 1);
	contract_backward_end_all(w.c);
	contract_run(w.c, check_layout, &w);
	contract_close(w.c);
}

/* A stream still copies from the target when the step ends: the bytes are off the account, the block is not
 * free. */
CONTRACT_TEST(test_target_waits_for_its_readers)
{
	struct contract_world w;
	struct contract_rank *rank;
	zerod_stream *stream;
	struct contract_gate *gate;
	struct zerod_target target = ZEROD_INIT(target);
	struct contract_task *task;
	float seen[3];

	contract_open_world(&w);
	rank = &w.c->ranks[0];
	stream = contract_stream(rank);
	contract_backward_all(w.c, 3, true);
	contract_reduce_all(&w, &w.first, 1);
	contract_reduce_all(&w, &w.second, 1);
	contract_backward_end_all(w.c);
	task = contract_start(&w.c->ranks[1], spoil_and_end, &w.first);
	(void)contract_step(rank);
	contract_finish(task);
	OK(rank->client, zerod_target_get(w.second.at[0], &target));
	gate = contract_block(rank, stream);
	contract_read(stream, seen, target.data, sizeof(seen));
	OK(rank->client, zerod_step_end(rank->group, &stream, 1, NULL));
	assert_int_equal(contract_device(w.c, contract_memory_of(rank)).target_bytes, 0);
	assert_int_equal(contract_device(w.c, contract_memory_of(rank)).quarantine_bytes,
	                 flat_target_bytes(&w) / WORLD_RANKS);
	contract_backward_all(w.c, 3, true); /* zeroes a target of its own */
	contract_unblock(gate);
	contract_sync(rank, stream);
	for (uint64_t i = 0; i < 3; i++)
		assert_true(seen[i] == contract_gradient(0, i) + contract_gradient(1, i));
	contract_reduce_all(&w, &w.first, 2);
	contract_reduce_all(&w, &w.second, 2);
	contract_backward_end_all(w.c);
	contract_expect_sums(&w, 2, 2);
	contract_close(w.c);
}

/* ---- Parts of a backward that reduce nothing ----------------------------------------------------------- */

/* A part is what one graph does between two breaks: gathers, and perhaps reductions. */
static void run_part(struct contract_world *w, bool reduces)
{
	for (uint32_t i = 0; i < WORLD_RANKS; i++)
		contract_expect_version(&w->c->ranks[i], &w->first, 1);
	if (!reduces)
		return;
	contract_reduce_all(w, &w->first, 1);
	contract_reduce_all(w, &w->second, 1);
}

CONTRACT_TEST(test_buckets_go_whichever_part_reduces)
{
	struct contract_world w;

	contract_open_world(&w);
	contract_publish_all(w.c, &w.first);
	for (uint32_t reducing = 0; reducing < 3; reducing++) {
		contract_backward_all(w.c, 1, true);
		for (uint32_t part = 0; part < 3; part++)
			run_part(&w, part == reducing);
		contract_backward_end_all(w.c);
		assert_int_equal(contract_devices(w.c).bucket_bytes, 0);
		contract_expect_sums(&w, 1, 1);
		expect_nothing_held(&w);
	}
	/* No part at all. */
	contract_backward_all(w.c, 1, true);
	contract_backward_end_all(w.c);
	contract_expect_sums(&w, 0, 0);
	expect_nothing_held(&w);
	contract_close(w.c);
}

/* ---- Stages -------------------------------------------------------------------------------------------- */

#define MICRO_STEPS 4u

/* Stage 1 sums its micro-steps itself and reduces on the boundary; the others reduce every time. */
static void accumulate(struct contract_world *w, uint32_t stage)
{
	struct zerod_entry entry = ZEROD_INIT(entry);

	for (uint32_t step = 0; step < MICRO_STEPS; step++) {
		bool boundary = step == MICRO_STEPS - 1;

		contract_backward_all(w->c, stage, boundary);
		if (stage == 1 && !boundary) {
			expect_nothing_held(w);
			FAILS(w->c->ranks[0].client,
			      zerod_bucket_reserve(w->buckets[0], w->first.at[0], NULL, &entry),
			      ZEROD_E_STATE, "stage 1 reduces only in the boundary backward");
			FAILS(w->c->ranks[0].client, zerod_reduce_skip(w->first.at[0], NULL, NULL),
			      ZEROD_E_STATE, "stage 1 reduces only in the boundary backward");
		} else {
			assert_int_equal(contract_devices(w->c).target_bytes, flat_target_bytes(w));
			contract_reduce_all(w, &w->first, stage == 1 ? MICRO_STEPS : 1);
			contract_reduce_all(w, &w->second, stage == 1 ? MICRO_STEPS : 1);
		}
		contract_backward_end_all(w->c);
		assert_int_equal(contract_devices(w->c).bucket_bytes, 0);
	}
}

CONTRACT_TEST(test_accumulation_in_every_stage)
{
	struct contract_world w;

	contract_open_world(&w);
	for (uint32_t stage = 1; stage <= 3; stage++) {
		accumulate(&w, stage);
		contract_expect_sums(&w, MICRO_STEPS, MICRO_STEPS);
		expect_nothing_held(&w);
	}
	contract_close(w.c);
}

CONTRACT_TEST(test_backwards_and_steps_take_turns)
{
	struct contract_world w;
	struct contract_rank *rank;
	struct zerod_step_info info = ZEROD_INIT(info);
	struct zerod_backward_options other = ZEROD_INIT(other);

	contract_open_world(&w);
	rank = &w.c->ranks[0];
	FAILS(rank->client, zerod_step_begin(rank->group, NULL, &info, NULL), ZEROD_E_STATE,
	      "no backward of rank 0");
	FAILS(rank->client, zerod_step_end(rank->group, NULL, 0, NULL), ZEROD_E_STATE, "has begun no step");
	FAILS(rank->client, zerod_backward_end(rank->group, NULL, NULL), ZEROD_E_STATE, "runs no backward");
	contract_backward_all(w.c, 3, false);
	other.stage = 3;
	FAILS(rank->client, zerod_backward_begin(rank->group, &other), ZEROD_E_STATE,
	      "backward 1 of rank 0 runs");
	contract_backward_end_all(w.c);
	other.stage = 2;
	FAILS(rank->client, zerod_backward_begin(rank->group, &other), ZEROD_E_MISMATCH, "in stage 3");
	contract_backward_all(w.c, 3, false);
	contract_reduce_all(&w, &w.first, 1);
	contract_reduce_all(&w, &w.second, 1);
	contract_backward_end_all(w.c);
	contract_expect_sums(&w, 1, 1);
	contract_close(w.c);
}

/* ---- Targets that are not ------------------------------------------------------------------------------ */

static void take_step(struct contract_rank *rank, void *arg)
{
	(void)arg;
	(void)contract_step(rank);
}

static void begin_step(struct contract_world *w)
{
	contract_backward_all(w->c, 3, true);
	contract_reduce_all(w, &w->first, 1);
	contract_reduce_all(w, &w->second, 1);
	contract_backward_end_all(w->c);
	contract_run(w->c, take_step, NULL);
}

/* The step's target was bound without it. */
CONTRACT_TEST(test_a_unit_of_the_next_step)
{
	struct zerod_unit_options options = ZEROD_INIT(options);
	struct contract_rank *rank;
	struct zerod_target target = ZEROD_INIT(target);
	struct contract_world w;
	zerod_unit *late;

	contract_open_world(&w);
	rank = &w.c->ranks[0];
	begin_step(&w);
	options.name = "late", options.dtype = ZEROD_FLOAT32, options.numel = 100000;
	OK(rank->client, zerod_unit_register(rank->group, &options, &late));
	FAILS(rank->client, zerod_target_get(late, &target), ZEROD_E_STATE, "'late' was registered after");
	OK(rank->client, zerod_target_get(w.first.at[0], &target));
	contract_close(w.c);
}

static void replace(struct contract_rank *rank, void *arg)
{
	(void)arg;
	contract_replace(rank);
}

/* Rank 0, in a step of its own. */
static struct contract_rank *open_step(struct contract_world *w, struct zerod_target *target)
{
	contract_needs(CONTRACT_ONE_SIDED);
	contract_open_world(w);
	begin_step(w);
	OK(w->c->ranks[0].client, zerod_target_get(w->first.at[0], SIZED(target)));
	return &w->c->ranks[0];
}

/* It is there for streams that use it until the next backward begins. */
CONTRACT_TEST(test_a_failed_groups_target)
{
	struct zerod_target target = ZEROD_INIT(target);
	struct contract_rank *rank;
	struct contract_world w;

	rank = open_step(&w, &target);
	contract_leave(&w.c->ranks[1]);
	AWAIT(zerod_backward_begin(rank->group, NULL) == ZEROD_E_PEER_LOST);
	OK(rank->client, zerod_target_get(w.first.at[0], &target));
	contract_finish(contract_start(&w.c->ranks[1], replace, NULL));
	OK(rank->client, zerod_backward_begin(rank->group, NULL));
	FAILS(rank->client, zerod_target_get(w.first.at[0], &target), ZEROD_E_STATE, "no target outside");
	contract_close(w.c);
}

/* It gives the target of a failed group back, and no other. */
CONTRACT_TEST(test_a_reset_in_a_step)
{
	struct zerod_target target = ZEROD_INIT(target), same = ZEROD_INIT(same);
	struct contract_rank *rank;
	struct contract_world w;

	rank = open_step(&w, &target);
	OK(rank->client, zerod_session_reset(rank->client, NULL));
	OK(rank->client, zerod_target_get(w.first.at[0], &same));
	assert_ptr_equal(same.data, target.data);
	contract_leave(&w.c->ranks[1]);
	AWAIT(zerod_backward_begin(rank->group, NULL) == ZEROD_E_PEER_LOST);
	OK(rank->client, zerod_target_get(w.first.at[0], &target));
	OK(rank->client, zerod_session_reset(rank->client, NULL));
	FAILS(rank->client, zerod_target_get(w.first.at[0], &target), ZEROD_E_STATE, "no target outside");
	contract_close(w.c);
}
