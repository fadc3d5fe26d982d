/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agreements between daemons: steps, with one norm and overflow for all, and commits, which all daemons make
 * or none.
 */
#include <math.h>

#include "tests/support/core_net.h"
#include "tests/support/core_reduce.h"

#define WORLD 4
#define NUMEL (WORLD * ZD_SHARD_ALIGN_BYTES / 4)

struct rig {
	struct core_nodes nodes;
	uint64_t unit[CORE_NODES], bucket[WORLD];
};

static void rig_new(struct rig *rig, const struct core_nodes_config *config)
{
	core_nodes_new(&rig->nodes, config);
	core_nodes_unit(&rig->nodes, "w", WORLD * ZD_SHARD_ALIGN_BYTES, rig->unit);
}

#define RIG_TEST(name) CORE_RIG_TEST(name, struct rig, rig, rig_new(rig, NULL), core_nodes_end)

static struct core_team *team_of(struct rig *rig, uint32_t rank)
{
	return core_nodes_team(&rig->nodes, rank);
}

static uint64_t send_commit(struct rig *rig, uint32_t rank, uint64_t step)
{
	return core_commit(team_of(rig, rank)->core, core_nodes_session(&rig->nodes, rank),
	                   team_of(rig, rank)->group, step);
}

static void commit_all(struct rig *rig, uint64_t step, uint64_t request[WORLD])
{
	for (uint32_t rank = 0; rank < WORLD; rank++)
		request[rank] = send_commit(rig, rank, step);
}

static void expect_committed(struct rig *rig, uint64_t step)
{
	struct core_row row;
	for (uint32_t node = 0; node < 2; node++) {
		core_row(rig->nodes.node[node].core, ZD__TABLE__GROUPS, rig->nodes.node[node].group, &row);
		assert_int_equal(row.row->group->committed_step, step);
	}
}

static void expect_state(struct rig *rig, uint32_t node, const char *state)
{
	struct core_row row;
	core_row(rig->nodes.node[node].core, ZD__TABLE__GROUPS, rig->nodes.node[node].group, &row);
	assert_string_equal(row.state, state);
}

/* ---- Commits ------------------------------------------------------------------------------------------- */

RIG_TEST(test_all_commit)
{
	uint64_t request[WORLD];
	request[0] = send_commit(rig, 0, 5);
	core_expect_waits(rig->nodes.node[0].core, request[0], "rank 1 to commit");
	request[1] = send_commit(rig, 1, 5);
	core_expect_waits(rig->nodes.node[0].core, request[0],
	                  "ranks of other daemons to make the same call");
	request[3] = send_commit(rig, 3, 5);
	core_expect_waits(rig->nodes.node[1].core, request[3], "rank 2 to commit");
	expect_committed(rig, 0);
	request[2] = send_commit(rig, 2, 5);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		core_expect(team_of(rig, rank)->core, request[rank], 0);
	expect_committed(rig, 5);
}

/* All daemons refuse what one refuses, and say which did; they may try again. */
static void expect_refusal(const struct core_nodes_config *config)
{
	struct rig rig;
	uint64_t request[WORLD];
	rig_new(&rig, config);
	core_expect(rig.nodes.node[1].core,
	            core_update(rig.nodes.node[1].core, core_nodes_session(&rig.nodes, 2), rig.unit[1]), 0);
	commit_all(&rig, 1, request);
	for (uint32_t rank = 0; rank < 2; rank++)
		core_expect_error(rig.nodes.node[0].core, request[rank], ZEROD_E_STATE,
		                  "step 1 is not committed: the daemon of rank 2 (node bee) refused it");
	for (uint32_t rank = 2; rank < 4; rank++)
		core_expect_error(rig.nodes.node[1].core, request[rank], ZEROD_E_STATE,
		                  "unit 'w' is UPDATING on rank 2");
	expect_committed(&rig, 0);
	core_team_write(&rig.nodes.node[1], rig.unit[1], 0);
	core_expect(rig.nodes.node[1].core,
	            core_publish(rig.nodes.node[1].core, core_nodes_session(&rig.nodes, 2), rig.unit[1]), 0);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		if (rank != 2)
			core_team_publish_rank(team_of(&rig, rank), rig.unit[rank / 2], rank % 2);
	}
	commit_all(&rig, 1, request);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		core_expect(team_of(&rig, rank)->core, request[rank], 0);
	expect_committed(&rig, 1);
	core_net_end(rig.nodes.net);
}

