/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restored engines: what of durable jobs outlives a daemon that was killed, and what of it is not used again.
 */
#include "base/mem.h"
#include "tests/support/core_durable.h"

/* ---- What survives ------------------------------------------------------------------------------------- */

static const struct core_view views[] = {{.name = "w", .ndim = 2, .shape = {4, 8}},
                                         {.name = "bias", .offset_numel = 32, .ndim = 1, .shape = {5}}};
static const struct core_unit odd_unit = {.name = "odd",
                                          .dtype = ZEROD_BFLOAT16,
                                          .numel = 37,
                                          .nviews = 2,
                                          .views = views,
                                          .slot = 3,
                                          .all_reduce = true};
static const struct core_unit frozen_unit = {
        .name = "frozen", .dtype = ZEROD_FLOAT16, .numel = 300, .frozen = true};

#define ROWS 8

/* Rows of the durable job in the tables whose objects survive. */
struct rows {
	uint32_t n[ZD_NTABLES];
	struct core_row rows[ZD_NTABLES][ROWS];
};

static const Zd__Table surviving[] = {ZD__TABLE__JOBS, ZD__TABLE__GROUPS, ZD__TABLE__UNITS,
                                      ZD__TABLE__ALLOCATIONS};

/* Blanks what is of sessions, and of an age. */
static void list(struct core_driver *core, const char *job, struct rows *rows)
{
	memset(rows, 0, sizeof(*rows));
	for (size_t t = 0; t < ZD_ARRAY_LEN(surviving); t++) {
		Zd__Table table = surviving[t];
		rows->n[table] = core_rows_for(core, 0, table, job, rows->rows[table], ROWS);
		assert_true(rows->n[table] <= ROWS);
		for (uint32_t i = 0; i < rows->n[table]; i++) {
			struct core_row *row = &rows->rows[table][i];
			if (table == ZD__TABLE__JOBS) {
				row->row->job->sessions = 0;
				row->row->job->uid_metadata_bytes = 0; /* of sessions, too */
				Zd__Usage *usage = row->row->job->usage;
				usage->gathered_bytes = 0;
				usage->peak_bytes = usage->peak_gathered_bytes = 0;
			}
			if (table == ZD__TABLE__UNITS)
				row->row->unit->registered = row->row->unit->gathered = 0;
			if (table == ZD__TABLE__ALLOCATIONS)
				row->row->allocation->session = row->row->allocation->age_ns = 0;
			if (table == ZD__TABLE__GROUPS) {
				row->state[0] = '\0';
				for (size_t m = 0; m < row->row->group->n_members; m++) {
					Zd__Member *member = row->row->group->members[m];
					member->session = member->pid = 0;
				}
			}
		}
	}
}

static void expect_same_rows(struct core_driver *core, const char *job, const struct rows *before)
{
	struct rows after;
	list(core, job, &after);
	for (size_t t = 0; t < ZD_ARRAY_LEN(surviving); t++) {
		Zd__Table table = surviving[t];
		assert_int_equal(before->n[table], after.n[table]);
		for (uint32_t i = 0; i < after.n[table]; i++)
			core_expect_same(before->rows[table][i].row, after.rows[table][i].row);
	}
}

#define DURABLE_TEST(name) CORE_RIG_TEST(name, struct durable, d, start(d, false), core_rig_end)

