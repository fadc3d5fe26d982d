/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends of sessions and durable jobs in steps: each frees a bounded number of objects, peers hear at the
 * first, and requests of the uid find none of it left.
 */
#include <stdio.h>

#include "core/gather/commit.h"
#include "core/memory/allocation.h"
#include "tests/support/core_driver.h"

#define STEP   16u
#define NUNITS 50u

static const struct core_options lingering = {.end_step_objects = STEP, .sessions_linger = true};

#define STEPS_TEST(name) ENGINE_TEST(name, .end_step_objects = STEP)

static uint64_t join(struct core_driver *core, uint64_t session, const char *group, bool durable)
{
	struct core_join args = {.group = group, .world_size = 1, .durable = durable};
	return core_join_ok(core, session, &args);
}

static void register_units(struct core_driver *core, uint64_t session, uint64_t group, uint32_t nunits)
{
	for (uint32_t i = 0; i < nunits; i++) {
		char name[16];
		(void)snprintf(name, sizeof(name), "u%u", i);
		struct core_unit unit = {.name = name, .numel = 16};
		core_register_ok(core, session, group, &unit);
	}
}

/* Units whose shard is kept, those held for a process or the others. */
static uint32_t count_detached(struct core_driver *core, bool held)
{
	const struct zd_group *group;
	const struct zd_unit *unit;
	uint32_t count = 0;
	for (group = core_engine(core)->groups; group; group = group->hh.next) {
		TAILQ_FOREACH (unit, &group->units, group_link)
			count += unit->parts[0].state == ZD_PART_DETACHED &&
			         held == (unit->parts[0].readers > 0);
	}
	return count;
}

/* Units, scopes' leases or allocations: what ends one by one. */
static uint32_t count_objects(struct core_driver *core)
{
	const struct zd_engine *e = core_engine(core);
	const struct zd_session *session;
	uint32_t count = e->units.nnodes + HASH_COUNT(e->allocations);
	for (session = e->sessions; session; session = session->hh.next) {
		const struct zd_member *member;
		TAILQ_FOREACH (member, &session->members, session_link)
			count++;
	}
	return count;
}

static uint32_t count_endings(struct core_driver *core)
{
	return core_engine(core)->nendings;
}

/* Makes all steps, and expects that each frees at most STEP objects. Returns how many they were. */
static uint32_t make_steps(struct core_driver *core, uint32_t uid)
{
	uint32_t nsteps = 0, before;
	bool more;
	do {
		before = count_objects(core);
		more = core_end_step(core, uid);
		zd_engine_check(core_engine(core));
		assert_true(before - count_objects(core) <= STEP);
		nsteps++;
	} while (more);
	return nsteps;
}

STEPS_TEST(test_a_step_frees_a_bounded_number)
{
	uint64_t session = core_open(core, CORE_ALICE), group = join(core, session, "world", false);
	register_units(core, session, group, NUNITS);
	for (uint32_t i = 0; i < NUNITS; i++)
		core_expect(core, core_alloc(core, session, "job", 0, 256), 0);
	assert_int_equal(count_objects(core), 2 * NUNITS + 1);
	core_close(core, session);
	assert_int_equal(count_objects(core), 2 * NUNITS + 1 - STEP);
	assert_int_equal(make_steps(core, CORE_ALICE), 2 * NUNITS / STEP);
	assert_int_equal(count_objects(core), 0);
	assert_false(core_end_step(core, CORE_ALICE));
}

STEPS_TEST(test_a_small_end_is_one_event)
{
	uint64_t session = core_open(core, CORE_ALICE), group = join(core, session, "world", false);
	register_units(core, session, group, STEP - 1);
	core_close(core, session);
	assert_int_equal(count_objects(core), 0);
	assert_int_equal(count_endings(core), 0);
}

/* Leases end one by one, with the buffers and in scopes. */
STEPS_TEST(test_leases_count)
{
	char name[16];
	struct core_team team = core_team_new(core, "job", 1, false);
	uint64_t scope = core_expect(core, core_forward_begin(core, team.session[0], team.group, 0, NULL, 0),
	                             0)
	                         ->u.scope.scope;
	for (uint32_t i = 0; i < NUNITS; i++) {
		(void)snprintf(name, sizeof(name), "u%u", i);
		uint64_t unit = core_team_unit(&team, name, 1024);
		core_expect(core, core_gather_tag(core, team.session[0], unit, "a", 1), 0);
		core_expect(core, core_gather_tag(core, team.session[0], unit, "b", 1), 0);
		core_expect(core, core_gather_in(core, team.session[0], unit, scope), 0);
	}
	core_close(core, team.session[0]);
	assert_int_equal(count_objects(core), NUNITS + 1);
	/* The last lease of a buffer ends with its part. */
	assert_int_equal(make_steps(core, CORE_ALICE), 3 * NUNITS / STEP);
}

