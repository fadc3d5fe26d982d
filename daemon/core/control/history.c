/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.c - lifecycle events for readers: a page of them, with names in place of ids.
 *
 * A session reads the events of its own uid, and those of the daemon; an administrator reads all.
 */
#include <string.h>

#include "core/control/control.h"
#include "core/gather/unit.h"
#include "core/memory/allocation.h"

enum reasons { WORD, WAIT, STATUS };

static const struct {
	const char *name;
	enum reasons reasons;
} kinds[ZD_NEVENTS] = {
#define EVENT(KIND, name, reason) [ZD_EVENT_##KIND] = {(name), (reason)},
#include "core/history.def"
};

static const char *const words[ZD_NWORDS] = {
#define WORD(NAME, text) [ZD_WORD_##NAME] = (text),
#include "core/history.def"
};

static const char *reason_text(const struct zd_event *event)
{
	switch (kinds[event->kind].reasons) {
	case WAIT:
		return zd_wait_names[event->reason];
	case STATUS:
		return event->reason ? zerod_status_name(-(int)event->reason) : "";
	case WORD:
		break;
	}
	return words[event->reason];
}

/* ---- Names --------------------------------------------------------------------------------------------- */

struct reader {
	const struct zd_engine *e;
	const struct zd_event_query *query;
	const struct zd_session *asker; /* NULL: reads all */
	/* the last event's job */
	uint64_t job;
	const char *job_name;
};

static const char *find_job(const struct zd_engine *e, uint64_t id)
{
	const struct zd_ended_name *ended;
	struct zd_job *job;
	HASH_FIND(hh, e->jobs, &id, sizeof(id), job);
	if (job)
		return job->name;
	ended = zd_history_ended(&e->history, id);
	return ended ? ended->name : "";
}

/* Most events behind one of a job are of the same job. */
static const char *job_name(struct reader *reader, uint64_t id)
{
	if (id != reader->job)
		reader->job_name = find_job(reader->e, id);
	reader->job = id;
	return reader->job_name;
}

/* No two objects have one id. */
static void find_names(const struct zd_engine *e, uint64_t id, struct zd_event_row *row)
{
	const struct zd_ended_name *ended;
	const struct zd_unit *unit = zd_unit_find(e, id);
	struct zd_group *group;
	struct zd_allocation *allocation;
	if (unit) {
		row->group = unit->group->name;
		row->name = unit->name;
		return;
	}
	HASH_FIND(hh, e->groups, &id, sizeof(id), group);
	if (group) {
		row->group = group->name;
		return;
	}
	HASH_FIND(hh, e->allocations, &id, sizeof(id), allocation);
	if (allocation) {
		row->name = allocation->name;
		return;
	}
	ended = zd_history_ended(&e->history, id);
	row->group = ended ? ended->group : "";
	row->name = ended ? ended->name : "";
}

static void find_session_name(const struct zd_engine *e, uint64_t id, struct zd_event_row *row)
{
	const struct zd_ended_name *ended;
	struct zd_session *session;
	HASH_FIND(hh, e->sessions, &id, sizeof(id), session);
	ended = session ? NULL : zd_history_ended(&e->history, id);
	row->name = session ? session->name : ended ? ended->name : "";
}

/* ---- Pages --------------------------------------------------------------------------------------------- */

static bool may_read(const struct reader *reader, const struct zd_event *event)
{
	return !reader->asker || reader->asker->admin || event->uid == reader->asker->uid ||
	       event->uid == ZD_EVENT_EVERYBODY;
}

static bool is_wanted(struct reader *reader, const struct zd_event *event)
{
	const char *only = reader->query->job;
	if (!only || !only[0])
		return true;
	return event->job && strcmp(job_name(reader, event->job), only) == 0 &&
	       (!reader->query->job_owner || reader->query->job_owner == (uint64_t)event->uid + 1);
}

static const char *request_name(const struct zd_engine *e, const struct zd_event *event)
{
	bool has_one = event->kind == ZD_EVENT_WAIT_BEGIN || event->kind == ZD_EVENT_WAIT_END ||
	               event->kind == ZD_EVENT_REFUSE;
	return has_one ? e->types[event->number]->name : "";
}

static bool give(struct reader *reader, uint64_t seq, const struct zd_event *event,
                 bool (*fn)(const struct zd_event_row *row, void *arg), void *arg)
{
	struct zd_event_row row = {.seq = seq,
	                           .event = event,
	                           .kind = kinds[event->kind].name,
	                           .reason = reason_text(event),
	                           .request = request_name(reader->e, event),
	                           .job = event->job ? job_name(reader, event->job) : "",
	                           .group = "",
	                           .name = ""};
	if (event->object)
		find_names(reader->e, event->object, &row);
	else if (event->kind == ZD_EVENT_SESSION_BEGIN || event->kind == ZD_EVENT_SESSION_END)
		find_session_name(reader->e, event->session, &row);
	return fn(&row, arg);
}

void zd_engine_events(struct zd_engine *e, const struct zd_event_query *query, struct zd_event_page *page,
                      bool (*fn)(const struct zd_event_row *row, void *arg), void *arg)
{
	const struct zd_history *history = &e->history;
	struct reader reader = {.e = e, .query = query};
	uint64_t last = history->on ? history->last : 0;
	uint32_t visits = 0;
	*page = (struct zd_event_page){.next = zd_min_u64(query->after, last), .last = last};
	page->overwritten = history->on ? zd_history_overwritten(history) : 0;
	if (query->session) {
		reader.asker = zd_session_find(e, query->session);
		if (!reader.asker) /* the session has ended: it reads nothing */
			return;
	}
	if (query->copies)
		e->history.copies_until_ns = e->now_ns + ZD_EVENT_COPIES_NS;
	while (page->next < last && (!query->most_visits || visits++ < query->most_visits)) {
		uint64_t seq;
		const struct zd_event *event = zd_history_find(history, page->next, &seq);
		page->lost += seq - page->next - 1;
		page->next = seq - 1;
		if (may_read(&reader, event) && is_wanted(&reader, event) &&
		    !give(&reader, seq, event, fn, arg))
			return;
		page->next = seq;
	}
}
