/* SPDX-License-Identifier: Apache-2.0 */
/* Host copies of commits: what they hold, while updates go on and when something fails. */
#include "core/memory/pool.h"
#include "tests/unit/core/read_rig.h"

static const struct core_unit unit_w = {.name = "w", .numel = UNIT_BYTES / 4 - 3};

static void open_reader(struct rig *rig, uint32_t device)
{
	rig->reader = core_open(rig->core, CORE_ALICE);
	const struct zd_reply *reply =
	        core_expect(rig->core, core_alloc(rig->core, rig->reader, "reader", device, UNIT_BYTES), 0);
	rig->into = reply->u.alloc.allocation;
	rig->place = reply->place;
}

static void start_hosted(struct rig *rig, const struct core_join *join, bool on_host)
{
	rig->core = core_new(&(struct core_options){.host_arena_bytes = 4 * CORE_MIB});
	core_journal(rig->core);
	core_team_join(&rig->team, rig->core, join);
	rig->unit = core_team_register(
	        &rig->team, &(struct core_unit){.name = "w", .numel = unit_w.numel, .on_host = on_host});
	core_team_publish(&rig->team, rig->unit);
	commit(rig, 1);
	open_reader(rig, 0);
}

static void start_plain(struct rig *rig)
{
	start_hosted(rig, &(struct core_join){.world_size = RANKS}, false);
}

static void start_shadow(struct rig *rig)
{
	start_hosted(rig, &(struct core_join){.world_size = RANKS, .durable = true, .shadow = true}, false);
}

#define HOST_TEST(name)        CORE_RIG_TEST(name, struct rig, rig, start_plain(rig), core_rig_end)
#define HOST_SHADOW_TEST(name) CORE_RIG_TEST(name, struct rig, rig, start_shadow(rig), core_rig_end)

static uint64_t save(struct rig *rig, uint32_t rank, uint64_t step)
{
	return core_send(rig->core, rig->team.session[rank],
	                 &(struct zd_args){.kind = ZD_REQ_COMMIT_SAVE,
	                                   .u.commit_save = {.group = rig->team.group, .step = step}});
}

static uint64_t await_saved(struct rig *rig, uint64_t after)
{
	return core_send(rig->core, rig->reader,
	                 &(struct zd_args){.kind = ZD_REQ_COMMIT_WAIT,
	                                   .u.commit_wait = {.job = (char *)"job",
	                                                     .group = (char *)"world",
	                                                     .after = after,
	                                                     .saved = true}});
}

static uint64_t read_it(struct rig *rig, const char *unit, uint64_t step)
{
	memset(core_bytes(rig->core, rig->place), 0, UNIT_BYTES);
	return core_send(rig->core, rig->reader,
	                 &(struct zd_args){.kind = ZD_REQ_UNIT_READ,
	                                   .u.unit_read = {.group = rig->team.group,
	                                                   .unit = (char *)unit,
	                                                   .step = step,
	                                                   .bytes = UNIT_BYTES - 12,
	                                                   .allocation = rig->into}});
}

static void expect_read_of(struct rig *rig, const char *unit, uint64_t step, uint64_t version)
{
	core_expect(rig->core, read_it(rig, unit, step), 0);
	const uint8_t *bytes = core_bytes(rig->core, rig->place);
	for (uint32_t i = 0; i < UNIT_BYTES - 12; i++)
		assert_int_equal(bytes[i], core_pattern(i / (UNIT_BYTES / RANKS), version));
}

static void expect_read(struct rig *rig, uint64_t step, uint64_t version)
{
	expect_read_of(rig, "w", step, version);
}

static void publish_and_commit(struct rig *rig, uint64_t step)
{
	core_team_publish(&rig->team, rig->unit);
	commit(rig, step);
}

static bool find_name(uint64_t id, const Zd__Row *row, void *found)
{
	(void)id;
	*(bool *)found |= !row->block->free && strcmp(row->block->purpose, "host copy") == 0 &&
	                  strcmp(row->block->name, "w") == 0 && strcmp(row->block->state, "SAVED") == 0 &&
	                  strncmp(row->block->pins, "step 1 of group world", 21) == 0;
	return true;
}

