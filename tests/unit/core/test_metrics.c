/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters and histograms of the core for operators: by the time of its events, and once each.
 */
#include "tests/support/core_reduce.h"

#define UNIT_BYTES 512u
#define US         1000u
#define MS         1000000u

static struct zd_metrics_view view_of(struct core_driver *core)
{
	struct zd_metrics_view view;
	zd_engine_metrics(core_engine(core), &view);
	return view;
}

static void expect_count(struct core_driver *core, enum zd_counter counter, uint64_t count)
{
	assert_int_equal(view_of(core).metrics->counters[counter], count);
}

/* The histogram of the waits for that reason. */
static const struct zd_histogram *waits_for(struct core_driver *core, const char *reason)
{
	struct zd_metrics_view view = view_of(core);
	uint32_t i = 0;
	while (i < view.nwaits && (!view.wait_names[i] || strcmp(view.wait_names[i], reason) != 0))
		i++;
	assert_true(i < view.nwaits);
	return &view.waits[i];
}

static uint64_t observed(const struct zd_histogram *histogram)
{
	uint64_t count = 0;
	for (uint32_t i = 0; i <= ZD_HISTOGRAM_BOUNDS; i++)
		count += histogram->counts[i];
	return count;
}

/* The histogram has this one duration. */
static void expect_one(const struct zd_histogram *histogram, uint64_t ns)
{
	struct zd_histogram one = {.sum_ns = 0};
	zd_histogram_observe(&one, ns);
	assert_memory_equal(histogram, &one, sizeof(one));
}

static struct core_row device_row(struct core_driver *core, uint32_t index)
{
	struct core_row rows[2];
	assert_int_equal(core_rows(core, ZD__TABLE__DEVICES, rows, 2), 2);
	return rows[index];
}

/* ---- Histograms ---------------------------------------------------------------------------------------- */

TEST(test_a_bound_belongs_to_its_bucket)
{
	for (uint32_t i = 0; i < ZD_HISTOGRAM_BOUNDS; i++) {
		struct zd_histogram histogram = {.sum_ns = 0};
		uint64_t bound_ns = zd_histogram_bound_ns(i);
		zd_histogram_observe(&histogram, bound_ns);
		assert_int_equal(histogram.counts[i], 1);
		zd_histogram_observe(&histogram, bound_ns + 1);
		assert_int_equal(histogram.counts[i + 1], 1);
		assert_int_equal(histogram.sum_ns, 2 * bound_ns + 1);
	}
	assert_int_equal(zd_histogram_bound_ns(0), 10 * US);
	assert_int_equal(zd_histogram_bound_ns(ZD_HISTOGRAM_BOUNDS - 1), 10485760ull * US);
}

TEST(test_extremes_have_a_bucket)
{
	struct zd_histogram histogram = {.sum_ns = 0};
	zd_histogram_observe(&histogram, 0);
	assert_int_equal(histogram.counts[0], 1);
	zd_histogram_observe(&histogram, UINT64_MAX);
	assert_int_equal(histogram.counts[ZD_HISTOGRAM_BOUNDS], 1);
}

/* ---- Waits --------------------------------------------------------------------------------------------- */

ENGINE_TEST(test_each_reason_to_wait_has_a_name)
{
	struct zd_metrics_view view = view_of(core);
	assert_null(view.wait_names[0]); /* a request that does not wait */
	for (uint32_t i = 1; i < view.nwaits; i++) {
		assert_non_null(view.wait_names[i]);
		for (uint32_t k = 1; k < i; k++)
			assert_string_not_equal(view.wait_names[i], view.wait_names[k]);
	}
}

ENGINE_TEST(test_a_join_waits_for_ranks)
{
	struct core_join join = {.world_size = 2};
	uint64_t first = core_open(core, CORE_ALICE), second = core_open(core, CORE_ALICE);
	core_tick(core, 5 * MS);
	uint64_t request = core_join(core, first, &join);
	core_tick(core, 8 * MS);
	assert_int_equal(observed(waits_for(core, "ranks")), 0); /* it still waits */
	join.rank = 1;
	core_join_ok(core, second, &join);
	core_expect(core, request, 0);
	expect_one(waits_for(core, "ranks"), 3 * MS);
}

