/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn.c - a client's connection.
 *
 * It owns its socket, the peer's pidfd, and the packets that are not sent yet. A connection is OPEN; then
 * ENDING, until the next flush sends what it can and, in the user's turn, notifies the owner; then CLOSING,
 * until libuv has closed its handles.
 *
 * What must hold:
 *
 * - `open_packet` is younger than all of `backlog`.
 *
 * - A connection with an open packet is in the dirty list.
 *
 * - With a backlog no request is handled; when the backlog is empty again, the loop polls the ring.
 *
 * - A packet of which a rest is left has its task queued, or there is a backlog. No other packet is read.
 *
 * - An ENDING connection is in the dirty list, or its task is queued as an end.
 *
 * - The backlog's bytes are charged to the user.
 *
 * - At most ZD_MAX_PACKET_FDS descriptors are unread in the socket, because the kernel limits descriptors in
 * flight for the user as a whole.
 */
#include "server/conn.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/sm.h"
#include "proto/endpoint.h"
#include "server/loop.h"
#include "server/packet.h"

#define HELLO_DEADLINE_MS 10000u
#define FIRST_STALL_MS    1u
#define LONGEST_STALL_MS  64u
#define MAX_SPARE_PACKETS 8u
#define MAX_CLOSING_READS 64u
#define STALLED           2 /* a third result besides 0 and ZD_FRAME_AGAIN: too many descriptors are unread */

enum conn_state { OPEN, ENDING, CLOSING };
static const char *const state_names[] = {"OPEN", "ENDING", "CLOSING"};
static const uint32_t state_moves[] = {
        [OPEN] = ZD_SM_TO(ENDING),
        [ENDING] = ZD_SM_TO(CLOSING),
        [CLOSING] = 0,
};
static const struct zd_sm conn_sm = {
        .name = "connection", .nstates = 3, .state_names = state_names, .allowed = state_moves};

struct zd_conn {
	TAILQ_ENTRY(zd_conn) link, dirty_link;
	struct zd_conns *conns;
	const struct zd_conn_ops *ops;
	void *arg;
	struct zd_creds creds;
	struct zd_endpoint client;
	struct zd_poll_source poll_source; /* polled for requests in the ring */
	uint8_t state;
	bool welcome; /* its hello was accepted */
	bool dirty, stalled;
	int polled; /* the events that `readiness` waits for */
	unsigned open_handles;
	uv_poll_t readiness, death;
	uv_timer_t timer; /* the deadline of the hello; later, the next attempt on a stalled socket */
	uint64_t stall_ms;
	unsigned unread_fds; /* sent since the socket was last empty */
	struct zd_packet *open_packet;
	STAILQ_HEAD(, zd_packet) backlog;
	struct zd_user *user;
	struct zd_task task; /* queued: requests, or the end, wait for the user's turn */
	struct {
		uint8_t *bytes; /* NULL: none */
		size_t nbytes, done;
	} rest;            /* of a packet */
	struct zd_err why; /* set in ENDING */
};

/* ---- Life ---------------------------------------------------------------------------------------------- */

static void mark_dirty(struct zd_conn *conn)
{
	if (conn->dirty)
		return;
	conn->dirty = true;
	TAILQ_INSERT_TAIL(&conn->conns->dirty, conn, dirty_link);
}

void zd_conn_end(struct zd_conn *conn, const struct zd_err *why)
{
	if (conn->state != OPEN)
		return;
	zd_sm_move(&conn_sm, &conn->state, ENDING);
	conn->why = *why;
	/* The last replies use the socket: the owner may free the rings before the client has read them. */
	conn->client.out.ring = NULL;
	mark_dirty(conn);
}

static void handle_closed(uv_handle_t *handle)
{
	struct zd_conn *conn = handle->data;

	if (--conn->open_handles > 0)
		return;
	(void)close(conn->client.sock);
	zd_creds_deinit(&conn->creds);
	free(conn);
}

