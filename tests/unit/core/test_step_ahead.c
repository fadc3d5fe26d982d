/* SPDX-License-Identifier: Apache-2.0 */
/* test_step_ahead.c - steps that are asked for while backwards end, and answered with a promise. */
#include "tests/support/core_reduce.h"

#define NRANKS 2u

/* All ranks end a backward whose sums are held; the other unit is skipped, so that its place is zeroed. */
static void open_scene(struct core_scene *s, const struct core_options *options)
{
	core_scene_open(s, NRANKS, 2, options);
	core_hold(s->core, ZD_CMD_REDUCE);
}

#define SCENE_TEST(name) CORE_RIG_TEST(name, struct core_scene, s, open_scene(s, NULL), core_rig_end)

static uint64_t end(struct core_scene *s, uint32_t rank, uint64_t deadline_ns)
{
	struct zd_args args = {.kind = ZD_REQ_BACKWARD_END, .u.backward_end.group = s->g.team.group};
	return core_send_until(s->core, s->g.team.session[rank], deadline_ns, &args);
}

static void backward(struct core_scene *s)
{
	core_reducers_begin(&s->g, 3, true);
	core_reduce_all(&s->g, s->unit, 1.0f);
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		s->end[rank] = end(s, rank, rank == 0 ? 9 : 0);
}

static uint64_t step(struct core_scene *s, uint32_t rank, bool ahead, uint64_t deadline_ns)
{
	struct zd_args args = {.kind = ZD_REQ_STEP_BEGIN,
	                       .u.step_begin = {.group = s->g.team.group, .ahead = ahead}};
	return core_send_until(s->core, s->g.team.session[rank], deadline_ns, &args);
}

static uint64_t get(struct core_scene *s, uint32_t rank)
{
	return core_simple(s->core, s->g.team.session[rank], ZD_REQ_STEP_GET, s->g.team.group);
}

static bool passed(struct core_scene *s, uint32_t rank, uint64_t request)
{
	const struct zd_reply *reply = core_expect(s->core, request, 0);
	struct zd_fence fence = reply->fence;
	assert_int_not_equal(fence.value, 0);
	return core_timeline(s->core, s->g.team.session[rank], fence.timeline) >= fence.value;
}

static void promise_all(struct core_scene *s, uint64_t steps[NRANKS])
{
	backward(s);
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		steps[rank] = step(s, rank, true, 0);
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		assert_false(passed(s, rank, steps[rank]));
}

/* The answer comes with the last rank's call, the fence with the sums and the zeros, the info then too. */
SCENE_TEST(test_the_answer_comes_first)
{
	uint64_t steps[NRANKS];
	for (uint64_t number = 1; number <= 2; number++) {
		core_hold(s->core, ZD_CMD_REDUCE);
		backward(s);
		steps[0] = step(s, 0, true, 0);
		assert_null(core_reply(s->core, steps[0]));
		steps[1] = step(s, 1, true, 0);
		for (uint32_t rank = 0; rank < NRANKS; rank++) {
			assert_false(passed(s, rank, steps[rank]));
			assert_int_equal(core_reply(s->core, steps[rank])->u.step_begin.step, number);
		}
		uint64_t info = get(s, 0);
		core_expect_waits(s->core, info, "the sums of rank 0's step");
		core_hold(s->core, ZD_CMD_FILL);
		core_unhold(s->core, ZD_CMD_REDUCE);
		core_expect(s->core, s->end[0], 0);
		assert_false(passed(s, 0, steps[0]) || passed(s, 1, steps[1]));
		core_unhold(s->core, ZD_CMD_FILL);
		for (uint32_t rank = 0; rank < NRANKS; rank++) {
			assert_true(passed(s, rank, steps[rank]));
			core_check_target(&s->g, rank, core_reply(s->core, steps[rank]), 0, 1.0f);
			assert_true(core_expect(s->core, get(s, rank), 0)->u.step_begin.norm_squared > 0.0);
		}
		assert_int_equal(core_expect(s->core, info, 0)->u.step_begin.step, number);
		core_reducers_step_end(&s->g);
		assert_int_equal(core_expect(s->core, get(s, 1), 0)->u.step_begin.step, number);
	}
}

/* A step is not answered ahead while a rank has not contributed: the request waits for that rank. */
SCENE_TEST(test_not_before_all_ranks_have_called)
{
	core_expect_error(s->core, get(s, 0), ZEROD_E_STATE, "rank 0 has begun no step");
	backward(s);
	core_expect_error(s->core, step(s, 1, false, 0), ZEROD_E_STATE, "backward 1 of rank 1 runs");
	uint64_t first = step(s, 0, true, 0);
	core_expect_waits(s->core, first, "first unit 'w'");
	core_unhold(s->core, ZD_CMD_REDUCE);
	core_expect_waits(s->core, first, "rank 1 to begin the step");
	core_expect(s->core, s->end[1], 0);
	core_expect(s->core, step(s, 1, false, 0), 0);
	core_check_target(&s->g, 0, core_expect(s->core, first, 0), 0, 1.0f);
	core_reducers_step_end(&s->g);
}

