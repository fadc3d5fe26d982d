/* SPDX-License-Identifier: Apache-2.0 */
/*
 * restore.c - restores durable jobs from the journal of a daemon that has ended in any way.
 *
 * journal_table.c finds the last record of each object. The objects are then made in the order of their ids,
 * which is that of their creation. A record that does not fit ends the whole restore.
 *
 * Ranks that were attached are lost ranks of their groups, as if all of them had died at once. A group
 * without shadows that was inside an update is torn. A group with shadows is rolled back to its last commit.
 * The ranks' processes can be alive, and their kernels can still write. Each of their sessions therefore
 * becomes CLOSING, and holds the rank's shards and allocations until its process has left
 * (deferred_teardown.c). Sessions that were CLOSING are CLOSING again.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "core/cluster/cluster.h"
#include "core/control/control.h"
#include "core/control/journal_table.h"
#include "core/control/radix.h"
#include "core/engine/deferred_teardown.h"
#include "core/gather/commit.h"
#include "core/gather/layout.h"
#include "core/memory/allocation.h"
#include "core/memory/empty.h"

#define AHEAD 8u /* objects that are prefetched before their use, because each would miss the caches */

struct restore {
	struct zd_engine *e;
	struct zd_journal_table table;
	uint64_t *lost; /* ids of jobs that are not restored */
	size_t nlost;
	struct zd_record_session *sessions; /* of the former daemon, by id */
	size_t nsessions, sessions_room;
};

/* ---- Objects of the journal ---------------------------------------------------------------------------- */

static struct zd_journal_object *find(struct restore *restore, uint32_t type, uint64_t id, uint32_t index)
{
	return zd_journal_table_find(&restore->table, type, id, index);
}

static void *find_made(struct restore *restore, enum zd_record_type type, uint64_t id)
{
	const struct zd_journal_object *kept = find(restore, type, id, 0);
	return kept ? kept->made : NULL;
}

/* Returns the job of an object. NULL: it has ended. A later job can have its id, because a job that waits for
 * processes to leave starts again when ranks join under its name. */
static struct zd_job *find_job(struct restore *restore, const struct zd_journal_object *kept, uint64_t id)
{
	const struct zd_journal_object *job = find(restore, ZD_RECORD_JOB, id, 0);
	return job && job->first < kept->record ? job->made : NULL;
}

/* ---- Objects ------------------------------------------------------------------------------------------- */

static int use_id(struct restore *restore, uint32_t uid, enum zd_id_kind kind, const struct zd_record *record,
                  struct zd_err *err)
{
	if (zd_ids_set_next(restore->e, uid, kind, record->id))
		return 0;
	return zd_journal_bad(record, "its uid cannot have had this id", err);
}

static int restore_ids(struct restore *restore, struct zd_journal_object *kept, struct zd_err *err)
{
	const struct zd_record_ids *record = (const void *)kept->record;
	if (zd_ids_restore(restore->e, (uint32_t)record->record.id, record->prefix, record->record.index,
	                   record->mark))
		return 0;
	return zd_journal_bad(&record->record, "its prefix or number is wrong", err);
}

static int restore_device(struct restore *restore, struct zd_journal_object *kept, struct zd_err *err)
{
	const struct zd_record_device *record = (const void *)kept->record;
	const struct zd_engine *e = restore->e;
	char what[192];
	if (record->record.id < e->ndevices &&
	    strncmp(record->name, e->devices[record->record.id].config.name, sizeof(record->name)) == 0)
		return 0;
	(void)snprintf(what, sizeof(what), "it was %.63s and is %.63s", record->name,
	               record->record.id < e->ndevices ? e->devices[record->record.id].config.name
	                                               : "not there");
	return zd_journal_bad(&record->record, what, err);
}

static bool is_lost(const struct restore *restore, uint64_t job)
{
	for (size_t i = 0; i < restore->nlost; i++) {
		if (restore->lost[i] == job)
			return true;
	}
	return false;
}

