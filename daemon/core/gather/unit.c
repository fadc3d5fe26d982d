/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit.c - units, their descriptions, and each rank's part of them.
 *
 * The first rank that registers a name describes the unit. Every other rank must give the same description. A
 * rank whose description differs receives MISMATCH. Until that rank agrees, the gathers of the other ranks
 * also fail with it, so that no rank waits for ever. A unit is freed after its last part, buffer and
 * reduction.
 *
 * A unit that all ranks have left can be described differently at once: it becomes the former unit of that
 * name. The new unit receives its places in slot and target when the former one has been freed.
 */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "core/engine/events.h"
#include "core/gather/buffer.h"
#include "core/gather/collective.h"
#include "core/gather/commit.h"
#include "core/gather/host_copy.h"
#include "core/gather/layout.h"
#include "core/gather/unit.h"

#define PART_NORM_BYTES 96u /* of the record of one part in reduce/norms.c */

uint64_t zd_part_true_numel(const struct zd_part *part)
{
	const struct zd_unit *unit = part->unit;
	uint64_t first = zd_shard_index(zd_part_member(part)) * unit->shard_numel;
	return first >= unit->numel ? 0 : zd_min_u64(unit->shard_numel, unit->numel - first);
}

struct zd_extent_use zd_part_use(const struct zd_part *part)
{
	enum zd_event_word purpose = part->unit->group->shadow ? ZD_WORD_SHARD_SHADOW : ZD_WORD_SHARD;
	return zd_member_use(zd_part_member(part), purpose, part->unit->id);
}

/* ---- Descriptions -------------------------------------------------------------------------------------- */

static int view_check(const Zd__UnitRegister *wanted, uint32_t index, struct zd_err *err)
{
	const char *unit = wanted->name;
	uint64_t numel = wanted->numel;
	const Zd__View *view = wanted->views[index];
	int status = zd_name_check(view->name, ZD_MAX_UNIT_NAME_BYTES, "view name", err);
	if (status != 0)
		return status;
	for (uint32_t i = 0; i < index; i++) {
		if (strcmp(wanted->views[i]->name, view->name) == 0)
			return zd_err_set(err, ZEROD_E_INVALID,
			                  "unit '%.64s': views %u and %u both have the name '%.64s'", unit, i,
			                  index, view->name);
	}
	if (view->n_shape > ZD_MAX_DIMS)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "unit '%.64s': view '%.64s' has %zu dimensions; at most %u", unit,
		                  view->name, view->n_shape, ZD_MAX_DIMS);
	uint64_t count = 1;
	for (size_t i = 0; i < view->n_shape; i++) {
		if (__builtin_mul_overflow(count, view->shape[i], &count))
			return zd_err_set(err, ZEROD_E_INVALID,
			                  "unit '%.64s': view %u '%.64s': the product of its shape overflows",
			                  unit, index, view->name);
	}
	if (view->offset_numel > numel || count > numel - view->offset_numel)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "unit '%.64s': view '%.64s' of %llu elements at %llu ends behind the "
		                  "unit's %llu",
		                  unit, view->name, (unsigned long long)count,
		                  (unsigned long long)view->offset_numel, (unsigned long long)numel);
	return 0;
}

#define IN_PLACE_GRANULES 2u /* minimum slice in place: the padding is then at most a third of the memory */

/* Elements of one rank's shard, padded to a multiple of `align` bytes. */
static uint64_t padded_numel(const Zd__UnitRegister *wanted, uint32_t nshards, uint64_t align)
{
	return zd_align_up((wanted->numel + nshards - 1) / nshards, align / zerod_dtype_bytes(wanted->dtype));
}

/* Whether the unit is gathered in place. Only the description matters: all daemons lay it out alike. */
static bool is_in_place(const struct zd_engine *e, const struct zd_group *group,
                        const Zd__UnitRegister *wanted)
{
	uint64_t numel = padded_numel(wanted, group->nshards, ZD_SHARD_ALIGN_BYTES);
	return group->nshards > 1 && !group->shadow && !zd_gathers_are_collective(group) &&
	       !wanted->on_host && !wanted->copied &&
	       numel * zerod_dtype_bytes(wanted->dtype) >= IN_PLACE_GRANULES * e->granule_bytes;
}

