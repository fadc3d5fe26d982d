/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gather and release: transfers, leases, tags, versions, and when a block may be used again.
 */
#include "tests/unit/core/team_rig.h"

#define UNIT_BYTES 512u

#define RIG_TEST(name) CORE_RIG_TEST(name, struct rig, rig, rig_open(rig, 2, UNIT_BYTES, NULL), core_rig_end)

static const struct zd_reply *gather_reply(struct rig *rig, const char *tag)
{
	uint64_t request = core_gather_tag(rig->core, rig->session, rig->unit, tag, 1);
	return core_expect(rig->core, request, 0);
}

static struct zd_location gather_as(struct rig *rig, const char *tag)
{
	return gather_reply(rig, tag)->place;
}

static bool release_as(struct rig *rig, const char *tag)
{
	uint64_t request = core_release_tag(rig->core, rig->session, rig->unit, tag, NULL, 0);
	return core_expect(rig->core, request, 0)->u.release.lease_ended;
}

/* ---- Transfers ----------------------------------------------------------------------------------------- */

RIG_TEST(test_gather_is_inflight_then_available)
{
	struct core_row row;
	core_hold(rig->core, ZD_CMD_COPY);
	const struct zd_reply *reply = core_expect(rig->core, core_gather(rig->core, rig->session, rig->unit),
	                                           0);
	assert_int_equal(reply->place.bytes, UNIT_BYTES);
	assert_int_equal(core_rows(rig->core, ZD__TABLE__BUFFERS, &row, 1), 1);
	assert_string_equal(row.state, "INFLIGHT");
	assert_string_equal(row.row->buffer->waits_for, "2 transfers");
	/* the neighbour's device makes both copies, behind one fence */
	assert_int_equal(reply->fences.count, 1);
	struct zd_fence fence = reply->fences.fences[0];
	assert_int_equal(fence.timeline, 1);
	core_run_on(rig->core, ZD_CMD_COPY, 1);
	assert_false(zd_fence_reached(core_timeline(rig->core, rig->session, 1), fence.value));
	core_run_on(rig->core, ZD_CMD_COPY, 1);
	assert_true(zd_fence_reached(core_timeline(rig->core, rig->session, 1), fence.value));
	core_rows(rig->core, ZD__TABLE__BUFFERS, &row, 1);
	assert_string_equal(row.state, "AVAILABLE");
	assert_int_equal(row.row->buffer->padded_bytes, UNIT_BYTES);
	assert_int_equal(row.row->buffer->version, 1);
	core_team_check(&rig->team, reply, 1);
}

RIG_TEST(test_second_gather_joins)
{
	struct zd_engine_totals totals;
	struct core_row row;
	core_hold(rig->core, ZD_CMD_COPY);
	struct zd_location first = gather_as(rig, "plan");
	struct zd_location second = gather_as(rig, "eager"); /* while it is under way */
	core_unhold(rig->core, ZD_CMD_COPY);
	struct zd_location third = gather_as(rig, "context"); /* and when it is there */
	assert_true(same_place(first, second) && same_place(first, third));
	assert_int_equal(core_count(rig->core, ZD_CMD_COPY), 2);
	zd_engine_totals(core_engine(rig->core), &totals);
	assert_int_equal(totals.gathers, 1);
	assert_int_equal(totals.joined_gathers, 2);
	assert_int_equal(totals.gathered_bytes_total, UNIT_BYTES);
	assert_int_equal(gathered_bytes(rig), UNIT_BYTES);
	assert_int_equal(core_rows(rig->core, ZD__TABLE__BUFFERS, &row, 1), 1);
	assert_int_equal(row.row->buffer->n_holders, 3);
	assert_string_equal(row.row->buffer->holders[1]->tag, "eager");
	assert_true(row.row->buffer->holders[1]->session == rig->session);
}

