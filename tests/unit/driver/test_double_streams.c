/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_double_streams.c - the driver's double: order in streams and queues, fences, events.
 *
 * What has not happened yet is shown by order, never by waiting a while: work that would have seen too much
 * had it run early reads a word that is set before it may run.
 */
#include "tests/unit/driver/double_fixture.h"

/* Words of the page: what streams wait for, and what they write. */
enum { FENCE, FENCE_B, X, Y, Z };

static zd_cu_ptr word_at(struct page page, int word)
{
	return page.device + 8 * (zd_cu_ptr)word;
}

static void wait_for(const struct zd_cuda *cuda, struct CUstream_st *stream, struct page page, int word,
                     uint64_t value)
{
	MUST(cuda->streamWaitValue64(stream, word_at(page, word), value, ZD_CU_WAIT_GEQ));
}

static void write_to(const struct zd_cuda *cuda, struct CUstream_st *stream, struct page page, int word,
                     uint64_t value)
{
	MUST(cuda->streamWriteValue64(stream, word_at(page, word), value, ZD_CU_WRITE_DEFAULT));
}

static void copy_word(const struct zd_cuda *cuda, struct CUstream_st *stream, struct page page, int to,
                      int from)
{
	MUST(cuda->memcpyAsync(word_at(page, to), word_at(page, from), 8, stream));
}

/* Time for what would run too early to do so. The tests pass without it, but see less. */
static void let_others_run(const struct zd_cuda *cuda)
{
	struct CUstream_st *stream = new_stream(cuda);
	struct page page = new_page(cuda);

	for (uint64_t i = 1; i < 100; i++) {
		write_to(cuda, stream, page, X, i);
		MUST(cuda->streamSynchronize(stream));
	}
}

/* ---- Hardware queues ----------------------------------------------------------------------------------- */

/* Streams 1 and 3 of three share the first of two queues. */
DRIVER_TEST(test_streams_share_queues, "CUDA_DEVICE_MAX_CONNECTIONS=2")
{
	struct CUstream_st *a = new_stream(cuda), *b = new_stream(cuda), *c = new_stream(cuda);
	struct page page = new_page(cuda);

	wait_for(cuda, a, page, FENCE, 1);
	write_to(cuda, a, page, X, 1);
	copy_word(cuda, b, page, Y, X);
	copy_word(cuda, c, page, Z, X);
	MUST(cuda->streamSynchronize(b));
	EXPECT(cuda->streamQuery(a), ZD_CU_NOT_READY);
	EXPECT(cuda->streamQuery(c), ZD_CU_NOT_READY);
	store(&page.host[FENCE], 1);
	MUST(cuda->streamSynchronize(c));
	/* Past the parked wait, and behind it. */
	assert_int_equal(look(&page.host[Y]), 0);
	assert_int_equal(look(&page.host[Z]), 1);
	MUST(cuda->streamQuery(a));
}

DRIVER_TEST(test_one_queue_blocks_all, "CUDA_DEVICE_MAX_CONNECTIONS=1")
{
	struct CUstream_st *a = new_stream(cuda), *b = new_stream(cuda);
	struct page page = new_page(cuda);

	wait_for(cuda, a, page, FENCE, 1);
	copy_word(cuda, b, page, Y, X);
	EXPECT(cuda->streamQuery(b), ZD_CU_NOT_READY);
	store(&page.host[X], 5);
	store(&page.host[FENCE], 1);
	MUST(cuda->streamSynchronize(b));
	assert_int_equal(look(&page.host[Y]), 5);
}

DRIVER_TEST(test_a_context_is_waited_for)
{
	struct CUstream_st *a = new_stream(cuda), *b = new_stream(cuda);
	struct page page = new_page(cuda);

	wait_for(cuda, a, page, FENCE, 1);
	copy_word(cuda, a, page, Z, X);
	write_to(cuda, b, page, X, 5);
	write_to(cuda, b, page, FENCE, 1);
	MUST(cuda->ctxSynchronize());
	MUST(cuda->streamQuery(a));
	MUST(cuda->streamQuery(b));
	assert_int_equal(look(&page.host[Z]), 5);
}