/* If a socket is closed with unread packets in it, the client sees a reset and loses the last replies. The
 * daemon therefore stops the client's sending, and reads its packets: their first bytes, because the kernel
 * drops the others, and descriptors. */
static void discard_unread(struct zd_conn *conn)
{
	uint8_t byte;

	(void)shutdown(conn->client.sock, SHUT_RDWR);
	for (unsigned reads = 0; reads < MAX_CLOSING_READS; reads++)
		if (recv(conn->client.sock, &byte, sizeof(byte), MSG_DONTWAIT) <= 0)
			return;
}

static void recycle(struct zd_conns *conns, struct zd_packet *packet)
{
	zd_packet_clear(packet);
	if (packet->room_bytes < ZD_MAX_PACKET_BYTES || conns->nspares >= MAX_SPARE_PACKETS) {
		zd_packet_free(packet);
		return;
	}
	STAILQ_INSERT_HEAD(&conns->spares, packet, link);
	conns->nspares++;
}

/* The bytes of the daemon's memory that an unsent packet uses. */
static size_t charged_bytes(const struct zd_packet *packet)
{
	return sizeof(*packet) + packet->nbytes;
}

static void drop_first(struct zd_conn *conn)
{
	struct zd_packet *packet = STAILQ_FIRST(&conn->backlog);

	STAILQ_REMOVE_HEAD(&conn->backlog, link);
	zd_user_uncharge(conn->user, charged_bytes(packet));
	recycle(conn->conns, packet);
}

static void finish_conn(struct zd_conn *conn)
{
	struct zd_conns *conns = conn->conns;
	struct zd_user *user = conn->user;

	zd_user_begin(user);
	zd_sm_move(&conn_sm, &conn->state, CLOSING);
	while (!STAILQ_EMPTY(&conn->backlog))
		drop_first(conn);
	zd_user_dequeue(user, &conn->task);
	free(conn->rest.bytes);
	discard_unread(conn);
	TAILQ_REMOVE(&conns->all, conn, link);
	conns->count--;
	zd_loop_drop(conns->loop, &conn->poll_source);
	uv_close((uv_handle_t *)&conn->timer, handle_closed);
	uv_close((uv_handle_t *)&conn->readiness, handle_closed);
	if (conn->creds.pidfd >= 0)
		uv_close((uv_handle_t *)&conn->death, handle_closed);
	conn->ops->ended(conn->arg, &conn->why);
	zd_user_put(user);
	zd_user_end(user);
}

/* ---- Events to poll and to wait for -------------------------------------------------------------------- */

static void on_ready(uv_poll_t *handle, int status, int events);

static void poll_for(struct zd_conn *conn, int events)
{
	if (events == conn->polled)
		return;
	conn->polled = events;
	int rc = events ? uv_poll_start(&conn->readiness, events, on_ready) : uv_poll_stop(&conn->readiness);
	zd_assert(rc == 0); /* fails only for handles that are closing */
}

static void poll_ring(struct zd_conn *conn)
{
	if (conn->client.in.ring)
		zd_loop_list(conn->conns->loop, &conn->poll_source);
}

static void update_poll(struct zd_conn *conn)
{
	if (conn->state != OPEN || conn->stalled)
		poll_for(conn, 0);
	else if (!STAILQ_EMPTY(&conn->backlog))
		poll_for(conn, UV_WRITABLE);
	else if (!conn->task.queued)
		poll_for(conn, UV_READABLE);
}

/* ---- Sending ------------------------------------------------------------------------------------------- */

/* Returns whether `nfds` more descriptors may be unread in the socket. */
static bool fds_fit(struct zd_conn *conn, unsigned nfds)
{
	int unread_bytes;

	if (conn->unread_fds + nfds <= ZD_MAX_PACKET_FDS)
		return true;
	if (ioctl(conn->client.sock, SIOCOUTQ, &unread_bytes) == 0 && unread_bytes == 0)
		conn->unread_fds = 0;
	return conn->unread_fds + nfds <= ZD_MAX_PACKET_FDS;
}

