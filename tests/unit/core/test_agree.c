/* SPDX-License-Identifier: Apache-2.0 */
/* Scalars that all ranks of a group agree on: their values, ranks that differ, ranks that do not come. */
#include <math.h>

#include "tests/support/core_reduce.h"

#define NRANKS 3u

#define SCENE_TEST(name)                                                                                     \
	CORE_RIG_TEST(name, struct core_scene, s, core_scene_open(s, NRANKS, 0, NULL), core_rig_end)

static struct zd_args args_of(struct core_scene *s, uint32_t op, uint32_t count, const double *values)
{
	return (struct zd_args){
	        .kind = ZD_REQ_GROUP_AGREE,
	        .u.group_agree = {
	                .group = s->g.team.group, .op = op, .n_values = count, .values = (double *)values}};
}

static uint64_t agree(struct core_scene *s, uint32_t rank, uint32_t op, uint32_t count, const double *values)
{
	struct zd_args args = args_of(s, op, count, values);
	return core_send(s->core, s->g.team.session[rank], &args);
}

static const double values[NRANKS][2] = {{1.0, -5.0}, {1e17, 2.0}, {-1e17, 7.0}};

/* No rank has them before the last one has come, all have the same then. */
static void expect_agreed(struct core_scene *s, uint32_t op, double first, double second)
{
	uint64_t requests[NRANKS];
	for (uint32_t rank = NRANKS; rank-- > 0;) {
		requests[rank] = agree(s, rank, op, 2, values[rank]);
		if (rank > 0)
			core_expect_waits(s->core, requests[NRANKS - 1], "rank 0 to agree");
	}
	for (uint32_t rank = 0; rank < NRANKS; rank++) {
		const struct zd_reply *reply = core_expect(s->core, requests[rank], 0);
		assert_int_equal(reply->u.group_agree.n_values, 2);
		assert_true(reply->u.group_agree.values[0] == first);
		assert_true(reply->u.group_agree.values[1] == second);
	}
}

SCENE_TEST(test_values)
{
	/* in rank order, whoever comes first: 1 is lost in 1e17 */
	expect_agreed(s, ZEROD_AGREE_SUM, (1.0 + 1e17) - 1e17, 4.0);
	expect_agreed(s, ZEROD_AGREE_MAX, 1e17, 7.0);
	expect_agreed(s, ZEROD_AGREE_MIN, -1e17, -5.0);
}

SCENE_TEST(test_no_number)
{
	static const double numbers[NRANKS] = {1.0, NAN, 2.0};
	uint64_t request = 0;
	for (uint32_t op = ZEROD_AGREE_SUM; op <= ZEROD_AGREE_MIN; op++) {
		for (uint32_t rank = 0; rank < NRANKS; rank++)
			request = agree(s, rank, op, 1, &numbers[rank]);
		assert_true(isnan(core_expect(s->core, request, 0)->u.group_agree.values[0]));
	}
}

/* All ranks are told, and may try again. */
SCENE_TEST(test_ranks_differ)
{
	uint64_t requests[NRANKS];
	for (uint32_t last = 0; last < NRANKS; last++) {
		for (uint32_t i = 1; i <= NRANKS; i++) {
			uint32_t rank = (last + i) % NRANKS;
			requests[rank] = agree(s, rank, ZEROD_AGREE_MAX, rank == 1 ? 2 : 1, values[rank]);
		}
		for (uint32_t rank = 0; rank < NRANKS; rank++)
			core_expect_error(s->core, requests[rank], ZEROD_E_MISMATCH,
			                  "rank 0 agrees on the max of 1 values; rank 1 says the max of 2");
	}
	expect_agreed(s, ZEROD_AGREE_MAX, 1e17, 7.0);
}

SCENE_TEST(test_arguments)
{
	double many[ZEROD_MAX_AGREED + 1] = {0};
	core_expect_error(s->core, agree(s, 0, 3, 1, many), ZEROD_E_INVALID, "unknown agreement operation 3");
	core_expect(s->core, agree(s, 0, 0, 0, many), ZEROD_E_INVALID);
	core_expect_error(s->core, agree(s, 0, 0, ZEROD_MAX_AGREED + 1, many), ZEROD_E_LIMIT, "at most 1024");
	(void)agree(s, 0, 0, 1, many);
	core_expect_error(s->core, agree(s, 0, 0, 1, many), ZEROD_E_STATE, "waits for an agreement already");
}

/* A request that is given up is no word any more. */
SCENE_TEST(test_a_deadline)
{
	struct zd_args args = args_of(s, ZEROD_AGREE_SUM, 1, values[0]);
	uint64_t late = core_send_until(s->core, s->g.team.session[0], 7, &args);
	core_tick(s->core, 7);
	core_expect_error(s->core, late, ZEROD_E_DEADLINE, "rank 1 to agree");
	expect_agreed(s, ZEROD_AGREE_MIN, -1e17, -5.0);
}

