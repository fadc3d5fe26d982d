/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups that span daemons: joined, found to be of one mind, ended, and joined again.
 */
#include "tests/support/core_net.h"

#define WORLD 4 /* two daemons of two ranks, if nothing else is said */

static const struct core_nodes_config durable = {.durable = true};

static uint64_t send_join(struct core_nodes *nodes, const struct core_nodes_config *config, uint32_t rank)
{
	struct core_join join = core_nodes_join(nodes, config, rank);
	return core_join(core_nodes_core(nodes, rank), core_nodes_session(nodes, rank), &join);
}

static void expect_state(struct core_nodes *nodes, uint32_t node, const char *state)
{
	struct core_row row;
	assert_int_equal(core_rows(nodes->node[node].core, ZD__TABLE__GROUPS, &row, 1), 1);
	assert_string_equal(row.state, state);
}

/* The join of rank 0, changed, is refused. */
static void expect_refused(struct core_nodes *nodes, const struct core_join *join, int status,
                           const char *text)
{
	struct core_driver *core = core_nodes_core(nodes, 0);
	uint64_t session = core_open(core, CORE_ALICE);
	core_expect_error(core, core_join(core, session, join), status, text);
	core_close(core, session);
}

/* As a rank of a group that has ended sees it. */
static void expect_ended(struct core_nodes *nodes, uint32_t rank, int status, const char *text)
{
	struct core_team *team = core_nodes_team(nodes, rank);
	core_expect_error(team->core,
	                  core_commit(team->core, core_nodes_session(nodes, rank), team->group, 99), status,
	                  text);
}

static void leave(struct core_nodes *nodes, uint32_t rank)
{
	struct core_team *team = core_nodes_team(nodes, rank);
	core_do(team->core, core_nodes_session(nodes, rank), ZD_REQ_GROUP_LEAVE, team->group);
}

/* Its process is gone; there is another session in its place, which is in no group. */
static void replace(struct core_nodes *nodes, uint32_t rank)
{
	struct core_team *team = core_nodes_team(nodes, rank);
	uint64_t *session = &team->session[rank - team->first_rank];
	core_close(team->core, *session);
	*session = core_open(team->core, CORE_ALICE);
}

static void commit(struct core_nodes *nodes, uint64_t step)
{
	uint64_t request[WORLD];
	uint32_t world = nodes->nnodes * nodes->local_world_size;
	for (uint32_t rank = 0; rank < world; rank++)
		request[rank] = core_commit(core_nodes_core(nodes, rank), core_nodes_session(nodes, rank),
		                            core_nodes_team(nodes, rank)->group, step);
	for (uint32_t rank = 0; rank < world; rank++)
		core_expect(core_nodes_core(nodes, rank), request[rank], 0);
}

static void expect_bytes(struct core_nodes *nodes, const uint64_t unit[CORE_NODES], uint64_t version)
{
	uint64_t request[CORE_TEAM];
	uint32_t world = nodes->nnodes * nodes->local_world_size;
	for (uint32_t rank = 0; rank < world; rank++)
		request[rank] = core_gather(core_nodes_core(nodes, rank), core_nodes_session(nodes, rank),
		                            unit[rank / nodes->local_world_size]);
	for (uint32_t rank = 0; rank < world; rank++) {
		struct core_team *team = core_nodes_team(nodes, rank);
		core_team_check(team, core_expect(team->core, request[rank], 0), version);
	}
}

/* ---- Joining ------------------------------------------------------------------------------------------- */

OPEN_NODES_TEST(test_all_daemons_are_awaited)
{
	uint64_t request[WORLD], unit[CORE_NODES];
	request[0] = send_join(nodes, NULL, 0);
	core_expect_waits(nodes->node[0].core, request[0], "1 rank to join, rank 1 first");
	request[1] = send_join(nodes, NULL, 1);
	core_expect_waits(nodes->node[0].core, request[0], "the group's 2 ranks in other daemons to join");
	expect_state(nodes, 0, "CONNECTING");
	request[3] = send_join(nodes, NULL, 3);
	core_expect_waits(nodes->node[1].core, request[3], "1 rank to join, rank 2 first");
	assert_int_equal(core_count(nodes->node[1].core, ZD_CMD_COMM_OPEN), 0);
	request[2] = send_join(nodes, NULL, 2);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		struct core_team *team = core_nodes_team(nodes, rank);
		team->group = core_expect(team->core, request[rank], 0)->u.group_join.group;
	}
	expect_state(nodes, 0, "READY");
	expect_state(nodes, 1, "READY");
	assert_int_equal(core_count(nodes->node[0].core, ZD_CMD_COMM_OPEN), 2 * ZD_NCOMM_ROLES);
	core_nodes_unit(nodes, "w", 1024, unit);
	expect_bytes(nodes, unit, 1);
}

