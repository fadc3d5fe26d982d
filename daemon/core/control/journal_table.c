/* SPDX-License-Identifier: Apache-2.0 */
/* journal_table.c - checks the form of a journal's records, and finds the last record of each object. */
#include "core/control/journal_table.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "core/control/radix.h"
#include "core/engine/ids.h"

/* The last record of an object, or its GONE record. `at` is in units of 8 bytes. */
struct entry {
	uint64_t id;
	uint32_t index, at;
};

static const char *const type_names[ZD_NRECORDS] = {"",           "device", "job",     "group", "group state",
                                                    "member",     "commit", "segment", "unit",  "part",
                                                    "allocation", "end",    "ids",     "holds", "part state"};

/* Sizes without the arrays at the end of units and holds. */
static const size_t type_bytes[ZD_NRECORDS] = {
        [ZD_RECORD_DEVICE] = sizeof(struct zd_record_device),
        [ZD_RECORD_JOB] = sizeof(struct zd_record_job),
        [ZD_RECORD_GROUP] = sizeof(struct zd_record_group),
        [ZD_RECORD_GROUP_STATE] = sizeof(struct zd_record_group_state),
        [ZD_RECORD_MEMBER] = sizeof(struct zd_record_member),
        [ZD_RECORD_COMMIT] = sizeof(struct zd_record_commit),
        [ZD_RECORD_SEGMENT] = sizeof(struct zd_record_segment),
        [ZD_RECORD_UNIT] = sizeof(struct zd_record_unit),
        [ZD_RECORD_PART] = sizeof(struct zd_record_part),
        [ZD_RECORD_ALLOCATION] = sizeof(struct zd_record_allocation),
        [ZD_RECORD_GONE] = sizeof(struct zd_record),
        [ZD_RECORD_IDS] = sizeof(struct zd_record_ids),
        [ZD_RECORD_HOLDS] = sizeof(struct zd_record_holds),
        [ZD_RECORD_PART_STATE] = sizeof(struct zd_record_part_state),
};

int zd_journal_bad(const struct zd_record *record, const char *what, struct zd_err *err)
{
	return zd_err_set(err, ZEROD_E_INVALID, "the journal's %s %llu.%u: %s",
	                  record->type < ZD_NRECORDS ? type_names[record->type] : "record",
	                  ZD_ID_NUMBER(record->id), record->index, what);
}

/* ---- The form of a record ------------------------------------------------------------------------------ */

static bool has_index(uint16_t type)
{
	return type == ZD_RECORD_MEMBER || type == ZD_RECORD_PART || type == ZD_RECORD_PART_STATE ||
	       type == ZD_RECORD_HOLDS || type == ZD_RECORD_GONE || type == ZD_RECORD_IDS;
}

static bool may_be_id(const struct zd_record *record)
{
	if (record->type == ZD_RECORD_IDS)
		return record->id <= UINT32_MAX && record->index < ZD_NIDS;
	if (record->type == ZD_RECORD_DEVICE)
		return record->index == 0;
	return record->id > 0 && record->id < INT64_MAX && (record->index == 0 || has_index(record->type));
}

#define ENDS(text) (memchr(text, '\0', sizeof(text)) != NULL)

static bool names_end(const struct zd_record *record)
{
	const struct zd_record_unit *unit = (const void *)record;
	bool ends = true;
	switch (record->type) {
	case ZD_RECORD_JOB:
		return ENDS(((const struct zd_record_job *)(const void *)record)->name);
	case ZD_RECORD_GROUP:
		return ENDS(((const struct zd_record_group *)(const void *)record)->name);
	case ZD_RECORD_ALLOCATION:
		return ENDS(((const struct zd_record_allocation *)(const void *)record)->name);
	case ZD_RECORD_UNIT:
		ends = ENDS(unit->name);
		for (uint32_t i = 0; i < unit->nviews; i++)
			ends = ends && ENDS(unit->views[i].name);
		return ends;
	default:
		return true;
	}
}

static int check_record(const struct zd_record *record, size_t left, struct zd_err *err)
{
	size_t wanted = record->type < ZD_NRECORDS ? type_bytes[record->type] : 0;
	const struct zd_record_unit *unit = (const void *)record;
	const struct zd_record_holds *holds = (const void *)record;
	if (wanted == 0)
		return zd_journal_bad(record, "its type is unknown", err);
	if (record->type == ZD_RECORD_UNIT && left >= wanted)
		wanted += unit->nviews <= ZD_MAX_VIEWS ? unit->nviews * sizeof(unit->views[0]) : left;
	if (record->type == ZD_RECORD_HOLDS && left >= wanted)
		wanted += holds->nholds * sizeof(holds->holds[0]);
	if (record->bytes != wanted || wanted > left)
		return zd_journal_bad(record, "its size is wrong", err);
	if (!may_be_id(record))
		return zd_journal_bad(record, "it has no such id", err);
	if (!names_end(record))
		return zd_journal_bad(record, "a name of it has no end", err);
	return 0;
}

