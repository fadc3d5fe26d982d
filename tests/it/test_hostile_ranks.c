/* SPDX-License-Identifier: Apache-2.0 */
/* test_hostile_ranks.c - ranks that are taken, missing, or do not agree with each other: who and what is
 * named, nobody hangs. */
#include "tests/it/hostile.h"

#include <stdio.h>
#include <unistd.h>

#define COUNT(a)    (sizeof(a) / sizeof((a)[0]))
#define DEADLINE_MS 20u
#define LATER_MS    500u /* another rank's request comes before it, also on a busy machine */

static struct raw_client other = {.sock = -1}; /* rank 1, where `raw` is rank 0 */

static int close_other(void **state)
{
	raw_close(&other);
	return hostile_after(state);
}

#define HOSTILE_BEFORE_TEST(name) TEST_DEFINE(name, void, , name(), hostile_before, close_other)

#define JOIN(...)                                                                                            \
	RAW(GROUP_JOIN, group_join, GroupJoin, .job = RAW_TEXT("ranks"), .group = RAW_TEXT("world"),         \
	    __VA_ARGS__)

static Zd__Request *until(Zd__Request *request, uint32_t deadline_ms)
{
	request->deadline_ms = deadline_ms;
	return request;
}

/* Both ranks of a group of two; returns the group. */
static uint64_t join_both(void)
{
	uint64_t first, second;

	raw_open(&raw, hostile_socket());
	raw_open(&other, hostile_socket());
	first = raw_send(&raw, JOIN(.world_size = 2, .rank = 0));
	second = raw_send(&other, JOIN(.world_size = 2, .rank = 1, .device = 1));
	(void)raw_expect(&other, second, 0);
	return raw_expect(&raw, first, 0)->group_join->group;
}

/* ---- Joining ------------------------------------------------------------------------------------------- */

HOSTILE_BEFORE_TEST(test_rank_taken)
{
	char pid[32];

	(void)join_both();
	(void)snprintf(pid, sizeof(pid), "(pid %d)", (int)getpid());
	RAW_EXPECT_ERROR(&other, raw_send(&other, JOIN(.world_size = 2, .rank = 0)), ZEROD_E_EXISTS, "rank 0",
	                 "taken", pid);
	RAW_EXPECT_ERROR(&other, raw_send(&other, JOIN(.world_size = 2, .rank = 1)), ZEROD_E_EXISTS, "rank 1",
	                 "taken", pid);
}

/* One session is one rank. */
HOSTILE_BEFORE_TEST(test_second_rank_of_a_session)
{
	raw_open(&raw, hostile_socket());
	(void)raw_send(&raw, JOIN(.world_size = 2, .rank = 0));
	RAW_EXPECT_ERROR(&raw, raw_send(&raw, JOIN(.world_size = 2, .rank = 1)), ZEROD_E_EXISTS,
	                 "this session is rank 0 of group 'world' already");
}

HOSTILE_BEFORE_TEST(test_rank_missing)
{
	uint64_t first, second;

	raw_open(&raw, hostile_socket());
	raw_open(&other, hostile_socket());
	/* Rank 0 comes after rank 2, which then waits for rank 1 alone. */
	second = raw_send(&other, until(JOIN(.world_size = 3, .rank = 2), LATER_MS));
	hostile_sync(&other);
	first = raw_send(&raw, JOIN(.world_size = 3, .rank = 0));
	hostile_sync(&raw);
	RAW_EXPECT_ERROR(&other, second, ZEROD_E_DEADLINE, "group_join", "1 rank to join", "rank 1");
	assert_null(raw_find(&raw, first));
	/* It is as if it had never asked: its place is free, and it counts as missing. */
	second = raw_send(&other, until(JOIN(.world_size = 3, .rank = 1), DEADLINE_MS));
	RAW_EXPECT_ERROR(&other, second, ZEROD_E_DEADLINE, "rank 2");
	assert_null(raw_find(&raw, first));
}

HOSTILE_BEFORE_TEST(test_world_differs)
{
	raw_open(&raw, hostile_socket());
	raw_open(&other, hostile_socket());
	(void)raw_send(&raw, JOIN(.world_size = 2, .rank = 0));
	hostile_sync(&raw);
	RAW_EXPECT_ERROR(&other, raw_send(&other, JOIN(.world_size = 3, .rank = 1)), ZEROD_E_MISMATCH,
	                 "world_size 2", "rank 1 says 3");
	RAW_EXPECT_ERROR(&other, raw_send(&other, JOIN(.world_size = 2, .rank = 1, .durable = true)),
	                 ZEROD_E_MISMATCH, "not durable", "rank 1 says durable");
}

