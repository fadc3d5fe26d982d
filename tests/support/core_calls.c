/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core_calls.c - fixtures, sessions and requests of a driven engine.
 */
#include "base/err.h"
#include "base/mem.h"
#include "core_driver_internal.h"

void core_rig_end(void *rig)
{
	core_end(*(struct core_driver **)rig);
}

/* ---- Sessions ------------------------------------------------------------------------------------------ */

uint64_t core_open_peer(struct core_driver *core, const struct zd_peer *peer)
{
	struct zd_err err = ZD_ERR_NONE;
	struct session *session = zd_calloc(1, sizeof(*session));
	session->id = zd_engine_session_open(core->engine, peer, &err);
	assert_int_not_equal(session->id, 0);
	session->open = true;
	TAILQ_INSERT_TAIL(&core->sessions, session, link);
	core_journal_store(core);
	zd_engine_check(core->engine);
	return session->id;
}

uint64_t core_open(struct core_driver *core, uint32_t uid)
{
	const struct zd_peer peer = {.uid = uid,
	                             .pid = uid + 1,
	                             .poison = core->copies,
	                             .maps_frames = !core->no_frames,
	                             .name = "trainer"};
	return core_open_peer(core, &peer);
}

uint64_t core_open_strict(struct core_driver *core, uint32_t uid)
{
	return core_open_peer(
	        core,
	        &(struct zd_peer){
	                .uid = uid, .pid = uid + 1, .strict = true, .maps_frames = true, .name = "trainer"});
}

uint64_t core_open_poison(struct core_driver *core, uint32_t uid, bool strict)
{
	return core_open_peer(core, &(struct zd_peer){.uid = uid,
	                                              .pid = uid + 1,
	                                              .strict = strict,
	                                              .poison = true,
	                                              .maps_frames = true,
	                                              .name = "trainer"});
}

uint64_t core_open_admin(struct core_driver *core)
{
	return core_open_peer(core, &(struct zd_peer){.uid = 0, .pid = 1, .admin = true, .name = "zeroctl"});
}

void core_close(struct core_driver *core, uint64_t id)
{
	struct session *session = core_session(core, id);
	assert_true(session && session->open);
	session->open = false;
	session->gone = !core->sessions_linger;
	zd_engine_session_close(core->engine, id);
	core_settle(core);
}

void core_gone(struct core_driver *core, uint64_t id)
{
	struct session *session = core_session(core, id);
	assert_true(session && !session->open);
	session->gone = true;
	core_settle(core);
}

bool core_end_step(struct core_driver *core, uint32_t uid)
{
	bool more = zd_engine_end_step(core->engine, uid);
	core_settle(core);
	return more;
}

bool core_is_open(const struct core_driver *core, uint64_t session)
{
	return core_session(core, session)->open;
}

const char *core_notice(const struct core_driver *core, uint32_t n)
{
	return n < core->nnotices ? core->notices[n] : "";
}

const char *core_killed_why(const struct core_driver *core, uint64_t session)
{
	return core_session(core, session)->killed_why;
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

void core_send_as(struct core_driver *core, const struct zd_call *to, const struct zd_args *args)
{
	struct call *call = core_find_call(core, to->request);
	if (!call) {
		call = zd_calloc(1, sizeof(*call));
		call->session = to->session;
		call->request = to->request;
		HASH_ADD(hh, core->calls, request, sizeof(call->request), call);
	}
	call->sent++;
	zd_engine_request(core->engine, to, args);
	core_settle(core);
}

uint64_t core_send_until(struct core_driver *core, uint64_t session, uint64_t deadline_ns,
                         const struct zd_args *args)
{
	struct zd_call call = {session, ++core->next_request, deadline_ns};
	core_send_as(core, &call, args);
	return call.request;
}

uint64_t core_send(struct core_driver *core, uint64_t session, const struct zd_args *args)
{
	return core_send_until(core, session, 0, args);
}

const struct zd_reply *core_reply(struct core_driver *core, uint64_t request)
{
	const struct call *call = core_find_call(core, request);
	assert_non_null(call);
	return call->replied ? &call->reply : NULL;
}

const struct zd_reply *core_expect(struct core_driver *core, uint64_t request, int status)
{
	const struct zd_reply *reply = core_reply(core, request);
	if (!reply) {
		struct core_row row;
		core_row(core, ZD__TABLE__SESSIONS, core_find_call(core, request)->session, &row);
		fail_msg("request %llu has no reply; its session waits for %s", (unsigned long long)request,
		         row.row->session->n_waits ? row.row->session->waits[0] : "nothing");
	}
	if (reply->status != status)
		fail_msg("%s instead of %s: %s", zerod_status_name(reply->status), zerod_status_name(status),
		         reply->error);
	return reply;
}

void core_expect_error(struct core_driver *core, uint64_t request, int status, const char *text)
{
	const struct zd_reply *reply = core_expect(core, request, status);
	if (!strstr(reply->error, text))
		fail_msg("\"%s\" does not say \"%s\"", reply->error, text);
}

void core_expect_waits(struct core_driver *core, uint64_t request, const char *text)
{
	const struct call *call = core_find_call(core, request);
	struct core_row row;
	assert_non_null(call);
	if (call->replied)
		fail_msg("replied with %s: %s", zerod_status_name(call->reply.status), call->error);
	core_row(core, ZD__TABLE__SESSIONS, call->session, &row);
	assert_true(row.row->session->n_waits > 0);
	for (uint32_t i = 0; i < row.row->session->n_waits; i++) {
		if (strstr(row.row->session->waits[i], text))
			return;
	}
	fail_msg("no wait says \"%s\"; the first is \"%s\"", text, row.row->session->waits[0]);
}

const struct zd_reply *core_call(struct core_driver *core, uint64_t session, const struct zd_args *args,
                                 int status)
{
	return core_expect(core, core_send(core, session, args), status);
}

void core_expect_told(struct core_driver *core, uint64_t session, uint64_t group, const char *text)
{
	core_expect_error(core, core_commit(core, session, group, UINT64_MAX), ZEROD_E_PEER_LOST, text);
}

/* ---- Sums ---------------------------------------------------------------------------------------------- */

void core_set_sums(struct core_driver *core, enum zd_sums_state sums)
{
	const struct session *session;
	core->sums = sums;
	TAILQ_FOREACH (session, &core->sessions, link)
		zd_engine_sums_launched(core->engine, session->id);
	core_settle(core);
}

void core_refuse_sums(struct core_driver *core)
{
	core->refuses_sums = true;
	core_settle(core);
}
