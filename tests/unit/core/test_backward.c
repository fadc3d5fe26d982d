/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backwards, steps and their targets: when a target exists and when its bytes are gone, what every stage
 * allows, what ranks must say alike, and what a failed or abandoned request leaves behind.
 */
#include "tests/support/core_reduce.h"

#define SLOT_BYTES (16 * CORE_KIB)
#define NUMEL      256u

static uint64_t new_pair(struct core_reducers *g, struct core_driver *core)
{
	*g = core_reducers_new(core, 2, ZEROD_FLOAT32, SLOT_BYTES, 2);
	return core_reducers_unit(g, "w", NUMEL);
}

/* ---- Targets' lives ------------------------------------------------------------------------------------ */

/* It is behind the bound target's end, so it can neither be reduced before the step nor is it kept by it. */
ENGINE_TEST(test_unit_that_is_registered_after_the_target_was_bound)
{
	struct core_reducers g;
	uint64_t unit = new_pair(&g, core);
	core_reducers_begin(&g, 2, false);
	core_reduce_all(&g, unit, 1.0f);
	core_reducers_end(&g);
	uint64_t late = core_reducers_unit(&g, "v", NUMEL);
	core_reducers_begin(&g, 2, true);
	core_expect_error(core, core_reserve(&g.team, 0, g.bucket[0], late), ZEROD_E_STATE,
	                  "unit 'v' was registered after the target of backward 1 was bound");
	for (uint32_t rank = 0; rank < 2; rank++) {
		core_do(core, g.team.session[rank], ZD_REQ_UNIT_UNREGISTER, late);
		core_expect(core, core_simple(core, g.team.session[rank], ZD_REQ_UNIT_UNREGISTER, unit),
		            ZEROD_E_BUSY);
	}
}

ENGINE_TEST(test_nothing_trainable)
{
	const struct zd_reply *step[CORE_TEAM];
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, SLOT_BYTES, 2);
	core_team_register(&g.team, &(struct core_unit){.name = "f", .numel = 8, .frozen = true});
	core_reducers_begin(&g, 0, true);
	core_reducers_end(&g);
	core_reducers_step(&g, step);
	assert_int_equal(step[1]->target.segment, 0);
	assert_true(step[1]->u.step_begin.norm_squared == 0.0 && !step[1]->u.step_begin.overflow);
	core_reducers_step_end(&g);
}

/* ---- States -------------------------------------------------------------------------------------------- */

ENGINE_TEST(test_order_of_calls)
{
	struct core_reducers g;
	const struct zd_reply *step[CORE_TEAM];
	uint64_t unit = new_pair(&g, core);
	core_expect_error(core, core_backward_end(&g.team, 0), ZEROD_E_STATE, "runs no backward");
	core_expect_error(core, core_step(&g.team, 0), ZEROD_E_STATE,
	                  "no backward of rank 0 has ended since its last step");
	core_expect_error(core, core_step_end(&g.team, 0, NULL, 0), ZEROD_E_STATE, "has begun no step");
	core_reducers_begin(&g, 3, false);
	core_expect_error(core, core_backward(&g.team, 0, 3, false), ZEROD_E_STATE,
	                  "backward 1 of rank 0 runs");
	uint64_t entry = core_put(&g, 0, unit, 1.0f);
	core_expect_error(core, core_backward_end(&g.team, 0), ZEROD_E_STATE,
	                  "1 entry that is not submitted, unit 'w' last");
	struct core_commit commit = {.bucket = g.bucket[0], .entry = entry};
	core_expect(core, core_bucket_submit(&g.team, 0, &commit), 0);
	core_reduce(&g, 1, unit, 1.0f);
	core_reducers_end(&g);
	uint64_t begun = core_step(&g.team, 0);
	core_expect_waits(core, begun, "rank 1 to begin the step");
	core_expect_error(core, core_step(&g.team, 0), ZEROD_E_STATE, "has begun the step already");
	core_expect_error(core, core_backward(&g.team, 0, 3, false), ZEROD_E_STATE,
	                  "rank 0 has begun the step that ends its window");
	core_expect(core, core_step_end(&g.team, 0, NULL, 0), ZEROD_E_STATE);
	step[1] = core_expect(core, core_step(&g.team, 1), 0);
	core_expect(core, begun, 0);
	core_expect_error(core, core_backward(&g.team, 1, 3, true), ZEROD_E_STATE,
	                  "step 1 of rank 1 has not ended");
	core_check_target(&g, 1, step[1], 0, 1.0f);
	core_reducers_step_end(&g);
}

