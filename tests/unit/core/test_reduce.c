/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions: what is summed, when, in which order and into what; who must take part; what happens when one
 * does not. Buckets' slots and memory are in test_bucket.c, backwards and steps in test_backward.c.
 */
#include <math.h>

#include "tests/support/core_reduce.h"

#define SLOT_BYTES (64 * CORE_KIB)

/* A backward of stage 3 that is a boundary, ready for reductions of one unit. */
static uint64_t begin_one(struct core_reducers *g, struct core_driver *core, uint32_t world_size,
                          uint32_t dtype, uint64_t numel)
{
	*g = core_reducers_new(core, world_size, dtype, SLOT_BYTES, 2);
	uint64_t unit = core_reducers_unit(g, "w", numel);
	core_reducers_begin(g, 3, true);
	return unit;
}

/* All targets, and the norm of what is in them. */
static void check_step(struct core_reducers *g, float factor)
{
	const struct zd_reply *step[CORE_TEAM];
	double norm_squared = 0.0;
	for (uint64_t i = 0; i < g->numel; i++) {
		float sum = 0.0f;
		for (uint32_t rank = 0; rank < g->team.world_size; rank++)
			sum += core_gradient(rank, i) * factor;
		norm_squared += (double)sum * (double)sum;
	}
	core_reducers_step(g, step);
	for (uint32_t rank = 0; rank < g->team.world_size; rank++) {
		core_check_target(g, rank, step[rank], 0, factor);
		assert_false(step[rank]->u.step_begin.overflow);
		assert_true(fabs(step[rank]->u.step_begin.norm_squared - norm_squared) <=
		            1e-9 * norm_squared);
	}
	core_reducers_step_end(g);
}

/* ---- Sums ---------------------------------------------------------------------------------------------- */

/* Slices of 256 elements and more are cut: halves from 768 on, the rest as 7 to 3. */
TEST(test_cuts)
{
	static const struct {
		uint64_t slice_numel;
		uint32_t chunks;
	} cuts[] = {{192, 1}, {256, 2}, {704, 2}, {768, 3}, {1536, 4}, {3072, 5}, {8192, 5}};
	for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
		struct core_driver *core = core_new(&(struct core_options){.reduction_cut_bytes = 1024});
		struct core_reducers g;
		uint64_t unit = begin_one(&g, core, 2, ZEROD_FLOAT32, 2 * cuts[i].slice_numel);
		core_reduce_all(&g, unit, 1.0f);
		assert_int_equal(core_count(core, ZD_CMD_REDUCE), 2 * cuts[i].chunks);
		core_reducers_end(&g);
		check_step(&g, 1.0f);
		core_end(core);
	}
}

/* ---- Producers ----------------------------------------------------------------------------------------- */

/* One of three streams is late: its rank's pieces wait for it, the other rank's travel. */
ENGINE_TEST(test_producers)
{
	struct core_reducers g;
	static const struct zd_fence fences[] = {{0, 7}, {1, 3}, {2, 9}};
	struct core_row bucket;
	uint64_t unit = begin_one(&g, core, 2, ZEROD_FLOAT32, 500);
	core_reduce(&g, 1, unit, 1.0f);
	assert_int_equal(core_count(core, ZD_CMD_COPY), 0); /* not before all ranks are there */
	core_row(core, ZD__TABLE__BUCKETS, g.bucket[1], &bucket);
	assert_string_equal(bucket.row->bucket->waits[0], "unit 'w' waits for rank 0");

	const struct zd_reply *reply = core_expect(core, core_reserve(&g.team, 0, g.bucket[0], unit), 0);
	core_write(core, reply->place, ZEROD_FLOAT32, 0, 500, 5.0f); /* half-written */
	struct core_commit commit = {.bucket = g.bucket[0],
	                             .entry = reply->u.bucket_reserve.entry,
	                             .nfences = 3,
	                             .fences = fences};
	core_expect(core, core_bucket_submit(&g.team, 0, &commit), 0);
	assert_int_equal(core_count(core, ZD_CMD_COPY), 1);
	core_row(core, ZD__TABLE__BUCKETS, g.bucket[0], &bucket);
	assert_string_equal(bucket.row->bucket->waits[0],
	                    "unit 'w': 3 of rank 0's 3 streams, timeline 0 first");
	core_pass(core, g.team.session[0], 0, 7);
	core_pass(core, g.team.session[0], 2, 9);
	core_row(core, ZD__TABLE__BUCKETS, g.bucket[0], &bucket);
	assert_string_equal(bucket.row->bucket->waits[0],
	                    "unit 'w': 1 of rank 0's 3 streams, timeline 1 first");
	core_row(core, ZD__TABLE__BUCKETS, g.bucket[1], &bucket); /* its own have passed */
	assert_string_equal(bucket.row->bucket->waits[0],
	                    "unit 'w': 1 of rank 0's 3 streams, timeline 1 first");
	assert_int_equal(core_count(core, ZD_CMD_REDUCE), 0);
	core_write(core, reply->place, ZEROD_FLOAT32, 0, 500, 1.0f);
	core_pass(core, g.team.session[0], 1, 4);
	assert_int_equal(core_count(core, ZD_CMD_REDUCE), 2);
	core_reducers_end(&g);
	check_step(&g, 1.0f);
}

