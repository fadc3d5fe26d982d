/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.h - lifecycle events as a timeline in the JSON of Chrome's trace viewer and of Perfetto.
 *
 * Devices, sessions and jobs are processes. A track ("thread") of a process has slices that do not overlap,
 * by ascending time. Objects that can overlap, such as the gathers of a session, have several tracks.
 */
#ifndef ZD_CTL_TRACE_H
#define ZD_CTL_TRACE_H

#include <stdio.h>

#include "proto/zerod.pb-c.h"

struct zd_ctl_trace;

/* Starts a trace at this time of the events' clock, which is `real_ns` since the epoch, and writes its head.
 * Never NULL. The memory does not grow with the number of events. The caller checks ferror(). */
struct zd_ctl_trace *zd_ctl_trace_new(FILE *out, uint64_t begin_ns, int64_t real_ns);
/* Adds an event. Events are added by ascending number. */
void zd_ctl_trace_add(struct zd_ctl_trace *trace, const Zd__Event *event);
/* Notes events that are missing. */
void zd_ctl_trace_lose(struct zd_ctl_trace *trace, uint64_t events);
/* Returns the number of slices, instants and flows so far. */
uint64_t zd_ctl_trace_count(const struct zd_ctl_trace *trace);
/* Writes waits that have not ended by now, and the end, and frees the trace. */
void zd_ctl_trace_end(struct zd_ctl_trace *trace, uint64_t end_ns);

#endif