RIG_TEST(test_bad_arguments)
{
	struct core_driver *core = rig->core;
	core_expect_error(core, core_gather(core, rig->session, 9999), ZEROD_E_NOT_FOUND,
	                  "this session has not registered unit 9999");
	core_expect(core,
	            core_gather_tag(core, rig->session, rig->unit, "0123456789012345678901234567890x", 1),
	            ZEROD_E_INVALID);
	core_expect(core, core_gather_tag(core, rig->session, rig->unit, "", 1), 0); /* "default" */
	core_expect_error(core, core_release(core, rig->session, rig->unit), ZEROD_E_NOT_HELD, "tag 'plan'");
	core_expect(core, core_release_tag(core, rig->session, rig->unit, "default", NULL, 0), 0);
	core_expect(core, core_release(core, rig->session, 9999), ZEROD_E_NOT_FOUND);
	uint64_t stranger = core_open(core, CORE_ALICE);
	core_expect_error(core, core_gather(core, stranger, rig->unit), ZEROD_E_NOT_FOUND,
	                  "has not registered");
	gather_as(rig, "plan");
	core_expect(core,
	            core_release_tag(core, rig->session, rig->unit, "plan",
	                             &(struct zd_fence){ZD_TIMELINES, 1}, 1),
	            ZEROD_E_INVALID);
	assert_int_equal(gathered_bytes(rig), UNIT_BYTES);
}

/* ---- Leases -------------------------------------------------------------------------------------------- */

RIG_TEST(test_uses_are_counted_down)
{
	struct core_row row;
	core_expect(rig->core, core_gather_tag(rig->core, rig->session, rig->unit, "plan", 3), 0);
	assert_false(release_as(rig, "plan"));
	assert_false(release_as(rig, "plan"));
	assert_int_equal(gathered_bytes(rig), UNIT_BYTES);
	/* a further gather under the same tag adds to the lease */
	core_expect(rig->core, core_gather_tag(rig->core, rig->session, rig->unit, "plan", 2), 0);
	assert_int_equal(core_rows(rig->core, ZD__TABLE__BUFFERS, &row, 1), 1);
	assert_int_equal(row.row->buffer->n_holders, 1);
	assert_int_equal(row.row->buffer->holders[0]->uses, 3);
	core_expect_error(rig->core,
	                  core_gather_tag(rig->core, rig->session, rig->unit, "plan", UINT32_MAX - 2),
	                  ZEROD_E_LIMIT, "tag 'plan' has 3 uses of unit 'w' already");
	assert_false(release_as(rig, "plan"));
	assert_false(release_as(rig, "plan"));
	assert_true(release_as(rig, "plan"));
	assert_int_equal(gathered_bytes(rig), 0);
}

/* ---- When the bytes may be used again ------------------------------------------------------------------ */

RIG_TEST(test_block_is_not_reused_while_a_transfer_writes_it)
{
	struct core_row row;
	core_hold(rig->core, ZD_CMD_COPY);
	struct zd_location held = gather_as(rig, "plan");
	core_expect(rig->core,
	            core_release_tag(rig->core, rig->session, rig->unit, "plan", &(struct zd_fence){1, 1}, 1),
	            0);
	core_rows(rig->core, ZD__TABLE__BUFFERS, &row, 1);
	assert_string_equal(row.row->buffer->waits_for, "2 transfers, streams of 1 release");
	assert_int_equal(gathered_bytes(rig), 0);
	/* gathered again meanwhile: another block, another transfer */
	assert_false(same_place(held, gather_as(rig, "plan")));
	core_pass(rig->core, rig->session, 1, 1);
	assert_int_equal(core_quarantine(rig->core, 0), UNIT_BYTES);
	core_unhold(rig->core, ZD_CMD_COPY);
	assert_int_equal(core_quarantine(rig->core, 0), 0);
}

RIG_TEST(test_fences_compare_cyclically)
{
	gather_as(rig, "plan");
	core_pass(rig->core, rig->session, 3, 5);
	core_expect(rig->core,
	            core_release_tag(rig->core, rig->session, rig->unit, "plan", &(struct zd_fence){3, 5}, 1),
	            0);
	assert_int_equal(core_count(rig->core, ZD_CMD_WATCH), 0);
	assert_int_equal(core_quarantine(rig->core, 0), 0);
	gather_as(rig, "plan");
	core_expect(rig->core,
	            core_release_tag(rig->core, rig->session, rig->unit, "plan",
	                             &(struct zd_fence){3, INT64_MAX - 1}, 1),
	            0);
	assert_int_equal(core_quarantine(rig->core, 0), UNIT_BYTES);
	core_pass(rig->core, rig->session, 3, (uint64_t)ZD_FENCE_ABORTED);
	assert_int_equal(core_quarantine(rig->core, 0), 0);
}

/* ---- Pipelined releases -------------------------------------------------------------------------------- */

