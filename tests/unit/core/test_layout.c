/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places of units that a rank changes: into another slot between two uses, frozen or not between two steps.
 */
#include "tests/support/core_reduce.h"

#define UNIT_BYTES 4096u
#define SLOT_BYTES (16 * CORE_KIB)
#define NUMEL      250u

struct rig {
	struct core_driver *core;
	struct core_team team;
	uint64_t session, a, b;
};

static void open_rig(struct rig *rig)
{
	rig->core = core_new(&(struct core_options){.segment_align_bytes = 64 * CORE_KIB});
	rig->team = core_team_new(rig->core, "job", 2, false);
	rig->session = rig->team.session[0];
	rig->a = core_team_unit(&rig->team, "a", UNIT_BYTES);
	rig->b = core_team_slot_unit(&rig->team, "b", UNIT_BYTES / 2, 3);
}

#define RIG_TEST(name) CORE_RIG_TEST(name, struct rig, rig, open_rig(rig), core_rig_end)

static uint64_t set_slot(struct rig *rig, uint64_t unit, uint32_t slot)
{
	struct zd_args args = {.kind = ZD_REQ_SET_SLOT, .u.set_slot = {.unit = unit, .slot = slot}};
	return core_send(rig->core, rig->session, &args);
}

static struct zd_location gather(struct rig *rig, uint64_t unit)
{
	return core_expect(rig->core, core_gather(rig->core, rig->session, unit), 0)->place;
}

static struct zd_location use(struct rig *rig, uint64_t unit)
{
	struct zd_location at = gather(rig, unit);
	core_expect(rig->core, core_release(rig->core, rig->session, unit), 0);
	return at;
}

static uint64_t block_bytes(struct rig *rig)
{
	struct core_row row[2];
	assert_int_equal(core_rows(rig->core, ZD__TABLE__DEVICES, row, 2), 2);
	return row[0].row->device->block_bytes;
}

/* ---- Slots --------------------------------------------------------------------------------------------- */

RIG_TEST(test_slot_of_a_unit_in_use)
{
	struct zd_location at = gather(rig, rig->a);
	core_expect_error(rig->core, set_slot(rig, rig->a, 1), ZEROD_E_BUSY,
	                  "unit 'a' is held on rank 0 by 'plan'");
	core_expect(rig->core, set_slot(rig, rig->a, ZEROD_NO_SLOT), 0); /* where it is */
	assert_int_equal(use(rig, rig->a).offset, at.offset);
	core_expect(rig->core, core_release(rig->core, rig->session, rig->a), 0);
	core_expect(rig->core, core_update(rig->core, rig->team.session[1], rig->a), 0);
	uint64_t waits = core_gather_tag(rig->core, rig->session, rig->a, "eager", 1);
	core_expect_error(rig->core, set_slot(rig, rig->a, 1), ZEROD_E_BUSY,
	                  "a gather under tag 'eager' waits");
	core_expect(rig->core, core_publish(rig->core, rig->team.session[1], rig->a), 0);
	core_expect_waits(rig->core, waits, "rank 0 to publish version 2");
	core_team_publish_rank(&rig->team, rig->a, 0);
	core_expect(rig->core, waits, 0);
	core_expect(rig->core, core_release_tag(rig->core, rig->session, rig->a, "eager", NULL, 0), 0);
	core_hold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, core_prefetch(rig->core, rig->session, rig->a), 0);
	core_expect_error(rig->core, set_slot(rig, rig->a, 1), ZEROD_E_BUSY,
	                  "a gather of rank 0 is under way");
	core_unhold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, set_slot(rig, rig->a, 1), 0);
	core_expect_error(rig->core, set_slot(rig, rig->a, ZD_MAX_SLOTS + 1), ZEROD_E_LIMIT, "slot 4097");
}

/* The block is too small for the unit that came: another one takes its place when nobody is in it, even while
 * streams are. */
RIG_TEST(test_slot_that_a_larger_unit_enters)
{
	struct zd_fence stream = {1, 1};
	struct zd_location small = gather(rig, rig->b);
	core_expect(rig->core, set_slot(rig, rig->a, 3), 0);
	core_expect_error(rig->core, core_gather(rig->core, rig->session, rig->a), ZEROD_E_SLOT_CONFLICT,
	                  "slot 3 holds unit 'b', which rank 0 has not released");
	core_expect(rig->core, core_release_tag(rig->core, rig->session, rig->b, CORE_TAG, &stream, 1), 0);
	struct zd_location large = use(rig, rig->a);
	assert_int_not_equal(large.offset, small.offset);
	assert_int_equal(use(rig, rig->b).offset, large.offset);
	uint64_t before = block_bytes(rig);
	core_pass(rig->core, rig->session, 1, 1);
	assert_int_equal(block_bytes(rig), before - UNIT_BYTES / 2);
}

