/* SPDX-License-Identifier: Apache-2.0 */
/* task.c - the common part of a backend's tasks. */
#include "executor/task.h"

#include "base/dtype.h"
#include "base/err.h"

void zd_task_init(struct zd_task *task, const struct zd_command *command, struct zd_backend_session *watched)
{
	*task = (struct zd_task){
	        .kind = command->kind, .timeline = command->signal.timeline, .value = command->signal.value};
	if (command->kind == ZD_CMD_WATCH)
		zd_watch_init(&task->u.watch, command, watched);
	if (command->kind != ZD_CMD_SEGMENT_CREATE)
		return;
	task->u.create.id = command->u.segment.segment;
	task->u.create.bytes = command->u.segment.bytes;
}

void zd_task_deinit(struct zd_task *task)
{
	if (task->kind == ZD_CMD_WATCH)
		zd_watch_deinit(&task->u.watch);
}

static void check_elements(const struct zd_location *location, uint64_t numel, enum zerod_dtype dtype)
{
	size_t each = zerod_dtype_bytes(dtype);
	zd_assert(location->offset % each == 0 && location->bytes / each >= numel);
}

void zd_task_check_reduce(const struct zd_reduce_desc *desc)
{
	zd_assert(zd_dtype_reducible(desc->input_dtype) && zd_dtype_holds_sums(desc->target_dtype));
	zd_assert(desc->ninputs > 0 || desc->overwrite);
	check_elements(&desc->target, desc->numel, desc->target_dtype);
	for (uint32_t i = 0; i < desc->ninputs; i++)
		check_elements(&desc->inputs[i], desc->numel, desc->input_dtype);
}
