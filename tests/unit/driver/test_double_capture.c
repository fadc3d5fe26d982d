/* SPDX-License-Identifier: Apache-2.0 */
/* test_double_capture.c - the driver's double: what a stream capture records, forbids, and is invalidated
 * by. */
#include "tests/unit/driver/double_fixture.h"

enum { THREAD_LOCAL = 1, ACTIVE = 1, INVALIDATED = 2 };

static void expect_status(const struct zd_cuda *cuda, struct CUstream_st *stream, int expected)
{
	int status = -1;

	MUST(cuda->streamIsCapturing(stream, &status));
	assert_int_equal(status, expected);
}

static void expect_end(const struct zd_cuda *cuda, struct CUstream_st *stream, int expected)
{
	struct CUgraph_st *graph = NULL;

	EXPECT(cuda->streamEndCapture(stream, &graph), expected);
	if (expected == ZD_CU_SUCCESS)
		MUST(cuda->graphDestroy(graph));
	else
		assert_null(graph);
	expect_status(cuda, stream, ZD_CU_CAPTURE_NONE);
}

/* The arguments of a thread that makes an unsafe call in the given capture mode. */
struct elsewhere {
	const struct zd_cuda *cuda;
	struct CUctx_st *context;
	int mode;
};

static void *call_unsafe(void *arg)
{
	struct elsewhere *elsewhere = arg;
	int result = elsewhere->cuda->ctxSetCurrent(elsewhere->context);

	if (!result)
		result = elsewhere->cuda->threadExchangeStreamCaptureMode(&elsewhere->mode);
	if (!result)
		result = elsewhere->cuda->streamQuery(NULL);
	return as_pointer((uintptr_t)result);
}

static int unsafe_elsewhere(const struct zd_cuda *cuda, int mode)
{
	struct elsewhere elsewhere = {.cuda = cuda, .mode = mode};
	void *result = NULL;
	pthread_t thread;

	MUST(cuda->ctxGetCurrent(&elsewhere.context));
	assert_int_equal(pthread_create(&thread, NULL, call_unsafe, &elsewhere), 0);
	assert_int_equal(pthread_join(thread, &result), 0);
	return (int)(intptr_t)result;
}

/* ---- Recording ----------------------------------------------------------------------------------------- */

DRIVER_TEST(test_captured_work_does_not_run)
{
	struct CUstream_st *stream = new_stream(cuda);
	struct page page = new_page(cuda);

	MUST(cuda->streamBeginCapture(stream, ZD_CU_CAPTURE_GLOBAL));
	expect_status(cuda, stream, ACTIVE);
	MUST(cuda->streamWaitValue64(stream, page.device, 1, 0));
	MUST(cuda->streamWriteValue64(stream, page.device + 8, 1, 0));
	MUST(cuda->memsetD8Async(page.device, 1, 8, stream));
	expect_end(cuda, stream, ZD_CU_SUCCESS);
	MUST(cuda->streamSynchronize(stream));
	assert_int_equal(look(&page.host[0]), 0);
	assert_int_equal(look(&page.host[1]), 0);
}

CASE_TEST(test_beginning_and_ending, CLEAN)
{
	const struct zd_cuda *cuda = load_and_enter();
	struct CUstream_st *stream = new_stream(cuda), *other = new_stream(cuda);
	struct CUgraph_st *graph = NULL;

	EXPECT(cuda->streamEndCapture(stream, &graph), 401);
	EXPECT(cuda->streamBeginCapture(NULL, ZD_CU_CAPTURE_GLOBAL), ZD_CU_STREAM_CAPTURE_UNSUPPORTED);
	EXPECT(cuda->streamBeginCapture(stream, 3), ZD_CU_INVALID_VALUE);
	MUST(cuda->streamBeginCapture(stream, ZD_CU_CAPTURE_RELAXED));
	EXPECT(cuda->streamBeginCapture(stream, ZD_CU_CAPTURE_RELAXED), 401);
	MUST(cuda->streamBeginCapture(other, ZD_CU_CAPTURE_RELAXED));
	expect_end(cuda, stream, ZD_CU_SUCCESS);
	/* A stream that goes takes its capture along. */
	MUST(cuda->streamDestroy(other));
	EXPECT(cuda->graphDestroy(graph), ZD_CU_INVALID_VALUE);
	MUST(cuda->streamDestroy(stream));
	leave(cuda, 0);
}

/* ---- What it forbids ----------------------------------------------------------------------------------- */

