/* SPDX-License-Identifier: Apache-2.0 */
/* Gathered buffers that are the shard itself: in_place.c. */
#include "tests/support/core_net.h"
#include "tests/unit/core/team_rig.h"

#define UNIT_BYTES 4096ull

/* The budget has no room for a copy. */
static void start(struct rig *rig, bool sessions_linger)
{
	rig_open(rig, 1, UNIT_BYTES,
	         &(struct core_options){.gather_budget_bytes = 1, .sessions_linger = sessions_linger});
}

#define RIG_TEST(name) CORE_RIG_TEST(name, struct rig, rig, start(rig, false), core_rig_end)

/* Where a unit's shard is. */
static struct zd_location shard_of(struct rig *rig, const struct core_unit *unit)
{
	uint64_t request = core_register(rig->core, rig->session, rig->team.group, unit);
	return core_expect(rig->core, request, 0)->place;
}

static void expect_place(const struct zd_reply *gather, struct zd_location shard)
{
	expect_same(gather->place, shard);
	assert_int_equal(gather->fences.count, 0);
}

static uint64_t gather(struct rig *rig)
{
	return core_gather(rig->core, rig->session, rig->unit);
}

static uint64_t release(struct rig *rig, uint64_t value)
{
	const struct zd_fence fence = {STREAM, value};
	return core_release_tag(rig->core, rig->session, rig->unit, CORE_TAG, &fence, 1);
}

static uint64_t update(struct rig *rig)
{
	return core_update(rig->core, rig->session, rig->unit);
}

static uint64_t publish(struct rig *rig)
{
	return core_publish(rig->core, rig->session, rig->unit);
}

static void expect_nothing_taken(const struct rig *rig)
{
	assert_int_equal(core_count(rig->core, ZD_CMD_COPY), 0);
	assert_int_equal(core_count(rig->core, ZD_CMD_SEGMENT_CREATE), 1); /* the shards' */
	assert_int_equal(core_usage(rig->core).gathered_bytes, 0);
	assert_int_equal(core_usage(rig->core).shard_bytes, UNIT_BYTES);
}

RIG_TEST(test_gather_is_the_shard)
{
	for (uint64_t version = 1; version < 4; version++) {
		const struct zd_reply *reply = core_expect(rig->core, gather(rig), 0);
		core_team_check(&rig->team, reply, version);
		expect_place(reply, shard_of(rig, &(struct core_unit){.name = "w", .numel = UNIT_BYTES / 4}));
		expect_nothing_taken(rig);
		core_expect(rig->core, core_release(rig->core, rig->session, rig->unit), 0);
		assert_int_equal(core_quarantine(rig->core, 0), 0);
		core_team_publish(&rig->team, rig->unit);
	}
}

RIG_TEST(test_update_waits_for_past_leases)
{
	for (uint64_t persistent = 0; persistent < 2; persistent++) {
		core_expect(rig->core, core_set_persistent(rig->core, rig->session, rig->unit, persistent),
		            0);
		core_expect(rig->core, gather(rig), 0);
		core_expect(rig->core, release(rig, persistent + 1), 0);
		uint64_t begun = update(rig);
		core_expect_waits(rig->core, begun, "1 consumer that reads the shard of rank 0 of unit 'w'");
		/* one that is asked for now is for the next version */
		uint64_t behind = gather(rig);
		core_expect_waits(rig->core, behind, "rank 0 to publish");
		core_pass(rig->core, rig->session, STREAM, persistent + 1);
		core_expect(rig->core, begun, 0);
		core_expect(rig->core, publish(rig), 0);
		assert_int_equal(core_expect(rig->core, behind, 0)->u.gather.version, persistent + 2);
		core_expect(rig->core, core_release(rig->core, rig->session, rig->unit), 0);
	}
	expect_nothing_taken(rig);
}

