/* SPDX-License-Identifier: Apache-2.0 */
/* envelope.c - packs one Request, Reply or Work as a field of its packet; unpacks requests, and packets of
 * replies. */
#include "proto/envelope.h"

#include <stdbool.h>
#include <string.h>

#define FIELD_REQUESTS 1u /* of ClientPacket */
#define FIELD_REPLIES  2u /* of DaemonPacket */
#define FIELD_WORKS    1u /* of WorkPacket */
#define FIELD_ID       1u /* of Request, Reply and Work */
#define FIELD_SECOND   2u /* Request.deadline_ms, Reply.status */
#define FIELD_TEXT     3u /* Reply.error */

#define WIRE_VARINT 0u
#define WIRE_BYTES  2u
#define TYPE_BITS   3u

/* ---- Packing ------------------------------------------------------------------------------------------- */

static size_t varint_bytes(uint64_t value)
{
	size_t bytes = 1;
	for (; value >= 0x80; value >>= 7)
		bytes++;
	return bytes;
}

static uint8_t *put_varint(uint8_t *out, uint64_t value)
{
	for (; value >= 0x80; value >>= 7)
		*out++ = (uint8_t)(value | 0x80);
	*out++ = (uint8_t)value;
	return out;
}

/* As protobuf has it, a number of 0 and an empty text are left out. */
static size_t number_bytes(unsigned field, uint64_t value)
{
	return value ? varint_bytes(field << TYPE_BITS) + varint_bytes(value) : 0;
}

static size_t block_bytes(unsigned field, size_t bytes)
{
	return varint_bytes(field << TYPE_BITS) + varint_bytes(bytes) + bytes;
}

static uint8_t *put_number(uint8_t *out, unsigned field, uint64_t value)
{
	return value ? put_varint(put_varint(out, field << TYPE_BITS | WIRE_VARINT), value) : out;
}

static uint8_t *put_head(uint8_t *out, unsigned field, size_t bytes)
{
	return put_varint(put_varint(out, field << TYPE_BITS | WIRE_BYTES), bytes);
}

static void measure_envelope(struct zd_envelope *envelope)
{
	envelope->text_bytes = strlen(envelope->text);
	envelope->message_bytes = number_bytes(FIELD_ID, envelope->id) +
	                          number_bytes(FIELD_SECOND, envelope->second);
	if (envelope->text_bytes > 0)
		envelope->message_bytes += block_bytes(FIELD_TEXT, envelope->text_bytes);
	if (envelope->body_field) {
		envelope->body_bytes = protobuf_c_message_get_packed_size(envelope->body);
		envelope->message_bytes += block_bytes(envelope->body_field, envelope->body_bytes);
	}
	envelope->bytes = block_bytes(envelope->field, envelope->message_bytes);
}

/* protobuf-c's body_case is the field's number, and all members of the union are pointers to messages. */
struct zd_envelope zd_envelope_request(const Zd__Request *request)
{
	struct zd_envelope envelope = {
	        .id = request->id,
	        .second = request->deadline_ms,
	        .text = "",
	        .field = FIELD_REQUESTS,
	        .body_field = (unsigned)request->body_case,
	        .body = (const ProtobufCMessage *)request->hello,
	};
	measure_envelope(&envelope);
	return envelope;
}

struct zd_envelope zd_envelope_reply(const Zd__Reply *reply)
{
	struct zd_envelope envelope = {
	        .id = reply->id,
	        .second = (uint32_t)reply->status << 1 ^ (uint32_t)(reply->status >> 31), /* zigzag */
	        .text = reply->error,
	        .field = FIELD_REPLIES,
	        .body_field = (unsigned)reply->body_case,
	        .body = (const ProtobufCMessage *)reply->hello,
	};
	measure_envelope(&envelope);
	return envelope;
}

struct zd_envelope zd_envelope_work(const Zd__Work *work)
{
	struct zd_envelope envelope = {
	        .id = work->id,
	        .text = "",
	        .field = FIELD_WORKS,
	        .body_field = (unsigned)work->body_case,
	        .body = (const ProtobufCMessage *)work->sum,
	};
	measure_envelope(&envelope);
	return envelope;
}

void zd_envelope_pack(const struct zd_envelope *envelope, uint8_t *out)
{
	out = put_head(out, envelope->field, envelope->message_bytes);
	out = put_number(out, FIELD_ID, envelope->id);
	out = put_number(out, FIELD_SECOND, envelope->second);
	if (envelope->text_bytes > 0) {
		out = put_head(out, FIELD_TEXT, envelope->text_bytes);
		memcpy(out, envelope->text, envelope->text_bytes);
		out += envelope->text_bytes;
	}
	if (envelope->body_field) {
		out = put_head(out, envelope->body_field, envelope->body_bytes);
		(void)protobuf_c_message_pack(envelope->body, out);
	}
}

/* ---- Unpacking ----------------------------------------------------------------------------------------- */

/* The unread rest of a packed message. */
struct span {
	const uint8_t *at, *end;
};

/* The items of a packet: their field number and their parts. */
struct form {
	unsigned field;
	bool has_second;
	const ProtobufCMessageDescriptor *descriptor;
};

struct item {
	uint64_t id, second;
	unsigned body_field; /* 0: no body */
	ProtobufCMessage *body;
};

/* protobuf-c takes tags and lengths of at most five bytes. Of ids nine are enough here. */
#define MAX_TAG_BYTES   5u
#define MAX_VALUE_BYTES 9u

