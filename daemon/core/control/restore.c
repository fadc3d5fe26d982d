/* SPDX-License-Identifier: Apache-2.0 */
/*
 * restore.c - restores durable jobs from the journal of a daemon that has ended, however it has ended.
 *
 * The journal is read into a table of the last record of each object. The objects are then made in the order
 * of their ids, as they were first made. Whatever does not fit ends the restore as a whole.
 *
 * Ranks that were attached are lost ranks of their groups, as if all of them had died at once: a group
 * without shadows that was inside an update is torn, one with shadows is rolled back to its last commit. But
 * their processes may be alive, and kernels of them may still write. So each of their sessions becomes a
 * CLOSING one, which holds the rank's shards and allocations until its process has left
 * (deferred_teardown.c). Sessions that were CLOSING are so again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "core/cluster/cluster.h"
#include "core/control/control.h"
#include "core/engine/deferred_teardown.h"
#include "core/gather/shadow.h"
#include "core/memory/allocation.h"

/* Ids that the former daemon may have given since its journal began to objects that the journal does not
 * have. */
#define IDS_SKIPPED (UINT64_C(1) << 32)

struct key {
	uint64_t type, id, index;
};

/* The last record of an object. */
struct kept {
	struct key key;
	struct zd_record *record, *first; /* first: since it was made */
	void *made; /* the object; NULL: not yet, or its parent does not exist any more */
	UT_hash_handle hh;
};

struct restore {
	struct zd_engine *e;
	uint8_t *bytes; /* a copy, in which names are terminated */
	struct kept *all;
	struct kept **sorted[ZD_NRECORDS]; /* by id and index; nsorted of each */
	size_t nsorted[ZD_NRECORDS];
	struct zd_record_session *sessions; /* of the former daemon, by id */
	size_t nsessions;
	uint64_t last_id;
};

static const char *const type_names[ZD_NRECORDS] = {"",           "device", "job",     "group", "group state",
                                                    "member",     "commit", "segment", "unit",  "part",
                                                    "allocation", "end",    "ids",     "holds"};

static const size_t type_bytes[ZD_NRECORDS] = {
        [ZD_RECORD_DEVICE] = sizeof(struct zd_record_device),
        [ZD_RECORD_JOB] = sizeof(struct zd_record_job),
        [ZD_RECORD_GROUP] = sizeof(struct zd_record_group),
        [ZD_RECORD_GROUP_STATE] = sizeof(struct zd_record_group_state),
        [ZD_RECORD_MEMBER] = sizeof(struct zd_record_member),
        [ZD_RECORD_COMMIT] = sizeof(struct zd_record_commit),
        [ZD_RECORD_SEGMENT] = sizeof(struct zd_record_segment),
        [ZD_RECORD_UNIT] = sizeof(struct zd_record_unit), /* and its views */
        [ZD_RECORD_PART] = sizeof(struct zd_record_part),
        [ZD_RECORD_ALLOCATION] = sizeof(struct zd_record_allocation),
        [ZD_RECORD_GONE] = sizeof(struct zd_record),
        [ZD_RECORD_IDS] = sizeof(struct zd_record_ids),
        [ZD_RECORD_HOLDS] = sizeof(struct zd_record_holds), /* and the holds */
};

static int bad(const struct zd_record *record, const char *what, struct zd_err *err)
{
	return zd_err_set(err, ZEROD_E_INVALID, "the journal's %s %llu.%u: %s",
	                  record->type < ZD_NRECORDS ? type_names[record->type] : "record",
	                  (unsigned long long)record->id, record->index, what);
}

/* ---- The table ----------------------------------------------------------------------------------------- */

static struct kept *find(struct restore *restore, enum zd_record_type type, uint64_t id, uint32_t index)
{
	struct key key;
	struct kept *kept;
	memset(&key, 0, sizeof(key));
	key.type = type, key.id = id, key.index = index;
	HASH_FIND(hh, restore->all, &key, sizeof(key), kept);
	return kept;
}

