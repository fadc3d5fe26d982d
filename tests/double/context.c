/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.c - contexts: the primary one of each device, and others, and which of them is current for a
 * thread.
 *
 * A context that was given back stops its queues: what has not begun never runs, and its streams are no
 * handles any more. One that is lost (double_context_fail) stays, and every later call in it gives what it
 * was lost to.
 */
#include "tests/double/double.h"

#include <stdlib.h>
#include <unistd.h>

#define DEPTH  32
#define OTHERS 8

static struct CUctx_st contexts[DOUBLE_MAX_DEVICES + OTHERS]; /* the primary ones, the others */

static _Thread_local struct {
	int depth;
	struct CUctx_st *contexts[DEPTH];
} stack;

struct CUctx_st *double_current(void)
{
	return stack.depth ? stack.contexts[stack.depth - 1] : NULL;
}

bool double_is_context(const struct CUctx_st *context)
{
	for (int i = 0; i < DOUBLE_MAX_DEVICES + OTHERS; i++)
		if (context == &contexts[i])
			return true;
	return false;
}

int double_count_contexts(void)
{
	int count = 0;

	for (int i = 0; i < DOUBLE_MAX_DEVICES + OTHERS; i++)
		count += contexts[i].retained > 0;
	return count;
}

/* ---- Loss ---------------------------------------------------------------------------------------------- */

bool double_is_lost(int result)
{
	return result == ZD_CU_DEVICE_UNAVAILABLE || result == ZD_CU_ECC_UNCORRECTABLE ||
	       result == ZD_CU_NVLINK_UNCORRECTABLE || result == ZD_CU_ILLEGAL_ADDRESS ||
	       result == DOUBLE_LAUNCH_FAILED;
}

void double_context_fail(struct CUctx_st *context, int result)
{
	if (!context->fault)
		__atomic_store_n(&context->fault, result, __ATOMIC_RELEASE);
	(void)pthread_cond_broadcast(&double_moved);
}

void double_context_settle(const struct CUctx_st *context)
{
	while (context->running > 0)
		double_wait(&double_moved);
}

/* ---- Begin and end ------------------------------------------------------------------------------------- */

static int check_compute_mode(int device)
{
	int mode = 0;

	(void)double_attribute(device, ZD_CU_ATTR_COMPUTE_MODE, &mode);
	if (mode == ZD_CU_COMPUTE_PROHIBITED)
		return ZD_CU_DEVICE_UNAVAILABLE;
	if (mode == ZD_CU_COMPUTE_EXCLUSIVE_PROCESS && double_listed_others(double_config()->visible[device]))
		return ZD_CU_DEVICE_UNAVAILABLE;
	return ZD_CU_SUCCESS;
}

static int begin_context(struct CUctx_st *context, int device)
{
	int result = check_compute_mode(device);

	if (result)
		return result;
	context->device = device;
	context->fault = 0;
	context->stopping = false;
	context->next_queue = 0;
	context->listed_fd = double_listed_add(double_config()->visible[device]);
	context->legacy = double_line_new();
	for (int i = 0; i < double_config()->nqueues; i++) {
		context->queues[i].context = context;
		STAILQ_INIT(&context->queues[i].ops);
	}
	return ZD_CU_SUCCESS;
}

static void end_context(struct CUctx_st *context)
{
	double_queues_stop(context);
	double_streams_orphan(context);
	double_line_unref(context->legacy);
	context->legacy = NULL;
	if (context->listed_fd >= 0)
		(void)close(context->listed_fd);
	context->listed_fd = -1;
	context->stopping = false;
	(void)pthread_cond_broadcast(&double_moved);
}

int cuDevicePrimaryCtxRetain(struct CUctx_st **context, int device)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_INIT);
	struct CUctx_st *made;

	if (result)
		return result;
	if (!double_is_device(device))
		return double_leave(ZD_CU_INVALID_DEVICE);
	made = &contexts[device];
	while (made->stopping)
		double_wait(&double_moved);
	if (!made->retained)
		result = begin_context(made, device);
	if (result)
		return double_leave(result);
	made->retained++;
	*context = made;
	return double_leave(ZD_CU_SUCCESS);
}

