/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c - streams: each is assigned to a hardware queue of its context in turn, when it is made.
 *
 * The legacy default stream is in order with the blocking streams of its context: its work waits for all that
 * they were given, and theirs for its own. CU_STREAM_PER_THREAD is taken for the legacy default stream.
 */
#include "tests/double/double.h"

#include <stdlib.h>

static TAILQ_HEAD(, CUstream_st) streams = TAILQ_HEAD_INITIALIZER(streams);

int double_count_streams(void)
{
	struct CUstream_st *stream;
	int count = 0;

	TAILQ_FOREACH (stream, &streams, link)
		count++;
	return count;
}

static bool is_stream(const struct CUstream_st *stream)
{
	struct CUstream_st *each;

	TAILQ_FOREACH (each, &streams, link)
		if (each == stream)
			return true;
	return false;
}

static bool is_legacy(const struct CUstream_st *stream)
{
	return !stream || stream == ZD_CU_STREAM_LEGACY || stream == ZD_CU_STREAM_PER_THREAD;
}

int double_target(struct CUstream_st *stream, struct double_target *target)
{
	struct CUctx_st *context = double_current();

	if (is_legacy(stream)) {
		*target = (struct double_target){
		        .context = context, .queue = &context->queues[0], .line = context->legacy};
		return context->fault;
	}
	if (!is_stream(stream) || !stream->context)
		return ZD_CU_INVALID_HANDLE;
	*target = (struct double_target){
	        .context = stream->context, .stream = stream, .queue = stream->queue, .line = stream->line};
	return stream->context->fault;
}

/* ---- Work ---------------------------------------------------------------------------------------------- */

static void join(struct double_op *op, struct double_line *line)
{
	if (line->done == line->submitted)
		return;
	op->joins = realloc(op->joins, sizeof(*op->joins) * (size_t)(op->njoins + 1));
	if (!op->joins)
		abort();
	line->refs++;
	op->joins[op->njoins].line = line;
	op->joins[op->njoins++].value = line->submitted;
}

static void join_default_order(const struct double_target *target, struct double_op *op)
{
	struct CUstream_st *stream;

	if (target->stream) {
		if (!target->stream->non_blocking)
			join(op, target->context->legacy);
		return;
	}
	TAILQ_FOREACH (stream, &streams, link)
		if (stream->context == target->context && !stream->non_blocking)
			join(op, stream->line);
}

int double_submit(const struct double_target *target, struct double_op *op)
{
	int result = ZD_CU_SUCCESS;

	if (target->stream && target->stream->capture) {
		if (!double_capture_is_valid(target->stream->capture))
			result = ZD_CU_STREAM_CAPTURE_INVALIDATED;
		double_op_free(op);
		return result;
	}
	if (!target->stream)
		result = double_check_legacy(target->context);
	if (result) {
		double_op_free(op);
		return result;
	}
	join_default_order(target, op);
	op->line = target->line;
	op->line->refs++;
	op->number = ++op->line->submitted;
	double_queue_push(target->queue, op);
	return ZD_CU_SUCCESS;
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

int cuStreamCreateWithPriority(struct CUstream_st **stream, unsigned int flags, int priority)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct CUctx_st *context = double_current();
	struct CUstream_st *made;

	(void)priority; /* clamped by the real one, without a word */
	if (result)
		return result;
	if (flags & ~(unsigned int)ZD_CU_STREAM_NON_BLOCKING)
		return double_leave(ZD_CU_INVALID_VALUE);
	made = calloc(1, sizeof(*made));
	if (!made)
		return double_leave(ZD_CU_OUT_OF_MEMORY);
	made->context = context;
	made->queue = &context->queues[context->next_queue++ % double_config()->nqueues];
	made->line = double_line_new();
	made->non_blocking = flags != 0;
	TAILQ_INSERT_TAIL(&streams, made, link);
	*stream = made;
	return double_leave(ZD_CU_SUCCESS);
}

/* Work that is enqueued on the stream still runs. */
int cuStreamDestroy(struct CUstream_st *stream)
{
	int after = 0, result = double_enter_giving_back(__func__, DOUBLE_NEEDS_CONTEXT, &after);

	if (result)
		return result;
	if (is_legacy(stream) || !is_stream(stream))
		return double_leave(ZD_CU_INVALID_HANDLE);
	if (stream->context && stream->context->fault)
		after = stream->context->fault;
	double_capture_stream_gone(stream);
	TAILQ_REMOVE(&streams, stream, link);
	double_line_unref(stream->line);
	free(stream);
	return double_leave(after);
}

