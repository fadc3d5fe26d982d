/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Durable jobs: shards that outlive their sessions, deaths inside an update, the end of a job.
 */
#include <stdio.h>

#include "tests/support/core_driver.h"

#define UNIT_BYTES 512u

static const struct core_unit unit_again = {.name = "w", .numel = UNIT_BYTES / 4};

/* Two ranks with one unit, committed at step 1, version 1. */
static uint64_t start(struct core_driver *core, struct core_team *team)
{
	*team = core_team_new(core, "job", 2, true);
	uint64_t unit = core_team_unit(team, "w", UNIT_BYTES);
	uint64_t first = core_commit(core, team->session[0], team->group, 1);
	core_expect(core, core_commit(core, team->session[1], team->group, 1), 0);
	core_expect(core, first, 0);
	return unit;
}

static void close_all(struct core_driver *core, struct core_team *team)
{
	for (uint32_t rank = 0; rank < team->world_size; rank++) {
		if (core_is_open(core, team->session[rank]))
			core_close(core, team->session[rank]);
	}
}

/* New sessions for ranks without one. Returns rank 0's reply. */
static const struct zd_reply *rejoin(struct core_driver *core, struct core_team *team)
{
	uint64_t request[CORE_TEAM] = {0};
	for (uint32_t rank = 0; rank < team->world_size; rank++) {
		struct core_join join = {
		        .world_size = team->world_size, .rank = rank, .device = rank % 2, .durable = true};
		if (core_is_open(core, team->session[rank]))
			continue;
		team->session[rank] = core_open(core, CORE_ALICE);
		request[rank] = core_join(core, team->session[rank], &join);
	}
	const struct zd_reply *reply = NULL;
	for (uint32_t rank = team->world_size; rank-- > 0;) {
		if (request[rank])
			reply = core_expect(core, request[rank], 0);
	}
	return reply;
}

/* ---- Allocations --------------------------------------------------------------------------------------- */

#define STATE_BYTES 1024u

static uint64_t keep(struct core_driver *core, uint64_t session, const char *name, uint64_t bytes)
{
	struct zd_args args = {
	        .kind = ZD_REQ_ALLOC,
	        .u.alloc = {.job = (char *)"job", .name = (char *)name, .bytes = bytes, .durable = true}};
	return core_send(core, session, &args);
}

ENGINE_TEST(test_allocation_outlives_its_session)
{
	struct core_team team;
	struct core_row row;
	(void)start(core, &team);
	const struct zd_reply *reply = core_expect(core, keep(core, team.session[0], "adam", STATE_BYTES), 0);
	struct zd_location at = reply->place;
	uint64_t id = reply->u.alloc.allocation;
	memset(core_bytes(core, at), 0x5a, STATE_BYTES);
	core_expect(core, core_alloc(core, team.session[0], "job", 0, STATE_BYTES), 0); /* which does not */
	core_expect_error(core, keep(core, team.session[1], "adam", STATE_BYTES), ZEROD_E_EXISTS,
	                  "allocation 'adam' of job 'job' on device 0 is held by session");
	close_all(core, &team);
	assert_int_equal(core_usage(core).allocation_bytes, STATE_BYTES);
	assert_int_equal(core_rows(core, ZD__TABLE__ALLOCATIONS, &row, 1), 1);
	assert_true(row.id == id && row.row->allocation->durable);
	assert_int_equal(row.row->allocation->session, 0);
	uint64_t session = core_open(core, CORE_ALICE), bob = core_open(core, CORE_BOB);
	core_expect_error(core, keep(core, session, "adam", 2 * STATE_BYTES), ZEROD_E_MISMATCH,
	                  "has 1024 bytes; 2048 are asked for");
	core_expect_error(core, keep(core, bob, "adam", STATE_BYTES), ZEROD_E_STATE,
	                  "job 'job' is not durable");
	reply = core_expect(core, keep(core, session, "adam", STATE_BYTES), 0);
	assert_true(reply->u.alloc.allocation == id && reply->place.offset == at.offset);
	for (uint32_t i = 0; i < STATE_BYTES; i++)
		assert_int_equal(core_bytes(core, reply->place)[i], 0x5a);
	core_close(core, session);
	session = core_open(core, CORE_ALICE);
	core_expect(core, keep(core, session, "adam", STATE_BYTES), 0);
	core_expect(core, core_free(core, session, id, NULL), 0);
	assert_int_equal(core_usage(core).allocation_bytes, 0);
}

