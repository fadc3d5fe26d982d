/* SPDX-License-Identifier: Apache-2.0 */
/* held.c - a command that is held back: its pieces, its end, its completion. */
#include "tests/simbackend/held.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

#define SCRIBBLE 0xdb

static bool of_segment(const struct zd_host_task *task)
{
	return task->base.kind == ZD_CMD_SEGMENT_CREATE || task->base.kind == ZD_CMD_SEGMENT_DESTROY;
}

static bool moves_bytes(const struct zd_host_task *task)
{
	return task->base.kind == ZD_CMD_COPY || task->base.kind == ZD_CMD_FILL;
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

struct zd_held *zd_held_new(struct zd_host_task *task, const struct zd_temper *temper,
                            const struct zd_sim_rng *rng, uint64_t now_ns)
{
	struct zd_held *held = zd_calloc(1, sizeof(*held));

	held->task = task;
	held->rng = *rng;
	held->completion.op = task->op;
	held->scribbles = zd_sim_percent(&held->rng, temper->scribble_percent);
	held->npieces = held->left = (uint32_t)zd_sim_between(&held->rng, 1, ZD_HELD_PIECES);
	for (uint32_t i = 0; i < held->npieces; i++)
		held->pieces[i] = (uint8_t)i;
	held->due_ns = now_ns +
	               zd_sim_delay(&held->rng, of_segment(task) ? temper->segment_ns : temper->begin_ns);
	return held;
}

void zd_held_free(struct zd_held *held)
{
	zd_host_task_free(held->task);
	free(held);
}

/* ---- Order --------------------------------------------------------------------------------------------- */

bool zd_held_ordered(const struct zd_held *a, const struct zd_held *b)
{
	const struct zd_host_task *first = a->task, *second = b->task;

	if (of_segment(first) && of_segment(second))
		return true;
	return first->session && first->session == second->session &&
	       first->base.timeline == second->base.timeline;
}

bool zd_held_may_go(const struct zd_held *held)
{
	return held->stage != ZD_HELD_ENDS || !held->after;
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

/* One of those that are left, whichever. True when it was the last. */
static bool move_piece(struct zd_held *held)
{
	struct zd_host_task *task = held->task;
	uint32_t drawn = (uint32_t)zd_sim_below(&held->rng, held->left);
	uint64_t piece = held->pieces[drawn], bytes = task->u.copy.bytes;
	uint64_t low = bytes * piece / held->npieces, high = bytes * (piece + 1) / held->npieces;

	if (held->scribbles && bytes > 0 && held->left == held->npieces)
		memset(task->u.copy.dst, SCRIBBLE, bytes);
	held->pieces[drawn] = held->pieces[--held->left];
	if (high > low && task->u.copy.src)
		zd_copy(task->u.copy.dst, task->u.copy.src, task->u.copy.rows, low, high - low);
	else if (high > low)
		zd_fill(task->u.copy.dst, low, high - low, task->u.copy.pattern);
	return held->left == 0;
}

/* True when nothing but its end is left. */
static bool move(struct zd_held *held, struct zd_host_segments *segments)
{
	struct zd_host_task *task = held->task;

	if (moves_bytes(task))
		return move_piece(held);
	if (task->base.kind == ZD_CMD_REDUCE)
		return zd_host_task_step(task, segments, &held->completion);
	if (task->base.kind == ZD_CMD_WATCH)
		return zd_watch_poll(&task->base.u.watch, &held->completion);
	return true; /* what has no parts happens at its end */
}

/* The store; whoever waits for it may see it before the core hears of the end. */
static void end(struct zd_held *held)
{
	zd_host_task_signal(held->task, held->completion.status);
	zd_host_task_free(held->task);
	held->task = NULL;
	if (held->before)
		held->before->after = NULL;
	held->before = NULL;
}

static void tell(struct zd_held *held, const struct zd_host_executor *executor)
{
	if (held->completion.op)
		executor->done(executor->done_arg, &held->completion);
	else
		zd_completion_deinit(&held->completion);
}

static bool has_happened(const struct zd_host_task *task)
{
	return moves_bytes(task) || task->base.kind == ZD_CMD_REDUCE || task->base.kind == ZD_CMD_WATCH;
}

/* How long it may take until the next look at a watch, or the next piece. */
static uint64_t move_scale_ns(const struct zd_host_task *task, const struct zd_temper *temper)
{
	if (task->base.kind != ZD_CMD_WATCH)
		return temper->piece_ns;
	return task->base.u.watch.until_gone ? temper->gone_ns : temper->look_ns;
}

bool zd_held_step(struct zd_held *held, struct zd_host_executor *executor, const struct zd_temper *temper,
                  uint64_t now_ns)
{
	uint64_t scale_ns = 0;

	switch (held->stage) {
	case ZD_HELD_MOVES:
		scale_ns = move_scale_ns(held->task, temper);
		if (!move(held, executor->segments))
			break;
		scale_ns = temper->end_ns;
		held->stage = ZD_HELD_ENDS;
		break;
	case ZD_HELD_ENDS:
		zd_assert(!held->after);
		if (!has_happened(held->task))
			(void)zd_host_task_step(held->task, executor->segments, &held->completion);
		end(held);
		scale_ns = temper->tell_ns;
		held->stage = ZD_HELD_TELLS;
		break;
	case ZD_HELD_TELLS:
		tell(held, executor);
		return true;
	}
	held->due_ns = now_ns + zd_sim_delay(&held->rng, scale_ns);
	return false;
}

void zd_held_fail(struct zd_held *held, struct zd_host_executor *executor, int status, const char *error)
{
	if (held->task) {
		zd_completion_fail(&held->completion, status, error);
		end(held);
	}
	tell(held, executor);
}
