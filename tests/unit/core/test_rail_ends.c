/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gathers over rails that are given up or fail, ranks that leave or are killed, and groups that are joined
 * again: all that waits is freed, and what was on its way reaches those who stay.
 */
#include "rail_rig.h"

static const struct core_nodes_config durable = {.durable = true};

/* ---- Given up ------------------------------------------------------------------------------------------ */

RIG_TEST(test_deadline_of_a_gather)
{
	struct zd_args args = {.kind = ZD_REQ_GATHER,
	                       .u.gather = {.unit = rig->u[0], .tag = (char *)CORE_TAG, .version = 2}};
	uint64_t request = core_send_until(core_of(rig, 0), session_of(rig, 0), 1000, &args);
	core_tick(core_of(rig, 0), 1000);
	core_expect(core_of(rig, 0), request, ZEROD_E_DEADLINE);
	core_expect_error(core_of(rig, 1), send_commit(rig, 1, 1), ZEROD_E_ABORTED,
	                  "group 'world': rank 0 gave up its gather of unit 'u'");
}

/* ---- Failures ------------------------------------------------------------------------------------------ */

RIG_TEST(test_exchange_fails)
{
	core_fail_next(core_of(rig, 0), ZD_CMD_EXCHANGE, ZEROD_E_DEVICE, "a link is down");
	for (uint32_t rank = 0; rank < 4; rank++)
		core_expect(core_of(rig, rank), gather(rig, rig->u, rank), 0);
	expect_state(rig, 0, "ABORTED");
	expect_freed(rig, 0, EXCHANGE(0));
	expect_freed(rig, 1, RELAYS(0));
	core_expect_error(core_of(rig, 0), gather(rig, rig->v, 0), ZEROD_E_DEVICE,
	                  "group 'world': a gather of unit 'u' by rank 0: a link is down");
	core_net_expire(rig->nodes.net); /* where rank 1 was missed */
	expect_state(rig, 1, "ABORTED");
	expect_freed(rig, 3, EXCHANGE(1));
	expect_freed(rig, 2, RELAYS(1));
}

/* ---- Leaving ------------------------------------------------------------------------------------------- */

/* An exchange that has landed does not wait for ever behind one that never will. */
RIG_TEST(test_leave_between_two_gathers)
{
	uint64_t v = 0;
	for (uint32_t rank = 0; rank < 4; rank++) {
		if (rank % 2 == 1)
			(void)gather(rig, rig->u, rank);
		uint64_t request = gather(rig, rig->v, rank);
		v = rank == 1 ? request : v;
	}
	leave(rig, 0);
	expect_freed(rig, 1, RELAYS(0));
	(void)expect_bytes(rig, 1, v, 1);
	assert_int_equal(core_quarantine(core_of(rig, 0), 0), 0);
}

/* A second group of the same sessions, on the devices from `device` on. */
static void join_second(struct rig *rig, struct core_nodes *second, uint32_t device)
{
	uint64_t request[4];
	*second = rig->nodes;
	core_nodes_new_ids(second);
	for (uint32_t rank = 0; rank < 4; rank++) {
		struct core_join join = core_nodes_join(second, NULL, rank);
		join.group = "second";
		join.device = device + rank % 2;
		request[rank] = core_join(core_of(rig, rank), session_of(rig, rank), &join);
	}
	for (uint32_t rank = 0; rank < 4; rank++)
		core_nodes_team(second, rank)->group =
		        core_expect(core_of(rig, rank), request[rank], 0)->u.group_join.group;
}

/* A group that ends does not keep another one's copies behind its own. */
RIG_TEST(test_other_group_goes_on)
{
	struct core_nodes second;
	uint64_t unit[CORE_NODES], request[4];
	join_second(rig, &second, 0);
	core_nodes_unit(&second, "y", UNIT_BYTES, unit);
	for (uint32_t rank = 1; rank < 4; rank += 2)
		(void)gather(rig, rig->u, rank);
	for (uint32_t rank = 0; rank < 4; rank++)
		request[rank] = gather(rig, unit, rank);
	leave(rig, 0);
	core_team_check(&second.node[0], core_expect(core_of(rig, 1), request[1], 0), 1);
	release(rig, unit, 0);
	assert_int_equal(core_quarantine(core_of(rig, 0), 0), 0);
}