ENGINE_TEST(test_bad_durable_allocations)
{
	uint64_t session = core_open(core, CORE_ALICE);
	core_expect_error(core, keep(core, session, "adam", STATE_BYTES), ZEROD_E_STATE,
	                  "job 'job' is not durable: join a durable group of it before allocation 'adam'");
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, NULL, 0), 0);
	(void)core_team_new(core, "job", 1, false);
	core_expect(core, keep(core, session, "adam", STATE_BYTES), ZEROD_E_STATE);
	core_expect_error(core, keep(core, session, "", STATE_BYTES), ZEROD_E_INVALID, "needs a name");
}

/* Memory that was not zeroed yet is nobody's. */
ENGINE_TEST(test_session_that_ends_before_its_allocation_is_there)
{
	struct core_team team;
	(void)start(core, &team);
	core_hold(core, ZD_CMD_FILL);
	(void)keep(core, team.session[0], "adam", STATE_BYTES);
	core_close(core, team.session[0]);
	core_unhold(core, ZD_CMD_FILL);
	assert_int_equal(core_usage(core).allocation_bytes, 0);
	core_expect(core, keep(core, team.session[1], "adam", STATE_BYTES), 0);
}

ENGINE_TEST(test_allocations_end_with_their_job)
{
	struct core_team team;
	struct core_row row;
	(void)start(core, &team);
	uint64_t session = core_open(core, CORE_ALICE), other = core_open(core, CORE_ALICE);
	core_expect(core, keep(core, session, "adam", STATE_BYTES), 0);
	close_all(core, &team);
	core_rows(core, ZD__TABLE__JOBS, &row, 1);
	core_expect_error(core, core_simple(core, other, ZD_REQ_END_JOB, row.id), ZEROD_E_BUSY,
	                  "allocation 'adam' is held by session");
	core_close(core, session);
	assert_int_equal(core_usage(core).allocation_bytes, STATE_BYTES);
	core_do(core, other, ZD_REQ_END_JOB, row.id);
	assert_int_equal(core_usage(core).allocation_bytes, 0);
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, NULL, 0), 0);
}

/* ---- Shards stay --------------------------------------------------------------------------------------- */

ENGINE_TEST(test_shards_outlive_their_sessions)
{
	struct core_team team;
	struct core_row row;
	uint64_t unit = start(core, &team);
	core_expect(core, core_gather(core, team.session[0], unit), 0);
	close_all(core, &team);
	assert_int_equal(core_usage(core).shard_bytes, UNIT_BYTES);
	assert_int_equal(core_usage(core).gathered_bytes, 0);
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, &row, 1), 1);
	assert_true(row.row->job->durable);
	const struct zd_reply *reply = rejoin(core, &team);
	assert_true(reply->u.group_join.group == team.group);
	assert_int_equal(reply->u.group_join.committed_step, 1);
	assert_false(reply->u.group_join.torn);
	/* a shard is its rank's again when that registers */
	uint64_t request = core_register(core, team.session[0], team.group, &unit_again);
	assert_int_equal(core_expect(core, request, 0)->u.unit_register.version, 1);
	uint64_t gather = core_gather(core, team.session[0], unit);
	core_expect_waits(core, gather, "rank 1 to register unit 'w'");
	core_expect(core, core_update(core, team.session[1], unit), ZEROD_E_NOT_FOUND);
	core_register_ok(core, team.session[1], team.group, &unit_again);
	core_team_check(&team, core_expect(core, gather, 0), 1);
}

ENGINE_TEST(test_shards_stay_on_their_device)
{
	struct core_team team;
	start(core, &team);
	close_all(core, &team);
	uint64_t session = core_open(core, CORE_ALICE);
	core_expect_error(
	        core,
	        core_join(core, session,
	                  &(struct core_join){.world_size = 2, .rank = 1, .device = 0, .durable = true}),
	        ZEROD_E_MISMATCH, "the shards of rank 1 are on device 1; it joins on device 0");
	core_expect_error(core, core_join(core, session, &(struct core_join){.world_size = 2, .rank = 1}),
	                  ZEROD_E_MISMATCH, "job 'job' is durable; rank 1 says not durable");
}

