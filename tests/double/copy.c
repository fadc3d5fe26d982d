/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.c - giving streams their work: copies, fills, functions of the CPU, and waits for and writes of 64-bit
 * words.
 *
 * Host memory that is not registered is pageable. A copy from it has read all when the call returns, a copy
 * to it has written all.
 */
#include "tests/double/double.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BATCH 256

/* ---- Places -------------------------------------------------------------------------------------------- */

static void use_host(struct double_place *place, struct double_host *host, size_t offset)
{
	place->host = host->at + offset;
	place->registered = host;
	host->pending++;
}

/* Of device memory, or registered memory by its device address. Mapped is enough here: who may touch it is
 * seen when the operation runs. */
static bool find_device(zd_cu_ptr at, size_t bytes, struct double_place *place)
{
	struct double_host *host;

	if (double_is_mapped(at, bytes)) {
		place->at = at;
		return true;
	}
	host = double_host_find_device(at, bytes);
	if (host)
		use_host(place, host, at - host->device_at);
	return host != NULL;
}

/* Of CPU memory; no place at all if it is address space of the device. */
static bool find_host(void *at, size_t bytes, struct double_place *place)
{
	struct double_host *host = double_host_find(at, bytes);

	if (!at || (!host && double_is_reserved((zd_cu_ptr)(uintptr_t)at)))
		return false;
	if (host)
		use_host(place, host, (size_t)((unsigned char *)at - host->at));
	else
		place->host = at;
	return true;
}

static bool find_any(zd_cu_ptr at, size_t bytes, struct double_place *place)
{
	return find_device(at, bytes, place) || find_host(double_pointer(at), bytes, place);
}

static bool is_pageable(const struct double_place *place)
{
	return place->host && !place->registered;
}

/* ---- Copies -------------------------------------------------------------------------------------------- */

static int stage(struct double_op *op)
{
	op->staged = malloc(op->bytes);
	if (!op->staged)
		return ZD_CU_OUT_OF_MEMORY;
	memcpy(op->staged, op->src.host, op->bytes);
	op->src.host = op->staged;
	return ZD_CU_SUCCESS;
}

static int submit_copy(const struct double_target *target, struct double_op *op)
{
	bool waits = is_pageable(&op->dst) && !(target->stream && target->stream->capture);
	struct double_line *line = target->line;
	int result = is_pageable(&op->src) ? stage(op) : ZD_CU_SUCCESS;

	if (result) {
		double_op_free(op);
		return result;
	}
	result = double_submit(target, op);
	if (result || !waits)
		return result;
	line->refs++;
	double_line_wait(line, line->submitted);
	double_line_unref(line);
	return target->context->fault;
}

typedef bool find_fn(zd_cu_ptr at, size_t bytes, struct double_place *place);

static bool find_host_at(zd_cu_ptr at, size_t bytes, struct double_place *place)
{
	return find_host(double_pointer(at), bytes, place);
}

static int copy(const char *function, zd_cu_ptr dst, find_fn *find_dst, zd_cu_ptr src, find_fn *find_src,
                size_t bytes, struct CUstream_st *stream)
{
	int result = double_enter(function, DOUBLE_NEEDS_CONTEXT);
	struct double_target target;
	struct double_op *op;

	if (result)
		return result;
	result = double_target(stream, &target);
	if (result || bytes == 0)
		return double_leave(result);
	op = double_op_new(DOUBLE_OP_COPY);
	op->bytes = bytes;
	if (!find_dst(dst, bytes, &op->dst) || !find_src(src, bytes, &op->src)) {
		double_op_free(op);
		return double_leave(ZD_CU_INVALID_VALUE);
	}
	return double_leave(submit_copy(&target, op));
}

int cuMemcpyAsync(zd_cu_ptr dst, zd_cu_ptr src, size_t bytes, struct CUstream_st *stream)
{
	return copy(__func__, dst, find_any, src, find_any, bytes, stream);
}

int cuMemcpyHtoDAsync(zd_cu_ptr dst, const void *src, size_t bytes, struct CUstream_st *stream)
{
	return copy(__func__, dst, find_device, (zd_cu_ptr)(uintptr_t)src, find_host_at, bytes, stream);
}

int cuMemcpyDtoHAsync(void *dst, zd_cu_ptr src, size_t bytes, struct CUstream_st *stream)
{
	return copy(__func__, (zd_cu_ptr)(uintptr_t)dst, find_host_at, src, find_device, bytes, stream);
}

/* The real one stages what has no way between the two devices: so each side needs access to its own memory
 * only. */
