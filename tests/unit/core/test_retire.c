/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Empty segments go back to their device: which, when, and not before every session has unmapped them.
 *
 * An arena is a few segments of 64 KiB here, each filled by one object.
 */
#include <stdio.h>

#include "tests/unit/core/team_rig.h"

#define SEGMENT  (64 * CORE_KIB)
#define UNMAP_NS (30 * UINT64_C(1000000000))

/* One rank and its shards' segment, and a session that is in no group; sessions map what replies name. */
static void start(struct rig *rig, uint32_t segments)
{
	struct core_options options = {
	        .ndevices = 1, .arena_bytes = segments * SEGMENT, .sessions_map = true, .copies = true};
	rig_open(rig, 1, 0, &options);
	rig->other = core_open(rig->core, CORE_ALICE);
}

#define RIG_TEST(name, segments)                                                                             \
	TEST_DEFINE(name, struct rig *rig, struct rig rig;                                                   \
	            start(&rig, segments), (name(&rig), core_end(rig.core)), NULL, NULL)

static uint64_t alloc(struct rig *rig, uint64_t bytes)
{
	return core_alloc(rig->core, rig->other, "alloc", 0, bytes);
}

static void free_behind(struct rig *rig, uint64_t allocation, const struct zd_fence *fence)
{
	core_expect(rig->core, core_free(rig->core, rig->other, allocation, fence), 0);
}

static uint64_t trim(struct rig *rig, uint64_t session, uint64_t keep_bytes)
{
	struct zd_args args = {.kind = ZD_REQ_TRIM, .u.trim = {.device = 0, .keep_bytes = keep_bytes}};
	return core_send(rig->core, session, &args);
}

/* A unit that fills a segment has been gathered and released: returns that segment. */
static uint32_t leave_gathers_segment(struct rig *rig, const char *name)
{
	uint64_t unit = core_team_unit(&rig->team, name, SEGMENT);
	uint32_t segment =
	        core_expect(rig->core, core_gather(rig->core, rig->session, unit), 0)->place.segment;
	core_expect(rig->core, core_release(rig->core, rig->session, unit), 0);
	return segment;
}

static void expect_waits_for(struct rig *rig, uint64_t request, uint64_t session, uint32_t segment)
{
	char text[96];
	struct core_row row;
	core_row(rig->core, ZD__TABLE__SESSIONS, session, &row);
	(void)snprintf(text, sizeof(text), "session %llu (pid %u) to unmap segment %u", ZD_ID_NUMBER(session),
	               row.row->session->pid, segment);
	core_expect_waits(rig->core, request, text);
}

static uint64_t segment_bytes(struct rig *rig)
{
	struct core_row row;
	assert_int_equal(core_rows(rig->core, ZD__TABLE__DEVICES, &row, 1), 1);
	return row.row->device->segment_bytes;
}

/* ---- Memory for others --------------------------------------------------------------------------------- */

TEST(test_empty_gathers_make_room_for_allocations)
{
	struct rig rig;
	start(&rig, 3); /* the shards', the gathers', and one more */
	uint32_t segment = leave_gathers_segment(&rig, "w");
	uint64_t request = alloc(&rig, 2 * SEGMENT);
	assert_int_equal(core_told(rig.core, rig.session), segment);
	expect_waits_for(&rig, request, rig.session, segment);
	assert_true(core_segment_exists(rig.core, segment));
	core_unmap(rig.core, rig.session);
	assert_false(core_segment_exists(rig.core, segment));
	core_expect(rig.core, request, 0);
	assert_int_equal(segment_bytes(&rig), 3 * SEGMENT);
	core_end(rig.core);
}

