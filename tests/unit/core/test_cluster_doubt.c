/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commits that end before all daemons know of them: each keeps what it has agreed to until they meet again,
 * and then all have made it, or none has.
 */

#include "rail_rig.h"
#include "tests/support/sweep.h"

#define SEEDS 300
#define LIVES 6 /* of the random test's jobs */

static const struct core_nodes_config bare = {.durable = true}, shadowed = {.durable = true, .shadow = true},
                                      hybrid = {.durable = true, .shadow = true, .hybrid = true},
                                      exchanged = {.durable = true, .shadow = true, .exchange = true},
                                      three = {.nnodes = 3, .durable = true, .shadow = true},
                                      lingering = {.durable = true,
                                                   .shadow = true,
                                                   .options = {.sessions_linger = true}};

/* ---- Lives of a job ------------------------------------------------------------------------------------ */

static void register_all(struct rig *rig)
{
	uint32_t shards = world(rig);
	struct core_unit unit = {
	        .name = "u", .numel = shards * ZD_SHARD_ALIGN_BYTES / 4, .slot = ZEROD_NO_SLOT};
	core_nodes_register(&rig->nodes, &unit, rig->u);
	unit.name = "v";
	core_nodes_register(&rig->nodes, &unit, rig->v);
}

/* Step 1 is committed, with version 1 of both units. */
static void start(struct rig *rig, const struct core_nodes_config *config)
{
	core_nodes_new(&rig->nodes, config);
	register_all(rig);
	core_nodes_publish(&rig->nodes, rig->u);
	core_nodes_publish(&rig->nodes, rig->v);
	commit_all(rig, 1);
}

static void hold(struct rig *rig, uint32_t node, bool held)
{
	if (held)
		core_hold(rig->nodes.node[node].core, ZD_CMD_AGREE);
	else
		core_unhold(rig->nodes.node[node].core, ZD_CMD_AGREE);
}

static void journal_all(struct rig *rig)
{
	for (uint32_t node = 0; node < rig->nodes.nnodes; node++)
		core_journal(rig->nodes.node[node].core);
}

static void kill_rank(struct rig *rig, uint32_t rank)
{
	core_close(core_of(rig, rank), session_of(rig, rank));
}

/* Closes the sessions that are still open, and opens new ones, with new ids. */
static void all_anew(struct rig *rig)
{
	for (uint32_t rank = 0; rank < world(rig); rank++) {
		struct core_team *team = core_nodes_team(&rig->nodes, rank);
		uint64_t *session = &team->session[rank % rig->nodes.local_world_size];
		if (core_is_open(team->core, *session))
			core_close(team->core, *session);
		*session = core_open(team->core, CORE_ALICE);
	}
	core_nodes_new_ids(&rig->nodes);
}

static void send_joins(struct rig *rig, const struct core_nodes_config *config, uint64_t request[CORE_TEAM])
{
	for (uint32_t rank = 0; rank < world(rig); rank++) {
		struct core_join join = core_nodes_join(&rig->nodes, config, rank);
		request[rank] = core_join(core_of(rig, rank), session_of(rig, rank), &join);
	}
}

static void expect_joined(struct rig *rig, const uint64_t request[CORE_TEAM], uint64_t step, bool torn)
{
	for (uint32_t rank = 0; rank < world(rig); rank++) {
		const struct zd_reply *reply = core_expect(core_of(rig, rank), request[rank], 0);
		assert_int_equal(reply->u.group_join.committed_step, step);
		assert_int_equal(reply->u.group_join.torn, torn);
	}
}

static void expect_doubt(struct rig *rig, uint32_t node, uint64_t committed, uint64_t doubt)
{
	struct core_row row;
	core_row(rig->nodes.node[node].core, ZD__TABLE__GROUPS, rig->nodes.node[node].group, &row);
	assert_int_equal(row.row->group->committed_step, committed);
	assert_int_equal(row.row->group->doubt_step, doubt);
}

/* All are in the group again, at that step, with that version of 'u'. They go on from there. */
static void expect_at(struct rig *rig, const struct core_nodes_config *config, uint64_t step,
                      uint64_t version)
{
	uint64_t request[CORE_TEAM] = {0};
	all_anew(rig);
	send_joins(rig, config, request);
	expect_joined(rig, request, step, false);
	for (uint32_t node = 0; node < rig->nodes.nnodes; node++)
		expect_doubt(rig, node, step, 0);
	register_all(rig);
	if (!config->hybrid) {
		pass(rig, rig->u, version);
		pass(rig, rig->v, 1);
	}
	core_nodes_publish(&rig->nodes, rig->u);
	core_nodes_publish(&rig->nodes, rig->v);
	commit_all(rig, step + 1);
	if (!config->hybrid)
		pass(rig, rig->u, version + 1);
}

