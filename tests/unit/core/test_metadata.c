/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_metadata.c - what one uid may have of the daemon's own memory. The driver checks after every call that
 * each account is the sum of what the uid's objects hold.
 */
#include <stdio.h>

#include "base/err.h"
#include "tests/support/core_driver.h"

#define UNIT_BYTES 512u
#define MOST       1000 /* of anything: a limit must be reached before */

static void set_limit(struct core_driver *core, uint64_t bytes)
{
	const struct zd_uid_limits limits = {.metadata_bytes = bytes};

	zd_engine_set_uid_limits(core_engine(core), &limits);
}

/* The metadata of the only job's owner. */
static uint64_t held(struct core_driver *core)
{
	struct core_row row[1];

	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, row, 1), 1);
	return row[0].row->job->uid_metadata_bytes;
}

static void expect_limit(struct core_driver *core, uint64_t request, const char *begin, const char *end)
{
	const struct zd_reply *reply = core_expect(core, request, ZEROD_E_LIMIT);

	assert_memory_equal(reply->error, begin, strlen(begin));
	assert_non_null(strstr(reply->error, end));
}

ENGINE_TEST(test_sessions)
{
	const struct zd_peer peer = {.uid = CORE_ALICE, .pid = 7, .name = "trainer"};
	struct zd_err err = ZD_ERR_NONE;
	uint64_t first = core_open(core, CORE_ALICE);

	set_limit(core, 150000); /* of which seven eighths are less than two */
	assert_int_equal(zd_engine_session_open(core_engine(core), &peer, &err), 0);
	assert_int_equal(err.status, ZEROD_E_LIMIT);
	assert_memory_equal(err.text, "session 'trainer' needs ", 24);
	assert_non_null(strstr(err.text, " bytes of the daemon's own memory; uid 1000 holds "));
	assert_non_null(strstr(err.text, ": uid_metadata is 150000, an eighth of it for requests"));
	/* Other users and administrators have theirs. */
	(void)core_open(core, CORE_BOB);
	for (int i = 0; i < 3; i++)
		(void)core_open_admin(core);
	core_close(core, first);
	(void)core_open(core, CORE_ALICE);
	set_limit(core, 0);
	(void)core_open(core, CORE_ALICE);
	core_close_all(core);
}

/* Units, groups, jobs, allocations and buckets are refused; what is there goes on. */
ENGINE_TEST(test_objects)
{
	struct core_join join = {.group = "other", .world_size = 1024};
	const struct core_view view = {.name = "weight", .ndim = 1, .shape = {UNIT_BYTES / 4}};
	struct core_unit unit = {.name = "more", .numel = UNIT_BYTES / 4, .nviews = 1, .views = &view};
	struct zd_args bucket = {.kind = ZD_REQ_BUCKET_CREATE};
	uint64_t before, w;

	struct core_team team = core_team_new(core, "job", 1, false);
	w = core_team_unit(&team, "w", UNIT_BYTES);
	before = held(core);
	set_limit(core, before * 8 / 7 + 300);
	/* Less than 300 bytes are left: no room for any of these. */
	expect_limit(core, core_register(core, team.session[0], team.group, &unit), "unit 'more' needs ",
	             "an eighth of it for requests");
	expect_limit(core, core_join(core, team.session[0], &join), "group 'other' needs ",
	             "uid 1000 holds ");
	expect_limit(core, core_alloc(core, team.session[0], "a", 0, 256), "allocation 'scratch' needs ",
	             "uid 1000");
	bucket.u.bucket_create.group = team.group;
	bucket.u.bucket_create.dtype = ZEROD_FLOAT32;
	expect_limit(core, core_send(core, team.session[0], &bucket), "bucket '0' needs ", "uid 1000");
	assert_int_equal(held(core), before);
	/* The job that runs has an eighth for its work. */
	core_expect(core, core_gather(core, team.session[0], w), 0);
	core_expect(core, core_release(core, team.session[0], w), 0);
	/* Metadata that is freed may be used again. */
	core_do(core, team.session[0], ZD_REQ_UNIT_UNREGISTER, w);
	assert_true(held(core) < before);
	core_expect(core, core_alloc(core, team.session[0], "job", 0, 256), 0);
	core_close_all(core);
}

