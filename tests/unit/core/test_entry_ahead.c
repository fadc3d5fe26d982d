/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_entry_ahead.c - entries whose address is given out before their place may be written; and what of a
 * place the daemon zeroes.
 */
#include "core/engine/objects.h"
#include "tests/support/core_reduce.h"

#define ENTRY_BYTES 1024u /* of a unit of 256 elements on two ranks */
#define ENTRY_NUMEL 256u

static uint64_t ask(struct core_reducers *g, uint32_t rank, uint64_t unit)
{
	struct zd_args args = {.kind = ZD_REQ_BUCKET_RESERVE,
	                       .u.bucket_reserve = {.bucket = g->bucket[rank], .unit = unit, .ahead = true}};
	return core_send(g->team.core, g->team.session[rank], &args);
}

struct ahead {
	uint64_t entry;
	struct zd_location at;
	struct zd_fence fence;
};

static struct ahead granted(struct core_reducers *g, uint64_t request)
{
	const struct zd_reply *reply = core_expect(g->team.core, request, 0);
	return (struct ahead){reply->u.bucket_reserve.entry, reply->place, reply->fence};
}

static bool passed(struct core_reducers *g, uint32_t rank, struct ahead ahead)
{
	return ahead.fence.value == 0 ||
	       core_timeline(g->team.core, g->team.session[rank], ahead.fence.timeline) >= ahead.fence.value;
}

/* In a backward; a slot has room for one entry. */
static struct core_reducers begin(struct core_driver *core, uint32_t nranks, uint64_t units[2])
{
	struct core_reducers g = core_reducers_new(core, nranks, ZEROD_FLOAT32, ENTRY_BYTES, 1);
	core_reducers_units(&g, units, 2, ENTRY_NUMEL);
	core_reducers_begin(&g, 3, true);
	return g;
}

/* A rank's bucket with room for all. */
static void roomy(struct core_reducers *g, uint32_t rank)
{
	g->bucket[rank] = core_bucket_ok(&g->team, rank, ZEROD_FLOAT32, 8 * ENTRY_BYTES, 1);
}

ENGINE_TEST(test_not_before_the_sums_are_launched)
{
	uint64_t units[2];
	struct core_reducers g = begin(core, 2, units);
	core_hold(core, ZD_CMD_REDUCE);
	core_set_sums(core, ZD_SUMS_ASKED);
	core_reduce(&g, 0, units[0], 1.0f);
	core_reduce(&g, 1, units[0], 1.0f);
	uint64_t request = ask(&g, 0, units[1]);
	core_expect_waits(core, request, "");
	core_set_sums(core, ZD_SUMS_LAUNCHED);
	assert_false(passed(&g, 0, granted(&g, request)));
	core_unhold(core, ZD_CMD_REDUCE);
	assert_true(passed(&g, 0, granted(&g, request)));
}

/* The place of an entry that its own rank has not committed is not granted ahead. */
ENGINE_TEST(test_not_before_its_own_commit)
{
	uint64_t units[2];
	struct core_reducers g = begin(core, 1, units);
	core_hold(core, ZD_CMD_REDUCE);
	uint64_t entry = core_put(&g, 0, units[0], 1.0f);
	core_expect_error(core, ask(&g, 0, units[1]), ZEROD_E_CAPACITY, "holds 'a'");
	core_expect(core, core_submit(&g, 0, entry, NULL), 0);
	assert_false(passed(&g, 0, granted(&g, ask(&g, 0, units[1]))));
}

/* Several generations of one slot, each committed before its place was there: every sum reads its own
 * bytes. */
