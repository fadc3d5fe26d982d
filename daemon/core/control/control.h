/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - the room above all others of the core: sessions and groups begin and end here, and here are the
 * tables that name functions of every room.
 */
#ifndef ZD_CORE_CONTROL_CONTROL_H
#define ZD_CORE_CONTROL_CONTROL_H

#include "core/engine/events.h"

/* requests.c */
extern const struct zd_request_type *const zd_request_types[ZD_NREQUESTS];
/* events.c */
extern const struct zd_events zd_control_events;

/* Writes what the request waits for: "rank 2 to publish version 4 of unit 'h1' (has 3)". Also says so when
 * every session with leases on the device's gathered buffers waits for memory itself. */
void zd_wait_text(const struct zd_engine *e, const struct zd_request *req, char out[ZD_WAIT_TEXT]);

/* join.c */
/* Ends a durable job that no session is attached to: frees all its memory. */
void zd_job_end(struct zd_engine *e, struct zd_job *job);
/* Ends the durable jobs that no session has used for durable_ttl_ns, and finds the time of the next. */
void zd_jobs_expire(struct zd_engine *e);

/* The rank's session ends or leaves, and its requests have been dropped: frees all that it holds in the
 * group; the group fails unless the rank was alone. */
void zd_member_detach(struct zd_engine *e, struct zd_member *member);

#endif
