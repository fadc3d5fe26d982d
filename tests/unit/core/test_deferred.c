/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_deferred.c - gathers that are answered before their copies may begin: places that are still read, and
 * versions that are still being published. A promised copy writes nothing early, always comes or frees its
 * streams, and waits for nothing but work that ends by itself.
 */
#include "core/gather/buffer.h"
#include "tests/unit/core/team_rig.h"

#define UNIT_BYTES 512ull
#define NRANKS     2

#define RIG_TEST(name) CORE_RIG_TEST(name, struct rig, rig, rig_open(rig, NRANKS, 0, NULL), core_rig_end)

static bool is_aborted(struct rig *rig, const struct zd_reply *reply)
{
	for (uint32_t i = 0; i < reply->fences.count; i++) {
		uint32_t timeline = reply->fences.fences[i].timeline;
		if (core_timeline(rig->core, reply->session, timeline) != (uint64_t)ZD_FENCE_ABORTED)
			return false;
	}
	return reply->fences.count > 0;
}

static void write_version(struct rig *rig, uint64_t unit, uint32_t rank)
{
	core_expect(rig->core, core_update(rig->core, rig->team.session[rank], unit), 0);
	core_team_write(&rig->team, unit, rank);
}

/* Rank `rank` publishes behind timeline 5 of its page. */
static uint64_t publish_after(struct rig *rig, uint64_t unit, uint32_t rank, uint64_t value)
{
	return core_publish_after(rig->core, rig->team.session[rank], unit,
	                          (struct zd_fence){PUBLISHER, value});
}

/* ---- Places that are still read ------------------------------------------------------------------------ */

/* Only where no block is free. */
RIG_TEST(test_free_block_comes_before_a_promised_one)
{
	uint64_t a = core_team_unit(&rig->team, "a", UNIT_BYTES),
	         b = core_team_unit(&rig->team, "b", UNIT_BYTES);
	gather_ok(rig, a);
	release_after(rig, a, 1);
	assert_true(is_there(rig, gather_ok(rig, b)));
}

/* Transfers of a session begin in the order of their promises, since their fences share counters. */
RIG_TEST(test_promises_begin_in_order)
{
	uint64_t a = core_team_slot_unit(&rig->team, "a", UNIT_BYTES, 1);
	uint64_t b = core_team_slot_unit(&rig->team, "b", UNIT_BYTES, 1);
	uint64_t c = core_team_slot_unit(&rig->team, "c", UNIT_BYTES, 2);
	uint64_t d = core_team_slot_unit(&rig->team, "d", UNIT_BYTES, 2);
	uint64_t e = core_team_slot_unit(&rig->team, "e", UNIT_BYTES, 3);
	gather_ok(rig, a);
	release_after(rig, a, 2);
	gather_ok(rig, c);
	const struct zd_fence sooner = {.timeline = 4, .value = 1};
	core_expect(rig->core, core_release_tag(rig->core, rig->session, c, CORE_TAG, &sooner, 1), 0);
	const struct zd_reply *first = gather_ok(rig, b), *second = gather_ok(rig, d);
	core_pass(rig->core, rig->session, 4, 1);
	assert_false(is_there(rig, second));
	assert_true(is_there(rig, gather_ok(rig, e))); /* what waits for nothing waits for none of them */
	pass(rig, 2);
	assert_true(is_there(rig, first));
	assert_true(is_there(rig, second));
}

/* A place that a lease still holds is not promised: its release depends on the client's next call. */
RIG_TEST(test_held_place_is_not_promised)
{
	uint64_t a = core_team_slot_unit(&rig->team, "a", UNIT_BYTES, 1);
	uint64_t b = core_team_slot_unit(&rig->team, "b", UNIT_BYTES, 1);
	gather_ok(rig, a);
	uint64_t prefetch = core_prefetch(rig->core, rig->session, b);
	core_expect_waits(rig->core, prefetch, "slot 1, which unit 'a' leaves");
	core_expect(rig->core, core_gather(rig->core, rig->session, b), ZEROD_E_SLOT_CONFLICT);
	release_after(rig, a, 1);
	core_expect(rig->core, prefetch, 0);
	const struct zd_reply *joined = gather_ok(rig, b);
	assert_false(is_there(rig, joined));
	pass(rig, 1);
	core_team_check(&rig->team, joined, 1);
}