int cuDevicePrimaryCtxRelease(int device)
{
	int after = 0, result = double_enter_giving_back(__func__, DOUBLE_NEEDS_INIT, &after);

	if (result)
		return result;
	if (!double_is_device(device))
		return double_leave(ZD_CU_INVALID_DEVICE);
	if (!contexts[device].retained)
		return double_leave(ZD_CU_INVALID_CONTEXT);
	if (--contexts[device].retained == 0)
		end_context(&contexts[device]);
	return double_leave(after);
}

/* Becomes the current one. */
int cuCtxCreate_v2(struct CUctx_st **context, unsigned int flags, int device)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_INIT);
	struct CUctx_st *made = &contexts[DOUBLE_MAX_DEVICES];

	if (result)
		return result;
	if (!double_is_device(device))
		return double_leave(ZD_CU_INVALID_DEVICE);
	while (made < contexts + DOUBLE_MAX_DEVICES + OTHERS && (made->retained || made->stopping))
		made++;
	if (flags || made == contexts + DOUBLE_MAX_DEVICES + OTHERS || stack.depth == DEPTH)
		return double_leave(ZD_CU_INVALID_VALUE);
	result = begin_context(made, device);
	if (result)
		return double_leave(result);
	made->retained = 1;
	stack.contexts[stack.depth++] = made;
	*context = made;
	return double_leave(ZD_CU_SUCCESS);
}

int cuCtxDestroy_v2(struct CUctx_st *context)
{
	int after = 0, result = double_enter_giving_back(__func__, DOUBLE_NEEDS_INIT, &after);

	if (result)
		return result;
	if (!double_is_context(context) || context < contexts + DOUBLE_MAX_DEVICES || !context->retained)
		return double_leave(ZD_CU_INVALID_CONTEXT);
	context->retained = 0;
	end_context(context);
	return double_leave(after);
}

/* ---- Current ------------------------------------------------------------------------------------------- */

int cuCtxGetCurrent(struct CUctx_st **context)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_INIT);

	if (result)
		return result;
	*context = double_current();
	return double_leave(ZD_CU_SUCCESS);
}

/* Replaces the context on top of the stack; NULL pops it. */
int cuCtxSetCurrent(struct CUctx_st *context)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_INIT);

	if (result)
		return result;
	if (context && !double_is_context(context))
		return double_leave(ZD_CU_INVALID_CONTEXT);
	if (stack.depth)
		stack.depth--;
	if (context)
		stack.contexts[stack.depth++] = context;
	return double_leave(ZD_CU_SUCCESS);
}

int cuCtxPushCurrent(struct CUctx_st *context)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_INIT);

	if (result)
		return result;
	if (!double_is_context(context) || stack.depth == DEPTH)
		return double_leave(ZD_CU_INVALID_CONTEXT);
	stack.contexts[stack.depth++] = context;
	return double_leave(ZD_CU_SUCCESS);
}

/* Always pops, so that an injected fault leaves no context behind on the thread. */
int cuCtxPopCurrent(struct CUctx_st **context)
{
	int after = 0, result = double_enter_giving_back(__func__, DOUBLE_NEEDS_INIT, &after);

	if (result)
		return result;
	if (!stack.depth)
		return double_leave(ZD_CU_INVALID_CONTEXT);
	if (context)
		*context = double_current();
	stack.depth--;
	return double_leave(after);
}

int cuCtxGetDevice(int *device)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);

	if (result)
		return result;
	*device = double_current()->device;
	return double_leave(ZD_CU_SUCCESS);
}

int cuCtxSynchronize(void)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct CUctx_st *context;

	if (result)
		return result;
	result = double_check_unsafe();
	if (result)
		return double_leave(result);
	context = double_current();
	double_streams_wait(context);
	return double_leave(context->fault);
}

int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);

	if (result)
		return result;
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return double_leave(ZD_CU_SUCCESS);
}