ENGINE_TEST(test_a_wait_is_split_by_reason)
{
	struct core_team team = core_team_new(core, "job", 2, false);
	core_tick(core, 1 * MS);
	uint64_t unit = core_register_ok(core, team.session[0], team.group,
	                                 &(struct core_unit){.name = "w", .numel = 128});
	core_team_publish_rank(&team, unit, 0);
	uint64_t request = core_gather(core, team.session[0], unit);
	core_tick(core, 3 * MS);
	core_register_ok(core, team.session[1], team.group, &(struct core_unit){.name = "w", .numel = 128});
	core_tick(core, 8 * MS);
	core_team_publish_rank(&team, unit, 1);
	core_expect(core, request, 0);
	expect_one(waits_for(core, "register"), 2 * MS);
	expect_one(waits_for(core, "version"), 5 * MS);
}

ENGINE_TEST(test_a_wait_ends_with_its_deadline_or_session)
{
	struct core_team team = core_team_new(core, "job", 2, false);
	uint64_t unit = core_team_register(&team, &(struct core_unit){.name = "w", .numel = 128});
	struct zd_args args = {.kind = ZD_REQ_GATHER, .u.gather = {.unit = unit, .tag = (char *)CORE_TAG}};
	uint64_t request = core_send_until(core, team.session[0], 2 * MS, &args);
	core_tick(core, 2 * MS);
	core_expect(core, request, ZEROD_E_DEADLINE);
	expect_one(waits_for(core, "version"), 2 * MS);
	expect_count(core, ZD_COUNT_GATHERS_FAILED, 1);
	assert_int_equal(view_of(core).metrics->errors[-ZEROD_E_DEADLINE], 1);
	(void)core_send(core, team.session[0], &args);
	core_close(core, team.session[0]);
	assert_int_equal(observed(waits_for(core, "version")), 2);
	expect_count(core, ZD_COUNT_GATHERS_DROPPED, 1);
	expect_count(core, ZD_COUNT_GATHERS_FAILED, 1);
}

/* ---- Gathers ------------------------------------------------------------------------------------------- */

ENGINE_TEST(test_a_gather_lasts_until_its_bytes_are_there)
{
	struct core_team team = core_team_new(core, "job", 2, false);
	uint64_t unit = core_team_unit(&team, "w", UNIT_BYTES);
	core_hold(core, ZD_CMD_COPY);
	core_tick(core, 1 * MS);
	core_expect(core, core_gather(core, team.session[0], unit), 0);
	core_tick(core, 2 * MS);
	core_expect(core, core_gather(core, team.session[0], unit), 0); /* joins it */
	core_run_one(core, ZD_CMD_COPY);
	assert_int_equal(observed(&view_of(core).metrics->gathers), 0);
	core_tick(core, 4 * MS);
	core_run_one(core, ZD_CMD_COPY);
	expect_one(&view_of(core).metrics->gathers, 3 * MS);
	expect_count(core, ZD_COUNT_GATHERS_TRANSFERRED, 1);
	expect_count(core, ZD_COUNT_GATHERS_JOINED, 1);
	expect_count(core, ZD_COUNT_GATHERED_BYTES, UNIT_BYTES);
	assert_int_equal(device_row(core, 0).row->device->gathered_bytes_total, UNIT_BYTES);
	assert_int_equal(device_row(core, 1).row->device->gathered_bytes_total, 0);
	assert_int_equal(view_of(core).metrics->requests[ZD_REQ_GATHER], 2);
	core_unhold(core, ZD_CMD_COPY);
}

ENGINE_TEST(test_a_failed_transfer_has_no_duration)
{
	struct core_team team = core_team_new(core, "job", 2, false);
	uint64_t unit = core_team_unit(&team, "w", UNIT_BYTES);
	core_fail_next(core, ZD_CMD_COPY, ZEROD_E_DEVICE, "it broke");
	core_expect(core, core_gather(core, team.session[0], unit), 0);
	assert_int_equal(observed(&view_of(core).metrics->gathers), 0);
}

