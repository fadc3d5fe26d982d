/* SPDX-License-Identifier: Apache-2.0 */
/*
 * address.c - reserved address ranges, what is mapped there, and which devices may touch it.
 *
 * Whole handles are mapped at offset zero, access is given and taken by whole mappings, and whole mappings
 * are unmapped. Nothing of that waits for what runs. The reserved pages are never readable: the CPU faults on
 * each device address.
 */
#include "tests/double/double.h"

#include <stdlib.h>
#include <sys/mman.h>

struct range {
	TAILQ_ENTRY(range) link;
	zd_cu_ptr at;
	size_t bytes;
};

static TAILQ_HEAD(, range) ranges = TAILQ_HEAD_INITIALIZER(ranges);
static TAILQ_HEAD(, double_mapping) mappings = TAILQ_HEAD_INITIALIZER(mappings);

int double_count_ranges(void)
{
	struct range *range;
	int count = 0;

	TAILQ_FOREACH (range, &ranges, link)
		count++;
	return count;
}

int double_count_mappings(void)
{
	struct double_mapping *mapping;
	int count = 0;

	TAILQ_FOREACH (mapping, &mappings, link)
		count++;
	return count;
}

/* ---- Looking up ---------------------------------------------------------------------------------------- */

static struct range *range_at(zd_cu_ptr at, size_t bytes)
{
	struct range *range;

	TAILQ_FOREACH (range, &ranges, link)
		if (at >= range->at && at - range->at < range->bytes &&
		    bytes <= range->bytes - (at - range->at))
			return range;
	return NULL;
}

bool double_is_reserved(zd_cu_ptr at)
{
	return range_at(at, 1) != NULL;
}

struct double_mapping *double_mapping_at(zd_cu_ptr at)
{
	struct double_mapping *mapping;

	TAILQ_FOREACH (mapping, &mappings, link)
		if (at >= mapping->at && at - mapping->at < mapping->memory->bytes)
			return mapping;
	return NULL;
}

bool double_is_mapped(zd_cu_ptr at, size_t bytes)
{
	zd_cu_ptr to = at + bytes;

	while (at < to) {
		const struct double_mapping *mapping = double_mapping_at(at);

		if (!mapping)
			return false;
		at = mapping->at + mapping->memory->bytes;
	}
	return bytes > 0;
}

/* Is the range one or more mappings, from the first one's begin to the last one's end? */
static bool is_whole(zd_cu_ptr at, size_t bytes)
{
	const struct double_mapping *first = double_mapping_at(at), *last = double_mapping_at(at + bytes - 1);

	return double_is_mapped(at, bytes) && first->at == at && last->at + last->memory->bytes == at + bytes;
}

/* ---- Use ----------------------------------------------------------------------------------------------- */

void double_mapping_use(struct double_mapping *mapping)
{
	mapping->users++;
}

static void free_mapping(struct double_mapping *mapping)
{
	double_memory_unref(mapping->memory);
	free(mapping);
}

bool double_mapping_unuse(struct double_mapping *mapping, int device)
{
	bool was_there = !mapping->unmapped, had_access = mapping->access & 1u << device;

	if (--mapping->users == 0 && !was_there)
		free_mapping(mapping);
	return was_there && had_access;
}

/* ---- Ranges -------------------------------------------------------------------------------------------- */

/* Address space, aligned; 0 if there is none. */
static zd_cu_ptr reserve(size_t bytes, size_t alignment, zd_cu_ptr hint)
{
	size_t more = bytes + alignment;
	unsigned char *at, *first;

	at = mmap(double_pointer(hint), more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return 0;
	first = at + (-(uintptr_t)at & (alignment - 1));
	if (first > at)
		(void)munmap(at, (size_t)(first - at));
	(void)munmap(first + bytes, more - bytes - (size_t)(first - at));
	return (zd_cu_ptr)(uintptr_t)first;
}

int cuMemAddressReserve(zd_cu_ptr *at, size_t bytes, size_t alignment, zd_cu_ptr hint,
                        unsigned long long flags)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct range *made;

	if (result)
		return result;
	if (bytes == 0 || bytes % DOUBLE_GRANULARITY || (alignment & (alignment - 1)) || flags)
		return double_leave(ZD_CU_INVALID_VALUE);
	made = calloc(1, sizeof(*made));
	if (!made)
		return double_leave(ZD_CU_OUT_OF_MEMORY);
	made->bytes = bytes;
	made->at = reserve(bytes, alignment > DOUBLE_GRANULARITY ? alignment : DOUBLE_GRANULARITY, hint);
	if (!made->at) {
		free(made);
		return double_leave(ZD_CU_OUT_OF_MEMORY);
	}
	TAILQ_INSERT_TAIL(&ranges, made, link);
	*at = made->at;
	return double_leave(ZD_CU_SUCCESS);
}

static bool has_mapping(const struct range *range)
{
	struct double_mapping *mapping;

	TAILQ_FOREACH (mapping, &mappings, link)
		if (mapping->at >= range->at && mapping->at - range->at < range->bytes)
			return true;
	return false;
}

