/* SPDX-License-Identifier: Apache-2.0 */
/* packet.c - a DaemonPacket under construction. */
#include "server/packet.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "proto/envelope.h"

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

bool zd_packet_add_reply(struct zd_packet *packet, const Zd__Reply *reply, size_t spare_bytes)
{
	struct zd_envelope envelope = zd_envelope_reply(reply);

	if (envelope.bytes + spare_bytes > packet->room_bytes - packet->nbytes)
		return false;
	zd_envelope_pack(&envelope, packet->bytes + packet->nbytes);
	packet->nbytes += envelope.bytes;
	return true;
}

/* Appends a packet with one item, which the decoder adds to the packet's list. */
static bool add_item(struct zd_packet *packet, const Zd__DaemonPacket *message)
{
	if (zd__daemon_packet__get_packed_size(message) > packet->room_bytes - packet->nbytes)
		return false;
	packet->nbytes += zd__daemon_packet__pack(message, packet->bytes + packet->nbytes);
	return true;
}

static bool add_segment(struct zd_packet *packet, const Zd__Segment *segment)
{
	Zd__DaemonPacket message = ZD__DAEMON_PACKET__INIT;
	Zd__Segment *segments[] = {(Zd__Segment *)segment};

	message.n_segments = 1;
	message.segments = segments;
	return add_item(packet, &message);
}

bool zd_packet_add_retired(struct zd_packet *packet, uint32_t segment)
{
	Zd__DaemonPacket message = ZD__DAEMON_PACKET__INIT;

	message.n_retired = 1;
	message.retired = &segment;
	return add_item(packet, &message);
}

void zd_packet_add_fd(struct zd_packet *packet, int fd, const Zd__Segment *segment)
{
	bool fits = packet->nfds < ZD_MAX_PACKET_FDS;

	if (fits && segment)
		fits = add_segment(packet, segment);
	zd_assert(fits);
	packet->fds[packet->nfds++] = fd;
}
