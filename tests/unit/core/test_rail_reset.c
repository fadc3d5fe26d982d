/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resets of sessions beside exchanges that fail. A backend frees the streams that wait for an exchange when
 * it fails, and says so to the core when nothing of it moves any more.
 */
#include "tests/support/core_net.h"

#define EXCHANGE ZD_MAX_DEVICES /* the timeline, of rank 0's device */

/* All that happens here happens to rank 0. */
struct rig {
	struct core_nodes nodes;
	uint64_t unit[CORE_NODES];
	struct core_driver *core;
	uint64_t session;
};

static void start(struct rig *rig)
{
	core_nodes_new(&rig->nodes, NULL);
	core_nodes_unit(&rig->nodes, "u", 1024, rig->unit);
	rig->core = core_nodes_core(&rig->nodes, 0);
	rig->session = core_nodes_session(&rig->nodes, 0);
}

#define RIG_TEST(name) CORE_RIG_TEST(name, struct rig, rig, start(rig), core_nodes_end)

static uint64_t reset(struct rig *rig)
{
	return core_simple(rig->core, rig->session, ZD_REQ_SESSION_RESET, 0);
}

static void gather(struct rig *rig)
{
	core_expect(rig->core, core_gather(rig->core, rig->session, rig->unit[0]), 0);
}

static void expect_poisoned(struct rig *rig, bool poisoned)
{
	uint64_t request = core_commit(rig->core, rig->session, core_nodes_team(&rig->nodes, 0)->group, 99);
	uint64_t counter = core_timeline(rig->core, rig->session, EXCHANGE);
	assert_int_equal(counter == ZD_FENCE_ABORTED, poisoned);
	assert_int_equal(core_reply(rig->core, request)->status == ZEROD_E_POISONED, poisoned);
}

static void abort_group(struct rig *rig)
{
	uint64_t admin = core_open_admin(rig->core);
	core_do(rig->core, admin, ZD_REQ_ABORT_GROUP, rig->nodes.node[0].group);
	core_close(rig->core, admin);
}

/* An exchange that was submitted before the reset and fails after it aborts nothing. */
RIG_TEST(test_late_failure_after_a_reset)
{
	core_hold(rig->core, ZD_CMD_EXCHANGE);
	gather(rig);
	abort_group(rig);
	core_expect(rig->core, reset(rig), 0);
	core_run_one(rig->core, ZD_CMD_EXCHANGE);
	expect_poisoned(rig, false);
}

/* Others that wait for the timeline are freed with who wanted it no more. */
RIG_TEST(test_released_before_its_exchange_fails)
{
	gather(rig);
	core_expect(rig->core, core_release(rig->core, rig->session, rig->unit[0]), 0);
	core_net_expire(rig->nodes.net);
	expect_poisoned(rig, true);
	core_expect(rig->core, reset(rig), 0);
	expect_poisoned(rig, false);
}

/* Of the second daemon, in which rank 2 is the first. */
NODES_TEST(test_reset_names_the_rank_of_the_world, .durable = true, .shadow = true)
{
	uint64_t unit[CORE_NODES], request[4];
	core_nodes_unit(nodes, "u", 1024, unit);
	struct core_driver *core = core_nodes_core(nodes, 2);
	uint64_t session = core_nodes_session(nodes, 2);
	for (uint32_t rank = 0; rank < 4; rank++)
		request[rank] = core_commit(core_nodes_core(nodes, rank), core_nodes_session(nodes, rank),
		                            core_nodes_team(nodes, rank)->group, 1);
	for (uint32_t rank = 0; rank < 4; rank++)
		core_expect(core_nodes_core(nodes, rank), request[rank], 0);
	core_expect(core, core_update(core, session, unit[1]), 0);
	core_expect(core, core_publish(core, session, unit[1]), 0);
	core_hold(core, ZD_CMD_COPY);
	core_close(core, core_nodes_session(nodes, 3));
	core_expect_waits(core, core_simple(core, session, ZD_REQ_SESSION_RESET, 0),
	                  "rank 2's shard of unit 'u'");
	core_unhold(core, ZD_CMD_COPY);
}
