/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates: who may write a shard and when, versions, poisoned sessions, commits.
 */
#include "tests/unit/core/team_rig.h"

#define UNIT_BYTES 512u

static void start(struct rig *rig)
{
	rig_open(rig, 2, UNIT_BYTES, NULL);
	rig->other = core_team_unit(&rig->team, "v", UNIT_BYTES);
}

#define RIG_TEST(name) CORE_RIG_TEST(name, struct rig, rig, start(rig), core_rig_end)

static uint64_t update_list(struct rig *rig, enum zd_request_kind kind, uint32_t rank, const uint64_t *units,
                            uint32_t nunits)
{
	struct zd_args args = {.kind = kind, .u.publish = {.n_units = nunits, .units = (uint64_t *)units}};
	return core_send(rig->core, rig->team.session[rank], &args);
}

static uint64_t publish_fences(struct rig *rig, uint32_t rank, const struct zd_fence *fences,
                               uint32_t nfences)
{
	struct zd_args args = {.kind = ZD_REQ_PUBLISH,
	                       .u.publish = {.n_units = 1, .units = &rig->unit},
	                       .fences = {nfences, fences}};
	return core_send(rig->core, rig->team.session[rank], &args);
}

static void expect_versions(struct rig *rig, uint64_t unit, uint64_t lowest, uint64_t highest)
{
	struct core_row row;
	core_row(rig->core, ZD__TABLE__UNITS, unit, &row);
	assert_int_equal(row.row->unit->version_min, lowest);
	assert_int_equal(row.row->unit->version_max, highest);
}

/* ---- update_begin -------------------------------------------------------------------------------------- */

/* Other ranks were promised these bytes: no stream of this one may be left to keep off. */
RIG_TEST(test_transfers_are_awaited_by_the_request)
{
	struct zd_args args = {.kind = ZD_REQ_UPDATE_BEGIN,
	                       .u.update_begin = {.n_units = 1, .units = &rig->unit, .ahead = true}};
	core_hold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, core_gather(rig->core, rig->team.session[1], rig->unit), 0);
	uint64_t update = core_send(rig->core, rig->team.session[0], &args);
	core_expect_waits(rig->core, update, "1 transfer that reads the shard of rank 0 of unit 'w'");
	core_unhold(rig->core, ZD_CMD_COPY);
	assert_int_equal(core_expect(rig->core, update, 0)->fence.value, 0);
}

RIG_TEST(test_updates_are_all_or_nothing)
{
	const uint64_t both[] = {rig->unit, rig->other}, twice[] = {rig->unit, rig->unit};
	const uint64_t unknown[] = {rig->unit, rig->other, 9999};
	uint64_t many[ZD_MAX_UNITS_PER_REQUEST + 1] = {0};
	core_expect_error(rig->core, update_list(rig, ZD_REQ_UPDATE_BEGIN, 0, twice, 2), ZEROD_E_INVALID,
	                  "unit 'w' is given twice");
	core_expect(rig->core, update_list(rig, ZD_REQ_UPDATE_BEGIN, 0, unknown, 3), ZEROD_E_NOT_FOUND);
	core_expect(rig->core, update_list(rig, ZD_REQ_UPDATE_BEGIN, 0, both, 0), ZEROD_E_LIMIT);
	core_expect_error(rig->core,
	                  update_list(rig, ZD_REQ_UPDATE_BEGIN, 0, many, ZD_MAX_UNITS_PER_REQUEST + 1),
	                  ZEROD_E_LIMIT, "1025 units in one request; 1 to 1024");
	/* none of that left an update behind */
	core_expect(rig->core, update_list(rig, ZD_REQ_PUBLISH, 0, both, 2), ZEROD_E_STATE);
	core_expect(rig->core, update_list(rig, ZD_REQ_UPDATE_BEGIN, 0, both, 2), 0);
	core_expect(rig->core, core_update(rig->core, rig->team.session[0], rig->other), ZEROD_E_STATE);
	core_expect(rig->core, update_list(rig, ZD_REQ_PUBLISH, 0, twice, 2), ZEROD_E_INVALID);
	core_expect(rig->core, update_list(rig, ZD_REQ_PUBLISH, 0, unknown, 3), ZEROD_E_NOT_FOUND);
	expect_versions(rig, rig->unit, 1, 1);
	core_expect(rig->core, update_list(rig, ZD_REQ_PUBLISH, 0, both, 2), 0);
	expect_versions(rig, rig->unit, 1, 2);
	expect_versions(rig, rig->other, 1, 2);
}

