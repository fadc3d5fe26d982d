/* SPDX-License-Identifier: Apache-2.0 */
/* test_terms.c - a rank that takes the terms of its slice in place of their sum: where they are, how long the
 * rank's entry and the copies remain, and every end of a loan. */
#include "tests/support/core_reduce.h"

#define NUMEL 3000u /* slices of two and three ranks are padded, and cut into chunks */

static const struct zd_fence reader = {1, 7};

/* Ranks in a backward, and a unit or two without a place. A slot has room for one entry. */
static void open(struct core_scene *s, uint32_t nranks, uint32_t nunits, struct core_options options)
{
	options.ndevices = nranks;
	options.reduction_cut_bytes = 256;
	s->core = core_new(&options);
	s->g = core_reducers_new(s->core, nranks, ZEROD_BFLOAT16, 2 * NUMEL, 1);
	for (uint32_t i = 0; i < nunits; i++) {
		uint64_t unit = core_reducers_unit(&s->g, i ? "x" : "w", NUMEL);
		*(i ? &s->other : &s->unit) = unit;
		for (uint32_t rank = 0; rank < nranks; rank++) {
			struct zd_args args = {.kind = ZD_REQ_SET_FROZEN,
			                       .u.set_frozen = {.unit = unit, .target = ZD_TARGET_NONE}};
			core_call(s->core, s->g.team.session[rank], &args, 0);
		}
	}
	core_reducers_begin(&s->g, 3, true);
}

#define SCENE_TEST(name, nranks)                                                                             \
	CORE_RIG_TEST(name, struct core_scene, s, open(s, nranks, 2, (struct core_options){0}), core_rig_end)

static void submit(struct core_scene *s, uint32_t rank, uint64_t unit)
{
	core_expect(s->core, core_submit_terms(&s->g, rank, core_put(&s->g, rank, unit, 1), NULL), 0);
}

static void submit_all(struct core_scene *s, uint64_t unit)
{
	for (uint32_t rank = 0; rank < s->g.team.world_size; rank++)
		submit(s, rank, unit);
}

/* The last copy for rank 1 is missing. */
static void submit_nearly(struct core_scene *s)
{
	core_hold(s->core, ZD_CMD_COPY);
	submit_all(s, s->unit);
	for (uint32_t n = core_pending(s->core, ZD_CMD_COPY), i = 1; i < n; i++)
		core_run_on(s->core, ZD_CMD_COPY, i <= n / 2);
}

static const struct zd_reply *take(struct core_scene *s, uint32_t rank, uint64_t unit)
{
	return core_expect(s->core, core_wait_terms(&s->g.team, rank, unit), 0);
}

static void give(struct core_scene *s, uint32_t rank, uint64_t unit, const struct zd_fence *fence)
{
	core_expect(s->core, core_return_sum(&s->g.team, rank, unit, fence), 0);
}

static void pass(struct core_scene *s, uint32_t rank)
{
	core_pass(s->core, s->g.team.session[rank], reader.timeline, reader.value);
}

/* Of rank 0. */
static uint64_t reserve_ahead(struct core_scene *s, uint64_t unit)
{
	struct zd_args args = {.kind = ZD_REQ_BUCKET_RESERVE};
	args.u.bucket_reserve.bucket = s->g.bucket[0];
	args.u.bucket_reserve.unit = unit;
	args.u.bucket_reserve.ahead = true;
	return core_send(s->core, s->g.team.session[0], &args);
}

