/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.h - a client of the daemon: its connection and, after the hello, its session in the engine.
 */
#ifndef ZD_SERVER_SESSION_H
#define ZD_SERVER_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uthash.h>

#include "core/args.h"
#include "server/conn.h"

struct zd_api;
struct zd_api_socket;
struct zd_err;
struct zd_rings;
struct zd_delegate;

enum zd_api_session_state {
	ZD_API_SESSION_NEW,    /* connected; only a hello is accepted */
	ZD_API_SESSION_OPEN,   /* known to the engine and to the backend */
	ZD_API_SESSION_KILLED, /* ended by the engine; still known to the backend */
	ZD_API_SESSION_ENDED,
};

struct zd_api_session {
	struct zd_api *api;
	const struct zd_api_socket *at; /* the socket of its connection; NULL: the daemon's own socket */
	struct zd_conn *conn;
	uint8_t state;
	uint64_t id; /* 0 while NEW */
	bool admin;
	bool clean_exit;                /* the client has sent its goodbye */
	bool joined;                    /* it has been a rank */
	uint64_t arrived_ns;            /* when its last packet arrived */
	const struct zd_err *why_ended; /* while it leaves the engine; otherwise NULL */
	struct zd_delegate *delegate;   /* NULL: the client accepts no work */
	struct zd_rings *rings;         /* NULL: all packets use the sockets */
	struct zd_found found;          /* for a request that is handled in several steps */
	/* The segments whose descriptors were sent to the client, in ascending order. */
	uint32_t *given;
	size_t ngiven, given_room;
	UT_hash_handle hh;
};

int zd_api_session_new(struct zd_api *api, const struct zd_api_socket *at, int sock, struct zd_err *err)
        __attribute__((warn_unused_result));

/* Registers a NEW session with engine and backend, under `name` and with the modes of its hello. The caller
 * owns the descriptors of the pages. Errors: LIMIT, SYSTEM, NO_MEMORY, after which the session remains
 * NEW. */
/* Whether the client names the feature. */
bool zd_hello_has_feature(const Zd__Hello *hello, const char *feature);
int zd_api_session_admit(struct zd_api_session *session, const char *name, const Zd__Hello *hello,
                         int *client_page, int *daemon_page, struct zd_err *err)
        __attribute__((warn_unused_result));

/* Creates rings for an OPEN session, which its packets, and those of its work channel, can use from now on.
 * The caller owns the descriptor. Errors: SYSTEM, NO_MEMORY. */
int zd_api_session_open_rings(struct zd_api_session *session, int *rings_fd, struct zd_err *err)
        __attribute__((warn_unused_result));

/* Returns the session, or NULL if it does not exist or has ended. */
struct zd_api_session *zd_api_session_find(struct zd_api *api, uint64_t id);

/* Reports that the engine has ended the session. */
void zd_api_session_killed(struct zd_api *api, uint64_t id, const char *why);

/* Sends an error reply to the request. Also ends the connection of a NEW session. */
void zd_api_session_fail(struct zd_api_session *session, uint64_t request, const struct zd_err *why);

/* Opens descriptors for the segments (of `count`) that the client does not have, and records that it has
 * them. Fills in `attachments` and `announced`, both with room for `count`. Skips segments with id 0. SYSTEM
 * if a descriptor cannot be opened. */
int zd_api_session_attach(struct zd_api_session *session, const uint32_t *segments, unsigned count,
                          Zd__Segment *announced, struct zd_attachment *attachments, unsigned *nattachments,
                          struct zd_err *err) __attribute__((warn_unused_result));
/* Announces one segment, unless the client has it. `arg` is the session. */
int zd_api_session_announce(void *arg, uint32_t segment);
/* Tells the session's client to unmap a segment. No reply names it any more. */
void zd_api_session_retire(struct zd_api *api, uint64_t id, uint32_t segment);

#endif
