/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory: the gather budget, segments of the arena, quotas, and who may map what.
 */
#include <stdio.h>

#include "tests/unit/core/team_rig.h"

#define SMALL 1024ull
#define LARGE 4096ull

/* One rank, which gathers copies. */
static void start(struct rig *rig, const struct core_options *options)
{
	struct core_options copying = options ? *options : (struct core_options){.ndevices = 0};
	copying.copies = true;
	rig_open(rig, 1, 0, &copying);
}

#define RIG_TEST(name, ...)                                                                                  \
	TEST_DEFINE(name, struct rig *rig, struct rig rig; start(&rig, &(struct core_options){__VA_ARGS__}), \
	                                                   (name(&rig), core_end(rig.core)), NULL, NULL)

static uint64_t gather(struct rig *rig, uint64_t unit)
{
	return core_gather(rig->core, rig->session, unit);
}

/* ---- The budget ---------------------------------------------------------------------------------------- */

RIG_TEST(test_what_never_fits_fails_at_once, .gather_budget_bytes = SMALL)
{
	uint64_t large = core_team_unit(&rig->team, "large", LARGE);
	core_expect_error(rig->core, gather(rig, large), ZEROD_E_NO_MEMORY,
	                  "unit 'large' needs 4096 bytes; the gather budget of device 0 is 1024");
	/* limits may be reloaded */
	zd_engine_set_gather_budget(core_engine(rig->core), 0, LARGE);
	uint64_t other = core_team_unit(&rig->team, "other", LARGE);
	core_expect(rig->core, gather(rig, large), 0);
	uint64_t waits = gather(rig, other);
	core_expect_waits(rig->core, waits, "gather budget");
	zd_engine_set_gather_budget(core_engine(rig->core), 0, SMALL);
	core_expect_error(rig->core, waits, ZEROD_E_NO_MEMORY, "is 1024");
	zd_engine_set_gather_budget(core_engine(rig->core), 0, 0); /* the arena */
	core_expect(rig->core, gather(rig, other), 0);
}

ENGINE_TEST(test_budget_is_each_devices_own, .gather_budget_bytes = SMALL)
{
	struct core_team team = core_team_new(core, "job", 2, false);
	uint64_t a = core_team_unit(&team, "a", SMALL), b = core_team_unit(&team, "b", SMALL);
	core_expect(core, core_gather(core, team.session[0], a), 0);
	core_expect(core, core_gather(core, team.session[1], b), 0);
	core_expect_waits(core, core_gather(core, team.session[1], a), "device 1's gather budget");
}

RIG_TEST(test_prefetches_yield_to_demand, .gather_budget_bytes = 2 * SMALL)
{
	struct core_row row[3];
	uint64_t a = core_team_unit(&rig->team, "a", SMALL), b = core_team_unit(&rig->team, "b", SMALL);
	uint64_t c = core_team_unit(&rig->team, "c", SMALL);
	core_expect(rig->core, core_prefetch(rig->core, rig->session, a), 0);
	core_expect(rig->core, core_prefetch(rig->core, rig->session, b), 0);
	uint64_t stands_back = core_prefetch(rig->core, rig->session, c);
	core_expect_waits(rig->core, stands_back, "1024 bytes of device 0's gather budget (2048 live)");
	/* the oldest goes; the prefetch that waits does not get in between */
	core_expect(rig->core, gather(rig, c), 0);
	core_expect(rig->core, stands_back, 0); /* joined */
	assert_int_equal(core_rows(rig->core, ZD__TABLE__BUFFERS, row, 3), 2);
	assert_string_equal(row[0].name, "b");
	assert_string_equal(row[1].name, "c");
	core_expect(rig->core, gather(rig, b), 0);
	stands_back = core_prefetch(rig->core, rig->session, a);
	core_expect_waits(rig->core, stands_back, "gather budget");
	/* a prefetch that waits keeps nobody from his turn, and stands behind all who wait */
	uint64_t demand = gather(rig, a);
	core_expect_waits(rig->core, demand, "gather budget");
	core_expect_waits(rig->core, stands_back, "gather");
	release_ok(rig, b);
	core_expect(rig->core, demand, 0);
	core_expect(rig->core, stands_back, 0);
	assert_int_equal(core_usage(rig->core).peak_gathered_bytes, 2 * SMALL);
}

