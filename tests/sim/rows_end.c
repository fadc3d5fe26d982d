/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows_end.c - the tables when all is over: which durable jobs are to be ended, and then nothing.
 */
#include <string.h>

#include "sim.h"

static void list(struct zd_sim_world *world, Zd__Table table, zd_row_fn *fn, void *arg)
{
	const Zd__List query = {.table = table};

	(void)zd_engine_list(world->engine, 0, &query, 0, fn, arg);
}

static bool any_row(uint64_t id, const Zd__Row *row, void *arg)
{
	zd_sim_fail(arg, "when all is over, row %llu of table %d is left", (unsigned long long)id,
	            (int)row->row_case);
}

static bool empty_device(uint64_t id, const Zd__Row *row, void *arg)
{
	const Zd__Usage *usage = row->device->usage;
	uint64_t charged = usage->shard_bytes + usage->gathered_bytes + usage->bucket_bytes +
	                   usage->staging_bytes + usage->target_bytes + usage->allocation_bytes;

	(void)id;
	if (charged || row->device->block_bytes || row->device->quarantine_bytes ||
	    row->device->segment_bytes)
		zd_sim_fail(arg,
		            "when all is over, device %u has %llu bytes charged, %llu in blocks, %llu in "
		            "segments",
		            row->device->index, (unsigned long long)charged,
		            (unsigned long long)row->device->block_bytes,
		            (unsigned long long)row->device->segment_bytes);
	return true;
}

void zd_sim_empty_check(struct zd_sim_world *world)
{
	for (Zd__Table table = ZD__TABLE__JOBS; table < ZD_NTABLES; table++)
		list(world, table, any_row, world);
	list(world, ZD__TABLE__DEVICES, empty_device, world);
	if (world->nsegments)
		zd_sim_fail(world, "when all is over, segment %u is left", world->segments[0].id);
}

struct wanted_job {
	const struct zd_sim_job_config *config;
	uint64_t id;
};

static bool find_job(uint64_t id, const Zd__Row *row, void *arg)
{
	struct wanted_job *wanted = arg;

	if (row->job->uid == wanted->config->uid && strcmp(row->job->name, wanted->config->name) == 0)
		wanted->id = id;
	return true;
}

uint64_t zd_sim_job_id(struct zd_sim_world *world, uint32_t job)
{
	struct wanted_job wanted = {.config = &world->config.jobs[job]};

	list(world, ZD__TABLE__JOBS, find_job, &wanted);
	return wanted.id;
}

static bool find_durable(uint64_t id, const Zd__Row *row, void *arg)
{
	if (row->job->durable)
		*(uint64_t *)arg = id;
	return true;
}

uint64_t zd_sim_durable_job(struct zd_sim_world *world)
{
	uint64_t id = 0;

	list(world, ZD__TABLE__JOBS, find_durable, &id);
	return id;
}
