/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.c - the engine as a whole: creation, configuration, totals, destruction.
 */
#include <stdio.h>
#include <string.h>

#include "core/cluster/cluster.h"
#include "core/control/control.h"
#include "core/memory/allocation.h"

#define DEFAULT_SEGMENT_BYTES (1ull << 30)
#define SEGMENTS_PER_ARENA    16u /* so that one purpose cannot fill a small arena with one segment */
#define MIN_SEGMENT_BYTES     65536u
#define SEGMENT_ALIGN_BYTES   4096u
#define END_STEP_OBJECTS      16u /* about 10 us */

static void device_init(struct zd_engine *e, uint32_t index, const struct zd_engine_config *config)
{
	struct zd_device *device = &e->devices[index];
	device->index = index;
	device->config = config->devices[index];
	uint64_t align = device->config.segment_align_bytes;
	zd_assert((align & (align - 1)) == 0);
	uint64_t arena = device->config.arena_bytes & ~(zd_max_u64(align, ZD_BLOCK_MIN_ALIGN) - 1);
	zd_assert(arena > 0 && arena <= ZD_MAX_BYTES);
	device->config.arena_bytes = arena;
	if (device->config.gather_budget_bytes == 0)
		device->config.gather_budget_bytes = arena;
	if (device->config.staging_bytes == 0)
		device->config.staging_bytes = zd_max_u64(arena / 8, 1);
	uint64_t usual = config->segment_bytes ? config->segment_bytes : DEFAULT_SEGMENT_BYTES;
	usual = zd_min_u64(usual, zd_max_u64(arena / SEGMENTS_PER_ARENA, MIN_SEGMENT_BYTES));
	if (align == 0)
		device->config.segment_align_bytes = align = SEGMENT_ALIGN_BYTES;
	device->segment_default_bytes = zd_align_up(usual, align);
	device->strict_align_bytes = config->strict_by_segment ? align : ZD_STRICT_ALIGN_BYTES;
	device->queues |= 1ull << index;
	if (device->config.has_host) {
		struct zd_device *host = &e->devices[device->config.host];
		zd_assert(device->config.host < e->ndevices && !device->config.host_memory);
		device->host = host;
		host->queues |= 1ull << index;
	}
	TAILQ_INIT(&device->segments);
	TAILQ_INIT(&device->shared);
	TAILQ_INIT(&device->retiring);
	TAILQ_INIT(&device->with_prefetched);
	TAILQ_INIT(&device->queue);
	TAILQ_INIT(&device->owners);
	TAILQ_INIT(&device->buffers);
	TAILQ_INIT(&device->prefetched);
}

struct zd_engine *zd_engine_new(const struct zd_engine_config *config, const struct zd_engine_sink *sink)
{
	struct zd_engine *e = zd_calloc(1, sizeof(*e));
	uint64_t hosted = 0;
	zd_assert(config->ndevices >= 1 && config->ndevices <= ZD_MAX_DEVICES);
	e->sink = *sink;
	e->events = &zd_control_events;
	e->types = zd_request_types;
	e->ndevices = config->ndevices;
	e->quota_bytes = config->uid_quota_bytes;
	e->reduction_cut_bytes = config->reduction_cut_bytes;
	e->landing_chunk_bytes = config->landing_chunk_bytes;
	e->sessions_linger = config->sessions_linger;
	e->collectives = config->collectives;
	if (config->host)
		strncpy(e->host, config->host, ZD_MAX_NAME_BYTES);
	e->strict_by_segment = config->strict_by_segment;
	e->end_step_objects = config->end_step_objects ? config->end_step_objects : END_STEP_OBJECTS;
	e->next_deadline_ns = e->next_unmap_ns = e->next_unpin_ns = e->next_expiry_ns = UINT64_MAX;
	zd_history_init(&e->history, config->events);
	e->devices = zd_calloc(config->ndevices + 1, sizeof(*e->devices));
	struct zd_device *waits = zd_commit_waits(e);
	waits->index = config->ndevices;
	TAILQ_INIT(&waits->queue);
	TAILQ_INIT(&waits->owners);
	for (uint32_t i = 0; i < config->ndevices; i++) {
		device_init(e, i, config);
		if (!e->devices[i].config.host_memory)
			e->granule_bytes = zd_max_u64(e->granule_bytes,
			                              e->devices[i].config.segment_align_bytes);
		hosted |= e->devices[i].host ? 1ull << i : 0;
	}
	for (uint32_t i = 0; i < config->ndevices; i++) { /* a host copy is in all host memory */
		if (e->devices[i].config.host_memory)
			e->devices[i].queues |= hosted;
	}
	return e;
}

static void sink_nothing(void *arg, const struct zd_command *command)
{
	(void)arg;
	(void)command;
}

static void sink_no_reply(void *arg, const struct zd_reply *reply)
{
	(void)arg;
	(void)reply;
}

static void sink_no_retire(void *arg, uint64_t session, uint32_t segment)
{
	(void)arg;
	(void)session;
	(void)segment;
}

/* Ends sessions and durable jobs as usual, and then completes the operations that no executor will
 * complete. */
