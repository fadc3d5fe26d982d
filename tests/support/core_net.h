/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core_net.h - communicators between the driven engines of one process, matched as NCCL would.
 *
 * Drivers with the same net (struct core_options) are daemons that reach each other. Ranks of a communicator
 * are those that were opened with one id; when all are open, all have met. The Nth operation of every rank
 * belongs together: it may end on any of them as soon as all have given theirs. Its bytes are read from a
 * rank's memory until it ends there, and written to a rank's when it ends there, so whoever reads too early,
 * or writes again, is seen. Ends are held, chosen and failed as those of other commands are: core_hold(),
 * core_run_one(), core_run_nth(), core_fail_next().
 *
 * Ranks that give different operations fail the test, unless it says that they may. What waits for a rank
 * that will never come does so until core_net_expire().
 */
#ifndef ZD_TESTS_CORE_NET_H
#define ZD_TESTS_CORE_NET_H

#include "core_driver.h"

struct core_net *core_net_new(void);
/* From here on the driver's ranks say something else in agreements: the `bytes` at `offset` are these. As a
 * daemon might that is broken, or of another version. */
void core_net_lie(struct core_net *net, const struct core_driver *core, uint32_t offset, const void *says,
                  uint32_t bytes);
/* The deadline of all that waits for other ranks passes. */
void core_net_expire(struct core_net *net);
/* Closes all sessions of all drivers, core_end()s these, and expects that no communicator is left. Fails when
 * a rank waits for others that did not come, unless one has left or failed, or core_net_expire() says that
 * they may. */
void core_net_end(struct core_net *net);
/* The same with the net of the struct core_nodes that `rig` begins with. */
void core_nodes_end(void *rig);

/* ---- Nodes: the daemons of one group ------------------------------------------------------------------- */

#define CORE_NODES 3

struct core_nodes {
	struct core_net *net;
	uint32_t nnodes, local_world_size;
	struct core_team node[CORE_NODES];
	unsigned char ids[ZD_MAX_UNIQUE_IDS * ZD_UNIQUE_ID_BYTES];
	uint32_t ids_bytes;
};

struct core_nodes_config {
	uint32_t nnodes, local_world_size; /* 0: 2, 2 */
	bool exchange, durable, shadow, hybrid;
	bool strict;                 /* sessions */
	struct core_options options; /* of every driver; 0 devices: one a rank */
};

/* Drivers with open sessions, and ids, that nobody has joined with. NULL: as all defaults are. */
void core_nodes_open(struct core_nodes *nodes, const struct core_nodes_config *config);
/* The same, and all ranks are in a group. */
void core_nodes_new(struct core_nodes *nodes, const struct core_nodes_config *config);
/* Other ids than before, for all. */
void core_nodes_new_ids(struct core_nodes *nodes);
/* The arguments with which that rank of the world joins. `config` as for core_nodes_new(). */
struct core_join core_nodes_join(const struct core_nodes *nodes, const struct core_nodes_config *config,
                                 uint32_t rank);
/* All ranks join, and must get 0. */
void core_nodes_join_all(struct core_nodes *nodes, const struct core_nodes_config *config);
struct core_team *core_nodes_team(struct core_nodes *nodes, uint32_t rank);
struct core_driver *core_nodes_core(struct core_nodes *nodes, uint32_t rank);
uint64_t core_nodes_session(struct core_nodes *nodes, uint32_t rank);
/* The unit's id is by node. */
void core_nodes_register(struct core_nodes *nodes, const struct core_unit *unit, uint64_t id[CORE_NODES]);
/* A float32 unit of that padded size, registered and published once by all. */
void core_nodes_unit(struct core_nodes *nodes, const char *name, uint64_t padded_bytes,
                     uint64_t id[CORE_NODES]);
void core_nodes_publish(struct core_nodes *nodes, const uint64_t id[CORE_NODES]);

/* A test of `nodes` with a config such as ".durable = true". All ranks are in a group. */
#define NODES_TEST(name, ...) CORE_NODES_TEST(name, core_nodes_new, __VA_ARGS__)
/* The same with ids that nobody has joined with. */
#define OPEN_NODES_TEST(name, ...) CORE_NODES_TEST(name, core_nodes_open, __VA_ARGS__)
#define CORE_NODES_TEST(name, open, ...)                                                                     \
	TEST_DEFINE(name, struct core_nodes *nodes, struct core_nodes nodes;                                 \
	            open(&nodes, &(struct core_nodes_config){__VA_ARGS__}),                                  \
	            (name(&nodes), core_net_end(nodes.net)), NULL, NULL)

/* ---- Of the driver ------------------------------------------------------------------------------------- */

void core_net_join(struct core_net *net, struct core_driver *core);
void core_net_leave(struct core_net *net, struct core_driver *core);
/* Whether the net executes commands of that kind: UNIQUE_IDS, COMM_OPEN, EXCHANGE, AGREE. */
bool core_net_has(enum zd_command_kind kind);
void core_net_give(struct core_net *net, struct core_driver *core, const struct zd_command *command);
void core_net_close(struct core_net *net, struct core_driver *core, const struct zd_command *command);
/* Whether the command may end. */
bool core_net_may_end(const struct core_net *net, const struct core_driver *core,
                      const struct zd_command *command);
/* Ends it, with the bytes, and returns its status. `status`: the test's own, 0: none. The caller frees
 * result->values. */
int core_net_complete(struct core_net *net, struct core_driver *core, const struct zd_command *command,
                      int status, struct zd_op_result *result, const char **error);
/* Until nothing more happens in any driver. */
void core_net_settle(struct core_net *net);

#endif
