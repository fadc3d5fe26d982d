/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alloc.c - plain allocations: zeroed memory of a job that ends with its session.
 */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "core/departure.h"
#include "core/internal.h"

#define MAX_ALIGN_BYTES ((uint64_t)ZD_BLOCK_MAX_ALIGN)

/* No operation on it is left. */
static void allocation_free(struct zd_engine *e, struct zd_allocation *allocation)
{
	if (allocation->extent.block)
		allocation->device->quarantine_bytes -= allocation->extent.bytes;
	zd_pool_free(e, &allocation->extent);
	HASH_DEL(e->allocations, allocation);
	zd_job_unref(e, allocation->job);
	free(allocation);
}

static void allocation_op_done(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                               const struct zd_op_result *result)
{
	struct zd_allocation *allocation = op->owner;
	struct zd_request *req;
	(void)result;
	allocation->pending--;
	allocation->filling = false;
	zd_dirty(e, allocation->device);
	if (!allocation->session) {
		if (allocation->pending == 0)
			allocation_free(e, allocation);
		return;
	}
	if (status == 0)
		return;
	TAILQ_FOREACH (req, &allocation->device->queue, device_link) {
		if (req->kind == ZD_REQ_ALLOC && req->u.alloc.allocation == allocation)
			zd_request_fail(req, status, error);
	}
}

void zd_allocation_drop(struct zd_engine *e, struct zd_allocation *allocation)
{
	zd_assert(allocation->session);
	struct zd_session *session = allocation->session;
	TAILQ_REMOVE(&session->allocations, allocation, session_link);
	allocation->session = NULL;
	if (allocation->extent.block && zd_departure_hold(e, session, allocation->job, allocation->device,
	                                                  allocation_op_done, allocation))
		allocation->pending++;
	if (allocation->extent.block) {
		zd_uncharge(e, allocation->job, allocation->device, ZD_CHARGE_ALLOCATION,
		            allocation->extent.bytes);
		allocation->device->quarantine_bytes += allocation->extent.bytes;
	}
	if (allocation->pending == 0)
		allocation_free(e, allocation);
}

static int alloc_check(struct zd_engine *e, const struct zd_args *args, struct zd_err *err)
{
	uint64_t align = args->u.alloc.alignment;
	uint64_t bytes = args->u.alloc.bytes;
	int status = zd_name_check(args->u.alloc.job, ZD_MAX_NAME_BYTES, "job name", err);
	if (status == 0 && args->u.alloc.name && args->u.alloc.name[0])
		status = zd_name_check(args->u.alloc.name, ZD_MAX_NAME_BYTES, "allocation name", err);
	if (status != 0)
		return status;
	if (args->u.alloc.device >= e->ndevices)
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "no device %u; there are %u", args->u.alloc.device,
		                  e->ndevices);
	if (bytes == 0 || bytes > ZD_MAX_BYTES)
		return zd_err_set(err, ZEROD_E_INVALID, "%llu bytes are none of 1 .. %llu",
		                  (unsigned long long)bytes, ZD_MAX_BYTES);
	if (align & (align - 1) || align > MAX_ALIGN_BYTES)
		return zd_err_set(err, ZEROD_E_INVALID, "alignment %llu is no power of two up to %llu",
		                  (unsigned long long)align, (unsigned long long)MAX_ALIGN_BYTES);
	return 0;
}

static int alloc_begin(struct zd_engine *e, struct zd_request *req, const struct zd_args *args,
                       struct zd_err *err)
{
	int status = alloc_check(e, args, err);
	if (status != 0)
		return status;
	struct zd_job *job = zd_job_get(e, req->session->uid, args->u.alloc.job, false);
	struct zd_allocation *allocation = zd_calloc(1, sizeof(*allocation));
	zd_job_ref(job);
	allocation->id = zd_next_id(e);
	(void)snprintf(allocation->name, sizeof(allocation->name), "%s",
	               args->u.alloc.name ? args->u.alloc.name : "");
	allocation->session = req->session;
	allocation->job = job;
	allocation->device = &e->devices[args->u.alloc.device];
	allocation->extent.bytes = zd_align_up(args->u.alloc.bytes, ZD_BLOCK_MIN_ALIGN);
	allocation->since_ns = e->now_ns;
	TAILQ_INSERT_TAIL(&req->session->allocations, allocation, session_link);
	HASH_ADD(hh, e->allocations, id, sizeof(allocation->id), allocation);
	req->device = allocation->device;
	req->u.alloc.allocation = allocation;
	req->u.alloc.align = zd_max_u64(args->u.alloc.alignment, ZD_BLOCK_MIN_ALIGN);
	return 0;
}

static void alloc_cancel(struct zd_engine *e, struct zd_request *req)
{
	zd_allocation_drop(e, req->u.alloc.allocation);
}

static int alloc_place(struct zd_engine *e, struct zd_request *req, struct zd_allocation *allocation,
                       struct zd_err *err)
{
	uint64_t bytes = allocation->extent.bytes;
	int status = zd_quota_check(e, allocation->job, bytes, err);
	if (status == 0)
		status = zd_pool_alloc(e, req, allocation->job, allocation->device, ZD_PURPOSE_ALLOCATIONS,
		                       bytes, req->u.alloc.align, &allocation->extent, err);
	if (status != 0)
		return status;
	zd_charge(e, allocation->job, allocation->device, ZD_CHARGE_ALLOCATION, allocation->extent.bytes);
	allocation->pending++;
	allocation->filling = true;
	zd_op_fill(e, allocation->job, allocation->device->index, zd_extent_location(&allocation->extent),
	           allocation_op_done, allocation, 0);
	return 0;
}

static int alloc_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_allocation *allocation = req->u.alloc.allocation;
	int status = allocation->extent.block ? 0 : alloc_place(e, req, allocation, err);
	if (status == 0 && allocation->filling)
		status = zd_wait_for(req, ZD_WAIT_FILL, 0, 0, 0);
	if (status < 0)
		alloc_cancel(e, req);
	if (status != 0)
		return status;
	e->reply.u.alloc.allocation = allocation->id;
	e->reply.u.alloc.location = zd_extent_location(&allocation->extent);
	return 0;
}

static int free_begin(struct zd_engine *e, struct zd_request *req, const struct zd_args *args,
                      struct zd_err *err)
{
	struct zd_allocation *allocation;
	int status = zd_fences_check(&args->u.free.fences, err);
	if (status != 0)
		return status;
	HASH_FIND(hh, e->allocations, &args->u.free.allocation, sizeof(args->u.free.allocation), allocation);
	if (!allocation || allocation->session != req->session || !allocation->extent.block ||
	    allocation->filling)
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "this session has no allocation %llu",
		                  (unsigned long long)args->u.free.allocation);
	if (zd_fences_watch(e, req->session, allocation->job, allocation->device->index, &args->u.free.fences,
	                    allocation_op_done, allocation, 0))
		allocation->pending++;
	zd_allocation_drop(e, allocation);
	return 0;
}

const struct zd_request_type zd_req_alloc = {"alloc", alloc_begin, alloc_attempt, alloc_cancel};
const struct zd_request_type zd_req_free = {.name = "free", .begin = free_begin};
