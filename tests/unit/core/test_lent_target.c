/* SPDX-License-Identifier: Apache-2.0 */
/* test_lent_target.c - places of targets that ranks access before the step. */
#include "tests/support/core_reduce.h"

#define NRANKS 2u

#define SCENE_TEST(name)                                                                                     \
	CORE_RIG_TEST(name, struct core_scene, s, core_scene_open(s, NRANKS, 1, NULL), core_rig_end)

static bool passed(struct core_scene *s, uint32_t rank, struct zd_fence fence)
{
	return core_timeline(s->core, s->g.team.session[rank], fence.timeline) >= fence.value;
}

/* The answer comes when all ranks have contributed, its fence passes when the rank's own slice is stored. */
SCENE_TEST(test_the_answer_comes_first)
{
	core_reducers_begin(&s->g, 3, true);
	core_hold(s->core, ZD_CMD_REDUCE);
	core_reduce(&s->g, 0, s->unit, 1.0f);
	uint64_t waits = core_wait_sum(&s->g.team, 0, s->unit, true);
	assert_null(core_reply(s->core, waits));
	core_expect_waits(s->core, waits, "unit 'w' (rank 1)");
	core_reduce(&s->g, 1, s->unit, 1.0f);
	const struct zd_fence fence = core_expect(s->core, waits, 0)->fence;
	assert_int_not_equal(fence.value, 0);
	assert_false(passed(s, 0, fence));
	core_unhold(s->core, ZD_CMD_REDUCE);
	assert_true(passed(s, 0, fence));
	core_reducers_end(&s->g);
	assert_int_equal(core_expect(s->core, core_wait_sum(&s->g.team, 1, s->unit, true), 0)->fence.value,
	                 0);
}

/* A lent place, and one whose readers have not passed, takes no sum; other ranks' slices are stored. */
SCENE_TEST(test_no_sum_under_a_reader)
{
	core_reducers_begin(&s->g, 3, true);
	core_reduce_all(&s->g, s->unit, 1.0f);
	core_reducers_end(&s->g);
	core_expect(s->core, core_wait_sum(&s->g.team, 0, s->unit, false), 0);
	core_reducers_begin(&s->g, 3, true);
	uint64_t sums = core_count(s->core, ZD_CMD_REDUCE);
	core_reduce_all(&s->g, s->unit, 1.0f);
	assert_int_equal(core_count(s->core, ZD_CMD_REDUCE), sums + 1);
	const struct zd_fence reader = {1, 7};
	core_expect(s->core, core_return_sum(&s->g.team, 0, s->unit, &reader), 0);
	assert_int_equal(core_count(s->core, ZD_CMD_REDUCE), sums + 1);
	core_pass(s->core, s->g.team.session[0], reader.timeline, reader.value);
	assert_int_equal(core_count(s->core, ZD_CMD_REDUCE), sums + 2);
	core_expect(s->core, core_wait_sum(&s->g.team, 0, s->unit, false), 0);
	core_reducers_end(&s->g);
	core_reducers_begin(&s->g, 3, true);
	core_reduce_all(&s->g, s->unit, 1.0f);
	assert_int_equal(core_count(s->core, ZD_CMD_REDUCE), sums + 3);
	core_expect(s->core, core_return_sum(&s->g.team, 0, s->unit, NULL), 0);
	assert_int_equal(core_count(s->core, ZD_CMD_REDUCE), sums + 4);
	core_reducers_end(&s->g);
}

/* Another rank abandons the window: the place stays until it is returned and its reader has passed. */
SCENE_TEST(test_a_place_of_an_abandoned_window)
{
	const struct zd_fence reader = {1, 7};
	core_reducers_begin(&s->g, 3, true);
	core_reduce_all(&s->g, s->unit, 1.0f);
	core_reducers_end(&s->g);
	core_expect(s->core, core_wait_sum(&s->g.team, 0, s->unit, false), 0);
	uint64_t target_bytes = core_usage(s->core).target_bytes;
	core_do(s->core, s->g.team.session[1], ZD_REQ_BACKWARD_ABANDON, s->g.team.group);
	assert_int_equal(core_usage(s->core).target_bytes, target_bytes / NRANKS);
	core_expect(s->core, core_return_sum(&s->g.team, 0, s->unit, &reader), 0);
	assert_int_equal(core_usage(s->core).target_bytes, 0);
	assert_int_not_equal(core_quarantine(s->core, 0), 0);
	core_pass(s->core, s->g.team.session[0], reader.timeline, reader.value);
	assert_int_equal(core_quarantine(s->core, 0), 0);
}

/* A step of rank 0 that is given up when its deadline passes. */
static void give_up_step(struct core_scene *s, const char *waits_for)
{
	struct zd_args args = {.kind = ZD_REQ_STEP_BEGIN, .u.step_begin = {.group = s->g.team.group}};
	uint64_t step = core_send_until(s->core, s->g.team.session[0], 5, &args);
	core_tick(s->core, 5);
	core_expect_error(s->core, step, ZEROD_E_DEADLINE, waits_for);
}

