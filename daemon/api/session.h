/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.h - one client of the daemon: its connection and, after the hello, its session in the engine.
 */
#ifndef ZD_API_SESSION_H
#define ZD_API_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uthash.h>

#include "io/conn.h"

struct zd_api;
struct zd_err;
struct zd_rings;
struct zd_delegate;

enum zd_api_session_state {
	ZD_API_SESSION_NEW,    /* connected; nothing but a hello is taken */
	ZD_API_SESSION_OPEN,   /* known to the engine and to the backend */
	ZD_API_SESSION_KILLED, /* the engine has ended it by itself; the backend still knows it */
	ZD_API_SESSION_ENDED,
};

struct zd_api_session {
	struct zd_api *api;
	struct zd_conn *conn;
	uint8_t state;
	uint64_t id; /* the engine's; 0 while NEW */
	bool admin;
	bool orderly;                 /* has said goodbye */
	struct zd_delegate *delegate; /* NULL: its client takes no work */
	struct zd_rings *rings;       /* NULL: all goes by the sockets */
	/* Segments whose descriptors the client has been sent, ascending. */
	uint32_t *given;
	size_t ngiven, given_room;
	UT_hash_handle hh;
};

int zd_api_session_new(struct zd_api *api, int sock, struct zd_err *err) __attribute__((warn_unused_result));

/* Makes a NEW session known to engine and backend, under that name and with the modes of its hello. The
 * pages' descriptors belong to the caller. Errors: LIMIT, SYSTEM, NO_MEMORY; it stays NEW then. */
int zd_api_session_admit(struct zd_api_session *session, const char *name, const Zd__Hello *hello,
                         int *client_page, int *daemon_page, struct zd_err *err)
        __attribute__((warn_unused_result));

/* An admitted session's packets may go by rings from now on, those of its channel too. The descriptor belongs
 * to the caller.
 * Errors: SYSTEM, NO_MEMORY. */
int zd_api_session_open_rings(struct zd_api_session *session, int *rings_fd, struct zd_err *err)
        __attribute__((warn_unused_result));

/* NULL when there is none, or no more. */
struct zd_api_session *zd_api_session_find(struct zd_api *api, uint64_t id);

/* The engine has ended it. */
void zd_api_session_killed(struct zd_api_session *session, const char *why);

/* An error reply to the request; a client that has not been admitted is turned away. */
void zd_api_session_fail(struct zd_api_session *session, uint64_t request, const struct zd_err *why);

/* Puts the segments among the `count` that the client has not been sent yet into `attachments`, and their
 * announcements into `announced`, both with room for `count`. Zeros are skipped. SYSTEM when a descriptor
 * cannot be had. */
int zd_api_session_attach(struct zd_api_session *session, const uint32_t *segments, unsigned count,
                          Zd__Segment *announced, struct zd_attachment *attachments, unsigned *nattachments,
                          struct zd_err *err) __attribute__((warn_unused_result));
/* Announces one segment, unless the client has it. `arg` is the session. */
int zd_api_session_announce(void *arg, uint32_t segment);
/* Tells the client to unmap a segment that it was given; no reply names it any more. */
void zd_api_session_retire(struct zd_api_session *session, uint32_t segment);

#endif