/* Each commit announces pieces to the backend before there is a piece to copy; a rejected commit announces
 * nothing. */
ENGINE_TEST(test_pieces_are_expected, .ndevices = 3)
{
	struct core_reducers g;
	uint64_t unit = begin_one(&g, core, 2, ZEROD_FLOAT32, 64);
	struct core_commit commit = {.bucket = g.bucket[0], .entry = core_put(&g, 0, unit, 1.0f), .op = 9};
	core_expect_error(core, core_bucket_submit(&g.team, 0, &commit), ZEROD_E_INVALID,
	                  "unknown reduction");
	assert_int_equal(core_expected(core, 0), 0);
	commit.op = ZEROD_SUM;
	core_expect(core, core_bucket_submit(&g.team, 0, &commit), 0);
	assert_int_equal(core_count(core, ZD_CMD_COPY), 0);
	assert_int_equal(core_expected(core, 0), 1);
	assert_int_equal(core_expected(core, 1), 1);
	core_reduce(&g, 1, unit, 1.0f);
	assert_int_equal(core_expected(core, 1), 2);
	assert_int_equal(core_expected(core, 2), 0); /* is not the group's */
	core_reducers_end(&g);
	check_step(&g, 1.0f);
}

/* ---- Who takes part ------------------------------------------------------------------------------------ */

ENGINE_TEST(test_all_skip)
{
	struct core_reducers g;
	const struct zd_reply *step[CORE_TEAM];
	uint64_t unit = begin_one(&g, core, 2, ZEROD_FLOAT32, 100);
	core_expect(core, core_skip(&g.team, 0, unit), 0);
	core_expect(core, core_skip(&g.team, 1, unit), 0);
	core_expect_error(core, core_skip(&g.team, 1, unit), ZEROD_E_DUPLICATE,
	                  "a second time in backward 1");
	core_reducers_end(&g);
	core_reducers_step(&g, step);
	assert_int_equal(core_count(core, ZD_CMD_REDUCE), 0);
	assert_true(step[0]->u.step_begin.norm_squared == 0.0);
	assert_true(*(float *)core_bytes(core, step[0]->target) == 0.0f);
}

ENGINE_TEST(test_options_must_agree)
{
	struct core_reducers g;
	uint64_t unit = begin_one(&g, core, 2, ZEROD_FLOAT32, 100);
	struct core_commit commit = {.bucket = g.bucket[0], .entry = core_put(&g, 0, unit, 1.0f)};
	core_expect(core, core_bucket_submit(&g.team, 0, &commit), 0);
	commit = (struct core_commit){
	        .bucket = g.bucket[1], .entry = core_put(&g, 1, unit, 1.0f), .op = ZEROD_MEAN};
	core_expect_error(
	        core, core_bucket_submit(&g.team, 1, &commit), ZEROD_E_MISMATCH,
	        "rank 0 reduces by sum of float32, prescale 1, accumulate; rank 1 says mean of float32, "
	        "prescale 1, accumulate");
	commit.op = ZEROD_SUM;
	commit.prescale = 0.5f;
	core_expect_error(core, core_bucket_submit(&g.team, 1, &commit), ZEROD_E_MISMATCH, "prescale 0.5");
	commit.prescale = 1.0f;
	commit.overwrite = true;
	core_expect_error(core, core_bucket_submit(&g.team, 1, &commit), ZEROD_E_MISMATCH, "overwrite");
	commit.overwrite = false; /* nothing has changed by all that */
	core_expect(core, core_bucket_submit(&g.team, 1, &commit), 0);
	core_reducers_end(&g);
	check_step(&g, 1.0f);
}

