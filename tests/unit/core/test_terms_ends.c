/* SPDX-License-Identifier: Apache-2.0 */
/* test_terms_ends.c - every end of a loan of terms, and what waits for one. */
#include "terms_rig.h"

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

static bool fence_passed(struct core_scene *s, uint32_t rank, const struct zd_reply *reply)
{
	assert_int_not_equal(reply->fence.value, 0);
	return core_timeline(s->core, s->g.team.session[rank], reply->fence.timeline) >= reply->fence.value;
}

/* The wait is given up, and asked again. The step is called ahead, and promised with the last return. */
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
	terms_open(s, 2, 1, 1, (struct core_options){.sessions_linger = true});
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

/* Rank 0's stream still reads the former sum, so its slice waits when the window fails. No rank takes these
 * terms, and the backward ends. */
TEST(test_window_that_fails)
{
	struct core_scene scene, *s = &scene;
	uint64_t end[2];
	terms_open(s, 2, 2, 2, (struct core_options){0});
	core_reduce_all(&s->g, s->unit, 1);
	for (uint32_t rank = 0; rank < 2; rank++)
		core_expect(s->core, core_wait_sum(&s->g.team, rank, s->unit, false), 0);
	give(s, 0, s->unit, &reader);
	give(s, 1, s->unit, NULL);
	core_reducers_end(&s->g);
	core_reducers_begin(&s->g, 3, true);
	submit_all(s, s->unit);
	(void)take(s, 1, s->unit);
	give(s, 1, s->unit, NULL);
	core_fail_next(s->core, ZD_CMD_COPY, ZEROD_E_DEVICE, "broken");
	core_reduce_all(&s->g, s->other, 1);
	pass(s, 0);
	for (uint32_t rank = 0; rank < 2; rank++) {
		const struct zd_reply *terms = core_reply(s->core,
		                                          core_wait_terms(&s->g.team, rank, s->unit));
		assert_true(terms && terms->status != 0);
		end[rank] = core_backward_end(&s->g.team, rank);
	}
	for (uint32_t rank = 0; rank < 2; rank++) {
		const struct zd_reply *reply = core_reply(s->core, end[rank]);
		assert_true(reply && reply->status != 0);
	}
	core_end(s->core);
}