static void send_commits(struct rig *rig, uint64_t step, uint64_t request[CORE_TEAM])
{
	for (uint32_t rank = 0; rank < world(rig); rank++)
		request[rank] = send_commit(rig, rank, step);
}

/* ---- One commit ---------------------------------------------------------------------------------------- */

/* The last daemon has told its ranks that step 2 is committed; the others have not heard of it, and lose a
 * rank. */
static void end_half_committed(struct rig *rig)
{
	uint64_t request[CORE_TEAM] = {0};
	uint32_t last = rig->nodes.nnodes - 1;
	core_nodes_publish(&rig->nodes, rig->u);
	for (uint32_t node = 0; node < last; node++)
		hold(rig, node, true);
	send_commits(rig, 2, request);
	for (uint32_t rank = 2 * last; rank < world(rig); rank++)
		core_expect(core_of(rig, rank), request[rank], 0);
	for (uint32_t node = 0; node < last; node++) {
		kill_rank(rig, 2 * node);
		hold(rig, node, false);
		core_expect(core_of(rig, 2 * node), request[2 * node + 1], ZEROD_E_PEER_LOST);
		expect_doubt(rig, node, 1, 2);
	}
	expect_doubt(rig, last, 2, 0);
}

/* Of node 1 one rank alone has come to the commit when node 0, which has voted, loses one. */
static void end_half_voted(struct rig *rig)
{
	core_nodes_publish(&rig->nodes, rig->u);
	(void)send_commit(rig, 0, 2);
	(void)send_commit(rig, 1, 2);
	(void)send_commit(rig, 2, 2);
	expect_doubt(rig, 0, 1, 0); /* it may be told at any moment */
	kill_rank(rig, 0);
	expect_doubt(rig, 0, 1, 2);
	kill_rank(rig, 3);
	expect_doubt(rig, 1, 1, 0);
}

/* All have voted, and nobody has heard of the others. */
static void end_all_in_doubt(struct rig *rig)
{
	uint64_t request[CORE_TEAM] = {0};
	core_nodes_publish(&rig->nodes, rig->u);
	for (uint32_t node = 0; node < rig->nodes.nnodes; node++)
		hold(rig, node, true);
	send_commits(rig, 2, request);
	for (uint32_t node = 0; node < rig->nodes.nnodes; node++)
		kill_rank(rig, 2 * node);
	for (uint32_t node = 0; node < rig->nodes.nnodes; node++) {
		hold(rig, node, false);
		expect_doubt(rig, node, 1, 2);
	}
}

TEST(test_kill_inside_a_commit)
{
	static const struct core_nodes_config *const configs[] = {&shadowed, &bare, &hybrid, &exchanged,
	                                                          &three};
	for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
		struct rig rig;
		start(&rig, configs[i]);
		end_half_committed(&rig);
		expect_at(&rig, configs[i], 2, 2);
		core_net_end(rig.nodes.net);
	}
}

/* Of each daemon that has not heard of the commit, or of the one that has, and knows of it by its journal. */
TEST(test_restarts_after_a_commit)
{
	static const struct core_nodes_config *const configs[] = {&shadowed, &bare, &hybrid, &exchanged,
	                                                          &three};
	for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
		for (uint32_t which = 0; which < 2; which++) {
			struct rig rig;
			start(&rig, configs[i]);
			journal_all(&rig);
			end_half_committed(&rig);
			for (uint32_t node = 0; node < rig.nodes.nnodes; node++) {
				if ((node + 1 == rig.nodes.nnodes) == (which == 1))
					core_restart(rig.nodes.node[node].core);
			}
			expect_doubt(&rig, 0, 1, 2);
			expect_at(&rig, configs[i], 2, 2);
			core_net_end(rig.nodes.net);
		}
	}
}

TEST(test_all_are_in_doubt)
{
	static const struct core_nodes_config *const configs[] = {&shadowed, &hybrid, &exchanged, &three};
	for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
		struct rig rig;
		start(&rig, configs[i]);
		end_all_in_doubt(&rig);
		expect_at(&rig, configs[i], 1, 1);
		core_net_end(rig.nodes.net);
	}
}