DURABLE_TEST(test_a_durable_job_survives)
{
	struct rows before;
	struct zd_args alloc;
	struct core_join second = {.group = "second", .world_size = 1, .device = 1, .durable = true};
	uint64_t lone = core_open(d->core, CORE_ALICE);
	uint64_t second_group = core_join_ok(d->core, lone, &second);
	core_register_ok(d->core, lone, second_group, &frozen_unit);
	uint64_t odd = core_team_register(&d->team, &odd_unit);
	const struct zd_reply *reply = core_expect(d->core, keep(d, lone, "adam"), 0);
	uint64_t kept = reply->u.alloc.allocation;
	struct zd_location at = reply->place;
	memset(core_bytes(d->core, at), 0x5a, at.bytes);
	struct core_team other = core_team_new(d->core, "passing", 2, false);
	(void)core_team_unit(&other, "w", UNIT_BYTES);
	core_expect(d->core, core_alloc(d->core, lone, "job", 0, STATE_BYTES), 0);
	core_close(d->core, other.session[1]);
	list(d->core, "job", &before);
	before.n[ZD__TABLE__ALLOCATIONS]--; /* the one without a name is not durable */
	Zd__Usage usage = *before.rows[ZD__TABLE__JOBS][0].row->job->usage;
	before.rows[ZD__TABLE__JOBS][0].row->job->usage->allocation_bytes = at.bytes;

	core_restart(d->core);
	expect_same_rows(d->core, "job", &before);
	assert_int_equal(core_rows(d->core, ZD__TABLE__JOBS, NULL, 0), 1);
	assert_int_equal(core_rows(d->core, ZD__TABLE__SESSIONS, NULL, 0), 0);
	assert_int_equal(core_rows(d->core, ZD__TABLE__BUFFERS, NULL, 0), 0);
	assert_true(core_usage(d->core).shard_bytes == usage.shard_bytes);
	assert_true(core_usage(d->core).allocation_bytes == at.bytes);
	assert_true(core_usage(d->core).gathered_bytes == 0);
	expect_group(d, "PARKED", 1, false);

	come_back(d, 1, false);
	assert_true(core_team_register(&d->team, &odd_unit) == odd);
	expect_commit(d, 1);
	lone = core_open(d->core, CORE_ALICE);
	reply = core_expect(d->core, core_join(d->core, lone, &second), 0);
	assert_true(reply->u.group_join.group == second_group);
	core_register_ok(d->core, lone, second_group, &frozen_unit);
	reply = core_expect(d->core, keep(d, lone, "adam"), 0);
	assert_true(reply->u.alloc.allocation == kept);
	expect_location(reply->place, at);
	for (uint32_t i = 0; i < at.bytes; i++)
		assert_int_equal(core_bytes(d->core, at)[i], 0x5a);
	alloc = (struct zd_args){.kind = ZD_REQ_FREE, .u.free = {.allocation = kept}};
	core_expect(d->core, core_send(d->core, lone, &alloc), 0);
}

/* The description is the old one: another is rejected as if the daemon had lived on. */
DURABLE_TEST(test_a_restored_unit_has_its_description)
{
	struct core_unit wrong = odd_unit;
	struct core_view other_views[] = {views[0], views[1]};
	(void)core_team_register(&d->team, &odd_unit);
	core_restart(d->core);
	join_all(d, 1, false);
	core_register_ok(d->core, d->team.session[0], d->team.group, &odd_unit);
	other_views[1].shape[0] = 4;
	wrong.views = other_views;
	core_expect_error(d->core, core_register(d->core, d->team.session[1], d->team.group, &wrong),
	                  ZEROD_E_MISMATCH, "bias[5]@32; rank 1 says");
}

DURABLE_TEST(test_ids_are_not_used_again)
{
	struct core_team passing;
	uint64_t session = 0, group = 0, unit = 0, made;
	for (uint32_t restarts = 0; restarts < 4; restarts++) {
		passing = core_team_new(d->core, "passing", 2, false);
		made = core_team_unit(&passing, "w", UNIT_BYTES);
		assert_true(passing.session[0] > session && passing.group > group && made > unit);
		session = passing.session[1];
		group = passing.group;
		unit = made;
		core_restart(d->core);
	}
}

/* Not even where no durable object holds the newest ids, or any. */
ENGINE_TEST(test_ids_of_a_journal_without_jobs_are_not_used_again)
{
	uint64_t before;
	core_journal(core);
	before = core_open(core, CORE_ALICE);
	for (uint32_t opened = 1; opened <= 300; opened++) {
		if (opened % 100 == 0)
			core_restart(core);
		uint64_t session = core_open(core, CORE_ALICE);
		assert_true(session > before);
		before = session;
	}
	assert_in_range(ZD_ID_NUMBER(before), 301, 900); /* they stay small */
}

DURABLE_TEST(test_a_unit_that_is_being_filled_is_not_there)
{
	struct rows before;
	list(d->core, "job", &before);
	core_hold(d->core, ZD_CMD_FILL);
	for (uint32_t rank = 0; rank < 2; rank++)
		(void)core_register(d->core, d->team.session[rank], d->team.group, &odd_unit);
	(void)keep(d, d->team.session[0], "adam");
	core_restart(d->core);
	core_unhold(d->core, ZD_CMD_FILL);
	expect_same_rows(d->core, "job", &before);
	come_back(d, 1, false);
	(void)core_team_register(&d->team, &odd_unit);
	expect_commit(d, 1);
}

/* One of two ranks has its shard: the other has only asked. */
DURABLE_TEST(test_a_unit_of_some_ranks)
{
	struct core_row row;
	uint64_t odd = core_register_ok(d->core, d->team.session[1], d->team.group, &odd_unit);
	core_hold(d->core, ZD_CMD_FILL);
	(void)core_register(d->core, d->team.session[0], d->team.group, &odd_unit);
	core_restart(d->core);
	core_unhold(d->core, ZD_CMD_FILL);
	core_row(d->core, ZD__TABLE__UNITS, odd, &row);
	come_back(d, 1, false);
	assert_true(core_team_register(&d->team, &odd_unit) == odd);
	expect_commit(d, 1);
}

