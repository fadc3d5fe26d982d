/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api.h - the daemon's implementation of the protocol: sessions, their requests, and the engine.
 *
 * The service (main/service.c) opens a zd_api, passes accepted sockets and new limits to it, and ends it.
 */
#ifndef ZD_SERVER_API_H
#define ZD_SERVER_API_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/frame.h"
#include "server/bridge.h"
#include "server/conn.h"
#include "server/id_key.h"
#include "server/grants.h"
#include "server/log_limit.h"

struct zd_api_session;

#define ZD_DRAINED_BY_TEXT 96

/* A listening socket in addition to the daemon's own. Its sessions are never administrators'. */
struct zd_api_socket {
	struct zd_api *api;
	const char *name;
	bool has_tenant;  /* all its peers count as one user */
	uid_t tenant_uid; /* that user */
	bool has_devices; /* its sessions can use `devices`, and grants do not apply to them */
	uint64_t devices; /* a bit for each */
};

/* The settings that a reload may change. */
struct zd_api_limits {
	uint32_t max_sessions;        /* 1 .. ZD_MAX_SESSIONS */
	uint64_t uid_quota_bytes;     /* 0: none */
	uint64_t uid_unsent_bytes;    /* 0: no limit */
	uint64_t gather_budget_bytes; /* of each device; 0: the arena */
	bool root_is_user;            /* root is no administrator, not even as the daemon's own user */
	bool has_admin_group;         /* if false, only root and the daemon's own user are administrators */
	gid_t admin_group;
	struct zd_creds_groups allow_groups;   /* their members are served, in addition to administrators;
	                                        empty: all users */
	struct zd_uid_limits of_uid;           /* administrators have none */
	struct zd_creds_groups durable_groups; /* their members may own durable jobs; empty: all users */
	struct zd_creds_groups reader_groups;  /* their members may read commits of other users' jobs */
	uint32_t id_ttl_s;                     /* seconds for which unique ids are accepted */
	struct zd_grants grants;               /* administrators may use all devices */
};

struct zd_api {
	struct zd_conns conns;
	struct zd_bridge bridge;
	struct zd_api_limits limits;
	struct zd_id_key id_key;         /* authenticates unique ids */
	struct zd_api_session *sessions; /* uthash by id: sessions whose hello was accepted */
	struct zd_api_session *recent;   /* the result of the last lookup; NULL: none */
	struct zd_ends_of_user *ends;    /* uthash by uid: users with incomplete ends; ends.c */
	struct zd_arena requests;        /* for the packet that is being handled */
	struct zd_arena replies;         /* for the reply under construction */
	struct zd_log_limit log_limit;   /* for all lines that clients cause */
	bool opened;
	int statm; /* /proc/self/statm; -1: not available */
	uint64_t page_bytes;
	uint64_t rejected; /* requests that were wrong and did not reach the engine */
	uint64_t started_ns;
	uint64_t logged_full_ns; /* the time of the last log line about max_sessions; 0: none */
	bool draining;           /* no job can start, and no rank can join */
	bool ending;             /* draining, and the daemon ends at `ends_ns` at the latest */
	uint64_t ends_ns;
	char drained_by[ZD_DRAINED_BY_TEXT]; /* the requester of the drain */
	void (*drained)(void *arg);          /* NULL: not requested, or called already */
	void *drained_arg;
};

/* Opens the backend and creates the engine. Creates a key for unique ids that no other daemon has. */
int zd_api_open(struct zd_api *api, struct zd_loop *loop, const struct zd_bridge_config *config,
                const struct zd_api_limits *limits, struct zd_err *err) __attribute__((warn_unused_result));
/* Replaces that key. Ids that were made with another key are no longer accepted. */
void zd_api_set_id_key(struct zd_api *api, const struct zd_id_key *key);
/* Ends all sessions, stops the backend, and starts to close the handles. Clients receive SHUTDOWN with the
 * text `why`, before any of them learns that its peers have ended. */
void zd_api_close(struct zd_api *api, const char *why);
/* Frees the rest when the loop has closed the handles. Can be called after a failed zd_api_open(), or without
 * one. */
void zd_api_deinit(struct zd_api *api);

/* Serves a new connection (struct zd_listener's callback; `arg` is the api). Takes ownership of the socket,
 * also on failure. */
int zd_api_accept(void *arg, int sock, struct zd_err *err);
/* As zd_api_accept(), for a further socket. `arg` is a struct zd_api_socket, which must outlive the api's
 * sessions. */
int zd_api_accept_at(void *arg, int sock, struct zd_err *err);

void zd_api_set_limits(struct zd_api *api, const struct zd_api_limits *limits);

/* From now on joins, and the first allocations of jobs, fail with SHUTDOWN. Running jobs are served. `by`
 * names the requester. Does nothing if the daemon is ending. */
void zd_api_drain(struct zd_api *api, const char *by);
/* Ends that. STATE: the daemon is ending. */
int zd_api_undrain(struct zd_api *api, struct zd_err *err) __attribute__((warn_unused_result));
/* Drains, and rejects new sessions with SHUTDOWN, until the caller closes the api, at the latest after
 * `deadline_s`. `drained` is called once, when the last session has ended, or at once without sessions. */
void zd_api_drain_and_end(struct zd_api *api, const char *by, uint32_t deadline_s, void (*drained)(void *arg),
                          void *arg);
/* Called by session.c when a session has ended. */
void zd_api_check_drained(struct zd_api *api);
/* Returns the number of sessions whose hello was accepted. */
unsigned zd_api_session_count(const struct zd_api *api);
/* Returns the number of sessions that can be open. An eighth of max_sessions, from 1 to 8, is reserved for
 * administrators, who can end other sessions. If max_sessions is 1, none is reserved. */
uint32_t zd_api_session_room(const struct zd_api_limits *limits, bool admin);

#endif