/* Finds jobs of which a segment is missing. They would be complete for some of their units only. */
static void find_lost(struct restore *restore)
{
	struct zd_engine_sink *sink = &restore->e->sink;
	for (size_t i = 0; sink->segment_is_kept && i < restore->table.of[ZD_RECORD_SEGMENT].count; i++) {
		const struct zd_journal_object *kept = &restore->table.of[ZD_RECORD_SEGMENT].at[i];
		const struct zd_record_segment *record = (const void *)kept->record;
		const struct zd_journal_object *of = find(restore, ZD_RECORD_JOB, record->job, 0);
		const struct zd_record_job *job = of ? (const void *)of->record : NULL;
		if (!job || of->first > kept->record || is_lost(restore, record->job) ||
		    sink->segment_is_kept(sink->arg, (uint32_t)record->record.id))
			continue;
		restore->lost = zd_realloc(restore->lost, restore->nlost + 1, sizeof(*restore->lost));
		restore->lost[restore->nlost++] = record->job;
		struct zd_notice notice = {.kind = ZD_NOTICE_JOB_LOST,
		                           .job = job->name,
		                           .uid = job->uid,
		                           .segment = (uint32_t)record->record.id};
		if (sink->notice)
			sink->notice(sink->arg, &notice);
	}
}

static int restore_job(struct restore *restore, struct zd_journal_object *kept, struct zd_err *err)
{
	const struct zd_record_job *record = (const void *)kept->record;
	if (is_lost(restore, record->record.id))
		return 0;
	if (zd_job_find(restore->e, record->uid, record->name))
		return zd_journal_bad(&record->record, "another one has its name", err);
	if (use_id(restore, record->uid, ZD_ID_JOB, &record->record, err) != 0)
		return ZEROD_E_INVALID;
	struct zd_job *job = zd_job_new(restore->e, record->uid, record->name, true);
	job->had_group = record->had_group;
	job->began_ns = record->began_ns;
	zd_job_note_left(restore->e, job);
	kept->made = job;
	return 0;
}

/* Returns the group's last commit if it was made after the record; NULL otherwise. Earlier commits do not
 * matter: a part without a later record has not changed between them and the last one. */
static const struct zd_record_commit *commit_after(struct restore *restore, uint64_t group,
                                                   const struct zd_record *record)
{
	const struct zd_journal_object *commit = find(restore, ZD_RECORD_COMMIT, group, 0);
	return commit && commit->record > record ? (const void *)commit->record : NULL;
}

static void restore_group_state(struct restore *restore, struct zd_group *group,
                                const struct zd_journal_object *kept)
{
	const struct zd_record_group_state *record = (const void *)kept->record;
	const struct zd_record_commit *commit = commit_after(restore, group->id, kept->record);
	group->committed_step = commit ? commit->step : record->committed_step;
	group->voted_step = record->voted_step;
	group->torn = record->torn && !commit;
}

static int restore_group(struct restore *restore, struct zd_journal_object *kept, struct zd_err *err)
{
	const struct zd_record_group *record = (const void *)kept->record;
	struct zd_job *job = find_job(restore, kept, record->job);
	const struct zd_journal_object *state = find(restore, ZD_RECORD_GROUP_STATE, record->record.id, 0);
	struct zd_args args = {.kind = ZD_REQ_GROUP_JOIN};
	struct zd_group *group;
	if (!job)
		return 0;
	if (record->world_size == 0 || record->world_size > ZD_MAX_WORLD || record->local_world_size == 0 ||
	    record->world_size % record->local_world_size != 0 || record->first_rank >= record->world_size ||
	    !state)
		return zd_journal_bad(&record->record, "its sizes are wrong", err);
	if (zd_group_find(job, record->name))
		return zd_journal_bad(&record->record, "another one has its name", err);
	args.u.group_join.group = (char *)record->name;
	args.u.group_join.world_size = record->world_size;
	args.u.group_join.local_world_size = record->local_world_size;
	args.u.group_join.rank = record->first_rank;
	args.u.group_join.shadow = record->shadow;
	args.u.group_join.hybrid = record->hybrid;
	args.u.group_join.collectives = record->nccl_collectives ? ZD__COLLECTIVES__NCCL
	                                                         : ZD__COLLECTIVES__COPIES;
	if (use_id(restore, job->owner->uid, ZD_ID_GROUP, &record->record, err) != 0)
		return ZEROD_E_INVALID;
	kept->made = group = zd_group_new(restore->e, job, &args);
	restore_group_state(restore, group, state);
	return 0;
}

