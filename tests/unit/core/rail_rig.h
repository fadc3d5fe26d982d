/* SPDX-License-Identifier: Apache-2.0 */
/* rail_rig.h - two units on all ranks of a group that spans daemons. */
#ifndef ZD_TESTS_RAIL_RIG_H
#define ZD_TESTS_RAIL_RIG_H

#include "base/mem.h"
#include "tests/support/core_net.h"

#define UNIT_BYTES 1024u

/* Of a session's daemon page, for a device. */
#define EXCHANGE(device) (ZD_MAX_DEVICES + (device))
#define RELAYS(device)   (2 * ZD_MAX_DEVICES + (device))

struct rig {
	struct core_nodes nodes;
	uint64_t u[CORE_NODES], v[CORE_NODES]; /* at version 1 on all ranks */
};

static inline void rig_new(struct rig *rig, const struct core_nodes_config *config)
{
	core_nodes_new(&rig->nodes, config);
	core_nodes_unit(&rig->nodes, "u", UNIT_BYTES, rig->u);
	core_nodes_unit(&rig->nodes, "v", UNIT_BYTES, rig->v);
}

/* A test of `rig`, whose nodes have a config such as ".durable = true". */
#define RIG_TEST(name, ...)                                                                                  \
	TEST_DEFINE(name, struct rig *rig, struct rig rig;                                                   \
	            rig_new(&rig, &(struct core_nodes_config){__VA_ARGS__}),                                 \
	            (name(&rig), core_net_end(rig.nodes.net)), NULL, NULL)

static inline uint32_t world(const struct rig *rig)
{
	return rig->nodes.nnodes * rig->nodes.local_world_size;
}

static inline struct core_driver *core_of(struct rig *rig, uint32_t rank)
{
	return core_nodes_core(&rig->nodes, rank);
}

static inline uint64_t session_of(struct rig *rig, uint32_t rank)
{
	return core_nodes_session(&rig->nodes, rank);
}

static inline uint64_t on(const struct rig *rig, const uint64_t unit[CORE_NODES], uint32_t rank)
{
	return unit[rank / rig->nodes.local_world_size];
}

static inline uint64_t gather(struct rig *rig, const uint64_t unit[CORE_NODES], uint32_t rank)
{
	return core_gather(core_of(rig, rank), session_of(rig, rank), on(rig, unit, rank));
}

static inline bool passed(struct rig *rig, uint32_t rank, const struct zd_reply *reply)
{
	for (uint32_t i = 0; i < reply->fences.count; i++) {
		struct zd_fence fence = reply->fences.fences[i];
		if (!zd_fence_reached(
		            core_timeline(core_of(rig, rank), session_of(rig, rank), fence.timeline),
		            fence.value))
			return false;
	}
	return true;
}

/* Checks that the gathered bytes are those of the version, and that the fences of the reply have passed. */
static inline const struct zd_reply *expect_bytes(struct rig *rig, uint32_t rank, uint64_t request,
                                                  uint64_t version)
{
	const struct zd_reply *reply = core_expect(core_of(rig, rank), request, 0);
	assert_true(passed(rig, rank, reply));
	core_team_check(core_nodes_team(&rig->nodes, rank), reply, version);
	return reply;
}

static inline void release(struct rig *rig, const uint64_t unit[CORE_NODES], uint32_t rank)
{
	core_expect(core_of(rig, rank),
	            core_release(core_of(rig, rank), session_of(rig, rank), on(rig, unit, rank)), 0);
}

/* All ranks gather, have the bytes, and release. */
static inline void pass(struct rig *rig, const uint64_t unit[CORE_NODES], uint64_t version)
{
	uint64_t request[CORE_TEAM] = {0};
	for (uint32_t rank = 0; rank < world(rig); rank++)
		request[rank] = gather(rig, unit, rank);
	for (uint32_t rank = 0; rank < world(rig); rank++)
		(void)expect_bytes(rig, rank, request[rank], version);
	for (uint32_t rank = 0; rank < world(rig); rank++)
		release(rig, unit, rank);
}

static inline void leave(struct rig *rig, uint32_t rank)
{
	core_do(core_of(rig, rank), session_of(rig, rank), ZD_REQ_GROUP_LEAVE,
	        core_nodes_team(&rig->nodes, rank)->group);
}

static inline uint64_t send_commit(struct rig *rig, uint32_t rank, uint64_t step)
{
	return core_commit(core_of(rig, rank), session_of(rig, rank),
	                   core_nodes_team(&rig->nodes, rank)->group, step);
}

static inline void commit_all(struct rig *rig, uint64_t step)
{
	uint64_t request[CORE_TEAM] = {0};
	for (uint32_t rank = 0; rank < world(rig); rank++)
		request[rank] = send_commit(rig, rank, step);
	for (uint32_t rank = 0; rank < world(rig); rank++)
		core_expect(core_of(rig, rank), request[rank], 0);
}

static inline void expect_state(struct rig *rig, uint32_t node, const char *state)
{
	struct core_row row;
	core_row(rig->nodes.node[node].core, ZD__TABLE__GROUPS, rig->nodes.node[node].group, &row);
	assert_string_equal(row.state, state);
}

/* Streams of the rank that wait for the timeline are freed, and it is known that they ran on garbage. */
static inline void expect_freed(struct rig *rig, uint32_t rank, uint32_t timeline)
{
	assert_true(core_timeline(core_of(rig, rank), session_of(rig, rank), timeline) == ZD_FENCE_ABORTED);
	core_expect(core_of(rig, rank), send_commit(rig, rank, 99), ZEROD_E_POISONED);
}

static inline void expect_not_freed(struct rig *rig, uint32_t rank, uint32_t timeline)
{
	assert_true(core_timeline(core_of(rig, rank), session_of(rig, rank), timeline) != ZD_FENCE_ABORTED);
}

/* Starts a gather on all ranks, of which on daemon 0 only what is relayed has not ended. */
static inline void gather_up_to_relays(struct rig *rig, uint64_t request[4])
{
	core_hold(core_of(rig, 0), ZD_CMD_COPY);
	for (uint32_t rank = 0; rank < 4; rank++)
		request[rank] = gather(rig, rig->u, rank);
	for (uint32_t i = 0; i < 4; i++)
		core_run_on(core_of(rig, 0), ZD_CMD_COPY, i % 2);
	assert_int_equal(core_pending(core_of(rig, 0), ZD_CMD_COPY), 2);
}

#endif
