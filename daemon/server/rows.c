/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.c - the engine's listing rows as messages.
 *
 * Everything is copied: the engine's strings and arrays are valid during its call only, and a page is packed
 * after that.
 */
#include "server/rows.h"

#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "server/answer.h"

#define MORE_TEXT 48

void zd_rows_usage(const struct zd_usage *usage, Zd__Usage *message)
{
	zd__usage__init(message);
	message->shard_bytes = usage->shard_bytes;
	message->gathered_bytes = usage->gathered_bytes;
	message->bucket_bytes = usage->bucket_bytes;
	message->staging_bytes = usage->staging_bytes;
	message->target_bytes = usage->target_bytes;
	message->allocation_bytes = usage->allocation_bytes;
	message->peak_bytes = usage->peak_bytes;
	message->peak_gathered_bytes = usage->peak_gathered_bytes;
}

static Zd__Usage *usage_in(struct zd_arena *arena, const struct zd_usage *usage)
{
	Zd__Usage *message = zd_arena_alloc(arena, sizeof(*message));

	zd_rows_usage(usage, message);
	return message;
}

/* Copies at most `most` of the texts, and adds one with the number of the others. */
static char **texts_in(struct zd_arena *arena, const char *const *texts, uint32_t count, uint32_t most,
                       size_t *ncopied)
{
	uint32_t kept = count < most ? count : most;
	char **copies = zd_arena_alloc(arena, ((size_t)kept + 1) * sizeof(*copies));
	char more[MORE_TEXT];

	for (uint32_t i = 0; i < kept; i++)
		copies[i] = zd_answer_text(arena, texts[i]);
	*ncopied = kept;
	if (kept < count) {
		(void)snprintf(more, sizeof(more), "and %u more", count - kept);
		copies[kept] = zd_answer_text(arena, more);
		*ncopied = kept + 1;
	}
	return copies;
}

static void fill_device(const struct zd_row *row, struct zd_arena *arena, Zd__Row *message)
{
	Zd__DeviceRow *device = zd_arena_alloc(arena, sizeof(*device));

	zd__device_row__init(device);
	device->index = row->u.device.index;
	device->name = zd_answer_text(arena, row->name);
	device->model = zd_answer_text(arena, row->u.device.model);
	device->pci_address = zd_answer_text(arena, row->u.device.pci_address);
	device->host_memory = row->u.device.host_memory;
	device->host = row->u.device.has_host ? row->u.device.host + 1 : 0;
	device->arena_bytes = row->u.device.arena_bytes;
	device->segment_bytes = row->u.device.segment_bytes;
	device->block_bytes = row->u.device.block_bytes;
	device->quarantine_bytes = row->u.device.quarantine_bytes;
	device->gather_budget_bytes = row->u.device.gather_budget_bytes;
	device->usage = usage_in(arena, &row->u.device.usage);
	device->gathers = row->u.device.gathers;
	device->joined_gathers = row->u.device.joined_gathers;
	device->fallback_gathers = row->u.device.fallback_gathers;
	device->gathered_bytes_total = row->u.device.gathered_bytes;
	device->waiting = row->u.device.waiting;
	message->row_case = ZD__ROW__ROW_DEVICE;
	message->device = device;
}

static void fill_job(const struct zd_row *row, struct zd_arena *arena, Zd__Row *message)
{
	Zd__JobRow *job = zd_arena_alloc(arena, sizeof(*job));

	zd__job_row__init(job);
	job->id = row->id;
	job->name = zd_answer_text(arena, row->name);
	job->uid = row->u.job.uid;
	job->durable = row->u.job.durable;
	job->sessions = row->u.job.sessions;
	job->groups = row->u.job.groups;
	job->usage = usage_in(arena, &row->u.job.usage);
	job->uid_metadata_bytes = row->u.job.uid_metadata_bytes;
	message->row_case = ZD__ROW__ROW_JOB;
	message->job = job;
}

