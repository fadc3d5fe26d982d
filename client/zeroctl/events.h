/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events.h - the daemon's lifecycle events, for the verbs that read them.
 */
#ifndef ZD_CTL_EVENTS_H
#define ZD_CTL_EVENTS_H

#include "ctl.h"

/* The position of a reader. Zeroed, it is before the oldest event. */
struct zd_ctl_events {
	bool copies;    /* also requests events of copies: the daemon makes them for 2 s after each page */
	uint64_t after; /* the number of the last event that was read */
	uint64_t last;  /* the newest event's number when the last page was made */
	/* Up to this number only events of long-lived memory are preserved. Others do not count as lost. */
	uint64_t overwritten;
	uint64_t lost;   /* events that were overwritten before the last page was made; 0: none */
	uint64_t now_ns; /* the daemon's time then, on the clock of the events */
	size_t count;    /* of events in that page */
};

/* Reads the page after `events->after`, of --job or of all jobs, and advances. `fn` receives each event,
 * which is valid during the call. A page can be empty although others follow it: there are no more when
 * `after` is `last`. */
int zd_ctl_events_read(struct zd_ctl *ctl, struct zd_ctl_events *events,
                       int (*fn)(const Zd__Event *event, void *arg), void *arg)
        __attribute__((warn_unused_result));

/* Returns the difference between nanoseconds since the epoch and the clock of events. */
int64_t zd_ctl_clock_offset_ns(void);

#endif
