/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle_events.c - lifecycle events, one page per request. As in a listing, the loop's time for one request
 * limits the page.
 */
#include "server/answer.h"
#include "server/api.h"
#include "server/handlers.h"
#include "server/loop.h"
#include "server/session.h"

#define MAX_EVENTS  64u
#define MOST_VISITS 4096u

static bool take_event(const Zd__Event *event, void *arg)
{
	return zd_page_add(arg, &event->base);
}

int zd_answer_events(struct zd_api_session *session, const Zd__Request *request, struct zd_err *err)
{
	struct zd_api *api = session->api;
	struct zd_page page = zd_page_new(&api->replies, MAX_EVENTS);
	Zd__EventsReply events = ZD__EVENTS_REPLY__INIT;
	Zd__Reply reply = ZD__REPLY__INIT;

	(void)err;
	zd_engine_events(api->bridge.engine, session->id, request->events, MOST_VISITS, &events, take_event,
	                 &page);
	events.now_ns = zd_loop_now_ns();
	reply.id = request->id;
	reply.body_case = ZD__REPLY__BODY_EVENTS;
	reply.events = &events;
	zd_page_send(&page, session, &reply);
	return 0;
}
