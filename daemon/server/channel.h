/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel.h - the daemon's end of a session's work channel: a second socket, on which the daemon sends
 * requests to the client.
 *
 * Packets are sent one by one and never queued here. If the socket has no room, the caller holds the packet
 * until `writable`. A client that does not read therefore uses no memory of the daemon. Every callback of the
 * loop ends with zd_conns_flush().
 */
#ifndef ZD_SERVER_CHANNEL_H
#define ZD_SERVER_CHANNEL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct zd_channel;
struct zd_conns;
struct zd_err;
struct zd_ring;

/* The callbacks of a channel. Each may close the channel. */
struct zd_channel_ops {
	/* Called when a packet was received, without descriptors. The bytes are valid during the call. */
	void (*packet)(void *arg, const uint8_t *bytes, size_t nbytes);
	/* Called when the socket has room again, after zd_channel_send() found none. */
	void (*writable)(void *arg);
	/* Called once, when the channel cannot be used any more: the client has closed it (DISCONNECTED), or
	 * has sent an invalid packet. */
	void (*broken)(void *arg, const struct zd_err *why);
};

/* Creates both ends, for a session of this uid, in whose turns answers are handled. The caller owns the
 * client's end. Errors: SYSTEM. */
int zd_channel_new(struct zd_conns *conns, uid_t uid, const struct zd_channel_ops *ops, void *arg,
                   struct zd_channel **channel, int *client_fd, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Lets packets also use these rings, which must remain valid until the channel is closed. */
void zd_channel_use_rings(struct zd_channel *channel, struct zd_ring *works, struct zd_ring *answers);
/* Closes the channel: no callback follows. NULL is allowed. */
void zd_channel_close(struct zd_channel *channel);

/* Sends a packet. Returns 0, an error of the socket, or ZD_FRAME_AGAIN: `writable` will then be called. */
int zd_channel_send(struct zd_channel *channel, const uint8_t *bytes, size_t nbytes, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
