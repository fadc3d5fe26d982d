/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.h - one side of a SOCK_SEQPACKET socket, and of the rings beside it. Used alike by the daemon and the
 * library.
 *
 * A packet goes by the ring while the other side looks there, and by the socket when that sleeps, when the
 * ring is full, or with descriptors; packets arrive in the order in which they were sent. Without rings a
 * link is a socket.
 *
 * One thread at a time sends, one at a time receives. Who receives looks by zd_link_try_recv(), again and
 * again. Before it sleeps it calls zd_link_rest(), and when that says so it may wait for the socket to be
 * readable; zd_link_look() ends the sleep. A sender that finds the other asleep when its packet is in the
 * ring already sends one byte by the socket, which is no packet, and wakes it.
 */
#ifndef ZD_PROTO_LINK_H
#define ZD_PROTO_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/frame.h"
#include "proto/ring.h"

struct zd_link {
	int sock;
	struct zd_ring_end out, in;
	uint32_t nsent, nreceived; /* packets, by the socket */
};

/* Errors as of zd_frame_send(). */
int zd_link_send(struct zd_link *link, const void *bytes, size_t nbytes, const int *fds, unsigned nfds,
                 struct zd_err *err) __attribute__((warn_unused_result));

/* The three below: as zd_frame_recv(), and PROTOCOL for a ring that makes no sense. ZD_FRAME_AGAIN also for
 * the byte that wakes, behind which more may be there. */
int zd_link_try_recv(struct zd_link *link, void *buffer, size_t buffer_bytes, size_t *nbytes,
                     int fds[ZD_MAX_PACKET_FDS], unsigned *nfds, struct zd_err *err)
        __attribute__((warn_unused_result));
/* For who has seen, since the last packet, that the socket is readable, or zd_link_is_due(), or who is at
 * rest. */
int zd_link_recv(struct zd_link *link, void *buffer, size_t buffer_bytes, size_t *nbytes,
                 int fds[ZD_MAX_PACKET_FDS], unsigned *nfds, struct zd_err *err)
        __attribute__((warn_unused_result));
/* At rest: blocks if the socket does. */
int zd_link_recv_wait(struct zd_link *link, void *buffer, size_t buffer_bytes, size_t *nbytes,
                      int fds[ZD_MAX_PACKET_FDS], unsigned *nfds, struct zd_err *err)
        __attribute__((warn_unused_result));

/* Has the ring the next packet? */
bool zd_link_is_due(const struct zd_link *link);
/* May the thread sleep until the socket is readable? If not, zd_link_recv(). */
bool zd_link_rest(struct zd_link *link) __attribute__((warn_unused_result));
void zd_link_look(struct zd_link *link);

#endif