static uint64_t shard_numel(const struct zd_engine *e, const Zd__UnitRegister *wanted, uint32_t nshards,
                            bool in_place)
{
	return padded_numel(wanted, nshards, in_place ? e->granule_bytes : ZD_SHARD_ALIGN_BYTES);
}

int zd_unit_check_description(const struct zd_engine *e, const struct zd_group *group,
                              const Zd__UnitRegister *wanted, struct zd_err *err)
{
	uint32_t nshards = group->nshards;
	const char *name = wanted->name;
	uint64_t numel = wanted->numel;
	int status = zd_name_check(name, ZD_MAX_UNIT_NAME_BYTES, "unit name", err);
	if (status != 0)
		return status;
	size_t itemsize = zerod_dtype_bytes(wanted->dtype);
	if (itemsize == 0)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s': unknown dtype %u", name, wanted->dtype);
	if (numel == 0 || numel > ZD_MAX_BYTES / itemsize)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s': numel %llu is not in 1 .. %llu", name,
		                  (unsigned long long)numel, ZD_MAX_BYTES / itemsize);
	uint64_t padded = nshards * shard_numel(e, wanted, nshards, is_in_place(e, group, wanted));
	if (padded > ZD_MAX_BYTES / itemsize)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "unit '%s': %llu elements, padded for %u ranks, are more than %llu", name,
		                  (unsigned long long)padded, nshards, ZD_MAX_BYTES / itemsize);
	if (wanted->n_views > ZD_MAX_VIEWS)
		return zd_err_set(err, ZEROD_E_LIMIT, "unit '%s': %u views; at most %u", name,
		                  (uint32_t)wanted->n_views, ZD_MAX_VIEWS);
	if (wanted->slot > ZD_MAX_SLOTS)
		return zd_err_set(err, ZEROD_E_LIMIT, "unit '%s': slot %u; the highest is %u", name,
		                  wanted->slot, ZD_MAX_SLOTS);
	for (uint32_t i = 0; i < wanted->n_views && status == 0; i++)
		status = view_check(wanted, i, err);
	return status;
}

static bool view_equal(const Zd__View *a, const Zd__View *b)
{
	return strcmp(a->name, b->name) == 0 && a->offset_numel == b->offset_numel &&
	       a->n_shape == b->n_shape &&
	       (a->n_shape == 0 || memcmp(a->shape, b->shape, a->n_shape * sizeof(a->shape[0])) == 0);
}

/* A moved unit that other ranks have registered accepts any place, and remains where it is. */
static bool place_equal(const struct zd_unit *unit, const Zd__UnitRegister *wanted)
{
	return unit->on_host == wanted->on_host || (unit->placed && !zd_unit_is_left(unit));
}

static bool description_equal(const struct zd_unit *unit, const Zd__UnitRegister *wanted)
{
	if ((uint32_t)unit->dtype != wanted->dtype || unit->numel != wanted->numel ||
	    unit->slot != wanted->slot || unit->frozen != wanted->frozen ||
	    unit->all_reduce != wanted->all_reduce || !place_equal(unit, wanted) ||
	    unit->copied != wanted->copied || unit->unsaved != wanted->unsaved ||
	    unit->nviews != wanted->n_views)
		return false;
	for (uint32_t i = 0; i < unit->nviews; i++) {
		if (!view_equal(unit->views[i], wanted->views[i]))
			return false;
	}
	return true;
}

