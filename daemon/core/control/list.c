/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list.c - tables for zeroctl: every live object as a row, by ascending id, a page at a time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cluster/cluster.h"
#include "core/control/control.h"
#include "core/control/memory_rows.h"
#include "core/engine/deferred_teardown.h"
#include "core/gather/buffer.h"
#include "core/gather/gather.h"
#include "core/gather/scope.h"
#include "core/gather/shadow.h"
#include "core/memory/allocation.h"
#include "core/reduce/bucket.h"
#include "core/reduce/reduce.h"

#define MAX_HOLDERS 64
#define MAX_WAITS   8

/* An object of the table. */
struct item {
	uint64_t id;
	const void *object;
	const struct zd_request *waiting; /* BUFFERS: a gather without storage, instead of an object */
};

struct listing {
	struct zd_engine *e;
	const struct zd_list_query *query;
	const struct zd_session *asker; /* NULL: sees all */
	uint32_t visits;
	const struct zd_segment *segment; /* BLOCKS: NULL: there is none */
	uint64_t first, last;             /* the asker sees no object whose id is not between these */
};

static bool sees_uid(const struct listing *l, uint32_t uid)
{
	return zd_session_sees_uid(l->asker, uid);
}

/* Whether the query is for rows of this job, or for all. */
static bool asks_for(const struct listing *l, const struct zd_job *job)
{
	const char *only = l->query->job;
	if (!only || !only[0])
		return true;
	return job && strcmp(only, job->name) == 0 &&
	       (!l->query->job_owner || l->query->job_owner == (uint64_t)job->owner->uid + 1);
}

static bool sees(const struct listing *l, const struct zd_job *job)
{
	return sees_uid(l, job->owner->uid) && asks_for(l, job);
}

/* ---- What is listed ------------------------------------------------------------------------------------ */

static const struct zd_job *session_job(const struct zd_session *session)
{
	if (!TAILQ_EMPTY(&session->members))
		return TAILQ_FIRST(&session->members)->group->job;
	if (!TAILQ_EMPTY(&session->allocations))
		return TAILQ_FIRST(&session->allocations)->job;
	return zd_deferred_teardown_job(session);
}

static bool sees_session(const struct listing *l, const struct zd_session *session)
{
	return asks_for(l, session_job(session)) && sees_uid(l, session->uid);
}

/* Skips allocations without memory, and freed ones whose fences are pending. */
static bool sees_allocation(const struct listing *l, const struct zd_allocation *a)
{
	return (a->session || a->durable) && a->extent.block && sees(l, a->job);
}

static bool sees_waiting(const struct listing *l, const struct zd_request *req)
{
	return zd_request_gathers(req) && sees(l, req->member->group->job);
}

/* Sets the item's object, and returns whether it has a row. */
static bool find_object(const struct listing *l, const struct zd_id_node *node, struct item *item)
{
#define OWNER(type)                                                                                          \
	(item->object = ZD_CONTAINER_OF(node, struct type, listed), (const struct type *)item->object)
	switch (l->query->table) {
	case ZD_TABLE_JOBS:
		return sees(l, OWNER(zd_job));
	case ZD_TABLE_SESSIONS:
		return sees_session(l, OWNER(zd_session));
	case ZD_TABLE_GROUPS:
		return sees(l, OWNER(zd_group)->job);
	case ZD_TABLE_UNITS:
		return sees(l, OWNER(zd_unit)->group->job);
	case ZD_TABLE_BUFFERS:
		return sees(l, OWNER(zd_buffer)->unit->group->job);
	case ZD_TABLE_BUCKETS:
		return sees(l, OWNER(zd_bucket)->mr->member->group->job);
	case ZD_TABLE_ALLOCATIONS:
		return sees_allocation(l, OWNER(zd_allocation));
	case ZD_TABLE_SCOPES:
		return sees(l, OWNER(zd_scope)->member->group->job);
	case ZD_TABLE_SEGMENTS:
		return sees(l, OWNER(zd_segment)->job);
	case ZD_TABLE_DEVICES:
	case ZD_TABLE_BLOCKS:
	case ZD_NTABLES:
		break;
	}
	return false;
#undef OWNER
}

