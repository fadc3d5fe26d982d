/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units whose gradients are all-reduced: every rank's target has the whole sum, beside units of which it has
 * a slice.
 */
#include "tests/support/core_reduce.h"

#define SLOT_BYTES (64 * CORE_KIB)

static uint64_t all_reduced(struct core_reducers *g, const char *name, uint64_t numel)
{
	struct core_unit unit = {.name = name, .numel = numel, .all_reduce = true};
	uint64_t id = core_team_register(&g->team, &unit);
	struct core_row row;
	core_row(g->team.core, ZD__TABLE__UNITS, id, &row);
	assert_true(row.row->unit->all_reduce);
	return id;
}

/* The whole unit, as the sum of all ranks' gradients times the factor, and zeros behind it. */
static void check_whole(struct core_reducers *g, const struct zd_reply *step, uint64_t offset_numel,
                        uint64_t numel, float factor)
{
	const uint8_t *data = core_bytes(g->team.core, step->target);
	uint64_t target_numel = step->target.bytes / 4;
	for (uint64_t i = 0; i < numel; i++) {
		float expected = 0.0f;
		for (uint32_t rank = 0; rank < g->team.world_size; rank++)
			expected += core_gradient(rank, i) * factor;
		assert_true(core_element(ZEROD_FLOAT32, data, offset_numel + i) == expected);
	}
	for (uint64_t i = offset_numel + numel; i < target_numel && i % 64 != 0; i++)
		assert_true(core_element(ZEROD_FLOAT32, data, i) == 0.0f);
}

static void check_steps(struct core_reducers *g, uint64_t offset_numel, uint64_t numel, float factor)
{
	const struct zd_reply *step[CORE_TEAM];
	core_reducers_step(g, step);
	for (uint32_t rank = 0; rank < g->team.world_size; rank++)
		check_whole(g, step[rank], offset_numel, numel, factor);
	core_reducers_step_end(g);
}

/* The norm counts each slice once, not once a rank. */
ENGINE_TEST(test_norm_counts_once, .ndevices = 2)
{
	const struct zd_reply *step[CORE_TEAM];
	double expected = 0.0;
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, SLOT_BYTES, 2);
	uint64_t unit = all_reduced(&g, "norm", 100);
	core_reducers_begin(&g, 3, true);
	core_reduce_all(&g, unit, 1.0f);
	core_reducers_end(&g);
	for (uint64_t i = 0; i < 100; i++) {
		double sum = (double)core_gradient(0, i) + (double)core_gradient(1, i);
		expected += sum * sum;
	}
	core_reducers_step(&g, step);
	assert_true(step[0]->u.step_begin.norm_squared == expected);
	core_reducers_step_end(&g);
}

/* A backward is not over while a rank has not got what another one summed. */
ENGINE_TEST(test_backward_waits_for_copies, .ndevices = 2)
{
	uint64_t ends[2];
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, SLOT_BYTES, 2);
	uint64_t unit = all_reduced(&g, "norm", 100);
	core_reducers_begin(&g, 3, true);
	core_hold(core, ZD_CMD_COPY);
	core_reduce_all(&g, unit, 1.0f);
	for (uint32_t rank = 0; rank < 2; rank++)
		ends[rank] = core_backward_end(&g.team, rank);
	core_run_one(core, ZD_CMD_COPY); /* the pieces */
	core_run_one(core, ZD_CMD_COPY);
	assert_int_equal(core_count(core, ZD_CMD_REDUCE), 2);
	core_run_one(core, ZD_CMD_COPY); /* a sum */
	assert_null(core_reply(core, ends[0]));
	core_run_one(core, ZD_CMD_COPY);
	for (uint32_t rank = 0; rank < 2; rank++)
		core_expect(core, ends[rank], 0);
	core_unhold(core, ZD_CMD_COPY);
	check_steps(&g, 0, 100, 1.0f);
}

/* One rank says so, another does not: they would lay their targets out differently. */
ENGINE_TEST(test_ranks_must_agree)
{
	struct core_team team = core_team_new(core, "job", 2, false);
	struct core_unit unit = {.name = "w", .numel = 10, .all_reduce = true};
	core_register_ok(core, team.session[0], team.group, &unit);
	unit.all_reduce = false;
	core_expect_error(core, core_register(core, team.session[1], team.group, &unit), ZEROD_E_MISMATCH,
	                  "rank 0 registered float32, 10 elements, all-reduced; rank 1 says");
}
