/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core_restart.c - a driven engine that records durable jobs, and ends as a killed daemon does.
 */
#include <stdio.h>
#include <sys/queue.h>

#include "base/err.h"
#include "base/mem.h"
#include "core_driver_internal.h"
#include "core_net.h"

void core_journal_store(struct core_driver *core)
{
	const uint8_t *bytes;
	size_t nbytes;
	if (!core->journal)
		return;
	nbytes = zd_engine_journal_take(core->engine, &bytes);
	core->journal = zd_realloc(core->journal, core->journal_bytes + nbytes + 1, 1);
	memcpy(core->journal + core->journal_bytes, bytes, nbytes);
	core->journal_bytes += nbytes;
}

static void sink_segment_kept(void *arg, uint32_t id, bool kept)
{
	struct segment *segment = core_segment(arg, id);
	assert_true(segment && segment->kept != kept);
	segment->kept = kept;
}

static int sink_segment_restore(void *arg, uint32_t device, uint32_t id, uint64_t bytes, struct zd_err *err)
{
	struct segment *segment = core_segment(arg, id);
	(void)device;
	if (!segment || !segment->kept || segment->bytes != bytes)
		return zd_err_set(err, ZEROD_E_INVALID, "segment %u of %llu bytes was not kept", id,
		                  (unsigned long long)bytes);
	segment->restored = true;
	return 0;
}

static void journal_all(struct core_driver *core)
{
	core->journal = zd_realloc(core->journal, 1, 1);
	core->journal_bytes = 0;
	zd_engine_journal_all(core->engine);
	core_journal_store(core);
}

void core_journal(struct core_driver *core)
{
	assert_null(core->journal);
	journal_all(core);
}

const uint8_t *core_journal_bytes(const struct core_driver *core, size_t *nbytes)
{
	*nbytes = core->journal_bytes;
	return core->journal;
}

/* Of the engine that is killed. */
static void drop_engine(struct core_driver *core)
{
	struct session *session;
	struct segment *segment;
	struct pending *p;
	if (core->net)
		core_net_leave(core->net, core);
	core->abandoned = true;
	zd_engine_free(core->engine);
	core->abandoned = false;
	while ((p = TAILQ_FIRST(&core->commands))) {
		TAILQ_REMOVE(&core->commands, p, link);
		free(p);
	}
	TAILQ_FOREACH (segment, &core->segments, link)
		segment->restored = false;
	TAILQ_FOREACH (session, &core->sessions, link) {
		session->gone |= session->open && !core->sessions_linger;
		session->open = false;
		session->ntold = 0;
	}
}

/* The memory that the engine has not asked for ends with the former one. */
static void drop_segments(struct core_driver *core)
{
	struct segment *segment, *next;
	for (segment = TAILQ_FIRST(&core->segments); segment; segment = next) {
		next = TAILQ_NEXT(segment, link);
		if (segment->restored)
			continue;
		TAILQ_REMOVE(&core->segments, segment, link);
		free(segment->data);
		free(segment);
	}
}

void core_restart(struct core_driver *core)
{
	struct zd_err err = ZD_ERR_NONE;
	assert_non_null(core->journal);
	drop_engine(core);
	if (core->net)
		core_net_join(core->net, core);
	core->engine = zd_engine_new(&core->config, &core->sink);
	zd_engine_tick(core->engine, core->now_ns);
	if (zd_engine_restore(core->engine, core->journal, core->journal_bytes, &err) != 0)
		fail_msg("the restore failed: %s", err.text);
	drop_segments(core);
	journal_all(core);
	core_settle(core);
}

static void trial_command(void *arg, const struct zd_command *command)
{
	(void)arg;
	(void)command;
}

int core_try_restore(struct core_driver *core, const struct core_trial *trial, struct zd_err *err)
{
	struct zd_device_config devices[ZD_MAX_DEVICES];
	struct zd_engine_config config = core->config;
	struct zd_engine_sink sink = {
	        .arg = core, .command = trial_command, .segment_restore = sink_segment_restore};
	struct zd_engine *engine;
	int status;
	memcpy(devices, core->devices, sizeof(devices));
	config.devices = devices;
	if (trial->ndevices)
		config.ndevices = trial->ndevices;
	for (uint32_t i = 0; i < config.ndevices && trial->arena_bytes; i++)
		devices[i].arena_bytes = trial->arena_bytes;
	if (trial->device_name)
		(void)snprintf(devices[0].name, sizeof(devices[0].name), "%s", trial->device_name);
	engine = zd_engine_new(&config, &sink);
	status = zd_engine_restore(engine, trial->bytes, trial->nbytes, err);
	if (status == 0 && !trial->damaged)
		zd_engine_check(engine);
	zd_engine_free(engine);
	return status;
}

static bool sink_segment_is_kept(void *arg, uint32_t id)
{
	const struct segment *segment = core_segment(arg, id);
	return segment && !segment->lost;
}

void core_lose_segment(struct core_driver *core, uint32_t segment)
{
	core_segment(core, segment)->lost = true;
}

void core_restart_sink(struct zd_engine_sink *sink)
{
	sink->segment_kept = sink_segment_kept;
	sink->segment_is_kept = sink_segment_is_kept;
	sink->segment_restore = sink_segment_restore;
}
