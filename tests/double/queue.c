/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue.c - hardware queues: threads that run operations first in, first out.
 *
 * A queue's thread begins with its first operation. What is at its head blocks all behind it, whatever stream
 * they are of. Operations depend on earlier submitted ones only, and on words of memory, so that queues
 * cannot block each other in a circle.
 */
#include "tests/double/double.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

pthread_cond_t double_moved = PTHREAD_COND_INITIALIZER;

/* ---- Lines, marks, operations -------------------------------------------------------------------------- */

static void *allocate(size_t bytes)
{
	void *made = calloc(1, bytes);

	if (!made)
		abort();
	return made;
}

struct double_line *double_line_new(void)
{
	struct double_line *line = allocate(sizeof(*line));

	line->refs = 1;
	return line;
}

void double_line_unref(struct double_line *line)
{
	if (line && --line->refs == 0)
		free(line);
}

void double_line_wait(const struct double_line *line, uint64_t value)
{
	while (line->done < value)
		double_wait(&double_moved);
}

struct double_mark *double_mark_new(void)
{
	struct double_mark *mark = allocate(sizeof(*mark));

	mark->refs = 1;
	return mark;
}

void double_mark_unref(struct double_mark *mark)
{
	if (mark && --mark->refs == 0)
		free(mark);
}

struct double_op *double_op_new(enum double_op_kind kind)
{
	struct double_op *op = allocate(sizeof(*op));

	op->kind = kind;
	return op;
}

static void leave_place(struct double_place *place)
{
	if (place->registered)
		place->registered->pending--;
}

void double_op_free(struct double_op *op)
{
	leave_place(&op->dst);
	leave_place(&op->src);
	for (int i = 0; i < op->njoins; i++)
		double_line_unref(op->joins[i].line);
	double_mark_unref(op->mark);
	double_line_unref(op->line);
	free(op->joins);
	free(op->staged);
	free(op);
}

/* ---- Running ------------------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool double_is_over(const struct CUctx_st *context)
{
	return __atomic_load_n(&context->stopping, __ATOMIC_ACQUIRE) ||
	       __atomic_load_n(&context->fault, __ATOMIC_ACQUIRE);
}

static void wait_for_others(const struct CUctx_st *context, const struct double_op *op)
{
	for (int i = 0; i < op->njoins; i++)
		while (op->joins[i].line->done < op->joins[i].value && !double_is_over(context))
			double_wait(&double_moved);
	while (op->kind == DOUBLE_OP_JOIN && op->mark && !op->mark->done && !double_is_over(context))
		double_wait(&double_moved);
}

/* Its operation stays at the head until it has ended. */
static void run_head(struct double_queue *queue)
{
	struct CUctx_st *context = queue->context;
	struct double_op *op = STAILQ_FIRST(&queue->ops);
	int result;

	wait_for_others(context, op);
	if (!double_is_over(context)) {
		context->running++;
		result = double_run(context, op);
		context->running--;
		if (result)
			double_context_fail(context, result);
	}
	if (op->kind == DOUBLE_OP_MARK) {
		op->mark->done = true;
		op->mark->done_ns = now_ns();
		op->mark->fault = context->fault;
	}
	op->line->done = op->number;
	STAILQ_REMOVE_HEAD(&queue->ops, link);
	double_op_free(op);
	(void)pthread_cond_broadcast(&double_moved);
}

/* Work that is left when the context stops is dropped by the same way, without being run. */
static void *queue_main(void *arg)
{
	struct double_queue *queue = arg;

	double_lock();
	while (!queue->context->stopping || !STAILQ_EMPTY(&queue->ops)) {
		if (STAILQ_EMPTY(&queue->ops))
			double_wait(&queue->work);
		else
			run_head(queue);
	}
	double_unlock();
	return NULL;
}

/* Without signals: those of the program are for its own threads. */
static void start(struct double_queue *queue)
{
	sigset_t every, before;

	(void)sigfillset(&every);
	(void)pthread_cond_init(&queue->work, NULL);
	(void)pthread_sigmask(SIG_SETMASK, &every, &before);
	if (pthread_create(&queue->thread, NULL, queue_main, queue)) {
		(void)fprintf(stderr, "double: no thread for a queue\n");
		abort();
	}
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	queue->started = true;
}

void double_queue_push(struct double_queue *queue, struct double_op *op)
{
	if (!queue->started)
		start(queue);
	STAILQ_INSERT_TAIL(&queue->ops, op, link);
	(void)pthread_cond_signal(&queue->work);
}

void double_queues_stop(struct CUctx_st *context)
{
	__atomic_store_n(&context->stopping, true, __ATOMIC_RELEASE);
	(void)pthread_cond_broadcast(&double_moved);
	for (int i = 0; i < double_config()->nqueues; i++) {
		struct double_queue *queue = &context->queues[i];

		if (!queue->started)
			continue;
		(void)pthread_cond_signal(&queue->work);
		double_unlock();
		(void)pthread_join(queue->thread, NULL);
		double_lock();
		(void)pthread_cond_destroy(&queue->work);
		queue->started = false;
	}
}
