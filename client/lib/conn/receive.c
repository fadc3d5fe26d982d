/* SPDX-License-Identifier: Apache-2.0 */
/*
 * receive.c - reads the socket, on one of the waiting threads, and distributes the replies.
 *
 * Invariants: at most one thread reads (client->reading). As long as threads wait, one of them reads; a
 * reader that stops waiting wakes another thread. The content of a packet is checked before it changes any
 * state, and an invalid packet ends the connection, never the process. Each op is answered once.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client/lib/base/enter.h"
#include "client/lib/base/interrupt.h"
#include "client/lib/base/options.h"
#include "client/lib/conn/request.h"
#include "client/lib/conn/watch.h"
#include "client/lib/segments/pages.h"
#include "client/lib/segments/segment.h"
#include "proto/envelope.h"

#define NS_PER_MS   1000000u
#define NAP_NS      30000
#define ARENA_BYTES 16384u /* holds the unpacked replies of a packet, except for listings */

/* ---- Packets ------------------------------------------------------------------------------------------- */

static struct zc_packet *take_packet(struct zerod_client *client)
{
	struct zc_packet *packet = client->spare_packet;

	client->spare_packet = NULL;
	if (!packet) {
		packet = calloc(1, sizeof(*packet));
		if (!packet)
			return NULL;
		zd_arena_init(&packet->arena, ARENA_BYTES);
	}
	packet->refs = 1;
	return packet;
}

void zc_packet_free(struct zc_packet *packet)
{
	if (!packet)
		return;
	zd_arena_deinit(&packet->arena);
	free(packet);
}

void zc_packet_unref(struct zerod_client *client, struct zc_packet *packet)
{
	if (--packet->refs > 0)
		return;
	if (client->spare_packet) {
		zc_packet_free(packet);
		return;
	}
	zd_arena_reset(&packet->arena);
	client->spare_packet = packet;
}

/* ---- Waking -------------------------------------------------------------------------------------------- */

/* Failing an op can end others' places in the chain. Each search therefore starts again. */
static struct zc_op *first_open(const struct zc_op_list *chain)
{
	struct zc_op *op;

	LIST_FOREACH (op, chain, in_table)
		if (!op->answered)
			return op;
	return NULL;
}

void zc_break(struct zerod_client *client, const struct zd_err *err)
{
	struct zd_err cause = *err;
	struct zc_waiter *waiter;
	struct zc_op *op;

	if (client->broken_status)
		return;
	if (cause.status == ZEROD_E_DISCONNECTED) /* sending or receiving noticed it */
		(void)zd_err_set(&cause, cause.status, "the daemon has ended, or has closed the connection");
	zc_loss_explain(client, &cause);
	memcpy(client->broken_text, cause.text, sizeof(client->broken_text));
	client->broken_status = cause.status; /* after its text: others read both without the lock */
	(void)shutdown(client->endpoint.sock, SHUT_RDWR);
	for (unsigned i = 0; i < ZC_OP_CHAINS; i++)
		while ((op = first_open(&client->ops[i])))
			zc_op_fail(client, op, &cause);
	TAILQ_FOREACH (waiter, &client->waiters, link)
		pthread_cond_signal(&waiter->wake);
}

/* ---- Handing out --------------------------------------------------------------------------------------- */

/* A reply to no request: the daemon's reason for closing the connection. */
static int take_farewell(const Zd__Reply *reply, struct zd_err *err)
{
	if (reply->status >= 0)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon sent a reply without an id");
	return zd_err_set(err, reply->status, "%s",
	                  reply->error[0] ? reply->error : zerod_status_name(reply->status));
}

static int take_reply(struct zerod_client *client, struct zc_packet *packet, const Zd__Reply *reply,
                      struct zd_err *err)
{
	struct zc_op *op;
	int rc = 0;