/* "float32, 40 elements, slot 1, views w[4,8]@0 b[8]@32", truncated to the buffer. */
static void description_text(const Zd__UnitRegister *unit, char *out, size_t out_bytes)
{
	int used = snprintf(out, out_bytes, "%s, %llu elements", zerod_dtype_name(unit->dtype),
	                    (unsigned long long)unit->numel);
	if (unit->slot != ZEROD_NO_SLOT)
		used += snprintf(out + used, out_bytes - (size_t)used, ", slot %u", unit->slot);
	used += snprintf(out + used, out_bytes - (size_t)used, "%s%s%s%s%s", unit->frozen ? ", frozen" : "",
	                 unit->all_reduce ? ", all-reduced" : "", unit->on_host ? ", on the host" : "",
	                 unit->copied ? ", copied" : "", unit->unsaved ? ", unsaved" : "");
	for (uint32_t i = 0; i < unit->n_views && (size_t)used < out_bytes - 64; i++) {
		const Zd__View *view = unit->views[i];
		used += snprintf(out + used, out_bytes - (size_t)used, "%s%.16s[", i ? " " : ", views ",
		                 view->name);
		for (uint32_t d = 0; d < view->n_shape && (size_t)used < out_bytes - 32; d++)
			used += snprintf(out + used, out_bytes - (size_t)used, "%s%llu", d ? "," : "",
			                 (unsigned long long)view->shape[d]);
		if ((size_t)used < out_bytes - 24)
			used += snprintf(out + used, out_bytes - (size_t)used, "]@%llu",
			                 (unsigned long long)view->offset_numel);
	}
}

static int mismatch(struct zd_unit *unit, const struct zd_member *member, const Zd__UnitRegister *wanted,
                    struct zd_err *err)
{
	char had[180], says[180];
	const Zd__UnitRegister first = {.dtype = unit->dtype,
	                                .numel = unit->numel,
	                                .slot = unit->slot,
	                                .frozen = unit->frozen,
	                                .all_reduce = unit->all_reduce,
	                                .on_host = unit->first_on_host,
	                                .copied = unit->copied,
	                                .unsaved = unit->unsaved,
	                                .n_views = unit->nviews,
	                                .views = unit->views};
	description_text(&first, had, sizeof(had));
	description_text(wanted, says, sizeof(says));
	return zd_err_set(err, ZEROD_E_MISMATCH, "unit '%.64s': rank %u registered %s; rank %u says %s",
	                  unit->name, member->group->first_rank + unit->first_rank, had,
	                  zd_world_rank(member), says);
}

/* ---- The journal --------------------------------------------------------------------------------------- */

void zd_journal_unit(const struct zd_unit *unit)
{
	struct zd_record_unit *record;
	if (!unit->group->job->journal || unit->is_former)
		return;
	record = zd_journal_add(unit->group->job->journal, ZD_RECORD_UNIT, unit->id, 0,
	                        sizeof(*record) + unit->nviews * sizeof(record->views[0]));
	record->group = unit->group->id;
	record->numel = unit->numel;
	record->dtype = unit->dtype;
	record->slot = unit->slot;
	record->first_rank = unit->first_rank;
	record->frozen = unit->frozen;
	record->all_reduce = unit->all_reduce;
	record->on_host = unit->on_host;
	record->first_on_host = unit->first_on_host;
	record->copied = unit->copied;
	record->unsaved = unit->unsaved;
	record->in_place = unit->in_place;
	record->placed = unit->placed;
	record->targeted = unit->targeted;
	record->target_offset_numel = unit->target_offset_numel;
	record->nviews = unit->nviews;
	(void)snprintf(record->name, sizeof(record->name), "%s", unit->name);
	for (uint32_t i = 0; i < unit->nviews; i++) {
		const Zd__View *view = unit->views[i];
		record->views[i].offset_numel = view->offset_numel;
		record->views[i].ndim = (uint32_t)view->n_shape;
		memcpy(record->views[i].shape, view->shape, view->n_shape * sizeof(view->shape[0]));
		(void)snprintf(record->views[i].name, sizeof(record->views[i].name), "%s", view->name);
	}
}

static void journal_unit_gone(const struct zd_unit *unit)
{
	if (unit->group->job->journal)
		zd_journal_gone(unit->group->job->journal, ZD_RECORD_UNIT, unit->id, 0);
}

