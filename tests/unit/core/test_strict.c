/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strict sessions: their gathered buffers and slots fill whole pages, and are charged so.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "proto/limits.h"
#include "tests/support/core_driver.h"

#define PAGE       ((uint64_t)ZD_STRICT_ALIGN_BYTES)
#define UNIT_BYTES 512u
#define NUNITS     4u

/* Rank 0 is strict, rank 1 is not; both on device 0, in the same segments. */
static void start(struct core_driver *core, struct core_team *team)
{
	uint64_t request[2];
	*team = (struct core_team){.core = core, .world_size = 2};
	for (uint32_t rank = 0; rank < 2; rank++) {
		struct core_join join = {.world_size = 2, .rank = rank};
		team->session[rank] = rank == 0 ? core_open_strict(core, CORE_ALICE)
		                                : core_open(core, CORE_ALICE);
		request[rank] = core_join(core, team->session[rank], &join);
	}
	for (uint32_t rank = 0; rank < 2; rank++)
		team->group = core_expect(core, request[rank], 0)->u.group_join.group;
}

static struct zd_location gather(struct core_team *team, uint32_t rank, uint64_t unit)
{
	uint64_t request = core_gather(team->core, team->session[rank], unit);
	return core_expect(team->core, request, 0)->u.gather.buffer;
}

static bool share_a_page(struct zd_location a, struct zd_location b)
{
	return a.segment == b.segment && a.offset / PAGE <= (b.offset + b.bytes - 1) / PAGE &&
	       b.offset / PAGE <= (a.offset + a.bytes - 1) / PAGE;
}

static void test_buffers_fill_whole_pages(void **state)
{
	static const char *const names[NUNITS] = {"a", "b", "c", "d"};
	struct core_driver *core = core_new(NULL);
	struct core_team team;
	struct zd_location strict[NUNITS], usual[NUNITS];
	(void)state;
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
	core_end(core);
}

static void test_slots_fill_whole_pages(void **state)
{
	struct core_driver *core = core_new(NULL);
	struct core_team team;
	(void)state;
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
	core_end(core);
}

/* What is listed is what is charged, while a gather waits as well. */
static void test_budget_counts_whole_pages(void **state)
{
	struct core_options options = {.gather_budget_bytes = PAGE};
	struct core_driver *core = core_new(&options);
	struct core_team team;
	struct core_row rows[2];
	(void)state;
	start(core, &team);
	uint64_t a = core_team_unit(&team, "a", UNIT_BYTES), b = core_team_unit(&team, "b", UNIT_BYTES);
	(void)gather(&team, 0, a);
	uint64_t waiting = core_gather(core, team.session[0], b);
	core_expect_waits(core, waiting, "4096 bytes of device 0's gather budget (4096 live)");
	assert_int_equal(core_rows(core, ZD_TABLE_BUFFERS, rows, 2), 2);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(rows[i].row.u.buffer.padded_bytes, PAGE);
		assert_int_equal(rows[i].row.u.buffer.true_bytes, UNIT_BYTES);
	}
	core_expect(core, core_release(core, team.session[0], a), 0);
	core_expect(core, waiting, 0);
	core_end(core);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_buffers_fill_whole_pages),
	        cmocka_unit_test(test_slots_fill_whole_pages),
	        cmocka_unit_test(test_budget_counts_whole_pages),
	};
	return cmocka_run_group_tests_name("core/strict", tests, NULL, NULL);
}
