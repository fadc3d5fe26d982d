/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of a rail that ask for the same in the same order make the same exchanges, however long each of them
 * waits.
 */
#include "rail_rig.h"

static uint64_t set_persistent(struct rig *rig, const uint64_t unit[CORE_NODES], uint32_t rank)
{
	return core_set_persistent(core_of(rig, rank), session_of(rig, rank), on(rig, unit, rank), true);
}

/* ---- Behind what waits --------------------------------------------------------------------------------- */

/* All ranks but rank 1, which is late, have published v once more. */
static void publish_but_one(struct rig *rig)
{
	for (uint32_t rank = 0; rank < 4; rank++) {
		if (rank != 1)
			core_team_publish_rank(core_nodes_team(&rig->nodes, rank), on(rig, rig->v, rank),
			                       rank % 2);
	}
}

static void publish_the_last(struct rig *rig)
{
	core_team_publish_rank(&rig->nodes.node[0], rig->v[0], 1);
}

static void expect_same_exchanges(struct rig *rig, uint32_t of_each_rank)
{
	for (uint32_t node = 0; node < 2; node++)
		assert_int_equal(core_count(rig->nodes.node[node].core, ZD_CMD_EXCHANGE), 2 * of_each_rank);
}

struct kept {
	uint64_t first, release, persistent, again;
};

/* A copy that is to stay from its second gather on. */
static struct kept keep_second(struct rig *rig, uint32_t rank)
{
	struct core_driver *core = core_of(rig, rank);
	uint64_t session = session_of(rig, rank), unit = on(rig, rig->v, rank);
	struct kept kept = {.first = gather(rig, rig->v, rank)};
	kept.release = core_release(core, session, unit);
	kept.persistent = set_persistent(rig, rig->v, rank);
	kept.again = gather(rig, rig->v, rank);
	return kept;
}

/* The release of a copy, which waits for its gather, is that of one which does not stay. */
RIG_TEST(test_persistence_behind_a_release)
{
	struct kept kept[4];
	publish_but_one(rig);
	for (uint32_t rank = 0; rank < 4; rank++) {
		if (rank != 1)
			kept[rank] = keep_second(rig, rank);
	}
	core_expect(core_of(rig, 0), kept[0].persistent, 0); /* and is done when its turn comes */
	core_expect(core_of(rig, 2), kept[2].persistent, 0);
	publish_the_last(rig);
	kept[1] = keep_second(rig, 1);
	for (uint32_t rank = 0; rank < 4; rank++) {
		assert_true(passed(rig, rank, expect_bytes(rig, rank, kept[rank].again, 2)));
		release(rig, rig->v, rank);
	}
	expect_same_exchanges(rig, 2);
	assert_int_equal(core_usage(core_of(rig, 0)).gathered_bytes, 2 * UNIT_BYTES);
}

/* A copy that is to stay no more is refreshed by the gather before that, which waits. */
RIG_TEST(test_persistence_behind_a_prefetch)
{
	uint64_t prefetch[4], persistent[4];
	for (uint32_t rank = 0; rank < 4; rank++)
		core_expect(core_of(rig, rank), set_persistent(rig, rig->v, rank), 0);
	pass(rig, rig->v, 1);
	publish_but_one(rig);
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t rank = (const uint32_t[]){0, 2, 3, 1}[i];
		if (rank == 1)
			publish_the_last(rig);
		prefetch[rank] = core_prefetch(core_of(rig, rank), session_of(rig, rank),
		                               on(rig, rig->v, rank));
		persistent[rank] = core_set_persistent(core_of(rig, rank), session_of(rig, rank),
		                                       on(rig, rig->v, rank), false);
	}
	for (uint32_t rank = 0; rank < 4; rank++) {
		core_expect(core_of(rig, rank), prefetch[rank], 0);
		core_expect(core_of(rig, rank), persistent[rank], 0);
	}
	pass(rig, rig->v, 2);
	expect_same_exchanges(rig, 3);
}

static void publish_while_held(struct rig *rig, uint32_t rank)
{
	struct core_team *team = core_nodes_team(&rig->nodes, rank);
	const uint64_t *unit = &rig->u[rank / 2];
	struct zd_args args = {.kind = ZD_REQ_PUBLISH,
	                       .u.publish = {.n_units = 1, .units = (uint64_t *)unit, .force = true}};
	core_expect(team->core, core_update(team->core, session_of(rig, rank), *unit), 0);
	core_team_write(team, *unit, rank % 2);
	(void)core_call(team->core, session_of(rig, rank), &args, 0);
}