ENGINE_TEST(test_arguments)
{
	struct core_reducers g;
	struct zd_args args = {.kind = ZD_REQ_BACKWARD_BEGIN, .u.backward_begin = {.group = 999}};
	(void)new_pair(&g, core);
	core_call(core, g.team.session[0], &args, ZEROD_E_NOT_FOUND);
	core_expect(core, core_backward(&g.team, 0, 4, true), ZEROD_E_INVALID);
	core_expect(core, core_backward_into(&g.team, 0, 3, true, 77), ZEROD_E_INVALID);
	core_expect(core, core_backward_into(&g.team, 0, 3, true, ZEROD_INT8), ZEROD_E_UNSUPPORTED);
	core_expect(core, core_backward_into(&g.team, 0, 3, true, ZEROD_FLOAT8_E5M2), ZEROD_E_UNSUPPORTED);
	core_expect(core, core_simple(core, g.team.session[0], ZD_REQ_STEP_BEGIN, 999), ZEROD_E_NOT_FOUND);
	core_expect(core, core_simple(core, g.team.session[0], ZD_REQ_STEP_END, 999), ZEROD_E_NOT_FOUND);
	core_expect(core, core_simple(core, g.team.session[0], ZD_REQ_BACKWARD_END, 999), ZEROD_E_NOT_FOUND);
}

/* ---- What ranks must say alike ------------------------------------------------------------------------- */

ENGINE_TEST(test_stage_and_dtype_must_agree)
{
	struct core_reducers g;
	uint64_t unit = new_pair(&g, core);
	core_expect(core, core_backward(&g.team, 0, 2, false), 0);
	core_expect_error(
	        core, core_backward(&g.team, 1, 3, false), ZEROD_E_MISMATCH,
	        "rank 0 runs the backwards of this step in stage 2 into float32; rank 1 says stage 3");
	core_expect_error(core, core_backward_into(&g.team, 1, 2, false, ZEROD_FLOAT16), ZEROD_E_MISMATCH,
	                  "rank 1 says stage 2 into float16");
	core_expect(core, core_backward(&g.team, 1, 2, false), 0);
	core_reduce_all(&g, unit, 1.0f);
	core_reducers_end(&g);
	/* nor may one rank change its mind within a step */
	core_expect_error(core, core_backward(&g.team, 0, 3, true), ZEROD_E_MISMATCH, "rank 0 says stage 3");
	core_reducers_begin(&g, 2, true);
	core_reducers_end(&g);
	core_check_step(&g, 1, 1, 1.0f);
	core_reducers_begin(&g, 3, true); /* the next one is free to */
}

