/* SPDX-License-Identifier: Apache-2.0 */
/* Barriers: passed by all ranks at once, in one daemon and across daemons. */
#include "tests/support/core_net.h"
#include "tests/support/core_reduce.h"

#define RANKS 3u

static uint64_t reach(struct core_team *team, uint32_t rank)
{
	return core_simple(team->core, team->session[rank], ZD_REQ_GROUP_BARRIER, team->group);
}

static uint64_t reach_until(struct core_team *team, uint32_t rank, uint64_t deadline_ns)
{
	struct zd_args args = {.kind = ZD_REQ_GROUP_BARRIER, .u.group_barrier.group = team->group};
	return core_send_until(team->core, team->session[rank], deadline_ns, &args);
}

static void open_team(struct core_team *team)
{
	*team = core_team_new(core_new(NULL), "job", RANKS, false);
}

#define TEAM_TEST(name) CORE_RIG_TEST(name, struct core_team, team, open_team(team), core_rig_end)

/* ---- One daemon ---------------------------------------------------------------------------------------- */

/* A rank that is ahead waits at the second barrier, whatever the others do at the first one. */
TEAM_TEST(test_barriers_do_not_mix)
{
	uint64_t ahead[3];
	for (uint32_t i = 0; i < 3; i++)
		ahead[i] = reach(team, 0);
	uint64_t first = reach(team, 1);
	core_expect_waits(team->core, ahead[0], "rank 2 to reach the barrier");
	core_expect_waits(team->core, ahead[1], "rank 1 to reach the barrier");
	core_expect(team->core, reach(team, 2), 0);
	core_expect(team->core, first, 0);
	core_expect(team->core, ahead[0], 0);
	for (uint32_t i = 1; i < 3; i++) {
		uint64_t other = reach(team, 2);
		core_expect_waits(team->core, ahead[i], "rank 1 to reach the barrier");
		core_expect(team->core, reach(team, 1), 0);
		core_expect(team->core, other, 0);
		core_expect(team->core, ahead[i], 0);
	}
}

/* The second of two stays when the first one's deadline passes, and is the rank's first then. */
TEAM_TEST(test_a_deadline_of_the_first_of_two)
{
	uint64_t late = reach_until(team, 0, 7), stays = reach(team, 0);
	core_tick(team->core, 7);
	core_expect(team->core, late, ZEROD_E_DEADLINE);
	(void)reach(team, 1);
	core_expect(team->core, reach(team, 2), 0);
	core_expect(team->core, stays, 0);
}

/* A rank that is lost ends the others' requests; its replacement begins with no barrier reached. */
TEAM_TEST(test_a_lost_rank)
{
	uint64_t first = reach(team, 0);
	(void)reach(team, 1);
	(void)reach(team, 1);
	core_close(team->core, team->session[1]);
	core_expect_error(team->core, first, ZEROD_E_PEER_LOST, "rank 1 (pid 1001)");
	core_expect_error(team->core, reach(team, 2), ZEROD_E_PEER_LOST, "rank 1 (pid 1001)");
	team->session[1] = core_open(team->core, CORE_ALICE);
	core_join_ok(team->core, team->session[1],
	             &(struct core_join){.world_size = RANKS, .rank = 1, .device = 1});
	first = reach(team, 0);
	uint64_t last = reach(team, 2);
	core_expect_waits(team->core, first, "rank 1 to reach the barrier");
	core_expect(team->core, reach(team, 1), 0);
	core_expect(team->core, first, 0);
	core_expect(team->core, last, 0);
}

/* ---- Several daemons ----------------------------------------------------------------------------------- */

#define WORLD 4u

static uint64_t reach_at(struct core_nodes *nodes, uint32_t rank)
{
	return reach(core_nodes_team(nodes, rank), rank % nodes->local_world_size);
}

static void expect_at(struct core_nodes *nodes, uint32_t rank, uint64_t request, int status, const char *text)
{
	core_expect_error(core_nodes_core(nodes, rank), request, status, text);
}

static void all_pass(struct core_nodes *nodes)
{
	uint64_t request[WORLD];
	for (uint32_t rank = 0; rank < WORLD; rank++)
		request[rank] = reach_at(nodes, rank);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		core_expect(core_nodes_core(nodes, rank), request[rank], 0);
}

static void expect_cluster(const struct core_nodes_config *config)
{
	struct core_nodes nodes;
	core_nodes_new(&nodes, config);
	uint64_t first = reach_at(&nodes, 0);
	core_expect_waits(nodes.node[0].core, first, "rank 1 to reach the barrier");
	uint64_t second = reach_at(&nodes, 1);
	core_expect_waits(nodes.node[0].core, first, "ranks of other daemons to make the same call");
	uint64_t last = reach_at(&nodes, 3);
	core_expect_waits(nodes.node[1].core, last, "rank 2 to reach the barrier");
	core_expect(nodes.node[1].core, reach_at(&nodes, 2), 0);
	core_expect(nodes.node[1].core, last, 0);
	core_expect(nodes.node[0].core, first, 0);
	core_expect(nodes.node[0].core, second, 0);
	all_pass(&nodes);
	core_net_end(nodes.net);
}

TEST(test_daemons_wait_for_each_other)
{
	expect_cluster(NULL);
	expect_cluster(&(struct core_nodes_config){.exchange = true});
	expect_cluster(&(struct core_nodes_config){.hybrid = true});
}

/* A rank that commits or runs a backward submits operations later: they could precede the barrier in one
 * daemon and follow it in another. */
NODES_TEST(test_between_daemons_other_work_comes_first)
{
	struct core_team *team = &nodes->node[0];
	(void)core_commit(team->core, team->session[0], team->group, 1);
	expect_at(nodes, 0, reach_at(nodes, 0), ZEROD_E_STATE, "rank 0 is committing");
	core_expect(team->core, core_backward(team, 1, 3, true), 0);
	expect_at(nodes, 1, reach_at(nodes, 1), ZEROD_E_STATE, "spans daemons, and rank 1 runs a backward");
	(void)reach_at(nodes, 2);
	expect_at(nodes, 2, reach_at(nodes, 2), ZEROD_E_STATE, "waits at a barrier already");
	core_expect(team->core, core_backward_end(team, 1), 0);
	(void)core_step(team, 1);
	expect_at(nodes, 1, reach_at(nodes, 1), ZEROD_E_STATE, "rank 1 is beginning a step");
}

/* Other daemons count on a rank once all ranks of its daemon are there, and not before. */
NODES_TEST(test_deadlines_between_daemons)
{
	struct core_team *team = &nodes->node[0];
	uint64_t alone = reach_until(team, 0, 1000);
	core_tick(team->core, 1000);
	core_expect_error(team->core, alone, ZEROD_E_DEADLINE, "rank 1 to reach the barrier");
	all_pass(nodes);
	uint64_t other = reach(team, 1), late = reach_until(team, 0, 2000);
	core_tick(team->core, 2000);
	core_expect_error(team->core, late, ZEROD_E_DEADLINE, "ranks of other daemons");
	core_expect_error(team->core, other, ZEROD_E_ABORTED,
	                  "rank 0 gave up a barrier that other ranks wait at");
}

NODES_TEST(test_a_lost_rank_between_daemons)
{
	(void)reach_at(nodes, 0);
	uint64_t request = reach_at(nodes, 1);
	core_close(nodes->node[0].core, core_nodes_session(nodes, 0));
	core_expect_error(nodes->node[0].core, request, ZEROD_E_PEER_LOST,
	                  "rank 0 (pid 1001) of group 'world' is gone");
}
