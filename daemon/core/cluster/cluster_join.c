/* SPDX-License-Identifier: Apache-2.0 */
/* cluster_join.c - group_join: checks and stores the arguments that concern other daemons. */
#include <stdlib.h>
#include <string.h>

#include "core/cluster/cluster.h"
#include "core/engine/objects.h"

static uint32_t local_ranks(const struct zd_args *args)
{
	uint32_t local = args->u.group_join.local_world_size;
	return local ? local : args->u.group_join.world_size;
}

/* Whether all ranks are on one rail: by request, or because each daemon has one rank. */
static bool uses_nccl_collectives(const struct zd_args *args)
{
	return args->u.group_join.collectives == ZD__COLLECTIVES__NCCL ||
	       (local_ranks(args) == 1 && args->u.group_join.world_size > 1 && !args->u.group_join.hybrid);
}

static bool spans(const struct zd_args *args)
{
	return uses_nccl_collectives(args) || local_ranks(args) < args->u.group_join.world_size;
}

static uint32_t rails(const struct zd_args *args)
{
	return uses_nccl_collectives(args) ? 1 : local_ranks(args);
}

static int check_sizes(const struct zd_args *args, struct zd_err *err)
{
	uint32_t world = args->u.group_join.world_size, local = local_ranks(args);
	if (local > world || world % local != 0)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "group '%s': %u ranks in each daemon, of a world of %u",
		                  args->u.group_join.group, local, world);
	if (args->u.group_join.hybrid &&
	    (args->u.group_join.collectives == ZD__COLLECTIVES__NCCL || local == world))
		return zd_err_set(
		        err, ZEROD_E_INVALID,
		        "group '%s' is hybrid: it needs ranks in several daemons, and copies inside",
		        args->u.group_join.group);
	if (spans(args) && rails(args) * ZD_NCOMM_ROLES > ZD_MAX_UNIQUE_IDS)
		return zd_err_set(err, ZEROD_E_LIMIT, "group '%s': %u ranks in each daemon; at most %u",
		                  args->u.group_join.group, local, ZD_MAX_UNIQUE_IDS / ZD_NCOMM_ROLES);
	return 0;
}

static int check_ids(const struct zd_args *args, struct zd_err *err)
{
	uint32_t had = args->u.group_join.unique_ids.len;
	uint32_t want = spans(args) ? rails(args) * ZD_NCOMM_ROLES * ZD_UNIQUE_ID_BYTES : 0;
	if (had == want || (had == 0 && local_ranks(args) == args->u.group_join.world_size))
		return 0;
	if (want == 0)
		return zd_err_set(
		        err, ZEROD_E_INVALID,
		        "group '%s': all ranks are in one daemon and use copies; it has no unique id",
		        args->u.group_join.group);
	return zd_err_set(err, ZEROD_E_INVALID, "group '%s': a unique id of %u bytes; it needs one of %u",
	                  args->u.group_join.group, had, want);
}