RIG_TEST(test_holders_that_all_wait_are_named, .ndevices = 1, .gather_budget_bytes = 2 * SMALL)
{
	char text[96];
	struct core_team other = core_team_new(rig->core, "other", 1, false);
	uint64_t a = core_team_unit(&rig->team, "a", SMALL), b = core_team_unit(&rig->team, "b", SMALL);
	uint64_t x = core_team_unit(&other, "x", SMALL), y = core_team_unit(&other, "y", SMALL);
	core_expect(rig->core, gather(rig, a), 0);
	core_expect(rig->core, core_gather(rig->core, other.session[0], x), 0);
	uint64_t first = gather(rig, b);
	core_expect_waits(rig->core, first, "1024 bytes of device 0's gather budget (2048 live)");
	struct core_row row;
	core_row(rig->core, ZD__TABLE__SESSIONS, rig->session, &row);
	assert_null(strstr(row.row->session->waits[0], "every holder"));
	(void)core_gather(rig->core, other.session[0], y);
	(void)snprintf(text, sizeof(text), "; every holder waits for room itself: sessions %llu %llu",
	               ZD_ID_NUMBER(rig->session), ZD_ID_NUMBER(other.session[0]));
	core_expect_waits(rig->core, first, text);
	/* a stream that is on its way gives room by itself */
	core_expect(rig->core,
	            core_release_tag(rig->core, rig->session, a, CORE_TAG, &(struct zd_fence){1, 1}, 1), 0);
	core_expect(rig->core, first, 0);
}

RIG_TEST(test_waiting_holds_no_memory)
{
	uint64_t unit = core_team_unit(&rig->team, "w", SMALL);
	core_expect(rig->core, core_update(rig->core, rig->session, unit), 0);
	(void)gather(rig, unit);
	assert_int_equal(gathered_bytes(rig), 0);
	assert_int_equal(core_count(rig->core, ZD_CMD_SEGMENT_CREATE), 1); /* the shards' */
}

/* ---- Segments ------------------------------------------------------------------------------------------ */

RIG_TEST(test_segments_serve_one_job_and_purpose, .ndevices = 1)
{
	struct core_team other = core_team_new(rig->core, "other", 1, false);
	uint64_t unit = core_team_unit(&rig->team, "w", SMALL);
	uint64_t theirs = core_team_unit(&other, "w", SMALL);
	uint32_t a = core_expect(rig->core, gather(rig, unit), 0)->place.segment;
	uint32_t b =
	        core_expect(rig->core, core_gather(rig->core, other.session[0], theirs), 0)->place.segment;
	uint32_t c = core_expect(rig->core, core_alloc(rig->core, rig->session, "job", 0, SMALL), 0)
	                     ->place.segment;
	assert_true(a != b && a != c && b != c);
	assert_int_equal(core_count(rig->core, ZD_CMD_SEGMENT_CREATE), 5);
	/* given back when the job ends */
	core_close(rig->core, other.session[0]);
	assert_int_equal(core_count(rig->core, ZD_CMD_SEGMENT_DESTROY), 2);
	assert_false(core_segment_exists(rig->core, b));
	assert_true(core_segment_exists(rig->core, a));
}