/* The process of another session may wait for a collective with this one. */
TEST(test_block_of_another_session_is_not_promised)
{
	struct rig rig;
	rig_open(&rig, NRANKS, 0,
	         &(struct core_options){
	                 .ndevices = 1, .arena_bytes = 36 * CORE_KIB, .segment_bytes = 4 * CORE_KIB});
	uint64_t a = core_team_unit(&rig.team, "a", 12 * CORE_KIB);
	gather_ok(&rig, a);
	release_after(&rig, a, 1);
	uint64_t waits = core_gather(rig.core, rig.team.session[1], a);
	core_expect_waits(rig.core, waits, "12288 bytes of device 0's arena");
	pass(&rig, 1);
	core_expect(rig.core, waits, 0);
	core_end(rig.core);
}

/* ---- Versions that are being published ----------------------------------------------------------------- */

/* A prefetched copy of the new version outlives the publish that it waited for. */
RIG_TEST(test_publish_keeps_what_was_promised)
{
	uint64_t unit = core_team_unit(&rig->team, "w", UNIT_BYTES);
	for (uint32_t rank = 0; rank < NRANKS; rank++) {
		write_version(rig, unit, rank);
		publish_after(rig, unit, rank, 1);
	}
	core_expect(rig->core, core_prefetch(rig->core, rig->session, unit), 0);
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		core_pass(rig->core, rig->team.session[rank], PUBLISHER, 1);
	assert_int_equal(core_count(rig->core, ZD_CMD_COPY), NRANKS);
	core_team_check(&rig->team, gather_ok(rig, unit), 2);
	assert_int_equal(core_count(rig->core, ZD_CMD_COPY), NRANKS);
}

/* ---- What does not come -------------------------------------------------------------------------------- */

/* The publisher dies before its stream has come so far: who was promised its version is freed. */
RIG_TEST(test_publisher_dies)
{
	uint64_t unit = core_team_unit(&rig->team, "w", UNIT_BYTES),
	         other = core_team_unit(&rig->team, "v", UNIT_BYTES);
	for (uint32_t rank = 0; rank < NRANKS; rank++) {
		write_version(rig, unit, rank);
		publish_after(rig, unit, rank, 1);
	}
	const struct zd_reply *reply = gather_ok(rig, unit);
	core_close(rig->core, rig->team.session[1]);
	assert_true(is_aborted(rig, reply));
	core_expect_told(rig->core, rig->session, rig->team.group, "rank 1");
	core_expect(rig->core, core_update(rig->core, rig->session, other), ZEROD_E_POISONED);
	assert_int_equal(core_count(rig->core, ZD_CMD_COPY), 0);
	core_expect(rig->core, core_release(rig->core, rig->session, unit), 0);
	core_do(rig->core, rig->session, ZD_REQ_SESSION_RESET, 0);
	assert_false(is_aborted(rig, reply));
}

/* The one that was promised something dies, in the middle of a chain. */
TEST(test_reader_dies)
{
	struct rig rig;
	rig_open(&rig, NRANKS, 0, &(struct core_options){.sessions_linger = true});
	uint64_t a = core_team_slot_unit(&rig.team, "a", UNIT_BYTES, 1);
	uint64_t b = core_team_slot_unit(&rig.team, "b", UNIT_BYTES, 1);
	uint64_t c = core_team_unit(&rig.team, "c", UNIT_BYTES);
	gather_ok(&rig, a);
	release_after(&rig, a, 1);
	gather_ok(&rig, b);
	release_after(&rig, b, 2);
	gather_ok(&rig, a);
	for (uint32_t rank = 0; rank < NRANKS; rank++) {
		write_version(&rig, c, rank);
		publish_after(&rig, c, rank, 1);
	}
	gather_ok(&rig, c);
	uint32_t copies = core_count(rig.core, ZD_CMD_COPY);
	core_close(rig.core, rig.session);
	core_pass(rig.core, rig.team.session[1], PUBLISHER, 1);
	core_gone(rig.core, rig.session);
	assert_int_equal(core_count(rig.core, ZD_CMD_COPY), copies);
	core_end(rig.core);
}

