// SPDX-License-Identifier: Apache-2.0
/*
 * rank.c - one rank of a measurement: its connection, its membership, its unit, and calls that most
 * measurements make.
 */
#include "bench.h"

#include <stdio.h>
#include <unistd.h>

#include "base/mem.h"
#include "client/lib/conn/request.h"
#include "proto/limits.h"

static int connect_to(const char *socket_path, zerod_client **client)
{
	struct zerod_options options = ZEROD_INIT(options);
	options.socket_path = socket_path;
	options.name = "zerobench";
	return zerod_connect(&options, client);
}

int zd_bench_connect(const char *socket_path, zerod_client **client, struct zd_err *err)
{
	const int status = connect_to(socket_path, client);
	if (status)
		return zd_err_set(err, status, "%s: %s", zerod_status_name(status), zerod_last_error(NULL));
	return 0;
}

void zd_rank_connect(struct zd_rank *rank, const struct zd_member *member,
                     const struct zd_rank_options *options)
{
	*rank = (struct zd_rank){.member = member};
	zd_member_check(member, connect_to(options->socket_path, &rank->client), NULL, "zerod_connect");
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

void zd_rank_make_id(const struct zd_rank *rank, const struct zd_rank_options *options,
                     struct zerod_unique_id *id)
{
	char job[JOB_TEXT];
	const struct zerod_group_options group = group_options(options, job);
	ZD_CALL(rank, zerod_group_unique_id, rank->client, &group, NULL, id);
}

zerod_unit *zd_rank_register(const struct zd_rank *rank, const struct zerod_unit_options *options,
                             struct zerod_shard *shard)
{
	zerod_unit *unit;
	ZD_CALL(rank, zerod_unit_register, rank->group, options, &unit);
	if (shard)
		ZD_CALL(rank, zerod_shard_get, unit, ZD_SIZED(shard));
	return unit;
}

void zd_rank_join(struct zd_rank *rank, const struct zd_rank_options *options)
{
	char job[JOB_TEXT];
	const struct zerod_group_options group = group_options(options, job);
	struct zerod_unit_options unit = ZEROD_INIT(unit);
	ZD_CALL(rank, zerod_group_join, rank->client, &group, &rank->group);
	unit.name = "bench";
	unit.dtype = options->dtype;
	unit.numel = options->numel;
	if (unit.numel)
		rank->unit = zd_rank_register(rank, &unit, &rank->shard);
}

void zd_rank_init(struct zd_rank *rank, const struct zd_member *member, const struct zd_rank_options *options)
{
	zd_rank_connect(rank, member, options);
	zd_rank_join(rank, options);
}

void zd_rank_publish(const struct zd_rank *rank, zerod_unit *const *units, uint32_t count)
{
	for (uint32_t first = 0; first < count; first += ZD_MAX_UNITS_PER_REQUEST) {
		const uint32_t some = (uint32_t)zd_min_u64(count - first, ZD_MAX_UNITS_PER_REQUEST);
		ZD_CALL(rank, zerod_update_begin, units + first, some, NULL, NULL);
		ZD_CALL(rank, zerod_publish, units + first, some, NULL, 0, NULL, NULL);
	}
}

zerod_bucket *zd_rank_bucket(const struct zd_rank *rank, enum zerod_dtype dtype, uint64_t slot_bytes,
                             uint32_t nslots)
{
	struct zerod_bucket_options options = ZEROD_INIT(options);
	zerod_bucket *bucket;
	options.dtype = dtype;
	options.slot_bytes = slot_bytes;
	options.nslots = nslots;
	ZD_CALL(rank, zerod_bucket_create, rank->group, &options, &bucket);
	return bucket;
}

void zd_rank_backward_begin(const struct zd_rank *rank)
{
	struct zerod_backward_options options = ZEROD_INIT(options);
	options.boundary = 1;
	ZD_CALL(rank, zerod_backward_begin, rank->group, &options);
}

void zd_rank_step_begin(const struct zd_rank *rank)
{
	struct zerod_step_info info = ZEROD_INIT(info);
	ZD_CALL(rank, zerod_step_begin, rank->group, NULL, &info, NULL);
}

void zd_rank_step_end(const struct zd_rank *rank)
{
	ZD_CALL(rank, zerod_step_end, rank->group, NULL, 0, NULL);
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
	status->pid = reply->daemon_status->pid;
	status->client_pid = reply->daemon_status->client_pid;
	status->resident_bytes = reply->daemon_status->resident_bytes;
	return 0;
}

int zd_bench_status(zerod_client *client, struct zd_bench_status *status)
{
	Zd__DaemonStatus body = ZD__DAEMON_STATUS__INIT;
	Zd__Request request = ZD_REQUEST(DAEMON_STATUS, daemon_status, &body);
	return zc_call(client, &request, 0, take_status, status);
}