DRIVER_TEST(test_a_global_capture_forbids_unsafe_calls_everywhere)
{
	struct CUstream_st *stream = new_stream(cuda), *other = new_stream(cuda);
	unsigned char *pages = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct CUevent_st *event = NULL;
	struct CUmod_st *module = NULL;
	void *host = NULL, *more = NULL;

	assert_true(pages != MAP_FAILED);
	MUST(cuda->eventCreate(&event, 0));
	MUST(cuda->memHostAlloc(&host, PAGE, 0));
	for (int call = 0; call < 10; call++) {
		int result = 0;

		MUST(cuda->streamBeginCapture(stream, ZD_CU_CAPTURE_GLOBAL));
		result = call == 0   ? cuda->streamSynchronize(other)
		         : call == 1 ? cuda->streamQuery(other)
		         : call == 2 ? cuda->eventQuery(event)
		         : call == 3 ? cuda->eventSynchronize(event)
		         : call == 4 ? cuda->memHostAlloc(&more, PAGE, 0)
		         : call == 5 ? cuda->memFreeHost(host)
		         : call == 6 ? cuda->memHostRegister(pages, PAGE, 0)
		         : call == 7 ? cuda->memHostUnregister(pages)
		         : call == 8 ? cuda->moduleLoadData(&module, ".version 8.0")
		                     : unsafe_elsewhere(cuda, ZD_CU_CAPTURE_GLOBAL);
		assert_int_equal(result, ZD_CU_STREAM_CAPTURE_UNSUPPORTED);
		expect_status(cuda, stream, INVALIDATED);
		EXPECT(cuda->memsetD8Async((zd_cu_ptr)(uintptr_t)host, 1, 1, stream),
		       ZD_CU_STREAM_CAPTURE_INVALIDATED);
		expect_end(cuda, stream, ZD_CU_STREAM_CAPTURE_INVALIDATED);
	}
	assert_null(more);
	MUST(cuda->memFreeHost(host));
	MUST(cuda->eventDestroy(event));
	assert_int_equal(munmap(pages, PAGE), 0);
}

DRIVER_TEST(test_modes_of_captures_and_threads)
{
	static const struct {
		int capture, thread, here, elsewhere;
	} cases[] = {
	        {ZD_CU_CAPTURE_GLOBAL, ZD_CU_CAPTURE_RELAXED, 0, 0},
	        {ZD_CU_CAPTURE_GLOBAL, THREAD_LOCAL, ZD_CU_STREAM_CAPTURE_UNSUPPORTED, 0},
	        {THREAD_LOCAL, ZD_CU_CAPTURE_GLOBAL, ZD_CU_STREAM_CAPTURE_UNSUPPORTED, 0},
	        {ZD_CU_CAPTURE_RELAXED, ZD_CU_CAPTURE_GLOBAL, 0, 0},
	};
	struct CUstream_st *stream = new_stream(cuda), *other = new_stream(cuda);

	for (size_t i = 0; i < ZD_ARRAY_LEN(cases); i++) {
		int mode = cases[i].thread;

		MUST(cuda->streamBeginCapture(stream, cases[i].capture));
		EXPECT(unsafe_elsewhere(cuda, cases[i].thread), cases[i].elsewhere);
		expect_status(cuda, stream, ACTIVE);
		MUST(cuda->threadExchangeStreamCaptureMode(&mode));
		assert_int_equal(mode, ZD_CU_CAPTURE_GLOBAL);
		EXPECT(cuda->streamSynchronize(other), cases[i].here);
		MUST(cuda->threadExchangeStreamCaptureMode(&mode));
		assert_int_equal(mode, cases[i].thread);
		expect_end(cuda, stream, cases[i].here ? ZD_CU_STREAM_CAPTURE_INVALIDATED : ZD_CU_SUCCESS);
	}
}

/* In relaxed mode, and so in any. */
DRIVER_TEST(test_a_capturing_stream_cannot_be_waited_for)
{
	struct CUstream_st *stream = new_stream(cuda);

	for (int call = 0; call < 2; call++) {
		MUST(cuda->streamBeginCapture(stream, ZD_CU_CAPTURE_RELAXED));
		EXPECT(call ? cuda->streamQuery(stream) : cuda->streamSynchronize(stream),
		       ZD_CU_STREAM_CAPTURE_UNSUPPORTED);
		expect_end(cuda, stream, ZD_CU_STREAM_CAPTURE_INVALIDATED);
	}
}