	if (reply->id == 0)
		return take_farewell(reply, err);
	if (reply->status > 0)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon sent the status %d", reply->status);
	op = zc_op_find(client, reply->id);
	if (op ? op->answered || !op->sent : reply->id > client->next_id)
		return zd_err_set(err, ZEROD_E_PROTOCOL,
		                  "the daemon answered request %llu, which is not open",
		                  (unsigned long long)reply->id);
	if (!op) { /* the op's caller has stopped waiting; or a second answer, which is ignored as well */
		if (client->abandoned > 0) {
			client->abandoned--;
			client->outstanding--;
			zc_wake(client, NULL); /* wakes threads that wait for room */
		}
		return 0;
	}
	client->outstanding--;
	op->answered = true;
	op->status = reply->status;
	if (op->kind == ZC_OP_CALL) {
		zc_op_remove(op);
		op->reply = reply;
		op->packet = packet;
		packet->refs++;
		zc_wake(client, op);
	} else {
		zc_wake(client, op);
		rc = zc_ticket_answer(client, op, reply, err);
	}
	return rc;
}

bool zc_hello_has_feature(const Zd__HelloReply *hello, const char *feature)
{
	for (size_t i = 0; i < hello->n_features; i++)
		if (strcmp(hello->features[i], feature) == 0)
			return true;
	return false;
}

/* Every descriptor is stored or closed. The hello's reply has two more than there are segments, or up to
 * five. */
static int take_descriptors(struct zerod_client *client, const Zd__DaemonPacket *parsed, const int *fds,
                            unsigned nfds, struct zd_err *err)
{
	const Zd__HelloReply *hello = NULL;
	unsigned nhello = 0, used = 0;
	bool work = false, rings = false;
	int rc = 0;

	for (size_t i = 0; i < parsed->n_replies; i++)
		if (parsed->replies[i]->body_case == ZD__REPLY__BODY_HELLO && !client->client_page) {
			hello = parsed->replies[i]->hello;
			work = zc_hello_has_feature(hello, ZD_FEATURE_WORK);
			rings = zc_hello_has_feature(hello, ZD_FEATURE_RINGS);
			nhello = 2 + (work ? 2 : 0) + rings;
			client->on_gpus = strcmp(hello->backend, "cuda") == 0;
		}
	if (parsed->n_segments + nhello != nfds)
		rc = zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon sent %u descriptors, %zu were announced",
		                nfds, parsed->n_segments + nhello);
	if (!rc && hello) {
		rc = zc_pages_map(client, fds[0], fds[1], err);
		used = 2;
	}
	if (!rc && work) {
		rc = zc_pages_take_work(client, fds[2], fds[3], err);
		used = 4;
	}
	if (!rc && rings)
		rc = zc_pages_take_rings(client, fds[used++], err);
	for (size_t i = 0; i < parsed->n_segments && !rc; i++)
		rc = zc_segment_add(client, parsed->segments[i], fds[used++], err);
	while (used < nfds)
		(void)close(fds[used++]);
	return rc;
}

static int take_packet_content(struct zerod_client *client, struct zc_packet *packet,
                               const Zd__DaemonPacket *parsed, const int *fds, unsigned nfds,
                               struct zd_err *err)
{
	int rc = take_descriptors(client, parsed, fds, nfds, err);

	for (size_t i = 0; i < parsed->n_replies && !rc; i++)
		rc = take_reply(client, packet, parsed->replies[i], err);
	for (size_t i = 0; i < parsed->n_retired && !rc; i++)
		rc = zc_segment_retire(client, parsed->retired[i], err);
	if (parsed->n_segments + parsed->n_retired > 0)
		zc_wake(client, NULL); /* the worker may wait for them */
	return rc;
}

/* ---- Reading ------------------------------------------------------------------------------------------- */

struct received {
	const Zd__DaemonPacket *parsed;
	int fds[ZD_MAX_PACKET_FDS];
	unsigned nfds;
};