RIG_TEST(test_segments_are_mapped_by_their_job_alone)
{
	struct zd_engine *engine = core_engine(rig->core);
	uint32_t device;
	uint64_t bytes;
	struct core_team other = core_team_new(rig->core, "other", 2, false);
	uint64_t unit = core_team_unit(&rig->team, "w", SMALL);
	uint32_t segment = core_expect(rig->core, gather(rig, unit), 0)->place.segment;
	uint64_t bob = core_open(rig->core, CORE_BOB);
	core_join_ok(rig->core, bob, &(struct core_join){.world_size = 1});
	assert_true(zd_engine_may_map(engine, rig->session, segment));
	assert_false(zd_engine_may_map(engine, other.session[0], segment)); /* another job */
	assert_false(zd_engine_may_map(engine, bob, segment)); /* another uid's, of the same name */
	assert_false(zd_engine_may_map(engine, 9999, segment));
	assert_false(zd_engine_may_map(engine, rig->session, 9999));
	assert_true(zd_engine_segment(engine, segment, &device, &bytes));
	assert_int_equal(device, 0);
	assert_true(bytes >= SMALL);
	assert_false(zd_engine_segment(engine, 9999, &device, &bytes));
	/* another device of the same job is not its business; an allocation there makes it so */
	uint64_t mate = core_open(rig->core, CORE_ALICE);
	assert_false(zd_engine_may_map(engine, mate, segment));
	struct zd_location there =
	        core_expect(rig->core, core_alloc(rig->core, mate, "job", 1, SMALL), 0)->place;
	assert_true(zd_engine_may_map(engine, mate, there.segment));
	assert_false(zd_engine_may_map(engine, mate, segment));
	assert_false(zd_engine_may_map(engine, rig->session, there.segment));
	/* not before it is there */
	core_hold(rig->core, ZD_CMD_SEGMENT_CREATE);
	uint64_t request = core_alloc(rig->core, mate, "job", 0, SMALL);
	assert_true(zd_engine_segment(engine, there.segment + 1, &device, &bytes));
	assert_false(zd_engine_may_map(engine, mate, there.segment + 1));
	core_unhold(rig->core, ZD_CMD_SEGMENT_CREATE);
	assert_int_equal(core_expect(rig->core, request, 0)->place.segment, there.segment + 1);
	assert_true(zd_engine_may_map(engine, mate, there.segment + 1));
}

RIG_TEST(test_segment_that_fails_is_told_to_those_that_waited)
{
	uint64_t unit = core_team_unit(&rig->team, "w", SMALL),
	         other = core_team_unit(&rig->team, "v", SMALL);
	core_hold(rig->core, ZD_CMD_SEGMENT_CREATE);
	uint64_t first = gather(rig, unit), behind = gather(rig, other);
	uint64_t prefetch = core_prefetch(rig->core, rig->session, other);
	core_expect_waits(rig->core, first, "gather: a segment of device 0 to be created");
	core_expect_waits(rig->core, behind, "gathers before it");
	core_fail_next(rig->core, ZD_CMD_SEGMENT_CREATE, ZEROD_E_DEVICE, "cuMemCreate: out of memory");
	core_run_one(rig->core, ZD_CMD_SEGMENT_CREATE);
	core_expect_error(rig->core, first, ZEROD_E_DEVICE, "cuMemCreate: out of memory");
	/* whoever did not wait for that one asks anew */
	core_expect_waits(rig->core, behind, "a segment of device 0 to be created");
	core_unhold(rig->core, ZD_CMD_SEGMENT_CREATE);
	core_expect(rig->core, behind, 0);
	core_expect(rig->core, prefetch, 0);
	core_expect(rig->core, gather(rig, unit), 0);
}

/* Small blocks without room in an earlier segment take none of the segment that is created for a large block,
 * although they were requested before it. */
ENGINE_TEST(test_segment_of_a_large_block_is_its_own, .ndevices = 1, .arena_bytes = 72 * CORE_KIB,
            .segment_bytes = 64 * CORE_KIB)
{
	uint64_t session = core_open(core, CORE_ALICE), small[5];
	core_hold(core, ZD_CMD_SEGMENT_CREATE);
	for (int i = 0; i < 5; i++) /* the first segment has room for four */
		small[i] = core_alloc(core, session, "job", 0, SMALL);
	uint64_t large = core_alloc(core, session, "job", 0, 64 * CORE_KIB);
	for (int i = 0; i < 2; i++)
		core_run_one(core, ZD_CMD_SEGMENT_CREATE);
	core_unhold(core, ZD_CMD_SEGMENT_CREATE);
	for (int i = 0; i < 5; i++)
		core_expect(core, small[i], 0);
	core_expect(core, large, 0);
}

/* ---- A full arena -------------------------------------------------------------------------------------- */