/* The text of a wait for another user's session has neither its name nor its pid nor its segment. */
RIG_TEST(test_others_are_not_named, 3)
{
	struct core_row row;
	rig->other = core_open(rig->core, CORE_BOB);
	(void)leave_gathers_segment(rig, "w");
	const struct zd_args args = {.kind = ZD_REQ_ALLOC,
	                             .u.alloc = {.job = (char *)"alloc", .bytes = 2 * SEGMENT}};
	uint64_t request = core_send_until(rig->core, rig->other, 1, &args);
	assert_int_equal(core_rows_for(rig->core, rig->other, ZD__TABLE__SESSIONS, NULL, &row, 1), 1);
	assert_string_equal(row.row->session->waits[0],
	                    "alloc: another user's process to unmap memory of device 0");
	core_tick(rig->core, 1);
	const struct zd_reply *reply = core_expect(rig->core, request, ZEROD_E_DEADLINE);
	assert_string_equal(reply->error,
	                    "alloc: waited 0 ms for another user's process to unmap memory of device 0");
	core_unmap(rig->core, rig->session);
}

RIG_TEST(test_nothing_goes_when_all_is_not_enough, 3)
{
	uint32_t segment = leave_gathers_segment(rig, "w");
	core_expect_error(rig->core, alloc(rig, 3 * SEGMENT), ZEROD_E_NO_MEMORY, "do not fit on device 0");
	assert_int_equal(core_told(rig->core, rig->session), 0);
	assert_true(core_segment_exists(rig->core, segment));
}

RIG_TEST(test_segment_in_use_stays, 2)
{
	uint64_t unit = core_team_unit(&rig->team, "w", SEGMENT);
	core_expect(rig->core, core_gather(rig->core, rig->session, unit), 0);
	core_expect_error(rig->core, alloc(rig, SEGMENT), ZEROD_E_NO_MEMORY, "do not fit on device 0");
	/* nor while a stream may still read it */
	core_expect(rig->core,
	            core_release_tag(rig->core, rig->session, unit, CORE_TAG, &(struct zd_fence){1, 1}, 1),
	            0);
	uint64_t request = alloc(rig, SEGMENT);
	core_expect_waits(rig->core, request, "65536 bytes of device 0's arena");
	assert_int_equal(core_told(rig->core, rig->session), 0);
	core_pass(rig->core, rig->session, 1, 1);
	assert_int_not_equal(core_told(rig->core, rig->session), 0);
	core_unmap(rig->core, rig->session);
	core_expect(rig->core, request, 0);
}

RIG_TEST(test_what_nobody_mapped_goes_first_and_at_once, 4)
{
	uint64_t unit = core_team_unit(&rig->team, "w", SEGMENT);
	uint64_t first = core_team_unit(&rig->team, "v", SEGMENT);
	core_expect(rig->core, core_gather(rig->core, rig->session, unit), 0);
	/* a prefetch's reply names no place; the copy is dropped for whoever needs the room */
	core_expect(rig->core, core_prefetch(rig->core, rig->session, first), 0);
	core_expect(rig->core, core_release(rig->core, rig->session, unit), 0);
	core_expect(rig->core, alloc(rig, SEGMENT), 0);
	assert_int_equal(core_told(rig->core, rig->session), 0);
}

RIG_TEST(test_gathers_wait_for_their_own_blocks, 5)
{
	uint64_t a = core_team_unit(&rig->team, "a", SEGMENT);
	uint64_t b = core_team_unit(&rig->team, "b", SEGMENT - 256);
	core_expect(rig->core, alloc(rig, CORE_KIB), 0); /* keeps the job */
	uint64_t large = core_expect(rig->core, alloc(rig, SEGMENT), 0)->u.alloc.allocation;
	free_behind(rig, large, NULL);
	core_expect(rig->core, core_gather(rig->core, rig->session, a), 0);
	core_expect(rig->core,
	            core_release_tag(rig->core, rig->session, a, CORE_TAG, &(struct zd_fence){1, 1}, 1), 0);
	uint64_t request = core_gather(rig->core, rig->session, b);
	core_expect_waits(rig->core, request, "65280 bytes of device 0's arena");
	core_pass(rig->core, rig->session, 1, 1);
	core_expect(rig->core, request, 0);
	assert_int_equal(core_told(rig->core, rig->other), 0);
	/* but when somebody holds what there is, the others' goes */
	request = core_gather(rig->core, rig->session, a);
	assert_int_not_equal(core_told(rig->core, rig->other), 0);
	core_unmap(rig->core, rig->other);
	core_expect(rig->core, request, 0);
}