RIG_TEST(test_units_of_two_groups_are_not_mixed)
{
	uint64_t join = core_join(rig->core, rig->team.session[0],
	                          &(struct core_join){.group = "alone", .world_size = 1});
	uint64_t group = core_expect(rig->core, join, 0)->u.group_join.group;
	uint64_t request = core_register(rig->core, rig->team.session[0], group,
	                                 &(struct core_unit){.name = "x", .numel = 1});
	uint64_t units[] = {rig->unit, core_expect(rig->core, request, 0)->u.unit_register.unit};
	core_expect_error(rig->core, update_list(rig, ZD_REQ_UPDATE_BEGIN, 0, units, 2), ZEROD_E_INVALID,
	                  "unit 'x' is of another group than the first");
	core_expect(rig->core, core_update(rig->core, rig->team.session[0], rig->unit), 0);
}

/* ---- Found ahead --------------------------------------------------------------------------------------- */

/* Finds them one by one, which the request has to be the same for. */
static struct zd_args find_ahead(struct rig *rig, enum zd_request_kind kind, const uint64_t *units,
                                 uint32_t nunits, struct zd_found *found)
{
	struct zd_args args = {
	        .kind = kind, .found = found, .u.publish = {.n_units = nunits, .units = (uint64_t *)units}};
	uint32_t steps = 0;
	*found = (struct zd_found){0};
	while (!zd_engine_find_ahead(core_engine(rig->core), rig->team.session[0], &args, 1))
		steps++;
	assert_int_equal(steps, nunits);
	return args;
}

static void send_found(struct rig *rig, const struct zd_args *args, int status)
{
	assert_true(zd_engine_find_ahead(core_engine(rig->core), rig->team.session[0], args, 1));
	core_call(rig->core, rig->team.session[0], args, status);
	free(args->found->parts);
}

RIG_TEST(test_found_ahead)
{
	const uint64_t both[] = {rig->unit, rig->other}, unknown[] = {rig->unit, rig->other, 9999};
	const uint64_t twice[] = {rig->unit, rig->unit};
	struct zd_found found;
	struct zd_args args = find_ahead(rig, ZD_REQ_UPDATE_BEGIN, unknown, 3, &found);
	send_found(rig, &args, ZEROD_E_NOT_FOUND);
	args = find_ahead(rig, ZD_REQ_UPDATE_BEGIN, twice, 2, &found);
	send_found(rig, &args, ZEROD_E_INVALID);
	args = find_ahead(rig, ZD_REQ_UPDATE_BEGIN, both, 2, &found);
	send_found(rig, &args, 0);
	args = find_ahead(rig, ZD_REQ_PUBLISH, both, 2, &found);
	send_found(rig, &args, 0);
	expect_versions(rig, rig->other, 1, 2);
}

static void register_on(struct rig *rig, uint64_t session, const char *name)
{
	core_register_ok(rig->core, session, rig->team.group,
	                 &(struct core_unit){.name = name, .numel = UNIT_BYTES / 4});
}

static void unregister_on(struct rig *rig, uint32_t rank)
{
	core_do(rig->core, rig->team.session[rank], ZD_REQ_UNIT_UNREGISTER, rig->other);
}

