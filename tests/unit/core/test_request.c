/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests as such: ids, limits and deadlines. One that is refused or ends early leaves nothing behind.
 */
#include "tests/unit/core/team_rig.h"

#define UNIT_BYTES 512u

#define RIG_TEST(name) CORE_RIG_TEST(name, struct rig, rig, rig_open(rig, 2, UNIT_BYTES, NULL), core_rig_end)

static struct zd_args future_gather(const struct rig *rig)
{
	return (struct zd_args){.kind = ZD_REQ_GATHER,
	                        .u.gather = {.unit = rig->unit, .tag = (char *)CORE_TAG, .version = 99}};
}

/* ---- Ids ----------------------------------------------------------------------------------------------- */

RIG_TEST(test_id_may_be_used_again_after_the_reply_only)
{
	const struct zd_call call = {rig->session, 1ull << 40, 0};
	struct zd_args gather = future_gather(rig);
	struct core_row row;
	core_send_as(rig->core, &call, &gather);
	assert_null(core_reply(rig->core, call.request));
	struct zd_args leave = {.kind = ZD_REQ_GROUP_LEAVE, .u.group_leave.group = rig->team.group};
	core_send_as(rig->core, &call, &leave);
	core_expect_error(rig->core, call.request, ZEROD_E_PROTOCOL, "a request with this id is outstanding");
	/* it did nothing, and the first one waits on */
	core_row(rig->core, ZD__TABLE__SESSIONS, rig->session, &row);
	assert_int_equal(row.row->session->outstanding, 1);
	assert_int_equal(core_reply(rig->core, call.request)->kind, ZD_REQ_GROUP_LEAVE);
	/* another session's ids are its own */
	core_expect(rig->core, core_gather(rig->core, rig->team.session[1], rig->unit), 0);
	core_do(rig->core, rig->session, ZD_REQ_ABORT_GROUP, rig->team.group);
	assert_int_equal(core_reply(rig->core, call.request)->status, ZEROD_E_ABORTED);
	core_send_as(rig->core, &call, &leave);
	core_expect(rig->core, call.request, 0);
}

/* ---- The limit of outstanding requests ----------------------------------------------------------------- */

static void fill_up(struct rig *rig)
{
	struct zd_args gather = future_gather(rig);
	for (uint32_t i = 0; i < ZD_MAX_OUTSTANDING; i++)
		(void)core_send(rig->core, rig->session, &gather);
}

RIG_TEST(test_outstanding_requests_are_limited)
{
	static const struct zd_fence fence = {1, 1};
	struct core_driver *core = rig->core;
	struct core_unit unit = {.name = "new", .numel = 64};
	struct core_row row;
	uint64_t other = core_team_unit(&rig->team, "v", UNIT_BYTES);
	struct zd_args publish = {.kind = ZD_REQ_PUBLISH,
	                          .u.publish = {.n_units = 1, .units = &rig->unit},
	                          .fences = {1, &fence}};
	core_expect(core, core_update(core, rig->session, rig->unit), 0);
	fill_up(rig);
	core_row(core, ZD__TABLE__SESSIONS, rig->session, &row);
	assert_int_equal(row.row->session->outstanding, ZD_MAX_OUTSTANDING);
	struct zd_args gather = future_gather(rig);
	core_expect_error(core, core_send(core, rig->session, &gather), ZEROD_E_LIMIT,
	                  "1024 requests are outstanding already");
	/* whatever would have to wait */
	core_expect(core, core_send(core, rig->session, &publish), ZEROD_E_LIMIT);
	core_expect(core, core_commit(core, rig->session, rig->team.group, 1), ZEROD_E_LIMIT);
	core_expect(core, core_alloc(core, rig->session, "job", 0, 256), ZEROD_E_LIMIT);
	core_expect(core, core_register(core, rig->session, rig->team.group, &unit), ZEROD_E_LIMIT);
	core_expect(core, core_join(core, rig->session, &(struct core_join){.group = "g", .world_size = 2}),
	            ZEROD_E_LIMIT);
	core_hold(core, ZD_CMD_COPY);
	core_expect(core, core_gather(core, rig->team.session[1], other), 0);
	core_expect(core, core_update(core, rig->session, other), ZEROD_E_LIMIT);
	core_unhold(core, ZD_CMD_COPY);
	/* and none has had an effect, also when what it had begun is over */
	core_pass(core, rig->session, 1, 1);
	core_row(core, ZD__TABLE__UNITS, rig->unit, &row);
	assert_int_equal(row.row->unit->version_max, 1);
	assert_int_equal(core_usage(core).allocation_bytes, 0);
	assert_int_equal(core_rows(core, ZD__TABLE__GROUPS, NULL, 0), 1);
	core_expect_waits(core, core_commit(core, rig->team.session[1], rig->team.group, 9),
	                  "rank 0 to commit");
	/* what need not wait is done */
	core_expect(core, core_update(core, rig->session, other), 0);
	core_expect(core, core_publish(core, rig->session, rig->unit), 0);
}

