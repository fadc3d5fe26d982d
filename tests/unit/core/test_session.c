/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: opened, ended in every state, ended by others.
 */
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "tests/support/core_driver.h"

#define UNIT_BYTES 512u

/* ---- Opening ------------------------------------------------------------------------------------------- */

ENGINE_TEST(test_sessions_are_limited)
{
	struct zd_peer peer = {.uid = CORE_ALICE, .pid = 1, .name = NULL};
	struct zd_err err = ZD_ERR_NONE;
	uint64_t first = core_open(core, CORE_ALICE), last = first;
	for (uint32_t i = 1; i < ZD_MAX_SESSIONS; i++) {
		uint64_t id = core_open(core, CORE_ALICE);
		assert_true(id > last);
		last = id;
	}
	assert_int_equal(zd_engine_session_open(core_engine(core), &peer, &err), 0);
	assert_int_equal(err.status, ZEROD_E_LIMIT);
	assert_string_equal(err.text, "1024 sessions are open already");
	core_close(core, first);
	assert_true(core_open(core, CORE_BOB) > last); /* ids are never used again */
}

ENGINE_TEST(test_unknown_sessions_are_ignored)
{
	struct zd_peer peer = {.uid = CORE_ALICE, .pid = 1, .name = NULL};
	struct core_row row;
	zd_engine_session_close(core_engine(core), 4711);
	uint64_t id = zd_engine_session_open(core_engine(core), &peer, NULL);
	core_row(core, ZD__TABLE__SESSIONS, id, &row);
	assert_string_equal(row.name, "");
	assert_string_equal(row.state, "OPEN");
	zd_engine_session_close(core_engine(core), id);
	zd_engine_session_close(core_engine(core), id);
}

/* ---- Ending in every state ----------------------------------------------------------------------------- */

struct rig {
	struct core_driver *core;
	struct core_team team;
	uint64_t unit, other;
	uint64_t session; /* rank 0's, which is to end */
};

static void in_nothing(struct rig *rig)
{
	(void)rig;
}

static void in_update_wait(struct rig *rig)
{
	core_hold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, core_gather(rig->core, rig->team.session[1], rig->unit), 0);
	core_expect_waits(rig->core, core_update(rig->core, rig->session, rig->unit),
	                  "1 transfer that reads");
}

static void in_update(struct rig *rig)
{
	core_expect(rig->core, core_update(rig->core, rig->session, rig->unit), 0);
}

static void in_publish(struct rig *rig)
{
	static const struct zd_fence fence = {1, 1};
	struct zd_args args = {.kind = ZD_REQ_PUBLISH,
	                       .u.publish = {.n_units = 1, .units = &rig->unit},
	                       .fences = {1, &fence}};
	in_update(rig);
	core_expect_waits(rig->core, core_send(rig->core, rig->session, &args), "streams");
}

static void in_commit(struct rig *rig)
{
	core_expect_waits(rig->core, core_commit(rig->core, rig->session, rig->team.group, 1), "rank 1");
}

static void in_register(struct rig *rig)
{
	struct core_unit unit = {.name = "new", .numel = CORE_MIB / 4};
	core_hold(rig->core, ZD_CMD_FILL);
	core_expect_waits(rig->core, core_register(rig->core, rig->session, rig->team.group, &unit),
	                  "zeroed");
}

static void in_register_without_memory(struct rig *rig)
{
	struct core_unit unit = {.name = "new", .numel = CORE_MIB / 4};
	core_hold(rig->core, ZD_CMD_SEGMENT_CREATE);
	core_expect_waits(rig->core, core_register(rig->core, rig->session, rig->team.group, &unit),
	                  "a segment");
}

static void in_transfer(struct rig *rig)
{
	core_hold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, core_gather(rig->core, rig->session, rig->unit), 0);
	core_expect(rig->core, core_prefetch(rig->core, rig->session, rig->other), 0);
	core_expect(rig->core, core_gather(rig->core, rig->team.session[1], rig->unit), 0);
}

static void in_gather_without_memory(struct rig *rig)
{
	core_hold(rig->core, ZD_CMD_SEGMENT_CREATE);
	core_expect_waits(rig->core, core_gather(rig->core, rig->session, rig->unit), "a segment");
}

static void with_leases(struct rig *rig)
{
	core_expect(rig->core, core_gather_tag(rig->core, rig->session, rig->unit, "plan", 3), 0);
	core_expect(rig->core, core_gather_tag(rig->core, rig->session, rig->unit, "eager", 1), 0);
	core_expect(rig->core, core_gather(rig->core, rig->session, rig->other), 0);
}

static void with_persistent_copy(struct rig *rig)
{
	core_expect(rig->core, core_set_persistent(rig->core, rig->session, rig->unit, true), 0);
	core_expect(rig->core, core_gather(rig->core, rig->session, rig->unit), 0);
	core_expect(rig->core, core_release(rig->core, rig->session, rig->unit), 0);
}