/* Whether the part has a record, and whether the record says that it is written. */
enum recorded { NOT_RECORDED, RECORDED, RECORDED_WRITTEN };

static enum recorded recorded_as(const struct zd_part *part)
{
	if (zd_part_is_gone(part) || part->state == ZD_PART_FILLING)
		return NOT_RECORDED;
	return zd_part_is_written(part) ? RECORDED_WRITTEN : RECORDED;
}

static struct zd_part_changes part_now(const struct zd_part *part)
{
	return (struct zd_part_changes){.version = part->version,
	                                .uncommitted = (uint32_t)(part->version - zd_part_committed(part)),
	                                .written = zd_part_is_written(part),
	                                .shadow = (uint8_t)zd_part_shadow(part)};
}

void zd_journal_part(const struct zd_part *part)
{
	struct zd_journal *journal = part->unit->group->job->journal;
	if (!journal || recorded_as(part) == NOT_RECORDED)
		return;
	struct zd_record_part *record = zd_journal_add(journal, ZD_RECORD_PART, part->unit->id, part->rank,
	                                               sizeof(*record));
	record->group = part->unit->group->id;
	record->first = part->first;
	record->shard = zd_journal_extent(&part->shard);
	record->now = part_now(part);
}

void zd_journal_part_state(const struct zd_part *part)
{
	struct zd_journal *journal = part->unit->group->job->journal;
	if (!journal || recorded_as(part) == NOT_RECORDED)
		return;
	struct zd_record_part_state *record = zd_journal_add(journal, ZD_RECORD_PART_STATE, part->unit->id,
	                                                     part->rank, sizeof(*record));
	record->now = part_now(part);
}

static void journal_part_gone(const struct zd_part *part)
{
	struct zd_journal *journal = part->unit->group->job->journal;
	zd_journal_gone(journal, ZD_RECORD_PART, part->unit->id, part->rank);
	zd_journal_gone(journal, ZD_RECORD_PART_STATE, part->unit->id, part->rank);
}

/* Other states have the same record: for example, a rank that waits to write has not changed anything yet. */
static void journal_move(const struct zd_part *part, enum recorded before)
{
	if (recorded_as(part) == before)
		return;
	if (recorded_as(part) == NOT_RECORDED)
		journal_part_gone(part);
	else if (before == NOT_RECORDED)
		zd_journal_part(part);
	else
		zd_journal_part_state(part);
}

void zd_part_move(struct zd_part *part, enum zd_part_state to)
{
	bool recorded = part->unit->group->job->journal != NULL;
	enum recorded before = recorded ? recorded_as(part) : NOT_RECORDED;
	zd_part_take_commits(part);
	zd_sm_move(&zd_sm_part, &part->state, to);
	zd_part_changed(part);
	if (recorded)
		journal_move(part, before);
}

/* ---- Units --------------------------------------------------------------------------------------------- */

/* Of a copy, in one piece of memory. */
static size_t view_bytes(const Zd__View *view)
{
	return sizeof(*view) + view->n_shape * sizeof(view->shape[0]) + strlen(view->name) + 1;
}

static Zd__View *view_copy(const Zd__View *view)
{
	Zd__View *copy = zd_calloc(1, view_bytes(view));
	*copy = *view;
	copy->shape = (uint64_t *)(copy + 1);
	copy->name = (char *)(copy->shape + view->n_shape);
	if (view->n_shape > 0) /* a scalar's shape is NULL */
		memcpy(copy->shape, view->shape, view->n_shape * sizeof(view->shape[0]));
	memcpy(copy->name, view->name, strlen(view->name) + 1);
	return copy;
}

