/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sessions.c - sessions: a client's connection as the core sees it.
 *
 * A session ends once, by zd_engine_session_close() or by an administrator. All its objects end with it:
 * first waiting requests, without a reply, then its memberships (leases, buckets, targets, shards), then its
 * allocations. The memory can remain until its process has left the devices (deferred_teardown.c).
 */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "core/control/control.h"
#include "core/engine/deferred_teardown.h"
#include "core/engine/promise.h"
#include "core/gather/deferred.h"
#include "core/gather/gather.h"
#include "core/gather/save.h"
#include "core/gather/shadow.h"
#include "core/memory/allocation.h"
#include "core/memory/retire.h"
#include "core/reduce/reduce.h"

#define MOST_REPORTED 16u /* groups of a lost session; a line in the log takes some microseconds */

static int check_session_count(const struct zd_engine *e, const struct zd_peer *peer, struct zd_err *err)
{
	uint32_t max_sessions = e->uid_limits.max_sessions, count = 0;
	if (peer->admin || max_sessions == 0)
		return 0;
	for (const struct zd_session *session = e->sessions; session; session = session->hh.next)
		count += session->uid == peer->uid && session->state != ZD_SESSION_CLOSING;
	if (count < max_sessions)
		return 0;
	return zd_err_set(err, ZEROD_E_LIMIT, "uid %u has %u sessions open: max_sessions_per_uid is %u",
	                  peer->uid, count, max_sessions);
}

static struct zd_session *session_new(struct zd_engine *e, const struct zd_peer *peer)
{
	struct zd_session *session = zd_calloc(1, sizeof(*session));
	session->uid = peer->uid;
	session->admin = peer->admin;
	session->owner = zd_owner_get(e, peer->uid);
	zd_metadata_charge(session->owner, ZD_SESSION_METADATA_BYTES);
	session->id = zd_next_id(e, session->owner->ids, ZD_ID_SESSION);
	session->state = ZD_SESSION_OPEN;
	session->pid = peer->pid;
	session->started = peer->started;
	session->strict = peer->strict;
	session->poison = peer->poison;
	session->maps_frames = peer->maps_frames && !peer->strict && !peer->poison;
	session->runs_ahead = peer->runs_ahead;
	session->no_durable = peer->no_durable;
	session->reads_others = peer->admin || peer->reads_others;
	session->denied_devices = peer->admin ? 0 : peer->denied_devices;
	if (peer->name)
		strncpy(session->name, peer->name, ZD_MAX_NAME_BYTES);
	session->opened_ns = session->requested_ns = e->now_ns;
	TAILQ_INIT(&session->requests);
	TAILQ_INIT(&session->members);
	TAILQ_INIT(&session->allocations);
	TAILQ_INIT(&session->mappings);
	TAILQ_INIT(&session->deferred_teardowns);
	TAILQ_INIT(&session->relaying);
	TAILQ_INIT(&session->promises);
	TAILQ_INIT(&session->deferred);
	HASH_ADD(hh, e->sessions, id, sizeof(session->id), session);
	zd_id_tree_insert(&e->listed[ZD__TABLE__SESSIONS], &session->listed, session->id);
	return session;
}

