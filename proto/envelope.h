/* SPDX-License-Identifier: Apache-2.0 */
/*
 * envelope.h - packs one Request, Reply or Work as a field of its packet; unpacks requests, and packets of
 * replies.
 *
 * Packed bytes and unpacked messages are the same as protobuf-c's. protobuf-c visits every member of the
 * bodies' oneof twice, which is most of the cost of a small message; this code passes it only the body in
 * use.
 */
#ifndef ZD_PROTO_ENVELOPE_H
#define ZD_PROTO_ENVELOPE_H

#include <stddef.h>
#include <stdint.h>

#include "proto/frame.h"
#include "proto/zerod.pb-c.h"

/* Initializes a Zd__Request with a body: the member `name` of its union. */
#define ZD_REQUEST(KIND, name, message)                                                                      \
	{                                                                                                    \
		.base = PROTOBUF_C_MESSAGE_INIT(&zd__request__descriptor),                                   \
		.body_case = ZD__REQUEST__BODY_##KIND,                                                       \
		{                                                                                            \
			.name = (message)                                                                    \
		}                                                                                            \
	}

/* A message to be packed, and its packed size. Refers to the message from which the envelope was made. */
struct zd_envelope {
	size_t bytes; /* of the whole field, tag and length included */
	size_t message_bytes, body_bytes, text_bytes;
	uint64_t id, second; /* fields 1 and 2 */
	const char *text;    /* field 3; "" is left out */
	unsigned field;      /* of the message in its packet */
	unsigned body_field; /* 0: no body */
	const ProtobufCMessage *body;
};

struct zd_envelope zd_envelope_request(const Zd__Request *request);
struct zd_envelope zd_envelope_reply(const Zd__Reply *reply);
struct zd_envelope zd_envelope_work(const Zd__Work *work);
/* Writes envelope->bytes bytes. */
void zd_envelope_pack(const struct zd_envelope *envelope, uint8_t *out);

/* Unpack messages like zd__request__unpack() and zd__daemon_packet__unpack(), which return NULL for invalid
 * bytes. The result lies in the arena until the arena is reset. */
Zd__Request *zd_request_unpack(struct zd_arena *arena, size_t nbytes, const uint8_t *bytes);
Zd__DaemonPacket *zd_daemon_packet_unpack(struct zd_arena *arena, size_t nbytes, const uint8_t *bytes);

#endif
