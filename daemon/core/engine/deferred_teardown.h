/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deferred_teardown.h - keeps a session's memory until its process has left the devices.
 *
 * Kernels of a process may run on after its connection has closed (struct zd_engine_config, sessions_linger).
 * There, the end of a session without a goodbye fails its groups and wakes its peers at once, but frees no
 * memory that the process could still access: every object that the session drops gets one more pending
 * operation, a hold, which ends with the watch of the deferred teardown.
 */
#ifndef ZD_CORE_ENGINE_DEFERRED_TEARDOWN_H
#define ZD_CORE_ENGINE_DEFERRED_TEARDOWN_H

#include "core/engine/objects.h"

/* The session is CLOSING from now on. It drops its objects between this call and the last. */
void zd_deferred_teardowns_begin(struct zd_engine *e, struct zd_session *session);
/* Records the holds in the journals of their jobs; after each step of the session's end. */
void zd_deferred_teardowns_pause(struct zd_session *session);
/* Frees the session, at once or when its process has left the devices. */
void zd_deferred_teardowns_end(struct zd_engine *e, struct zd_session *session);

/* Returns true if `session` is ending and lingers: done() is then called, with `owner` in an op, when the
 * process has left the device. Until then the hold counts as an operation of the object. Otherwise returns
 * false. */
bool zd_deferred_teardown_hold(struct zd_engine *e, struct zd_session *session, struct zd_job *job,
                               struct zd_device *device, zd_op_fn *done, void *owner);
/* The same, of an object that the journal names: a daemon that is restored holds it, too. */
bool zd_deferred_teardown_hold_recorded(struct zd_engine *e, struct zd_session *session, struct zd_job *job,
                                        struct zd_device *device, zd_op_fn *done, void *owner,
                                        struct zd_record_hold object);
/* Records all holds of a CLOSING session, in journals that are begun anew. */
void zd_deferred_teardowns_journal(struct zd_session *session);

/* Writes "process 4711 to leave device 0" for watch `index` of a CLOSING session; false if there are
 * fewer. */
bool zd_deferred_teardown_text(const struct zd_session *session, uint32_t index, char out[ZD_WAIT_TEXT]);
/* Returns the job of the session's first watch; NULL: none is pending. */
const struct zd_job *zd_deferred_teardown_job(const struct zd_session *session);

#endif