/* One that wants another version than the copy's waits for the release itself. */
RIG_TEST(test_release_before_a_context)
{
	uint64_t context[4];
	for (uint32_t rank = 0; rank < 4; rank++)
		core_expect(core_of(rig, rank), gather(rig, rig->u, rank), 0);
	for (uint32_t rank = 0; rank < 4; rank++)
		publish_while_held(rig, rank);
	for (uint32_t rank = 0; rank < 4; rank++) {
		uint64_t unit = on(rig, rig->u, rank);
		context[rank] = core_context_begin(core_of(rig, rank), session_of(rig, rank), &unit, 1);
		core_expect_waits(core_of(rig, rank), context[rank], "leases on version 1 of unit 'u'");
		release(rig, rig->u, rank);
	}
	for (uint32_t rank = 0; rank < 4; rank++)
		core_expect(core_of(rig, rank), context[rank], 0);
	expect_same_exchanges(rig, 2);
}

/* Its rank would join a copy where the others make another one. */
RIG_TEST(test_release_given_up)
{
	struct zd_args args = {.kind = ZD_REQ_RELEASE,
	                       .u.release = {.unit = rig->u[0], .tag = (char *)CORE_TAG}};
	uint64_t units[2] = {rig->v[0], rig->u[0]};
	core_expect(core_of(rig, 0), gather(rig, rig->u, 0), 0);
	core_team_publish_rank(&rig->nodes.node[0], rig->v[0], 0);
	(void)core_context_begin(core_of(rig, 0), session_of(rig, 0), units, 2);
	uint64_t request = core_send_until(core_of(rig, 0), session_of(rig, 0), 1000, &args);
	core_tick(core_of(rig, 0), 1000);
	core_expect(core_of(rig, 0), request, ZEROD_E_DEADLINE);
	core_expect_error(core_of(rig, 1), send_commit(rig, 1, 1), ZEROD_E_ABORTED,
	                  "rank 0 gave up its release of unit 'u'");
}

/* ---- Refused on one rank ------------------------------------------------------------------------------- */

/* Whether the slot is free depends on when the gather has come so far. */
TEST(test_slot_conflict_on_one_rank)
{
	struct rig rig;
	struct core_unit unit = {.name = "u", .numel = UNIT_BYTES / 4, .slot = 3};
	core_nodes_new(&rig.nodes, NULL);
	core_nodes_register(&rig.nodes, &unit, rig.u);
	unit.name = "v";
	core_nodes_register(&rig.nodes, &unit, rig.v);
	core_nodes_publish(&rig.nodes, rig.u);
	publish_but_one(&rig);
	for (uint32_t rank = 0; rank < 4; rank++)
		core_expect(core_of(&rig, rank), gather(&rig, rig.u, rank), 0);
	uint64_t waits = gather(&rig, rig.v, 0);
	core_expect_waits(core_of(&rig, 0), waits, "rank 1 to publish version 1 of unit 'v'");
	core_expect(core_of(&rig, 2), gather(&rig, rig.v, 2), ZEROD_E_SLOT_CONFLICT);
	core_expect_error(
	        core_of(&rig, 3), gather(&rig, rig.v, 3), ZEROD_E_SLOT_CONFLICT,
	        "rank 2's gather of unit 'v': slot 3 holds unit 'u', which rank 2 has not released");
	core_net_end(rig.nodes.net);
}

RIG_TEST(test_context_that_never_fits_on_one_rank)
{
	uint64_t units[2] = {rig->u[0], rig->v[0]};
	zd_engine_set_gather_budget(core_engine(core_of(rig, 0)), 0, UNIT_BYTES);
	core_expect_error(core_of(rig, 0), core_context_begin(core_of(rig, 0), session_of(rig, 0), units, 2),
	                  ZEROD_E_NO_MEMORY, "2 units need 2048 bytes");
	core_expect_error(core_of(rig, 1), gather(rig, rig->u, 1), ZEROD_E_NO_MEMORY,
	                  "rank 0's gather of unit 'u': 2 units need 2048 bytes");
}

/* Other daemons do not know that a rank has described the unit differently: there it is gathered. */
RIG_TEST(test_unit_described_differently)
{
	struct core_unit unit = {.name = "w", .numel = UNIT_BYTES / 4, .slot = ZEROD_NO_SLOT};
	uint64_t w[4];
	for (uint32_t rank = 0; rank < 4; rank++) {
		struct core_team *team = core_nodes_team(&rig->nodes, rank);
		unit.numel = UNIT_BYTES / 4 + (rank == 1);
		uint64_t request = core_register(team->core, session_of(rig, rank), team->group, &unit);
		const struct zd_reply *reply = core_expect(team->core, request,
		                                           rank == 1 ? ZEROD_E_MISMATCH : 0);
		w[rank] = reply->u.unit_register.unit;
	}
	for (uint32_t rank = 2; rank < 4; rank++)
		core_team_publish_rank(&rig->nodes.node[1], w[rank], rank % 2);
	core_expect(core_of(rig, 2), core_gather(core_of(rig, 2), session_of(rig, 2), w[2]), 0);
	core_expect_error(core_of(rig, 0), core_gather(core_of(rig, 0), session_of(rig, 0), w[0]),
	                  ZEROD_E_MISMATCH, "rank 1 says");
	core_expect_error(core_of(rig, 1), send_commit(rig, 1, 1), ZEROD_E_MISMATCH,
	                  "rank 0's gather of unit 'w': unit 'w': rank 0 registered");
	core_net_expire(rig->nodes.net);
	expect_state(rig, 1, "ABORTED");
}

