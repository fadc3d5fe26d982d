/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api.c - the daemon's implementation of the protocol: start, drain and end.
 *
 * The path of a request: conn.c receives a packet, dispatch.c unpacks it, a handle_*.c translates it, and
 * the engine processes it. The path back: the engine passes its reply through bridge.c to zd_api_reply(),
 * which packs it into the connection.
 */
#include "server/api.h"

#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "server/loop.h"
#include "server/session.h"

#define REQUESTS_BYTES 65536u /* unpacked requests of a usual packet; larger ones spill */
#define REPLIES_BYTES  8192u
#define GREETING_ROOM  64u /* connections beyond max_sessions that may send a hello */
#define MOST_KEPT      8u  /* the most sessions reserved for administrators */

int zd_api_open(struct zd_api *api, struct zd_loop *loop, const struct zd_bridge_config *config,
                const struct zd_api_limits *limits, struct zd_err *err)
{
	*api = (struct zd_api){.limits = *limits, .started_ns = zd_loop_now_ns()};
	zd_conns_init(&api->conns, loop);
	zd_users_set_limit(&api->conns.users, limits->uid_unsent_bytes);
	api->conns.flushed = zd_delegates_flush;
	api->conns.flushed_arg = &api->bridge.delegates;
	zd_arena_init(&api->requests, REQUESTS_BYTES);
	zd_arena_init(&api->replies, REPLIES_BYTES);
	return zd_bridge_open(&api->bridge, loop, config, api, err);
}

void zd_api_close(struct zd_api *api)
{
	struct zd_err why;

	(void)zd_err_set(&why, ZEROD_E_SHUTDOWN, "the daemon ends");
	zd_conns_end(&api->conns, &why);
	zd_conns_flush(&api->conns);
	zd_bridge_close(&api->bridge);
}

void zd_api_deinit(struct zd_api *api)
{
	zd_conns_deinit(&api->conns);
	zd_bridge_deinit(&api->bridge);
	zd_arena_deinit(&api->requests);
	zd_arena_deinit(&api->replies);
}

int zd_api_accept(void *arg, int sock, struct zd_err *err)
{
	struct zd_api *api = arg;
	bool full = api->conns.count >= api->limits.max_sessions + GREETING_ROOM;

	if (full && !zd_conns_make_way(&api->conns, zd_creds_uid(sock))) {
		(void)close(sock);
		return zd_err_set(err, ZEROD_E_LIMIT, "%u connections are open", api->conns.count);
	}
	return zd_api_session_new(api, sock, err);
}

void zd_api_set_limits(struct zd_api *api, const struct zd_api_limits *limits)
{
	struct zd_bridge *bridge = &api->bridge;
	uint32_t ndevices = bridge->ops->device_count(bridge->backend);

	api->limits = *limits;
	zd_users_set_limit(&api->conns.users, limits->uid_unsent_bytes);
	(void)zd_bridge_tick(bridge);
	zd_engine_set_quota(bridge->engine, limits->uid_quota_bytes);
	for (uint32_t i = 0; i < ndevices; i++)
		zd_engine_set_gather_budget(bridge->engine, i, limits->gather_budget_bytes);
	zd_bridge_settle(bridge);
	zd_conns_flush(&api->conns);
}

void zd_api_drain(struct zd_api *api, void (*drained)(void *arg), void *arg)
{
	api->draining = true;
	api->drained = drained;
	api->drained_arg = arg;
	(void)zd_bridge_tick(&api->bridge);
	zd_engine_drain(api->bridge.engine);
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