/* Bytes of host copies, in memory and charged. */
static uint64_t copied_bytes(struct rig *rig)
{
	return core_engine(rig->core)->devices[RANKS].account.bytes[ZD_CHARGE_ALLOCATION];
}

HOST_TEST(test_updates_go_on)
{
	uint64_t copies = core_count(rig->core, ZD_CMD_COPY), waits = await_saved(rig, 0);
	core_expect_waits(rig->core, waits, "a host copy of a step after 0");
	core_hold(rig->core, ZD_CMD_COPY);
	uint64_t first = save(rig, 0, 1), second = save(rig, 1, 1);
	core_expect_waits(rig->core, first, "step 1 to be copied to host memory: 1012 bytes");
	uint64_t update = core_update(rig->core, rig->team.session[1], rig->unit);
	core_unhold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, first, 0);
	core_expect(rig->core, second, 0);
	core_expect(rig->core, update, 0);
	assert_int_equal(core_count(rig->core, ZD_CMD_COPY), copies + 2 * RANKS - 1);
	assert_int_equal(core_expect(rig->core, waits, 0)->u.commit_wait.step, 1);
	core_team_write(&rig->team, rig->unit, 1);
	core_expect(rig->core, core_publish(rig->core, rig->team.session[1], rig->unit), 0);
	core_team_publish_rank(&rig->team, rig->unit, 0);
	for (uint64_t step = 2; step <= 4; step++) {
		commit(rig, step);
		expect_read(rig, 1, 1);
		core_team_publish(&rig->team, rig->unit);
	}
	assert_int_equal(copied_bytes(rig), UNIT_BYTES);
	const struct zd_segment *segment = TAILQ_FIRST(&core_engine(rig->core)->devices[RANKS].segments);
	Zd__List query = {.table = ZD__TABLE__BLOCKS, .segment = segment->id};
	bool found = false;
	assert_int_equal(zd_engine_list(core_engine(rig->core), 0, &query, 0, find_name, &found), 0);
	assert_true(found);
	for (uint32_t device = 0; device < RANKS; device++)
		assert_int_equal(core_quarantine(rig->core, device), 0);
}

/* Reads of the former one end first. */
HOST_TEST(test_replaced_copy)
{
	core_expect(rig->core, save(rig, 0, 1), 0);
	core_expect(rig->core, save(rig, 0, 1), 0); /* it is there */
	core_expect(rig->core, await_saved(rig, 0), 0);
	publish_and_commit(rig, 2);
	core_hold(rig->core, ZD_CMD_COPY);
	uint64_t saved = save(rig, 1, 2), read = read_it(rig, "w", 1);
	for (uint32_t device = 0; device < RANKS; device++)
		core_run_on(rig->core, ZD_CMD_COPY, device);
	core_expect(rig->core, saved, 0);
	assert_int_equal(copied_bytes(rig), 2 * UNIT_BYTES);
	core_unhold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, read, 0);
	assert_int_equal(core_bytes(rig->core, rig->place)[0], core_pattern(0, 1));
	assert_int_equal(copied_bytes(rig), UNIT_BYTES);
	core_expect_error(rig->core, read_it(rig, "w", 1), ZEROD_E_STALE_VERSION,
	                  "the last commit is step 2");
	assert_int_equal(core_expect(rig->core, await_saved(rig, 1), 0)->u.commit_wait.step, 2);
	core_team_publish(&rig->team, rig->unit);
	expect_read(rig, 2, 2);
	core_expect(rig->core, save(rig, 0, 0), 0);
	assert_int_equal(copied_bytes(rig), 0);
	core_expect_error(rig->core, read_it(rig, "w", 2), ZEROD_E_STALE_VERSION, "has updated its shard");
}

