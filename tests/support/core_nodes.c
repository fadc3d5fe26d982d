/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core_nodes.c - the daemons of one group, and the team of ranks that each has.
 */
#include <stdio.h>

#include "core_net.h"

static uint32_t world_size(const struct core_nodes *nodes)
{
	return nodes->nnodes * nodes->local_world_size;
}

struct core_team *core_nodes_team(struct core_nodes *nodes, uint32_t rank)
{
	return &nodes->node[rank / nodes->local_world_size];
}

struct core_driver *core_nodes_core(struct core_nodes *nodes, uint32_t rank)
{
	return core_nodes_team(nodes, rank)->core;
}

uint64_t core_nodes_session(struct core_nodes *nodes, uint32_t rank)
{
	return core_nodes_team(nodes, rank)->session[rank % nodes->local_world_size];
}

void core_nodes_new_ids(struct core_nodes *nodes)
{
	struct zd_args args = {.kind = ZD_REQ_UNIQUE_IDS};
	args.u.unique_ids.count = nodes->ids_bytes / ZD_UNIQUE_ID_BYTES;
	args.u.unique_ids.job = (char *)"job";
	args.u.unique_ids.group = (char *)"world";
	const struct zd_reply *reply = core_call(nodes->node[0].core, nodes->node[0].session[0], &args, 0);
	assert_int_equal(reply->u.unique_ids.ids.len, nodes->ids_bytes);
	memcpy(nodes->ids, reply->u.unique_ids.ids.data, nodes->ids_bytes);
}

static void node_open(struct core_nodes *nodes, uint32_t index, const struct core_nodes_config *config)
{
	static const char *const hosts[CORE_NODES] = {"ant", "bee", "cat"};
	struct core_team *team = &nodes->node[index];
	struct core_options options = config->options;
	options.net = nodes->net;
	options.host = hosts[index];
	if (options.ndevices == 0)
		options.ndevices = nodes->local_world_size;
	team->core = core_new(&options);
	team->world_size = world_size(nodes);
	team->nranks = nodes->local_world_size;
	team->first_rank = index * nodes->local_world_size;
	for (uint32_t rank = 0; rank < team->nranks; rank++)
		team->session[rank] = (config->strict ? core_open_strict : core_open)(team->core, CORE_ALICE);
}

void core_nodes_open(struct core_nodes *nodes, const struct core_nodes_config *config)
{
	static const struct core_nodes_config defaults;
	if (!config)
		config = &defaults;
	*nodes = (struct core_nodes){.net = core_net_new(),
	                             .nnodes = config->nnodes ? config->nnodes : 2,
	                             .local_world_size = config->local_world_size ? config->local_world_size
	                                                                          : 2};
	assert_true(nodes->nnodes <= CORE_NODES && world_size(nodes) <= CORE_TEAM);
	for (uint32_t i = 0; i < nodes->nnodes; i++)
		node_open(nodes, i, config);
	nodes->ids_bytes = (config->exchange ? 1 : nodes->local_world_size) * ZD_NCOMM_ROLES *
	                   ZD_UNIQUE_ID_BYTES;
	core_nodes_new_ids(nodes);
}

struct core_join core_nodes_join(const struct core_nodes *nodes, const struct core_nodes_config *config,
                                 uint32_t rank)
{
	static const struct core_nodes_config defaults;
	if (!config)
		config = &defaults;
	struct core_row device;
	uint32_t local = rank % nodes->local_world_size;
	uint32_t ndevices = core_rows(nodes->node[0].core, ZD__TABLE__DEVICES, &device, 1);
	return (struct core_join){.world_size = world_size(nodes),
	                          .rank = rank,
	                          .device = local % ndevices,
	                          .durable = config->durable,
	                          .shadow = config->shadow,
	                          .local_world_size = nodes->local_world_size,
	                          .hybrid = config->hybrid,
	                          .exchange = config->exchange,
	                          .ids = nodes->ids,
	                          .ids_bytes = nodes->ids_bytes};
}

void core_nodes_join_all(struct core_nodes *nodes, const struct core_nodes_config *config)
{
	uint64_t request[CORE_TEAM];
	for (uint32_t rank = 0; rank < world_size(nodes); rank++) {
		struct core_join join = core_nodes_join(nodes, config, rank);
		request[rank] = core_join(core_nodes_core(nodes, rank), core_nodes_session(nodes, rank),
		                          &join);
	}
	for (uint32_t rank = 0; rank < world_size(nodes); rank++) {
		struct core_team *team = core_nodes_team(nodes, rank);
		team->group = core_expect(team->core, request[rank], 0)->u.group_join.group;
	}
}

void core_nodes_new(struct core_nodes *nodes, const struct core_nodes_config *config)
{
	core_nodes_open(nodes, config);
	core_nodes_join_all(nodes, config);
}

void core_nodes_register(struct core_nodes *nodes, const struct core_unit *unit, uint64_t id[CORE_NODES])
{
	for (uint32_t i = 0; i < nodes->nnodes; i++)
		id[i] = core_team_register(&nodes->node[i], unit);
}

void core_nodes_publish(struct core_nodes *nodes, const uint64_t id[CORE_NODES])
{
	for (uint32_t i = 0; i < nodes->nnodes; i++)
		core_team_publish(&nodes->node[i], id[i]);
}

void core_nodes_unit(struct core_nodes *nodes, const char *name, uint64_t padded_bytes,
                     uint64_t id[CORE_NODES])
{
	struct core_unit unit = {.name = name, .numel = padded_bytes / 4, .slot = ZEROD_NO_SLOT};
	assert_true(padded_bytes % ((uint64_t)world_size(nodes) * ZD_SHARD_ALIGN_BYTES) == 0);
	core_nodes_register(nodes, &unit, id);
	core_nodes_publish(nodes, id);
}

void core_nodes_end(void *rig)
{
	core_net_end(((struct core_nodes *)rig)->net);
}
