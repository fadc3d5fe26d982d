/* SPDX-License-Identifier: Apache-2.0 */
/* test_envelope.c - envelopes are, byte for byte, what protobuf-c packs, and read as it reads them. */
#include "proto/envelope.h"
#include "tests/support/test.h"

static void check_request(Zd__Request *request)
{
	Zd__ClientPacket packet = ZD__CLIENT_PACKET__INIT;
	packet.n_requests = 1;
	packet.requests = &request;
	size_t bytes = zd__client_packet__get_packed_size(&packet);
	uint8_t *expected = malloc(bytes), *got = malloc(bytes);
	zd__client_packet__pack(&packet, expected);
	struct zd_envelope envelope = zd_envelope_request(request);
	assert_int_equal(envelope.bytes, bytes);
	zd_envelope_pack(&envelope, got);
	assert_memory_equal(got, expected, bytes);
	free(expected);
	free(got);
}

static void check_reply(Zd__Reply *reply)
{
	Zd__DaemonPacket packet = ZD__DAEMON_PACKET__INIT;
	packet.n_replies = 1;
	packet.replies = &reply;
	size_t bytes = zd__daemon_packet__get_packed_size(&packet);
	uint8_t *expected = malloc(bytes), *got = malloc(bytes);
	zd__daemon_packet__pack(&packet, expected);
	struct zd_envelope envelope = zd_envelope_reply(reply);
	assert_int_equal(envelope.bytes, bytes);
	zd_envelope_pack(&envelope, got);
	assert_memory_equal(got, expected, bytes);
	free(expected);
	free(got);
}

static const uint64_t numbers[] = {0, 1, 127, 128, 16383, 16384, UINT32_MAX, 1ull << 35, UINT64_MAX};

TEST(test_requests)
{
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		Zd__Request request = ZD__REQUEST__INIT;
		Zd__Gather gather = ZD__GATHER__INIT;
		request.id = numbers[i];
		request.deadline_ms = (uint32_t)numbers[i];
		check_request(&request); /* no body */
		request.body_case = ZD__REQUEST__BODY_GATHER;
		request.gather = &gather;
		check_request(&request); /* an empty one */
		gather.unit = numbers[i];
		gather.tag = (char *)"fallback";
		gather.version = numbers[i];
		check_request(&request);
		Zd__EndJob end_job =
		        ZD__END_JOB__INIT; /* a field number above 15 takes two bytes, this the highest */
		end_job.job = numbers[i];
		request.body_case = ZD__REQUEST__BODY_END_JOB;
		request.end_job = &end_job;
		check_request(&request);
	}
}

TEST(test_long_body)
{
	char name[300];
	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__UnitRegister body = ZD__UNIT_REGISTER__INIT;
	body.name = name;
	request.id = 9;
	request.body_case = ZD__REQUEST__BODY_UNIT_REGISTER;
	request.unit_register = &body;
	check_request(&request);
}

TEST(test_replies)
{
	static const int32_t statuses[] = {0, -1, -31, 1, INT32_MIN, INT32_MAX};
	for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
		Zd__Reply reply = ZD__REPLY__INIT;
		Zd__ReleaseReply release = ZD__RELEASE_REPLY__INIT;
		reply.id = numbers[i];
		reply.status = statuses[i];
		check_reply(&reply);
		reply.error = (char *)"rank 2 to publish version 4 of unit 'h1'";
		check_reply(&reply);
		release.lease_ended = true;
		reply.body_case = ZD__REPLY__BODY_RELEASE;
		reply.release = &release;
		check_reply(&reply);
	}
}

TEST(test_works)
{
	static const uint32_t segments[] = {1, 300, UINT32_MAX};
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		Zd__WorkPacket packet = ZD__WORK_PACKET__INIT;
		Zd__Work work = ZD__WORK__INIT, *works = &work;
		Zd__Sum sum = ZD__SUM__INIT;
		work.id = numbers[i];
		work.body_case = ZD__WORK__BODY_SUM;
		work.sum = &sum;
		sum.numel = numbers[i];
		sum.postscale = 0.25f;
		sum.n_input_segments = i % 4;
		sum.input_segments = (uint32_t *)segments;
		sum.n_input_offsets = i;
		sum.input_offsets = (uint64_t *)numbers;
		packet.n_works = 1;
		packet.works = &works;
		uint8_t expected[256], got[256];
		size_t bytes = zd__work_packet__pack(&packet, expected);
		struct zd_envelope envelope = zd_envelope_work(&work);
		assert_int_equal(envelope.bytes, bytes);
		zd_envelope_pack(&envelope, got);
		assert_memory_equal(got, expected, bytes);
	}
}

/* ---- Unpacking ----------------------------------------------------------------------------------------- */

/* Larger than what any of the packets here unpacks to. */
#define ARENA_BYTES (1u << 20)

