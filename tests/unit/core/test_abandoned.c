/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries that the remaining ranks of a failed group write, and targets that they read, stay theirs until
 * they return them, in whichever way; the memory is reused only when the fences have passed.
 */
#include "tests/support/core_reduce.h"

#define SLOT_BYTES   (4 * CORE_KIB)
#define NUMEL        256u
#define TARGET_BYTES (2u * 512u) /* of one rank: the two units' slices */

/* Two ranks with a bucket each, in a backward; rank 0 has reserved what `entry` says. */
struct scene {
	struct core_driver *core;
	struct core_reducers g;
	uint64_t unit[2];
	uint64_t entry[2];
	struct zd_location at[2];
	const struct zd_reply *step[CORE_TEAM];
};

static void begin(struct scene *s)
{
	s->core = core_new(NULL);
	s->g = core_reducers_new(s->core, 2, ZEROD_FLOAT32, SLOT_BYTES, 2);
	s->unit[0] = core_reducers_unit(&s->g, "a", NUMEL);
	s->unit[1] = core_reducers_unit(&s->g, "b", NUMEL);
	core_reducers_begin(&s->g, 3, true);
}

static void reserve(struct scene *s, uint32_t i)
{
	const struct zd_reply *reply =
	        core_expect(s->core, core_reserve(&s->g.team, 0, s->g.bucket[0], s->unit[i]), 0);
	s->entry[i] = reply->u.bucket_reserve.entry;
	s->at[i] = reply->place;
	core_write(s->core, s->at[i], ZEROD_FLOAT32, 0, NUMEL, 1.0f);
}

static void begin_reserved(struct scene *s)
{
	begin(s);
	reserve(s, 0);
	reserve(s, 1);
}

#define SCENE_TEST(name) CORE_RIG_TEST(name, struct scene, s, begin_reserved(s), core_rig_end)

/* Up to the step: both ranks have their targets. */
static void begin_step(struct scene *s)
{
	begin(s);
	for (uint32_t rank = 0; rank < 2; rank++) {
		core_reduce(&s->g, rank, s->unit[0], 1.0f);
		core_reduce(&s->g, rank, s->unit[1], 1.0f);
	}
	core_reducers_end(&s->g);
	core_reducers_step(&s->g, s->step);
}

#define STEP_TEST(name) CORE_RIG_TEST(name, struct scene, s, begin_step(s), core_rig_end)

static void lose_peer(struct scene *s)
{
	core_close(s->core, s->g.team.session[1]);
}

/* Rank 1 is there again, with its units. */
static void replace_peer(struct scene *s)
{
	struct core_join join = {.world_size = 2, .rank = 1, .device = 1};
	s->g.team.session[1] = core_open(s->core, CORE_ALICE);
	core_join_ok(s->core, s->g.team.session[1], &join);
	for (uint32_t i = 0; i < 2; i++) {
		struct core_unit unit = {.name = i ? "b" : "a", .numel = NUMEL};
		core_register_ok(s->core, s->g.team.session[1], s->g.team.group, &unit);
	}
}

static uint64_t buckets(const struct scene *s)
{
	return core_usage(s->core).bucket_bytes;
}

static uint64_t targets(const struct scene *s)
{
	return core_usage(s->core).target_bytes;
}

/* All that was anybody's is free. */
static void expect_nothing_left(const struct scene *s)
{
	assert_int_equal(buckets(s) + targets(s), 0);
	assert_int_equal(core_quarantine(s->core, 0), 0);
}

