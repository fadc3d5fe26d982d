/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Landings: which gathers may share the shards of host memory that a device has pulled, what room the pulled
 * shards may take, and what is left to other ranks when a rank or a copy fails.
 */
#include "tests/support/core_driver.h"

#define UNIT_BYTES (4 * CORE_KIB)
#define OTHER      0xEE /* every byte of the shard of a rank that replaces another */

static uint64_t register_on_host(struct core_team *team, const char *name, uint64_t bytes)
{
	const struct core_unit args = {.name = name, .numel = bytes / 4, .on_host = true};
	uint64_t unit = core_team_register(team, &args);
	core_team_publish(team, unit);
	return unit;
}

static void gather_ok(struct core_team *team, uint32_t rank, uint64_t unit)
{
	core_expect(team->core, core_gather(team->core, team->session[rank], unit), 0);
}

static void release_ok(struct core_team *team, uint32_t rank, uint64_t unit)
{
	core_expect(team->core, core_release(team->core, team->session[rank], unit), 0);
}

static void gather_once(struct core_team *team, uint64_t unit)
{
	for (uint32_t rank = 0; rank < team->world_size; rank++) {
		gather_ok(team, rank, unit);
		release_ok(team, rank, unit);
	}
}

/* A unit whose shards land, since the pools have grown for it. Copies are held from here on. */
static uint64_t start_landing_in(struct core_team *team, uint32_t chunks)
{
	struct core_driver *core =
	        core_new(&(struct core_options){.host_arena_bytes = 4 * CORE_MIB,
	                                        .landing_chunk_bytes = UNIT_BYTES / 2 / chunks,
	                                        .unordered = true});
	uint64_t unit;
	*team = core_team_new(core, "job", 2, false);
	unit = register_on_host(team, "w", UNIT_BYTES);
	gather_once(team, unit);
	gather_once(team, unit);
	core_hold(core, ZD_CMD_COPY);
	return unit;
}

static uint64_t start_landing(struct core_team *team)
{
	return start_landing_in(team, 1);
}

/* Each device has pulled its shard, or the next chunk of it. */
static void run_pulls(struct core_team *team)
{
	for (uint32_t device = 0; device < 2; device++)
		core_run_on(team->core, ZD_CMD_COPY, device);
}

static void gather_both(struct core_team *team, uint64_t unit, const struct zd_reply *replies[2])
{
	for (uint32_t rank = 0; rank < 2; rank++)
		replies[rank] = core_expect(team->core, core_gather(team->core, team->session[rank], unit),
		                            0);
}

/* ---- Who shares a landing ------------------------------------------------------------------------------ */

/* Rank 1 is lost and replaced. The new process publishes other bytes as the version that was lost. */
static void replace_rank_1(struct core_team *team, const char *name)
{
	const struct core_unit args = {.name = name, .numel = UNIT_BYTES / 4, .on_host = true};
	const struct core_join join = {.world_size = 2, .rank = 1, .device = 1};
	struct core_driver *core = team->core;
	const struct zd_reply *reply;
	core_do(core, team->session[0], ZD_REQ_SESSION_RESET, 0);
	team->session[1] = core_open(core, CORE_ALICE);
	core_join_ok(core, team->session[1], &join);
	reply = core_expect(core, core_register(core, team->session[1], team->group, &args), 0);
	core_expect(core, core_update(core, team->session[1], reply->u.unit_register.unit), 0);
	memset(core_bytes(core, reply->place), OTHER, UNIT_BYTES / 2);
	core_expect(core, core_publish(core, team->session[1], reply->u.unit_register.unit), 0);
}

/*
 * A gather of rank 0 still copies from the landing of rank 0's shard, so the landing of rank 1's shard exists
 * too, although nothing reads rank 1's shard any more. Rank 1 is replaced by a process that publishes other
 * bytes as version 1 again. Gathers of that version begin landings of their own.
 */