static uint32_t object_type(const struct zd_record *record)
{
	if (record->type != ZD_RECORD_GONE)
		return record->type;
	return record->gone < ZD_NRECORDS ? record->gone : 0;
}

static int check_records(const uint8_t *bytes, size_t nbytes, size_t count[ZD_NRECORDS], struct zd_err *err)
{
	int status = 0;
	for (size_t at = 0; at < nbytes && status == 0;) {
		const struct zd_record *record = (const void *)(bytes + at);
		if (nbytes - at < sizeof(*record))
			return zd_err_set(err, ZEROD_E_INVALID, "the journal ends inside a record");
		status = check_record(record, nbytes - at, err);
		if (status == 0)
			count[object_type(record)]++;
		at += record->bytes;
	}
	return status;
}

/* ---- The objects --------------------------------------------------------------------------------------- */

static int compare(uint64_t id, uint32_t index, uint64_t other_id, uint32_t other_index)
{
	if (id != other_id)
		return id < other_id ? -1 : 1;
	return (index > other_index) - (index < other_index);
}

/* Sorts by object. The records of an object remain in their order. */
static void sort(struct entry *entries, size_t nentries)
{
	struct entry *scratch = zd_calloc(nentries + 1, sizeof(*scratch));
	zd_radix_sort(entries, scratch, nentries, sizeof(*entries), offsetof(struct entry, index),
	              sizeof(entries->index));
	zd_radix_sort(entries, scratch, nentries, sizeof(*entries), offsetof(struct entry, id),
	              sizeof(entries->id));
	free(scratch);
}

/* Stores the last record of each object, unless it is GONE. */
static void add_objects(struct zd_journal_objects *objects, const uint8_t *bytes, const struct entry *entries,
                        size_t nentries)
{
	struct zd_journal_object object = {0};
	objects->at = zd_calloc(nentries + 1, sizeof(*objects->at));
	for (size_t i = 0; i < nentries; i++) {
		const struct zd_record *record = (const void *)(bytes + (uint64_t)entries[i].at * 8);
		bool is_last = i + 1 == nentries || entries[i].id != entries[i + 1].id ||
		               entries[i].index != entries[i + 1].index;
		if (record->type == ZD_RECORD_GONE)
			record = NULL;
		object.record = record;
		if (!record || !object.first)
			object.first = record;
		if (is_last && record)
			objects->at[objects->count++] = object;
		if (is_last)
			object.first = NULL;
	}
}

int zd_journal_table_init(struct zd_journal_table *table, const uint8_t *bytes, size_t nbytes,
                          struct zd_err *err)
{
	struct entry *entries[ZD_NRECORDS];
	size_t count[ZD_NRECORDS] = {0}, used[ZD_NRECORDS] = {0};
	int status = 0;
	*table = (struct zd_journal_table){0};
	if (nbytes / 8 > UINT32_MAX)
		return zd_err_set(err, ZEROD_E_INVALID, "the journal is too long");
	status = check_records(bytes, nbytes, count, err);
	if (status != 0)
		return status;
	for (size_t type = 0; type < ZD_NRECORDS; type++)
		entries[type] = zd_calloc(count[type] + 1, sizeof(struct entry));
	for (size_t at = 0; at < nbytes;) {
		const struct zd_record *record = (const void *)(bytes + at);
		uint32_t type = object_type(record);
		entries[type][used[type]++] = (struct entry){record->id, record->index, (uint32_t)(at / 8)};
		at += record->bytes;
	}
	for (size_t type = 0; type < ZD_NRECORDS; type++) {
		sort(entries[type], count[type]);
		add_objects(&table->of[type], bytes, entries[type], count[type]);
		free(entries[type]);
	}
	return 0;
}

void zd_journal_table_deinit(struct zd_journal_table *table)
{
	for (size_t type = 0; type < ZD_NRECORDS; type++)
		free(table->of[type].at);
}

static int compare_object(const struct zd_journal_object *object, uint64_t id, uint32_t index)
{
	return compare(id, index, object->record->id, object->record->index);
}

struct zd_journal_object *zd_journal_table_find(struct zd_journal_table *table, uint32_t type, uint64_t id,
                                                uint32_t index)
{
	size_t from = 0, to;
	if (type >= ZD_NRECORDS)
		return NULL;
	struct zd_journal_objects *objects = &table->of[type];
	to = objects->count;
	if (to > 0 && compare_object(&objects->at[objects->found], id, index) == 0)
		return &objects->at[objects->found];
	while (from < to) {
		size_t middle = from + (to - from) / 2;
		int order = compare_object(&objects->at[middle], id, index);
		if (order == 0) {
			objects->found = middle;
			return &objects->at[middle];
		}
		if (order < 0)
			to = middle;
		else
			from = middle + 1;
	}
	return NULL;
}
