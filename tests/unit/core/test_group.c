/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs, groups and their members: joined, replaced, left, aborted; what outlives them in a durable job is in
 * test_durable.c.
 */
#include <stdio.h>

#include "tests/support/core_driver.h"
#include "tests/support/core_reduce.h"

static void expect_group(struct core_driver *core, uint64_t group, const char *state, uint32_t attached)
{
	struct core_row row;
	uint32_t n = 0;
	core_row(core, ZD__TABLE__GROUPS, group, &row);
	for (uint32_t i = 0; i < row.row->group->world_size && i < CORE_ROW_ITEMS; i++)
		n += row.row->group->members[i]->session != 0;
	assert_string_equal(row.state, state);
	assert_int_equal(n, attached);
}

/* ---- Joining ------------------------------------------------------------------------------------------- */

ENGINE_TEST(test_join_waits_for_every_rank)
{
	uint64_t session[3], request[3];
	struct core_row group;
	for (uint32_t i = 0; i < 3; i++)
		session[i] = core_open(core, CORE_ALICE);
	/* in any order */
	request[2] = core_join(core, session[2], &(struct core_join){.world_size = 3, .rank = 2});
	core_expect_waits(core, request[2], "2 ranks to join, rank 0 first");
	request[0] = core_join(core, session[0], &(struct core_join){.world_size = 3, .rank = 0});
	core_expect_waits(core, request[0], "1 rank to join, rank 1 first");
	assert_int_equal(core_rows(core, ZD__TABLE__GROUPS, &group, 1), 1);
	assert_string_equal(group.state, "FORMING");
	request[1] = core_join(core, session[1],
	                       &(struct core_join){.world_size = 3, .rank = 1, .device = 1});
	uint64_t id = core_expect(core, request[1], 0)->u.group_join.group;
	for (uint32_t i = 0; i < 3; i++) {
		const struct zd_reply *reply = core_expect(core, request[i], 0);
		assert_true(reply->u.group_join.group == id);
		assert_false(reply->u.group_join.torn);
		assert_int_equal(reply->u.group_join.committed_step, 0);
	}
	expect_group(core, id, "READY", 3);
	core_row(core, ZD__TABLE__GROUPS, id, &group);
	assert_true(group.row->group->members[1]->session == session[1]);
	assert_int_equal(group.row->group->members[1]->device, 1);
}

/* A rank that has not joined cannot join any more; requests that wait for other reasons may still succeed. */
ENGINE_TEST(test_joins_end_with_the_daemon)
{
	uint64_t session = core_open(core, CORE_ALICE);
	struct core_team team = core_team_new(core, "team", 2, false);
	uint64_t commit = core_commit(core, team.session[0], team.group, 1);
	uint64_t join = core_join(core, session, &(struct core_join){.world_size = 2, .rank = 1});
	core_expect_waits(core, join, "1 rank to join, rank 0 first");
	zd_engine_drain(core_engine(core));
	core_expect_error(core, join, ZEROD_E_SHUTDOWN, "the daemon is draining");
	core_expect_waits(core, commit, "commit");
	core_expect(core, core_commit(core, team.session[1], team.group, 1), 0);
	core_expect(core, commit, 0);
}

/* Running jobs go on, also with new allocations, until somebody ends the drain. */
ENGINE_TEST(test_drain_lets_nobody_in)
{
	struct core_join alone = {.job = "late", .world_size = 1};
	uint64_t late = core_open(core, CORE_ALICE);
	struct core_team team = core_team_new(core, "team", 2, false);
	uint64_t unit = core_team_unit(&team, "w", 512);
	zd_engine_drain(core_engine(core));
	core_expect_error(core, core_join(core, late, &alone), ZEROD_E_SHUTDOWN,
	                  "the daemon is draining: no rank joins");
	core_expect_error(core, core_alloc(core, late, "late", 0, 4096), ZEROD_E_SHUTDOWN,
	                  "the daemon is draining: no job begins");
	core_expect(core, core_alloc(core, team.session[0], "team", 0, 4096), 0);
	core_expect(core, core_gather(core, team.session[0], unit), 0);
	core_expect(core, core_release(core, team.session[0], unit), 0);
	core_close(core, team.session[1]);
	alone = (struct core_join){.job = "team", .group = "team", .world_size = 2, .rank = 1};
	core_expect(core, core_join(core, late, &alone), ZEROD_E_SHUTDOWN);
	zd_engine_undrain(core_engine(core));
	alone = (struct core_join){.job = "late", .world_size = 1};
	core_join_ok(core, late, &alone);
	core_expect(core, core_alloc(core, core_open(core, CORE_BOB), "late", 0, 4096), 0);
}