static void fill_session(const struct zd_row *row, struct zd_arena *arena, Zd__Row *message)
{
	Zd__SessionRow *session = zd_arena_alloc(arena, sizeof(*session));

	zd__session_row__init(session);
	session->id = row->id;
	session->name = zd_answer_text(arena, row->name);
	session->uid = row->u.session.uid;
	session->pid = row->u.session.pid;
	session->state = zd_answer_text(arena, row->state);
	session->age_ns = row->u.session.age_ns;
	session->idle_ns = row->u.session.idle_ns;
	session->outstanding = row->u.session.outstanding;
	session->requests = row->u.session.requests;
	session->job = zd_answer_text(arena, row->job);
	session->waits = texts_in(arena, row->u.session.waits, row->u.session.nwaits, ZD_ROW_MAX_WAITS,
	                          &session->n_waits);
	message->row_case = ZD__ROW__ROW_SESSION;
	message->session = session;
}

static void fill_group(const struct zd_row *row, struct zd_arena *arena, Zd__Row *message)
{
	Zd__GroupRow *group = zd_arena_alloc(arena, sizeof(*group));

	zd__group_row__init(group);
	group->id = row->id;
	group->job = zd_answer_text(arena, row->job);
	group->name = zd_answer_text(arena, row->name);
	group->state = zd_answer_text(arena, row->state);
	group->world_size = row->u.group.world_size;
	group->units = row->u.group.units;
	group->committed_step = row->u.group.committed_step;
	group->doubt_step = row->u.group.doubt_step;
	group->torn = row->u.group.torn;
	group->shadow = row->u.group.shadow;
	group->first_rank = row->u.group.nmembers > 0 ? row->u.group.members[0].rank : 0;
	group->local_world_size = row->u.group.nmembers;
	group->collectives = row->u.group.nccl_collectives ? ZD__COLLECTIVES__NCCL : ZD__COLLECTIVES__COPIES;
	group->hybrid = row->u.group.hybrid;
	group->why = zd_answer_text(arena, row->u.group.why);
	zd_assert(row->u.group.nmembers <= ZD_MAX_WORLD);
	group->n_members = row->u.group.nmembers;
	group->members = zd_arena_alloc(arena, ((size_t)row->u.group.nmembers + 1) * sizeof(Zd__Member *));
	for (uint32_t i = 0; i < row->u.group.nmembers; i++) {
		const struct zd_member_row *from = &row->u.group.members[i];
		Zd__Member *member = zd_arena_alloc(arena, sizeof(*member));

		zd__member__init(member);
		member->rank = from->rank;
		member->device = from->device;
		member->session = from->session;
		member->pid = from->pid;
		group->members[i] = member;
	}
	message->row_case = ZD__ROW__ROW_GROUP;
	message->group = group;
}

static void fill_unit(const struct zd_row *row, struct zd_arena *arena, Zd__Row *message)
{
	Zd__UnitRow *unit = zd_arena_alloc(arena, sizeof(*unit));

	zd__unit_row__init(unit);
	unit->id = row->id;
	unit->job = zd_answer_text(arena, row->job);
	unit->group = zd_answer_text(arena, row->group);
	unit->name = zd_answer_text(arena, row->name);
	unit->dtype = row->u.unit.dtype;
	unit->numel = row->u.unit.numel;
	unit->padded_bytes = row->u.unit.padded_bytes;
	unit->slot = row->u.unit.slot;
	unit->views = row->u.unit.views;
	unit->version_min = row->u.unit.version_min;
	unit->version_max = row->u.unit.version_max;
	unit->registered = row->u.unit.registered;
	unit->gathered = row->u.unit.gathered;
	unit->frozen = row->u.unit.frozen;
	unit->all_reduce = row->u.unit.all_reduce;
	unit->on_host = row->u.unit.on_host;
	message->row_case = ZD__ROW__ROW_UNIT;
	message->unit = unit;
}