static void check_same(const ProtobufCMessage *got, const ProtobufCMessage *expected)
{
	assert_int_equal(got != NULL, expected != NULL);
	if (!got || !expected)
		return;
	size_t bytes = protobuf_c_message_get_packed_size(expected);
	uint8_t *one = malloc(bytes + 1), *other = malloc(bytes + 1);
	assert_ptr_equal(got->descriptor, expected->descriptor);
	assert_int_equal(protobuf_c_message_get_packed_size(got), bytes);
	protobuf_c_message_pack(expected, one);
	protobuf_c_message_pack(got, other);
	assert_memory_equal(one, other, bytes);
	free(one);
	free(other);
}

/* As protobuf-c does, of a request or of a daemon's packet; in how many bytes of the arena. */
static size_t check_unpacked(struct zd_arena *arena, size_t nbytes, const uint8_t *bytes, bool of_client)
{
	size_t used;
	if (of_client) {
		Zd__Request *expected = zd__request__unpack(NULL, nbytes, bytes);
		check_same((const ProtobufCMessage *)zd_request_unpack(arena, nbytes, bytes),
		           (const ProtobufCMessage *)expected);
		if (expected)
			zd__request__free_unpacked(expected, NULL);
	} else {
		Zd__DaemonPacket *expected = zd__daemon_packet__unpack(NULL, nbytes, bytes);
		check_same((const ProtobufCMessage *)zd_daemon_packet_unpack(arena, nbytes, bytes),
		           (const ProtobufCMessage *)expected);
		if (expected)
			zd__daemon_packet__free_unpacked(expected, NULL);
	}
	used = arena->used_bytes;
	zd_arena_reset(arena);
	return used;
}

/* A message, all its beginnings, it with each byte changed, left out or there twice. */
static void check_variants(struct zd_arena *arena, size_t nbytes, const uint8_t *bytes, bool of_client)
{
	uint8_t other[512];
	assert_true(nbytes < sizeof(other));
	for (size_t cut = 0; cut <= nbytes; cut++)
		(void)check_unpacked(arena, cut, bytes, of_client);
	for (size_t at = 0; at < nbytes; at++) {
		memcpy(other, bytes, nbytes);
		for (unsigned value = 0; value < 256; value++) {
			other[at] = (uint8_t)value;
			(void)check_unpacked(arena, nbytes, other, of_client);
		}
		memcpy(other + at, bytes + at + 1, nbytes - at - 1);
		(void)check_unpacked(arena, nbytes - 1, other, of_client);
		memcpy(other + at, bytes + at, 1);
		memcpy(other + at + 1, bytes + at, nbytes - at);
		(void)check_unpacked(arena, nbytes + 1, other, of_client);
	}
}

TEST(test_unpacked_requests)
{
	static const Zd__Request__BodyCase cases[] = {ZD__REQUEST__BODY__NOT_SET, ZD__REQUEST__BODY_GATHER,
	                                              ZD__REQUEST__BODY_END_JOB};
	struct zd_arena arena;
	uint8_t one[128];
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Gather gather = ZD__GATHER__INIT;
	Zd__EndJob end_job = ZD__END_JOB__INIT;
	zd_arena_init(&arena, ARENA_BYTES);
	gather.unit = 300;
	gather.tag = (char *)"fallback";
	end_job.job = UINT64_MAX;
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		struct zd_envelope envelope;
		request.id = numbers[i];
		request.deadline_ms = (uint32_t)numbers[(i + 4) % 9];
		request.body_case = cases[i % 3];
		if (cases[i % 3] == ZD__REQUEST__BODY_GATHER)
			request.gather = &gather;
		else
			request.end_job = &end_job;
		envelope = zd_envelope_request(&request);
		zd_envelope_pack(&envelope, one);
		check_variants(&arena, envelope.message_bytes, one + envelope.bytes - envelope.message_bytes,
		               true);
	}
	zd_arena_deinit(&arena);
}

/* One with such an id may be read here; a packet with any other goes to protobuf-c as a whole. */
static bool is_plain(uint64_t id)
{
	return id > 0 && id < UINT64_MAX;
}

TEST(test_unpacked_replies)
{
	struct zd_arena arena;
	uint8_t bytes[512], one[128];
	size_t nbytes = 0;
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__GatherReply gather = ZD__GATHER_REPLY__INIT;
	Zd__Location place = ZD__LOCATION__INIT;
	zd_arena_init(&arena, ARENA_BYTES);
	place.segment = 7;
	place.offset = 1ull << 33;
	gather.buffer = &place;
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		struct zd_envelope envelope;
		reply.id = numbers[i];
		reply.status = i % 4 == 3 ? -31 : 0;
		reply.error = i % 4 == 3 ? (char *)"a lease" : (char *)protobuf_c_empty_string;
		reply.body_case = i % 2 ? ZD__REPLY__BODY_GATHER : ZD__REPLY__BODY__NOT_SET;
		reply.gather = &gather;
		envelope = zd_envelope_reply(&reply);
		zd_envelope_pack(&envelope, one);
		check_variants(&arena, envelope.bytes, one, false);
		if (!is_plain(numbers[i]) || reply.status)
			continue;
		zd_envelope_pack(&envelope, bytes + nbytes);
		nbytes += envelope.bytes;
	}
	for (size_t cut = 0; cut <= nbytes; cut++)
		(void)check_unpacked(&arena, cut, bytes, false);
	zd_arena_deinit(&arena);
}

