/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.h - packets from one process to another through memory that both have mapped: one writes, one reads.
 *
 * The two do not trust each other. Each keeps its own place in the ring to itself and checks the other's, and
 * a packet is copied out before anybody looks into it: whoever writes what it should not spoils its own
 * connection and nothing else. Nothing here sleeps or wakes: that is a socket's business (link.h).
 */
#ifndef ZD_PROTO_RING_H
#define ZD_PROTO_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/limits.h"

/* As it lies in memory; all 0 at first, and again when the daemon has emptied it at the session's end. A
 * packet is its length, the number of the socket's packets that were sent before it, and its bytes up to the
 * next multiple of 8. */
struct zd_ring {
	_Alignas(64) _Atomic uint64_t tail; /* the writer's place: bytes ever written */
	_Alignas(64) _Atomic uint64_t head; /* the reader's */
	atomic_uint looks;                  /* not 0: the reader will look here before it sleeps */
	_Alignas(64) uint8_t data[ZD_RING_BYTES];
};
_Static_assert(sizeof(struct zd_ring) == 128 + ZD_RING_BYTES, "as PROTOCOL.md has it");

/* The rings of a session. */
struct zd_rings {
	struct zd_ring requests, replies; /* of the connection */
	struct zd_ring works, answers;    /* of the work channel */
};
_Static_assert(sizeof(struct zd_rings) <= ZD_RINGS_BYTES, "the rings fit into their file");

/* One side's view of a ring. */
struct zd_ring_end {
	struct zd_ring *ring; /* NULL: there is none */
	uint64_t place;
};

/* False, and nothing is written, when there is no room for it. `after`: see above. */
bool zd_ring_write(struct zd_ring_end *end, const void *bytes, size_t nbytes, uint32_t after)
        __attribute__((warn_unused_result));
/* Is there a packet that comes after `after` packets of the socket, or what is no packet? */
bool zd_ring_is_due(const struct zd_ring_end *end, uint32_t after);
/* 0, 1: none is due, or PROTOCOL. `buffer` has room for ZD_RING_BYTES. */
int zd_ring_read(struct zd_ring_end *end, uint32_t after, void *buffer, size_t *nbytes, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