/* There is nothing to go back to. */
TEST(test_without_shadows_it_is_torn)
{
	for (int all = 0; all < 2; all++) {
		struct rig rig;
		uint64_t request[CORE_TEAM] = {0};
		start(&rig, &bare);
		if (all)
			end_all_in_doubt(&rig);
		else
			end_half_voted(&rig);
		all_anew(&rig);
		send_joins(&rig, &bare, request);
		expect_joined(&rig, request, 1, true);
		register_all(&rig);
		for (uint32_t rank = 0; rank < 4; rank++)
			core_expect(core_of(&rig, rank), gather(&rig, rig.u, rank), ZEROD_E_TORN);
		core_nodes_publish(&rig.nodes, rig.u);
		commit_all(&rig, 2);
		pass(&rig, rig.u, 3);
		core_net_end(rig.nodes.net);
	}
}

/* With its ranks all is gone: who comes next begins with nothing, and doubts nothing. */
TEST(test_not_durable)
{
	struct rig rig;
	uint64_t request[CORE_TEAM] = {0};
	start(&rig, NULL);
	end_half_committed(&rig);
	all_anew(&rig);
	assert_true(core_usage(rig.nodes.node[0].core).shard_bytes == 0);
	send_joins(&rig, NULL, request);
	expect_joined(&rig, request, 0, false);
	core_net_end(rig.nodes.net);
}

/* The memory of a commit in doubt is charged as before, and freed with the job. */
TEST(test_job_ends_in_doubt)
{
	struct rig rig;
	struct core_row job;
	start(&rig, &shadowed);
	end_half_committed(&rig);
	struct core_driver *core = rig.nodes.node[0].core;
	all_anew(&rig);
	assert_true(core_usage(core).shard_bytes == 2ull * 2 * 2 * ZD_SHARD_ALIGN_BYTES);
	uint64_t admin = core_open_admin(core);
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, &job, 1), 1);
	core_do(core, admin, ZD_REQ_END_JOB, job.id);
	assert_true(core_usage(core).shard_bytes == 0);
	core_net_end(rig.nodes.net);
}

/* The shards are set back when the processes that had them have gone, and nobody is given them before. */
TEST(test_set_back_when_processes_are_gone)
{
	struct rig rig;
	uint64_t request[CORE_TEAM], old[CORE_TEAM];
	start(&rig, &lingering);
	end_half_voted(&rig);
	for (uint32_t rank = 0; rank < 4; rank++)
		old[rank] = session_of(&rig, rank);
	all_anew(&rig);
	send_joins(&rig, &lingering, request);
	expect_joined(&rig, request, 1, false);
	struct core_unit unit = {.name = "u", .numel = ZD_SHARD_ALIGN_BYTES, .slot = ZEROD_NO_SLOT};
	for (uint32_t rank = 0; rank < 4; rank++) {
		request[rank] = core_register(core_of(&rig, rank), session_of(&rig, rank),
		                              core_nodes_team(&rig.nodes, rank)->group, &unit);
		if (rank < 2) /* of the others nobody was in doubt */
			core_expect_waits(core_of(&rig, rank), request[rank], "to be restored");
	}
	for (uint32_t rank = 0; rank < 4; rank++)
		core_gone(core_of(&rig, rank), old[rank]);
	for (uint32_t rank = 0; rank < 4; rank++)
		core_expect(core_of(&rig, rank), request[rank], 0);
	pass(&rig, rig.u, 1);
	core_net_end(rig.nodes.net);
}

/* ---- While in doubt ------------------------------------------------------------------------------------ */

/* All join, but node 0 loses a rank when the others have met already. */
static void end_half_joined(struct rig *rig, uint64_t step)
{
	uint64_t request[CORE_TEAM] = {0};
	all_anew(rig);
	hold(rig, 0, true);
	send_joins(rig, &shadowed, request);
	for (uint32_t rank = 2; rank < 4; rank++)
		assert_int_equal(
		        core_expect(core_of(rig, rank), request[rank], 0)->u.group_join.committed_step, step);
	core_expect_waits(core_of(rig, 0), request[0], "ranks in other daemons to join");
	expect_doubt(rig, 0, 1, 2);
	expect_doubt(rig, 1, step, 0);
	kill_rank(rig, 0);
	hold(rig, 0, false);
	core_expect(core_of(rig, 0), request[1], ZEROD_E_PEER_LOST);
	expect_doubt(rig, 0, 1, 2);
}