/* Stage 1 alone has one: the other stages reduce in each backward. */
ENGINE_TEST(test_boundary_must_agree)
{
	struct core_reducers g;
	uint64_t unit = new_pair(&g, core);
	core_expect(core, core_backward(&g.team, 0, 1, true), 0);
	core_expect_error(core, core_backward(&g.team, 1, 1, false), ZEROD_E_MISMATCH,
	                  "backward 1 is not the boundary of rank 1; rank 0 has its boundary at backward 1");
	core_expect(core, core_backward(&g.team, 1, 1, true), 0);
	core_reduce_all(&g, unit, 1.0f);
	core_reducers_end(&g);
	core_expect_error(core, core_backward(&g.team, 0, 1, true), ZEROD_E_STATE,
	                  "was the boundary: the step is next");
	core_check_step(&g, 1, 1, 1.0f);

	core_expect(core, core_backward(&g.team, 0, 1, false), 0);
	core_expect(core, core_backward_end(&g.team, 0), 0);
	core_expect_error(core, core_step(&g.team, 0), ZEROD_E_STATE, "no boundary backward of rank 0");
	core_expect(core, core_backward(&g.team, 0, 1, false), 0); /* far ahead: nothing is reduced */
	core_expect_error(core, core_backward(&g.team, 1, 1, true), ZEROD_E_MISMATCH,
	                  "backward 2 is the boundary of rank 1; rank 0 has no boundary up to backward 3");
	core_expect(core, core_backward(&g.team, 1, 1, false), 0);
	core_expect(core, core_backward_end(&g.team, 1), 0);
	core_expect(core, core_backward(&g.team, 1, 1, false), 0);
	core_reducers_end(&g);
	core_reducers_begin(&g, 1, true);
	core_reduce_all(&g, unit, 1.0f);
	core_reducers_end(&g);
	core_check_step(&g, 2, 1, 1.0f);

	core_expect(core, core_backward(&g.team, 0, 2, true), 0);
	core_expect(core, core_backward(&g.team, 1, 2, false), 0);
	core_reduce_all(&g, unit, 1.0f);
	core_reducers_end(&g);
	core_check_step(&g, 3, 1, 1.0f);
}

/* ---- Failures ------------------------------------------------------------------------------------------ */

ENGINE_TEST(test_no_room_for_the_target)
{
	struct core_reducers g;
	uint64_t unit = new_pair(&g, core);
	zd_engine_set_quota(core_engine(core), 1024 + 100);
	core_expect_error(core, core_backward(&g.team, 0, 3, true), ZEROD_E_QUOTA, "1124");
	zd_engine_set_quota(core_engine(core), 0);
	core_reducers_begin(&g, 3, true); /* as if it had not been asked for */
	core_reduce_all(&g, unit, 1.0f);
	core_reducers_end(&g);
	core_check_step(&g, 1, 1, 1.0f);
}

/* Requests of a backward may follow its beginning at once: they wait while that waits for memory. */
ENGINE_TEST(test_requests_behind_a_beginning)
{
	struct core_reducers g;
	uint64_t unit = new_pair(&g, core);
	uint64_t other = core_reducers_unit(&g, "x", NUMEL);
	core_hold(core, ZD_CMD_SEGMENT_CREATE);
	uint64_t begun = core_backward(&g.team, 0, 3, true);
	uint64_t skipped = core_skip(&g.team, 0, other);
	uint64_t reserved = core_reserve(&g.team, 0, g.bucket[0], unit);
	core_expect_waits(core, begun, "a segment of device 0");
	core_expect_waits(core, skipped, "a segment of device 0");
	core_expect_waits(core, reserved, "a segment of device 0");
	core_unhold(core, ZD_CMD_SEGMENT_CREATE);
	core_expect(core, begun, 0);
	core_expect(core, skipped, 0);
	struct core_commit commit = {.bucket = g.bucket[0]};
	commit.entry = core_expect(core, reserved, 0)->u.bucket_reserve.entry;
	core_expect(core, core_bucket_submit(&g.team, 0, &commit), 0);
	core_expect(core, core_backward(&g.team, 1, 3, true), 0);
	for (uint64_t u = unit; u; u = u == unit ? other : 0)
		core_expect(core, core_skip(&g.team, 1, u), 0);
	core_reducers_end(&g);
}