/* The metadata of a unit, including the needs of a part with a shard and with reduced gradients. */
static uint32_t unit_metadata_bytes(const struct zd_group *group, const Zd__UnitRegister *wanted)
{
	size_t part_bytes = sizeof(struct zd_part) + sizeof(struct zd_block) + PART_NORM_BYTES;
	size_t bytes = sizeof(struct zd_unit) + strlen(wanted->name) + 1;
	if (zd_gathers_are_collective(group))
		part_bytes += sizeof(struct zd_collective);
	for (uint32_t i = 0; i < wanted->n_views; i++)
		bytes += sizeof(Zd__View *) + view_bytes(wanted->views[i]);
	return (uint32_t)(bytes + group->local_world_size * part_bytes);
}

static void unit_free(struct zd_unit *unit)
{
	zd_metadata_uncharge(unit->group->job->owner, unit->metadata_bytes);
	if (unit->host_copy)
		unit->host_copy->unit = NULL;
	for (uint32_t i = 0; i < unit->nviews; i++)
		free(unit->views[i]);
	free(unit->views);
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++)
		zd_collective_free(unit->parts[rank].collective);
	free(unit->parts);
	free(unit->saves);
	free(unit->name);
	free(unit);
}

int zd_unit_new(struct zd_engine *e, const struct zd_session *session, struct zd_group *group,
                uint32_t first_rank, const Zd__UnitRegister *wanted, bool in_place, struct zd_unit **out,
                struct zd_err *err)
{
	if (group->nunits >= ZD_MAX_UNITS)
		return zd_err_set(err, ZEROD_E_LIMIT, "group '%s' has %u units already", group->name,
		                  ZD_MAX_UNITS);
	uint32_t metadata_bytes = unit_metadata_bytes(group, wanted);
	int status = session ? zd_metadata_check(e, session, "unit", wanted->name, metadata_bytes, err) : 0;
	if (status != 0)
		return status;
	struct zd_unit *unit = zd_calloc(1, sizeof(*unit));
	unit->metadata_bytes = metadata_bytes;
	zd_metadata_charge(group->job->owner, metadata_bytes);
	unit->name = zd_strdup(wanted->name);
	unit->group = group;
	unit->dtype = wanted->dtype;
	unit->numel = wanted->numel;
	unit->copied = wanted->copied;
	unit->unsaved = wanted->unsaved;
	unit->in_place = in_place;
	unit->shard_numel = shard_numel(e, wanted, group->nshards, in_place);
	unit->slot = wanted->slot;
	unit->frozen = wanted->frozen;
	unit->all_reduce = wanted->all_reduce;
	unit->on_host = unit->first_on_host = wanted->on_host;
	unit->description = zd_unit_digest(wanted);
	unit->first_rank = first_rank;
	unit->nviews = wanted->n_views;
	unit->views = zd_calloc(unit->nviews ? unit->nviews : 1, sizeof(Zd__View *));
	for (uint32_t i = 0; i < unit->nviews; i++)
		unit->views[i] = view_copy(wanted->views[i]);
	unit->parts = zd_calloc(group->local_world_size, sizeof(*unit->parts));
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		unit->parts[rank].unit = unit;
		unit->parts[rank].rank = rank;
		unit->parts[rank].frozen = unit->frozen;
		if (zd_gathers_are_collective(group))
			unit->parts[rank].collective = zd_collective_new();
	}
	unit->id = zd_next_id(e, group->job->owner->ids, ZD_ID_UNIT);
	zd_hash_insert(&e->units, &unit->by_id, zd_hash_id(unit->id));
	zd_id_tree_insert(&e->listed[ZD__TABLE__UNITS], &unit->listed, unit->id);
	zd_hash_insert(&group->unit_names, &unit->by_name, zd_text_hash(unit->name));
	TAILQ_INSERT_TAIL(&group->units, unit, group_link);
	group->nunits++;
	group->refs++;
	zd_journal_unit(unit);
	*out = unit;
	return 0;
}

/* Records that the rank has described the unit differently. `text` NULL: no rank has. */
static void set_mismatch(struct zd_unit *unit, uint32_t rank, const char *text)
{
	struct zd_group *group = unit->group;
	group->nmismatches -= unit->mismatch != NULL;
	free(unit->mismatch);
	unit->mismatch = text ? zd_strdup(text) : NULL;
	unit->mismatch_rank = rank;
	group->nmismatches += unit->mismatch != NULL;
}

