/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transmit.c - sends packets to the socket, and detects by the socket that the daemon has ended.
 *
 * A sender that finds the socket full also reads, because the daemon stops reading from a client that does
 * not read its replies.
 */
#include <poll.h>
#include <stdlib.h>

#include "client/lib/base/options.h"
#include "client/lib/conn/request.h"

#define UNMAPPED_AT_ONCE  128u /* ids, which then fit there */
#define WRITABLE_SLICE_MS 5    /* while another thread reads, it may leave with replies unread */

/* ---- Packets ------------------------------------------------------------------------------------------- */

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

/* ---- Messages of the library itself -------------------------------------------------------------------- */

/* With send_lock. The daemon's answer is ignored, like the answer of a call that has ended. */
static int send_unmapped(struct zerod_client *client, uint64_t deadline_ns)
{
	Zd__SegmentsUnmapped unmapped = ZD__SEGMENTS_UNMAPPED__INIT;
	Zd__Request request = ZD_REQUEST(SEGMENTS_UNMAPPED, segments_unmapped, &unmapped);
	uint32_t segments[UNMAPPED_AT_ONCE];
	struct zc_packed packed;
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
	rc = zc_pack(&request, &packed, &err);
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

/* Does nothing while another thread holds send_lock. That thread calls this function after it has released
 * the lock. */
void zc_transmit_unmapped(struct zerod_client *client)
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

/* The answer is ignored, as that of send_unmapped(). */
void zc_transmit_cancel(struct zerod_client *client, uint64_t id)
{
	Zd__Cancel cancel = ZD__CANCEL__INIT;
	Zd__Request request = ZD_REQUEST(CANCEL, cancel, &cancel);
	struct zc_packed packed;
	struct zd_err ignored;
	int rc;

	pthread_mutex_lock(&client->lock);
	request.id = ++client->next_id;
	client->outstanding++;
	client->abandoned++;
	pthread_mutex_unlock(&client->lock);
	cancel.request = id;
	rc = zc_pack(&request, &packed, &ignored); /* it is small */
	pthread_mutex_lock(&client->send_lock);
	if (!rc)
		rc = push_packet(client, packed.bytes, packed.nbytes, zc_now_ns() + ZC_GRACE_NS, &ignored);
	pthread_mutex_unlock(&client->send_lock);
	if (!rc)
		return;
	ZC_LOCKED(&client->lock);
	client->abandoned--;
	zc_outstanding_return(client, 1);
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

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
	zc_transmit_unmapped(client);
	if (!rc)
		return 0;
	ZC_LOCKED(&client->lock);

	fail_unsent(client, ids, nids, err);
	return rc;
}