/* Where a listing is. In BUFFERS two trees are merged. */
struct place {
	const struct zd_id_node *node, *waiting;
	const struct zd_block *block;
	uint32_t device;
};

static void begin_blocks(struct listing *l, struct place *place)
{
	HASH_FIND(hh, l->e->segments, &l->query->segment, sizeof(l->query->segment), l->segment);
	if (l->segment && sees(l, l->segment->job))
		place->block = zd_block_behind(l->segment->range, l->query->cursor);
}

static void begin_listing(struct listing *l, struct place *place)
{
	const struct zd_list_query *query = l->query;
	if (query->table == ZD_TABLE_BLOCKS)
		begin_blocks(l, place);
	if (query->table == ZD_TABLE_DEVICES)
		place->device = (uint32_t)zd_min_u64(query->cursor, l->e->ndevices);
	else if ((unsigned)query->table < ZD_NTABLES)
		place->node = zd_id_tree_after(&l->e->listed[query->table],
		                               zd_max_u64(query->cursor, l->first));
	if (query->table == ZD_TABLE_BUFFERS)
		place->waiting = zd_id_tree_after(&l->e->waiting, zd_max_u64(query->cursor, l->first));
}

static bool is_at_end(const struct listing *l, const struct place *place)
{
	bool devices_left = l->query->table == ZD_TABLE_DEVICES && place->device < l->e->ndevices;
	bool nodes_left = place->node && place->node->id <= l->last;
	bool waiting_left = place->waiting && place->waiting->id <= l->last;
	return !nodes_left && !waiting_left && !place->block && !devices_left;
}

