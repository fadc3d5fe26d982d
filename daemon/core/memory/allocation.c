/* SPDX-License-Identifier: Apache-2.0 */
/* allocation.c - plain allocations: their life until the last operation has ended. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "core/engine/deferred_teardown.h"
#include "core/engine/objects.h"
#include "core/memory/allocation.h"

void zd_journal_allocation(const struct zd_allocation *allocation)
{
	if (!allocation->job->journal || !allocation->durable || allocation->filling ||
	    !allocation->extent.block)
		return;
	struct zd_record_allocation *record = zd_journal_add(allocation->job->journal, ZD_RECORD_ALLOCATION,
	                                                     allocation->id, 0, sizeof(*record));
	record->job = allocation->job->id;
	record->session = zd_journal_session(allocation->session);
	record->extent = zd_journal_extent(&allocation->extent);
	record->device = allocation->device->index;
	(void)snprintf(record->name, sizeof(record->name), "%s", allocation->name);
}

void zd_allocation_keep(struct zd_allocation *allocation)
{
	struct zd_job *job = allocation->job;
	allocation->durable = true;
	TAILQ_INSERT_TAIL(&job->allocations, allocation, job_link);
	zd_hash_insert(&job->allocation_names, &allocation->by_name, zd_text_hash(allocation->name));
}

struct zd_allocation *zd_allocation_find_kept(const struct zd_job *job, const char *name, uint32_t device)
{
	struct zd_hash_node *node = zd_hash_first(&job->allocation_names, zd_text_hash(name));
	for (; node; node = zd_hash_next(node)) {
		struct zd_allocation *allocation = ZD_CONTAINER_OF(node, struct zd_allocation, by_name);
		if (allocation->device->index == device && strcmp(allocation->name, name) == 0)
			return allocation;
	}
	return NULL;
}

/* Called when no operation on the allocation is pending. */
static void allocation_free(struct zd_engine *e, struct zd_allocation *allocation)
{
	if (allocation->extent.block)
		allocation->device->quarantine_bytes -= allocation->extent.bytes;
	zd_pool_free(e, &allocation->extent);
	zd_history_keep_name(&e->history, allocation->id, allocation->name, "");
	HASH_DEL(e->allocations, allocation);
	zd_id_tree_remove(&e->listed[ZD__TABLE__ALLOCATIONS], &allocation->listed);
	zd_metadata_uncharge(allocation->job->owner, ZD_ALLOCATION_METADATA_BYTES);
	zd_job_unref(e, allocation->job);
	free(allocation);
}

void zd_allocation_op_end(struct zd_engine *e, struct zd_allocation *allocation)
{
	zd_assert(allocation->pending > 0);
	allocation->pending--;
	/* a session's allocation has no other operation before its fill has ended */
	if (allocation->filling) {
		allocation->filling = false;
		zd_journal_allocation(allocation);
	}
	zd_dirty(e, allocation->device);
	if (!allocation->session && allocation->pending == 0 && !allocation->durable)
		allocation_free(e, allocation);
}

void zd_allocation_op_done(struct zd_engine *e, struct zd_op *op)
{
	struct zd_allocation *allocation = op->owner;
	struct zd_request *req;
	struct zd_session *session = allocation->session;
	bool was_filling = allocation->filling;
	zd_allocation_op_end(e, allocation);
	if (op->status == 0 || !session || !was_filling) /* a former process's hold cannot fail */
		return;
	TAILQ_FOREACH (req, &allocation->device->queue, device_link) {
		if (req->kind == ZD_REQ_ALLOC && req->u.alloc.allocation == allocation)
			zd_request_fail(req, op->status, op->error);
	}
}

void zd_allocation_hold(struct zd_engine *e, struct zd_session *session, struct zd_allocation *allocation)
{
	struct zd_record_hold object = {allocation->id, ZD_RECORD_ALLOCATION, 0};
	if (zd_deferred_teardown_hold_recorded(e, session, allocation->job, allocation->device,
	                                       zd_allocation_op_done, allocation, object))
		allocation->pending++;
}

static void allocation_detach(struct zd_engine *e, struct zd_allocation *allocation)
{
	struct zd_session *session = allocation->session;
	TAILQ_REMOVE(&session->allocations, allocation, session_link);
	allocation->session = NULL;
	zd_job_note_left(e, allocation->job);
	zd_journal_allocation(allocation);
	if (allocation->extent.block)
		zd_allocation_hold(e, session, allocation);
}

void zd_allocation_leave(struct zd_engine *e, struct zd_allocation *allocation)
{
	/* An allocation whose fill has not ended has no bytes to preserve. */
	if (allocation->durable && allocation->extent.block && !allocation->filling)
		allocation_detach(e, allocation);
	else
		zd_allocation_drop(e, allocation);
}

void zd_allocation_drop(struct zd_engine *e, struct zd_allocation *allocation)
{
	if (allocation->session)
		allocation_detach(e, allocation);
	if (allocation->durable && allocation->job->journal)
		zd_journal_gone(allocation->job->journal, ZD_RECORD_ALLOCATION, allocation->id, 0);
	if (allocation->durable) {
		TAILQ_REMOVE(&allocation->job->allocations, allocation, job_link);
		zd_hash_remove(&allocation->job->allocation_names, &allocation->by_name);
	}
	allocation->durable = false;
	if (allocation->extent.block) {
		zd_uncharge(e, allocation->job, allocation->device, ZD_CHARGE_ALLOCATION,
		            allocation->extent.bytes);
		allocation->device->quarantine_bytes += allocation->extent.bytes;
	}
	if (allocation->pending == 0)
		allocation_free(e, allocation);
}

int zd_allocation_find(struct zd_engine *e, const struct zd_session *session, uint64_t id,
                       struct zd_allocation **out, struct zd_err *err)
{
	struct zd_allocation *allocation;
	HASH_FIND(hh, e->allocations, &id, sizeof(id), allocation);
	if (!allocation || allocation->session != session || !allocation->extent.block || allocation->filling)
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "this session has no allocation %llu",
		                  ZD_ID_NUMBER(id));
	if (allocation->loader)
		return zd_err_set(err, ZEROD_E_STATE, "allocation %llu is being loaded into a unit",
		                  ZD_ID_NUMBER(id));
	*out = allocation;
	return 0;
}