ENGINE_TEST(test_generations_follow_each_other)
{
	uint64_t units[4];
	struct ahead next[4];
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, ENTRY_BYTES, 1);
	core_reducers_units(&g, units, 4, ENTRY_NUMEL);
	core_reducers_begin(&g, 3, true);
	roomy(&g, 1);
	core_hold(core, ZD_CMD_COPY);
	core_reduce(&g, 0, units[0], 1.0f);
	core_reduce(&g, 1, units[0], 1.0f);
	for (uint32_t i = 1; i < 4; i++) {
		struct zd_fence fence = {0, i};
		struct core_commit c = {.bucket = g.bucket[0], .nfences = 1, .fences = &fence};
		next[i] = granted(&g, ask(&g, 0, units[i]));
		assert_int_equal(next[i].at.offset, next[1].at.offset);
		assert_false(passed(&g, 0, next[i]));
		c.entry = next[i].entry;
		core_expect(core, core_bucket_submit(&g.team, 0, &c), 0);
		core_reduce(&g, 1, units[i], 1.0f);
	}
	core_unhold(core, ZD_CMD_COPY);
	for (uint32_t i = 1; i < 4; i++) {
		assert_true(passed(&g, 0, next[i]));
		if (i < 3)
			assert_false(passed(&g, 0, next[i + 1]));
		core_write(core, next[i].at, ZEROD_FLOAT32, 0, ENTRY_NUMEL, 1.0f);
		core_pass(core, g.team.session[0], 0, i);
	}
	core_reducers_end(&g);
	core_check_step(&g, 1, 4, 1.0f);
}

/* The padding is zeroed when the former entry has been read, and the fence passes behind that. */
ENGINE_TEST(test_padding_comes_behind_the_former_entry)
{
	uint64_t unit;
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, ENTRY_BYTES, 1);
	core_reducers_units(&g, &unit, 1, ENTRY_NUMEL);
	uint64_t odd = core_reducers_unit(&g, "odd", ENTRY_NUMEL - 1);
	core_reducers_begin(&g, 3, true);
	core_hold(core, ZD_CMD_COPY);
	core_hold(core, ZD_CMD_FILL);
	core_reduce(&g, 0, unit, 1.0f);
	core_reduce(&g, 1, unit, 1.0f);
	struct ahead next = granted(&g, ask(&g, 0, odd));
	assert_int_equal(core_pending(core, ZD_CMD_FILL), 0);
	core_unhold(core, ZD_CMD_COPY);
	assert_int_equal(core_pending(core, ZD_CMD_FILL), 1);
	assert_false(passed(&g, 0, next));
	core_run_one(core, ZD_CMD_FILL);
	assert_true(passed(&g, 0, next));
	assert_true(core_element(ZEROD_FLOAT32, core_bytes(core, next.at), ENTRY_NUMEL - 1) == 0);
}

/* A fill that fails frees the stream, and what it wrote is not reduced. */
ENGINE_TEST(test_a_fill_fails)
{
	struct core_reducers g = core_reducers_new(core, 1, ZEROD_FLOAT32, ENTRY_BYTES, 1);
	uint64_t odd = core_reducers_unit(&g, "odd", ENTRY_NUMEL - 1);
	core_reducers_begin(&g, 3, true);
	core_hold(core, ZD_CMD_FILL);
	struct ahead next = granted(&g, ask(&g, 0, odd));
	core_expect(core, core_submit(&g, 0, next.entry, NULL), 0);
	core_fail_next(core, ZD_CMD_FILL, ZEROD_E_DEVICE, "no device");
	core_unhold(core, ZD_CMD_FILL);
	assert_int_equal(core_count(core, ZD_CMD_REDUCE), 0);
	core_expect_error(core, core_backward_end(&g.team, 0), ZEROD_E_DEVICE, "no device");
}

