/* SPDX-License-Identifier: Apache-2.0 */
/*
 * departure.c - keeps a session's memory until its process has left the devices.
 *
 * There is one watch for each device and job. The session is CLOSING until the last watch has ended: lists
 * show it, but zd_session_find() does not find it.
 */
#include "core/engine/departure.h"
#include "core/engine/objects.h"

#include <stdio.h>

struct hold {
	zd_op_fn *done;
	void *owner;
};

struct zd_departure {
	struct zd_session *session;
	struct zd_job *job;
	struct zd_device *device;
	struct hold *holds;
	uint32_t nholds, room;
	TAILQ_ENTRY(zd_departure) link;
};

void zd_departures_begin(struct zd_engine *e, struct zd_session *session)
{
	zd_assert(!e->departing);
	if (e->sessions_linger && !session->orderly)
		e->departing = session;
}

static struct zd_departure *get(struct zd_session *session, struct zd_job *job, struct zd_device *device)
{
	struct zd_departure *departure;
	TAILQ_FOREACH (departure, &session->departures, link) {
		if (departure->job == job && departure->device == device)
			return departure;
	}
	departure = zd_calloc(1, sizeof(*departure));
	departure->session = session;
	departure->job = job;
	departure->device = device;
	TAILQ_INSERT_TAIL(&session->departures, departure, link);
	return departure;
}

bool zd_departure_hold(struct zd_engine *e, struct zd_session *session, struct zd_job *job,
                       struct zd_device *device, zd_op_fn *done, void *owner)
{
	if (!session || e->departing != session)
		return false;
	struct zd_departure *departure = get(session, job, device);
	if (departure->nholds == departure->room) {
		departure->room = departure->room ? 2 * departure->room : 16;
		departure->holds = zd_realloc(departure->holds, departure->room, sizeof(*departure->holds));
	}
	departure->holds[departure->nholds++] = (struct hold){done, owner};
	return true;
}

static void session_gone(struct zd_engine *e, struct zd_session *session)
{
	HASH_DEL(e->sessions, session);
	free(session);
}

/* The watch's status does not matter: there is no better evidence that the process has left. */
static void departed(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                     const struct zd_op_result *result)
{
	struct zd_departure *departure = op->owner;
	struct zd_session *session = departure->session;
	(void)status;
	(void)error;
	(void)result;
	TAILQ_REMOVE(&session->departures, departure, link);
	for (uint32_t i = 0; i < departure->nholds; i++) {
		struct zd_op hold = {.id = op->id, .job = departure->job, .owner = departure->holds[i].owner};
		departure->holds[i].done(e, &hold, ZEROD_E_ABORTED, "the session has ended", NULL);
	}
	free(departure->holds);
	free(departure);
	if (!TAILQ_EMPTY(&session->departures))
		return;
	e->nlingering--;
	session_gone(e, session);
}

void zd_departures_end(struct zd_engine *e, struct zd_session *session)
{
	struct zd_departure *departure;
	e->departing = NULL;
	if (TAILQ_EMPTY(&session->departures)) {
		session_gone(e, session);
		return;
	}
	e->nlingering++;
	TAILQ_FOREACH (departure, &session->departures, link) {
		struct zd_command command = {.kind = ZD_CMD_WATCH, .device = departure->device->index};
		command.u.watch.session = session->id;
		command.u.watch.until_gone = true;
		zd_op_submit(e, departure->job, &command, departed, departure, 0);
	}
}

bool zd_departure_text(const struct zd_session *session, uint32_t index, char out[ZD_WAIT_TEXT])
{
	const struct zd_departure *departure = TAILQ_FIRST(&session->departures);
	for (; departure && index > 0; index--)
		departure = TAILQ_NEXT(departure, link);
	if (!departure)
		return false;
	(void)snprintf(out, ZD_WAIT_TEXT, "process %u to leave device %u (a child of it may keep it there)",
	               session->pid, departure->device->index);
	return true;
}

const struct zd_job *zd_departure_job(const struct zd_session *session)
{
	const struct zd_departure *departure = TAILQ_FIRST(&session->departures);
	return departure ? departure->job : NULL;
}
