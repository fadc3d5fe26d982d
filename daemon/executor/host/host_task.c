/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_task.c - a command in the form in which an executor runs it.
 *
 * The loop's thread resolves addresses when the command is submitted. At that time they are valid: the core
 * names a segment only after its creation was reported, and before it has ordered its destruction. An
 * executor therefore needs no lock while it works.
 */
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "executor/host/host_task.h"
#include "executor/thread.h"

/* About 100 microseconds of work: the longest delay before a passed fence is seen on an emulated device. */
#define SLICE_BYTES (1u << 20)
#define SLICE_NUMEL (UINT64_C(64) * ZD_HOST_REDUCE_BLOCK_NUMEL)
/* In host memory of GPUs one thread is too slow, and trainers wait for the copies. Only zerod_free() with
 * streams submits watches in this case. A longer slice therefore does not delay other requests. */
#define PARALLEL_SLICE_BYTES (128u << 20)
#define PART_BYTES           (4u << 20)

static void take_copy(struct zd_host_task *task, const struct zd_command *command,
                      struct zd_host_segments *segments)
{
	const struct zd_location *src = &command->u.copy.src;
	const struct zd_location *dst = &command->u.copy.dst;
	zd_assert(src->bytes == zd_rows_span(command->u.copy.rows, dst->bytes));
	task->u.copy.src = zd_host_segments_at(segments, src);
	task->u.copy.dst = zd_host_segments_at(segments, dst);
	task->u.copy.bytes = dst->bytes;
	task->u.copy.rows = command->u.copy.rows;
	task->u.copy.in_parts = segments->pinning != NULL;
}

static void take_fill(struct zd_host_task *task, const struct zd_command *command,
                      struct zd_host_segments *segments)
{
	task->u.copy.dst = zd_host_segments_at(segments, &command->u.fill.dst);
	task->u.copy.bytes = command->u.fill.dst.bytes;
	task->u.copy.pattern = command->u.fill.pattern;
	task->u.copy.in_parts = segments->pinning != NULL;
}

static void take_reduce(struct zd_host_task *task, const struct zd_command *command,
                        struct zd_host_segments *segments)
{
	const struct zd_reduce_desc *desc = &command->u.reduce;
	zd_task_check_reduce(desc);
	zd_assert(desc->nfences == 0); /* owners_sum is false */
	if (desc->ninputs > 0)
		task->u.reduce.inputs = zd_calloc(desc->ninputs, sizeof(*task->u.reduce.inputs));
	for (uint32_t i = 0; i < desc->ninputs; i++)
		task->u.reduce.inputs[i] = zd_host_segments_at(segments, &desc->inputs[i]);
	task->u.reduce.run = (struct zd_host_reduce){
	        .numel = desc->numel,
	        .input_dtype = desc->input_dtype,
	        .target_dtype = desc->target_dtype,
	        .ninputs = desc->ninputs,
	        .inputs = task->u.reduce.inputs,
	        .target = zd_host_segments_at(segments, &desc->target),
	        .prescale = desc->prescale,
	        .postscale = desc->postscale,
	        .overwrite = desc->overwrite,
	        .isa = zd_host_isa_best(),
	};
}

struct zd_host_task *zd_host_task_new(const struct zd_command *command, struct zd_host_segments *segments,
                                      struct zd_backend_session *signalled,
                                      struct zd_backend_session *watched)
{
	struct zd_host_task *task = zd_calloc(1, sizeof(*task));
	zd_task_init(&task->base, command, watched);
	task->op = command->op;
	task->session = zd_backend_session_ref(signalled);
	if (command->kind == ZD_CMD_SEGMENT_DESTROY)
		task->u.destroy = zd_host_segments_take(segments, command->u.segment.segment);
	else if (command->kind == ZD_CMD_COPY)
		take_copy(task, command, segments);
	else if (command->kind == ZD_CMD_FILL)
		take_fill(task, command, segments);
	else if (command->kind == ZD_CMD_REDUCE)
		take_reduce(task, command, segments);
	return task;
}

