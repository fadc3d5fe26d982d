/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel.c - the daemon's end of a session's work channel.
 *
 * Answers are handled in turns of the session's user, as its requests are.
 */
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
	struct zd_user *user;
	struct zd_task task; /* queued: answers wait for the user's turn */
	bool over;           /* broken or closed */
	bool full;           /* the socket had no room */
	uv_poll_t readiness;
};

static void on_ready(uv_poll_t *handle, int status, int events);

static void update_poll(struct zd_channel *channel)
{
	int events = (channel->task.queued ? 0 : UV_READABLE) | (channel->full ? UV_WRITABLE : 0);

	if (channel->over)
		return;
	int rc = events ? uv_poll_start(&channel->readiness, events, on_ready)
	                : uv_poll_stop(&channel->readiness);
	zd_assert(rc == 0); /* fails only for handles that are closing */
}

static void break_off(struct zd_channel *channel, const struct zd_err *why)
{
	if (channel->over)
		return;
	channel->over = true;
	zd_loop_drop(channel->conns->loop, &channel->poll_source);
	(void)uv_poll_stop(&channel->readiness);
	channel->ops->broken(channel->arg, why);
}

/* One packet per event, so that a client that sends many packets does not delay others. */
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

static void run_task(void *arg)
{
	struct zd_channel *channel = arg;
	struct zd_conns *conns = channel->conns;

	if (channel->over)
		return;
	if (channel->client.in.ring)
		zd_loop_list(channel->conns->loop, &channel->poll_source);
	receive_answers(channel);
	update_poll(channel);
	zd_conns_flush(conns);
}

/* An answer has arrived. */
static void receive_or_enqueue(struct zd_channel *channel)
{
	struct zd_user *user = channel->user;

	if (!zd_user_may_begin(user)) {
		zd_user_enqueue(user, &channel->task);
		update_poll(channel);
		return;
	}
	zd_user_begin(user);
	run_task(channel);
	zd_user_end(user);
}

static void on_ready(uv_poll_t *handle, int status, int events)
{
	struct zd_channel *channel = handle->data;
	struct zd_conns *conns = channel->conns;

	zd_loop_note_event(handle->loop);
	/* The client has closed its end without reading all packets, and libuv polls no more. Packets that
	 * the client sent before are read first. */
	if (status < 0)
		channel->full = false;
	if (events & UV_WRITABLE) { /* readable data remains readable, and the next event handles it */
		channel->full = false;
		update_poll(channel);
		channel->ops->writable(channel->arg);
		zd_conns_flush(conns);
	} else if (!channel->task.queued) {
		receive_or_enqueue(channel);
	} else {
		update_poll(channel);
	}
}

static bool has_answer(const void *arg)
{
	const struct zd_channel *channel = arg;

	return !channel->task.queued && zd_endpoint_is_due(&channel->client);
}

static void take_answer(void *arg)
{
	struct zd_channel *channel = arg;

	zd_loop_note_event(&channel->conns->loop->uv);
	receive_or_enqueue(channel);
}

int zd_channel_new(struct zd_conns *conns, uid_t uid, const struct zd_channel_ops *ops, void *arg,
                   struct zd_channel **channel, int *client_fd, struct zd_err *err)
{
	int pair[2], rc;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair))
		return zd_err_errno(err, errno, "making a work channel");
	struct zd_channel *made = zd_calloc(1, sizeof(*made));
	*made = (struct zd_channel){.conns = conns, .ops = ops, .arg = arg, .client.sock = pair[0]};
	rc = uv_poll_init(&conns->loop->uv, &made->readiness, made->client.sock);
	if (rc) {
		(void)close(pair[0]);
		(void)close(pair[1]);
		free(made);
		return zd_loop_error(err, rc, "watching a work channel");
	}
	made->readiness.data = made;
	made->user = zd_user_get(&conns->users, uid);
	made->task = (struct zd_task){.run = run_task, .arg = made};
	update_poll(made);
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
	channel->over = true;
	zd_loop_drop(channel->conns->loop, &channel->poll_source);
	zd_user_dequeue(channel->user, &channel->task);
	zd_user_put(channel->user);
	(void)shutdown(channel->client.sock, SHUT_RDWR);
	uv_close((uv_handle_t *)&channel->readiness, handle_closed);
}

int zd_channel_send(struct zd_channel *channel, const uint8_t *bytes, size_t nbytes, struct zd_err *err)
{
	int rc = zd_endpoint_send(&channel->client, bytes, nbytes, NULL, 0, err);

	if (rc == ZD_FRAME_AGAIN) {
		channel->full = true;
		update_poll(channel);
	}
	return rc;
}
