/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gathers over rails: bytes of all ranks in all daemons, what is copied on inside a daemon and how long it is
 * kept for that, and the order that all ranks keep. How they end is in test_rail_ends.c.
 */
#include "rail_rig.h"

/* ---- Bytes --------------------------------------------------------------------------------------------- */

static void expect_passes(const struct core_nodes_config *config)
{
	struct rig rig;
	core_nodes_new(&rig.nodes, config);
	uint32_t shards = world(&rig);
	core_nodes_unit(&rig.nodes, "u", shards * 512, rig.u);
	core_nodes_unit(&rig.nodes, "v", shards * 256, rig.v);
	pass(&rig, rig.u, 1);
	pass(&rig, rig.v, 1);
	pass(&rig, rig.u, 1);
	core_nodes_publish(&rig.nodes, rig.u);
	pass(&rig, rig.u, 2);
	core_net_end(rig.nodes.net);
}

TEST(test_bytes_on_all_ranks)
{
	expect_passes(NULL);
	expect_passes(&(struct core_nodes_config){.nnodes = 3, .local_world_size = 1});
	expect_passes(&(struct core_nodes_config){.nnodes = 3, .local_world_size = 2});
	expect_passes(&(struct core_nodes_config){.nnodes = 2, .local_world_size = 4});
	expect_passes(&(struct core_nodes_config){.local_world_size = 3, .options = {.ndevices = 2}});
	expect_passes(&(struct core_nodes_config){.options = {.ndevices = 1}});
	expect_passes(&(struct core_nodes_config){.exchange = true});
	expect_passes(&(struct core_nodes_config){.nnodes = 3, .exchange = true});
}

/* Where a rank is alone in its daemon, its exchange brings its own shard too: nothing is copied inside the
 * device. */
TEST(test_one_rank_a_daemon_copies_nothing)
{
	struct rig rig;
	core_nodes_new(&rig.nodes, &(struct core_nodes_config){.nnodes = 3, .local_world_size = 1});
	core_nodes_unit(&rig.nodes, "u", 3 * 256, rig.u);
	pass(&rig, rig.u, 1);
	assert_int_equal(core_count(core_of(&rig, 0), ZD_CMD_COPY), 0);
	core_net_end(rig.nodes.net);
}

/* A hybrid group's daemons have all shards each: gathers stay inside, and a rank that gives one up keeps
 * nobody waiting. */
TEST(test_hybrid_gathers_stay_inside)
{
	struct rig rig;
	core_nodes_new(&rig.nodes, &(struct core_nodes_config){.hybrid = true});
	core_nodes_unit(&rig.nodes, "u", UNIT_BYTES, rig.u);
	for (uint32_t rank = 0; rank < 4; rank++) {
		const struct zd_reply *reply = core_expect(core_of(&rig, rank), gather(&rig, rig.u, rank), 0);
		const uint8_t *data = core_bytes(core_of(&rig, rank), reply->place);
		assert_int_equal(reply->place.bytes, UNIT_BYTES);
		for (uint32_t i = 0; i < UNIT_BYTES; i++)
			assert_int_equal(data[i], core_pattern(rank / 2 * 2 + i / (UNIT_BYTES / 2), 1));
	}
	assert_int_equal(core_count(core_of(&rig, 0), ZD_CMD_EXCHANGE), 0);
	struct zd_args args = {.kind = ZD_REQ_GATHER,
	                       .u.gather = {.unit = rig.u[0], .tag = (char *)CORE_TAG, .version = 2}};
	uint64_t request = core_send_until(core_of(&rig, 0), session_of(&rig, 0), 1000, &args);
	core_tick(core_of(&rig, 0), 1000);
	core_expect(core_of(&rig, 0), request, ZEROD_E_DEADLINE);
	commit_all(&rig, 1);
	core_net_end(rig.nodes.net);
}

RIG_TEST(test_one_fence_a_timeline)
{
	static const uint32_t timelines[] = {1, EXCHANGE(0), RELAYS(1)};
	core_hold(core_of(rig, 0), ZD_CMD_COPY);
	uint64_t request[4];
	for (uint32_t rank = 0; rank < 4; rank++)
		request[rank] = gather(rig, rig->u, rank);
	const struct zd_reply *reply = core_expect(core_of(rig, 0), request[0], 0);
	assert_int_equal(reply->fences.count, ZD_ARRAY_LEN(timelines));
	for (uint32_t i = 0; i < ZD_ARRAY_LEN(timelines); i++)
		assert_int_equal(reply->fences.fences[i].timeline, timelines[i]);
	assert_false(passed(rig, 0, reply));
	core_unhold(core_of(rig, 0), ZD_CMD_COPY);
	assert_true(passed(rig, 0, reply));
	(void)expect_bytes(rig, 0, request[0], 1);
}