static int note_session(struct restore *restore, const struct zd_record_session *session,
                        const struct zd_record *record, struct zd_err *err)
{
	if (session->id == 0)
		return 0;
	if (!zd_ids_set_next(restore->e, session->uid, ZD_ID_SESSION, session->id))
		return zd_journal_bad(record, "its session's uid cannot have had this id", err);
	if (restore->nsessions == restore->sessions_room) {
		restore->sessions_room = restore->sessions_room ? 2 * restore->sessions_room : 64;
		restore->sessions = zd_realloc(restore->sessions, restore->sessions_room,
		                               sizeof(*restore->sessions));
	}
	restore->sessions[restore->nsessions++] = *session;
	return 0;
}

static int restore_member(struct restore *restore, struct zd_journal_object *kept, struct zd_err *err)
{
	const struct zd_record_member *record = (const void *)kept->record;
	struct zd_group *group = find_made(restore, ZD_RECORD_GROUP, record->record.id);
	if (!group)
		return 0;
	if (record->record.index >= group->local_world_size || record->device >= restore->e->ndevices)
		return zd_journal_bad(&record->record, "it has no such rank or device", err);
	struct zd_member *member = &group->members[record->record.index];
	member->device = &restore->e->devices[record->device];
	member->joined_before = record->joined_before;
	if (member->joined_before)
		group->state = ZD_GROUP_FAILED; /* until all ranks have joined again */
	if (member->joined_before && record->session.id != 0) {
		group->loss = ++group->generation;
		group->lost[group->generation % ZD_LOST_KEPT] =
		        (struct zd_lost){.rank = zd_world_rank(member), .pid = record->session.pid};
	}
	return note_session(restore, &record->session, &record->record, err);
}

static int restore_holds(struct restore *restore, struct zd_journal_object *kept, struct zd_err *err)
{
	const struct zd_record_holds *record = (const void *)kept->record;
	return note_session(restore, &record->session, &record->record, err);
}

static int restore_segment(struct restore *restore, struct zd_journal_object *kept, struct zd_err *err)
{
	const struct zd_record_segment *record = (const void *)kept->record;
	struct zd_job *job = find_job(restore, kept, record->job);
	struct zd_engine *e = restore->e;
	struct zd_device *device;
	if (!job)
		return 0;
	if (record->device >= e->ndevices || record->purpose >= ZD_NPURPOSES || record->record.id == 0 ||
	    record->record.id > UINT32_MAX || record->bytes == 0 || record->bytes > ZD_MAX_BYTES)
		return zd_journal_bad(&record->record, "its size, device or purpose is wrong", err);
	device = &e->devices[record->device];
	if (record->bytes % device->config.segment_align_bytes != 0)
		return zd_journal_bad(&record->record, "its size is no multiple of the device's", err);
	if (record->bytes > device->config.arena_bytes - device->segment_bytes)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "the durable segments of device %u are larger than its arena, %llu bytes",
		                  device->index, (unsigned long long)device->config.arena_bytes);
	int status = e->sink.segment_restore(e->sink.arg, device->index, (uint32_t)record->record.id,
	                                     record->bytes, err);
	if (status != 0)
		return status;
	kept->made = zd_segment_restore(e, job, (uint32_t)record->record.id, device, record->purpose,
	                                record->bytes);
	e->next_segment = (uint32_t)zd_max_u64(e->next_segment, record->record.id);
	return 0;
}

static bool unit_has_parts(struct restore *restore, const struct zd_record_unit *record,
                           const struct zd_group *group)
{
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		if (find(restore, ZD_RECORD_PART, record->record.id, rank))
			return true;
	}
	return false;
}

/* Restores the unit's place in the targets, because data of its ranks is laid out by it. */
static int restore_target(const struct zd_record_unit *record, struct zd_unit *unit, struct zd_err *err)
{
	uint64_t numel = zd_unit_target_numel(unit);
	if (numel > INT64_MAX || record->target_offset_numel > INT64_MAX - numel)
		return zd_journal_bad(&record->record, "it has no such place in the target", err);
	zd_layout_put(unit, record->target_offset_numel);
	uint64_t *end = &unit->group->target_numel[unit->on_host];
	*end = zd_max_u64(*end, record->target_offset_numel + numel);
	return 0;
}