/* A beginning that fails, or is given up, leaves none of them. */
TEST(test_requests_behind_a_beginning_that_fails)
{
	for (int kind = 0; kind < 3; kind++) {
		struct core_driver *core = core_new(NULL);
		struct core_reducers g;
		uint64_t unit = new_pair(&g, core);
		struct zd_args args = {.kind = ZD_REQ_BACKWARD_BEGIN,
		                       .u.backward_begin = {.group = g.team.group, .stage = 3}};
		core_hold(core, ZD_CMD_SEGMENT_CREATE);
		uint64_t begun = core_send_until(core, g.team.session[0], 100, &args);
		uint64_t reserved = core_reserve(&g.team, 0, g.bucket[0], unit);
		uint64_t ended = core_backward_end(&g.team, 0);
		if (kind == 0) {
			core_tick(core, 100);
			core_expect(core, begun, ZEROD_E_DEADLINE);
		} else if (kind == 1) {
			core_fail_next(core, ZD_CMD_SEGMENT_CREATE, ZEROD_E_DEVICE, "none left");
			core_unhold(core, ZD_CMD_SEGMENT_CREATE);
			core_expect(core, begun, ZEROD_E_DEVICE);
		} else {
			core_close(core, g.team.session[1]);
			core_expect(core, begun, ZEROD_E_PEER_LOST);
		}
		if (kind < 2) {
			core_expect_error(core, reserved, ZEROD_E_STATE, "runs no backward");
			core_expect_error(core, ended, ZEROD_E_STATE, "runs no backward");
		} else {
			assert_int_not_equal(core_reply(core, reserved)->status, 0);
			assert_int_not_equal(core_reply(core, ended)->status, 0);
		}
		core_unhold(core, ZD_CMD_SEGMENT_CREATE);
		core_end(core);
	}
}

ENGINE_TEST(test_deadlines_of_ends_and_steps)
{
	struct core_reducers g;
	uint64_t unit = new_pair(&g, core);
	uint64_t other = core_reducers_unit(&g, "x", NUMEL);
	struct zd_args args = {.kind = ZD_REQ_BACKWARD_END, .u.backward_end.group = g.team.group};
	core_reducers_begin(&g, 3, true);
	core_reduce(&g, 0, unit, 1.0f);
	uint64_t late = core_send_until(core, g.team.session[0], 1000000, &args);
	core_tick(core, 1000000);
	core_expect_error(core, late, ZEROD_E_DEADLINE, "1 reduction, first unit 'w' (rank 1)");
	core_reduce(&g, 0, other, 1.0f); /* the backward runs on */
	core_reduce(&g, 1, unit, 1.0f);
	core_reduce(&g, 1, other, 1.0f);
	core_reducers_end(&g);
	args.kind = ZD_REQ_STEP_BEGIN;
	late = core_send_until(core, g.team.session[0], 2000000, &args);
	core_tick(core, 2000000);
	core_expect_error(core, late, ZEROD_E_DEADLINE, "rank 1 to begin the step");
	core_check_step(&g, 1, 1, 1.0f);
}

/* A failed window is closed by each rank on its own; one that is behind is told of it when it comes there. */
ENGINE_TEST(test_a_rank_behind_a_failure, .ndevices = 3)
{
	uint64_t step[3];
	struct core_reducers g = core_reducers_new(core, 3, ZEROD_FLOAT32, SLOT_BYTES, 2);
	uint64_t unit = core_reducers_unit(&g, "w", NUMEL);
	/* rank 1 leaves the unit out while rank 2 has not even begun */
	for (int window = 0; window < 2; window++) {
		core_expect(core, core_backward(&g.team, 0, 3, true), 0);
		core_expect(core, core_backward(&g.team, 1, 3, true), 0);
		core_reduce(&g, 0, unit, 1.0f);
		core_expect(core, core_backward_end(&g.team, 1), ZEROD_E_MISMATCH);
		core_expect(core, core_backward_end(&g.team, 0), ZEROD_E_MISMATCH);
		core_expect(core, core_step(&g.team, 0), ZEROD_E_MISMATCH);
		core_expect(core, core_step(&g.team, 1), ZEROD_E_MISMATCH);
	}
	for (int window = 0; window < 2; window++) {
		core_expect(core, core_backward(&g.team, 2, 3, true), 0);
		core_expect_error(core, core_reserve(&g.team, 2, g.bucket[2], unit), ZEROD_E_MISMATCH,
		                  "without a gradient or skip for unit 'w' that rank 0 reduced");
		(void)core_backward_end(&g.team, 2);
		core_expect_error(core, core_step(&g.team, 2), ZEROD_E_MISMATCH, "that rank 0 reduced");
	}
	core_reducers_begin(&g, 3, true);
	core_reduce_all(&g, unit, 1.0f);
	core_reducers_end(&g);
	for (uint32_t rank = 0; rank < 3; rank++)
		step[rank] = core_step(&g.team, rank);
	for (uint32_t rank = 0; rank < 3; rank++) {
		core_check_target(&g, rank, core_expect(core, step[rank], 0), 0, 1.0f);
		assert_int_equal(core_reply(core, step[rank])->u.step_begin.step, 1);
	}
}