uint64_t zd_engine_session_open(struct zd_engine *e, const struct zd_peer *peer, struct zd_err *err)
{
	uint64_t id = 0;
	zd_endings_finish_of(e, peer->uid);
	if (HASH_COUNT(e->sessions) - e->nclosing >= ZD_MAX_SESSIONS) {
		(void)zd_err_set(err, ZEROD_E_LIMIT, "%u sessions are open already", ZD_MAX_SESSIONS);
		return 0;
	}
	if (check_session_count(e, peer, err) != 0)
		return 0;
	if (!zd_ids_have_room(e, peer->uid)) {
		(void)zd_err_set(err, ZEROD_E_LIMIT, "too many users have had sessions of this daemon");
		return 0;
	}
	struct zd_session asks = {
	        .uid = peer->uid, .admin = peer->admin, .owner = zd_owner_get(e, peer->uid)};
	if (zd_metadata_check(e, &asks, "session", peer->name ? peer->name : "", ZD_SESSION_METADATA_BYTES,
	                      err) == 0) {
		const struct zd_session *session = session_new(e, peer);
		id = session->id;
		if (e->history.last == 0) /* the history starts with the first client */
			(void)zd_event_new(e, ZD_EVENT_DAEMON_START, NULL);
		zd_event_of_session(e, ZD_EVENT_SESSION_BEGIN, session)->number = session->pid;
		zd_count(e, ZD_COUNT_SESSIONS_OPENED, 1);
	}
	zd_owner_put(e, asks.owner);
	return id;
}

/* Drops the session's objects, as far as the budget allows. All its groups fail before any object is freed,
 * so that its peers learn at once that it has ended. */
static bool drop_objects(struct zd_engine *e, struct zd_session *session, uint32_t *budget)
{
	uint32_t begins = *budget;
	struct zd_member *member;
	struct zd_allocation *allocation;

	while ((member = TAILQ_FIRST(&session->members)) && !member->detaching) {
		if (!zd_ending_may_free(&begins))
			return false;
		zd_member_begin_detach(e, member);
	}
	while ((member = TAILQ_FIRST(&session->members))) {
		if (!zd_member_detach(e, member, budget))
			return false;
	}
	while ((allocation = TAILQ_FIRST(&session->allocations))) {
		if (!zd_ending_may_free(budget))
			return false;
		zd_allocation_leave(e, allocation);
	}
	return true;
}

static bool end_step(struct zd_engine *e, struct zd_ending *ending, uint32_t *budget)
{
	struct zd_session *session = ZD_CONTAINER_OF(ending, struct zd_session, ending);

	if (!drop_objects(e, session, budget)) {
		zd_deferred_teardowns_pause(session);
		return false;
	}
	zd_deferred_teardowns_end(e, session);
	return true;
}

void zd_session_end(struct zd_engine *e, struct zd_session *session, enum zd_event_word why)
{
	struct zd_member *member;
	struct zd_event *event = zd_event_of_session(e, ZD_EVENT_SESSION_END, session);

	event->reason = (uint8_t)why;
	event->number = session->pid;
	event->value = session->opened_ns;
	if (session->clean_exit)
		zd_publishes_complete(e, session);
	zd_deferred_teardowns_begin(e, session);
	zd_unpin(e, &session->pinned);
	zd_requests_drop(e, session, NULL, 0, NULL);
	zd_deferred_drop(e, session);
	zd_promises_void(session);
	zd_mappings_leave(e, session); /* before their jobs end */
	TAILQ_FOREACH_REVERSE(member, &session->members, zd_member_list, session_link)
	{
		if (!member->detaching)
			break;
		zd_ending_cancel(e, &member->ending); /* the session's end includes it */
	}
	zd_ending_begin(e, session->owner, &session->ending, end_step);
}

bool zd_engine_session_ends(const struct zd_engine *e, uint64_t id)
{
	const struct zd_session *session;
	HASH_FIND(hh, e->sessions, &id, sizeof(id), session);
	return session && session->ends;
}

struct zd_session *zd_session_new_former(struct zd_engine *e, const struct zd_record_session *record)
{
	struct zd_peer peer = {.uid = record->uid, .pid = record->pid, .started = record->started};
	struct zd_session *session = session_new(e, &peer);
	session->former = true;
	zd_deferred_teardowns_begin(e, session);
	return session;
}

bool zd_engine_former(const struct zd_engine *e, uint64_t id, uint32_t *uid, uint32_t *pid, uint64_t *started)
{
	const struct zd_session *session;
	HASH_FIND(hh, e->sessions, &id, sizeof(id), session);
	if (!session || !session->former)
		return false;
	*uid = session->uid;
	*pid = session->pid;
	*started = session->started;
	return true;
}

