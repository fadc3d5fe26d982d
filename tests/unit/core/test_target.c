/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The content of a target that was not zeroed when it was bound: first sums overwrite their places, later
 * ones are added, and places without a sum are zeros before the rank reads them. The driver's memory is
 * initialized with bytes to which, as float32, additions have no effect.
 */
#include "tests/support/core_reduce.h"

#define NRANKS     2u
#define NUNITS     3u
#define NUMEL      250u /* their slices are padded */
#define SLOT_BYTES (16 * CORE_KIB)

struct scene {
	struct core_driver *core;
	struct core_reducers g;
	uint64_t units[NUNITS];
};

static void open_scene(struct scene *s)
{
	s->core = core_new(NULL);
	s->g = core_reducers_new(s->core, NRANKS, ZEROD_FLOAT32, SLOT_BYTES, 2);
	core_reducers_units(&s->g, s->units, NUNITS, NUMEL);
}

#define SCENE_TEST(name) CORE_RIG_TEST(name, struct scene, s, open_scene(s), core_rig_end)

/* A backward with those units of which a bit is set. */
static void backward(struct scene *s, uint32_t units, bool boundary)
{
	core_reducers_begin(&s->g, 3, boundary);
	for (uint32_t i = 0; i < NUNITS; i++)
		if (units >> i & 1)
			core_reduce_all(&s->g, s->units[i], 1.0f);
	core_reducers_end(&s->g);
}

static void check_target(struct scene *s, uint32_t rank, const struct zd_reply *step, const float *factors)
{
	for (uint32_t i = 0; i < NUNITS; i++)
		core_check_target(&s->g, rank, step, i * s->g.shard_numel, factors[i]);
}

static void take_step(struct scene *s, const float *factors)
{
	const struct zd_reply *replies[CORE_TEAM];
	core_reducers_step(&s->g, replies);
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		check_target(s, rank, replies[rank], factors);
	core_reducers_step_end(&s->g);
}

/* A GPU that fills stops its trainer: where all is reduced, nothing is filled. */
SCENE_TEST(test_what_is_reduced_is_not_filled)
{
	core_reducers_begin(&s->g, 3, true);
	for (uint32_t i = 0; i < NUNITS; i++)
		core_reduce_all(&s->g, s->units[i], 1.0f);
	core_hold(s->core, ZD_CMD_FILL); /* entries' paddings were */
	core_reducers_end(&s->g);
	take_step(s, (const float[]){1, 1, 1});
	core_reducers_begin(&s->g, 3, true); /* nor when the next is bound */
	core_unhold(s->core, ZD_CMD_FILL);
}

/* Which are reduced, of all sets; nothing else is filled, and neighbours in one piece. */
TEST(test_the_rest_is_zeros)
{
	static const uint32_t ranges[] = {1, 1, 2, 1, 1, 1, 1, 0};
	for (uint32_t units = 0; units < 8; units++) {
		struct scene s;
		open_scene(&s);
		backward(&s, units, true);
		uint32_t fills = core_count(s.core, ZD_CMD_FILL);
		take_step(&s, (const float[]){(float)(units & 1), (float)(units >> 1 & 1),
		                              (float)(units >> 2 & 1)});
		assert_int_equal(core_count(s.core, ZD_CMD_FILL) - fills, NRANKS * ranges[units]);
		core_end(s.core);
	}
}

/* The units take several steps: some need a fill each, others one for all, or none. */
TEST(test_zeros_in_steps)
{
	enum { MANY = 60 };
	struct scene s;
	s.core = core_new(&(struct core_options){.end_step_objects = 2});
	s.g = core_reducers_new(s.core, NRANKS, ZEROD_FLOAT32, SLOT_BYTES, 2);
	uint64_t step[NRANKS];
	uint64_t units[MANY];
	for (uint32_t i = 0; i < MANY; i++)
		units[i] = core_reducers_unit(&s.g, (char[]){'u', (char)('0' + i), 0}, NUMEL);
	core_reducers_begin(&s.g, 3, true);
	for (uint32_t i = MANY; i-- > 0;)
		for (uint32_t rank = 0; rank < NRANKS && (i > 40 || (i < 20 && i % 2)); rank++)
			core_reduce(&s.g, rank, units[i], 1.0f);
	core_reducers_end(&s.g);
	for (uint32_t rank = 0; rank < NRANKS; rank++) {
		step[rank] = core_step(&s.g.team, rank);
		for (uint32_t i = 0; i < MANY; i++) /* each step of it, and the fills' completions */
			(void)core_end_step(s.core, CORE_ALICE);
	}
	for (uint32_t i = 0; i < MANY; i++)
		for (uint32_t rank = 0; rank < NRANKS; rank++)
			core_check_target(&s.g, rank, core_expect(s.core, step[rank], 0), i * s.g.shard_numel,
			                  i > 40 || (i < 20 && i % 2) ? 1.0f : 0.0f);
	core_reducers_step_end(&s.g);
	core_end(s.core);
}

