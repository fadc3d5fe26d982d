/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alloc.c - requests of plain allocations: zeroed memory of a job, freed when its session ends.
 *
 * A durable allocation belongs to a durable job: it remains allocated and charged when its session ends. A
 * later session of the same uid finds it by name and device, with the bytes last written. A request or the
 * end of its job frees it.
 */
#include <stdio.h>

#include "base/text.h"
#include "core/gather/unit.h"
#include "core/memory/allocation.h"

#define MAX_ALIGN_BYTES ((uint64_t)ZD_BLOCK_MAX_ALIGN)

static int alloc_check(const struct zd_engine *e, const struct zd_session *session,
                       const struct zd_args *args, struct zd_err *err)
{
	uint64_t align = args->u.alloc.alignment;
	uint64_t bytes = args->u.alloc.bytes;
	int status = zd_name_check(args->u.alloc.job, ZD_MAX_NAME_BYTES, "job name", err);
	if (status == 0 && args->u.alloc.name && args->u.alloc.name[0])
		status = zd_name_check(args->u.alloc.name, ZD_MAX_NAME_BYTES, "allocation name", err);
	if (status != 0)
		return status;
	status = zd_session_check_device(e, session, args->u.alloc.device, err);
	if (status != 0)
		return status;
	if (bytes == 0 || bytes > ZD_MAX_BYTES)
		return zd_err_set(err, ZEROD_E_INVALID, "%llu bytes are not in 1 .. %llu",
		                  (unsigned long long)bytes, ZD_MAX_BYTES);
	if (align & (align - 1) || align > MAX_ALIGN_BYTES)
		return zd_err_set(err, ZEROD_E_INVALID, "alignment %llu is no power of two up to %llu",
		                  (unsigned long long)align, (unsigned long long)MAX_ALIGN_BYTES);
	return 0;
}

/* Checks that no session holds the allocation, and that its size and alignment match the request. */
static int check_found(const struct zd_allocation *allocation, const struct zd_args *args, struct zd_err *err)
{
	uint64_t align = zd_max_u64(args->u.alloc.alignment, ZD_BLOCK_MIN_ALIGN);
	if (allocation->session)
		return zd_err_set(err, ZEROD_E_EXISTS,
		                  "allocation '%s' of job '%s' on device %u is held by session %llu (pid %u)",
		                  allocation->name, allocation->job->name, allocation->device->index,
		                  ZD_ID_NUMBER(allocation->session->id), allocation->session->pid);
	if (allocation->extent.bytes != zd_align_up(args->u.alloc.bytes, ZD_BLOCK_MIN_ALIGN))
		return zd_err_set(
		        err, ZEROD_E_MISMATCH,
		        "allocation '%s' of job '%s' on device %u has %llu bytes; %llu are asked for",
		        allocation->name, allocation->job->name, allocation->device->index,
		        (unsigned long long)allocation->extent.bytes,
		        (unsigned long long)args->u.alloc.bytes);
	if (allocation->extent.block->offset % align != 0)
		return zd_err_set(err, ZEROD_E_MISMATCH,
		                  "allocation '%s' of job '%s' on device %u is not aligned to %llu bytes",
		                  allocation->name, allocation->job->name, allocation->device->index,
		                  (unsigned long long)align);
	return 0;
}

/* Stores in *found the durable allocation that a former session has left, or NULL. */
static int durable_find(struct zd_engine *e, struct zd_session *session, const struct zd_args *args,
                        struct zd_allocation **found, struct zd_err *err)
{
	const struct zd_job *job = zd_job_find(e, session->uid, args->u.alloc.job);
	const char *name = args->u.alloc.name;
	*found = NULL;
	if (!args->u.alloc.durable)
		return 0;
	if (!name || !name[0])
		return zd_err_set(err, ZEROD_E_INVALID, "a durable allocation needs a name");
	if (!job || !job->durable)
		return zd_err_set(
		        err, ZEROD_E_STATE,
		        "job '%s' is not durable: join a durable group of it before allocation '%s'",
		        args->u.alloc.job, name);
	*found = zd_allocation_find_kept(job, name, args->u.alloc.device);
	return *found ? check_found(*found, args, err) : 0;
}

/* Fills in the arguments of an allocation for the unit's elements: the group's job and the rank's device. */
static int take_unit(struct zd_engine *e, struct zd_session *session, struct zd_args *args,
                     struct zd_err *err)
{
	struct zd_part *part;
	int status = zd_part_find(e, session, args->u.alloc.unit, &part, err);
	if (status != 0)
		return status;
	const struct zd_unit *unit = part->unit;
	args->u.alloc.job = unit->group->job->name;
	args->u.alloc.name = (char *)"unit_load";
	args->u.alloc.device = zd_part_member(part)->device->index;
	args->u.alloc.bytes = unit->numel * zerod_dtype_bytes(unit->dtype);
	args->u.alloc.alignment = 0;
	args->u.alloc.durable = false;
	return 0;
}