static void with_slow_streams(struct rig *rig)
{
	static const struct zd_fence fences[] = {{1, 1}, {2, 1}};
	with_leases(rig);
	core_expect(rig->core, core_release_tag(rig->core, rig->session, rig->unit, "eager", fences, 2), 0);
	core_expect(rig->core, core_release_tag(rig->core, rig->session, rig->other, CORE_TAG, fences, 2), 0);
}

static void in_pipelined_release(struct rig *rig)
{
	in_update(rig);
	core_expect_waits(rig->core, core_gather(rig->core, rig->session, rig->unit), "publish");
	core_expect_waits(rig->core, core_release(rig->core, rig->session, rig->unit), "its own gather");
}

static void in_alloc(struct rig *rig)
{
	core_expect(rig->core, core_alloc(rig->core, rig->session, "job", 1, 256), 0);
	core_hold(rig->core, ZD_CMD_FILL);
	core_expect_waits(rig->core, core_alloc(rig->core, rig->session, "job", 1, 256), "zeroed");
}

static void in_alloc_without_memory(struct rig *rig)
{
	core_hold(rig->core, ZD_CMD_SEGMENT_CREATE);
	core_expect_waits(rig->core, core_alloc(rig->core, rig->session, "elsewhere", 1, 256), "a segment");
}

static void in_free(struct rig *rig)
{
	static const struct zd_fence fence = {1, 1};
	uint64_t request = core_alloc(rig->core, rig->session, "job", 1, 256);
	struct zd_args args = {.kind = ZD_REQ_FREE, .fences = {1, &fence}};
	args.u.free.allocation = core_expect(rig->core, request, 0)->u.alloc.allocation;
	core_call(rig->core, rig->session, &args, 0);
	assert_int_equal(core_quarantine(rig->core, 1), 256);
}

static void when_poisoned(struct rig *rig)
{
	core_fail_next(rig->core, ZD_CMD_COPY, ZEROD_E_DEVICE, "ECC error");
	core_expect(rig->core, core_gather(rig->core, rig->session, rig->unit), 0);
}

static void when_aborted(struct rig *rig)
{
	with_leases(rig);
	core_do(rig->core, rig->session, ZD_REQ_ABORT_GROUP, rig->team.group);
}

static void when_joining(struct rig *rig)
{
	struct core_join join = {.group = "another", .world_size = 2};
	core_expect_waits(rig->core, core_join(rig->core, rig->session, &join), "rank 1");
}

/* In each state the session ends by itself or by an administrator: nothing of it is charged a moment later,
 * memory that operations still use is freed with them, the other rank's share is untouched, and the rank can
 * join again. */
TEST(test_end_in_every_state)
{
	static void (*const bring[])(struct rig *) = {
	        in_nothing,
	        in_update_wait,
	        in_update,
	        in_publish,
	        in_commit,
	        in_register,
	        in_register_without_memory,
	        in_transfer,
	        in_gather_without_memory,
	        with_leases,
	        with_persistent_copy,
	        with_slow_streams,
	        in_pipelined_release,
	        in_alloc,
	        in_alloc_without_memory,
	        in_free,
	        when_poisoned,
	        when_aborted,
	        when_joining,
	};
	for (size_t i = 0; i < 2 * ZD_ARRAY_LEN(bring); i++) {
		struct rig rig = {.core = core_new(NULL)};
		rig.team = core_team_new(rig.core, "job", 2, false);
		rig.unit = core_team_unit(&rig.team, "w", UNIT_BYTES);
		rig.other = core_team_unit(&rig.team, "v", UNIT_BYTES);
		rig.session = rig.team.session[0];
		bring[i / 2](&rig);
		if (i % 2)
			core_close(rig.core, rig.session);
		else
			core_do(rig.core, core_open_admin(rig.core), ZD_REQ_KILL_SESSION, rig.session);
		Zd__Usage usage = core_usage(rig.core);
		assert_int_equal(usage.shard_bytes, UNIT_BYTES); /* the other rank's two */
		assert_int_equal(usage.allocation_bytes, 0);
		assert_true(usage.gathered_bytes == 0 || bring[i / 2] == in_update_wait ||
		            bring[i / 2] == in_transfer);
		for (enum zd_command_kind kind = ZD_CMD_SEGMENT_CREATE; kind <= ZD_CMD_WATCH; kind++)
			core_unhold(rig.core, kind);
		assert_int_equal(core_quarantine(rig.core, 0), 0);
		assert_int_equal(core_quarantine(rig.core, 1), 0);
		if (bring[i / 2] != when_aborted)
			core_join_ok(rig.core, core_open(rig.core, CORE_ALICE),
			             &(struct core_join){.world_size = 2});
		core_end(rig.core);
	}
}

/* ---- Ids ----------------------------------------------------------------------------------------------- */

/* Another user's objects do not change them, and a user that held nothing in between continues. */
ENGINE_TEST(test_ids_count_the_uids_own_objects)
{
	uint64_t alice = core_open(core, CORE_ALICE), bob = core_open(core, CORE_BOB);
	for (int i = 0; i < 20; i++) {
		core_expect(core, core_alloc(core, bob, "job", 0, 4096), 0);
		core_close(core, core_open(core, CORE_BOB));
	}
	uint64_t first = core_alloc_ok(core, alice, "job", 0, 4096);
	assert_int_equal(ZD_ID_NUMBER(alice), 1);
	assert_int_equal(ZD_ID_NUMBER(bob), 1);
	assert_int_equal(ZD_ID_NUMBER(first), 1);
	assert_int_equal(ZD_ID_OWNER(alice), ZD_ID_OWNER(first));
	assert_int_not_equal(ZD_ID_OWNER(alice), ZD_ID_OWNER(bob));
	core_close(core, alice);
	assert_int_equal(core_open(core, CORE_ALICE), alice + 1);
}

