/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows_end.c - the tables when all is over: which durable jobs are to be ended, and then nothing.
 */
#include <string.h>

#include "sim.h"

static void list(struct zd_sim_world *world, enum zd_table table, bool (*fn)(const struct zd_row *, void *),
                 void *arg)
{
	struct zd_list_query query = {.table = table};

	(void)zd_engine_list(world->engine, &query, fn, arg);
}

static bool any_row(const struct zd_row *row, void *arg)
{
	zd_sim_fail(arg, "when all is over, row %llu of table %d is left: %s/%s/%s %s",
	            (unsigned long long)row->id, (int)row->table, row->job, row->group, row->name,
	            row->state);
}

static bool empty_device(const struct zd_row *row, void *arg)
{
	const struct zd_usage *usage = &row->u.device.usage;
	uint64_t charged = usage->shard_bytes + usage->gathered_bytes + usage->bucket_bytes +
	                   usage->staging_bytes + usage->target_bytes + usage->allocation_bytes;

	if (charged || row->u.device.block_bytes || row->u.device.quarantine_bytes ||
	    row->u.device.segment_bytes)
		zd_sim_fail(arg,
		            "when all is over, device %u has %llu bytes charged, %llu in blocks, %llu in "
		            "segments",
		            row->u.device.index, (unsigned long long)charged,
		            (unsigned long long)row->u.device.block_bytes,
		            (unsigned long long)row->u.device.segment_bytes);
	return true;
}

void zd_sim_empty_check(struct zd_sim_world *world)
{
	for (enum zd_table table = ZD_TABLE_JOBS; table < ZD_NTABLES; table++)
		list(world, table, any_row, world);
	list(world, ZD_TABLE_DEVICES, empty_device, world);
	if (world->nsegments)
		zd_sim_fail(world, "when all is over, segment %u is left", world->segments[0].id);
}

struct wanted_job {
	const struct zd_sim_job_config *config;
	uint64_t id;
};

static bool find_job(const struct zd_row *row, void *arg)
{
	struct wanted_job *wanted = arg;

	if (row->u.job.uid == wanted->config->uid && strcmp(row->name, wanted->config->name) == 0)
		wanted->id = row->id;
	return true;
}

uint64_t zd_sim_job_id(struct zd_sim_world *world, uint32_t job)
{
	struct wanted_job wanted = {.config = &world->config.jobs[job]};

	list(world, ZD_TABLE_JOBS, find_job, &wanted);
	return wanted.id;
}

static bool find_durable(const struct zd_row *row, void *arg)
{
	if (row->u.job.durable)
		*(uint64_t *)arg = row->id;
	return true;
}

uint64_t zd_sim_durable_job(struct zd_sim_world *world)
{
	uint64_t id = 0;

	list(world, ZD_TABLE_JOBS, find_durable, &id);
	return id;
}