/* An earlier request, which is tried first, does not retire a segment that is being made for a later one. */
RIG_TEST(test_segment_that_somebody_waits_for_stays, 3)
{
	uint64_t a = core_alloc_ok(rig->core, rig->other, "a", 0, SEGMENT);
	uint64_t d = core_alloc_ok(rig->core, rig->other, "d", 0, SEGMENT);
	free_behind(rig, a, &(struct zd_fence){1, 1});
	free_behind(rig, d, &(struct zd_fence){1, 2});
	uint64_t first = core_alloc(rig->core, rig->other, "b", 0, 2 * SEGMENT);
	core_hold(rig->core, ZD_CMD_SEGMENT_CREATE);
	uint64_t second = core_alloc(rig->core, rig->other, "c", 0, SEGMENT);
	core_pass(rig->core, rig->other, 1, 1);
	core_expect_waits(rig->core, first, "131072 bytes of device 0's arena");
	core_unhold(rig->core, ZD_CMD_SEGMENT_CREATE);
	core_expect(rig->core, second, 0);
	core_pass(rig->core, rig->other, 1, 2);
	core_unmap(rig->core, rig->other);
	core_expect(rig->core, first, 0);
}

/* ---- Sessions that unmap ------------------------------------------------------------------------------- */

RIG_TEST(test_end_of_the_session_is_its_answer, 2)
{
	core_expect(rig->core, core_alloc(rig->core, rig->session, "alloc", 0, CORE_KIB),
	            0); /* keeps the job */
	uint64_t large = core_expect(rig->core, alloc(rig, SEGMENT), 0)->u.alloc.allocation;
	uint64_t mate = core_open(rig->core, CORE_BOB);
	free_behind(rig, large, NULL);
	uint64_t request = core_alloc(rig->core, mate, "theirs", 0, SEGMENT);
	assert_int_not_equal(core_told(rig->core, rig->other), 0);
	expect_waits_for(rig, request, rig->other, core_told(rig->core, rig->other));
	core_close(rig->core, rig->other);
	core_expect(rig->core, request, 0);
}

/* A lingering process of a reader keeps the segments that it mapped, if its session ends first, too. */
TEST(test_reader_that_lingers_keeps_what_it_mapped)
{
	struct core_options options = {.ndevices = 1, .sessions_map = true, .sessions_linger = true};
	struct rig rig = {.core = core_new(&options)};
	rig.team = core_team_new(rig.core, "job", 1, false);
	rig.session = rig.team.session[0];
	rig.other = core_open(rig.core, CORE_ALICE);
	uint64_t unit = core_team_unit(&rig.team, "w", SEGMENT);
	core_expect(rig.core, core_commit(rig.core, rig.session, rig.team.group, 1), 0);
	struct zd_args map = {
	        .kind = ZD_REQ_UNIT_READ,
	        .u.unit_read = {
	                .group = rig.team.group, .unit = (char *)"w", .step = 1, .map_bytes = SEGMENT}};
	uint32_t segment = core_expect(rig.core, core_send(rig.core, rig.other, &map), 0)->place.segment;
	core_close(rig.core, rig.other);
	core_do(rig.core, rig.session, ZD_REQ_UNIT_UNREGISTER, unit);
	uint64_t request = trim(&rig, rig.session, 0);
	core_unmap(rig.core, rig.session);
	expect_waits_for(&rig, request, rig.other, segment);
	core_gone(rig.core, rig.other);
	core_expect(rig.core, request, 0);
	core_end(rig.core);
}

