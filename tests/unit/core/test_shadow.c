/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shadow groups: whatever ends a rank, wherever it is in an update, leads back to the last commit on all
 * ranks.
 */
#include <stdio.h>
#include "base/mem.h"
#include "tests/unit/core/update_points.h"

#define SHADOW_TEST(name) CORE_RIG_TEST(name, struct durable, s, start(s, true), core_rig_end)

static uint64_t publish(struct durable *s, uint32_t unit, uint32_t rank)
{
	return core_publish(s->core, s->team.session[rank], s->unit[unit]);
}

static uint64_t gather(struct durable *s, uint32_t unit, uint32_t rank)
{
	return core_gather(s->core, s->team.session[rank], s->unit[unit]);
}

static uint64_t reset(struct durable *s, uint32_t rank)
{
	return core_simple(s->core, s->team.session[rank], ZD_REQ_SESSION_RESET, 0);
}

static void close_rank(struct durable *s, uint32_t rank)
{
	if (core_is_open(s->core, s->team.session[rank]))
		core_close(s->core, s->team.session[rank]);
}

/* Ranks that went come back, the others are told; all of them register again. */
static void recover(struct durable *s, uint64_t step)
{
	uint64_t join[2] = {0, 0};
	for (uint32_t rank = 0; rank < 2; rank++) {
		if (core_is_open(s->core, s->team.session[rank]))
			core_expect(s->core, reset(s, rank), 0);
		else
			join[rank] = send_join(s, rank);
	}
	for (uint32_t rank = 0; rank < 2; rank++) {
		if (!join[rank])
			continue;
		const struct zd_reply *reply = core_expect(s->core, join[rank], 0);
		assert_int_equal(reply->u.group_join.committed_step, step);
		assert_false(reply->u.group_join.torn);
	}
	for (uint32_t unit = 0; unit < NUNITS; unit++) {
		for (uint32_t rank = 0; rank < 2; rank++) {
			const struct zd_reply *reply = core_expect(s->core, send_register(s, unit, rank), 0);
			expect_location(reply->place, s->shard[unit][rank]);
		}
	}
}

/* ---- Death at every point ------------------------------------------------------------------------------ */

/* The ranks that die: rank 0, rank 1, or both, in both orders. */
TEST(test_death_at_every_point)
{
	static const struct {
		uint32_t n, rank[2];
	} deaths[] = {{1, {0}}, {1, {1}}, {2, {0, 1}}, {2, {1, 0}}};
	for (enum point point = BEFORE; point < DUE; point++) {
		for (uint32_t i = 0; i < ZD_ARRAY_LEN(deaths); i++) {
			struct durable s;
			uint64_t version = version_at(point);
			start(&s, true);
			go_to(&s, point);
			for (uint32_t n = 0; n < deaths[i].n; n++)
				close_rank(&s, deaths[i].rank[n]);
			expect_group(&s, deaths[i].n == 2 ? "PARKED" : "FAILED", version, false);
			if (core_is_open(s.core, s.team.session[0]))
				core_pass(s.core, s.team.session[0], slow.timeline, slow.value);
			core_unhold(s.core, ZD_CMD_COPY);
			recover(&s, version);
			expect_commit(&s, version);
			core_end(s.core);
		}
	}
}

/* Death before the first commit: what was there at the registration. */
SHADOW_TEST(test_nothing_committed_yet)
{
	struct core_unit options = {.name = "new", .numel = UNIT_BYTES / 4};
	struct zd_location shard[2];
	uint64_t unit = 0;
	for (uint32_t rank = 0; rank < 2; rank++) {
		uint64_t request = core_register(s->core, s->team.session[rank], s->team.group, &options);
		const struct zd_reply *reply = core_expect(s->core, request, 0);
		unit = reply->u.unit_register.unit;
		shard[rank] = reply->place;
	}
	core_team_publish(&s->team, unit);
	close_rank(s, 0);
	recover(s, 1);
	for (uint32_t rank = 0; rank < 2; rank++) {
		uint64_t request = core_register(s->core, s->team.session[rank], s->team.group, &options);
		assert_int_equal(core_expect(s->core, request, 0)->u.unit_register.version, 0);
		for (uint32_t i = 0; i < SHARD_BYTES; i++)
			assert_int_equal(core_bytes(s->core, shard[rank])[i], 0);
	}
}