static void fill_holders(const struct zd_row *row, struct zd_arena *arena, Zd__BufferRow *buffer)
{
	uint32_t count = row->u.buffer.nholders;
	uint32_t kept = count < ZD_ROW_MAX_HOLDERS ? count : ZD_ROW_MAX_HOLDERS;
	char more[MORE_TEXT];

	buffer->n_holders = kept + (kept < count);
	buffer->holders = zd_arena_alloc(arena, (buffer->n_holders + 1) * sizeof(Zd__Holder *));
	for (uint32_t i = 0; i < buffer->n_holders; i++) {
		buffer->holders[i] = zd_arena_alloc(arena, sizeof(Zd__Holder));
		zd__holder__init(buffer->holders[i]);
	}
	for (uint32_t i = 0; i < kept; i++) {
		const struct zd_holder_row *from = &row->u.buffer.holders[i];

		buffer->holders[i]->session = from->session;
		buffer->holders[i]->tag = zd_answer_text(arena, from->tag);
		buffer->holders[i]->uses = from->uses;
		buffer->holders[i]->age_ns = from->age_ns;
	}
	if (kept < count) {
		(void)snprintf(more, sizeof(more), "and %u more", count - kept);
		buffer->holders[kept]->tag = zd_answer_text(arena, more);
	}
}

static void fill_buffer(const struct zd_row *row, struct zd_arena *arena, Zd__Row *message)
{
	Zd__BufferRow *buffer = zd_arena_alloc(arena, sizeof(*buffer));

	zd__buffer_row__init(buffer);
	buffer->id = row->id;
	buffer->job = zd_answer_text(arena, row->job);
	buffer->group = zd_answer_text(arena, row->group);
	buffer->unit = zd_answer_text(arena, row->name);
	buffer->rank = row->u.buffer.rank;
	buffer->device = row->u.buffer.device;
	buffer->state = zd_answer_text(arena, row->state);
	buffer->true_bytes = row->u.buffer.true_bytes;
	buffer->padded_bytes = row->u.buffer.padded_bytes;
	buffer->version = row->u.buffer.version;
	buffer->age_ns = row->u.buffer.age_ns;
	buffer->persistent = row->u.buffer.persistent;
	buffer->prefetched = row->u.buffer.prefetched;
	buffer->in_place = row->u.buffer.in_place;
	fill_holders(row, arena, buffer);
	buffer->waits_for = zd_answer_text(arena, row->u.buffer.waits_for);
	message->row_case = ZD__ROW__ROW_BUFFER;
	message->buffer = buffer;
}

static void fill_bucket(const struct zd_row *row, struct zd_arena *arena, Zd__Row *message)
{
	Zd__BucketRow *bucket = zd_arena_alloc(arena, sizeof(*bucket));

	zd__bucket_row__init(bucket);
	bucket->id = row->id;
	bucket->job = zd_answer_text(arena, row->job);
	bucket->group = zd_answer_text(arena, row->group);
	bucket->rank = row->u.bucket.rank;
	bucket->device = row->u.bucket.device;
	bucket->dtype = row->u.bucket.dtype;
	bucket->slot_bytes = row->u.bucket.slot_bytes;
	bucket->nslots = row->u.bucket.nslots;
	bucket->held_bytes = row->u.bucket.held_bytes;
	bucket->slots = texts_in(arena, row->u.bucket.slots, row->u.bucket.nslots, ZD_MAX_BUCKET_SLOTS,
	                         &bucket->n_slots);
	bucket->reserved = row->u.bucket.reserved;
	bucket->submitted = row->u.bucket.submitted;
	bucket->waits = texts_in(arena, row->u.bucket.waits, row->u.bucket.nwaits, ZD_ROW_MAX_WAITS,
	                         &bucket->n_waits);
	message->row_case = ZD__ROW__ROW_BUCKET;
	message->bucket = bucket;
}

static void fill_allocation(const struct zd_row *row, struct zd_arena *arena, Zd__Row *message)
{
	Zd__AllocationRow *allocation = zd_arena_alloc(arena, sizeof(*allocation));

	zd__allocation_row__init(allocation);
	allocation->id = row->id;
	allocation->job = zd_answer_text(arena, row->job);
	allocation->name = zd_answer_text(arena, row->name);
	allocation->session = row->u.allocation.session;
	allocation->device = row->u.allocation.device;
	allocation->bytes = row->u.allocation.bytes;
	allocation->age_ns = row->u.allocation.age_ns;
	allocation->durable = row->u.allocation.durable;
	message->row_case = ZD__ROW__ROW_ALLOCATION;
	message->allocation = allocation;
}