/* ---- Frozen units -------------------------------------------------------------------------------------- */

static uint64_t set_frozen(struct core_reducers *g, uint32_t rank, uint64_t unit, bool frozen)
{
	struct zd_args args = {.kind = ZD_REQ_SET_FROZEN, .u.set_frozen = {.unit = unit, .frozen = frozen}};
	return core_send(g->team.core, g->team.session[rank], &args);
}

static void set_frozen_all(struct core_reducers *g, uint64_t unit, bool frozen)
{
	for (uint32_t rank = 0; rank < g->team.world_size; rank++)
		core_expect(g->team.core, set_frozen(g, rank, unit, frozen), 0);
}

/* Reduces `unit` in a window of one backward, and finds it at `offset_numel` of a target of that size. */
static void train(struct core_reducers *g, uint64_t unit, uint64_t offset_numel, uint64_t target_numel)
{
	const struct zd_reply *step[CORE_TEAM];
	core_reducers_begin(g, 3, true);
	core_reduce_all(g, unit, 1.0f);
	core_reducers_end(g);
	core_reducers_step(g, step);
	for (uint32_t rank = 0; rank < g->team.world_size; rank++) {
		assert_int_equal(step[rank]->target.bytes, target_numel * sizeof(float));
		core_check_target(g, rank, step[rank], offset_numel, 1.0f);
	}
	core_reducers_step_end(g);
}

ENGINE_TEST(test_units_are_unfrozen_and_frozen)
{
	struct core_unit frozen = {.name = "late", .numel = NUMEL, .frozen = true};
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, SLOT_BYTES, 2);
	uint64_t late = core_team_register(&g.team, &frozen);
	uint64_t w = core_reducers_unit(&g, "w", NUMEL);
	uint64_t place = g.shard_numel;
	train(&g, w, 0, place);
	core_reducers_begin(&g, 3, true);
	core_expect_error(core, core_reserve(&g.team, 0, g.bucket[0], late), ZEROD_E_INVALID, "is frozen");
	core_expect_error(core, set_frozen(&g, 0, late, false), ZEROD_E_STATE,
	                  "rank 0 is between backward 2 and the end of its step: unit 'late'");
	core_expect(core, set_frozen(&g, 0, late, true), 0); /* as it is */
	core_reducers_end(&g);
	core_expect(core, set_frozen(&g, 0, late, false), ZEROD_E_STATE);
	const struct zd_reply *step[CORE_TEAM];
	core_reducers_step(&g, step);
	core_expect(core, set_frozen(&g, 0, late, false), ZEROD_E_STATE);
	core_reducers_step_end(&g);
	for (uint32_t rank = 0; rank < 2; rank++)
		assert_int_equal(core_expect(core, set_frozen(&g, rank, late, false), 0)
		                         ->u.set_frozen.target_offset_numel,
		                 place);
	train(&g, late, place, 2 * place);
	/* the last place goes, the first one stays as a gap */
	set_frozen_all(&g, w, true);
	train(&g, late, place, 2 * place);
	set_frozen_all(&g, w, false);
	set_frozen_all(&g, late, true);
	train(&g, w, 0, place);
}

/* The first rank that begins the backward counts. */
ENGINE_TEST(test_ranks_freeze_different_units)
{
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, SLOT_BYTES, 2);
	uint64_t w = core_reducers_unit(&g, "w", NUMEL);
	core_expect(core, set_frozen(&g, 0, w, true), 0);
	core_expect(core, core_backward(&g.team, 0, 3, true), 0);
	core_expect_error(core, core_backward(&g.team, 1, 3, true), ZEROD_E_MISMATCH,
	                  "unit 'w' is trainable for rank 1 and frozen for rank 0");
	core_expect(core, set_frozen(&g, 1, w, true), 0);
	core_expect(core, core_backward(&g.team, 1, 3, true), 0);
	core_reducers_end(&g);
	const struct zd_reply *step[CORE_TEAM];
	core_reducers_step(&g, step);
	core_reducers_step_end(&g);
}