/* The group fails: streams that wait for room go on, and the session is not poisoned. */
ENGINE_TEST(test_the_group_fails)
{
	uint64_t units[3];
	struct core_reducers g = core_reducers_new(core, 2, ZEROD_FLOAT32, ENTRY_BYTES, 1);
	core_reducers_units(&g, units, 3, ENTRY_NUMEL);
	core_reducers_begin(&g, 3, true);
	roomy(&g, 1);
	core_hold(core, ZD_CMD_COPY);
	core_reduce(&g, 0, units[0], 1.0f);
	core_reduce(&g, 1, units[0], 1.0f);
	struct ahead second = granted(&g, ask(&g, 0, units[1]));
	core_expect(core, core_submit(&g, 0, second.entry, NULL), 0);
	core_reduce(&g, 1, units[1], 1.0f);
	struct ahead third = granted(&g, ask(&g, 0, units[2]));
	core_close(core, g.team.session[1]);
	assert_true(passed(&g, 0, second));
	assert_true(passed(&g, 0, third));
	struct core_commit c = {.bucket = g.bucket[0], .entry = third.entry};
	core_expect(core, core_bucket_submit(&g.team, 0, &c), ZEROD_E_PEER_LOST);
	assert_int_equal(zd_session_find(core_engine(core), g.team.session[0])->state, ZD_SESSION_OPEN);
	core_unhold(core, ZD_CMD_COPY);
}

/* ---- What is zeroed ------------------------------------------------------------------------------------ */

static uint64_t viewed_unit(struct core_reducers *g)
{
	static const struct core_view views[] = {
	        {"late", 200, 1, {40}}, {"early", 10, 2, {5, 4}}, {"scalar", 100, 0, {0}}};
	return core_team_register(
	        &g->team,
	        &(struct core_unit){.name = "holes", .numel = ENTRY_NUMEL, .nviews = 3, .views = views});
}

static bool is_viewed(uint64_t i)
{
	return (i >= 10 && i < 30) || i == 100 || (i >= 200 && i < 240);
}

ENGINE_TEST(test_holes_are_zeroed)
{
	uint64_t unit;
	struct core_reducers g = core_reducers_new(core, 1, ZEROD_FLOAT32, ENTRY_BYTES, 1);
	core_reducers_units(&g, &unit, 1, ENTRY_NUMEL);
	uint64_t holes = viewed_unit(&g);
	core_reducers_begin(&g, 3, true);
	core_reduce(&g, 0, unit, 1.0f); /* leaves its bytes */
	struct zd_args args = {
	        .kind = ZD_REQ_BUCKET_RESERVE,
	        .u.bucket_reserve = {.bucket = g.bucket[0], .unit = holes, .zero_holes = true}};
	const struct zd_reply *reply = core_call(core, g.team.session[0], &args, 0);
	const void *bytes = core_bytes(core, reply->place);
	for (uint64_t i = 0; i < ENTRY_NUMEL; i++) {
		float expected = is_viewed(i) ? core_gradient(0, i) : 0.0f;
		assert_true(core_element(ZEROD_FLOAT32, bytes, i) == expected);
	}
}

static void commit_absent(struct core_reducers *g, uint64_t entry, const uint32_t *absent, uint32_t n,
                          int status)
{
	struct zd_args args = {
	        .kind = ZD_REQ_BUCKET_SUBMIT,
	        .u.bucket_submit = {
	                .bucket = g->bucket[0], .entry = entry, .n_absent = n, .absent = (uint32_t *)absent}};
	core_call(g->team.core, g->team.session[0], &args, status);
}

ENGINE_TEST(test_absent_views_contribute_zeros)
{
	const struct zd_reply *step[CORE_TEAM];
	static const uint32_t twice[] = {1, 0, 1}, beyond[] = {3}, absent[] = {2, 0};
	struct core_reducers g = core_reducers_new(core, 1, ZEROD_FLOAT32, ENTRY_BYTES, 1);
	uint64_t holes = viewed_unit(&g);
	core_reducers_begin(&g, 3, true);
	uint64_t entry = core_put(&g, 0, holes, 1.0f);
	commit_absent(&g, entry, twice, 3, ZEROD_E_INVALID);
	commit_absent(&g, entry, beyond, 1, ZEROD_E_INVALID);
	commit_absent(&g, entry, absent, 2, 0);
	core_reducers_end(&g);
	core_reducers_step(&g, step);
	const void *target = core_bytes(core, step[0]->target);
	for (uint64_t i = 0; i < ENTRY_NUMEL; i++) {
		float expected = i == 100 || (i >= 200 && i < 240) ? 0.0f : core_gradient(0, i);
		assert_true(core_element(ZEROD_FLOAT32, target, i) == expected);
	}
}