static void *find_made(struct restore *restore, enum zd_record_type type, uint64_t id)
{
	const struct kept *kept = find(restore, type, id, 0);
	return kept ? kept->made : NULL;
}

/* The job of an object. NULL: it has ended, although a later job may have its id: a job that waits for
 * processes to leave begins anew when ranks join under its name. */
static struct zd_job *find_job(struct restore *restore, const struct kept *kept, uint64_t id)
{
	const struct kept *job = find(restore, ZD_RECORD_JOB, id, 0);
	return job && job->first < kept->record ? job->made : NULL;
}

static void forget(struct restore *restore, enum zd_record_type type, uint64_t id, uint32_t index)
{
	struct kept *kept = find(restore, type, id, index);
	if (!kept)
		return;
	HASH_DEL(restore->all, kept);
	free(kept);
}

static void keep(struct restore *restore, struct zd_record *record)
{
	struct kept *kept = find(restore, record->type, record->id, record->index);
	if (!kept) {
		kept = zd_calloc(1, sizeof(*kept));
		kept->key = (struct key){record->type, record->id, record->index};
		kept->first = record;
		HASH_ADD(hh, restore->all, key, sizeof(kept->key), kept);
	}
	kept->record = record;
}

static bool has_index(uint16_t type)
{
	return type == ZD_RECORD_MEMBER || type == ZD_RECORD_PART || type == ZD_RECORD_HOLDS ||
	       type == ZD_RECORD_GONE;
}

static bool may_be_id(const struct zd_record *record)
{
	if (record->type == ZD_RECORD_DEVICE || record->type == ZD_RECORD_IDS)
		return record->index == 0;
	return record->id > 0 && record->id < INT64_MAX && (record->index == 0 || has_index(record->type));
}

static int take_record(struct restore *restore, struct zd_record *record, size_t left, struct zd_err *err)
{
	size_t wanted = record->type < ZD_NRECORDS ? type_bytes[record->type] : 0;
	const struct zd_record_unit *unit = (void *)record;
	const struct zd_record_holds *holds = (void *)record;
	if (wanted == 0)
		return bad(record, "its type is unknown", err);
	if (record->type == ZD_RECORD_UNIT && left >= wanted)
		wanted += unit->nviews <= ZD_MAX_VIEWS ? unit->nviews * sizeof(unit->views[0]) : left;
	if (record->type == ZD_RECORD_HOLDS && left >= wanted)
		wanted += holds->nholds * sizeof(holds->holds[0]);
	if (record->bytes != wanted || wanted > left)
		return bad(record, "its size is wrong", err);
	if (!may_be_id(record))
		return bad(record, "it has no such id", err);
	if (record->type == ZD_RECORD_GONE)
		forget(restore, record->gone, record->id, record->index);
	else
		keep(restore, record);
	return 0;
}

static int read_records(struct restore *restore, size_t nbytes, struct zd_err *err)
{
	size_t at = 0;
	int status = 0;
	while (at < nbytes && status == 0) {
		struct zd_record *record = (struct zd_record *)(void *)(restore->bytes + at);
		if (nbytes - at < sizeof(*record))
			return zd_err_set(err, ZEROD_E_INVALID, "the journal ends inside a record");
		status = take_record(restore, record, nbytes - at, err);
		at += record->bytes;
	}
	return status;
}

static int by_key(const void *a, const void *b)
{
	const struct key *left = &(*(struct kept *const *)a)->key, *right = &(*(struct kept *const *)b)->key;
	if (left->id != right->id)
		return left->id < right->id ? -1 : 1;
	return (left->index > right->index) - (left->index < right->index);
}