void zd_engine_session_goodbye(struct zd_engine *e, uint64_t id)
{
	struct zd_session *session = zd_session_find(e, id);
	if (session)
		session->clean_exit = true;
}

static void report_lost(struct zd_engine *e, const struct zd_session *session)
{
	const struct zd_member *member;
	uint32_t left = 0, reported = 0;
	TAILQ_FOREACH (member, &session->members, session_link)
		left++;
	TAILQ_FOREACH (member, &session->members, session_link) {
		bool is_last = ++reported == MOST_REPORTED;
		struct zd_notice notice = {.kind = ZD_NOTICE_RANK_LOST,
		                           .job = member->group->job->name,
		                           .uid = member->group->job->owner->uid,
		                           .group = member->group->name,
		                           .rank = zd_world_rank(member),
		                           .device = member->device->index,
		                           .more = is_last ? left - reported : 0,
		                           .pid = session->pid,
		                           .session = session->id};
		e->sink.notice(e->sink.arg, &notice);
		if (is_last)
			break;
	}
}

void zd_engine_session_close(struct zd_engine *e, uint64_t id)
{
	struct zd_session *session = zd_session_find(e, id);
	if (!session)
		return;
	/* Clients without groups send no goodbye. */
	zd_count(e, ZD_COUNT_SESSIONS_LOST, !session->clean_exit && !TAILQ_EMPTY(&session->members));
	if (e->sink.notice && !session->clean_exit)
		report_lost(e, session);
	zd_session_end(e, session,
	               session->clean_exit              ? ZD_WORD_GOODBYE
	               : TAILQ_EMPTY(&session->members) ? ZD_WORD_CLOSED
	                                                : ZD_WORD_DIED);
	zd_settle(e);
}

static void end_late(struct zd_engine *e, struct zd_session *session, uint32_t device)
{
	const struct zd_notice notice = {.kind = ZD_NOTICE_UNMAP_LATE,
	                                 .job = "",
	                                 .uid = session->uid,
	                                 .device = device,
	                                 .pid = session->pid,
	                                 .session = session->id};
	uint64_t id = session->id;
	char why[128];
	(void)snprintf(
	        why, sizeof(why),
	        "the process has not unmapped unused memory of device %u for %llu s, which others want",
	        device, ZD_UNMAP_NS / 1000000000u);
	if (e->sink.notice)
		e->sink.notice(e->sink.arg, &notice);
	zd_session_end(e, session, ZD_WORD_KILLED);
	e->sink.session_killed(e->sink.arg, id, why);
}

uint64_t zd_unmaps_expire(struct zd_engine *e)
{
	struct zd_session *session;
	uint64_t next_ns = UINT64_MAX;
	uint32_t device;
	while ((session = zd_retire_find_late(e, &device, &next_ns)))
		end_late(e, session, device);
	return next_ns;
}

static int reset_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	(void)err;
	struct zd_member *member;
	TAILQ_FOREACH (member, &req->session->members, session_link) {
		zd_reduce_give_up(e, member);
		zd_shadow_accept(e, member);
		req->device = member->device;
	}
	return 0;
}

/* Returns a member of a READY group with transfers under way. NULL: none. When an exchange fails, the backend
 * first releases the streams that wait for it. It completes the command later, when no part of it runs any
 * more. A transfer that is under way can therefore have failed. */
static const struct zd_member *find_transferring(const struct zd_session *session)
{
	const struct zd_member *member;
	TAILQ_FOREACH (member, &session->members, session_link) {
		if (member->transfers > 0 && member->group->state == ZD_GROUP_READY)
			return member;
	}
	return NULL;
}

static void taken_back(struct zd_engine *e, struct zd_op *op)
{
	struct zd_session *session = zd_session_find(e, op->aux);
	if (!session)
		return;
	session->naborts--;
	zd_dirty_session(e, session);
}