/* Returns 0, ZD_FRAME_AGAIN, STALLED, or an error that ends the connection. */
static int send_packet(struct zd_conn *conn, struct zd_packet *packet, struct zd_err *err)
{
	if (packet->nfds > 0 && !fds_fit(conn, packet->nfds))
		return STALLED;
	int rc = zd_endpoint_send(&conn->client, packet->bytes, packet->nbytes, packet->fds, packet->nfds,
	                          err);
	if (rc == 0)
		conn->unread_fds += packet->nfds;
	return rc;
}

static void on_stall_over(uv_timer_t *timer);

/* No event reports that the client has read. The daemon therefore tries the socket again, at increasing
 * intervals. */
static void stall(struct zd_conn *conn)
{
	conn->stall_ms = conn->stalled ? zd_min_u64(conn->stall_ms * 2, LONGEST_STALL_MS) : FIRST_STALL_MS;
	conn->stalled = true;
	(void)uv_timer_start(&conn->timer, on_stall_over, conn->stall_ms, 0);
}

/* Sends the backlog as far as the socket accepts it. */
static void send_backlog(struct zd_conn *conn)
{
	struct zd_packet *packet;
	struct zd_err err = ZD_ERR_NONE;
	int rc = 0;

	while (rc == 0 && (packet = STAILQ_FIRST(&conn->backlog))) {
		rc = send_packet(conn, packet, &err);
		if (rc != 0)
			break;
		drop_first(conn);
	}
	if (rc == STALLED)
		stall(conn);
	else
		conn->stalled = false;
	if (rc < 0)
		zd_conn_end(conn, &err);
	if (STAILQ_EMPTY(&conn->backlog) && conn->state == OPEN) {
		poll_ring(conn);
		if (conn->rest.bytes && !conn->task.queued)
			zd_user_enqueue(conn->user, &conn->task);
	}
	update_poll(conn);
}

/* The length needs no limit. With a backlog the daemon handles no request. The backlog therefore contains one
 * reply, replies to outstanding requests, and messages about segments that the client has. */
static void append_backlog(struct zd_conn *conn, struct zd_packet *packet)
{
	struct zd_packet *waiting = zd_packet_shrunk(packet);

	STAILQ_INSERT_TAIL(&conn->backlog, waiting, link);
	zd_user_charge(conn->user, charged_bytes(waiting));
}

/* Sends the open packet, or appends it to the backlog. */
static void send_open_packet(struct zd_conn *conn)
{
	struct zd_packet *packet = conn->open_packet;
	struct zd_err err = ZD_ERR_NONE;
	int rc = ZD_FRAME_AGAIN;

	if (conn->conns->store)
		conn->conns->store(conn->conns->store_arg);
	conn->open_packet = NULL;
	if (STAILQ_EMPTY(&conn->backlog))
		rc = send_packet(conn, packet, &err);
	if (rc < 0)
		zd_conn_end(conn, &err);
	else if (rc != 0)
		append_backlog(conn, packet);
	if (rc == STALLED)
		stall(conn);
	recycle(conn->conns, packet);
	update_poll(conn);
}

static struct zd_packet *open_packet(struct zd_conn *conn)
{
	struct zd_conns *conns = conn->conns;

	if (conn->open_packet)
		return conn->open_packet;
	conn->open_packet = STAILQ_FIRST(&conns->spares);
	if (conn->open_packet) {
		STAILQ_REMOVE_HEAD(&conns->spares, link);
		conns->nspares--;
	} else {
		conn->open_packet = zd_packet_new();
	}
	mark_dirty(conn);
	return conn->open_packet;
}