DRIVER_TEST(test_eight_queues_by_default)
{
	struct CUstream_st *streams[9];
	struct page page = new_page(cuda);

	for (int i = 0; i < 9; i++)
		streams[i] = new_stream(cuda);
	wait_for(cuda, streams[0], page, FENCE, 1);
	for (int i = 1; i < 9; i++)
		write_to(cuda, streams[i], page, X + i, 1);
	for (int i = 1; i < 8; i++)
		MUST(cuda->streamSynchronize(streams[i]));
	EXPECT(cuda->streamQuery(streams[8]), ZD_CU_NOT_READY);
	store(&page.host[FENCE], 1);
	MUST(cuda->streamSynchronize(streams[8]));
}

CASE_TEST(test_destroying_a_stream_lets_its_work_run, CLEAN)
{
	const struct zd_cuda *cuda = load_and_enter();
	struct CUstream_st *stream = new_stream(cuda), *next = new_stream(cuda);
	struct page page = new_page(cuda);

	wait_for(cuda, stream, page, FENCE, 1);
	write_to(cuda, stream, page, X, 1);
	MUST(cuda->streamDestroy(stream));
	EXPECT(cuda->streamQuery(stream), ZD_CU_INVALID_HANDLE);
	wait_for(cuda, next, page, X, 1);
	store(&page.host[FENCE], 1);
	MUST(cuda->streamSynchronize(next));
	assert_int_equal(look(&page.host[X]), 1);
	MUST(cuda->streamDestroy(next));
	free_page(cuda, page);
	leave(cuda, 0);
}

/* ---- The legacy default stream ------------------------------------------------------------------------- */

DRIVER_TEST(test_the_default_stream_is_in_order_with_blocking_ones)
{
	struct CUstream_st *before = NULL, *after = NULL, *apart = NULL;
	struct page page = new_page(cuda);

	(void)new_stream(cuda); /* in the queue of none of these */
	MUST(cuda->streamCreateWithPriority(&before, 0, 0));
	MUST(cuda->streamCreateWithPriority(&after, 0, 0));
	apart = new_stream(cuda);
	wait_for(cuda, before, page, FENCE, 1);
	write_to(cuda, before, page, X, 1);
	copy_word(cuda, NULL, page, Y, X);
	copy_word(cuda, after, page, Z, Y);
	write_to(cuda, apart, page, Z + 1, 1);
	MUST(cuda->streamSynchronize(apart));
	EXPECT(cuda->streamQuery(NULL), ZD_CU_NOT_READY);
	EXPECT(cuda->streamQuery(after), ZD_CU_NOT_READY);
	store(&page.host[FENCE], 1);
	MUST(cuda->streamSynchronize(after));
	assert_int_equal(look(&page.host[Z]), 1);
	MUST(cuda->streamSynchronize(ZD_CU_STREAM_LEGACY));
	MUST(cuda->streamDestroy(before));
	MUST(cuda->streamDestroy(after));
}

/* ---- Fences -------------------------------------------------------------------------------------------- */

DRIVER_TEST(test_waits_compare_in_a_circle)
{
	static const struct {
		uint64_t is, awaited;
	} passes[] = {
	        {1, 1}, {7, 1}, {INT64_MAX, 12}, {3, UINT64_MAX - 2}, {0, 0}, {(uint64_t)1 << 63, INT64_MAX}};
	struct CUstream_st *stream = new_stream(cuda);
	struct page page = new_page(cuda);

	for (size_t i = 0; i < ZD_ARRAY_LEN(passes); i++) {
		store(&page.host[FENCE], passes[i].is);
		wait_for(cuda, stream, page, FENCE, passes[i].awaited);
		MUST(cuda->streamSynchronize(stream));
	}
	/* Far ahead is behind. */
	store(&page.host[FENCE], UINT64_MAX - 2);
	wait_for(cuda, stream, page, FENCE, 3);
	copy_word(cuda, stream, page, Y, X);
	let_others_run(cuda);
	EXPECT(cuda->streamQuery(stream), ZD_CU_NOT_READY);
	store(&page.host[X], 9);
	store(&page.host[FENCE], 3);
	MUST(cuda->streamSynchronize(stream));
	assert_int_equal(look(&page.host[Y]), 9);
}

