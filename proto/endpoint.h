/* SPDX-License-Identifier: Apache-2.0 */
/*
 * endpoint.h - one side of a SOCK_SEQPACKET socket, and of the rings beside it. Used alike by the daemon and
 * the library.
 *
 * A packet travels by the ring while the other side polls it, and by the socket while the other side sleeps,
 * when the ring is full, or when it carries descriptors. Packets arrive in the order in which they were sent.
 * Without rings an endpoint is a socket.
 *
 * At most one thread sends at a time, and at most one receives. The receiver polls with
 * zd_endpoint_try_recv(). Before it sleeps it calls zd_endpoint_rest(); if the result is true, the receiver
 * may wait for the socket to be readable. zd_endpoint_start_polling() ends the sleep. A sender whose packet
 * is in the ring when the receiver has gone to sleep sends one byte by the socket. The byte is no packet, and
 * wakes the receiver.
 */
#ifndef ZD_PROTO_ENDPOINT_H
#define ZD_PROTO_ENDPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/frame.h"
#include "proto/ring.h"

struct zd_endpoint {
	int sock;
	struct zd_ring_end out, in;
	uint32_t nsent, nreceived; /* packets, by the socket */
};

/* Sends a packet. Errors: those of zd_frame_send(). */
int zd_endpoint_send(struct zd_endpoint *endpoint, const void *bytes, size_t nbytes, const int *fds,
                     unsigned nfds, struct zd_err *err) __attribute__((warn_unused_result));

/* Polls for a packet. Returns what zd_frame_recv() returns, and PROTOCOL for an invalid ring. ZD_FRAME_AGAIN
 * also for the byte that wakes the receiver, behind which there may be packets. */
int zd_endpoint_try_recv(struct zd_endpoint *endpoint, void *buffer, size_t buffer_bytes, size_t *nbytes,
                         int fds[ZD_MAX_PACKET_FDS], unsigned *nfds, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Receives a packet; results as above. Call this only if, since the last packet, the socket was readable or
 * zd_endpoint_is_due() was true, or after zd_endpoint_rest(). */
int zd_endpoint_recv(struct zd_endpoint *endpoint, void *buffer, size_t buffer_bytes, size_t *nbytes,
                     int fds[ZD_MAX_PACKET_FDS], unsigned *nfds, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Receives a packet after zd_endpoint_rest(); results as above. Blocks if the socket is a blocking one. */
int zd_endpoint_recv_wait(struct zd_endpoint *endpoint, void *buffer, size_t buffer_bytes, size_t *nbytes,
                          int fds[ZD_MAX_PACKET_FDS], unsigned *nfds, struct zd_err *err)
        __attribute__((warn_unused_result));

/* Whether the next packet is in the ring. */
bool zd_endpoint_is_due(const struct zd_endpoint *endpoint);
/* Stops polling. Returns whether the thread may sleep until the socket is readable; if not, it calls
 * zd_endpoint_recv(). */
bool zd_endpoint_rest(struct zd_endpoint *endpoint) __attribute__((warn_unused_result));
void zd_endpoint_start_polling(struct zd_endpoint *endpoint);

#endif
