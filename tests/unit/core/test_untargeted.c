/* SPDX-License-Identifier: Apache-2.0 */
/* Sums without a place in the target: room for them, and what may not change while they are there. */
#include <stdio.h>

#include "proto/limits.h"
#include "tests/support/core_reduce.h"

#define NUMEL  8192u /* 32 KiB */
#define NUNITS 100u

static const struct core_options small_segments = {
        .ndevices = 3, .unordered = true, .segment_bytes = 4096, .segment_align_bytes = 4096};

static uint64_t send(const struct core_reducers *g, uint32_t rank, const struct zd_args *args)
{
	return core_send(g->team.core, g->team.session[rank], args);
}

static uint64_t set_target(const struct core_reducers *g, uint32_t rank, uint64_t unit, uint32_t target)
{
	struct zd_args args = {.kind = ZD_REQ_SET_FROZEN,
	                       .u.set_frozen = {.unit = unit, .frozen = false, .target = target}};
	return send(g, rank, &args);
}

/* Of all ranks. */
static void untarget(const struct core_reducers *g, uint64_t unit)
{
	for (uint32_t rank = 0; rank < g->team.world_size; rank++)
		core_expect(g->team.core, set_target(g, rank, unit, ZD_TARGET_NONE), 0);
}

static uint64_t step_begin(const struct core_reducers *g, uint32_t rank, bool ahead, bool scalars)
{
	struct zd_args args = {.kind = ZD_REQ_STEP_BEGIN};
	args.u.step_begin.group = g->team.group;
	args.u.step_begin.ahead = ahead;
	args.u.step_begin.scalars = scalars;
	return send(g, rank, &args);
}

/* Allocates what is left of device 0. */
static void fill(const struct core_reducers *g)
{
	for (uint64_t bytes = 64 * CORE_KIB; bytes >= 4096; bytes /= 2) {
		const struct zd_reply *reply;
		do {
			reply = core_reply(g->team.core,
			                   core_alloc(g->team.core, g->team.session[0], "job", 0, bytes));
		} while (reply && reply->status == 0);
	}
}

/* One rank's sum is being made without staging, and there is no memory for the next one before its return. */
TEST(test_room_comes_back)
{
	struct core_options options = small_segments;
	uint64_t unit[NUNITS], entry[NUNITS];
	uint32_t n = 1;
	options.arena_bytes = 16 * CORE_MIB;
	struct core_driver *core = core_new(&options);
	struct core_reducers g = core_reducers_new(core, 1, ZEROD_FLOAT32, 4 * CORE_MIB, 1);
	for (uint32_t i = 0; i < NUNITS; i++) {
		char name[16];
		(void)snprintf(name, sizeof(name), "u%u", i);
		unit[i] = core_reducers_unit(&g, name, NUMEL);
		untarget(&g, unit[i]);
	}
	core_reducers_begin(&g, 3, true);
	for (uint32_t i = 0; i < NUNITS; i++)
		entry[i] = core_put(&g, 0, unit[i], 1);
	core_hold(core, ZD_CMD_REDUCE);
	core_expect(core, core_submit(&g, 0, entry[0], NULL), 0);
	fill(&g);
	do
		core_expect(core, core_submit(&g, 0, entry[n], NULL), 0);
	while (core_pending(core, ZD_CMD_REDUCE) == ++n && n < NUNITS);
	assert_true(n < NUNITS);
	uint64_t waits = core_wait_sum(&g.team, 0, unit[n - 1], false);
	assert_null(core_reply(core, waits));
	core_unhold(core, ZD_CMD_REDUCE);
	core_expect(core, core_wait_sum(&g.team, 0, unit[0], false), 0);
	core_expect(core, core_return_sum(&g.team, 0, unit[0], NULL), 0);
	core_expect(core, waits, 0);
	core_abandon(core);
}

/* Nobody returns a sum behind the call of the step: what waits for room fails. */
TEST(test_room_that_does_not_come_back)
{
	struct core_driver *core = core_new(&small_segments);
	struct core_reducers g = core_reducers_new(core, 1, ZEROD_FLOAT32, 64 * CORE_KIB, 4);
	uint64_t a = core_reducers_unit(&g, "a", NUMEL), b = core_reducers_unit(&g, "b", NUMEL);
	untarget(&g, a);
	untarget(&g, b);
	core_reducers_begin(&g, 3, true);
	uint64_t first = core_put(&g, 0, a, 1), second = core_put(&g, 0, b, 1);
	core_expect(core, core_submit(&g, 0, first, NULL), 0);
	fill(&g);
	core_expect(core, core_submit(&g, 0, second, NULL), 0);
	uint64_t end = core_backward_end(&g.team, 0), step = step_begin(&g, 0, true, false);
	assert_non_null(core_reply(core, end));
	core_expect_error(core, step, ZEROD_E_NO_MEMORY, "device 0");
	core_abandon(core);
}