CASE_TEST(test_fences_lie_in_memory_that_devices_know, CLEAN)
{
	const struct zd_cuda *cuda = load_and_enter();
	struct CUstream_st *stream = new_stream(cuda);
	struct page page = new_page(cuda);
	zd_cu_ptr at = new_mapped(cuda, 0, GRANULARITY);
	uint64_t own = 0;

	EXPECT(cuda->streamWaitValue64(stream, (zd_cu_ptr)(uintptr_t)&own, 0, 0), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->streamWriteValue64(stream, (zd_cu_ptr)(uintptr_t)&own, 1, 0), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->streamWriteValue64(stream, page.device + PAGE, 1, 0), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->streamWriteValue64(stream, page.device + 4, 1, 0), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->streamWriteValue64(stream, page.device, 1, 1), ZD_CU_INVALID_VALUE);
	EXPECT(cuda->streamWaitValue64(stream, page.device, 0, 1), ZD_CU_INVALID_VALUE);
	MUST(cuda->streamWriteValue64(stream, at + 8, 77, 0));
	MUST(cuda->streamWaitValue64(stream, at + 8, 77, 0));
	MUST(cuda->memcpyDtoHAsync(&own, at + 8, 8, stream));
	assert_int_equal(own, 77);
	unmap(cuda, at, GRANULARITY);
	EXPECT(cuda->streamWriteValue64(stream, at + 8, 77, 0), ZD_CU_INVALID_VALUE);
	MUST(cuda->streamDestroy(stream));
	free_page(cuda, page);
	leave(cuda, 0);
}

DRIVER_TEST(test_words_can_be_unsupported, "ZD_DOUBLE_ATTRIBUTES=122=0")
{
	struct page page = new_page(cuda);

	EXPECT(cuda->streamWriteValue64(NULL, page.device, 1, 0), ZD_CU_NOT_SUPPORTED);
}

DRIVER_TEST(test_batches_are_all_or_nothing)
{
	struct CUstream_st *stream = new_stream(cuda);
	struct page page = new_page(cuda);
	union zd_cu_mem_op ops[3] = {
	        {.wait = {.operation = ZD_CU_OP_WAIT_64, .address = page.device, .value = 1}},
	        {.write = {.operation = ZD_CU_OP_WRITE_64, .address = word_at(page, X), .value = 4}},
	        {.write = {.operation = ZD_CU_OP_WRITE_64, .address = word_at(page, Y) + 1, .value = 4}},
	};

	EXPECT(cuda->streamBatchMemOp(stream, 3, ops, 0), ZD_CU_INVALID_VALUE);
	MUST(cuda->streamQuery(stream));
	ops[2].write.address--;
	EXPECT(cuda->streamBatchMemOp(stream, 0, ops, 0), ZD_CU_INVALID_VALUE);
	MUST(cuda->streamBatchMemOp(stream, 3, ops, 0));
	let_others_run(cuda);
	EXPECT(cuda->streamQuery(stream), ZD_CU_NOT_READY);
	assert_int_equal(look(&page.host[X]), 0);
	store(&page.host[FENCE], 1);
	MUST(cuda->streamSynchronize(stream));
	assert_int_equal(look(&page.host[X]), 4);
	assert_int_equal(look(&page.host[Y]), 4);
}

/* A wait on one device passes by another device's write, and sees what was copied before it. */
DRIVER_TEST(test_a_push_and_its_flag)
{
	struct CUstream_st *push, *consumer = new_stream(cuda);
	zd_cu_memory memory = create(cuda, 0, GRANULARITY);
	const struct zd_cu_access access = access_for(1);
	zd_cu_ptr dst = map(cuda, memory, GRANULARITY, 0), src;
	struct page page = new_page(cuda);
	uint64_t word = 0;

	MUST(cuda->memSetAccess(dst, GRANULARITY, &access, 1));
	wait_for(cuda, consumer, page, FENCE, 1);
	MUST(cuda->memcpyAsync(word_at(page, X), dst, 8, consumer));
	(void)enter(cuda, 1);
	push = new_stream(cuda);
	src = new_mapped(cuda, 1, GRANULARITY);
	MUST(cuda->memsetD8Async(src, 6, GRANULARITY, push));
	MUST(cuda->memcpyAsync(dst, src, GRANULARITY, push));
	write_to(cuda, push, page, FENCE, 1);
	MUST(cuda->streamSynchronize(consumer));
	word = look(&page.host[X]);
	assert_true(word == 0x0606060606060606);
	unmap(cuda, dst, GRANULARITY);
	MUST(cuda->memRelease(memory));
}

