/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packet.h - one DaemonPacket under construction, or waiting to be sent.
 *
 * Its fields are appended in their encoded form: concatenated messages are one message with all of their
 * fields, so that a packet is built reply by reply without keeping what it was built from. Descriptors belong
 * to the packet.
 */
#ifndef ZD_IO_PACKET_H
#define ZD_IO_PACKET_H

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

/* Empty, with room for ZD_MAX_PACKET_BYTES. */
struct zd_packet *zd_packet_new(void);
/* A copy that takes no more memory than it needs. The descriptors move to it. */
struct zd_packet *zd_packet_shrunk(struct zd_packet *packet);
/* Closes the descriptors that are left. */
void zd_packet_clear(struct zd_packet *packet);
void zd_packet_free(struct zd_packet *packet);

/* False, and nothing is changed, when less than `spare_bytes` would be left behind it. */
bool zd_packet_add_reply(struct zd_packet *packet, const Zd__Reply *reply, size_t spare_bytes)
        __attribute__((warn_unused_result));

/* A segment to be unmapped. False, and nothing is changed, when it does not fit. */
bool zd_packet_add_retired(struct zd_packet *packet, uint32_t segment) __attribute__((warn_unused_result));

/* A descriptor and, unless it is NULL, its announcement, which takes at most ZD_PACKET_SEGMENT_BYTES. The
 * caller has seen that both fit. */
#define ZD_PACKET_SEGMENT_BYTES 32u
void zd_packet_add_fd(struct zd_packet *packet, int fd, const Zd__Segment *segment);

#endif
