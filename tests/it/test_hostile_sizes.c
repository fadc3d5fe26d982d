/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hostile_sizes.c - numbers that no request may carry, and sizes that no machine has.
 *
 * Every line of the table below is one request of a client that is rank 0 of a group of its own, has
 * registered one small unit and published it, and has made one bucket.
 */
#include "tests/it/hostile.h"

#include <math.h>

#define HUGE_NUMEL (1ull << 62)
#define COUNT(a)   (sizeof(a) / sizeof((a)[0]))

static uint64_t group, unit, bucket;

#define REGISTER(...)                                                                                        \
	RAW(UNIT_REGISTER, unit_register, UnitRegister, .group = group, .name = RAW_TEXT("u"), __VA_ARGS__)
#define JOIN(...)                                                                                            \
	RAW(GROUP_JOIN, group_join, GroupJoin, .job = RAW_TEXT("sizes"), .group = RAW_TEXT("other"),         \
	    __VA_ARGS__)
#define ALLOC(...)   RAW(ALLOC, alloc, Alloc, .job = RAW_TEXT("sizes"), __VA_ARGS__)
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
	id = raw_send(&raw, RAW(BUCKET_CREATE, bucket_create, BucketCreate, .group = group,
	                        .dtype = ZEROD_FLOAT32, .slot_bytes = 4096, .nslots = 2));
	bucket = raw_expect(&raw, id, 0)->bucket_create->bucket;
}

struct bad_request {
	Zd__Request *request;
	int status;
	const char *text;
};

static void expect_refused(const struct bad_request *cases, size_t ncases)
{
	for (size_t i = 0; i < ncases; i++)
		RAW_EXPECT_ERROR(&raw, raw_send(&raw, cases[i].request), cases[i].status, cases[i].text);
	/* None of it did harm: the unit is gathered as before. */
	call(RAW(GATHER, gather, Gather, .unit = unit, .tag = RAW_TEXT("t")));
	call(RELEASE(.n_fences = 0));
}

/* ---- Units and views ----------------------------------------------------------------------------------- */

HOSTILE_TEST(test_units)
{
	scene_open();
	const struct bad_request cases[] = {
	        {REGISTER(.dtype = 0, .numel = 1), ZEROD_E_INVALID, "unknown dtype 0"},
	        {REGISTER(.dtype = 12, .numel = 1), ZEROD_E_INVALID, "unknown dtype 12"},
	        {REGISTER(.dtype = UINT32_MAX, .numel = 1), ZEROD_E_INVALID, "unknown dtype 4294967295"},
	        {REGISTER(.dtype = ZEROD_FLOAT32, .numel = 0), ZEROD_E_INVALID, "numel 0"},
	        {REGISTER(.dtype = ZEROD_INT8, .numel = ZD_MAX_BYTES + 1), ZEROD_E_INVALID,
	         "1125899906842625"},
	        {REGISTER(.dtype = ZEROD_INT64, .numel = ZD_MAX_BYTES), ZEROD_E_INVALID, "1125899906842624"},
	        {REGISTER(.dtype = ZEROD_FLOAT32, .numel = HUGE_NUMEL), ZEROD_E_INVALID,
	         "4611686018427387904"}, /* times four: 2^64 */
	        {REGISTER(.dtype = ZEROD_FLOAT32, .numel = (1ull << 63) - 1), ZEROD_E_INVALID,
	         "9223372036854775807"},
	        {REGISTER(.dtype = ZEROD_INT8, .numel = UINT64_MAX), ZEROD_E_INVALID, "18446744073709551615"},
	        {REGISTER(.dtype = ZEROD_FLOAT32, .numel = 1, .slot = ZD_MAX_SLOTS + 1), ZEROD_E_LIMIT,
	         "slot 4097"},
	        {REGISTER(.dtype = ZEROD_FLOAT32, .numel = 1, .slot = UINT32_MAX), ZEROD_E_LIMIT,
	         "slot 4294967295"},
	        {REGISTER(.dtype = ZEROD_INT8, .numel = ZD_MAX_BYTES), ZEROD_E_NO_MEMORY, "do not fit"},
	        {REGISTER(.dtype = ZEROD_INT8, .numel = 65ull << 20), ZEROD_E_NO_MEMORY, "arena 67108864"},
	};

	expect_refused(cases, COUNT(cases));
	raw_close(&raw);
}

