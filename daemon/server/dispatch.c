/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dispatch.c - passes requests of a packet to handlers, and the engine's replies to the connection.
 *
 * An invalid request receives an error reply. If the error cannot be attributed to a request, the daemon
 * sends a reply to no request (id 0) and ends the connection. Other sessions are not affected.
 */
#include "server/dispatch.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "proto/envelope.h"
#include "server/api.h"
#include "server/handlers.h"
#include "server/lift.h"
#include "server/loop.h"
#include "server/session.h"
#include "server/wire.h"

#define NS_PER_MS      1000000ull
#define FIELD_REQUESTS 1u   /* the field of ClientPacket */
#define SHORT_BYTES    64u  /* of a request about few objects */
#define STEP_UNITS     512u /* found in a few microseconds */
#define UNFINISHED     1    /* a further step of the request follows */

/* A request with `answer` is handled here, another one by the engine. */
struct route {
	const char *name;
	enum zd_request_kind kind;
	zd_answer_fn *answer;
};

static const struct route routes[] = {
        [ZD__REQUEST__BODY_HELLO] = {"hello", .answer = zd_answer_hello},
        [ZD__REQUEST__BODY_GOODBYE] = {"goodbye", .answer = zd_answer_goodbye},
        [ZD__REQUEST__BODY_LIST] = {"list", .answer = zd_answer_list},
        [ZD__REQUEST__BODY_DAEMON_STATUS] = {"daemon_status", .answer = zd_answer_daemon_status},
        [ZD__REQUEST__BODY_METRICS] = {"metrics", .answer = zd_answer_metrics},
        [ZD__REQUEST__BODY_EVENTS] = {"events", .answer = zd_answer_events},
        [ZD__REQUEST__BODY_DRAIN] = {"drain", .answer = zd_answer_drain},
#define REQUEST(KIND, name) [ZD__REQUEST__BODY_##KIND] = {#name, ZD_REQ_##KIND, NULL},
#include "core/requests.def"
};

/* ---- Requests ------------------------------------------------------------------------------------------ */

/* Returns NULL if this daemon does not know the request's body. */
static const struct route *find_route(const Zd__Request *request)
{
	size_t body = request->body_case;

	return body < ZD_ARRAY_LEN(routes) && routes[body].name ? &routes[body] : NULL;
}

static int unknown_request(const Zd__Request *request, struct zd_err *err)
{
	if (request->base.n_unknown_fields == 0)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED, "a request without a body");
	return zd_err_set(err, ZEROD_E_UNSUPPORTED, "this daemon knows no request with the field number %u",
	                  request->base.unknown_fields[0].tag);
}

/* Beside other users, the units of a large request are found in steps, with turns of others in between.
 * Returns whether they are found. */
static bool find_in_steps(struct zd_api_session *session, struct zd_args *args)
{
	if ((args->kind != ZD_REQ_UPDATE_BEGIN && args->kind != ZD_REQ_PUBLISH) ||
	    args->u.publish.n_units <= STEP_UNITS || !zd_conn_shares(session->conn))
		return true;
	args->found = &session->found;
	return zd_engine_find_ahead(session->api->bridge.engine, session->id, args, STEP_UNITS);
}

/* Returns 0, UNFINISHED or an error. */
static int to_engine(struct zd_api_session *session, const Zd__Request *request, const struct route *route,
                     struct zd_err *err)
{
	struct zd_api *api = session->api;
	struct zd_call call = {.session = session->id, .request = request->id};
	struct zd_args args;

	int rc = zd_lift(request, route->kind, &api->requests, &args, err);
	if (!rc && args.kind == ZD_REQ_GROUP_JOIN)
		rc = zd_check_group_join(session, &args, err);
	if (rc)
		return rc;
	if (request->deadline_ms)
		call.deadline_ns = session->arrived_ns + request->deadline_ms * NS_PER_MS;
	if (!find_in_steps(session, &args))
		return UNFINISHED;
	zd_engine_request(api->bridge.engine, &call, &args);
	free(session->found.parts);
	session->found = (struct zd_found){0};
	return 0;
}

