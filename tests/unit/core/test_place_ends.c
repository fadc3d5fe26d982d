/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves of units while a rank ends, in groups with shadows, and over restarts of the daemon.
 */
#include "tests/support/test.h"
#include "tests/unit/core/place_rig.h"

/* ---- Ranks that end ------------------------------------------------------------------------------------ */

RIG_TEST(test_a_rank_dies_while_shards_are_read)
{
	uint64_t requests[CORE_TEAM];
	core_hold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, core_gather(rig->core, rig->team.session[0], rig->unit), 0);
	place_all(rig, true, requests);
	assert_int_equal(shard_bytes(rig, HOST), 2 * BYTES);
	core_close(rig->core, rig->team.session[1]);
	core_expect_error(rig->core, requests[0], ZEROD_E_PEER_LOST, "rank 1");
	assert_int_equal(shard_bytes(rig, HOST) + core_quarantine(rig->core, HOST), 0);
	core_unhold(rig->core, ZD_CMD_COPY);
}

RIG_TEST(test_all_ranks_die_while_copying)
{
	uint64_t requests[CORE_TEAM];
	core_hold(rig->core, ZD_CMD_COPY);
	place_all(rig, true, requests);
	for (uint32_t rank = 0; rank < 2; rank++)
		core_close(rig->core, rig->team.session[rank]);
	core_unhold(rig->core, ZD_CMD_COPY);
}

RIG_TEST(test_the_group_is_aborted)
{
	uint64_t requests[CORE_TEAM];
	core_hold(rig->core, ZD_CMD_COPY);
	place_all(rig, true, requests);
	core_do(rig->core, core_open_admin(rig->core), ZD_REQ_ABORT_GROUP, rig->team.group);
	core_unhold(rig->core, ZD_CMD_COPY);
	expect_all(rig, requests, ZEROD_E_ABORTED, "group 'world' was aborted");
	expect_place(rig, false);
}

/* A unit that no rank has is registered anew, also while the former one is still read. */
TEST(test_a_unit_that_all_ranks_have_left)
{
	struct rig rig;
	uint64_t again, former;
	start(&rig, 1);
	move(&rig, true);
	former = rig.unit;
	core_hold(rig.core, ZD_CMD_COPY);
	core_expect(rig.core, core_gather(rig.core, rig.team.session[0], rig.unit), 0);
	core_expect(rig.core, core_release(rig.core, rig.team.session[0], rig.unit), 0);
	core_do(rig.core, rig.team.session[0], ZD_REQ_UNIT_UNREGISTER, rig.unit);
	again = core_register(rig.core, rig.team.session[0], rig.team.group, &unit_w);
	core_expect_waits(rig.core, again, "the end of the work on the former unit 'w'");
	core_unhold(rig.core, ZD_CMD_COPY);
	rig.unit = core_expect(rig.core, again, 0)->u.unit_register.unit;
	assert_true(rig.unit != former);
	expect_place(&rig, false);
	core_end(rig.core);
}

/* ---- Durable jobs -------------------------------------------------------------------------------------- */

static void join_all(struct rig *rig, bool shadow)
{
	uint64_t requests[CORE_TEAM];
	for (uint32_t rank = 0; rank < 2; rank++) {
		rig->team.session[rank] = core_open(rig->core, CORE_ALICE);
		requests[rank] = core_join(rig->core, rig->team.session[rank],
		                           &(struct core_join){.world_size = 2,
		                                               .rank = rank,
		                                               .device = rank,
		                                               .durable = true,
		                                               .shadow = shadow});
	}
	for (uint32_t rank = 0; rank < 2; rank++)
		rig->team.group = core_expect(rig->core, requests[rank], 0)->u.group_join.group;
}

static void register_all(struct rig *rig, Zd__Placed placed)
{
	for (uint32_t rank = 0; rank < 2; rank++) {
		uint64_t request = core_register(rig->core, rig->team.session[rank], rig->team.group,
		                                 &unit_w);
		const struct zd_reply *reply = core_expect(rig->core, request, 0);
		assert_int_equal(reply->u.unit_register.placed, placed);
		rig->unit = reply->u.unit_register.unit;
	}
}

static void commit_all(struct rig *rig, uint64_t step)
{
	uint64_t requests[CORE_TEAM];
	for (uint32_t rank = 0; rank < 2; rank++)
		requests[rank] = core_commit(rig->core, rig->team.session[rank], rig->team.group, step);
	expect_all(rig, requests, 0, NULL);
}

/* Version 1 is committed. */
static void start_durable_with(struct rig *rig, bool shadow, struct core_options options)
{
	options.host_arena_bytes = CORE_MIB;
	*rig = (struct rig){.core = core_new(&options)};
	rig->team.core = rig->core;
	rig->team.world_size = rig->team.nranks = 2;
	core_journal(rig->core);
	join_all(rig, shadow);
	register_all(rig, ZD__PLACED__AS_REGISTERED);
	core_team_publish(&rig->team, rig->unit);
	commit_all(rig, 1);
}

static void start_durable(struct rig *rig, bool shadow)
{
	start_durable_with(rig, shadow, (struct core_options){.ndevices = 2});
}