RIG_TEST(test_answers_that_nobody_asked_for, 3)
{
	uint32_t segment = core_expect(rig->core, alloc(rig, SEGMENT), 0)->place.segment;
	uint32_t ids[] = {9999, segment};
	struct zd_args args = {.kind = ZD_REQ_SEGMENTS_UNMAPPED,
	                       .u.segments_unmapped = {.n_segments = 2, .segments = ids}};
	core_expect_error(rig->core, core_send(rig->core, rig->other, &args), ZEROD_E_INVALID,
	                  "nobody has asked for segment");
	core_call(rig->core, rig->session, &args, 0); /* it never had them */
	args.u.segments_unmapped.n_segments = 0;
	core_call(rig->core, rig->other, &args, 0);
}

/* The memory of a job that has ended, and nothing else of it, remains until it is unmapped. */
RIG_TEST(test_end_of_the_job, 4)
{
	struct core_row row;
	uint32_t segment = leave_gathers_segment(rig, "w");
	core_do(rig->core, rig->session, ZD_REQ_GROUP_LEAVE, rig->team.group);
	assert_int_equal(core_rows(rig->core, ZD__TABLE__JOBS, &row, 1), 0);
	assert_int_not_equal(core_told(rig->core, rig->session), 0);
	core_tick(rig->core, UNMAP_NS); /* no request waits for the memory */
	assert_true(core_is_open(rig->core, rig->session) && core_segment_exists(rig->core, segment));
	core_expect(rig->core, core_alloc(rig->core, rig->session, "job", 0, CORE_KIB), 0); /* another job */
	uint64_t request = alloc(rig, 3 * SEGMENT);
	core_expect_waits(rig->core, request, " to unmap segment ");
	core_tick(rig->core, UNMAP_NS + 1); /* now one does */
	assert_false(core_is_open(rig->core, rig->session));
	core_expect(rig->core, request, 0);
	assert_int_equal(segment_bytes(rig), 3 * SEGMENT);
}

/* ---- trim ---------------------------------------------------------------------------------------------- */

RIG_TEST(test_trim_gives_back_what_is_empty, 8)
{
	uint64_t a = core_team_unit(&rig->team, "a", SEGMENT), b = core_team_unit(&rig->team, "b", SEGMENT);
	core_expect(rig->core, core_gather(rig->core, rig->session, a), 0);
	core_expect(rig->core, core_gather(rig->core, rig->session, b), 0);
	uint64_t before = segment_bytes(rig);
	assert_int_equal(core_expect(rig->core, trim(rig, rig->session, 0), 0)->u.trim.freed_bytes, 0);
	core_expect(rig->core, core_release(rig->core, rig->session, a), 0);
	core_expect(rig->core, core_release(rig->core, rig->session, b), 0);
	/* as much as is asked for */
	uint64_t request = trim(rig, rig->session, before - SEGMENT);
	core_unmap(rig->core, rig->session);
	assert_int_equal(core_expect(rig->core, request, 0)->u.trim.freed_bytes, SEGMENT);
	assert_int_equal(segment_bytes(rig), before - SEGMENT);
	request = trim(rig, rig->session, 0);
	core_hold(rig->core, ZD_CMD_SEGMENT_DESTROY);
	core_unmap(rig->core, rig->session);
	core_expect_waits(rig->core, request, "to be given back to device 0");
	core_unhold(rig->core, ZD_CMD_SEGMENT_DESTROY);
	assert_int_equal(core_expect(rig->core, request, 0)->u.trim.freed_bytes, SEGMENT);
	assert_int_equal(segment_bytes(rig), before - 2 * SEGMENT);
	core_team_check(&rig->team, core_expect(rig->core, core_gather(rig->core, rig->session, a), 0), 1);
}