/* A step that was given up still zeroes the target: sums of a further backward wait. */
SCENE_TEST(test_no_sum_under_a_fill)
{
	s->unit = core_reducers_unit(&s->g, "x", NRANKS * 64);
	core_reducers_begin(&s->g, 3, true);
	core_reducers_end(&s->g);
	core_hold(s->core, ZD_CMD_FILL);
	give_up_step(s, "zeroed");
	core_reducers_begin(&s->g, 3, true);
	uint32_t sums = core_count(s->core, ZD_CMD_REDUCE);
	core_reduce_all(&s->g, s->unit, 1.0f);
	assert_int_equal(core_pending(s->core, ZD_CMD_REDUCE),
	                 0); /* rank 1 waits for a piece behind the fill */
	core_unhold(s->core, ZD_CMD_FILL);
	assert_int_equal(core_count(s->core, ZD_CMD_REDUCE), sums + 2);
	core_reducers_end(&s->g);
}

static uint64_t begin_step(struct core_scene *s, uint32_t rank)
{
	struct zd_args args = {.kind = ZD_REQ_STEP_BEGIN,
	                       .u.step_begin = {.group = s->g.team.group, .ahead = true}};
	return core_send(s->core, s->g.team.session[rank], &args);
}

static void end_backward(struct core_scene *s)
{
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		(void)core_backward_end(&s->g.team, rank);
}

/* A rank that has begun the step gets no sum while another one may still give the window up. */
SCENE_TEST(test_a_sum_in_a_step)
{
	core_reducers_begin(&s->g, 3, true);
	core_hold(s->core, ZD_CMD_REDUCE);
	core_reduce_all(&s->g, s->unit, 1.0f);
	end_backward(s);
	uint64_t step = begin_step(s, 0), waits = core_wait_sum(&s->g.team, 0, s->unit, false);
	core_expect_waits(s->core, waits, "rank 1 to begin the step");
	core_unhold(s->core, ZD_CMD_REDUCE);
	assert_null(core_reply(s->core, waits));
	core_expect(s->core, begin_step(s, 1), 0);
	const struct zd_location lent = core_expect(s->core, waits, 0)->place;
	const struct zd_location *target = &core_expect(s->core, step, 0)->target;
	assert_int_equal(lent.segment, target->segment);
	assert_int_equal(lent.offset, target->offset);
	core_expect(s->core, core_wait_sum(&s->g.team, 1, s->unit, false), 0); /* the step is taken */
	uint64_t unit = s->unit;
	s->unit = core_reducers_unit(&s->g, "later", CORE_NUMEL);
	core_expect_error(s->core, core_wait_sum(&s->g.team, 1, s->unit, false), ZEROD_E_STATE,
	                  "the step of rank 1 has no sum of unit 'later'");
	s->unit = unit;
	core_reducers_step_end(&s->g);
	core_expect_error(s->core, core_wait_sum(&s->g.team, 1, s->unit, false), ZEROD_E_STATE,
	                  "neither reduced nor skipped");
}

/* All have begun the step: a sum is there before another one is. */
SCENE_TEST(test_a_sum_before_the_last)
{
	uint64_t other = s->unit, step = 0;
	s->unit = core_reducers_unit(&s->g, "x", CORE_NUMEL);
	core_reducers_begin(&s->g, 3, true);
	core_reduce_all(&s->g, other, 1.0f);
	core_hold(s->core, ZD_CMD_REDUCE);
	core_reduce_all(&s->g, s->unit, 1.0f);
	end_backward(s);
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		step = begin_step(s, rank);
	uint64_t last = core_wait_sum(&s->g.team, 0, s->unit, false);
	s->unit = other;
	core_expect(s->core, core_wait_sum(&s->g.team, 0, s->unit, false), 0);
	assert_null(core_reply(s->core, last));
	core_unhold(s->core, ZD_CMD_REDUCE);
	core_expect(s->core, last, 0);
	core_expect(s->core, step, 0);
	core_reducers_step_end(&s->g);
}

/* The rank that was missing gives the window up. */
SCENE_TEST(test_no_sum_of_an_abandoned_step)
{
	core_reducers_begin(&s->g, 3, true);
	core_reduce_all(&s->g, s->unit, 1.0f);
	end_backward(s);
	uint64_t step = begin_step(s, 0), waits = core_wait_sum(&s->g.team, 0, s->unit, false);
	core_do(s->core, s->g.team.session[1], ZD_REQ_BACKWARD_ABANDON, s->g.team.group);
	core_expect_error(s->core, waits, ZEROD_E_STATE, "rank 1 has abandoned");
	assert_true(core_expect(s->core, step, 0)->u.step_begin.abandoned);
	core_expect_error(s->core, core_wait_sum(&s->g.team, 0, s->unit, false), ZEROD_E_STATE,
	                  "rank 1 has abandoned");
}