/* ---- Order --------------------------------------------------------------------------------------------- */

RIG_TEST(test_order_is_kept)
{
	uint64_t first[4], second[4];
	for (uint32_t rank = 0; rank < 4; rank++) {
		first[rank] = core_gather_version(core_of(rig, rank), session_of(rig, rank),
		                                  on(rig, rig->u, rank), 2);
		second[rank] = gather(rig, rig->v, rank);
		core_expect_waits(core_of(rig, rank), first[rank], "to publish version 2 of unit 'u'");
		core_expect_waits(core_of(rig, rank), second[rank], "its turn behind the gather of unit 'u'");
	}
	assert_int_equal(core_count(core_of(rig, 0), ZD_CMD_EXCHANGE), 0);
	core_nodes_publish(&rig->nodes, rig->u);
	for (uint32_t rank = 0; rank < 4; rank++) {
		(void)expect_bytes(rig, rank, first[rank], 2);
		(void)expect_bytes(rig, rank, second[rank], 1);
	}
}

/* An exchange that landed first waits for the exchange that was requested first: its fence implies both. */
RIG_TEST(test_relays_in_the_order_of_fences)
{
	core_hold(core_of(rig, 0), ZD_CMD_EXCHANGE);
	uint64_t u = gather(rig, rig->u, 0), v = gather(rig, rig->v, 0);
	for (uint32_t rank = 1; rank < 4; rank += 2) {
		(void)gather(rig, rig->v, rank);
		(void)gather(rig, rig->u, rank);
	}
	(void)gather(rig, rig->u, 2);
	(void)gather(rig, rig->v, 2);
	core_run_on(core_of(rig, 0), ZD_CMD_EXCHANGE, 1); /* rank 1's of v */
	assert_true(core_timeline(core_of(rig, 0), session_of(rig, 0), RELAYS(1)) == 0);
	core_unhold(core_of(rig, 0), ZD_CMD_EXCHANGE);
	assert_true(core_timeline(core_of(rig, 0), session_of(rig, 0), RELAYS(1)) == 2);
	(void)expect_bytes(rig, 0, u, 1);
	(void)expect_bytes(rig, 0, v, 1);
}

static void unregister(struct rig *rig, const uint64_t unit[CORE_NODES], uint32_t rank)
{
	core_do(core_of(rig, rank), session_of(rig, rank), ZD_REQ_UNIT_UNREGISTER, on(rig, unit, rank));
}

/* Different versions in one daemon: a mixture is no unit. Rank 1 has registered anew what it should have
 * gathered before. */
RIG_TEST(test_versions_differ_inside_a_daemon)
{
	const struct core_unit u = {.name = "u", .numel = UNIT_BYTES / 4, .slot = ZEROD_NO_SLOT};
	core_nodes_publish(&rig->nodes, rig->u);
	for (uint32_t rank = 0; rank < 4; rank += 2)
		(void)gather(rig, rig->u, rank);
	for (uint32_t rank = 0; rank < 4; rank += 2)
		release(rig, rig->u, rank);
	for (uint32_t rank = 0; rank < 4; rank++)
		unregister(rig, rig->u, rank);
	core_nodes_register(&rig->nodes, &u, rig->u);
	core_nodes_publish(&rig->nodes, rig->u);
	uint64_t request = gather(rig, rig->u, 1);
	core_expect(core_of(rig, 1), request, 0);
	expect_freed(rig, 1, RELAYS(0));
	core_expect_error(core_of(rig, 0), gather(rig, rig->v, 0), ZEROD_E_MISMATCH,
	                  "unit 'u': rank 1 gathers version 1 where rank 0 gathers version 2");
}

/* ---- Relay sources ------------------------------------------------------------------------------------- */