TEST(test_refused_commit)
{
	expect_refusal(NULL);
	expect_refusal(&(struct core_nodes_config){.exchange = true});
}

RIG_TEST(test_steps_differ)
{
	uint64_t request[WORLD];
	for (uint32_t rank = 0; rank < WORLD; rank++)
		request[rank] = send_commit(rig, rank, rank < 2 ? 1 : 2);
	for (uint32_t rank = 0; rank < 2; rank++)
		core_expect_error(rig->nodes.node[0].core, request[rank], ZEROD_E_MISMATCH,
		                  "rank 0 commits step 1; rank 2 (node bee) says 2");
	for (uint32_t rank = 2; rank < 4; rank++)
		core_expect_error(rig->nodes.node[1].core, request[rank], ZEROD_E_MISMATCH,
		                  "rank 2 commits step 2; rank 0 (node ant) says 1");
	expect_committed(rig, 0);
}

static uint64_t send_commit_until(struct rig *rig, uint32_t rank, uint64_t deadline_ns)
{
	struct zd_args args = {.kind = ZD_REQ_COMMIT,
	                       .u.commit = {.group = team_of(rig, rank)->group, .step = 1}};
	return core_send_until(team_of(rig, rank)->core, core_nodes_session(&rig->nodes, rank), deadline_ns,
	                       &args);
}

RIG_TEST(test_deadline_of_a_commit)
{
	/* before all ranks of the daemon have come, nobody elsewhere knows of it */
	uint64_t alone = send_commit_until(rig, 0, 1000);
	core_tick(rig->nodes.node[0].core, 1000);
	core_expect(rig->nodes.node[0].core, alone, ZEROD_E_DEADLINE);
	expect_state(rig, 0, "READY");
	/* then, the others count on it */
	uint64_t other = send_commit(rig, 1, 1), voted = send_commit_until(rig, 0, 2000);
	core_tick(rig->nodes.node[0].core, 2000);
	core_expect_error(rig->nodes.node[0].core, voted, ZEROD_E_DEADLINE, "ranks of other daemons");
	core_expect_error(rig->nodes.node[0].core, other, ZEROD_E_ABORTED,
	                  "group 'world': rank 0 gave up a commit that others make");
	expect_state(rig, 0, "ABORTED");
}

RIG_TEST(test_vote_fails)
{
	uint64_t request[WORLD];
	core_fail_next(rig->nodes.node[0].core, ZD_CMD_AGREE, ZEROD_E_DEVICE, "a link is down");
	commit_all(rig, 1, request);
	for (uint32_t rank = 0; rank < 2; rank++)
		core_expect_error(rig->nodes.node[0].core, request[rank], ZEROD_E_DEVICE, "a link is down");
	expect_state(rig, 0, "ABORTED");
}

/* Other daemons commit a step to which this daemon has agreed, whatever happens to it: no rank writes a shard
 * before the result is known. */