bool zd_unit_is_left(const struct zd_unit *unit)
{
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		if (!zd_part_is_gone(&unit->parts[rank]))
			return false;
	}
	return unit->registrations == 0;
}

static void leave_units(struct zd_group *group, struct zd_unit *unit)
{
	if (group->summing.next == unit)
		group->summing.next = TAILQ_NEXT(unit, group_link);
	TAILQ_REMOVE(&group->units, unit, group_link);
}

/* Frees the unit's name. No other former unit has the name: while one exists, registrations of the name wait,
 * and no newer unit of that name has a part. */
static void unit_make_former(struct zd_unit *unit)
{
	struct zd_group *group = unit->group;
	leave_units(group, unit);
	group->nunits--;
	TAILQ_INSERT_TAIL(&group->former, unit, group_link);
	unit->is_former = true;
	journal_unit_gone(unit);
}

void zd_unit_unref(struct zd_engine *e, struct zd_unit *unit)
{
	struct zd_group *group = unit->group;
	zd_assert(unit->refs > 0);
	if (--unit->refs > 0)
		return;
	zd_history_keep_name(&e->history, unit->id, unit->name, group->name);
	zd_hash_remove(&e->units, &unit->by_id);
	zd_hash_remove(&group->unit_names, &unit->by_name);
	zd_id_tree_remove(&e->listed[ZD__TABLE__UNITS], &unit->listed);
	if (unit->is_former) {
		TAILQ_REMOVE(&group->former, unit, group_link);
		zd_dirty_group(e, group); /* a registration of the same name can wait for this */
	} else {
		leave_units(group, unit);
		group->nunits--;
		journal_unit_gone(unit);
	}
	zd_layout_forget(unit);
	set_mismatch(unit, 0, NULL);
	if (group->unit_names.nnodes == 0)
		memset(group->target_numel, 0, sizeof(group->target_numel));
	e->parts_serial++;
	unit_free(unit);
	zd_group_unref(e, group);
}

void zd_mismatches_forget(const struct zd_member *member)
{
	struct zd_group *group = member->group;
	for (struct zd_unit *unit = TAILQ_FIRST(&group->units); unit && group->nmismatches > 0;
	     unit = TAILQ_NEXT(unit, group_link)) {
		if (unit->mismatch_rank == member->rank)
			set_mismatch(unit, 0, NULL);
	}
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

/* A rank that replaces another starts one version lower than the others, so that its first publish reaches
 * their version. An unpublished part of another replaced rank counts one version higher, so that both start
 * with the same version. */
static uint64_t first_version(const struct zd_unit *unit, const struct zd_member *member)
{
	uint64_t newest = 0;
	if (!member->joined_before)
		return 0;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		const struct zd_part *part = &unit->parts[rank];
		newest = zd_max_u64(newest, part->version + (zd_part_is_unpublished(part) ? 1 : 0));
	}
	return newest > 0 ? newest - 1 : 0;
}

int zd_unit_check_place(const struct zd_member *member, const char *name, bool on_host, struct zd_err *err)
{
	const struct zd_device *device = member->device;
	if (!on_host)
		return 0;
	if (member->group->cluster)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "unit '%s': group '%s' spans daemons, or its collectives are NCCL's; units "
		                  "on the host are gathered within one daemon only",
		                  name, member->group->name);
	if (!device->host)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "unit '%s': this daemon has no host memory for device %u (%s); "
		                  "host_arena in zerod.conf sets its size",
		                  name, device->index, device->config.name);
	return 0;
}