RIG_TEST(test_trim_is_for_ones_own_jobs, 4)
{
	uint32_t segment = leave_gathers_segment(rig, "w");
	uint64_t bob = core_open(rig->core, CORE_BOB), admin = core_open_admin(rig->core);
	assert_int_equal(core_expect(rig->core, trim(rig, bob, 0), 0)->u.trim.freed_bytes, 0);
	assert_int_equal(core_told(rig->core, rig->session), 0);
	uint64_t request = trim(rig, admin, 0), joined = trim(rig, rig->other, 0);
	assert_int_equal(core_told(rig->core, rig->session), segment);
	core_expect(rig->core, trim(rig, bob, 0), 0); /* not his to wait for */
	core_unmap(rig->core, rig->session);
	assert_int_equal(core_expect(rig->core, request, 0)->u.trim.freed_bytes, SEGMENT);
	assert_int_equal(core_expect(rig->core, joined, 0)->u.trim.freed_bytes, SEGMENT);
}

RIG_TEST(test_trim_names_who_does_not_unmap, 4)
{
	struct zd_args args = {.kind = ZD_REQ_TRIM};
	uint32_t segment = leave_gathers_segment(rig, "w");
	uint64_t request = core_send_until(rig->core, rig->other, 1000, &args);
	expect_waits_for(rig, request, rig->session, segment);
	core_tick(rig->core, 1000);
	core_expect_error(rig->core, request, ZEROD_E_DEADLINE, "to unmap segment");
	core_unmap(rig->core, rig->session); /* it goes all the same */
	assert_false(core_segment_exists(rig->core, segment));
	args.u.trim.device = 7;
	core_expect_error(rig->core, core_send(rig->core, rig->other, &args), ZEROD_E_NOT_FOUND,
	                  "no device 7; there are 1");
}

/* A session that does not answer is ended, and another one gets the memory. */
RIG_TEST(test_session_that_does_not_unmap, 2)
{
	uint64_t bob = core_open(rig->core, CORE_BOB), stopped = core_open(rig->core, CORE_ALICE);
	uint64_t kept = core_alloc(rig->core, stopped, "job", 0, SEGMENT);
	struct zd_args args = {.kind = ZD_REQ_FREE};
	args.u.free.allocation = core_expect(rig->core, kept, 0)->u.alloc.allocation;
	core_call(rig->core, stopped, &args, 0);
	core_tick(rig->core, 1000);
	uint64_t wait = core_alloc(rig->core, bob, "job", 0, 2 * SEGMENT);
	core_expect_waits(rig->core, wait, " to unmap segment ");
	core_tick(rig->core, 1001);
	assert_int_equal(zd_engine_next_deadline(core_engine(rig->core)), UNMAP_NS + 1000);
	core_tick(rig->core, UNMAP_NS + 999);
	assert_true(core_is_open(rig->core, stopped));
	core_tick(rig->core, UNMAP_NS + 1000);
	assert_false(core_is_open(rig->core, stopped));
	assert_string_equal(core_killed_why(rig->core, stopped),
	                    "the process has not unmapped unused memory of "
	                    "device 0 for 30 s, which others want");
	assert_true(core_is_open(rig->core, rig->session) && core_is_open(rig->core, rig->other));
	core_expect(rig->core, wait, 0);
	assert_int_equal(zd_engine_next_deadline(core_engine(rig->core)), UINT64_MAX);
}