SHADOW_TEST(test_aborted_group_is_set_back)
{
	both_publish(s, 0);
	core_expect(s->core, update(s, 1, 1), 0);
	core_do(s->core, s->team.session[0], ZD_REQ_ABORT_GROUP, s->team.group);
	close_rank(s, 0);
	core_expect(s->core, publish(s, 1, 1), ZEROD_E_ABORTED);
	close_rank(s, 1);
	recover(s, 1);
	expect_commit(s, 1);
}

/* ---- Ranks that stay ----------------------------------------------------------------------------------- */

/* Somebody takes rank 0's place before rank 1 notices: it is told all the same. */
SHADOW_TEST(test_survivor_does_not_go_on_unaware)
{
	static const char text[] =
	        "rank 0 (pid 1001) of group 'world' was lost: rank 1 is restored to step 1";
	both_publish(s, 0);
	core_expect(s->core, update(s, 1, 1), 0);
	write_undone(s, 1, 1);
	close_rank(s, 0);
	core_expect_error(s->core, gather(s, 0, 1), ZEROD_E_PEER_LOST, "rank 0 (pid 1001)");
	core_expect(s->core, send_join(s, 0), 0);
	for (uint32_t unit = 0; unit < NUNITS; unit++)
		core_expect(s->core, send_register(s, unit, 0), 0);
	expect_group(s, "READY", 1, false);
	core_expect_error(s->core, gather(s, 0, 1), ZEROD_E_PEER_LOST, text);
	core_expect_error(s->core, update(s, 0, 1), ZEROD_E_PEER_LOST, text);
	core_expect_error(s->core, core_commit(s->core, s->team.session[1], s->team.group, 2),
	                  ZEROD_E_PEER_LOST, text);
	/* The shard that rank 1 writes is set back when its publish says that it has stopped, and others wait
	 * for that. */
	uint64_t waiting = gather(s, 1, 0);
	core_expect_waits(s->core, waiting, "rank 1's shard of unit 'b' to be restored to the last commit");
	core_expect_error(s->core, publish(s, 1, 1), ZEROD_E_PEER_LOST,
	                  "was lost during the update: unit 'b' is restored to step 1");
	core_team_check(&s->team, core_expect(s->core, waiting, 0), 1);
	core_expect_error(s->core, gather(s, 0, 1), ZEROD_E_PEER_LOST, text);
	core_expect(s->core, core_release(s->core, s->team.session[0], s->unit[1]), 0);
	recover(s, 1);
	expect_commit(s, 1);
}

/* A reset ends the update as well, and returns when the shards are back; so does a registration. */
SHADOW_TEST(test_reset_waits_for_the_shards)
{
	publish_undone(s, 0, 0);
	core_expect(s->core, update(s, 0, 1), 0);
	write_undone(s, 0, 1);
	core_hold(s->core, ZD_CMD_COPY);
	close_rank(s, 0);
	assert_int_equal(core_pending(s->core, ZD_CMD_COPY), 1); /* rank 1 may be writing */
	uint64_t back = reset(s, 1);
	core_expect_waits(s->core, back, "rank 1's shard of unit 'a' to be restored to the last commit");
	core_expect(s->core, send_join(s, 0), 0);
	uint64_t registered = send_register(s, 0, 0);
	core_expect_waits(s->core, registered, "rank 0's shard of unit 'a' to be restored");
	uint64_t begun = update(s, 0, 1);
	core_expect_waits(s->core, begun, "rank 1's shard of unit 'a' to be restored");
	core_run_on(s->core, ZD_CMD_COPY, 1);
	core_expect(s->core, back, 0);
	core_expect(s->core, begun, 0); /* the shadow is whole still: nothing is copied */
	core_run_on(s->core, ZD_CMD_COPY, 0);
	assert_int_equal(core_expect(s->core, registered, 0)->u.unit_register.version, 1);
	core_unhold(s->core, ZD_CMD_COPY);
	expect_shard(s, 0, 1, core_pattern(1, 1));
	core_expect(s->core, publish(s, 0, 1), 0);
}