/* ---- Threads ------------------------------------------------------------------------------------------- */

enum { MEMBERS = 8, ROUNDS = 50 };

struct member {
	const struct zd_cuda *cuda;
	struct page page;
	int index;
	int result; /* of the first call that failed */
};

/* Each round waits for the predecessor's word, and writes the successor's. */
static int submit_rounds(const struct member *member, struct CUstream_st *stream, struct CUevent_st *event)
{
	const struct zd_cuda *cuda = member->cuda;
	int next = (member->index + 1) % MEMBERS, result = 0;

	for (uint64_t round = 1; round <= ROUNDS && !result; round++) {
		result = cuda->streamWaitValue64(stream, word_at(member->page, member->index), round, 0);
		if (!result)
			result = cuda->streamWriteValue64(stream, word_at(member->page, next),
			                                  round + (next == 0), 0);
		if (!result)
			result = cuda->eventRecord(event, stream);
	}
	return result ? result : cuda->eventSynchronize(event);
}

static void *run_member(void *arg)
{
	struct member *member = arg;
	const struct zd_cuda *cuda = member->cuda;
	struct CUctx_st *context = NULL;
	struct CUstream_st *stream = NULL;
	struct CUevent_st *event = NULL;

	member->result = cuda->devicePrimaryCtxRetain(&context, member->index % 4);
	if (!member->result)
		member->result = cuda->ctxSetCurrent(context);
	if (!member->result)
		member->result = cuda->streamCreateWithPriority(&stream, ZD_CU_STREAM_NON_BLOCKING, 0);
	if (!member->result)
		member->result = cuda->eventCreate(&event, ZD_CU_EVENT_DISABLE_TIMING);
	if (!member->result)
		member->result = submit_rounds(member, stream, event);
	(void)cuda->streamDestroy(stream);
	(void)cuda->eventDestroy(event);
	(void)cuda->devicePrimaryCtxRelease(member->index % 4);
	return NULL;
}

/* Eight threads on four devices hand a token around. */
DRIVER_TEST(test_threads_pass_a_token_over_devices)
{
	struct page page = new_page(cuda);
	struct member members[MEMBERS];
	pthread_t threads[MEMBERS];

	for (int i = 0; i < MEMBERS; i++) {
		members[i] = (struct member){.cuda = cuda, .page = page, .index = i};
		assert_int_equal(pthread_create(&threads[i], NULL, run_member, &members[i]), 0);
	}
	store(&page.host[0], 1);
	for (int i = 0; i < MEMBERS; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(members[i].result, 0);
	}
	assert_int_equal(look(&page.host[0]), ROUNDS + 1);
	for (int i = 1; i < MEMBERS; i++)
		assert_int_equal(look(&page.host[i]), ROUNDS);
}

/* ---- Events -------------------------------------------------------------------------------------------- */

DRIVER_TEST(test_events_order_streams_of_two_devices)
{
	struct CUstream_st *first = new_stream(cuda), *second;
	struct page page = new_page(cuda);
	struct CUevent_st *event = NULL;

	MUST(cuda->eventCreate(&event, ZD_CU_EVENT_DISABLE_TIMING));
	MUST(cuda->eventQuery(event));
	wait_for(cuda, first, page, FENCE, 1);
	write_to(cuda, first, page, X, 1);
	MUST(cuda->eventRecord(event, first));
	EXPECT(cuda->eventQuery(event), ZD_CU_NOT_READY);
	(void)enter(cuda, 1);
	second = new_stream(cuda);
	EXPECT(cuda->eventRecord(event, second), ZD_CU_INVALID_HANDLE);
	MUST(cuda->streamWaitEvent(second, event, 0));
	copy_word(cuda, second, page, Y, X);
	let_others_run(cuda);
	EXPECT(cuda->streamQuery(second), ZD_CU_NOT_READY);
	store(&page.host[FENCE], 1);
	MUST(cuda->streamSynchronize(second));
	assert_int_equal(look(&page.host[Y]), 1);
	MUST(cuda->eventSynchronize(event));
	MUST(cuda->eventQuery(event));
	MUST(cuda->eventDestroy(event));
	EXPECT(cuda->eventDestroy(event), ZD_CU_INVALID_HANDLE);
}

