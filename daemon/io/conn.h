/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn.h - one client's connection: packets in, replies out, and its end.
 *
 * Replies are collected: those that are made while one event is handled travel together, in as few packets as
 * fit, when zd_conns_flush() is called at the event's end. A client that does not read is not read from
 * either, until it does; its replies wait.
 *
 * Nothing here calls back at once: a connection that fails, or is told to end, ends in the next
 * zd_conns_flush(). So replies may be sent, and connections ended, from anywhere, the engine's sink included.
 */
#ifndef ZD_IO_CONN_H
#define ZD_IO_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "io/creds.h"
#include "proto/limits.h"
#include "proto/zerod.pb-c.h"

struct zd_conn;
struct zd_err;
struct zd_loop;
struct zd_packet;
struct zd_ring;

/* What all connections share. */
struct zd_conns {
	struct zd_loop *loop;
	TAILQ_HEAD(, zd_conn) all;
	TAILQ_HEAD(, zd_conn) dirty;     /* with replies to send, or to be ended */
	unsigned count;                  /* in `all` */
	uint8_t *inbox;                  /* the packet that is being handled */
	STAILQ_HEAD(, zd_packet) spares; /* packets that were sent, for reuse */
	unsigned nspares;
	bool flushing;
	/* All that was collected has been sent: what must not overtake it may follow. NULL: nothing does. */
	void (*flushed)(void *arg);
	void *flushed_arg;
};

struct zd_conn_ops {
	/* A packet came, without descriptors. The bytes are valid during the call. */
	void (*packet)(void *arg, const uint8_t *bytes, size_t nbytes);
	/* The connection is over; called once, from zd_conns_flush(), and last. The conn must not be used any
	 * more. */
	void (*ended)(void *arg, const struct zd_err *why);
};

/* A descriptor to send along; segment is NULL for those of the hello. */
struct zd_attachment {
	int fd;
	const Zd__Segment *segment;
};

void zd_conns_init(struct zd_conns *conns, struct zd_loop *loop);
/* All connections have ended. */
void zd_conns_deinit(struct zd_conns *conns);
/* Sends what was collected and ends what is to end. Every callback of the loop ends with it. */
void zd_conns_flush(struct zd_conns *conns);
/* Ends all. */
void zd_conns_end(struct zd_conns *conns, const struct zd_err *why);

/*
 * Takes a connected socket and the peer's credentials over, on success and on failure. The client has to be
 * welcomed within ten seconds. No callback comes before this returns.
 */
int zd_conn_new(struct zd_conns *conns, int sock, struct zd_creds *creds, const struct zd_conn_ops *ops,
                void *arg, struct zd_conn **conn, struct zd_err *err) __attribute__((warn_unused_result));
/* The client has said hello; from now on it may be silent. */
void zd_conn_welcome(struct zd_conn *conn);
/* From now on, requests and replies may also go by these, which have to last until the end. */
void zd_conn_use_rings(struct zd_conn *conn, struct zd_ring *requests, struct zd_ring *replies);

/* Ends the oldest connection without a hello, for a newcomer of `uid`, if the oldest one's user has more such
 * connections than `uid` has: so nobody keeps others out by saying nothing. False: there is none. */
bool zd_conns_make_way(struct zd_conns *conns, uid_t uid);

const struct zd_creds *zd_conn_creds(const struct zd_conn *conn);
int zd_conn_socket(const struct zd_conn *conn);
/* False once it is to end: what else came with the packet is not to be handled. */
bool zd_conn_is_open(const struct zd_conn *conn);

/* Appends a reply, and the descriptors that must come no later than it; their ownership moves here in any
 * case. */
void zd_conn_send(struct zd_conn *conn, const Zd__Reply *reply, const struct zd_attachment *attachments,
                  unsigned nattachments);
/* Appends a descriptor and its announcement, behind the replies before it. Its ownership moves here. */
void zd_conn_announce(struct zd_conn *conn, const struct zd_attachment *attachment);
/* Appends a segment that the client is to unmap. */
void zd_conn_retire(struct zd_conn *conn, uint32_t segment);
/* Appends a reply to no request, with this status and text, and ends the connection. */
void zd_conn_refuse(struct zd_conn *conn, const struct zd_err *why);
/* Ends the connection after what was collected has been sent, as far as the socket takes it at once. */
void zd_conn_end(struct zd_conn *conn, const struct zd_err *why);

#endif
