/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.c - lifecycle events for readers: a page of them, with names in place of ids.
 *
 * A session reads the events of its own uid and of the daemon. An administrator reads all.
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
	const Zd__Events *query;
	const struct zd_session *asker; /* NULL: reads all */
	/* the last event's job */
	uint64_t job;
	const char *job_name;
};

static const char *find_job(const struct zd_engine *e, uint64_t id)
{
	struct zd_job *job;
	HASH_FIND(hh, e->jobs, &id, sizeof(id), job);
	if (job)
		return job->name;
	const struct zd_ended_name *ended = zd_history_ended(&e->history, id);
	return ended ? ended->name : "";
}

/* Most events after one of a job are of the same job. */
static const char *job_name(struct reader *reader, uint64_t id)
{
	if (id != reader->job)
		reader->job_name = find_job(reader->e, id);
	reader->job = id;
	return reader->job_name;
}

/* No two objects have one id. */
static void find_names(const struct zd_engine *e, uint64_t id, Zd__Event *to)
{
	const struct zd_unit *unit = zd_unit_find(e, id);
	struct zd_group *group;
	struct zd_allocation *allocation;
	if (unit) {
		to->group = unit->group->name;
		to->name = unit->name;
		return;
	}
	HASH_FIND(hh, e->groups, &id, sizeof(id), group);
	if (group) {
		to->group = group->name;
		return;
	}
	HASH_FIND(hh, e->allocations, &id, sizeof(id), allocation);
	if (allocation) {
		to->name = allocation->name;
		return;
	}
	const struct zd_ended_name *ended = zd_history_ended(&e->history, id);
	to->group = (char *)(ended ? ended->group : "");
	to->name = (char *)(ended ? ended->name : "");
}

static void find_session_name(const struct zd_engine *e, uint64_t id, Zd__Event *to)
{
	struct zd_session *session;
	HASH_FIND(hh, e->sessions, &id, sizeof(id), session);
	const struct zd_ended_name *ended = session ? NULL : zd_history_ended(&e->history, id);
	to->name = (char *)(session ? session->name : ended ? ended->name : "");
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

/* The meaning of `value` and `number` of an event depends on its kind. */
static void fill_figures(const struct zd_event *event, Zd__Event *to)
{
	switch ((enum zd_event_kind)event->kind) {
	case ZD_EVENT_BLOCK_GIVE:
	case ZD_EVENT_BLOCK_FREE:
		to->offset = event->value;
		to->segment = event->number;
		break;
	case ZD_EVENT_SEGMENT_BEGIN:
	case ZD_EVENT_SEGMENT_MAP:
	case ZD_EVENT_SEGMENT_RETIRE:
	case ZD_EVENT_SEGMENT_END:
		to->segment = event->number;
		break;
	case ZD_EVENT_UPDATE:
	case ZD_EVENT_PUBLISH:
	case ZD_EVENT_COMMIT:
		to->number = event->value;
		break;
	case ZD_EVENT_WAIT_BEGIN:
	case ZD_EVENT_WAIT_END:
	case ZD_EVENT_REFUSE:
		to->request = (char *)zd_request_name(event->number);
		to->begin_ns = event->value;
		break;
	default:
		to->number = event->number;
		to->begin_ns = event->value;
		break;
	}
}

static bool give(struct reader *reader, uint64_t seq, const struct zd_event *event, zd_event_fn *fn,
                 void *arg)
{
	uint32_t devices[] = {event->device - 1u, event->peer - 1u};
	Zd__Event to = ZD__EVENT__INIT;
	to.seq = seq;
	to.time_ns = event->time_ns;
	to.kind = (char *)kinds[event->kind].name;
	to.reason = (char *)reason_text(event);
	to.job_id = event->job;
	to.object = event->object;
	to.session = event->session;
	to.owner = event->uid == ZD_EVENT_EVERYBODY ? 0 : (uint64_t)event->uid + 1;
	to.rank = event->rank;
	to.bytes = event->bytes;
	to.devices = devices;
	to.n_devices = !event->device ? 0 : event->peer ? 2 : 1;
	fill_figures(event, &to);
	if (event->job)
		to.job = (char *)job_name(reader, event->job);
	if (event->object)
		find_names(reader->e, event->object, &to);
	else if (event->kind == ZD_EVENT_SESSION_BEGIN || event->kind == ZD_EVENT_SESSION_END)
		find_session_name(reader->e, event->session, &to);
	return fn(&to, arg);
}

void zd_engine_events(struct zd_engine *e, uint64_t session, const Zd__Events *query, uint32_t most_visits,
                      Zd__EventsReply *page, zd_event_fn *fn, void *arg)
{
	const struct zd_history *history = &e->history;
	struct reader reader = {.e = e, .query = query};
	uint64_t last = history->on ? history->last : 0;
	uint32_t visits = 0;
	page->next = zd_min_u64(query->after, last);
	page->last = last;
	page->lost = 0;
	page->overwritten = history->on ? zd_history_overwritten(history) : 0;
	if (session) {
		reader.asker = zd_session_find(e, session);
		if (!reader.asker) /* the session has ended: it reads no events */
			return;
	}
	if (query->copies)
		e->history.copies_until_ns = e->now_ns + ZD_EVENT_COPIES_NS;
	while (page->next < last && (!most_visits || visits++ < most_visits)) {
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