ENGINE_TEST(test_join_arguments)
{
	static const char long_name[] = "0123456789012345678901234567890123456789012345678901234567890123";
	static const struct {
		struct core_join join;
		int status;
		const char *text;
	} cases[] = {
	        {{.world_size = 0}, ZEROD_E_INVALID, "world_size 0"},
	        {{.world_size = 1025}, ZEROD_E_INVALID, "world_size 1025 is not in 1 .. 1024"},
	        {{.world_size = 2, .rank = 2}, ZEROD_E_INVALID, "rank 2 of a world of 2"},
	        {{.world_size = 1, .device = 2}, ZEROD_E_NOT_FOUND, "no device 2; there are 2"},
	        {{.world_size = 1, .job = ""}, ZEROD_E_INVALID, "job name"},
	        {{.world_size = 1, .job = long_name}, ZEROD_E_INVALID, "job name"},
	        {{.world_size = 1, .group = "a\nb"}, ZEROD_E_INVALID, "group name"},
	        {{.world_size = 1, .group = "\xff"}, ZEROD_E_INVALID, "group name"},
	};
	uint64_t session = core_open(core, CORE_ALICE);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		core_expect_error(core, core_join(core, session, &cases[i].join), cases[i].status,
		                  cases[i].text);
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, NULL, 0), 0);
	core_join_ok(core, session, &(struct core_join){.world_size = 1, .job = long_name + 1});
}

ENGINE_TEST(test_join_that_differs_names_both)
{
	uint64_t first = core_open(core, CORE_ALICE), second = core_open(core, CORE_ALICE);
	struct core_join join = {.world_size = 2, .rank = 0};
	uint64_t waiting = core_join(core, first, &join);
	char text[80];
	core_expect_error(core, core_join(core, second, &(struct core_join){.world_size = 3, .rank = 1}),
	                  ZEROD_E_MISMATCH, "has world_size 2; rank 1 says 3");
	core_expect_error(
	        core,
	        core_join(core, second, &(struct core_join){.world_size = 2, .rank = 1, .durable = true}),
	        ZEROD_E_MISMATCH, "is not durable; rank 1 says durable");
	(void)snprintf(text, sizeof(text), "rank 0 of group 'world' is taken by session %llu (pid %u)",
	               ZD_ID_NUMBER(first), CORE_ALICE + 1);
	core_expect_error(core, core_join(core, second, &join), ZEROD_E_EXISTS, text);
	core_expect_error(core, core_join(core, first, &(struct core_join){.world_size = 2, .rank = 1}),
	                  ZEROD_E_EXISTS, "this session is rank 0");
	core_expect_waits(core, waiting, "rank 1 first");
}

ENGINE_TEST(test_job_belongs_to_its_uid)
{
	uint64_t alice = core_open(core, CORE_ALICE), bob = core_open(core, CORE_BOB);
	struct core_join join = {.world_size = 1};
	uint64_t first = core_join_ok(core, alice, &join);
	uint64_t second = core_join_ok(core, bob, &join);
	assert_true(first != second);
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, NULL, 0), 2);
}

ENGINE_TEST(test_join_that_ends_early_frees_its_rank)
{
	uint64_t late = core_open(core, CORE_ALICE), other = core_open(core, CORE_ALICE);
	struct zd_args args = {.kind = ZD_REQ_GROUP_JOIN,
	                       .u.group_join = {.job = (char *)"job",
	                                        .group = (char *)"world",
	                                        .world_size = 2,
	                                        .rank = 0,
	                                        .device = 0,
	                                        .durable = false}};
	uint64_t request = core_send_until(core, late, 5000000, &args);
	core_tick(core, 5000000);
	core_expect_error(core, request, ZEROD_E_DEADLINE,
	                  "group_join: waited 5 ms for 1 rank to join, rank 1 first");
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, NULL, 0), 0);
	/* a session that dies while it waits frees its rank as well */
	(void)core_send(core, late, &args);
	core_close(core, late);
	request = core_send(core, other, &args);
	core_expect_waits(core, request, "rank 1 first");
	core_join_ok(core, core_open(core, CORE_ALICE), &(struct core_join){.world_size = 2, .rank = 1});
	core_expect(core, request, 0);
}