/* No rank goes on before all communicators are known to work. */
OPEN_NODES_TEST(test_greetings_are_awaited)
{
	uint64_t request[WORLD];
	core_hold(nodes->node[0].core, ZD_CMD_AGREE);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		request[rank] = send_join(nodes, NULL, rank);
	for (uint32_t i = 0; i < 4; i++) {
		assert_null(core_reply(nodes->node[0].core, request[0]));
		core_run_one(nodes->node[0].core, ZD_CMD_AGREE);
	}
	core_unhold(nodes->node[0].core, ZD_CMD_AGREE);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		core_expect(core_nodes_core(nodes, rank), request[rank], 0);
}

OPEN_NODES_TEST(test_ids_are_checked)
{
	unsigned char other[2 * ZD_NCOMM_ROLES * ZD_UNIQUE_ID_BYTES + ZD_UNIQUE_ID_BYTES] = {1};
	struct core_join join = core_nodes_join(nodes, NULL, 0);
	join.ids = NULL;
	join.ids_bytes = 0;
	expect_refused(nodes, &join, ZEROD_E_INVALID, "a unique id of 0 bytes; it needs one of 512");
	join.ids = other;
	join.ids_bytes = 511;
	expect_refused(nodes, &join, ZEROD_E_INVALID, "a unique id of 511 bytes; it needs one of 512");
	join.ids_bytes = sizeof(other);
	expect_refused(nodes, &join, ZEROD_E_INVALID, "a unique id of 640 bytes; it needs one of 512");
	join.ids_bytes = 512;
	join.world_size = 2; /* all in one daemon */
	expect_refused(nodes, &join, ZEROD_E_INVALID, "it has no unique id");
	join.world_size = 4;
	(void)send_join(nodes, NULL, 1);
	expect_refused(nodes, &join, ZEROD_E_MISMATCH, "ranks 1 and 0 give different unique ids");
	expect_state(nodes, 0, "FORMING");
}

OPEN_NODES_TEST(test_sizes_are_checked)
{
	struct core_join join = core_nodes_join(nodes, NULL, 0);
	join.local_world_size = 3;
	expect_refused(nodes, &join, ZEROD_E_INVALID, "3 ranks in each daemon, of a world of 4");
	join.local_world_size = 8;
	expect_refused(nodes, &join, ZEROD_E_INVALID, "8 ranks in each daemon, of a world of 4");
	join.world_size = 34;
	join.local_world_size = 17;
	expect_refused(nodes, &join, ZEROD_E_LIMIT, "17 ranks in each daemon; at most 16");
	(void)send_join(nodes, NULL, 1);
	join = core_nodes_join(nodes, NULL, 0);
	join.local_world_size = 1;
	join.ids_bytes = ZD_NCOMM_ROLES * ZD_UNIQUE_ID_BYTES;
	expect_refused(nodes, &join, ZEROD_E_MISMATCH, "has 2 ranks in each daemon; rank 0 says 1");
	join = core_nodes_join(nodes, NULL, 0);
	join.exchange = true;
	join.ids_bytes = ZD_NCOMM_ROLES * ZD_UNIQUE_ID_BYTES;
	expect_refused(nodes, &join, ZEROD_E_MISMATCH, "uses copies; rank 0 says it uses NCCL's collectives");
	join = core_nodes_join(nodes, NULL, 2);
	expect_refused(nodes, &join, ZEROD_E_MISMATCH, "joins the daemon of ranks 0 to 1");
}