static bool is_ready(const struct zerod_client *client, int timeout_ms, bool or_writable)
{
	struct pollfd poll_for = {.fd = client->endpoint.sock, .events = POLLIN};

	if (or_writable)
		poll_for.events |= POLLOUT;
	return poll(&poll_for, 1, timeout_ms) > 0;
}

bool zc_nap(struct pollfd *fds, nfds_t nfds, uint64_t until_ns)
{
	const struct timespec nap = {.tv_nsec = NAP_NS};
	int ready;

	do
		ready = ppoll(fds, nfds, &nap, NULL);
	while (ready <= 0 && zc_now_ns() < until_ns);
	return ready > 0;
}

/* The answer to a call or to a gather usually arrives sooner than a sleeping thread wakes. */
static int spin(struct zerod_client *client, size_t *nbytes, struct received *received, struct zd_err *err)
{
	int rc = ZD_FRAME_AGAIN;

	while (rc == ZD_FRAME_AGAIN && zd_spin_may(&client->spin, zc_now_ns()))
		rc = zd_endpoint_try_recv(&client->endpoint, client->receive_buffer, ZD_MAX_PACKET_BYTES,
		                          nbytes, received->fds, &received->nfds, err);
	return rc;
}

/* Polls for a packet before the thread sleeps. Returns whether one arrived. */
static bool naps(const struct zerod_client *client, int timeout_ms)
{
	struct pollfd poll_for = {.fd = client->endpoint.sock, .events = POLLIN};
	bool is_long = timeout_ms < 0 || (uint64_t)timeout_ms * NS_PER_MS > ZC_NAPS_NS;

	return is_long && client->naps && client->spin.window_ns > 0 &&
	       zc_nap(&poll_for, 1, zc_now_ns() + ZC_NAPS_NS);
}

/* Sleeps until the socket is readable. The socket's timeout limits a wait; the caller then waits again. */
static int sleep_for_packet(struct zerod_client *client, int timeout_ms, bool or_writable, size_t *nbytes,
                            struct received *received, struct zd_err *err)
{
	bool napped = naps(client, timeout_ms);

	if (!napped && !or_writable && (timeout_ms < 0 || timeout_ms >= zc_ask_slice_ms(client)))
		return zd_endpoint_recv_wait(&client->endpoint, client->receive_buffer, ZD_MAX_PACKET_BYTES,
		                             nbytes, received->fds, &received->nfds, err);
	if (!napped && !is_ready(client, timeout_ms, or_writable))
		return ZD_FRAME_AGAIN;
	return zd_endpoint_recv(&client->endpoint, client->receive_buffer, ZD_MAX_PACKET_BYTES, nbytes,
	                        received->fds, &received->nfds, err);
}

static int receive_packet(struct zerod_client *client, int timeout_ms, bool or_writable, size_t *nbytes,
                          struct received *received, struct zd_err *err)
{
	int rc = ZD_FRAME_AGAIN;

	if (timeout_ms != 0)
		rc = spin(client, nbytes, received, err);
	if (rc != ZD_FRAME_AGAIN)
		return rc;
	if (timeout_ms == 0 || !zd_endpoint_rest(&client->endpoint))
		return zd_endpoint_try_recv(&client->endpoint, client->receive_buffer, ZD_MAX_PACKET_BYTES,
		                            nbytes, received->fds, &received->nfds, err);
	rc = sleep_for_packet(client, timeout_ms, or_writable, nbytes, received, err);
	zd_endpoint_start_polling(&client->endpoint);
	return rc;
}

/* Without the lock, by the reading thread. Returns 0, ZD_FRAME_AGAIN, or the status that ended the
 * connection. */
static int receive_bytes(struct zerod_client *client, int timeout_ms, bool or_writable,
                         struct zc_packet *packet, struct received *received, struct zd_err *err)
{
	size_t nbytes;
	int rc = receive_packet(client, timeout_ms, or_writable, &nbytes, received, err);