static int copy_peer(const char *function, const struct zd_cu_copy_peer *copy, struct CUstream_st *stream)
{
	struct CUctx_st *dst_context = copy->destination.context, *src_context = copy->source.context;
	size_t bytes = copy->width * copy->height;
	int result = double_enter(function, DOUBLE_NEEDS_CONTEXT);
	struct double_target target;
	struct double_op *op;

	if (result)
		return result;
	result = double_target(stream, &target);
	if (!result && (!double_is_context(dst_context) || !double_is_context(src_context) ||
	                !dst_context->retained || !src_context->retained))
		result = ZD_CU_INVALID_CONTEXT;
	if (result || bytes == 0)
		return double_leave(result);
	op = double_op_new(DOUBLE_OP_COPY);
	op->bytes = bytes;
	op->row = copy->width;
	op->pitch = copy->source.pitch;
	if (!find_device(copy->destination.at, bytes, &op->dst) ||
	    !find_device(copy->source.at, (copy->height - 1) * op->pitch + op->row, &op->src)) {
		double_op_free(op);
		return double_leave(ZD_CU_INVALID_VALUE);
	}
	op->dst.as = dst_context;
	op->src.as = src_context;
	return double_leave(submit_copy(&target, op));
}

int cuMemcpyPeerAsync(zd_cu_ptr dst, struct CUctx_st *dst_context, zd_cu_ptr src,
                      struct CUctx_st *src_context, size_t bytes, struct CUstream_st *stream)
{
	const struct zd_cu_copy_peer copy = {.source = {.at = src, .context = src_context},
	                                     .destination = {.at = dst, .context = dst_context},
	                                     .width = bytes,
	                                     .height = 1};

	return copy_peer(__func__, &copy, stream);
}

/* Of rows without gaps in the destination. */
int cuMemcpy3DPeerAsync(const struct zd_cu_copy_peer *copy, struct CUstream_st *stream)
{
	const struct zd_cu_place_peer *src = &copy->source, *dst = &copy->destination;

	if (src->type != ZD_CU_MEMORY_UNIFIED || dst->type != ZD_CU_MEMORY_UNIFIED || copy->depth != 1 ||
	    src->pitch < copy->width || dst->pitch != copy->width || src->pitch > INT32_MAX)
		return ZD_CU_INVALID_VALUE;
	return copy_peer(__func__, copy, stream);
}

/* All or none of them, the last first: they have no order. */
static int submit_copies(const struct double_target *target, struct double_op **ops, size_t count)
{
	int result = ZD_CU_SUCCESS;

	while (count > 0) {
		struct double_op *op = ops[--count];

		if (result)
			double_op_free(op);
		else
			result = submit_copy(target, op);
	}
	return result;
}

static int copy_batch(const struct double_target *target, const zd_cu_ptr *dsts, const zd_cu_ptr *srcs,
                      const size_t *bytes, size_t count)
{
	struct double_op *made[MAX_BATCH];
	size_t n = 0;

	for (; n < count; n++) {
		made[n] = double_op_new(DOUBLE_OP_COPY);
		made[n]->bytes = bytes[n];
		if (bytes[n] == 0 || !find_any(dsts[n], bytes[n], &made[n]->dst) ||
		    !find_any(srcs[n], bytes[n], &made[n]->src))
			break;
	}
	if (n == count)
		return submit_copies(target, made, count);
	for (size_t i = 0; i <= n; i++)
		double_op_free(made[i]);
	return ZD_CU_INVALID_VALUE;
}

/* The default streams have no batches. */
int cuMemcpyBatchAsync(zd_cu_ptr *dsts, zd_cu_ptr *srcs, size_t *bytes, size_t count,
                       struct zd_cu_copy_attributes *attributes, size_t *firsts, size_t nattributes,
                       struct CUstream_st *stream)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct double_target target;

	if (result)
		return result;
	result = double_target(stream, &target);
	if (!result && (!target.stream || count == 0 || count > MAX_BATCH || nattributes != 1 ||
	                firsts[0] != 0 || attributes->source_order != ZD_CU_SOURCE_ORDER_STREAM))
		result = ZD_CU_INVALID_VALUE;
	return double_leave(result ? result : copy_batch(&target, dsts, srcs, bytes, count));
}

int cuMemsetD8Async(zd_cu_ptr dst, unsigned char value, size_t bytes, struct CUstream_st *stream)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct double_target target;
	struct double_op *op;

	if (result)
		return result;
	result = double_target(stream, &target);
	if (result || bytes == 0)
		return double_leave(result);
	op = double_op_new(DOUBLE_OP_FILL);
	op->bytes = bytes;
	op->value = value;
	if (!find_device(dst, bytes, &op->dst)) {
		double_op_free(op);
		return double_leave(ZD_CU_INVALID_VALUE);
	}
	return double_leave(double_submit(&target, op));
}

