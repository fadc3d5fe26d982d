/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kill_job.c - the request kill_job: ends all sessions of a job, and the memory of a durable one.
 *
 * It works as kill_session for each session that is a rank of the job or holds an allocation of it, and then
 * as end_job. No waiting request of these sessions is tried meanwhile. Its error therefore names the session
 * that killed the job, not a lost peer.
 */
#include <stdio.h>

#include "base/text.h"
#include "core/control/control.h"
#include "core/memory/allocation.h"

#define WHY_BYTES (ZD_MAX_NAME_BYTES + 96u)

static bool is_of_job(const struct zd_session *session, const struct zd_job *job)
{
	const struct zd_member *member;
	const struct zd_allocation *allocation;
	TAILQ_FOREACH (member, &session->members, session_link) {
		if (member->group->job == job)
			return true;
	}
	TAILQ_FOREACH (allocation, &session->allocations, session_link) {
		if (allocation->job == job)
			return true;
	}
	return false;
}

static void kill_sessions(struct zd_engine *e, const struct zd_job *job, const char *why)
{
	struct zd_session *session, *next;
	HASH_ITER (hh, e->sessions, session, next) {
		uint64_t id = session->id;
		if (session->state == ZD_SESSION_CLOSING || !is_of_job(session, job))
			continue;
		zd_session_end(e, session, ZD_WORD_KILLED);
		e->sink.session_killed(e->sink.arg, id, why);
	}
}

static int kill_job_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	const struct zd_session *by = req->session;
	struct zd_job *job;
	const struct zd_group *group;
	char why[WHY_BYTES];
	int status = zd_job_find_for(e, by, req->args->u.kill_job.job, &job, err);
	if (status != 0)
		return status;
	if (is_of_job(by, job))
		return zd_err_set(err, ZEROD_E_INVALID, "session %llu, which asks, is one of job '%s'",
		                  ZD_ID_NUMBER(by->id), job->name);
	(void)snprintf(why, sizeof(why), "job '%s' was killed by session %llu (pid %u, uid %u)", job->name,
	               ZD_ID_NUMBER(by->id), by->pid, by->uid);
	TAILQ_FOREACH (group, &job->groups, job_link) {
		if (!group->over)
			zd_group_tell_end(e, group, "its job was killed", by);
	}
	job->refs++;
	kill_sessions(e, job, why);
	if (job->durable)
		zd_job_end(e, job);
	zd_job_unref(e, job);
	return 0;
}

const struct zd_request_type zd_req_kill_job = {.begin = kill_job_begin};
