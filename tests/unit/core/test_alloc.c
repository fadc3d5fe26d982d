/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain allocations: zeroed, aligned, charged, and freed when the streams that use them are through.
 */
#include "base/mem.h"
#include "core/memory/block.h"
#include "tests/support/core_driver.h"

static uint64_t alloc(struct core_driver *core, uint64_t session, uint64_t bytes, uint64_t alignment)
{
	struct zd_args args = {.kind = ZD_REQ_ALLOC,
	                       .u.alloc = {.job = (char *)"job", .bytes = bytes, .alignment = alignment}};
	return core_send(core, session, &args);
}

static uint64_t free_after(struct core_driver *core, uint64_t session, uint64_t allocation,
                           const struct zd_fence *fences, uint32_t nfences)
{
	struct zd_args args = {
	        .kind = ZD_REQ_FREE, .u.free = {.allocation = allocation}, .fences = {nfences, fences}};
	return core_send(core, session, &args);
}

TEST(test_allocations_are_zeroed_and_aligned)
{
	static const uint64_t sizes[] = {1, 255, 256, 257, 4096, 70000};
	static const uint64_t alignments[] = {0, 1, 256, 4096, ZD_BLOCK_MAX_ALIGN};
	struct core_driver *core = core_new(
	        &(struct core_options){.arena_bytes = 32 * CORE_MIB, .segment_bytes = 16 * CORE_MIB});
	uint64_t session = core_open(core, CORE_ALICE), sum = 0;
	for (size_t i = 0; i < ZD_ARRAY_LEN(sizes) * ZD_ARRAY_LEN(alignments); i++) {
		uint64_t bytes = sizes[i / ZD_ARRAY_LEN(alignments)];
		uint64_t align = alignments[i % ZD_ARRAY_LEN(alignments)];
		uint64_t rounded = zd_align_up(bytes, 256);
		struct zd_location at = core_expect(core, alloc(core, session, bytes, align), 0)->place;
		uint8_t *data = core_bytes(core, at);
		assert_int_equal(at.bytes, rounded);
		assert_int_equal(at.offset % zd_max_u64(align, 256), 0);
		for (uint64_t b = 0; b < rounded; b++)
			assert_int_equal(data[b], 0);
		memset(data, 0xff, rounded); /* would show in a neighbour */
		sum += rounded;
		assert_int_equal(core_usage(core).allocation_bytes, sum);
	}
	core_end(core);
}

ENGINE_TEST(test_bad_arguments)
{
	static const char long_name[] = "0123456789012345678901234567890123456789012345678901234567890123";
	static const struct {
		const char *job, *name;
		uint64_t bytes, alignment;
		uint32_t device;
		int status;
		const char *text;
	} cases[] = {
	        {"", "", 1, 0, 0, ZEROD_E_INVALID, "job name"},
	        {NULL, "", 1, 0, 0, ZEROD_E_INVALID, "job name"},
	        {"job", "a\nb", 1, 0, 0, ZEROD_E_INVALID, "allocation name"},
	        {"job", long_name, 1, 0, 0, ZEROD_E_INVALID, "allocation name"},
	        {"job", NULL, 1, 0, 2, ZEROD_E_NOT_FOUND, "no device 2; there are 2"},
	        {"job", NULL, 0, 0, 0, ZEROD_E_INVALID, "0 bytes are not in 1 .. 1125899906842624"},
	        {"job", NULL, ZD_MAX_BYTES + 1, 0, 0, ZEROD_E_INVALID, "1125899906842625 bytes"},
	        {"job", NULL, UINT64_MAX, 0, 0, ZEROD_E_INVALID, "bytes"},
	        {"job", NULL, 1, 384, 0, ZEROD_E_INVALID, "alignment 384 is no power of two up to 2097152"},
	        {"job", NULL, 1, 4 * CORE_MIB, 0, ZEROD_E_INVALID, "alignment"},
	        {"job", NULL, ZD_MAX_BYTES, 0, 0, ZEROD_E_NO_MEMORY, "do not fit on device 0: arena 4194304"},
	};
	uint64_t session = core_open(core, CORE_ALICE);
	for (size_t i = 0; i < ZD_ARRAY_LEN(cases); i++) {
		struct zd_args args = {.kind = ZD_REQ_ALLOC,
		                       .u.alloc = {.job = (char *)cases[i].job,
		                                   .name = (char *)cases[i].name,
		                                   .device = cases[i].device,
		                                   .bytes = cases[i].bytes,
		                                   .alignment = cases[i].alignment}};
		core_expect_error(core, core_send(core, session, &args), cases[i].status, cases[i].text);
		assert_int_equal(core_rows(core, ZD__TABLE__JOBS, NULL, 0), 0);
	}
}

ENGINE_TEST(test_freed_memory_waits_for_its_streams, .segment_align_bytes = 8192)
{
	static const struct zd_fence streams[] = {{1, 5}, {2, 5}};
	uint64_t session = core_open(core, CORE_ALICE);
	const struct zd_reply *first = core_expect(core, alloc(core, session, 4096, 0), 0);
	core_expect(core, free_after(core, session, first->u.alloc.allocation, streams, 2), 0);
	assert_int_equal(core_usage(core).allocation_bytes, 0);
	assert_int_equal(core_quarantine(core, 0), 4096);
	assert_int_equal(core_rows(core, ZD__TABLE__ALLOCATIONS, NULL, 0), 0);
	core_pass(core, session, 1, 5);
	const struct zd_reply *second = core_expect(core, alloc(core, session, 4096, 0), 0);
	assert_int_not_equal(first->place.offset, second->place.offset);
	core_pass(core, session, 2, 5);
	assert_int_equal(core_quarantine(core, 0), 0);
	core_expect(core, free_after(core, session, second->u.alloc.allocation, streams, 2), 0);
	assert_int_equal(core_quarantine(core, 0), 0);
	/* the job was there for the allocations' sake */
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, NULL, 0), 0);
}

