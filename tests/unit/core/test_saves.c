/* SPDX-License-Identifier: Apache-2.0 */
/* Commits that readers pin, the saves that updates make for them, and what readers map instead of copying. */
#include "tests/unit/core/read_rig.h"

static uint64_t pin(struct rig *rig, uint64_t session)
{
	const struct zd_args args = {
	        .kind = ZD_REQ_COMMIT_WAIT,
	        .u.commit_wait = {.job = (char *)"job", .group = (char *)"world", .pin = true}};
	return core_call(rig->core, session, &args, 0)->u.commit_wait.step;
}

static void unpin(struct rig *rig, uint64_t session)
{
	core_expect(rig->core, send_wait(rig, session, 0, 0), 0);
}

static uint64_t update_ahead(struct rig *rig, uint32_t rank)
{
	return core_send(
	        rig->core, rig->team.session[rank],
	        &(struct zd_args){.kind = ZD_REQ_UPDATE_BEGIN,
	                          .u.update_begin = {.n_units = 1, .units = &rig->unit, .ahead = true}});
}

/* Of the last commit, which the rank's update ahead has overwritten. */
static void expect_revoked(struct rig *rig)
{
	core_expect_error(rig->core, send_read(rig, 1), ZEROD_E_STALE_VERSION, "has updated its shard after");
	for (uint32_t device = 0; device < RANKS; device++)
		assert_int_equal(core_quarantine(rig->core, device), 0);
}

/* ---- Pins ---------------------------------------------------------------------------------------------- */

static bool count_save(uint64_t id, const Zd__Row *row, void *saves)
{
	(void)id;
	*(uint32_t *)saves += !row->block->free && strcmp(row->block->purpose, "save") == 0 &&
	                      strcmp(row->block->name, "w") == 0;
	return true;
}

static uint32_t count_saves(struct rig *rig)
{
	struct core_row segments[64];
	uint32_t count = core_rows(rig->core, ZD__TABLE__SEGMENTS, segments, ZD_ARRAY_LEN(segments)),
	         saves = 0;
	for (uint32_t i = 0; i < count; i++) {
		Zd__List query = {.table = ZD__TABLE__BLOCKS, .segment = (uint32_t)segments[i].id};
		assert_int_equal(zd_engine_list(core_engine(rig->core), 0, &query, 0, count_save, &saves), 0);
	}
	return saves;
}

READ_TEST(test_two_readers_of_a_commit)
{
	uint64_t other = core_open(rig->core, CORE_ALICE);
	pin(rig, other);
	pin(rig, rig->reader);
	core_team_publish(&rig->team, rig->unit);
	core_close(rig->core, other);
	core_hold(rig->core, ZD_CMD_COPY);
	uint64_t read = send_read(rig, 1);
	unpin(rig, rig->reader);
	assert_int_equal(count_saves(rig), RANKS); /* they are read */
	core_unhold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, read, 0);
	expect_bytes(rig, 1);
	expect_revoked(rig);
}

/* The reply promises that the copy, and the memory for it, will be there. */
READ_TEST(test_update_ahead_of_its_save)
{
	pin(rig, rig->reader);
	core_hold(rig->core, ZD_CMD_COPY);
	core_hold(rig->core, ZD_CMD_SEGMENT_CREATE);
	uint64_t update = update_ahead(rig, 1), session = rig->team.session[1];
	struct zd_fence fence = core_expect(rig->core, update, 0)->fence;
	core_expect_error(rig->core, send_read(rig, 1), ZEROD_E_BUSY,
	                  "rank 1's shard of step 1 is being saved");
	uint64_t publish = core_publish(rig->core, session, rig->unit);
	core_unhold(rig->core, ZD_CMD_SEGMENT_CREATE);
	core_expect_waits(rig->core, publish, "1 transfer that reads the shard of rank 1");
	core_expect_error(rig->core, send_read(rig, 1), ZEROD_E_BUSY,
	                  "rank 1's shard of step 1 is being saved");
	assert_true(core_timeline(rig->core, session, fence.timeline) < fence.value);
	core_unhold(rig->core, ZD_CMD_COPY);
	assert_int_equal(core_timeline(rig->core, session, fence.timeline), fence.value);
	core_expect(rig->core, publish, 0);
	core_expect(rig->core, send_read(rig, 1), 0);
	expect_bytes(rig, 1);
}

