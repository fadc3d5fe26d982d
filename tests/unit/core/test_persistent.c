/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Persistent units and slots: gathered copies whose place in memory matters.
 */
#include "tests/unit/core/team_rig.h"

#define UNIT_BYTES 512ull

#define RIG_TEST(name) CORE_RIG_TEST(name, struct rig, rig, rig_open(rig, 2, UNIT_BYTES, NULL), core_rig_end)

static void set_persistent(struct rig *rig, bool persistent)
{
	core_expect(rig->core, core_set_persistent(rig->core, rig->session, rig->unit, persistent), 0);
}

/* ---- Persistent units ---------------------------------------------------------------------------------- */

RIG_TEST(test_persistent_copy_is_gathered_without_a_transfer)
{
	struct core_row row;
	uint64_t unit = core_team_register(
	        &rig->team, &(struct core_unit){.name = "norm", .numel = 64, .persistent = true});
	core_team_publish(&rig->team, unit);
	gather_ok(rig, unit);
	release_ok(rig, unit);
	gather_ok(rig, unit);
	assert_int_equal(core_count(rig->core, ZD_CMD_COPY), 2);
	release_ok(rig, unit);
	core_expect(rig->core, core_release(rig->core, rig->session, unit), ZEROD_E_NOT_HELD);
	assert_int_equal(core_rows(rig->core, ZD__TABLE__BUFFERS, &row, 1), 1);
	assert_true(row.row->buffer->persistent);
	assert_int_equal(row.row->buffer->n_holders, 0);
	/* a prefetch has nothing to do */
	core_expect(rig->core, core_prefetch(rig->core, rig->session, unit), 0);
	assert_int_equal(core_count(rig->core, ZD_CMD_COPY), 2);
}

RIG_TEST(test_persistence_is_toggled_at_any_time)
{
	/* on while held */
	gather_ok(rig, rig->unit);
	set_persistent(rig, true);
	release_ok(rig, rig->unit);
	assert_int_equal(gathered_bytes(rig), UNIT_BYTES);
	/* off while held: freed by the last release */
	gather_ok(rig, rig->unit);
	gather_ok(rig, rig->unit);
	set_persistent(rig, false);
	release_ok(rig, rig->unit);
	assert_int_equal(gathered_bytes(rig), UNIT_BYTES);
	release_ok(rig, rig->unit);
	assert_int_equal(gathered_bytes(rig), 0);
	/* off while nobody holds it: no release would come */
	set_persistent(rig, true);
	gather_ok(rig, rig->unit);
	release_ok(rig, rig->unit);
	set_persistent(rig, false);
	assert_int_equal(gathered_bytes(rig), 0);
	/* which is no reason to give up what was prefetched */
	core_expect(rig->core, core_prefetch(rig->core, rig->session, rig->unit), 0);
	set_persistent(rig, false);
	assert_int_equal(gathered_bytes(rig), UNIT_BYTES);
	core_expect(rig->core, core_set_persistent(rig->core, rig->session, 9999, true), ZEROD_E_NOT_FOUND);
}

RIG_TEST(test_persistence_is_each_ranks_own)
{
	set_persistent(rig, true);
	core_expect(rig->core, core_gather(rig->core, rig->team.session[1], rig->unit), 0);
	core_expect(rig->core, core_release(rig->core, rig->team.session[1], rig->unit), 0);
	assert_int_equal(gathered_bytes(rig), 0);
}

/* A refresh writes into the copy, so it waits for its holders, their streams and the former transfer. */
RIG_TEST(test_refresh_waits_for_all_use_of_the_former_version)
{
	struct core_driver *core = rig->core;
	struct zd_args force = {.kind = ZD_REQ_PUBLISH,
	                        .u.publish = {.n_units = 1, .units = &rig->unit, .force = true}};
	set_persistent(rig, true);
	const struct zd_reply *old = gather_ok(rig, rig->unit);
	core_expect(core, core_update(core, rig->session, rig->unit), 0);
	core_team_write(&rig->team, rig->unit, 0);
	core_call(core, rig->session, &force, 0);
	core_team_publish_rank(&rig->team, rig->unit, 1);
	uint64_t fresh = core_gather_tag(core, rig->session, rig->unit, "next", 1);
	core_expect_waits(core, fresh, "leases on version 1 of unit 'w'");
	core_team_check(&rig->team, old, 1);
	release_after(rig, rig->unit, 2);
	const struct zd_reply *reply = core_expect(core, fresh, 0); /* its copies wait for the stream */
	core_team_check(&rig->team, old, 1);
	pass(rig, 2);
	expect_same(reply->place, old->place);
	core_team_check(&rig->team, reply, 2);
}