	if (rc)
		return rc;
	received->parsed = zd_daemon_packet_unpack(&packet->arena, nbytes, client->receive_buffer);
	if (received->parsed)
		return 0;
	for (unsigned i = 0; i < received->nfds; i++)
		(void)close(received->fds[i]);
	return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon sent %zu bytes that are no packet", nbytes);
}

/* Until another thread reads, the next packet makes the watches' descriptors readable. */
static void rest_for_watches(struct zerod_client *client)
{
	const struct zerod_watch *watch;

	if (LIST_EMPTY(&client->watches) || zd_endpoint_rest(&client->endpoint))
		return;
	LIST_FOREACH (watch, &client->watches, link)
		zc_watch_wake(watch); /* a packet is in the ring */
}

bool zc_read(struct zerod_client *client, int timeout_ms, bool or_writable)
{
	struct zc_packet *packet = take_packet(client);
	struct received received = {.nfds = 0};
	struct zd_err err;
	int rc;

	if (!packet) {
		(void)zd_err_errno(&err, ENOMEM, "receiving a packet");
		zc_break(client, &err);
		return false;
	}
	client->reading = true;
	pthread_mutex_unlock(&client->lock);
	rc = receive_bytes(client, timeout_ms, or_writable, packet, &received, &err);
	pthread_mutex_lock(&client->lock);
	client->reading = false;
	if (!rc)
		rc = take_packet_content(client, packet, received.parsed, received.fds, received.nfds, &err);
	if (rc < 0)
		zc_break(client, &err);
	zc_packet_unref(client, packet);
	rest_for_watches(client);
	if (client->nunmapped > 0) {
		pthread_mutex_unlock(&client->lock);
		zc_transmit_unmapped(client);
		pthread_mutex_lock(&client->lock);
	}
	return rc == 0;
}

void zc_drain(struct zerod_client *client)
{
	bool more = true;

	while (more && !client->reading && !client->broken_status)
		more = zc_read(client, 0, false);
	zc_hand_over(client);
}

/* ---- Waiting ------------------------------------------------------------------------------------------- */

static int poll_timeout_ms(uint64_t deadline_ns, uint64_t now_ns)
{
	uint64_t left_ms;

	if (deadline_ns == UINT64_MAX)
		return -1;
	left_ms = (deadline_ns - now_ns) / NS_PER_MS + 1;
	return left_ms < INT_MAX ? (int)left_ms : INT_MAX;
}

bool zc_wait_progress(struct zerod_client *client, const struct zc_op *op, uint64_t deadline_ns)
{
	uint64_t now_ns = deadline_ns == UINT64_MAX ? 0 : zc_now_ns();

	if (now_ns >= deadline_ns)
		return false;
	if (client->reading) {
		zc_waiter_sleep(client, op, deadline_ns);
		return true;
	}
	client->naps = op && (op->kind == ZC_OP_CALL || op->kind == ZC_OP_OTHER);
	if (client->naps)
		zd_spin_expect(&client->spin, zc_now_ns() + ZC_CALL_SPIN_NS);
	else if (op && op->kind == ZC_OP_GATHER)
		zd_spin_expect(&client->spin, zc_now_ns() + ZC_SPIN_NS);
	(void)zc_read(client, poll_timeout_ms(deadline_ns, now_ns), false);
	return true;
}

int zc_wait_answer(struct zerod_client *client, const struct zc_op *op, uint64_t deadline_ns)
{
	uint64_t ask_ns = op->answered ? UINT64_MAX : zc_ask_from(client);
	bool in_time = true, given_up = false, again = false;

	while (!op->answered && in_time && !given_up) {
		in_time = zc_wait_progress(client, again ? NULL : op, deadline_ns);
		given_up = !op->answered && zc_ask_locked(client, &ask_ns);
		again = client->interrupted; /* naps are for the first slice */
	}
	zc_hand_over(client);
	if (op->answered)
		return 0;
	return given_up ? ZEROD_E_INTERRUPTED : ZEROD_E_DEADLINE;
}