/* A unit of 100 elements with one view. */
static Zd__Request *with_view(Zd__View *view, Zd__View **pointer, uint64_t offset, size_t ndim,
                              uint64_t *shape)
{
	static Zd__UnitRegister body;
	static Zd__Request request;

	*view = (Zd__View)ZD__VIEW__INIT;
	view->name = RAW_TEXT("v");
	view->offset_numel = offset;
	view->n_shape = ndim;
	view->shape = shape;
	*pointer = view;
	body = (Zd__UnitRegister)ZD__UNIT_REGISTER__INIT;
	body.group = group;
	body.name = RAW_TEXT("u");
	body.dtype = ZEROD_FLOAT32;
	body.numel = 100;
	body.n_views = 1;
	body.views = pointer;
	request = (Zd__Request)ZD__REQUEST__INIT;
	request.body_case = ZD__REQUEST__BODY_UNIT_REGISTER;
	request.unit_register = &body;
	return &request;
}

HOSTILE_TEST(test_views)
{
	static const struct {
		uint64_t offset, shape[ZD_MAX_DIMS + 1];
		size_t ndim;
		int status;
		const char *text;
	} cases[] = {
	        {0, {101}, 1, ZEROD_E_INVALID, "101 elements at 0 ends behind the unit's 100"},
	        {1, {10, 10}, 2, ZEROD_E_INVALID, "100 elements at 1 ends behind"},
	        {100, {0}, 0, ZEROD_E_INVALID, "1 elements at 100 ends behind"}, /* a scalar */
	        {101, {0}, 1, ZEROD_E_INVALID, "0 elements at 101 ends behind"}, /* empty */
	        {UINT64_MAX, {1}, 1, ZEROD_E_INVALID, "at 18446744073709551615"},
	        {UINT64_MAX - 5, {10}, 1, ZEROD_E_INVALID, "at 18446744073709551610"}, /* offset + 10 is 4 */
	        {0, {1ull << 32, 1ull << 32}, 2, ZEROD_E_INVALID, "product of its shape overflows"},
	        {0, {UINT64_MAX, 2}, 2, ZEROD_E_INVALID, "product of its shape overflows"},
	        {0, {UINT64_MAX}, 1, ZEROD_E_INVALID, "18446744073709551615 elements"},
	        {0, {1ull << 63}, 1, ZEROD_E_INVALID, "9223372036854775808 elements"},
	        {0, {1, 1, 1, 1, 1, 1, 1, 1, 1}, 9, ZEROD_E_LIMIT, "9 dimensions; at most 8"},
	};

	scene_open();
	for (size_t i = 0; i < COUNT(cases); i++) {
		Zd__View view, *views[1];
		uint64_t shape[ZD_MAX_DIMS + 1];

		memcpy(shape, cases[i].shape, sizeof(shape));
		RAW_EXPECT_ERROR(
		        &raw, raw_send(&raw, with_view(&view, views, cases[i].offset, cases[i].ndim, shape)),
		        cases[i].status, cases[i].text);
	}
	expect_refused(NULL, 0);
	raw_close(&raw);
}

HOSTILE_TEST(test_too_many_views)
{
	Zd__View view, *views[ZD_MAX_VIEWS + 1];
	uint64_t shape[1] = {1};
	Zd__Request *request;

	scene_open();
	request = with_view(&view, views, 0, 1, shape);
	for (size_t i = 1; i <= ZD_MAX_VIEWS; i++)
		views[i] = &view;
	request->unit_register->n_views = ZD_MAX_VIEWS + 1;
	RAW_EXPECT_ERROR(&raw, raw_send(&raw, request), ZEROD_E_LIMIT, "257 views", "at most 256");
	expect_refused(NULL, 0);
	raw_close(&raw);
}

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

/* ---- Groups, allocations, buckets, fences -------------------------------------------------------------- */