/* Left by all ranks and described anew: the former unit's name is the new one's. */
/* Optimizer states in durable allocations are laid out as the target is. */
DURABLE_TEST(test_a_unit_keeps_its_place_in_the_target)
{
	uint64_t odd = core_team_register(&d->team, &odd_unit);
	uint64_t request = core_register(d->core, d->team.session[0], d->team.group, &odd_unit);
	uint64_t place = core_expect(d->core, request, 0)->u.unit_register.target_offset_numel;
	for (uint32_t rank = 0; rank < 2; rank++) /* leaves a hole before the unit */
		core_do(d->core, d->team.session[rank], ZD_REQ_UNIT_UNREGISTER, d->unit[1]);
	core_restart(d->core);
	join_all(d, 1, false);
	request = core_register(d->core, d->team.session[0], d->team.group, &odd_unit);
	const struct zd_reply *reply = core_expect(d->core, request, 0);
	assert_true(reply->u.unit_register.unit == odd);
	assert_int_equal(reply->u.unit_register.target_offset_numel, place);
	request = send_register(d, 1, 0); /* behind it */
	assert_true(core_expect(d->core, request, 0)->u.unit_register.target_offset_numel > place);
}

/* ---- Ended jobs ---------------------------------------------------------------------------------------- */

static void end_job(struct durable *d)
{
	struct core_row row;
	uint64_t admin = core_open_admin(d->core);
	assert_int_equal(core_rows(d->core, ZD__TABLE__JOBS, &row, 1), 1);
	core_do(d->core, admin, ZD_REQ_END_JOB, row.id);
	core_close(d->core, admin);
}

TEST(test_an_ended_job_is_not_restored)
{
	for (uint32_t linger = 0; linger < 2; linger++) {
		struct durable d;
		struct core_options options = {.sessions_linger = linger};
		start_with(&d, false, &options);
		core_expect(d.core, keep(&d, d.team.session[0], "adam"), 0);
		close_ranks(&d);
		end_job(&d);
		core_restart(d.core);
		assert_int_equal(core_rows(d.core, ZD__TABLE__JOBS, NULL, 0), 0);
		assert_false(core_segment_exists(d.core, d.shard[0][0].segment));
		assert_int_equal(core_pending(d.core, ZD_CMD_WATCH), 0);
		core_end(d.core);
	}
}

/* A segment is missing: its job is lost, and no other. */
TEST(test_an_incomplete_job_is_lost_alone)
{
	for (uint32_t linger = 0; linger < 2; linger++) {
		struct durable d;
		struct core_options options = {.sessions_linger = linger};
		struct core_join join = {.job = "other", .world_size = 1, .durable = true};
		struct core_unit unit = {.name = "w", .numel = 64};
		start_with(&d, false, &options);
		core_expect(d.core, keep(&d, d.team.session[0], "adam"), 0);
		uint64_t bob = core_open(d.core, CORE_BOB);
		uint64_t group = core_join_ok(d.core, bob, &join);
		uint32_t lost =
		        core_expect(d.core, core_register(d.core, bob, group, &unit), 0)->place.segment;
		core_lose_segment(d.core, lost);
		core_restart(d.core);
		assert_int_equal(core_rows(d.core, ZD__TABLE__JOBS, NULL, 0), 1);
		assert_int_equal(core_rows(d.core, ZD__TABLE__UNITS, NULL, 0), NUNITS);
		core_restart(d.core); /* the journal has nothing of it any more */
		if (!linger)
			come_back(&d, 1, false);
		if (!linger)
			expect_commit(&d, 1);
		core_end(d.core);
	}
}

/* Commits are refused on all ranks once the driver cannot keep them. */
DURABLE_TEST(test_commits_that_would_not_be_kept)
{
	uint64_t request[2];
	both_publish(d, 0);
	request[0] = core_commit(d->core, d->team.session[0], d->team.group, 2);
	zd_engine_keep_ended(core_engine(d->core), "the store is gone");
	request[1] = core_commit(d->core, d->team.session[1], d->team.group, 2);
	for (uint32_t rank = 0; rank < 2; rank++)
		core_expect_error(d->core, request[rank], ZEROD_E_SYSTEM,
		                  "no step is committed any more: durable jobs will not outlive this daemon: "
		                  "the store is gone");
	expect_group(d, "READY", 1, false);
}