ENGINE_TEST(test_dtypes_must_agree)
{
	struct core_reducers g;
	uint64_t unit = begin_one(&g, core, 2, ZEROD_FLOAT32, 100);
	uint64_t narrow = core_bucket_ok(&g.team, 1, ZEROD_BFLOAT16, SLOT_BYTES, 0);
	core_reduce(&g, 0, unit, 1.0f);
	const struct zd_reply *reply = core_expect(core, core_reserve(&g.team, 1, narrow, unit), 0);
	struct core_commit commit = {.bucket = narrow, .entry = reply->u.bucket_reserve.entry};
	core_expect_error(core, core_bucket_submit(&g.team, 1, &commit), ZEROD_E_MISMATCH, "sum of bfloat16");
}

/* The same with a skip, whichever rank is first: no text says that the rank reduced. */
TEST(test_a_skip_without_the_others)
{
	struct core_driver *core = core_new(NULL);
	struct core_reducers g;
	uint64_t unit = begin_one(&g, core, 2, ZEROD_FLOAT32, 100);
	core_expect(core, core_skip(&g.team, 0, unit), 0);
	core_expect_error(
	        core, core_backward_end(&g.team, 1), ZEROD_E_MISMATCH,
	        "rank 1 ended backward 1 without a gradient or skip for unit 'w' that rank 0 skipped");
	core_end(core);

	core = core_new(NULL);
	unit = begin_one(&g, core, 2, ZEROD_FLOAT32, 100);
	core_expect(core, core_backward_end(&g.team, 1), 0);
	core_expect_error(
	        core, core_skip(&g.team, 0, unit), ZEROD_E_MISMATCH,
	        "rank 1 ended backward 1 without a gradient or skip for unit 'w' that rank 0 wants to skip");
	core_end(core);
}

/* The other way round: the rank that is late with a unit is told at once, and only it. */
ENGINE_TEST(test_contribution_after_the_end)
{
	struct core_reducers g;
	struct zd_fence fence = {0, 1};
	uint64_t unit = begin_one(&g, core, 2, ZEROD_FLOAT32, 100);
	struct core_commit commit = {
	        .bucket = g.bucket[0], .entry = core_put(&g, 0, unit, 1.0f), .nfences = 1, .fences = &fence};
	core_expect(core, core_backward_end(&g.team, 1), 0);
	core_expect_error(core, core_bucket_submit(&g.team, 0, &commit), ZEROD_E_MISMATCH,
	                  "rank 1 ended backward 1 without a gradient or skip for unit 'w'");
	core_expect(core, core_skip(&g.team, 0, unit), ZEROD_E_MISMATCH);
	/* its streams still write the entry */
	uint64_t end = core_backward_end(&g.team, 0);
	core_expect_waits(core, end, "the caller's own streams");
	core_pass(core, g.team.session[0], 0, 1);
	core_expect(core, end, 0);
	assert_int_equal(core_usage(core).bucket_bytes, 0);
}

/* ---- Failures ------------------------------------------------------------------------------------------ */

static void device_fails(enum zd_command_kind kind, const char *text)
{
	struct core_driver *core = core_new(NULL);
	struct core_reducers g;
	uint64_t end[2];
	uint64_t unit = begin_one(&g, core, 2, ZEROD_FLOAT32, 200);
	core_hold(core, kind);
	for (uint32_t rank = 0; rank < 2; rank++) {
		core_reduce(&g, rank, unit, 1.0f);
		end[rank] = core_backward_end(&g.team, rank);
	}
	assert_int_equal(core_pending(core, kind), 2);
	core_fail_next(core, kind, ZEROD_E_DEVICE, "the device broke");
	core_run_on(core, kind, 1); /* a copy from rank 1, for rank 0, or rank 1's own sum */
	core_unhold(core, kind);
	uint32_t owner = kind == ZD_CMD_COPY ? 0 : 1;
	for (uint32_t rank = 0; rank < 2; rank++)
		core_expect_error(core, end[rank], ZEROD_E_DEVICE, text);
	assert_int_equal(core_usage(core).bucket_bytes + core_usage(core).staging_bytes, 0);
	core_expect_error(core, core_step(&g.team, 1 - owner), ZEROD_E_DEVICE, "the device broke");
	core_expect(core, core_step(&g.team, owner), ZEROD_E_POISONED);
	core_do(core, g.team.session[owner], ZD_REQ_SESSION_RESET, 0);
	core_expect_error(core, core_step(&g.team, owner), ZEROD_E_DEVICE, "the device broke");
	assert_int_equal(core_usage(core).target_bytes, 0);

	core_reducers_begin(&g, 3, true);
	core_reduce(&g, 0, unit, 1.0f);
	core_reduce(&g, 1, unit, 1.0f);
	core_reducers_end(&g);
	check_step(&g, 1.0f);
	core_end(core);
}

