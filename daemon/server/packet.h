/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packet.h - a DaemonPacket under construction, or waiting to be sent.
 *
 * Fields are appended in encoded form. Concatenated messages are one message with the fields of all. A packet
 * is therefore built reply by reply, without storing the replies. The packet owns its descriptors.
 */
#ifndef ZD_SERVER_PACKET_H
#define ZD_SERVER_PACKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/limits.h"
#include "proto/zerod.pb-c.h"

struct zd_packet {
	STAILQ_ENTRY(zd_packet) link;
	size_t nbytes, room_bytes;
	unsigned nfds;
	int fds[ZD_MAX_PACKET_FDS];
	uint8_t bytes[];
};

/* Makes an empty packet with room for ZD_MAX_PACKET_BYTES. */
struct zd_packet *zd_packet_new(void);
/* Returns a copy that uses no more memory than its content needs. The descriptors move to the copy. */
struct zd_packet *zd_packet_shrunk(struct zd_packet *packet);
/* Empties the packet, and closes its descriptors. */
void zd_packet_clear(struct zd_packet *packet);
void zd_packet_free(struct zd_packet *packet);

/* Returns false, without a change, if fewer than `spare_bytes` bytes would remain. */
bool zd_packet_add_reply(struct zd_packet *packet, const Zd__Reply *reply, size_t spare_bytes)
        __attribute__((warn_unused_result));

/* Appends a segment to unmap. Returns false, without a change, if it does not fit. */
bool zd_packet_add_retired(struct zd_packet *packet, uint32_t segment) __attribute__((warn_unused_result));

/* Appends a descriptor and, unless it is NULL, its announcement, of at most ZD_PACKET_SEGMENT_BYTES. The
 * caller must have checked that both fit. */
#define ZD_PACKET_SEGMENT_BYTES 32u
void zd_packet_add_fd(struct zd_packet *packet, int fd, const Zd__Segment *segment);

#endif