RIG_TEST(test_full_arena, .ndevices = 1, .arena_bytes = 128 * CORE_KIB, .segment_align_bytes = 64 * CORE_KIB)
{
	/* 64 KiB of shards, 64 KiB of gathers */
	uint64_t a = core_team_unit(&rig->team, "a", 16 * CORE_KIB),
	         b = core_team_unit(&rig->team, "b", 24 * CORE_KIB);
	uint64_t c = core_team_unit(&rig->team, "c", 24 * CORE_KIB);
	core_expect(rig->core, gather(rig, a), 0);
	core_expect(rig->core, gather(rig, b), 0);
	core_expect(rig->core, core_prefetch(rig->core, rig->session, c), 0); /* full now */
	/* nothing that holds the rest of the arena would go by itself */
	core_expect_error(
	        rig->core, core_alloc(rig->core, rig->session, "job", 0, SMALL), ZEROD_E_NO_MEMORY,
	        "1024 bytes do not fit on device 0: arena 131072 bytes, 131072 of them in segments");
	core_expect(rig->core,
	            core_register(rig->core, rig->session, rig->team.group,
	                          &(struct core_unit){.name = "d", .numel = 4 * CORE_KIB}),
	            ZEROD_E_NO_MEMORY);
	/* its own segment has room again, without asking for another */
	core_expect(rig->core, gather(rig, c), 0);
	release_ok(rig, c);
	core_expect(rig->core, gather(rig, c), 0);
}

/* Each device has 64 KiB of shards, and room for two copies or two frames. */
static void expect_taken_back(struct core_options options, const char *text)
{
	struct core_driver *core = core_new(&options);
	uint64_t unit[4];
	struct core_row row[3];
	struct core_team team = core_team_new(core, "job", 2, false);
	for (uint32_t i = 0; i < 4; i++)
		unit[i] = core_team_unit(&team, (const char *[]){"a", "b", "c", "d"}[i], 32 * CORE_KIB);
	core_expect(core, core_prefetch(core, team.session[0], unit[0]), 0);
	core_expect(core, core_prefetch(core, team.session[0], unit[1]), 0);
	uint64_t prefetch = core_prefetch(core, team.session[0], unit[2]);
	core_expect_waits(core, prefetch, text);
	core_hold(core, ZD_CMD_COPY);
	core_expect(core, core_gather(core, team.session[0], unit[3]), 0);
	assert_int_equal(core_rows(core, ZD__TABLE__BUFFERS, row, 3), 3);
	assert_string_equal(row[0].name, "b");
	assert_string_equal(row[1].state, "WAITING");
	assert_string_equal(row[2].name, "d");
	core_unhold(core, ZD_CMD_COPY);
	core_end(core);
}

TEST(test_prefetched_memory_is_taken_back)
{
	expect_taken_back((struct core_options){.arena_bytes = 128 * CORE_KIB, .no_frames = true},
	                  "32768 bytes of device 0's arena (0 left)");
	expect_taken_back((struct core_options){.arena_bytes = 96 * CORE_KIB},
	                  "16384 bytes of device 0's arena (0 left)");
}

RIG_TEST(test_gather_waits_for_memory, .ndevices = 1, .arena_bytes = 176 * CORE_KIB,
         .segment_bytes = 32 * CORE_KIB)
{
	struct core_row row;
	uint64_t a = core_team_unit(&rig->team, "a", 24 * CORE_KIB),
	         b = core_team_unit(&rig->team, "b", 40 * CORE_KIB),
	         c = core_team_unit(&rig->team, "c", 32 * CORE_KIB);
	core_expect(rig->core, gather(rig, b), 0);
	core_expect(rig->core, core_prefetch(rig->core, rig->session, a), 0);
	release_ok(rig, b);
	core_expect(rig->core, gather(rig, a), 0);
	core_expect(rig->core, gather(rig, b), 0);
	release_ok(rig, a);
	/* held: its turn comes with a release */
	core_expect(rig->core, gather(rig, a), 0);
	core_expect(rig->core,
	            core_release_tag(rig->core, rig->session, b, CORE_TAG, &(struct zd_fence){2, 1}, 1), 0);
	uint64_t waits = gather(rig, c); /* one of the same size would be promised the block */
	core_expect_waits(rig->core, waits, "32768 bytes of device 0's arena (16384 left)");
	/* what is quarantined comes free without any holder's doing */
	core_row(rig->core, ZD__TABLE__SESSIONS, rig->session, &row);
	assert_null(strstr(row.row->session->waits[0], "every holder"));
	core_pass(rig->core, rig->session, 2, 1);
	core_expect(rig->core, waits, 0);
}

