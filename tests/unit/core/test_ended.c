/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that end normally: the others gather on, and are told when they need the rank itself. */
#include "tests/unit/core/team_rig.h"

#define RANKS 3u
#define BYTES 768u /* of a unit: 256 of each shard */

#define SCENE_TEST(name)                                                                                     \
	CORE_RIG_TEST(name, struct rig, s,                                                                   \
	              rig_open(s, RANKS, BYTES, &(struct core_options){.ndevices = RANKS}), core_rig_end)

static void end(struct rig *s, uint32_t rank)
{
	zd_engine_session_goodbye(core_engine(s->core), s->team.session[rank]);
	core_close(s->core, s->team.session[rank]);
}

static uint64_t barrier(struct rig *s, uint32_t rank)
{
	return core_simple(s->core, s->team.session[rank], ZD_REQ_GROUP_BARRIER, s->team.group);
}

static uint64_t gather(struct rig *s, uint32_t rank)
{
	return core_gather(s->core, s->team.session[rank], s->unit);
}

static void expect_version(struct rig *s, uint32_t rank, uint64_t version)
{
	core_team_check(&s->team, core_expect(s->core, gather(s, rank), 0), version);
	core_expect(s->core, core_release(s->core, s->team.session[rank], s->unit), 0);
}

static void expect_state(struct rig *s, const char *state)
{
	struct core_row row;
	core_row(s->core, ZD__TABLE__GROUPS, s->team.group, &row);
	assert_string_equal(row.state, state);
}

/* Another session takes the rank's place. */
static void replace(struct rig *s, uint32_t rank)
{
	struct core_join join = {.world_size = RANKS, .rank = rank, .device = (rank + 1) % RANKS};
	struct core_unit unit = {.name = "w", .numel = BYTES / 4};
	s->team.session[rank] = core_open(s->core, CORE_ALICE);
	core_join_ok(s->core, s->team.session[rank], &join);
	core_register_ok(s->core, s->team.session[rank], s->team.group, &unit);
}

/* ---- Gathers go on ------------------------------------------------------------------------------------- */

SCENE_TEST(test_the_last_rank_gathers_on)
{
	end(s, 1);
	expect_version(s, 0, 1);
	expect_version(s, 2, 1);
	core_do(s->core, s->team.session[2], ZD_REQ_GROUP_LEAVE, s->team.group);
	expect_state(s, "LEFT");
	assert_int_equal(core_usage(s->core).shard_bytes, BYTES);
	uint64_t scope =
	        core_expect(s->core,
	                    core_forward_begin(s->core, s->team.session[0], s->team.group, 0, NULL, 0), 0)
	                ->u.scope.scope;
	core_team_check(&s->team,
	                core_expect(s->core, core_gather_in(s->core, s->team.session[0], s->unit, scope), 0),
	                1);
	core_expect(s->core, core_forward_end(s->core, s->team.session[0], scope, false), 0);
	core_expect(s->core, core_context_begin(s->core, s->team.session[0], &s->unit, 1), 0);
	end(s, 0);
	assert_int_equal(core_rows(s->core, ZD__TABLE__JOBS, NULL, 0), 0);
}

SCENE_TEST(test_a_call_that_needs_the_rank_says_so)
{
	end(s, 1);
	expect_version(s, 0, 1);
	for (uint32_t i = 0; i < 2; i++) /* not once only: it cannot succeed */
		core_expect_error(s->core, barrier(s, 0), ZEROD_E_PEER_LOST,
		                  "rank 1 (pid 1001) of group 'world' ended normally");
	core_expect_error(s->core, core_update(s->core, s->team.session[2], s->unit), ZEROD_E_PEER_LOST,
	                  "rank 1 (pid 1001) of group 'world' ended normally");
	expect_version(s, 0, 1);
	expect_version(s, 2, 1);
}

SCENE_TEST(test_it_publishes_no_more)
{
	static const char text[] =
	        "rank 1 of group 'world' ended normally, and does not publish version 2 of unit 'w'";
	core_team_publish_rank(&s->team, s->unit, 0);
	uint64_t waiting = gather(s, 0), named = core_gather_version(s->core, s->team.session[0], s->unit, 2);
	core_expect_waits(s->core, waiting, "rank 1 to publish version 2");
	end(s, 1);
	core_expect_error(s->core, waiting, ZEROD_E_PEER_LOST, text);
	core_expect_error(s->core, named, ZEROD_E_PEER_LOST, text);
	core_expect_error(s->core, gather(s, 0), ZEROD_E_PEER_LOST, text);
}

/* It does not wait for its own publish, which would come to nothing. */
SCENE_TEST(test_its_version_is_over_for_a_rank_that_writes)
{
	end(s, 1);
	core_expect(s->core, core_update(s->core, s->team.session[0], s->unit), ZEROD_E_PEER_LOST);
	core_expect(s->core, core_update(s->core, s->team.session[0], s->unit), 0);
	core_expect_error(s->core, gather(s, 0), ZEROD_E_PEER_LOST, "does not publish version 2 of unit 'w'");
}

