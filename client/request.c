/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - a request from its id to the socket, and the call that waits for its reply.
 *
 * Invariants: an op is in the table before its request can be answered. client->outstanding counts the
 * requests that the daemon has not answered and those that will be sent, also in batches. A request reserves
 * its room before any other step, and no lock is held while it waits for room: up to ZD_MAX_OUTSTANDING,
 * releases and goodbyes ZD_RELEASE_ROOM more. Messages about unmapped segments need no room, since the daemon
 * answers them at once. A sender that finds the socket full also reads, since the daemon stops reading a
 * client that does not read its replies.
 */
#include "client/client.h"
#include "client/options.h"
#include "client/request.h"
#include "proto/envelope.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#define SMALL_REQUEST_BYTES 1024u /* packed on the stack */
#define UNMAPPED_AT_ONCE    128u  /* ids, which then fit there */
#define WRITABLE_SLICE_MS   5     /* while another thread reads, it may leave with replies unread */

/* ---- The table ----------------------------------------------------------------------------------------- */

static struct zc_op_list *chain(struct zerod_client *client, uint64_t id)
{
	return &client->ops[id % ZC_OP_CHAINS];
}

struct zc_op *zc_op_find(struct zerod_client *client, uint64_t id)
{
	struct zc_op *op;

	LIST_FOREACH (op, chain(client, id), in_table)
		if (op->id == id)
			return op;
	return NULL;
}

void zc_op_remove(struct zc_op *op)
{
	LIST_REMOVE(op, in_table);
}

static void add_op(struct zerod_client *client, struct zc_op *op, Zd__Request *request)
{
	pthread_mutex_lock(&client->lock);
	op->id = ++client->next_id;
	LIST_INSERT_HEAD(chain(client, op->id), op, in_table);
	pthread_mutex_unlock(&client->lock);
	request->id = op->id;
}

uint64_t zc_op_done(struct zerod_client *client, struct zc_op *op)
{
	uint64_t id;

	pthread_mutex_lock(&client->lock);
	id = op->id = ++client->next_id;
	op->answered = true;
	LIST_INSERT_HEAD(chain(client, id), op, in_table);
	zc_ticket_settle(client, op);
	pthread_mutex_unlock(&client->lock);
	return id;
}

void zc_op_fail(struct zerod_client *client, struct zc_op *op, const struct zd_err *err)
{
	op->answered = true;
	op->status = err->status;
	if (op->kind == ZC_OP_CALL)
		zc_op_remove(op);
	else
		zc_ticket_fail(client, op, err->text);
	zc_wake(client, op);
}

/* ---- Packing ------------------------------------------------------------------------------------------- */

/* A packet of one request. Packets of several are these, one behind the other: protobuf reads repeated fields
 * so. */
struct packed {
	uint8_t small[SMALL_REQUEST_BYTES];
	uint8_t *large; /* NULL: in `small` */
	uint8_t *bytes;
	size_t nbytes;
};

static int pack(const Zd__Request *request, struct packed *packed, struct zd_err *err)
{
	struct zd_envelope envelope = zd_envelope_request(request);

	packed->large = NULL;
	packed->bytes = packed->small;
	packed->nbytes = envelope.bytes;
	if (packed->nbytes > ZD_MAX_PACKET_BYTES)
		return zd_err_set(err, ZEROD_E_LIMIT, "the request has %zu bytes, a packet at most %u",
		                  packed->nbytes, ZD_MAX_PACKET_BYTES);
	if (packed->nbytes > sizeof(packed->small)) {
		packed->large = malloc(packed->nbytes);
		if (!packed->large)
			return zd_err_errno(err, ENOMEM, "packing a request");
		packed->bytes = packed->large;
	}
	zd_envelope_pack(&envelope, packed->bytes);
	return 0;
}

/* ---- Outstanding requests ------------------------------------------------------------------------------ */

/* Releases and goodbyes end what other requests wait for: these must always come through. */
static unsigned outstanding_limit(Zd__Request__BodyCase body)
{
	bool ends = body == ZD__REQUEST__BODY_RELEASE || body == ZD__REQUEST__BODY_TARGET_RETURN ||
	            body == ZD__REQUEST__BODY_GOODBYE;

	return ends ? ZD_MAX_OUTSTANDING + ZD_RELEASE_ROOM : ZD_MAX_OUTSTANDING;
}