/* Visits the next object, and returns whether it has a row. */
static bool visit(struct listing *l, struct place *place, struct item *item)
{
	const struct zd_id_node *node = place->node, *waiting = place->waiting;
	l->visits++;
	*item = (struct item){.id = 0};
	if (l->query->table == ZD_TABLE_DEVICES) {
		item->object = &l->e->devices[place->device++];
		item->id = place->device;
		return true;
	}
	if (l->query->table == ZD_TABLE_BLOCKS) {
		zd_assert(place->block);
		item->object = place->block;
		item->id = place->block->offset + 1;
		place->block = place->block->after;
		return true;
	}
	if (waiting && (!node || waiting->id < node->id)) {
		place->waiting = zd_id_tree_next(waiting);
		item->id = waiting->id;
		item->waiting = ZD_CONTAINER_OF(waiting, struct zd_request, listed);
		return sees_waiting(l, item->waiting);
	}
	zd_assert(node);
	place->node = zd_id_tree_next(node);
	item->id = node->id;
	return find_object(l, node, item);
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

typedef bool row_fn(const struct zd_row *row, void *arg);

static bool row_device(const struct listing *l, struct zd_row *row, const struct zd_device *device,
                       row_fn *fn, void *arg)
{
	row->name = device->config.name;
	row->u.device.index = device->index;
	row->u.device.model = device->config.model;
	row->u.device.pci_address = device->config.pci_address;
	row->u.device.host_memory = device->config.host_memory;
	row->u.device.has_host = device->config.has_host;
	row->u.device.host = device->config.host;
	row->u.device.arena_bytes = device->config.arena_bytes;
	row->u.device.segment_bytes = device->segment_bytes;
	const struct zd_segment *segment;
	TAILQ_FOREACH (segment, &device->segments, device_link)
		row->u.device.block_bytes += zd_block_used_bytes(segment->range);
	row->u.device.quarantine_bytes = device->quarantine_bytes;
	row->u.device.gather_budget_bytes = device->config.gather_budget_bytes;
	zd_account_usage(&device->account, &row->u.device.usage);
	row->u.device.gathers = device->gathers;
	row->u.device.joined_gathers = device->joined_gathers;
	row->u.device.fallback_gathers = device->fallback_gathers;
	row->u.device.gathered_bytes = device->gathered_bytes;
	row->u.device.copied_bytes = device->copied_bytes;
	row->u.device.copying_ns = device->copied_ns +
	                           (device->ncopying ? l->e->now_ns - device->copying_ns : 0);
	row->u.device.waiting = device->nqueued;
	row->u.device.denied = l->asker && !zd_session_may_use(l->asker, device->index);
	return fn(row, arg);
}

static bool row_job(struct listing *l, struct zd_row *row, const struct zd_job *job, row_fn *fn, void *arg)
{
	const struct zd_group *group;
	row->job = job->name;
	row->name = job->name;
	row->u.job.uid = job->owner->uid;
	row->u.job.durable = job->durable;
	TAILQ_FOREACH (group, &job->groups, job_link)
		row->u.job.groups++;
	l->visits += row->u.job.groups + HASH_COUNT(l->e->sessions);
	for (const struct zd_session *session = l->e->sessions; session; session = session->hh.next)
		row->u.job.sessions += session_job(session) == job;
	zd_account_usage(&job->account, &row->u.job.usage);
	row->u.job.uid_metadata_bytes = job->owner->metadata_bytes;
	return fn(row, arg);
}

/* zd_wait_text(), which visits gathered buffers of the device for a request that waits for memory. */
static void wait_text(struct listing *l, const struct zd_request *req, char out[ZD_WAIT_TEXT])
{
	if (req->wants_memory && req->device->nbuffers <= ZD_WAIT_TEXT_VISITS)
		l->visits += req->device->nbuffers;
	zd_wait_text(l->e, req, l->asker, out);
}

static bool row_session(struct listing *l, struct zd_row *row, const struct zd_session *session, row_fn *fn,
                        void *arg)
{
	char texts[MAX_WAITS][ZD_WAIT_TEXT];
	const char *waits[MAX_WAITS];
	const struct zd_request *req;
	const struct zd_job *job = session_job(session);
	row->job = job ? job->name : "";
	row->name = session->name;
	row->state = zd_sm_name(&zd_sm_session, session->state);
	row->u.session.uid = session->uid;
	row->u.session.pid = session->pid;
	row->u.session.outstanding = session->outstanding;
	row->u.session.requests = session->nrequests;
	row->u.session.age_ns = l->e->now_ns - session->opened_ns;
	row->u.session.idle_ns = l->e->now_ns - session->requested_ns;
	TAILQ_FOREACH (req, &session->requests, session_link) {
		uint32_t n = row->u.session.nwaits;
		if (n == MAX_WAITS)
			break;
		int used = snprintf(texts[n], sizeof(texts[n]), "%s: ", l->e->types[req->kind]->name);
		char text[ZD_WAIT_TEXT];
		wait_text(l, req, text);
		(void)snprintf(texts[n] + used, sizeof(texts[n]) - (size_t)used, "%.*s",
		               (int)(sizeof(texts[n]) - (size_t)used - 1), text);
		waits[n] = texts[n];
		row->u.session.nwaits++;
	}
	while (row->u.session.nwaits < MAX_WAITS &&
	       zd_deferred_teardown_text(session, row->u.session.nwaits, texts[row->u.session.nwaits])) {
		waits[row->u.session.nwaits] = texts[row->u.session.nwaits];
		row->u.session.nwaits++;
	}
	row->u.session.waits = waits;
	return fn(row, arg);
}

static bool row_group(struct listing *l, struct zd_row *row, const struct zd_group *group, row_fn *fn,
                      void *arg)
{
	struct zd_member_row *members = zd_calloc(group->local_world_size, sizeof(*members));
	row->job = group->job->name;
	row->group = group->name;
	row->name = group->name;
	bool parked = group->state == ZD_GROUP_FAILED && group->attached == 0; /* a durable job's */
	row->state = group->over               ? "OVER"
	             : parked                  ? "PARKED"
	             : zd_group_is_left(group) ? "LEFT"
	                                       : zd_sm_name(&zd_sm_group, group->state);
	row->u.group.world_size = group->world_size;
	row->u.group.units = group->nunits;
	row->u.group.committed_step = group->committed_step;
	row->u.group.doubt_step = zd_group_in_doubt(group) ? group->voted_step : 0;
	row->u.group.torn = group->torn;
	row->u.group.shadow = group->shadow;
	row->u.group.spans = group->local_world_size < group->world_size;
	row->u.group.nccl_collectives = group->cluster && group->cluster->nccl_collectives;
	row->u.group.hybrid = group->cluster && group->cluster->hybrid;
	row->u.group.why = group->aborted_why ? group->aborted_why : "";
	row->u.group.nmembers = group->local_world_size;
	l->visits += group->local_world_size;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_member *member = &group->members[rank];
		members[rank] = (struct zd_member_row){
		        .rank = zd_world_rank(member),
		        .device = member->device ? member->device->index : 0,
		        .session = member->session ? member->session->id : 0,
		        .pid = member->session ? member->session->pid : 0,
		};
	}
	row->u.group.members = members;
	bool more = fn(row, arg);
	free(members);
	return more;
}

