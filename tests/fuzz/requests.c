/* SPDX-License-Identifier: Apache-2.0 */
/*
 * requests.c - requests that make sense at some time: small ids, few names, sizes from tiny to absurd. Fields
 * are those of the messages' descriptors. A new request or field therefore needs nothing here.
 */
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "proto/limits.h"
#include "server/id_stamp.h"
#include "tests/fuzz/script.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static uint32_t random_state;

static uint32_t pick(uint32_t among)
{
	random_state = random_state * 1664525u + 1013904223u;
	return (random_state >> 8) % among;
}

static uint64_t pick_size(void)
{
	static const uint64_t sizes[] = {1,       7,       64,         1000,       4096,       65536,
	                                 1 << 20, 3 << 20, 1ull << 40, 1ull << 50, 1ull << 62, UINT64_MAX};

	return sizes[pick(pick(4) ? 6 : COUNT(sizes))];
}

static char *pick_name(void)
{
	static const char *const names[] = {
	        "a",     "b",       "c",
	        "world", "default", "",
	        "a\nb",  "\xff",    "a name that is rather long for a name, but not too long"};

	return (char *)names[pick(pick(8) ? 3 : COUNT(names))];
}

static uint32_t pick_dtype(void)
{
	return pick(4) ? 1 + pick(3) : pick(14);
}

/* ---- Fields -------------------------------------------------------------------------------------------- */

/* Messages and arrays, which live until the next request is made. */
static union {
	max_align_t align;
	uint8_t bytes[8192];
} memory;
static size_t memory_used;