READ_TEST(test_promise_is_broken_during_the_save)
{
	uint64_t id = rig->team.session[1];
	pin(rig, rig->reader);
	core_hold(rig->core, ZD_CMD_COPY);
	struct zd_fence fence = core_expect(rig->core, update_ahead(rig, 1), 0)->fence;
	zd_session_abort(core_engine(rig->core), zd_session_find(core_engine(rig->core), id), fence.timeline);
	uint64_t reset = core_simple(rig->core, id, ZD_REQ_SESSION_RESET, 0);
	core_unhold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, reset, 0);
	expect_revoked(rig);
}

/* Its save would hold what no commit has. */
READ_TEST(test_unit_without_a_pinned_version)
{
	uint64_t unit = core_team_register(&rig->team,
	                                   &(struct core_unit){.name = "late", .numel = UNIT_BYTES / 4});
	pin(rig, rig->reader);
	core_team_publish(&rig->team, unit);
	commit(rig, 2);
	core_expect(rig->core, send_read(rig, 1), 0);
	core_expect_error(rig->core, send_read_of(rig, "late", 1), ZEROD_E_STALE_VERSION,
	                  "'late': rank 0's shard of step 1 was not saved");
	core_expect(rig->core, send_read(rig, 2), 0);
}

/* Neither in its shard nor, when it updates that, in a save. */
READ_TEST(test_replaced_rank_has_no_pinned_commit)
{
	core_team_publish(&rig->team, rig->unit);
	commit(rig, 2);
	core_close(rig->core, rig->team.session[1]);
	assert_int_equal(pin(rig, rig->reader), 2);
	replace(rig);
	core_expect_error(rig->core, send_read(rig, 2), ZEROD_E_STALE_VERSION, "rank 1's shard of step 2");
	core_expect(rig->core, core_update(rig->core, rig->team.session[1], rig->unit), 0);
	core_expect_error(rig->core, send_read(rig, 2), ZEROD_E_STALE_VERSION, "rank 1's shard of step 2");
	assert_int_equal(count_saves(rig), 0);
}

READ_TEST(test_saves_without_memory)
{
	pin(rig, rig->reader);
	core_hold(rig->core, ZD_CMD_SEGMENT_CREATE);
	uint64_t update = core_update(rig->core, rig->team.session[1], rig->unit);
	for (uint32_t i = 0; i < 2; i++) {
		core_fail_next(rig->core, ZD_CMD_SEGMENT_CREATE, ZEROD_E_DEVICE, "no memory");
		core_run_one(rig->core, ZD_CMD_SEGMENT_CREATE);
	}
	core_expect(rig->core, update, 0);
	core_unhold(rig->core, ZD_CMD_SEGMENT_CREATE);
	core_expect_error(rig->core, send_read(rig, 1), ZEROD_E_STALE_VERSION,
	                  "rank 1's shard of step 1 was not saved");
	assert_int_equal(count_saves(rig), 0);
}

/* A trainer whose torch has no memory asks for it. */
READ_TEST(test_trim_takes_saves)
{
	pin(rig, rig->reader);
	core_team_publish(&rig->team, rig->unit);
	core_call(rig->core, rig->team.session[0], &(struct zd_args){.kind = ZD_REQ_TRIM}, 0);
	assert_int_equal(count_saves(rig), 0);
	expect_revoked(rig);
}

READ_TEST(test_save_fails)
{
	pin(rig, rig->reader);
	core_fail_next(rig->core, ZD_CMD_COPY, ZEROD_E_DEVICE, "the copy engine is broken");
	core_expect(rig->core, core_update(rig->core, rig->team.session[1], rig->unit), 0);
	expect_revoked(rig);
}