TEST(test_a_version_that_is_published_again)
{
	struct core_team team;
	const struct zd_reply *reply;
	const uint8_t *data;
	uint64_t unit = start_landing(&team);

	gather_ok(&team, 0, unit);
	run_pulls(&team);
	core_run_on(team.core, ZD_CMD_COPY, 1); /* from the landing of rank 1's shard to the buffer */
	core_close(team.core, team.session[1]);
	replace_rank_1(&team, "w");

	reply = core_expect(team.core, core_gather(team.core, team.session[1], unit), 0);
	assert_int_equal(reply->u.gather.version, 1);
	core_unhold(team.core, ZD_CMD_COPY);
	data = core_bytes(team.core, reply->place);
	for (uint32_t i = 0; i < UNIT_BYTES / 2; i++) {
		assert_int_equal(data[i], core_pattern(0, 1));
		assert_int_equal(data[UNIT_BYTES / 2 + i], OTHER);
	}
	core_end(team.core);
}

/* ---- Chunks -------------------------------------------------------------------------------------------- */

#define CHUNKS 4u

/* Chunks land out of order. The fence of the second one is the later value of the timeline, so its copy
 * waits. */
TEST(test_chunks_are_passed_on_in_order)
{
	struct core_team team;
	const struct zd_reply *reply;
	uint64_t unit = start_landing_in(&team, CHUNKS);
	uint32_t before;

	reply = core_expect(team.core, core_gather(team.core, team.session[0], unit), 0);
	before = core_count(team.core, ZD_CMD_COPY);
	assert_true(core_run_nth(team.core, 1));
	assert_int_equal(core_count(team.core, ZD_CMD_COPY), before);
	assert_true(core_run_nth(team.core, 0));
	assert_int_equal(core_count(team.core, ZD_CMD_COPY), before + 2);
	core_unhold(team.core, ZD_CMD_COPY);
	core_team_check(&team, reply, 1);
	core_end(team.core);
}

/* ---- Room ---------------------------------------------------------------------------------------------- */

/*
 * Half of device 0's pool is free, and a gather of rank 0 waits for all of it. A landing would fit, but it
 * would still be there when rank 0 releases the other half. So device 0 copies its shard from host memory to
 * rank 1's buffer instead.
 */
ENGINE_TEST(test_landings_take_no_room_that_a_request_waits_for, .arena_bytes = 2 * UNIT_BYTES,
            .host_arena_bytes = 4 * CORE_MIB, .segment_align_bytes = 2 * UNIT_BYTES)
{
	const struct zd_reply *reply;
	uint64_t small, large, waiting;

	struct core_team team = core_team_new(core, "job", 2, false);
	small = register_on_host(&team, "small", UNIT_BYTES);
	large = register_on_host(&team, "large", 2 * UNIT_BYTES);
	gather_once(&team, small);
	gather_ok(&team, 0, small);
	waiting = core_gather(core, team.session[0], large);
	core_expect_waits(core, waiting, "8192 bytes of device 0");

	core_hold(core, ZD_CMD_COPY);
	reply = core_expect(core, core_gather(core, team.session[1], small), 0);
	release_ok(&team, 0, small);
	core_expect(core, waiting, 0);
	core_unhold(core, ZD_CMD_COPY);
	core_team_check(&team, reply, 1);
	core_team_check(&team, core_expect(core, waiting, 0), 1);
}

/* ---- Devices that do not reach each other -------------------------------------------------------------- */

/* Each device pulls all shards: the other one could not copy them to it. */
TEST(test_no_landings_between_devices_that_do_not_reach_each_other)
{
	struct core_driver *core =
	        core_new(&(struct core_options){.host_arena_bytes = 4 * CORE_MIB, .unreached = 1});
	uint64_t unit;

	struct core_team team = core_team_new(core, "job", 2, false);
	unit = register_on_host(&team, "w", UNIT_BYTES);
	gather_once(&team, unit); /* for which the pools grow */
	core_hold(core, ZD_CMD_COPY);
	for (uint32_t rank = 0; rank < 2; rank++)
		gather_ok(&team, rank, unit);
	assert_int_equal(core_pending(core, ZD_CMD_COPY), 4);
	core_unhold(core, ZD_CMD_COPY);
	core_end(core);
}