#define FRAGMENT(...)                                                                                        \
	{                                                                                                    \
		sizeof((const uint8_t[]){__VA_ARGS__}),                                                      \
		{                                                                                            \
			__VA_ARGS__                                                                          \
		}                                                                                            \
	}

/* Fields of a Request or Reply, and bytes that resemble them. */
static const struct fragment {
	size_t nbytes;
	uint8_t bytes[12];
} fragments[] = {
        FRAGMENT(0x08, 5),                                                       /* an id */
        FRAGMENT(0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1), /* the highest */
        FRAGMENT(0x88, 0x00, 7),                                                 /* its tag longer */
        FRAGMENT(0x10, 9),                                                       /* a second number */
        FRAGMENT(0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01),                /* too large a one */
        FRAGMENT(0x1a, 2, 'n', 'o'),                                             /* a text */
        FRAGMENT(0xc2, 0x02, 3, 0x08, 0xac, 0x02),                               /* a gather */
        FRAGMENT(0xc2, 0x02, 0),                                                 /* an empty one */
        FRAGMENT(0xc2, 0x02, 1, 0x08),                                           /* one that ends inside */
        FRAGMENT(0xc0, 0x02, 3),                                                 /* a number */
        FRAGMENT(0x9a, 0x04, 0),                                                 /* no field */
        FRAGMENT(0xc2, 0x82, 0x80, 0x80, 0x10, 0),       /* as a gather, but for a high bit */
        FRAGMENT(0xc2, 0x82, 0x80, 0x80, 0x80, 0x00, 0), /* but for bytes that they have not */
        FRAGMENT(0xc2, 0x82, 0x80, 0x80, 0x00, 0),       /* a longer tag that is one */
        FRAGMENT(0xc2, 0x02, 0x80, 0x80, 0x80, 0x80, 0x00),
        FRAGMENT(0xc2, 0x02, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00), /* nor have lengths */
};
#define NFRAGMENTS (sizeof(fragments) / sizeof(fragments[0]))

static void check_items(struct zd_arena *arena, const size_t *which, size_t count)
{
	uint8_t bytes[64] = {0x12, 0};
	size_t nbytes = 2;
	for (size_t i = 0; i < count; i++) {
		memcpy(bytes + nbytes, fragments[which[i]].bytes, fragments[which[i]].nbytes);
		nbytes += fragments[which[i]].nbytes;
	}
	bytes[1] = (uint8_t)(nbytes - 2);
	(void)check_unpacked(arena, nbytes - 2, bytes + 2, true);
	(void)check_unpacked(arena, nbytes, bytes, false);
}

/* Two replies, the second with a length of that many bytes. */
static void check_long_length(struct zd_arena *arena, size_t length_bytes)
{
	uint8_t bytes[32] = {0x12, 2, 0x08, 5, 0x12};
	memset(bytes + 5, 0x80, length_bytes);
	bytes[5] = length_bytes > 1 ? 0x82 : 2;
	if (length_bytes > 1)
		bytes[4 + length_bytes] = 0;
	bytes[5 + length_bytes] = 0x08;
	bytes[6 + length_bytes] = 7;
	for (size_t cut = 0; cut <= 7 + length_bytes; cut++)
		(void)check_unpacked(arena, cut, bytes, false);
}

TEST(test_unpacked_lengths)
{
	struct zd_arena arena;
	zd_arena_init(&arena, ARENA_BYTES);
	for (size_t length_bytes = 1; length_bytes < 12; length_bytes++)
		check_long_length(&arena, length_bytes);
	zd_arena_deinit(&arena);
}

TEST(test_unpacked_in_any_order)
{
	struct zd_arena arena;
	zd_arena_init(&arena, ARENA_BYTES);
	for (size_t i = 0; i < NFRAGMENTS * NFRAGMENTS * NFRAGMENTS; i++) {
		size_t which[] = {i % NFRAGMENTS, i / NFRAGMENTS % NFRAGMENTS, i / NFRAGMENTS / NFRAGMENTS};
		for (size_t count = 0; count <= 3; count++)
			check_items(&arena, which, count);
	}
	zd_arena_deinit(&arena);
}

/* As many replies as a packet may have; one more costs the arena nothing but what protobuf-c takes. */
TEST(test_unpacked_batches)
{
	struct zd_arena arena;
	uint8_t bytes[(ZD_MAX_BATCH + 1) * 4];
	for (size_t i = 0; i <= ZD_MAX_BATCH; i++)
		memcpy(bytes + 4 * i, (const uint8_t[]){0x12, 2, 0x08, 1 + i % 100}, 4);
	zd_arena_init(&arena, ARENA_BYTES);
	(void)check_unpacked(&arena, sizeof(bytes) - 4, bytes, false);
	size_t used = check_unpacked(&arena, sizeof(bytes), bytes, false);
	(void)zd__daemon_packet__unpack(&arena.allocator, sizeof(bytes), bytes);
	assert_int_equal(arena.used_bytes, used);
	zd_arena_deinit(&arena);
}