/* ---- Units --------------------------------------------------------------------------------------------- */

#define REGISTER(...) RAW(UNIT_REGISTER, unit_register, UnitRegister, .name = RAW_TEXT("u"), __VA_ARGS__)

/* Each rank writes its number into its shard, and publishes. */
static void publish(struct raw_client *client, uint64_t unit, const Zd__Location *shard, uint8_t byte)
{
	uint64_t id = raw_send(client,
	                       RAW(UPDATE_BEGIN, update_begin, UpdateBegin, .n_units = 1, .units = &unit));

	(void)raw_expect(client, id, 0);
	memset(raw_at(client, shard), byte, shard->bytes);
	id = raw_send(client, RAW(PUBLISH, publish, Publish, .n_units = 1, .units = &unit));
	(void)raw_expect(client, id, 0);
}

HOSTILE_BEFORE_TEST(test_unit_differs)
{
	uint64_t group = join_both(), shape[] = {10, 30}, id, gather;
	Zd__View view = ZD__VIEW__INIT, *views[] = {&view};
	const Zd__UnitRegisterReply *mine, *theirs;
	const Zd__GatherReply *gathered;

	view.name = RAW_TEXT("v");
	view.n_shape = 2;
	view.shape = shape;
	const struct {
		Zd__Request *request;
		const char *says;
	} cases[] = {
	        {REGISTER(.group = group, .dtype = ZEROD_BFLOAT16, .numel = 300),
	         "rank 1 says bfloat16, 300"},
	        {REGISTER(.group = group, .dtype = ZEROD_INT8, .numel = 301), "rank 1 says int8, 301"},
	        {REGISTER(.group = group, .dtype = ZEROD_INT8, .numel = 300, .slot = 4), "slot 4"},
	        {REGISTER(.group = group, .dtype = ZEROD_INT8, .numel = 300, .frozen = true), "frozen"},
	        {REGISTER(.group = group, .dtype = ZEROD_INT8, .numel = 300, .n_views = 1, .views = views),
	         "v[10,30]@0"},
	};
	id = raw_send(&raw, REGISTER(.group = group, .dtype = ZEROD_INT8, .numel = 300));
	mine = raw_expect(&raw, id, 0)->unit_register;
	publish(&raw, mine->unit, mine->shard, 1);
	gather = raw_send(&raw, RAW(GATHER, gather, Gather, .unit = mine->unit, .tag = RAW_TEXT("t")));
	for (size_t i = 0; i < COUNT(cases); i++)
		RAW_EXPECT_ERROR(&other, raw_send(&other, cases[i].request), ZEROD_E_MISMATCH,
		                 "unit 'u': rank 0 registered int8, 300 elements", cases[i].says);
	/* Nobody hangs: the gather that waited for rank 1 is told. Then rank 1 agrees, and all is well. */
	RAW_EXPECT_ERROR(&raw, gather, ZEROD_E_MISMATCH, "rank 1 says bfloat16");
	id = raw_send(&other, REGISTER(.group = group, .dtype = ZEROD_INT8, .numel = 300));
	theirs = raw_expect(&other, id, 0)->unit_register;
	publish(&other, theirs->unit, theirs->shard, 2);
	gather = raw_send(&raw, RAW(GATHER, gather, Gather, .unit = mine->unit, .tag = RAW_TEXT("t")));
	gathered = raw_expect(&raw, gather, 0)->gather;
	raw_await_fences(&raw, gathered->n_fences, gathered->fences);
	for (uint64_t i = 0; i < 300; i++)
		assert_int_equal(raw_at(&raw, gathered->buffer)[i], i < mine->shard_numel ? 1 : 2);
}