/* A stream that waits for an event waits for the recording of that time, not for a later one. */
DRIVER_TEST(test_recording_again_disturbs_nobody)
{
	struct CUstream_st *first = new_stream(cuda), *second = new_stream(cuda), *third = new_stream(cuda);
	struct page page = new_page(cuda);
	struct CUevent_st *event = NULL;

	MUST(cuda->eventCreate(&event, 0));
	wait_for(cuda, first, page, FENCE, 1);
	MUST(cuda->eventRecord(event, first));
	MUST(cuda->streamWaitEvent(second, event, 0));
	let_others_run(cuda);
	wait_for(cuda, third, page, FENCE_B, 1);
	MUST(cuda->eventRecord(event, third));
	store(&page.host[FENCE], 1);
	MUST(cuda->streamSynchronize(second));
	EXPECT(cuda->eventQuery(event), ZD_CU_NOT_READY);
	store(&page.host[FENCE_B], 1);
	MUST(cuda->eventSynchronize(event));
	MUST(cuda->eventDestroy(event));
}

DRIVER_TEST(test_time_between_events, "ZD_DOUBLE_COPY_US=2000")
{
	struct CUevent_st *from = NULL, *to = NULL, *timeless = NULL;
	zd_cu_ptr at = new_mapped(cuda, 0, GRANULARITY);
	float ms = -1;

	MUST(cuda->eventCreate(&from, 0));
	MUST(cuda->eventCreate(&to, 0));
	MUST(cuda->eventCreate(&timeless, ZD_CU_EVENT_DISABLE_TIMING));
	EXPECT(cuda->eventElapsedTime(&ms, from, to), ZD_CU_INVALID_HANDLE);
	MUST(cuda->eventRecord(from, NULL));
	MUST(cuda->memsetD8Async(at, 1, GRANULARITY, NULL));
	MUST(cuda->eventRecord(to, NULL));
	MUST(cuda->eventRecord(timeless, NULL));
	MUST(cuda->eventSynchronize(to));
	MUST(cuda->eventElapsedTime(&ms, from, to));
	/* The copy takes what it was told to take, and not less. */
	assert_true(ms >= 2);
	EXPECT(cuda->eventElapsedTime(&ms, from, timeless), ZD_CU_INVALID_HANDLE);
	MUST(cuda->streamSynchronize(NULL));
	MUST(cuda->eventDestroy(from));
	MUST(cuda->eventDestroy(to));
	MUST(cuda->eventDestroy(timeless));
}

CASE_TEST(test_handles_are_checked, CLEAN)
{
	const struct zd_cuda *cuda = load_and_enter();
	struct CUstream_st *stream = new_stream(cuda);
	struct CUctx_st *context = NULL, *current = NULL;
	int least = -1, greatest = 1;

	MUST(cuda->ctxGetCurrent(&current));
	MUST(cuda->streamGetCtx(stream, &context));
	assert_ptr_equal(context, current);
	MUST(cuda->streamGetCtx(NULL, &context));
	assert_ptr_equal(context, current);
	EXPECT(cuda->streamSynchronize((struct CUstream_st *)&least), ZD_CU_INVALID_HANDLE);
	EXPECT(cuda->streamWaitEvent(stream, NULL, 0), ZD_CU_INVALID_HANDLE);
	EXPECT(cuda->eventRecord(NULL, stream), ZD_CU_INVALID_HANDLE);
	MUST(cuda->ctxGetStreamPriorityRange(&least, &greatest));
	assert_true(least == 0 && greatest < 0);
	MUST(cuda->streamDestroy(stream));
	EXPECT(cuda->streamDestroy(stream), ZD_CU_INVALID_HANDLE);
	EXPECT(cuda->streamDestroy(NULL), ZD_CU_INVALID_HANDLE);
	leave(cuda, 0);
}

int main(int argc, char **argv)
{
	return case_run_all(argc, argv);
}