/* A poisoned session is promised nothing, since its reset passes all values that were given out. */
RIG_TEST(test_poisoned_session_waits)
{
	uint64_t a = core_team_slot_unit(&rig->team, "a", UNIT_BYTES, 1);
	uint64_t b = core_team_slot_unit(&rig->team, "b", UNIT_BYTES, 1);
	uint64_t c = core_team_unit(&rig->team, "c", UNIT_BYTES);
	gather_ok(rig, a);
	release_after(rig, a, 1);
	core_fail_next(rig->core, ZD_CMD_COPY, ZEROD_E_DEVICE, "the link is gone");
	gather_ok(rig, c);
	uint64_t waits = core_gather(rig->core, rig->session, b);
	core_expect_waits(rig->core, waits, "slot 1, which unit 'a' leaves");
	pass(rig, 1);
	core_expect(rig->core, waits, 0);
}

/* Rank 0 is in poison mode, or none is. */
static void start_poisoned(struct rig *rig, bool poison)
{
	uint64_t request[NRANKS];
	*rig = (struct rig){.core = core_new(NULL)};
	rig->team = (struct core_team){.core = rig->core, .world_size = NRANKS, .nranks = NRANKS};
	for (uint32_t rank = 0; rank < NRANKS; rank++) {
		const struct core_join join = {.world_size = NRANKS, .rank = rank, .device = rank};
		rig->team.session[rank] = poison && rank == 0 ? core_open_poison(rig->core, CORE_ALICE, false)
		                                              : core_open(rig->core, CORE_ALICE);
		request[rank] = core_join(rig->core, rig->team.session[rank], &join);
	}
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		rig->team.group = core_expect(rig->core, request[rank], 0)->u.group_join.group;
	rig->session = rig->team.session[0];
}

static const struct zd_reply *gather_second(struct rig *rig, uint64_t unit)
{
	return core_expect(rig->core, core_gather_version(rig->core, rig->session, unit, 2), 0);
}

/* A persistent copy is to be refreshed in memory that streams still read, and the publish fails that the
 * refresh waits for. The next refresh is promised the same memory once more. With poison the memory is filled
 * only when the copy ends. */
static void refresh_after_a_failed_publish(bool poison)
{
	struct rig rig;
	start_poisoned(&rig, poison);
	uint64_t unit = core_team_unit(&rig.team, "w", UNIT_BYTES);
	uint32_t fills = core_count(rig.core, ZD_CMD_FILL);
	core_expect(rig.core, core_set_persistent(rig.core, rig.session, unit, true), 0);
	struct zd_location at = gather_ok(&rig, unit)->place;
	release_after(&rig, unit, 1);
	for (uint32_t rank = 0; rank < NRANKS; rank++)
		write_version(&rig, unit, rank);
	const struct zd_fence fence = {.timeline = 5, .value = 1};
	struct zd_args args = {
	        .kind = ZD_REQ_PUBLISH, .u.publish = {.n_units = 1, .units = &unit}, .fences = {1, &fence}};
	uint64_t fails = core_send_until(rig.core, rig.session, 100, &args);
	publish_after(&rig, unit, 1, 1);
	const struct zd_reply *promised = gather_second(&rig, unit);
	expect_same(promised->place, at);
	core_tick(rig.core, 100);
	core_expect(rig.core, fails, ZEROD_E_DEADLINE);
	assert_true(is_aborted(&rig, promised));
	core_expect(rig.core, core_release(rig.core, rig.session, unit), 0);
	core_do(rig.core, rig.session, ZD_REQ_SESSION_RESET, 0);

	publish_after(&rig, unit, 0, 2);
	const struct zd_reply *again = gather_second(&rig, unit);
	expect_same(again->place, at);
	core_pass(rig.core, rig.session, PUBLISHER, 2);
	core_pass(rig.core, rig.team.session[1], PUBLISHER, 1);
	assert_false(is_there(&rig, again));
	pass(&rig, 1);
	assert_true(is_there(&rig, again));
	core_team_check(&rig.team, again, 2);
	assert_int_equal(core_count(rig.core, ZD_CMD_FILL), fills);
	core_expect(rig.core, core_set_persistent(rig.core, rig.session, unit, false), 0);
	core_expect(rig.core, core_release(rig.core, rig.session, unit), 0);
	assert_int_equal(core_count(rig.core, ZD_CMD_FILL), fills + poison);
	core_end(rig.core);
}

