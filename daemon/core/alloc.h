/* SPDX-License-Identifier: Apache-2.0 */
/* alloc.h - plain allocations, for the files of daemon/core that end, load or list them. */
#ifndef ZD_CORE_ALLOC_H
#define ZD_CORE_ALLOC_H

#include "core/internal.h"

struct zd_allocation {
	uint64_t id;
	char name[ZD_MAX_NAME_BYTES + 1];
	struct zd_session *session; /* NULL: freed, waits for fences or its fill; or durable, and nobody's */
	struct zd_job *job;
	struct zd_device *device;
	struct zd_extent extent;
	uint64_t since_ns;
	uint32_t pending;
	bool filling;
	bool durable;              /* the job's, until it is freed */
	struct zd_request *loader; /* UNIT_LOAD, which frees it when it ends; NULL: none */
	TAILQ_ENTRY(zd_allocation) session_link, job_link;
	UT_hash_handle hh;
};
/* Its session ends: a durable one stays, charged; any other is dropped. */
void zd_allocation_leave(struct zd_engine *e, struct zd_allocation *allocation);
/* Drops it: uncharged at once, freed when pending ops are over. */
void zd_allocation_drop(struct zd_engine *e, struct zd_allocation *allocation);
/* The session's, zeroed, and in no load: NOT_FOUND, STATE. */
int zd_allocation_find(struct zd_engine *e, const struct zd_session *session, uint64_t id,
                       struct zd_allocation **out, struct zd_err *err) __attribute__((warn_unused_result));
/* An operation that was counted in `pending` is over; frees what was dropped. */
void zd_allocation_op_end(struct zd_engine *e, struct zd_allocation *allocation);

#endif