/* A rank has left the window with an error, while another one's slice finds no memory. No sum goes. */
TEST(test_room_of_a_window_that_a_rank_has_left)
{
	struct core_driver *core = core_new(&small_segments);
	struct core_reducers g = core_reducers_new(core, 3, ZEROD_FLOAT32, 256 * CORE_KIB, 2);
	uint64_t v = core_reducers_unit(&g, "v", NUMEL), y = core_reducers_unit(&g, "y", 4 * NUMEL),
	         z = core_reducers_unit(&g, "z", NUMEL);
	core_reducers_begin(&g, 3, true);
	core_hold(core, ZD_CMD_REDUCE);
	core_reduce_all(&g, v, 1);
	core_run_on(core, ZD_CMD_REDUCE, 1);
	uint64_t y0 = core_put(&g, 0, y, 1), y2 = core_put(&g, 2, y, 1), z0 = core_put(&g, 0, z, 1);
	fill(&g);
	core_expect(core, core_submit(&g, 0, y0, NULL), 0);
	core_expect(core, core_submit(&g, 2, y2, NULL), 0);
	core_expect(core, core_skip(&g.team, 1, y), 0);
	core_run_on(core, ZD_CMD_REDUCE, 1);
	core_expect(core, core_submit(&g, 0, z0, NULL), 0);
	core_expect(core, core_backward_end(&g.team, 1), ZEROD_E_MISMATCH);
	core_expect(core, core_step(&g.team, 1), ZEROD_E_MISMATCH);
	core_abandon(core);
}

/* The group fails while a sum is lent: its place does not change before the return. */
TEST(test_a_place_does_not_change_under_a_loan)
{
	struct core_driver *core = core_new(&(struct core_options){.ndevices = 2});
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, 64 * CORE_KIB, 4);
	uint64_t a = core_reducers_unit(&g, "a", 512), b = core_reducers_unit(&g, "b", 512);
	untarget(&g, a);
	core_reducers_begin(&g, 3, true);
	for (uint32_t rank = 0; rank < 2; rank++) {
		core_reduce(&g, rank, a, 1);
		core_reduce(&g, rank, b, 1);
	}
	core_expect(core, core_wait_sum(&g.team, 0, a, false), 0);
	core_expect(core, core_wait_sum(&g.team, 0, b, false), 0);
	core_close(core, g.team.session[1]);
	core_expect(core, set_target(&g, 0, a, ZD_TARGET_TAKE), ZEROD_E_PEER_LOST);
	core_expect_error(core, set_target(&g, 0, a, ZD_TARGET_TAKE), ZEROD_E_STATE,
	                  "has not returned the sum");
	core_expect_error(core, set_target(&g, 0, b, ZD_TARGET_NONE), ZEROD_E_STATE,
	                  "has not returned the sum");
	core_expect(core, core_return_sum(&g.team, 0, a, NULL), 0);
	core_expect(core, core_return_sum(&g.team, 0, b, NULL), 0);
	core_abandon(core);
}

TEST(test_no_move_in_a_window)
{
	struct core_driver *core = core_new(&(struct core_options){
	        .ndevices = 2, .unordered = true, .host_arena_bytes = CORE_MIB, .segment_bytes = 65536});
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, 64 * CORE_KIB, 4);
	uint64_t a = core_reducers_unit(&g, "a", 512);
	untarget(&g, a);
	core_reducers_begin(&g, 3, true);
	struct zd_args args = {.kind = ZD_REQ_UNIT_PLACE, .u.unit_place = {.unit = a, .on_host = true}};
	uint64_t first = send(&g, 0, &args), second = send(&g, 1, &args);
	core_expect(core, first, ZEROD_E_STATE);
	core_expect(core, second, ZEROD_E_STATE);
	core_abandon(core);
}

TEST(test_scalars_behind_sums_that_have_gone)
{
	struct core_driver *core = core_new(&(struct core_options){.ndevices = 2});
	struct core_reducers g = core_reducers_new(core, 1, ZEROD_FLOAT32, 64 * CORE_KIB, 4);
	uint64_t a = core_reducers_unit(&g, "a", 512);
	untarget(&g, a);
	core_reducers_begin(&g, 3, true);
	core_reduce(&g, 0, a, 1);
	core_expect(core, core_wait_sum(&g.team, 0, a, false), 0);
	core_expect(core, core_return_sum(&g.team, 0, a, NULL), 0);
	core_reducers_end(&g);
	const struct zd_reply *reply = core_expect(core, step_begin(&g, 0, false, true), 0);
	assert_int_not_equal(reply->scalars.segment, 0);
	core_abandon(core);
}
