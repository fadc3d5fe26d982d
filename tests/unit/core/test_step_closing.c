/* SPDX-License-Identifier: Apache-2.0 */
/* test_step_closing.c - windows that begin while the sums of the one before, and its step, are under way. */
#include "tests/support/core_reduce.h"

#define NRANKS 2u

/* The requests of a window, by rank. */
struct asked {
	uint64_t step[NRANKS], step_end[NRANKS];
};

static void open_scene(struct core_scene *s)
{
	core_scene_open(s, NRANKS, 2, &(struct core_options){.unordered = true});
	core_hold(s->core, ZD_CMD_REDUCE);
}

static uint64_t ask(struct core_scene *s, uint32_t rank, uint32_t kind)
{
	struct zd_args args = {.kind = kind, .u.step_begin.group = s->g.team.group};
	if (kind == ZD_REQ_STEP_BEGIN)
		args.u.step_begin.ahead = true;
	return core_send(s->core, s->g.team.session[rank], &args);
}

static bool passed(struct core_scene *s, uint32_t rank, const struct asked *asked)
{
	const struct zd_fence fence = core_expect(s->core, asked->step[rank], 0)->fence;
	assert_int_not_equal(fence.value, 0);
	return core_timeline(s->core, s->g.team.session[rank], fence.timeline) >= fence.value;
}

static void reduce_all(struct core_scene *s, uint64_t unit, float factor)
{
	core_reduce_all(&s->g, unit, factor);
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		s->end[rank] = ask(s, rank, ZD_REQ_BACKWARD_END);
}

/* Of the window that is running: its step is promised, its end asked for. */
static void step_all(struct core_scene *s, struct asked *asked)
{
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		asked->step[rank] = ask(s, rank, ZD_REQ_STEP_BEGIN);
	for (uint32_t rank = 0; rank < NRANKS; rank++) {
		assert_false(passed(s, rank, asked));
		asked->step_end[rank] = core_step_end(&s->g.team, rank, NULL, 0);
		assert_null(core_reply(s->core, asked->step_end[rank]));
	}
}

static void window(struct core_scene *s, uint64_t unit, float factor, struct asked *asked)
{
	core_reducers_begin(&s->g, 3, true);
	reduce_all(s, unit, factor);
	step_all(s, asked);
}

/* Sums of a first window are held while the second one's backward runs. */
static void open_second_window(struct core_scene *s, struct asked *first)
{
	open_scene(s);
	window(s, s->unit, 1.0f, first);
	core_reducers_begin(&s->g, 3, true);
}

static void expect_ended(struct core_scene *s, const struct asked *asked)
{
	for (uint32_t rank = 0; rank < NRANKS; rank++) {
		assert_true(passed(s, rank, asked));
		core_expect(s->core, asked->step_end[rank], 0);
	}
}

/* Both have a target, and both sums come to theirs. The second step is promised before the first is taken. */
TEST(test_two_windows)
{
	struct core_scene s;
	struct asked first, second;
	open_scene(&s);
	for (uint64_t number = 1; number <= 3; number += 2) {
		core_hold(s.core, ZD_CMD_REDUCE);
		window(&s, s.unit, 1.0f, &first);
		uint64_t bytes = core_usage(s.core).target_bytes;
		core_expect_error(s.core, core_step_end(&s.g.team, 0, NULL, 0), ZEROD_E_STATE,
		                  "has asked for its step's end already");
		window(&s, s.other, 3.0f, &second);
		assert_int_equal(core_usage(s.core).target_bytes, 2 * bytes);
		assert_int_equal(core_reply(s.core, first.step[0])->u.step_begin.step, number);
		assert_int_equal(core_reply(s.core, second.step[0])->u.step_begin.step, number + 1);
		core_expect_error(s.core, core_backward(&s.g.team, 0, 3, true), ZEROD_E_STATE, "runs");
		uint64_t info = ask(&s, 1, ZD_REQ_STEP_GET);
		core_expect_waits(s.core, info, "the sums of rank 1's step");
		core_unhold(s.core, ZD_CMD_REDUCE);
		expect_ended(&s, &first);
		expect_ended(&s, &second);
		for (uint32_t rank = 0; rank < NRANKS; rank++) {
			core_check_target(&s.g, rank, core_reply(s.core, first.step[rank]), 0, 1.0f);
			core_check_target(&s.g, rank, core_reply(s.core, second.step[rank]), s.g.shard_numel,
			                  3.0f);
		}
		assert_int_equal(core_expect(s.core, info, 0)->u.step_begin.step, number + 1);
		assert_int_equal(core_usage(s.core).target_bytes, 0);
	}
	core_end(s.core);
}

