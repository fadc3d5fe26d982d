/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ahead.c - sums that are begun before their pieces are there: when they are, what they wait for, and
 * that none counts which was made of bytes that had not come.
 */
#include "core/engine/timelines.h"
#include "tests/support/core_reduce.h"

#define SLOT_BYTES (64 * CORE_KIB)
#define NUMEL      200u
#define NSLOTS     3u

static const struct core_options ahead = {.sums_ahead = true, .unordered = true};

/* Two ranks in a backward of stage 3, whose pieces are held. */
static struct core_driver *open_held(struct core_reducers *g, const struct core_options *options)
{
	struct core_driver *core = core_new(options);
	*g = core_reducers_new(core, 2, ZEROD_FLOAT32, SLOT_BYTES, NSLOTS);
	core_hold(core, ZD_CMD_COPY);
	return core;
}

static void end_well(struct core_reducers *g)
{
	core_unhold(g->team.core, ZD_CMD_COPY);
	core_reducers_end(g);
	core_check_step(g, 0, 1, 1.0f);
	core_end(g->team.core);
}

TEST(test_begun_when_all_pieces_travel)
{
	struct core_reducers g;
	struct core_driver *core = open_held(&g, &ahead);
	uint64_t unit = core_reducers_unit(&g, "w", NUMEL);
	core_reducers_begin(&g, 3, true);
	core_reduce(&g, 0, unit, 1.0f);
	struct zd_fence written = {0, 1};
	core_expect(core, core_submit(&g, 1, core_put(&g, 1, unit, 1.0f), &written), 0);
	assert_int_equal(core_pending(core, ZD_CMD_COPY), 1);
	assert_int_equal(core_pending(core, ZD_CMD_REDUCE), 0); /* rank 1 still writes */
	core_pass(core, g.team.session[1], 0, 1);
	assert_int_equal(core_pending(core, ZD_CMD_COPY), 2);
	assert_int_equal(core_pending(core, ZD_CMD_REDUCE), 2);
	core_run_one(core, ZD_CMD_COPY);
	assert_int_equal(core_pending(core, ZD_CMD_REDUCE), 1); /* each waits for its own */
	end_well(&g);
}

TEST(test_not_by_processes_that_cannot_wait)
{
	struct core_reducers g;
	struct core_driver *core = open_held(&g, NULL);
	uint64_t unit = core_reducers_unit(&g, "w", NUMEL);
	core_reducers_begin(&g, 3, true);
	core_reduce_all(&g, unit, 1.0f);
	assert_int_equal(core_count(core, ZD_CMD_REDUCE), 0);
	end_well(&g);
}

TEST(test_refused_ones_come_again)
{
	struct core_options chunks = {.sums_ahead = true, .unordered = true, .reduction_cut_bytes = 512};
	struct core_reducers g;
	struct core_driver *core = open_held(&g, &chunks);
	uint64_t unit = core_reducers_unit(&g, "w", 1024);
	core_reducers_begin(&g, 3, true);
	core_reduce_all(&g, unit, 1.0f);
	uint32_t before = core_count(core, ZD_CMD_REDUCE);
	assert_int_equal(before, 4); /* two of each session */
	core_refuse_sums(core);
	assert_int_equal(core_count(core, ZD_CMD_REDUCE), before); /* none is begun ahead any more */
	end_well(&g);
}

/* Each keeps a stream of its process waiting. */
TEST(test_few_at_a_time)
{
	uint64_t units[NSLOTS];
	struct core_reducers g;
	struct core_driver *core = open_held(&g, &ahead);
	core_reducers_units(&g, units, NSLOTS, NUMEL);
	core_reducers_begin(&g, 3, false);
	for (uint32_t i = 0; i < NSLOTS; i++)
		core_reduce_all(&g, units[i], 1.0f);
	assert_int_equal(core_pending(core, ZD_CMD_COPY), 6);
	assert_int_equal(core_pending(core, ZD_CMD_REDUCE), 4);
	core_unhold(core, ZD_CMD_COPY);
	core_reducers_end(&g);
	core_reducers_begin(&g, 3, false);
	core_hold(core, ZD_CMD_COPY);
	core_reduce_all(&g, units[0], 1.0f);
	assert_int_equal(core_pending(core, ZD_CMD_REDUCE), 2); /* those have ended */
	core_unhold(core, ZD_CMD_COPY);
	core_reducers_end(&g);
	core_end(core);
}

/* ---- Pieces that fail ---------------------------------------------------------------------------------- */