/* Room is given in whole pages: a rest that is smaller than one is no reason to wait. */
RIG_TEST(test_rest_of_an_arena_that_is_no_page, .ndevices = 1, .arena_bytes = 64 * CORE_KIB + 256)
{
	uint64_t unit = core_team_unit(&rig->team, "w", 256);
	core_expect(rig->core, core_alloc(rig->core, rig->session, "job", 0, 60 * CORE_KIB), 0);
	core_expect(rig->core, gather(rig, unit), ZEROD_E_NO_MEMORY);
}

struct segment_sizes {
	struct core_driver *core;
	uint32_t count;
	uint64_t bytes;
};

static void look_at_segments(struct segment_sizes *sizes, uint64_t align_bytes)
{
	*sizes = (struct segment_sizes){.core = sizes->core};
	for (uint32_t id = 1; id <= 16; id++) {
		uint32_t device;
		uint64_t bytes;
		if (!zd_engine_segment(core_engine(sizes->core), id, &device, &bytes))
			continue;
		assert_int_equal(bytes % align_bytes, 0);
		sizes->count++;
		sizes->bytes += bytes;
	}
}

/* Devices that map whole physical allocations say how large those must be; the rest of an arena is nothing
 * then. */
TEST(test_segments_are_multiples_of_the_devices_granularity)
{
	const uint64_t align = 256 * CORE_KIB;
	struct rig rig;
	start(&rig, &(struct core_options){
	                    .ndevices = 1, .arena_bytes = 3 * align + 4096, .segment_align_bytes = align});
	struct segment_sizes sizes = {.core = rig.core};
	uint64_t small = core_team_unit(&rig.team, "small", 256);
	uint64_t large = core_team_unit(&rig.team, "large", align + 4096);
	look_at_segments(&sizes, align);
	assert_int_equal(sizes.count, 2);
	assert_int_equal(sizes.bytes, 3 * align);
	core_expect(rig.core, gather(&rig, small), ZEROD_E_NO_MEMORY);
	core_expect(rig.core, gather(&rig, large), ZEROD_E_NO_MEMORY);
	core_end(rig.core);
}

static struct segment_sizes alloc_all(struct core_driver *core, uint64_t session, const char *job,
                                      const uint64_t *bytes, size_t n)
{
	struct segment_sizes sizes = {.core = core};
	for (size_t i = 0; i < n; i++)
		core_expect(core, core_alloc(core, session, job, 0, bytes[i]), 0);
	look_at_segments(&sizes, CORE_KIB);
	return sizes;
}

/* The first segment is a 64th of the usual size, and each next one as large as all before, up to the usual
 * size. */
ENGINE_TEST(test_segments_grow_with_their_job, .ndevices = 1, .arena_bytes = 2 * CORE_MIB,
            .segment_bytes = 64 * CORE_KIB)
{
	static const uint64_t ones[] = {1}, rest[] = {4 * CORE_KIB, 8 * CORE_KIB, 16 * CORE_KIB};
	static const uint64_t more[] = {4 * CORE_KIB, 28 * CORE_KIB, 4 * CORE_KIB, 60 * CORE_KIB,
	                                4 * CORE_KIB};
	uint64_t session = core_open(core, CORE_ALICE);
	assert_int_equal(alloc_all(core, session, "job", ones, 1).bytes, 4 * CORE_KIB);
	struct segment_sizes sizes = alloc_all(core, session, "job", rest, 3);
	assert_int_equal(sizes.count, 4);
	assert_int_equal(sizes.bytes, 32 * CORE_KIB); /* 4, 4, 8 and 16 */
	sizes = alloc_all(core, session, "job", more, 5);
	assert_int_equal(sizes.count, 7);
	assert_int_equal(sizes.bytes, (32 + 32 + 64 + 64) * CORE_KIB);
	/* another job's first segment is small again */
	assert_int_equal(alloc_all(core, session, "other", ones, 1).bytes, sizes.bytes + 4 * CORE_KIB);
}

