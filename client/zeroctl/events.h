/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events.h - the daemon's lifecycle events, for the verbs that read them.
 */
#ifndef ZD_CTL_EVENTS_H
#define ZD_CTL_EVENTS_H

#include "ctl.h"

/* Where a reader is. Zeroed, it is before the oldest event. */
struct zd_ctl_events {
	bool copies;    /* asks for events of copies, too: they are made for 2 s from each page on */
	uint64_t after; /* the number of the last event that was read */
	uint64_t last;  /* the newest event's number when the last page was made */
	/* Of events up to this number, those of long-lived memory alone are kept: others are not lost. */
	uint64_t overwritten;
	uint64_t lost;   /* events that were overwritten before the last page was made; 0: none */
	uint64_t now_ns; /* the daemon's time then, on the clock of the events */
	size_t count;    /* of events in that page */
};

/* Reads one page behind `events->after`, of --job or of all, and advances. `fn` gets each event; it is valid
 * during the call. A page may be without events where others may be behind it: there are no more when `after`
 * is `last`. */
int zd_ctl_events_read(struct zd_ctl *ctl, struct zd_ctl_events *events,
                       int (*fn)(const Zd__Event *event, void *arg), void *arg)
        __attribute__((warn_unused_result));

/* Returns the difference between nanoseconds since the epoch and the clock of events. */
int64_t zd_ctl_clock_offset_ns(void);

#endif