RIG_TEST(test_update_waits_for_the_commit)
{
	uint64_t request[WORLD];
	struct core_driver *core = rig->nodes.node[0].core;
	core_hold(core, ZD_CMD_AGREE);
	commit_all(rig, 1, request);
	uint64_t update = core_update(core, core_nodes_session(&rig->nodes, 0), rig->unit[0]);
	core_expect_waits(core, update, "ranks of other daemons to make the same call");
	core_unhold(core, ZD_CMD_AGREE);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		core_expect(team_of(rig, rank)->core, request[rank], 0);
	expect_committed(rig, 1);
	core_expect(core, update, 0);
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

/* All ranks have reduced the unit; the rank's gradient is as large as that in what rank 0 owns. */
static void run_backward(struct rig *rig, uint32_t large_rank, float large)
{
	uint64_t request[WORLD];
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		struct core_team *team = team_of(rig, rank);
		if (!rig->bucket[rank])
			rig->bucket[rank] = core_bucket_ok(team, rank % 2, ZEROD_FLOAT32, 4096, 1);
		core_expect(team->core, core_backward(team, rank % 2, 3, true), 0);
	}
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		struct core_team *team = team_of(rig, rank);
		const struct zd_reply *entry = core_expect(
		        team->core, core_reserve(team, rank % 2, rig->bucket[rank], rig->unit[rank / 2]), 0);
		float *gradient = (float *)(void *)core_bytes(team->core, entry->place);
		for (uint32_t i = 0; i < NUMEL; i++)
			gradient[i] = rank == large_rank && i < NUMEL / WORLD ? large : 1.0f;
		struct core_commit commit = {.bucket = rig->bucket[rank],
		                             .entry = entry->u.bucket_reserve.entry};
		core_expect(team->core, core_bucket_submit(team, rank % 2, &commit), 0);
	}
	for (uint32_t rank = 0; rank < WORLD; rank++)
		request[rank] = core_backward_end(team_of(rig, rank), rank % 2);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		core_expect(team_of(rig, rank)->core, request[rank], 0);
}

/* Else the ranks of a rail might come to it between different reductions. */
TEST(test_commit_in_a_backward)
{
	struct rig rig = {.bucket = {0}};
	rig_new(&rig, NULL);
	core_expect(rig.nodes.node[0].core, core_backward(team_of(&rig, 0), 0, 3, false), 0);
	core_expect_error(rig.nodes.node[0].core, send_commit(&rig, 0, 1), ZEROD_E_STATE,
	                  "backward 1 of rank 0 runs; in a group that spans daemons a commit is behind it");
	core_net_end(rig.nodes.net);
}

static void expect_steps(struct rig *rig, uint64_t step, bool overflow)
{
	uint64_t request[WORLD];
	double first = 0.0;
	for (uint32_t rank = 0; rank < WORLD; rank++)
		request[rank] = core_step(team_of(rig, rank), rank % 2);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		const struct zd_reply *reply = core_expect(team_of(rig, rank)->core, request[rank], 0);
		double norm = reply->u.step_begin.norm_squared;
		assert_int_equal(reply->u.step_begin.step, step);
		assert_int_equal(reply->u.step_begin.overflow, overflow);
		first = rank == 0 ? norm : first;
		assert_memory_equal(&norm, &first, sizeof(norm));
		core_expect(team_of(rig, rank)->core, core_step_end(team_of(rig, rank), rank % 2, NULL, 0),
		            0);
	}
}

TEST(test_all_see_an_overflow)
{
	for (int exchange = 0; exchange < 2; exchange++) {
		struct rig rig = {.bucket = {0}};
		rig_new(&rig, &(struct core_nodes_config){.exchange = exchange});
		run_backward(&rig, 3, INFINITY);
		expect_steps(&rig, 1, true);
		run_backward(&rig, 3, 2.0f);
		expect_steps(&rig, 2, false);
		core_net_end(rig.nodes.net);
	}
}

#define UNITS 3

/* Of one element each; node 1 registers the last two in the other order. */
static void register_in_two_orders(struct core_nodes *nodes, uint64_t unit[UNITS][CORE_NODES])
{
	static const char *const names[UNITS] = {"a", "b", "c"};
	static const uint32_t orders[2][UNITS] = {{0, 1, 2}, {0, 2, 1}};
	for (uint32_t node = 0; node < 2; node++) {
		for (uint32_t i = 0; i < UNITS; i++) {
			uint32_t index = orders[node][i];
			struct core_unit is = {.name = names[index], .numel = 1, .slot = ZEROD_NO_SLOT};
			unit[index][node] = core_team_register(&nodes->node[node], &is);
		}
	}
}

