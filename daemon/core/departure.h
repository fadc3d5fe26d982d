/* SPDX-License-Identifier: Apache-2.0 */
/*
 * departure.h - what a session held is kept until its process has left the devices.
 *
 * Where a process's kernels may run on after its connection is gone (struct zd_engine_config,
 * sessions_linger), the end of a session without a goodbye fails its groups and frees its peers at once, and
 * gives nothing back that the process could still touch: every object that the end drops gets one more
 * pending operation, a hold, which ends with the watch of the departure.
 */
#ifndef ZD_CORE_DEPARTURE_H
#define ZD_CORE_DEPARTURE_H

#include "core/internal.h"

/* Between the two, the session drops what it has. */
void zd_departures_begin(struct zd_engine *e, struct zd_session *session);
/* Frees the session, now or when its process has gone. */
void zd_departures_end(struct zd_engine *e, struct zd_session *session);

/* Is `session` ending, and the device's memory not to be given back before its process has gone: then done()
 * is called with `owner` in an op when that is so, and counts as an operation of the object until then. */
bool zd_departure_hold(struct zd_engine *e, struct zd_session *session, struct zd_job *job,
                       struct zd_device *device, zd_op_fn *done, void *owner);

/* Of a session that is CLOSING: "process 4711 to leave device 0", once a device; false when there is no
 * such. */
bool zd_departure_text(const struct zd_session *session, uint32_t index, char out[ZD_WAIT_TEXT]);
/* The job that it last worked for. */
const struct zd_job *zd_departure_job(const struct zd_session *session);

#endif