static void fill_scope(const struct zd_row *row, struct zd_arena *arena, Zd__Row *message)
{
	Zd__ScopeRow *scope = zd_arena_alloc(arena, sizeof(*scope));

	zd__scope_row__init(scope);
	scope->id = row->id;
	scope->job = zd_answer_text(arena, row->job);
	scope->group = zd_answer_text(arena, row->group);
	scope->tag = zd_answer_text(arena, row->name);
	scope->state = zd_answer_text(arena, row->state);
	scope->context = row->u.scope.context;
	scope->rank = row->u.scope.rank;
	scope->device = row->u.scope.device;
	scope->session = row->u.scope.session;
	scope->parent = row->u.scope.parent;
	scope->age_ns = row->u.scope.age_ns;
	scope->units = row->u.scope.units;
	scope->bytes = row->u.scope.bytes;
	message->row_case = ZD__ROW__ROW_SCOPE;
	message->scope = scope;
}

static void fill_segment(const struct zd_row *row, struct zd_arena *arena, Zd__Row *message)
{
	Zd__SegmentRow *segment = zd_arena_alloc(arena, sizeof(*segment));

	zd__segment_row__init(segment);
	segment->id = (uint32_t)row->id;
	segment->device = row->u.segment.device;
	segment->job = zd_answer_text(arena, row->job);
	segment->purpose = zd_answer_text(arena, row->u.segment.purpose);
	segment->state = zd_answer_text(arena, row->state);
	segment->bytes = row->u.segment.bytes;
	segment->used_bytes = row->u.segment.used_bytes;
	segment->mappings = row->u.segment.mappings;
	segment->pins = zd_answer_text(arena, row->u.segment.pins);
	message->row_case = ZD__ROW__ROW_SEGMENT;
	message->segment = segment;
}

static void fill_block(const struct zd_row *row, struct zd_arena *arena, Zd__Row *message)
{
	Zd__BlockRow *block = zd_arena_alloc(arena, sizeof(*block));

	zd__block_row__init(block);
	block->offset = row->u.block.offset;
	block->bytes = row->u.block.bytes;
	block->free = row->u.block.free;
	block->purpose = zd_answer_text(arena, row->u.block.purpose);
	block->job = zd_answer_text(arena, row->job);
	block->group = zd_answer_text(arena, row->group);
	block->name = zd_answer_text(arena, row->name);
	block->rank = row->u.block.rank;
	block->state = zd_answer_text(arena, row->state);
	block->pins = zd_answer_text(arena, row->u.block.pins);
	message->row_case = ZD__ROW__ROW_BLOCK;
	message->block = block;
}

Zd__Row *zd_rows_message(const struct zd_row *row, struct zd_arena *arena)
{
	static void (*const fills[ZD_NTABLES])(const struct zd_row *, struct zd_arena *, Zd__Row *) = {
	        [ZD_TABLE_DEVICES] = fill_device,   [ZD_TABLE_JOBS] = fill_job,
	        [ZD_TABLE_SESSIONS] = fill_session, [ZD_TABLE_GROUPS] = fill_group,
	        [ZD_TABLE_UNITS] = fill_unit,       [ZD_TABLE_BUFFERS] = fill_buffer,
	        [ZD_TABLE_BUCKETS] = fill_bucket,   [ZD_TABLE_ALLOCATIONS] = fill_allocation,
	        [ZD_TABLE_SCOPES] = fill_scope,     [ZD_TABLE_SEGMENTS] = fill_segment,
	        [ZD_TABLE_BLOCKS] = fill_block,
	};
	Zd__Row *message = zd_arena_alloc(arena, sizeof(*message));

	zd_assert((unsigned)row->table < ZD_NTABLES);
	zd__row__init(message);
	message->owner = row->owner;
	fills[row->table](row, arena, message);
	return message;
}