/* All ranks but `skips` have submitted: their pieces are there, in rank order. */
static void check_terms(struct core_scene *s, const struct zd_reply *reply, uint32_t rank, uint32_t skips)
{
	const Zd__ReduceWaitReply *terms = &reply->u.reduce_wait;
	uint64_t bytes = s->g.shard_numel * 2;
	uint32_t term = 0, other = 0;
	assert_int_equal(terms->target_dtype, ZEROD_BFLOAT16);
	assert_int_equal(terms->nterms, s->g.team.world_size - (skips < s->g.team.world_size));
	assert_int_equal(reply->places[0].bytes, bytes);
	assert_int_equal(reply->places[1].bytes, (terms->nterms - 1) * bytes);
	for (uint32_t source = 0; source < s->g.team.world_size; source++) {
		if (source == skips)
			continue;
		const uint8_t *data = source == rank
		                              ? core_bytes(s->core, reply->places[0])
		                              : core_bytes(s->core, reply->places[1]) + bytes * other++;
		if (source == rank)
			assert_int_equal(terms->own, term);
		term++;
		for (uint64_t i = 0; i < s->g.shard_numel; i++) {
			uint64_t at = rank * s->g.shard_numel + i;
			float expected = at < NUMEL ? core_gradient(source, at) : 0;
			assert_true(core_element(ZEROD_BFLOAT16, data, i) == expected);
		}
	}
}

/* The terms are compared as soon as they are lent, while other copies are missing. No sum is made of them. */
static void places(uint32_t nranks, uint32_t skips)
{
	struct core_scene scene, *s = &scene;
	struct core_commit commit = {.op = ZEROD_MEAN, .prescale = 0.5f, .terms = true};
	uint64_t waits[CORE_TEAM];
	uint32_t ncopies = 0, lent = 0;
	open(s, nranks, 1, (struct core_options){.unordered = true});
	core_hold(s->core, ZD_CMD_COPY);
	for (uint32_t rank = 0; rank < nranks; rank++) {
		commit.bucket = s->g.bucket[rank];
		commit.entry = rank == skips ? 0 : core_put(&s->g, rank, s->unit, 1);
		core_expect(s->core,
		            rank == skips ? core_skip(&s->g.team, rank, s->unit)
		                          : core_bucket_submit(&s->g.team, rank, &commit),
		            0);
		waits[rank] = rank == skips ? 0 : core_wait_terms(&s->g.team, rank, s->unit);
	}
	for (bool more = true; more; ncopies++) {
		more = core_pending(s->core, ZD_CMD_COPY) > 0;
		if (more)
			core_run_nth(s->core, ncopies % core_pending(s->core, ZD_CMD_COPY));
		for (uint32_t rank = 0; rank < nranks; rank++) {
			const struct zd_reply *reply = waits[rank] ? core_reply(s->core, waits[rank]) : NULL;
			if (!reply)
				continue;
			check_terms(s, core_expect(s->core, waits[rank], 0), rank, skips);
			assert_true(reply->u.reduce_wait.prescale == 0.5f);
			assert_true(reply->u.reduce_wait.postscale == 1.0f / (float)nranks);
			waits[rank] = 0;
			lent++;
			give(s, rank, s->unit, NULL);
		}
	}
	assert_true(lent == 1 || ncopies > lent * 4); /* several chunks */
	assert_int_equal(lent, nranks - (skips < nranks));
	assert_int_equal(core_count(s->core, ZD_CMD_REDUCE) > 0, skips < nranks);
	core_reducers_end(&s->g);
	assert_int_equal(core_usage(s->core).bucket_bytes + core_usage(s->core).staging_bytes, 0);
	core_end(s->core);
}

TEST(test_places)
{
	for (uint32_t nranks = 1; nranks <= 3; nranks++) {
		for (uint32_t skips = 0; skips <= nranks; skips++)
			places(nranks, nranks == 1 ? 1 : skips);
	}
}

/* One rank takes terms, another one the sum of the same gradients. */
SCENE_TEST(test_terms_and_a_sum, 2)
{
	submit(s, 0, s->unit);
	core_reduce(&s->g, 1, s->unit, 1);
	check_terms(s, take(s, 0, s->unit), 0, 2);
	give(s, 0, s->unit, NULL);
	const struct zd_reply *sum = core_expect(s->core, core_wait_sum(&s->g.team, 1, s->unit, false), 0);
	assert_int_equal(sum->u.reduce_wait.nterms, 0);
	for (uint64_t i = s->g.shard_numel; i < NUMEL; i++) {
		float found = core_element(ZEROD_FLOAT32, core_bytes(s->core, sum->place),
		                           i - s->g.shard_numel);
		assert_true(found == core_gradient(0, i) + core_gradient(1, i));
	}
	core_reducers_end(&s->g);
}