/* ---- Words --------------------------------------------------------------------------------------------- */

/* The operation, or NULL: not aligned, or neither registered nor device memory. */
static struct double_op *word_op(enum double_op_kind kind, zd_cu_ptr at, uint64_t value)
{
	struct double_op *op = double_op_new(kind);

	op->value = value;
	op->bytes = sizeof(value);
	if (at % sizeof(value) == 0 && find_device(at, sizeof(value), &op->dst))
		return op;
	double_op_free(op);
	return NULL;
}

static int check_words(const struct double_target *target)
{
	return double_has_attribute(target->context->device, ZD_CU_ATTR_CAN_USE_64_BIT_MEM_OPS)
	               ? ZD_CU_SUCCESS
	               : ZD_CU_NOT_SUPPORTED;
}

static atomic_bool full;

void double_fill_streams(bool fill)
{
	atomic_store(&full, fill);
}

/* With the lock. */
static void await_room(const struct double_line *line)
{
	while (atomic_load(&full) && line->done < line->submitted)
		double_wait(&double_moved);
}

static int word(const char *function, struct CUstream_st *stream, enum double_op_kind kind, zd_cu_ptr at,
                uint64_t value, unsigned int flags)
{
	int result = double_enter(function, DOUBLE_NEEDS_CONTEXT);
	struct double_target target;
	struct double_op *op;

	if (result)
		return result;
	result = double_target(stream, &target);
	if (!result)
		result = check_words(&target);
	if (result)
		return double_leave(result);
	if (kind == DOUBLE_OP_WRITE)
		await_room(target.line);
	/* Of waits, greater or equal is the only one that is modelled; of writes, the one with a barrier. */
	op = flags == 0 ? word_op(kind, at, value) : NULL;
	return double_leave(op ? double_submit(&target, op) : ZD_CU_INVALID_VALUE);
}

int cuStreamWaitValue64(struct CUstream_st *stream, zd_cu_ptr at, uint64_t value, unsigned int flags)
{
	return word(__func__, stream, DOUBLE_OP_WAIT, at, value, flags);
}

int cuStreamWriteValue64(struct CUstream_st *stream, zd_cu_ptr at, uint64_t value, unsigned int flags)
{
	return word(__func__, stream, DOUBLE_OP_WRITE, at, value, flags);
}

static struct double_op *batch_op(const union zd_cu_mem_op *op)
{
	if (op->operation == ZD_CU_OP_WAIT_64 && op->wait.flags == ZD_CU_WAIT_GEQ)
		return word_op(DOUBLE_OP_WAIT, op->wait.address, op->wait.value);
	if (op->operation == ZD_CU_OP_WRITE_64 && op->write.flags == ZD_CU_WRITE_DEFAULT)
		return word_op(DOUBLE_OP_WRITE, op->write.address, op->write.value);
	return NULL;
}

/* All or none of them. */
static int batch(const struct double_target *target, unsigned int count, const union zd_cu_mem_op *ops)
{
	struct double_op *made[MAX_BATCH];
	unsigned int n = 0;
	int result = ZD_CU_SUCCESS;

	while (n < count && (made[n] = batch_op(&ops[n])) != NULL)
		n++;
	for (unsigned int i = 0; i < n; i++) {
		if (n < count || result)
			double_op_free(made[i]);
		else
			result = double_submit(target, made[i]);
	}
	return n < count ? ZD_CU_INVALID_VALUE : result;
}

int cuStreamBatchMemOp(struct CUstream_st *stream, unsigned int count, union zd_cu_mem_op *ops,
                       unsigned int flags)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct double_target target;

	if (result)
		return result;
	result = double_target(stream, &target);
	if (!result)
		result = check_words(&target);
	if (!result && (count == 0 || count > MAX_BATCH || flags))
		result = ZD_CU_INVALID_VALUE;
	return double_leave(result ? result : batch(&target, count, ops));
}

int cuLaunchHostFunc(struct CUstream_st *stream, void (*call)(void *arg), void *arg)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct double_target target;
	struct double_op *op;

	if (result)
		return result;
	result = double_target(stream, &target);
	if (result)
		return double_leave(result);
	op = double_op_new(DOUBLE_OP_CALL);
	op->call = call;
	op->arg = arg;
	return double_leave(double_submit(&target, op));
}
