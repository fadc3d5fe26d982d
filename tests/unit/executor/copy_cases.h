/* SPDX-License-Identifier: Apache-2.0 */
/* copy_cases.h - what copies, fills and reductions do on every backend. */
#ifndef ZD_TEST_LANE_CASES_H
#define ZD_TEST_LANE_CASES_H

#include "tests/unit/executor/backend_fixture.h"

BACKEND_TEST(test_copies_move_bytes_between_devices, open_two)
{
	const uint64_t bytes = 3 * MIB + 4096; /* several slices and a rest */
	assert_int_equal(create(f, 0, 1, bytes).completion.status, 0);
	assert_int_equal(create(f, 1, 2, bytes).completion.status, 0);
	uint8_t *a = map_segment(f, 1, bytes);
	uint8_t *b = map_segment(f, 2, bytes);
	for (uint64_t i = 0; i < bytes; i++)
		a[i] = (uint8_t)(i * 2654435761u >> 13);
	struct record record =
	        wait_op(f, submit(f, copy(0, at(1, 256, bytes - 512), 1, at(2, 256, bytes - 512))));
	assert_int_equal(record.completion.status, 0);
	assert_memory_equal(a + 256, b + 256, bytes - 512);
	for (size_t i = 0; i < 256; i++) { /* and not one more */
		assert_int_equal(b[i], 0);
		assert_int_equal(b[bytes - 256 + i], 0);
	}
	munmap(a, bytes);
	munmap(b, bytes);
}

/* In more pieces than an executor issues in a group, and long rows. */
BACKEND_TEST(test_rows_are_copied_without_gaps, open_two)
{
	const struct {
		struct zd_rows rows;
		uint64_t count;
	} cases[] = {{{1, 3}, 17 * (128 * KIB) + 5}, {{100000, 131072}, 60}};
	assert_int_equal(create(f, 0, 1, 8 * MIB).completion.status, 0);
	uint8_t *from = map_segment(f, 1, 8 * MIB);
	for (uint64_t i = 0; i < 8 * MIB; i++)
		from[i] = (uint8_t)(i * 2654435761u >> 13);
	for (uint32_t device = 0; device < 2; device++) {
		assert_int_equal(create(f, device, 2 + device, 8 * MIB).completion.status, 0);
		uint8_t *to = map_segment(f, 2 + device, 8 * MIB);
		for (uint32_t c = 0; c < 2; c++) {
			struct zd_rows rows = cases[c].rows;
			uint64_t bytes = cases[c].count * rows.bytes, wrong = 0;
			struct zd_command command = copy(0, at(1, 5, zd_rows_span(rows, bytes)), device,
			                                 at(2 + device, 1, bytes));
			command.u.copy.rows = rows;
			memset(to, 0x55, 8 * MIB);
			assert_int_equal(wait_op(f, submit(f, command)).completion.status, 0);
			for (uint64_t i = 0; i < bytes; i++)
				wrong += to[1 + i] != from[5 + i / rows.bytes * rows.stride + i % rows.bytes];
			assert_int_equal(wrong, 0);
			assert_int_equal(to[0], 0x55);
			assert_int_equal(to[1 + bytes], 0x55);
		}
		munmap(to, 8 * MIB);
	}
	munmap(from, 8 * MIB);
}

/* Byte i of copy k. */
static uint8_t copied_byte(unsigned k, uint64_t i)
{
	return (uint8_t)(i * 7 + k * 31 + (i >> 13));
}