/* Nothing was undone: nobody is told, and nothing is copied. */
SHADOW_TEST(test_survivor_of_a_whole_step_goes_on)
{
	core_expect(s->core, gather(s, 0, 1), 0);
	uint32_t copies = core_count(s->core, ZD_CMD_COPY);
	close_rank(s, 0);
	core_expect(s->core, send_join(s, 0), 0);
	core_expect_told(s->core, s->team.session[1], s->team.group, "rank 0");
	for (uint32_t unit = 0; unit < NUNITS; unit++)
		core_expect(s->core, send_register(s, unit, 0), 0);
	core_team_check(&s->team, core_expect(s->core, gather(s, 0, 1), 0), 1); /* joins */
	assert_int_equal(core_count(s->core, ZD_CMD_COPY), copies);
}

/* ---- Gathered copies ----------------------------------------------------------------------------------- */

/* One of an undone version is not joined, even when the next one has the same number. */
SHADOW_TEST(test_copies_of_undone_versions_are_stale)
{
	core_expect(s->core, core_set_persistent(s->core, s->team.session[1], s->unit[0], true), 0);
	both_publish(s, 0);
	assert_int_equal(core_expect(s->core, gather(s, 0, 1), 0)->u.gather.version, 2);
	close_rank(s, 0);
	recover(s, 1);
	uint64_t again = gather(s, 0, 1);
	core_expect_waits(s->core, again, "leases on version 2 of unit 'a'");
	core_expect(s->core, core_release(s->core, s->team.session[1], s->unit[0]), 0);
	core_team_check(&s->team, core_expect(s->core, again, 0), 1);
	core_expect(s->core, core_release(s->core, s->team.session[1], s->unit[0]), 0);
	core_team_publish(&s->team, s->unit[0]);
	core_team_check(&s->team, core_expect(s->core, gather(s, 0, 1), 0), 2);
}

/* ---- What is copied, and when -------------------------------------------------------------------------- */

SHADOW_TEST(test_one_copy_a_step)
{
	uint32_t copies = core_count(s->core, ZD_CMD_COPY);
	for (int i = 0; i < 3; i++)
		publish_undone(s, 0, 0);
	assert_int_equal(core_count(s->core, ZD_CMD_COPY), copies + 1);
	for (int i = 0; i < 3; i++)
		publish_undone(s, 0, 1);
	commit(s, 2);
	assert_int_equal(core_count(s->core, ZD_CMD_COPY), copies + 2); /* a commit copies nothing */
	publish_undone(s, 0, 0);
	assert_int_equal(core_count(s->core, ZD_CMD_COPY), copies + 3);
}

/* ---- Devices that fail --------------------------------------------------------------------------------- */

SHADOW_TEST(test_copy_that_fails_grants_nothing)
{
	struct zd_args both = {.kind = ZD_REQ_UPDATE_BEGIN,
	                       .u.update_begin = {.n_units = 2, .units = s->unit}};
	core_fail_next(s->core, ZD_CMD_COPY, ZEROD_E_DEVICE, "uncorrectable error");
	core_expect_error(s->core, core_send(s->core, s->team.session[0], &both), ZEROD_E_DEVICE,
	                  "uncorrectable error");
	core_expect(s->core, publish(s, 0, 0), ZEROD_E_STATE);
	core_team_check(&s->team, core_expect(s->core, gather(s, 0, 1), 0), 1);
	core_expect(s->core, core_send(s->core, s->team.session[0], &both), 0);
	close_rank(s, 0);
	recover(s, 1);
	core_expect(s->core, core_release(s->core, s->team.session[1], s->unit[0]), 0);
	expect_commit(s, 1);
}

/* ---- Memory and words ---------------------------------------------------------------------------------- */

