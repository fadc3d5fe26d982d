/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame.h - one packet of a SOCK_SEQPACKET socket, with descriptors. Used alike by the daemon and the
 * library.
 *
 * Calls do not block (MSG_DONTWAIT), except zd_frame_recv_wait(), and never raise SIGPIPE. A packet that is
 * longer than ZD_MAX_PACKET_BYTES, or carries more than ZD_MAX_PACKET_FDS descriptors, is rejected as a
 * whole, and its descriptors are closed.
 */
#ifndef ZD_PROTO_FRAME_H
#define ZD_PROTO_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <protobuf-c/protobuf-c.h>

#include "base/err.h"
#include "proto/limits.h"

#define ZD_FRAME_AGAIN 1 /* nothing to read, or no room to send, for now */

/* Fills `addr` for the path. Errors: INVALID for an empty path, or one that is too long (the text has the
 * limit). */
struct sockaddr_un;
int zd_frame_address(const char *path, struct sockaddr_un *addr, struct zd_err *err);

/* Sends a packet. Returns 0, ZD_FRAME_AGAIN, DISCONNECTED, LIMIT (also for 0 bytes) or SYSTEM. The caller
 * still owns the descriptors. */
int zd_frame_send(int sock, const void *bytes, size_t nbytes, const int *fds, unsigned nfds,
                  struct zd_err *err) __attribute__((warn_unused_result));

/* Receives a packet. Returns 0, ZD_FRAME_AGAIN, DISCONNECTED (end of stream or reset), LIMIT (packet or
 * descriptors beyond the limits), SYSTEM (also EMFILE for a descriptor). On 0 the caller owns the *nfds
 * descriptors, which are close-on-exec. `buffer_bytes` is at least ZD_MAX_PACKET_BYTES. */
int zd_frame_recv(int sock, void *buffer, size_t buffer_bytes, size_t *nbytes, int fds[ZD_MAX_PACKET_FDS],
                  unsigned *nfds, struct zd_err *err) __attribute__((warn_unused_result));
/* Receives a packet like zd_frame_recv(), but on a blocking socket waits for the packet: one system call
 * instead of poll() and zd_frame_recv(). ZD_FRAME_AGAIN when a signal or the socket's SO_RCVTIMEO ends the
 * wait. */
int zd_frame_recv_wait(int sock, void *buffer, size_t buffer_bytes, size_t *nbytes,
                       int fds[ZD_MAX_PACKET_FDS], unsigned *nfds, struct zd_err *err)
        __attribute__((warn_unused_result));

/*
 * A bump allocator for unpacked messages: protobuf-c allocates from it, and one reset frees all. Falls back
 * to malloc beyond its first block. Not thread-safe.
 */
struct zd_arena {
	/* Pass &arena->allocator to xxx__unpack(); never call xxx__free_unpacked(). */
	ProtobufCAllocator allocator;
	uint8_t *block;
	size_t block_bytes, used_bytes;
	struct zd_arena_spill *spill;
};
void zd_arena_init(struct zd_arena *arena, size_t block_bytes);
void zd_arena_reset(struct zd_arena *arena);
void zd_arena_deinit(struct zd_arena *arena);
/* Allocates zeroed memory, aligned to 16, for replies with the same lifetime; never NULL. */
void *zd_arena_alloc(struct zd_arena *arena, size_t bytes);

#endif