/* Copies of all sizes at once, whatever way they go: each arrives whole and nowhere else. */
BACKEND_TEST(test_copies_within_a_device, open_two)
{
	static const uint64_t sizes[] = {256, 4 * MIB - 256, 4 * MIB, 4 * MIB + 256, 13 * MIB, 64 * KIB};
	enum { COPIES = 12, ROOM = 14 };
	uint64_t submitted[COPIES];
	assert_int_equal(create(f, 0, 1, COPIES * ROOM * MIB).completion.status, 0);
	assert_int_equal(create(f, 0, 2, COPIES * ROOM * MIB).completion.status, 0);
	uint8_t *from = map_segment(f, 1, COPIES * ROOM * MIB);
	uint8_t *to = map_segment(f, 2, COPIES * ROOM * MIB);
	for (unsigned k = 0; k < COPIES; k++)
		for (uint64_t i = 0; i < sizes[k % 6]; i++)
			from[k * ROOM * MIB + i] = copied_byte(k, i);
	for (unsigned k = 0; k < COPIES; k++)
		submitted[k] = submit(f, copy(0, at(1, k * ROOM * MIB, sizes[k % 6]), 0,
		                              at(2, k * ROOM * MIB, sizes[k % 6])));
	for (unsigned k = 0; k < COPIES; k++)
		assert_int_equal(wait_op(f, submitted[k]).completion.status, 0);
	for (unsigned k = 0; k < COPIES; k++) {
		uint64_t wrong = 0;
		for (uint64_t i = 0; i < ROOM * MIB; i++)
			wrong += to[k * ROOM * MIB + i] != (i < sizes[k % 6] ? copied_byte(k, i) : 0);
		assert_int_equal(wrong, 0);
	}
	munmap(from, COPIES * ROOM * MIB);
	munmap(to, COPIES * ROOM * MIB);
}

BACKEND_TEST(test_fill_zeroes_its_place_only, open_two)
{
	assert_int_equal(create(f, 0, 1, 2 * MIB).completion.status, 0);
	uint8_t *seen = map_segment(f, 1, 2 * MIB);
	memset(seen, 0xff, 2 * MIB);
	assert_int_equal(wait_op(f, submit(f, fill(0, at(1, 256, 2 * MIB - 512)))).completion.status, 0);
	for (uint64_t i = 0; i < 2 * MIB; i++)
		assert_int_equal(seen[i], i < 256 || i >= 2 * MIB - 256 ? 0xff : 0);
	munmap(seen, 2 * MIB);
}

BACKEND_TEST(test_empty_commands_complete, open_two)
{
	assert_int_equal(wait_op(f, submit(f, copy(0, at(0, 0, 0), 1, at(0, 0, 0)))).completion.status, 0);
	assert_int_equal(wait_op(f, submit(f, fill(0, at(0, 0, 0)))).completion.status, 0);
	assert_int_equal(wait_op(f, submit(f, watch(0, SESSION, 0, NULL))).completion.status,
	                 ZEROD_E_ABORTED);
}

BACKEND_TEST(test_reduce_reports_its_result, open_two)
{
	const uint64_t numel = 200000; /* several slices */
	const uint64_t bytes = numel * sizeof(float);
	assert_int_equal(create(f, 0, 1, 3 * MIB).completion.status, 0);
	float *seen = (float *)(void *)map_segment(f, 1, 3 * MIB);
	for (size_t i = 0; i < numel; i++) {
		seen[i] = 1.0f;
		seen[numel + i] = 2.0f;
		seen[2 * numel + i] = 0.5f;
	}
	const struct zd_location inputs[] = {at(1, 0, bytes), at(1, bytes, bytes)};
	struct zd_command reduce = {.kind = ZD_CMD_REDUCE};
	reduce.u.reduce = (struct zd_reduce_desc){
	        .numel = numel,
	        .input_dtype = ZEROD_FLOAT32,
	        .target_dtype = ZEROD_FLOAT32,
	        .ninputs = 2,
	        .inputs = inputs,
	        .target = at(1, 2 * bytes, bytes),
	        .prescale = 2.0f,
	        .postscale = 0.25f,
	};
	struct record record = wait_op(f, submit(f, reduce));
	assert_int_equal(record.completion.status, 0);
	for (size_t i = 0; i < numel; i++)
		assert_true(seen[2 * numel + i] == 2.0f); /* (1 + 2) * 2 / 4 + 0.5 */
	assert_true(record.completion.result.sum_squares == 4.0 * (double)numel);
	assert_false(record.completion.result.overflow);

	seen[numel + 12345] = 3e38f;
	record = wait_op(f, submit(f, reduce));
	assert_true(record.completion.result.overflow);
	munmap(seen, 3 * MIB);
}

#endif