/* The same rank describes it differently the second time. */
HOSTILE_BEFORE_TEST(test_unit_described_twice)
{
	uint64_t group = join_both(), id;

	id = raw_send(&raw, REGISTER(.group = group, .dtype = ZEROD_INT8, .numel = 300));
	(void)raw_expect(&raw, id, 0);
	id = raw_send(&raw, REGISTER(.group = group, .dtype = ZEROD_INT8, .numel = 600));
	RAW_EXPECT_ERROR(&raw, id, ZEROD_E_MISMATCH, "rank 0 registered int8, 300", "rank 0 says int8, 600");
	id = raw_send(&raw, REGISTER(.group = group, .dtype = ZEROD_INT8, .numel = 300));
	(void)raw_expect(&raw, id, 0);
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

HOSTILE_BEFORE_TEST(test_commits_differ)
{
	uint64_t group = join_both(), first;

	first = raw_send(&raw, RAW(COMMIT, commit, Commit, .group = group, .step = 5));
	hostile_sync(&raw);
	RAW_EXPECT_ERROR(&other, raw_send(&other, RAW(COMMIT, commit, Commit, .group = group, .step = 6)),
	                 ZEROD_E_MISMATCH, "rank 0 commits step 5", "rank 1 says 6");
	RAW_EXPECT_ERROR(&raw, raw_send(&raw, RAW(COMMIT, commit, Commit, .group = group, .step = 5)),
	                 ZEROD_E_STATE, "rank 0 is committing step 5 already");
	(void)raw_expect(&other, raw_send(&other, RAW(COMMIT, commit, Commit, .group = group, .step = 5)), 0);
	(void)raw_expect(&raw, first, 0);
}

HOSTILE_BEFORE_TEST(test_backwards_differ)
{
	uint64_t group = join_both(), id;

	id = raw_send(&raw, RAW(BACKWARD_BEGIN, backward_begin, BackwardBegin, .group = group, .stage = 1,
	                        .boundary = true));
	(void)raw_expect(&raw, id, 0);
	id = raw_send(&other, RAW(BACKWARD_BEGIN, backward_begin, BackwardBegin, .group = group, .stage = 2,
	                          .boundary = true));
	RAW_EXPECT_ERROR(&other, id, ZEROD_E_MISMATCH, "rank 0 runs", "stage 1", "rank 1 says stage 2");
	id = raw_send(&other, RAW(BACKWARD_BEGIN, backward_begin, BackwardBegin, .group = group, .stage = 1));
	RAW_EXPECT_ERROR(&other, id, ZEROD_E_MISMATCH, "backward 1 is not the boundary of rank 1");
}

/* A rank that does not do its part is named by whoever waited for it. */
HOSTILE_BEFORE_TEST(test_waits_name_the_rank)
{
	uint64_t group = join_both(), unit, id;

	id = raw_send(&raw, REGISTER(.group = group, .dtype = ZEROD_FLOAT32, .numel = 300));
	unit = raw_expect(&raw, id, 0)->unit_register->unit;
	id = raw_send(&raw,
	              until(RAW(GATHER, gather, Gather, .unit = unit, .tag = RAW_TEXT("t")), DEADLINE_MS));
	RAW_EXPECT_ERROR(&raw, id, ZEROD_E_DEADLINE, "gather", "rank 0 to publish version 1 of unit 'u'");
	id = raw_send(&raw, RAW(UPDATE_BEGIN, update_begin, UpdateBegin, .n_units = 1, .units = &unit));
	(void)raw_expect(&raw, id, 0);
	id = raw_send(&raw, RAW(PUBLISH, publish, Publish, .n_units = 1, .units = &unit));
	(void)raw_expect(&raw, id, 0);
	id = raw_send(&raw,
	              until(RAW(GATHER, gather, Gather, .unit = unit, .tag = RAW_TEXT("t")), DEADLINE_MS));
	RAW_EXPECT_ERROR(&raw, id, ZEROD_E_DEADLINE, "rank 1 to register unit 'u'");
	id = raw_send(&raw, until(RAW(COMMIT, commit, Commit, .group = group, .step = 1), DEADLINE_MS));
	RAW_EXPECT_ERROR(&raw, id, ZEROD_E_DEADLINE, "commit", "rank 1 to commit");
	id = raw_send(&raw,
	              RAW(BACKWARD_BEGIN, backward_begin, BackwardBegin, .group = group, .boundary = true));
	(void)raw_expect(&raw, id, 0);
	(void)raw_expect(&raw, raw_send(&raw, RAW(REDUCE_SKIP, reduce_skip, ReduceSkip, .unit = unit)), 0);
	id = raw_send(&raw, until(RAW(BACKWARD_END, backward_end, BackwardEnd, .group = group), DEADLINE_MS));
	RAW_EXPECT_ERROR(&raw, id, ZEROD_E_DEADLINE, "backward_end", "unit 'u'", "rank 1");
}

int main(void)
{
	return test_run(hostile_start, hostile_stop);
}
