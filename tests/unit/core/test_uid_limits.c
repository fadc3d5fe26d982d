/* SPDX-License-Identifier: Apache-2.0 */
/* test_uid_limits.c - what one uid may have: sessions, jobs, and durable jobs that no session uses. */
#include <stdio.h>

#include "base/err.h"
#include "tests/support/core_driver.h"

#define TTL_NS     (10 * UINT64_C(1000000000))
#define UNIT_BYTES 512u

static void expect_no_session(struct core_driver *core, uint32_t uid, const char *text)
{
	const struct zd_peer peer = {.uid = uid, .pid = 7, .name = "trainer"};
	struct zd_err err = ZD_ERR_NONE;

	assert_int_equal(zd_engine_session_open(core_engine(core), &peer, &err), 0);
	assert_int_equal(err.status, ZEROD_E_LIMIT);
	assert_string_equal(err.text, text);
}

static void set_limits(struct core_driver *core, struct zd_uid_limits limits)
{
	zd_engine_set_uid_limits(core_engine(core), &limits);
}

static uint32_t count_jobs(struct core_driver *core)
{
	struct zd_engine_totals totals;

	zd_engine_totals(core_engine(core), &totals);
	return totals.jobs;
}

ENGINE_TEST(test_sessions)
{
	uint64_t first, second;

	first = core_open(core, CORE_ALICE);
	second = core_open(core, CORE_ALICE);
	set_limits(core, (struct zd_uid_limits){.max_sessions = 2});
	expect_no_session(core, CORE_ALICE, "uid 1000 has 2 sessions open: max_sessions_per_uid is 2");
	/* Others, and administrators of any number, have theirs. */
	(void)core_open(core, CORE_BOB);
	for (int i = 0; i < 3; i++)
		(void)core_open_admin(core);
	core_close(core, first);
	first = core_open(core, CORE_ALICE);
	/* Less than there are: none is taken away. */
	set_limits(core, (struct zd_uid_limits){.max_sessions = 1});
	expect_no_session(core, CORE_ALICE, "uid 1000 has 2 sessions open: max_sessions_per_uid is 1");
	assert_true(core_is_open(core, first) && core_is_open(core, second));
	set_limits(core, (struct zd_uid_limits){0});
	(void)core_open(core, CORE_ALICE);
	core_close_all(core);
}

/* A session whose process may still use the devices does not count: it is not open. */
ENGINE_TEST(test_lingering_sessions, .sessions_linger = true)
{
	uint64_t gone;

	set_limits(core, (struct zd_uid_limits){.max_sessions = 1});
	struct core_team team = core_team_new(core, "job", 1, false);
	(void)core_team_unit(&team, "w", UNIT_BYTES);
	gone = team.session[0];
	core_close(core, gone);
	team.session[0] = core_open(core, CORE_ALICE);
	core_gone(core, gone);
	core_close_all(core);
}

/* A session joins and allocates on its devices only; an administrator on all. */
ENGINE_TEST(test_denied_devices, .ndevices = 4)
{
	static const char text[] =
	        "device 1 (device1) is not granted to session 1 (uid 1000), whose devices are: 0,2";
	struct zd_peer peer = {.uid = CORE_ALICE, .denied_devices = 2 | 8};
	struct core_join join = {.job = "job", .world_size = 1, .device = 1};
	uint64_t session = core_open_peer(core, &peer);

	core_expect_error(core, core_alloc(core, session, "job", 1, 256), ZEROD_E_PERMISSION, text);
	core_expect_error(core, core_join(core, session, &join), ZEROD_E_PERMISSION, text);
	core_expect_error(core, core_alloc(core, session, "job", 4, 256), ZEROD_E_NOT_FOUND, "no device 4");
	core_expect(core, core_alloc(core, session, "job", 2, 256), 0);
	join.device = 0;
	core_join_ok(core, session, &join);
	peer.denied_devices = UINT64_MAX;
	session = core_open_peer(core, &peer);
	core_expect_error(core, core_alloc(core, session, "job", 0, 256), ZEROD_E_PERMISSION,
	                  "whose devices are: none");
	peer.admin = true;
	session = core_open_peer(core, &peer);
	core_expect(core, core_alloc(core, session, "job", 1, 256), 0);
	core_close_all(core);
}