void double_streams_orphan(const struct CUctx_st *context)
{
	struct CUstream_st *stream;

	TAILQ_FOREACH (stream, &streams, link) {
		if (stream->context != context)
			continue;
		double_capture_stream_gone(stream);
		stream->context = NULL;
		stream->queue = NULL;
	}
}

/* ---- Looking and waiting ------------------------------------------------------------------------------- */

static int refuse_capturing(const struct double_target *target)
{
	if (!target->stream)
		return double_check_legacy(target->context);
	if (!target->stream->capture)
		return ZD_CU_SUCCESS;
	double_capture_invalidate(target->stream->capture);
	return ZD_CU_STREAM_CAPTURE_UNSUPPORTED;
}

/* 0 when the stream may be waited for or asked now. */
static int check_asking(struct CUstream_st *stream, struct double_target *target)
{
	int result = double_target(stream, target);

	if (!result)
		result = refuse_capturing(target);
	return result ? result : double_check_unsafe();
}

static int synchronize(const struct double_target *target)
{
	struct double_line *line = target->line;
	int result;

	/* Brings the blocking streams into the legacy one's order. */
	if (!target->stream) {
		result = double_submit(target, double_op_new(DOUBLE_OP_JOIN));
		if (result)
			return result;
	}
	line->refs++;
	double_line_wait(line, line->submitted);
	double_line_unref(line);
	return target->context->fault;
}

int cuStreamSynchronize(struct CUstream_st *stream)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct double_target target;

	if (result)
		return result;
	result = check_asking(stream, &target);
	return double_leave(result ? result : synchronize(&target));
}

void double_streams_wait(const struct CUctx_st *context)
{
	struct double_join *joins = calloc((size_t)double_count_streams() + 1, sizeof(*joins));
	struct CUstream_st *stream;
	int count = 0;

	if (!joins)
		abort();
	joins[count++] = (struct double_join){context->legacy, context->legacy->submitted};
	TAILQ_FOREACH (stream, &streams, link)
		if (stream->context == context)
			joins[count++] = (struct double_join){stream->line, stream->line->submitted};
	for (int i = 0; i < count; i++)
		joins[i].line->refs++;
	for (int i = 0; i < count; i++) {
		double_line_wait(joins[i].line, joins[i].value);
		double_line_unref(joins[i].line);
	}
	free(joins);
}

static bool is_idle(const struct double_target *target)
{
	struct CUstream_st *stream;
	bool idle = target->line->done == target->line->submitted;

	TAILQ_FOREACH (stream, &streams, link)
		if (!target->stream && stream->context == target->context && !stream->non_blocking)
			idle &= stream->line->done == stream->line->submitted;
	return idle;
}

int cuStreamQuery(struct CUstream_st *stream)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct double_target target;

	if (result)
		return result;
	result = check_asking(stream, &target);
	if (!result && !is_idle(&target))
		result = ZD_CU_NOT_READY;
	return double_leave(result);
}

int cuStreamGetCtx(struct CUstream_st *stream, struct CUctx_st **context)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct double_target target;

	if (result)
		return result;
	result = double_target(stream, &target);
	if (!result)
		*context = target.context;
	return double_leave(result);
}

/* ---- Capture ------------------------------------------------------------------------------------------- */

bool double_blocking_capture(const struct CUctx_st *context)
{
	struct CUstream_st *stream;

	TAILQ_FOREACH (stream, &streams, link)
		if (stream->context == context && stream->capture && !stream->non_blocking)
			return true;
	return false;
}

void double_invalidate_blocking_captures(const struct CUctx_st *context)
{
	struct CUstream_st *stream;

	TAILQ_FOREACH (stream, &streams, link)
		if (stream->context == context && stream->capture && !stream->non_blocking)
			double_capture_invalidate(stream->capture);
}

void double_streams_leave_capture(const struct double_capture *capture)
{
	struct CUstream_st *stream;

	TAILQ_FOREACH (stream, &streams, link)
		if (stream->capture == capture)
			stream->capture = NULL;
}
