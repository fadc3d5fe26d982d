/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves of units between devices and host memory: what moves, what stays, and what is refused.
 */
#include "tests/support/test.h"
#include "tests/unit/core/place_rig.h"

/* ---- Moves --------------------------------------------------------------------------------------------- */

/* One copy of each shard, by the rank's device in both directions, and the shard's new location. */
RIG_TEST(test_each_shard_is_copied_once)
{
	uint64_t requests[CORE_TEAM];
	for (int on_host = 1; on_host >= 0; on_host--) {
		uint32_t copies = core_count(rig->core, ZD_CMD_COPY);
		place_all(rig, on_host, requests);
		assert_int_equal(core_count(rig->core, ZD_CMD_COPY), copies + 2);
		for (uint32_t rank = 0; rank < 2; rank++) {
			const struct zd_reply *reply = core_expect(rig->core, requests[rank], 0);
			assert_int_equal(reply->place.bytes, BYTES);
			assert_int_equal(core_bytes(rig->core, reply->place)[BYTES - 1],
			                 core_pattern(rank, 1));
		}
		assert_int_equal(core_copied_bytes(rig->core, HOST), 0);
	}
}

RIG_TEST(test_the_same_place_moves_nothing)
{
	uint64_t first;
	first = place(rig, 0, false);
	core_expect_waits(rig->core, first, "rank 1 to call unit_place of unit 'w'");
	core_expect(rig->core, place(rig, 1, false), 0);
	core_expect(rig->core, first, 0);
	assert_int_equal(core_count(rig->core, ZD_CMD_COPY), 0);
	expect_place(rig, false);
}

RIG_TEST(test_gathers_and_updates_wait)
{
	uint64_t requests[CORE_TEAM], gather;
	core_hold(rig->core, ZD_CMD_COPY);
	place_all(rig, true, requests);
	gather = core_gather(rig->core, rig->team.session[0], rig->unit);
	core_expect_waits(rig->core, gather, "unit 'w' to be moved");
	core_expect_error(rig->core, core_update(rig->core, rig->team.session[0], rig->unit), ZEROD_E_STATE,
	                  "unit 'w' is MOVING");
	core_expect_error(rig->core, place(rig, 0, true), ZEROD_E_STATE, "rank 0 has called unit_place");
	core_unhold(rig->core, ZD_CMD_COPY);
	expect_all(rig, requests, 0, NULL);
	core_team_check(&rig->team, core_expect(rig->core, gather, 0), 1);
	core_expect(rig->core, core_release(rig->core, rig->team.session[0], rig->unit), 0);
	expect_place(rig, true);
}

/* The copies of a gather read the former shards to their end. */
RIG_TEST(test_a_move_waits_for_transfers)
{
	uint64_t requests[CORE_TEAM];
	const struct zd_reply *reply;
	core_hold(rig->core, ZD_CMD_COPY);
	reply = core_expect(rig->core, core_gather(rig->core, rig->team.session[0], rig->unit), 0);
	place_all(rig, true, requests);
	core_expect_waits(rig->core, requests[0], "1 transfer that reads the shard of rank 0 of unit 'w'");
	assert_int_equal(core_pending(rig->core, ZD_CMD_COPY), 2);
	core_unhold(rig->core, ZD_CMD_COPY);
	expect_all(rig, requests, 0, NULL);
	core_team_check(&rig->team, reply, 1);
	core_expect(rig->core, core_release(rig->core, rig->team.session[0], rig->unit), 0);
	expect_place(rig, true);
}

/* ---- Buffers that are the shard ------------------------------------------------------------------------ */

TEST(test_a_lease_of_the_shard_itself)
{
	const struct zd_fence fence = {3, 1};
	uint64_t request;
	struct rig rig;
	start(&rig, 1);
	core_expect(rig.core, core_gather(rig.core, rig.team.session[0], rig.unit), 0);
	refuse(&rig, true, ZEROD_E_BUSY,
	       "unit 'w' is held on rank 0 by 'plan'; its gathered buffer is in place");
	expect_place(&rig, false);
	core_expect(rig.core, core_release_tag(rig.core, rig.team.session[0], rig.unit, CORE_TAG, &fence, 1),
	            0);
	request = place(&rig, 0, true);
	core_expect_waits(rig.core, request, "1 consumer that reads the shard of rank 0");
	assert_int_equal(core_count(rig.core, ZD_CMD_COPY), 0);
	core_pass(rig.core, rig.team.session[0], 3, 1);
	core_expect(rig.core, request, 0);
	expect_place(&rig, true);
	expect_version(&rig, 1);
	core_end(rig.core);
}

