/* SPDX-License-Identifier: Apache-2.0 */
/*
 * envelope.h - packs one Request or Reply as a field of its packet.
 *
 * The bytes are those that protobuf-c makes. It walks over every member of the bodies' oneof, twice, and that
 * is most of what a small message costs; here only the body in use is handed to it.
 */
#ifndef ZD_PROTO_ENVELOPE_H
#define ZD_PROTO_ENVELOPE_H

#include <stddef.h>
#include <stdint.h>

#include "proto/zerod.pb-c.h"

/* What is to be packed and how long it gets; refers to the message it was made from. */
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
/* Writes envelope->bytes bytes. */
void zd_envelope_pack(const struct zd_envelope *envelope, uint8_t *out);

#endif