/* The second has no sums: its step waits for the one before. */
TEST(test_steps_are_taken_in_order)
{
	struct core_scene s;
	struct asked first, second;
	open_second_window(&s, &first);
	for (uint32_t rank = 0; rank < NRANKS; rank++) {
		core_expect(s.core, core_skip(&s.g.team, rank, s.unit), 0);
		s.end[rank] = ask(&s, rank, ZD_REQ_BACKWARD_END);
	}
	step_all(&s, &second);
	core_expect_waits(s.core, ask(&s, 0, ZD_REQ_STEP_GET), "the sums of rank 0's step");
	core_unhold(s.core, ZD_CMD_REDUCE);
	expect_ended(&s, &first);
	expect_ended(&s, &second);
	const struct zd_reply *info = core_expect(s.core, ask(&s, 0, ZD_REQ_STEP_GET), 0);
	assert_true(info->u.step_begin.step == 2 && info->u.step_begin.norm_squared == 0);
	core_end(s.core);
}

/* Memory for one target only: the second window's begins when the first one's is free. */
TEST(test_memory_for_one_target)
{
	struct core_scene s;
	struct asked first;
	uint64_t begin[NRANKS];
	open_scene(&s);
	window(&s, s.unit, 1.0f, &first);
	Zd__Usage usage = core_usage(s.core);
	zd_engine_set_quota(core_engine(s.core), usage.shard_bytes + usage.bucket_bytes +
	                                                 usage.staging_bytes + usage.target_bytes);
	for (uint32_t rank = 0; rank < NRANKS; rank++) {
		begin[rank] = core_backward(&s.g.team, rank, 3, true);
		core_expect_waits(s.core, begin[rank], "the sums of rank");
	}
	core_unhold(s.core, ZD_CMD_REDUCE);
	expect_ended(&s, &first);
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		core_expect(s.core, begin[rank], 0);
	core_end(s.core);
}

/* Of a step that fails when the next backward has begun the end of that tells, or the next step; once. */
TEST(test_the_first_step_fails)
{
	const struct zd_reply *replies[CORE_TEAM];
	struct core_scene s;
	struct asked first;
	open_second_window(&s, &first);
	core_reduce_all(&s.g, s.other, 2.0f);
	core_fail_next(s.core, ZD_CMD_REDUCE, ZEROD_E_DEVICE, "gone");
	core_unhold(s.core, ZD_CMD_REDUCE);
	expect_ended(&s, &first);
	core_do(s.core, s.g.team.session[0], ZD_REQ_SESSION_RESET, 0);
	core_expect_error(s.core, ask(&s, 0, ZD_REQ_BACKWARD_END), ZEROD_E_DEVICE, "gone");
	core_expect_error(s.core, ask(&s, 1, ZD_REQ_STEP_GET), ZEROD_E_DEVICE, "gone");
	core_expect(s.core, ask(&s, 1, ZD_REQ_BACKWARD_END), 0);
	core_reducers_step(&s.g, replies);
	core_check_target(&s.g, 1, replies[1], s.g.shard_numel, 2.0f);
	core_reducers_step_end(&s.g);
	assert_int_equal(core_expect(s.core, ask(&s, 0, ZD_REQ_STEP_GET), 0)->u.step_begin.step, 1);
	core_end(s.core);
}