/* The request that waited for the memory has ended: the session remains until another one waits. */
RIG_TEST(test_memory_that_nobody_awaits_any_more, 2)
{
	uint64_t bob = core_open(rig->core, CORE_BOB), stopped = core_open(rig->core, CORE_ALICE);
	const struct zd_args wants = {.kind = ZD_REQ_ALLOC,
	                              .u.alloc = {.job = (char *)"theirs", .bytes = 2 * SEGMENT}};
	struct zd_args args = {.kind = ZD_REQ_FREE};
	args.u.free.allocation = core_expect(rig->core, core_alloc(rig->core, stopped, "job", 0, SEGMENT), 0)
	                                 ->u.alloc.allocation;
	core_call(rig->core, stopped, &args, 0);
	uint64_t request = core_send_until(rig->core, bob, 1000, &wants);
	core_expect_waits(rig->core, request, " to unmap ");
	core_tick(rig->core, 1000);
	core_expect(rig->core, request, ZEROD_E_DEADLINE);
	core_tick(rig->core, 2 * UNMAP_NS);
	assert_true(core_is_open(rig->core, stopped));
	assert_int_equal(zd_engine_next_deadline(core_engine(rig->core)), UINT64_MAX);
	request = core_send(rig->core, bob, &wants);
	core_tick(rig->core, 2 * UNMAP_NS + 1);
	assert_false(core_is_open(rig->core, stopped));
	core_expect(rig->core, request, 0);
}

/* The memory of a process that may still use the device is kept until the process has left. */
TEST(test_late_process_lingers)
{
	const struct core_options options = {
	        .ndevices = 1, .arena_bytes = 2 * SEGMENT, .sessions_map = true, .sessions_linger = true};
	struct rig rig = {.core = core_new(&options)};
	rig.other = core_open(rig.core, CORE_ALICE);
	core_expect(rig.core, core_alloc(rig.core, core_open(rig.core, CORE_ALICE), "alloc", 0, CORE_KIB), 0);
	uint64_t mate = core_open(rig.core, CORE_BOB);
	free_behind(&rig, core_expect(rig.core, alloc(&rig, SEGMENT), 0)->u.alloc.allocation, NULL);
	uint64_t request = core_alloc(rig.core, mate, "theirs", 0, SEGMENT);
	uint32_t segment = core_told(rig.core, rig.other);
	core_tick(rig.core, UNMAP_NS);
	assert_false(core_is_open(rig.core, rig.other));
	assert_string_not_equal(core_notice(rig.core, 0), "");
	expect_waits_for(&rig, request, rig.other, segment);
	core_tick(rig.core, 3 * UNMAP_NS);
	assert_true(core_segment_exists(rig.core, segment));
	core_gone(rig.core, rig.other);
	core_expect(rig.core, request, 0);
	core_end(rig.core);
}

RIG_TEST(test_trim_drops_prefetches_and_no_slots, 6)
{
	uint64_t slotted = core_team_slot_unit(&rig->team, "slotted", SEGMENT, 1);
	uint64_t unit = core_team_unit(&rig->team, "w", SEGMENT);
	struct zd_location place =
	        core_expect(rig->core, core_gather(rig->core, rig->session, slotted), 0)->place;
	core_expect(rig->core, core_release(rig->core, rig->session, slotted), 0);
	core_expect(rig->core, core_prefetch(rig->core, rig->session, slotted), 0);
	core_expect(rig->core, core_prefetch(rig->core, rig->session, unit), 0);
	assert_int_equal(core_expect(rig->core, trim(rig, rig->session, 0), 0)->u.trim.freed_bytes, SEGMENT);
	struct zd_location again =
	        core_expect(rig->core, core_gather(rig->core, rig->session, slotted), 0)->place;
	assert_true(again.segment == place.segment && again.offset == place.offset);
}

/* A prefetch that is still being filled keeps its segment. */
RIG_TEST(test_trim_waits_for_no_transfer, 6)
{
	uint64_t unit = core_team_unit(&rig->team, "w", SEGMENT);
	core_hold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, core_prefetch(rig->core, rig->session, unit), 0);
	assert_int_equal(core_expect(rig->core, trim(rig, rig->session, 0), 0)->u.trim.freed_bytes, 0);
	core_unhold(rig->core, ZD_CMD_COPY);
	core_team_check(&rig->team, core_expect(rig->core, core_gather(rig->core, rig->session, unit), 0), 1);
}