int zc_outstanding_reserve(struct zerod_client *client, Zd__Request__BodyCase body, unsigned count,
                           uint64_t deadline_ns, struct zd_err *err)
{
	unsigned limit = outstanding_limit(body);
	uint64_t ask_ns = deadline_ns ? zc_ask_from(client) : UINT64_MAX;
	bool in_time = true, given_up = false;

	pthread_mutex_lock(&client->lock);
	if (client->outstanding + count > limit)
		zc_drain(client);
	while (!client->broken_status && in_time && !given_up && client->outstanding + count > limit) {
		in_time = zc_wait_progress(client, NULL, deadline_ns);
		given_up = zc_ask_locked(client, &ask_ns);
	}
	zc_hand_over(client);
	if (client->broken_status)
		(void)zd_err_set(err, client->broken_status, "%s", client->broken_text);
	else if (!in_time || given_up)
		(void)zd_err_set(err,
		                 given_up      ? ZEROD_E_INTERRUPTED
		                 : deadline_ns ? ZEROD_E_DEADLINE
		                               : ZEROD_E_LIMIT,
		                 "%u requests are outstanding; at most %u", client->outstanding, limit);
	else
		err->status = 0;
	if (!err->status)
		client->outstanding += count;
	pthread_mutex_unlock(&client->lock);
	return err->status;
}

/* The thread's collected requests hold room too: they are sent before the thread waits. */
int zc_outstanding_await(struct zerod_client *client, Zd__Request *request, uint64_t deadline_ns,
                         struct zd_err *err)
{
	int rc = zc_outstanding_reserve(client, request->body_case, 1, 0, err);

	if (!rc)
		return 0;
	zc_flush(client);
	rc = zc_outstanding_reserve(client, request->body_case, 1, deadline_ns, err);
	request->deadline_ms = zc_deadline_ms(client, zc_left_ms(deadline_ns));
	return rc;
}

void zc_outstanding_return(struct zerod_client *client, unsigned count)
{
	client->outstanding -= count;
	zc_wake(client, NULL);
}

/* ---- Sending ------------------------------------------------------------------------------------------- */

/* Marks the requests of a packet as sent, before the packet is sent, so that their answers are expected. With
 * the lock. */
static void mark_sent(struct zerod_client *client, const uint64_t *ids, unsigned nids)
{
	for (unsigned i = 0; i < nids; i++) {
		struct zc_op *op = zc_op_find(client, ids[i]);

		if (op)
			op->sent = true;
	}
}

/* Fails the requests of a packet that has not reached the daemon, or whose connection has ended. With the
 * lock. */
static void fail_unsent(struct zerod_client *client, const uint64_t *ids, unsigned nids,
                        const struct zd_err *err)
{
	for (unsigned i = 0; i < nids; i++) {
		struct zc_op *op = zc_op_find(client, ids[i]);

		if (!op || op->answered)
			continue;
		zc_outstanding_return(client, 1);
		zc_op_fail(client, op, err);
	}
}

/* The socket is full: waits for room, reading meanwhile. False when the deadline has passed. */
static bool wait_writable(struct zerod_client *client, uint64_t deadline_ns)
{
	struct pollfd poll_for = {.fd = client->endpoint.sock, .events = POLLOUT};
	bool others_read;

	if (zc_now_ns() >= deadline_ns)
		return false;
	pthread_mutex_lock(&client->lock);
	others_read = client->reading;
	if (!others_read && !client->broken_status) {
		zc_read(client, (int)(ZC_POLL_SLICE_NS / 1000000u), true);
		zc_hand_over(client);
	}
	pthread_mutex_unlock(&client->lock);
	if (others_read)
		(void)poll(&poll_for, 1, WRITABLE_SLICE_MS);
	return true;
}

bool zc_is_hung_up(const struct zerod_client *client)
{
	struct pollfd hangup = {.fd = client->endpoint.sock, .events = POLLRDHUP};

	return client->broken_status || client->lost || poll(&hangup, 1, 0) > 0;
}

int zc_read_last_words(struct zerod_client *client, struct zd_err *err)
{
	uint64_t deadline_ns = zc_now_ns() + ZC_GRACE_NS;
	bool in_time = true;

	pthread_mutex_lock(&client->lock);
	while (!client->broken_status && in_time)
		in_time = zc_wait_progress(client, NULL, deadline_ns);
	zc_hand_over(client);
	if (!client->broken_status)
		zc_break(client, err);
	pthread_mutex_unlock(&client->lock);
	return zd_err_set(err, client->broken_status, "%s", client->broken_text);
}

static int push_packet(struct zerod_client *client, const uint8_t *bytes, size_t nbytes, uint64_t deadline_ns,
                       struct zd_err *err)
{
	int rc;

	client->packets++;
	while ((rc = zd_endpoint_send(&client->endpoint, bytes, nbytes, NULL, 0, err)) == ZD_FRAME_AGAIN) {
		if (client->broken_status)
			return zd_err_set(err, client->broken_status, "%s", client->broken_text);
		if (!wait_writable(client, deadline_ns))
			return zd_err_set(err, ZEROD_E_DEADLINE, "the daemon does not read its socket");
	}
	return rc == ZEROD_E_DISCONNECTED ? zc_read_last_words(client, err) : rc;
}