RIG_TEST(test_prefetch_holds_nothing)
{
	core_expect(rig->core, core_prefetch(rig->core, rig->session, rig->unit), 0);
	core_expect(rig->core, update(rig), 0);
	core_expect(rig->core, publish(rig), 0);
	core_expect(rig->core, core_prefetch(rig->core, rig->session, rig->unit), 0);
	struct zd_args args = {.kind = ZD_REQ_TRIM};
	core_call(rig->core, rig->session, &args, 0);
	assert_int_equal(core_expect(rig->core, gather(rig), 0)->u.gather.version, 2);
	expect_nothing_taken(rig);
}

/* ---- Behind a publish ---------------------------------------------------------------------------------- */

/* The shard is written, and published when PUBLISHER has come to the value. */
static uint64_t publish_behind(struct rig *rig, uint64_t unit, uint64_t value, uint64_t deadline_ns)
{
	const struct zd_fence fence = {PUBLISHER, value};
	struct zd_args args = {
	        .kind = ZD_REQ_PUBLISH, .u.publish = {.n_units = 1, .units = &unit}, .fences = {1, &fence}};
	core_expect(rig->core, core_update(rig->core, rig->session, unit), 0);
	core_team_write(&rig->team, unit, 0);
	return core_send_until(rig->core, rig->session, deadline_ns, &args);
}

static bool has_passed(struct rig *rig, const struct zd_reply *gather)
{
	assert_int_equal(gather->fences.count, 1);
	const struct zd_fence fence = gather->fences.fences[0];
	uint64_t counter = core_timeline(rig->core, rig->session, fence.timeline);
	assert_true(counter != (uint64_t)ZD_FENCE_ABORTED);
	return zd_fence_reached(counter, fence.value);
}

/* The gather and those that join it are answered at once, and their streams wait. They are readers from the
 * publish on. */
RIG_TEST(test_gather_behind_a_publish)
{
	for (uint64_t i = 1; i < 3; i++) {
		core_expect(rig->core, core_set_persistent(rig->core, rig->session, rig->unit, i > 1), 0);
		uint64_t published = publish_behind(rig, rig->unit, i, 0);
		const struct zd_reply *first = core_expect(rig->core, gather(rig), 0);
		core_expect(rig->core, release(rig, i), 0);
		const struct zd_reply *second = core_expect(rig->core, gather(rig), 0);
		assert_int_equal(second->u.gather.version, 2 * i);
		assert_false(has_passed(rig, first));
		core_pass(rig->core, rig->session, PUBLISHER, i);
		core_expect(rig->core, published, 0);
		assert_true(has_passed(rig, first) && has_passed(rig, second));
		core_team_check(&rig->team, second, 2 * i);
		core_expect_error(rig->core, update(rig), ZEROD_E_BUSY, "by '" CORE_TAG "'");
		core_expect(rig->core, core_release(rig->core, rig->session, rig->unit), 0);
		uint64_t begun = update(rig);
		core_expect_waits(rig->core, begun, "that read");
		core_pass(rig->core, rig->session, STREAM, i);
		core_expect(rig->core, begun, 0);
		core_expect(rig->core, publish(rig), 0);
	}
	expect_nothing_taken(rig);
}

/* A reset passes all fences of the kind. So a buffer whose version is still to come is joined by nobody. */
RIG_TEST(test_reset_before_a_publish)
{
	uint64_t other = core_team_unit(&rig->team, "v", UNIT_BYTES);
	uint64_t failed = publish_behind(rig, rig->unit, 1, 100);
	core_expect(rig->core, gather(rig), 0);
	uint64_t published = publish_behind(rig, other, 2, 0);
	core_expect(rig->core, core_gather(rig->core, rig->session, other), 0);
	core_tick(rig->core, 100);
	core_expect(rig->core, failed, ZEROD_E_DEADLINE);
	core_do(rig->core, rig->session, ZD_REQ_SESSION_RESET, 0);
	uint64_t again = core_gather(rig->core, rig->session, other);
	core_expect_waits(rig->core, again, "leases on version 2");
	core_pass(rig->core, rig->session, PUBLISHER, 2);
	core_expect(rig->core, published, 0);
	core_team_check(&rig->team, core_expect(rig->core, again, 0), 2);
}

