/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle_admin.c - the daemon's state, and the requests of administrators.
 *
 * The engine decides whether a session may make such a request, because it knows the owner of each session,
 * group and job.
 */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "server/api.h"
#include "server/handlers.h"
#include "server/loop.h"
#include "server/session.h"

/* The process's private memory, without segments and fence pages, which are shared. 0 if /proc does not
 * report it. The file remains open, and is the short one, because daemon_status is a cheap request. */
uint64_t zd_resident_bytes(const struct zd_api *api)
{
	uint64_t resident_pages, shared_pages;
	char text[128];
	ssize_t nbytes = api->statm < 0 ? -1 : pread(api->statm, text, sizeof(text) - 1, 0);

	if (nbytes <= 0)
		return 0;
	text[nbytes] = '\0';
	if (sscanf(text, "%*u %" SCNu64 " %" SCNu64, &resident_pages, &shared_pages) != 2 ||
	    shared_pages > resident_pages)
		return 0;
	return (resident_pages - shared_pages) * api->page_bytes;
}

/* Only administrators see the names of other users' jobs. */
static const char *lost_text(const struct zd_api_session *session, const struct zd_keeper *keeper)
{
	if (keeper->nlost_jobs == 0 || session->admin)
		return keeper->lost;
	return "some durable jobs are incomplete; administrators see which";
}

int zd_answer_daemon_status(struct zd_api_session *session, const Zd__Request *request, struct zd_err *err)
{
	struct zd_api *api = session->api;
	const struct zd_bridge *bridge = &api->bridge;
	Zd__DaemonStatusReply status = ZD__DAEMON_STATUS_REPLY__INIT;
	Zd__Reply reply = ZD__REPLY__INIT;
	struct zd_engine_totals totals;
	uint64_t now_ns = zd_loop_now_ns();

	(void)err;
	zd_engine_totals(bridge->engine, &totals);
	status.daemon = (char *)ZEROD_VERSION_TEXT;
	status.backend = (char *)bridge->ops->name;
	status.pid = (uint32_t)getpid();
	status.client_pid = (uint32_t)zd_conn_creds(session->conn)->pid;
	status.uptime_ns = now_ns - api->started_ns;
	status.state = (char *)(api->draining ? "DRAINING" : "SERVING");
	status.devices = zd_bridge_devices(bridge);
	status.sessions = totals.sessions;
	status.jobs = totals.jobs;
	status.groups = totals.groups;
	status.requests = totals.requests;
	status.gathers = totals.gathers;
	status.fallback_gathers = totals.fallback_gathers;
	status.gathered_bytes_total = totals.gathered_bytes_total;
	status.resident_bytes = zd_resident_bytes(api);
	status.usage = &totals.usage;
	if (api->draining)
		status.drained_by = api->drained_by;
	if (api->ending) /* 0 would mean that it does not end */
		status.ends_in_ns = api->ends_ns > now_ns ? api->ends_ns - now_ns : 1;
	status.state_lost = (char *)lost_text(session, &bridge->keeper);
	reply.id = request->id;
	reply.body_case = ZD__REPLY__BODY_DAEMON_STATUS;
	reply.daemon_status = &status;
	zd_conn_send(session->conn, &reply, NULL, 0);
	return 0;
}

int zd_answer_drain(struct zd_api_session *session, const Zd__Request *request, struct zd_err *err)
{
	const struct zd_creds *creds = zd_conn_creds(session->conn);
	Zd__Reply reply = ZD__REPLY__INIT;
	char by[ZD_DRAINED_BY_TEXT];
	int rc = 0;

	if (!session->admin)
		return zd_err_set(err, ZEROD_E_PERMISSION, "only administrators drain the daemon");
	(void)snprintf(by, sizeof(by), "session %llu (pid %d, uid %u)", ZD_ID_NUMBER(session->id),
	               (int)creds->pid, (unsigned)creds->uid);
	if (request->drain->undrain)
		rc = zd_api_undrain(session->api, err);
	else
		zd_api_drain(session->api, by);
	if (rc)
		return rc;
	zd_log(ZD_LOG_NOTICE, "%s by %s", request->drain->undrain ? "undrained" : "drained", by);
	reply.id = request->id;
	zd_conn_send(session->conn, &reply, NULL, 0);
	return 0;
}