static void sort_records(struct restore *restore)
{
	struct kept *kept;
	size_t count[ZD_NRECORDS] = {0};
	for (kept = restore->all; kept; kept = kept->hh.next)
		count[kept->key.type]++;
	for (size_t type = 0; type < ZD_NRECORDS; type++)
		restore->sorted[type] = zd_calloc(count[type] + 1, sizeof(struct kept *));
	for (kept = restore->all; kept; kept = kept->hh.next)
		restore->sorted[kept->key.type][restore->nsorted[kept->key.type]++] = kept;
	for (size_t type = 0; type < ZD_NRECORDS; type++)
		qsort(restore->sorted[type], restore->nsorted[type], sizeof(struct kept *), by_key);
}

/* ---- Objects ------------------------------------------------------------------------------------------- */

/* The next object gets this id. */
static void use_id(struct restore *restore, uint64_t id)
{
	restore->e->next_id = id - 1;
	restore->last_id = zd_max_u64(restore->last_id, id);
}

static int restore_ids(struct restore *restore, struct kept *kept, struct zd_err *err)
{
	(void)err;
	restore->last_id = zd_max_u64(restore->last_id, ((struct zd_record_ids *)(void *)kept->record)->last);
	return 0;
}

static int restore_device(struct restore *restore, struct kept *kept, struct zd_err *err)
{
	const struct zd_record_device *record = (void *)kept->record;
	const struct zd_engine *e = restore->e;
	char what[192];
	if (record->record.id < e->ndevices &&
	    strncmp(record->name, e->devices[record->record.id].config.name, sizeof(record->name)) == 0)
		return 0;
	(void)snprintf(what, sizeof(what), "it was %.63s and is %.63s", record->name,
	               record->record.id < e->ndevices ? e->devices[record->record.id].config.name
	                                               : "not there");
	return bad(&record->record, what, err);
}

static int restore_job(struct restore *restore, struct kept *kept, struct zd_err *err)
{
	struct zd_record_job *record = (void *)kept->record;
	struct zd_job *job;
	record->name[sizeof(record->name) - 1] = '\0';
	if (zd_job_find(restore->e, record->uid, record->name))
		return bad(&record->record, "another one has its name", err);
	use_id(restore, record->record.id);
	job = zd_job_new(restore->e, record->uid, record->name, true);
	job->had_group = record->had_group;
	job->began_ns = record->began_ns;
	zd_job_note_left(restore->e, job);
	kept->made = job;
	return 0;
}

/* The group's last commit, if it was made after the record; NULL otherwise. Earlier commits do not matter: a
 * part without a later record has not changed between them and the last one. */
static const struct zd_record_commit *commit_after(struct restore *restore, uint64_t group,
                                                   const struct zd_record *record)
{
	const struct kept *commit = find(restore, ZD_RECORD_COMMIT, group, 0);
	return commit && commit->record > record ? (void *)commit->record : NULL;
}

static void restore_group_state(struct restore *restore, struct zd_group *group, const struct kept *kept)
{
	const struct zd_record_group_state *record = (void *)kept->record;
	const struct zd_record_commit *commit = commit_after(restore, group->id, kept->record);
	group->committed_step = commit ? commit->step : record->committed_step;
	group->voted_step = record->voted_step;
	group->torn = record->torn && !commit;
}

static int restore_group(struct restore *restore, struct kept *kept, struct zd_err *err)
{
	struct zd_record_group *record = (void *)kept->record;
	struct zd_job *job = find_job(restore, kept, record->job);
	const struct kept *state = find(restore, ZD_RECORD_GROUP_STATE, record->record.id, 0);
	struct zd_args args = {.kind = ZD_REQ_GROUP_JOIN};
	struct zd_group *group;
	record->name[sizeof(record->name) - 1] = '\0';
	if (!job)
		return 0;
	if (record->world_size == 0 || record->world_size > ZD_MAX_WORLD || record->local_world_size == 0 ||
	    record->world_size % record->local_world_size != 0 || record->first_rank >= record->world_size ||
	    !state)
		return bad(&record->record, "its sizes are wrong", err);
	if (zd_group_find(job, record->name))
		return bad(&record->record, "another one has its name", err);
	args.u.group_join.group = record->name;
	args.u.group_join.world_size = record->world_size;
	args.u.group_join.local_world_size = record->local_world_size;
	args.u.group_join.rank = record->first_rank;
	args.u.group_join.shadow = record->shadow;
	args.u.group_join.hybrid = record->hybrid;
	args.u.group_join.nccl_collectives = record->nccl_collectives;
	use_id(restore, record->record.id);
	kept->made = group = zd_group_new(restore->e, job, &args);
	restore_group_state(restore, group, state);
	return 0;
}