HOSTILE_TEST(test_groups)
{
	scene_open();
	const struct bad_request cases[] = {
	        {JOIN(.world_size = 0), ZEROD_E_INVALID, "world_size 0"},
	        {JOIN(.world_size = ZD_MAX_WORLD + 1), ZEROD_E_INVALID, "world_size 1025"},
	        {JOIN(.world_size = UINT32_MAX), ZEROD_E_INVALID, "world_size 4294967295"},
	        {JOIN(.world_size = 2, .rank = 2), ZEROD_E_INVALID, "rank 2 of a world of 2"},
	        {JOIN(.world_size = 2, .rank = UINT32_MAX), ZEROD_E_INVALID, "rank 4294967295"},
	        {JOIN(.world_size = 2, .device = 2), ZEROD_E_NOT_FOUND, "no device 2"},
	        {JOIN(.world_size = 2, .device = UINT32_MAX), ZEROD_E_NOT_FOUND, "no device 4294967295"},
	};

	expect_refused(cases, COUNT(cases));
	raw_close(&raw);
}

HOSTILE_TEST(test_allocations)
{
	scene_open();
	const struct bad_request cases[] = {
	        {ALLOC(.bytes = 0), ZEROD_E_INVALID, "0 bytes"},
	        {ALLOC(.bytes = ZD_MAX_BYTES + 1), ZEROD_E_INVALID, "1125899906842625 bytes"},
	        {ALLOC(.bytes = UINT64_MAX), ZEROD_E_INVALID, "18446744073709551615 bytes"},
	        {ALLOC(.bytes = ZD_MAX_BYTES), ZEROD_E_NO_MEMORY, "do not fit on device 0"},
	        {ALLOC(.bytes = (64ull << 20) + 1), ZEROD_E_NO_MEMORY, "arena 67108864 bytes"},
	        {ALLOC(.bytes = 256, .alignment = 3), ZEROD_E_INVALID, "alignment 3"},
	        {ALLOC(.bytes = 256, .alignment = 4ull << 20), ZEROD_E_INVALID, "alignment 4194304"},
	        {ALLOC(.bytes = 256, .alignment = 1ull << 63), ZEROD_E_INVALID, "9223372036854775808"},
	        {ALLOC(.bytes = 256, .device = 2), ZEROD_E_NOT_FOUND, "no device 2"},
	};

	expect_refused(cases, COUNT(cases));
	raw_close(&raw);
}

#define BUCKET(...)   RAW(BUCKET_CREATE, bucket_create, BucketCreate, .group = group, __VA_ARGS__)
#define BACKWARD(...) RAW(BACKWARD_BEGIN, backward_begin, BackwardBegin, .group = group, __VA_ARGS__)

HOSTILE_TEST(test_buckets)
{
	scene_open();
	const struct bad_request cases[] = {
	        {BUCKET(.dtype = 99), ZEROD_E_INVALID, "dtype 99"},
	        {BUCKET(.dtype = ZEROD_INT8), ZEROD_E_UNSUPPORTED, "dtype int8"},
	        {BUCKET(.dtype = ZEROD_FLOAT32, .slot_bytes = ZD_MAX_BYTES + 1), ZEROD_E_LIMIT,
	         "1125899906842625 bytes"},
	        {BUCKET(.dtype = ZEROD_FLOAT32, .slot_bytes = UINT64_MAX), ZEROD_E_LIMIT,
	         "18446744073709551615 bytes"},
	        {BUCKET(.dtype = ZEROD_FLOAT32, .nslots = 17), ZEROD_E_LIMIT, "17 slots"},
	        {BUCKET(.dtype = ZEROD_FLOAT32, .nslots = UINT32_MAX), ZEROD_E_LIMIT, "4294967295 slots"},
	        {BACKWARD(.stage = 4), ZEROD_E_INVALID, "stage 4"},
	        {BACKWARD(.target_dtype = 99), ZEROD_E_INVALID, "dtype 99"},
	        {BACKWARD(.target_dtype = ZEROD_BOOL), ZEROD_E_UNSUPPORTED, "dtype bool"},
	        {RAW(BUCKET_RESERVE, bucket_reserve, BucketReserve, .bucket = bucket, .unit = unit),
	         ZEROD_E_STATE, "runs no backward"},
	        {RAW(BUCKET_SUBMIT, bucket_submit, BucketSubmit, .bucket = bucket, .entry = 987654),
	         ZEROD_E_NOT_FOUND, "no entry 987654"},
	        {RAW(BACKWARD_END, backward_end, BackwardEnd, .group = group), ZEROD_E_STATE, "no backward"},
	        {RAW(STEP_BEGIN, step_begin, StepBegin, .group = group), ZEROD_E_STATE, "no backward"},
	        {RAW(STEP_END, step_end, StepEnd, .group = group), ZEROD_E_STATE, "no step"},
	        {RAW(PUBLISH, publish, Publish, .n_units = 1, .units = &unit), ZEROD_E_STATE, "small"},
	};

	expect_refused(cases, COUNT(cases));
	for (unsigned i = 1; i < ZD_MAX_BUCKETS; i++)
		call(BUCKET(.dtype = ZEROD_FLOAT32));
	RAW_EXPECT_ERROR(&raw, raw_send(&raw, BUCKET(.dtype = ZEROD_FLOAT32)), ZEROD_E_LIMIT, "64 buckets");
	/* Slots of 1 PiB are a promise; it is broken when they are needed. */
	call(RAW(BUCKET_DESTROY, bucket_destroy, BucketDestroy, .bucket = bucket));
	bucket = raw_expect(&raw,
	                    raw_send(&raw, BUCKET(.dtype = ZEROD_FLOAT32, .slot_bytes = ZD_MAX_BYTES,
	                                          .nslots = 16)),
	                    0)
	                 ->bucket_create->bucket;
	call(BACKWARD(.stage = 3));
	RAW_EXPECT_ERROR(&raw,
	                 raw_send(&raw, RAW(BUCKET_RESERVE, bucket_reserve, BucketReserve, .bucket = bucket,
	                                    .unit = unit)),
	                 ZEROD_E_NO_MEMORY, "1125899906842624 bytes");
	raw_close(&raw);
}

