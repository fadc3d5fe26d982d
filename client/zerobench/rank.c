// SPDX-License-Identifier: Apache-2.0
/*
 * rank.c - one rank of a measurement: its connection, its membership and its unit.
 */
#include "bench.h"

#include <stdio.h>
#include <unistd.h>

#include "base/mem.h"
#include "client/lib/conn/request.h"
#include "proto/limits.h"

int zd_rank_connect(struct zd_rank *rank, const struct zd_member *member,
                    const struct zd_rank_options *options)
{
	*rank = (struct zd_rank){0};
	struct zerod_options connect = ZEROD_INIT(connect);
	connect.socket_path = options->socket_path;
	connect.name = "zerobench";
	return zd_member_check(member, zerod_connect(&connect, &rank->client), NULL, "zerod_connect");
}

#define JOB_TEXT 64

/* The job's name contains the parent's pid, which all members of a team share. */
static struct zerod_group_options group_options(const struct zd_rank_options *options, char job[JOB_TEXT])
{
	snprintf(job, JOB_TEXT, "zerobench-%d", (int)getppid());
	struct zerod_group_options group = ZEROD_INIT(group);
	group.job = job;
	group.world_size = options->world_size;
	group.rank = options->rank;
	group.device = options->rank % options->devices;
	group.local_world_size = options->local_world_size;
	group.collectives = options->collectives;
	group.unique_id = options->unique_id;
	return group;
}

int zd_rank_make_id(const struct zd_rank *rank, const struct zd_member *member,
                    const struct zd_rank_options *options, struct zerod_unique_id *id)
{
	char job[JOB_TEXT];
	const struct zerod_group_options group = group_options(options, job);
	return zd_member_check(member, zerod_group_unique_id(rank->client, &group, NULL, id), rank->client,
	                       "zerod_group_unique_id");
}

static int join_group(struct zd_rank *rank, const struct zd_member *member,
                      const struct zd_rank_options *options)
{
	char job[JOB_TEXT];
	const struct zerod_group_options group = group_options(options, job);
	return zd_member_check(member, zerod_group_join(rank->client, &group, &rank->group), rank->client,
	                       "zerod_group_join");
}

int zd_rank_join(struct zd_rank *rank, const struct zd_member *member, const struct zd_rank_options *options)
{
	int status = join_group(rank, member, options);
	if (status || options->numel == 0)
		return status;
	struct zerod_unit_options unit = ZEROD_INIT(unit);
	unit.name = "bench";
	unit.dtype = options->dtype;
	unit.numel = options->numel;
	status = zd_member_check(member, zerod_unit_register(rank->group, &unit, &rank->unit), rank->client,
	                         "zerod_unit_register");
	if (status)
		return status;
	return zd_member_check(member, zerod_shard_get(rank->unit, ZD_SIZED(&rank->shard)), rank->client,
	                       "zerod_shard_get");
}

int zd_rank_init(struct zd_rank *rank, const struct zd_member *member, const struct zd_rank_options *options)
{
	int status = zd_rank_connect(rank, member, options);
	return status ? status : zd_rank_join(rank, member, options);
}

int zd_rank_publish(const struct zd_member *member, const struct zd_rank *rank, zerod_unit *const *units,
                    uint32_t count)
{
	for (uint32_t first = 0; first < count; first += ZD_MAX_UNITS_PER_REQUEST) {
		const uint32_t some = (uint32_t)zd_min_u64(count - first, ZD_MAX_UNITS_PER_REQUEST);
		int status = zd_member_check(member, zerod_update_begin(units + first, some, NULL, NULL),
		                             rank->client, "zerod_update_begin");
		if (!status)
			status = zd_member_check(member,
			                         zerod_publish(units + first, some, NULL, 0, NULL, NULL),
			                         rank->client, "zerod_publish");
		if (status)
			return status;
	}
	return 0;
}

void zd_rank_deinit(struct zd_rank *rank)
{
	zerod_group_leave(rank->group, NULL);
	zerod_close(rank->client);
	*rank = (struct zd_rank){0};
}

static int take_status(const Zd__Reply *reply, void *arg)
{
	struct zd_bench_status *status = arg;
	if (reply->body_case != ZD__REPLY__BODY_DAEMON_STATUS)
		return ZEROD_E_PROTOCOL;
	snprintf(status->daemon, sizeof(status->daemon), "%s", reply->daemon_status->daemon);
	snprintf(status->backend, sizeof(status->backend), "%s", reply->daemon_status->backend);
	status->devices = reply->daemon_status->devices;
	status->resident_bytes = reply->daemon_status->resident_bytes;
	return 0;
}

int zd_bench_status(zerod_client *client, struct zd_bench_status *status)
{
	Zd__DaemonStatus body = ZD__DAEMON_STATUS__INIT;
	Zd__Request request = ZD_REQUEST(DAEMON_STATUS, daemon_status, &body);
	return zc_call(client, &request, 0, take_status, status);
}
