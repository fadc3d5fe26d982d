/* SPDX-License-Identifier: Apache-2.0 */
/* The arena for unpacked messages: alignment, no overlap, spilling, reset, and a real message unpacked into
 * it. */
#include "base/mem.h"
#include "proto/frame.h"
#include "proto/zerod.pb-c.h"
#include "tests/support/test.h"

TEST(pieces_are_apart_and_zeroed)
{
	struct zd_arena arena;
	uint8_t *pieces[200];

	zd_arena_init(&arena, 4096); /* about half of what is asked for: the rest spills */
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned i = 0; i < ZD_ARRAY_LEN(pieces); i++) {
			pieces[i] = zd_arena_alloc(&arena, i % 90 + 1);
			assert_int_equal((uintptr_t)pieces[i] % 16, 0);
			for (unsigned k = 0; k <= i % 90; k++)
				assert_int_equal(pieces[i][k], 0);
			memset(pieces[i], (int)i, i % 90 + 1);
		}
		for (unsigned i = 0; i < ZD_ARRAY_LEN(pieces); i++)
			for (unsigned k = 0; k <= i % 90; k++)
				assert_int_equal(pieces[i][k], i);
		assert_non_null(arena.spill);
		zd_arena_reset(&arena);
		assert_null(arena.spill);
	}
	zd_arena_deinit(&arena);
	zd_arena_deinit(&arena);
	zd_arena_deinit(NULL);
}

TEST(absurd_sizes_are_refused)
{
	struct zd_arena arena;

	zd_arena_init(&arena, 0);
	assert_non_null(zd_arena_alloc(&arena, 0));
	assert_null(arena.allocator.alloc(&arena, SIZE_MAX));
	assert_null(arena.allocator.alloc(&arena, SIZE_MAX / 2 + 1));
	zd_arena_deinit(&arena);
}

TEST(a_message_unpacks_into_it)
{
	uint64_t units[] = {1, 2, UINT64_MAX};
	Zd__UpdateBegin update = ZD__UPDATE_BEGIN__INIT;
	Zd__Request request = ZD__REQUEST__INIT, *requests[] = {&request};
	Zd__ClientPacket packet = ZD__CLIENT_PACKET__INIT, *back;
	uint8_t bytes[256];
	struct zd_arena arena;
	size_t nbytes;

	update.n_units = ZD_ARRAY_LEN(units);
	update.units = units;
	request.id = 7;
	request.body_case = ZD__REQUEST__BODY_UPDATE_BEGIN;
	request.update_begin = &update;
	packet.n_requests = 1;
	packet.requests = requests;
	nbytes = zd__client_packet__pack(&packet, bytes);
	assert_true(nbytes <= sizeof(bytes));

	zd_arena_init(&arena, 1024);
	back = zd__client_packet__unpack(&arena.allocator, nbytes, bytes);
	assert_non_null(back);
	assert_int_equal(back->n_requests, 1);
	assert_int_equal(back->requests[0]->id, 7);
	assert_int_equal(back->requests[0]->update_begin->n_units, 3);
	assert_int_equal(back->requests[0]->update_begin->units[2], UINT64_MAX);
	/* A message that ends early gives nothing, and leaves nothing that a reset does not take. */
	for (size_t cut = 1; cut < nbytes; cut++)
		assert_null(zd__client_packet__unpack(&arena.allocator, cut, bytes));
	zd_arena_deinit(&arena);
}

/* The packet that unpacks to the most: nothing but empty requests. */
TEST(the_largest_blow_up)
{
	uint8_t *bytes = zd_calloc(ZD_MAX_PACKET_BYTES, 1);
	struct zd_arena arena;

	for (size_t i = 0; i < ZD_MAX_PACKET_BYTES; i += 2)
		bytes[i] = 1 << 3 | 2; /* field 1, length-delimited; the length behind it is 0 */
	zd_arena_init(&arena, ZD_MAX_PACKET_BYTES);
	for (unsigned round = 0; round < 2; round++) {
		Zd__ClientPacket *packet = zd__client_packet__unpack(&arena.allocator, ZD_MAX_PACKET_BYTES,
		                                                     bytes);

		assert_non_null(packet);
		assert_int_equal(packet->n_requests, ZD_MAX_PACKET_BYTES / 2);
		zd_arena_reset(&arena);
	}
	zd_arena_deinit(&arena);
	free(bytes);
}