/* The old job's memory waits for its processes while ranks begin a new job of its name. */
TEST(test_a_job_that_follows_an_ended_one_of_its_name)
{
	struct durable d;
	struct core_row row;
	start_lingering(&d, false);
	core_expect(d.core, keep(&d, d.team.session[0], "adam"), 0);
	close_ranks(&d);
	end_job(&d);
	uint64_t old_group = d.team.group;
	d.team.group = 0;
	join_all(&d, 0, false);
	assert_true(d.team.group != old_group);
	uint64_t odd = core_team_register(&d.team, &odd_unit);
	core_restart(d.core);
	assert_int_equal(core_rows(d.core, ZD__TABLE__JOBS, NULL, 0), 1);
	assert_int_equal(core_rows(d.core, ZD__TABLE__ALLOCATIONS, NULL, 0), 0);
	assert_int_equal(core_rows(d.core, ZD__TABLE__GROUPS, &row, 1), 1);
	assert_true(row.id == d.team.group);
	assert_int_equal(core_rows(d.core, ZD__TABLE__UNITS, &row, 1), 1);
	assert_true(row.id == odd);
	core_end(d.core);
}

/* ---- Torn groups --------------------------------------------------------------------------------------- */

TEST(test_a_group_without_shadows_inside_an_update_is_torn)
{
	struct durable d;
	for (uint32_t published = 0; published < 2; published++) {
		start(&d, false);
		core_expect(d.core, update(&d, 0, 0), 0);
		if (published)
			core_expect(d.core, core_publish(d.core, d.team.session[0], d.unit[0]), 0);
		core_restart(d.core);
		expect_group(&d, "PARKED", 1, true);
		come_back(&d, 1, true);
		/* torn until the next commit */
		core_restart(d.core);
		join_all(&d, 1, true);
		core_end(d.core);
	}
}

/* ---- Limits -------------------------------------------------------------------------------------------- */

TEST(test_quotas_count_restored_bytes)
{
	struct core_options options = {.uid_quota_bytes = 2 * UNIT_BYTES * NUNITS};
	struct durable d;
	start_with(&d, false, &options);
	core_restart(d.core);
	uint64_t session = core_open(d.core, CORE_ALICE);
	core_expect(d.core, core_alloc(d.core, session, "scratch", 0, UNIT_BYTES * NUNITS + 256),
	            ZEROD_E_QUOTA);
	core_expect(d.core, core_alloc(d.core, session, "scratch", 0, UNIT_BYTES * NUNITS), 0);
	core_end(d.core);
}

#define SECOND 1000000000ull

/* A restored job has as long as one that was left at the restart. */
TEST(test_restored_jobs_expire)
{
	const struct zd_uid_limits limits = {.durable_ttl_ns = 10 * SECOND};
	for (uint32_t before = 0; before < 2; before++) {
		struct durable d;
		start(&d, false);
		core_tick(d.core, 100 * SECOND);
		core_restart(d.core);
		zd_engine_set_uid_limits(core_engine(d.core), &limits);
		assert_true(zd_engine_next_deadline(core_engine(d.core)) == 110 * SECOND);
		core_tick(d.core, 109 * SECOND);
		assert_int_equal(core_rows(d.core, ZD__TABLE__JOBS, NULL, 0), 1);
		core_tick(d.core, 110 * SECOND);
		assert_int_equal(core_rows(d.core, ZD__TABLE__JOBS, NULL, 0), 0);
		core_restart(d.core);
		assert_int_equal(core_rows(d.core, ZD__TABLE__JOBS, NULL, 0), 0);
		core_end(d.core);
	}
}

/* A rank of a group that was never complete has no shards: it may join on any device. */
ENGINE_TEST(test_a_group_that_was_not_complete)
{
	struct core_join join = {.world_size = 2, .rank = 1, .device = 1, .durable = true};
	core_journal(core);
	(void)core_join(core, core_open(core, CORE_ALICE), &join);
	core_restart(core);
	uint64_t request[2];
	for (uint32_t rank = 0; rank < 2; rank++) {
		join.rank = rank;
		join.device = 0;
		request[rank] = core_join(core, core_open(core, CORE_ALICE), &join);
	}
	for (uint32_t rank = 0; rank < 2; rank++)
		core_expect(core, request[rank], 0);
	core_restart(core); /* complete now */
	join.device = 1;
	core_expect_error(core, core_join(core, core_open(core, CORE_ALICE), &join), ZEROD_E_MISMATCH,
	                  "are on device 0; it joins on device 1");
}