/* Node 1, which has met the others, goes on to vote for a step that node 0 never hears of. */
static void vote_alone(struct rig *rig, uint64_t step)
{
	struct core_team *team = &rig->nodes.node[1];
	struct core_unit unit = {.name = "u", .numel = ZD_SHARD_ALIGN_BYTES, .slot = ZEROD_NO_SLOT};
	rig->u[1] = core_team_register(team, &unit);
	unit.name = "v";
	rig->v[1] = core_team_register(team, &unit);
	core_team_publish(team, rig->u[1]);
	core_team_publish(team, rig->v[1]);
	(void)send_commit(rig, 2, step);
	(void)send_commit(rig, 3, step);
	kill_rank(rig, 2);
	expect_doubt(rig, 1, step - 1, step);
}

TEST(test_second_failure_in_doubt)
{
	for (int committed = 0; committed < 2; committed++) {
		for (int votes = 0; votes < 2; votes++) {
			struct rig rig;
			uint64_t step = committed ? 2 : 1;
			start(&rig, &shadowed);
			if (committed)
				end_half_committed(&rig);
			else
				end_all_in_doubt(&rig);
			end_half_joined(&rig, step);
			if (votes)
				vote_alone(&rig, step + 1);
			else
				end_half_joined(&rig, step);
			expect_at(&rig, &shadowed, step, step);
			core_net_end(rig.nodes.net);
		}
	}
}

/* A daemon that has lost the job is not what the others are in doubt about. */
TEST(test_doubt_and_a_lost_job)
{
	struct rig rig;
	struct core_row job;
	uint64_t request[CORE_TEAM] = {0};
	start(&rig, &three);
	end_half_committed(&rig);
	all_anew(&rig);
	struct core_driver *core = rig.nodes.node[2].core;
	uint64_t admin = core_open_admin(core);
	assert_int_equal(core_rows(core, ZD__TABLE__JOBS, &job, 1), 1);
	core_do(core, admin, ZD_REQ_END_JOB, job.id);
	send_joins(&rig, &three, request);
	for (uint32_t rank = 0; rank < 6; rank++) {
		core_expect_error(core_of(&rig, rank), request[rank], ZEROD_E_MISMATCH,
		                  "step 1 committed, step 2 in doubt");
		core_expect_error(core_of(&rig, rank), request[rank], ZEROD_E_MISMATCH, "step 0 committed");
	}
	expect_doubt(&rig, 0, 1, 2);
	expect_doubt(&rig, 1, 1, 2);
	core_net_end(rig.nodes.net);
}

/* ---- At random ----------------------------------------------------------------------------------------- */

struct chance {
	struct rig rig;
	struct core_nodes_config config;
	bool restarts; /* daemons are killed, too */
	uint64_t random;
	uint64_t step, version[2]; /* that all have committed, of both units */
	uint64_t tried,
	        tried_version[2]; /* the commit that was under way when the last life ended; 0: none */
	uint64_t known;           /* a rank was told that this is committed; 0: it may be either */
};

/* splitmix64 */
static uint32_t pick(struct chance *c, uint32_t n)
{
	uint64_t z = c->random += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (uint32_t)((z ^ z >> 31) % n);
}

static void hold_all(struct chance *c, bool held)
{
	for (uint32_t node = 0; node < c->rig.nodes.nnodes; node++) {
		struct core_driver *core = c->rig.nodes.node[node].core;
		if (held) {
			core_hold(core, ZD_CMD_AGREE);
			core_hold(core, ZD_CMD_COMM_OPEN);
		} else {
			core_unhold(core, ZD_CMD_AGREE);
			core_unhold(core, ZD_CMD_COMM_OPEN);
		}
	}
}

static void kill_any(struct chance *c)
{
	uint32_t rank = pick(c, world(&c->rig));
	if (c->restarts && pick(c, 2) == 0)
		core_restart(core_of(&c->rig, rank));
	else
		kill_rank(&c->rig, rank);
}

/* Commands end in any order until all have their replies; false: a rank or a daemon was killed first. */
static bool run(struct chance *c, const uint64_t request[CORE_TEAM], uint32_t patience)
{
	uint32_t n = world(&c->rig), replied = 0;
	while (replied < n) {
		if (pick(c, patience) == 0) {
			kill_any(c);
			return false;
		}
		(void)core_run_nth(c->rig.nodes.node[pick(c, c->rig.nodes.nnodes)].core, pick(c, 4));
		for (replied = 0; replied < n && core_reply(core_of(&c->rig, replied), request[replied]);
		     replied++)
			;
	}
	return true;
}

