/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packet.c - one DaemonPacket under construction.
 *
 * The two field numbers below are DaemonPacket's; both fields are length-delimited.
 */
#include "io/packet.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"

#define FIELD_SEGMENTS 1u
#define FIELD_REPLIES  2u
#define TAG_BYTES      1u /* of a field number below 16 */

static struct zd_packet *with_room(size_t room_bytes)
{
	struct zd_packet *packet = zd_calloc(1, sizeof(*packet) + room_bytes);

	packet->room_bytes = room_bytes;
	return packet;
}

struct zd_packet *zd_packet_new(void)
{
	return with_room(ZD_MAX_PACKET_BYTES);
}

struct zd_packet *zd_packet_shrunk(struct zd_packet *packet)
{
	struct zd_packet *copy = with_room(packet->nbytes);

	memcpy(copy->bytes, packet->bytes, packet->nbytes);
	copy->nbytes = packet->nbytes;
	memcpy(copy->fds, packet->fds, sizeof(copy->fds));
	copy->nfds = packet->nfds;
	packet->nfds = 0;
	packet->nbytes = 0;
	return copy;
}

void zd_packet_clear(struct zd_packet *packet)
{
	for (unsigned i = 0; i < packet->nfds; i++)
		(void)close(packet->fds[i]);
	packet->nfds = 0;
	packet->nbytes = 0;
}

void zd_packet_free(struct zd_packet *packet)
{
	if (!packet)
		return;
	zd_packet_clear(packet);
	free(packet);
}

static size_t varint_bytes(size_t value)
{
	size_t bytes = 1;

	for (; value >= 0x80; value >>= 7)
		bytes++;
	return bytes;
}

/* Appends the message, of `message_bytes` bytes, as one field; false when less than spare_bytes would be left. */
static bool add(struct zd_packet *packet, unsigned field, const ProtobufCMessage *message, size_t spare_bytes)
{
	size_t message_bytes = protobuf_c_message_get_packed_size(message);
	size_t field_bytes = TAG_BYTES + varint_bytes(message_bytes) + message_bytes;
	uint8_t *at = packet->bytes + packet->nbytes;

	if (field_bytes + spare_bytes > packet->room_bytes - packet->nbytes)
		return false;
	*at++ = (uint8_t)(field << 3 | 2);
	for (; message_bytes >= 0x80; message_bytes >>= 7)
		*at++ = (uint8_t)(message_bytes | 0x80);
	*at++ = (uint8_t)message_bytes;
	(void)protobuf_c_message_pack(message, at);
	packet->nbytes += field_bytes;
	return true;
}

bool zd_packet_add_reply(struct zd_packet *packet, const Zd__Reply *reply, size_t spare_bytes)
{
	return add(packet, FIELD_REPLIES, &reply->base, spare_bytes);
}

void zd_packet_add_fd(struct zd_packet *packet, int fd, const Zd__Segment *segment)
{
	bool fits = packet->nfds < ZD_MAX_PACKET_FDS;

	if (fits && segment)
		fits = add(packet, FIELD_SEGMENTS, &segment->base, 0);
	zd_assert(fits);
	packet->fds[packet->nfds++] = fd;
}