/* The last rank joins, and the engine has not come to answer another one when that one's deadline passes. */
ENGINE_TEST(test_join_behind_a_deadline)
{
	uint64_t late = core_open(core, CORE_ALICE), last = core_open(core, CORE_ALICE);
	struct zd_args args = {.kind = ZD_REQ_GROUP_JOIN,
	                       .u.group_join = {.job = (char *)"job",
	                                        .group = (char *)"world",
	                                        .world_size = 2,
	                                        .rank = 0,
	                                        .device = 0,
	                                        .durable = false}};
	uint64_t request = core_send_until(core, late, 1000, &args);
	zd_engine_pause(core_engine(core));
	uint64_t joined = core_join(core, last, &(struct core_join){.world_size = 2, .rank = 1, .device = 1});
	uint64_t id = core_expect(core, joined, 0)->u.group_join.group;
	core_tick(core, 1000);
	zd_engine_resume(core_engine(core));
	core_expect(core, request, ZEROD_E_DEADLINE);
	struct core_unit unit = {.name = "w", .numel = 64};
	core_expect_error(core, core_register(core, last, id, &unit), ZEROD_E_PEER_LOST, "rank 0");
	zd_engine_check(core_engine(core));
}

/* A rank whose join waits is not a member, although its number is taken: nothing may be left when the join
 * ends. */
ENGINE_TEST(test_nothing_is_done_for_a_rank_that_still_joins)
{
	uint64_t session = core_open(core, CORE_ALICE);
	struct zd_args args = {.kind = ZD_REQ_GROUP_JOIN,
	                       .u.group_join = {.job = (char *)"job",
	                                        .group = (char *)"world",
	                                        .world_size = 2,
	                                        .rank = 0,
	                                        .device = 0,
	                                        .durable = false}};
	uint64_t request = core_send_until(core, session, 1000, &args);
	struct core_row row;
	assert_int_equal(core_rows(core, ZD__TABLE__GROUPS, &row, 1), 1);
	core_expect_error(core,
	                  core_register(core, session, row.id, &(struct core_unit){.name = "w", .numel = 64}),
	                  ZEROD_E_NOT_FOUND, "not a member of group");
	core_expect(core, core_simple(core, session, ZD_REQ_GROUP_LEAVE, row.id), ZEROD_E_NOT_FOUND);
	core_expect_waits(core, request, "rank 1 first");
	core_tick(core, 1000);
	core_expect(core, request, ZEROD_E_DEADLINE);
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, NULL, 0), 0);
}

/* ---- Leaving and dying --------------------------------------------------------------------------------- */

ENGINE_TEST(test_death_fails_the_group_and_names_the_rank)
{
	char text[80];
	struct core_team team = core_team_new(core, "job", 3, false);
	uint64_t unit = core_team_unit(&team, "w", 3 * 256ull);
	core_expect(core, core_update(core, team.session[1], unit), 0);
	uint64_t gather = core_gather(core, team.session[0], unit);
	uint64_t commit = core_commit(core, team.session[2], team.group, 1);
	core_expect_waits(core, gather, "rank 0 to publish version 2");
	core_expect_waits(core, commit, "rank 0 to commit");
	core_close(core, team.session[1]);
	(void)snprintf(text, sizeof(text), "rank 1 (pid %u) of group 'world' is gone", CORE_ALICE + 1);
	core_expect_error(core, gather, ZEROD_E_PEER_LOST, text);
	core_expect_error(core, commit, ZEROD_E_PEER_LOST, text);
	expect_group(core, team.group, "FAILED", 2);
	core_expect_error(core, core_gather(core, team.session[0], unit), ZEROD_E_PEER_LOST, text);
	core_expect_error(core, core_commit(core, team.session[0], team.group, 1), ZEROD_E_PEER_LOST, text);
}

ENGINE_TEST(test_release_works_in_a_failed_group)
{
	struct core_team team = core_team_new(core, "job", 2, false);
	uint64_t unit = core_team_unit(&team, "w", 512);
	core_expect(core, core_gather(core, team.session[0], unit), 0);
	core_close(core, team.session[1]);
	assert_int_equal(core_usage(core).gathered_bytes, 512);
	core_expect(core, core_release(core, team.session[0], unit), 0);
	assert_int_equal(core_usage(core).gathered_bytes, 0);
}