/* Jobs of one byte leave the arena to others, whatever their number. */
TEST(test_small_jobs_take_little)
{
	static const uint64_t one = 1;
	struct core_driver *core =
	        core_new(&(struct core_options){.ndevices = 1, .arena_bytes = 64 * CORE_MIB});
	uint64_t alice = core_open(core, CORE_ALICE), bob = core_open(core, CORE_BOB);
	char job[16];
	for (int i = 0; i < 200; i++) {
		(void)snprintf(job, sizeof(job), "job %d", i);
		(void)alloc_all(core, alice, job, &one, 1);
	}
	core_expect(core, core_alloc(core, bob, "job", 0, 50 * CORE_MIB), 0);
	core_close_all(core);
	core_end(core);
}

/* A segment has room for whole blocks of its first one's size: for four of 24 KiB, or for a larger one. */
ENGINE_TEST(test_segments_are_multiples_of_their_first_block, .ndevices = 1, .arena_bytes = 2000 * CORE_KIB,
            .segment_bytes = 100 * CORE_KIB)
{
	static const uint64_t first[] = {100 * CORE_KIB}, next[] = {24 * CORE_KIB},
	                      larger[] = {120 * CORE_KIB};
	uint64_t session = core_open(core, CORE_ALICE);
	assert_int_equal(alloc_all(core, session, "job", first, 1).bytes, 100 * CORE_KIB);
	assert_int_equal(alloc_all(core, session, "job", next, 1).bytes, (100 + 96) * CORE_KIB);
	assert_int_equal(alloc_all(core, session, "job", larger, 1).bytes, (100 + 96 + 120) * CORE_KIB);
}

/* A gather awaits the block of a released buffer only when the pool has its usual size. */
RIG_TEST(test_small_pool_grows_beside_streams, .ndevices = 1, .segment_bytes = 16 * CORE_KIB)
{
	static const struct zd_fence streams[] = {{2, 1}};
	const char *names[] = {"a", "b", "c", "d", "e"};
	struct zd_location at[5];
	for (int i = 0; i < 5; i++) {
		uint64_t unit = core_team_unit(&rig->team, names[i], 4 * CORE_KIB);
		at[i] = core_expect(rig->core, gather(rig, unit), 0)->place;
		core_expect(rig->core, core_release_tag(rig->core, rig->session, unit, CORE_TAG, streams, 1),
		            0);
		for (int j = 0; j < i; j++)
			assert_int_equal(i == 4 && j == 0, /* the oldest */
			                 at[i].segment == at[j].segment && at[i].offset == at[j].offset);
	}
	core_pass(rig->core, rig->session, 2, 1);
}

/* ---- Quotas -------------------------------------------------------------------------------------------- */

RIG_TEST(test_quota_counts_all_of_a_uid, .uid_quota_bytes = 4 * SMALL)
{
	struct core_team other = core_team_new(rig->core, "other", 1, false);
	uint64_t unit = core_team_unit(&rig->team, "w", SMALL); /* 1: its shard */
	core_expect(rig->core, gather(rig, unit), 0);           /* 2 */
	core_expect(rig->core, core_alloc(rig->core, rig->session, "job", 1, SMALL),
	            0);                     /* 3: another device */
	core_team_unit(&other, "w", SMALL); /* 4: another job */
	uint64_t request = core_alloc(rig->core, rig->session, "third", 0, 256);
	core_expect_error(rig->core, request, ZEROD_E_QUOTA,
	                  "uid 1000 holds 4096 bytes and asks for 256 more; its quota is 4096");
	core_expect(rig->core,
	            core_register(rig->core, rig->session, rig->team.group,
	                          &(struct core_unit){.name = "x", .numel = 1}),
	            ZEROD_E_QUOTA);
	core_expect(rig->core, core_alloc(rig->core, core_open(rig->core, CORE_BOB), "job", 0, 4 * SMALL), 0);
	/* released bytes are given back at once */
	core_expect(rig->core,
	            core_release_tag(rig->core, rig->session, unit, CORE_TAG, &(struct zd_fence){1, 1}, 1),
	            0);
	core_expect(rig->core, core_alloc(rig->core, rig->session, "third", 0, SMALL), 0);
	core_expect(rig->core, gather(rig, unit), ZEROD_E_QUOTA);
	zd_engine_set_quota(core_engine(rig->core), SMALL); /* below what is held: nothing is taken away */
	core_expect(rig->core, gather(rig, unit), ZEROD_E_QUOTA);
	zd_engine_set_quota(core_engine(rig->core), 0);
	core_expect(rig->core, gather(rig, unit), 0);
}