/* Several copies of one device: the time with one under way, not the sum of both. */
ENGINE_TEST(test_a_device_copies_while_it_has_a_copy)
{
	struct core_team team = core_team_new(core, "job", 4, false); /* two ranks on each device */
	uint64_t unit = core_team_unit(&team, "w", 1024);
	uint64_t before_bytes, before_ns, bytes, busy_ns;
	zd_engine_copies(core_engine(core), 1, &before_bytes, &before_ns);
	core_hold(core, ZD_CMD_COPY);
	core_tick(core, 1 * MS);
	core_expect(core, core_gather(core, team.session[0], unit), 0);
	core_tick(core, 3 * MS);
	zd_engine_copies(core_engine(core), 1, &bytes, &busy_ns);
	assert_int_equal(busy_ns, before_ns + 2 * MS); /* so far */
	core_run_on(core, ZD_CMD_COPY, 1);
	core_tick(core, 6 * MS);
	for (int i = 0; i < 3; i++)
		core_run_on(core, ZD_CMD_COPY, 1);
	core_tick(core, 9 * MS); /* it has nothing to do */
	zd_engine_copies(core_engine(core), 1, &bytes, &busy_ns);
	assert_int_equal(busy_ns, before_ns + 5 * MS);
	assert_int_equal(bytes, before_bytes + 1024);
	core_unhold(core, ZD_CMD_COPY);
}

/* ---- Reductions, sessions, groups, restarts ------------------------------------------------------------ */

ENGINE_TEST(test_reductions_by_outcome)
{
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, 16 * CORE_KIB, 2);
	uint64_t unit = core_reducers_unit(&g, "w", 256), other = core_reducers_unit(&g, "b", 256);
	core_reducers_begin(&g, 3, true);
	for (uint32_t rank = 0; rank < 2; rank++) {
		core_reduce(&g, rank, unit, 1.0f);
		core_expect(core, core_skip(&g.team, rank, other), 0); /* complete without a sum */
	}
	core_reducers_end(&g);
	expect_count(core, ZD_COUNT_REDUCTIONS_COMPLETE, 2);
	core_fail_next(core, ZD_CMD_REDUCE, ZEROD_E_DEVICE, "it broke");
	core_reducers_begin(&g, 3, true);
	core_reduce_all(&g, unit, 1.0f);
	expect_count(core, ZD_COUNT_REDUCTIONS_FAILED, 1);
	core_reduce(&g, 0, other, 1.0f);
	core_close(core, g.team.session[1]);
	expect_count(core, ZD_COUNT_REDUCTIONS_DROPPED, 1);
	expect_count(core, ZD_COUNT_REDUCTIONS_FAILED, 1);
	expect_count(core, ZD_COUNT_REDUCTIONS_COMPLETE, 2);
}

ENGINE_TEST(test_lost_sessions_and_groups)
{
	struct core_team team;
	team = core_team_new(core, "left", 2, false);
	zd_engine_session_goodbye(core_engine(core), team.session[0]);
	core_close(core, team.session[0]);
	core_do(core, team.session[1], ZD_REQ_GROUP_LEAVE, team.group);
	expect_count(core, ZD_COUNT_SESSIONS_OPENED, 2);
	expect_count(core, ZD_COUNT_SESSIONS_LOST, 0);
	expect_count(core, ZD_COUNT_GROUPS_RANK_LOST, 0);
	team = core_team_new(core, "lost", 2, false);
	core_close(core, team.session[0]);
	core_close(core, team.session[1]);             /* the group has failed already */
	core_close(core, core_open(core, CORE_ALICE)); /* it was no rank */
	expect_count(core, ZD_COUNT_SESSIONS_LOST, 2);
	expect_count(core, ZD_COUNT_GROUPS_RANK_LOST, 1);
	team = core_team_new(core, "aborted", 2, false);
	core_do(core, team.session[0], ZD_REQ_ABORT_GROUP, team.group);
	expect_count(core, ZD_COUNT_GROUPS_ABORTED, 1);
}

ENGINE_TEST(test_restored_jobs)
{
	struct core_team team;
	core_journal(core);
	team = core_team_new(core, "kept", 2, true);
	(void)core_team_unit(&team, "w", UNIT_BYTES);
	team = core_team_new(core, "passing", 2, false);
	core_restart(core);
	expect_count(core, ZD_COUNT_JOBS_RESTORED, 1);
}

ENGINE_TEST(test_quota_errors, .uid_quota_bytes = 4096)
{
	uint64_t session = core_open(core, CORE_ALICE);
	core_expect(core, core_alloc(core, session, "job", 0, 8192), ZEROD_E_QUOTA);
	assert_int_equal(view_of(core).metrics->errors[-ZEROD_E_QUOTA], 1);
	assert_int_equal(view_of(core).metrics->requests[ZD_REQ_ALLOC], 1);
}