TEST(test_no_lease_of_the_shard_begins_while_it_moves)
{
	uint64_t request, gather;
	struct rig rig;
	start(&rig, 1);
	core_expect(rig.core, core_set_persistent(rig.core, rig.team.session[0], rig.unit, true), 0);
	expect_version(&rig, 1); /* the buffer stays, without a lease */
	core_hold(rig.core, ZD_CMD_COPY);
	request = place(&rig, 0, true);
	gather = core_gather(rig.core, rig.team.session[0], rig.unit);
	core_expect_waits(rig.core, gather, "unit 'w' to be moved");
	core_unhold(rig.core, ZD_CMD_COPY);
	core_expect(rig.core, request, 0);
	core_team_check(&rig.team, core_expect(rig.core, gather, 0), 1);
	assert_int_equal(core_usage(rig.core).gathered_bytes, NUMEL * 4 + 96);
	core_expect(rig.core, core_release(rig.core, rig.team.session[0], rig.unit), 0);
	core_end(rig.core);
}

/* A copy stays while it has the version; the next version is gathered in place. */
TEST(test_copies_of_a_shard_that_is_alone)
{
	const struct zd_reply *reply;
	struct rig rig;
	uint64_t session;
	start(&rig, 1);
	session = rig.team.session[0];
	move(&rig, true);
	core_expect(rig.core, core_set_persistent(rig.core, session, rig.unit, true), 0);
	core_expect(rig.core, core_gather(rig.core, session, rig.unit), 0);
	move(&rig, false);
	core_team_check(&rig.team, core_expect(rig.core, core_gather(rig.core, session, rig.unit), 0), 1);
	assert_true(core_usage(rig.core).gathered_bytes > 0);
	core_expect(rig.core, core_release(rig.core, session, rig.unit), 0);
	core_expect(rig.core, core_release(rig.core, session, rig.unit), 0);
	move(&rig, true);
	move(&rig, false);
	core_team_publish(&rig.team, rig.unit);
	reply = core_expect(rig.core, core_gather(rig.core, session, rig.unit), 0);
	core_team_check(&rig.team, reply, 2);
	assert_int_equal(core_usage(rig.core).gathered_bytes, 0);
	core_expect(rig.core, core_release(rig.core, session, rig.unit), 0);
	core_end(rig.core);
}

/* ---- Refusals ------------------------------------------------------------------------------------------ */

RIG_TEST(test_ranks_that_differ)
{
	uint64_t first;
	first = place(rig, 0, true);
	core_expect_error(rig->core, place(rig, 1, false), ZEROD_E_MISMATCH,
	                  "unit 'w': rank 0 places it on the host; rank 1 says on its device");
	core_expect_error(rig->core, first, ZEROD_E_MISMATCH, "rank 1 says on its device");
	expect_place(rig, false);
	move(rig, true);
	expect_version(rig, 1);
}

/* All ranks learn what one of them does. */
RIG_TEST(test_an_update_of_one_rank)
{
	const struct zd_fence fence = {3, 1};
	struct zd_args args = {.kind = ZD_REQ_PUBLISH};
	uint64_t publish;
	core_expect(rig->core, core_update(rig->core, rig->team.session[1], rig->unit), 0);
	refuse(rig, true, ZEROD_E_STATE, "unit 'w' is UPDATING on rank 1; unit_place needs it IDLE");
	args.u.publish.n_units = 1;
	args.u.publish.units = &rig->unit;
	args.fences = (struct zd_fence_list){1, &fence};
	core_team_write(&rig->team, rig->unit, 1);
	publish = core_send(rig->core, rig->team.session[1], &args);
	refuse(rig, true, ZEROD_E_STATE, "unit 'w' is PUBLISHING on rank 1");
	core_pass(rig->core, rig->team.session[1], 3, 1);
	core_expect(rig->core, publish, 0);
	move(rig, true); /* before rank 0 has published */
	core_team_publish_rank(&rig->team, rig->unit, 0);
	expect_version(rig, 2);
	expect_place(rig, true);
}

RIG_TEST(test_a_unit_that_is_loaded)
{
	struct zd_args args = {.kind = ZD_REQ_UNIT_LOAD};
	args.u.unit_load.unit = rig->unit;
	for (uint32_t rank = 0; rank < 2; rank++)
		core_expect(rig->core, core_update(rig->core, rig->team.session[rank], rig->unit), 0);
	(void)core_send(rig->core, rig->team.session[0], &args);
	refuse(rig, true, ZEROD_E_STATE, "unit 'w' is LOADING on rank 0");
}