static void note_session(struct restore *restore, const struct zd_record_session *session)
{
	if (session->id == 0)
		return;
	restore->sessions = zd_realloc(restore->sessions, restore->nsessions + 1, sizeof(*restore->sessions));
	restore->sessions[restore->nsessions++] = *session;
	restore->last_id = zd_max_u64(restore->last_id, session->id);
}

static int restore_member(struct restore *restore, struct kept *kept, struct zd_err *err)
{
	const struct zd_record_member *record = (void *)kept->record;
	struct zd_group *group = find_made(restore, ZD_RECORD_GROUP, record->record.id);
	struct zd_member *member;
	if (!group)
		return 0;
	if (record->record.index >= group->local_world_size || record->device >= restore->e->ndevices)
		return bad(&record->record, "it has no such rank or device", err);
	member = &group->members[record->record.index];
	member->device = &restore->e->devices[record->device];
	member->joined_before = record->joined_before;
	if (member->joined_before)
		group->state = ZD_GROUP_FAILED; /* until all ranks have joined again */
	if (member->joined_before && record->session.id != 0) {
		group->generation++;
		group->lost[group->generation % ZD_LOST_KEPT] =
		        (struct zd_lost){.rank = zd_world_rank(member), .pid = record->session.pid};
	}
	note_session(restore, &record->session);
	return 0;
}

static int restore_holds(struct restore *restore, struct kept *kept, struct zd_err *err)
{
	(void)err;
	note_session(restore, &((struct zd_record_holds *)(void *)kept->record)->session);
	return 0;
}

