/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deferred_teardown.c - keeps a session's memory until its process has left the devices.
 *
 * There is one watch for each device and job. The session is CLOSING until the last watch has ended: lists
 * show it, but zd_session_find() does not find it.
 */
#include "core/engine/deferred_teardown.h"
#include "core/engine/objects.h"

#include <stdio.h>

struct hold {
	zd_op_fn *done;
	void *owner;
	struct zd_record_hold object;
};

struct zd_deferred_teardown {
	struct zd_session *session;
	struct zd_job *job;
	struct zd_device *device;
	struct hold *holds;
	uint32_t nholds, room;
	uint32_t index; /* of its record */
	TAILQ_ENTRY(zd_deferred_teardown) link;
};

void zd_deferred_teardowns_begin(struct zd_engine *e, struct zd_session *session)
{
	zd_assert(!e->tearing_down);
	if ((e->sessions_linger || session->former) && !session->clean_exit)
		e->tearing_down = session;
}

static struct zd_deferred_teardown *get_teardown(struct zd_session *session, struct zd_job *job,
                                                 struct zd_device *device)
{
	struct zd_deferred_teardown *teardown;
	uint32_t index = 0;
	TAILQ_FOREACH (teardown, &session->deferred_teardowns, link) {
		if (teardown->job == job && teardown->device == device)
			return teardown;
		index++;
	}
	teardown = zd_calloc(1, sizeof(*teardown));
	teardown->session = session;
	teardown->job = job;
	teardown->device = device;
	teardown->index = index;
	TAILQ_INSERT_TAIL(&session->deferred_teardowns, teardown, link);
	return teardown;
}

bool zd_deferred_teardown_hold_recorded(struct zd_engine *e, struct zd_session *session, struct zd_job *job,
                                        struct zd_device *device, zd_op_fn *done, void *owner,
                                        struct zd_record_hold object)
{
	if (!session || e->tearing_down != session)
		return false;
	struct zd_deferred_teardown *teardown = get_teardown(session, job, device);
	if (teardown->nholds == teardown->room) {
		teardown->room = teardown->room ? 2 * teardown->room : 16;
		teardown->holds = zd_realloc(teardown->holds, teardown->room, sizeof(*teardown->holds));
	}
	teardown->holds[teardown->nholds++] = (struct hold){done, owner, object};
	return true;
}

bool zd_deferred_teardown_hold(struct zd_engine *e, struct zd_session *session, struct zd_job *job,
                               struct zd_device *device, zd_op_fn *done, void *owner)
{
	return zd_deferred_teardown_hold_recorded(e, session, job, device, done, owner,
	                                          (struct zd_record_hold){0});
}

static void journal(const struct zd_deferred_teardown *teardown)
{
	struct zd_record_holds *record;
	uint32_t nholds = 0;
	for (uint32_t i = 0; i < teardown->nholds; i++)
		nholds += teardown->holds[i].object.type != 0;
	if (!teardown->job->journal || nholds == 0)
		return;
	record = zd_journal_add(teardown->job->journal, ZD_RECORD_HOLDS, teardown->session->id,
	                        teardown->index, sizeof(*record) + nholds * sizeof(record->holds[0]));
	record->session = zd_journal_session(teardown->session);
	for (uint32_t i = 0; i < teardown->nholds; i++) {
		if (teardown->holds[i].object.type != 0)
			record->holds[record->nholds++] = teardown->holds[i].object;
	}
}

void zd_deferred_teardowns_journal(const struct zd_session *session)
{
	const struct zd_deferred_teardown *teardown;
	TAILQ_FOREACH (teardown, &session->deferred_teardowns, link)
		journal(teardown);
}

static void free_session(struct zd_engine *e, struct zd_session *session)
{
	zd_history_keep_name(&e->history, session->id, session->name, "");
	HASH_DEL(e->sessions, session);
	zd_id_tree_remove(&e->listed[ZD_TABLE_SESSIONS], &session->listed);
	zd_metadata_uncharge(session->owner, ZD_SESSION_METADATA_BYTES);
	zd_owner_put(e, session->owner);
	free(session);
}

/* The watch's status does not matter: there is no better evidence that the process has left. */
static void process_left(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                         const struct zd_op_result *result)
{
	struct zd_deferred_teardown *teardown = op->owner;
	struct zd_session *session = teardown->session;
	(void)status;
	(void)error;
	(void)result;
	TAILQ_REMOVE(&session->deferred_teardowns, teardown, link);
	if (teardown->job->journal)
		zd_journal_gone(teardown->job->journal, ZD_RECORD_HOLDS, session->id, teardown->index);
	for (uint32_t i = 0; i < teardown->nholds; i++) {
		struct zd_op hold = {.id = op->id, .job = teardown->job, .owner = teardown->holds[i].owner};
		teardown->holds[i].done(e, &hold, ZEROD_E_ABORTED, "the session has ended", NULL);
	}
	free(teardown->holds);
	free(teardown);
	if (!TAILQ_EMPTY(&session->deferred_teardowns))
		return;
	e->nlingering--;
	free_session(e, session);
}

void zd_deferred_teardowns_end(struct zd_engine *e, struct zd_session *session)
{
	struct zd_deferred_teardown *teardown;
	e->tearing_down = NULL;
	if (TAILQ_EMPTY(&session->deferred_teardowns)) {
		free_session(e, session);
		return;
	}
	e->nlingering++;
	zd_deferred_teardowns_journal(session);
	TAILQ_FOREACH (teardown, &session->deferred_teardowns, link) {
		struct zd_command command = {.kind = ZD_CMD_WATCH, .device = teardown->device->index};
		command.u.watch.session = session->id;
		command.u.watch.until_gone = true;
		zd_op_submit(e, teardown->job, &command, process_left, teardown, 0);
	}
}

bool zd_deferred_teardown_text(const struct zd_session *session, uint32_t index, char out[ZD_WAIT_TEXT])
{
	const struct zd_deferred_teardown *teardown = TAILQ_FIRST(&session->deferred_teardowns);
	for (; teardown && index > 0; index--)
		teardown = TAILQ_NEXT(teardown, link);
	if (!teardown)
		return false;
	(void)snprintf(out, ZD_WAIT_TEXT, "process %u to leave device %u (a child of it may keep it there)",
	               session->pid, teardown->device->index);
	return true;
}

const struct zd_job *zd_deferred_teardown_job(const struct zd_session *session)
{
	const struct zd_deferred_teardown *teardown = TAILQ_FIRST(&session->deferred_teardowns);
	return teardown ? teardown->job : NULL;
}
