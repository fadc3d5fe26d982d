/* SPDX-License-Identifier: Apache-2.0 */
/* journal.c - appends records. The records of units, segments and allocations are made in their own files. */
#include "core/engine/journal.h"

#include <stdio.h>
#include <string.h>

#include "core/engine/objects.h"

#define FIRST_ROOM 4096u

void *zd_journal_add(struct zd_journal *journal, enum zd_record_type type, uint64_t id, uint32_t index,
                     size_t bytes)
{
	bytes = zd_align_up(bytes, 8);
	if (journal->used + bytes > journal->room) {
		while (journal->used + bytes > journal->room)
			journal->room = journal->room ? 2 * journal->room : FIRST_ROOM;
		journal->bytes = zd_realloc(journal->bytes, journal->room, 1);
	}
	struct zd_record *record = (struct zd_record *)(void *)(journal->bytes + journal->used);
	memset(record, 0, bytes);
	*record = (struct zd_record){
	        .type = (uint16_t)type, .bytes = (uint32_t)bytes, .id = id, .index = index};
	journal->used += bytes;
	return record;
}

void zd_journal_gone(struct zd_journal *journal, enum zd_record_type type, uint64_t id, uint32_t index)
{
	struct zd_record *record = zd_journal_add(journal, ZD_RECORD_GONE, id, index, sizeof(*record));
	record->gone = (uint16_t)type;
}

void zd_journal_device(struct zd_engine *e, uint32_t index)
{
	struct zd_record_device *record = zd_journal_add(&e->journal, ZD_RECORD_DEVICE, index, 0,
	                                                 sizeof(*record));
	(void)snprintf(record->name, sizeof(record->name), "%s", e->devices[index].config.name);
}

void zd_journal_job(const struct zd_job *job)
{
	if (!job->journal)
		return;
	struct zd_record_job *record = zd_journal_add(job->journal, ZD_RECORD_JOB, job->id, 0,
	                                              sizeof(*record));
	record->uid = job->owner->uid;
	record->had_group = job->had_group;
	record->began_ns = job->began_ns;
	(void)snprintf(record->name, sizeof(record->name), "%s", job->name);
}

void zd_journal_group_state(const struct zd_group *group)
{
	if (!group->job->journal)
		return;
	struct zd_record_group_state *record = zd_journal_add(group->job->journal, ZD_RECORD_GROUP_STATE,
	                                                      group->id, 0, sizeof(*record));
	record->committed_step = group->committed_step;
	record->voted_step = group->voted_step;
	record->torn = group->torn;
}

struct zd_record_session zd_journal_session(const struct zd_session *session)
{
	if (!session)
		return (struct zd_record_session){0};
	return (struct zd_record_session){
	        .id = session->id, .started = session->started, .uid = session->uid, .pid = session->pid};
}

void zd_journal_member(const struct zd_member *member)
{
	if (!member->group->job->journal)
		return;
	struct zd_record_member *record = zd_journal_add(member->group->job->journal, ZD_RECORD_MEMBER,
	                                                 member->group->id, member->rank, sizeof(*record));
	record->session = zd_journal_session(member->session);
	record->device = member->device->index;
	record->joined_before = member->joined_before ||
	                        (member->session && member->group->state != ZD_GROUP_FORMING);
}

void zd_journal_commit(const struct zd_group *group)
{
	if (!group->job->journal)
		return;
	struct zd_record_commit *record = zd_journal_add(group->job->journal, ZD_RECORD_COMMIT, group->id, 0,
	                                                 sizeof(*record));
	record->step = group->committed_step;
}