/* Its work has ended with its ranks, and its data is kept for the next ones. */
ENGINE_TEST(test_abort_of_a_group_that_was_left)
{
	struct core_team team;
	start(core, &team);
	close_all(core, &team);
	core_expect_error(core, core_simple(core, core_open_admin(core), ZD_REQ_ABORT_GROUP, team.group),
	                  ZEROD_E_STATE, "all ranks of group 'world' have left already");
	assert_int_equal(rejoin(core, &team)->u.group_join.committed_step, 1);
}

ENGINE_TEST(test_shard_that_was_never_zeroed_does_not_stay)
{
	struct core_team team = core_team_new(core, "job", 1, true);
	core_hold(core, ZD_CMD_FILL);
	(void)core_register(core, team.session[0], team.group, &unit_again);
	close_all(core, &team);
	assert_int_equal(core_usage(core).shard_bytes, 0);
	core_unhold(core, ZD_CMD_FILL);
	assert_int_equal(core_rows(core, ZD__TABLE__UNITS, NULL, 0), 0);
}

/* ---- Torn ---------------------------------------------------------------------------------------------- */

enum point { BEFORE, WAITING, UPDATING, PUBLISHING, PUBLISHED, COMMITTED };

/* Rank 0 dies here, the other rank after it. */
static void die_at(struct core_driver *core, struct core_team *team, uint64_t unit, enum point point)
{
	static const struct zd_fence slow = {7, 1};
	struct zd_args publish = {
	        .kind = ZD_REQ_PUBLISH, .u.publish = {.n_units = 1, .units = &unit}, .fences = {1, &slow}};
	if (point == WAITING) {
		core_hold(core, ZD_CMD_COPY);
		core_expect(core, core_gather(core, team->session[1], unit), 0);
		core_expect_waits(core, core_update(core, team->session[0], unit),
		                  "1 transfer that reads the shard of rank 0");
	}
	if (point == UPDATING || point == PUBLISHING)
		core_expect(core, core_update(core, team->session[0], unit), 0);
	if (point == PUBLISHING)
		core_expect_waits(core, core_send(core, team->session[0], &publish),
		                  "publish: the caller's own streams");
	if (point >= PUBLISHED)
		core_team_publish(team, unit);
	if (point == COMMITTED) {
		(void)core_commit(core, team->session[1], team->group, 2);
		core_expect(core, core_commit(core, team->session[0], team->group, 2), 0);
	}
	close_all(core, team);
	core_unhold(core, ZD_CMD_COPY);
}

TEST(test_death_between_update_and_commit_is_torn)
{
	static const bool torn[] = {
	        [UPDATING] = true, [PUBLISHING] = true, [PUBLISHED] = true, [COMMITTED] = false};
	for (enum point point = BEFORE; point <= COMMITTED; point++) {
		struct core_driver *core = core_new(NULL);
		struct core_team team;
		uint64_t unit = start(core, &team);
		die_at(core, &team, unit, point);
		const struct zd_reply *reply = rejoin(core, &team);
		assert_int_equal(reply->u.group_join.torn, torn[point]);
		assert_int_equal(reply->u.group_join.committed_step, point == COMMITTED ? 2 : 1);
		for (uint32_t rank = 0; rank < 2; rank++)
			core_register_ok(core, team.session[rank], team.group, &unit_again);
		uint64_t gather = core_gather(core, team.session[0], unit);
		if (torn[point])
			core_expect_error(core, gather, ZEROD_E_TORN, "died inside an update after step 1");
		else
			core_team_check(&team, core_expect(core, gather, 0), point == COMMITTED ? 2 : 1);
		core_end(core);
	}
}

/* Everything is published again, by a rank that lags behind once more than by the others. */
ENGINE_TEST(test_torn_group_is_restored_and_committed)
{
	struct core_team team;
	struct core_row row;
	uint64_t unit = start(core, &team);
	core_team_publish_rank(&team, unit, 1);
	core_expect(core, core_update(core, team.session[0], unit), 0);
	close_all(core, &team);
	rejoin(core, &team);
	for (uint32_t rank = 0; rank < 2; rank++)
		core_register_ok(core, team.session[rank], team.group, &unit_again);
	core_team_publish(&team, unit);
	uint64_t commit = core_commit(core, team.session[0], team.group, 2);
	core_expect_error(core, core_commit(core, team.session[1], team.group, 2), ZEROD_E_STATE,
	                  "unit 'w' has version 2 on rank 0 and 3 on rank 1");
	core_expect(core, commit, ZEROD_E_STATE);
	core_team_publish_rank(&team, unit, 0);
	core_expect(core, core_gather(core, team.session[0], unit), ZEROD_E_TORN);
	commit = core_commit(core, team.session[0], team.group, 2);
	core_expect(core, core_commit(core, team.session[1], team.group, 2), 0);
	core_expect(core, commit, 0);
	core_team_check(&team, core_expect(core, core_gather(core, team.session[0], unit), 0), 3);
	core_row(core, ZD__TABLE__GROUPS, team.group, &row);
	assert_false(row.row->group->torn);
	assert_int_equal(row.row->group->committed_step, 2);
}