/* Staging may wait for memory, and so for calls: no promise is made before every slice has its own. */
TEST(test_not_before_staging_is_there)
{
	struct core_scene s;
	uint64_t steps[NRANKS], entries[NRANKS][2];
	core_scene_open(&s, NRANKS, 2, &(struct core_options){.staging_bytes = 1});
	core_reducers_begin(&s.g, 3, true);
	for (uint32_t rank = 0; rank < NRANKS; rank++) {
		entries[rank][0] = core_put(&s.g, rank, s.unit, 1.0f);
		entries[rank][1] = core_put(&s.g, rank, s.other, 1.0f);
	}
	core_hold(s.core, ZD_CMD_COPY);
	for (uint32_t i = 0; i < 2 * NRANKS; i++)
		core_expect(s.core, core_submit(&s.g, i % 2, entries[i % 2][i / 2], NULL), 0);
	for (uint32_t rank = 0; rank < NRANKS; rank++) {
		s.end[rank] = end(&s, rank, 0);
		steps[rank] = step(&s, rank, true, 0);
	}
	assert_null(core_reply(s.core, steps[0]));
	core_run_one(s.core, ZD_CMD_COPY);
	core_run_one(s.core, ZD_CMD_COPY);
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		assert_false(passed(&s, rank, steps[rank]));
	core_unhold(s.core, ZD_CMD_COPY);
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		assert_true(passed(&s, rank, steps[rank]));
	core_reducers_step_end(&s.g);
	core_end(s.core);
}

/* A process whose stream waits for the promise may be unable to launch. */
SCENE_TEST(test_not_before_the_sums_are_launched)
{
	uint64_t steps[NRANKS];
	core_set_sums(s->core, ZD_SUMS_NONE);
	core_hold(s->core, ZD_CMD_COPY);
	backward(s);
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		steps[rank] = step(s, rank, true, 0);
	core_expect_waits(s->core, steps[0], ""); /* the sums' pieces are on their way */
	core_unhold(s->core, ZD_CMD_COPY);
	core_set_sums(s->core, ZD_SUMS_ASKED);
	core_expect_waits(s->core, steps[0], "");
	core_set_sums(s->core, ZD_SUMS_LAUNCHED);
	assert_false(passed(s, 0, steps[0]) || passed(s, 1, steps[1]));
	core_unhold(s->core, ZD_CMD_REDUCE);
	assert_true(passed(s, 0, steps[0]) && passed(s, 1, steps[1]));
	core_reducers_step_end(&s->g);
}

SCENE_TEST(test_the_step_ends_the_backward)
{
	uint64_t steps[NRANKS];
	promise_all(s, steps);
	core_tick(s->core, 9);
	core_expect(s->core, s->end[0], ZEROD_E_DEADLINE);
	core_unhold(s->core, ZD_CMD_REDUCE);
	assert_true(passed(s, 0, steps[0]));
	core_expect(s->core, get(s, 0), 0);
	core_reducers_step_end(&s->g);
}

/* Before the answer a step is as if it had not been asked for. */
SCENE_TEST(test_a_deadline_before_the_answer)
{
	backward(s);
	uint64_t late = step(s, 1, true, 7);
	core_tick(s->core, 7);
	core_expect(s->core, late, ZEROD_E_DEADLINE);
	late = step(s, 0, true, 11);
	core_tick(s->core, 9);
	core_expect(s->core, s->end[0], ZEROD_E_DEADLINE);
	core_tick(s->core, 11);
	core_expect(s->core, late, ZEROD_E_DEADLINE);
	s->end[0] = end(s, 0, 0); /* nothing ended it meanwhile */
	core_unhold(s->core, ZD_CMD_REDUCE);
	core_expect(s->core, s->end[0], 0);
	core_expect(s->core, s->end[1], 0);
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		late = step(s, rank, false, 0);
	core_check_target(&s->g, 1, core_expect(s->core, late, 0), 0, 1.0f);
	core_reducers_step_end(&s->g);
}

static void expect_failed(struct core_scene *s, uint64_t promised, int status, const char *text)
{
	assert_true(passed(s, 0, promised));
	core_expect_error(s->core, get(s, 0), status, text);
	assert_true(core_usage(s->core).target_bytes > 0); /* its streams may read it */
	core_expect(s->core, core_step_end(&s->g.team, 0, NULL, 0), 0);
	core_expect_error(s->core, get(s, 0), status, text);
}