ENGINE_TEST(test_jobs)
{
	struct core_join join = {.job = "third", .world_size = 1};
	uint64_t alice, bob, admin;

	set_limits(core, (struct zd_uid_limits){.max_jobs = 2});
	alice = core_open(core, CORE_ALICE);
	bob = core_open(core, CORE_BOB);
	admin = core_open_admin(core);
	core_expect(core, core_alloc(core, alice, "first", 0, 256), 0);
	join.job = "second";
	core_join_ok(core, alice, &join);
	join.job = "third";
	core_expect_error(core, core_join(core, alice, &join), ZEROD_E_LIMIT,
	                  "uid 1000 has 2 jobs already: max_jobs_per_uid is 2");
	core_expect_error(core, core_alloc(core, alice, "third", 0, 256), ZEROD_E_LIMIT,
	                  "uid 1000 has 2 jobs already: max_jobs_per_uid is 2");
	core_expect(core, core_alloc(core, alice, "second", 0, 256), 0);
	core_join_ok(core, bob, &join);
	for (int i = 0; i < 3; i++) {
		static const char *const names[] = {"a", "b", "c"};
		core_expect(core, core_alloc(core, admin, names[i], 0, 256), 0);
	}
	core_close_all(core);
	assert_int_equal(count_jobs(core), 0);
}

#define SAME_NAMES 300u

static void alloc_in_all(struct core_driver *core, uint64_t session, uint64_t bytes)
{
	for (uint32_t i = 0; i < SAME_NAMES; i++) {
		char name[16];

		(void)snprintf(name, sizeof(name), "job-%u", i);
		core_expect(core, core_alloc(core, session, name, 0, bytes), 0);
	}
}

/* Jobs are found by name among those of their own user: of many, and of two users with the same names. */
TEST(test_same_names)
{
	struct core_driver *core =
	        core_new(&(struct core_options){.arena_bytes = 64 << 20, .segment_bytes = 65536});
	struct core_row *rows = calloc(2ul * SAME_NAMES, sizeof(*rows));
	uint64_t alice = core_open(core, CORE_ALICE), bob = core_open(core, CORE_BOB);
	uint32_t of_alice = 0;

	assert_non_null(rows);
	alloc_in_all(core, alice, UNIT_BYTES);
	alloc_in_all(core, bob, UNIT_BYTES);
	alloc_in_all(core, alice, 2 * UNIT_BYTES);
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, rows, 2 * SAME_NAMES), 2 * SAME_NAMES);
	for (uint32_t i = 0; i < 2 * SAME_NAMES; i++) {
		bool is_alice = rows[i].row->job->uid == CORE_ALICE;

		of_alice += is_alice;
		assert_int_equal(rows[i].row->job->usage->allocation_bytes,
		                 is_alice ? 3 * UNIT_BYTES : UNIT_BYTES);
		for (uint32_t k = 0; k < i; k++)
			assert_false(strcmp(rows[i].job, rows[k].job) == 0 &&
			             rows[i].row->job->uid == rows[k].row->job->uid);
	}
	assert_int_equal(of_alice, SAME_NAMES);
	core_close(core, bob);
	assert_int_equal(count_jobs(core), SAME_NAMES);
	alloc_in_all(core, alice, UNIT_BYTES);
	assert_int_equal(count_jobs(core), SAME_NAMES);
	core_close_all(core);
	assert_int_equal(count_jobs(core), 0);
	free(rows);
	core_end(core);
}

ENGINE_TEST(test_durable_jobs_of_some)
{
	struct core_join join = {.world_size = 1, .durable = true};
	struct zd_peer peer = {.uid = CORE_ALICE, .pid = 7, .no_durable = true, .name = "trainer"};
	uint64_t session = core_open_peer(core, &peer);

	core_expect_error(core, core_join(core, session, &join), ZEROD_E_PERMISSION,
	                  "uid 1000 may keep no durable job: it is in no group of durable_groups");
	join.durable = false;
	core_join_ok(core, session, &join);
	peer.admin = true;
	session = core_open_peer(core, &peer);
	join.job = "other";
	join.durable = true;
	core_join_ok(core, session, &join);
	core_close_all(core);
}

/* A durable job with a shard and an allocation, each of UNIT_BYTES; its session is open. */
static uint64_t make_durable(struct core_driver *core)
{
	struct core_join join = {.world_size = 1, .durable = true};
	struct zd_args alloc = {
	        .kind = ZD_REQ_ALLOC,
	        .u.alloc = {.job = (char *)"job", .name = (char *)"m", .bytes = 256, .durable = true}};
	const struct core_unit unit = {.name = "w", .numel = UNIT_BYTES / 4};
	uint64_t session = core_open(core, CORE_ALICE);
	uint64_t group = core_join_ok(core, session, &join);

	core_register_ok(core, session, group, &unit);
	core_expect(core, core_send(core, session, &alloc), 0);
	return session;
}

