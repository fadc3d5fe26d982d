/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.c - sessions: lookup, their devices, the timelines of their daemon pages, and the POISONED state.
 */
#include <stdio.h>

#include "core/engine/objects.h"

#define DEVICES_TEXT (ZD_MAX_DEVICES * sizeof("63,"))

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
	        ZD_ID_NUMBER(session->id));
}

bool zd_session_may_use(const struct zd_session *session, uint32_t device)
{
	return !(session->denied_devices & (1ull << device));
}

/* "0,1", or "none". */
static void list_devices(const struct zd_engine *e, const struct zd_session *session, char text[DEVICES_TEXT])
{
	size_t used = (size_t)snprintf(text, DEVICES_TEXT, "none");
	bool any = false;
	for (uint32_t i = 0; i < e->ndevices; i++) {
		if (!zd_session_may_use(session, i))
			continue;
		used = any ? used : 0;
		used += (size_t)snprintf(text + used, DEVICES_TEXT - used, "%s%u", any ? "," : "", i);
		any = true;
	}
}

int zd_session_check_device(const struct zd_engine *e, const struct zd_session *session, uint32_t device,
                            struct zd_err *err)
{
	char granted[DEVICES_TEXT];
	if (device >= e->ndevices)
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "no device %u; there are %u", device, e->ndevices);
	if (zd_session_may_use(session, device))
		return 0;
	list_devices(e, session, granted);
	return zd_err_set(err, ZEROD_E_PERMISSION,
	                  "device %u (%s) is not granted to session %llu (uid %u), whose devices are: %s; "
	                  "the daemon's administrator grants devices, by [grants] and [socket] of zerod.conf",
	                  device, e->devices[device].config.name, ZD_ID_NUMBER(session->id), session->uid,
	                  granted);
}