/* Ranks may have changed the slot and frozen flag of their parts: the row shows the first rank's. */
static const struct zd_part *first_registered(const struct zd_unit *unit)
{
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		if (zd_part_is_registered(&unit->parts[rank]))
			return &unit->parts[rank];
	}
	return NULL;
}

static bool row_unit(struct listing *l, struct zd_row *row, const struct zd_unit *unit, row_fn *fn, void *arg)
{
	row->job = unit->group->job->name;
	row->group = unit->group->name;
	row->name = unit->name;
	row->u.unit.dtype = unit->dtype;
	row->u.unit.views = unit->nviews ? unit->nviews : 1;
	row->u.unit.numel = unit->numel;
	row->u.unit.padded_bytes = zd_unit_padded_bytes(unit);
	row->u.unit.all_reduce = unit->all_reduce;
	row->u.unit.on_host = unit->on_host;
	row->u.unit.copied = unit->copied;
	const struct zd_part *first = first_registered(unit);
	row->u.unit.slot = first ? first->slot : unit->slot;
	row->u.unit.frozen = first ? first->frozen : unit->frozen;
	row->u.unit.version_min = UINT64_MAX;
	l->visits += unit->group->local_world_size;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		const struct zd_part *part = &unit->parts[rank];
		if (part->state == ZD_PART_ABSENT || part->state == ZD_PART_DYING)
			continue;
		row->u.unit.registered++;
		row->u.unit.gathered += part->buffer != NULL;
		row->u.unit.version_min = zd_min_u64(row->u.unit.version_min, part->version);
		row->u.unit.version_max = zd_max_u64(row->u.unit.version_max, part->version);
	}
	if (row->u.unit.registered == 0)
		row->u.unit.version_min = 0;
	return fn(row, arg);
}

static void row_unit_names(struct zd_row *row, const struct zd_unit *unit)
{
	row->job = unit->group->job->name;
	row->group = unit->group->name;
	row->name = unit->name;
	row->u.buffer.true_bytes = unit->numel * zerod_dtype_bytes(unit->dtype);
}

