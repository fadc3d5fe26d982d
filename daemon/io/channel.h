/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel.h - the daemon's end of a session's work channel: a second socket, over which the daemon asks.
 *
 * Packets are sent one by one and never queued here: what the socket has no room for stays the caller's until
 * `writable`. So a client that does not read costs nothing, and is left alone. Every callback ends with
 * zd_conns_flush().
 */
#ifndef ZD_IO_CHANNEL_H
#define ZD_IO_CHANNEL_H

#include <stddef.h>
#include <stdint.h>

struct zd_channel;
struct zd_conns;
struct zd_err;
struct zd_ring;

/* The channel may be closed in any of them. */
struct zd_channel_ops {
	/* A packet came, without descriptors. The bytes are valid during the call. */
	void (*packet)(void *arg, const uint8_t *bytes, size_t nbytes);
	/* There is room again, after zd_channel_send() had found none. */
	void (*writable)(void *arg);
	/* It is of no use any more: the client has closed it (DISCONNECTED), or sent what no client sends.
	 * Called once. */
	void (*broken)(void *arg, const struct zd_err *why);
};

/* Makes both ends. The client's belongs to the caller. Errors: SYSTEM. */
int zd_channel_new(struct zd_conns *conns, const struct zd_channel_ops *ops, void *arg,
                   struct zd_channel **channel, int *client_fd, struct zd_err *err)
        __attribute__((warn_unused_result));
/* From now on, packets may also go by these, which have to last until it is closed. */
void zd_channel_use_rings(struct zd_channel *channel, struct zd_ring *works, struct zd_ring *answers);
/* No callback comes any more. NULL is allowed. */
void zd_channel_close(struct zd_channel *channel);

/* 0, ZD_FRAME_AGAIN: `writable` will be called, or what is wrong with the socket. */
int zd_channel_send(struct zd_channel *channel, const uint8_t *bytes, size_t nbytes, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
