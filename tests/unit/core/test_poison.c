/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_poison.c - released buffers of poison sessions are filled with NaN patterns: behind their readers,
 * before anything else is in their memory, and nobody else's.
 */
#include "tests/support/core_net.h"
#include "tests/unit/core/team_rig.h"

#define UNIT_BYTES 512ull
#define NAN_BYTE   0xff

static uint32_t first_fill; /* the number of fills when the test began */

/* Rank 0 is in poison mode, rank 1 is not. */
static void start_as(struct rig *rig, const struct core_options *options, bool strict)
{
	rig->core = core_new(options);
	rig->session = core_open_poison(rig->core, CORE_ALICE, strict);
	core_team_enter(&rig->team, rig->core,
	                (const uint64_t[]){rig->session, core_open(rig->core, CORE_ALICE)}, 2);
	rig->unit = core_team_unit(&rig->team, "w", UNIT_BYTES);
	first_fill = core_count(rig->core, ZD_CMD_FILL);
}

static void start(struct rig *rig, const struct core_options *options)
{
	start_as(rig, options, false);
}

#define RIG_TEST(name) CORE_RIG_TEST(name, struct rig, rig, start(rig, NULL), core_rig_end)

/* So many fills have been given since. */
static void expect_fills(const struct rig *rig, uint32_t more)
{
	assert_int_equal(core_count(rig->core, ZD_CMD_FILL) - first_fill, more);
}

static bool is_filled(struct rig *rig, struct zd_location at)
{
	const uint8_t *bytes = core_bytes(rig->core, at);
	for (uint64_t i = 0; i < at.bytes; i++) {
		if (bytes[i] != NAN_BYTE)
			return false;
	}
	return true;
}

static void release_other(struct rig *rig, uint64_t value)
{
	const struct zd_fence fence = {STREAM, value};
	core_expect(rig->core, core_release_tag(rig->core, rig->session, rig->unit, "other", &fence, 1), 0);
}

/* ---- When ---------------------------------------------------------------------------------------------- */

RIG_TEST(test_behind_the_last_fence_of_every_lease)
{
	const struct zd_reply *reply = gather_ok(rig, rig->unit);
	core_expect(rig->core, core_gather_tag(rig->core, rig->session, rig->unit, "other", 2), 0);
	release_other(rig, 2);
	release_ok(rig, rig->unit);
	pass(rig, 1);
	expect_fills(rig, 0); /* a use is left */
	release_other(rig, 3);
	pass(rig, 2);
	expect_fills(rig, 0);
	core_team_check(&rig->team, reply, 1);
	pass(rig, 3);
	expect_fills(rig, 1);
	assert_true(is_filled(rig, reply->place));
}

/* The bytes are uncharged at once, and the block is quarantined until the fill is done. */
RIG_TEST(test_block_is_quarantined_until_filled)
{
	struct core_row row;
	struct zd_location at = gather_ok(rig, rig->unit)->place;
	core_hold(rig->core, ZD_CMD_FILL);
	release_ok(rig, rig->unit);
	expect_fills(rig, 1);
	assert_int_equal(core_usage(rig->core).gathered_bytes, 0);
	assert_int_equal(core_quarantine(rig->core, 0), UNIT_BYTES);
	assert_int_equal(core_rows(rig->core, ZD__TABLE__BUFFERS, &row, 1), 1);
	assert_string_equal(row.state, "QUARANTINED");
	assert_string_equal(row.row->buffer->waits_for, "its fill with NaN patterns");
	assert_false(is_filled(rig, at));
	core_run_one(rig->core, ZD_CMD_FILL);
	assert_true(is_filled(rig, at));
	assert_int_equal(core_quarantine(rig->core, 0), 0);
}

/* It is its rank's own memory that goes, though the session stays. */
RIG_TEST(test_what_a_rank_leaves_behind)
{
	(void)gather_ok(rig, rig->unit);
	core_do(rig->core, rig->session, ZD_REQ_GROUP_LEAVE, rig->team.group);
	expect_fills(rig, 1);
}