/* The entry remains until the return's fences have passed, and with it its slot and the backward. Nothing is
 * promised while a call is missing. */
SCENE_TEST(test_an_entry_remains, 2)
{
	submit_all(s, s->unit);
	const struct zd_reply *terms = take(s, 0, s->unit);
	give(s, 1, s->unit, NULL); /* is not lent */
	uint64_t reserve = reserve_ahead(s, s->other);
	assert_null(core_reply(s->core, reserve));
	give(s, 0, s->unit, &reader);
	assert_null(core_reply(s->core, reserve));
	check_terms(s, terms, 0, 2);
	pass(s, 0);
	const struct zd_reply *place = core_expect(s->core, reserve, 0);
	core_expect(s->core, core_submit_terms(&s->g, 0, place->u.bucket_reserve.entry, NULL), 0);
	core_expect(s->core, core_skip(&s->g.team, 1, s->other), 0);
	uint64_t end[2] = {core_backward_end(&s->g.team, 0), core_backward_end(&s->g.team, 1)};
	core_expect_waits(s->core, end[1], "unit 'w'");
	check_terms(s, take(s, 1, s->unit), 1, 2);
	give(s, 1, s->unit, NULL);
	core_expect(s->core, end[1], 0);
	(void)take(s, 0, s->other);
	give(s, 0, s->other, &reader);
	core_expect(s->core, end[0], 0); /* its fences have passed */
	core_check_step(&s->g, 1, 0, 1);
}

/* A stream that waits for a promised place could be the one whose fence ends the loan. */
SCENE_TEST(test_no_promise_of_a_lent_entry, 2)
{
	submit_nearly(s);
	const struct zd_reply *terms = take(s, 0, s->unit);
	core_fail_next(s->core, ZD_CMD_COPY, ZEROD_E_DEVICE, "broken");
	core_unhold(s->core, ZD_CMD_COPY);
	uint64_t reserve = reserve_ahead(s, s->other);
	assert_null(core_reply(s->core, reserve));
	check_terms(s, terms, 0, 2);
	give(s, 0, s->unit, NULL);
	core_expect(s->core, reserve, 0);
}

/* ---- Ends ---------------------------------------------------------------------------------------------- */

enum how { ABANDONS, OTHER_ABANDONS, OTHER_DIES, OTHERS_LEAVE, LEAVES, DIES, DEVICE_FAILS, NHOWS };
enum when { COPIED, LENT, RETURNED, NWHENS };

static uint64_t end_by(struct core_scene *s, enum how how)
{
	uint64_t request = 0;
	const uint64_t *session = s->g.team.session;
	uint32_t rank = how == OTHER_ABANDONS || how == OTHERS_LEAVE || how == OTHER_DIES;
	if (how == ABANDONS || how == OTHER_ABANDONS)
		request = core_simple(s->core, session[rank], ZD_REQ_BACKWARD_ABANDON, s->g.team.group);
	else if (how == LEAVES || how == OTHERS_LEAVE)
		request = core_simple(s->core, session[rank], ZD_REQ_GROUP_LEAVE, s->g.team.group);
	else if (how == DEVICE_FAILS)
		core_fail_next(s->core, ZD_CMD_COPY, ZEROD_E_DEVICE, "broken");
	else
		core_close(s->core, session[rank]);
	core_unhold(s->core, ZD_CMD_COPY); /* to rank 1 */
	return request;
}

