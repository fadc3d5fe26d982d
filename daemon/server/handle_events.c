/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle_events.c - lifecycle events, a page at a time.
 *
 * As of a listing, a page is what the loop may spend on one request.
 */
#include "base/err.h"
#include "server/answer.h"
#include "server/api.h"
#include "server/handlers.h"
#include "server/loop.h"
#include "server/session.h"

#define MAX_EVENTS     64u
#define MOST_VISITS    4096u
#define ENVELOPE_BYTES 128u /* for all of a packet but its events */
#define TAG_BYTES      5u   /* the field number and length of an event */

struct page {
	struct zd_arena *arena;
	Zd__Event **events;
	size_t nevents, left_bytes;
};

/* Texts of the core's tables are not copied. */
static char *name_in(struct zd_arena *arena, const char *name)
{
	return name[0] ? zd_answer_text(arena, name) : (char *)"";
}

/* The meaning of `value` and `number` of an event depends on its kind. */
static void fill_figures(const struct zd_event *event, Zd__Event *message)
{
	message->number = event->number;
	switch ((enum zd_event_kind)event->kind) {
	case ZD_EVENT_BLOCK_GIVE:
	case ZD_EVENT_BLOCK_FREE:
		message->offset = event->value;
		message->segment = event->number;
		message->number = 0;
		break;
	case ZD_EVENT_SEGMENT_BEGIN:
	case ZD_EVENT_SEGMENT_MAP:
	case ZD_EVENT_SEGMENT_RETIRE:
	case ZD_EVENT_SEGMENT_END:
		message->segment = event->number;
		message->number = 0;
		break;
	case ZD_EVENT_UPDATE:
	case ZD_EVENT_PUBLISH:
	case ZD_EVENT_COMMIT:
		message->number = event->value;
		break;
	case ZD_EVENT_WAIT_BEGIN:
	case ZD_EVENT_WAIT_END:
	case ZD_EVENT_REFUSE:
		message->number = 0;
		message->begin_ns = event->value;
		break;
	default:
		message->begin_ns = event->value;
		break;
	}
}

static void fill_devices(struct zd_arena *arena, const struct zd_event *event, Zd__Event *message)
{
	if (!event->device)
		return;
	message->devices = zd_arena_alloc(arena, 2 * sizeof(uint32_t));
	message->devices[message->n_devices++] = event->device - 1u;
	if (event->peer)
		message->devices[message->n_devices++] = event->peer - 1u;
}

static bool take_event(const struct zd_event_row *row, void *arg)
{
	const struct zd_event *event = row->event;
	struct page *page = arg;
	Zd__Event *message;
	size_t bytes;

	if (page->nevents == MAX_EVENTS)
		return false;
	message = zd_arena_alloc(page->arena, sizeof(*message));
	zd__event__init(message);
	message->seq = row->seq;
	message->time_ns = event->time_ns;
	message->kind = (char *)row->kind;
	message->reason = (char *)row->reason;
	message->request = (char *)row->request;
	message->job = name_in(page->arena, row->job);
	message->group = name_in(page->arena, row->group);
	message->name = name_in(page->arena, row->name);
	message->job_id = event->job;
	message->object = event->object;
	message->session = event->session;
	if (event->uid != ZD_EVENT_EVERYBODY)
		message->owner = (uint64_t)event->uid + 1;
	message->rank = event->rank;
	message->bytes = event->bytes;
	fill_figures(event, message);
	fill_devices(page->arena, event, message);
	bytes = zd__event__get_packed_size(message) + TAG_BYTES;
	if (bytes > page->left_bytes)
		return false;
	page->events[page->nevents++] = message;
	page->left_bytes -= bytes;
	return true;
}

int zd_answer_events(struct zd_api_session *session, const Zd__Request *request, struct zd_err *err)
{
	struct zd_api *api = session->api;
	struct page page = {.arena = &api->replies, .left_bytes = ZD_MAX_PACKET_BYTES - ENVELOPE_BYTES};
	struct zd_event_query query = {.session = session->id,
	                               .after = request->events->after,
	                               .job = request->events->job,
	                               .job_owner = request->events->job_owner,
	                               .copies = request->events->copies,
	                               .most_visits = MOST_VISITS};
	struct zd_event_page found;
	Zd__EventsReply events = ZD__EVENTS_REPLY__INIT;
	Zd__Reply reply = ZD__REPLY__INIT;

	(void)err;
	page.events = zd_arena_alloc(page.arena, MAX_EVENTS * sizeof(Zd__Event *));
	zd_engine_events(api->bridge.engine, &query, &found, take_event, &page);
	events.events = page.events;
	events.n_events = page.nevents;
	events.next = found.next;
	events.last = found.last;
	events.lost = found.lost;
	events.overwritten = found.overwritten;
	events.now_ns = zd_loop_now_ns();
	reply.id = request->id;
	reply.body_case = ZD__REPLY__BODY_EVENTS;
	reply.events = &events;
	zd_conn_send(session->conn, &reply, NULL, 0);
	zd_arena_reset(page.arena);
	return 0;
}