static int restore_unit(struct restore *restore, struct zd_journal_object *kept, struct zd_err *err)
{
	const struct zd_record_unit *record = (const void *)kept->record;
	struct zd_group *group = find_made(restore, ZD_RECORD_GROUP, record->group);
	struct zd_err wrong = ZD_ERR_NONE;
	Zd__UnitRegister wanted = {.name = (char *)record->name,
	                           .dtype = record->dtype,
	                           .numel = record->numel,
	                           .n_views = record->nviews,
	                           .slot = record->slot,
	                           .frozen = record->frozen,
	                           .all_reduce = record->all_reduce,
	                           .on_host = record->first_on_host,
	                           .copied = record->copied,
	                           .unsaved = record->unsaved};
	struct zd_unit *unit = NULL;
	if (!group || !unit_has_parts(restore, record, group))
		return 0;
	if (record->first_rank >= group->local_world_size)
		return zd_journal_bad(&record->record, "it has no such rank", err);
	Zd__View *views = zd_calloc(record->nviews + 1, sizeof(*views));
	wanted.views = zd_calloc(record->nviews + 1, sizeof(Zd__View *));
	for (uint32_t i = 0; i < record->nviews; i++) {
		const struct zd_record_view *from = &record->views[i];
		views[i] = (Zd__View){.name = (char *)from->name,
		                      .offset_numel = from->offset_numel,
		                      .n_shape = from->ndim,
		                      .shape = (uint64_t *)from->shape};
		wanted.views[i] = &views[i];
	}
	unit = zd_unit_find_name(group, record->name, false);
	int status = zd_unit_check_description(restore->e, group, &wanted, &wrong);
	if (unit || status != 0)
		status = zd_journal_bad(&record->record, unit ? "another one has its name" : wrong.text, err);
	else
		status = use_id(restore, group->job->owner->uid, ZD_ID_UNIT, &record->record, err);
	if (status == 0)
		status = zd_unit_new(restore->e, NULL, group, record->first_rank, &wanted, record->in_place,
		                     &unit, err);
	free(wanted.views);
	free(views);
	if (status != 0)
		return status;
	kept->made = unit;
	unit->laid_out = true;
	unit->on_host = record->on_host;
	unit->placed = record->placed;
	return record->targeted ? restore_target(record, unit, err) : 0;
}

/* As zd_part_take_commits() does it. */
static void commit_part(struct zd_part *part)
{
	if (part->shadow == ZD_SHADOW_SAVED && part->version != part->committed)
		part->shadow = ZD_SHADOW_FREE;
	part->committed = part->version;
}

/* Whether the shadow can restore everything that was written since the last commit. */
static bool may_have_shadow(const struct zd_unit *unit, const struct zd_part_changes *now)
{
	bool saved = now->shadow == ZD_SHADOW_SAVED || now->shadow == ZD_SHADOW_DUE;
	if (!unit->group->shadow)
		return now->shadow == ZD_SHADOW_NONE;
	return now->shadow > ZD_SHADOW_NONE && now->shadow <= ZD_SHADOW_RESTORING &&
	       (now->uncommitted == 0 || now->shadow == ZD_SHADOW_SAVED) && (!now->written || saved);
}

