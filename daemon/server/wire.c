/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.c - reads the fields of packed messages.
 *
 * These functions accept some messages that protobuf-c does not, such as a tag of more than five bytes.
 * Unpacking then rejects the message.
 */
#include "server/wire.h"

#include <string.h>

#include "proto/zerod.pb-c.h"

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

bool zd_wire_count(struct zd_wire wire, unsigned most, unsigned *count)
{
	struct zd_wire content;
	uint32_t number;

	for (*count = 0; wire.at < wire.end && *count <= most; ++*count)
		if (!take_field(&wire, &number, &content))
			return false;
	return true;
}

struct search {
	size_t left; /* fields that can follow */
	bool has_body;
	const ProtobufCFieldDescriptor *zero;
};

/* How many varints end in the bytes. Of fixed-size values this may be up to eight times as many. */
static size_t count_varints(struct zd_wire packed)
{
	const uint64_t ones = 0x0101010101010101u;
	size_t count = 0;
	uint64_t word;

	for (; (size_t)(packed.end - packed.at) >= sizeof(word); packed.at += sizeof(word)) {
		memcpy(&word, packed.at, sizeof(word));
		count += ((~word >> 7) & ones) * ones >> 56; /* adds the ones */
	}
	while (packed.at < packed.end)
		count += *packed.at++ < 0x80;
	return count;
}

/* Subtracts the field from the remaining ones. Returns false if it has too many. */
static bool take_one(struct search *search, const ProtobufCFieldDescriptor *field, struct zd_wire content)
{
	bool is_packed = field && field->label == PROTOBUF_C_LABEL_REPEATED &&
	                 field->type < PROTOBUF_C_TYPE_STRING;
	size_t fields = 1 + (is_packed ? count_varints(content) / ZD_WIRE_VALUES : 0);

	if (fields > search->left)
		return false;
	search->left -= fields;
	return true;
}

/* protobuf-c merges the bodies of a message with several, and copies the lists of all at each. */
static bool take_body(struct search *search, const ProtobufCFieldDescriptor *field)
{
	bool had_body = search->has_body;

	if (field->label == PROTOBUF_C_LABEL_REPEATED)
		return true;
	search->has_body = true;
	return !had_body;
}

static bool search_fields(struct zd_wire wire, const ProtobufCMessageDescriptor *descriptor, unsigned nesting,
                          struct search *search)
{
	struct zd_wire content;
	uint32_t number;

	while (nesting > 0 && take_field(&wire, &number, &content)) {
		const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field(descriptor,
		                                                                                number);

		if (!take_one(search, field, content))
			return false;
		if (!field)
			continue;
		if (field->type == PROTOBUF_C_TYPE_MESSAGE &&
		    (!take_body(search, field) ||
		     !search_fields(content, field->descriptor, nesting - 1, search)))
			return false;
		if (field->type == PROTOBUF_C_TYPE_STRING && !search->zero &&
		    memchr(content.at, '\0', (size_t)(content.end - content.at)))
			search->zero = field;
	}
	return true;
}

bool zd_wire_search(struct zd_wire request, unsigned most, const ProtobufCFieldDescriptor **zero)
{
	struct search search = {.left = most};

	if (!search_fields(request, &zd__request__descriptor, MAX_NESTING, &search))
		return false;
	*zero = search.zero;
	return true;
}
