/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions that linger: peers hear at once, memory comes back when the process has left its device.
 */
#include "base/mem.h"
#include "tests/support/core_driver.h"
#include "tests/support/core_reduce.h"

#define UNIT_BYTES 4096u
#define REASON     "process 1001 to leave device 0 (a child of it may keep it there)"

static const struct core_options lingering = {.sessions_linger = true};
static const struct core_options copying = {.sessions_linger = true, .copies = true};

static uint64_t release_with(struct core_driver *core, uint64_t session, uint64_t unit, struct zd_fence fence)
{
	return core_release_tag(core, session, unit, CORE_TAG, &fence, 1);
}

static void expect_no_session(struct core_driver *core, uint64_t id)
{
	struct core_row rows[CORE_ROW_ITEMS];
	uint32_t n = core_rows(core, ZD__TABLE__SESSIONS, rows, ZD_ARRAY_LEN(rows));
	for (uint32_t i = 0; i < n; i++)
		assert_int_not_equal(rows[i].id, id);
}

/* ---- What is kept, and what is not --------------------------------------------------------------------- */

TEST(test_peers_hear_at_once)
{
	struct core_driver *core = core_new(&lingering);
	struct core_team team = core_team_new(core, "job", 2, false);
	uint64_t unit = core_team_unit(&team, "w", UNIT_BYTES);
	core_expect(core, core_update(core, team.session[0], unit), 0);
	uint64_t waiting = core_gather_version(core, team.session[1], unit, 2);
	core_close(core, team.session[0]);
	core_expect(core, waiting, ZEROD_E_PEER_LOST);
	core_end(core);
}

/* A shard, a gathered buffer, one that was released before its stream had passed, an allocation, a bucket and
 * a target. */
TEST(test_all_that_a_process_can_touch_is_kept)
{
	struct core_driver *core = core_new(&copying);
	struct core_row row;
	struct core_reducers g = core_reducers_new(core, 1, ZEROD_FLOAT32, UNIT_BYTES, 1);
	uint64_t session = g.team.session[0];
	uint64_t unit = core_reducers_unit(&g, "w", UNIT_BYTES / 4);
	uint64_t released = core_team_unit(&g.team, "released", UNIT_BYTES);
	core_team_publish(&g.team, unit);
	core_expect(core, core_gather(core, session, unit), 0);
	core_expect(core, core_gather(core, session, released), 0);
	core_expect(core, release_with(core, session, released, (struct zd_fence){1, 1}), 0);
	core_expect(core, core_alloc(core, session, "job", 0, UNIT_BYTES), 0);
	core_reducers_begin(&g, 2, true);
	core_put(&g, 0, unit, 1);
	Zd__Usage before = core_usage(core);
	uint64_t quarantine = core_quarantine(core, 0);
	assert_int_equal(quarantine, UNIT_BYTES);
	uint64_t held = before.shard_bytes + before.gathered_bytes + before.bucket_bytes +
	                before.target_bytes + before.allocation_bytes;
	assert_true(before.bucket_bytes > 0 && before.target_bytes > 0 && before.allocation_bytes > 0);
	core_close(core, session);
	Zd__Usage after = core_usage(core); /* nobody is charged any more */
	assert_int_equal(after.shard_bytes + after.gathered_bytes + after.bucket_bytes + after.target_bytes +
	                         after.allocation_bytes,
	                 0);
	assert_int_equal(core_quarantine(core, 0), quarantine + held);
	/* The lists tell why. */
	core_row(core, ZD__TABLE__SESSIONS, session, &row);
	assert_string_equal(row.state, "CLOSING");
	assert_string_equal(row.job, "job");
	assert_int_equal(row.row->session->n_waits, 1);
	assert_string_equal(row.row->session->waits[0], REASON);
	core_gone(core, session);
	assert_int_equal(core_quarantine(core, 0), 0);
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, NULL, 0), 0);
	expect_no_session(core, session);
	core_end(core);
}

TEST(test_buffers_say_what_they_wait_for)
{
	struct core_driver *core = core_new(&lingering);
	struct core_row row;
	struct core_team team = core_team_new(core, "job", 1, false);
	core_expect(core, core_gather(core, team.session[0], core_team_unit(&team, "w", UNIT_BYTES)), 0);
	core_close(core, team.session[0]);
	assert_int_equal(core_rows(core, ZD__TABLE__BUFFERS, &row, 1), 1);
	assert_string_equal(row.state, "QUARANTINED");
	assert_string_equal(row.row->buffer->waits_for, "process 1001 to leave device 0");
	core_end(core);
}

TEST(test_memory_is_not_given_to_others_before)
{
	struct core_driver *core =
	        core_new(&(struct core_options){.sessions_linger = true, .arena_bytes = 128 * CORE_KIB});
	uint64_t first = core_open(core, CORE_ALICE), second = core_open(core, CORE_ALICE);
	core_expect(core, core_alloc(core, first, "job", 0, 100 * CORE_KIB), 0);
	core_close(core, first);
	uint64_t request = core_alloc(core, second, "job", 0, 100 * CORE_KIB);
	core_expect_waits(core, request, "102400 bytes of device 0's arena");
	core_gone(core, first);
	core_expect(core, request, 0);
	core_end(core);
}

/* ---- Beside others ------------------------------------------------------------------------------------- */

/* The old process may write the shard until it is gone: nobody else does before. */
TEST(test_durable_shard_has_one_writer)
{
	struct core_driver *core = core_new(&lingering);
	const struct core_join join = {.world_size = 1, .durable = true};
	const struct core_unit again = {.name = "w", .numel = UNIT_BYTES / 4};
	struct core_team team = core_team_new(core, "job", 1, true);
	uint64_t unit = core_team_unit(&team, "w", UNIT_BYTES), old = team.session[0];
	core_expect(core, core_update(core, old, unit), 0);
	core_close(core, old);
	assert_int_equal(core_usage(core).shard_bytes, UNIT_BYTES);
	team.session[0] = core_open(core, CORE_ALICE);
	core_join_ok(core, team.session[0], &join);
	core_register_ok(core, team.session[0], team.group, &again);
	uint64_t update = core_update(core, team.session[0], unit);
	core_expect_waits(core, update, "1 transfer that reads the shard of rank 0 of unit 'w'");
	core_gone(core, old);
	core_expect(core, update, 0);
	core_close(core, team.session[0]);
	core_end(core);
}

TEST(test_lingering_session_is_nobodys)
{
	struct core_driver *core = core_new(&lingering);
	struct core_team team = core_team_new(core, "job", 1, false);
	core_team_unit(&team, "w", UNIT_BYTES);
	uint64_t admin = core_open_admin(core);
	core_close(core, team.session[0]);
	core_expect(core, core_simple(core, admin, ZD_REQ_KILL_SESSION, team.session[0]), ZEROD_E_NOT_FOUND);
	zd_engine_session_close(core_engine(core), team.session[0]); /* again: ignored */
	struct zd_engine_totals totals;
	zd_engine_totals(core_engine(core), &totals);
	assert_int_equal(totals.sessions, 1);
	core_end(core);
}
