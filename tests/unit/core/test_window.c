/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows: any number of backwards between two steps, the same on all ranks; how a window that fails ends for
 * each rank, and that the next one works.
 */
#include "tests/support/core_reduce.h"

#define SCENE_TEST(name)                                                                                     \
	CORE_RIG_TEST(name, struct core_scene, s, core_scene_open(s, 2, 1, NULL), core_rig_end)

static uint64_t begin(struct core_scene *s, uint32_t rank)
{
	return core_backward(&s->g.team, rank, 3, false);
}

/* All ranks run a backward that reduces the unit. */
static void backward(struct core_scene *s, float factor)
{
	core_reducers_begin(&s->g, 3, false);
	core_reduce_all(&s->g, s->unit, factor);
	core_reducers_end(&s->g);
}

/* An empty backward of one rank. */
static void pass_through(struct core_scene *s, uint32_t rank)
{
	core_expect(s->core, begin(s, rank), 0);
	core_expect(s->core, core_backward_end(&s->g.team, rank), 0);
}

/* ---- Any number of backwards --------------------------------------------------------------------------- */

SCENE_TEST(test_a_step_inside_a_backward)
{
	core_expect(s->core, begin(s, 0), 0);
	core_expect_error(s->core, core_step(&s->g.team, 0), ZEROD_E_STATE, "backward 1 of rank 0 runs");
}

/* ---- Counts that differ -------------------------------------------------------------------------------- */

/* The rank with fewer asks for the step first. */
TEST(test_one_backward_more_than_the_others)
{
	struct core_scene s;
	core_scene_open(&s, 3, 1, NULL);
	backward(&s, 1.0f);
	uint64_t step = core_step(&s.g.team, 0);
	core_expect_error(s.core, begin(&s, 1), ZEROD_E_MISMATCH,
	                  "rank 1 runs 2 backwards in this step, rank 0 runs 1");
	core_expect_error(s.core, step, ZEROD_E_MISMATCH, "rank 1 runs 2 backwards");
	core_expect(s.core, core_step(&s.g.team, 1), ZEROD_E_MISMATCH);
	core_expect_error(s.core, core_step(&s.g.team, 2), ZEROD_E_MISMATCH, "rank 1 runs 2 backwards");
	assert_int_equal(core_usage(s.core).target_bytes, 0);
	backward(&s, 2.0f);
	core_check_step(&s.g, 0, 1, 2.0f);
	core_end(s.core);
}

/* The rank with more is in its backward, and has committed there. */
TEST(test_one_backward_less_than_the_others)
{
	struct core_scene s;
	core_scene_open(&s, 3, 1, NULL);
	backward(&s, 1.0f);
	core_expect(s.core, begin(&s, 2), 0);
	core_reduce(&s.g, 2, s.unit, 1.0f);
	uint64_t end = core_backward_end(&s.g.team, 2);
	core_expect_error(s.core, core_step(&s.g.team, 0), ZEROD_E_MISMATCH,
	                  "rank 0 runs 1 backward in this step, rank 2 runs 2");
	core_expect(s.core, end, ZEROD_E_MISMATCH);
	core_expect(s.core, core_step(&s.g.team, 2), ZEROD_E_MISMATCH);
	core_expect(s.core, core_step(&s.g.team, 1), ZEROD_E_MISMATCH);
	backward(&s, 2.0f);
	core_check_step(&s.g, 0, 1, 2.0f);
	core_end(s.core);
}

/* The entry that the rank has reserved there is freed by its commit. */
SCENE_TEST(test_an_entry_of_a_backward_too_many)
{
	static const char counts[] = "rank 0 runs 1 backward in this step, rank 1 runs 2";
	struct core_commit commit = {0};
	uint64_t other = core_reducers_unit(&s->g, "v", CORE_NUMEL);
	pass_through(s, 0);
	pass_through(s, 1);
	core_expect(s->core, begin(s, 1), 0);
	commit.bucket = s->g.bucket[1];
	commit.entry = core_put(&s->g, 1, s->unit, 1.0f);
	core_expect(s->core, core_step(&s->g.team, 0), ZEROD_E_MISMATCH);
	/* the other rank has not ended this backward: it never began it */
	core_expect_error(s->core, core_bucket_submit(&s->g.team, 1, &commit), ZEROD_E_MISMATCH, counts);
	core_expect_error(s->core, core_reserve(&s->g.team, 1, s->g.bucket[1], s->unit), ZEROD_E_MISMATCH,
	                  counts);
	core_expect_error(s->core, core_skip(&s->g.team, 1, other), ZEROD_E_MISMATCH, counts);
	core_expect_error(s->core, core_reserve(&s->g.team, 1, s->g.bucket[1], other), ZEROD_E_MISMATCH,
	                  counts);
	core_expect(s->core, core_backward_end(&s->g.team, 1), ZEROD_E_MISMATCH);
	core_expect(s->core, core_step(&s->g.team, 1), ZEROD_E_MISMATCH);
	assert_int_equal(core_usage(s->core).bucket_bytes, 0);
	backward(s, 1.0f);
	core_check_step(&s->g, 0, 1, 1.0f);
}

/* Both ask for the step after all of their backwards. */
SCENE_TEST(test_counts_that_differ_at_the_step)
{
	for (uint32_t i = 0; i < 3; i++)
		pass_through(s, 0);
	pass_through(s, 1);
	uint64_t step = core_step(&s->g.team, 0);
	core_expect_waits(s->core, step, "rank 1 to begin the step"); /* it may still run its others */
	core_expect_error(s->core, core_step(&s->g.team, 1), ZEROD_E_MISMATCH,
	                  "rank 1 runs 1 backward in this step, rank 0 runs 3");
	core_expect(s->core, step, ZEROD_E_MISMATCH);
	for (uint32_t window = 0; window < 2; window++) { /* numbers of backwards are alike again */
		backward(s, 1.0f);
		backward(s, 1.0f);
		core_check_step(&s->g, 0, 1, 2.0f);
	}
}

/* ---- Leaving a window that has failed ------------------------------------------------------------------ */

static void fail_window(struct core_scene *s)
{
	core_expect(s->core, begin(s, 0), 0);
	core_expect(s->core, begin(s, 1), 0);
	core_reduce(&s->g, 0, s->unit, 1.0f);
	core_expect(s->core, core_backward_end(&s->g.team, 1), ZEROD_E_MISMATCH);
}

/* A rank that was told leaves it by its next backward, whether or not it asks for the step. */
SCENE_TEST(test_the_next_backward_leaves_it)
{
	fail_window(s);
	core_expect(s->core, core_backward_end(&s->g.team, 0), ZEROD_E_MISMATCH);
	core_expect(s->core, core_step(&s->g.team, 1), ZEROD_E_MISMATCH);
	backward(s, 2.0f);
	core_check_step(&s->g, 0, 1, 2.0f);
}