RIG_TEST(test_rank_far_ahead)
{
	uint64_t request[4];
	for (uint32_t i = 0; i < 5; i++) {
		for (uint32_t rank = 0; rank < 4; rank += 2)
			core_expect(core_of(rig, rank), gather(rig, i % 2 ? rig->v : rig->u, rank), 0);
		for (uint32_t rank = 0; rank < 4; rank += 2)
			release(rig, i % 2 ? rig->v : rig->u, rank);
	}
	assert_int_equal(core_quarantine(core_of(rig, 0), 0), 5 * UNIT_BYTES);
	for (uint32_t i = 0; i < 5; i++) {
		const uint64_t *unit = i % 2 ? rig->v : rig->u;
		for (uint32_t rank = 1; rank < 4; rank += 2)
			request[rank] = gather(rig, unit, rank);
		for (uint32_t rank = 1; rank < 4; rank += 2)
			(void)expect_bytes(rig, rank, request[rank], 1);
		for (uint32_t rank = 1; rank < 4; rank += 2)
			release(rig, unit, rank);
		assert_int_equal(core_quarantine(core_of(rig, 0), 0), (4 - i) * UNIT_BYTES);
	}
}

static void set_persistent(struct rig *rig, const uint64_t unit[CORE_NODES], bool persistent)
{
	for (uint32_t rank = 0; rank < world(rig); rank++)
		core_expect(core_of(rig, rank),
		            core_set_persistent(core_of(rig, rank), session_of(rig, rank),
		                                on(rig, unit, rank), persistent),
		            0);
}

/* A copy is not written again while another rank takes from it. */
RIG_TEST(test_refresh_waits_for_takers)
{
	uint64_t request[4];
	set_persistent(rig, rig->u, true);
	gather_up_to_relays(rig, request);
	for (uint32_t rank = 0; rank < 4; rank++)
		release(rig, rig->u, rank);
	core_nodes_publish(&rig->nodes, rig->u);
	core_run_on(core_of(rig, 0), ZD_CMD_COPY, 1);
	for (uint32_t rank = 0; rank < 4; rank++)
		request[rank] = gather(rig, rig->u, rank);
	core_expect_waits(core_of(rig, 0), request[0], "work on version 1 of unit 'u'");
	core_unhold(core_of(rig, 0), ZD_CMD_COPY);
	for (uint32_t rank = 0; rank < 4; rank++)
		(void)expect_bytes(rig, rank, request[rank], 2);
}

/* An update waits for this daemon's prefetches: ranks of other daemons have prefetched the version that it
 * overwrites here. */
RIG_TEST(test_update_waits_for_prefetches, .options = {.gather_budget_bytes = UNIT_BYTES})
{
	uint64_t prefetch[4], update[4];
	for (uint32_t rank = 0; rank < 4; rank++) {
		core_expect(core_of(rig, rank), gather(rig, rig->v, rank), 0);
		prefetch[rank] = core_prefetch(core_of(rig, rank), session_of(rig, rank),
		                               on(rig, rig->u, rank));
	}
	for (uint32_t rank = 0; rank < 4; rank++) {
		update[rank] = core_update(core_of(rig, rank), session_of(rig, rank), on(rig, rig->u, rank));
		core_expect_waits(core_of(rig, rank), update[rank], "its own gather of unit 'u'");
	}
	for (uint32_t rank = 0; rank < 4; rank += 2)
		release(rig, rig->v, rank);
	core_expect_waits(core_of(rig, 0), update[0], "its own gather of unit 'u' on rank 1");
	for (uint32_t rank = 1; rank < 4; rank += 2)
		release(rig, rig->v, rank);
	for (uint32_t rank = 0; rank < 4; rank++) {
		struct core_team *team = core_nodes_team(&rig->nodes, rank);
		core_expect(team->core, prefetch[rank], 0);
		core_expect(team->core, update[rank], 0);
		core_team_write(team, on(rig, rig->u, rank), rank % 2);
		core_expect(team->core,
		            core_publish(team->core, session_of(rig, rank), on(rig, rig->u, rank)), 0);
	}
	pass(rig, rig->u, 2);
}

TEST(test_slots)
{
	struct rig rig;
	struct core_unit unit = {.name = "u", .numel = UNIT_BYTES / 4, .slot = 3};
	core_nodes_new(&rig.nodes, NULL);
	core_nodes_register(&rig.nodes, &unit, rig.u);
	unit.name = "v";
	core_nodes_register(&rig.nodes, &unit, rig.v);
	core_nodes_publish(&rig.nodes, rig.u);
	core_nodes_publish(&rig.nodes, rig.v);
	pass(&rig, rig.u, 1);
	pass(&rig, rig.v, 1);
	for (uint32_t rank = 0; rank < 4; rank += 2)
		(void)gather(&rig, rig.u, rank);
	for (uint32_t rank = 0; rank < 4; rank += 2)
		release(&rig, rig.u, rank);
	/* the slot is empty when all local ranks have what came into it */
	uint64_t waits = gather(&rig, rig.v, 0);
	core_expect_waits(core_of(&rig, 0), waits, "slot 3, which unit 'u' leaves");
	uint64_t slow = gather(&rig, rig.u, 1), remote = gather(&rig, rig.u, 3);
	(void)expect_bytes(&rig, 1, slow, 1);
	(void)expect_bytes(&rig, 3, remote, 1);
	core_expect(core_of(&rig, 0), waits, 0);
	for (uint32_t rank = 1; rank < 4; rank += 2)
		release(&rig, rig.u, rank);
	pass(&rig, rig.v, 1);
	core_net_end(rig.nodes.net);
}