/* An update that waits for leases has saved the shard by then. */
RIG_TEST(test_pinned_reads_beside_an_update_that_awaits_leases)
{
	uint64_t reader = core_open(rig->core, CORE_ALICE);
	uint64_t into =
	        core_call(rig->core, reader,
	                  &(struct zd_args){.kind = ZD_REQ_ALLOC,
	                                    .u.alloc = {.job = (char *)"reader", .bytes = UNIT_BYTES}},
	                  0)
	                ->u.alloc.allocation;
	core_expect(rig->core, core_commit(rig->core, rig->session, rig->team.group, 1), 0);
	core_call(rig->core, reader,
	          &(struct zd_args){
	                  .kind = ZD_REQ_COMMIT_WAIT,
	                  .u.commit_wait = {.job = (char *)"job", .group = (char *)"world", .pin = true}},
	          0);
	core_expect(rig->core, gather(rig), 0);
	uint64_t update = core_send(
	        rig->core, rig->session,
	        &(struct zd_args){
	                .kind = ZD_REQ_UPDATE_BEGIN,
	                .u.update_begin = {.n_units = 1, .units = &rig->unit, .await_leases = true}});
	core_expect_waits(rig->core, update, "leases");
	core_call(rig->core, reader,
	          &(struct zd_args){.kind = ZD_REQ_UNIT_READ,
	                            .u.unit_read = {.group = rig->team.group,
	                                            .unit = (char *)"w",
	                                            .step = 1,
	                                            .bytes = UNIT_BYTES,
	                                            .allocation = into}},
	          0);
	core_expect(rig->core, core_release(rig->core, rig->session, rig->unit), 0);
	core_expect(rig->core, update, 0);
}

/* ---- Updates that are granted ahead of their readers' end ---------------------------------------------- */

static uint64_t update_ahead(struct rig *rig, uint64_t deadline_ns)
{
	struct zd_args args = {.kind = ZD_REQ_UPDATE_BEGIN,
	                       .u.update_begin = {.n_units = 1, .units = &rig->unit, .ahead = true}};
	return core_send_until(rig->core, rig->session, deadline_ns, &args);
}

static uint64_t counter_of(struct rig *rig, const struct zd_reply *update)
{
	assert_int_not_equal(update->fence.value, 0);
	return core_timeline(rig->core, rig->session, update->fence.timeline);
}

static bool may_write(struct rig *rig, const struct zd_reply *update)
{
	uint64_t counter = counter_of(rig, update);
	assert_true(counter != (uint64_t)ZD_FENCE_ABORTED);
	return zd_fence_reached(counter, update->fence.value);
}

/* A consumer of the unit is under way, and an update was granted behind it. */
static const struct zd_reply *grant(struct rig *rig)
{
	core_expect(rig->core, gather(rig), 0);
	core_expect(rig->core, release(rig, 1), 0);
	return core_expect(rig->core, update_ahead(rig, 0), 0);
}

/* A whole step ahead of the streams: the update waits for consumers, the publish for both, the next gather
 * for all of them, and no request does. */
RIG_TEST(test_step_ahead_of_its_streams)
{
	core_expect(rig->core, core_set_persistent(rig->core, rig->session, rig->unit, true), 0);
	core_expect(rig->core, gather(rig), 0);
	core_expect(rig->core, release(rig, 1), 0);
	const struct zd_reply *granted = core_expect(rig->core, update_ahead(rig, 9), 0);
	core_tick(rig->core, 9); /* it is answered: its deadline is over */
	core_expect(rig->core, update(rig), ZEROD_E_STATE);
	const struct zd_fence fence = {PUBLISHER, 1};
	uint64_t published = core_publish_after(rig->core, rig->session, rig->unit, fence);
	const struct zd_reply *next = core_expect(rig->core, gather(rig), 0);
	core_expect(rig->core, release(rig, 2), 0);
	assert_false(may_write(rig, granted));
	core_pass(rig->core, rig->session, STREAM, 1);
	assert_true(may_write(rig, granted));
	assert_false(has_passed(rig, next));
	core_pass(rig->core, rig->session, PUBLISHER, 1);
	core_expect(rig->core, published, 0);
	assert_true(has_passed(rig, next));
	uint64_t begun = update(rig);
	core_expect_waits(rig->core, begun, "1 consumer that reads");
	core_pass(rig->core, rig->session, STREAM, 2);
	core_expect(rig->core, begun, 0);
}

