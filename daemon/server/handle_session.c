/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle_session.c - the hello, the goodbye, and the reset of a POISONED session.
 *
 * The hello is the first request, and is sent once. Its reply carries the session's two fence pages. The
 * goodbye is the last request. When a connection ends without one, the client's kernels may still be running.
 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/text.h"
#include "server/api.h"
#include "server/handlers.h"
#include "server/loop.h"
#include "server/session.h"

/* "pid 1234" for a client without a name. */
#define NAME_BYTES (ZD_MAX_NAME_BYTES + 1)

/* Two fence pages; the work channel and its page; the rings. */
#define NDESCRIPTORS 5u
#define NFEATURES    4u

/* Returns whether the daemon serves the client's process and user. */
static int check_client(const struct zd_api_session *session, struct zd_err *err)
{
	const struct zd_creds *creds = zd_conn_creds(session->conn);
	int rc = zd_creds_check(creds, err);

	if (rc || session->admin || creds->tenant || /* the socket's permissions choose tenants */
	    zd_creds_in_groups(zd_conn_socket(session->conn), creds, &session->api->limits.allow_groups))
		return rc;
	return zd_err_set(err, ZEROD_E_PERMISSION,
	                  "uid %u may not use this daemon: it is in no group of allow_groups",
	                  (unsigned)creds->uid);
}

static int check_hello(const struct zd_api_session *session, const Zd__Hello *hello, char name[NAME_BYTES],
                       struct zd_err *err)
{
	if (session->state != ZD_API_SESSION_NEW)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "a second hello");
	if (hello->version_min > ZD_PROTOCOL_VERSION || hello->version_max < ZD_PROTOCOL_VERSION)
		return zd_err_set(err, ZEROD_E_VERSION,
		                  "the client speaks protocol versions %u to %u, the daemon %u to %u",
		                  hello->version_min, hello->version_max, ZD_PROTOCOL_VERSION,
		                  ZD_PROTOCOL_VERSION);
	if (session->api->ending)
		return zd_err_set(err, ZEROD_E_SHUTDOWN,
		                  "the daemon is draining and accepts no new sessions");
	int rc = check_client(session, err);
	if (rc == 0 && hello->name[0])
		rc = zd_name_check(hello->name, ZD_MAX_NAME_BYTES, "client name", err);
	if (rc)
		return rc;
	if (hello->name[0])
		(void)snprintf(name, NAME_BYTES, "%s", hello->name);
	else
		(void)snprintf(name, NAME_BYTES, "pid %d", (int)zd_conn_creds(session->conn)->pid);
	return 0;
}

bool zd_hello_has_feature(const Zd__Hello *hello, const char *feature)
{
	for (size_t i = 0; i < hello->n_features; i++)
		if (strcmp(hello->features[i], feature) == 0)
			return true;
	return false;
}

/* The session continues without an optional part. */
static void warn_without(const struct zd_api_session *session, const char *part, const struct zd_err *why)
{
	const struct zd_creds *creds = zd_conn_creds(session->conn);

	if (zd_log_limit_admits(&session->api->log_limit, creds->uid, ZD_LOG_WARNING))
		zd_log(ZD_LOG_WARNING, "no %s for a session: %s", part, why->text);
}

/* Without a work channel the backend computes the session's sums, and the client sees segments to unmap in
 * its next call. A failure to create the channel therefore does not reject the session. */
static bool open_delegate(struct zd_api_session *session, const Zd__Hello *hello, struct zd_attachment *ends)
{
	bool sums = session->api->bridge.ops->owners_sum;
	struct zd_delegate_session above = {
	        .conns = &session->api->conns,
	        .conn = session->conn,
	        .sums = sums,
	        .ahead = sums && zd_hello_has_feature(hello, ZD_FEATURE_WORK_AHEAD),
	        .announce = zd_api_session_announce,
	        .arg = session,
	};
	struct zd_err err;

	if (!zd_hello_has_feature(hello, ZD_FEATURE_WORK))
		return false;
	if (zd_delegate_open(&session->api->bridge.delegates, session->id, &above, &session->delegate,
	                     &ends[0].fd, &ends[1].fd, &err) == 0)
		return true;
	warn_without(session, "work channel", &err);
	return false;
}

/* Rings need a loop that busy-polls. For a loop that always sleeps they are not faster than sockets. */
static bool open_rings(struct zd_api_session *session, const Zd__Hello *hello, struct zd_attachment *rings)
{
	struct zd_err err;

	if (!zd_loop_spins(session->api->conns.loop) || !zd_hello_has_feature(hello, ZD_FEATURE_RINGS))
		return false;
	if (zd_api_session_open_rings(session, &rings->fd, &err) == 0)
		return true;
	warn_without(session, "rings", &err);
	return false;
}

/* The optional features of this session, in addition to the protocol's version. */
static size_t list_features(const struct zd_api_session *session, char *features[NFEATURES])
{
	size_t count = 0;

	if (session->delegate)
		features[count++] = (char *)ZD_FEATURE_WORK;
	if (zd_delegates_sum_ahead(&session->api->bridge.delegates, session->id))
		features[count++] = (char *)ZD_FEATURE_WORK_AHEAD;
	if (session->rings)
		features[count++] = (char *)ZD_FEATURE_RINGS;
	if (session->api->bridge.ops->collectives)
		features[count++] = (char *)ZD_FEATURE_COLLECTIVES;
	return count;
}

int zd_answer_hello(struct zd_api_session *session, const Zd__Request *request, struct zd_err *err)
{
	const struct zd_bridge *bridge = &session->api->bridge;
	struct zd_attachment attachments[NDESCRIPTORS] = {{.segment = NULL}};
	char *features[NFEATURES];
	unsigned count = 2;
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__HelloReply hello = ZD__HELLO_REPLY__INIT;
	char name[NAME_BYTES];
	int rc = check_hello(session, request->hello, name, err);

	if (rc == 0)
		rc = zd_api_session_admit(session, name, request->hello, &attachments[0].fd,
		                          &attachments[1].fd, err);
	if (rc)
		return rc;
	if (open_delegate(session, request->hello, &attachments[count]))
		count += 2;
	if (open_rings(session, request->hello, &attachments[count]))
		count++;
	zd_keeper_process_done(&session->api->bridge.keeper, zd_conn_creds(session->conn),
	                       request->hello->former_sessions, request->hello->n_former_sessions);
	hello.version = ZD_PROTOCOL_VERSION;
	hello.session = session->id;
	hello.daemon = (char *)ZEROD_VERSION_TEXT;
	hello.backend = (char *)bridge->ops->name;
	hello.devices = zd_bridge_devices(bridge);
	hello.timelines = ZD_TIMELINES;
	hello.strict = request->hello->strict;
	hello.poison = request->hello->poison;
	hello.n_features = list_features(session, features);
	hello.features = features;
	reply.id = request->id;
	reply.body_case = ZD__REPLY__BODY_HELLO;
	reply.hello = &hello;
	zd_conn_send(session->conn, &reply, attachments, count);
	return 0;
}

int zd_answer_goodbye(struct zd_api_session *session, const Zd__Request *request, struct zd_err *err)
{
	Zd__Reply reply = ZD__REPLY__INIT;

	(void)err;
	zd_engine_session_goodbye(session->api->bridge.engine, session->id);
	session->clean_exit = true;
	reply.id = request->id;
	zd_conn_send(session->conn, &reply, NULL, 0);
	return 0;
}