STEPS_TEST(test_peers_hear_at_the_first_step)
{
	uint64_t unit = 0;
	char name[16];
	struct core_team team = core_team_new(core, "job", 2, false);
	for (uint32_t i = 0; i < NUNITS; i++) {
		(void)snprintf(name, sizeof(name), "u%u", i);
		unit = core_team_unit(&team, name, 1024);
	}
	core_expect(core, core_update(core, team.session[0], unit), 0);
	uint64_t waiting = core_gather_version(core, team.session[1], unit, 2);
	core_close(core, team.session[0]);
	assert_int_equal(count_endings(core), 1);
	core_expect_error(core, waiting, ZEROD_E_PEER_LOST, "rank 0");
	(void)make_steps(core, CORE_ALICE);
}

STEPS_TEST(test_a_hello_of_the_uid_and_an_administrator_complete_the_end)
{
	uint64_t admin = core_open_admin(core), session;
	for (uint32_t round = 0; round < 2; round++) {
		session = core_open(core, CORE_ALICE);
		register_units(core, session, join(core, session, "world", false), NUNITS);
		core_close(core, session);
		assert_int_equal(count_endings(core), 1);
		if (round == 0)
			core_close(core, core_open(core, CORE_ALICE));
		else
			core_expect(core, core_simple(core, admin, ZD_REQ_KILL_JOB, 1), ZEROD_E_NOT_FOUND);
		assert_int_equal(count_endings(core), 0);
	}
}

static uint64_t leave(struct core_driver *core, uint64_t session, uint64_t group)
{
	return core_simple(core, session, ZD_REQ_GROUP_LEAVE, group);
}

STEPS_TEST(test_a_rank_leaves_in_steps)
{
	uint64_t session = core_open(core, CORE_ALICE), group = join(core, session, "world", false);
	register_units(core, session, group, NUNITS);
	core_expect(core, leave(core, session, group), 0);
	assert_int_equal(count_objects(core), NUNITS + 1 - STEP);
	(void)core_end_step(core, CORE_ALICE);
	assert_int_equal(count_objects(core), NUNITS + 1 - 2 * STEP);
	core_expect(core, leave(core, session, group), ZEROD_E_NOT_FOUND);
	assert_int_equal(count_objects(core), 0);
}

/* The fills of shards end between two steps: the registrations have failed, so that nothing is kept. */
STEPS_TEST(test_a_rank_leaves_while_it_registers)
{
	uint64_t session = core_open(core, CORE_ALICE), group = join(core, session, "world", true);
	uint64_t registration = 0;
	core_hold(core, ZD_CMD_FILL);
	for (uint32_t i = 0; i < NUNITS; i++) {
		char name[16];
		(void)snprintf(name, sizeof(name), "u%u", i);
		registration = core_register(core, session, group,
		                             &(struct core_unit){.name = name, .numel = 16});
	}
	core_expect(core, leave(core, session, group), 0);
	core_expect(core, registration, ZEROD_E_STATE);
	core_unhold(core, ZD_CMD_FILL);
	assert_int_equal(count_endings(core), 1);
	(void)make_steps(core, CORE_ALICE);
	assert_int_equal(core_engine(core)->units.nnodes, 0);
}

/* The session's end goes on where the rank was. */
STEPS_TEST(test_a_session_ends_while_a_rank_leaves)
{
	uint64_t session = core_open(core, CORE_ALICE), group = join(core, session, "world", false);
	register_units(core, session, join(core, session, "other", false), NUNITS);
	register_units(core, session, group, NUNITS);
	core_expect(core, leave(core, session, group), 0);
	core_close(core, session);
	assert_int_equal(count_endings(core), 1);
	(void)make_steps(core, CORE_ALICE);
	assert_int_equal(count_objects(core), 0);
}