HOSTILE_TEST(test_entries)
{
	Zd__Fence fence = ZD__FENCE__INIT;
	uint64_t id, entry;

	fence.value = 1;
	scene_open();
	call(BACKWARD(.stage = 3));
	id = raw_send(&raw,
	              RAW(BUCKET_RESERVE, bucket_reserve, BucketReserve, .bucket = bucket, .unit = unit));
	entry = raw_expect(&raw, id, 0)->bucket_reserve->entry;
#define ENTRY(...)                                                                                           \
	RAW(BUCKET_SUBMIT, bucket_submit, BucketSubmit, .bucket = bucket, .entry = entry, __VA_ARGS__)
	const struct bad_request cases[] = {
	        {ENTRY(.op = 2), ZEROD_E_INVALID, "reduction 2"},
	        {ENTRY(.prescale = NAN), ZEROD_E_INVALID, "not finite"},
	        {ENTRY(.prescale = INFINITY), ZEROD_E_INVALID, "not finite"},
	        {RAW(BUCKET_RESERVE, bucket_reserve, BucketReserve, .bucket = bucket, .unit = unit),
	         ZEROD_E_DUPLICATE, "small"},
	        {RAW(REDUCE_SKIP, reduce_skip, ReduceSkip, .unit = unit), ZEROD_E_DUPLICATE, "small"},
	        {RAW(BACKWARD_END, backward_end, BackwardEnd, .group = group), ZEROD_E_STATE,
	         "not submitted, unit 'small'"},
	        {RAW(BUCKET_DESTROY, bucket_destroy, BucketDestroy, .bucket = bucket), ZEROD_E_BUSY,
	         "1 entry"},
	        {RAW(UNIT_UNREGISTER, unit_unregister, UnitUnregister, .unit = unit), ZEROD_E_BUSY, "small"},
	        {BACKWARD(.stage = 3), ZEROD_E_STATE, "backward 1 of rank 0 runs"},
	};
	expect_refused(cases, COUNT(cases));
	call(ENTRY(.op = 0, .n_fences = 1, .fences = &(Zd__Fence *){&fence}));
	RAW_EXPECT_ERROR(&raw, raw_send(&raw, ENTRY(.op = 0)), ZEROD_E_STATE, "submitted already");
	raw_signal(&raw, 0, 1);
	call(RAW(BACKWARD_END, backward_end, BackwardEnd, .group = group));
	raw_close(&raw);
}