/* ---- What comes behind --------------------------------------------------------------------------------- */

/* A block that is promised twice in a row is filled twice, each time between two units. */
TEST(test_promised_block)
{
	struct rig rig;
	uint64_t units[3];
	const struct zd_reply *replies[3];
	start(&rig, &(struct core_options){
	                    .ndevices = 1, .arena_bytes = 68 * CORE_KIB, .segment_bytes = 4 * CORE_KIB});
	for (uint32_t i = 0; i < 3; i++) {
		char name[] = {(char)('a' + i), 0};
		units[i] = core_team_unit(&rig.team, name, 10 * CORE_KIB);
	}
	first_fill = core_count(rig.core, ZD_CMD_FILL);
	for (uint32_t i = 0; i < 3; i++) {
		replies[i] = gather_ok(&rig, units[i]);
		expect_same(replies[i]->place, replies[0]->place);
		release_after(&rig, units[i], i + 1);
	}
	for (uint32_t i = 0; i < 3; i++) {
		expect_fills(&rig, i);
		core_team_check(&rig.team, replies[i], 1);
		pass(&rig, i + 1);
	}
	expect_fills(&rig, 3);
	assert_true(is_filled(&rig, replies[0]->place));
	core_end(rig.core);
}

/* Strict sessions are promised nothing: the next unit waits until the slot has been filled. */
TEST(test_strict_waits_for_the_fill)
{
	struct rig rig;
	start_as(&rig, NULL, true);
	uint64_t a = core_team_slot_unit(&rig.team, "a", UNIT_BYTES, 1);
	uint64_t b = core_team_slot_unit(&rig.team, "b", UNIT_BYTES, 1);
	struct zd_location at = gather_ok(&rig, a)->place;
	core_hold(rig.core, ZD_CMD_FILL);
	release_ok(&rig, a);
	uint64_t next = core_gather(rig.core, rig.session, b);
	core_expect_waits(rig.core, next, "slot 1, which unit 'a' leaves");
	core_run_one(rig.core, ZD_CMD_FILL);
	core_unhold(rig.core, ZD_CMD_FILL);
	expect_same(core_expect(rig.core, next, 0)->place, at);
	core_end(rig.core);
}

/* A device that fails a fill breaks no promise. */
RIG_TEST(test_fill_that_fails)
{
	uint64_t a = core_team_slot_unit(&rig->team, "a", UNIT_BYTES, 1);
	uint64_t b = core_team_slot_unit(&rig->team, "b", UNIT_BYTES, 1);
	(void)gather_ok(rig, a);
	release_after(rig, a, 1);
	const struct zd_reply *next = gather_ok(rig, b);
	core_fail_next(rig->core, ZD_CMD_FILL, ZEROD_E_DEVICE, "ECC error");
	pass(rig, 1);
	core_team_check(&rig->team, next, 1);
	core_team_publish(&rig->team, rig->unit); /* the session is not POISONED */
}

/* ---- What is not filled -------------------------------------------------------------------------------- */

RIG_TEST(test_other_sessions)
{
	const struct zd_reply *reply =
	        core_expect(rig->core, core_gather(rig->core, rig->team.session[1], rig->unit), 0);
	core_expect(rig->core, core_release(rig->core, rig->team.session[1], rig->unit), 0);
	expect_fills(rig, 0);
	core_team_check(&rig->team, reply, 1);
	assert_int_equal(core_quarantine(rig->core, 1), 0);
}

/* A persistent copy is filled when it ends, however it was refreshed before: in place, and behind streams
 * that still read the former version. */