static void *take(size_t nbytes)
{
	void *at = memory.bytes + memory_used;

	memory_used += (nbytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
	zd_assert(memory_used <= sizeof(memory.bytes));
	memset(at, 0, nbytes);
	return at;
}

static bool is_named(const ProtobufCFieldDescriptor *field, const char *names)
{
	const char *at = strstr(names, field->name);

	return at && at[strlen(field->name)] == ' ' && (at == names || at[-1] == ' ');
}

static uint64_t pick_number(const ProtobufCFieldDescriptor *field)
{
	bool optional = field->id > 2 || is_named(field, "parent ") ||
	                (field->id == 2 && is_named(field, "allocation "));

	if (is_named(field, "group unit units bucket entry scope parent allocation descriptions "))
		return optional && pick(2) ? 0 : 1 + pick(3);
	if (is_named(field, "session job request "))
		return 1 + pick(40);
	if (is_named(field, "dtype target_dtype "))
		return pick_dtype();
	if (is_named(field, "world_size version_max value "))
		return 1 + pick(3);
	if (is_named(field, "alignment "))
		return 1ull << pick(24);
	if (is_named(field, "after count "))
		return pick(4) ? 1 + pick(4) : pick(100);
	if (is_named(field, "shape "))
		return pick(6) ? pick(9) : pick_size();
	if (strstr(field->name, "bytes") || strstr(field->name, "numel") || strstr(field->name, "offset"))
		return optional && pick(2) ? 0 : pick_size();
	return pick(4);
}

static bool pick_bool(const ProtobufCFieldDescriptor *field)
{
	if (is_named(field, "undrain "))
		return pick(4) > 0;
	return pick(is_named(field, "durable shadow hybrid strict poison ") ? 8 : 3) == 0;
}

static char *pick_text(const ProtobufCFieldDescriptor *field)
{
	static const char *const features[] = {ZD_FEATURE_WORK, ZD_FEATURE_WORK_AHEAD, "other"};

	return is_named(field, "features ") ? (char *)features[pick(COUNT(features))] : pick_name();
}

static void *make_message(const ProtobufCMessageDescriptor *message);

static size_t bytes_of(ProtobufCType type)
{
	switch (type) {
	case PROTOBUF_C_TYPE_UINT64:
	case PROTOBUF_C_TYPE_FIXED64:
		return sizeof(uint64_t);
	case PROTOBUF_C_TYPE_DOUBLE:
		return sizeof(double);
	case PROTOBUF_C_TYPE_STRING:
	case PROTOBUF_C_TYPE_MESSAGE:
		return sizeof(void *);
	default:
		return sizeof(uint32_t);
	}
}

static void fill(const ProtobufCFieldDescriptor *field, void *at)
{
	switch (field->type) {
	case PROTOBUF_C_TYPE_UINT64:
	case PROTOBUF_C_TYPE_FIXED64:
		*(uint64_t *)at = pick_number(field);
		break;
	case PROTOBUF_C_TYPE_UINT32:
		*(uint32_t *)at = (uint32_t)pick_number(field);
		break;
	case PROTOBUF_C_TYPE_BOOL:
		*(protobuf_c_boolean *)at = pick_bool(field);
		break;
	case PROTOBUF_C_TYPE_ENUM:
		*(int *)at = (int)pick(((const ProtobufCEnumDescriptor *)field->descriptor)->n_values + 1);
		break;
	case PROTOBUF_C_TYPE_FLOAT:
		*(float *)at = (float)pick(3);
		break;
	case PROTOBUF_C_TYPE_DOUBLE:
		*(double *)at = (double)pick(5) / 2 - 1;
		break;
	case PROTOBUF_C_TYPE_STRING:
		*(char **)at = pick_text(field);
		break;
	case PROTOBUF_C_TYPE_MESSAGE:
		*(void **)at = make_message(field->descriptor);
		break;
	case PROTOBUF_C_TYPE_BYTES: /* pick_ids() */
		break;
	default:
		zd_assert(false);
	}
}

/* Arrays of one message have the same size. */
static size_t make_array(const ProtobufCFieldDescriptor *field, uint32_t count, void *out)
{
	uint8_t *items = take(count * bytes_of(field->type));

	for (uint32_t i = 0; i < count; i++)
		fill(field, items + i * bytes_of(field->type));
	*(void **)out = items;
	return count;
}

static void *make_message(const ProtobufCMessageDescriptor *message)
{
	uint8_t *body = take(message->sizeof_message);
	uint32_t count = pick(4) ? pick(3) : pick(20);

	protobuf_c_message_init(message, body);
	for (unsigned i = 0; i < message->n_fields; i++) {
		const ProtobufCFieldDescriptor *field = &message->fields[i];
		void *at = body + field->offset;

		if (field->label == PROTOBUF_C_LABEL_REPEATED)
			*(size_t *)(void *)(body + field->quantifier_offset) = make_array(
			        field, field->type == PROTOBUF_C_TYPE_MESSAGE ? count % 3 : count, at);
		else
			fill(field, at);
	}
	return body;
}

/* ---- Unique ids ---------------------------------------------------------------------------------------- */

const struct zd_id_key fuzz_id_key = {.shared = true};

void fuzz_stamp(const char *job, const char *group, uint32_t nids, uint8_t *ids)
{
	const struct zd_id_facts facts = {.uid = geteuid(), .job = job, .group = group};

	zd_assert(zd_id_stamp_write(&fuzz_id_key, &facts, ids + ZD_ID_STAMP_BYTES, nids, ids, NULL) == 0);
}

/* Of two ranks; sometimes another group's, made up, or cut off. */
static void pick_ids(Zd__GroupJoin *join)
{
	static uint8_t bytes[ZD_ID_STAMP_BYTES + 2 * ZD_UNIQUE_ID_BYTES];
	bool other = pick(8) == 0 || strlen(join->job) > ZD_MAX_NAME_BYTES ||
	             strlen(join->group) > ZD_MAX_NAME_BYTES;

	memset(bytes, 1 + (int)pick(2), sizeof(bytes));
	if (pick(8))
		fuzz_stamp(other ? "other" : join->job, other ? "other" : join->group, 2, bytes);
	join->unique_ids.data = bytes;
	join->unique_ids.len = sizeof(bytes) - (pick(4) ? 0 : pick(sizeof(bytes)));
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

/* The field of the request's body; kind 0: of any. */
static const ProtobufCFieldDescriptor *pick_body(Zd__Request__BodyCase kind)
{
	const ProtobufCMessageDescriptor *requests = &zd__request__descriptor;
	const ProtobufCFieldDescriptor *field = NULL;

	if (kind != 0)
		field = protobuf_c_message_descriptor_get_field(requests, kind);
	while (!field || field->type != PROTOBUF_C_TYPE_MESSAGE)
		field = &requests->fields[pick(requests->n_fields)];
	return field;
}

size_t fuzz_request(unsigned seed, Zd__Request__BodyCase kind, uint8_t bytes[FUZZ_PACKET_BYTES])
{
	Zd__ClientPacket packet = ZD__CLIENT_PACKET__INIT;
	Zd__Request request = ZD__REQUEST__INIT, *requests[] = {&request};
	const ProtobufCFieldDescriptor *body;

	random_state = seed;
	memory_used = 0;
	body = pick_body(kind);
	request.id = 2;
	request.deadline_ms = pick(16) ? 0 : 1;
	request.body_case = (Zd__Request__BodyCase)body->id;
	request.hello = make_message(body->descriptor); /* the union of all bodies' pointers */
	if (request.body_case == ZD__REQUEST__BODY_GROUP_JOIN && pick(4) == 0)
		pick_ids(request.group_join);
	if (request.body_case == ZD__REQUEST__BODY_UNIT_READ && request.unit_read->map_bytes)
		request.unit_read->bytes = request.unit_read->rows = 0;
	packet.n_requests = 1;
	packet.requests = requests;
	zd_assert(zd__client_packet__get_packed_size(&packet) <= FUZZ_PACKET_BYTES);
	return zd__client_packet__pack(&packet, bytes);
}

size_t fuzz_make_request(unsigned seed, uint8_t bytes[FUZZ_PACKET_BYTES])
{
	return fuzz_request(seed, 0, bytes);
}