static bool overlap(struct zd_location a, struct zd_location b)
{
	return a.segment == b.segment && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

/* Another group of the same job takes gradient memory on the same device, as much as it gets: none of it is
 * `kept`. */
static void expect_not_handed_out(struct scene *s, struct zd_location kept)
{
	struct core_driver *core = s->core;
	struct core_team other = {.core = core, .world_size = 1};
	other.session[0] = core_open(core, CORE_ALICE);
	struct core_join join = {.group = "other", .world_size = 1};
	other.group = core_join_ok(core, other.session[0], &join);
	uint64_t unit = core_register_ok(core, other.session[0], other.group,
	                                 &(struct core_unit){.name = "x", .numel = NUMEL});
	uint64_t bucket = core_bucket_ok(&other, 0, ZEROD_FLOAT32, SLOT_BYTES, 2);
	core_expect(core, core_backward(&other, 0, 3, true), 0);
	const struct zd_reply *reply = core_expect(core, core_reserve(&other, 0, bucket, unit), 0);
	assert_false(overlap(reply->place, kept));
	struct core_commit c = {.bucket = bucket, .entry = reply->u.bucket_reserve.entry};
	core_expect(core, core_bucket_submit(&other, 0, &c), 0);
	core_expect(core, core_backward_end(&other, 0), 0);
	reply = core_expect(core, core_step(&other, 0), 0);
	assert_false(overlap(reply->target, kept));
	core_close(core, other.session[0]);
}

/* ---- Entries: by their commit -------------------------------------------------------------------------- */

SCENE_TEST(test_commit_gives_back)
{
	struct core_row row;
	struct zd_fence fence = {2, 1}, wrong = {2, 0};
	lose_peer(s);
	core_row(s->core, ZD__TABLE__BUCKETS, s->g.bucket[0], &row);
	assert_string_equal(row.row->bucket->waits[0], "unit 'a': abandoned, not given back yet");
	assert_int_equal(row.row->bucket->reserved, 2);
	assert_int_equal(row.row->bucket->held_bytes, SLOT_BYTES);
	assert_int_equal(buckets(s), SLOT_BYTES);
	expect_not_handed_out(s, s->at[0]);

	core_expect(s->core, core_submit(&s->g, 0, s->entry[0], &wrong), ZEROD_E_INVALID);
	core_expect_error(s->core, core_submit(&s->g, 0, s->entry[0], &fence), ZEROD_E_PEER_LOST,
	                  "rank 1 (pid");
	assert_int_equal(buckets(s), SLOT_BYTES); /* the slot's other entry is still written */
	core_expect(s->core, core_submit(&s->g, 0, s->entry[1], NULL), ZEROD_E_PEER_LOST);
	assert_int_equal(buckets(s), 0);
	assert_int_equal(core_quarantine(s->core, 0), SLOT_BYTES); /* entry a's streams are under way */
	expect_not_handed_out(s, s->at[0]);
	core_pass(s->core, s->g.team.session[0], 2, 1);
	expect_nothing_left(s);
	replace_peer(s);
	core_expect(s->core, core_submit(&s->g, 0, s->entry[0], NULL), ZEROD_E_NOT_FOUND);
}

SCENE_TEST(test_commit_after_an_abort)
{
	core_do(s->core, s->g.team.session[1], ZD_REQ_ABORT_GROUP, s->g.team.group);
	assert_int_equal(buckets(s), SLOT_BYTES);
	core_expect(s->core, core_submit(&s->g, 0, s->entry[0], NULL), ZEROD_E_ABORTED);
	core_expect(s->core, core_submit(&s->g, 0, s->entry[1], NULL), ZEROD_E_ABORTED);
	expect_nothing_left(s);
}

/* An entry that was committed before the loss keeps its fences, and needs no second commit. */
SCENE_TEST(test_committed_before)
{
	struct zd_fence fence = {0, 1};
	core_expect(s->core, core_submit(&s->g, 0, s->entry[0], &fence), 0);
	lose_peer(s);
	assert_int_equal(buckets(s), SLOT_BYTES);
	core_expect(s->core, core_submit(&s->g, 0, s->entry[0], NULL), ZEROD_E_PEER_LOST);
	core_expect(s->core, core_submit(&s->g, 0, s->entry[1], NULL), ZEROD_E_PEER_LOST);
	assert_int_equal(buckets(s), 0);
	assert_int_equal(core_quarantine(s->core, 0), SLOT_BYTES);
	expect_not_handed_out(s, s->at[0]);
	core_pass(s->core, s->g.team.session[0], 0, 1);
	expect_nothing_left(s);
}

/* The rank was never told of an entry whose padding is still being zeroed: only the fill keeps it. */
TEST(test_reserve_under_way)
{
	struct scene s;
	begin(&s);
	uint64_t odd = core_reducers_unit(&s.g, "odd", NUMEL - 1);
	lose_peer(&s);
	replace_peer(&s);
	core_expect_told(s.core, s.g.team.session[0], s.g.team.group, "rank 1");
	core_register_ok(s.core, s.g.team.session[1], s.g.team.group,
	                 &(struct core_unit){.name = "odd", .numel = NUMEL - 1});
	core_reducers_begin(&s.g, 3, true);
	reserve(&s, 0);
	core_hold(s.core, ZD_CMD_FILL);
	uint64_t late = core_reserve(&s.g.team, 0, s.g.bucket[0], odd);
	core_expect_waits(s.core, late, "memory to be zeroed");
	lose_peer(&s);
	core_expect(s.core, core_submit(&s.g, 0, s.entry[0], NULL), ZEROD_E_PEER_LOST);
	assert_int_equal(buckets(&s), 0);
	assert_int_equal(core_quarantine(s.core, 0), SLOT_BYTES);
	core_unhold(s.core, ZD_CMD_FILL);
	core_expect(s.core, late, ZEROD_E_PEER_LOST);
	expect_nothing_left(&s);
	core_end(s.core);
}

/* A group that fails again and again: what a silent rank has stays one and the same. */
SCENE_TEST(test_failures_in_a_row)
{
	for (int i = 0; i < 3; i++) {
		lose_peer(s);
		replace_peer(s);
		assert_int_equal(buckets(s), SLOT_BYTES);
	}
	expect_not_handed_out(s, s->at[0]);
	core_expect(s->core, core_submit(&s->g, 0, s->entry[0], NULL), ZEROD_E_PEER_LOST);
	core_expect(s->core, core_submit(&s->g, 0, s->entry[1], NULL), ZEROD_E_PEER_LOST);
	expect_nothing_left(s);
}

/* ---- Targets: by the step's end ------------------------------------------------------------------------ */

STEP_TEST(test_step_end_gives_back)
{
	struct zd_fence fence = {1, 1}, wrong = {1, 0};
	lose_peer(s);
	assert_int_equal(targets(s), TARGET_BYTES); /* the lost rank's is gone */
	expect_not_handed_out(s, s->step[0]->target);
	core_check_target(&s->g, 0, s->step[0], 0, 1.0f);
	core_expect(s->core, core_step_end(&s->g.team, 0, &wrong, 1), ZEROD_E_INVALID);
	core_expect(s->core, core_step_end(&s->g.team, 0, &fence, 1), 0);
	assert_int_equal(targets(s), 0);
	assert_int_equal(core_quarantine(s->core, 0), TARGET_BYTES);
	expect_not_handed_out(s, s->step[0]->target);
	core_pass(s->core, s->g.team.session[0], 1, 1);
	expect_nothing_left(s);
	core_expect_error(s->core, core_step_end(&s->g.team, 0, NULL, 0), ZEROD_E_PEER_LOST, "rank 1");
}

STEP_TEST(test_step_end_after_the_replacement)
{
	lose_peer(s);
	replace_peer(s);
	core_expect_error(s->core, core_step(&s->g.team, 0), ZEROD_E_PEER_LOST, "rank 1");
	core_expect_error(s->core, core_step(&s->g.team, 0), ZEROD_E_STATE, "no backward of rank 0");
	core_check_target(&s->g, 0, s->step[0], 0, 1.0f);
	core_expect(s->core, core_step_end(&s->g.team, 0, NULL, 0), 0);
	expect_nothing_left(s);
	core_expect(s->core, core_step_end(&s->g.team, 0, NULL, 0), ZEROD_E_STATE);
}

/* An abandoned target is not bound: units that come and go meanwhile change the next target. */
STEP_TEST(test_units_beside_an_abandoned_target)
{
	lose_peer(s);
	replace_peer(s);
	core_expect_told(s->core, s->g.team.session[0], s->g.team.group, "rank 1");
	for (uint32_t rank = 0; rank < 2; rank++)
		core_do(s->core, s->g.team.session[rank], ZD_REQ_UNIT_UNREGISTER, s->unit[1]);
	uint64_t late = core_reducers_unit(&s->g, "c", 512);
	core_reducers_begin(&s->g, 3, true);
	assert_int_equal(targets(s), 2 * (TARGET_BYTES + 512));
	s->g.bucket[1] = core_bucket_ok(&s->g.team, 1, ZEROD_FLOAT32, SLOT_BYTES, 2);
	core_reduce_all(&s->g, late, 1.0f);
	core_reducers_end(&s->g);
}

/* ---- The rank's other words: its streams have drained -------------------------------------------------- */

STEP_TEST(test_backward_begin_gives_up_the_target)
{
	lose_peer(s);
	replace_peer(s);
	core_expect_told(s->core, s->g.team.session[0], s->g.team.group, "rank 1");
	core_expect(s->core, core_backward(&s->g.team, 0, 3, true), 0);
	assert_int_equal(targets(s), TARGET_BYTES);
	core_expect(s->core, core_step_end(&s->g.team, 0, NULL, 0), ZEROD_E_STATE);
	core_expect(s->core, core_backward(&s->g.team, 1, 3, true), 0);
	core_reducers_end(&s->g);
	core_reducers_step(&s->g, s->step);
	assert_int_equal(s->step[0]->u.step_begin.step, 2);
	core_reducers_step_end(&s->g);
	expect_nothing_left(s);
}

TEST(test_bucket_destroy_gives_up)
{
	struct scene s;
	begin(&s);
	reserve(&s, 0);
	uint64_t first = s.g.bucket[0];
	s.g.bucket[0] = core_bucket_ok(&s.g.team, 0, ZEROD_FLOAT32, SLOT_BYTES, 2);
	reserve(&s, 1);
	lose_peer(&s);
	assert_int_equal(buckets(&s), 2 * SLOT_BYTES);
	core_expect(s.core, core_bucket_destroy(&s.g.team, 0, first), 0);
	assert_int_equal(buckets(&s), SLOT_BYTES); /* the other one's is still written */
	expect_not_handed_out(&s, s.at[1]);
	core_expect(s.core, core_bucket_destroy(&s.g.team, 0, s.g.bucket[0]), 0);
	expect_nothing_left(&s);
	core_end(s.core);
}

TEST(test_reset_gives_up)
{
	struct scene s;
	begin_reserved(&s);
	core_do(s.core, s.g.team.session[0], ZD_REQ_SESSION_RESET, 0);
	assert_int_equal(buckets(&s), SLOT_BYTES); /* that backward is alive */
	lose_peer(&s);
	core_do(s.core, s.g.team.session[0], ZD_REQ_SESSION_RESET, 0);
	expect_nothing_left(&s);
	core_end(s.core);

	begin_step(&s);
	core_do(s.core, s.g.team.session[0], ZD_REQ_SESSION_RESET, 0);
	assert_int_equal(targets(&s), 2 * TARGET_BYTES);
	lose_peer(&s);
	core_do(s.core, s.g.team.session[0], ZD_REQ_SESSION_RESET, 0);
	expect_nothing_left(&s);
	core_expect(s.core, core_step_end(&s.g.team, 0, NULL, 0), ZEROD_E_PEER_LOST);
	core_end(s.core);
}

TEST(test_leave_and_end_give_up)
{
	for (int i = 0; i < 4; i++) {
		struct scene s;
		if (i < 2)
			begin_reserved(&s);
		else
			begin_step(&s);
		lose_peer(&s);
		assert_int_not_equal(buckets(&s) + targets(&s), 0);
		if (i % 2 == 0)
			core_close(s.core, s.g.team.session[0]);
		else
			core_do(s.core, s.g.team.session[0], ZD_REQ_GROUP_LEAVE, s.g.team.group);
		expect_nothing_left(&s);
		core_end(s.core);
	}
}
