/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_task.c - a command in the form in which executors and workers run it.
 *
 * The loop's thread resolves addresses when the command is submitted. At that time they are valid: the core
 * names no segment before its creation was reported, nor after it has ordered its destruction.
 */
#include "executor/cuda/cuda_task.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

static void take_copy(struct zd_cuda_task *task, const struct zd_command *command,
                      struct zd_cuda_segments *segments)
{
	const struct zd_location *src = &command->u.copy.src, *dst = &command->u.copy.dst;
	zd_assert(src->bytes == zd_rows_span(command->u.copy.rows, dst->bytes));
	task->target = command->u.copy.dst_device;
	if (zd_cuda_segments_on_host(segments, src->segment))
		task->target = ZD_CUDA_QUEUE_UP;
	else if (zd_cuda_segments_on_host(segments, dst->segment))
		task->target = ZD_CUDA_QUEUE_DOWN;
	task->u.copy.src = zd_cuda_segments_at(segments, src);
	task->u.copy.dst = zd_cuda_segments_at(segments, dst);
	task->u.copy.bytes = dst->bytes;
	task->u.copy.rows = command->u.copy.rows;
}

static void take_fill(struct zd_cuda_task *task, const struct zd_command *command,
                      struct zd_cuda_segments *segments)
{
	task->u.copy.dst = zd_cuda_segments_at(segments, &command->u.fill.dst);
	task->u.copy.bytes = command->u.fill.dst.bytes;
	task->u.copy.pattern = command->u.fill.pattern;
}

static void take_reduce(struct zd_cuda_task *task, const struct zd_command *command,
                        struct zd_cuda_segments *segments)
{
	const struct zd_reduce_desc *desc = &command->u.reduce;
	zd_task_check_reduce(desc);
	task->u.reduce.desc = *desc;
	task->u.reduce.desc.inputs = NULL;
	task->u.reduce.desc.fences = NULL; /* the cuda backend waits for no fences */
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
	if (zd_cuda_task_is_collective(task))
		free(task->u.collective);
	if (task->base.kind == ZD_CMD_COMM_OPEN) {
		free((char *)task->u.comm_open->group);
		free(task->u.comm_open);
	}
	zd_task_deinit(&task->base);
	free(task);
}
