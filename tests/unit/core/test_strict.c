/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strict sessions: their gathered buffers and slots fill whole pages, or segments, and are charged so.
 */
#include "proto/limits.h"
#include "tests/support/core_driver.h"

#define PAGE       ((uint64_t)ZD_STRICT_ALIGN_BYTES)
#define UNIT_BYTES 512u
#define NUNITS     4u

/* Rank 0 is strict, rank 1 is not; both on device 0, in the same segments. */
static void start(struct core_driver *core, struct core_team *team)
{
	core_team_enter(team, core,
	                (const uint64_t[]){core_open_strict(core, CORE_ALICE), core_open(core, CORE_ALICE)},
	                2);
}

static struct zd_location gather(struct core_team *team, uint32_t rank, uint64_t unit)
{
	uint64_t request = core_gather(team->core, team->session[rank], unit);
	return core_expect(team->core, request, 0)->place;
}

static bool share_a_page(struct zd_location a, struct zd_location b)
{
	return a.segment == b.segment && a.offset / PAGE <= (b.offset + b.bytes - 1) / PAGE &&
	       b.offset / PAGE <= (a.offset + a.bytes - 1) / PAGE;
}

ENGINE_TEST(test_buffers_fill_whole_pages)
{
	static const char *const names[NUNITS] = {"a", "b", "c", "d"};
	struct core_team team;
	struct zd_location strict[NUNITS], usual[NUNITS];
	start(core, &team);
	for (uint32_t i = 0; i < NUNITS; i++) { /* taking turns, so that neighbours would be mixed */
		uint64_t unit = core_team_unit(&team, names[i], UNIT_BYTES);
		usual[i] = gather(&team, 1, unit);
		strict[i] = gather(&team, 0, unit);
		assert_int_equal(usual[i].bytes, UNIT_BYTES);
		assert_int_equal(strict[i].bytes, PAGE);
		assert_int_equal(strict[i].offset % PAGE, 0);
	}
	for (uint32_t i = 0; i < NUNITS; i++) {
		for (uint32_t j = 0; j < NUNITS; j++) {
			assert_false(share_a_page(strict[i], usual[j]));
			assert_false(i != j && share_a_page(strict[i], strict[j]));
		}
	}
	assert_int_equal(core_usage(core).gathered_bytes, NUNITS * (PAGE + UNIT_BYTES));
}

ENGINE_TEST(test_slots_fill_whole_pages)
{
	struct core_team team;
	start(core, &team);
	uint64_t small = core_team_slot_unit(&team, "small", UNIT_BYTES, 1);
	uint64_t large = core_team_slot_unit(&team, "large", PAGE + UNIT_BYTES, 1);
	struct zd_location first = gather(&team, 0, small);
	assert_int_equal(first.bytes, PAGE);
	core_expect(core, core_release(core, team.session[0], small), 0);
	struct zd_location second = gather(&team, 0, large);
	assert_int_equal(second.bytes, 2 * PAGE);
	assert_int_equal(second.offset, first.offset);
	assert_int_equal(second.offset % PAGE, 0);
}

/* The listed bytes are the charged bytes, also while a gather waits. */
ENGINE_TEST(test_budget_counts_whole_pages, .gather_budget_bytes = PAGE)
{
	struct core_team team;
	struct core_row rows[2];
	start(core, &team);
	uint64_t a = core_team_unit(&team, "a", UNIT_BYTES), b = core_team_unit(&team, "b", UNIT_BYTES);
	(void)gather(&team, 0, a);
	uint64_t waiting = core_gather(core, team.session[0], b);
	core_expect_waits(core, waiting, "4096 bytes of device 0's gather budget (4096 live)");
	assert_int_equal(core_rows(core, ZD__TABLE__BUFFERS, rows, 2), 2);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(rows[i].row->buffer->padded_bytes, PAGE);
		assert_int_equal(rows[i].row->buffer->true_bytes, UNIT_BYTES);
	}
	core_expect(core, core_release(core, team.session[0], a), 0);
	core_expect(core, waiting, 0);
}

/* ---- Where clients take access away from whole segments ------------------------------------------------ */

#define GRAIN (64 * CORE_KIB)

