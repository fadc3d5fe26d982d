/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_unpack.c - any bytes as a request or a daemon's packet: the result (proto/envelope.h) is protobuf-c's.
 *
 * The first byte selects the message: a request if it is even. One that zd_wire_search() accepts fits into
 * the arena.
 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "proto/envelope.h"
#include "server/wire.h"

#define ARENA_BYTES (1u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes);

static uint8_t *packed(const ProtobufCMessage *message, size_t *nbytes)
{
	*nbytes = protobuf_c_message_get_packed_size(message);
	uint8_t *bytes = malloc(*nbytes + 1);

	zd_assert(bytes);
	(void)protobuf_c_message_pack(message, bytes);
	return bytes;
}

static void check_same(const ProtobufCMessage *got, const ProtobufCMessage *expected)
{
	size_t got_nbytes, expected_nbytes;
	uint8_t *got_bytes, *expected_bytes;

	zd_assert(!got == !expected);
	if (!got)
		return;
	got_bytes = packed(got, &got_nbytes);
	expected_bytes = packed(expected, &expected_nbytes);
	zd_assert(got_nbytes == expected_nbytes && memcmp(got_bytes, expected_bytes, got_nbytes) == 0);
	free(got_bytes);
	free(expected_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes)
{
	static struct zd_arena arena;
	const ProtobufCMessageDescriptor *descriptor;
	const ProtobufCMessage *got;
	const ProtobufCFieldDescriptor *zero;
	ProtobufCMessage *expected;

	if (!arena.block)
		zd_arena_init(&arena, ARENA_BYTES);
	if (nbytes == 0)
		return 0;
	if (bytes[0] % 2 == 0) {
		descriptor = &zd__request__descriptor;
		got = (const ProtobufCMessage *)zd_request_unpack(&arena, nbytes - 1, bytes + 1);
		zd_assert(!arena.spill ||
		          !zd_wire_search(zd_wire_of(bytes + 1, nbytes - 1), ZD_MAX_FIELDS, &zero));
	} else {
		descriptor = &zd__daemon_packet__descriptor;
		got = (const ProtobufCMessage *)zd_daemon_packet_unpack(&arena, nbytes - 1, bytes + 1);
	}
	expected = protobuf_c_message_unpack(descriptor, NULL, nbytes - 1, bytes + 1);
	check_same(got, expected);
	protobuf_c_message_free_unpacked(expected, NULL);
	zd_arena_reset(&arena);
	return 0;
}