/* Also by a session that has not waited for it, and never by its session from the shards. */
HOST_TEST(test_where_reads_are_made)
{
	core_expect(rig->core, save(rig, 0, 1), 0);
	uint64_t read;
	for (uint32_t saved = 0; saved < 2; saved++) {
		if (saved)
			core_expect(rig->core, await_saved(rig, 0), 0);
		core_hold(rig->core, ZD_CMD_COPY);
		read = read_it(rig, "w", 1);
		assert_int_equal(core_pending(rig->core, ZD_CMD_COPY), saved ? 1 : RANKS);
		core_unhold(rig->core, ZD_CMD_COPY);
		core_expect(rig->core, read, 0);
	}
	core_expect(rig->core, send_wait(rig, rig->reader, 0, 0), 0);
	core_team_publish_rank(&rig->team, rig->unit, 1);
	expect_read(rig, 1, 1);
	struct zd_args args = {.kind = ZD_REQ_UNIT_READ,
	                       .u.unit_read = {.group = rig->team.group,
	                                       .unit = (char *)"w",
	                                       .step = 1,
	                                       .map_bytes = UNIT_BYTES - 12}};
	const struct zd_reply *reply = core_call(rig->core, rig->reader, &args, 0);
	assert_int_equal(reply->u.unit_read.mapped_bytes, UNIT_BYTES / RANKS);
	assert_true(reply->u.unit_read.mapped != 0); /* rank 0 has not updated */
}

HOST_TEST(test_units_that_are_left_out)
{
	const struct core_unit masters = {.name = "masters", .numel = UNIT_BYTES / 4, .unsaved = true};
	uint64_t unit = core_team_register(&rig->team, &masters);
	core_team_publish(&rig->team, unit);
	publish_and_commit(rig, 2);
	(void)core_team_register(&rig->team, &(struct core_unit){.name = "late", .numel = UNIT_BYTES / 4});
	core_expect(rig->core, save(rig, 0, 2), 0);
	core_expect(rig->core, await_saved(rig, 0), 0);
	core_expect(rig->core, read_it(rig, "masters", 2), 0); /* of the shards */
	core_team_publish(&rig->team, unit);
	core_expect_error(
	        rig->core, read_it(rig, "masters", 2), ZEROD_E_STALE_VERSION,
	        "'masters' is not in the host copy of step 2: it was registered with ZEROD_UNIT_UNSAVED");
	core_expect_error(rig->core, read_it(rig, "late", 2), ZEROD_E_STALE_VERSION,
	                  "'late' is not in the host copy of step 2: it was not published before");
}

HOST_TEST(test_unit_is_registered_anew)
{
	core_expect(rig->core, save(rig, 0, 1), 0);
	core_expect(rig->core, await_saved(rig, 0), 0);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		core_do(rig->core, rig->team.session[rank], ZD_REQ_UNIT_UNREGISTER, rig->unit);
	core_expect_error(rig->core, read_it(rig, "w", 1), ZEROD_E_NOT_FOUND, "has no unit 'w'");
	(void)core_team_register(&rig->team, &(struct core_unit){.name = "w", .numel = UNIT_BYTES});
	core_expect_error(rig->core, read_it(rig, "w", 1), ZEROD_E_STALE_VERSION, "registered anew since");
	assert_int_equal(copied_bytes(rig), UNIT_BYTES);
}

HOST_TEST(test_wrong_saves)
{
	core_expect_error(rig->core, save(rig, 0, 2), ZEROD_E_STATE, "the last commit is step 1");
	publish_and_commit(rig, 2);
	core_expect_error(rig->core, save(rig, 0, 1), ZEROD_E_STALE_VERSION, "the last commit is step 2");
	core_hold(rig->core, ZD_CMD_COPY);
	uint64_t saved = save(rig, 0, 2);
	commit(rig, 3);
	core_expect_error(rig->core, save(rig, 1, 3), ZEROD_E_BUSY,
	                  "step 2 of group 'world' is being copied");
	const struct zd_args both = {
	        .kind = ZD_REQ_COMMIT_WAIT,
	        .u.commit_wait = {
	                .job = (char *)"job", .group = (char *)"world", .pin = true, .saved = true}};
	core_expect_error(rig->core, core_send(rig->core, rig->reader, &both), ZEROD_E_INVALID,
	                  "pins nothing");
	core_expect_error(rig->core,
	                  core_send(rig->core, rig->reader,
	                            &(struct zd_args){.kind = ZD_REQ_COMMIT_SAVE,
	                                              .u.commit_save = {.group = rig->team.group}}),
	                  ZEROD_E_NOT_FOUND, "group");
	core_unhold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, saved, 0);
}