NODES_TEST(test_units_on_the_host_stay_in_one_daemon)
{
	static const struct core_unit on_host = {.name = "w", .numel = 64, .on_host = true};
	struct core_team *team = core_nodes_team(nodes, 0);
	core_expect_error(
	        team->core, core_register(team->core, team->session[0], team->group, &on_host),
	        ZEROD_E_UNSUPPORTED,
	        "spans daemons, or its collectives are NCCL's; units on the host are gathered within "
	        "one daemon only");
}

ENGINE_TEST(test_backend_without_communicators)
{
	unsigned char ids[ZD_NCOMM_ROLES * ZD_UNIQUE_ID_BYTES] = {1};
	struct core_join join = {
	        .world_size = 2, .local_world_size = 1, .ids = ids, .ids_bytes = sizeof(ids)};
	struct zd_args args = {.kind = ZD_REQ_UNIQUE_IDS,
	                       .u.unique_ids = {.count = 1, .job = (char *)"job", .group = (char *)"group"}};
	uint64_t session = core_open(core, CORE_ALICE);
	core_expect_error(core, core_join(core, session, &join), ZEROD_E_UNSUPPORTED,
	                  "needs communicators; this daemon's backend has none");
	core_expect_error(core, core_send(core, session, &args), ZEROD_E_UNSUPPORTED, "has no communicators");
}

/* ---- Of one mind --------------------------------------------------------------------------------------- */

/* Node 1 joins with what the test has changed; all ranks learn how they differ, and may come again. */
static void expect_differ(struct core_nodes *nodes, const struct core_join *changed, const char *text)
{
	uint64_t request[WORLD];
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		struct core_join join = rank < 2 ? core_nodes_join(nodes, NULL, rank) : *changed;
		join.rank = rank;
		join.device = rank % 2;
		request[rank] = core_join(core_nodes_core(nodes, rank), core_nodes_session(nodes, rank),
		                          &join);
	}
	for (uint32_t rank = 0; rank < WORLD; rank++)
		core_expect_error(core_nodes_core(nodes, rank), request[rank], ZEROD_E_MISMATCH, text);
	core_nodes_new_ids(nodes);
}

OPEN_NODES_TEST(test_greetings_differ)
{
	struct core_join join = core_nodes_join(nodes, NULL, 0);
	join.group = "another";
	expect_differ(nodes, &join, "of a group of another name");
	join = core_nodes_join(nodes, NULL, 0);
	join.durable = true;
	expect_differ(nodes, &join, ", durable");
}

/* A daemon with half as many ranks takes part in half of the rails. */
OPEN_NODES_TEST(test_worlds_differ)
{
	uint64_t request[3];
	request[0] = send_join(nodes, NULL, 0);
	request[1] = send_join(nodes, NULL, 1);
	struct core_join join = core_nodes_join(nodes, NULL, 1);
	join.world_size = 2;
	join.local_world_size = 1;
	join.ids_bytes = ZD_NCOMM_ROLES * ZD_UNIQUE_ID_BYTES;
	request[2] = core_join(nodes->node[1].core, nodes->node[1].session[0], &join);
	for (uint32_t i = 0; i < 2; i++)
		core_expect_error(
		        nodes->node[0].core, request[i], ZEROD_E_MISMATCH,
		        "here rank 0 of 4, 2 a daemon (node ant), step 0 committed; there rank 1 of 2, 1 a "
		        "daemon (node bee), step 0 committed");
	core_expect_error(nodes->node[1].core, request[2], ZEROD_E_MISMATCH, "here rank 1 of 2, 1 a daemon");
}

static void leave_all(struct core_nodes *nodes)
{
	for (uint32_t rank = 0; rank < WORLD; rank++)
		leave(nodes, rank);
	core_nodes_new_ids(nodes);
}

/* A daemon that has lost what was committed does not go on with one that has it. */
NODES_TEST(test_committed_steps_differ, .durable = true)
{
	struct core_row job;
	uint64_t request[WORLD], unit[CORE_NODES];
	core_nodes_unit(nodes, "w", 1024, unit);
	commit(nodes, 3);
	leave_all(nodes);
	uint64_t admin = core_open_admin(nodes->node[1].core);
	assert_int_equal(core_rows(nodes->node[1].core, ZD__TABLE__JOBS, &job, 1), 1);
	core_do(nodes->node[1].core, admin, ZD_REQ_END_JOB, job.id);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		request[rank] = send_join(nodes, &durable, rank);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		core_expect_error(core_nodes_core(nodes, rank), request[rank], ZEROD_E_MISMATCH,
		                  "step 3 committed");
		core_expect_error(core_nodes_core(nodes, rank), request[rank], ZEROD_E_MISMATCH,
		                  "step 0 committed");
	}
}

