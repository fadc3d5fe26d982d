/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.c - a client of the daemon.
 *
 * What must hold:
 *
 * - The engine knows exactly the OPEN sessions, the backend the OPEN and KILLED ones, by the same id.
 *
 * - A session ends once, with its connection.
 *
 * - The client is sent a segment's descriptor once, and only while the engine allows it to map the segment.
 */
#include "server/session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sm.h"
#include "executor/memfd.h"
#include "proto/ring.h"
#include "server/api.h"
#include "server/dispatch.h"
#include "server/ends.h"
#include "server/loop.h"

#define LOG_FULL_NS 1000000000u

static const char *const state_names[] = {"NEW", "OPEN", "KILLED", "ENDED"};
static const uint32_t state_moves[] = {
        [ZD_API_SESSION_NEW] = ZD_SM_TO(ZD_API_SESSION_OPEN) | ZD_SM_TO(ZD_API_SESSION_ENDED),
        [ZD_API_SESSION_OPEN] = ZD_SM_TO(ZD_API_SESSION_KILLED) | ZD_SM_TO(ZD_API_SESSION_ENDED),
        [ZD_API_SESSION_KILLED] = ZD_SM_TO(ZD_API_SESSION_ENDED),
        [ZD_API_SESSION_ENDED] = 0,
};
static const struct zd_sm session_sm = {
        .name = "session", .nstates = 4, .state_names = state_names, .allowed = state_moves};

/* ---- Log ----------------------------------------------------------------------------------------------- */

static void log_session(const struct zd_api_session *session, enum zd_log_level level, const char *what,
                        const char *detail)
{
	const struct zd_creds *creds = zd_conn_creds(session->conn);
	struct zd_log_field fields[] = {{.key = "ZEROD_SESSION"}, {.key = "ZEROD_PID"}, {.key = "ZEROD_UID"}};
	char who[32];

	if (!zd_log_limit_admits(&session->api->log_limit, creds->uid, level))
		return;
	(void)snprintf(fields[0].value, sizeof(fields[0].value), "%llu", ZD_ID_NUMBER(session->id));
	(void)snprintf(fields[1].value, sizeof(fields[1].value), "%d", (int)creds->pid);
	(void)snprintf(fields[2].value, sizeof(fields[2].value), "%u", (unsigned)creds->uid);
	(void)snprintf(who, sizeof(who), session->id ? "session %llu" : "a client",
	               ZD_ID_NUMBER(session->id));
	zd_log_with(level, fields, ZD_ARRAY_LEN(fields), "%s (pid %d, uid %u) %s: %s", who, (int)creds->pid,
	            (unsigned)creds->uid, what, detail);
}