TEST(test_a_transfer_fails)
{
	device_fails(ZD_CMD_COPY, "a transfer of unit 'w' for rank 0 on device 0: the device broke");
}

TEST(test_a_sum_fails)
{
	device_fails(ZD_CMD_REDUCE, "the reduction of unit 'w' for rank 1 on device 1: the device broke");
}

ENGINE_TEST(test_a_watch_fails)
{
	struct core_reducers g;
	struct zd_fence fence = {0, 1};
	uint64_t unit = begin_one(&g, core, 2, ZEROD_FLOAT32, 200);
	struct core_commit commit = {
	        .bucket = g.bucket[0], .entry = core_put(&g, 0, unit, 1.0f), .nfences = 1, .fences = &fence};
	core_reduce(&g, 1, unit, 1.0f);
	core_expect(core, core_bucket_submit(&g.team, 0, &commit), 0);
	core_fail_next(core, ZD_CMD_WATCH, ZEROD_E_DEVICE, "no page");
	core_pass(core, g.team.session[0], 0, 1);
	for (uint32_t rank = 0; rank < 2; rank++)
		core_expect_error(core, core_backward_end(&g.team, rank), ZEROD_E_DEVICE,
		                  "the streams of rank 0 that wrote unit 'w': no page");
}

/* A rank dies with everything under way: what its operations use stays until they end, and nobody hangs. */
static void peer_dies(enum zd_command_kind held)
{
	struct core_driver *core = core_new(NULL);
	struct core_reducers g;
	uint64_t unit = begin_one(&g, core, 2, ZEROD_FLOAT32, 200);
	core_hold(core, held);
	core_reduce(&g, 0, unit, 1.0f);
	core_reduce(&g, 1, unit, 1.0f);
	uint64_t end = core_backward_end(&g.team, 0);
	core_expect_waits(core, end, "1 reduction, first unit 'w'");
	core_close(core, g.team.session[1]);
	core_expect_error(core, end, ZEROD_E_PEER_LOST, "rank 1");
	Zd__Usage usage = core_usage(core);
	assert_int_equal(usage.bucket_bytes + usage.staging_bytes + usage.target_bytes, 0);
	assert_int_not_equal(core_quarantine(core, 0), 0);
	assert_int_not_equal(core_quarantine(core, 1), 0);
	core_unhold(core, held);
	assert_int_equal(core_quarantine(core, 0), 0);
	assert_int_equal(core_quarantine(core, 1), 0);

	/* a replacement: the group goes on where it was */
	g.team.session[1] = core_open(core, CORE_ALICE);
	core_join_ok(core, g.team.session[1], &(struct core_join){.world_size = 2, .rank = 1, .device = 1});
	core_register_ok(core, g.team.session[1], g.team.group,
	                 &(struct core_unit){.name = "w", .numel = 200});
	g.bucket[1] = core_bucket_ok(&g.team, 1, ZEROD_FLOAT32, SLOT_BYTES, 0);
	core_reducers_begin(&g, 3, true);
	core_reduce(&g, 0, unit, 1.0f);
	core_reduce(&g, 1, unit, 1.0f);
	core_reducers_end(&g);
	check_step(&g, 1.0f);
	core_end(core);
}

TEST(test_peer_dies_during_transfers)
{
	peer_dies(ZD_CMD_COPY);
}

TEST(test_peer_dies_during_sums)
{
	peer_dies(ZD_CMD_REDUCE);
}