/* ---- Never met ----------------------------------------------------------------------------------------- */

/* The ids of a group that has connected serve no other one, until the driver rejects them for their age. */
OPEN_NODES_TEST(test_ids_are_used_once)
{
	(void)send_join(nodes, NULL, 0);
	replace(nodes, 0); /* the group has not connected: its ids are not used */
	core_nodes_join_all(nodes, NULL);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		leave(nodes, rank);
	struct core_join join = core_nodes_join(nodes, NULL, 0);
	expect_refused(nodes, &join, ZEROD_E_PERMISSION, "group 'world': the unique id was used already");
	join.group = "other";
	expect_refused(nodes, &join, ZEROD_E_PERMISSION, "group 'other': the unique id was used already");
	core_nodes_new_ids(nodes);
	core_nodes_join_all(nodes, NULL);
}

OPEN_NODES_TEST(test_deadline_while_connecting)
{
	struct zd_args args = {.kind = ZD_REQ_GROUP_JOIN};
	uint64_t request[WORLD];
	args.u.group_join.job = (char *)"job";
	args.u.group_join.group = (char *)"world";
	args.u.group_join.world_size = WORLD;
	args.u.group_join.local_world_size = 2;
	args.u.group_join.unique_ids.data = nodes->ids;
	args.u.group_join.unique_ids.len = nodes->ids_bytes;
	request[0] = core_send_until(nodes->node[0].core, core_nodes_session(nodes, 0), 1000, &args);
	request[1] = send_join(nodes, NULL, 1);
	core_tick(nodes->node[0].core, 1000);
	core_expect_error(nodes->node[0].core, request[0], ZEROD_E_DEADLINE,
	                  "2 ranks in other daemons to join");
	core_expect_error(nodes->node[0].core, request[1], ZEROD_E_PEER_LOST, "rank 0 (pid 1001)");
	/* who comes late waits for nobody */
	request[2] = send_join(nodes, NULL, 2);
	request[3] = send_join(nodes, NULL, 3);
	core_net_expire(nodes->net);
	core_expect(nodes->node[1].core, request[2], ZEROD_E_DEADLINE);
	core_expect(nodes->node[1].core, request[3], ZEROD_E_DEADLINE);
	core_nodes_new_ids(nodes);
	core_nodes_join_all(nodes, NULL);
}

/* Commands of a former connection end late. */
OPEN_NODES_TEST(test_late_word_of_a_former_connection, .durable = true)
{
	uint64_t request[WORLD];
	core_hold(nodes->node[0].core, ZD_CMD_COMM_OPEN);
	(void)send_join(nodes, &durable, 0);
	(void)send_join(nodes, &durable, 1);
	replace(nodes, 0);
	core_nodes_new_ids(nodes);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		request[rank] = send_join(nodes, &durable, rank);
	for (uint32_t i = 0; i < 4; i++)
		core_run_one(nodes->node[0].core, ZD_CMD_COMM_OPEN);
	expect_state(nodes, 0, "CONNECTING");
	core_unhold(nodes->node[0].core, ZD_CMD_COMM_OPEN);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		core_expect(core_nodes_core(nodes, rank), request[rank], 0);
}

/* ---- The end ------------------------------------------------------------------------------------------- */

NODES_TEST(test_leave_in_order)
{
	uint64_t unit[CORE_NODES];
	core_nodes_unit(nodes, "w", 1024, unit);
	uint64_t waits = core_commit(nodes->node[0].core, core_nodes_session(nodes, 1), nodes->node[0].group,
	                             1);
	leave(nodes, 0);
	core_expect_error(nodes->node[0].core, waits, ZEROD_E_PEER_LOST,
	                  "rank 0 (pid 1001) of group 'world' ended normally");
	expect_ended(nodes, 1, ZEROD_E_PEER_LOST, "ended normally");
	expect_state(nodes, 0, "ABORTED");
	expect_state(nodes, 1, "READY");
	leave(nodes, 1);
	leave(nodes, 2);
	leave(nodes, 3);
	core_nodes_new_ids(nodes);
	core_nodes_join_all(nodes, NULL);
	core_nodes_unit(nodes, "w", 1024, unit);
	expect_bytes(nodes, unit, 1);
}

