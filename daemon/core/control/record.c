/* SPDX-License-Identifier: Apache-2.0 */
/* record.c - begins the journal with the records of all durable jobs, and hands it to the driver. */
#include "core/control/control.h"
#include "core/engine/deferred_teardown.h"
#include "core/gather/unit.h"
#include "core/memory/allocation.h"

#define CHUNK_BYTES (256u << 10) /* of records: stays within the processor's caches */
#define AHEAD       8u           /* parts whose blocks are fetched before they are recorded */

static void journal_unit(const struct zd_unit *unit)
{
	uint32_t nparts = unit->group->local_world_size;
	zd_journal_unit(unit);
	for (uint32_t rank = 0; rank < nparts; rank++) {
		if (rank + AHEAD < nparts)
			__builtin_prefetch(unit->parts[rank + AHEAD].shard.block);
		if (!zd_part_is_gone(&unit->parts[rank]))
			zd_journal_part(&unit->parts[rank]);
	}
}

static void journal_group(struct zd_engine *e, const struct zd_group *group, void (*full)(void *arg),
                          void *arg)
{
	if (group->over)
		return;
	zd_journal_group(group);
	zd_journal_group_state(group);
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		if (group->members[rank].device)
			zd_journal_member(&group->members[rank]);
	}
	for (const struct zd_unit *unit = group->units; unit; unit = unit->hh_name.next) {
		journal_unit(unit);
		if (full && e->journal.used >= CHUNK_BYTES)
			full(arg);
	}
}

void zd_engine_journal_all(struct zd_engine *e, void (*full)(void *arg), void *arg)
{
	struct zd_job *job;
	const struct zd_group *group;
	struct zd_session *session;
	const struct zd_allocation *allocation;
	e->journal.used = 0;
	e->journal.on = true;
	zd_journal_ids(e);
	for (uint32_t i = 0; i < e->ndevices; i++)
		zd_journal_device(e, i);
	for (job = e->jobs; job; job = job->hh.next) {
		if (!job->durable)
			continue;
		job->journal = &e->journal;
		zd_journal_job(job);
		zd_pool_journal_job(e, job);
		TAILQ_FOREACH (group, &job->groups, job_link)
			journal_group(e, group, full, arg);
		TAILQ_FOREACH (allocation, &job->allocations, job_link)
			zd_journal_allocation(allocation);
	}
	for (session = e->sessions; session; session = session->hh.next)
		zd_deferred_teardowns_journal(session);
}

size_t zd_engine_journal_take(struct zd_engine *e, const uint8_t **bytes)
{
	size_t used = e->journal.used;
	*bytes = e->journal.bytes;
	e->journal.used = 0;
	return used;
}
