/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.c - starts the journal with the records of all durable jobs, and passes it to the driver.
 *
 * The records of all objects can be made in steps, with records of other events between them. This is correct
 * because a record has the whole state of its object at that time, each change is recorded from the first
 * step on, and the restore uses the last record of each object. Jobs are first, because the restore ignores
 * an object that precedes its job. Holds are last, because they are numbered anew.
 */
#include "core/control/control.h"
#include "core/engine/deferred_teardown.h"
#include "core/gather/unit.h"
#include "core/memory/allocation.h"

#define AHEAD 8u /* parts whose blocks are prefetched before they are recorded */

static void record_ids(struct zd_engine *e, struct zd_id_node *node)
{
	zd_ids_journal(e, ZD_CONTAINER_OF(node, struct zd_ids, by_uid));
}

static void record_job(struct zd_engine *e, struct zd_id_node *node)
{
	(void)e;
	zd_journal_job(ZD_CONTAINER_OF(node, struct zd_job, listed));
}

static void record_segment(struct zd_engine *e, struct zd_id_node *node)
{
	zd_journal_segment(e, ZD_CONTAINER_OF(node, struct zd_segment, listed));
}

static void record_group(struct zd_engine *e, struct zd_id_node *node)
{
	const struct zd_group *group = ZD_CONTAINER_OF(node, struct zd_group, listed);
	(void)e;
	if (group->over)
		return;
	zd_journal_group(group);
	zd_journal_group_state(group);
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		if (group->members[rank].device)
			zd_journal_member(&group->members[rank]);
	}
}

static void record_unit(struct zd_engine *e, struct zd_id_node *node)
{
	const struct zd_unit *unit = ZD_CONTAINER_OF(node, struct zd_unit, listed);
	(void)e;
	if (unit->group->over || unit->is_former)
		return;
	zd_journal_unit(unit);
	uint32_t nparts = unit->group->local_world_size;
	for (uint32_t rank = 0; rank < nparts; rank++) {
		if (rank + AHEAD < nparts)
			__builtin_prefetch(unit->parts[rank + AHEAD].shard.block);
		if (!zd_part_is_gone(&unit->parts[rank]))
			zd_journal_part(&unit->parts[rank]);
	}
}

static void record_allocation(struct zd_engine *e, struct zd_id_node *node)
{
	(void)e;
	zd_journal_allocation(ZD_CONTAINER_OF(node, struct zd_allocation, listed));
}

/* Each function records the object if its job has a journal. NTABLES: the ids of all uids. */
static const struct {
	Zd__Table table;
	void (*record)(struct zd_engine *e, struct zd_id_node *node);
} phases[] = {
        {ZD_NTABLES, record_ids},
        {ZD__TABLE__JOBS, record_job},
        {ZD__TABLE__SEGMENTS, record_segment},
        {ZD__TABLE__GROUPS, record_group},
        {ZD__TABLE__UNITS, record_unit},
        {ZD__TABLE__ALLOCATIONS, record_allocation},
};

void zd_engine_journal_begin(struct zd_engine *e)
{
	struct zd_job *job;
	for (job = e->journal.on ? NULL : e->jobs; job; job = job->hh.next) {
		if (job->durable)
			job->journal = &e->journal;
	}
	e->journal.on = true;
	e->journal.phase = 0;
	e->journal.after_id = 0;
}

bool zd_engine_journal_step(struct zd_engine *e, uint32_t nobjects)
{
	struct zd_journal *journal = &e->journal;
	struct zd_session *session;
	for (; journal->phase < ZD_ARRAY_LEN(phases); journal->phase++, journal->after_id = 0) {
		Zd__Table table = phases[journal->phase].table;
		const struct zd_id_tree *tree = table == ZD_NTABLES ? &e->uids : &e->listed[table];
		struct zd_id_node *node = zd_id_tree_after(tree, journal->after_id);
		for (; node; node = zd_id_tree_next(node)) {
			if (nobjects-- == 0)
				return false;
			phases[journal->phase].record(e, node);
			journal->after_id = node->id;
		}
	}
	for (uint32_t i = 0; i < e->ndevices; i++)
		zd_journal_device(e, i);
	for (session = e->sessions; session; session = session->hh.next)
		zd_deferred_teardowns_journal(session);
	return true;
}

size_t zd_engine_journal_take(struct zd_engine *e, const uint8_t **bytes)
{
	size_t used = e->journal.used;
	*bytes = e->journal.bytes;
	e->journal.used = 0;
	e->nkept -= e->nforgotten;
	e->nforgotten = 0;
	return used;
}