void zd_conn_send(struct zd_conn *conn, const Zd__Reply *reply, const struct zd_attachment *attachments,
                  unsigned nattachments)
{
	size_t spare_bytes = (size_t)nattachments * ZD_PACKET_SEGMENT_BYTES;

	zd_assert(conn->state != CLOSING);
	struct zd_packet *packet = open_packet(conn);
	if (packet->nfds + nattachments > ZD_MAX_PACKET_FDS ||
	    !zd_packet_add_reply(packet, reply, spare_bytes)) {
		send_open_packet(conn);
		packet = open_packet(conn);
		bool fits = zd_packet_add_reply(packet, reply, spare_bytes);
		zd_assert(fits);
	}
	for (unsigned i = 0; i < nattachments; i++)
		zd_packet_add_fd(packet, attachments[i].fd, attachments[i].segment);
}

void zd_conn_announce(struct zd_conn *conn, const struct zd_attachment *attachment)
{
	zd_assert(conn->state != CLOSING);
	struct zd_packet *packet = open_packet(conn);
	if (packet->nfds == ZD_MAX_PACKET_FDS ||
	    packet->room_bytes - packet->nbytes < ZD_PACKET_SEGMENT_BYTES) {
		send_open_packet(conn);
		packet = open_packet(conn);
	}
	zd_packet_add_fd(packet, attachment->fd, attachment->segment);
}

void zd_conn_retire(struct zd_conn *conn, uint32_t segment)
{
	zd_assert(conn->state != CLOSING);
	if (zd_packet_add_retired(open_packet(conn), segment))
		return;
	send_open_packet(conn);
	bool fits = zd_packet_add_retired(open_packet(conn), segment);
	zd_assert(fits);
}

void zd_conn_refuse(struct zd_conn *conn, const struct zd_err *why)
{
	Zd__Reply reply = ZD__REPLY__INIT;

	reply.status = why->status;
	reply.error = (char *)why->text;
	zd_conn_send(conn, &reply, NULL, 0);
	zd_conn_end(conn, why);
}

/* ---- Events -------------------------------------------------------------------------------------------- */

static void on_stall_over(uv_timer_t *timer)
{
	struct zd_conn *conn = timer->data;

	send_backlog(conn);
	zd_conns_flush(conn->conns);
}

static void on_hello_deadline(uv_timer_t *timer)
{
	struct zd_conn *conn = timer->data;
	struct zd_err err;

	if (conn->state != OPEN)
		return;
	(void)zd_err_set(&err, ZEROD_E_DEADLINE, "no hello within %u seconds", HELLO_DEADLINE_MS / 1000);
	zd_conn_refuse(conn, &err);
	zd_conns_flush(conn->conns);
}

static void on_death(uv_poll_t *handle, int status, int events)
{
	struct zd_conn *conn = handle->data;
	struct zd_err err;

	(void)status;
	(void)events;
	(void)zd_err_set(&err, ZEROD_E_DISCONNECTED, "process %d ended", (int)conn->creds.pid);
	zd_conn_end(conn, &err);
	(void)uv_poll_stop(handle);
	zd_conns_flush(conn->conns);
}

/* Stores the unhandled rest of a packet. */
static void keep_rest(struct zd_conn *conn, const uint8_t *bytes, size_t nbytes)
{
	conn->rest.bytes = zd_calloc(1, nbytes);
	memcpy(conn->rest.bytes, bytes, nbytes);
	conn->rest.nbytes = nbytes;
	conn->rest.done = 0;
}

static void resume_packet(struct zd_conn *conn)
{
	conn->rest.done += conn->ops->packet(conn->arg, conn->rest.bytes + conn->rest.done,
	                                     conn->rest.nbytes - conn->rest.done, true);
	if (conn->rest.done < conn->rest.nbytes)
		return;
	free(conn->rest.bytes);
	conn->rest.bytes = NULL;
}

/* One packet per event, so that a client that sends many packets does not delay others. Returns whether there
 * was one. */