DRIVER_TEST(test_the_default_stream_beside_a_blocking_capture)
{
	struct CUstream_st *blocking = NULL;
	struct page page = new_page(cuda);
	int status = -1;

	MUST(cuda->streamCreateWithPriority(&blocking, 0, 0));
	MUST(cuda->streamBeginCapture(blocking, ZD_CU_CAPTURE_RELAXED));
	EXPECT(cuda->streamIsCapturing(NULL, &status), 906);
	expect_status(cuda, blocking, ACTIVE);
	EXPECT(cuda->streamWriteValue64(NULL, page.device, 1, 0), 906);
	expect_end(cuda, blocking, ZD_CU_STREAM_CAPTURE_INVALIDATED);
	expect_status(cuda, NULL, ZD_CU_CAPTURE_NONE);
	MUST(cuda->streamDestroy(blocking));
}

/* ---- Events in captures -------------------------------------------------------------------------------- */

DRIVER_TEST(test_waiting_for_a_captured_event_joins)
{
	struct CUstream_st *stream = new_stream(cuda), *other = new_stream(cuda);
	struct CUevent_st *event = NULL;
	struct CUgraph_st *graph = NULL;

	MUST(cuda->eventCreate(&event, 0));
	MUST(cuda->streamBeginCapture(stream, ZD_CU_CAPTURE_RELAXED));
	MUST(cuda->eventRecord(event, stream));
	MUST(cuda->streamWaitEvent(other, event, 0));
	expect_status(cuda, other, ACTIVE);
	EXPECT(cuda->streamEndCapture(other, &graph), 903);
	expect_end(cuda, stream, ZD_CU_SUCCESS);
	expect_status(cuda, other, ZD_CU_CAPTURE_NONE);
	/* It was never recorded for good. */
	MUST(cuda->eventQuery(event));
	MUST(cuda->eventDestroy(event));
}

DRIVER_TEST(test_events_do_not_cross_a_captures_border)
{
	struct CUstream_st *stream = new_stream(cuda), *other = new_stream(cuda);
	struct CUevent_st *event = NULL;

	MUST(cuda->eventCreate(&event, 0));
	MUST(cuda->eventRecord(event, other));
	MUST(cuda->streamBeginCapture(stream, ZD_CU_CAPTURE_RELAXED));
	EXPECT(cuda->streamWaitEvent(stream, event, 0), 905);
	expect_end(cuda, stream, ZD_CU_STREAM_CAPTURE_INVALIDATED);
	MUST(cuda->streamBeginCapture(stream, ZD_CU_CAPTURE_RELAXED));
	MUST(cuda->eventRecord(event, stream));
	EXPECT(cuda->eventQuery(event), 907);
	expect_end(cuda, stream, ZD_CU_STREAM_CAPTURE_INVALIDATED);
	MUST(cuda->streamBeginCapture(stream, ZD_CU_CAPTURE_RELAXED));
	MUST(cuda->streamBeginCapture(other, ZD_CU_CAPTURE_RELAXED));
	MUST(cuda->eventRecord(event, stream));
	EXPECT(cuda->streamWaitEvent(other, event, 0), 902);
	expect_end(cuda, stream, ZD_CU_STREAM_CAPTURE_INVALIDATED);
	expect_end(cuda, other, ZD_CU_STREAM_CAPTURE_INVALIDATED);
	MUST(cuda->eventDestroy(event));
}

static void *end_here(void *arg)
{
	void **args = arg;
	const struct zd_cuda *cuda = args[0];
	struct CUgraph_st *graph = NULL;
	int result = cuda->ctxSetCurrent(args[1]);

	return as_pointer((uintptr_t)(result ? result : cuda->streamEndCapture(args[2], &graph)));
}

DRIVER_TEST(test_a_capture_ends_in_its_thread)
{
	struct CUstream_st *stream = new_stream(cuda);
	struct CUctx_st *context = NULL;
	void *result = NULL;
	pthread_t thread;

	MUST(cuda->ctxGetCurrent(&context));
	void *args[] = {(void *)cuda, context, stream};
	MUST(cuda->streamBeginCapture(stream, THREAD_LOCAL));
	assert_int_equal(pthread_create(&thread, NULL, end_here, args), 0);
	assert_int_equal(pthread_join(thread, &result), 0);
	assert_int_equal((intptr_t)result, 908);
	expect_end(cuda, stream, ZD_CU_SUCCESS);
}

int main(int argc, char **argv)
{
	return case_run_all(argc, argv);
}
