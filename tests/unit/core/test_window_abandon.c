/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that abandons its window, wherever the others are in theirs; and ranks that skip whatever others
 * reduce.
 */
#include "tests/support/core_reduce.h"

#define NRANKS 3u

#define SCENE_TEST(name)                                                                                     \
	CORE_RIG_TEST(name, struct core_scene, s, core_scene_open(s, NRANKS, 2, NULL), core_rig_end)

static uint64_t begin(struct core_scene *s, uint32_t rank)
{
	return core_backward(&s->g.team, rank, 3, false);
}

static uint64_t abandon(struct core_scene *s, uint32_t rank, const struct zd_fence *fences, uint32_t nfences)
{
	struct zd_args args = {.kind = ZD_REQ_BACKWARD_ABANDON,
	                       .u.backward_abandon = {.group = s->g.team.group},
	                       .fences = {nfences, fences}};
	return core_send(s->core, s->g.team.session[rank], &args);
}

static uint64_t end_skipping(struct core_scene *s, uint32_t rank)
{
	struct zd_args args = {.kind = ZD_REQ_BACKWARD_END,
	                       .u.backward_end = {.group = s->g.team.group, .skip_rest = true}};
	return core_send(s->core, s->g.team.session[rank], &args);
}

static void expect_nothing_held(struct core_scene *s)
{
	assert_int_equal(core_usage(s->core).target_bytes, 0);
	assert_int_equal(core_usage(s->core).bucket_bytes, 0);
	assert_int_equal(core_usage(s->core).staging_bytes, 0);
}

/* The rank's step says so, waits for nobody, and ends like any other. */
static void expect_abandoned(struct core_scene *s, uint32_t rank, uint32_t by)
{
	const struct zd_reply *reply = core_expect(s->core, core_step(&s->g.team, rank), 0);
	assert_true(reply->u.step_begin.abandoned);
	assert_int_equal(reply->u.step_begin.abandoned_rank, by);
	assert_int_equal(reply->target.segment, 0);
	core_expect(s->core, core_step_end(&s->g.team, rank, NULL, 0), 0);
}

static void train(struct core_scene *s, uint64_t step)
{
	core_reducers_begin(&s->g, 3, false);
	core_reduce_all(&s->g, s->unit, 1.0f);
	core_reducers_end(&s->g);
	core_check_step(&s->g, step, 1, 1.0f);
}

/* ---- Abandoning ---------------------------------------------------------------------------------------- */

/* In stage 1, between two backwards of which none was the boundary: the rank begins its step all the same. */
SCENE_TEST(test_before_the_boundary)
{
	core_reducers_begin(&s->g, 1, false);
	core_reducers_end(&s->g);
	core_expect(s->core, abandon(s, 0, NULL, 0), 0);
	expect_abandoned(s, 0, 0);
	for (uint32_t rank = 1; rank < NRANKS; rank++) {
		core_expect(s->core, core_backward(&s->g.team, rank, 1, true), 0);
		core_expect(s->core, core_backward_end(&s->g.team, rank), 0);
		expect_abandoned(s, rank, 0);
	}
	train(s, 1);
}

/* One rank has ended, one has committed, one raises before it has committed anything. */
SCENE_TEST(test_before_the_last_commit)
{
	for (uint32_t round = 0; round < 2; round++) {
		core_reducers_begin(&s->g, 3, false);
		core_reduce(&s->g, 0, s->unit, 1.0f);
		uint64_t end = core_backward_end(&s->g.team, 0);
		core_expect_waits(s->core, end, "first unit 'w'");
		core_reduce(&s->g, 1, s->unit, 1.0f);
		core_expect(s->core, abandon(s, 2, NULL, 0), 0);
		core_expect(s->core, end, 0);
		core_expect(s->core, core_skip(&s->g.team, 1, s->other), 0);
		core_expect(s->core, core_backward_end(&s->g.team, 1), 0);
		expect_nothing_held(s);
		expect_abandoned(s, 0, 2);
		expect_abandoned(s, 1, 2);
		if (round == 1) /* else its next backward is enough */
			expect_abandoned(s, 2, 2);
		train(s, round + 1);
	}
}

/* An entry that a rank has reserved is the rank's until its commit; an entry of the rank that abandons, until
 * its streams have passed. */