static bool receive_requests(struct zd_conn *conn)
{
	uint8_t *inbox = conn->conns->inbox;
	int fds[ZD_MAX_PACKET_FDS];
	unsigned nfds = 0;
	size_t nbytes;
	struct zd_err err;
	int rc = zd_endpoint_recv(&conn->client, inbox, ZD_MAX_PACKET_BYTES, &nbytes, fds, &nfds, &err);

	for (unsigned i = 0; rc == 0 && i < nfds; i++)
		(void)close(fds[i]);
	if (rc == 0 && nfds > 0) {
		(void)zd_err_set(&err, ZEROD_E_PROTOCOL, "a packet with %u descriptors: clients send none",
		                 nfds);
		zd_conn_refuse(conn, &err);
	} else if (rc == 0) {
		size_t done = conn->ops->packet(conn->arg, inbox, nbytes, false);

		if (done < nbytes)
			keep_rest(conn, inbox + done, nbytes - done);
	} else if (rc == ZEROD_E_LIMIT || rc == ZEROD_E_PROTOCOL) {
		zd_conn_refuse(conn, &err);
	} else if (rc == ZEROD_E_DISCONNECTED) {
		(void)zd_err_set(&err, rc, "the client closed the connection");
		zd_conn_end(conn, &err);
	} else if (rc < 0) {
		zd_conn_end(conn, &err);
	}
	return rc == 0;
}

/* Whether the connection waits for its next turn: for the rest of a packet, or, if its socket is not polled
 * after a packet, for the next one. A busy client has sent that by then, and the poll need not be changed. */
static bool has_next_turn(const struct zd_conn *conn, bool received)
{
	return conn->state == OPEN && STAILQ_EMPTY(&conn->backlog) &&
	       (conn->rest.bytes || (received && conn->polled == 0));
}

/* Handles one packet, or a part of it, and sends the replies. The connection may be freed. */
static void serve(struct zd_conn *conn)
{
	struct zd_conns *conns = conn->conns;
	struct zd_user *user = conn->user;
	bool received = true;

	zd_user_begin(user);
	if (conn->rest.bytes)
		resume_packet(conn);
	else
		received = receive_requests(conn);
	if (has_next_turn(conn, received))
		zd_user_enqueue(user, &conn->task);
	if (conn->state == OPEN)
		update_poll(conn);
	zd_conns_flush(conns);
	zd_user_end(user);
}

static void run_task(void *arg)
{
	struct zd_conn *conn = arg;
	struct zd_conns *conns = conn->conns;

	if (conn->state == ENDING) {
		if (conn->open_packet)
			send_open_packet(conn);
		if (conn->dirty)
			TAILQ_REMOVE(&conns->dirty, conn, dirty_link);
		conn->dirty = false;
		finish_conn(conn);
		zd_conns_flush(conns);
		return;
	}
	if (conn->state != OPEN || !STAILQ_EMPTY(&conn->backlog))
		return; /* with a backlog, readable data and the rest of a packet are handled after it */
	poll_ring(conn);
	serve(conn);
}

/* A request has arrived. */
static void serve_or_enqueue(struct zd_conn *conn)
{
	if (zd_user_may_begin(conn->user)) {
		serve(conn);
		return;
	}
	zd_user_enqueue(conn->user, &conn->task);
}

static void on_ready(uv_poll_t *handle, int status, int events)
{
	struct zd_conn *conn = handle->data;
	struct zd_conns *conns = conn->conns;

	(void)events;
	zd_loop_note_event(handle->loop);
	/* The client has closed its end without reading all packets, and libuv polls no more. Packets that
	 * the client sent before are read first; then reading or sending reports the end. */
	if (status < 0)
		conn->polled = 0;
	if (!STAILQ_EMPTY(&conn->backlog)) {
		send_backlog(conn);
		zd_conns_flush(conns);
	} else if (conn->task.queued) {
		poll_for(conn, 0); /* until a turn that finds no packet (has_next_turn()) */
	} else {
		poll_ring(conn);
		serve_or_enqueue(conn);
	}
}