SHADOW_TEST(test_shadows_are_charged)
{
	struct core_row row;
	assert_int_equal(core_usage(s->core).shard_bytes, 2 * NUNITS * UNIT_BYTES);
	core_do(s->core, s->team.session[0], ZD_REQ_UNIT_UNREGISTER, s->unit[1]);
	assert_int_equal(core_usage(s->core).shard_bytes, 2 * NUNITS * UNIT_BYTES - UNIT_BYTES);
	publish_undone(s, 0, 0);
	core_hold(s->core, ZD_CMD_COPY);
	close_rank(s, 0);
	close_rank(s, 1);
	assert_int_equal(core_pending(s->core, ZD_CMD_COPY), 1);
	/* The job ends while a shard is set back. */
	assert_int_equal(core_rows(s->core, ZD__TABLE__JOBS, &row, 1), 1);
	core_do(s->core, core_open_admin(s->core), ZD_REQ_END_JOB, row.id);
	assert_int_equal(core_usage(s->core).shard_bytes, 0);
	assert_int_equal(core_quarantine(s->core, 0), 2 * SHARD_BYTES);
	core_unhold(s->core, ZD_CMD_COPY);
	assert_int_equal(core_quarantine(s->core, 0), 0);
}

ENGINE_TEST(test_no_room_for_the_shadow)
{
	struct core_join join = {.world_size = 1, .durable = true, .shadow = true};
	uint64_t session = core_open(core, CORE_ALICE);
	uint64_t group = core_join_ok(core, session, &join);
	struct core_unit huge = {.name = "huge", .dtype = ZEROD_UINT8, .numel = 1ull << 50};
	core_expect_error(core, core_register(core, session, group, &huge), ZEROD_E_NO_MEMORY,
	                  "unit 'huge': a shard and its shadow of 2251799813685248 bytes are more than");
}

SHADOW_TEST(test_joins_that_do_not_fit)
{
	uint64_t other = core_open(s->core, CORE_ALICE);
	struct core_join join = {.job = "other", .world_size = 1, .shadow = true};
	core_expect_error(s->core, core_join(s->core, other, &join), ZEROD_E_INVALID,
	                  "only a durable group keeps shadow shards");
	close_rank(s, 1);
	join = (struct core_join){.world_size = 2, .rank = 1, .device = 1, .durable = true};
	core_expect_error(s->core, core_join(s->core, other, &join), ZEROD_E_MISMATCH,
	                  "group 'world' keeps shadow shards; rank 1 says it does not");
}

/* The copies of a large update are submitted a part at a time: others follow as some complete. */
ENGINE_TEST(test_copies_of_a_large_update)
{
	enum { MANY = 200, MOST = 128 };
	uint64_t units[MANY], session = core_open(core, CORE_ALICE);
	char name[16];
	uint64_t group = core_join_ok(core, session,
	                              &(struct core_join){.world_size = 1, .durable = true, .shadow = true});
	for (uint32_t i = 0; i < MANY; i++) {
		(void)snprintf(name, sizeof(name), "%u", i);
		struct core_unit options = {.name = name, .numel = 64};
		units[i] = core_register_ok(core, session, group, &options);
	}
	core_hold(core, ZD_CMD_COPY);
	struct zd_args args = {.kind = ZD_REQ_UPDATE_BEGIN,
	                       .u.update_begin = {.n_units = MANY, .units = units}};
	uint64_t update = core_send(core, session, &args);
	assert_int_equal(core_pending(core, ZD_CMD_COPY), MOST);
	core_run_one(core, ZD_CMD_COPY);
	assert_int_equal(core_pending(core, ZD_CMD_COPY), MOST);
	core_unhold(core, ZD_CMD_COPY);
	core_expect(core, update, 0);
	assert_int_equal(core_count(core, ZD_CMD_COPY), MANY);
}

/* Uncommitted versions are undone by a rank that ends normally, too. Reads go on with the last commit. */
SHADOW_TEST(test_rank_that_ends_is_read_on)
{
	publish_undone(s, 0, 1);
	publish_undone(s, 1, 0);
	zd_engine_session_goodbye(core_engine(s->core), s->team.session[1]);
	core_hold(s->core, ZD_CMD_COPY);
	core_close(s->core, s->team.session[1]);
	core_expect_error(s->core, gather(s, 0, 0), ZEROD_E_PEER_LOST, "rank 0 is restored to step 1");
	core_unhold(s->core, ZD_CMD_COPY);
	core_expect(s->core, reset(s, 0), 0);
	expect_group(s, "LEFT", 1, false);
	for (uint32_t unit = 0; unit < NUNITS; unit++)
		core_team_check(&s->team, core_expect(s->core, gather(s, unit, 0), 0), 1);
}