ENGINE_TEST(test_only_what_is_there_and_ones_own_is_freed)
{
	uint64_t session = core_open(core, CORE_ALICE), other = core_open(core, CORE_ALICE);
	struct core_row row;
	uint64_t id = core_expect(core, alloc(core, session, 256, 0), 0)->u.alloc.allocation;
	core_expect_error(core, free_after(core, other, id, NULL, 0), ZEROD_E_NOT_FOUND, "has no allocation");
	core_expect(core, free_after(core, session, id + 1000, NULL, 0), ZEROD_E_NOT_FOUND);
	core_expect(core, free_after(core, session, id, &(struct zd_fence){0, 0}, 1), ZEROD_E_INVALID);
	assert_int_equal(core_usage(core).allocation_bytes, 256);
	core_expect(core, free_after(core, session, id, NULL, 0), 0);
	core_expect(core, free_after(core, session, id, NULL, 0), ZEROD_E_NOT_FOUND);
	/* nor one that nobody was told of yet */
	core_hold(core, ZD_CMD_SEGMENT_CREATE);
	uint64_t waiting = alloc(core, session, CORE_MIB, 0);
	core_expect_waits(core, waiting, "alloc: a segment of device 0");
	assert_int_equal(core_rows(core, ZD__TABLE__ALLOCATIONS, NULL, 0), 0);
	core_hold(core, ZD_CMD_FILL);
	core_unhold(core, ZD_CMD_SEGMENT_CREATE);
	core_expect_waits(core, waiting, "alloc: memory to be zeroed");
	assert_int_equal(core_rows(core, ZD__TABLE__ALLOCATIONS, &row, 1), 1);
	core_expect(core, free_after(core, session, row.id, NULL, 0), ZEROD_E_NOT_FOUND);
	core_unhold(core, ZD_CMD_FILL);
	assert_true(core_expect(core, waiting, 0)->u.alloc.allocation == row.id);
}

ENGINE_TEST(test_failed_fill_leaves_nothing)
{
	uint64_t session = core_open(core, CORE_ALICE);
	core_fail_next(core, ZD_CMD_FILL, ZEROD_E_DEVICE, "ECC error");
	core_expect_error(core, alloc(core, session, 256, 0), ZEROD_E_DEVICE, "ECC error");
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, NULL, 0), 0);
	core_fail_next(core, ZD_CMD_SEGMENT_CREATE, ZEROD_E_SYSTEM, "memfd_create: EMFILE");
	core_expect_error(core, alloc(core, session, 256, 0), ZEROD_E_SYSTEM, "memfd_create: EMFILE");
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, NULL, 0), 0);
	core_expect(core, alloc(core, session, 256, 0), 0);
}

/* Memory that comes free by itself is waited for; memory that somebody holds is not. */
ENGINE_TEST(test_full_arena, .arena_bytes = 64 * CORE_KIB)
{
	static const struct zd_fence slow = {1, 1};
	uint64_t session = core_open(core, CORE_ALICE);
	uint64_t id = core_expect(core, alloc(core, session, 48 * CORE_KIB, 0), 0)->u.alloc.allocation;
	core_expect_error(core, alloc(core, session, 48 * CORE_KIB, 0), ZEROD_E_NO_MEMORY,
	                  "49152 bytes do not fit on device 0: arena 65536 bytes, 49152 of them in segments, "
	                  "49152 charged");
	core_expect(core, free_after(core, session, id, &slow, 1), 0);
	uint64_t waiting = alloc(core, session, 48 * CORE_KIB, 0);
	core_expect_waits(core, waiting, "alloc: 49152 bytes of device 0's arena (16384 left)");
	core_expect(core, alloc(core, session, 65 * CORE_KIB, 0), ZEROD_E_NO_MEMORY);
	core_pass(core, session, 1, 1);
	core_expect(core, waiting, 0);
}

/* A user learns how much others hold, and not who they are. */
ENGINE_TEST(test_others_are_counted, .ndevices = 2, .arena_bytes = 4 * CORE_KIB * 64,
            .segment_bytes = 64 * CORE_KIB)
{
	uint64_t alice = core_open(core, CORE_ALICE), bob = core_open(core, CORE_BOB);
	uint64_t request;
	core_expect(core, core_alloc(core, alice, "mine", 0, 64 * CORE_KIB), 0);
	core_expect(core, core_alloc(core, core_open(core, CORE_ALICE), "also mine", 0, 64 * CORE_KIB), 0);
	request = core_alloc(core, alice, "mine", 0, 192 * CORE_KIB);
	core_expect_error(core, request, ZEROD_E_NO_MEMORY,
	                  "131072 charged; jobs of other users hold 0 bytes");
	core_expect(core, core_alloc(core, bob, "secret", 0, 64 * CORE_KIB), 0);
	core_expect(core, core_alloc(core, bob, "secret", 1, 64 * CORE_KIB), 0); /* of another device */
	request = core_alloc(core, alice, "mine", 0, 192 * CORE_KIB);
	core_expect_error(core, request, ZEROD_E_NO_MEMORY,
	                  "196608 charged; jobs of other users hold 65536 bytes");
	assert_null(strstr(core_expect(core, request, ZEROD_E_NO_MEMORY)->error, "secret"));
	request = core_alloc(core, bob, "secret", 0, 192 * CORE_KIB);
	core_expect_error(core, request, ZEROD_E_NO_MEMORY, "jobs of other users hold 131072 bytes");
}