static int restore_segment(struct restore *restore, struct kept *kept, struct zd_err *err)
{
	const struct zd_record_segment *record = (void *)kept->record;
	struct zd_job *job = find_job(restore, kept, record->job);
	struct zd_engine *e = restore->e;
	struct zd_device *device;
	int status;
	if (!job)
		return 0;
	if (record->device >= e->ndevices || record->purpose >= ZD_NPURPOSES || record->record.id == 0 ||
	    record->record.id > UINT32_MAX || record->bytes == 0 || record->bytes > ZD_MAX_BYTES)
		return bad(&record->record, "its size, device or purpose is wrong", err);
	device = &e->devices[record->device];
	if (record->bytes % device->config.segment_align_bytes != 0)
		return bad(&record->record, "its size is no multiple of the device's", err);
	if (record->bytes > device->config.arena_bytes - device->segment_bytes)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "the durable segments of device %u are larger than its arena, %llu bytes",
		                  device->index, (unsigned long long)device->config.arena_bytes);
	status = e->sink.segment_restore(e->sink.arg, device->index, (uint32_t)record->record.id,
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

/* The unit's place stays where data of its ranks is laid out by it. */
static int restore_target(const struct zd_record_unit *record, struct zd_unit *unit, struct zd_err *err)
{
	uint64_t numel = zd_unit_target_numel(unit);
	if (numel > INT64_MAX || record->target_offset_numel > INT64_MAX - numel)
		return bad(&record->record, "it has no such place in the target", err);
	unit->targeted = true;
	unit->target_offset_numel = record->target_offset_numel;
	unit->group->target_numel = zd_max_u64(unit->group->target_numel,
	                                       record->target_offset_numel + numel);
	return 0;
}

static int restore_unit(struct restore *restore, struct kept *kept, struct zd_err *err)
{
	struct zd_record_unit *record = (void *)kept->record;
	struct zd_group *group = find_made(restore, ZD_RECORD_GROUP, record->group);
	struct zd_args args = {.kind = ZD_REQ_UNIT_REGISTER};
	struct zd_err wrong = ZD_ERR_NONE;
	struct zd_view_args *views;
	struct zd_unit *unit = NULL;
	int status;
	if (!group || !unit_has_parts(restore, record, group))
		return 0;
	if (record->first_rank >= group->local_world_size)
		return bad(&record->record, "it has no such rank", err);
	record->name[sizeof(record->name) - 1] = '\0';
	views = zd_calloc(record->nviews + 1, sizeof(*views));
	for (uint32_t i = 0; i < record->nviews; i++) {
		struct zd_record_view *from = &record->views[i];
		from->name[sizeof(from->name) - 1] = '\0';
		views[i] = (struct zd_view_args){
		        .name = from->name,
		        .offset_numel = from->offset_numel,
		        .ndim = from->ndim,
		};
		memcpy(views[i].shape, from->shape, sizeof(from->shape));
	}
	args.u.unit_register.name = record->name;
	args.u.unit_register.dtype = record->dtype;
	args.u.unit_register.numel = record->numel;
	args.u.unit_register.nviews = record->nviews;
	args.u.unit_register.views = views;
	args.u.unit_register.slot = record->slot;
	args.u.unit_register.frozen = record->frozen;
	args.u.unit_register.all_reduce = record->all_reduce;
	HASH_FIND(hh_name, group->units, record->name, strlen(record->name), unit);
	status = zd_unit_check_description(&args, group->nshards, &wrong);
	use_id(restore, record->record.id);
	if (unit)
		status = bad(&record->record, "another one has its name", err);
	else if (status != 0)
		status = bad(&record->record, wrong.text, err);
	else
		status = zd_unit_new(restore->e, NULL, group, record->first_rank, &args, &unit, err);
	free(views);
	if (status != 0)
		return status;
	kept->made = unit;
	unit->laid_out = true;
	return record->targeted ? restore_target(record, unit, err) : 0;
}

/* As commit_make() of update.c does it. */
static void commit_part(struct zd_part *part)
{
	if (part->shadow == ZD_SHADOW_SAVED && part->version != part->committed)
		part->shadow = ZD_SHADOW_FREE;
	part->committed = part->version;
}

static int restore_part(struct restore *restore, struct kept *kept, struct zd_err *err)
{
	const struct zd_record_part *record = (void *)kept->record;
	struct zd_unit *unit = find_made(restore, ZD_RECORD_UNIT, record->record.id);
	struct zd_part *part;
	if (!unit)
		return 0;
	if (record->record.index >= unit->group->local_world_size ||
	    !unit->group->members[record->record.index].device ||
	    record->shard.bytes != zd_align_up(zd_unit_part_bytes(unit), ZD_BLOCK_MIN_ALIGN) ||
	    record->shadow > ZD_SHADOW_RESTORING || (record->shadow != ZD_SHADOW_NONE) != unit->group->shadow)
		return bad(&record->record, "it does not fit its unit", err);
	part = &unit->parts[record->record.index];
	part->state = ZD_PART_DETACHED;
	if (record->written)
		part->state = ZD_PART_UPDATING; /* until lose_ranks() */
	part->version = record->version;
	part->first = record->first;
	part->committed = record->committed;
	part->shadow = record->shadow;
	if (part->shadow == ZD_SHADOW_SAVING) /* the update had not been granted */
		part->shadow = ZD_SHADOW_FREE;
	if (part->shadow == ZD_SHADOW_RESTORING)
		part->shadow = ZD_SHADOW_DUE;
	if (commit_after(restore, unit->group->id, kept->record))
		commit_part(part);
	unit->refs++;
	kept->made = part;
	return 0;
}

static int restore_allocation(struct restore *restore, struct kept *kept, struct zd_err *err)
{
	struct zd_record_allocation *record = (void *)kept->record;
	struct zd_job *job = find_job(restore, kept, record->job);
	struct zd_engine *e = restore->e;
	struct zd_allocation *allocation;
	if (!job)
		return 0;
	if (record->device >= e->ndevices)
		return bad(&record->record, "it has no such device", err);
	record->name[sizeof(record->name) - 1] = '\0';
	use_id(restore, record->record.id);
	allocation = zd_calloc(1, sizeof(*allocation));
	zd_job_ref(job);
	zd_metadata_charge(job->owner, ZD_ALLOCATION_METADATA_BYTES);
	allocation->id = zd_next_id(e);
	memcpy(allocation->name, record->name, sizeof(allocation->name));
	allocation->job = job;
	allocation->device = &e->devices[record->device];
	allocation->since_ns = e->now_ns;
	allocation->durable = true;
	TAILQ_INSERT_TAIL(&job->allocations, allocation, job_link);
	HASH_ADD(hh, e->allocations, id, sizeof(allocation->id), allocation);
	zd_id_tree_append(&e->listed[ZD_TABLE_ALLOCATIONS], &allocation->listed, allocation->id);
	note_session(restore, &record->session);
	kept->made = allocation;
	return 0;
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

static const struct zd_record_extent *extent_of(const struct kept *kept)
{
	if (kept->key.type == ZD_RECORD_PART)
		return &((struct zd_record_part *)(void *)kept->record)->shard;
	return &((struct zd_record_allocation *)(void *)kept->record)->extent;
}

static int by_place(const void *a, const void *b)
{
	const struct zd_record_extent *left = extent_of(*(struct kept *const *)a);
	const struct zd_record_extent *right = extent_of(*(struct kept *const *)b);
	if (left->segment != right->segment)
		return left->segment < right->segment ? -1 : 1;
	return (left->offset > right->offset) - (left->offset < right->offset);
}

/* Takes the block of a part or an allocation. `last`: of the one before. */
static int place(struct restore *restore, const struct kept *kept, struct zd_job *job,
                 const struct zd_device *device, struct zd_extent *extent, struct zd_extent *last,
                 struct zd_err *err)
{
	const struct zd_record_extent *record = extent_of(kept);
	struct zd_segment *segment = find_made(restore, ZD_RECORD_SEGMENT, record->segment);
	bool is_part = kept->key.type == ZD_RECORD_PART;
	enum zd_purpose purpose = is_part ? ZD_PURPOSE_SHARDS : ZD_PURPOSE_ALLOCATIONS;
	struct zd_block *block = NULL;
	if (segment && segment->job == job && segment->device == device && segment->purpose == purpose)
		block = zd_block_take(segment->range, last->segment == segment ? last->block : NULL,
		                      record->offset, record->bytes);
	if (!block)
		return bad(kept->record, "its memory is not there, or is another's too", err);
	*extent = *last = (struct zd_extent){segment, block, block->bytes};
	zd_extent_own(extent, is_part ? ZD_BLOCK_PART : ZD_BLOCK_ALLOCATION, kept->made);
	zd_charge(restore->e, job, segment->device, is_part ? ZD_CHARGE_SHARD : ZD_CHARGE_ALLOCATION,
	          extent->bytes);
	return 0;
}

static int place_made(struct restore *restore, const struct kept *kept, struct zd_extent *last,
                      struct zd_err *err)
{
	if (kept->key.type == ZD_RECORD_PART) {
		struct zd_part *part = kept->made;
		return place(restore, kept, part->unit->group->job, zd_part_member(part)->device,
		             &part->shard, last, err);
	}
	struct zd_allocation *allocation = kept->made;
	return place(restore, kept, allocation->job, allocation->device, &allocation->extent, last, err);
}

static int place_all(struct restore *restore, struct zd_err *err)
{
	static const enum zd_record_type types[] = {ZD_RECORD_PART, ZD_RECORD_ALLOCATION};
	struct kept **placed = zd_calloc(HASH_COUNT(restore->all) + 1, sizeof(struct kept *));
	struct zd_extent last = {0};
	size_t nplaced = 0;
	int status = 0;
	for (size_t t = 0; t < ZD_ARRAY_LEN(types); t++) {
		for (size_t i = 0; i < restore->nsorted[types[t]]; i++) {
			if (restore->sorted[types[t]][i]->made)
				placed[nplaced++] = restore->sorted[types[t]][i];
		}
	}
	qsort(placed, nplaced, sizeof(struct kept *), by_place);
	for (size_t i = 0; i < nplaced && status == 0; i++)
		status = place_made(restore, placed[i], &last, err);
	free(placed);
	return status;
}

/* ---- Lost ranks ---------------------------------------------------------------------------------------- */

/* Gives the session what it held when it ended, before the daemon. */
static void hold_recorded(struct restore *restore, struct zd_session *session,
                          const struct zd_record_holds *record)
{
	for (uint32_t i = 0; i < record->nholds; i++) {
		const struct zd_record_hold *object = &record->holds[i];
		const struct kept *kept = find(restore, object->type, object->id, object->index);
		if (!kept || !kept->made)
			continue;
		if (object->type == ZD_RECORD_PART)
			zd_part_hold(restore->e, session, kept->made);
		else if (object->type == ZD_RECORD_ALLOCATION)
			zd_allocation_hold(restore->e, session, kept->made);
	}
}

/* Gives the session what it held. */
static void hold(struct restore *restore, struct zd_session *session)
{
	for (size_t i = 0; i < restore->nsorted[ZD_RECORD_HOLDS]; i++) {
		const struct zd_record_holds *record = (void *)restore->sorted[ZD_RECORD_HOLDS][i]->record;
		if (record->session.id == session->id)
			hold_recorded(restore, session, record);
	}
	for (size_t i = 0; i < restore->nsorted[ZD_RECORD_MEMBER]; i++) {
		const struct kept *kept = restore->sorted[ZD_RECORD_MEMBER][i];
		const struct zd_record_member *record = (void *)kept->record;
		const struct zd_group *group = find_made(restore, ZD_RECORD_GROUP, record->record.id);
		if (!group || record->session.id != session->id)
			continue;
		for (struct zd_unit *unit = group->units; unit; unit = unit->hh_name.next) {
			if (!zd_part_is_gone(&unit->parts[record->record.index]))
				zd_part_hold(restore->e, session, &unit->parts[record->record.index]);
		}
	}
	for (size_t i = 0; i < restore->nsorted[ZD_RECORD_ALLOCATION]; i++) {
		const struct kept *kept = restore->sorted[ZD_RECORD_ALLOCATION][i];
		if (kept->made &&
		    ((struct zd_record_allocation *)(void *)kept->record)->session.id == session->id)
			zd_allocation_hold(restore->e, session, kept->made);
	}
}

static int by_session(const void *a, const void *b)
{
	const struct zd_record_session *left = a, *right = b;
	return (left->id > right->id) - (left->id < right->id);
}

/* Sessions have their former ids, and what follows them new ones. */
static void hold_all(struct restore *restore)
{
	uint64_t next_id = restore->last_id + IDS_SKIPPED;
	if (restore->nsessions > 0)
		qsort(restore->sessions, restore->nsessions, sizeof(*restore->sessions), by_session);
	for (size_t i = 0; i < restore->nsessions; i++) {
		struct zd_session *session;
		if (i > 0 && restore->sessions[i].id == restore->sessions[i - 1].id)
			continue;
		session = zd_session_new_former(restore->e, &restore->sessions[i]);
		hold(restore, session);
		restore->e->next_id = next_id;
		zd_deferred_teardowns_end(restore->e, session); /* which submits the watches */
		next_id = restore->e->next_id;
	}
	restore->e->next_id = next_id;
}

static bool is_torn(const struct zd_group *group)
{
	for (const struct zd_unit *unit = group->units; unit; unit = unit->hh_name.next) {
		for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
			const struct zd_part *part = &unit->parts[rank];
			if (zd_part_is_written(part) ||
			    (!zd_part_is_gone(part) && part->version != part->committed))
				return true;
		}
	}
	return false;
}

/* As zd_member_detach() does it, for all ranks at once. */
static void lose_ranks(struct zd_engine *e, struct zd_group *group)
{
	if (!group->shadow && is_torn(group))
		group->torn = true;
	if (group->shadow && !group->voted_step)
		zd_shadow_roll_back(e, group);
	for (struct zd_unit *unit = group->units; unit; unit = unit->hh_name.next) {
		for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
			struct zd_part *part = &unit->parts[rank];
			if (part->state == ZD_PART_UPDATING)
				zd_part_move(part, ZD_PART_DETACHED);
			zd_shadow_try(e, part);
		}
	}
}