static int restore_part(struct restore *restore, struct zd_journal_object *kept, struct zd_err *err)
{
	const struct zd_record_part *record = (const void *)kept->record;
	const struct zd_journal_object *changed = find(restore, ZD_RECORD_PART_STATE, record->record.id,
	                                               record->record.index);
	const struct zd_record_part_state *state = changed ? (const void *)changed->record : NULL;
	const struct zd_part_changes *now = state ? &state->now : &record->now;
	struct zd_unit *unit = find_made(restore, ZD_RECORD_UNIT, record->record.id);
	if (!unit)
		return 0;
	if (record->record.index >= unit->group->local_world_size ||
	    !unit->group->members[record->record.index].device ||
	    record->shard.bytes != zd_align_up(zd_unit_part_bytes(unit), ZD_BLOCK_MIN_ALIGN) ||
	    !may_have_shadow(unit, now) || now->uncommitted > now->version)
		return zd_journal_bad(&record->record, "it does not fit its unit", err);
	struct zd_part *part = &unit->parts[record->record.index];
	part->state = ZD_PART_DETACHED;
	if (now->written && unit->group->shadow)
		part->state = ZD_PART_UPDATING; /* until roll_back() */
	part->version = now->version;
	part->first = record->first;
	part->committed = now->version - now->uncommitted;
	part->shadow = now->shadow;
	if (part->shadow == ZD_SHADOW_SAVING) /* the update had not been granted */
		part->shadow = ZD_SHADOW_FREE;
	if (part->shadow == ZD_SHADOW_RESTORING)
		part->shadow = ZD_SHADOW_DUE;
	if (commit_after(restore, unit->group->id, state ? &state->record : &record->record))
		commit_part(part);
	zd_part_changed(part);
	if (!unit->group->shadow && (now->written || part->version != part->committed))
		unit->group->torn = true;
	unit->refs++;
	LIST_INSERT_HEAD(&unit->group->members[part->rank].detached, part, member_link);
	kept->made = part;
	return 0;
}