/* Rank 0 has terms, and rank 1 still lacks some. */
static void ends(enum how how, enum when when)
{
	struct core_scene scene, *s = &scene;
	bool own = how == ABANDONS || how == LEAVES || how == DIES;
	open(s, 2, 1, (struct core_options){.sessions_linger = true});
	submit_nearly(s);
	uint64_t waits = core_wait_terms(&s->g.team, 1, s->unit);
	const struct zd_reply *terms = when == COPIED ? NULL : take(s, 0, s->unit);
	if (when == RETURNED)
		give(s, 0, s->unit, &reader);
	uint64_t request = end_by(s, how);
	if (how != OTHER_DIES)
		assert_int_not_equal(core_expect(s->core, waits, core_reply(s->core, waits)->status)->status,
		                     0);
	if (when != COPIED && !own) {
		check_terms(s, terms, 0, 2);
		if (when == LENT)
			give(s, 0, s->unit, &reader);
		check_terms(s, terms, 0, 2);
		assert_int_not_equal(core_quarantine(s->core, 0) + core_usage(s->core).bucket_bytes, 0);
		pass(s, 0);
		assert_int_equal(core_quarantine(s->core, 0), 0);
	}
	if (how == ABANDONS && when == RETURNED) {
		core_expect_waits(s->core, request, "streams");
		pass(s, 0);
	}
	if (request)
		core_expect(s->core, request, 0);
	core_end(s->core);
}

TEST(test_ends)
{
	for (uint32_t how = 0; how < NHOWS; how++) {
		for (uint32_t when = 0; when < NWHENS; when++)
			ends(how, when);
	}
}

/* ---- Mistakes ------------------------------------------------------------------------------------------ */

SCENE_TEST(test_the_other_kind, 2)
{
	struct core_team *team = &s->g.team;
	core_expect_error(s->core, core_wait_terms(team, 0, s->unit), ZEROD_E_STATE,
	                  "neither reduced nor skipped");
	submit(s, 0, s->unit);
	core_expect_error(s->core, core_wait_sum(team, 0, s->unit, true), ZEROD_E_STATE, "there is no sum");
	core_reduce(&s->g, 1, s->unit, 1);
	core_expect_error(s->core, core_wait_sum(team, 0, s->unit, false), ZEROD_E_STATE, "there is no sum");
	core_expect_error(s->core, core_wait_terms(team, 1, s->unit), ZEROD_E_STATE, "there are no terms");
	const struct zd_reply *terms = take(s, 0, s->unit), *again = take(s, 0, s->unit);
	assert_ptr_equal(core_bytes(s->core, terms->places[0]), core_bytes(s->core, again->places[0]));
	core_expect_error(s->core, core_simple(s->core, team->session[0], ZD_REQ_UNIT_UNREGISTER, s->unit),
	                  ZEROD_E_BUSY, "unit 'w'");
	give(s, 0, s->unit, &reader);
	for (uint32_t round = 0; round < 2; round++) {
		core_expect_error(s->core, core_wait_terms(team, 0, s->unit), ZEROD_E_STATE,
		                  "has returned the terms");
		give(s, 0, s->unit, NULL);
		pass(s, 0);
	}
	core_skip_all(&s->g, s->other);
	core_expect(s->core, core_wait_terms(team, 0, s->other), ZEROD_E_NOT_FOUND);
	core_reducers_end(&s->g);
	core_check_step(&s->g, 1, 0, 1);
	core_expect(s->core, core_wait_terms(team, 0, s->unit), ZEROD_E_STATE);
}

/* Terms of another backward would replace the sum. */
SCENE_TEST(test_a_sum_that_is_there, 3)
{
	core_reduce_all(&s->g, s->unit, 1);
	core_reducers_end(&s->g);
	core_reducers_begin(&s->g, 3, true);
	uint64_t entry = core_put(&s->g, 0, s->unit, 1);
	core_expect_error(s->core, core_submit_terms(&s->g, 0, entry, NULL), ZEROD_E_STATE,
	                  "rank 0 has not returned the sum of unit 'w'");
	core_expect(s->core, core_wait_sum(&s->g.team, 0, s->unit, false), 0);
	give(s, 0, s->unit, &reader);
	core_expect(s->core, core_submit_terms(&s->g, 0, entry, NULL), 0);
	submit(s, 1, s->other);
	core_reduce(&s->g, 2, s->unit, 1);
}