/* Ranks register the unit as at first, or where it is. */
TEST(test_a_restart_after_the_change)
{
	const struct core_unit there = {.name = "w", .numel = NUMEL, .on_host = true};
	struct rig rig;
	for (int back = 0; back < 2; back++) {
		start_durable(&rig, false);
		move(&rig, true);
		if (back)
			move(&rig, false);
		core_restart(rig.core);
		join_all(&rig, false);
		register_all(&rig, back ? ZD__PLACED__ON_DEVICE : ZD__PLACED__ON_HOST);
		core_register_ok(rig.core, rig.team.session[0], rig.team.group, &there);
		expect_place(&rig, !back);
		expect_version(&rig, 1);
		move(&rig, back);
		core_team_publish(&rig.team, rig.unit);
		expect_version(&rig, 2);
		core_end(rig.core);
	}
}

/* By the digest of before the move, which a client may have not learned of. */
TEST(test_units_resume_after_the_change)
{
	struct zd_args args = {.kind = ZD_REQ_UNITS_RESUME};
	const struct zd_reply *reply;
	uint64_t description, request;
	struct rig rig;
	start_durable(&rig, false);
	request = core_register(rig.core, rig.team.session[0], rig.team.group, &unit_w);
	description = core_expect(rig.core, request, 0)->u.unit_register.description;
	move(&rig, true);
	core_restart(rig.core);
	join_all(&rig, false);
	args.u.units_resume.group = rig.team.group;
	args.u.units_resume.n_units = 1;
	args.u.units_resume.units = &rig.unit;
	args.u.units_resume.n_descriptions = 1;
	args.u.units_resume.descriptions = &description;
	for (uint32_t rank = 0; rank < 2; rank++) {
		reply = core_call(rig.core, rig.team.session[rank], &args, 0);
		assert_int_not_equal(reply->u.units_resume.segments[0], 0);
		assert_int_equal(reply->u.units_resume.placed[0], ZD__PLACED__ON_HOST);
	}
	expect_place(&rig, true);
	expect_version(&rig, 1);
	core_end(rig.core);
}

/* A rank that comes back while copies of the failed move still run. */
TEST(test_a_rank_comes_back_while_copying)
{
	uint64_t requests[CORE_TEAM], again[CORE_TEAM], request;
	struct rig rig;
	start_durable(&rig, false);
	core_hold(rig.core, ZD_CMD_COPY);
	place_all(&rig, true, requests);
	core_close(rig.core, rig.team.session[1]);
	rig.team.session[1] = core_open(rig.core, CORE_ALICE);
	request = core_join(rig.core, rig.team.session[1],
	                    &(struct core_join){.world_size = 2, .rank = 1, .device = 1, .durable = true});
	core_expect(rig.core, request, 0);
	core_register_ok(rig.core, rig.team.session[1], rig.team.group, &unit_w);
	again[1] = place(&rig, 1, true);
	core_expect_waits(rig.core, again[1], "unit 'w' to be moved");
	core_unhold(rig.core, ZD_CMD_COPY);
	core_expect_error(rig.core, requests[0], ZEROD_E_PEER_LOST, "rank 1");
	core_expect_waits(rig.core, again[1], "rank 0 to call unit_place of unit 'w'");
	expect_place(&rig, false);
	core_expect(rig.core, place(&rig, 0, true), 0);
	core_expect(rig.core, again[1], 0);
	expect_place(&rig, true);
	expect_version(&rig, 1);
	core_end(rig.core);
}

/* The former process may still write its shard: the move waits for its end. */
TEST(test_a_move_waits_for_a_former_process)
{
	uint64_t requests[CORE_TEAM], former, request;
	struct rig rig;
	start_durable_with(&rig, false, (struct core_options){.sessions_linger = true});
	former = rig.team.session[1];
	core_close(rig.core, former);
	core_expect_told(rig.core, rig.team.session[0], rig.team.group, "rank 1");
	rig.team.session[1] = core_open(rig.core, CORE_ALICE);
	request = core_join(rig.core, rig.team.session[1],
	                    &(struct core_join){.world_size = 2, .rank = 1, .device = 1, .durable = true});
	core_expect(rig.core, request, 0);
	core_register_ok(rig.core, rig.team.session[1], rig.team.group, &unit_w);
	place_all(&rig, true, requests);
	core_expect_waits(rig.core, requests[0], "reads the shard of rank 1");
	core_gone(rig.core, former);
	expect_all(&rig, requests, 0, NULL);
	expect_place(&rig, true);
	core_end(rig.core);
}

/* ---- Shadows ------------------------------------------------------------------------------------------- */

/* The move takes the last commit along, to which the loss of a rank leads back. */
TEST(test_shadows_move)
{
	struct rig rig;
	start_durable(&rig, true);
	core_team_publish(&rig.team, rig.unit); /* version 2, not committed */
	move(&rig, true);
	expect_place(&rig, true);
	assert_int_equal(shard_bytes(&rig, HOST), 4 * BYTES);
	expect_version(&rig, 2);
	for (uint32_t rank = 0; rank < 2; rank++)
		core_close(rig.core, rig.team.session[rank]);
	join_all(&rig, true);
	register_all(&rig, ZD__PLACED__ON_HOST);
	expect_version(&rig, 1);
	core_team_publish(&rig.team, rig.unit);
	commit_all(&rig, 2);
	core_restart(rig.core);
	join_all(&rig, true);
	register_all(&rig, ZD__PLACED__ON_HOST);
	expect_version(&rig, 2);
	core_end(rig.core);
}