void zd_host_task_free(struct zd_host_task *task)
{
	if (!task)
		return;
	zd_backend_session_unref(task->session);
	if (task->base.kind == ZD_CMD_SEGMENT_DESTROY)
		zd_host_segment_destroy(task->u.destroy);
	else if (task->base.kind == ZD_CMD_REDUCE)
		free(task->u.reduce.inputs);
	zd_task_deinit(&task->base);
	free(task);
}

static void create_segment(const struct zd_host_task *task, struct zd_host_segments *segments,
                           struct zd_completion *completion)
{
	struct zd_err err = ZD_ERR_NONE;
	struct zd_host_segment *segment = NULL;
	int rc = zd_host_segment_new(task->base.u.create.id, task->base.u.create.bytes, segments->pinning,
	                             &segment, &err);
	if (rc)
		zd_completion_fail(completion, rc, err.text);
	else
		zd_host_segments_add(segments, segment);
}

/* `from`: after the part that is done. */
static void copy_part(void *arg, uint64_t from, uint64_t bytes)
{
	const struct zd_host_task *task = arg;
	uint64_t at = task->u.copy.done_bytes + from;
	if (task->u.copy.src)
		zd_copy(task->u.copy.dst, task->u.copy.src, task->u.copy.rows, at, bytes);
	else
		zd_fill(task->u.copy.dst, at, bytes, task->u.copy.pattern);
}

static bool copy_slice(struct zd_host_task *task)
{
	uint64_t most = task->u.copy.in_parts ? PARALLEL_SLICE_BYTES : SLICE_BYTES;
	uint64_t bytes = zd_min_u64(most, task->u.copy.bytes - task->u.copy.done_bytes);
	zd_run_in_parts(bytes, PART_BYTES, copy_part, task);
	task->u.copy.done_bytes += bytes;
	return task->u.copy.done_bytes == task->u.copy.bytes;
}

static bool reduce_slice(struct zd_host_task *task, struct zd_completion *completion)
{
	if (!zd_host_reduce_run(&task->u.reduce.run, SLICE_NUMEL))
		return false;
	completion->result = zd_host_reduce_result(&task->u.reduce.run);
	return true;
}

bool zd_host_task_step(struct zd_host_task *task, struct zd_host_segments *segments,
                       struct zd_completion *completion)
{
	switch (task->base.kind) {
	case ZD_CMD_SEGMENT_CREATE:
		create_segment(task, segments, completion);
		return true;
	case ZD_CMD_SEGMENT_DESTROY:
		zd_host_segment_destroy(task->u.destroy);
		task->u.destroy = NULL;
		return true;
	case ZD_CMD_COPY:
	case ZD_CMD_FILL:
		return copy_slice(task);
	case ZD_CMD_REDUCE:
		return reduce_slice(task, completion);
	case ZD_CMD_SIGNAL:
		return true;
	case ZD_CMD_UNIQUE_IDS: /* not submitted: the host backend has no communicators */
	case ZD_CMD_COMM_OPEN:
	case ZD_CMD_COMM_CLOSE:
	case ZD_CMD_EXCHANGE:
	case ZD_CMD_AGREE:
	case ZD_CMD_WATCH:
		break;
	}
	zd_assert(!"a watch is polled");
	return true;
}

/* A waiter must not mistake a failure for data. A failed task therefore aborts its timeline, and later tasks
 * do not change an aborted timeline. Only a SIGNAL of the core, when the session is reset, ends the abort. */
void zd_host_task_signal(const struct zd_host_task *task, int status)
{
	if (!task->session)
		return;
	if (status != 0)
		zd_backend_session_set(task->session, task->base.timeline, ZD_FENCE_ABORTED);
	else if (task->base.kind == ZD_CMD_SIGNAL)
		zd_backend_session_set(task->session, task->base.timeline, task->base.value);
	else
		zd_backend_session_signal(task->session, task->base.timeline, task->base.value);
}