static bool take_varint(struct span *span, unsigned max_bytes, uint64_t *value)
{
	*value = 0;
	for (unsigned i = 0; i < max_bytes && span->at < span->end; i++) {
		uint8_t byte = *span->at++;

		*value |= (uint64_t)(byte & 0x7f) << (7 * i);
		if (byte < 0x80)
			return true;
	}
	return false;
}

static bool take_bytes(struct span *span, struct span *content)
{
	uint64_t nbytes;

	if (!take_varint(span, MAX_TAG_BYTES, &nbytes) || nbytes > (uint64_t)(span->end - span->at))
		return false;
	*content = (struct span){span->at, span->at + nbytes};
	span->at = content->end;
	return true;
}

static bool take_tag(struct span *span, unsigned field, unsigned type)
{
	if (span->at == span->end || *span->at != (field << TYPE_BITS | type))
		return false;
	span->at++;
	return true;
}

/* Unpacks the item's body, which must be the last field. */
static bool take_body(struct span *span, const ProtobufCMessageDescriptor *descriptor,
                      ProtobufCAllocator *allocator, struct item *item)
{
	const ProtobufCFieldDescriptor *field;
	struct span content;
	uint64_t tag;

	if (!take_varint(span, MAX_TAG_BYTES, &tag) || tag % (1u << TYPE_BITS) != WIRE_BYTES)
		return false;
	item->body_field = (unsigned)(tag >> TYPE_BITS);
	field = protobuf_c_message_descriptor_get_field(descriptor, item->body_field);
	if (!field || field->type != PROTOBUF_C_TYPE_MESSAGE || !take_bytes(span, &content) ||
	    span->at < span->end)
		return false;
	item->body = protobuf_c_message_unpack(field->descriptor, allocator,
	                                       (size_t)(content.end - content.at), content.at);
	return item->body != NULL;
}

/* Reads an item without its tag and length. */
static bool take_parts(struct span span, const struct form *form, ProtobufCAllocator *allocator,
                       struct item *item)
{
	*item = (struct item){0};
	if (!take_tag(&span, FIELD_ID, WIRE_VARINT) || !take_varint(&span, MAX_VALUE_BYTES, &item->id))
		return false;
	if (form->has_second && take_tag(&span, FIELD_SECOND, WIRE_VARINT) &&
	    !take_varint(&span, MAX_VALUE_BYTES, &item->second))
		return false;
	return span.at == span.end || take_body(&span, form->descriptor, allocator, item);
}

static bool take_item(struct span *span, const struct form *form, ProtobufCAllocator *allocator,
                      struct item *item)
{
	struct span content;

	return take_tag(span, form->field, WIRE_BYTES) && take_bytes(span, &content) &&
	       take_parts(content, form, allocator, item);
}

static size_t count_items(struct span span, unsigned field)
{
	struct span content;
	size_t count = 0;

	for (; span.at < span.end; count++)
		if (!take_tag(&span, field, WIRE_BYTES) || !take_bytes(&span, &content))
			return 0;
	return count;
}

/* How many items a plain packet has: some of them and nothing else, each with an id, perhaps the second
 * number, perhaps a body, in this order. 0 of any other packet, good or bad. */
static size_t take_items(struct zd_arena *arena, size_t nbytes, const uint8_t *bytes, const struct form *form,
                         struct item items[ZD_MAX_BATCH])
{
	struct span span = {bytes, bytes + nbytes};
	size_t count = count_items(span, form->field);

	if (count > ZD_MAX_BATCH)
		return 0;
	for (size_t i = 0; i < count; i++)
		if (!take_item(&span, form, &arena->allocator, &items[i]))
			return 0;
	return count;
}

Zd__Request *zd_request_unpack(struct zd_arena *arena, size_t nbytes, const uint8_t *bytes)
{
	static const struct form form = {FIELD_REQUESTS, true, &zd__request__descriptor};
	Zd__Request *request = NULL;
	struct item item;

	if (take_parts((struct span){bytes, bytes + nbytes}, &form, &arena->allocator, &item))
		request = arena->allocator.alloc(arena, sizeof(*request));
	if (!request)
		return zd__request__unpack(&arena->allocator, nbytes, bytes);
	zd__request__init(request);
	request->id = item.id;
	request->deadline_ms = (uint32_t)item.second;
	request->body_case = (Zd__Request__BodyCase)item.body_field;
	request->hello = (Zd__Hello *)item.body;
	return request;
}

Zd__DaemonPacket *zd_daemon_packet_unpack(struct zd_arena *arena, size_t nbytes, const uint8_t *bytes)
{
	static const struct form form = {FIELD_REPLIES, false, &zd__reply__descriptor};
	struct item items[ZD_MAX_BATCH];
	size_t count = take_items(arena, nbytes, bytes, &form, items);
	struct {
		Zd__DaemonPacket packet;
		Zd__Reply *pointers[ZD_MAX_BATCH], replies[];
	} *made = NULL;

	if (count > 0)
		made = arena->allocator.alloc(arena, sizeof(*made) + count * sizeof(made->replies[0]));
	if (!made)
		return zd__daemon_packet__unpack(&arena->allocator, nbytes, bytes);
	zd__daemon_packet__init(&made->packet);
	made->packet.n_replies = count;
	made->packet.replies = made->pointers;
	for (size_t i = 0; i < count; i++) {
		Zd__Reply *reply = &made->replies[i];

		zd__reply__init(reply);
		reply->id = items[i].id;
		reply->body_case = (Zd__Reply__BodyCase)items[i].body_field;
		reply->hello = (Zd__HelloReply *)items[i].body;
		made->pointers[i] = reply;
	}
	return &made->packet;
}