/* ---- Ranks that go ------------------------------------------------------------------------------------- */

static void replace(struct core_reducers *g, uint32_t rank)
{
	struct core_driver *core = g->team.core;
	struct core_join join = {.world_size = g->team.world_size, .rank = rank, .device = rank};
	g->team.session[rank] = core_open(core, CORE_ALICE);
	core_join_ok(core, g->team.session[rank], &join);
	struct core_unit unit = {.name = "w", .numel = NUMEL};
	core_register_ok(core, g->team.session[rank], g->team.group, &unit);
	g->bucket[rank] = core_bucket_ok(&g->team, rank, ZEROD_FLOAT32, SLOT_BYTES, 2);
}

/* Steps are counted on; what was under way is gone on all ranks. */
ENGINE_TEST(test_a_rank_is_replaced)
{
	struct core_reducers g;
	uint64_t unit = new_pair(&g, core);
	core_reducers_begin(&g, 3, true);
	core_reduce_all(&g, unit, 1.0f);
	core_reducers_end(&g);
	core_check_step(&g, 1, 1, 1.0f);
	core_reducers_begin(&g, 3, false);
	core_reduce_all(&g, unit, 1.0f);
	core_reducers_end(&g);
	core_reducers_begin(&g, 3, true);
	uint64_t entry = core_put(&g, 0, unit, 1.0f);
	core_close(core, g.team.session[1]);
	assert_int_equal(core_usage(core).target_bytes, 0);
	assert_int_equal(core_usage(core).bucket_bytes,
	                 SLOT_BYTES); /* what rank 0 writes: test_abandoned.c */
	core_expect(core, core_backward_end(&g.team, 0), ZEROD_E_PEER_LOST);
	core_expect(core, core_bucket(&g.team, 0, ZEROD_FLOAT32, SLOT_BYTES, 2), ZEROD_E_PEER_LOST);
	core_expect(core, core_skip(&g.team, 0, unit), ZEROD_E_PEER_LOST);
	core_expect(core, core_reserve(&g.team, 0, g.bucket[0], unit), ZEROD_E_PEER_LOST);
	core_expect(core, core_step_end(&g.team, 0, NULL, 0), ZEROD_E_PEER_LOST);
	replace(&g, 1);
	struct core_commit commit = {.bucket = g.bucket[0], .entry = entry};
	core_expect(core, core_bucket_submit(&g.team, 0, &commit), ZEROD_E_PEER_LOST);
	core_reducers_begin(&g, 2, true);
	core_reduce_all(&g, unit, 1.0f);
	core_reducers_end(&g);
	core_check_step(&g, 2, 1, 1.0f);
}

/* The last rank goes with an operation under way: its group stays until that has ended. */
ENGINE_TEST(test_the_end_of_a_group)
{
	struct core_reducers g;
	struct core_row row;
	uint64_t unit = new_pair(&g, core);
	core_reducers_begin(&g, 3, true);
	core_hold(core, ZD_CMD_REDUCE);
	core_reduce_all(&g, unit, 1.0f);
	core_close(core, g.team.session[0]);
	core_close(core, g.team.session[1]);
	assert_int_equal(core_rows(core, ZD__TABLE__GROUPS, &row, 1), 1);
	assert_int_not_equal(core_quarantine(core, 0), 0);
	core_unhold(core, ZD_CMD_REDUCE);
	assert_int_equal(core_rows(core, ZD__TABLE__GROUPS, &row, 1), 0);
}
