/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_comm_command.c - a command of a communicator, as a task. */
#include "executor/nccl/cuda_comm_command.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

_Static_assert(ZD_AGREE_BYTES == ZD_CUDA_COMM_VALUE_BYTES, "what a communicator has room for");

static void take_comm_open(struct zd_cuda_task *task, const struct zd_command *command)
{
	struct zd_comm_desc *desc = zd_calloc(1, sizeof(*desc));
	*desc = command->u.comm_open;
	desc->group = zd_strdup(desc->group);
	task->u.comm_open = desc;
}

static struct zd_cuda_collective *new_collective(struct zd_cuda_task *task, uint64_t comm, const char *what)
{
	struct zd_cuda_collective *collective = zd_calloc(1, sizeof(*collective));
	collective->task = task;
	collective->comm = comm;
	(void)snprintf(collective->what, sizeof(collective->what), "%s", what);
	collective->op.call.dtype = ZEROD_UINT8;
	collective->op.call.what = collective->what;
	return collective;
}

/* Returns whether all ranks send one block to all, received without gaps: NCCL's allGather is faster than
 * sends and receives. */
static bool gathers_all(const struct zd_exchange_desc *desc)
{
	return desc->send_stride == 0 && desc->receive_stride == desc->bytes;
}

static void take_collective(struct zd_cuda_task *task, const struct zd_command *command,
                            struct zd_cuda_segments *segments)
{
	const struct zd_exchange_desc *desc = &command->u.exchange;
	struct zd_cuda_collective *collective = new_collective(task, desc->comm, desc->what);
	struct zd_cuda_comm_op *op = &collective->op;
	op->call.kind = gathers_all(desc) ? ZD_CUDA_COMM_ALL_GATHER : ZD_CUDA_COMM_EXCHANGE;
	op->call.numel = desc->bytes;
	if (op->call.kind == ZD_CUDA_COMM_EXCHANGE) {
		op->call.send_stride = desc->send_stride;
		op->call.receive_stride = desc->receive_stride;
	}
	op->send = zd_cuda_segments_at(segments, &desc->send);
	op->receive = zd_cuda_segments_at(segments, &desc->receive);
	collective->desc = *desc;
	collective->desc.what = NULL;
	task->u.collective = collective;
}

static void take_agree(struct zd_cuda_task *task, const struct zd_command *command)
{
	struct zd_cuda_collective *collective = new_collective(task, command->u.agree.comm,
	                                                       command->u.agree.what);
	zd_assert(command->u.agree.bytes <= ZD_AGREE_BYTES);
	collective->op.call.kind = ZD_CUDA_COMM_AGREE;
	collective->op.call.numel = command->u.agree.bytes;
	memcpy(collective->value, command->u.agree.value, command->u.agree.bytes);
	collective->op.value = collective->value;
	task->u.collective = collective;
}

struct zd_cuda_task *zd_cuda_comm_task_new(const struct zd_command *command,
                                           struct zd_cuda_segments *segments,
                                           struct zd_backend_session *signalled)
{
	struct zd_cuda_task *task = zd_cuda_task_new(command, segments, signalled, NULL);
	switch (command->kind) {
	case ZD_CMD_UNIQUE_IDS:
		task->u.ids.count = command->u.ids.count;
		task->u.ids.uid = command->u.ids.uid;
		break;
	case ZD_CMD_COMM_OPEN:
		take_comm_open(task, command);
		break;
	case ZD_CMD_COMM_CLOSE:
		task->u.comm_close.comm = command->u.comm_close.comm;
		task->u.comm_close.abort = command->u.comm_close.abort;
		break;
	case ZD_CMD_EXCHANGE:
		take_collective(task, command, segments);
		break;
	case ZD_CMD_AGREE:
		take_agree(task, command);
		break;
	default:
		zd_assert(!"a command of communicators");
	}
	return task;
}
