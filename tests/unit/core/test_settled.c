/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_settled.c - a rank's backward ends with its own slices, while other owners still sum theirs: when it
 * may, what it may do then, and what becomes of it when the others' sums fail.
 */
#include "tests/support/core_reduce.h"

#define SLOT_BYTES (64 * CORE_KIB)
#define NUMEL      200u

/* Two ranks have reduced a unit in a backward of stage 3, and their sums are held. */
static struct core_driver *open_held(struct core_reducers *g, uint64_t *unit, bool boundary)
{
	struct core_driver *core = core_new(NULL);
	*g = core_reducers_new(core, 2, ZEROD_FLOAT32, SLOT_BYTES, 2);
	*unit = core_reducers_unit(g, "w", NUMEL);
	core_reducers_begin(g, 3, boundary);
	core_hold(core, ZD_CMD_REDUCE);
	core_reduce_all(g, *unit, 1.0f);
	return core;
}

/* The same, and rank 0 has ended its backward, while rank 1's end waits for its sum. */
static struct core_driver *open_ahead(struct core_reducers *g, uint64_t *unit, bool boundary, uint64_t *late)
{
	struct core_driver *core = open_held(g, unit, boundary);
	*late = core_backward_end(&g->team, 1);
	core_run_on(core, ZD_CMD_REDUCE, 0);
	core_expect(core, core_backward_end(&g->team, 0), 0);
	core_expect_waits(core, *late, "1 reduction, first unit 'w'");
	return core;
}

/* Its target is written from all owners' slices. */
ENGINE_TEST(test_all_reduce_needs_all)
{
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, SLOT_BYTES, 2);
	uint64_t unit = core_team_register(
	        &g.team, &(struct core_unit){.name = "norm", .numel = NUMEL, .all_reduce = true});
	core_reducers_begin(&g, 3, false);
	core_hold(core, ZD_CMD_REDUCE);
	for (uint32_t rank = 0; rank < 2; rank++) {
		uint64_t entry = core_expect(core, core_reserve(&g.team, rank, g.bucket[rank], unit), 0)
		                         ->u.bucket_reserve.entry;
		struct core_commit commit = {.bucket = g.bucket[rank], .entry = entry};
		core_expect(core, core_bucket_submit(&g.team, rank, &commit), 0);
	}
	uint64_t end = core_backward_end(&g.team, 0);
	core_run_on(core, ZD_CMD_REDUCE, 0);
	core_expect_waits(core, end, "1 reduction, first unit 'norm'");
	core_unhold(core, ZD_CMD_REDUCE);
	core_expect(core, end, 0);
	core_expect(core, core_backward_end(&g.team, 1), 0);
}

TEST(test_unit_may_not_go)
{
	struct core_reducers g;
	uint64_t unit, late;
	struct core_driver *core = open_ahead(&g, &unit, true, &late);
	core_expect_error(core, core_simple(core, g.team.session[0], ZD_REQ_UNIT_UNREGISTER, unit),
	                  ZEROD_E_BUSY, "a place in the target");
	core_expect_error(core, core_simple(core, g.team.session[1], ZD_REQ_UNIT_UNREGISTER, unit),
	                  ZEROD_E_BUSY, "in use by");
	core_unhold(core, ZD_CMD_REDUCE);
	core_expect(core, late, 0);
	core_check_step(&g, 1, 1, 1.0f);
	core_end(core);
}

/* Rank 0 has ended its backward well, and is told by the step. */
TEST(test_late_failure)
{
	struct core_reducers g;
	uint64_t unit, late;
	struct core_driver *core = open_ahead(&g, &unit, true, &late);
	uint64_t step = core_step(&g.team, 0);
	core_fail_next(core, ZD_CMD_REDUCE, ZEROD_E_DEVICE, "the device broke");
	core_unhold(core, ZD_CMD_REDUCE);
	core_expect_error(core, late, ZEROD_E_DEVICE, "the reduction of unit 'w' for rank 1");
	core_expect_error(core, step, ZEROD_E_DEVICE, "the device broke");
	core_end(core);
}

/* A reduction fails when the rank ahead has closed its window over another's failure: the next one is not
 * concerned. */
ENGINE_TEST(test_failure_of_a_window_before)
{
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, SLOT_BYTES, 2);
	uint64_t first = core_reducers_unit(&g, "first", NUMEL),
	         second = core_reducers_unit(&g, "second", NUMEL);
	core_reducers_begin(&g, 3, true);
	uint64_t entries[2][2];
	for (uint32_t rank = 0; rank < 2; rank++) {
		entries[rank][0] = core_put(&g, rank, first, 1.0f);
		entries[rank][1] = core_put(&g, rank, second, 1.0f);
	}
	core_hold(core, ZD_CMD_COPY); /* so that no copy is behind a sum */
	core_hold(core, ZD_CMD_REDUCE);
	for (uint32_t i = 0; i < 4; i++) {
		struct core_commit commit = {.bucket = g.bucket[i / 2], .entry = entries[i / 2][i % 2]};
		core_expect(core, core_bucket_submit(&g.team, i / 2, &commit), 0);
	}
	core_unhold(core, ZD_CMD_COPY);
	uint64_t ends[] = {core_backward_end(&g.team, 0), core_backward_end(&g.team, 1)};
	core_fail_next(core, ZD_CMD_REDUCE, ZEROD_E_DEVICE, "the device broke");
	core_run_on(core, ZD_CMD_REDUCE, 1); /* the first unit's, which fails */
	core_run_on(core, ZD_CMD_REDUCE, 1); /* the second's */
	core_run_on(core, ZD_CMD_REDUCE, 0); /* the first's end */
	core_expect(core, ends[1], ZEROD_E_DEVICE);
	core_do(core, g.team.session[1], ZD_REQ_SESSION_RESET, 0);
	core_expect(core, core_step(&g.team, 1), ZEROD_E_DEVICE);
	core_fail_next(core, ZD_CMD_REDUCE, ZEROD_E_DEVICE, "the device broke again");
	core_run_on(core, ZD_CMD_REDUCE, 0);
	core_unhold(core, ZD_CMD_REDUCE);
	core_expect(core, ends[0], ZEROD_E_DEVICE);
	core_do(core, g.team.session[0], ZD_REQ_SESSION_RESET, 0);
	core_expect(core, core_step(&g.team, 0), ZEROD_E_DEVICE);
	core_reducers_begin(&g, 3, true);
	core_reduce(&g, 0, second, 1.0f);
	core_reduce(&g, 1, second, 1.0f);
	core_reducers_end(&g);
	const struct zd_reply *step[CORE_TEAM];
	core_reducers_step(&g, step); /* both get 0 */
	core_reducers_step_end(&g);
}