ENGINE_TEST(test_leave_gives_all_back_and_answers_what_waits)
{
	struct core_team team = core_team_new(core, "job", 2, false);
	uint64_t unit = core_team_unit(&team, "w", 512);
	uint64_t late = core_team_unit(&team, "late", 512);
	core_expect(core, core_gather(core, team.session[0], unit), 0);
	core_expect(core, core_update(core, team.session[1], late), 0);
	uint64_t waiting = core_gather(core, team.session[0], late);
	core_expect_waits(core, waiting, "rank 0 to publish version 2 of unit 'late'");
	core_do(core, team.session[0], ZD_REQ_GROUP_LEAVE, team.group);
	core_expect_error(core, waiting, ZEROD_E_STATE, "rank 0 left group 'world'");
	assert_int_equal(core_usage(core).gathered_bytes, 0);
	assert_int_equal(core_usage(core).shard_bytes, 1024); /* those that the other rank can gather stay */
	expect_group(core, team.group, "LEFT", 1);
	core_expect(core, core_simple(core, team.session[0], ZD_REQ_GROUP_LEAVE, team.group),
	            ZEROD_E_NOT_FOUND);
	core_expect(core, core_gather(core, team.session[0], unit), ZEROD_E_NOT_FOUND);
	/* the last one takes the group with it */
	core_do(core, team.session[1], ZD_REQ_GROUP_LEAVE, team.group);
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, NULL, 0), 0);
}

ENGINE_TEST(test_replacement_revives_the_group)
{
	struct core_unit again = {.name = "w", .numel = 192};
	struct core_team team = core_team_new(core, "job", 3, false);
	uint64_t unit = core_team_unit(&team, "w", 3 * 256ull);
	core_team_publish(&team, unit);
	core_close(core, team.session[1]);
	core_close(core, team.session[2]);
	assert_int_equal(core_usage(core).shard_bytes, 256);
	team.session[2] = core_open(core, CORE_ALICE);
	uint64_t third = core_join(core, team.session[2], &(struct core_join){.world_size = 3, .rank = 2});
	core_expect_waits(core, third, "1 rank to join, rank 1 first");
	expect_group(core, team.group, "FAILED", 2);
	team.session[1] = core_open(core, CORE_ALICE);
	uint64_t second = core_join(core, team.session[1], &(struct core_join){.world_size = 3, .rank = 1});
	assert_true(core_expect(core, second, 0)->u.group_join.group == team.group);
	core_expect(core, third, 0);
	expect_group(core, team.group, "READY", 3);
	core_expect_told(core, team.session[0], team.group, "as is rank 1");
	/* the others are at version 2: the new shards are one behind, so that their first publish catches
	 * up */
	uint64_t gather = core_gather(core, team.session[0], unit);
	core_expect_waits(core, gather, "rank 1 to register unit 'w'");
	for (uint32_t rank = 1; rank < 3; rank++) {
		uint64_t request = core_register(core, team.session[rank], team.group, &again);
		assert_int_equal(core_expect(core, request, 0)->u.unit_register.version, 1);
	}
	core_expect_waits(core, gather, "rank 1 to publish version 2 of unit 'w' (has 1)");
	core_team_publish_rank(&team, unit, 1);
	core_expect_waits(core, gather, "rank 2 to publish version 2 of unit 'w' (has 1)");
	core_team_publish_rank(&team, unit, 2);
	core_team_check(&team, core_expect(core, gather, 0), 2);
}

/* A shard that a replacement has registered has no version, even after the ranks with the version to which it
 * was to catch up have gone. */
ENGINE_TEST(test_replacements_one_after_the_other)
{
	struct core_team team = core_team_new(core, "job", 2, false);
	uint64_t unit = core_team_unit(&team, "w", 512);
	core_team_publish(&team, unit);
	for (uint32_t rank = 0; rank < 2; rank++) {
		core_close(core, team.session[rank]);
		team.session[rank] = core_open(core, CORE_ALICE);
		struct core_join join = {.world_size = 2, .rank = rank};
		core_join_ok(core, team.session[rank], &join);
		uint64_t request = core_register(core, team.session[rank], team.group,
		                                 &(struct core_unit){.name = "w", .numel = 128});
		assert_int_equal(core_expect(core, request, 0)->u.unit_register.version, 1);
	}
	core_expect_told(core, team.session[0], team.group, "rank 1");
	core_expect_error(core, core_gather_version(core, team.session[1], unit, 1), ZEROD_E_STALE_VERSION,
	                  "rank 0 has published nothing since it came with version 1");
	uint64_t early = core_gather(core, team.session[0], unit);
	core_expect_waits(core, early, "rank 0 to publish version 2 of unit 'w' (has 1)");
	core_team_publish_rank(&team, unit, 1);
	uint64_t gather = core_gather(core, team.session[1], unit);
	core_expect_waits(core, gather, "rank 0 to publish version 2 of unit 'w' (has 1)");
	core_team_publish_rank(&team, unit, 0);
	core_team_check(&team, core_expect(core, early, 0), 2);
	core_team_check(&team, core_expect(core, gather, 0), 2);
}

