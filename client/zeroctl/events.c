// SPDX-License-Identifier: Apache-2.0
/*
 * events.c - the daemon's lifecycle events, page by page.
 */
#include "events.h"

#include <time.h>

#define NS_PER_S 1000000000

struct page {
	struct zd_ctl_events *events;
	int (*fn)(const Zd__Event *event, void *arg);
	void *arg;
	int status;
	bool malformed;
};

static int take_page(const Zd__Reply *reply, void *arg)
{
	struct page *page = arg;
	struct zd_ctl_events *events = page->events;
	const Zd__EventsReply *body = reply->body_case == ZD__REPLY__BODY_EVENTS ? reply->events : NULL;
	/* A falling number would make this loop endless. */
	if (!body || body->next > body->last || (body->next == events->after && body->next < body->last)) {
		page->malformed = true;
		return 0;
	}
	events->lost = events->after >= events->overwritten ? body->lost : 0;
	events->overwritten = body->overwritten;
	events->last = body->last;
	events->now_ns = body->now_ns;
	events->count = body->n_events;
	for (size_t i = 0; i < body->n_events && page->status == 0; i++)
		page->status = page->fn(body->events[i], page->arg);
	events->after = body->next;
	return 0;
}

int zd_ctl_events_read(struct zd_ctl *ctl, struct zd_ctl_events *events,
                       int (*fn)(const Zd__Event *event, void *arg), void *arg)
{
	Zd__Events body = ZD__EVENTS__INIT;
	Zd__Request request = ZD_REQUEST(EVENTS, events, &body);
	struct page page = {.events = events, .fn = fn, .arg = arg};
	body.after = events->after;
	body.copies = events->copies;
	body.job = (char *)ctl->job;
	body.job_owner = ctl->job_owner;
	int status = zd_ctl_call(ctl, &request, take_page, &page);
	if (!status && page.malformed)
		status = zd_ctl_fail(ZEROD_E_PROTOCOL, "PROTOCOL: the daemon's events are invalid");
	return status ? status : page.status;
}

/* Both clocks are this machine's. */
int64_t zd_ctl_clock_offset_ns(void)
{
	struct timespec real, monotonic;
	clock_gettime(CLOCK_MONOTONIC, &monotonic);
	clock_gettime(CLOCK_REALTIME, &real);
	return (int64_t)(real.tv_sec - monotonic.tv_sec) * NS_PER_S + (real.tv_nsec - monotonic.tv_nsec);
}