/* The session is CLOSING when its objects are gone, and the holds end in steps when its process has left. */
TEST(test_holds_end_in_steps)
{
	struct core_driver *core = core_new(&lingering);
	uint64_t session = core_open(core, CORE_ALICE), group = join(core, session, "world", false);
	register_units(core, session, group, NUNITS);
	core_close(core, session);
	while (core_end_step(core, CORE_ALICE))
		continue;
	assert_false(zd_engine_session_ends(core_engine(core), session));
	assert_int_equal(count_objects(core), NUNITS);
	core_gone(core, session);
	assert_int_equal(count_objects(core), NUNITS - STEP);
	(void)make_steps(core, CORE_ALICE);
	assert_int_equal(count_objects(core), 0);
	core_end(core);
}

/* The daemon is killed between two steps: all that the process may write is still held. */
TEST(test_a_restart_between_two_steps)
{
	struct core_driver *core = core_new(&lingering);
	uint64_t session = core_open(core, CORE_ALICE), first, second;
	core_journal(core);
	first = join(core, session, "first", true);
	second = join(core, session, "second", true);
	register_units(core, session, first, STEP / 2);
	register_units(core, session, second, NUNITS);
	core_close(core, session);
	assert_int_equal(count_endings(core), 1);
	core_restart(core);
	assert_int_equal(count_detached(core, true), STEP / 2 + NUNITS);
	assert_int_equal(count_detached(core, false), 0);
	core_end(core);
}

/* ---- Durable jobs -------------------------------------------------------------------------------------- */

/* A durable group whose units were published and committed, and published again. */
static uint64_t publish_after_commit(struct core_driver *core, uint64_t session, uint64_t unit[NUNITS])
{
	struct core_join args = {.world_size = 1, .durable = true, .shadow = true};
	uint64_t group = core_join_ok(core, session, &args);
	register_units(core, session, group, NUNITS);
	struct core_row rows[NUNITS];
	assert_int_equal(core_rows(core, ZD__TABLE__UNITS, rows, NUNITS), NUNITS);
	for (uint32_t round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < NUNITS; i++) {
			unit[i] = rows[i].id;
			core_expect(core, core_update(core, session, unit[i]), 0);
			core_expect(core, core_publish(core, session, unit[i]), 0);
		}
		if (round == 0)
			core_expect(core, core_commit(core, session, group, 1), 0);
	}
	return group;
}

static uint32_t count_uncommitted(struct core_driver *core)
{
	const struct zd_group *group = core_engine(core)->groups;
	const struct zd_unit *unit;
	uint32_t count = 0;
	TAILQ_FOREACH (unit, &group->units, group_link)
		count += unit->parts[0].version != zd_part_committed(&unit->parts[0]);
	return count;
}

STEPS_TEST(test_a_loss_undoes_updates_in_steps)
{
	uint64_t session = core_open(core, CORE_ALICE), unit[NUNITS];
	core_journal(core);
	(void)publish_after_commit(core, session, unit);
	assert_int_equal(count_uncommitted(core), NUNITS);
	core_close(core, session);
	assert_int_equal(count_uncommitted(core), NUNITS - STEP);
	(void)make_steps(core, CORE_ALICE);
	assert_int_equal(count_uncommitted(core), 0);
	assert_int_equal(count_detached(core, false), NUNITS);
}

/* The fences of a peer's publish pass between two steps of the loss, before the steps come to its unit. */
STEPS_TEST(test_a_publish_between_two_steps_of_a_loss_is_undone)
{
	static const struct zd_fence slow = {7, 1};
	struct core_join args = {.world_size = 2, .durable = true, .shadow = true};
	uint64_t session[2], join_of[2], group = 0, unit[NUNITS], waiting = 0;
	for (uint32_t rank = 0; rank < 2; rank++) {
		session[rank] = core_open(core, CORE_ALICE);
		args.rank = rank;
		join_of[rank] = core_join(core, session[rank], &args);
	}
	for (uint32_t rank = 0; rank < 2; rank++) {
		group = core_expect(core, join_of[rank], 0)->u.group_join.group;
		register_units(core, session[rank], group, NUNITS);
	}
	struct core_row rows[NUNITS];
	assert_int_equal(core_rows(core, ZD__TABLE__UNITS, rows, NUNITS), NUNITS);
	for (uint32_t i = 0; i < NUNITS; i++) {
		struct zd_args publish = {.kind = ZD_REQ_PUBLISH,
		                          .u.publish = {.n_units = 1, .units = &unit[i]},
		                          .fences = {1, &slow}};
		unit[i] = rows[i].id;
		core_expect(core, core_update(core, session[1], unit[i]), 0);
		if (i == 0)
			waiting = core_send(core, session[1], &publish);
		else
			core_expect(core, core_publish(core, session[1], unit[i]), 0);
	}
	core_close(core, session[0]);
	assert_int_equal(count_endings(core), 1);
	core_pass(core, session[1], slow.timeline, slow.value);
	assert_int_equal(count_endings(core), 1);
	core_expect_error(core, waiting, ZEROD_E_PEER_LOST, "is restored to step 0");
	(void)make_steps(core, CORE_ALICE);
}