ENGINE_TEST(test_durable_jobs_expire)
{
	uint64_t session;

	set_limits(core, (struct zd_uid_limits){.durable_ttl_ns = TTL_NS});
	core_tick(core, TTL_NS);
	session = make_durable(core);
	/* As long as a session uses it, it stays. */
	core_tick(core, 5 * TTL_NS);
	assert_int_equal(count_jobs(core), 1);
	core_close(core, session);
	assert_int_equal(zd_engine_next_deadline(core_engine(core)), 6 * TTL_NS);
	core_tick(core, 6 * TTL_NS - 1);
	assert_int_equal(count_jobs(core), 1);
	/* A session that comes back is a use, and the time begins anew. */
	session = make_durable(core);
	core_tick(core, 7 * TTL_NS);
	assert_int_equal(count_jobs(core), 1);
	core_close(core, session);
	assert_int_equal(zd_engine_next_deadline(core_engine(core)), 8 * TTL_NS);
	core_tick(core, 8 * TTL_NS);
	assert_int_equal(count_jobs(core), 0);
	assert_int_equal(core_usage(core).shard_bytes + core_usage(core).allocation_bytes, 0);
	assert_int_equal(zd_engine_next_deadline(core_engine(core)), UINT64_MAX);
}

/* An allocation that a session holds keeps the job, also without a rank. */
ENGINE_TEST(test_held_allocation_is_a_use)
{
	struct zd_args alloc = {
	        .kind = ZD_REQ_ALLOC,
	        .u.alloc = {.job = (char *)"job", .name = (char *)"m", .bytes = 256, .durable = true}};
	uint64_t session;

	set_limits(core, (struct zd_uid_limits){.durable_ttl_ns = TTL_NS});
	core_close(core, make_durable(core));
	session = core_open(core, CORE_ALICE);
	core_expect(core, core_send(core, session, &alloc), 0);
	core_tick(core, 3 * TTL_NS);
	assert_int_equal(count_jobs(core), 1);
	core_close(core, session);
	core_tick(core, 4 * TTL_NS - 1);
	assert_int_equal(count_jobs(core), 1);
	core_tick(core, 4 * TTL_NS);
	assert_int_equal(count_jobs(core), 0);
}

/* A reload that sets the limit counts from when the session left, not from the reload. */
ENGINE_TEST(test_limit_set_later)
{
	core_close(core, make_durable(core));
	assert_int_equal(zd_engine_next_deadline(core_engine(core)), UINT64_MAX);
	core_tick(core, TTL_NS / 2);
	set_limits(core, (struct zd_uid_limits){.durable_ttl_ns = TTL_NS});
	assert_int_equal(zd_engine_next_deadline(core_engine(core)), TTL_NS);
	set_limits(core, (struct zd_uid_limits){0});
	core_tick(core, 2 * TTL_NS);
	assert_int_equal(count_jobs(core), 1);
	set_limits(core, (struct zd_uid_limits){.durable_ttl_ns = TTL_NS});
	assert_int_equal(count_jobs(core), 0);
}

/* A shard and an allocation have a segment each. */
ENGINE_TEST(test_segments_that_are_kept)
{
	struct core_join join = {.job = "other", .world_size = 1, .durable = true};
	const struct core_unit unit = {.name = "w", .numel = UNIT_BYTES / 4};
	uint64_t alice, bob, session, group;

	core_journal(core);
	set_limits(core, (struct zd_uid_limits){.max_kept = 2});
	zd_engine_set_kept_room(core_engine(core), 3);
	alice = make_durable(core);
	session = core_open(core, CORE_ALICE);
	group = core_join_ok(core, session, &join);
	core_expect_error(core, core_register(core, session, group, &unit), ZEROD_E_LIMIT,
	                  "uid 1000 has 2 segments of durable jobs and needs 1 more: "
	                  "max_durable_segments_per_uid is 2");
	bob = core_open(core, CORE_BOB);
	group = core_join_ok(core, bob, &join);
	core_register_ok(core, bob, group, &unit);
	join.job = "one more";
	group = core_join_ok(core, bob, &join);
	core_expect_error(core, core_register(core, bob, group, &unit), ZEROD_E_LIMIT,
	                  "the store of durable jobs has room for 3 segments, and keeps 3 already");
	/* Room is free behind the end of a job. */
	core_close(core, alice);
	core_tick(core, TTL_NS);
	set_limits(core, (struct zd_uid_limits){.max_kept = 2, .durable_ttl_ns = 1});
	core_tick(core, 2 * TTL_NS);
	core_register_ok(core, bob, group, &unit);
	core_close_all(core);
}
