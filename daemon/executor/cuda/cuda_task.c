/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_task.c - a command in the form in which executors and workers run it.
 *
 * The loop's thread resolves addresses when the command is submitted. At that time they are valid: the core
 * names no segment before its creation was reported, nor after it has ordered its destruction.
 */
#include "executor/cuda/cuda_task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

_Static_assert(ZD_AGREE_BYTES == ZD_CUDA_COMM_VALUE_BYTES, "what a communicator has room for");

static void take_comm_open(struct zd_cuda_task *task, const struct zd_command *command)
{
	struct zd_comm_desc *desc = zd_calloc(1, sizeof(*desc));
	*desc = command->u.comm_open;
	desc->group = zd_strdup(desc->group);
	task->u.comm_open = desc;
}

static struct zd_cuda_exchange *new_exchange(struct zd_cuda_task *task, uint64_t comm, const char *what)
{
	struct zd_cuda_exchange *exchange = zd_calloc(1, sizeof(*exchange));
	exchange->task = task;
	exchange->comm = comm;
	(void)snprintf(exchange->what, sizeof(exchange->what), "%s", what);
	exchange->op.call.dtype = ZEROD_UINT8;
	exchange->op.call.what = exchange->what;
	return exchange;
}

/* Returns whether all ranks send one block to all, received without gaps: NCCL's allGather is faster than
 * sends and receives. */
static bool gathers_all(const struct zd_exchange_desc *desc)
{
	return desc->send_stride == 0 && desc->receive_stride == desc->bytes;
}

static void take_exchange(struct zd_cuda_task *task, const struct zd_command *command,
                          struct zd_cuda_segments *segments)
{
	const struct zd_exchange_desc *desc = &command->u.exchange;
	struct zd_cuda_exchange *exchange = new_exchange(task, desc->comm, desc->what);
	struct zd_cuda_comm_op *op = &exchange->op;
	op->call.kind = gathers_all(desc) ? ZD_CUDA_COMM_ALL_GATHER : ZD_CUDA_COMM_EXCHANGE;
	op->call.numel = desc->bytes;
	if (op->call.kind == ZD_CUDA_COMM_EXCHANGE) {
		op->call.send_stride = desc->send_stride;
		op->call.receive_stride = desc->receive_stride;
	}
	op->send = zd_cuda_segments_at(segments, &desc->send);
	op->receive = zd_cuda_segments_at(segments, &desc->receive);
	exchange->desc = *desc;
	exchange->desc.what = NULL;
	task->u.exchange = exchange;
}

static void take_agree(struct zd_cuda_task *task, const struct zd_command *command)
{
	struct zd_cuda_exchange *exchange = new_exchange(task, command->u.agree.comm, command->u.agree.what);
	zd_assert(command->u.agree.bytes <= ZD_AGREE_BYTES);
	exchange->op.call.kind = ZD_CUDA_COMM_AGREE;
	exchange->op.call.numel = command->u.agree.bytes;
	memcpy(exchange->value, command->u.agree.value, command->u.agree.bytes);
	exchange->op.value = exchange->value;
	task->u.exchange = exchange;
}

/* Returns false for a command of another kind. */
static bool take_of_comm(struct zd_cuda_task *task, const struct zd_command *command,
                         struct zd_cuda_segments *segments)
{
	switch (command->kind) {
	case ZD_CMD_UNIQUE_IDS:
		task->u.ids.count = command->u.ids.count;
		task->u.ids.uid = command->u.ids.uid;
		return true;
	case ZD_CMD_COMM_OPEN:
		take_comm_open(task, command);
		return true;
	case ZD_CMD_COMM_CLOSE:
		task->u.comm_close.comm = command->u.comm_close.comm;
		task->u.comm_close.abort = command->u.comm_close.abort;
		return true;
	case ZD_CMD_EXCHANGE:
		take_exchange(task, command, segments);
		return true;
	case ZD_CMD_AGREE:
		take_agree(task, command);
		return true;
	default:
		return false;
	}
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
	if (take_of_comm(task, command, segments))
		return task;
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
	if (zd_cuda_task_exchanges(task))
		free(task->u.exchange);
	if (task->base.kind == ZD_CMD_COMM_OPEN) {
		free((char *)task->u.comm_open->group);
		free(task->u.comm_open);
	}
	zd_task_deinit(&task->base);
	free(task);
}