ENGINE_TEST(test_commit_needs_every_shard_registered)
{
	struct core_team team;
	start(core, &team);
	close_all(core, &team);
	rejoin(core, &team);
	core_register_ok(core, team.session[0], team.group, &unit_again);
	(void)core_commit(core, team.session[0], team.group, 2);
	core_expect_error(core, core_commit(core, team.session[1], team.group, 2), ZEROD_E_STATE,
	                  "unit 'w' is DETACHED on rank 1");
}

/* Both ranks give their unit back, with a version that was not committed, while their shards are still
 * read. */
static void give_the_unit_back(struct core_driver *core, struct core_team *team)
{
	uint64_t unit = start(core, team);
	core_team_publish(team, unit);
	core_hold(core, ZD_CMD_COPY);
	core_expect(core, core_gather(core, team->session[0], unit), 0);
	core_expect(core, core_release(core, team->session[0], unit), 0);
	for (uint32_t rank = 0; rank < 2; rank++)
		core_do(core, team->session[rank], ZD_REQ_UNIT_UNREGISTER, unit);
}

/* Whether transfers are through with it makes no difference. */
ENGINE_TEST(test_shard_that_was_given_back_is_in_no_commit)
{
	struct core_team team;
	give_the_unit_back(core, &team);
	uint64_t first = core_commit(core, team.session[0], team.group, 2);
	core_expect(core, core_commit(core, team.session[1], team.group, 2), 0);
	core_expect(core, first, 0);
}

ENGINE_TEST(test_shard_that_was_given_back_is_not_torn)
{
	struct core_team team;
	give_the_unit_back(core, &team);
	core_close(core, team.session[1]);
	assert_false(rejoin(core, &team)->u.group_join.torn);
}

/* ---- The end ------------------------------------------------------------------------------------------- */

static uint64_t only_job(struct core_driver *core)
{
	struct core_row row;
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, &row, 1), 1);
	return row.id;
}

ENGINE_TEST(test_end_job)
{
	struct core_team team;
	start(core, &team);
	uint64_t job = only_job(core), owner = core_open(core, CORE_ALICE);
	core_expect_error(core, core_simple(core, owner, ZD_REQ_END_JOB, job), ZEROD_E_BUSY,
	                  "2 ranks of group 'world' are attached");
	close_all(core, &team);
	core_expect(core, core_simple(core, core_open(core, CORE_BOB), ZD_REQ_END_JOB, job),
	            ZEROD_E_NOT_FOUND);
	core_expect(core, core_simple(core, owner, ZD_REQ_END_JOB, job + 1000), ZEROD_E_NOT_FOUND);
	assert_int_equal(core_usage(core).shard_bytes, UNIT_BYTES);
	core_do(core, owner, ZD_REQ_END_JOB, job);
	assert_int_equal(core_usage(core).shard_bytes, 0);
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, NULL, 0), 0);
}

/* All sessions of the job end, with its memory; those of other jobs, and of other users, do not. */
ENGINE_TEST(test_kill_job)
{
	struct core_team team;
	char text[128];
	start(core, &team);
	uint64_t job = only_job(core), owner = core_open(core, CORE_ALICE), bob = core_open(core, CORE_BOB);
	uint64_t waiting = core_commit(core, team.session[1], team.group, 2);
	core_expect(core, core_simple(core, bob, ZD_REQ_KILL_JOB, job), ZEROD_E_NOT_FOUND);
	core_expect(core, core_simple(core, owner, ZD_REQ_KILL_JOB, job + 1000), ZEROD_E_NOT_FOUND);
	core_expect_error(core, core_simple(core, team.session[0], ZD_REQ_KILL_JOB, job), ZEROD_E_INVALID,
	                  "which asks, is one of job 'job'");
	assert_true(core_is_open(core, team.session[0]) && core_is_open(core, team.session[1]));
	core_do(core, owner, ZD_REQ_KILL_JOB, job);
	(void)snprintf(text, sizeof(text), "job 'job' was killed by session %llu (pid %u, uid %u)",
	               ZD_ID_NUMBER(owner), CORE_ALICE + 1, CORE_ALICE);
	for (unsigned rank = 0; rank < 2; rank++) {
		assert_false(core_is_open(core, team.session[rank]));
		assert_string_equal(core_killed_why(core, team.session[rank]), text);
	}
	assert_null(core_reply(core, waiting)); /* not that its peer is gone */
	assert_true(core_is_open(core, owner) && core_is_open(core, bob));
	assert_int_equal(core_usage(core).shard_bytes, 0);
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, NULL, 0), 0);
}