STEPS_TEST(test_a_durable_job_ends_in_steps)
{
	uint64_t session = core_open(core, CORE_ALICE), admin = core_open_admin(core);
	register_units(core, session, join(core, session, "first", true), NUNITS);
	register_units(core, session, join(core, session, "second", true), NUNITS);
	core_close(core, session);
	(void)make_steps(core, CORE_ALICE);
	assert_int_equal(count_objects(core), 2 * NUNITS);
	core_do(core, admin, ZD_REQ_END_JOB, core_engine(core)->jobs->id);
	assert_int_equal(count_objects(core), 2 * NUNITS - STEP);
	(void)make_steps(core, CORE_ALICE);
	assert_int_equal(count_objects(core), 0);
	assert_null(core_engine(core)->jobs);
}

/* The job's memory goes when its sessions have ended, and a request of its user finds nothing of it. */
STEPS_TEST(test_a_killed_job_ends_after_its_sessions)
{
	uint64_t admin = core_open_admin(core);
	for (uint32_t round = 0; round < 2; round++) {
		uint64_t session = core_open(core, CORE_ALICE);
		register_units(core, session, join(core, session, "world", true), NUNITS);
		core_do(core, admin, ZD_REQ_KILL_JOB, core_engine(core)->jobs->id);
		assert_int_equal(count_endings(core), 2);
		assert_int_equal(count_objects(core), NUNITS + 1);
		if (round == 0)
			(void)make_steps(core, CORE_ALICE);
		else
			core_close(core, core_open(core, CORE_ALICE));
		assert_null(core_engine(core)->jobs);
		assert_int_equal(count_objects(core), 0);
	}
}

/* The reply was sent: a daemon that is killed then does not restore the job. */
STEPS_TEST(test_a_restart_between_two_steps_of_a_job)
{
	uint64_t session = core_open(core, CORE_ALICE);
	core_journal(core);
	register_units(core, session, join(core, session, "world", true), NUNITS);
	core_do(core, core_open_admin(core), ZD_REQ_KILL_JOB, core_engine(core)->jobs->id);
	assert_int_equal(count_endings(core), 2);
	core_restart(core);
	assert_null(core_engine(core)->jobs);
}

static void restart_and_expect_one_hold(struct core_driver *core)
{
	const struct zd_unit *unit;
	core_restart(core);
	TAILQ_FOREACH (unit, &core_engine(core)->groups->units, group_link)
		assert_int_equal(unit->parts[0].readers, 1);
	core_end(core);
}

/* A journal that is begun anew in steps may have the records of a session's end, made by an event between two
 * steps: the last step replaces them. */
TEST(test_holds_are_restored_once)
{
	struct core_driver *core = core_new(&lingering);
	uint64_t session = core_open(core, CORE_ALICE);
	core_journal(core);
	register_units(core, session, join(core, session, "world", true), NUNITS);
	zd_engine_journal_begin(core_engine(core));
	assert_false(zd_engine_journal_step(core_engine(core), NUNITS / 2));
	core_close(core, session);
	(void)make_steps(core, CORE_ALICE);
	assert_true(zd_engine_journal_step(core_engine(core), UINT32_MAX));
	(void)core_open_admin(core); /* the records are stored */
	restart_and_expect_one_hold(core);
}

STEPS_TEST(test_a_rank_of_many_groups_is_reported_for_some)
{
	uint64_t session = core_open(core, CORE_ALICE);
	char name[16];
	uint32_t nlost = 0;
	for (uint32_t i = 0; i < 20; i++) {
		(void)snprintf(name, sizeof(name), "g%u", i);
		(void)join(core, session, name, false);
	}
	core_close(core, session);
	for (uint32_t i = 0; core_notice(core, i)[0]; i++)
		nlost += strstr(core_notice(core, i), " lost") != NULL;
	assert_int_equal(nlost, 16);
}