RIG_TEST(test_persistent_copies)
{
	core_expect(rig->core, core_set_persistent(rig->core, rig->session, rig->unit, true), 0);
	struct zd_location at = gather_ok(rig, rig->unit)->place;
	release_ok(rig, rig->unit);
	core_team_publish(&rig->team, rig->unit);
	expect_same(gather_ok(rig, rig->unit)->place, at);
	release_after(rig, rig->unit, 1);
	core_team_publish(&rig->team, rig->unit);
	core_expect(rig->core, core_prefetch(rig->core, rig->session, rig->unit), 0);
	pass(rig, 1);
	expect_fills(rig, 0);
	core_expect(rig->core, core_set_persistent(rig->core, rig->session, rig->unit, false), 0);
	expect_fills(rig, 1);
	assert_true(is_filled(rig, at));
}

/* A copy that leaves its slot by set_slot is filled, and the slot's block is free behind that. */
RIG_TEST(test_slot_that_is_left)
{
	uint64_t unit = core_team_slot_unit(&rig->team, "a", UNIT_BYTES, 1);
	first_fill = core_count(rig->core, ZD_CMD_FILL);
	core_expect(rig->core, core_set_persistent(rig->core, rig->session, unit, true), 0);
	struct zd_location at = gather_ok(rig, unit)->place;
	release_ok(rig, unit);
	struct zd_args args = {.kind = ZD_REQ_SET_SLOT, .u.set_slot = {.unit = unit, .slot = ZEROD_NO_SLOT}};
	core_call(rig->core, rig->session, &args, 0);
	expect_fills(rig, 1);
	assert_true(is_filled(rig, at));
}

/* ---- Sessions that end --------------------------------------------------------------------------------- */

/* With an heir that waits for it. */
TEST(test_session_ends_during_the_fill)
{
	for (int lingers = 0; lingers < 2; lingers++) {
		struct rig rig;
		start(&rig, &(struct core_options){.sessions_linger = lingers});
		uint64_t a = core_team_slot_unit(&rig.team, "a", UNIT_BYTES, 1);
		uint64_t b = core_team_slot_unit(&rig.team, "b", UNIT_BYTES, 1);
		first_fill = core_count(rig.core, ZD_CMD_FILL);
		(void)gather_ok(&rig, a);
		core_hold(rig.core, ZD_CMD_FILL);
		release_ok(&rig, a);
		(void)gather_ok(&rig, b);
		core_close(rig.core, rig.session);
		core_unhold(rig.core, ZD_CMD_FILL);
		if (lingers)
			core_gone(rig.core, rig.session);
		expect_fills(&rig, 1);
		assert_int_equal(core_quarantine(rig.core, 0), 0);
		core_end(rig.core);
	}
}

/* ---- One shard, and shards of several daemons ---------------------------------------------------------- */

/* A rank's released buffer is filled when its neighbour has copied from it. */
NODES_TEST(test_ranks_of_several_daemons, .options = {.copies = true})
{
	struct core_driver *core;
	uint64_t unit[CORE_NODES], request[4];
	const struct zd_reply *reply;
	core_nodes_unit(nodes, "w", 1024, unit);
	core = core_nodes_core(nodes, 0);
	uint32_t fills = core_count(core, ZD_CMD_FILL);
	for (uint32_t rank = 0; rank < 4; rank += 2)
		request[rank] = core_gather(core_nodes_core(nodes, rank), core_nodes_session(nodes, rank),
		                            unit[rank / 2]);
	reply = core_expect(core, request[0], 0);
	core_expect(core, core_release(core, core_nodes_session(nodes, 0), unit[0]), 0);
	assert_int_equal(core_count(core, ZD_CMD_FILL), fills);
	for (uint32_t rank = 1; rank < 4; rank += 2)
		request[rank] = core_gather(core_nodes_core(nodes, rank), core_nodes_session(nodes, rank),
		                            unit[rank / 2]);
	core_team_check(core_nodes_team(nodes, 1), core_expect(core, request[1], 0), 1);
	assert_int_equal(core_count(core, ZD_CMD_FILL), fills + 1);
	assert_true(is_filled(&(struct rig){.core = core}, reply->place));
}
