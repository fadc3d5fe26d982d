/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deferred_teardown.h - retains a session's memory until its process has left the devices.
 *
 * Kernels of a process can continue after its connection has closed (sessions_linger in struct
 * zd_engine_config). When such a session ends without a goodbye, its groups fail and its peers wake at once.
 * Memory that the process could still access is not freed: every object that the session drops has one more
 * pending operation, a hold. The holds end with the watch of the deferred teardown.
 */
#ifndef ZD_CORE_ENGINE_DEFERRED_TEARDOWN_H
#define ZD_CORE_ENGINE_DEFERRED_TEARDOWN_H

#include "core/engine/objects.h"

/* The session is CLOSING from now on. It drops its objects between this call and the last. */
void zd_deferred_teardowns_begin(struct zd_engine *e, struct zd_session *session);
/* Records the holds in the journals of their jobs. Called after each step of the session's end. */
void zd_deferred_teardowns_pause(struct zd_session *session);
/* Frees the session, at once or when its process has left the devices. */
void zd_deferred_teardowns_end(struct zd_engine *e, struct zd_session *session);

/* If `session` is ending and lingers, returns true and calls done(), with `owner` in an op, when the process
 * has left the device. Until then the hold counts as an operation of the object. Otherwise returns false. */
bool zd_deferred_teardown_hold(struct zd_engine *e, struct zd_session *session, struct zd_job *job,
                               struct zd_device *device, zd_op_fn *done, void *owner);
/* As above, for an object that the journal names. A restored daemon also has the hold. */
bool zd_deferred_teardown_hold_recorded(struct zd_engine *e, struct zd_session *session, struct zd_job *job,
                                        struct zd_device *device, zd_op_fn *done, void *owner,
                                        struct zd_record_hold object);
/* Records all holds of a CLOSING session in new journals. */
void zd_deferred_teardowns_journal(struct zd_session *session);

/* Writes "process 4711 to leave device 0" for watch `index` of a CLOSING session. Returns false if it has
 * fewer watches. */
bool zd_deferred_teardown_text(const struct zd_session *session, uint32_t index, char out[ZD_WAIT_TEXT]);
/* Returns the job of the session's first watch, or NULL if no watch is pending. */
const struct zd_job *zd_deferred_teardown_job(const struct zd_session *session);

#endif
