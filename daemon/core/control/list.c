/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list.c - tables for zeroctl: a row for every live object, by ascending id, one page per request.
 *
 * A row is a message. Its texts and lists belong to the object, or are on the stack of the row's function.
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
	const Zd__List *query;
	zd_row_fn *fn;
	void *arg;
	const struct zd_session *asker; /* NULL: sees all */
	uint32_t visits;
	struct item item;
	const struct zd_segment *segment; /* BLOCKS; NULL: not found */
	uint64_t first, last;             /* the asker sees no object with an id outside this range */
};

static bool sees_uid(const struct listing *l, uint32_t uid)
{
	return zd_session_sees_uid(l->asker, uid);
}

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

/* The group that the session reads. NULL: no group, or it has ended, or the asker cannot read it. */
static const struct zd_group *read_group(const struct listing *l, const struct zd_session *session)
{
	const struct zd_group *group;
	HASH_FIND(hh, l->e->groups, &session->reads.group, sizeof(session->reads.group), group);
	bool reads = !l->asker || l->asker->reads_others || (group && sees_uid(l, group->job->owner->uid));
	return reads ? group : NULL;
}

static bool sees_session(const struct listing *l, const struct zd_session *session)
{
	const struct zd_group *group = read_group(l, session);
	return (asks_for(l, session_job(session)) || (group && asks_for(l, group->job))) &&
	       sees_uid(l, session->uid);
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
static bool find_object(struct listing *l, const struct zd_id_node *node)
{
#define OWNER(type)                                                                                          \
	(l->item.object = ZD_CONTAINER_OF(node, struct type, listed), (const struct type *)l->item.object)
	switch (l->query->table) {
	case ZD__TABLE__JOBS:
		return sees(l, OWNER(zd_job));
	case ZD__TABLE__SESSIONS:
		return sees_session(l, OWNER(zd_session));
	case ZD__TABLE__GROUPS:
		return sees(l, OWNER(zd_group)->job);
	case ZD__TABLE__UNITS:
		return sees(l, OWNER(zd_unit)->group->job);
	case ZD__TABLE__BUFFERS:
		return sees(l, OWNER(zd_buffer)->unit->group->job);
	case ZD__TABLE__BUCKETS:
		return sees(l, OWNER(zd_bucket)->mr->member->group->job);
	case ZD__TABLE__ALLOCATIONS:
		return sees_allocation(l, OWNER(zd_allocation));
	case ZD__TABLE__SCOPES:
		return sees(l, OWNER(zd_scope)->member->group->job);
	case ZD__TABLE__SEGMENTS:
		return sees(l, OWNER(zd_segment)->job);
	default:
		return false;
	}
#undef OWNER
}

/* The position of a listing. In BUFFERS two trees are merged. */
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
	const Zd__List *query = l->query;
	if (query->table == ZD__TABLE__BLOCKS)
		begin_blocks(l, place);
	if (query->table == ZD__TABLE__DEVICES)
		place->device = (uint32_t)zd_min_u64(query->cursor, l->e->ndevices);
	else if ((unsigned)query->table < ZD_NTABLES)
		place->node = zd_id_tree_after(&l->e->listed[query->table],
		                               zd_max_u64(query->cursor, l->first));
	if (query->table == ZD__TABLE__BUFFERS)
		place->waiting = zd_id_tree_after(&l->e->waiting, zd_max_u64(query->cursor, l->first));
}

static bool is_at_end(const struct listing *l, const struct place *place)
{
	bool devices_left = l->query->table == ZD__TABLE__DEVICES && place->device < l->e->ndevices;
	bool nodes_left = place->node && place->node->id <= l->last;
	bool waiting_left = place->waiting && place->waiting->id <= l->last;
	return !nodes_left && !waiting_left && !place->block && !devices_left;
}

