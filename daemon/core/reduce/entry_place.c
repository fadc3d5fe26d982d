/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entry_place.c - zeroes the parts of an entry's place that the client does not write, and keeps the promise
 * for it.
 *
 * An entry may use its place when no entry of an earlier generation of its slot is left. Then the padding
 * after the unit's true elements is zeroed, because a neighbour's bytes must not reach a norm. The client
 * writes the rest. On request the holes between the unit's views are zeroed as well. A promise for the place
 * is kept when the last fill has ended. Views that have no gradient are zeroed after the fences of a submit.
 *
 * A fill that fails breaks the promise: the streams that wait for it are released, and the session is
 * POISONED. The reduction of the entry fails when the fences of the entry's producers have passed.
 */
#include <stdlib.h>

#include "core/engine/promise.h"
#include "core/gather/unit.h"
#include "core/reduce/bucket.h"
#include "core/reduce/entry.h"
#include "core/reduce/storage.h"
#include "core/reduce/window.h"

/* A range of an entry, in elements. */
struct range {
	uint64_t begin, end;
};

static void place_there(struct zd_engine *e, struct zd_entry *entry)
{
	struct zd_promise *promise = entry->promise;
	entry->place = ZD_ENTRY_PLACE_THERE;
	entry->promise = NULL;
	if (promise && entry->failure.status != 0)
		zd_promise_break(e, promise);
	else if (promise)
		zd_promise_keep(e, promise);
	zd_dirty(e, entry->bucket->mr->member->device); /* the reservation can wait for it */
}

static void begin_fill(struct zd_entry *entry)
{
	entry->ops++; /* keeps the entry allocated while fills end */
	entry->fills++;
	entry->place = ZD_ENTRY_PLACE_ZEROED;
}

static void end_fill(struct zd_engine *e, struct zd_entry *entry)
{
	if (--entry->fills == 0 && entry->bucket)
		place_there(e, entry);
	entry->ops--;
	if (entry->bucket)
		zd_entry_try_ready(e, entry);
	else if (entry->ops == 0)
		zd_entry_free(entry);
}

static void filled(struct zd_engine *e, struct zd_op *op)
{
	struct zd_entry *entry = op->owner;
	zd_storage_unuse(e, entry->storage);
	if (op->status != 0)
		zd_failure_set(&entry->failure, op->status, op->error);
	end_fill(e, entry);
}

static void zero_padding(struct zd_engine *e, struct zd_entry *entry, struct range range)
{
	const struct zd_storage *storage = entry->storage;
	uint64_t each = zerod_dtype_bytes(entry->bucket->dtype);
	uint64_t begin = range.begin * each, end = zd_min_u64(range.end * each, entry->bytes);
	if (begin >= end)
		return;
	begin_fill(entry);
	zd_storage_use(entry->storage);
	zd_op_fill(e, entry->bucket->mr->member->group->job, storage->device->index,
	           zd_storage_location(storage, entry->offset + begin, end - begin), filled, entry, 0);
}

static int by_begin(const void *a, const void *b)
{
	const struct range *left = a, *right = b;
	return left->begin < right->begin ? -1 : left->begin > right->begin;
}

/* Zeroes the true elements that no view covers. */
static void zero_holes(struct zd_engine *e, struct zd_entry *entry)
{
	const struct zd_unit *unit = entry->part->unit;
	struct range *views = zd_calloc(unit->nviews + 1, sizeof(*views));
	uint64_t at = 0;
	for (uint32_t i = 0; i < unit->nviews; i++)
		views[i] = (struct range){unit->views[i]->offset_numel,
		                          unit->views[i]->offset_numel + zd_view_numel(unit->views[i])};
	qsort(views, unit->nviews, sizeof(*views), by_begin);
	for (uint32_t i = 0; i < unit->nviews; i++) {
		zero_padding(e, entry, (struct range){at, views[i].begin});
		at = zd_max_u64(at, views[i].end);
	}
	zero_padding(e, entry, (struct range){at, unit->numel});
	free(views);
}

void zd_entry_prepare(struct zd_engine *e, struct zd_entry *entry)
{
	begin_fill(entry);
	if (entry->zero_holes && entry->state != ZD_ENTRY_ABANDONED)
		zero_holes(e, entry);
	if (entry->state != ZD_ENTRY_ABANDONED)
		zero_padding(e, entry, (struct range){entry->part->unit->numel, UINT64_MAX / 8});
	end_fill(e, entry);
}

void zd_entry_zero_absent(struct zd_engine *e, struct zd_entry *entry)
{
	const struct zd_unit *unit = entry->part->unit;
	uint32_t n = entry->nabsent;
	entry->nabsent = 0;
	begin_fill(entry);
	for (uint32_t i = 0; i < n; i++) {
		const Zd__View *view = unit->views[entry->absent[i]];
		zero_padding(e, entry,
		             (struct range){view->offset_numel, view->offset_numel + zd_view_numel(view)});
	}
	end_fill(e, entry);
}

void zd_entry_release_promise(struct zd_engine *e, struct zd_entry *entry)
{
	struct zd_promise *promise = entry->promise;
	entry->promise = NULL;
	if (promise)
		zd_promise_keep(e, promise);
}