/* The reader's process may be stopped. A later reader may still read. */
READ_TEST(test_deadline_of_a_pin)
{
	uint64_t other = core_open(rig->core, CORE_ALICE);
	pin(rig, rig->reader);
	core_team_publish(&rig->team, rig->unit);
	core_tick(rig->core, 4000000000);
	pin(rig, other);
	core_tick(rig->core, 9999999999);
	core_expect(rig->core, send_read(rig, 1), 0);
	assert_string_equal(core_notice(rig->core, 1), "");
	core_tick(rig->core, 10000000000);
	assert_string_equal(core_notice(rig->core, 1),
	                    "pid 1001: step 1 of job/world is not pinned any more");
	assert_int_equal(count_saves(rig), RANKS);
	core_tick(rig->core, 14000000000);
	expect_revoked(rig);
	core_expect_error(rig->core, send_read(rig, 1), ZEROD_E_STALE_VERSION,
	                  "; the deadline of its pin has passed");
	commit(rig, 2);
	core_expect_error(rig->core, send_read(rig, 1), ZEROD_E_STALE_VERSION,
	                  "; the deadline of its pin has passed");
	const struct zd_args args = {
	        .kind = ZD_REQ_COMMIT_WAIT,
	        .u.commit_wait = {.job = (char *)"job", .group = (char *)"world", .pin = true, .pin_ms = 1}};
	core_call(rig->core, rig->reader, &args, 0);
	core_team_publish(&rig->team, rig->unit);
	core_expect(rig->core, send_read(rig, 2), 0);
	core_tick(rig->core, 14001000000);
	core_expect_error(rig->core, send_read(rig, 2), ZEROD_E_STALE_VERSION,
	                  "has updated its shard after step 2");
}

/* Other requests need the memory of the device, all of which is in segments. */
READ_TEST(test_saves_make_room)
{
	pin(rig, rig->reader);
	core_team_publish(&rig->team, rig->unit);
	assert_int_equal(count_saves(rig), RANKS);
	uint64_t room = 4 * CORE_MIB;
	while (count_saves(rig) > 0 && room > 0) {
		uint64_t alloc = core_alloc(rig->core, rig->reader, "reader", 1, room);
		if (core_reply(rig->core, alloc)->status != 0)
			room /= 2;
	}
	expect_revoked(rig);
}

/* The commit is overwritten in part already. */
READ_TEST(test_pin_between_updates)
{
	core_team_publish_rank(&rig->team, rig->unit, 1);
	assert_int_equal(pin(rig, rig->reader), 1);
	core_team_publish_rank(&rig->team, rig->unit, 0);
	assert_int_equal(count_saves(rig), 0);
	expect_revoked(rig);
}

READ_TEST(test_unit_ends_under_a_pin)
{
	pin(rig, rig->reader);
	core_team_publish(&rig->team, rig->unit);
	core_hold(rig->core, ZD_CMD_COPY);
	uint64_t read = send_read(rig, 1);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		core_do(rig->core, rig->team.session[rank], ZD_REQ_UNIT_UNREGISTER, rig->unit);
	core_unhold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, read, 0);
	expect_bytes(rig, 1);
	core_expect_error(rig->core, send_read(rig, 1), ZEROD_E_NOT_FOUND, "has no unit 'w'");
	assert_int_equal(count_saves(rig), 0);
}

/* The shadow is the pinned commit's only place until then. */
SHADOW_TEST(test_pinned_shadow_is_saved)
{
	pin(rig, rig->reader);
	core_team_publish(&rig->team, rig->unit);
	commit(rig, 2);
	core_expect(rig->core, send_read(rig, 1), 0);
	expect_bytes(rig, 1);
	assert_int_equal(count_saves(rig), 0);
	core_hold(rig->core, ZD_CMD_COPY);
	uint64_t update = core_update(rig->core, rig->team.session[1], rig->unit);
	core_expect_waits(rig->core, update, "rank 1's shard of unit 'w' to be saved");
	core_expect_error(rig->core, send_read(rig, 1), ZEROD_E_BUSY,
	                  "rank 1's shard of step 1 is being saved");
	core_unhold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, update, 0);
	core_expect(rig->core, send_read(rig, 1), 0); /* of a save and a shadow */
	expect_bytes(rig, 1);
	core_expect(rig->core, send_read(rig, 2), 0);
	expect_bytes(rig, 2);
	core_close(rig->core, rig->team.session[1]); /* sets the group back to step 2 */
	core_expect_error(rig->core, send_read(rig, 1), ZEROD_E_STALE_VERSION, "the last commit is step 2");
	assert_int_equal(count_saves(rig), 0);
	core_expect(rig->core, send_read(rig, 2), 0);
	expect_bytes(rig, 2);
}

