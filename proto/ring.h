/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.h - packets from one process to another through memory that both map: one process writes, the other
 * reads.
 *
 * The two processes do not trust each other. Each process keeps a private copy of its own place in the ring
 * and checks the other's, and a packet is copied before it is parsed. So a process that writes garbage
 * damages its own connection only. Sleeping and waking are left to the socket (endpoint.h).
 */
#ifndef ZD_PROTO_RING_H
#define ZD_PROTO_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/limits.h"

/* The layout in memory; all 0 initially, and when the daemon has cleared the ring at the session's end.
 * A packet consists of its length, the number of packets that were sent by the socket before it, and its
 * bytes, padded to a multiple of 8. */
struct zd_ring {
	_Alignas(64) _Atomic uint64_t tail; /* the writer's place: bytes written so far */
	_Alignas(64) _Atomic uint64_t head; /* the reader's */
	atomic_uint polling;                /* not 0: the reader polls the ring */
	_Alignas(64) uint8_t data[ZD_RING_BYTES];
};
_Static_assert(sizeof(struct zd_ring) == 128 + ZD_RING_BYTES, "as PROTOCOL.md has it");

/* The rings of a session. */
struct zd_rings {
	struct zd_ring requests, replies; /* of the connection */
	struct zd_ring works, answers;    /* of the work channel */
};
_Static_assert(sizeof(struct zd_rings) <= ZD_RINGS_BYTES, "the rings fit into their file");

/* A side's view of a ring. */
struct zd_ring_end {
	struct zd_ring *ring; /* NULL: there is none */
	uint64_t place;
};

/* Writes a packet. Returns false, and writes nothing, if the packet does not fit. `after`: the number of
 * packets that were sent by the socket before this one. */
bool zd_ring_write(struct zd_ring_end *end, const void *bytes, size_t nbytes, uint32_t after)
        __attribute__((warn_unused_result));
/* Whether the ring has a packet that follows `after` packets of the socket, or an invalid packet. */
bool zd_ring_is_due(const struct zd_ring_end *end, uint32_t after);
/* Reads a packet. Returns 0, 1 (no packet is due), or PROTOCOL. `buffer` has room for ZD_RING_BYTES. */
int zd_ring_read(struct zd_ring_end *end, uint32_t after, void *buffer, size_t *nbytes, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