/* ---- Failures ------------------------------------------------------------------------------------------ */

static bool is_aborted(struct core_team *team, uint32_t rank, const struct zd_reply *gather)
{
	bool aborted = false;
	for (uint32_t i = 0; i < gather->fences.count; i++)
		aborted |= core_timeline(team->core, team->session[rank],
		                         gather->fences.fences[i].timeline) == ZD_FENCE_ABORTED;
	return aborted;
}

/* Rank 0 leaves its group while its transfer waits for chunks. In another group it makes another one, which
 * waits for the first. If a pull fails, neither begins, and nothing waits for them. */
TEST(test_a_rank_leaves_while_its_transfer_waits)
{
	const struct core_unit args = {.name = "v", .numel = UNIT_BYTES / 4, .on_host = true};
	for (uint32_t fails = 0; fails < 2; fails++) {
		struct core_team team, other;
		const struct zd_reply *reply;
		uint64_t unit = start_landing_in(&team, CHUNKS), next;
		core_unhold(team.core, ZD_CMD_COPY);
		other = team;
		for (uint32_t rank = 0; rank < 2; rank++) {
			const struct core_join join = {
			        .group = "other", .world_size = 2, .rank = rank, .device = rank};
			uint64_t request = core_join(team.core, team.session[rank], &join);
			if (rank == 1)
				other.group = core_expect(team.core, request, 0)->u.group_join.group;
		}
		next = core_team_register(&other, &args);
		core_team_publish(&other, next);
		core_hold(team.core, ZD_CMD_COPY);
		gather_ok(&team, 0, unit);
		core_do(team.core, team.session[0], ZD_REQ_GROUP_LEAVE, team.group);
		reply = core_expect(team.core, core_gather(team.core, team.session[0], next), 0);
		if (fails)
			core_fail_next(team.core, ZD_CMD_COPY, ZEROD_E_DEVICE, "gone");
		core_unhold(team.core, ZD_CMD_COPY);
		assert_int_equal(is_aborted(&team, 0, reply), fails);
		if (!fails)
			core_team_check(&other, reply, 1);
		core_end(team.core);
	}
}

static void reset_and_gather(struct core_team *team, uint32_t rank, uint64_t unit)
{
	uint64_t session = team->session[rank];
	release_ok(team, rank, unit);
	core_do(team->core, session, ZD_REQ_SESSION_RESET, 0);
	core_team_check(team, core_expect(team->core, core_gather(team->core, session, unit), 0), 1);
}

/* The ranks have got the chunks before the one that fails, or are getting them. */
TEST(test_the_pull_of_a_later_chunk_fails)
{
	for (uint32_t passed_on = 0; passed_on <= CHUNKS - 1; passed_on++) {
		struct core_team team;
		const struct zd_reply *replies[2];
		uint64_t unit = start_landing_in(&team, CHUNKS);
		gather_both(&team, unit, replies);
		for (uint32_t i = 0; i < CHUNKS - 1; i++)
			core_run_on(team.core, ZD_CMD_COPY, 0);
		core_fail_next(team.core, ZD_CMD_COPY, ZEROD_E_DEVICE, "gone");
		core_run_on(team.core, ZD_CMD_COPY, 0);
		for (uint32_t i = 0; i < passed_on; i++)
			core_run_on(team.core, ZD_CMD_COPY, 0);
		for (uint32_t rank = 0; rank < 2; rank++)
			assert_true(is_aborted(&team, rank, replies[rank]));
		core_unhold(team.core, ZD_CMD_COPY);
		for (uint32_t rank = 0; rank < 2; rank++)
			reset_and_gather(&team, rank, unit);
		core_end(team.core);
	}
}