uint64_t zc_packets_sent(const struct zerod_client *client)
{
	return client->packets;
}

/* ---- Segments that were unmapped ----------------------------------------------------------------------- */

/* With send_lock. The daemon's answer is nobody's: it is as one whose caller has given up. */
static int send_unmapped(struct zerod_client *client, uint64_t deadline_ns)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__SegmentsUnmapped unmapped = ZD__SEGMENTS_UNMAPPED__INIT;
	uint32_t segments[UNMAPPED_AT_ONCE];
	struct packed packed;
	struct zd_err err;
	int rc;

	pthread_mutex_lock(&client->lock);
	while (unmapped.n_segments < UNMAPPED_AT_ONCE && client->nunmapped > 0)
		segments[unmapped.n_segments++] = client->unmapped[--client->nunmapped];
	if (unmapped.n_segments == 0) { /* another sender was faster */
		pthread_mutex_unlock(&client->lock);
		return 0;
	}
	request.id = ++client->next_id;
	client->outstanding++;
	client->abandoned++;
	pthread_mutex_unlock(&client->lock);
	unmapped.segments = segments;
	request.body_case = ZD__REQUEST__BODY_SEGMENTS_UNMAPPED;
	request.segments_unmapped = &unmapped;
	rc = pack(&request, &packed, &err);
	if (!rc) {
		rc = push_packet(client, packed.bytes, packed.nbytes, deadline_ns, &err);
		free(packed.large);
	}
	if (rc) { /* a daemon that does not read */
		pthread_mutex_lock(&client->lock);
		zc_break(client, &err);
		pthread_mutex_unlock(&client->lock);
	}
	return rc;
}

/* The answer is ignored, as that of send_unmapped(). */
void zc_request_cancel(struct zerod_client *client, uint64_t id)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Cancel cancel = ZD__CANCEL__INIT;
	struct packed packed;
	struct zd_err ignored;
	int rc;

	pthread_mutex_lock(&client->lock);
	request.id = ++client->next_id;
	client->outstanding++;
	client->abandoned++;
	pthread_mutex_unlock(&client->lock);
	cancel.request = id;
	request.body_case = ZD__REQUEST__BODY_CANCEL;
	request.cancel = &cancel;
	rc = pack(&request, &packed, &ignored); /* it is small */
	pthread_mutex_lock(&client->send_lock);
	if (!rc)
		rc = push_packet(client, packed.bytes, packed.nbytes, zc_now_ns() + ZC_GRACE_NS, &ignored);
	pthread_mutex_unlock(&client->send_lock);
	if (!rc)
		return;
	pthread_mutex_lock(&client->lock);
	client->abandoned--;
	zc_outstanding_return(client, 1);
	pthread_mutex_unlock(&client->lock);
}

int zc_transmit(struct zerod_client *client, const uint8_t *bytes, size_t nbytes, const uint64_t *ids,
                unsigned nids, uint64_t deadline_ns, struct zd_err *err)
{
	int rc;

	pthread_mutex_lock(&client->send_lock);
	pthread_mutex_lock(&client->lock);
	mark_sent(client, ids, nids);
	pthread_mutex_unlock(&client->lock);
	rc = push_packet(client, bytes, nbytes, deadline_ns, err);
	pthread_mutex_unlock(&client->send_lock);
	zc_unmapped_send(client);
	if (!rc)
		return 0;

	pthread_mutex_lock(&client->lock);
	fail_unsent(client, ids, nids, err);
	pthread_mutex_unlock(&client->lock);
	return rc;
}

/* Sends nothing while another thread holds send_lock: that thread calls this function after it has released
 * the lock. */
void zc_unmapped_send(struct zerod_client *client)
{
	bool any;
	int rc = 0;

	while (!rc) {
		pthread_mutex_lock(&client->lock);
		any = client->nunmapped > 0 && !client->broken_status;
		pthread_mutex_unlock(&client->lock);
		if (!any || pthread_mutex_trylock(&client->send_lock))
			return;
		rc = send_unmapped(client, zc_default_ns(client));
		pthread_mutex_unlock(&client->send_lock);
	}
}

void zc_drain_many(struct zerod_client *client, unsigned unsent)
{
	if (client->outstanding > ZC_DRAIN_ABOVE + unsent && !client->broken_status)
		zc_drain(client);
}

