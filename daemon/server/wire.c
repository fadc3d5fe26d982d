/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.c - reads the fields of packed messages.
 *
 * protobuf-c has accepted these bytes already, but this code does not rely on that: a length beyond the end
 * stops it.
 */
#include "server/wire.h"

#include <string.h>

#define TYPE_BITS    3u
#define TYPE_VARINT  0u
#define TYPE_FIXED64 1u
#define TYPE_BYTES   2u
#define TYPE_FIXED32 5u
#define VARINT_BYTES 10u
#define MAX_NESTING  8u

static bool take_varint(struct zd_wire *wire, uint64_t *value)
{
	*value = 0;
	for (unsigned i = 0; i < VARINT_BYTES && wire->at < wire->end; i++) {
		uint8_t byte = *wire->at++;

		*value |= (uint64_t)(byte & 0x7f) << (7 * i);
		if (byte < 0x80)
			return true;
	}
	return false;
}

static bool skip(struct zd_wire *wire, uint64_t nbytes)
{
	if (nbytes > (uint64_t)(wire->end - wire->at))
		return false;
	wire->at += nbytes;
	return true;
}

/* Reads the next field of any kind; `content` is empty unless it is length-delimited. */
static bool take_field(struct zd_wire *wire, uint32_t *number, struct zd_wire *content)
{
	uint64_t tag, value;

	if (!take_varint(wire, &tag))
		return false;
	*number = (uint32_t)(tag >> TYPE_BITS);
	*content = (struct zd_wire){wire->at, wire->at};
	switch (tag & ((1u << TYPE_BITS) - 1)) {
	case TYPE_VARINT:
		return take_varint(wire, &value);
	case TYPE_FIXED64:
		return skip(wire, sizeof(uint64_t));
	case TYPE_FIXED32:
		return skip(wire, sizeof(uint32_t));
	case TYPE_BYTES:
		if (!take_varint(wire, &value))
			return false;
		content->at = wire->at;
		if (!skip(wire, value))
			return false;
		content->end = wire->at;
		return true;
	default:
		return false;
	}
}

bool zd_wire_next(struct zd_wire *wire, uint32_t number, struct zd_wire *content)
{
	uint32_t found;

	while (take_field(wire, &found, content))
		if (found == number)
			return true;
	return false;
}

static const ProtobufCFieldDescriptor *
find_zero(struct zd_wire wire, const ProtobufCMessageDescriptor *descriptor, unsigned nesting)
{
	const ProtobufCFieldDescriptor *bad = NULL;
	struct zd_wire content;
	uint32_t number;

	while (!bad && nesting > 0 && take_field(&wire, &number, &content)) {
		const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field(descriptor,
		                                                                                number);

		if (field && field->type == PROTOBUF_C_TYPE_MESSAGE)
			bad = find_zero(content, field->descriptor, nesting - 1);
		else if (field && field->type == PROTOBUF_C_TYPE_STRING &&
		         memchr(content.at, '\0', (size_t)(content.end - content.at)))
			bad = field;
	}
	return bad;
}

const ProtobufCFieldDescriptor *zd_wire_find_zero(struct zd_wire wire,
                                                  const ProtobufCMessageDescriptor *descriptor)
{
	return find_zero(wire, descriptor, MAX_NESTING);
}