/* `zero`: the field of a string with a zero byte; NULL: none. Returns false if the same request has to be
 * handled again in a later turn. */
static bool handle(struct zd_api_session *session, const Zd__Request *request,
                   const ProtobufCFieldDescriptor *zero)
{
	const struct route *route = find_route(request);
	struct zd_err err = ZD_ERR_NONE;
	int rc;

	if (request->id == 0) {
		(void)zd_err_set(&err, ZEROD_E_PROTOCOL, "a request with the id 0");
		zd_conn_refuse(session->conn, &err);
		return true;
	}
	if (session->state == ZD_API_SESSION_NEW && request->body_case != ZD__REQUEST__BODY_HELLO)
		rc = zd_err_set(&err, ZEROD_E_PROTOCOL, "the first request is %s, not hello",
		                route ? route->name : "unknown");
	else if (!route)
		rc = unknown_request(request, &err);
	else if (zero)
		rc = zd_err_set(&err, ZEROD_E_INVALID, "a zero byte in the %s of %s", zero->name,
		                route->name);
	else if (route->answer)
		rc = route->answer(session, request, &err);
	else
		rc = to_engine(session, request, route, &err);
	if (rc < 0) {
		session->api->rejected++;
		zd_api_session_fail(session, request->id, &err);
	}
	return rc != UNFINISHED;
}

/* Checks the packet as a whole: its requests are unpacked when they are handled. */
static bool accept_packet(struct zd_api_session *session, struct zd_wire packet)
{
	size_t nbytes = (size_t)(packet.end - packet.at);
	unsigned count;
	struct zd_err err;

	if (!zd_wire_count(packet, ZD_MAX_BATCH, &count))
		(void)zd_err_set(&err, ZEROD_E_PROTOCOL,
		                 "a packet of %zu bytes that is not a valid ClientPacket", nbytes);
	else if (count > ZD_MAX_BATCH)
		(void)zd_err_set(&err, ZEROD_E_LIMIT, "more than %u requests in one packet", ZD_MAX_BATCH);
	else
		return true;
	zd_conn_refuse(session->conn, &err);
	return false;
}

/* Unpacks a request, unless it is so large that the time for it would delay others. Returns NULL after a
 * refusal. `*zero`: the field of a string with a zero byte. */
static const Zd__Request *unpack(struct zd_api_session *session, struct zd_wire packed,
                                 const ProtobufCFieldDescriptor **zero)
{
	size_t nbytes = (size_t)(packed.end - packed.at);
	const Zd__Request *request;
	struct zd_err err;

	*zero = NULL;
	/* A short request has few fields, and few requests have zero bytes. */
	if ((nbytes > SHORT_BYTES || memchr(packed.at, '\0', nbytes)) &&
	    !zd_wire_search(packed, ZD_MAX_FIELDS, zero)) {
		(void)zd_err_set(&err, ZEROD_E_LIMIT,
		                 "a request of %zu bytes with more than %u fields, or with two bodies",
		                 nbytes, ZD_MAX_FIELDS);
		zd_conn_refuse(session->conn, &err);
		return NULL;
	}
	request = zd_request_unpack(&session->api->requests, nbytes, packed.at);
	if (request)
		return request;
	(void)zd_err_set(&err, ZEROD_E_PROTOCOL, "a request of %zu bytes that is not a valid Request",
	                 nbytes);
	zd_conn_refuse(session->conn, &err);
	return NULL;
}

/* The cost of a request, for its user's turn: of one with lists in its bytes, and of one that is answered
 * here, as listings are, the time may be long. */
static unsigned cost_of(const Zd__Request *request, size_t nbytes)
{
	const struct route *route = find_route(request);

	return nbytes > SHORT_BYTES || (route && route->answer) ? ZD_USER_LONG_REQUEST : 1;
}