/* Its memory is another unit's by then. */
RIG_TEST(test_found_unit_is_freed)
{
	const uint64_t both[] = {rig->unit, rig->other};
	struct zd_found found;
	struct zd_args args = find_ahead(rig, ZD_REQ_UPDATE_BEGIN, both, 2, &found);
	unregister_on(rig, 0);
	unregister_on(rig, 1);
	register_on(rig, rig->team.session[0], "u");
	register_on(rig, rig->team.session[1], "u");
	send_found(rig, &args, ZEROD_E_NOT_FOUND);
	core_expect(rig->core, core_update(rig->core, rig->team.session[0], rig->unit), 0);
}

RIG_TEST(test_found_shards_are_of_another_session)
{
	struct zd_found found;
	struct zd_args args = find_ahead(rig, ZD_REQ_UPDATE_BEGIN, &rig->unit, 1, &found);
	core_do(rig->core, rig->team.session[0], ZD_REQ_GROUP_LEAVE, rig->team.group);
	uint64_t session = core_open(rig->core, CORE_ALICE);
	core_join_ok(rig->core, session, &(struct core_join){.world_size = 2});
	register_on(rig, session, "w");
	send_found(rig, &args, ZEROD_E_NOT_FOUND);
	core_expect(rig->core, core_update(rig->core, session, rig->unit), 0);
}

/* ---- publish ------------------------------------------------------------------------------------------- */

RIG_TEST(test_publish_that_ends_early_leaves_the_update_open)
{
	static const struct zd_fence fence = {3, 10};
	struct zd_args args = {.kind = ZD_REQ_PUBLISH,
	                       .u.publish = {.n_units = 1, .units = &rig->unit},
	                       .fences = {1, &fence}};
	core_expect(rig->core, core_update(rig->core, rig->team.session[0], rig->unit), 0);
	uint64_t publish = core_send_until(rig->core, rig->team.session[0], 1, &args);
	core_tick(rig->core, 1);
	core_expect_error(rig->core, publish, ZEROD_E_DEADLINE, "the caller's own streams");
	core_pass(rig->core, rig->team.session[0], 3, 10); /* too late */
	expect_versions(rig, rig->unit, 1, 1);
	core_expect(rig->core, core_publish(rig->core, rig->team.session[0], rig->unit), 0);
	/* a watch that fails is as good as none */
	core_expect(rig->core, core_update(rig->core, rig->team.session[0], rig->unit), 0);
	core_fail_next(rig->core, ZD_CMD_WATCH, ZEROD_E_DEVICE, "page gone");
	publish = publish_fences(rig, 0, &(struct zd_fence){3, 11}, 1);
	core_pass(rig->core, rig->team.session[0], 3, 11);
	core_expect_error(rig->core, publish, ZEROD_E_DEVICE, "page gone");
	core_expect(rig->core, core_publish(rig->core, rig->team.session[0], rig->unit), 0);
}

RIG_TEST(test_publish_refuses_bad_fences)
{
	struct zd_fence many[ZD_MAX_FENCES + 1] = {0};
	core_expect(rig->core, core_update(rig->core, rig->team.session[0], rig->unit), 0);
	core_expect_error(rig->core, publish_fences(rig, 0, many, ZD_MAX_FENCES + 1), ZEROD_E_LIMIT,
	                  "65 fences");
	core_expect_error(rig->core, publish_fences(rig, 0, &(struct zd_fence){ZD_TIMELINES, 1}, 1),
	                  ZEROD_E_INVALID, "fence 0: timeline 1024; a page has 1024");
	core_expect_error(rig->core, publish_fences(rig, 0, &(struct zd_fence){0, 0}, 1), ZEROD_E_INVALID,
	                  "value 0 is not in");
	core_expect(rig->core, publish_fences(rig, 0, &(struct zd_fence){0, INT64_MAX}, 1), ZEROD_E_INVALID);
	core_expect(rig->core, core_publish(rig->core, rig->team.session[0], rig->unit), 0);
}