/* Visits the next object, and returns whether it has a row. */
static bool visit(struct listing *l, struct place *place)
{
	struct item *item = &l->item;
	const struct zd_id_node *node = place->node, *waiting = place->waiting;
	l->visits++;
	*item = (struct item){.id = 0};
	if (l->query->table == ZD__TABLE__DEVICES) {
		item->object = &l->e->devices[place->device++];
		item->id = place->device;
		return true;
	}
	if (l->query->table == ZD__TABLE__BLOCKS) {
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
	return find_object(l, node);
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

static bool give(const struct listing *l, const Zd__Row *row)
{
	return l->fn(l->item.id, row, l->arg);
}

static bool row_device(const struct listing *l, Zd__Row *row, const struct zd_device *device)
{
	Zd__DeviceRow to = ZD__DEVICE_ROW__INIT;
	Zd__Usage usage = zd_account_usage(&device->account);
	const struct zd_segment *segment;
	to.index = device->index;
	to.name = (char *)device->config.name;
	to.model = (char *)device->config.model;
	to.pci_address = (char *)device->config.pci_address;
	to.host_memory = device->config.host_memory;
	to.host = device->config.has_host ? device->config.host + 1 : 0;
	to.arena_bytes = device->config.arena_bytes;
	to.segment_bytes = device->segment_bytes;
	TAILQ_FOREACH (segment, &device->segments, device_link)
		to.block_bytes += zd_block_used_bytes(segment->range);
	to.quarantine_bytes = device->quarantine_bytes;
	to.gather_budget_bytes = device->config.gather_budget_bytes;
	to.usage = &usage;
	to.gathers = device->gathers;
	to.joined_gathers = device->joined_gathers;
	to.fallback_gathers = device->fallback_gathers;
	to.gathered_bytes_total = device->gathered_bytes;
	to.waiting = device->nqueued;
	to.state = (char *)(l->asker && !zd_session_may_use(l->asker, device->index) ? "denied" : "ok");
	row->device = &to;
	return give(l, row);
}

static bool row_job(struct listing *l, Zd__Row *row, const struct zd_job *job)
{
	Zd__JobRow to = ZD__JOB_ROW__INIT;
	Zd__Usage usage = zd_account_usage(&job->account);
	const struct zd_group *group;
	to.id = job->id;
	to.name = job->name;
	to.uid = job->owner->uid;
	to.durable = job->durable;
	TAILQ_FOREACH (group, &job->groups, job_link)
		to.groups++;
	l->visits += to.groups + HASH_COUNT(l->e->sessions);
	for (const struct zd_session *session = l->e->sessions; session; session = session->hh.next)
		to.sessions += session_job(session) == job;
	to.usage = &usage;
	to.uid_metadata_bytes = job->owner->metadata_bytes;
	row->job = &to;
	return give(l, row);
}

/* Writes zd_wait_text(), and counts its visits: for a request that waits for memory, it visits gathered
 * buffers of the device. */
static void wait_text(struct listing *l, const struct zd_request *req, char out[ZD_WAIT_TEXT])
{
	if (req->wants_memory && req->device->nbuffers <= ZD_WAIT_TEXT_VISITS)
		l->visits += req->device->nbuffers;
	zd_wait_text(l->e, req, l->asker, out);
}

static void fill_reads(struct listing *l, Zd__Reads *reads, const struct zd_session *session)
{
	const struct zd_group *group = read_group(l, session);
	const struct zd_request *req;
	if (!group)
		return;
	reads->job = group->job->name;
	reads->group = group->name;
	reads->step = session->reads.step;
	reads->bytes = session->reads.bytes;
	l->visits += session->outstanding;
	TAILQ_FOREACH (req, &session->requests, session_link)
		reads->copies += req->kind == ZD_REQ_UNIT_READ ? req->pending_ops : 0;
}

static bool row_session(struct listing *l, Zd__Row *row, const struct zd_session *session)
{
	char texts[MAX_WAITS][ZD_WAIT_TEXT], *waits[MAX_WAITS];
	Zd__SessionRow to = ZD__SESSION_ROW__INIT;
	Zd__Reads reads = ZD__READS__INIT;
	const struct zd_request *req;
	const struct zd_job *job = session_job(session);
	fill_reads(l, &reads, session);
	to.reads = &reads;
	to.id = session->id;
	if (job)
		to.job = job->name;
	to.name = (char *)session->name;
	to.state = (char *)zd_sm_name(&zd_sm_session, session->state);
	to.uid = session->uid;
	to.pid = session->pid;
	to.outstanding = session->outstanding;
	to.requests = session->nrequests;
	to.age_ns = l->e->now_ns - session->opened_ns;
	to.idle_ns = l->e->now_ns - session->requested_ns;
	to.waits = waits;
	for (size_t i = 0; i < MAX_WAITS; i++)
		waits[i] = texts[i];
	TAILQ_FOREACH (req, &session->requests, session_link) {
		if (to.n_waits == MAX_WAITS)
			break;
		char *out = waits[to.n_waits++], text[ZD_WAIT_TEXT];
		int used = snprintf(out, ZD_WAIT_TEXT, "%s: ", zd_request_name(req->kind));
		wait_text(l, req, text);
		(void)snprintf(out + used, ZD_WAIT_TEXT - (size_t)used, "%.*s", ZD_WAIT_TEXT - used - 1,
		               text);
	}
	while (to.n_waits < MAX_WAITS &&
	       zd_deferred_teardown_text(session, (uint32_t)to.n_waits, texts[to.n_waits]))
		to.n_waits++;
	row->session = &to;
	return give(l, row);
}

static bool row_group(struct listing *l, Zd__Row *row, const struct zd_group *group)
{
	Zd__GroupRow to = ZD__GROUP_ROW__INIT;
	Zd__Member *members = zd_calloc(group->local_world_size, sizeof(*members));
	bool parked = group->state == ZD_GROUP_FAILED && group->attached == 0; /* a durable job's */
	to.id = group->id;
	to.job = group->job->name;
	to.name = group->name;
	to.state = (char *)(group->over               ? "OVER"
	                    : parked                  ? "PARKED"
	                    : zd_group_is_left(group) ? "LEFT"
	                                              : zd_sm_name(&zd_sm_group, group->state));
	to.world_size = group->world_size;
	to.units = group->nunits;
	to.committed_step = group->committed_step;
	to.doubt_step = zd_group_in_doubt(group) ? group->voted_step : 0;
	to.torn = group->torn;
	to.shadow = group->shadow;
	if (group->cluster && group->cluster->nccl_collectives)
		to.collectives = ZD__COLLECTIVES__NCCL;
	to.hybrid = group->cluster && group->cluster->hybrid;
	if (group->aborted_why)
		to.why = group->aborted_why;
	to.local_world_size = group->local_world_size;
	to.members = zd_calloc(group->local_world_size, sizeof(Zd__Member *));
	to.n_members = group->local_world_size;
	l->visits += group->local_world_size;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_member *member = &group->members[rank];
		members[rank] = (Zd__Member)ZD__MEMBER__INIT;
		members[rank].rank = zd_world_rank(member);
		members[rank].device = member->device ? member->device->index : 0;
		members[rank].session = member->session ? member->session->id : 0;
		members[rank].pid = member->session ? member->session->pid : 0;
		to.members[rank] = &members[rank];
	}
	to.first_rank = members[0].rank;
	row->group = &to;
	bool more = give(l, row);
	free(to.members);
	free(members);
	return more;
}

/* Ranks can have changed the slot and frozen flag of their parts. The row shows the first rank's. */
static const struct zd_part *first_registered(const struct zd_unit *unit)
{
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		if (zd_part_is_registered(&unit->parts[rank]))
			return &unit->parts[rank];
	}
	return NULL;
}

