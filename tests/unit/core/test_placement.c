/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units on the host: where their shards are, who copies them, and what is refused.
 */
#include "tests/support/core_driver.h"

#define HOST  2u /* the device that is host memory of devices 0 and 1 */
#define NUMEL 1000u
#define BYTES 2048u /* of a shard */

static const struct core_unit on_host = {.name = "w", .numel = NUMEL, .on_host = true};

#define HOST_TEST(name) ENGINE_TEST(name, .ndevices = 2, .host_arena_bytes = 4 * CORE_MIB)

static uint64_t shard_bytes(struct core_driver *core, uint32_t device)
{
	struct core_row rows[3];
	assert_int_equal(core_rows(core, ZD__TABLE__DEVICES, rows, 3), 3);
	return rows[device].row->device->usage->shard_bytes;
}

/* A unit whose gathers land: the pools of both devices have grown for it. */
static uint64_t landing_unit(struct core_team *team, struct core_driver *core)
{
	uint64_t unit;
	*team = core_team_new(core, "job", 2, false);
	unit = core_team_register(team, &on_host);
	core_team_publish(team, unit);
	for (uint32_t i = 0; i < 4; i++) {
		core_expect(core, core_gather(core, team->session[i % 2], unit), 0);
		core_expect(core, core_release(core, team->session[i % 2], unit), 0);
	}
	return unit;
}

/* Two ranks gather, each shard crosses the link to the host once. */
HOST_TEST(test_shards_land_once)
{
	struct core_team team;
	uint64_t unit = landing_unit(&team, core);
	const struct zd_reply *replies[2];
	uint32_t before;

	before = core_count(core, ZD_CMD_COPY);
	core_hold(core, ZD_CMD_COPY);
	for (uint32_t rank = 0; rank < 2; rank++)
		replies[rank] = core_expect(core, core_gather(core, team.session[rank], unit), 0);
	assert_int_equal(core_count(core, ZD_CMD_COPY), before + 2);
	core_unhold(core, ZD_CMD_COPY);
	assert_int_equal(core_count(core, ZD_CMD_COPY), before + 6);
	for (uint32_t rank = 0; rank < 2; rank++)
		core_team_check(&team, replies[rank], 1);
}

/* A shard that is alone is copied, too: the rank computes on its device. */
HOST_TEST(test_a_shard_that_is_alone_is_pulled)
{
	const struct zd_reply *reply;
	uint64_t unit;

	struct core_team team = core_team_new(core, "job", 1, false);
	unit = core_team_register(&team, &on_host);
	core_team_publish(&team, unit);
	reply = core_expect(core, core_gather(core, team.session[0], unit), 0);
	core_team_check(&team, reply, 1);
	assert_int_equal(core_count(core, ZD_CMD_COPY), 1);
	core_expect(core, core_release(core, team.session[0], unit), 0);
}

HOST_TEST(test_placement_belongs_to_the_description)
{
	const struct core_unit elsewhere = {.name = "w", .numel = NUMEL};

	struct core_team team = core_team_new(core, "job", 2, false);
	core_register_ok(core, team.session[0], team.group, &on_host);
	core_expect_error(core, core_register(core, team.session[1], team.group, &elsewhere),
	                  ZEROD_E_MISMATCH, "rank 0 registered float32, 1000 elements, on the host");
}

HOST_TEST(test_ranks_do_not_join_on_host_memory)
{
	uint64_t session = core_open(core, CORE_ALICE);

	core_expect_error(core,
	                  core_join(core, session, &(struct core_join){.world_size = 1, .device = HOST}),
	                  ZEROD_E_INVALID, "device 2 (device2) is host memory");
	core_expect(core, core_alloc(core, session, "job", HOST, 5000), 0);
}

ENGINE_TEST(test_without_host_memory)
{
	struct core_team team = core_team_new(core, "job", 1, false);
	core_expect_error(core, core_register(core, team.session[0], team.group, &on_host),
	                  ZEROD_E_UNSUPPORTED, "host_arena in zerod.conf sets its size");
}

/* Nothing is charged, and a smaller unit of the name is registered. */
HOST_TEST(test_a_unit_larger_than_host_memory)
{
	const struct core_unit large = {.name = "w", .numel = 4 * CORE_MIB, .on_host = true};

	struct core_team team = core_team_new(core, "job", 2, false);
	core_expect_error(core, core_register(core, team.session[0], team.group, &large), ZEROD_E_NO_MEMORY,
	                  "8388608 bytes do not fit on device 2: arena 4194304 bytes, 0 of them in segments");
	assert_int_equal(core_usage(core).shard_bytes, 0);
	(void)core_team_register(&team, &on_host);
	assert_int_equal(shard_bytes(core, HOST), 2 * BYTES);
}

/* The error of the host memory's segment, once: the registration does not ask for another one. */
HOST_TEST(test_a_segment_that_fails)
{
	struct core_team team = core_team_new(core, "job", 1, false);
	core_fail_next(core, ZD_CMD_SEGMENT_CREATE, ZEROD_E_NO_MEMORY, "cannot be pinned");
	core_expect_error(core, core_register(core, team.session[0], team.group, &on_host), ZEROD_E_NO_MEMORY,
	                  "cannot be pinned");
	assert_int_equal(core_count(core, ZD_CMD_SEGMENT_CREATE), 1);
	core_register_ok(core, team.session[0], team.group, &on_host);
}
