/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_task.c - a command as executors and workers run it.
 *
 * Addresses are looked up when the command is given, on the loop's thread: the core gives none for a segment whose
 * creation has not been reported, or whose destruction has been ordered.
 */
#include "backend/cuda_task.h"

#include <stdlib.h>

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

static void take_fill(struct zd_cuda_task *task, const struct zd_command *command,
                      struct zd_cuda_segments *segments)
{
	task->u.copy.dst = zd_cuda_segments_at(segments, &command->u.fill);
	task->u.copy.bytes = command->u.fill.bytes;
}

static void take_reduce(struct zd_cuda_task *task, const struct zd_command *command,
                        struct zd_cuda_segments *segments)
{
	const struct zd_reduce_desc *desc = &command->u.reduce;
	zd_task_check_reduce(desc);
	task->u.reduce.desc = *desc;
	task->u.reduce.desc.inputs = NULL;
	task->u.reduce.target = zd_cuda_segments_at(segments, &desc->target);
	if (desc->ninputs > 0)
		task->u.reduce.inputs = zd_calloc(desc->ninputs, sizeof(*task->u.reduce.inputs));
	for (uint32_t i = 0; i < desc->ninputs; i++)
		task->u.reduce.inputs[i] = zd_cuda_segments_at(segments, &desc->inputs[i]);
}

struct zd_cuda_task *zd_cuda_task_new(const struct zd_command *command, struct zd_cuda_segments *segments,
                                      struct zd_backend_session *signalled,
                                      struct zd_backend_session *watched)
{
	struct zd_cuda_task *task = zd_calloc(1, sizeof(*task));
	zd_task_init(&task->base, command, watched);
	task->target = command->device;
	task->completion.op = command->op;
	if (signalled)
		task->session = zd_cuda_session_of(zd_backend_session_ref(signalled));
	zd_assert(!signalled || task->base.timeline < ZD_TIMELINES);
	if (command->kind == ZD_CMD_SEGMENT_DESTROY)
		task->u.destroy = zd_cuda_segments_take(segments, command->u.segment.segment);
	else if (command->kind == ZD_CMD_COPY)
		take_copy(task, command, segments);
	else if (command->kind == ZD_CMD_FILL)
		take_fill(task, command, segments);
	else if (command->kind == ZD_CMD_REDUCE)
		take_reduce(task, command, segments);
	return task;
}

void zd_cuda_task_free(struct zd_cuda_task *task)
{
	if (task->session)
		zd_backend_session_unref(&task->session->base);
	if (task->base.kind == ZD_CMD_REDUCE)
		free(task->u.reduce.inputs);
	zd_task_deinit(&task->base);
	free(task);
}