static int restore_allocation(struct restore *restore, struct zd_journal_object *kept, struct zd_err *err)
{
	const struct zd_record_allocation *record = (const void *)kept->record;
	struct zd_job *job = find_job(restore, kept, record->job);
	struct zd_engine *e = restore->e;
	if (!job)
		return 0;
	if (record->device >= e->ndevices)
		return zd_journal_bad(&record->record, "it has no such device", err);
	if (use_id(restore, job->owner->uid, ZD_ID_ALLOCATION, &record->record, err) != 0)
		return ZEROD_E_INVALID;
	struct zd_allocation *allocation = zd_calloc(1, sizeof(*allocation));
	job->refs++;
	zd_metadata_charge(job->owner, ZD_ALLOCATION_METADATA_BYTES);
	allocation->id = zd_next_id(e, job->owner->ids, ZD_ID_ALLOCATION);
	memcpy(allocation->name, record->name, sizeof(allocation->name));
	allocation->job = job;
	allocation->device = &e->devices[record->device];
	allocation->since_ns = e->now_ns;
	zd_allocation_keep(allocation);
	HASH_ADD(hh, e->allocations, id, sizeof(allocation->id), allocation);
	zd_id_tree_insert(&e->listed[ZD__TABLE__ALLOCATIONS], &allocation->listed, allocation->id);
	kept->made = allocation;
	return note_session(restore, &record->session, &record->record, err);
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

static const struct zd_record_extent *extent_of(const struct zd_journal_object *kept)
{
	if (kept->record->type == ZD_RECORD_PART)
		return &((const struct zd_record_part *)(const void *)kept->record)->shard;
	return &((const struct zd_record_allocation *)(const void *)kept->record)->extent;
}

/* The memory of an object. `index` is the object's number in the order of ids. */
struct place {
	uint64_t offset, bytes;
	uint32_t segment, index;
};

static void sort_places(struct place *places, size_t nplaces)
{
	struct place *scratch = zd_calloc(nplaces + 1, sizeof(*scratch));
	zd_radix_sort(places, scratch, nplaces, sizeof(*places), offsetof(struct place, offset),
	              sizeof(places->offset));
	zd_radix_sort(places, scratch, nplaces, sizeof(*places), offsetof(struct place, segment),
	              sizeof(places->segment));
	free(scratch);
}

/* Takes the blocks in the order of their addresses. It does not read the objects, which have another order:
 * each would miss the caches. A block is NULL if its memory is not available, or belongs to another object as
 * well. */
static void take_blocks(struct restore *restore, struct place *places, size_t nplaces,
                        struct zd_block **blocks)
{
	struct zd_segment *segment = NULL;
	struct zd_block *last = NULL;
	sort_places(places, nplaces);
	for (size_t i = 0; i < nplaces; i++) {
		const struct place *place = &places[i];
		struct zd_block *block = NULL;
		if (i == 0 || place->segment != places[i - 1].segment) {
			segment = find_made(restore, ZD_RECORD_SEGMENT, place->segment);
			last = NULL;
		}
		if (segment)
			block = zd_block_take(segment->range, last, place->offset, place->bytes);
		if (block) {
			last = block;
			zd_segment_take(restore->e, segment);
		}
		blocks[place->index] = block;
	}
}

static int place(struct restore *restore, const struct zd_journal_object *kept, struct zd_block *block,
                 struct zd_err *err)
{
	const struct zd_record_extent *extent = extent_of(kept);
	struct zd_segment *segment = find_made(restore, ZD_RECORD_SEGMENT, extent->segment);
	bool is_part = kept->record->type == ZD_RECORD_PART;
	struct zd_part *part = is_part ? kept->made : NULL;
	enum zd_purpose purpose = is_part ? zd_unit_purpose(part->unit, part->unit->on_host)
	                                  : ZD_PURPOSE_ALLOCATIONS;
	struct zd_allocation *allocation = is_part ? NULL : kept->made;
	struct zd_job *job = is_part ? part->unit->group->job : allocation->job;
	const struct zd_device *device = is_part ? zd_part_memory(part) : allocation->device;
	if (!block || segment->job != job || segment->device != device || segment->purpose != purpose)
		return zd_journal_bad(kept->record, "its memory is not there, or is another's too", err);
	/* The extent has the bytes of the request, not of the block. */
	*(is_part ? &part->shard : &allocation->extent) = (struct zd_extent){segment, block, extent->bytes};
	zd_extent_own(restore->e, is_part ? &part->shard : &allocation->extent,
	              is_part ? ZD_BLOCK_PART : ZD_BLOCK_ALLOCATION, kept->made,
	              is_part ? zd_part_use(part) : zd_allocation_use(allocation));
	zd_charge(restore->e, job, segment->device, is_part ? ZD_CHARGE_SHARD : ZD_CHARGE_ALLOCATION,
	          extent->bytes);
	return 0;
}

static void drop_block(struct restore *restore, const struct zd_record_extent *extent, struct zd_block *block)
{
	struct zd_segment *segment = find_made(restore, ZD_RECORD_SEGMENT, extent->segment);
	zd_block_free(segment->range, block);
	zd_empty_note(segment);
}

static int place_all(struct restore *restore, struct zd_err *err)
{
	static const enum zd_record_type types[] = {ZD_RECORD_PART, ZD_RECORD_ALLOCATION};
	size_t room = restore->table.of[ZD_RECORD_PART].count + restore->table.of[ZD_RECORD_ALLOCATION].count;
	const struct zd_journal_object **objects = zd_calloc(room + 1, sizeof(struct zd_journal_object *));
	struct place *places = zd_calloc(room + 1, sizeof(*places));
	struct zd_block **blocks = zd_calloc(room + 1, sizeof(struct zd_block *));
	uint32_t nplaces = 0;
	int status = 0;
	for (size_t t = 0; t < ZD_ARRAY_LEN(types); t++) {
		for (size_t i = 0; i < restore->table.of[types[t]].count; i++) {
			const struct zd_journal_object *kept = &restore->table.of[types[t]].at[i];
			const struct zd_record_extent *extent = extent_of(kept);
			if (!kept->made)
				continue;
			objects[nplaces] = kept;
			places[nplaces] = (struct place){extent->offset, extent->bytes, extent->segment,
			                                 nplaces};
			nplaces++;
		}
	}
	take_blocks(restore, places, nplaces, blocks);
	for (uint32_t i = 0; i < nplaces; i++) {
		if (i + AHEAD < nplaces)
			__builtin_prefetch(blocks[i + AHEAD], 1);
		if (status == 0)
			status = place(restore, objects[i], blocks[i], err);
		if (status != 0 && blocks[i])
			drop_block(restore, extent_of(objects[i]), blocks[i]);
	}
	free(objects);
	free(places);
	free(blocks);
	return status;
}

/* ---- Lost ranks ---------------------------------------------------------------------------------------- */

/* Gives the session the objects that it held when it ended, before the end of the daemon. */
static void hold_recorded(struct restore *restore, struct zd_session *session,
                          const struct zd_record_holds *record)
{
	for (uint32_t i = 0; i < record->nholds; i++) {
		const struct zd_record_hold *object = &record->holds[i];
		const struct zd_journal_object *kept = find(restore, object->type, object->id, object->index);
		if (!kept || !kept->made)
			continue;
		if (object->type == ZD_RECORD_PART)
			zd_part_hold(restore->e, session, kept->made);
		else if (object->type == ZD_RECORD_ALLOCATION)
			zd_allocation_hold(restore->e, session, kept->made);
	}
}

/* Finds a restored session. NULL: the record names none. */
static struct zd_session *find_session(const struct restore *restore, const struct zd_record_session *record)
{
	struct zd_session *session;
	HASH_FIND(hh, restore->e->sessions, &record->id, sizeof(record->id), session);
	return session;
}

/* Gives sessions the parts of their ranks. The order is by unit: a unit's parts are adjacent in memory. */
static void hold_parts(struct restore *restore, const struct zd_group *group)
{
	uint32_t nranks = group->local_world_size;
	struct zd_session **sessions = zd_calloc(nranks, sizeof(struct zd_session *));
	bool any = false;
	for (uint32_t rank = 0; rank < nranks; rank++) {
		const struct zd_journal_object *kept = find(restore, ZD_RECORD_MEMBER, group->id, rank);
		const struct zd_record_member *record = kept ? (const void *)kept->record : NULL;
		sessions[rank] = record ? find_session(restore, &record->session) : NULL;
		any = any || sessions[rank];
	}
	struct zd_unit *unit;
	TAILQ_FOREACH (unit, &group->units, group_link) {
		if (!any)
			break;
		for (uint32_t rank = 0; rank < nranks; rank++) {
			if (sessions[rank] && !zd_part_is_gone(&unit->parts[rank]))
				zd_part_hold(restore->e, sessions[rank], &unit->parts[rank]);
		}
	}
	free(sessions);
}

static void hold_all(struct restore *restore)
{
	const struct zd_journal_objects *of = restore->table.of;
	for (size_t i = 0; i < of[ZD_RECORD_HOLDS].count; i++) {
		const struct zd_record_holds *record = (const void *)of[ZD_RECORD_HOLDS].at[i].record;
		hold_recorded(restore, find_session(restore, &record->session), record);
	}
	for (const struct zd_group *group = restore->e->groups; group; group = group->hh.next)
		hold_parts(restore, group);
	for (size_t i = 0; i < of[ZD_RECORD_ALLOCATION].count; i++) {
		const struct zd_journal_object *kept = &of[ZD_RECORD_ALLOCATION].at[i];
		const struct zd_record_allocation *record = (const void *)kept->record;
		struct zd_session *session = find_session(restore, &record->session);
		if (kept->made && session)
			zd_allocation_hold(restore->e, session, kept->made);
	}
}

static int by_session(const void *a, const void *b)
{
	const struct zd_record_session *left = a, *right = b;
	return (left->id > right->id) - (left->id < right->id);
}

static void sort_sessions(struct restore *restore)
{
	size_t count = 0;
	if (restore->nsessions > 0)
		qsort(restore->sessions, restore->nsessions, sizeof(*restore->sessions), by_session);
	for (size_t i = 0; i < restore->nsessions; i++) {
		if (i == 0 || restore->sessions[i].id != restore->sessions[count - 1].id)
			restore->sessions[count++] = restore->sessions[i];
	}
	restore->nsessions = count;
}

/* Sessions have their former ids. Later sessions have new ids. */
static void restore_sessions(struct restore *restore)
{
	sort_sessions(restore);
	for (size_t i = 0; i < restore->nsessions; i++) {
		const struct zd_record_session *session = &restore->sessions[i];
		zd_assert(zd_ids_set_next(restore->e, session->uid, ZD_ID_SESSION, session->id));
		(void)zd_session_new_former(restore->e, session);
	}
	hold_all(restore);
	zd_ids_end_restore(restore->e);
	for (size_t i = 0; i < restore->nsessions; i++) /* which submits the watches */
		zd_deferred_teardowns_end(restore->e, find_session(restore, &restore->sessions[i]));
}

/* Does the same as zd_member_detach(), for all ranks at once. */
static void roll_back(struct zd_engine *e, struct zd_group *group)
{
	struct zd_unit *unit;
	if (!group->voted_step)
		(void)zd_shadow_roll_back(e, group, &(uint32_t){UINT32_MAX});
	TAILQ_FOREACH (unit, &group->units, group_link) {
		for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
			struct zd_part *part = &unit->parts[rank];
			if (part->state == ZD_PART_UPDATING)
				zd_part_move(part, ZD_PART_DETACHED);
			zd_shadow_try(e, part);
		}
	}
}