/* Each session is in two groups, on two devices. The second one's unit is `y`. */
static void rig_over_devices(struct rig *rig, struct core_nodes *second, uint64_t y[CORE_NODES])
{
	rig_new(rig, &(struct core_nodes_config){.options = {.ndevices = 4}});
	join_second(rig, second, 2);
	core_nodes_unit(second, "y", UNIT_BYTES, y);
}

static void abort_team(const struct core_team *team)
{
	uint64_t admin = core_open_admin(team->core);
	core_do(team->core, admin, ZD_REQ_ABORT_GROUP, team->group);
	core_close(team->core, admin);
}

/* A reset waits in the queue of one device for transfers to another, of a group that ends, or that the rank
 * leaves. */
TEST(test_reset_over_devices)
{
	for (uint32_t leaves = 0; leaves < 2; leaves++) {
		struct rig rig;
		struct core_nodes second;
		uint64_t y[CORE_NODES];
		rig_over_devices(&rig, &second, y);
		core_expect(core_of(&rig, 0), gather(&rig, rig.u, 0), 0);
		uint64_t reset = core_simple(core_of(&rig, 0), session_of(&rig, 0), ZD_REQ_SESSION_RESET, 0);
		core_expect_waits(core_of(&rig, 0), reset, "transfers of rank 0");
		if (leaves)
			leave(&rig, 0);
		else
			abort_team(&rig.nodes.node[0]);
		core_expect(core_of(&rig, 0), reset, 0);
		core_net_end(rig.nodes.net);
	}
}

/* The group that it was queued for is left meanwhile; the transfers of the other end. */
TEST(test_reset_behind_a_group_that_was_left)
{
	struct rig rig;
	struct core_nodes second;
	uint64_t y[CORE_NODES];
	rig_over_devices(&rig, &second, y);
	for (uint32_t rank = 0; rank < 4; rank++) {
		core_hold(core_of(&rig, rank), ZD_CMD_COPY);
		core_expect(core_of(&rig, rank), gather(&rig, rig.u, rank), 0);
	}
	uint64_t reset = core_simple(core_of(&rig, 0), session_of(&rig, 0), ZD_REQ_SESSION_RESET, 0);
	core_do(core_of(&rig, 0), session_of(&rig, 0), ZD_REQ_GROUP_LEAVE, second.node[0].group);
	core_expect_waits(core_of(&rig, 0), reset, "transfers of rank 0");
	core_unhold(core_of(&rig, 0), ZD_CMD_COPY);
	core_expect(core_of(&rig, 0), reset, 0);
	core_net_end(rig.nodes.net);
}

/* The exchange fails of a rank that has left in order. What two others were to relay from there had kept
 * their released buffers, which end with it; what they relay from each other arrives. */