static bool row_unit(struct listing *l, Zd__Row *row, const struct zd_unit *unit)
{
	Zd__UnitRow to = ZD__UNIT_ROW__INIT;
	const struct zd_part *first = first_registered(unit);
	to.id = unit->id;
	to.job = unit->group->job->name;
	to.group = unit->group->name;
	to.name = unit->name;
	to.dtype = unit->dtype;
	to.views = unit->nviews ? unit->nviews : 1;
	to.numel = unit->numel;
	to.padded_bytes = zd_unit_padded_bytes(unit);
	to.all_reduce = unit->all_reduce;
	to.on_host = unit->on_host;
	to.slot = first ? first->slot : unit->slot;
	to.frozen = first ? first->frozen : unit->frozen;
	to.version_min = UINT64_MAX;
	l->visits += unit->group->local_world_size;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		const struct zd_part *part = &unit->parts[rank];
		if (part->state == ZD_PART_ABSENT || part->state == ZD_PART_DYING)
			continue;
		to.registered++;
		to.gathered += part->buffer != NULL;
		to.version_min = zd_min_u64(to.version_min, part->version);
		to.version_max = zd_max_u64(to.version_max, part->version);
	}
	if (to.registered == 0)
		to.version_min = 0;
	row->unit = &to;
	return give(l, row);
}