SCENE_TEST(test_entries_that_are_not_committed)
{
	static const struct zd_fence fence = {0, 1};
	core_reducers_begin(&s->g, 3, false);
	uint64_t entry = core_put(&s->g, 0, s->unit, 1.0f);
	(void)core_put(&s->g, 1, s->unit, 1.0f);
	uint64_t abandoned = abandon(s, 1, &fence, 1);
	core_expect_waits(s->core, abandoned, "streams");
	core_expect_error(s->core, core_reserve(&s->g.team, 1, s->g.bucket[1], s->other), ZEROD_E_STATE,
	                  "rank 1 has abandoned backward 1");
	assert_int_equal(core_usage(s->core).bucket_bytes, 2 * CORE_SLOT_BYTES);
	core_pass(s->core, s->g.team.session[1], 0, 1);
	core_expect(s->core, abandoned, 0);
	assert_int_equal(core_usage(s->core).bucket_bytes, CORE_SLOT_BYTES);
	core_expect(s->core, core_backward_end(&s->g.team, 0), ZEROD_E_STATE);
	core_expect(s->core, core_submit(&s->g, 0, entry, NULL), 0);
	core_expect(s->core, core_backward_end(&s->g.team, 0), 0);
	core_expect(s->core, core_backward_end(&s->g.team, 2), 0);
	expect_nothing_held(s);
	expect_abandoned(s, 0, 1);
	expect_abandoned(s, 2, 1);
	train(s, 1);
}

/* One rank abandons window after window; another one comes through all of them. */
SCENE_TEST(test_a_rank_that_is_behind)
{
	for (uint32_t window = 0; window < 3; window++) {
		core_expect(s->core, begin(s, 1), 0);
		core_reduce(&s->g, 1, s->unit, 1.0f);
		core_expect(s->core, abandon(s, 1, NULL, 0), 0);
		if (window < 2)
			expect_abandoned(s, 1, 1);
	}
	for (uint32_t window = 0; window < 3; window++) {
		core_expect(s->core, begin(s, 0), 0);
		core_reduce(&s->g, 0, s->unit, 1.0f);
		core_expect(s->core, core_backward_end(&s->g.team, 0), 0);
		expect_abandoned(s, 0, 1);
		core_expect(s->core, begin(s, 2), 0);
		core_expect(s->core, abandon(s, 2, NULL, 0), 0); /* nor was this one told */
	}
	train(s, 1);
}

SCENE_TEST(test_nothing_to_abandon)
{
	core_expect_error(s->core, abandon(s, 0, NULL, 0), ZEROD_E_STATE,
	                  "rank 0 has begun no backward since its last step");
	train(s, 1);
	core_expect(s->core, abandon(s, 0, NULL, 0), ZEROD_E_STATE);
}

SCENE_TEST(test_a_rank_that_goes)
{
	static const struct zd_fence fence = {0, 1};
	core_reducers_begin(&s->g, 3, false);
	core_reduce(&s->g, 0, s->unit, 1.0f);
	(void)core_put(&s->g, 2, s->unit, 1.0f);
	(void)core_put(&s->g, 1, s->unit, 1.0f);
	uint64_t abandoned = abandon(s, 1, &fence, 1);
	core_close(s->core, s->g.team.session[2]);
	core_expect(s->core, abandoned, ZEROD_E_PEER_LOST);
}

/* ---- Skipping the rest --------------------------------------------------------------------------------- */

/* Both what others have reduced and what they reduce later. */
SCENE_TEST(test_skip_rest)
{
	const struct zd_reply *replies[CORE_TEAM];
	core_reducers_begin(&s->g, 3, false);
	core_reduce(&s->g, 0, s->unit, 1.0f);
	uint64_t end = end_skipping(s, 2);
	core_reduce(&s->g, 1, s->unit, 1.0f);
	core_expect_waits(s->core, end, "rank 0 to end its backward");
	core_reduce(&s->g, 0, s->other, 1.0f);
	uint64_t first = core_backward_end(&s->g.team, 0);
	core_expect_waits(s->core, end, "first unit 'x' (rank 1)");
	core_expect(s->core, end_skipping(s, 1), 0);
	core_expect(s->core, first, 0);
	core_expect(s->core, end, 0);
	core_reducers_step(&s->g, replies);
	assert_true(replies[0]->u.step_begin.norm_squared > 0.0);
	core_reducers_step_end(&s->g);
	train(s, 2);
}

/* Ranks that all skip the rest do not wait for each other's contributions. */
SCENE_TEST(test_all_skip_the_rest)
{
	uint64_t ends[NRANKS];
	core_reducers_begin(&s->g, 3, false);
	core_reduce(&s->g, 1, s->unit, 1.0f);
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		ends[rank] = end_skipping(s, rank);
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		core_expect(s->core, ends[rank], 0);
}

/* The sum of a unit that is registered behind the bound target has no place there: it cannot be skipped. */
SCENE_TEST(test_skip_rest_without_a_place)
{
	uint64_t late;
	core_expect(s->core, core_backward(&s->g.team, 2, 3, false), 0);
	late = core_reducers_unit(&s->g, "late", CORE_NUMEL);
	for (uint32_t rank = 0; rank < 2; rank++)
		core_expect(s->core, core_backward(&s->g.team, rank, 3, false), 0);
	(void)end_skipping(s, 2);
	core_expect_error(s->core, core_reserve(&s->g.team, 0, s->g.bucket[0], late), ZEROD_E_MISMATCH,
	                  "rank 2 ended backward 1 without a gradient or skip for unit 'late'");
}