/* A session that says goodbye leaves in order. */
NODES_TEST(test_goodbye)
{
	zd_engine_session_goodbye(core_engine(nodes->node[0].core), core_nodes_session(nodes, 0));
	replace(nodes, 0);
	expect_ended(nodes, 1, ZEROD_E_PEER_LOST, "rank 0 (pid 1001) of group 'world' ended normally");
}

NODES_TEST(test_rank_is_killed)
{
	uint64_t unit[CORE_NODES];
	core_nodes_unit(nodes, "w", 1024, unit);
	uint64_t waits = core_commit(nodes->node[0].core, core_nodes_session(nodes, 1), nodes->node[0].group,
	                             1);
	replace(nodes, 0);
	core_expect_error(nodes->node[0].core, waits, ZEROD_E_PEER_LOST,
	                  "rank 0 (pid 1001) of group 'world' is gone");
	/* the others wait for it, until their communicators' deadline */
	uint64_t gather = core_gather(nodes->node[1].core, core_nodes_session(nodes, 2), unit[1]);
	core_expect(nodes->node[1].core, gather, 0);
	core_net_expire(nodes->net);
	expect_ended(nodes, 3, ZEROD_E_DEADLINE, "a gather of unit 'w' by rank 2");
	expect_ended(nodes, 3, ZEROD_E_DEADLINE, "; its other nodes: ant");
	leave(nodes, 1);
	leave(nodes, 2);
	leave(nodes, 3);
	core_nodes_new_ids(nodes);
	uint64_t request = core_simple(nodes->node[1].core, core_nodes_session(nodes, 2),
	                               ZD_REQ_SESSION_RESET, 0);
	core_expect(nodes->node[1].core, request, 0);
	core_nodes_join_all(nodes, NULL);
	core_nodes_unit(nodes, "w", 1024, unit);
	expect_bytes(nodes, unit, 1);
}

static void abort_group(struct core_nodes *nodes)
{
	struct core_driver *core = nodes->node[0].core;
	uint64_t admin = core_open_admin(core);
	core_do(core, admin, ZD_REQ_ABORT_GROUP, nodes->node[0].group);
	core_close(core, admin);
}

NODES_TEST(test_administrator_aborts, .durable = true)
{
	/* for a reason of its own first, which is not the next one's */
	replace(nodes, 1);
	expect_ended(nodes, 0, ZEROD_E_PEER_LOST, "is gone");
	leave(nodes, 0);
	leave(nodes, 2);
	leave(nodes, 3);
	core_nodes_new_ids(nodes);
	core_nodes_join_all(nodes, &durable);
	abort_group(nodes);
	expect_ended(nodes, 0, ZEROD_E_ABORTED, "group 'world' was aborted");
	expect_state(nodes, 1, "READY");
}

/* A join with new ids, before all ranks have left, fails and names the reason. */
NODES_TEST(test_join_before_all_have_left)
{
	replace(nodes, 0);
	core_nodes_new_ids(nodes);
	core_expect_error(nodes->node[0].core, send_join(nodes, NULL, 0), ZEROD_E_PEER_LOST,
	                  "rank 0 (pid 1001) of group 'world' is gone: all ranks leave");
}

/* ---- Groups that exchange all -------------------------------------------------------------------------- */

TEST(test_ids_cannot_be_made)
{
	const struct core_nodes_config config = {.nnodes = 1, .exchange = true};
	struct core_nodes nodes;
	core_nodes_open(&nodes, &config);
	nodes.ids_bytes = 0;
	core_fail_next(nodes.node[0].core, ZD_CMD_UNIQUE_IDS, ZEROD_E_DEVICE, "no interface");
	uint64_t first = send_join(&nodes, &config, 0), second = send_join(&nodes, &config, 1);
	core_expect_error(nodes.node[0].core, first, ZEROD_E_DEVICE, "no interface");
	core_expect_error(nodes.node[0].core, second, ZEROD_E_DEVICE, "no interface");
	core_nodes_join_all(&nodes, &config);
	core_net_end(nodes.net);
}