/* A release ends what others wait for; behind its own gather it waits, too. */
RIG_TEST(test_releases_have_room_of_their_own)
{
	struct core_driver *core = rig->core;
	struct zd_args gather = future_gather(rig);
	fill_up(rig);
	for (uint32_t i = 0; i < ZD_RELEASE_ROOM; i++)
		assert_null(core_reply(core, core_release(core, rig->session, rig->unit)));
	core_expect_error(core, core_release(core, rig->session, rig->unit), ZEROD_E_LIMIT,
	                  "2048 requests are outstanding already");
	core_expect(core, core_send(core, rig->session, &gather), ZEROD_E_LIMIT);
}

/* ---- Deadlines ----------------------------------------------------------------------------------------- */

RIG_TEST(test_deadlines_expire_in_time)
{
	struct zd_engine *engine = core_engine(rig->core);
	struct zd_args gather = future_gather(rig);
	assert_true(zd_engine_next_deadline(engine) == UINT64_MAX);
	core_tick(rig->core, 1000000);
	uint64_t late = core_send_until(rig->core, rig->session, 9000000, &gather);
	uint64_t soon = core_send_until(rig->core, rig->team.session[1], 4000000, &gather);
	uint64_t never = core_send(rig->core, rig->session, &gather);
	assert_int_equal(zd_engine_next_deadline(engine), 4000000);
	core_tick(rig->core, 3999999);
	assert_null(core_reply(rig->core, soon));
	core_tick(rig->core, 4000000);
	core_expect_error(rig->core, soon, ZEROD_E_DEADLINE,
	                  "gather: waited 3 ms for rank 0 to publish version 99 of unit 'w' (has 1)");
	assert_int_equal(zd_engine_next_deadline(engine), 9000000);
	core_tick(rig->core, 60000000);
	core_expect_error(rig->core, late, ZEROD_E_DEADLINE, "gather: waited 59 ms for rank 0");
	assert_true(zd_engine_next_deadline(engine) == UINT64_MAX);
	assert_null(core_reply(rig->core, never));
	/* one that has passed already ends the wait at the next tick, and what need not wait not at all */
	uint64_t past = core_send_until(rig->core, rig->session, 1, &gather);
	struct zd_args newest = future_gather(rig);
	newest.u.gather.version = 0;
	core_expect(rig->core, core_send_until(rig->core, rig->session, 1, &newest), 0);
	assert_null(core_reply(rig->core, past));
	core_tick(rig->core, 60000000);
	core_expect(rig->core, past, ZEROD_E_DEADLINE);
}

/* The shard of a part that is updated by nobody any more is read by the next gather. */
RIG_TEST(test_deadline_wakes_those_that_waited_for_it)
{
	struct core_driver *core = rig->core;
	struct zd_args update = {.kind = ZD_REQ_UPDATE_BEGIN,
	                         .u.update_begin = {.n_units = 1, .units = &rig->unit}};
	core_hold(core, ZD_CMD_COPY);
	core_expect(core, core_gather(core, rig->session, rig->unit), 0);
	core_expect(core, core_release(core, rig->session, rig->unit), 0);
	uint64_t waiting = core_send_until(core, rig->session, 5, &update);
	uint64_t gather = core_gather(core, rig->team.session[1], rig->unit);
	uint64_t behind = core_release(core, rig->team.session[1], rig->unit);
	core_expect_waits(core, behind, "its own gather of unit 'w' on rank 1");
	core_tick(core, 5);
	core_expect(core, waiting, ZEROD_E_DEADLINE);
	core_expect(core, gather, 0);
	core_expect(core, behind, 0);
	core_unhold(core, ZD_CMD_COPY);
}

/* Requests that wait are tried for several completions at once, in their order. */
RIG_TEST(test_a_client_gives_up)
{
	struct zd_args gather = future_gather(rig), cancel = {.kind = ZD_REQ_CANCEL};
	uint64_t first = core_send(rig->core, rig->session, &gather);
	uint64_t second = core_send(rig->core, rig->session, &gather);
	cancel.u.cancel.request = first;
	core_expect(rig->core, core_send(rig->core, rig->team.session[1], &cancel), 0); /* it is another's */
	core_expect_waits(rig->core, first, "version 99");
	core_expect(rig->core, core_send(rig->core, rig->session, &cancel), 0);
	core_expect_error(rig->core, first, ZEROD_E_DEADLINE, "gather: waited 0 ms for rank 0 to publish");
	core_expect_waits(rig->core, second, "version 99");
	core_expect(rig->core, core_send(rig->core, rig->session, &cancel), 0); /* once more */
}

RIG_TEST(test_completions_at_once)
{
	core_hold(rig->core, ZD_CMD_FILL);
	uint64_t first = core_alloc(rig->core, rig->session, "job", 0, 4096);
	uint64_t second = core_alloc(rig->core, rig->session, "job", 0, 4096);
	zd_engine_pause(core_engine(rig->core));
	core_run_one(rig->core, ZD_CMD_FILL);
	core_run_one(rig->core, ZD_CMD_FILL);
	assert_null(core_reply(rig->core, first));
	assert_null(core_reply(rig->core, second));
	zd_engine_resume(core_engine(rig->core));
	core_expect(rig->core, first, 0);
	core_expect(rig->core, second, 0);
	core_unhold(rig->core, ZD_CMD_FILL);
}
