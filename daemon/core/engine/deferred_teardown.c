/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deferred_teardown.c - preserves a session's memory until its process has left the devices.
 *
 * Each device and job has one watch. The session is CLOSING until the last watch has ended: lists show it,
 * but zd_session_find() does not find it.
 */
#include "core/engine/deferred_teardown.h"
#include "core/engine/objects.h"

#include <stdio.h>

#define AHEAD 8u /* holds whose objects are prefetched before they end */

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
	uint32_t nrecorded; /* holds that have a record; each step of the session's end writes one record */
	uint32_t *records;  /* their indices */
	uint32_t nrecords, records_room;
	bool left; /* the process has left: `nended` holds have ended */
	uint32_t nended;
	uint64_t op; /* the watch */
	struct zd_ending ending;
	TAILQ_ENTRY(zd_deferred_teardown) link;
};

void zd_deferred_teardowns_begin(struct zd_engine *e, struct zd_session *session)
{
	zd_sm_move(&zd_sm_session, &session->state, ZD_SESSION_CLOSING);
	session->ends = true;
	e->nclosing++;
}

static struct zd_deferred_teardown *get_teardown(struct zd_session *session, struct zd_job *job,
                                                 struct zd_device *device)
{
	struct zd_deferred_teardown *teardown;
	TAILQ_FOREACH (teardown, &session->deferred_teardowns, link) {
		if (teardown->job == job && teardown->device == device)
			return teardown;
	}
	teardown = zd_calloc(1, sizeof(*teardown));
	teardown->session = session;
	teardown->job = job;
	teardown->device = device;
	TAILQ_INSERT_TAIL(&session->deferred_teardowns, teardown, link);
	return teardown;
}

bool zd_deferred_teardown_hold_recorded(struct zd_engine *e, struct zd_session *session, struct zd_job *job,
                                        struct zd_device *device, zd_op_fn *done, void *owner,
                                        struct zd_record_hold object)
{
	if (!session || !session->ends || session->clean_exit || !(e->sessions_linger || session->former))
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

static uint32_t next_record(struct zd_deferred_teardown *teardown)
{
	if (teardown->nrecords == teardown->records_room) {
		teardown->records_room = teardown->records_room ? 2 * teardown->records_room : 4;
		teardown->records = zd_realloc(teardown->records, teardown->records_room,
		                               sizeof(*teardown->records));
	}
	return teardown->records[teardown->nrecords++] = teardown->session->nhold_records++;
}

/* Records the holds that are in no record. */
static void journal(struct zd_deferred_teardown *teardown)
{
	struct zd_record_holds *record;
	uint32_t nholds = 0, first = teardown->nrecorded;
	if (!teardown->job->journal)
		return;
	teardown->nrecorded = teardown->nholds;
	for (uint32_t i = first; i < teardown->nholds; i++)
		nholds += teardown->holds[i].object.type != 0;
	if (nholds == 0)
		return;
	record = zd_journal_add(teardown->job->journal, ZD_RECORD_HOLDS, teardown->session->id,
	                        next_record(teardown), sizeof(*record) + nholds * sizeof(record->holds[0]));
	record->session = zd_journal_session(teardown->session);
	for (uint32_t i = first; i < teardown->nholds; i++) {
		if (teardown->holds[i].object.type != 0)
			record->holds[record->nholds++] = teardown->holds[i].object;
	}
}

static void gone(const struct zd_deferred_teardown *teardown)
{
	for (uint32_t i = 0; i < teardown->nrecords && teardown->job->journal; i++)
		zd_journal_gone(teardown->job->journal, ZD_RECORD_HOLDS, teardown->session->id,
		                teardown->records[i]);
}

void zd_deferred_teardowns_pause(struct zd_session *session)
{
	struct zd_deferred_teardown *teardown;
	TAILQ_FOREACH (teardown, &session->deferred_teardowns, link)
		journal(teardown);
}

void zd_deferred_teardowns_journal(struct zd_session *session)
{
	struct zd_deferred_teardown *teardown;
	TAILQ_FOREACH (teardown, &session->deferred_teardowns, link) {
		if (teardown->left)
			continue;
		gone(teardown); /* events can have recorded them in the same journal */
		teardown->nrecords = teardown->nrecorded = 0;
		journal(teardown);
	}
}

static void free_session(struct zd_engine *e, struct zd_session *session)
{
	zd_history_keep_name(&e->history, session->id, session->name, "");
	e->nclosing--;
	HASH_DEL(e->sessions, session);
	zd_id_tree_remove(&e->listed[ZD__TABLE__SESSIONS], &session->listed);
	zd_metadata_uncharge(session->owner, ZD_SESSION_METADATA_BYTES);
	zd_owner_put(e, session->owner);
	free(session);
}

/* A session can hold 10^5 parts, each of which misses the processor's caches. */
static void prefetch(const struct zd_deferred_teardown *teardown, uint32_t hold)
{
	if (hold >= teardown->nholds)
		return;
	__builtin_prefetch(teardown->holds[hold].owner, 1);
	__builtin_prefetch((const char *)teardown->holds[hold].owner + 64, 1);
}

static bool end_holds(struct zd_engine *e, struct zd_ending *ending, uint32_t *budget)
{
	struct zd_deferred_teardown *teardown = ZD_CONTAINER_OF(ending, struct zd_deferred_teardown, ending);
	struct zd_session *session = teardown->session;
	while (teardown->nended < teardown->nholds) {
		const struct hold *hold = &teardown->holds[teardown->nended];
		struct zd_op op = {.id = teardown->op,
		                   .job = teardown->job,
		                   .owner = hold->owner,
		                   .status = ZEROD_E_ABORTED,
		                   .error = "the session has ended"};
		if (!zd_ending_may_free(budget))
			return false;
		prefetch(teardown, teardown->nended + AHEAD);
		teardown->nended++;
		hold->done(e, &op);
	}
	TAILQ_REMOVE(&session->deferred_teardowns, teardown, link);
	zd_job_unref(e, teardown->job);
	free(teardown->records);
	free(teardown->holds);
	free(teardown);
	if (TAILQ_EMPTY(&session->deferred_teardowns))
		free_session(e, session);
	return true;
}

/* The watch's status does not matter, because the engine has no better evidence that the process has left. */
static void process_left(struct zd_engine *e, struct zd_op *op)
{
	struct zd_deferred_teardown *teardown = op->owner;
	struct zd_session *session = teardown->session;
	gone(teardown);
	teardown->left = true;
	teardown->op = op->id;
	teardown->job->refs++;
	zd_ending_begin(e, session->owner, &teardown->ending, end_holds);
}

void zd_deferred_teardowns_end(struct zd_engine *e, struct zd_session *session)
{
	struct zd_deferred_teardown *teardown;
	session->ends = false;
	if (TAILQ_EMPTY(&session->deferred_teardowns)) {
		free_session(e, session);
		return;
	}
	zd_deferred_teardowns_pause(session);
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