/* ---- All ----------------------------------------------------------------------------------------------- */

typedef int restore_fn(struct restore *restore, struct zd_journal_object *kept, struct zd_err *err);

static int restore_all(struct restore *restore, struct zd_err *err)
{
	/* Parents are first. */
	static const struct {
		enum zd_record_type type;
		restore_fn *restore;
	} order[] = {
	        {ZD_RECORD_IDS, restore_ids},
	        {ZD_RECORD_DEVICE, restore_device},
	        {ZD_RECORD_JOB, restore_job},
	        {ZD_RECORD_GROUP, restore_group},
	        {ZD_RECORD_MEMBER, restore_member},
	        {ZD_RECORD_SEGMENT, restore_segment},
	        {ZD_RECORD_UNIT, restore_unit},
	        {ZD_RECORD_PART, restore_part},
	        {ZD_RECORD_ALLOCATION, restore_allocation},
	        {ZD_RECORD_HOLDS, restore_holds},
	};
	int status = 0;
	find_lost(restore);
	for (size_t step = 0; step < ZD_ARRAY_LEN(order); step++) {
		for (size_t i = 0; i < restore->table.of[order[step].type].count && status == 0; i++)
			status = order[step].restore(restore, &restore->table.of[order[step].type].at[i],
			                             err);
	}
	for (size_t i = 0; i < restore->table.of[ZD_RECORD_JOB].count && status == 0; i++) {
		const struct zd_journal_object *kept = &restore->table.of[ZD_RECORD_JOB].at[i];
		if (kept->made && ((struct zd_job *)kept->made)->refs == 0)
			status = zd_journal_bad(kept->record, "it has no group", err);
	}
	if (status == 0)
		status = place_all(restore, err);
	return status;
}

