/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of a rail that ask for the same in the same order make the same exchanges, however long each of them waits.
 */
#include "rail_rig.h"

static uint64_t set_persistent(struct rig *rig, const uint64_t unit[CORE_NODES], uint32_t rank)
{
	return core_set_persistent(core_of(rig, rank), session_of(rig, rank), on(rig, unit, rank), true);
}

/* ---- Joined again ----------------------------------------------------------------------------------------------- */

static void join_again(struct rig *rig, const struct core_nodes_config *config)
{
	struct core_unit unit = {.name = "u", .numel = UNIT_BYTES / 4, .slot = ZEROD_NO_SLOT};
	for (uint32_t rank = 0; rank < 4; rank++) {
		core_close(core_of(rig, rank), session_of(rig, rank));
		core_nodes_team(&rig->nodes, rank)->session[rank % 2] = core_open(core_of(rig, rank),
		                                                                  CORE_ALICE);
	}
	core_nodes_new_ids(&rig->nodes);
	core_nodes_join_all(&rig->nodes, config);
	core_nodes_register(&rig->nodes, &unit, rig->u);
}

/* Whether a copy stays is what its rank says when it comes again: a former life may have ended before all ranks had said so. */
static void test_persistence_after_rejoin(void **state)
{
	static const struct core_nodes_config config = {.durable = true};
	struct rig rig;
	uint64_t request[4];
	(void)state;
	rig_new(&rig, &config);
	commit_all(&rig, 1);
	for (uint32_t rank = 0; rank < 2; rank++)
		core_expect(core_of(&rig, rank), set_persistent(&rig, rig.u, rank), 0);
	join_again(&rig, &config);
	pass(&rig, rig.u, 1);
	assert_int_equal(core_usage(core_of(&rig, 0)).gathered_bytes, 0);
	for (uint32_t rank = 0; rank < 4; rank++)
		request[rank] = gather(&rig, rig.u, rank);
	for (uint32_t rank = 0; rank < 4; rank++) {
		const struct zd_reply *reply = expect_bytes(&rig, rank, request[rank], 1);
		assert_true(passed(&rig, rank, reply));
	}
	core_net_end(rig.nodes.net);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_persistence_after_rejoin),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