static bool row_buffer(const struct listing *l, struct zd_row *row, const struct zd_buffer *buffer,
                       row_fn *fn, void *arg)
{
	struct zd_holder_row holders[MAX_HOLDERS];
	const struct zd_lease *lease;
	const struct zd_session *session = zd_part_member(buffer->part)->session;
	char text[ZD_WAIT_TEXT] = "";
	row_unit_names(row, buffer->unit);
	row->u.buffer.padded_bytes = zd_buffer_bytes(buffer);
	row->state = zd_sm_name(&zd_sm_buffer, buffer->state);
	row->u.buffer.rank = zd_world_rank(zd_part_member(buffer->part));
	row->u.buffer.device = buffer->device->index;
	row->u.buffer.version = buffer->version;
	row->u.buffer.age_ns = l->e->now_ns - buffer->since_ns;
	row->u.buffer.persistent = buffer->state != ZD_BUFFER_QUARANTINED && buffer->part->persistent;
	row->u.buffer.prefetched = buffer->prefetched;
	row->u.buffer.in_place = buffer->in_place;
	TAILQ_FOREACH (lease, &buffer->leases, link) {
		if (row->u.buffer.nholders == MAX_HOLDERS)
			break;
		holders[row->u.buffer.nholders++] = (struct zd_holder_row){
		        session ? session->id : 0, lease->tag, lease->uses, l->e->now_ns - lease->since_ns};
	}
	row->u.buffer.holders = holders;
	zd_buffer_wait_text(buffer, text);
	row->u.buffer.waits_for = text;
	return fn(row, arg);
}

static bool row_waiting(struct listing *l, struct zd_row *row, const struct zd_request *req, row_fn *fn,
                        void *arg)
{
	const struct zd_scope *scope = req->u.gather.scope;
	struct zd_holder_row holder = {req->session->id, scope ? scope->tag : req->u.gather.tag,
	                               req->u.gather.uses, l->e->now_ns - req->since_ns};
	char text[ZD_WAIT_TEXT];
	row_unit_names(row, req->u.gather.part->unit);
	row->u.buffer.padded_bytes = zd_part_gathered_bytes(req->u.gather.part);
	row->state = "WAITING";
	row->u.buffer.rank = zd_world_rank(zd_part_member(req->u.gather.part));
	row->u.buffer.device = req->device->index;
	row->u.buffer.version = req->u.gather.version;
	row->u.buffer.age_ns = l->e->now_ns - req->since_ns;
	row->u.buffer.prefetched = req->u.gather.prefetch;
	row->u.buffer.nholders = req->u.gather.prefetch ? 0 : 1; /* a prefetch will hold nothing */
	row->u.buffer.holders = &holder;
	wait_text(l, req, text);
	row->u.buffer.waits_for = text;
	return fn(row, arg);
}

static bool row_bucket(const struct listing *l, struct zd_row *row, const struct zd_bucket *bucket,
                       row_fn *fn, void *arg)
{
	struct zd_bucket_scratch scratch;
	zd_bucket_row(l->e, (struct zd_bucket *)bucket, row, &scratch);
	return fn(row, arg);
}

static bool row_allocation(const struct listing *l, struct zd_row *row, const struct zd_allocation *a,
                           row_fn *fn, void *arg)
{
	row->job = a->job->name;
	row->name = a->name;
	row->u.allocation.session = a->session ? a->session->id : 0;
	row->u.allocation.durable = a->durable;
	row->u.allocation.bytes = a->extent.bytes;
	row->u.allocation.age_ns = l->e->now_ns - a->since_ns;
	row->u.allocation.device = a->device->index;
	return fn(row, arg);
}

static bool row_scope(struct listing *l, struct zd_row *row, const struct zd_scope *scope, row_fn *fn,
                      void *arg)
{
	const struct zd_member *member = scope->member;
	const struct zd_lease *lease;
	row->job = member->group->job->name;
	row->group = member->group->name;
	row->name = scope->tag;
	row->state = zd_sm_name(&zd_sm_scope, scope->state);
	row->u.scope.context = scope->context;
	row->u.scope.rank = zd_world_rank(member);
	row->u.scope.device = member->device->index;
	row->u.scope.session = member->session->id;
	row->u.scope.parent = scope->parent;
	row->u.scope.age_ns = l->e->now_ns - scope->since_ns;
	row->u.scope.units = scope->nleases;
	l->visits += scope->nleases;
	TAILQ_FOREACH (lease, &scope->leases, scope_link)
		row->u.scope.bytes += zd_buffer_bytes(lease->buffer);
	return fn(row, arg);
}