/* After the next backward has ended, its step tells. */
TEST(test_the_next_step_tells)
{
	struct core_scene s;
	struct asked first;
	open_second_window(&s, &first);
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		core_expect(s.core, ask(&s, rank, ZD_REQ_BACKWARD_END), 0);
	core_fail_next(s.core, ZD_CMD_REDUCE, ZEROD_E_DEVICE, "gone");
	core_unhold(s.core, ZD_CMD_REDUCE);
	expect_ended(&s, &first);
	core_expect_error(s.core, ask(&s, 1, ZD_REQ_STEP_BEGIN), ZEROD_E_DEVICE, "gone");
	assert_null(core_reply(s.core, ask(&s, 1, ZD_REQ_STEP_BEGIN)));
	core_end(s.core);
}

/* Before the first step is taken the second window fails and is left; the third one is another. */
TEST(test_the_second_window_fails)
{
	const struct zd_reply *replies[CORE_TEAM];
	struct core_scene s;
	struct asked first;
	open_second_window(&s, &first);
	core_reduce(&s.g, 1, s.other, 2.0f);
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		core_expect_error(s.core, ask(&s, rank, ZD_REQ_BACKWARD_END), ZEROD_E_MISMATCH,
		                  "without a gradient or skip for unit 'x'");
	core_reducers_begin(&s.g, 3, true);
	core_reduce_all(&s.g, s.other, 3.0f);
	core_unhold(s.core, ZD_CMD_REDUCE);
	expect_ended(&s, &first);
	core_check_target(&s.g, 0, core_reply(s.core, first.step[0]), 0, 1.0f);
	core_reducers_end(&s.g);
	core_reducers_step(&s.g, replies);
	core_check_target(&s.g, 1, replies[1], s.g.shard_numel, 3.0f);
	core_reducers_step_end(&s.g);
	core_end(s.core);
}

/* A rank dies whose survivor has not asked for its step's end. */
TEST(test_ranks_are_apart)
{
	struct core_scene s;
	uint64_t steps[NRANKS];
	open_scene(&s);
	core_reducers_begin(&s.g, 3, true);
	reduce_all(&s, s.unit, 1.0f);
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		steps[rank] = ask(&s, rank, ZD_REQ_STEP_BEGIN);
	uint64_t end = core_step_end(&s.g.team, 0, NULL, 0);
	core_expect(s.core, core_backward(&s.g.team, 0, 3, true), 0);
	core_reduce(&s.g, 0, s.other, 2.0f);
	core_expect_error(s.core, core_backward(&s.g.team, 1, 3, true), ZEROD_E_STATE, "runs");
	core_unhold(s.core, ZD_CMD_REDUCE);
	core_expect(s.core, end, 0);
	core_check_target(&s.g, 1, core_expect(s.core, steps[1], 0), 0, 1.0f);
	core_expect(s.core, core_step_end(&s.g.team, 1, NULL, 0), 0);
	core_expect(s.core, core_backward(&s.g.team, 1, 3, true), 0);
	core_reduce(&s.g, 1, s.other, 2.0f);
	core_reducers_end(&s.g);
	const struct zd_reply *replies[CORE_TEAM];
	core_reducers_step(&s.g, replies);
	core_check_target(&s.g, 0, replies[0], s.g.shard_numel, 2.0f);
	core_reducers_step_end(&s.g);
	core_end(s.core);
}

/* Units stay as they are until the last target is gone. */
TEST(test_units_stay)
{
	struct core_scene s;
	struct asked first;
	open_scene(&s);
	window(&s, s.unit, 1.0f, &first);
	struct zd_args args = {.kind = ZD_REQ_SET_FROZEN, .u.set_frozen = {.unit = s.other, .frozen = true}};
	core_expect_error(s.core, core_send(s.core, s.g.team.session[0], &args), ZEROD_E_STATE,
	                  "the end of its step");
	core_unhold(s.core, ZD_CMD_REDUCE);
	expect_ended(&s, &first);
	core_expect(s.core, core_send(s.core, s.g.team.session[0], &args), 0);
	core_end(s.core);
}