/* Ends the aborts: all fences of replies on these timelines count as passed, and later values work again. An
 * exchange that is still under way has failed, even if its command has not completed. The store follows the
 * remaining copies of its timeline, because a gather's streams must not see the abort after the reset. On a
 * timeline of exchanges it follows nothing. */
static void take_aborts_back(struct zd_engine *e, struct zd_session *session)
{
	for (uint32_t i = 0; i < ZD_SESSION_TIMELINES; i++) {
		if (zd_timeline_is_of_exchanges(i) && session->timeline[i] > 0) {
			zd_session_signal(e, session, i, session->timeline[i]);
		} else if (zd_timelines_has(&session->aborted, i)) {
			struct zd_command command = {.kind = ZD_CMD_SIGNAL, .device = i % ZD_MAX_DEVICES};
			command.signal = (struct zd_signal){session->id, i, session->timeline[i]};
			session->naborts++;
			zd_op_submit(e, NULL, &command, taken_back, NULL, session->id);
		}
	}
	session->aborted = (struct zd_timelines){{0}};
	session->resets++;
	if (session->state == ZD_SESSION_POISONED)
		zd_sm_move(&zd_sm_session, &session->state, ZD_SESSION_OPEN);
}

/* Lists the groups in whose step the session is. If there are more than ZD_MAX_STEPS, the session starts the
 * steps of the others again. */
static void list_steps(struct zd_engine *e, const struct zd_session *session)
{
	const struct zd_member *member;
	uint32_t nsteps = 0;
	TAILQ_FOREACH (member, &session->members, session_link) {
		if (nsteps < ZD_MAX_STEPS && zd_step_is_taken(member))
			e->steps[nsteps++] = member->group->id;
	}
	e->reply.u.session_reset.n_steps = nsteps;
	e->reply.u.session_reset.steps = e->steps;
}

/* Waits until the session's shards hold the last commit again. */
static int reset_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	const struct zd_member *member = find_transferring(req->session);
	(void)err;
	if (member)
		return zd_wait_for(req, ZD_WAIT_TRANSFERS, zd_world_rank(member), member->transfers, 0);
	take_aborts_back(e, req->session);
	member = TAILQ_FIRST(&req->session->members); /* without one, no buffer is gathered */
	if (member && req->session->naborts > 0)
		return zd_wait_for(req, ZD_WAIT_TRANSFERS, zd_world_rank(member), req->session->naborts, 0);
	TAILQ_FOREACH (member, &req->session->members, session_link) {
		const struct zd_part *part = LIST_FIRST(&member->owed);
		if (part)
			return zd_wait_for_unit(req, part->unit, ZD_WAIT_RESTORE, zd_world_rank(member), 0,
			                        0);
	}
	list_steps(e, req->session);
	return 0;
}

static int kill_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	zd_endings_finish_for(e, req->session);
	struct zd_session *victim = zd_session_find(e, req->args->u.kill_session.session);
	if (!victim || (!req->session->admin && victim->uid != req->session->uid))
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "no session %llu",
		                  ZD_ID_NUMBER(req->args->u.kill_session.session));
	if (victim == req->session)
		return zd_err_set(err, ZEROD_E_INVALID, "session %llu is the one that asks",
		                  ZD_ID_NUMBER(victim->id));
	char why[96];
	(void)snprintf(why, sizeof(why), "ended by session %llu (pid %u, uid %u)",
	               ZD_ID_NUMBER(req->session->id), req->session->pid, req->session->uid);
	zd_session_end(e, victim, ZD_WORD_KILLED);
	e->sink.session_killed(e->sink.arg, req->args->u.kill_session.session, why);
	return 0;
}

const struct zd_request_type zd_req_session_reset = {.begin = reset_begin, .attempt = reset_attempt};
const struct zd_request_type zd_req_kill_session = {.begin = kill_begin};