/* Which has not begun on rank 0. A unit without a published version at that commit has none later. */
SHADOW_TEST(test_shadows_are_pinned_during_an_update)
{
	const struct core_unit options = {.name = "late", .numel = UNIT_BYTES / 4};
	uint64_t late = core_team_register(&rig->team, &options);
	core_team_publish(&rig->team, late);
	core_team_publish_rank(&rig->team, rig->unit, 1);
	assert_int_equal(pin(rig, rig->reader), 1);
	core_team_publish_rank(&rig->team, rig->unit, 0);
	for (uint64_t step = 2; step < 4; step++) {
		commit(rig, step);
		core_expect_error(rig->core, send_read_of(rig, "late", 1), ZEROD_E_STALE_VERSION,
		                  "'late': rank 0's shard of step 1 was not saved");
		core_team_publish(&rig->team, rig->unit);
		core_team_publish(&rig->team, late);
		core_expect(rig->core, send_read(rig, 1), 0);
		expect_bytes(rig, 1);
	}
	assert_int_equal(count_saves(rig), RANKS);
}

/* An optimizer's state is one. */
static void expect_unsaved(struct rig *rig, uint32_t copies)
{
	const struct core_unit options = {.name = "state", .numel = UNIT_BYTES / 4, .unsaved = true};
	uint64_t unit = core_team_register(&rig->team, &options);
	core_team_publish(&rig->team, unit);
	core_team_publish(&rig->team, rig->unit);
	commit(rig, 2);
	pin(rig, rig->reader);
	core_expect(rig->core, send_read_of(rig, "state", 2), 0);
	for (uint64_t step = 3; step < 5; step++) {
		uint32_t before = core_count(rig->core, ZD_CMD_COPY);
		core_team_publish(&rig->team, unit);
		assert_int_equal(core_count(rig->core, ZD_CMD_COPY), before + copies);
		commit(rig, step);
	}
	core_team_publish(&rig->team, rig->unit);
	core_expect_error(rig->core, send_read_of(rig, "state", 2), ZEROD_E_STALE_VERSION,
	                  "was not saved, since it was registered with ZEROD_UNIT_UNSAVED");
	core_expect(rig->core, send_read(rig, 2), 0);
	expect_bytes(rig, 2);
}

READ_TEST(test_unsaved_unit)
{
	expect_unsaved(rig, 0);
}

SHADOW_TEST(test_unsaved_unit_with_shadows)
{
	expect_unsaved(rig, RANKS);
}

/* ---- Mappings ------------------------------------------------------------------------------------------ */

static uint64_t send_map(struct rig *rig, uint32_t device, uint64_t offset, uint64_t mapped)
{
	return core_send(rig->core, rig->reader,
	                 &(struct zd_args){.kind = ZD_REQ_UNIT_READ,
	                                   .u.unit_read = {.group = rig->team.group,
	                                                   .unit = (char *)"w",
	                                                   .step = 1,
	                                                   .offset = offset,
	                                                   .map_bytes = UNIT_BYTES - offset,
	                                                   .device = device,
	                                                   .mapped = mapped}});
}

/* Of the shard of rank 1, or its shadow. Returns what says later whether its bytes have counted. */
static uint64_t expect_map(struct rig *rig, uint64_t offset)
{
	const struct zd_reply *reply = core_expect(rig->core, send_map(rig, 1, offset, 0), 0);
	assert_int_equal(reply->u.unit_read.mapped_bytes, UNIT_BYTES - offset);
	assert_int_equal(reply->place.bytes, UNIT_BYTES - offset);
	for (uint32_t i = 0; i < UNIT_BYTES - offset; i++)
		assert_int_equal(core_bytes(rig->core, reply->place)[i], core_pattern(1, 1));
	return reply->u.unit_read.mapped;
}

static void expect_nowhere(struct rig *rig, uint32_t device, uint64_t offset, uint64_t bytes)
{
	const struct zd_reply *reply = core_expect(rig->core, send_map(rig, device, offset, 0), 0);
	assert_int_equal(reply->u.unit_read.mapped_bytes, bytes);
	assert_int_equal(reply->place.segment, 0);
}

static void expect_stale(struct rig *rig, uint64_t offset, uint64_t mapped)
{
	(void)core_expect(rig->core, send_map(rig, 1, offset, mapped), ZEROD_E_STALE_VERSION);
}