/* So it is with bytes that are loaded. */
RIG_TEST(test_load_behind_a_grant)
{
	struct zd_args args = {.kind = ZD_REQ_ALLOC, .u.alloc = {.unit = rig->unit}};
	uint64_t source = core_call(rig->core, rig->session, &args, 0)->u.alloc.allocation;
	(void)grant(rig);
	args = (struct zd_args){.kind = ZD_REQ_UNIT_LOAD,
	                        .u.unit_load = {.unit = rig->unit, .allocation = source}};
	uint64_t load = core_send(rig->core, rig->session, &args);
	core_expect_waits(rig->core, load, "1 consumer that reads the shard of rank 0 of unit 'w'");
	core_pass(rig->core, rig->session, STREAM, 1);
	core_expect(rig->core, load, 0);
}

/* The rank leaves its group: its streams are freed, and what they write counts for nothing. */
RIG_TEST(test_rank_leaves_with_a_grant)
{
	const struct zd_reply *granted = grant(rig);
	publish(rig);
	core_do(rig->core, rig->session, ZD_REQ_GROUP_LEAVE, rig->team.group);
	assert_true(counter_of(rig, granted) == (uint64_t)ZD_FENCE_ABORTED);
	core_do(rig->core, rig->session, ZD_REQ_SESSION_RESET, 0);
	assert_true(may_write(rig, granted));
}

/* ---- Other ways to hold it ----------------------------------------------------------------------------- */

/* The shard is not free before the consumers of a former lease are through, and charged to nobody. */
RIG_TEST(test_unregistered_under_a_consumer)
{
	core_expect(rig->core, gather(rig), 0);
	core_expect(rig->core, release(rig, 1), 0);
	core_do(rig->core, rig->session, ZD_REQ_UNIT_UNREGISTER, rig->unit);
	assert_int_equal(core_usage(rig->core).shard_bytes, 0);
	assert_int_equal(core_quarantine(rig->core, 0), UNIT_BYTES);
	core_pass(rig->core, rig->session, STREAM, 1);
	assert_int_equal(core_quarantine(rig->core, 0), 0);
}

/* The session's process may read what it held, with a publish, leases on its version and their fences under
 * way as well. */
TEST(test_session_ends)
{
	for (int publishes = 0; publishes < 2; publishes++) {
		struct rig rig;
		start(&rig, true);
		if (publishes) {
			publish_behind(&rig, rig.unit, 1, 0);
			core_expect(rig.core, gather(&rig), 0);
			core_expect(rig.core, release(&rig, 1), 0);
		}
		core_expect(rig.core, gather(&rig), 0);
		core_close(rig.core, rig.session);
		assert_int_equal(core_quarantine(rig.core, 0), UNIT_BYTES);
		core_gone(rig.core, rig.session);
		assert_int_equal(core_quarantine(rig.core, 0), 0);
		core_end(rig.core);
	}
}

/* Poison and strict sessions, and shadow groups. */
TEST(test_copies_where_they_are_needed)
{
	struct core_team team = {.world_size = 1, .nranks = 1};
	for (int i = 0; i < 3; i++) {
		struct core_driver *core = core_new(&(struct core_options){.copies = i == 0});
		const struct core_join join = {.world_size = 1, .durable = i == 2, .shadow = i == 2};
		team.core = core;
		team.session[0] = i == 1 ? core_open_strict(core, CORE_ALICE) : core_open(core, CORE_ALICE);
		team.group = core_join_ok(core, team.session[0], &join);
		uint64_t unit = core_team_unit(&team, "w", UNIT_BYTES);
		uint32_t saved = core_count(core, ZD_CMD_COPY);
		core_expect(core, core_gather(core, team.session[0], unit), 0);
		assert_int_equal(core_count(core, ZD_CMD_COPY), saved + 1);
		assert_true(core_usage(core).gathered_bytes > 0);
		core_expect(core, core_update(core, team.session[0], unit), 0); /* as ever */
		core_end(core);
	}
}