/* Rank 1's call without a ticket, on which rank 0's promise relies. */
SCENE_TEST(test_a_rank_gives_up)
{
	core_reducers_begin(&s->g, 3, true);
	core_expect(s->core, core_skip(&s->g.team, 0, s->unit), 0);
	core_expect(s->core, core_skip(&s->g.team, 1, s->unit), 0);
	core_reducers_end(&s->g);
	core_hold(s->core, ZD_CMD_FILL);
	uint64_t late = step(s, 1, false, 7), promised = step(s, 0, true, 8);
	assert_false(passed(s, 0, promised));
	core_tick(s->core, 8);
	core_expect(s->core, late, ZEROD_E_DEADLINE);
	assert_false(passed(s, 0, promised)); /* its target is being zeroed */
	core_unhold(s->core, ZD_CMD_FILL);
	expect_failed(s, promised, ZEROD_E_ABORTED, "rank 1 has given up the step");
	core_expect_error(s->core, core_backward(&s->g.team, 1, 3, true), ZEROD_E_ABORTED, "given up");
	core_unhold(s->core, ZD_CMD_REDUCE);
	core_reducers_begin(&s->g, 3, true);
}

SCENE_TEST(test_zeroing_fails)
{
	uint64_t steps[NRANKS];
	promise_all(s, steps);
	core_fail_next(s->core, ZD_CMD_FILL, ZEROD_E_DEVICE, "no device");
	core_unhold(s->core, ZD_CMD_REDUCE);
	assert_true(passed(s, 1, steps[1]));
	expect_failed(s, steps[0], ZEROD_E_DEVICE, "no device");
}

/* The streams go on, and their target stays until the step's end. */
SCENE_TEST(test_the_group_fails)
{
	uint64_t steps[NRANKS];
	promise_all(s, steps);
	core_close(s->core, s->g.team.session[1]);
	assert_true(passed(s, 0, steps[0]));
	assert_true(core_usage(s->core).target_bytes > 0);
	core_expect_error(s->core, get(s, 0), ZEROD_E_PEER_LOST, "rank 1");
	core_expect(s->core, core_step_end(&s->g.team, 0, NULL, 0), 0);
	assert_int_equal(core_usage(s->core).target_bytes, 0);
	core_unhold(s->core, ZD_CMD_REDUCE);
}

/* Rank 1's request takes the step for both. Rank 0 ends the step, or closes, before its own requests are
 * tried again. */
TEST(test_the_step_is_over_before_its_request)
{
	for (uint32_t i = 0; i < 48; i++) {
		struct core_scene s;
		open_scene(&s, &(struct core_options){.ndevices = 1, .end_step_objects = 1});
		backward(&s);
		uint64_t steps[NRANKS] = {step(&s, 0, true, 0), step(&s, 1, true, 0)};
		while (core_end_step(s.core, CORE_ALICE))
			;
		core_unhold(s.core, ZD_CMD_REDUCE);
		for (uint32_t n = 0; n < i / 4; n++)
			(void)core_end_step(s.core, CORE_ALICE);
		uint64_t over = i % 2 ? core_step_end(&s.g.team, 0, NULL, 0) : 0;
		if (i & 2)
			core_close(s.core, s.g.team.session[0]);
		while (core_end_step(s.core, CORE_ALICE))
			;
		if (!(i & 2)) {
			core_expect(s.core, s.end[0], 0);
			assert_true(passed(&s, 0, steps[0]));
			core_expect(s.core, over ? over : core_step_end(&s.g.team, 0, NULL, 0), 0);
		}
		core_end(s.core);
	}
}

SCENE_TEST(test_a_promised_step_is_not_abandoned)
{
	uint64_t steps[NRANKS];
	promise_all(s, steps);
	core_expect_error(
	        s->core, core_simple(s->core, s->g.team.session[1], ZD_REQ_BACKWARD_ABANDON, s->g.team.group),
	        ZEROD_E_STATE, "all ranks have begun the step");
	core_unhold(s->core, ZD_CMD_REDUCE);
	core_reducers_step_end(&s->g);
}

/* Its fences, of streams that wait for the promise, do not keep the target from being written. */
SCENE_TEST(test_the_end_waits_for_the_sums)
{
	struct zd_fence fence = {0, 1};
	uint64_t steps[NRANKS];
	promise_all(s, steps);
	uint64_t request = core_step_end(&s->g.team, 0, &fence, 1);
	core_expect_waits(s->core, request, "the sums of rank 0's step");
	core_unhold(s->core, ZD_CMD_REDUCE);
	core_expect(s->core, request, 0);
	assert_true(passed(s, 0, steps[0]));
	core_expect(s->core, core_step_end(&s->g.team, 1, NULL, 0), 0);
	core_pass(s->core, s->g.team.session[0], 0, 1);
}