TEST(test_exchange_fails_after_leave_for_released_buffers)
{
	struct rig rig;
	struct zd_fence later = {3, 1};
	const struct zd_reply *reply[6];
	core_nodes_new(&rig.nodes, &(struct core_nodes_config){.local_world_size = 3});
	core_nodes_unit(&rig.nodes, "u", 6 * 256, rig.u);
	core_hold(core_of(&rig, 0), ZD_CMD_EXCHANGE);
	for (uint32_t rank = 0; rank < 6; rank++)
		reply[rank] = core_expect(core_of(&rig, rank), gather(&rig, rig.u, rank), 0);
	for (uint32_t rank = 1; rank < 3; rank++)
		core_expect(core_of(&rig, rank),
		            core_release_tag(core_of(&rig, rank), session_of(&rig, rank), rig.u[0], CORE_TAG,
		                             rank == 1 ? &later : NULL, rank == 1),
		            0);
	leave(&rig, 0);
	core_fail_next(core_of(&rig, 0), ZD_CMD_EXCHANGE, ZEROD_E_DEVICE, "a link is down");
	core_run_on(core_of(&rig, 0), ZD_CMD_EXCHANGE, 0);
	assert_int_equal(core_quarantine(core_of(&rig, 0), 0), 0);
	expect_freed(&rig, 1, RELAYS(0));
	expect_freed(&rig, 2, RELAYS(0));
	core_unhold(core_of(&rig, 0), ZD_CMD_EXCHANGE);
	expect_not_freed(&rig, 1, RELAYS(2));
	expect_not_freed(&rig, 2, RELAYS(1));
	assert_int_equal(core_quarantine(core_of(&rig, 0), 1), reply[1]->place.bytes);
	assert_int_equal(core_quarantine(core_of(&rig, 0), 2), 0);
	core_pass(core_of(&rig, 0), session_of(&rig, 1), 3, 1);
	assert_int_equal(core_quarantine(core_of(&rig, 0), 1), 0);
	core_net_end(rig.nodes.net);
}

/* Rank 1 waits for rank 0, which is killed: its relay from there fails, and so frees the buffer and with it
 * the unit. */
RIG_TEST(test_unit_is_freed_with_its_last_relay)
{
	for (uint32_t rank = 1; rank < 4; rank += 2)
		core_expect(core_of(rig, rank), gather(rig, rig->u, rank), 0);
	release(rig, rig->u, 1);
	for (uint32_t rank = 0; rank < 2; rank++)
		core_do(core_of(rig, rank), session_of(rig, rank), ZD_REQ_UNIT_UNREGISTER, rig->u[0]);
	assert_int_equal(core_quarantine(core_of(rig, 0), 1), UNIT_BYTES);
	core_close(core_of(rig, 0), session_of(rig, 0));
	assert_int_equal(core_quarantine(core_of(rig, 0), 1), 0);
	expect_freed(rig, 1, RELAYS(0));
}

/* ---- Joined again -------------------------------------------------------------------------------------- */

static void join_again(struct rig *rig)
{
	for (uint32_t rank = 0; rank < 4; rank++) {
		core_do(core_of(rig, rank), session_of(rig, rank), ZD_REQ_SESSION_RESET, 0);
		leave(rig, rank);
	}
	core_nodes_new_ids(&rig->nodes);
	core_nodes_join_all(&rig->nodes, &durable);
	struct core_unit unit = {.name = "u", .numel = UNIT_BYTES / 4, .slot = ZEROD_NO_SLOT};
	core_nodes_register(&rig->nodes, &unit, rig->u);
	unit.name = "v";
	core_nodes_register(&rig->nodes, &unit, rig->v);
}

static void abort_group(struct rig *rig, uint32_t node)
{
	abort_team(&rig->nodes.node[node]);
}

/* Ranks had come to different gathers when their group ended; their next ones belong together. */
RIG_TEST(test_durable_group_joined_again, .durable = true)
{
	commit_all(rig, 1);
	pass(rig, rig->u, 1);
	core_expect(core_of(rig, 0), gather(rig, rig->u, 0), 0);
	release(rig, rig->u, 0);
	core_expect(core_of(rig, 3), gather(rig, rig->v, 3), 0);
	abort_group(rig, 0);
	abort_group(rig, 1);
	join_again(rig);
	pass(rig, rig->u, 1);
	pass(rig, rig->v, 1);
}

/* An exchange of the former connection fails after the next connection was made. */
RIG_TEST(test_late_end_of_a_former_exchange, .durable = true)
{
	commit_all(rig, 1);
	core_hold(core_of(rig, 0), ZD_CMD_EXCHANGE);
	core_expect(core_of(rig, 0), gather(rig, rig->u, 0), 0);
	abort_group(rig, 0);
	abort_group(rig, 1);
	join_again(rig);
	core_run_one(core_of(rig, 0), ZD_CMD_EXCHANGE);
	expect_state(rig, 0, "READY");
	core_unhold(core_of(rig, 0), ZD_CMD_EXCHANGE);
	pass(rig, rig->u, 1);
}