/* A copy that was prefetched and that nobody has seen need not be refreshed in place. */
RIG_TEST(test_prefetched_copy_of_a_persistent_unit_goes_stale)
{
	set_persistent(rig, true);
	core_expect(rig->core, core_prefetch(rig->core, rig->session, rig->unit), 0);
	core_team_publish(&rig->team, rig->unit);
	assert_int_equal(gathered_bytes(rig), UNIT_BYTES);
	core_team_check(&rig->team, gather_ok(rig, rig->unit), 2);
	release_ok(rig, rig->unit);
	assert_int_equal(gathered_bytes(rig), UNIT_BYTES);
}

/* ---- Slots --------------------------------------------------------------------------------------------- */

RIG_TEST(test_prefetch_and_slots)
{
	uint64_t a = core_team_slot_unit(&rig->team, "a", UNIT_BYTES, 2);
	uint64_t b = core_team_slot_unit(&rig->team, "b", UNIT_BYTES, 2);
	gather_ok(rig, a);
	uint64_t prefetch = core_prefetch(rig->core, rig->session, b); /* no conflict: it has time */
	core_expect_waits(rig->core, prefetch, "slot 2, which unit 'a' leaves");
	release_ok(rig, a);
	core_expect(rig->core, prefetch, 0);
	/* what was prefetched gives way, at once or when its transfer is over */
	gather_ok(rig, a);
	release_ok(rig, a);
	core_hold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, core_prefetch(rig->core, rig->session, b), 0);
	const struct zd_reply *demand = gather_ok(rig, a); /* its copies come behind */
	core_unhold(rig->core, ZD_CMD_COPY);
	core_team_check(&rig->team, demand, 1);
}

RIG_TEST(test_slot_does_not_grow_once_it_was_used)
{
	struct core_unit large = {.name = "large", .numel = 2 * UNIT_BYTES / 4, .slot = 7};
	struct core_unit larger = {.name = "larger", .numel = 3 * UNIT_BYTES / 4, .slot = 7};
	core_team_slot_unit(&rig->team, "small", UNIT_BYTES, 7);
	uint64_t unit = core_team_register(&rig->team, &large);
	core_team_publish(&rig->team, unit);
	gather_ok(rig, unit);
	core_expect_error(rig->core, core_register(rig->core, rig->session, rig->team.group, &larger),
	                  ZEROD_E_INVALID,
	                  "unit 'larger' needs 1536 bytes; slot 7 has 1024 and was gathered into already");
	larger.numel = UNIT_BYTES / 4;
	core_team_register(&rig->team, &larger);
}

/* The rank goes while streams still use its slot: the block stays until they are through. */
RIG_TEST(test_slot_outlives_its_rank_while_in_use)
{
	uint64_t a = core_team_slot_unit(&rig->team, "a", UNIT_BYTES, 2);
	uint64_t b = core_team_slot_unit(&rig->team, "b", UNIT_BYTES, 3);
	gather_ok(rig, b); /* a second slot, which is idle when the rank goes */
	release_ok(rig, b);
	core_hold(rig->core, ZD_CMD_COPY);
	gather_ok(rig, a);
	core_close(rig->core, rig->session);
	assert_int_equal(gathered_bytes(rig), 0);
	assert_int_equal(core_usage(rig->core).shard_bytes, 3 * UNIT_BYTES / 2);
	core_unhold(rig->core, ZD_CMD_COPY);
	core_close(rig->core, rig->team.session[1]);
	assert_int_equal(core_rows(rig->core, ZD__TABLE__JOBS, NULL, 0), 0);
}
