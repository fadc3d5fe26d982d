/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hostile_sizes.c - sizes that no machine has, and fence pages with any numbers. The client is rank 0 of
 * a group of its own and has published a small unit. The unit tests have the numbers that no request may
 * carry.
 */
#include "tests/it/hostile.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static uint64_t group, unit;

#define REGISTER(...)                                                                                        \
	RAW(UNIT_REGISTER, unit_register, UnitRegister, .group = group, .name = RAW_TEXT("u"), __VA_ARGS__)
#define RELEASE(...) RAW(RELEASE, release, Release, .unit = unit, .tag = RAW_TEXT("t"), __VA_ARGS__)

static void call(Zd__Request *request)
{
	(void)raw_expect(&raw, raw_send(&raw, request), 0);
}

static void scene_open(void)
{
	uint64_t id;

	raw_open(&raw, hostile_socket());
	id = raw_send(&raw, RAW(GROUP_JOIN, group_join, GroupJoin, .job = RAW_TEXT("sizes"),
	                        .group = RAW_TEXT("world"), .world_size = 1));
	group = raw_expect(&raw, id, 0)->group_join->group;
	id = raw_send(&raw, RAW(UNIT_REGISTER, unit_register, UnitRegister, .group = group,
	                        .name = RAW_TEXT("small"), .dtype = ZEROD_FLOAT32, .numel = 100));
	unit = raw_expect(&raw, id, 0)->unit_register->unit;
	call(RAW(UPDATE_BEGIN, update_begin, UpdateBegin, .n_units = 1, .units = &unit));
	call(RAW(PUBLISH, publish, Publish, .n_units = 1, .units = &unit));
}

/* ---- Units and views ----------------------------------------------------------------------------------- */

/* A registration that fails for want of memory leaves no trace: not in its slot, and not in the layout of the
 * target. */
HOSTILE_TEST(test_failed_register_is_forgotten)
{
	uint64_t id, small;

	scene_open();
	for (int i = 0; i < 3; i++) {
		id = raw_send(&raw, REGISTER(.dtype = ZEROD_INT8, .numel = ZD_MAX_BYTES, .slot = 1));
		(void)raw_expect(&raw, id, ZEROD_E_NO_MEMORY);
	}
	id = raw_send(&raw, REGISTER(.dtype = ZEROD_FLOAT32, .numel = 50, .slot = 1));
	small = raw_expect(&raw, id, 0)->unit_register->unit;
	assert_int_equal(raw_expect(&raw, id, 0)->unit_register->target_offset_numel, 128);
	call(RAW(UPDATE_BEGIN, update_begin, UpdateBegin, .n_units = 1, .units = &small));
	call(RAW(PUBLISH, publish, Publish, .n_units = 1, .units = &small));
	call(RAW(GATHER, gather, Gather, .unit = small, .tag = RAW_TEXT("t")));
	call(RAW(RELEASE, release, Release, .unit = small, .tag = RAW_TEXT("t")));
	call(RAW(BACKWARD_BEGIN, backward_begin, BackwardBegin, .group = group, .stage = 3));
	raw_close(&raw);
}

/* The layout of the target does not grow beyond what a number holds, however often somebody registers and
 * unregisters. */
HOSTILE_TEST(test_many_units_of_nothing)
{
	scene_open();
	for (int i = 0; i < 200; i++) {
		uint64_t id = raw_send(&raw, REGISTER(.dtype = ZEROD_FLOAT32, .numel = 1 << 20));

		call(RAW(UNIT_UNREGISTER, unit_unregister, UnitUnregister,
		         .unit = raw_expect(&raw, id, 0)->unit_register->unit));
	}
	call(RAW(BACKWARD_BEGIN, backward_begin, BackwardBegin, .group = group, .stage = 3));
	raw_close(&raw);
}

/* ---- Buckets and fences -------------------------------------------------------------------------------- */

/* Slots of 1 PiB are a promise; it is broken when they are needed. */
HOSTILE_TEST(test_slots_that_no_machine_has)
{
	uint64_t id, bucket;

	scene_open();
	id = raw_send(&raw, RAW(BUCKET_CREATE, bucket_create, BucketCreate, .group = group,
	                        .dtype = ZEROD_FLOAT32, .slot_bytes = ZD_MAX_BYTES, .nslots = 16));
	bucket = raw_expect(&raw, id, 0)->bucket_create->bucket;
	call(RAW(BACKWARD_BEGIN, backward_begin, BackwardBegin, .group = group, .stage = 3));
	id = raw_send(&raw,
	              RAW(BUCKET_RESERVE, bucket_reserve, BucketReserve, .bucket = bucket, .unit = unit));
	RAW_EXPECT_ERROR(&raw, id, ZEROD_E_NO_MEMORY, "1125899906842624 bytes");
	raw_close(&raw);
}

/* A page is the client's to write: whatever it holds, only the writer is concerned. */
HOSTILE_TEST(test_wild_fence_page)
{
	static const uint64_t counters[] = {UINT64_MAX, 1ull << 63, INT64_MAX, 0, 5};
	Zd__Fence fence = ZD__FENCE__INIT, *fences[] = {&fence};

	for (size_t i = 0; i < COUNT(counters); i++) {
		scene_open();
		for (uint32_t timeline = 0; timeline < ZD_TIMELINES; timeline++)
			raw_signal(&raw, timeline, counters[i]);
		fence.timeline = (uint32_t)i;
		fence.value = 7;
		call(RAW(GATHER, gather, Gather, .unit = unit, .tag = RAW_TEXT("t")));
		call(RELEASE(.n_fences = 1, .fences = fences));
		for (uint32_t timeline = 0; timeline < ZD_TIMELINES; timeline++)
			raw_signal(&raw, timeline, 0);
		raw_close(&raw);
	}
}

int main(void)
{
	return test_run(hostile_start, hostile_stop);
}