/* A unit with a place in the target, and one in host memory. */
TEST(test_units_without_terms)
{
	struct core_scene scene, *s = &scene;
	open(s, 1, 1, (struct core_options){.host_arena_bytes = CORE_MIB, .segment_bytes = 65536});
	struct core_unit host = {.name = "host", .numel = 512, .on_host = true};
	struct zd_args args = {.kind = ZD_REQ_SET_FROZEN, .u.set_frozen.target = ZD_TARGET_NONE};
	core_reducers_end(&s->g);
	core_check_step(&s->g, 1, 0, 1);
	uint64_t place = core_reducers_unit(&s->g, "place", 512), entry;
	args.u.set_frozen.unit = core_team_register(&s->g.team, &host);
	core_call(s->core, s->g.team.session[0], &args, 0);
	core_reducers_begin(&s->g, 3, true);
	entry = core_put(&s->g, 0, place, 1);
	core_expect_error(s->core, core_submit_terms(&s->g, 0, entry, NULL), ZEROD_E_INVALID,
	                  "has a place in the target");
	core_expect(s->core, core_submit(&s->g, 0, entry, NULL), 0);
	entry = core_put(&s->g, 0, args.u.set_frozen.unit, 1);
	core_expect_error(s->core, core_submit_terms(&s->g, 0, entry, NULL), ZEROD_E_UNSUPPORTED,
	                  "in host memory");
	core_expect(s->core, core_submit(&s->g, 0, entry, NULL), 0);
	core_reducers_end(&s->g);
	core_end(s->core);
}

static bool fence_passed(struct core_scene *s, uint32_t rank, const struct zd_reply *reply)
{
	assert_int_not_equal(reply->fence.value, 0);
	return core_timeline(s->core, s->g.team.session[rank], reply->fence.timeline) >= reply->fence.value;
}

/* The wait is given up, and asked again. The step, which is called ahead, is promised with the last return. */
SCENE_TEST(test_a_wait_and_a_step, 2)
{
	struct zd_args wait = {.kind = ZD_REQ_REDUCE_WAIT,
	                       .u.reduce_wait = {.unit = s->unit, .terms = true, .ahead = true}};
	struct zd_args step = {.kind = ZD_REQ_STEP_BEGIN,
	                       .u.step_begin = {.group = s->g.team.group, .ahead = true}};
	uint64_t steps[2];
	submit(s, 0, s->unit);
	uint64_t waits = core_send_until(s->core, s->g.team.session[0], 5, &wait);
	core_expect_waits(s->core, waits, "unit 'w' (rank 1)");
	core_tick(s->core, 5);
	core_expect(s->core, waits, ZEROD_E_DEADLINE);
	waits = core_send(s->core, s->g.team.session[0], &wait);
	core_hold(s->core, ZD_CMD_COPY);
	submit(s, 1, s->unit);
	assert_null(core_reply(s->core, waits)); /* it is not promised */
	core_unhold(s->core, ZD_CMD_COPY);
	check_terms(s, core_expect(s->core, waits, 0), 0, 2);
	for (uint32_t rank = 0; rank < 2; rank++) {
		(void)core_backward_end(&s->g.team, rank);
		steps[rank] = core_send(s->core, s->g.team.session[rank], &step);
	}
	(void)take(s, 1, s->unit);
	give(s, 1, s->unit, NULL);
	assert_null(core_reply(s->core, steps[1]));
	give(s, 0, s->unit, &reader);
	for (uint32_t rank = 0; rank < 2; rank++)
		assert_false(fence_passed(s, rank, core_expect(s->core, steps[rank], 0)));
	pass(s, 0);
	for (uint32_t rank = 0; rank < 2; rank++)
		assert_true(fence_passed(s, rank, core_expect(s->core, steps[rank], 0)));
	core_expect_error(s->core, core_wait_terms(&s->g.team, 0, s->unit), ZEROD_E_STATE,
	                  "neither reduced nor skipped");
	core_reducers_step_end(&s->g);
}
