/* SPDX-License-Identifier: Apache-2.0 */
/* record.c - begins the journal with the records of all durable jobs, and hands it to the driver. */
#include "core/control/control.h"
#include "core/engine/deferred_teardown.h"
#include "core/gather/unit.h"
#include "core/memory/allocation.h"

static void journal_group(const struct zd_group *group)
{
	const struct zd_unit *unit;
	if (group->over)
		return;
	zd_journal_group(group);
	zd_journal_group_state(group);
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		if (group->members[rank].device)
			zd_journal_member(&group->members[rank]);
	}
	TAILQ_FOREACH (unit, &group->units, group_link) {
		zd_journal_unit(unit);
		for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
			if (!zd_part_is_gone(&unit->parts[rank]))
				zd_journal_part(&unit->parts[rank]);
		}
	}
}

void zd_engine_journal_all(struct zd_engine *e)
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
			journal_group(group);
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
