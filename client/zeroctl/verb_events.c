// SPDX-License-Identifier: Apache-2.0
/*
 * verb_events.c - zeroctl events: what has happened to sessions, jobs, gathers, leases and memory.
 */
#include "events.h"

#include <inttypes.h>

static int print_event(const Zd__Event *event, void *arg)
{
	(void)arg;
	printf("%" PRIu64 " %" PRIu64 " %s %s job=%s group=%s name=%s rank=%u session=%" PRIu64
	       " device=%d segment=%u offset=%" PRIu64 " bytes=%" PRIu64 "\n",
	       event->seq, event->time_ns, event->kind, event->reason, event->job, event->group, event->name,
	       event->rank, event->session, event->n_devices ? (int)event->devices[0] : -1, event->segment,
	       event->offset, event->bytes);
	return 0;
}

int zd_ctl_events(struct zd_ctl *ctl)
{
	struct zd_ctl_events events = {.after = 0};
	return zd_ctl_events_read_all(ctl, &events, print_event, NULL);
}