/* It does not wait for the reader, and what was mapped before it counts no more. */
READ_TEST(test_update_revokes_mappings)
{
	uint64_t half = UNIT_BYTES / 2, mapped = expect_map(rig, half + 4);
	expect_nowhere(rig, 1, 4, half - 4); /* in the shard of rank 0, and no further */
	assert_int_equal(core_expect(rig->core, send_map(rig, 0, 4, 0), 0)->place.bytes, half - 4);
	core_expect(rig->core, send_map(rig, 1, half + 4, mapped), 0);
	core_expect(rig->core, core_update(rig->core, rig->team.session[1], rig->unit), 0);
	expect_stale(rig, half + 4, mapped);
	expect_stale(rig, half + 4, 0);
	core_expect(rig->core, core_publish(rig->core, rig->team.session[1], rig->unit), 0);
	expect_stale(rig, half + 4, mapped);
	core_expect(rig->core, send_map(rig, 0, 4, 0), 0);
}

/* A pinned commit is mapped until an update saves it: saves are copied. */
READ_TEST(test_saves_are_not_mapped)
{
	uint64_t half = UNIT_BYTES / 2, mapped;
	pin(rig, rig->reader);
	mapped = expect_map(rig, half);
	core_hold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, update_ahead(rig, 1), 0);
	core_expect_error(rig->core, send_map(rig, 1, half, 0), ZEROD_E_BUSY, "is being saved");
	expect_stale(rig, half, mapped);
	core_unhold(rig->core, ZD_CMD_COPY);
	expect_stale(rig, half, mapped);
	expect_nowhere(rig, 1, half, half);
	core_expect(rig->core, send_read(rig, 1), 0);
	expect_bytes(rig, 1);
}

SHADOW_TEST(test_shadows_are_mapped)
{
	uint64_t half = UNIT_BYTES / 2, shard = expect_map(rig, half), shadow;
	core_team_publish(&rig->team, rig->unit);
	expect_stale(rig, half, shard);
	shadow = expect_map(rig, half);
	core_expect(rig->core, send_map(rig, 1, half, shadow), 0);
	core_team_publish(&rig->team, rig->unit);
	core_expect(rig->core, send_map(rig, 1, half, shadow), 0);
	commit(rig, 2);
	expect_stale(rig, half, shadow);
}

/* Its memory may have had another owner meanwhile. */
READ_TEST(test_replaced_shards_are_stale)
{
	uint64_t mapped = expect_map(rig, UNIT_BYTES / 2);
	core_close(rig->core, rig->team.session[1]);
	replace(rig);
	expect_stale(rig, UNIT_BYTES / 2, mapped);
	core_close(rig->core, rig->reader); /* it has the segments mapped, and they may end */
	for (uint32_t rank = 0; rank < RANKS; rank++)
		core_close(rig->core, rig->team.session[rank]);
}

/* Descriptors can be mapped to write, so none is for another user, who may read by copies. */
READ_TEST(test_who_may_map)
{
	struct zd_peer peer = {.uid = CORE_BOB, .pid = 7, .reads_others = true, .name = "engine"};
	uint64_t alice = rig->reader, mapped = expect_map(rig, UNIT_BYTES / 2);
	struct zd_args both = {.kind = ZD_REQ_UNIT_READ,
	                       .u.unit_read = {.group = rig->team.group,
	                                       .unit = (char *)"w",
	                                       .step = 1,
	                                       .bytes = 4,
	                                       .allocation = rig->into,
	                                       .mapped = mapped}};
	rig->reader = core_open_peer(rig->core, &peer);
	core_expect_error(rig->core, send_map(rig, 1, 0, 0), ZEROD_E_PERMISSION, "others copy its units");
	rig->reader = alice;
	core_expect_error(rig->core, send_map(rig, 9, 0, 0), ZEROD_E_NOT_FOUND, "no device 9");
	core_expect_error(rig->core, core_send(rig->core, alice, &both), ZEROD_E_INVALID, "either copies");
	both.u.unit_read.map_bytes = 4;
	core_expect_error(rig->core, core_send(rig->core, alice, &both), ZEROD_E_INVALID, "either copies");
}