int cuMemAddressFree(zd_cu_ptr at, size_t bytes)
{
	int after = 0, result = double_enter_giving_back(__func__, DOUBLE_NEEDS_INIT, &after);
	struct range *range;

	if (result)
		return result;
	range = range_at(at, bytes);
	if (!range || range->at != at || range->bytes != bytes || has_mapping(range))
		return double_leave(ZD_CU_INVALID_VALUE);
	TAILQ_REMOVE(&ranges, range, link);
	(void)munmap(double_pointer(at), bytes);
	free(range);
	return double_leave(after);
}

/* ---- Mappings ------------------------------------------------------------------------------------------ */

static bool overlaps(zd_cu_ptr at, size_t bytes)
{
	struct double_mapping *mapping;

	TAILQ_FOREACH (mapping, &mappings, link)
		if (at < mapping->at + mapping->memory->bytes && mapping->at < at + bytes)
			return true;
	return false;
}

static int map(zd_cu_ptr at, struct double_memory *memory)
{
	struct double_mapping *made = calloc(1, sizeof(*made));

	if (!made)
		return ZD_CU_OUT_OF_MEMORY;
	made->at = at;
	made->memory = memory;
	double_memory_ref(memory);
	TAILQ_INSERT_TAIL(&mappings, made, link);
	return ZD_CU_SUCCESS;
}

int cuMemMap(zd_cu_ptr at, size_t bytes, size_t offset, zd_cu_memory memory, unsigned long long flags)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct double_memory *found;

	if (result)
		return result;
	found = double_memory_find(memory);
	if (!found || flags || at % DOUBLE_GRANULARITY || !range_at(at, bytes) || overlaps(at, bytes))
		return double_leave(ZD_CU_INVALID_VALUE);
	if (offset || bytes != found->bytes)
		return double_leave(ZD_CU_NOT_SUPPORTED);
	return double_leave(map(at, found));
}

/* Waits for nobody: what runs on it ends its context. */
int cuMemUnmap(zd_cu_ptr at, size_t bytes)
{
	int after = 0, result = double_enter_giving_back(__func__, DOUBLE_NEEDS_INIT, &after);
	struct double_mapping *mapping;

	if (result)
		return result;
	if (bytes == 0 || !is_whole(at, bytes))
		return double_leave(ZD_CU_INVALID_VALUE);
	for (zd_cu_ptr next = at; next < at + bytes;) {
		mapping = double_mapping_at(next);
		next += mapping->memory->bytes;
		TAILQ_REMOVE(&mappings, mapping, link);
		mapping->unmapped = true;
		if (mapping->users == 0)
			free_mapping(mapping);
	}
	return double_leave(after);
}

static int check_access(zd_cu_ptr at, size_t bytes, const struct zd_cu_access *access)
{
	if (access->location.type != ZD_CU_LOCATION_DEVICE ||
	    (access->flags != ZD_CU_ACCESS_NONE && access->flags != ZD_CU_ACCESS_READ &&
	     access->flags != ZD_CU_ACCESS_READWRITE))
		return ZD_CU_INVALID_VALUE;
	if (!double_is_device(access->location.id))
		return ZD_CU_INVALID_DEVICE;
	for (zd_cu_ptr next = at; next < at + bytes;) {
		const struct double_mapping *mapping = double_mapping_at(next);

		if (access->flags && !double_is_peer(access->location.id, mapping->memory->device))
			return ZD_CU_INVALID_DEVICE;
		next += mapping->memory->bytes;
	}
	return ZD_CU_SUCCESS;
}

static void set_access(zd_cu_ptr at, size_t bytes, const struct zd_cu_access *access)
{
	uint32_t bit = 1u << access->location.id;

	for (zd_cu_ptr next = at; next < at + bytes;) {
		struct double_mapping *mapping = double_mapping_at(next);

		mapping->access = access->flags ? mapping->access | bit : mapping->access & ~bit;
		mapping->writable = access->flags == ZD_CU_ACCESS_READWRITE ? mapping->writable | bit
		                                                            : mapping->writable & ~bit;
		next += mapping->memory->bytes;
	}
}

int cuMemSetAccess(zd_cu_ptr at, size_t bytes, const struct zd_cu_access *access, size_t count)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);

	if (result)
		return result;
	if (bytes == 0 || count == 0 || !is_whole(at, bytes))
		return double_leave(ZD_CU_INVALID_VALUE);
	for (size_t i = 0; i < count && !result; i++)
		result = check_access(at, bytes, &access[i]);
	for (size_t i = 0; i < count && !result; i++)
		set_access(at, bytes, &access[i]);
	return double_leave(result);
}

int cuMemGetAccess(unsigned long long *flags, const struct zd_cu_location *location, zd_cu_ptr at)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	const struct double_mapping *mapping;

	if (result)
		return result;
	mapping = double_mapping_at(at);
	if (!mapping || location->type != ZD_CU_LOCATION_DEVICE)
		return double_leave(ZD_CU_INVALID_VALUE);
	if (!double_is_device(location->id))
		return double_leave(ZD_CU_INVALID_DEVICE);
	*flags = mapping->writable & 1u << location->id ? ZD_CU_ACCESS_READWRITE
	         : mapping->access & 1u << location->id ? ZD_CU_ACCESS_READ
	                                                : ZD_CU_ACCESS_NONE;
	return double_leave(ZD_CU_SUCCESS);
}
