/* SPDX-License-Identifier: Apache-2.0 */
/* allocation.h - plain allocations, for the files of daemon/core that free, load or list them. */
#ifndef ZD_CORE_MEMORY_ALLOCATION_H
#define ZD_CORE_MEMORY_ALLOCATION_H

#include "core/engine/objects.h"
#include "core/memory/pool.h"

struct zd_allocation {
	uint64_t id;
	char name[ZD_MAX_NAME_BYTES + 1];
	/* NULL: freed, while fences or its fill are pending; or durable and not in use */
	struct zd_session *session;
	struct zd_job *job;
	struct zd_device *device;
	struct zd_extent extent;
	uint64_t since_ns;
	uint32_t pending;
	bool filling;
	bool durable;              /* belongs to the job until it is freed */
	struct zd_request *loader; /* the UNIT_LOAD that reads and then frees it, or NULL */
	TAILQ_ENTRY(zd_allocation) session_link, job_link;
	struct zd_hash_node by_name; /* durable */
	struct zd_id_node listed;
	UT_hash_handle hh;
};
/* The metadata of an allocation. */
#define ZD_ALLOCATION_METADATA_BYTES (sizeof(struct zd_allocation) + sizeof(struct zd_block))

/* Returns the use of its extent. */
static inline struct zd_extent_use zd_allocation_use(const struct zd_allocation *allocation)
{
	return (struct zd_extent_use){ZD_WORD_ALLOCATION, allocation->id,
	                              allocation->session ? allocation->session->id : 0, 0};
}

/* Adds a durable allocation to those of its job. */
void zd_allocation_keep(struct zd_allocation *allocation);
/* Finds a durable allocation, or returns NULL. */
struct zd_allocation *zd_allocation_find_kept(const struct zd_job *job, const char *name, uint32_t device);
/* Detaches the allocation at the session's end. A durable allocation remains charged. Any other is
 * dropped. */
void zd_allocation_leave(struct zd_engine *e, struct zd_allocation *allocation);
/* Uncharges the allocation at once, and frees it when its pending operations have ended. */
void zd_allocation_drop(struct zd_engine *e, struct zd_allocation *allocation);
/* Finds an allocation of the session that is zeroed: NOT_FOUND. STATE while a load uses it. */
int zd_allocation_find(struct zd_engine *e, const struct zd_session *session, uint64_t id,
                       struct zd_allocation **out, struct zd_err *err) __attribute__((warn_unused_result));
/* Records a durable allocation that is zeroed, if its job has a journal. */
void zd_journal_allocation(const struct zd_allocation *allocation);
/* Retains the allocation until the process of an ending session has left the device. */
void zd_allocation_hold(struct zd_engine *e, struct zd_session *session, struct zd_allocation *allocation);
/* Counts the end of an operation of `pending`. Frees a dropped allocation after its last operation. */
void zd_allocation_op_end(struct zd_engine *e, struct zd_allocation *allocation);

/* Op callback for the allocation's operations, which `pending` counts. */
zd_op_fn zd_allocation_op_done;

#endif