HOSTILE_TEST(test_fences)
{
	Zd__Fence fence = ZD__FENCE__INIT, *fences[ZD_MAX_FENCES + 1];
	static const struct {
		uint32_t timeline;
		uint64_t value;
		const char *text;
	} cases[] = {{ZD_TIMELINES, 1, "timeline 1024"},
	             {UINT32_MAX, 1, "timeline 4294967295"},
	             {0, 0, "value 0"},
	             {0, INT64_MAX, "value 9223372036854775807"},
	             {0, UINT64_MAX, "value 18446744073709551615"}};

	scene_open();
	for (size_t i = 0; i <= ZD_MAX_FENCES; i++)
		fences[i] = &fence;
	call(RAW(GATHER, gather, Gather, .unit = unit, .tag = RAW_TEXT("t")));
	for (size_t i = 0; i < COUNT(cases); i++) {
		fence.timeline = cases[i].timeline;
		fence.value = cases[i].value;
		RAW_EXPECT_ERROR(&raw, raw_send(&raw, RELEASE(.n_fences = 1, .fences = fences)),
		                 ZEROD_E_INVALID, cases[i].text);
		RAW_EXPECT_ERROR(&raw,
		                 raw_send(&raw, RAW(PUBLISH, publish, Publish, .n_units = 1, .units = &unit,
		                                    .n_fences = 1, .fences = fences)),
		                 ZEROD_E_INVALID, cases[i].text);
		RAW_EXPECT_ERROR(&raw,
		                 raw_send(&raw, RAW(STEP_END, step_end, StepEnd, .group = group,
		                                    .n_fences = 1, .fences = fences)),
		                 ZEROD_E_INVALID, cases[i].text);
	}
	fence.timeline = 0;
	fence.value = 1;
	RAW_EXPECT_ERROR(&raw, raw_send(&raw, RELEASE(.n_fences = ZD_MAX_FENCES + 1, .fences = fences)),
	                 ZEROD_E_LIMIT, "65 fences", "at most 64");
	/* The lease has survived all of them. */
	raw_signal(&raw, 0, 1);
	call(RELEASE(.n_fences = ZD_MAX_FENCES, .fences = fences));
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

HOSTILE_TEST(test_counts)
{
	uint64_t units[ZD_MAX_UNITS_PER_REQUEST + 1];

	scene_open();
	for (size_t i = 0; i < COUNT(units); i++)
		units[i] = unit;
	const struct bad_request cases[] = {
	        {RAW(UPDATE_BEGIN, update_begin, UpdateBegin, .n_units = COUNT(units), .units = units),
	         ZEROD_E_LIMIT, "1025 units"},
	        {RAW(PUBLISH, publish, Publish, .n_units = COUNT(units), .units = units), ZEROD_E_LIMIT,
	         "1025 units"},
	        {RAW(UPDATE_BEGIN, update_begin, UpdateBegin, .n_units = 0), ZEROD_E_LIMIT, "0 units"},
	        {RAW(UPDATE_BEGIN, update_begin, UpdateBegin, .n_units = 2, .units = units), ZEROD_E_INVALID,
	         "'small' is given twice"},
	        {RAW(COMMIT, commit, Commit, .group = group, .step = 0), ZEROD_E_STATE, "0 is not after it"},
	};

	expect_refused(cases, COUNT(cases));
	raw_close(&raw);
}

HOSTILE_TEST(test_uses_and_versions)
{
	Zd__Request *future;

	scene_open();
	call(RAW(GATHER, gather, Gather, .unit = unit, .tag = RAW_TEXT("many"), .uses = UINT32_MAX));
	future = RAW(GATHER, gather, Gather, .unit = unit, .tag = RAW_TEXT("t"), .version = UINT64_MAX);
	future->deadline_ms = 20;
	const struct bad_request cases[] = {
	        {RAW(GATHER, gather, Gather, .unit = unit, .tag = RAW_TEXT("many"), .uses = 1), ZEROD_E_LIMIT,
	         "4294967295 uses"},
	        {future, ZEROD_E_DEADLINE, "rank 0 to publish version 18446744073709551615 of unit 'small'"},
	        {RAW(RELEASE, release, Release, .unit = unit, .tag = RAW_TEXT("other")), ZEROD_E_NOT_HELD,
	         "under tag 'other'"},
	};
	expect_refused(cases, COUNT(cases));
	raw_close(&raw);
}

int main(void)
{
	return test_run(hostile_start, hostile_stop);
}
