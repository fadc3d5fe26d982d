/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ends.c - ends of sessions that need several steps of the engine. Invariant: the task of each user in
 * `api->ends` is queued, or it is running.
 */
#include "server/ends.h"

#include <stdlib.h>
#include <sys/queue.h>

#include "base/err.h"
#include "base/mem.h"
#include "server/api.h"
#include "server/user.h"

struct closing_session {
	uint64_t id;
	bool clean_exit;
	SLIST_ENTRY(closing_session) link;
};

struct zd_ends_of_user {
	struct zd_api *api;
	uid_t uid;
	struct zd_user *user; /* referred to */
	struct zd_task task;
	SLIST_HEAD(, closing_session) closing; /* the backend has them still open */
	UT_hash_handle hh;
};

static void close_session(struct zd_api *api, uint64_t session, bool clean_exit)
{
	api->bridge.ops->session_close(api->bridge.backend, session, clean_exit);
}

/* Makes the next step. Returns whether more steps remain. */
static bool make_step(struct zd_ends_of_user *ends)
{
	struct zd_api *api = ends->api;
	struct closing_session *session, *next;
	bool more = zd_engine_end_step(api->bridge.engine, ends->uid);

	for (session = SLIST_FIRST(&ends->closing); session; session = next) {
		next = SLIST_NEXT(session, link);
		if (zd_engine_session_ends(api->bridge.engine, session->id))
			continue;
		close_session(api, session->id, session->clean_exit);
		SLIST_REMOVE(&ends->closing, session, closing_session, link);
		free(session);
	}
	return more;
}

static void forget(struct zd_ends_of_user *ends)
{
	zd_assert(SLIST_EMPTY(&ends->closing));
	zd_user_dequeue(ends->user, &ends->task);
	zd_user_put(ends->user);
	HASH_DEL(ends->api->ends, ends);
	free(ends);
}

static void run_task(void *arg)
{
	struct zd_ends_of_user *ends = arg;
	struct zd_api *api = ends->api;

	(void)zd_bridge_tick(&api->bridge);
	if (make_step(ends))
		zd_user_enqueue_end(ends->user, &ends->task);
	else
		forget(ends);
	zd_bridge_settle(&api->bridge);
	zd_conns_flush(&api->conns);
}

void zd_ends_begin(struct zd_api *api, uid_t uid)
{
	struct zd_ends_of_user *ends;

	HASH_FIND(hh, api->ends, &uid, sizeof(uid), ends);
	if (ends)
		return;
	ends = zd_calloc(1, sizeof(*ends));
	ends->api = api;
	ends->uid = uid;
	ends->user = zd_user_get(&api->conns.users, uid);
	ends->task = (struct zd_task){.run = run_task, .arg = ends};
	SLIST_INIT(&ends->closing);
	HASH_ADD(hh, api->ends, uid, sizeof(ends->uid), ends);
	zd_user_enqueue_end(ends->user, &ends->task);
}

void zd_ends_close_session(struct zd_api *api, uid_t uid, uint64_t id, bool clean_exit)
{
	struct zd_ends_of_user *ends;

	if (!zd_engine_session_ends(api->bridge.engine, id)) {
		close_session(api, id, clean_exit);
		return;
	}
	HASH_FIND(hh, api->ends, &uid, sizeof(uid), ends);
	zd_assert(ends); /* sink_ends() has made it */
	struct closing_session *session = zd_calloc(1, sizeof(*session));
	session->id = id;
	session->clean_exit = clean_exit;
	SLIST_INSERT_HEAD(&ends->closing, session, link);
}

void zd_ends_finish(struct zd_api *api)
{
	struct zd_ends_of_user *ends, *next;

	HASH_ITER (hh, api->ends, ends, next) {
		while (make_step(ends))
			continue;
		forget(ends);
	}
}