static bool has_request(const void *arg)
{
	const struct zd_conn *conn = arg;

	return conn->state == OPEN && STAILQ_EMPTY(&conn->backlog) && !conn->task.queued &&
	       zd_endpoint_is_due(&conn->client);
}

static void take_request(void *arg)
{
	struct zd_conn *conn = arg;

	zd_loop_note_event(&conn->conns->loop->uv);
	serve_or_enqueue(conn);
}

/* A user whose connections end one after another must not delay others. The ends are therefore tasks. */
static void end_in_turn(struct zd_conn *conn)
{
	bool waits = conn->task.queued && conn->task.is_end;

	if (conn->conns->ends_at_once || (!waits && zd_user_may_end(conn->user))) {
		finish_conn(conn);
		return;
	}
	if (waits)
		return;
	zd_user_dequeue(conn->user, &conn->task);
	(void)uv_timer_stop(&conn->timer);
	update_poll(conn);
	zd_user_enqueue_end(conn->user, &conn->task);
}

static void flush_dirty(struct zd_conns *conns)
{
	struct zd_conn *conn;

	while ((conn = TAILQ_FIRST(&conns->dirty))) {
		if (conn->open_packet)
			send_open_packet(conn);
		TAILQ_REMOVE(&conns->dirty, conn, dirty_link);
		conn->dirty = false;
		if (conn->state == ENDING)
			end_in_turn(conn);
	}
}

void zd_conns_flush(struct zd_conns *conns)
{
	zd_assert(!conns->flushing);
	conns->flushing = true;
	do {
		flush_dirty(conns);
		if (conns->store) /* events without replies also change state */
			conns->store(conns->store_arg);
		if (conns->flushed)
			conns->flushed(conns->flushed_arg);
	} while (!TAILQ_EMPTY(&conns->dirty));
	conns->flushing = false;
}

/* ---- Making connections, and their properties ---------------------------------------------------------- */

void zd_conns_init(struct zd_conns *conns, struct zd_loop *loop)
{
	*conns = (struct zd_conns){.loop = loop, .inbox = zd_calloc(1, ZD_MAX_PACKET_BYTES)};
	zd_users_init(&conns->users, loop);
	TAILQ_INIT(&conns->all);
	TAILQ_INIT(&conns->dirty);
	STAILQ_INIT(&conns->spares);
}

void zd_conns_deinit(struct zd_conns *conns)
{
	struct zd_packet *packet;

	zd_assert(TAILQ_EMPTY(&conns->all));
	zd_users_deinit(&conns->users);
	while ((packet = STAILQ_FIRST(&conns->spares))) {
		STAILQ_REMOVE_HEAD(&conns->spares, link);
		zd_packet_free(packet);
	}
	free(conns->inbox);
	conns->inbox = NULL;
}

void zd_conns_refuse(struct zd_conns *conns, const struct zd_err *why)
{
	struct zd_conn *conn;

	conns->ends_at_once = true;
	TAILQ_FOREACH (conn, &conns->all, link) {
		if (conn->state == OPEN)
			zd_conn_refuse(conn, why);
		else
			mark_dirty(conn);
	}
	TAILQ_FOREACH (conn, &conns->all, link) {
		if (conn->open_packet)
			send_open_packet(conn);
		(void)shutdown(conn->client.sock, SHUT_RDWR);
	}
}