int zd_cluster_check_group(const struct zd_group *group, const struct zd_args *args, struct zd_err *err)
{
	const struct zd_cluster *cluster = group->cluster;
	uint32_t rank = args->u.group_join.rank, local = local_ranks(args);
	if (group->local_world_size != local)
		return zd_err_set(err, ZEROD_E_MISMATCH,
		                  "group '%s' has %u ranks in each daemon; rank %u says %u", group->name,
		                  group->local_world_size, rank, local);
	if ((cluster && cluster->nccl_collectives) != uses_nccl_collectives(args))
		return zd_err_set(
		        err, ZEROD_E_MISMATCH, "group '%s' %s; rank %u says it %s", group->name,
		        cluster && cluster->nccl_collectives ? "uses NCCL's collectives" : "uses copies",
		        rank, uses_nccl_collectives(args) ? "uses NCCL's collectives" : "uses copies");
	if ((cluster && cluster->hybrid) != args->u.group_join.hybrid)
		return zd_err_set(err, ZEROD_E_MISMATCH, "group '%s' is %s; rank %u says it is %s",
		                  group->name, cluster && cluster->hybrid ? "hybrid" : "not hybrid", rank,
		                  args->u.group_join.hybrid ? "hybrid" : "not hybrid");
	if (rank / local * local != group->first_rank)
		return zd_err_set(err, ZEROD_E_MISMATCH,
		                  "rank %u of group '%s' joins the daemon of ranks %u to %u", rank,
		                  group->name, group->first_rank, group->first_rank + local - 1);
	/* If all ranks have left, the first rank that joins provides new ids. */
	if (cluster && group->attached > 0 && cluster->given && args->u.group_join.unique_ids.len > 0 &&
	    memcmp(cluster->ids, args->u.group_join.unique_ids.data, cluster->ids_bytes) != 0)
		return zd_err_set(err, ZEROD_E_MISMATCH,
		                  "group '%s': ranks %u and %u give different unique ids", group->name,
		                  cluster->ids_rank, rank);
	return 0;
}

int zd_cluster_check(const struct zd_engine *e, const struct zd_args *args, struct zd_err *err)
{
	int status = check_sizes(args, err);
	if (status == 0 && spans(args) && !e->collectives)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "group '%s' needs communicators; this daemon's backend has none",
		                  args->u.group_join.group);
	if (status == 0)
		status = check_ids(args, err);
	return status;
}

int zd_cluster_check_new(const struct zd_engine *e, const struct zd_args *args, struct zd_err *err)
{
	if (args->u.group_join.unique_ids.len == 0 || !zd_ids_are_used(e, args->u.group_join.unique_ids.data))
		return 0;
	return zd_err_set(err, ZEROD_E_PERMISSION,
	                  "group '%s': the unique id was used already, and each is used once: make a new one",
	                  args->u.group_join.group);
}

static uint32_t cluster_nranks(const struct zd_args *args)
{
	return args->u.group_join.world_size / (uses_nccl_collectives(args) ? 1 : local_ranks(args));
}

static uint32_t cluster_ids_bytes(const struct zd_args *args)
{
	return rails(args) * ZD_NCOMM_ROLES * ZD_UNIQUE_ID_BYTES;
}

size_t zd_cluster_metadata_bytes(const struct zd_args *args)
{
	const struct zd_cluster *cluster;
	if (!spans(args))
		return 0;
	return sizeof(*cluster) + cluster_ids_bytes(args) + cluster_nranks(args) * sizeof(*cluster->hosts);
}

struct zd_cluster *zd_cluster_new(const struct zd_args *args)
{
	if (!spans(args))
		return NULL;
	struct zd_cluster *cluster = zd_calloc(1, sizeof(*cluster));
	cluster->nccl_collectives = uses_nccl_collectives(args);
	cluster->hybrid = args->u.group_join.hybrid;
	cluster->nranks = cluster_nranks(args);
	cluster->ids_bytes = cluster_ids_bytes(args);
	cluster->ids = zd_calloc(1, cluster->ids_bytes);
	cluster->hosts = zd_calloc(cluster->nranks, sizeof(*cluster->hosts));
	return cluster;
}

void zd_cluster_take_ids(const struct zd_engine *e, struct zd_cluster *cluster, const struct zd_args *args)
{
	cluster->ids_until_ns = e->now_ns + args->ids_left_s * UINT64_C(1000000000);
	cluster->given = args->u.group_join.unique_ids.len > 0;
	cluster->ids_rank = args->u.group_join.rank;
	if (cluster->given)
		memcpy(cluster->ids, args->u.group_join.unique_ids.data, cluster->ids_bytes);
}

void zd_cluster_free(struct zd_cluster *cluster)
{
	if (!cluster)
		return;
	free(cluster->ids);
	free(cluster->hosts);
	free(cluster);
}