static struct core_driver *start_by_segment(uint64_t arena_bytes, struct core_team *team)
{
	const struct core_options options = {.arena_bytes = arena_bytes,
	                                     .segment_bytes = GRAIN,
	                                     .segment_align_bytes = GRAIN,
	                                     .strict_by_segment = true,
	                                     .sessions_map = true};
	struct core_driver *core = core_new(&options);
	start(core, team);
	return core;
}

static void release(struct core_team *team, uint32_t rank, uint64_t unit)
{
	core_expect(team->core, core_release(team->core, team->session[rank], unit), 0);
}

TEST(test_buffers_fill_segments)
{
	static const char *const names[NUNITS] = {"a", "b", "c", "d"};
	struct core_team team;
	struct core_driver *core = start_by_segment(0, &team);
	struct zd_location strict[NUNITS], usual[NUNITS];
	for (uint32_t i = 0; i < NUNITS; i++) {
		uint64_t unit = core_team_unit(&team, names[i], UNIT_BYTES);
		usual[i] = gather(&team, 1, unit);
		strict[i] = gather(&team, 0, unit);
		assert_int_equal(usual[i].bytes, UNIT_BYTES);
		assert_int_equal(strict[i].bytes, GRAIN);
		assert_int_equal(strict[i].offset, 0);
		assert_int_equal(usual[i].segment, usual[0].segment);
		for (uint32_t j = 0; j <= i; j++) {
			assert_int_not_equal(strict[i].segment, usual[j].segment);
			assert_true(i == j || strict[i].segment != strict[j].segment);
		}
	}
	assert_int_equal(core_usage(core).gathered_bytes, NUNITS * (GRAIN + UNIT_BYTES));
	core_end(core);
}

TEST(test_segments_serve_the_next_of_their_size)
{
	struct core_team team;
	struct core_driver *core = start_by_segment(0, &team);
	uint64_t small = core_team_unit(&team, "small", UNIT_BYTES);
	uint64_t other = core_team_unit(&team, "other", GRAIN / 2);
	uint64_t large = core_team_unit(&team, "large", GRAIN + UNIT_BYTES);
	uint32_t segment = gather(&team, 0, small).segment;
	release(&team, 0, small);
	assert_int_equal(core_usage(core).gathered_bytes, 0);
	struct zd_location at = gather(&team, 0, large);
	assert_int_not_equal(at.segment, segment);
	assert_int_equal(at.bytes, 2 * GRAIN);
	assert_int_equal(gather(&team, 0, other).segment, segment);
	core_end(core);
}

TEST(test_slots_fill_segments)
{
	struct core_team team;
	struct core_driver *core = start_by_segment(0, &team);
	uint64_t small = core_team_slot_unit(&team, "small", UNIT_BYTES, 1);
	uint64_t large = core_team_slot_unit(&team, "large", GRAIN + UNIT_BYTES, 1);
	uint64_t apart = core_team_unit(&team, "apart", UNIT_BYTES);
	struct zd_location first = gather(&team, 0, small);
	assert_int_equal(first.bytes, GRAIN);
	assert_int_not_equal(gather(&team, 0, apart).segment, first.segment);
	release(&team, 0, small);
	struct zd_location second = gather(&team, 0, large);
	assert_int_equal(second.bytes, 2 * GRAIN);
	assert_int_equal(second.segment, first.segment);
	core_end(core);
}

/* The arena is full of segments of another size: who wants a larger one waits until enough of them are empty
 * and unmapped. */
TEST(test_segments_make_room_for_other_sizes)
{
	struct core_team team;
	struct core_driver *core = start_by_segment((2 + NUNITS) * GRAIN, &team); /* two are the shards' */
	uint64_t units[NUNITS], large = core_team_unit(&team, "large", GRAIN + UNIT_BYTES);
	for (uint32_t i = 0; i < NUNITS; i++) {
		char name[] = {(char)('a' + i), 0};
		units[i] = core_team_unit(&team, name, UNIT_BYTES);
		(void)gather(&team, 0, units[i]);
	}
	uint64_t waiting = core_gather(core, team.session[0], large);
	core_expect_waits(core, waiting, "131072 bytes");
	release(&team, 0, units[0]);
	core_expect_waits(core, waiting, "131072 bytes");
	assert_int_equal(core_told(core, team.session[0]), 0); /* one is not enough */
	release(&team, 0, units[1]);
	core_expect_waits(core, waiting, "to unmap segment");
	core_unmap(core, team.session[0]);
	core_expect(core, waiting, 0);
	core_end(core);
}