/* Leases under ever new tags, and releases whose fences never pass. */
ENGINE_TEST(test_leases_and_watches)
{
	const struct zd_fence never = {.timeline = 900, .value = 1};
	const char *text = "a gather needs ";
	uint64_t request, w;
	char tag[ZD_MAX_TAG_BYTES + 1];
	int n = 0;

	struct core_team team = core_team_new(core, "job", 1, false);
	w = core_team_unit(&team, "w", UNIT_BYTES);
	set_limit(core, held(core) + 20000);
	core_expect(core, core_gather_tag(core, team.session[0], w, "many", MOST), 0);
	do {
		request = core_release_tag(core, team.session[0], w, "many", &never, 1);
		n++;
	} while (core_reply(core, request)->status == 0 && n < MOST);
	expect_limit(core, request, "a release with fences needs ", ": uid_metadata is ");
	assert_in_range(n, 10, 30);
	/* Releases without fences free something. */
	core_expect(core, core_release_tag(core, team.session[0], w, "many", NULL, 0), 0);
	core_pass(core, team.session[0], never.timeline, never.value);
	do {
		(void)snprintf(tag, sizeof(tag), "tag %d", n++);
		request = core_gather_tag(core, team.session[0], w, tag, 1);
	} while (core_reply(core, request)->status == 0 && n < MOST);
	expect_limit(core, request, text, ": uid_metadata is ");
	assert_in_range(n, 50, 400);
	core_close_all(core);
}

/* Releases of a gather that waits. */
ENGINE_TEST(test_waiting_requests)
{
	uint64_t before, request, w;
	int n = 0;

	struct core_team team = core_team_new(core, "job", 1, false);
	w = core_team_unit(&team, "w", UNIT_BYTES);
	core_expect(core, core_update(core, team.session[0], w), 0);
	(void)core_gather_tag(core, team.session[0], w, CORE_TAG, MOST);
	before = held(core);
	set_limit(core, before + 20000);
	do {
		request = core_release(core, team.session[0], w);
		n++;
	} while (!core_reply(core, request) && n < MOST);
	expect_limit(core, request, "a request that waits needs ", "uid 1000 holds ");
	assert_in_range(n, 20, 60);
	assert_true(held(core) > before + 19000 && held(core) <= before + 20000);
	core_expect(core, core_publish(core, team.session[0], w), 0);
	core_close_all(core);
}

/* A job of 64 ranks and 10,000 units of 10 views needs less than the default of 256 MiB has for objects. */
ENGINE_TEST(test_real_job)
{
	struct core_join join = {.world_size = 64};
	struct core_view views[10] = {{0}};
	char names[10][64];
	struct core_unit unit = {.name = "model.layers.47.mlp.experts.112.gate_up_proj.weight",
	                         .numel = UNIT_BYTES / 4,
	                         .nviews = 10,
	                         .views = views};
	uint64_t all, before, session = 0, group = 0;

	for (int i = 0; i < 10; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "model.layers.47.mlp.experts.112.proj_%d.weight",
		               i);
		views[i].name = names[i];
	}
	for (join.rank = 0; join.rank < join.world_size; join.rank++) {
		session = core_open(core, CORE_ALICE);
		group = core_join(core, session, &join);
	}
	group = core_expect(core, group, 0)->u.group_join.group;
	(void)core_register(core, session, group, &unit); /* makes the segment */
	before = held(core);
	unit.name = "model.layers.47.mlp.experts.113.gate_up_proj.weight";
	core_register_ok(core, session, group, &unit);
	all = before + 10000 * (held(core) - before);
	assert_in_range(all, 128 << 20, (256 << 20) / 8 * 7);
	core_close_all(core);
}