/* Of two sessions of the first: rank 0's, and that of `other`. */
static void second_group(struct core_reducers *second, const struct core_reducers *first, uint32_t other)
{
	struct core_driver *core = first->team.core;
	uint64_t request[2];
	*second = *first;
	second->team.world_size = second->team.nranks = 2;
	second->team.session[1] = first->team.session[other];
	for (uint32_t rank = 0; rank < 2; rank++) {
		struct core_join join = {.job = "job",
		                         .group = "second",
		                         .world_size = 2,
		                         .rank = rank,
		                         .device = rank * other};
		request[rank] = core_join(core, second->team.session[rank], &join);
	}
	for (uint32_t rank = 0; rank < 2; rank++) {
		second->team.group = core_expect(core, request[rank], 0)->u.group_join.group;
		uint64_t bucket = core_bucket(&second->team, rank, ZEROD_FLOAT32, SLOT_BYTES, 1);
		second->bucket[rank] = core_expect(core, bucket, 0)->u.bucket_create.bucket;
	}
}

/* Rank 1 leaves. The next piece to run, which nobody waits for any more, is to fail. */
static void drop_reductions(const struct core_reducers *g)
{
	struct core_driver *core = g->team.core;
	uint64_t request = core_simple(core, g->team.session[1], ZD_REQ_GROUP_LEAVE, g->team.group);
	core_expect(core, request, 0);
	core_fail_next(core, ZD_CMD_COPY, ZEROD_E_DEVICE, "broken by the test");
}

/* It is of a reduction that nobody waits for any more. But its abort frees the sums of later pieces, too. */
static void spoil(bool reset_between)
{
	struct core_reducers g, h;
	struct core_driver *core = open_held(&g, &ahead);
	second_group(&h, &g, 1);
	uint64_t first = core_reducers_unit(&g, "w", NUMEL), second = core_reducers_unit(&h, "v", NUMEL);
	core_reducers_begin(&g, 3, true);
	core_reducers_begin(&h, 3, true);
	core_reduce_all(&g, first, 1.0f);
	core_reduce_all(&h, second, 1.0f);
	drop_reductions(&g);
	uint64_t ends[] = {core_backward_end(&h.team, 0), core_backward_end(&h.team, 1)};
	core_land(core, ZD_CMD_COPY, 1);
	if (reset_between) {
		core_run_on(core, ZD_CMD_COPY, 1); /* the engine is told of it */
		uint32_t signals = core_count(core, ZD_CMD_SIGNAL);
		core_do(core, g.team.session[0], ZD_REQ_SESSION_RESET, 0);
		assert_int_equal(core_count(core, ZD_CMD_SIGNAL), signals + 1); /* the abort is taken back */
	}
	core_unhold(core, ZD_CMD_COPY);
	for (uint32_t rank = 0; rank < 2; rank++)
		core_expect_error(core, ends[rank], ZEROD_E_DEVICE, "unit 'v' for rank 0 on device 0");
	core_close_all(core);
	core_end(core);
}

TEST(test_a_reset_does_not_mend_them)
{
	spoil(true);
}

/* Not even when the session is reset: its timeline's end may come late. */
TEST(test_not_behind_an_abort)
{
	struct core_reducers g, h;
	struct core_driver *core = open_held(&g, &ahead);
	second_group(&h, &g, 1);
	uint64_t first = core_reducers_unit(&g, "w", NUMEL), second = core_reducers_unit(&h, "v", NUMEL);
	core_reducers_begin(&g, 3, true);
	core_reduce_all(&g, first, 1.0f);
	drop_reductions(&g);
	core_land(core, ZD_CMD_COPY, 1);
	core_unhold(core, ZD_CMD_COPY);
	core_hold(core, ZD_CMD_COPY);
	core_reducers_begin(&h, 3, true);
	core_reduce_all(&h, second, 1.0f);
	assert_int_equal(core_pending(core, ZD_CMD_REDUCE), 1); /* rank 1's */
	core_unhold(core, ZD_CMD_COPY);
	core_reducers_end(&h);
	core_check_step(&h, 0, 1, 1.0f);
	core_do(core, g.team.session[0], ZD_REQ_SESSION_RESET, 0);
	core_hold(core, ZD_CMD_COPY);
	core_reducers_begin(&h, 3, true);
	core_reduce_all(&h, second, 1.0f);
	assert_int_equal(core_pending(core, ZD_CMD_REDUCE), 1);
	end_well(&h);
}