/* Of the rank that asks, of another one, or of the last one that asks. */
HOST_TEST(test_ranks_end_meanwhile)
{
	core_hold(rig->core, ZD_CMD_COPY);
	uint64_t first = save(rig, 0, 1);
	(void)save(rig, 1, 1);
	core_close(rig->core, rig->team.session[1]);
	core_unhold(rig->core, ZD_CMD_COPY);
	core_expect_error(rig->core, first, ZEROD_E_PEER_LOST, "rank 1");
	assert_int_equal(copied_bytes(rig), 0);
	rig->team.session[1] = core_open(rig->core, CORE_ALICE);
	core_join_ok(rig->core, rig->team.session[1],
	             &(struct core_join){.world_size = RANKS, .rank = 1, .device = 1});
	core_register_ok(rig->core, rig->team.session[1], rig->team.group, &unit_w);
	core_expect_error(rig->core, save(rig, 0, 1), ZEROD_E_STALE_VERSION,
	                  "rank 1 has joined after step 1");
}

/* Neither the copy's failure nor a shard that was not saved leaves anything. */
HOST_TEST(test_failures)
{
	core_hold(rig->core, ZD_CMD_SEGMENT_CREATE);
	uint64_t saved = save(rig, 0, 1), other = save(rig, 1, 1);
	core_fail_next(rig->core, ZD_CMD_SEGMENT_CREATE, ZEROD_E_NO_MEMORY, "no pages");
	core_unhold(rig->core, ZD_CMD_SEGMENT_CREATE);
	core_expect_error(rig->core, saved, ZEROD_E_NO_MEMORY, "no pages");
	core_expect_error(rig->core, other, ZEROD_E_NO_MEMORY, "no pages");
	core_fail_next(rig->core, ZD_CMD_COPY, ZEROD_E_DEVICE, "the copy engine is broken");
	core_expect_error(rig->core, save(rig, 0, 1), ZEROD_E_DEVICE, "the copy engine is broken");
	assert_int_equal(copied_bytes(rig), 0);
	core_expect(rig->core, save(rig, 0, 1), 0);
}

/* One rank's request waits for host memory of another device. */
static void start_nodes(struct rig *rig)
{
	rig->core = core_new(&(struct core_options){.host_arena_bytes = 4 * CORE_MIB, .host_each = true});
	core_team_join(&rig->team, rig->core, &(struct core_join){.world_size = RANKS});
	for (uint32_t i = 0; i < RANKS; i++) {
		const char name[] = {(char)('a' + i), 0};
		struct core_unit unit = {.name = name, .numel = unit_w.numel};
		rig->unit = core_team_register(&rig->team, &unit);
		core_team_publish(&rig->team, rig->unit);
	}
	commit(rig, 1);
}

CORE_RIG_TEST(test_memory_of_each_node, struct rig, rig, start_nodes(rig), core_rig_end)
{
	core_hold(rig->core, ZD_CMD_SEGMENT_CREATE);
	uint64_t saved = save(rig, 0, 1);
	for (uint32_t i = 0; i < RANKS; i++)
		core_run_one(rig->core, ZD_CMD_SEGMENT_CREATE);
	core_expect(rig->core, saved, 0);
}

/* The copy of 'b' is in host memory of rank 1's device, and the allocation in that of rank 0's. While the
 * shards hold the step it is read from them. */
CORE_RIG_TEST(test_copy_of_another_node, struct rig, rig, start_nodes(rig), core_rig_end)
{
	const struct zd_args ask = {
	        .kind = ZD_REQ_UNIT_READ,
	        .u.unit_read = {.group = rig->team.group, .unit = (char *)"b", .step = 1}};
	open_reader(rig, RANKS);
	core_expect(rig->core, save(rig, 0, 1), 0);
	core_expect(rig->core, await_saved(rig, 0), 0);
	core_call(rig->core, rig->reader, &ask, 0); /* without an allocation */
	expect_read_of(rig, "b", 1, 1);
	core_team_publish(&rig->team, rig->unit);
	core_expect_error(
	        rig->core, read_it(rig, "b", 1), ZEROD_E_UNSUPPORTED,
	        "unit 'b' is in the host memory of device 3, and the allocation in that of device 2");
}

