/* SPDX-License-Identifier: Apache-2.0 */
/* channel.c - the daemon's end of a session's work channel. */
#include "server/channel.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "base/err.h"
#include "base/mem.h"
#include "proto/endpoint.h"
#include "server/conn.h"
#include "server/loop.h"

struct zd_channel {
	struct zd_conns *conns;
	const struct zd_channel_ops *ops;
	void *arg;
	struct zd_endpoint client;
	struct zd_poll_source poll_source; /* polled for answers in the ring */
	bool broken;
	uv_poll_t readiness;
};

static void on_ready(uv_poll_t *handle, int status, int events);

static void poll_for(struct zd_channel *channel, int events)
{
	int rc = uv_poll_start(&channel->readiness, events, on_ready);

	zd_assert(rc == 0); /* fails only for handles that are closing */
}

static void poll_ring(struct zd_channel *channel)
{
	if (channel->client.in.ring)
		zd_loop_list(channel->conns->loop, &channel->poll_source);
}

static void break_off(struct zd_channel *channel, const struct zd_err *why)
{
	if (channel->broken)
		return;
	channel->broken = true;
	zd_loop_drop(channel->conns->loop, &channel->poll_source);
	(void)uv_poll_stop(&channel->readiness);
	channel->ops->broken(channel->arg, why);
}

/* One packet per event, so that a client that sends much does not delay others. */
static void receive_answers(struct zd_channel *channel)
{
	uint8_t *inbox = channel->conns->inbox;
	int fds[ZD_MAX_PACKET_FDS];
	unsigned nfds = 0;
	size_t nbytes;
	struct zd_err err;
	int rc = zd_endpoint_recv(&channel->client, inbox, ZD_MAX_PACKET_BYTES, &nbytes, fds, &nfds, &err);

	for (unsigned i = 0; rc == 0 && i < nfds; i++)
		(void)close(fds[i]);
	if (rc == 0 && nfds > 0)
		rc = zd_err_set(&err, ZEROD_E_PROTOCOL,
		                "a packet with %u descriptors on the work channel: clients send none", nfds);
	if (rc == ZEROD_E_DISCONNECTED)
		(void)zd_err_set(&err, rc, "the client closed the connection");
	if (rc == 0)
		channel->ops->packet(channel->arg, inbox, nbytes);
	else if (rc < 0)
		break_off(channel, &err);
}

static void on_ready(uv_poll_t *handle, int status, int events)
{
	struct zd_channel *channel = handle->data;
	struct zd_conns *conns = channel->conns;

	zd_loop_note_event(handle->loop);
	/* The client has closed its end without reading all packets, and libuv polls no more. Packets that
	 * the client sent before are read first. */
	if (status < 0)
		poll_for(channel, UV_READABLE);
	if (events & UV_WRITABLE) { /* readable data stays readable, and is handled by the next event */
		poll_for(channel, UV_READABLE);
		channel->ops->writable(channel->arg);
	} else {
		poll_ring(channel);
		receive_answers(channel);
	}
	zd_conns_flush(conns);
}

static bool has_answer(const void *arg)
{
	const struct zd_channel *channel = arg;

	return zd_endpoint_is_due(&channel->client);
}

static void take_answer(void *arg)
{
	struct zd_channel *channel = arg;
	struct zd_conns *conns = channel->conns;

	zd_loop_note_event(&conns->loop->uv);
	receive_answers(channel);
	zd_conns_flush(conns);
}

int zd_channel_new(struct zd_conns *conns, const struct zd_channel_ops *ops, void *arg,
                   struct zd_channel **channel, int *client_fd, struct zd_err *err)
{
	struct zd_channel *made;
	int pair[2], rc;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair))
		return zd_err_errno(err, errno, "making a work channel");
	made = zd_calloc(1, sizeof(*made));
	*made = (struct zd_channel){.conns = conns, .ops = ops, .arg = arg, .client.sock = pair[0]};
	rc = uv_poll_init(&conns->loop->uv, &made->readiness, made->client.sock);
	if (rc) {
		(void)close(pair[0]);
		(void)close(pair[1]);
		free(made);
		return zd_loop_error(err, rc, "watching a work channel");
	}
	made->readiness.data = made;
	poll_for(made, UV_READABLE);
	*channel = made;
	*client_fd = pair[1];
	return 0;
}

static void handle_closed(uv_handle_t *handle)
{
	struct zd_channel *channel = handle->data;

	(void)close(channel->client.sock);
	free(channel);
}

void zd_channel_use_rings(struct zd_channel *channel, struct zd_ring *works, struct zd_ring *answers)
{
	channel->client.in.ring = answers;
	channel->client.out.ring = works;
	channel->poll_source = (struct zd_poll_source){
	        .has = has_answer, .take = take_answer, .arg = channel, .polling = &answers->polling};
}

void zd_channel_close(struct zd_channel *channel)
{
	if (!channel)
		return;
	zd_loop_drop(channel->conns->loop, &channel->poll_source);
	(void)shutdown(channel->client.sock, SHUT_RDWR);
	uv_close((uv_handle_t *)&channel->readiness, handle_closed);
}

int zd_channel_send(struct zd_channel *channel, const uint8_t *bytes, size_t nbytes, struct zd_err *err)
{
	int rc = zd_endpoint_send(&channel->client, bytes, nbytes, NULL, 0, err);

	if (rc == ZD_FRAME_AGAIN && !channel->broken)
		poll_for(channel, UV_READABLE | UV_WRITABLE);
	return rc;
}