/* ---- All ----------------------------------------------------------------------------------------------- */

typedef int restore_fn(struct restore *restore, struct kept *kept, struct zd_err *err);

static int restore_all(struct restore *restore, struct zd_err *err)
{
	/* Parents first. */
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
	for (size_t step = 0; step < ZD_ARRAY_LEN(order); step++) {
		for (size_t i = 0; i < restore->nsorted[order[step].type] && status == 0; i++)
			status = order[step].restore(restore, restore->sorted[order[step].type][i], err);
	}
	for (size_t i = 0; i < restore->nsorted[ZD_RECORD_JOB] && status == 0; i++) {
		const struct kept *kept = restore->sorted[ZD_RECORD_JOB][i];
		if (((struct zd_job *)kept->made)->refs == 0)
			status = bad(kept->record, "it has no group", err);
	}
	if (status == 0)
		status = place_all(restore, err);
	return status;
}

/* After a failure: removes objects whose memory was not found, which cannot be freed as others are. */
static void drop_unplaced(struct restore *restore)
{
	struct zd_engine *e = restore->e;
	for (size_t i = 0; i < restore->nsorted[ZD_RECORD_UNIT]; i++) {
		struct zd_unit *unit = restore->sorted[ZD_RECORD_UNIT][i]->made;
		if (!unit)
			continue;
		unit->refs++; /* a unit without parts has none */
		for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
			struct zd_part *part = &unit->parts[rank];
			if (part->state == ZD_PART_ABSENT || part->shard.block)
				continue;
			part->state = ZD_PART_ABSENT;
			part->shadow = ZD_SHADOW_NONE;
			unit->refs--;
		}
		zd_unit_unref(e, unit);
	}
}

static void restore_free(struct restore *restore)
{
	struct kept *kept, *next;
	for (size_t type = 0; type < ZD_NRECORDS; type++)
		free(restore->sorted[type]);
	kept = restore->all;
	HASH_CLEAR(hh, restore->all);
	for (; kept; kept = next) {
		next = kept->hh.next;
		free(kept);
	}
	free(restore->sessions);
	free(restore->bytes);
}

int zd_engine_restore(struct zd_engine *e, const uint8_t *bytes, size_t nbytes, struct zd_err *err)
{
	struct restore restore = {.e = e, .bytes = zd_calloc(1, nbytes + 1)};
	struct zd_group *group;
	int status;
	zd_assert(!e->jobs && !e->sessions);
	memcpy(restore.bytes, bytes, nbytes);
	status = read_records(&restore, nbytes, err);
	sort_records(&restore);
	if (status == 0)
		status = restore_all(&restore, err);
	if (status == 0)
		hold_all(&restore);
	else
		drop_unplaced(&restore);
	for (group = e->groups; group && status == 0; group = group->hh.next)
		lose_ranks(e, group);
	restore_free(&restore);
	return status;
}
