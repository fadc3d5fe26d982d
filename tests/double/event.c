/* SPDX-License-Identifier: Apache-2.0 */
/* event.c - events. Each recording has a mark of its own, so that who waits is not disturbed by the next
 * recording. */
#include "tests/double/double.h"

#include <stdlib.h>

struct CUevent_st {
	TAILQ_ENTRY(CUevent_st) link;
	struct CUctx_st *context;
	bool timing;
	struct double_mark *mark;       /* NULL: never recorded */
	struct double_capture *capture; /* recorded in this one */
};

static TAILQ_HEAD(, CUevent_st) events = TAILQ_HEAD_INITIALIZER(events);

int double_count_events(void)
{
	struct CUevent_st *event;
	int count = 0;

	TAILQ_FOREACH (event, &events, link)
		count++;
	return count;
}

static bool is_event(const struct CUevent_st *event)
{
	struct CUevent_st *each;

	TAILQ_FOREACH (each, &events, link)
		if (each == event)
			return true;
	return false;
}

void double_events_leave_capture(const struct double_capture *capture)
{
	struct CUevent_st *event;

	TAILQ_FOREACH (event, &events, link)
		if (event->capture == capture)
			event->capture = NULL;
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

int cuEventCreate(struct CUevent_st **event, unsigned int flags)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct CUevent_st *made;

	if (result)
		return result;
	/* BLOCKING_SYNC is the only other one that does not make it an event between processes. */
	if (flags & ~(unsigned int)(ZD_CU_EVENT_DISABLE_TIMING | 1))
		return double_leave(ZD_CU_INVALID_VALUE);
	made = calloc(1, sizeof(*made));
	if (!made)
		return double_leave(ZD_CU_OUT_OF_MEMORY);
	made->context = double_current();
	made->timing = !(flags & ZD_CU_EVENT_DISABLE_TIMING);
	TAILQ_INSERT_TAIL(&events, made, link);
	*event = made;
	return double_leave(ZD_CU_SUCCESS);
}

int cuEventDestroy(struct CUevent_st *event)
{
	int after = 0, result = double_enter_giving_back(__func__, DOUBLE_NEEDS_CONTEXT, &after);

	if (result)
		return result;
	if (!is_event(event))
		return double_leave(ZD_CU_INVALID_HANDLE);
	TAILQ_REMOVE(&events, event, link);
	double_mark_unref(event->mark);
	free(event);
	return double_leave(after);
}

/* ---- In streams ---------------------------------------------------------------------------------------- */

static int record(struct CUevent_st *event, const struct double_target *target)
{
	struct double_op *op = double_op_new(DOUBLE_OP_MARK);
	struct double_mark *mark = double_mark_new();
	bool captured = target->stream && target->stream->capture;
	int result;

	mark->refs++;
	op->mark = mark;
	result = double_submit(target, op);
	if (result || captured) {
		double_mark_unref(mark);
		mark = NULL;
	}
	if (result)
		return result;
	double_mark_unref(event->mark);
	event->mark = mark;
	event->capture = captured ? target->stream->capture : NULL;
	return ZD_CU_SUCCESS;
}

int cuEventRecord(struct CUevent_st *event, struct CUstream_st *stream)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct double_target target;

	if (result)
		return result;
	result = double_target(stream, &target);
	if (!result && (!is_event(event) || event->context != target.context))
		result = ZD_CU_INVALID_HANDLE;
	return double_leave(result ? result : record(event, &target));
}

static int wait_captured(const struct CUevent_st *event, const struct double_target *target)
{
	struct CUstream_st *stream = target->stream;

	if (!stream)
		return DOUBLE_CAPTURE_IMPLICIT;
	if (!stream->capture)
		stream->capture = event->capture;
	if (stream->capture == event->capture)
		return ZD_CU_SUCCESS;
	double_capture_invalidate(stream->capture);
	double_capture_invalidate(event->capture);
	return DOUBLE_CAPTURE_MERGE;
}

static int wait_event(const struct CUevent_st *event, const struct double_target *target)
{
	struct double_op *op;

	if (event->capture)
		return wait_captured(event, target);
	if (!event->mark)
		return ZD_CU_SUCCESS;
	if (target->stream && target->stream->capture) {
		double_capture_invalidate(target->stream->capture);
		return DOUBLE_CAPTURE_ISOLATION;
	}
	op = double_op_new(DOUBLE_OP_JOIN);
	op->mark = event->mark;
	op->mark->refs++;
	return double_submit(target, op);
}

int cuStreamWaitEvent(struct CUstream_st *stream, struct CUevent_st *event, unsigned int flags)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct double_target target;

	if (result)
		return result;
	result = double_target(stream, &target);
	if (!result && flags)
		result = ZD_CU_INVALID_VALUE;
	else if (!result && !is_event(event))
		result = ZD_CU_INVALID_HANDLE;
	return double_leave(result ? result : wait_event(event, &target));
}

/* ---- From the CPU -------------------------------------------------------------------------------------- */

static int check_asking(struct CUevent_st *event)
{
	if (!is_event(event))
		return ZD_CU_INVALID_HANDLE;
	if (event->capture) {
		double_capture_invalidate(event->capture);
		return DOUBLE_CAPTURED_EVENT;
	}
	return double_check_unsafe();
}

int cuEventQuery(struct CUevent_st *event)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);

	if (result)
		return result;
	result = check_asking(event);
	if (!result && event->mark)
		result = event->mark->done ? event->mark->fault : ZD_CU_NOT_READY;
	return double_leave(result);
}

int cuEventSynchronize(struct CUevent_st *event)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct double_mark *mark;

	if (result)
		return result;
	result = check_asking(event);
	if (result || !event->mark)
		return double_leave(result);
	mark = event->mark;
	mark->refs++;
	while (!mark->done)
		double_wait(&double_moved);
	result = mark->fault;
	double_mark_unref(mark);
	return double_leave(result);
}

int cuEventElapsedTime(float *ms, struct CUevent_st *from, struct CUevent_st *to)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);

	if (result)
		return result;
	if (!is_event(from) || !is_event(to) || !from->timing || !to->timing || !from->mark || !to->mark)
		return double_leave(ZD_CU_INVALID_HANDLE);
	if (!from->mark->done || !to->mark->done)
		return double_leave(ZD_CU_NOT_READY);
	*ms = (float)((double)(int64_t)(to->mark->done_ns - from->mark->done_ns) / 1e6);
	return double_leave(ZD_CU_SUCCESS);
}