/* It was ahead by one publish: the others make that version as well, and need nothing of it. */
SCENE_TEST(test_others_catch_up_with_its_version)
{
	core_team_publish_rank(&s->team, s->unit, 1);
	end(s, 1);
	uint64_t waiting = gather(s, 0);
	core_expect_waits(s->core, waiting, "rank 0 to publish version 2");
	core_team_publish_rank(&s->team, s->unit, 0);
	core_team_publish_rank(&s->team, s->unit, 2);
	core_team_check(&s->team, core_expect(s->core, waiting, 0), 2);
	expect_version(s, 2, 2);
	core_expect_error(s->core, core_update(s->core, s->team.session[2], s->unit), ZEROD_E_PEER_LOST,
	                  "rank 1 (pid 1001) of group 'world' ended normally");
}

/* A shard that it was writing when it ended has no version. */
SCENE_TEST(test_it_ends_inside_an_update)
{
	core_expect(s->core, core_update(s->core, s->team.session[1], s->unit), 0);
	end(s, 1);
	assert_int_equal(core_usage(s->core).shard_bytes, 512);
	core_expect_error(s->core, gather(s, 0), ZEROD_E_PEER_LOST, "ended normally, and does not publish");
}

/* A goodbye says that its streams have run, also those whose fences the daemon has not seen pass. */
SCENE_TEST(test_its_last_publish_is_complete)
{
	const struct zd_fence fence = {.timeline = 5, .value = 1};
	core_team_publish_rank(&s->team, s->unit, 0);
	core_team_publish_rank(&s->team, s->unit, 2);
	core_expect(s->core, core_update(s->core, s->team.session[1], s->unit), 0);
	core_team_write(&s->team, s->unit, 1);
	(void)core_publish_after(s->core, s->team.session[1], s->unit, fence);
	const struct zd_reply *ahead = core_expect(s->core, gather(s, 2), 0); /* of the version to come */
	end(s, 1);
	core_team_check(&s->team, ahead, 2);
	expect_version(s, 0, 2);
}

/* ---- How long shards are kept -------------------------------------------------------------------------- */

SCENE_TEST(test_a_copy_outlives_all_ranks)
{
	core_hold(s->core, ZD_CMD_COPY);
	core_expect(s->core, gather(s, 0), 0);
	end(s, 1);
	end(s, 2);
	end(s, 0);
	assert_int_equal(core_usage(s->core).shard_bytes, 0);
	assert_true(core_quarantine(s->core, 1) >= 256);
	core_unhold(s->core, ZD_CMD_COPY);
	assert_int_equal(core_rows(s->core, ZD__TABLE__JOBS, NULL, 0), 0);
}

/* ---- Its place is taken, and deaths beside it ---------------------------------------------------------- */

/* The next one begins with a shard that nobody gathers before it is published, as in place of a dead rank. */
SCENE_TEST(test_another_takes_its_place)
{
	end(s, 1);
	expect_version(s, 0, 1);
	replace(s, 1);
	assert_int_equal(core_usage(s->core).shard_bytes, BYTES);
	expect_state(s, "READY");
	core_expect_error(s->core, gather(s, 0), ZEROD_E_PEER_LOST,
	                  "ended normally; another session may have its place");
	uint64_t waiting = gather(s, 0);
	core_expect_waits(s->core, waiting, "rank 1 to publish version 1");
	core_team_publish_rank(&s->team, s->unit, 1);
	core_team_check(&s->team, core_expect(s->core, waiting, 0), 1);
}

SCENE_TEST(test_a_death_is_told_all_the_same)
{
	end(s, 1);
	expect_version(s, 0, 1);
	core_close(s->core, s->team.session[2]);
	expect_state(s, "FAILED");
	core_expect_error(
	        s->core, gather(s, 0), ZEROD_E_PEER_LOST,
	        "rank 2 (pid 1001) of group 'world' is gone, as is rank 1 (pid 1001, ended normally)");
	core_expect_error(s->core, gather(s, 0), ZEROD_E_PEER_LOST,
	                  "rank 2 (pid 1001) of group 'world' is gone");
}

/* The other way round: the dead rank is missed, and the one that ended is no way out. */
SCENE_TEST(test_an_end_behind_a_death)
{
	core_close(s->core, s->team.session[2]);
	end(s, 1);
	core_expect_error(
	        s->core, gather(s, 0), ZEROD_E_PEER_LOST,
	        "rank 1 (pid 1001) of group 'world' ended normally, as did rank 2 (pid 1001, is gone)");
	core_expect(s->core, gather(s, 0), ZEROD_E_PEER_LOST);
}
