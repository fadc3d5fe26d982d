/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_task.c - a command as executors and workers run it.
 *
 * Addresses are looked up when the command is given, on the loop's thread: the core gives none for a segment whose
 * creation has not been reported, or whose destruction has been ordered.
 */
#include "backend/cuda_task.h"

#include <stdlib.h>

#include "base/dtype.h"
#include "base/err.h"
#include "base/mem.h"

static void take_copy(struct zd_cuda_task *task, const struct zd_command *command,
                      struct zd_cuda_segments *segments)
{
	const struct zd_location *src = &command->u.copy.src, *dst = &command->u.copy.dst;
	zd_assert(src->bytes == dst->bytes);
	task->target = command->u.copy.dst_device;
	task->u.copy.src = zd_cuda_segments_at(segments, src);
	task->u.copy.dst = zd_cuda_segments_at(segments, dst);
	task->u.copy.bytes = dst->bytes;
}

static zd_cu_ptr elements_at(struct zd_cuda_segments *segments, const struct zd_location *location,
                             uint64_t numel, enum zerod_dtype dtype)
{
	size_t each = zerod_dtype_bytes(dtype);
	zd_assert(location->offset % each == 0 && location->bytes / each >= numel);
	return zd_cuda_segments_at(segments, location);
}

static void take_reduce(struct zd_cuda_task *task, const struct zd_command *command,
                        struct zd_cuda_segments *segments)
{
	const struct zd_reduce_desc *desc = &command->u.reduce;
	zd_assert(zd_dtype_reducible(desc->input_dtype) && zd_dtype_reducible(desc->target_dtype));
	zd_assert(desc->ninputs > 0 || desc->overwrite);
	task->u.reduce.desc = *desc;
	task->u.reduce.desc.inputs = NULL;
	task->u.reduce.target = elements_at(segments, &desc->target, desc->numel, desc->target_dtype);
	if (desc->ninputs > 0)
		task->u.reduce.inputs = zd_calloc(desc->ninputs, sizeof(*task->u.reduce.inputs));
	for (uint32_t i = 0; i < desc->ninputs; i++)
		task->u.reduce.inputs[i] = elements_at(segments, &desc->inputs[i], desc->numel,
		                                       desc->input_dtype);
}

struct zd_cuda_task *zd_cuda_task_new(const struct zd_command *command, struct zd_cuda_segments *segments,
                                      struct zd_backend_session *signalled,
                                      struct zd_backend_session *watched)
{
	struct zd_cuda_task *task = zd_calloc(1, sizeof(*task));
	task->kind = command->kind;
	task->target = command->device;
	task->completion.op = command->op;
	if (signalled)
		task->session = zd_cuda_session_of(zd_backend_session_ref(signalled));
	task->timeline = command->signal.timeline;
	task->value = command->signal.value;
	zd_assert(!signalled || task->timeline < ZD_TIMELINES);
	switch (command->kind) {
	case ZD_CMD_SEGMENT_CREATE:
		task->u.create.id = command->u.segment.segment;
		task->u.create.bytes = command->u.segment.bytes;
		break;
	case ZD_CMD_SEGMENT_DESTROY:
		task->u.destroy = zd_cuda_segments_take(segments, command->u.segment.segment);
		break;
	case ZD_CMD_COPY:
		take_copy(task, command, segments);
		break;
	case ZD_CMD_FILL:
		task->u.copy.dst = zd_cuda_segments_at(segments, &command->u.fill);
		task->u.copy.bytes = command->u.fill.bytes;
		break;
	case ZD_CMD_WATCH:
		zd_watch_init(&task->u.watch, command, watched);
		break;
	case ZD_CMD_REDUCE:
		take_reduce(task, command, segments);
		break;
	case ZD_CMD_SIGNAL:
		break;
	}
	return task;
}

void zd_cuda_task_free(struct zd_cuda_task *task)
{
	if (task->session)
		zd_backend_session_unref(&task->session->base);
	switch (task->kind) {
	case ZD_CMD_WATCH:
		zd_watch_deinit(&task->u.watch);
		break;
	case ZD_CMD_REDUCE:
		free(task->u.reduce.inputs);
		break;
	case ZD_CMD_SEGMENT_CREATE:
	case ZD_CMD_SEGMENT_DESTROY:
	case ZD_CMD_COPY:
	case ZD_CMD_FILL:
	case ZD_CMD_SIGNAL:
		break;
	}
	free(task);
}
