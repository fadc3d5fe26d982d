/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture.c - stream capture: what it forbids. Recording is a no-op, and graphs are empty.
 *
 * A capture begins at one stream and takes in those that wait for its events. While it is open, calls that a
 * graph cannot hold fail and invalidate it: on its own streams always; elsewhere those that are called
 * unsafe, according to the capture's mode and the mode of the calling thread.
 */
#include "tests/double/double.h"

#include <stdlib.h>

enum { MODE_THREAD_LOCAL = 1, STATUS_ACTIVE = 1, STATUS_INVALIDATED = 2 };

struct CUgraph_st {
	TAILQ_ENTRY(CUgraph_st) link;
};

struct double_capture {
	TAILQ_ENTRY(double_capture) link;
	struct CUstream_st *origin;
	pthread_t thread;
	int mode;
	bool invalid;
};

static TAILQ_HEAD(, double_capture) captures = TAILQ_HEAD_INITIALIZER(captures);
static TAILQ_HEAD(, CUgraph_st) graphs = TAILQ_HEAD_INITIALIZER(graphs);
static _Thread_local int thread_mode = ZD_CU_CAPTURE_GLOBAL;

int double_count_graphs(void)
{
	struct CUgraph_st *graph;
	int count = 0;

	TAILQ_FOREACH (graph, &graphs, link)
		count++;
	return count;
}

/* ---- What is forbidden --------------------------------------------------------------------------------- */

void double_capture_invalidate(struct double_capture *capture)
{
	capture->invalid = true;
}

bool double_capture_is_valid(const struct double_capture *capture)
{
	return !capture->invalid;
}

static bool forbids(const struct double_capture *capture)
{
	if (thread_mode == ZD_CU_CAPTURE_RELAXED || capture->mode == ZD_CU_CAPTURE_RELAXED)
		return false;
	return pthread_equal(capture->thread, pthread_self()) ||
	       (thread_mode == ZD_CU_CAPTURE_GLOBAL && capture->mode == ZD_CU_CAPTURE_GLOBAL);
}

int double_check_unsafe(void)
{
	struct double_capture *capture;
	int result = ZD_CU_SUCCESS;

	TAILQ_FOREACH (capture, &captures, link) {
		if (!forbids(capture))
			continue;
		double_capture_invalidate(capture);
		result = ZD_CU_STREAM_CAPTURE_UNSUPPORTED;
	}
	return result;
}

int double_check_legacy(const struct CUctx_st *context)
{
	if (!double_blocking_capture(context))
		return ZD_CU_SUCCESS;
	double_invalidate_blocking_captures(context);
	return DOUBLE_CAPTURE_IMPLICIT;
}

/* ---- Begin and end ------------------------------------------------------------------------------------- */

int cuStreamBeginCapture(struct CUstream_st *stream, int mode)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct double_target target;
	struct double_capture *made;

	if (result)
		return result;
	result = double_target(stream, &target);
	if (!result && (mode < ZD_CU_CAPTURE_GLOBAL || mode > ZD_CU_CAPTURE_RELAXED))
		result = ZD_CU_INVALID_VALUE;
	else if (!result && !target.stream)
		result = ZD_CU_STREAM_CAPTURE_UNSUPPORTED;
	else if (!result && target.stream->capture)
		result = DOUBLE_ILLEGAL_STATE;
	if (result)
		return double_leave(result);
	made = calloc(1, sizeof(*made));
	if (!made)
		return double_leave(ZD_CU_OUT_OF_MEMORY);
	made->origin = target.stream;
	made->thread = pthread_self();
	made->mode = mode;
	target.stream->capture = made;
	TAILQ_INSERT_TAIL(&captures, made, link);
	return double_leave(ZD_CU_SUCCESS);
}

static void end_capture(struct double_capture *capture)
{
	double_streams_leave_capture(capture);
	double_events_leave_capture(capture);
	TAILQ_REMOVE(&captures, capture, link);
	free(capture);
}

void double_capture_stream_gone(struct CUstream_st *stream)
{
	struct double_capture *capture = stream->capture;

	if (!capture)
		return;
	capture->invalid = true;
	stream->capture = NULL;
	if (capture->origin == stream)
		end_capture(capture);
}

static int check_end(const struct double_target *target)
{
	const struct double_capture *capture = target->stream ? target->stream->capture : NULL;

	if (!capture)
		return DOUBLE_ILLEGAL_STATE;
	if (capture->origin != target->stream)
		return DOUBLE_CAPTURE_UNMATCHED;
	if (capture->mode != ZD_CU_CAPTURE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
		return DOUBLE_CAPTURE_WRONG_THREAD;
	return ZD_CU_SUCCESS;
}

/* However it ends, the stream captures no more. */
int cuStreamEndCapture(struct CUstream_st *stream, struct CUgraph_st **graph)
{
	int after = 0, result = double_enter_giving_back(__func__, DOUBLE_NEEDS_CONTEXT, &after);
	struct double_target target;
	struct CUgraph_st *made;

	if (result)
		return result;
	*graph = NULL;
	result = double_target(stream, &target);
	if (!result)
		result = check_end(&target);
	if (result)
		return double_leave(after ? after : result);
	if (!after && target.stream->capture->invalid)
		after = ZD_CU_STREAM_CAPTURE_INVALIDATED;
	end_capture(target.stream->capture);
	if (after)
		return double_leave(after);
	made = calloc(1, sizeof(*made));
	if (!made)
		return double_leave(ZD_CU_OUT_OF_MEMORY);
	TAILQ_INSERT_TAIL(&graphs, made, link);
	*graph = made;
	return double_leave(ZD_CU_SUCCESS);
}

int cuGraphDestroy(struct CUgraph_st *graph)
{
	int after = 0, result = double_enter_giving_back(__func__, DOUBLE_NEEDS_INIT, &after);
	struct CUgraph_st *each;

	if (result)
		return result;
	TAILQ_FOREACH (each, &graphs, link)
		if (each == graph)
			break;
	if (!each)
		return double_leave(ZD_CU_INVALID_VALUE);
	TAILQ_REMOVE(&graphs, each, link);
	free(each);
	return double_leave(after);
}

int cuStreamIsCapturing(struct CUstream_st *stream, int *status)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct double_target target;

	if (result)
		return result;
	result = double_target(stream, &target);
	/* Only asking: nothing is invalidated. */
	if (!result && !target.stream && double_blocking_capture(target.context))
		result = DOUBLE_CAPTURE_IMPLICIT;
	if (result)
		return double_leave(result);
	*status = ZD_CU_CAPTURE_NONE;
	if (target.stream && target.stream->capture)
		*status = target.stream->capture->invalid ? STATUS_INVALIDATED : STATUS_ACTIVE;
	return double_leave(ZD_CU_SUCCESS);
}

int cuThreadExchangeStreamCaptureMode(int *mode)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_INIT);
	int before = thread_mode;

	if (result)
		return result;
	if (*mode < ZD_CU_CAPTURE_GLOBAL || *mode > ZD_CU_CAPTURE_RELAXED)
		return double_leave(ZD_CU_INVALID_VALUE);
	thread_mode = *mode;
	*mode = before;
	return double_leave(ZD_CU_SUCCESS);
}