/* Some may be in the group though others are not any more: what these were told holds. */
static bool live_joins(struct chance *c)
{
	uint64_t request[CORE_TEAM] = {0};
	send_joins(&c->rig, &c->config, request);
	bool whole = run(c, request, 60);
	for (uint32_t rank = 0; rank < world(&c->rig); rank++) {
		if (!core_is_open(core_of(&c->rig, rank), session_of(&c->rig, rank)))
			continue;
		const struct zd_reply *reply = core_reply(core_of(&c->rig, rank), request[rank]);
		if (!reply || reply->status != 0)
			continue;
		uint64_t step = reply->u.group_join.committed_step;
		assert_false(reply->u.group_join.torn);
		assert_true(step == c->step || (c->tried && step == c->tried));
		assert_true(c->known == 0 || step == c->known);
		c->known = step;
	}
	if (whole && c->tried && c->known == c->tried) {
		c->step = c->tried;
		memcpy(c->version, c->tried_version, sizeof(c->version));
	}
	return whole;
}

static bool live_commit(struct chance *c)
{
	uint64_t request[CORE_TEAM] = {0}, *units[2] = {c->rig.u, c->rig.v};
	memcpy(c->tried_version, c->version, sizeof(c->version));
	for (uint32_t i = 0; i < 2; i++) {
		if (pick(c, 3) == 0)
			continue;
		core_nodes_publish(&c->rig.nodes, units[i]);
		c->tried_version[i]++;
	}
	hold_all(c, true);
	c->tried = c->step + 1;
	c->known = 0;
	send_commits(&c->rig, c->tried, request);
	bool whole = run(c, request, 16);
	for (uint32_t rank = 0; rank < world(&c->rig); rank++) {
		const struct zd_reply *reply = core_reply(core_of(&c->rig, rank), request[rank]);
		if (reply && reply->status == 0)
			c->known = c->tried;
	}
	if (!whole)
		return false;
	assert_true(c->known == c->tried);
	c->step = c->tried;
	memcpy(c->version, c->tried_version, sizeof(c->version));
	return true;
}

static void live(struct chance *c)
{
	bool lives = live_joins(c);
	hold_all(c, false);
	if (lives)
		register_all(&c->rig);
	for (uint32_t i = 0; i < 8 && lives; i++) {
		pass(&c->rig, c->rig.u, c->version[0]);
		pass(&c->rig, c->rig.v, c->version[1]);
		lives = live_commit(c);
		if (!lives && pick(c, 2)) /* others lose a rank, too, before they hear of it */
			all_anew(&c->rig);
		hold_all(c, false);
	}
}

static void run_at_random(bool restarts)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed += sweep_step()) {
		struct chance c = {.random = seed,
		                   .config = shadowed,
		                   .restarts = restarts,
		                   .step = 1,
		                   .version = {1, 1}};
		c.config.nnodes = 2 + pick(&c, 2);
		c.config.exchange = pick(&c, 4) == 0;
		start(&c.rig, &c.config);
		if (restarts)
			journal_all(&c.rig);
		for (uint32_t i = 0; i < LIVES; i++) {
			if (restarts && pick(&c, 3) == 0)
				core_restart(c.rig.nodes.node[pick(&c, c.rig.nodes.nnodes)].core);
			all_anew(&c.rig);
			hold_all(&c, true);
			live(&c);
		}
		core_net_end(c.rig.nodes.net);
	}
}

TEST(test_at_random)
{
	run_at_random(false);
}

TEST(test_restarts_at_random)
{
	run_at_random(true);
}

/* A shard that cannot be set back after the greetings is known here alone: the group ends, and is torn for
 * all when they are back. */
TEST(test_a_shard_that_is_not_set_back)
{
	struct rig rig;
	uint64_t request[CORE_TEAM] = {0};
	start(&rig, &shadowed);
	end_half_voted(&rig);
	all_anew(&rig);
	core_fail_next(rig.nodes.node[0].core, ZD_CMD_COPY, ZEROD_E_DEVICE, "no copy");
	send_joins(&rig, &shadowed, request);
	expect_joined(&rig, request, 1, false);
	core_expect_error(core_of(&rig, 0), send_commit(&rig, 0, 2), ZEROD_E_DEVICE,
	                  "was not restored: no copy");
	all_anew(&rig);
	send_joins(&rig, &shadowed, request);
	expect_joined(&rig, request, 1, true);
	core_net_end(rig.nodes.net);
}
