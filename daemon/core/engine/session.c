/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.c - sessions: lookup, the timelines of their daemon pages, and the POISONED state.
 */
#include "core/engine/objects.h"

struct zd_session *zd_session_find(struct zd_engine *e, uint64_t id)
{
	struct zd_session *session;
	HASH_FIND(hh, e->sessions, &id, sizeof(id), session);
	return session && session->state != ZD_SESSION_CLOSING ? session : NULL;
}

void zd_session_signal(struct zd_engine *e, const struct zd_session *session, uint32_t timeline,
                       uint64_t value)
{
	struct zd_command command = {.kind = ZD_CMD_SIGNAL, .device = timeline % ZD_MAX_DEVICES};
	command.signal = (struct zd_signal){session->id, timeline, value};
	e->sink.command(e->sink.arg, &command);
}

void zd_session_abort(struct zd_engine *e, struct zd_session *session, uint32_t timeline)
{
	zd_session_signal(e, session, timeline, ZD_FENCE_ABORTED);
	zd_timelines_add(&session->aborted, timeline);
	if (session->state == ZD_SESSION_OPEN)
		zd_sm_move(&zd_sm_session, &session->state, ZD_SESSION_POISONED);
}

int zd_session_check_poisoned(const struct zd_session *session, struct zd_err *err)
{
	if (session->state != ZD_SESSION_POISONED)
		return 0;
	return zd_err_set(
	        err, ZEROD_E_POISONED,
	        "session %llu ran on after an aborted wait; discard what it has computed since, and "
	        "reset the session",
	        (unsigned long long)session->id);
}