void zd_engine_free(struct zd_engine *e)
{
	if (!e)
		return;
	struct zd_session *session, *next_session;
	struct zd_job *job, *next_job;
	struct zd_op *op, *next_op;
	struct zd_owner *owner, *next_owner;
	e->sink.command = sink_nothing;
	e->sink.reply = sink_no_reply;
	e->sink.segment_retire = sink_no_retire;
	e->sink.segment_kept = NULL; /* the next daemon restores the segments of this one */
	e->sink.ends = NULL;
	for (job = e->jobs; job; job = job->hh.next)
		job->journal = NULL;
	e->journal.on = false;
	HASH_ITER (hh, e->owners, owner, next_owner)
		zd_endings_finish(e, owner);
	HASH_ITER (hh, e->sessions, session, next_session) {
		zd_engine_session_close(e, session->id);
	}
	HASH_ITER (hh, e->jobs, job, next_job) {
		if (job->durable)
			zd_job_end(e, job);
	}
	while (e->ops) {
		HASH_ITER (hh, e->ops, op, next_op) {
			zd_engine_op_done(e, op->id, ZEROD_E_SHUTDOWN, "the daemon ends", NULL);
			break;
		}
	}
	zd_assert(!e->groups && !e->jobs && !e->segments && !e->allocations && !e->scopes);
	free(e->journal.bytes);
	free(e->spare_request);
	zd_used_ids_free(e);
	zd_deadlines_deinit(&e->deadlines);
	zd_ids_free(e);
	free(e->devices);
	zd_history_deinit(&e->history);
	free(e);
}

void zd_engine_keep_ended(struct zd_engine *e, const char *why)
{
	(void)snprintf(e->keep_ended, sizeof(e->keep_ended), "%s", why);
}

void zd_engine_set_kept_room(struct zd_engine *e, uint32_t nsegments)
{
	e->kept_room = nsegments;
}

void zd_engine_set_quota(struct zd_engine *e, uint64_t uid_quota_bytes)
{
	e->quota_bytes = uid_quota_bytes;
}

void zd_engine_set_uid_limits(struct zd_engine *e, const struct zd_uid_limits *limits)
{
	e->uid_limits = *limits;
	zd_jobs_expire(e);
}

void zd_engine_set_gather_budget(struct zd_engine *e, uint32_t device, uint64_t bytes)
{
	zd_assert(device < e->ndevices);
	e->devices[device].config.gather_budget_bytes = bytes ? bytes : e->devices[device].config.arena_bytes;
	zd_dirty(e, &e->devices[device]);
	zd_settle(e);
}

bool zd_engine_segment(const struct zd_engine *e, uint32_t id, uint32_t *device, uint64_t *bytes)
{
	struct zd_segment *segment;
	HASH_FIND(hh, e->segments, &id, sizeof(id), segment);
	if (!segment)
		return false;
	*device = segment->device->index;
	*bytes = segment->bytes;
	return true;
}

uint64_t zd_engine_host_memory(const struct zd_engine *e)
{
	uint64_t bits = 0;
	for (uint32_t i = 0; i < e->ndevices; i++)
		bits |= (uint64_t)e->devices[i].config.host_memory << i;
	return bits;
}

bool zd_engine_may_map(const struct zd_engine *e, uint64_t session_id, uint32_t id)
{
	struct zd_segment *segment;
	struct zd_session *session;
	const struct zd_member *member;
	const struct zd_allocation *allocation;
	HASH_FIND(hh, e->segments, &id, sizeof(id), segment);
	HASH_FIND(hh, e->sessions, &session_id, sizeof(session_id), session);
	if (!segment || !session || segment->state != ZD_SEGMENT_READY)
		return false;
	if (session->reads.segment == id)
		return true;
	TAILQ_FOREACH (member, &session->members, session_link) {
		if (member->group->job == segment->job &&
		    (member->device == segment->device || member->device->host == segment->device))
			return true;
	}
	TAILQ_FOREACH (allocation, &session->allocations, session_link) {
		if (allocation->job == segment->job && allocation->device == segment->device)
			return true;
	}
	return false;
}

void zd_engine_totals(const struct zd_engine *e, struct zd_engine_totals *totals)
{
	const uint64_t *counters = e->metrics.counters;
	*totals = (struct zd_engine_totals){
	        .sessions = HASH_COUNT(e->sessions) - e->nclosing,
	        .jobs = HASH_COUNT(e->jobs),
	        .durable_jobs = e->ndurable,
	        .groups = HASH_COUNT(e->groups),
	        .gathers = counters[ZD_COUNT_GATHERS_TRANSFERRED],
	        .joined_gathers = counters[ZD_COUNT_GATHERS_JOINED],
	        .fallback_gathers = counters[ZD_COUNT_FALLBACK_GATHERS],
	        .gathered_bytes_total = counters[ZD_COUNT_GATHERED_BYTES],
	        .list_visits = e->list_visits,
	};
	for (uint32_t kind = 0; kind < ZD_NREQUESTS; kind++)
		totals->requests += e->metrics.requests[kind];
	for (const struct zd_owner *owner = e->owners; owner; owner = owner->hh.next)
		totals->metadata_bytes += owner->metadata_bytes;
	totals->usage = zd_account_usage(&e->account);
}

void zd_engine_copies(const struct zd_engine *e, uint32_t device, uint64_t *bytes, uint64_t *busy_ns)
{
	const struct zd_device *d = &e->devices[device];
	*bytes = d->copied_bytes;
	*busy_ns = d->copied_ns + (d->ncopying ? e->now_ns - d->copying_ns : 0);
}

uint32_t zd_engine_durable_jobs(const struct zd_engine *e)
{
	return e->ndurable;
}

void zd_engine_metrics(const struct zd_engine *e, struct zd_metrics_view *view)
{
	*view = (struct zd_metrics_view){
	        .metrics = &e->metrics, .nwaits = ZD_NWAITS, .waits = e->waits, .wait_names = zd_wait_names};
}