/* It leaves a gap, which the flat target holds. */
SCENE_TEST(test_the_place_of_a_unit_that_is_gone)
{
	const struct zd_reply *replies[CORE_TEAM];
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		core_do(s->core, s->g.team.session[rank], ZD_REQ_UNIT_UNREGISTER, s->units[1]);
	backward(s, 5, true);
	core_reducers_step(&s->g, replies);
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		check_target(s, rank, replies[rank], (const float[]){1, 0, 1});
}

/* ---- While it is zeroed -------------------------------------------------------------------------------- */

/* No rank takes the step before: the reply is the word that the target may be read. */
SCENE_TEST(test_a_step_waits_for_its_zeros)
{
	uint64_t steps[NRANKS];
	backward(s, 2, true);
	core_hold(s->core, ZD_CMD_FILL);
	for (uint32_t rank = 0; rank < NRANKS; rank++) {
		steps[rank] = core_step(&s->g.team, rank);
		core_expect_waits(s->core, steps[rank], "memory to be zeroed");
	}
	core_expect_error(s->core, core_step(&s->g.team, 0), ZEROD_E_STATE,
	                  "rank 0 has begun the step already");
	core_run_on(s->core, ZD_CMD_FILL, 0);
	core_run_on(s->core, ZD_CMD_FILL, 0);
	core_expect_waits(s->core, steps[0], "the sums of rank 1's step");
	core_expect_waits(s->core, steps[1], "memory to be zeroed");
	core_unhold(s->core, ZD_CMD_FILL);
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		check_target(s, rank, core_expect(s->core, steps[rank], 0), (const float[]){0, 1, 0});
}

SCENE_TEST(test_a_fill_that_fails)
{
	backward(s, 1, true);
	core_fail_next(s->core, ZD_CMD_FILL, ZEROD_E_DEVICE, "no device");
	core_expect_error(s->core, core_step(&s->g.team, 0), ZEROD_E_DEVICE, "no device");
	take_step(s, (const float[]){1, 0, 0}); /* as if it had not been asked for */
}

SCENE_TEST(test_a_deadline_meanwhile)
{
	struct zd_args args = {.kind = ZD_REQ_STEP_BEGIN};
	args.u.step_begin.group = s->g.team.group;
	backward(s, 4, true);
	core_hold(s->core, ZD_CMD_FILL);
	uint64_t late = core_send_until(s->core, s->g.team.session[0], 7, &args);
	core_tick(s->core, 7);
	core_expect(s->core, late, ZEROD_E_DEADLINE);
	/* The next one waits for what is under way before it begins its own. */
	uint32_t fills = core_count(s->core, ZD_CMD_FILL);
	uint64_t step = core_step(&s->g.team, 0);
	core_expect_waits(s->core, step, "memory to be zeroed");
	assert_int_equal(core_count(s->core, ZD_CMD_FILL), fills);
	core_run_one(s->core, ZD_CMD_FILL);
	core_expect_waits(s->core, step, "memory to be zeroed");
	assert_int_equal(core_count(s->core, ZD_CMD_FILL), fills + 1);
	core_unhold(s->core, ZD_CMD_FILL);
	uint64_t other = core_step(&s->g.team, 1);
	check_target(s, 0, core_expect(s->core, step, 0), (const float[]){0, 0, 1});
	check_target(s, 1, core_expect(s->core, other, 0), (const float[]){0, 0, 1});
}

/* The group fails and is whole again while a fill is under way: its memory is given out when that has ended,
 * and not before. */
SCENE_TEST(test_a_group_that_fails_meanwhile)
{
	struct core_join join = {.world_size = NRANKS, .rank = 1, .device = 1};
	backward(s, 0, true);
	core_hold(s->core, ZD_CMD_FILL);
	uint64_t step = core_step(&s->g.team, 0);
	core_close(s->core, s->g.team.session[1]);
	s->g.team.session[1] = core_open(s->core, CORE_ALICE);
	core_join_ok(s->core, s->g.team.session[1], &join);
	assert_int_equal(core_usage(s->core).target_bytes, 0);
	assert_int_not_equal(core_quarantine(s->core, 0), 0);
	core_unhold(s->core, ZD_CMD_FILL);
	core_expect_error(s->core, step, ZEROD_E_PEER_LOST, "was gone meanwhile");
	assert_int_equal(core_quarantine(s->core, 0), 0);
}