/* The failure of a request that waited tells; that of a prefetch, whose ticket nobody waits for, does not. */
ENGINE_TEST(test_failed_gathers_tell)
{
	struct zd_args prefetch = {.kind = ZD_REQ_GATHER};
	struct core_team team = core_team_new(core, "job", 3, false);
	uint64_t unit = core_team_unit(&team, "w", 768);
	core_expect(core, core_update(core, team.session[2], unit), 0);
	prefetch.u.gather.unit = unit;
	prefetch.u.gather.prefetch = true;
	prefetch.u.gather.tag = (char *)"default";
	prefetch.u.gather.uses = 1;
	uint64_t demand = core_gather(core, team.session[0], unit);
	uint64_t early = core_send(core, team.session[1], &prefetch);
	core_expect_waits(core, early, "to publish version 2");
	core_close(core, team.session[2]);
	core_expect(core, demand, ZEROD_E_PEER_LOST);
	core_expect(core, early, ZEROD_E_PEER_LOST);
	team.session[2] = core_open(core, CORE_ALICE);
	core_join_ok(core, team.session[2], &(struct core_join){.world_size = 3, .rank = 2});
	core_expect(core, core_backward(&team, 0, 3, true), 0);
	core_expect(core, core_backward(&team, 1, 3, true), ZEROD_E_PEER_LOST);
	core_expect(core, core_backward(&team, 1, 3, true), 0);
}

/* The old shard is still read while its rank comes again on another device: its bytes belong to the old
 * one. */
ENGINE_TEST(test_replacement_on_another_device)
{
	struct core_team team = core_team_new(core, "job", 2, false);
	uint64_t unit = core_team_unit(&team, "w", 512);
	core_hold(core, ZD_CMD_COPY);
	uint64_t gather = core_gather(core, team.session[1], unit);
	core_expect(core, gather, 0);
	core_close(core, team.session[0]);
	assert_int_equal(core_quarantine(core, 0), 256);
	team.session[0] = core_open(core, CORE_ALICE);
	core_join_ok(core, team.session[0], &(struct core_join){.world_size = 2, .rank = 0, .device = 1});
	/* and registers again: waits until nobody reads the old shard */
	uint64_t request = core_register(core, team.session[0], team.group,
	                                 &(struct core_unit){.name = "w", .numel = 128});
	core_expect_waits(core, request, "1 transfer that reads the shard of rank 0 of unit 'w'");
	core_fail_next(core, ZD_CMD_COPY, ZEROD_E_DEVICE, "out of order");
	core_unhold(core, ZD_CMD_COPY);
	/* the failed one's stream, of the device that the shard was on */
	assert_true(core_timeline(core, team.session[1], 0) == (uint64_t)ZD_FENCE_ABORTED);
	assert_int_equal(core_timeline(core, team.session[1], 1), 0);
	assert_int_equal(core_quarantine(core, 0), 0);
	core_expect(core, request, 0);
}

/* ---- Aborting ------------------------------------------------------------------------------------------ */

ENGINE_TEST(test_abort_ends_joins)
{
	uint64_t session = core_open(core, CORE_ALICE);
	uint64_t request = core_join(core, session, &(struct core_join){.world_size = 2});
	struct core_row row;
	assert_int_equal(core_rows(core, ZD__TABLE__GROUPS, &row, 1), 1);
	core_do(core, core_open_admin(core), ZD_REQ_ABORT_GROUP, row.id);
	core_expect_error(core, request, ZEROD_E_ABORTED, "group 'world' was aborted");
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, NULL, 0), 0);
}