/* After a failure: removes objects whose memory was not found. They cannot be freed like others. */
static void drop_unplaced(struct restore *restore)
{
	struct zd_engine *e = restore->e;
	for (size_t i = 0; i < restore->table.of[ZD_RECORD_UNIT].count; i++) {
		struct zd_unit *unit = restore->table.of[ZD_RECORD_UNIT].at[i].made;
		if (!unit)
			continue;
		unit->refs++; /* a unit without parts has none */
		for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
			struct zd_part *part = &unit->parts[rank];
			if (part->state == ZD_PART_ABSENT || part->shard.block)
				continue;
			LIST_REMOVE(part, member_link);
			part->state = ZD_PART_ABSENT;
			part->shadow = ZD_SHADOW_NONE;
			zd_part_changed(part);
			unit->refs--;
		}
		zd_unit_unref(e, unit);
	}
}

int zd_engine_restore(struct zd_engine *e, const uint8_t *bytes, size_t nbytes, struct zd_err *err)
{
	struct restore restore = {.e = e};
	struct zd_group *group;
	zd_assert(!e->jobs && !e->sessions);
	int status = zd_journal_table_init(&restore.table, bytes, nbytes, err);
	if (status == 0)
		status = restore_all(&restore, err);
	if (status == 0)
		restore_sessions(&restore);
	else
		drop_unplaced(&restore);
	for (group = e->groups; group && status == 0; group = group->hh.next) {
		if (group->shadow)
			roll_back(e, group);
	}
	zd_count(e, ZD_COUNT_JOBS_RESTORED, HASH_COUNT(e->jobs));
	zd_event_new(e, ZD_EVENT_DAEMON_RESTORE, NULL)->number = HASH_COUNT(e->jobs);
	zd_journal_table_deinit(&restore.table);
	free(restore.sessions);
	free(restore.lost);
	return status;
}