HOST_TEST(test_update_overtakes_the_copy)
{
	core_hold(rig->core, ZD_CMD_SEGMENT_CREATE);
	uint64_t saved = save(rig, 0, 1), update = core_update(rig->core, rig->team.session[1], rig->unit);
	core_run_one(rig->core, ZD_CMD_SEGMENT_CREATE); /* of the host memory */
	core_expect_waits(rig->core, saved, "rank 1's shard of unit 'w' to be saved");
	for (uint32_t i = 0; i < 2; i++) {
		core_fail_next(rig->core, ZD_CMD_SEGMENT_CREATE, ZEROD_E_DEVICE, "no memory");
		core_run_one(rig->core, ZD_CMD_SEGMENT_CREATE);
	}
	core_expect(rig->core, update, 0);
	core_expect_error(rig->core, saved, ZEROD_E_STALE_VERSION, "rank 1's shard of step 1 was not saved");
	assert_int_equal(copied_bytes(rig), 0);
}

HOST_TEST(test_too_little_memory)
{
	const struct core_unit large = {.name = "large", .numel = 2 * CORE_MIB / 4, .copied = true};
	core_team_publish(&rig->team, core_team_register(&rig->team, &large));
	publish_and_commit(rig, 2);
	core_expect(rig->core, save(rig, 0, 2), 0);
	publish_and_commit(rig, 3);
	core_expect_error(rig->core, save(rig, 0, 3), ZEROD_E_NO_MEMORY,
	                  "step 3 of group 'world' has 2098164 bytes; unit 'large'");
	expect_read(rig, 2, 2);
}

/* A unit that is not in the host copy is BUSY while its shadow is made, and read there afterwards. */
HOST_SHADOW_TEST(test_shadow_is_made_meanwhile)
{
	const struct core_unit masters = {.name = "masters", .numel = unit_w.numel, .unsaved = true};
	uint64_t unit = core_team_register(&rig->team, &masters);
	core_team_publish(&rig->team, unit);
	publish_and_commit(rig, 2);
	core_expect(rig->core, save(rig, 0, 2), 0);
	core_hold(rig->core, ZD_CMD_COPY);
	uint64_t update = core_update(rig->core, rig->team.session[1], unit);
	core_expect_error(rig->core, read_it(rig, "masters", 2), ZEROD_E_BUSY,
	                  "shard of step 2 is being saved");
	core_unhold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, update, 0);
	expect_read_of(rig, "masters", 2, 1);
}

/* Of shards, shadows and saves of shadows. It outlives the ranks, and not the daemon. */
HOST_SHADOW_TEST(test_group_with_shadows)
{
	core_team_publish_rank(&rig->team, rig->unit, 1);
	core_hold(rig->core, ZD_CMD_SEGMENT_CREATE);
	uint64_t saved = save(rig, 0, 1);
	core_team_publish_rank(&rig->team, rig->unit, 0);
	commit(rig, 2);
	uint64_t update = core_update(rig->core, rig->team.session[0], rig->unit);
	core_unhold(rig->core, ZD_CMD_SEGMENT_CREATE);
	core_expect(rig->core, saved, 0);
	core_expect(rig->core, update, 0);
	expect_read(rig, 1, 1);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		core_close(rig->core, rig->team.session[rank]);
	expect_read(rig, 1, 1); /* the job lasts */
	core_restart(rig->core);
	assert_int_equal(copied_bytes(rig), 0);
}

TEST(test_units_on_the_host)
{
	struct rig rig = {0};
	start_hosted(&rig, &(struct core_join){.world_size = RANKS}, true);
	core_expect(rig.core, save(&rig, 0, 1), 0);
	core_team_publish(&rig.team, rig.unit);
	expect_read(&rig, 1, 1);
	core_end(rig.core);
	start(&rig, false);
	core_expect_error(rig.core, save(&rig, 0, 1), ZEROD_E_UNSUPPORTED, "no host memory for device 0");
	core_end(rig.core);
}