/* Room is not made by taking back what others have prefetched too: they would not send it again. */
RIG_TEST(test_prefetched_copies_stay, .options = {.gather_budget_bytes = UNIT_BYTES})
{
	for (uint32_t rank = 0; rank < 4; rank++)
		core_expect(core_of(rig, rank),
		            core_prefetch(core_of(rig, rank), session_of(rig, rank), on(rig, rig->u, rank)),
		            0);
	uint64_t waits = gather(rig, rig->v, 0);
	core_expect_waits(core_of(rig, 0), waits, "gather budget");
	pass(rig, rig->u, 1);
	uint64_t request[4] = {waits};
	for (uint32_t rank = 1; rank < 4; rank++)
		request[rank] = gather(rig, rig->v, rank);
	for (uint32_t rank = 0; rank < 4; rank++)
		(void)expect_bytes(rig, rank, request[rank], 1);
}

/* ---- Devices that ranks share -------------------------------------------------------------------------- */

static void gather_both(struct rig *rig, const uint64_t unit[CORE_NODES], uint32_t first, uint64_t request[4])
{
	for (uint32_t rank = first; rank < 4; rank += 2)
		request[rank] = gather(rig, unit, rank);
}

static void release_both(struct rig *rig, const uint64_t unit[CORE_NODES], uint32_t first)
{
	for (uint32_t rank = first; rank < 4; rank += 2)
		release(rig, unit, rank);
}

/* There is room for one copy of each rank: who is ahead leaves the other's. */
TEST(test_shared_device)
{
	struct core_options options = {.ndevices = 1,
	                               .arena_bytes = 96 * CORE_KIB,
	                               .segment_bytes = 32 * CORE_KIB,
	                               .segment_align_bytes = 4 * CORE_KIB};
	struct rig rig;
	uint64_t request[4];
	core_nodes_new(&rig.nodes, &(struct core_nodes_config){.options = options});
	core_nodes_unit(&rig.nodes, "u", 32 * CORE_KIB, rig.u);
	core_nodes_unit(&rig.nodes, "v", 32 * CORE_KIB, rig.v);
	gather_both(&rig, rig.u, 0, request);
	for (uint32_t i = 0; i < 4; i++) {
		const uint64_t *unit = i % 2 ? rig.v : rig.u, *next = i % 2 ? rig.u : rig.v;
		uint64_t ahead[4];
		for (uint32_t rank = 0; rank < 4; rank += 2)
			core_expect(core_of(&rig, rank), request[rank], 0);
		release_both(&rig, unit, 0);
		gather_both(&rig, next, 0, ahead);
		core_expect_waits(core_of(&rig, 0), ahead[0],
		                  i % 2 ? "rank 1 to gather unit 'v'" : "rank 1 to gather unit 'u'");
		core_expect_waits(core_of(&rig, 2), ahead[2], "rank 3 to gather unit");
		core_hold(core_of(&rig, 0), ZD_CMD_COPY);
		core_hold(core_of(&rig, 0), ZD_CMD_EXCHANGE);
		gather_both(&rig, unit, 1, request);
		core_expect_waits(core_of(&rig, 0), ahead[0], "device 0's arena"); /* which comes by itself */
		core_unhold(core_of(&rig, 0), ZD_CMD_EXCHANGE);
		core_unhold(core_of(&rig, 0), ZD_CMD_COPY);
		for (uint32_t rank = 1; rank < 4; rank += 2)
			(void)expect_bytes(&rig, rank, request[rank], 1);
		release_both(&rig, unit, 1);
		memcpy(request, ahead, sizeof(request));
	}
	core_net_expire(rig.nodes.net); /* the last ones have no followers */
	core_net_end(rig.nodes.net);
}