int zc_post(struct zerod_client *client, struct zc_op *op, Zd__Request *request, struct zd_err *err)
{
	struct zc_batch *batch = zc_batch_find(client);
	struct packed packed;
	int rc;

	op->refs++; /* it may be answered, released and forgotten before we are through */
	add_op(client, op, request);
	rc = pack(request, &packed, err);
	if (!rc) {
		if (batch)
			zc_batch_add(client, batch, packed.bytes, packed.nbytes, op->id);
		else
			rc = zc_transmit(client, packed.bytes, packed.nbytes, &op->id, 1,
			                 zc_default_ns(client), err);
		free(packed.large);
	}
	pthread_mutex_lock(&client->lock);
	if (rc) {
		if (!op->answered) {
			zc_outstanding_return(client, 1);
			zc_op_fail(client, op, err);
		}
		if (op->finished)
			zc_ticket_drop(client, op);
	}
	if (!batch) /* until zerod_uncork() sends the batch, the daemon has nothing more to answer */
		zc_drain_many(client, 0);
	zc_ticket_unref(client, op);
	pthread_mutex_unlock(&client->lock);
	return rc;
}

/* ---- Calls --------------------------------------------------------------------------------------------- */

int zc_check_body(const Zd__Reply *reply, Zd__Reply__BodyCase body, struct zd_err *err)
{
	if (reply->body_case == body)
		return 0;
	return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon's reply has body %d, expected %d",
	                  (int)reply->body_case, (int)body);
}

/* `waits`: the caller then waits for this answer, so the batch is sent. */
static int send_call(struct zerod_client *client, struct zc_op *op, Zd__Request *request, bool waits,
                     uint64_t deadline_ns, struct zd_err *err)
{
	struct zc_batch *batch = zc_batch_find(client);
	struct packed packed;
	int rc = zc_outstanding_await(client, request, deadline_ns, err);

	if (rc)
		return rc;
	add_op(client, op, request);
	rc = pack(request, &packed, err);
	if (!rc) {
		if (batch && waits)
			rc = zc_batch_add_last(client, batch, packed.bytes, packed.nbytes, op->id,
			                       deadline_ns, err);
		else if (batch)
			zc_batch_add(client, batch, packed.bytes, packed.nbytes, op->id);
		else
			rc = zc_transmit(client, packed.bytes, packed.nbytes, &op->id, 1, deadline_ns, err);
		free(packed.large);
		return rc;
	}
	pthread_mutex_lock(&client->lock);
	zc_outstanding_return(client, 1);
	zc_op_remove(op);
	pthread_mutex_unlock(&client->lock);
	return rc;
}

/* Waits; the op is out of the table afterwards, whatever is returned. */
static int wait_call(struct zerod_client *client, struct zc_op *op, uint64_t deadline_ns, struct zd_err *err)
{
	int rc;

	pthread_mutex_lock(&client->lock);
	rc = zc_wait_own_answer(client, op, deadline_ns);
	if (rc) {
		zc_op_remove(op);
		client->abandoned++; /* its answer may still come */
	}
	pthread_mutex_unlock(&client->lock);
	if (rc)
		return zd_err_set(err, rc,
		                  "the daemon did not answer in time; it may still do what was asked");
	if (!op->reply)
		return zd_err_set(err, op->status, "%s",
		                  client->broken_status ? client->broken_text
		                                        : "the daemon does not read its socket");
	if (op->status)
		return zd_err_set(err, op->status, "%s",
		                  op->reply->error[0] ? op->reply->error : zerod_status_name(op->status));
	return 0;
}

int zc_call_begin(struct zerod_client *client, struct zc_op *op, Zd__Request *request, uint64_t deadline_ns,
                  struct zd_err *err)
{
	return send_call(client, op, request, false, deadline_ns, err);
}

int zc_call_end(struct zerod_client *client, struct zc_op *op, uint64_t deadline_ns,
                int (*fn)(const Zd__Reply *reply, void *arg), void *arg, struct zd_err *err)
{
	int rc = wait_call(client, op, deadline_ns, err);

	if (!rc && fn)
		rc = fn(op->reply, arg);
	if (op->packet) {
		pthread_mutex_lock(&client->lock);
		if (rc == ZEROD_E_PROTOCOL && !op->status)
			zc_break(client, err);
		zc_packet_unref(client, op->packet);
		pthread_mutex_unlock(&client->lock);
	}
	return rc;
}

int zc_call(zerod_client *client, Zd__Request *request, uint32_t deadline_ms,
            int (*fn)(const Zd__Reply *reply, void *arg), void *arg)
{
	struct zc_op op = {.kind = ZC_OP_CALL};
	uint64_t deadline_ns;
	struct zd_err *err;
	int rc = zc_enter_quietly(client, &err);

	if (rc)
		return rc;
	request->deadline_ms = zc_deadline_ms(client, deadline_ms);
	deadline_ns = zc_until_ns(request->deadline_ms);
	rc = send_call(client, &op, request, true, deadline_ns, err);
	request->deadline_ms = zc_deadline_ms(client, deadline_ms); /* it may be kept, and repeated */
	return rc ? rc : zc_call_end(client, &op, zc_answer_ns(deadline_ns), fn, arg, err);
}