RIG_TEST(test_release_waits_for_its_own_gather)
{
	core_team_publish_rank(&rig->team, rig->unit, 0);
	uint64_t gather = core_gather(rig->core, rig->session, rig->unit);
	uint64_t release = core_release(rig->core, rig->session, rig->unit);
	core_expect_waits(rig->core, gather, "rank 1 to publish version 2");
	core_expect_waits(rig->core, release, "release: its own gather of unit 'w' on rank 0");
	core_expect(rig->core, core_release_tag(rig->core, rig->session, rig->unit, "eager", NULL, 0),
	            ZEROD_E_NOT_HELD);
	core_team_publish_rank(&rig->team, rig->unit, 1);
	core_expect(rig->core, gather, 0);
	assert_true(core_expect(rig->core, release, 0)->u.release.lease_ended);
	assert_int_equal(gathered_bytes(rig), 0);
}

RIG_TEST(test_release_of_a_gather_that_fails)
{
	struct zd_args args = {.kind = ZD_REQ_GATHER,
	                       .u.gather = {.unit = rig->unit, .tag = (char *)CORE_TAG}};
	struct zd_args late = {.kind = ZD_REQ_RELEASE,
	                       .u.release = {.unit = rig->unit, .tag = (char *)CORE_TAG}};
	core_team_publish_rank(&rig->team, rig->unit, 0);
	uint64_t gather = core_send_until(rig->core, rig->session, 5, &args);
	uint64_t first = core_send_until(rig->core, rig->session, 3, &late);
	uint64_t second = core_release(rig->core, rig->session, rig->unit);
	core_tick(rig->core, 3);
	core_expect_error(rig->core, first, ZEROD_E_DEADLINE, "its own gather of unit 'w'");
	core_tick(rig->core, 5);
	core_expect_error(rig->core, gather, ZEROD_E_DEADLINE,
	                  "gather: waited 0 ms for rank 1 to publish version 2 of unit 'w' (has 1)");
	core_expect(rig->core, second, ZEROD_E_NOT_HELD);
	/* no effect is left: nobody uses the unit */
	core_do(rig->core, rig->session, ZD_REQ_UNIT_UNREGISTER, rig->unit);
}

/* ---- Versions ------------------------------------------------------------------------------------------ */

RIG_TEST(test_versions)
{
	struct core_driver *core = rig->core;
	uint64_t future = core_gather_version(core, rig->session, rig->unit, 2);
	core_expect_waits(core, future, "rank 0 to publish version 2 of unit 'w' (has 1)");
	core_team_check(&rig->team,
	                core_expect(core, core_gather_version(core, rig->session, rig->unit, 1), 0), 1);
	/* the copy of version 1 is there as long as it is held, whatever has become of the shards */
	core_team_publish_rank(&rig->team, rig->unit, 1);
	core_expect(core, core_gather_version(core, rig->session, rig->unit, 1), 0);
	core_expect_error(core, core_gather_version(core, rig->team.session[1], rig->unit, 1),
	                  ZEROD_E_STALE_VERSION,
	                  "version 1 of unit 'w' is no longer held: rank 1 has version 2");
	core_expect(core, core_release(core, rig->session, rig->unit), 0);
	core_expect(core, core_release(core, rig->session, rig->unit), 0);
	core_expect(core, core_gather_version(core, rig->session, rig->unit, 1), ZEROD_E_STALE_VERSION);
	core_team_publish_rank(&rig->team, rig->unit, 0);
	core_team_check(&rig->team, core_expect(core, future, 0), 2);
}

RIG_TEST(test_version_under_update_is_stale)
{
	struct core_driver *core = rig->core;
	core_hold(core, ZD_CMD_COPY);
	core_expect(core, core_gather(core, rig->team.session[1], rig->unit), 0);
	core_expect(core, core_release(core, rig->team.session[1], rig->unit), 0);
	uint64_t update = core_update(core, rig->session, rig->unit);
	/* not written yet, so it might come true */
	uint64_t gather = core_gather_version(core, rig->session, rig->unit, 1);
	core_expect_waits(core, gather, "rank 0 to publish version 1 of unit 'w' (has 1)");
	core_unhold(core, ZD_CMD_COPY);
	core_expect(core, update, 0);
	core_expect_error(core, gather, ZEROD_E_STALE_VERSION, "rank 0 writes over version 1");
}
