/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api.h - the protocol's side of the daemon: sessions, their requests, and the engine behind them.
 *
 * The layer above opens one, hands it accepted sockets, and tells it of new limits and of the end.
 */
#ifndef ZD_API_API_H
#define ZD_API_API_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "io/bridge.h"
#include "io/conn.h"
#include "proto/frame.h"

struct zd_api_session;
struct zd_err;
struct zd_loop;

/* What a reload may change. */
struct zd_api_limits {
	uint32_t max_sessions;        /* 1 .. ZD_MAX_SESSIONS */
	uint64_t uid_quota_bytes;     /* 0: none */
	uint64_t gather_budget_bytes; /* of each device; 0: the arena */
	bool has_admin_group;         /* else only root and the daemon's own user administrate */
	gid_t admin_group;
};

struct zd_api {
	struct zd_conns conns;
	struct zd_bridge bridge;
	struct zd_api_limits limits;
	struct zd_api_session *sessions; /* uthash by id: those that have said hello */
	struct zd_api_session *recent;   /* the one that was looked up last; NULL: none */
	struct zd_arena requests;        /* of the packet that is being handled */
	struct zd_arena replies;         /* of the reply that is being made */
	uint64_t started_ns;
	uint64_t told_full_ns; /* when the log last heard of max_sessions; 0: not yet */
	bool draining;
	void (*drained)(void *arg); /* NULL: not asked for, or called already */
	void *drained_arg;
};

/* Opens the backend and the engine too. */
int zd_api_open(struct zd_api *api, struct zd_loop *loop, const struct zd_bridge_config *config,
                const struct zd_api_limits *limits, struct zd_err *err) __attribute__((warn_unused_result));
/* Ends all sessions, stops the backend, and begins to close the handles. */
void zd_api_close(struct zd_api *api);
/* When the loop has run the handles down; also after a failed zd_api_open(), or none. */
void zd_api_deinit(struct zd_api *api);

/* A connected client (struct zd_listener's callback; `arg` is the api). The socket moves here, also on
 * failure. */
int zd_api_accept(void *arg, int sock, struct zd_err *err);

void zd_api_set_limits(struct zd_api *api, const struct zd_api_limits *limits);

/* From now on new sessions and requests get SHUTDOWN; `drained` is called once, when the last session has
 * ended: at once when there is none. */
void zd_api_drain(struct zd_api *api, void (*drained)(void *arg), void *arg);
/* For session.c: a session has ended. */
void zd_api_check_drained(struct zd_api *api);
/* Sessions that have said hello. */
unsigned zd_api_session_count(const struct zd_api *api);
/* How many may be open. The last eighth, from 1 to 8, is for administrators, who can end others. */
uint32_t zd_api_session_room(const struct zd_api_limits *limits, bool admin);

#endif