static int register_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	const Zd__UnitRegister *wanted = &req->args->u.unit_register;
	struct zd_member *member;
	int status = zd_member_find(e, req->session, wanted->group, &member, err);
	if (status == 0)
		status = zd_unit_check_description(e, member->group, wanted, err);
	if (status == 0 && member->group->state == ZD_GROUP_ABORTED)
		status = zd_group_check(member->group, err);
	if (status == 0)
		status = zd_unit_check_place(member, wanted->name, wanted->on_host, err);
	if (status != 0)
		return status;
	struct zd_unit *unit = zd_unit_find_name(member->group, wanted->name, false);
	if (unit && !description_equal(unit, wanted) && zd_unit_is_left(unit)) {
		unit_make_former(unit);
		unit = NULL;
	}
	if (unit && !description_equal(unit, wanted)) {
		status = mismatch(unit, member, wanted, err);
		if (!zd_part_is_registered(&unit->parts[member->rank]) && !unit->mismatch) {
			set_mismatch(unit, member->rank, err ? err->text : "");
			zd_dirty_group(e, member->group);
		}
		return status;
	}
	if (!unit)
		status = zd_unit_new(e, req->session, member->group, member->rank, wanted,
		                     is_in_place(e, member->group, wanted), &unit, err);
	else
		status = zd_unit_check_place(member, unit->name, unit->on_host, err);
	if (status != 0)
		return status;
	if (unit->mismatch_rank == member->rank)
		set_mismatch(unit, 0, NULL);
	struct zd_part *part = &unit->parts[member->rank];
	unit->refs++; /* the request's, until it ends */
	unit->registrations++;
	zd_request_set_member(req, member);
	req->u.reg.part = part;
	req->u.reg.persistent = wanted->persistent;
	return 0;
}

static void register_filled(struct zd_engine *e, struct zd_op *op)
{
	struct zd_part *part = op->owner;
	if (part->state == ZD_PART_FILLING && op->status == 0) {
		/* The registration of a rank that leaves has failed: its end drops the shard. */
		if (!zd_part_member(part)->detaching)
			zd_part_move(part, ZD_PART_IDLE);
	} else if (part->state == ZD_PART_FILLING) {
		struct zd_request *req;
		TAILQ_FOREACH (req, &zd_part_member(part)->device->queue, device_link) {
			if (req->kind == ZD_REQ_UNIT_REGISTER && req->u.reg.part == part)
				zd_request_fail(req, op->status, op->error);
		}
		zd_part_drop(e, part); /* the reader below frees it */
	}
	zd_part_reader_done(e, part);
}

static int register_place(struct zd_engine *e, struct zd_request *req, struct zd_part *part,
                          struct zd_err *err)
{
	struct zd_group *group = req->member->group;
	struct zd_device *memory = zd_part_memory(part);
	uint64_t bytes = zd_unit_part_bytes(part->unit);
	int status = zd_layout_check(part->unit, err);
	if (status == 0 && bytes > ZD_MAX_BYTES)
		status = zd_err_set(err, ZEROD_E_NO_MEMORY,
		                    "unit '%s': a shard and its shadow of %llu bytes are more than %llu",
		                    part->unit->name, (unsigned long long)bytes, ZD_MAX_BYTES);
	if (status == 0)
		status = zd_quota_check(e, group->job, bytes, err);
	if (status == 0)
		status = zd_pool_alloc(e, req, group->job, memory,
		                       zd_unit_purpose(part->unit, part->unit->on_host), bytes,
		                       ZD_BLOCK_MIN_ALIGN, &part->shard, err);
	if (status != 0)
		return status;
	zd_extent_own(e, &part->shard, ZD_BLOCK_PART, part, zd_part_use(part));
	LIST_INSERT_HEAD(&req->member->parts, part, member_link);
	zd_layout_enter(part);
	zd_part_move(part, ZD_PART_FILLING);
	part->unit->refs++;
	part->persistent = req->u.reg.persistent;
	part->version = first_version(part->unit, req->member);
	part->first = part->version;
	part->committed = group->shadow ? part->version : 0; /* the version to restore when a rank is lost */
	if (group->shadow)
		zd_sm_move(&zd_sm_shadow, &part->shadow, ZD_SHADOW_FREE);
	zd_part_changed(part);
	zd_charge(e, group->job, memory, ZD_CHARGE_SHARD, part->shard.bytes);
	part->readers++;
	zd_op_fill(e, group->job, memory->index, zd_part_location(part), register_filled, part, 0);
	return zd_wait_for(req, ZD_WAIT_FILL, 0, 0, 0);
}