static void contribute(struct core_team *team, uint64_t bucket, uint64_t unit, float value)
{
	const struct zd_reply *entry = core_expect(team->core, core_reserve(team, 0, bucket, unit), 0);
	struct core_commit commit = {.bucket = bucket, .entry = entry->u.bucket_reserve.entry};
	core_element_set(ZEROD_FLOAT32, core_bytes(team->core, entry->place), 0, value);
	core_expect(team->core, core_bucket_submit(team, 0, &commit), 0);
}

/* Replicas must be updated alike: each node adds the squares up in its own order of units, and one's sum is
 * all nodes'. */
TEST(test_hybrid_norms)
{
	static const float values[UNITS] = {8.0f, 1e9f, 8.0f}; /* the sum of squares depends on the order */
	struct rig rig = {.bucket = {0}};
	uint64_t unit[UNITS][CORE_NODES], request[WORLD];
	core_nodes_new(&rig.nodes, &(struct core_nodes_config){.hybrid = true});
	register_in_two_orders(&rig.nodes, unit);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		core_expect(team_of(&rig, rank)->core, core_backward(team_of(&rig, rank), rank % 2, 3, true),
		            0);
	request[0] = core_bucket(team_of(&rig, 0), 0, ZEROD_FLOAT32, 4096, 4);
	uint64_t bucket = core_expect(team_of(&rig, 0)->core, request[0], 0)->u.bucket_create.bucket;
	for (uint32_t i = 0; i < UNITS; i++) {
		contribute(team_of(&rig, 0), bucket, unit[i][0], values[i]);
		for (uint32_t rank = 1; rank < WORLD; rank++)
			core_expect(team_of(&rig, rank)->core,
			            core_skip(team_of(&rig, rank), rank % 2, unit[i][rank / 2]), 0);
	}
	for (uint32_t rank = 0; rank < WORLD; rank++)
		request[rank] = core_backward_end(team_of(&rig, rank), rank % 2);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		core_expect(team_of(&rig, rank)->core, request[rank], 0);
	expect_steps(&rig, 1, false);
	core_net_end(rig.nodes.net);
}

TEST(test_step_waits_for_other_daemons)
{
	struct rig rig = {.bucket = {0}};
	rig_new(&rig, NULL);
	run_backward(&rig, 0, 1.0f);
	uint64_t first = core_step(team_of(&rig, 0), 0);
	core_expect_waits(rig.nodes.node[0].core, first, "rank 1 to begin the step");
	uint64_t second = core_step(team_of(&rig, 1), 1);
	core_expect_waits(rig.nodes.node[0].core, first, "ranks of other daemons to make the same call");
	(void)core_step(team_of(&rig, 2), 0);
	(void)core_step(team_of(&rig, 3), 1);
	core_expect(rig.nodes.node[0].core, first, 0);
	core_expect(rig.nodes.node[0].core, second, 0);
	core_net_end(rig.nodes.net);
}

TEST(test_deadline_of_a_step)
{
	struct rig rig = {.bucket = {0}};
	struct zd_args args = {.kind = ZD_REQ_STEP_BEGIN};
	rig_new(&rig, NULL);
	run_backward(&rig, 0, 1.0f);
	args.u.step_begin.group = rig.nodes.node[0].group;
	/* before the daemon's ranks have come it may be begun again */
	uint64_t alone = core_send_until(rig.nodes.node[0].core, core_nodes_session(&rig.nodes, 0), 1000,
	                                 &args);
	core_tick(rig.nodes.node[0].core, 1000);
	core_expect(rig.nodes.node[0].core, alone, ZEROD_E_DEADLINE);
	uint64_t other = core_step(team_of(&rig, 1), 1);
	uint64_t asked = core_send_until(rig.nodes.node[0].core, core_nodes_session(&rig.nodes, 0), 2000,
	                                 &args);
	core_tick(rig.nodes.node[0].core, 2000);
	core_expect(rig.nodes.node[0].core, asked, ZEROD_E_DEADLINE);
	core_expect_error(rig.nodes.node[0].core, other, ZEROD_E_ABORTED,
	                  "group 'world': rank 0 gave up a step that others take");
	core_net_expire(rig.nodes.net);
	core_net_end(rig.nodes.net);
}