TEST(test_without_host_memory)
{
	struct rig rig;
	rig.core = core_new(NULL);
	rig.team = core_team_new(rig.core, "job", 2, false);
	rig.unit = core_team_register(&rig.team, &unit_w);
	refuse(&rig, true, ZEROD_E_UNSUPPORTED, "unit 'w': this daemon has no host memory for device 0");
	move(&rig, false);
	core_end(rig.core);
}

/* During the move both places are charged. */
TEST(test_too_little_quota)
{
	struct rig rig;
	start_with(&rig, 2, (struct core_options){.uid_quota_bytes = 3 * BYTES});
	refuse(&rig, true, ZEROD_E_QUOTA, "unit 'w': rank 1: uid 1000 holds");
	expect_place(&rig, false);
	core_team_publish(&rig.team, rig.unit);
	core_end(rig.core);
}

RIG_TEST(test_a_segment_that_fails)
{
	core_fail_next(rig->core, ZD_CMD_SEGMENT_CREATE, ZEROD_E_NO_MEMORY, "cannot be pinned");
	refuse(rig, true, ZEROD_E_NO_MEMORY, "cannot be pinned");
	expect_place(rig, false);
	move(rig, true);
	expect_version(rig, 1);
}

RIG_TEST(test_a_copy_that_fails)
{
	core_fail_next(rig->core, ZD_CMD_COPY, ZEROD_E_DEVICE, "no such device");
	refuse(rig, true, ZEROD_E_DEVICE, "unit 'w': moving rank 0's shard: no such device");
	expect_place(rig, false);
	expect_version(rig, 1);
	move(rig, true);
	expect_version(rig, 1);
}

RIG_TEST(test_a_unit_in_use_is_not_unregistered)
{
	uint64_t request;
	request = place(rig, 0, true);
	core_expect(rig->core,
	            core_simple(rig->core, rig->team.session[0], ZD_REQ_UNIT_UNREGISTER, rig->unit),
	            ZEROD_E_BUSY);
	core_expect(rig->core, place(rig, 1, true), 0);
	core_expect(rig->core, request, 0);
	core_do(rig->core, rig->team.session[0], ZD_REQ_UNIT_UNREGISTER, rig->unit);
}

/* ---- Deadlines ----------------------------------------------------------------------------------------- */

RIG_TEST(test_deadline_names_the_rank_that_never_called)
{
	uint64_t first;
	first = place_until(rig, 0, true, 1000);
	core_tick(rig->core, 1500);
	core_expect_error(rig->core, first, ZEROD_E_DEADLINE, "rank 1 to call unit_place of unit 'w'");
	first = place_until(rig, 1, true, 2000);
	core_tick(rig->core, 2500);
	core_expect_error(rig->core, first, ZEROD_E_DEADLINE, "rank 0 to call unit_place of unit 'w'");
	move(rig, true);
}

/* The other rank waits for the next call, and the unit is open meanwhile. */
RIG_TEST(test_deadline_while_shards_are_read)
{
	uint64_t first, second, gather;
	core_hold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, core_gather(rig->core, rig->team.session[0], rig->unit), 0);
	first = place_until(rig, 0, true, 1000);
	second = place(rig, 1, true);
	gather = core_gather(rig->core, rig->team.session[1], rig->unit);
	core_expect_waits(rig->core, gather, "unit 'w' to be moved");
	core_tick(rig->core, 1500);
	core_expect_error(rig->core, first, ZEROD_E_DEADLINE, "transfer that reads the shard of rank 0");
	core_expect(rig->core, gather, 0);
	core_expect_waits(rig->core, second, "rank 0 to call unit_place of unit 'w'");
	expect_place(rig, false);
	first = place(rig, 0, true);
	core_unhold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, first, 0);
	core_expect(rig->core, second, 0);
	for (uint32_t rank = 0; rank < 2; rank++)
		core_expect(rig->core, core_release(rig->core, rig->team.session[rank], rig->unit), 0);
	expect_place(rig, true);
	expect_version(rig, 1);
}

RIG_TEST(test_no_deadline_while_copying)
{
	uint64_t requests[CORE_TEAM];
	core_hold(rig->core, ZD_CMD_COPY);
	for (uint32_t rank = 0; rank < 2; rank++)
		requests[rank] = place_until(rig, rank, true, 1000);
	core_tick(rig->core, 5000);
	core_expect_waits(rig->core, requests[0], "unit 'w' to be moved");
	core_unhold(rig->core, ZD_CMD_COPY);
	expect_all(rig, requests, 0, NULL);
}