/* ---- Ended by others ----------------------------------------------------------------------------------- */

ENGINE_TEST(test_kill_session)
{
	char text[96];
	struct core_team team = core_team_new(core, "job", 2, false);
	uint64_t unit = core_team_unit(&team, "w", UNIT_BYTES);
	uint64_t waiting = core_commit(core, team.session[1], team.group, 1);
	uint64_t bob = core_open(core, CORE_BOB), alice = core_open(core, CORE_ALICE);
	core_expect(core, core_gather(core, team.session[0], unit), 0);
	core_expect_error(core, core_simple(core, bob, ZD_REQ_KILL_SESSION, team.session[0]),
	                  ZEROD_E_NOT_FOUND, "no session");
	core_expect(core, core_simple(core, bob, ZD_REQ_KILL_SESSION, 9999), ZEROD_E_NOT_FOUND);
	core_expect_error(core, core_simple(core, alice, ZD_REQ_KILL_SESSION, alice), ZEROD_E_INVALID,
	                  "is the one that asks");
	assert_true(core_is_open(core, team.session[0]));
	core_do(core, alice, ZD_REQ_KILL_SESSION, team.session[0]);
	assert_false(core_is_open(core, team.session[0]));
	(void)snprintf(text, sizeof(text), "ended by session %llu (pid %u, uid %u)", ZD_ID_NUMBER(alice),
	               CORE_ALICE + 1, CORE_ALICE);
	assert_string_equal(core_killed_why(core, team.session[0]), text);
	assert_int_equal(core_usage(core).gathered_bytes, 0);
	core_expect_error(core, waiting, ZEROD_E_PEER_LOST, "rank 0");
	core_do(core, core_open_admin(core), ZD_REQ_KILL_SESSION, bob);
	assert_false(core_is_open(core, bob));
}

/* ---- Notices for the log ------------------------------------------------------------------------------- */

/* A job begins with its first group, and ends when nothing of it is left. */
ENGINE_TEST(test_jobs_begin_and_end)
{
	uint64_t alice = core_open(core, CORE_ALICE), bob = core_open(core, CORE_BOB);
	core_tick(core, 5000);
	core_join_ok(core, alice, &(struct core_join){.job = "lm", .world_size = 1});
	assert_string_equal(core_notice(core, 0), "job 1000/lm began");
	core_join_ok(core, alice, &(struct core_join){.job = "lm", .group = "second", .world_size = 1});
	core_expect(core, core_alloc(core, bob, "lm", 0, 4096), 0); /* a job without a group is no news */
	core_expect(core, core_alloc(core, alice, "lm", 0, 8192), 0);
	core_close(core, bob);
	assert_string_equal(core_notice(core, 1), "");
	zd_engine_session_goodbye(core_engine(core), alice);
	core_close(core, alice);
	assert_string_equal(core_notice(core, 1), "job 1000/lm ended, since 5000, peak 8192");
	assert_string_equal(core_notice(core, 2), "");
}

/* One notice for each group of a session that ends without a goodbye, also of a rank that still joins. */
ENGINE_TEST(test_lost_ranks_are_named_once)
{
	struct core_team team;
	struct core_join second = {.job = "lm", .group = "second", .world_size = 2, .rank = 1, .device = 1};
	char text[128];
	team = core_team_new(core, "lm", 2, false);
	uint64_t waiting = core_commit(core, team.session[0], team.group, 1);
	(void)core_join(core, team.session[1], &second);
	core_close(core, core_open(core, CORE_ALICE)); /* of no group */
	assert_string_equal(core_notice(core, 1), "");
	core_close(core, team.session[1]);
	core_expect_error(core, waiting, ZEROD_E_PEER_LOST, "rank 1");
	(void)snprintf(text, sizeof(text), "job 1000/lm group world rank 1 device 1 pid %u lost",
	               CORE_ALICE + 1);
	assert_string_equal(core_notice(core, 1), text);
	(void)snprintf(text, sizeof(text), "job 1000/lm group second rank 1 device 1 pid %u lost",
	               CORE_ALICE + 1);
	assert_string_equal(core_notice(core, 2), text);
	zd_engine_session_goodbye(core_engine(core), team.session[0]);
	core_close(core, team.session[0]);
	assert_string_equal(core_notice(core, 4), "");
	team = core_team_new(core, "lm", 2, false); /* whoever kills a session is told of elsewhere */
	core_do(core, core_open_admin(core), ZD_REQ_KILL_SESSION, team.session[0]);
	assert_string_equal(core_notice(core, 4), "job 1000/lm began");
	assert_string_equal(core_notice(core, 5), "");
}