ENGINE_TEST(test_abort_ends_what_waits)
{
	struct core_team team = core_team_new(core, "job", 2, false);
	uint64_t unit = core_team_unit(&team, "w", 512);
	uint64_t busy = core_team_unit(&team, "busy", 512);
	core_expect(core, core_update(core, team.session[1], unit), 0);
	uint64_t gather = core_gather(core, team.session[0], unit);
	uint64_t commit = core_commit(core, team.session[0], team.group, 1);
	core_hold(core, ZD_CMD_COPY);
	core_expect(core, core_gather(core, team.session[1], busy), 0);
	uint64_t update = core_update(core, team.session[0], busy);
	core_expect_waits(core, update, "1 transfer that reads the shard of rank 0 of unit 'busy'");
	core_do(core, team.session[0], ZD_REQ_ABORT_GROUP, team.group);
	core_expect(core, gather, ZEROD_E_ABORTED);
	core_expect(core, commit, ZEROD_E_ABORTED);
	core_expect(core, update, ZEROD_E_ABORTED);
	core_expect(core, core_gather(core, team.session[1], unit), ZEROD_E_ABORTED);
	core_expect(core,
	            core_register(core, team.session[0], team.group,
	                          &(struct core_unit){.name = "x", .numel = 1}),
	            ZEROD_E_ABORTED);
	core_expect_error(core, core_simple(core, team.session[0], ZD_REQ_ABORT_GROUP, team.group),
	                  ZEROD_E_STATE, "aborted already");
	expect_group(core, team.group, "ABORTED", 2);
	core_unhold(core, ZD_CMD_COPY);
}

ENGINE_TEST(test_aborted_group_is_formed_anew_when_all_have_left)
{
	struct core_join join = {.world_size = 2, .rank = 0};
	struct core_team team = core_team_new(core, "job", 2, false);
	core_do(core, team.session[0], ZD_REQ_ABORT_GROUP, team.group);
	core_do(core, team.session[0], ZD_REQ_GROUP_LEAVE, team.group);
	core_expect(core, core_join(core, team.session[0], &join), ZEROD_E_ABORTED);
	core_close(core, team.session[1]);
	uint64_t request = core_join(core, team.session[0], &join);
	core_expect_waits(core, request, "rank 1 first");
	join.rank = 1;
	core_join_ok(core, core_open(core, CORE_ALICE), &join);
	assert_true(core_expect(core, request, 0)->u.group_join.group != team.group);
}

/* Its memory is still being written when the job comes again, with fewer ranks, larger units and the slot of
 * another size. */
ENGINE_TEST(test_group_that_all_have_left_begins_anew, .ndevices = 3)
{
	struct core_unit larger = {.name = "w", .numel = 256, .slot = 1};
	struct core_team team = core_team_new(core, "job", 2, false);
	uint64_t unit = core_team_slot_unit(&team, "w", 512, 1);
	core_hold(core, ZD_CMD_COPY);
	core_expect(core, core_gather(core, team.session[0], unit), 0);
	core_close(core, team.session[0]);
	core_close(core, team.session[1]);
	assert_int_equal(core_rows(core, ZD__TABLE__GROUPS, NULL, 0), 1);

	uint64_t session = core_open(core, CORE_ALICE);
	const struct zd_reply *reply = core_expect(
	        core, core_join(core, session, &(struct core_join){.world_size = 1, .device = 2}), 0);
	uint64_t group = reply->u.group_join.group;
	expect_group(core, team.group, "OVER", 0);
	expect_group(core, group, "READY", 1);
	core_expect_error(core, core_simple(core, session, ZD_REQ_ABORT_GROUP, team.group), ZEROD_E_STATE,
	                  "all ranks of group 'world' have left already");
	reply = core_expect(core, core_register(core, session, group, &larger), 0);
	unit = reply->u.unit_register.unit;
	assert_int_equal(reply->u.unit_register.padded_numel, 256);
	assert_int_equal(reply->u.unit_register.target_offset_numel, 0);
	core_expect(core, core_update(core, session, unit), 0);
	core_expect(core, core_publish(core, session, unit), 0);
	core_expect(core, core_gather(core, session, unit), 0);
	core_unhold(core, ZD_CMD_COPY);
	assert_int_equal(core_rows(core, ZD__TABLE__GROUPS, NULL, 0), 1);
}

ENGINE_TEST(test_only_owner_and_administrator_abort)
{
	struct core_team team = core_team_new(core, "job", 1, false);
	core_expect_error(core, core_simple(core, core_open(core, CORE_BOB), ZD_REQ_ABORT_GROUP, team.group),
	                  ZEROD_E_NOT_FOUND, "no group");
	expect_group(core, team.group, "READY", 1);
	core_expect(core, core_simple(core, team.session[0], ZD_REQ_ABORT_GROUP, team.group + 1000),
	            ZEROD_E_NOT_FOUND);
	core_do(core, core_open_admin(core), ZD_REQ_ABORT_GROUP, team.group);
}