/* Handles as many requests as the connection allows, and at least one request or a step of one. Returns the
 * bytes of the complete ones. */
static size_t handle_requests(struct zd_api_session *session, struct zd_wire wire)
{
	const uint8_t *begin = wire.at, *done = begin;
	const ProtobufCFieldDescriptor *zero;
	const Zd__Request *request;
	struct zd_wire packed;
	unsigned cost = 0;

	while (done == begin || zd_conn_may_go_on(session->conn, cost)) {
		bool complete = true;

		if (!zd_wire_next(&wire, FIELD_REQUESTS, &packed))
			return (size_t)(wire.end - begin);
		request = unpack(session, packed, &zero);
		if (request) {
			complete = handle(session, request, zero);
			cost = cost_of(request, (size_t)(packed.end - packed.at));
		}
		zd_arena_reset(&session->api->requests);
		if (!zd_conn_is_open(session->conn))
			return (size_t)(wire.end - begin);
		if (!complete)
			break;
		done = wire.at;
	}
	return (size_t)(done - begin);
}

size_t zd_api_dispatch(struct zd_api_session *session, const uint8_t *bytes, size_t nbytes, bool resumed)
{
	struct zd_api *api = session->api;
	struct zd_wire packet = zd_wire_of(bytes, nbytes);
	uint64_t now_ns = zd_bridge_tick(&api->bridge);
	size_t done = nbytes;

	zd_bridge_collect(&api->bridge);
	if (!resumed)
		session->arrived_ns = now_ns;
	if (session->state != ZD_API_SESSION_KILLED && /* by the tick */
	    (resumed || accept_packet(session, packet)))
		done = handle_requests(session, packet);
	zd_bridge_settle(&api->bridge);
	return done;
}

/* ---- Replies ------------------------------------------------------------------------------------------- */

/* Sends the segments before the reply, in as many packets as their descriptors need. */
static void announce(struct zd_answer *answer, const Zd__UnitsResumeReply *units)
{
	uint32_t last = 0;

	for (size_t i = 0; i < units->n_segments; i++) {
		uint32_t segment = units->segments[i];

		if (segment == 0 || segment == last)
			continue;
		last = segment;
		if (zd_api_session_announce(answer->session, segment) == 0)
			continue;
		answer->segments[answer->nsegments++] = segment; /* which fails again, with its text */
		return;
	}
}

static void make_body(const struct zd_reply *reply, struct zd_answer *answer)
{
	zd_lower(reply, answer);
	if (reply->kind == ZD_REQ_UNIQUE_IDS)
		zd_stamp_ids(reply, answer);
	else if (reply->kind == ZD_REQ_UNITS_RESUME)
		announce(answer, &reply->u.units_resume);
}

void zd_api_reply(struct zd_api *api, const struct zd_reply *reply)
{
	struct zd_api_session *session = zd_api_session_find(api, reply->session);
	struct zd_answer answer = {.reply = ZD__REPLY__INIT, .session = session, .arena = &api->replies};
	Zd__Segment announced[ZD_ANSWER_SEGMENTS];
	struct zd_attachment attachments[ZD_ANSWER_SEGMENTS];
	unsigned nattachments = 0;
	struct zd_err err;

	zd_assert(session && session->state == ZD_API_SESSION_OPEN);
	session->joined = session->joined || (reply->kind == ZD_REQ_GROUP_JOIN && reply->status == 0);
	answer.reply.id = reply->request;
	answer.reply.status = reply->status;
	answer.reply.error = (char *)reply->error;
	if (reply->status == 0)
		make_body(reply, &answer);
	int rc = zd_api_session_attach(session, answer.segments, answer.nsegments, announced, attachments,
	                               &nattachments, &err);
	if (rc)
		zd_conn_refuse(session->conn, &err);
	else
		zd_conn_send(session->conn, &answer.reply, attachments, nattachments);
	zd_arena_reset(&api->replies);
}
