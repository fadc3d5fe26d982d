/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api.c - the daemon's implementation of the protocol: start, drain and end.
 *
 * The path of a request: conn.c receives a packet, dispatch.c unpacks it, a handle_*.c translates it, and
 * the engine processes it. The path back: the engine passes its reply through bridge.c to zd_api_reply(),
 * which packs it into the connection.
 */
#include "server/api.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "server/ends.h"
#include "server/lift.h"
#include "server/loop.h"
#include "server/session.h"

#define NS_PER_S       UINT64_C(1000000000)
#define REQUESTS_BYTES 65536u /* an unpacked request; larger ones spill */
#define REPLIES_BYTES  8192u
#define GREETING_ROOM  64u /* connections beyond max_sessions that may send a hello */
#define MOST_KEPT      8u  /* the most sessions reserved for administrators */

int zd_api_open(struct zd_api *api, struct zd_loop *loop, const struct zd_bridge_config *config,
                const struct zd_api_limits *limits, struct zd_err *err)
{
	*api = (struct zd_api){.limits = *limits,
	                       .started_ns = zd_loop_now_ns(),
	                       .opened = true,
	                       .statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC),
	                       .page_bytes = (uint64_t)sysconf(_SC_PAGESIZE)};
	zd_conns_init(&api->conns, loop);
	zd_users_set_limit(&api->conns.users, limits->uid_unsent_bytes);
	api->conns.flushed = zd_delegates_flush;
	api->conns.flushed_arg = &api->bridge.delegates;
	api->conns.store = zd_keeper_write;
	api->conns.store_arg = &api->bridge.keeper;
	zd_lift_plan();
	zd_arena_init(&api->requests, REQUESTS_BYTES);
	zd_arena_init(&api->replies, REPLIES_BYTES);
	int rc = zd_id_key_make(&api->id_key, err);
	if (!rc)
		rc = zd_bridge_open(&api->bridge, loop, config, api, err);
	if (rc)
		return rc;
	zd_log_limit_init(&api->log_limit, loop, ZD_LOG_LIMIT_WINDOW_MS);
	zd_engine_set_uid_limits(api->bridge.engine, &limits->of_uid);
	return 0;
}

void zd_api_set_id_key(struct zd_api *api, const struct zd_id_key *key)
{
	api->id_key = *key;
}

void zd_api_close(struct zd_api *api, const char *why)
{
	struct zd_err err;

	(void)zd_err_set(&err, ZEROD_E_SHUTDOWN, "%s", why);
	/* The next daemon finds the sessions as they are: their processes can still write. */
	zd_keeper_close(&api->bridge.keeper);
	zd_conns_refuse(&api->conns, &err);
	zd_conns_flush(&api->conns);
	zd_ends_finish(api);
	zd_bridge_close(&api->bridge);
	zd_log_limit_close(&api->log_limit);
}

void zd_api_deinit(struct zd_api *api)
{
	zd_conns_deinit(&api->conns);
	zd_bridge_deinit(&api->bridge);
	zd_arena_deinit(&api->requests);
	zd_arena_deinit(&api->replies);
	if (api->opened && api->statm >= 0)
		(void)close(api->statm);
}

static int accept_of(struct zd_api *api, const struct zd_api_socket *at, int sock, struct zd_err *err)
{
	bool full = api->conns.count >= api->limits.max_sessions + GREETING_ROOM;
	uid_t uid = at && at->has_tenant ? at->tenant_uid : zd_creds_uid(sock);
	uint64_t began_ns = zd_loop_now_ns();

	if (full && !zd_conns_make_way(&api->conns, uid)) {
		(void)close(sock);
		return zd_err_set(err, ZEROD_E_LIMIT, "%u connections are open", api->conns.count);
	}
	int rc = zd_api_session_new(api, at, sock, err);
	zd_users_add_time(&api->conns.users, uid, began_ns);
	return rc;
}

int zd_api_accept(void *arg, int sock, struct zd_err *err)
{
	return accept_of(arg, NULL, sock, err);
}

int zd_api_accept_at(void *arg, int sock, struct zd_err *err)
{
	const struct zd_api_socket *at = arg;

	return accept_of(at->api, at, sock, err);
}

void zd_api_set_limits(struct zd_api *api, const struct zd_api_limits *limits)
{
	struct zd_bridge *bridge = &api->bridge;
	uint32_t ndevices = bridge->ops->device_count(bridge->backend);

	api->limits = *limits;
	zd_users_set_limit(&api->conns.users, limits->uid_unsent_bytes);
	(void)zd_bridge_tick(bridge);
	zd_engine_set_quota(bridge->engine, limits->uid_quota_bytes);
	zd_engine_set_uid_limits(bridge->engine, &limits->of_uid);
	for (uint32_t i = 0; i < ndevices; i++)
		zd_engine_set_gather_budget(bridge->engine, i, limits->gather_budget_bytes);
	zd_bridge_settle(bridge);
	zd_conns_flush(&api->conns);
}

void zd_api_drain(struct zd_api *api, const char *by)
{
	if (api->ending)
		return;
	api->draining = true;
	(void)snprintf(api->drained_by, sizeof(api->drained_by), "%s", by);
	zd_engine_drain(api->bridge.engine);
}

int zd_api_undrain(struct zd_api *api, struct zd_err *err)
{
	if (api->ending)
		return zd_err_set(err, ZEROD_E_STATE, "the daemon is ending: it was drained by %s",
		                  api->drained_by);
	api->draining = false;
	zd_engine_undrain(api->bridge.engine);
	return 0;
}

void zd_api_drain_and_end(struct zd_api *api, const char *by, uint32_t deadline_s, void (*drained)(void *arg),
                          void *arg)
{
	api->ends_ns = zd_bridge_tick(&api->bridge) + deadline_s * NS_PER_S;
	zd_api_drain(api, by);
	api->ending = true;
	api->drained = drained;
	api->drained_arg = arg;
	zd_bridge_settle(&api->bridge);
	zd_conns_flush(&api->conns);
	zd_api_check_drained(api);
}

void zd_api_check_drained(struct zd_api *api)
{
	void (*drained)(void *arg) = api->drained;

	if (!drained || zd_api_session_count(api) > 0)
		return;
	api->drained = NULL;
	drained(api->drained_arg);
}

uint32_t zd_api_session_room(const struct zd_api_limits *limits, bool admin)
{
	uint32_t eighth = (limits->max_sessions + 7) / 8;
	uint32_t kept = limits->max_sessions > 1 ? (uint32_t)zd_min_u64(eighth, MOST_KEPT) : 0;

	return limits->max_sessions - (admin ? 0 : kept);
}

unsigned zd_api_session_count(const struct zd_api *api)
{
	return HASH_COUNT(api->sessions);
}