/* Fills in the fields that a buffer shares with a gather that waits for a buffer. */
static Zd__BufferRow buffer_of(const struct listing *l, const struct zd_part *part, uint64_t since_ns)
{
	Zd__BufferRow to = ZD__BUFFER_ROW__INIT;
	const struct zd_unit *unit = part->unit;
	to.id = l->item.id;
	to.job = unit->group->job->name;
	to.group = unit->group->name;
	to.unit = unit->name;
	to.true_bytes = unit->numel * zerod_dtype_bytes(unit->dtype);
	to.rank = zd_world_rank(zd_part_member(part));
	to.age_ns = l->e->now_ns - since_ns;
	return to;
}

static Zd__Holder holder_of(const struct listing *l, const struct zd_session *session, const char *tag,
                            uint32_t uses, uint64_t since_ns)
{
	Zd__Holder holder = ZD__HOLDER__INIT;
	holder.session = session ? session->id : 0;
	holder.tag = (char *)tag;
	holder.uses = uses;
	holder.age_ns = l->e->now_ns - since_ns;
	return holder;
}

static bool row_buffer(const struct listing *l, Zd__Row *row, const struct zd_buffer *buffer)
{
	Zd__BufferRow to = buffer_of(l, buffer->part, buffer->since_ns);
	Zd__Holder holders[MAX_HOLDERS], *pointers[MAX_HOLDERS];
	const struct zd_lease *lease;
	const struct zd_session *session = zd_part_member(buffer->part)->session;
	char text[ZD_WAIT_TEXT] = "";
	to.padded_bytes = zd_buffer_bytes(buffer);
	to.state = (char *)zd_sm_name(&zd_sm_buffer, buffer->state);
	to.device = buffer->device->index;
	to.version = buffer->version;
	to.persistent = buffer->state != ZD_BUFFER_QUARANTINED && buffer->part->persistent;
	to.prefetched = buffer->prefetched;
	to.in_place = zd_buffer_is_in_place(buffer);
	TAILQ_FOREACH (lease, &buffer->leases, link) {
		if (to.n_holders == MAX_HOLDERS)
			break;
		holders[to.n_holders] = holder_of(l, session, lease->tag, lease->uses, lease->since_ns);
		pointers[to.n_holders] = &holders[to.n_holders];
		to.n_holders++;
	}
	to.holders = pointers;
	zd_buffer_wait_text(buffer, text);
	to.waits_for = text;
	row->buffer = &to;
	return give(l, row);
}

static bool row_waiting(struct listing *l, Zd__Row *row, const struct zd_request *req)
{
	Zd__BufferRow to = buffer_of(l, req->u.gather.part, req->since_ns);
	const struct zd_scope *scope = req->u.gather.scope;
	Zd__Holder holder = holder_of(l, req->session, scope ? scope->tag : req->u.gather.tag,
	                              req->u.gather.uses, req->since_ns);
	Zd__Holder *pointer = &holder;
	char text[ZD_WAIT_TEXT];
	to.padded_bytes = zd_part_gathered_bytes(req->u.gather.part);
	to.state = (char *)"WAITING";
	to.device = req->device->index;
	to.version = req->u.gather.version;
	to.prefetched = req->u.gather.prefetch;
	to.n_holders = req->u.gather.prefetch ? 0 : 1; /* a prefetch will hold no lease */
	to.holders = &pointer;
	wait_text(l, req, text);
	to.waits_for = text;
	row->buffer = &to;
	return give(l, row);
}

static bool row_bucket(const struct listing *l, Zd__Row *row, const struct zd_bucket *bucket)
{
	Zd__BucketRow to = ZD__BUCKET_ROW__INIT;
	struct zd_bucket_scratch scratch;
	zd_bucket_row(l->e, bucket, &to, &scratch);
	row->bucket = &to;
	return give(l, row);
}

static bool row_allocation(const struct listing *l, Zd__Row *row, const struct zd_allocation *a)
{
	Zd__AllocationRow to = ZD__ALLOCATION_ROW__INIT;
	to.id = a->id;
	to.job = a->job->name;
	to.name = (char *)a->name;
	to.session = a->session ? a->session->id : 0;
	to.durable = a->durable;
	to.bytes = a->extent.bytes;
	to.age_ns = l->e->now_ns - a->since_ns;
	to.device = a->device->index;
	row->allocation = &to;
	return give(l, row);
}