/* Ranks that still join, holders of allocations, and a durable job without sessions. */
ENGINE_TEST(test_kill_job_of_any_sort)
{
	uint64_t admin = core_open_admin(core), joins = core_open(core, CORE_ALICE);
	uint64_t holds = core_open(core, CORE_ALICE), other = core_open(core, CORE_ALICE);
	struct core_team team;
	core_expect(core, core_alloc(core, holds, "job", 0, 4096), 0);
	core_expect(core, core_alloc(core, other, "other", 0, 4096), 0);
	(void)core_join(core, joins, &(struct core_join){.world_size = 2});
	struct core_row rows[2];
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, rows, 2), 2);
	core_do(core, admin, ZD_REQ_KILL_JOB, rows[0].id);
	assert_false(core_is_open(core, joins) || core_is_open(core, holds));
	assert_true(core_is_open(core, other));
	core_close(core, other);
	start(core, &team);
	close_all(core, &team);
	assert_int_equal(core_usage(core).shard_bytes, UNIT_BYTES);
	core_do(core, admin, ZD_REQ_KILL_JOB, only_job(core));
	assert_int_equal(core_usage(core).shard_bytes, 0);
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, NULL, 0), 0);
}

ENGINE_TEST(test_end_job_is_for_durable_ones)
{
	struct core_team team = core_team_new(core, "job", 1, false);
	core_expect_error(core, core_simple(core, team.session[0], ZD_REQ_END_JOB, only_job(core)),
	                  ZEROD_E_STATE, "is not durable");
}

/* The memory of an ended job has no owner, and exists until its copies have ended: a session that uses the
 * job's name begins anew. */
static void join_after_the_end(bool durable)
{
	struct core_driver *core = core_new(&(struct core_options){.ndevices = 3});
	struct core_team team;
	struct core_join join = {.world_size = 1, .device = 2, .durable = durable};
	uint64_t unit = start(core, &team), admin = core_open_admin(core);
	core_hold(core, ZD_CMD_COPY);
	core_expect(core, core_gather(core, team.session[0], unit), 0);
	close_all(core, &team);
	core_do(core, admin, ZD_REQ_END_JOB, only_job(core));

	uint64_t session = core_open(core, CORE_ALICE);
	const struct zd_reply *reply = core_expect(core, core_join(core, session, &join), 0);
	assert_true(reply->u.group_join.group != team.group);
	assert_int_equal(reply->u.group_join.committed_step, 0);
	core_register_ok(core, session, reply->u.group_join.group, &unit_again);
	core_close(core, session);
	assert_int_equal(core_usage(core).shard_bytes, durable ? UNIT_BYTES : 0);
	if (durable)
		core_do(core, admin, ZD_REQ_END_JOB, only_job(core));
	assert_int_equal(core_rows(core, ZD__TABLE__GROUPS, NULL, 0), 1);
	core_unhold(core, ZD_CMD_COPY);
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, NULL, 0), 0);
	core_end(core);
}

TEST(test_name_of_an_ended_job_is_free)
{
	join_after_the_end(false);
	join_after_the_end(true);
}

/* A job that was not durable and that all have left. */
ENGINE_TEST(test_job_that_all_have_left_may_be_durable_next_time)
{
	struct core_team team = core_team_new(core, "job", 1, false);
	uint64_t unit = core_team_unit(&team, "w", UNIT_BYTES), session = core_open(core, CORE_ALICE);
	core_hold(core, ZD_CMD_COPY);
	core_expect(core, core_gather(core, team.session[0], unit), 0);
	core_close(core, team.session[0]);
	core_join_ok(core, session, &(struct core_join){.world_size = 1, .durable = true});
}