static int alloc_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_allocation *found = NULL;
	struct zd_args resolved = *req->args, *args = &resolved;
	int status = args->u.alloc.unit ? take_unit(e, req->session, args, err) : 0;
	if (status == 0)
		status = alloc_check(e, req->session, args, err);
	if (status == 0)
		status = durable_find(e, req->session, args, &found, err);
	if (status != 0)
		return status;
	if (found) {
		found->session = req->session;
		TAILQ_INSERT_TAIL(&req->session->allocations, found, session_link);
		zd_journal_allocation(found);
		req->device = found->device;
		req->u.alloc.allocation = found;
		return 0;
	}
	if (e->draining && !zd_job_find(e, req->session->uid, args->u.alloc.job))
		return zd_err_set(err, ZEROD_E_SHUTDOWN, "the daemon is draining: no job begins");
	struct zd_job *job;
	status = zd_metadata_check(e, req->session, "allocation",
	                           args->u.alloc.name ? args->u.alloc.name : "", ZD_ALLOCATION_METADATA_BYTES,
	                           err);
	if (status == 0)
		status = zd_job_get(e, req->session, args->u.alloc.job, false, &job, err);
	if (status != 0)
		return status;
	struct zd_allocation *allocation = zd_calloc(1, sizeof(*allocation));
	zd_metadata_charge(job->owner, ZD_ALLOCATION_METADATA_BYTES);
	job->refs++;
	allocation->id = zd_next_id(e, job->owner->ids, ZD_ID_ALLOCATION);
	(void)snprintf(allocation->name, sizeof(allocation->name), "%s",
	               args->u.alloc.name ? args->u.alloc.name : "");
	allocation->session = req->session;
	allocation->job = job;
	allocation->device = &e->devices[args->u.alloc.device];
	allocation->extent.bytes = zd_align_up(args->u.alloc.bytes, ZD_BLOCK_MIN_ALIGN);
	allocation->since_ns = e->now_ns;
	if (args->u.alloc.durable)
		zd_allocation_keep(allocation);
	TAILQ_INSERT_TAIL(&req->session->allocations, allocation, session_link);
	HASH_ADD(hh, e->allocations, id, sizeof(allocation->id), allocation);
	zd_id_tree_insert(&e->listed[ZD__TABLE__ALLOCATIONS], &allocation->listed, allocation->id);
	req->device = allocation->device;
	req->u.alloc.allocation = allocation;
	req->u.alloc.align = zd_max_u64(args->u.alloc.alignment, ZD_BLOCK_MIN_ALIGN);
	return 0;
}

static void alloc_cancel(struct zd_engine *e, struct zd_request *req)
{
	zd_allocation_leave(e, req->u.alloc.allocation);
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
	zd_extent_own(e, &allocation->extent, ZD_BLOCK_ALLOCATION, allocation, zd_allocation_use(allocation));
	zd_charge(e, allocation->job, allocation->device, ZD_CHARGE_ALLOCATION, allocation->extent.bytes);
	allocation->pending++;
	allocation->filling = true;
	zd_op_fill(e, allocation->job, allocation->device->index, zd_extent_location(&allocation->extent),
	           zd_allocation_op_done, allocation, 0);
	return 0;
}

static int alloc_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_allocation *allocation = req->u.alloc.allocation;
	int status = allocation->extent.block ? 0 : alloc_place(e, req, allocation, err);
	if (status == 0 && allocation->filling)
		status = zd_wait_for(req, ZD_WAIT_FILL, 0, 0, 0);
	else if (status == 0 && allocation->pending > 0)
		status = zd_wait_for(req, ZD_WAIT_PROCESS, 0, 0, 0);
	if (status < 0)
		alloc_cancel(e, req);
	if (status != 0)
		return status;
	e->reply.u.alloc.allocation = allocation->id;
	e->reply.place = zd_extent_location(&allocation->extent);
	return 0;
}

static int free_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_allocation *allocation;
	int status = zd_allocation_find(e, req->session, req->args->u.free.allocation, &allocation, err);
	if (status != 0)
		return status;
	if (zd_fences_watch(e, req->session, allocation->job, allocation->device->index, &req->args->fences,
	                    zd_allocation_op_done, allocation, 0))
		allocation->pending++;
	zd_allocation_drop(e, allocation);
	return 0;
}

const struct zd_request_type zd_req_alloc = {
        .begin = alloc_begin, .attempt = alloc_attempt, .cancel = alloc_cancel};
const struct zd_request_type zd_req_free = {.begin = free_begin};