static bool row_segment(struct zd_row *row, const struct zd_segment *segment, row_fn *fn, void *arg)
{
	char text[ZD_WAIT_TEXT];
	zd_segment_row(segment, row, text);
	row->owner = (uint64_t)segment->job->owner->uid + 1;
	return fn(row, arg);
}

static bool row_block(const struct listing *l, struct zd_row *row, const struct zd_block *block, row_fn *fn,
                      void *arg)
{
	char text[ZD_WAIT_TEXT];
	zd_block_row(l->segment, block, row, text);
	row->owner = (uint64_t)l->segment->job->owner->uid + 1;
	return fn(row, arg);
}

static bool row(struct listing *l, const struct item *item, row_fn *fn, void *arg)
{
	struct zd_row r = {
	        .table = l->query->table, .id = item->id, .job = "", .group = "", .name = "", .state = ""};
	r.owner = zd_ids_owner(l->e, item->id);
	switch (l->query->table) {
	case ZD_TABLE_DEVICES:
		return row_device(l, &r, item->object, fn, arg);
	case ZD_TABLE_JOBS:
		return row_job(l, &r, item->object, fn, arg);
	case ZD_TABLE_SESSIONS:
		return row_session(l, &r, item->object, fn, arg);
	case ZD_TABLE_GROUPS:
		return row_group(l, &r, item->object, fn, arg);
	case ZD_TABLE_UNITS:
		return row_unit(l, &r, item->object, fn, arg);
	case ZD_TABLE_BUFFERS:
		return item->waiting ? row_waiting(l, &r, item->waiting, fn, arg)
		                     : row_buffer(l, &r, item->object, fn, arg);
	case ZD_TABLE_BUCKETS:
		return row_bucket(l, &r, item->object, fn, arg);
	case ZD_TABLE_ALLOCATIONS:
		return row_allocation(l, &r, item->object, fn, arg);
	case ZD_TABLE_SCOPES:
		return row_scope(l, &r, item->object, fn, arg);
	case ZD_TABLE_SEGMENTS:
		return row_segment(&r, item->object, fn, arg);
	case ZD_TABLE_BLOCKS:
		return row_block(l, &r, item->object, fn, arg);
	case ZD_NTABLES:
		break;
	}
	return false;
}

uint64_t zd_engine_list(struct zd_engine *e, const struct zd_list_query *query,
                        bool (*fn)(const struct zd_row *row, void *arg), void *arg)
{
	struct listing l = {.e = e, .query = query, .last = UINT64_MAX};
	struct place place = {NULL, NULL, NULL, 0};
	struct item item;
	uint64_t last = query->cursor;
	bool more = true;
	if (query->session) {
		l.asker = zd_session_find(e, query->session);
		if (!l.asker) /* the session has ended: it sees nothing; id 0, the daemon, sees all */
			return 0;
		if (!l.asker->admin && query->table != ZD_TABLE_SEGMENTS) {
			l.first = zd_id_first(l.asker->owner->ids, 0);
			l.last = zd_id_first(l.asker->owner->ids, ZD_NIDS);
		}
	}
	begin_listing(&l, &place);
	while (more && !is_at_end(&l, &place)) {
		if (query->most_visits && l.visits >= query->most_visits)
			break;
		if (visit(&l, &place, &item))
			more = row(&l, &item, fn, arg);
		if (more)
			last = item.id;
	}
	e->list_visits += l.visits;
	return more && is_at_end(&l, &place) ? 0 : last;
}