/* Another job's gather wants the room that a rank's copy has until its neighbour has taken from it. */
TEST(test_followers_wait_for_nobody)
{
	struct rig rig;
	uint64_t request[4];
	rig_new(&rig,
	        &(struct core_nodes_config){
	                .options = {.ndevices = 1, .copies = true, .gather_budget_bytes = 3 * UNIT_BYTES}});
	struct core_driver *core = core_of(&rig, 0);
	struct core_team other = core_team_new(core, "other", 1, false);
	uint64_t w = core_team_unit(&other, "w", 3 * UNIT_BYTES);
	gather_both(&rig, rig.u, 0, request);
	uint64_t large = core_gather(core, other.session[0], w);
	core_expect_waits(core, large, "gather budget");
	gather_both(&rig, rig.u, 1, request);
	for (uint32_t rank = 0; rank < 4; rank++)
		(void)expect_bytes(&rig, rank, request[rank], 1);
	release_both(&rig, rig.u, 1);
	uint64_t next = gather(&rig, rig.v, 0); /* is the first one */
	core_expect_waits(core, next, "gathers before it that wait for room");
	release_both(&rig, rig.u, 0);
	core_expect(core, large, 0);
	core_expect(core, core_release(core, other.session[0], w), 0);
	core_expect(core, next, 0);
	pass(&rig, rig.v, 1);
	core_net_end(rig.nodes.net);
}

/* ---- Holders ------------------------------------------------------------------------------------------- */

static uint64_t forward(struct rig *rig, uint32_t rank)
{
	uint64_t request = core_forward_begin(core_of(rig, rank), session_of(rig, rank),
	                                      core_nodes_team(&rig->nodes, rank)->group, 0, NULL, 0);
	return core_expect(core_of(rig, rank), request, 0)->u.scope.scope;
}

/* Its gather, which other daemons' ranks may have begun, will not come: no other one is taken for it. */
RIG_TEST(test_scope_abandoned_before_its_gather)
{
	uint64_t scope = forward(rig, 0);
	(void)core_gather_version(core_of(rig, 0), session_of(rig, 0), rig->v[0], 2);
	uint64_t request = core_gather_in(core_of(rig, 0), session_of(rig, 0), rig->u[0], scope);
	core_expect(core_of(rig, 0),
	            core_scope_end(core_of(rig, 0), session_of(rig, 0), ZD_REQ_SCOPE_ABANDON, scope, NULL, 0),
	            0);
	core_expect(core_of(rig, 0), request, ZEROD_E_NOT_FOUND);
	core_expect_error(core_of(rig, 1), send_commit(rig, 1, 1), ZEROD_E_ABORTED,
	                  "rank 0 gave up its gather of unit 'u'");
}

/* A rank of the same daemon has not come for the version that the others have gathered: it gets that one, and
 * not the next. */
RIG_TEST(test_update_waits_for_slow_local_ranks)
{
	uint64_t update[4];
	for (uint32_t rank = 0; rank < 4; rank += 2) {
		core_expect(core_of(rig, rank), gather(rig, rig->u, rank), 0);
		release(rig, rig->u, rank);
	}
	for (uint32_t rank = 0; rank < 4; rank += 2)
		update[rank] = core_update(core_of(rig, rank), session_of(rig, rank), on(rig, rig->u, rank));
	core_expect_waits(core_of(rig, 2), update[2], "rank 3 to gather unit 'u'");
	for (uint32_t rank = 1; rank < 4; rank += 2) {
		update[rank] = gather(rig, rig->u, rank);
		core_expect(core_of(rig, rank), update[rank], 0);
		core_expect(core_of(rig, rank - 1), update[rank - 1], 0);
	}
	for (uint32_t rank = 1; rank < 4; rank += 2)
		(void)expect_bytes(rig, rank, update[rank], 1);
	expect_state(rig, 0, "READY");
}

/* An update waits for contexts as well, and they get the version that they requested. */
RIG_TEST(test_update_waits_for_contexts, .options = {.gather_budget_bytes = UNIT_BYTES})
{
	uint64_t context[4], update[4];
	for (uint32_t rank = 0; rank < 4; rank++) {
		uint64_t unit = on(rig, rig->u, rank);
		core_expect(core_of(rig, rank), gather(rig, rig->v, rank), 0);
		context[rank] = core_context_begin(core_of(rig, rank), session_of(rig, rank), &unit, 1);
		update[rank] = core_update(core_of(rig, rank), session_of(rig, rank), unit);
		core_expect_waits(core_of(rig, rank), update[rank], "its own gather of unit 'u'");
	}
	for (uint32_t rank = 0; rank < 4; rank++)
		release(rig, rig->v, rank);
	for (uint32_t rank = 0; rank < 4; rank++) {
		core_expect(core_of(rig, rank), context[rank], 0);
		core_expect(core_of(rig, rank), update[rank], 0);
	}
}