TEST(test_refresh_is_promised_again_after_a_failed_publish)
{
	refresh_after_a_failed_publish(false);
	refresh_after_a_failed_publish(true);
}

/* A copy that began before a reset fails after it. The executor has aborted the timeline, and the streams of
 * later gathers are freed with it: the session is poisoned again, and the next reset ends the abort. */
RIG_TEST(test_copy_fails_after_a_reset)
{
	uint64_t unit = core_team_unit(&rig->team, "w", UNIT_BYTES);
	core_hold(rig->core, ZD_CMD_COPY);
	gather_ok(rig, unit);
	core_expect(rig->core, core_release(rig->core, rig->session, unit), 0);
	core_do(rig->core, rig->session, ZD_REQ_SESSION_RESET, 0);
	gather_ok(rig, unit);
	core_fail_next(rig->core, ZD_CMD_COPY, ZEROD_E_DEVICE, "the link is gone");
	core_run_on(rig->core, ZD_CMD_COPY, 1);
	core_expect(rig->core, core_release(rig->core, rig->session, unit), 0);
	core_unhold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, core_commit(rig->core, rig->session, rig->team.group, 1), ZEROD_E_POISONED);
	core_do(rig->core, rig->session, ZD_REQ_SESSION_RESET, 0);
	const struct zd_reply *reply = gather_ok(rig, unit);
	assert_true(is_there(rig, reply));
	core_team_check(&rig->team, reply, 1);
}

/* A copy that fails breaks the promise of its own heir, which waits for nothing else then and is released
 * already: both end with it. */
RIG_TEST(test_failed_copy_ends_its_heir)
{
	uint64_t a = core_team_slot_unit(&rig->team, "a", UNIT_BYTES, 1);
	uint64_t b = core_team_slot_unit(&rig->team, "b", UNIT_BYTES, 1);
	gather_ok(rig, a);
	release_after(rig, a, 1);
	const struct zd_reply *first = gather_ok(rig, b);
	core_expect(rig->core, core_release(rig->core, rig->session, b), 0);
	gather_ok(rig, a);
	core_expect(rig->core, core_release(rig->core, rig->session, a), 0);
	core_hold(rig->core, ZD_CMD_COPY);
	pass(rig, 1);
	assert_int_equal(core_pending(rig->core, ZD_CMD_COPY), NRANKS);
	core_fail_next(rig->core, ZD_CMD_COPY, ZEROD_E_DEVICE, "the link is gone");
	core_run_one(rig->core, ZD_CMD_COPY);
	assert_true(is_aborted(rig, first));
	core_unhold(rig->core, ZD_CMD_COPY);
	assert_int_equal(core_count(rig->core, ZD_CMD_COPY), 2 * NRANKS);
	core_do(rig->core, rig->session, ZD_REQ_SESSION_RESET, 0);
	core_team_check(&rig->team, gather_ok(rig, b), 1);
}
