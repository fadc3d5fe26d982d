/* SPDX-License-Identifier: Apache-2.0 */
/* test_terms.c - terms in place of a sum: where they are, how long they remain, and which units have none. */
#include "terms_rig.h"

/* The terms are compared as soon as they are lent, while other copies are missing. No sum is made of them. */
static void places(uint32_t nranks, uint32_t skips)
{
	struct core_scene scene, *s = &scene;
	struct core_commit commit = {.op = ZEROD_MEAN, .prescale = 0.5f, .terms = true};
	uint64_t waits[CORE_TEAM];
	uint32_t ncopies = 0, lent = 0;
	terms_open(s, nranks, 1, 1, (struct core_options){.unordered = true});
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
	terms_open(s, 1, 1, 1, (struct core_options){.host_arena_bytes = CORE_MIB, .segment_bytes = 65536});
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