int zd_conn_new(struct zd_conns *conns, int sock, struct zd_creds *creds, const struct zd_conn_ops *ops,
                void *arg, struct zd_conn **conn, struct zd_err *err)
{
	uv_loop_t *uv = &conns->loop->uv;
	struct zd_conn *c = zd_calloc(1, sizeof(*c));

	*c = (struct zd_conn){.conns = conns, .ops = ops, .arg = arg, .creds = *creds, .state = OPEN};
	c->client.sock = sock;
	creds->pidfd = -1;
	STAILQ_INIT(&c->backlog);
	c->timer.data = c->readiness.data = c->death.data = c;
	(void)uv_timer_init(uv, &c->timer);
	c->open_handles = 1;
	int rc = uv_poll_init(uv, &c->readiness, sock);
	c->open_handles += rc == 0;
	if (rc == 0 && c->creds.pidfd >= 0) {
		rc = uv_poll_init(uv, &c->death, c->creds.pidfd);
		c->open_handles += rc == 0;
	}
	if (rc) {
		if (c->open_handles > 1)
			uv_close((uv_handle_t *)&c->readiness, handle_closed);
		uv_close((uv_handle_t *)&c->timer, handle_closed);
		return zd_loop_error(err, rc, "watching a new connection");
	}
	TAILQ_INSERT_TAIL(&conns->all, c, link);
	conns->count++;
	c->user = zd_user_get(&conns->users, creds->uid);
	c->task = (struct zd_task){.run = run_task, .arg = c};
	update_poll(c);
	if (c->creds.pidfd >= 0) {
		rc = uv_poll_start(&c->death, UV_READABLE, on_death);
		zd_assert(rc == 0);
	}
	(void)uv_timer_start(&c->timer, on_hello_deadline, HELLO_DEADLINE_MS, 0);
	*conn = c;
	return 0;
}

static bool is_silent(const struct zd_conn *conn)
{
	return conn->state == OPEN && !conn->welcome;
}

static unsigned count_silent(const struct zd_conns *conns, uid_t uid)
{
	const struct zd_conn *conn;
	unsigned count = 0;

	TAILQ_FOREACH (conn, &conns->all, link)
		count += is_silent(conn) && conn->creds.uid == uid;
	return count;
}

bool zd_conns_make_way(struct zd_conns *conns, uid_t uid)
{
	struct zd_conn *oldest = TAILQ_FIRST(&conns->all);
	struct zd_err err;

	while (oldest && !is_silent(oldest))
		oldest = TAILQ_NEXT(oldest, link);
	if (!oldest || count_silent(conns, oldest->creds.uid) <= count_silent(conns, uid))
		return false;
	(void)zd_err_set(&err, ZEROD_E_LIMIT, "%u connections are open, and this one has not sent a hello",
	                 conns->count);
	zd_conn_refuse(oldest, &err);
	conns->ends_at_once = true; /* the new connection takes its place */
	zd_conns_flush(conns);
	conns->ends_at_once = false;
	return true;
}

void zd_conn_welcome(struct zd_conn *conn)
{
	zd_assert(conn->creds.pidfd >= 0);
	conn->welcome = true;
	(void)uv_timer_stop(&conn->timer);
}

void zd_conn_use_rings(struct zd_conn *conn, struct zd_ring *requests, struct zd_ring *replies)
{
	conn->client.in.ring = requests;
	conn->client.out.ring = replies;
	conn->poll_source = (struct zd_poll_source){
	        .has = has_request, .take = take_request, .arg = conn, .polling = &requests->polling};
	poll_ring(conn);
}

const struct zd_creds *zd_conn_creds(const struct zd_conn *conn)
{
	return &conn->creds;
}

int zd_conn_socket(const struct zd_conn *conn)
{
	return conn->client.sock;
}

bool zd_conn_is_open(const struct zd_conn *conn)
{
	return conn->state == OPEN;
}

bool zd_conn_may_go_on(const struct zd_conn *conn, unsigned cost)
{
	return STAILQ_EMPTY(&conn->backlog) && zd_user_may_go_on(conn->user, cost);
}

bool zd_conn_shares(const struct zd_conn *conn)
{
	return zd_user_shares(conn->user);
}