/* So does a relay: the next connection does not count it. */
RIG_TEST(test_late_end_of_a_former_relay, .durable = true)
{
	uint64_t request[4];
	commit_all(rig, 1);
	gather_up_to_relays(rig, request);
	abort_group(rig, 0);
	abort_group(rig, 1);
	join_again(rig);
	core_fail_next(core_of(rig, 0), ZD_CMD_COPY, ZEROD_E_DEVICE, "a link is down");
	core_run_on(core_of(rig, 0), ZD_CMD_COPY, 0);
	core_run_on(core_of(rig, 0), ZD_CMD_COPY, 1);
	expect_state(rig, 0, "READY");
	assert_int_equal(core_quarantine(core_of(rig, 0), 0), 0);
	assert_int_equal(core_quarantine(core_of(rig, 0), 1), 0);
	core_unhold(core_of(rig, 0), ZD_CMD_COPY);
	pass(rig, rig->u, 1);
	for (uint32_t rank = 0; rank < 4; rank++)
		core_do(core_of(rig, rank), session_of(rig, rank), ZD_REQ_SESSION_RESET, 0);
}

/* Errors of backends name a rank by its number in the world, not by its place on the rail. */
RIG_TEST(test_failure_names_the_rank_of_the_world)
{
	core_expect(core_of(rig, 3), gather(rig, rig->u, 3), 0);
	core_net_expire(rig->nodes.net);
	core_expect_error(core_of(rig, 2), gather(rig, rig->u, 2), ZEROD_E_DEADLINE,
	                  "by rank 3: rank 3: the communicator");
}

/* ---- Prefetched ---------------------------------------------------------------------------------------- */

static void prefetch_all(struct rig *rig)
{
	for (uint32_t rank = 0; rank < 4; rank++)
		core_expect(core_of(rig, rank),
		            core_prefetch(core_of(rig, rank), session_of(rig, rank), on(rig, rig->u, rank)),
		            0);
}

/* Nobody has what belongs to such a copy any more: it makes room for others. */
TEST(test_prefetched_in_an_ended_group)
{
	struct rig rig;
	rig_new(&rig,
	        &(struct core_nodes_config){.options = {.copies = true, .gather_budget_bytes = UNIT_BYTES}});
	struct core_driver *core = core_of(&rig, 0);
	struct core_team own = {.core = core, .world_size = 1, .nranks = 1, .session = {session_of(&rig, 0)}};
	struct core_join join = {.group = "own", .world_size = 1};
	own.group = core_join_ok(core, own.session[0], &join);
	uint64_t unit = core_team_unit(&own, "w", UNIT_BYTES);
	prefetch_all(&rig);
	uint64_t request = core_gather(core, own.session[0], unit);
	core_expect_waits(core, request, "gather budget");
	abort_group(&rig, 0);
	core_expect(core, request, 0);
	core_net_end(rig.nodes.net);
}

static uint64_t trimmed(struct rig *rig)
{
	struct zd_args args = {.kind = ZD_REQ_TRIM};
	return core_call(core_of(rig, 0), session_of(rig, 0), &args, 0)->u.trim.freed_bytes;
}

/* Its segment goes when nothing is copied on from there any more. */
RIG_TEST(test_prefetched_and_copied_on)
{
	core_hold(core_of(rig, 0), ZD_CMD_COPY);
	prefetch_all(rig);
	for (uint32_t i = 0; i < 4; i++)
		core_run_on(core_of(rig, 0), ZD_CMD_COPY, i % 2);
	core_run_on(core_of(rig, 0), ZD_CMD_COPY, 1); /* the last one into rank 0's copy */
	abort_group(rig, 0);
	assert_int_equal(trimmed(rig), 0);
	core_unhold(core_of(rig, 0), ZD_CMD_COPY);
	assert_true(trimmed(rig) >= UNIT_BYTES);
}