static void register_end(struct zd_engine *e, struct zd_request *req)
{
	struct zd_unit *unit = req->u.reg.part->unit;
	zd_assert(unit->registrations > 0);
	unit->registrations--;
	zd_unit_unref(e, unit);
}

static int register_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_part *part = req->u.reg.part;
	struct zd_unit *unit = part->unit;
	int status = 0;
	if (!TAILQ_EMPTY(&unit->group->former) && zd_unit_find_name(unit->group, unit->name, true))
		return zd_wait_for_unit(req, unit, ZD_WAIT_FORMER, 0, 0, 0);
	if (part->state == ZD_PART_DYING) {
		return zd_wait_for_unit(req, unit, ZD_WAIT_READERS, part->rank, part->readers, 0);
	}
	if (part->state == ZD_PART_FILLING)
		return zd_wait_for(req, ZD_WAIT_FILL, 0, 0, 0);
	if (zd_shadow_is_owed(part))
		return zd_wait_for_unit(req, unit, ZD_WAIT_RESTORE, part->rank, 0, 0);
	if (part->state == ZD_PART_ABSENT) {
		status = register_place(e, req, part, err);
		if (status == ZD_WAIT)
			return status;
	} else if (part->state == ZD_PART_DETACHED && (status = zd_layout_check(unit, err)) == 0) {
		zd_part_move(part, ZD_PART_IDLE);
		zd_layout_enter(part);
		part->persistent = req->u.reg.persistent; /* its buffer was dropped with the former session */
	}
	if (status != 0) {
		register_end(e, req);
		return status;
	}
	e->reply.u.unit_register.unit = unit->id;
	e->reply.place = zd_part_location(part);
	e->reply.u.unit_register.shard_numel = unit->shard_numel;
	e->reply.u.unit_register.true_numel = zd_part_true_numel(part);
	e->reply.u.unit_register.padded_numel = unit->shard_numel * unit->group->nshards;
	e->reply.u.unit_register.version = part->version;
	e->reply.u.unit_register.target_offset_numel = unit->target_offset_numel;
	e->reply.u.unit_register.description = unit->description;
	e->reply.u.unit_register.placed = zd_unit_placed(unit);
	zd_dirty_group(e, unit->group);
	register_end(e, req);
	return 0;
}

static int unregister_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_part *part;
	int status = zd_part_find(e, req->session, req->args->u.unit_unregister.unit, &part, err);
	if (status != 0)
		return status;
	const char *name = part->unit->name, *plural = part->users == 1 ? "" : "s";
	if (part->state != ZD_PART_IDLE)
		return zd_err_set(err, ZEROD_E_BUSY, "unit '%s' is being updated", name);
	if (part->users > 0)
		return zd_err_set(err, ZEROD_E_BUSY, "unit '%s' is in use by %u gather%s or reduction%s",
		                  name, part->users, plural, plural);
	if (part->buffer && !TAILQ_EMPTY(&part->buffer->leases)) {
		char tags[128];
		zd_buffer_tags(part->buffer, tags, sizeof(tags));
		return zd_err_set(err, ZEROD_E_BUSY, "unit '%s' is held by %s", name, tags);
	}
	status = e->events->check_target_place(part, err);
	if (status != 0)
		return status;
	if (part->buffer)
		zd_buffer_drop(e, part->buffer);
	e->events->unlend_target(part);
	zd_part_drop(e, part);
	return 0;
}

const struct zd_request_type zd_req_unit_register = {
        .begin = register_begin, .attempt = register_attempt, .cancel = register_end};
const struct zd_request_type zd_req_unit_unregister = {.begin = unregister_begin};