RIG_TEST(test_publish_drops_a_copy_that_nobody_holds)
{
	uint64_t session = rig->team.session[0];
	core_expect(rig->core, core_prefetch(rig->core, session, rig->unit), 0);
	assert_int_equal(core_usage(rig->core).gathered_bytes, UNIT_BYTES);
	core_team_publish(&rig->team, rig->unit);
	assert_int_equal(core_usage(rig->core).gathered_bytes, 0);
	core_team_check(&rig->team, core_expect(rig->core, core_gather(rig->core, session, rig->unit), 0), 2);
}

/* ---- Poisoned sessions --------------------------------------------------------------------------------- */

RIG_TEST(test_failed_transfer_poisons)
{
	static const struct zd_fence fence = {9, 1};
	uint64_t session = rig->team.session[0];
	struct core_row row;
	core_expect(rig->core, core_update(rig->core, session, rig->unit), 0);
	uint64_t under_way = publish_fences(rig, 0, &fence, 1);
	core_hold(rig->core, ZD_CMD_COPY);
	const struct zd_reply *gather = core_expect(rig->core, core_gather(rig->core, session, rig->other),
	                                            0);
	assert_int_equal(gather->fences.count, 1);
	core_fail_next(rig->core, ZD_CMD_COPY, ZEROD_E_DEVICE, "ECC error");
	core_run_one(rig->core, ZD_CMD_COPY);
	/* who waits on that stream is freed, and knows by the state that it ran on garbage */
	assert_true(core_timeline(rig->core, session, 1) == (uint64_t)ZD_FENCE_ABORTED);
	assert_int_equal(core_last_signal(rig->core).timeline, 1);
	core_unhold(rig->core, ZD_CMD_COPY);
	assert_true(core_timeline(rig->core, session, 1) == (uint64_t)ZD_FENCE_ABORTED);
	core_row(rig->core, ZD__TABLE__SESSIONS, session, &row);
	assert_string_equal(row.state, "POISONED");

	core_expect(rig->core, core_update(rig->core, session, rig->other), ZEROD_E_POISONED);
	core_expect_error(rig->core, core_commit(rig->core, session, rig->team.group, 1), ZEROD_E_POISONED,
	                  "ran on after an aborted wait");
	core_pass(rig->core, session, 9, 1);
	core_expect(rig->core, under_way, ZEROD_E_POISONED);
	core_expect(rig->core, core_publish(rig->core, session, rig->unit), ZEROD_E_POISONED);
	expect_versions(rig, rig->unit, 1, 1);
	/* the others are not concerned */
	core_expect(rig->core, core_update(rig->core, rig->team.session[1], rig->unit), 0);

	core_hold(rig->core, ZD_CMD_SIGNAL);
	uint64_t reset = core_simple(rig->core, session, ZD_REQ_SESSION_RESET, 0);
	/* else a gather would meet the abort */
	core_expect_waits(rig->core, reset, "1 transfers of rank 0 to end");
	core_unhold(rig->core, ZD_CMD_SIGNAL);
	core_expect(rig->core, reset, 0);
	assert_int_equal(core_timeline(rig->core, session, 1), gather->fences.fences[0].value);
	core_expect(rig->core, core_publish(rig->core, session, rig->unit), 0);
	core_row(rig->core, ZD__TABLE__SESSIONS, session, &row);
	assert_string_equal(row.state, "OPEN");
	core_expect(rig->core, core_publish(rig->core, rig->team.session[1], rig->unit), 0);
}