/* Logs at most one line per second. */
static void log_full(const struct zd_api_session *session, const char *why)
{
	struct zd_api *api = session->api;
	uint64_t now_ns = zd_loop_now_ns();

	if (api->logged_full_ns && now_ns - api->logged_full_ns < LOG_FULL_NS)
		return;
	api->logged_full_ns = now_ns;
	log_session(session, ZD_LOG_WARNING, "rejected", why);
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

static void leave_engine(struct zd_api_session *session)
{
	struct zd_api *api = session->api;

	/* Before zd_bridge_tick(), which may expire a deadline of this session: its reply would have no
	 * connection. */
	if (session->state == ZD_API_SESSION_OPEN)
		zd_engine_session_close(api->bridge.engine, session->id);
	(void)zd_bridge_tick(&api->bridge);
	zd_delegate_close(session->delegate);
	session->delegate = NULL;
	/* After the engine, whose last commands can name the session. */
	zd_ends_close_session(api, zd_conn_creds(session->conn)->uid, session->id, session->clean_exit);
	zd_bridge_settle(&api->bridge);
	HASH_DEL(api->sessions, session);
	if (api->recent == session)
		api->recent = NULL;
}

/* The rings are the daemon's memory as long as any process maps them, but do not count after the session's
 * end. Their pages are therefore freed now. A daemon that is ending does not free them, because the client
 * can still read its last packets. */
static void leave_rings(struct zd_api_session *session)
{
	if (!session->rings)
		return;
	if (session->api->ending)
		(void)munmap(session->rings, ZD_RINGS_BYTES);
	else
		zd_memfd_drop(session->rings, ZD_RINGS_BYTES);
}

static void on_ended(void *arg, const struct zd_err *why)
{
	struct zd_api_session *session = arg;
	struct zd_api *api = session->api;
	bool was_known = session->state != ZD_API_SESSION_NEW;
	bool is_news = session->joined || (was_known && why->status != ZEROD_E_DISCONNECTED);

	/* Clients that only send queries, and clients that disconnect before the hello, are logged at debug
	 * level, because they can be thousands per second. */
	log_session(session, is_news ? ZD_LOG_INFO : ZD_LOG_DEBUG, was_known ? "ended" : "rejected",
	            why->text);
	session->why_ended = why;
	if (was_known)
		leave_engine(session);
	zd_sm_move(&session_sm, &session->state, ZD_API_SESSION_ENDED);
	leave_rings(session);
	free(session->found.parts);
	free(session->given);
	free(session);
	zd_api_check_drained(api);
}

static size_t on_packet(void *arg, const uint8_t *bytes, size_t nbytes, bool resumed)
{
	return zd_api_dispatch(arg, bytes, nbytes, resumed);
}

static const struct zd_conn_ops conn_ops = {.packet = on_packet, .ended = on_ended};

static bool is_admin(int sock, const struct zd_creds *creds, const struct zd_api_limits *limits)
{
	if (creds->uid == 0 ? !limits->root_is_user : creds->uid == geteuid())
		return true;
	return limits->has_admin_group && zd_creds_in_group(sock, creds, limits->admin_group);
}

int zd_api_session_new(struct zd_api *api, const struct zd_api_socket *at, int sock, struct zd_err *err)
{
	struct zd_creds creds;
	int rc = zd_creds_get(sock, &creds, err);

	if (rc) {
		(void)close(sock);
		return rc;
	}
	struct zd_api_session *session = zd_calloc(1, sizeof(*session));
	if (at && at->has_tenant)
		zd_creds_set_tenant(&creds, at->tenant_uid);
	session->api = api;
	session->at = at;
	session->state = ZD_API_SESSION_NEW;
	session->admin = !at && is_admin(sock, &creds, &api->limits);
	rc = zd_conn_new(&api->conns, sock, &creds, &conn_ops, session, &session->conn, err);
	if (rc)
		free(session);
	return rc;
}

static uint64_t devices_of(const struct zd_api_session *session)
{
	if (session->at && session->at->has_devices)
		return session->at->devices;
	return zd_grants_devices(&session->api->limits.grants, zd_conn_socket(session->conn),
	                         zd_conn_creds(session->conn));
}

int zd_api_session_admit(struct zd_api_session *session, const char *name, const Zd__Hello *hello,
                         int *client_page, int *daemon_page, struct zd_err *err)
{
	struct zd_api *api = session->api;
	struct zd_bridge *bridge = &api->bridge;
	const struct zd_creds *creds = zd_conn_creds(session->conn);
	struct zd_peer peer = {.uid = creds->uid,
	                       .pid = (uint32_t)creds->pid,
	                       .started = bridge->keeper.store ? zd_process_started(creds->pid) : 0,
	                       .admin = session->admin,
	                       .strict = hello->strict,
	                       .poison = hello->poison,
	                       .maps_frames = zd_hello_has_feature(hello, ZD_FEATURE_FRAMES),
	                       .runs_ahead = zd_hello_has_feature(hello, ZD_FEATURE_RUN_AHEAD),
	                       .no_durable = !zd_creds_in_groups(zd_conn_socket(session->conn), creds,
	                                                         &api->limits.durable_groups),
	                       .reads_others = api->limits.reader_groups.count > 0 &&
	                                       zd_creds_in_groups(zd_conn_socket(session->conn), creds,
	                                                          &api->limits.reader_groups),
	                       .denied_devices = session->admin ? 0 : ~devices_of(session),
	                       .name = name};
	uint64_t id;

	peer.denied_devices &= ~zd_engine_host_memory(bridge->engine);
	if (zd_api_session_count(api) >= zd_api_session_room(&api->limits, session->admin)) {
		(void)zd_err_set(err, ZEROD_E_LIMIT,
		                 "the daemon is full: %u sessions are open, max_sessions is %u%s",
		                 zd_api_session_count(api), api->limits.max_sessions,
		                 session->admin ? "" : ", some of which are reserved for administrators");
		log_full(session, err->text);
		return ZEROD_E_LIMIT;
	}
	id = zd_engine_session_open(bridge->engine, &peer, err);
	if (id == 0) {
		log_full(session, err->text);
		return ZEROD_E_LIMIT;
	}
	int rc = bridge->ops->session_open(bridge->backend, id, creds->pid, creds->pidfd, client_page,
	                                   daemon_page, err);
	if (rc) {
		zd_engine_session_close(bridge->engine, id);
		return rc;
	}
	session->id = id;
	zd_sm_move(&session_sm, &session->state, ZD_API_SESSION_OPEN);
	HASH_ADD(hh, api->sessions, id, sizeof(session->id), session);
	zd_conn_welcome(session->conn);
	log_session(session, ZD_LOG_DEBUG, "opened", name);
	return 0;
}

int zd_api_session_open_rings(struct zd_api_session *session, int *rings_fd, struct zd_err *err)
{
	void *map;
	int rc = zd_memfd_map("zerod-rings", ZD_RINGS_BYTES, PROT_READ | PROT_WRITE, 0, &map, rings_fd, err);

	if (rc)
		return rc;
	session->rings = map;
	zd_conn_use_rings(session->conn, &session->rings->requests, &session->rings->replies);
	if (session->delegate)
		zd_delegate_use_rings(session->delegate, &session->rings->works, &session->rings->answers);
	return 0;
}

struct zd_api_session *zd_api_session_find(struct zd_api *api, uint64_t id)
{
	struct zd_api_session *session = api->recent;

	if (session && session->id == id)
		return session;
	HASH_FIND(hh, api->sessions, &id, sizeof(id), session);
	if (session)
		api->recent = session;
	return session;
}

void zd_api_session_killed(struct zd_api *api, uint64_t id, const char *why)
{
	struct zd_api_session *session = zd_api_session_find(api, id);
	struct zd_err err;

	zd_assert(session);
	zd_sm_move(&session_sm, &session->state, ZD_API_SESSION_KILLED);
	(void)zd_err_set(&err, ZEROD_E_ABORTED, "%s", why);
	zd_conn_refuse(session->conn, &err);
}

void zd_api_session_fail(struct zd_api_session *session, uint64_t request, const struct zd_err *why)
{
	Zd__Reply reply = ZD__REPLY__INIT;

	reply.id = request;
	reply.status = why->status;
	reply.error = (char *)why->text;
	zd_conn_send(session->conn, &reply, NULL, 0);
	if (session->state == ZD_API_SESSION_NEW)
		zd_conn_end(session->conn, why);
}

/* ---- Segments ------------------------------------------------------------------------------------------ */

/* The index of the segment in `given`, or the index at which to insert it. */
static size_t given_index(const struct zd_api_session *session, uint32_t segment)
{
	size_t low = 0, high = session->ngiven;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (session->given[middle] < segment)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool is_given(const struct zd_api_session *session, uint32_t segment)
{
	size_t index = given_index(session, segment);

	return index < session->ngiven && session->given[index] == segment;
}

static void remember(struct zd_api_session *session, uint32_t segment)
{
	size_t index = given_index(session, segment);

	if (session->ngiven == session->given_room) {
		session->given_room = session->given_room ? 2 * session->given_room : 8;
		session->given = zd_realloc(session->given, session->given_room, sizeof(*session->given));
	}
	memmove(session->given + index + 1, session->given + index,
	        (session->ngiven - index) * sizeof(*session->given));
	session->given[index] = segment;
	session->ngiven++;
	zd_engine_segment_given(session->api->bridge.engine, session->id, segment);
}

void zd_api_session_retire(struct zd_api *api, uint64_t id, uint32_t segment)
{
	struct zd_api_session *session = zd_api_session_find(api, id);

	zd_assert(session);
	size_t index = given_index(session, segment);
	zd_assert(index < session->ngiven && session->given[index] == segment);
	session->ngiven--;
	memmove(session->given + index, session->given + index + 1,
	        (session->ngiven - index) * sizeof(*session->given));
	zd_conn_retire(session->conn, segment);
	if (session->delegate)
		zd_delegate_note_retired(session->delegate);
}

/* Duplicates the descriptor, because the packet can be sent after the segment was destroyed. */
static int open_segment(const struct zd_api_session *session, uint32_t segment, Zd__Segment *announced,
                        int *fd, struct zd_err *err)
{
	const struct zd_bridge *bridge = &session->api->bridge;
	int backend_fd, copy;

	/* A reply that names another session's segment would be an error of the daemon. This check keeps it
	 * from leaking memory of other jobs. */
	if (!zd_engine_may_map(bridge->engine, session->id, segment) ||
	    !zd_engine_segment(bridge->engine, segment, &announced->device, &announced->bytes))
		return zd_err_set(err, ZEROD_E_PERMISSION, "the session may not map segment %u", segment);
	backend_fd = bridge->ops->segment_fd(bridge->backend, segment);
	if (backend_fd < 0)
		return zd_err_set(err, ZEROD_E_SYSTEM, "segment %u has no descriptor", segment);
	copy = fcntl(backend_fd, F_DUPFD_CLOEXEC, 0);
	if (copy < 0)
		return zd_err_errno(err, errno, "copying the descriptor of segment %u", segment);
	announced->id = segment;
	announced->host_memory = zd_engine_host_memory(bridge->engine) >> announced->device & 1;
	*fd = copy;
	return 0;
}

int zd_api_session_attach(struct zd_api_session *session, const uint32_t *segments, unsigned count,
                          Zd__Segment *announced, struct zd_attachment *attachments, unsigned *nattachments,
                          struct zd_err *err)
{
	unsigned n = 0;

	for (unsigned i = 0; i < count; i++) {
		if (segments[i] == 0 || is_given(session, segments[i]))
			continue;
		announced[n] = (Zd__Segment)ZD__SEGMENT__INIT;
		int rc = open_segment(session, segments[i], &announced[n], &attachments[n].fd, err);
		if (rc) {
			while (n-- > 0)
				(void)close(attachments[n].fd);
			return rc;
		}
		remember(session, segments[i]);
		attachments[n].segment = &announced[n];
		n++;
	}
	*nattachments = n;
	return 0;
}

int zd_api_session_announce(void *arg, uint32_t segment)
{
	struct zd_api_session *session = arg;
	struct zd_attachment attachment;
	Zd__Segment announced;
	unsigned nattachments = 0;
	struct zd_err err;
	int rc = zd_api_session_attach(session, &segment, 1, &announced, &attachment, &nattachments, &err);

	if (rc == 0 && nattachments > 0)
		zd_conn_announce(session->conn, &attachment);
	return rc;
}
