/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn.h - a client's connection: received packets, collected replies, and its end.
 *
 * The replies of one event are collected. At the event's end zd_conns_flush() sends them in as few packets as
 * possible. While a client does not read its replies, the replies wait, and the daemon does not handle
 * further requests of the client, nor the rest of a packet. The connections of one uid have turns (user.h).
 *
 * No function calls back directly. A connection that fails, or is ended, ends in the next zd_conns_flush(),
 * or in a later turn of its user. Any code, including the engine's sink, can therefore send replies and end
 * connections.
 */
#ifndef ZD_SERVER_CONN_H
#define ZD_SERVER_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/limits.h"
#include "proto/zerod.pb-c.h"
#include "server/creds.h"
#include "server/user.h"

struct zd_conn;
struct zd_packet;
struct zd_ring;

/* State that all connections share. */
struct zd_conns {
	struct zd_loop *loop;
	struct zd_users users;
	TAILQ_HEAD(, zd_conn) all;
	TAILQ_HEAD(, zd_conn) dirty;     /* connections with replies to send, or to be ended */
	unsigned count;                  /* in `all` */
	uint8_t *inbox;                  /* the packet that is being handled */
	STAILQ_HEAD(, zd_packet) spares; /* sent packets, for reuse */
	unsigned nspares;
	bool flushing;
	bool ends_at_once; /* connections do not wait for their users' turns to end */
	/* Called before replies are sent, to store the facts that they report. NULL: none. */
	void (*store)(void *arg);
	void *store_arg;
	/* Called when all collected replies have been sent, to send messages that must not overtake them.
	 * NULL: none. */
	void (*flushed)(void *arg);
	void *flushed_arg;
};

struct zd_conn_ops {
	/* Called when a packet was received, without descriptors, or is `resumed`. The bytes are valid during
	 * the call. Returns how many of them are done with: fewer than `nbytes` only if zd_conn_may_go_on()
	 * returned false, or the next request is handled in steps. The rest is passed later, as often as
	 * necessary, before any other packet. */
	size_t (*packet)(void *arg, const uint8_t *bytes, size_t nbytes, bool resumed);
	/* Called once, from zd_conns_flush() or in the user's turn, as the last callback, when the connection
	 * has ended. The conn must not be used afterwards. */
	void (*ended)(void *arg, const struct zd_err *why);
};

/* A descriptor to send; segment is NULL for the descriptors of the hello. */
struct zd_attachment {
	int fd;
	const Zd__Segment *segment;
};

void zd_conns_init(struct zd_conns *conns, struct zd_loop *loop);
/* Frees the shared state, when all connections have ended. */
void zd_conns_deinit(struct zd_conns *conns);
/* Sends the collected replies and ends connections, while their users' turns have time. Every callback of the
 * loop ends with this call. */
void zd_conns_flush(struct zd_conns *conns);
/* Ends all connections, each with `why` in a last reply, to no request. All clients are told, and all sockets
 * shut down, before the first owner is notified. The effects of a session's end on others must not be visible
 * before the end itself. */
void zd_conns_refuse(struct zd_conns *conns, const struct zd_err *why);

/*
 * Takes ownership of a connected socket and the peer's credentials, also on failure. The hello must be
 * accepted within ten seconds. No callback is called before this returns.
 */
int zd_conn_new(struct zd_conns *conns, int sock, struct zd_creds *creds, const struct zd_conn_ops *ops,
                void *arg, struct zd_conn **conn, struct zd_err *err) __attribute__((warn_unused_result));
/* Records that the client's hello was accepted, so that its deadline does not apply any more. */
void zd_conn_welcome(struct zd_conn *conn);
/* Lets requests and replies also use these rings, which must remain valid until the connection ends. */
void zd_conn_use_rings(struct zd_conn *conn, struct zd_ring *requests, struct zd_ring *replies);

/* Ends the oldest connection without a hello, to make room for a new one of `uid`. Does so only if that
 * connection's user has more of these connections than `uid`: no user can exclude others with silent
 * connections. Returns whether it has ended one. */
bool zd_conns_make_way(struct zd_conns *conns, uid_t uid);

const struct zd_creds *zd_conn_creds(const struct zd_conn *conn);
int zd_conn_socket(const struct zd_conn *conn);
/* Returns false if the connection is to be ended; the caller must then ignore the rest of the packet. */
bool zd_conn_is_open(const struct zd_conn *conn);
/* Called after a request of this cost (user.h). Returns false if the rest of the packet has to wait: its
 * user's turn has ended, or replies are unsent. */
bool zd_conn_may_go_on(const struct zd_conn *conn, unsigned cost);
/* While a request of the connection is handled: whether it should be short, for other users. */
bool zd_conn_shares(const struct zd_conn *conn);

/* Appends a reply, and the descriptors that must arrive no later than it. Takes ownership of the
 * descriptors. */
void zd_conn_send(struct zd_conn *conn, const Zd__Reply *reply, const struct zd_attachment *attachments,
                  unsigned nattachments);
/* Appends a descriptor and its announcement, after the replies before it. Takes ownership of the
 * descriptor. */
void zd_conn_announce(struct zd_conn *conn, const struct zd_attachment *attachment);
/* Appends a message that the client has to unmap the segment. */
void zd_conn_retire(struct zd_conn *conn, uint32_t segment);
/* Appends a reply to no request, with this status and text, and ends the connection. */
void zd_conn_refuse(struct zd_conn *conn, const struct zd_err *why);
/* Ends the connection after sending the collected replies, as far as the socket accepts them at once. */
void zd_conn_end(struct zd_conn *conn, const struct zd_err *why);

#endif