/* The half-made copy serves nobody: it is made again when its holders have gone. */
RIG_TEST(test_failed_transfer_is_not_joined)
{
	uint64_t session = rig->team.session[0];
	core_fail_next(rig->core, ZD_CMD_COPY, ZEROD_E_DEVICE, "ECC error");
	core_expect(rig->core, core_gather(rig->core, session, rig->unit), 0);
	uint64_t again = core_gather_tag(rig->core, session, rig->unit, "again", 1);
	core_expect_waits(rig->core, again, "leases on version 1 of unit 'w'");
	core_expect(rig->core, core_release(rig->core, session, rig->unit), 0);
	core_team_check(&rig->team, core_expect(rig->core, again, 0), 1);
	/* a second failure poisons a session that is poisoned already, and resets together */
	core_fail_next(rig->core, ZD_CMD_COPY, ZEROD_E_DEVICE, "ECC error");
	core_expect(rig->core, core_gather(rig->core, session, rig->other), 0);
	core_do(rig->core, session, ZD_REQ_SESSION_RESET, 0);
	core_do(rig->core, session, ZD_REQ_SESSION_RESET, 0);
	core_expect(rig->core, core_update(rig->core, session, rig->unit), 0);
}

/* ---- commit -------------------------------------------------------------------------------------------- */

static void expect_committed(struct rig *rig, uint64_t step)
{
	struct core_row row;
	core_row(rig->core, ZD__TABLE__GROUPS, rig->team.group, &row);
	assert_int_equal(row.row->group->committed_step, step);
}

static uint64_t commit(struct rig *rig, uint32_t rank, uint64_t step)
{
	return core_commit(rig->core, rig->team.session[rank], rig->team.group, step);
}

RIG_TEST(test_commit_waits_for_every_rank)
{
	uint64_t first = commit(rig, 1, 5);
	core_expect_waits(rig->core, first, "commit: rank 0 to commit");
	core_expect_error(rig->core, commit(rig, 1, 5), ZEROD_E_STATE, "rank 1 is committing step 5 already");
	core_expect_error(rig->core, commit(rig, 0, 6), ZEROD_E_MISMATCH,
	                  "rank 1 commits step 5; rank 0 says 6");
	expect_committed(rig, 0);
	core_expect(rig->core, commit(rig, 0, 5), 0);
	core_expect(rig->core, first, 0);
	expect_committed(rig, 5);
	core_expect_error(rig->core, commit(rig, 0, 5), ZEROD_E_STATE,
	                  "step 5 is committed; 5 is not after it");
	core_expect(rig->core, commit(rig, 0, 4), ZEROD_E_STATE);
	core_expect(rig->core, core_commit(rig->core, rig->team.session[0], rig->team.group + 1000, 6),
	            ZEROD_E_NOT_FOUND);
}

RIG_TEST(test_commit_fails_for_all_or_none)
{
	core_team_publish_rank(&rig->team, rig->other, 1);
	uint64_t first = commit(rig, 0, 1);
	core_expect_error(rig->core, commit(rig, 1, 1), ZEROD_E_STATE,
	                  "unit 'v' has version 1 on rank 0 and 2 on rank 1");
	core_expect_error(rig->core, first, ZEROD_E_STATE, "unit 'v' has version 1 on rank 0");
	core_expect(rig->core, core_update(rig->core, rig->team.session[0], rig->other), 0);
	first = commit(rig, 0, 1);
	core_expect_error(rig->core, commit(rig, 1, 1), ZEROD_E_STATE, "unit 'v' is UPDATING on rank 0");
	core_expect(rig->core, first, ZEROD_E_STATE);
	expect_committed(rig, 0);
	core_expect(rig->core, core_publish(rig->core, rig->team.session[0], rig->other), 0);
	/* a unit that not every rank has registered yet is no obstacle */
	core_expect(rig->core,
	            core_register(rig->core, rig->team.session[1], rig->team.group,
	                          &(struct core_unit){.name = "late", .numel = 1}),
	            0);
	first = commit(rig, 0, 1);
	core_expect(rig->core, commit(rig, 1, 1), 0);
	core_expect(rig->core, first, 0);
	expect_committed(rig, 1);
}