/* Many values are combined in steps. A rank that gives up between two of them takes its values back. */
TEST(test_steps)
{
	double many[CORE_TEAM][ZEROD_MAX_AGREED];
	uint64_t requests[CORE_TEAM];
	struct core_scene s;
	core_scene_open(&s, CORE_TEAM, 0, &(struct core_options){.ndevices = 1, .end_step_objects = 64});
	for (uint32_t rank = 0; rank < CORE_TEAM; rank++) {
		for (uint32_t i = 0; i < ZEROD_MAX_AGREED; i++)
			many[rank][i] = rank == 1 ? 1e17 : rank == 5 ? -1e17 : i + 1;
		struct zd_args args = args_of(&s, ZEROD_AGREE_SUM, ZEROD_MAX_AGREED, many[rank]);
		requests[rank] = core_send_until(s.core, s.g.team.session[rank], rank == 1 ? 7 : 0, &args);
	}
	core_tick(s.core, 7);
	core_expect_error(s.core, requests[1], ZEROD_E_DEADLINE, "to agree");
	while (core_end_step(s.core, CORE_ALICE))
		;
	core_expect_waits(s.core, requests[0], "rank 1 to agree");
	requests[1] = agree(&s, 1, ZEROD_AGREE_SUM, ZEROD_MAX_AGREED, many[1]);
	assert_null(core_reply(s.core, requests[0]));
	while (core_end_step(s.core, CORE_ALICE))
		;
	for (uint32_t rank = 0; rank < CORE_TEAM; rank++)
		for (uint32_t i = 0; i < ZEROD_MAX_AGREED; i++) {
			double sum = ((i + 1) + 1e17 + (i + 1) + (i + 1) + (i + 1) - 1e17) + (i + 1) +
			             (i + 1);
			assert_true(core_expect(s.core, requests[rank], 0)->u.group_agree.values[i] == sum);
		}
	core_end(s.core);
}

/* A rank that has begun the next backward does not come, before the agreement or after. */
SCENE_TEST(test_a_rank_that_goes_on)
{
	uint64_t early = agree(s, 0, ZEROD_AGREE_SUM, 1, values[0]);
	core_expect(s->core, core_backward(&s->g.team, 1, 3, false), 0);
	core_expect_error(s->core, early, ZEROD_E_MISMATCH,
	                  "rank 0 agrees, and rank 1 has begun the next backward");
	core_expect_error(s->core, agree(s, 2, ZEROD_AGREE_SUM, 1, values[2]), ZEROD_E_MISMATCH,
	                  "rank 2 agrees");
	core_expect(s->core, core_backward(&s->g.team, 0, 3, false), 0);
	core_expect(s->core, core_backward(&s->g.team, 2, 3, false), 0);
	expect_agreed(s, ZEROD_AGREE_MIN, -1e17, -5.0);
}

/* So does one that has begun a later backward of the step, or the step after one that it has abandoned. */
SCENE_TEST(test_a_rank_that_goes_further)
{
	core_reducers_begin(&s->g, 3, false);
	core_reducers_end(&s->g);
	uint64_t early = agree(s, 0, ZEROD_AGREE_SUM, 1, values[0]);
	core_expect(s->core, core_backward(&s->g.team, 1, 3, false), 0);
	core_expect_error(s->core, early, ZEROD_E_MISMATCH, "rank 1 has begun the next backward");
	core_do(s->core, s->g.team.session[1], ZD_REQ_BACKWARD_ABANDON, s->g.team.group);
	early = agree(s, 0, ZEROD_AGREE_SUM, 1, values[0]);
	core_expect_waits(s->core, early, "rank 1 to agree");
	core_expect(s->core, core_backward(&s->g.team, 1, 3, false), 0);
	core_expect_error(s->core, early, ZEROD_E_MISMATCH, "rank 1 has begun the next backward");
	for (uint32_t rank = 0; rank < NRANKS; rank += 2) {
		core_expect(s->core, core_step(&s->g.team, rank), 0);
		core_expect(s->core, core_step_end(&s->g.team, rank, NULL, 0), 0);
		core_expect(s->core, core_backward(&s->g.team, rank, 3, false), 0);
	}
	expect_agreed(s, ZEROD_AGREE_MIN, -1e17, -5.0);
}

/* A rank gathers what another one has begun to update that waits for it to agree: neither would go on. */
SCENE_TEST(test_a_rank_that_gathers)
{
	static const char text[] = "rank 1 has begun an update of unit 'w' and waits for rank 2 to agree";
	const uint64_t *session = s->g.team.session;
	uint64_t unit = core_reducers_unit(&s->g, "w", 250);
	core_team_publish(&s->g.team, unit);
	core_expect(s->core, core_update(s->core, session[1], unit), 0);
	uint64_t early = core_gather(s->core, session[2], unit);
	uint64_t prefetch = core_prefetch(s->core, session[2], unit);
	core_expect_waits(s->core, early, "to publish version 2");
	uint64_t agreed = agree(s, 1, ZEROD_AGREE_MAX, 1, values[1]);
	core_expect_error(s->core, early, ZEROD_E_MISMATCH, text);
	uint64_t named = core_gather_version(s->core, session[2], unit, 2);
	core_expect(s->core, core_publish(s->core, session[1], unit), 0);
	core_expect_error(s->core, core_gather(s->core, session[2], unit), ZEROD_E_MISMATCH, text);
	core_expect(s->core, core_update(s->core, session[2], unit), 0);
	uint64_t other = core_gather(s->core, session[2], unit);
	(void)agree(s, 0, ZEROD_AGREE_MAX, 1, values[0]);
	(void)agree(s, 2, ZEROD_AGREE_MAX, 1, values[2]);
	core_expect(s->core, agreed, 0);
	core_expect(s->core, core_update(s->core, session[0], unit), 0);
	for (uint32_t rank = 0; rank < NRANKS; rank += 2)
		core_expect(s->core, core_publish(s->core, session[rank], unit), 0);
	core_expect(s->core, prefetch, 0);
	core_expect(s->core, named, 0);
	core_expect(s->core, other, 0);
}

SCENE_TEST(test_a_rank_that_goes)
{
	uint64_t first = agree(s, 0, ZEROD_AGREE_SUM, 1, values[0]);
	(void)agree(s, 1, ZEROD_AGREE_SUM, 1, values[1]);
	core_close(s->core, s->g.team.session[1]);
	core_expect_error(s->core, first, ZEROD_E_PEER_LOST, "rank 1");
}