/* ---- Ends of scopes ------------------------------------------------------------------------------------ */

static uint64_t begin_forward(struct rig *rig, uint32_t rank)
{
	uint64_t request = core_forward_begin(core_of(rig, rank), session_of(rig, rank),
	                                      core_nodes_team(&rig->nodes, rank)->group, 0, NULL, 0);
	return core_expect(core_of(rig, rank), request, 0)->u.scope.scope;
}

/* As test_release_behind_a_context, but u is held by a forward scope. */
RIG_TEST(test_scope_end_behind_a_context)
{
	uint64_t context[4], request[4], scope[4];
	for (uint32_t rank = 0; rank < 4; rank++) {
		scope[rank] = begin_forward(rig, rank);
		request[rank] = core_gather_in(core_of(rig, rank), session_of(rig, rank),
		                               on(rig, rig->u, rank), scope[rank]);
		core_expect(core_of(rig, rank), request[rank], 0);
	}
	publish_but_one(rig);
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t rank = (const uint32_t[]){0, 2, 3, 1}[i];
		uint64_t units[2] = {on(rig, rig->v, rank), on(rig, rig->u, rank)};
		if (rank == 1)
			publish_the_last(rig);
		context[rank] = core_context_begin(core_of(rig, rank), session_of(rig, rank), units, 2);
		request[rank] = core_forward_end(core_of(rig, rank), session_of(rig, rank), scope[rank],
		                                 false);
	}
	for (uint32_t rank = 0; rank < 4; rank++) {
		core_expect(core_of(rig, rank), request[rank], 0);
		core_expect(core_of(rig, rank), context[rank], 0);
	}
	expect_same_exchanges(rig, 2);
}

/* As test_release_given_up: the end of a scope waits for a gather in it, and its deadline passes. */
RIG_TEST(test_scope_end_given_up)
{
	uint64_t scope = begin_forward(rig, 0);
	struct zd_args args = {.kind = ZD_REQ_FORWARD_END, .u.forward_end = {.scope = scope}};
	core_expect(core_of(rig, 0), core_gather_in(core_of(rig, 0), session_of(rig, 0), rig->u[0], scope),
	            0);
	core_team_publish_rank(&rig->nodes.node[0], rig->v[0], 0);
	(void)core_gather_in(core_of(rig, 0), session_of(rig, 0), rig->v[0], scope);
	uint64_t request = core_send_until(core_of(rig, 0), session_of(rig, 0), 1000, &args);
	core_tick(core_of(rig, 0), 1000);
	core_expect(core_of(rig, 0), request, ZEROD_E_DEADLINE);
	expect_state(rig, 0, "ABORTED");
}

/* As test_persistence_behind_a_release, for the end of a scope. */
RIG_TEST(test_persistence_behind_a_scope_end)
{
	uint64_t request[4], scope[4], again[4];
	publish_but_one(rig);
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t rank = (const uint32_t[]){0, 2, 3, 1}[i];
		if (rank == 1)
			publish_the_last(rig);
		scope[rank] = begin_forward(rig, rank);
		(void)core_gather_in(core_of(rig, rank), session_of(rig, rank), on(rig, rig->u, rank),
		                     scope[rank]);
		(void)core_gather_in(core_of(rig, rank), session_of(rig, rank), on(rig, rig->v, rank),
		                     scope[rank]);
		request[rank] = core_forward_end(core_of(rig, rank), session_of(rig, rank), scope[rank],
		                                 false);
		core_expect(core_of(rig, rank), set_persistent(rig, rig->u, rank), 0);
	}
	for (uint32_t rank = 0; rank < 4; rank++)
		core_expect(core_of(rig, rank), request[rank], 0);
	for (uint32_t rank = 0; rank < 4; rank++)
		again[rank] = gather(rig, rig->u, rank);
	for (uint32_t rank = 0; rank < 4; rank++)
		core_expect(core_of(rig, rank), again[rank], 0);
	expect_same_exchanges(rig, 3);
}