static bool row_scope(struct listing *l, Zd__Row *row, const struct zd_scope *scope)
{
	Zd__ScopeRow to = ZD__SCOPE_ROW__INIT;
	const struct zd_member *member = scope->member;
	const struct zd_lease *lease;
	to.id = scope->id;
	to.job = member->group->job->name;
	to.group = member->group->name;
	to.tag = (char *)scope->tag;
	to.state = (char *)zd_sm_name(&zd_sm_scope, scope->state);
	to.context = scope->context;
	to.rank = zd_world_rank(member);
	to.device = member->device->index;
	to.session = member->session->id;
	to.parent = scope->parent;
	to.age_ns = l->e->now_ns - scope->since_ns;
	to.units = scope->nleases;
	l->visits += scope->nleases;
	TAILQ_FOREACH (lease, &scope->leases, scope_link)
		to.bytes += zd_buffer_bytes(lease->buffer);
	row->scope = &to;
	return give(l, row);
}

static bool row_segment(const struct listing *l, Zd__Row *row, const struct zd_segment *segment)
{
	Zd__SegmentRow to = ZD__SEGMENT_ROW__INIT;
	char text[ZD_WAIT_TEXT] = "";
	zd_segment_row(segment, &to, text);
	row->owner = (uint64_t)segment->job->owner->uid + 1;
	row->segment = &to;
	return give(l, row);
}

static bool row_block(const struct listing *l, Zd__Row *row, const struct zd_block *block)
{
	Zd__BlockRow to = ZD__BLOCK_ROW__INIT;
	char text[ZD_WAIT_TEXT] = "";
	zd_block_row(l->segment, block, &to, text);
	row->owner = (uint64_t)l->segment->job->owner->uid + 1;
	row->block = &to;
	return give(l, row);
}

static bool give_item(struct listing *l)
{
	Zd__Row row = ZD__ROW__INIT;
	row.owner = zd_ids_owner(l->e, l->item.id);
	row.row_case = (Zd__Row__RowCase)l->query->table; /* both have the same numbers */
	switch (row.row_case) {
	case ZD__ROW__ROW_DEVICE:
		return row_device(l, &row, l->item.object);
	case ZD__ROW__ROW_JOB:
		return row_job(l, &row, l->item.object);
	case ZD__ROW__ROW_SESSION:
		return row_session(l, &row, l->item.object);
	case ZD__ROW__ROW_GROUP:
		return row_group(l, &row, l->item.object);
	case ZD__ROW__ROW_UNIT:
		return row_unit(l, &row, l->item.object);
	case ZD__ROW__ROW_BUFFER:
		return l->item.waiting ? row_waiting(l, &row, l->item.waiting)
		                       : row_buffer(l, &row, l->item.object);
	case ZD__ROW__ROW_BUCKET:
		return row_bucket(l, &row, l->item.object);
	case ZD__ROW__ROW_ALLOCATION:
		return row_allocation(l, &row, l->item.object);
	case ZD__ROW__ROW_SCOPE:
		return row_scope(l, &row, l->item.object);
	case ZD__ROW__ROW_SEGMENT:
		return row_segment(l, &row, l->item.object);
	case ZD__ROW__ROW_BLOCK:
		return row_block(l, &row, l->item.object);
	default:
		return false;
	}
}

uint64_t zd_engine_list(struct zd_engine *e, uint64_t session, const Zd__List *query, uint32_t most_visits,
                        zd_row_fn *fn, void *arg)
{
	struct listing l = {.e = e, .query = query, .fn = fn, .arg = arg, .last = UINT64_MAX};
	struct place place = {NULL, NULL, NULL, 0};
	uint64_t last = query->cursor;
	bool more = true;
	if (session) {
		l.asker = zd_session_find(e, session);
		if (!l.asker) /* the session has ended: it sees no rows. id 0, the daemon, sees all */
			return 0;
		if (!l.asker->admin && query->table != ZD__TABLE__SEGMENTS) {
			l.first = zd_id_first(l.asker->owner->ids, 0);
			l.last = zd_id_first(l.asker->owner->ids, ZD_NIDS);
		}
	}
	begin_listing(&l, &place);
	while (more && !is_at_end(&l, &place)) {
		if (most_visits && l.visits >= most_visits)
			break;
		if (visit(&l, &place))
			more = give_item(&l);
		if (more)
			last = l.item.id;
	}
	e->list_visits += l.visits;
	return more && is_at_end(&l, &place) ? 0 : last;
}
