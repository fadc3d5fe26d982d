/* SPDX-License-Identifier: Apache-2.0 */
/* envelope.c - packs one Request or Reply as a field of its packet. */
#include "proto/envelope.h"

#include <string.h>

#define FIELD_REQUESTS 1u /* of ClientPacket */
#define FIELD_REPLIES  2u /* of DaemonPacket */
#define FIELD_ID       1u /* of Request and Reply */
#define FIELD_SECOND   2u /* Request.deadline_ms, Reply.status */
#define FIELD_TEXT     3u /* Reply.error */

#define WIRE_VARINT 0u
#define WIRE_BYTES  2u

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
	return value ? varint_bytes(field << 3) + varint_bytes(value) : 0;
}

static size_t block_bytes(unsigned field, size_t bytes)
{
	return varint_bytes(field << 3) + varint_bytes(bytes) + bytes;
}

static uint8_t *put_number(uint8_t *out, unsigned field, uint64_t value)
{
	return value ? put_varint(put_varint(out, field << 3 | WIRE_VARINT), value) : out;
}

static uint8_t *put_head(uint8_t *out, unsigned field, size_t bytes)
{
	return put_varint(put_varint(out, field << 3 | WIRE_BYTES), bytes);
}

static void measure(struct zd_envelope *envelope)
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
	measure(&envelope);
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
	measure(&envelope);
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
