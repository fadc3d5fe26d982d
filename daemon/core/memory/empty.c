/* SPDX-License-Identifier: Apache-2.0 */
/*
 * empty.c - the empty segments of a device, in the order in which they retire (empty.h).
 *
 * Invariant, checked by zd_engine_check(): a segment is in both trees, by the key of its present mappings and
 * size, and in both sums, if and only if it is empty.
 */
#include "core/memory/empty.h"

/* The first bits of a size and their number. A user chooses sizes: with few bits, no choice makes a tree much
 * deeper than another one. */
#define FRACTION_BITS 5u

/* 11 bits that grow with the size. */
static uint64_t size_class(uint64_t bytes)
{
	uint64_t exponent = 63 - (uint64_t)__builtin_clzll(bytes), fraction;
	if (exponent >= FRACTION_BITS)
		fraction = bytes >> (exponent - FRACTION_BITS);
	else
		fraction = bytes << (FRACTION_BITS - exponent);
	return exponent << FRACTION_BITS | (fraction & ((1u << FRACTION_BITS) - 1));
}

/* The position in the trees. Never 0. */
static uint64_t key_of(const struct zd_segment *segment)
{
	uint64_t mapped = !TAILQ_EMPTY(&segment->mappings);
	uint64_t smaller = (64u << FRACTION_BITS) - size_class(segment->bytes);
	return mapped << 63 | smaller << 32 | segment->id;
}

static bool is_mapped(const struct zd_segment *segment)
{
	return segment->by_device.id >> 63;
}

static struct zd_segment *of_device(struct zd_id_node *node)
{
	return node ? ZD_CONTAINER_OF(node, struct zd_segment, by_device) : NULL;
}

static struct zd_segment *first_of_job(const struct zd_job *job, const struct zd_device *device)
{
	struct zd_id_node *node = job->pools ? zd_id_tree_after(&job->pools[device->index].empty, 0) : NULL;
	return node ? ZD_CONTAINER_OF(node, struct zd_segment, by_job) : NULL;
}

static void take_out(struct zd_segment *segment)
{
	uint32_t device = segment->device->index;
	zd_id_tree_remove(&segment->device->empty, &segment->by_device);
	zd_id_tree_remove(&segment->job->pools[device].empty, &segment->by_job);
	segment->device->empty_bytes -= segment->bytes;
	segment->job->owner->queues[device].empty_bytes -= segment->bytes;
	segment->by_device.id = 0;
}

static void put_in(struct zd_segment *segment, uint64_t key)
{
	uint32_t device = segment->device->index;
	zd_id_tree_insert(&segment->device->empty, &segment->by_device, key);
	zd_id_tree_insert(&segment->job->pools[device].empty, &segment->by_job, key);
	segment->device->empty_bytes += segment->bytes;
	segment->job->owner->queues[device].empty_bytes += segment->bytes;
}

void zd_empty_note(struct zd_segment *segment)
{
	struct zd_owner *owner = segment->job->owner;
	uint64_t used = zd_block_used_bytes(segment->range);
	bool empty = segment->state == ZD_SEGMENT_READY && used == 0 && segment->nwaiting == 0;
	uint64_t key = empty ? key_of(segment) : 0;
	owner->block_bytes = owner->block_bytes - segment->block_bytes + used;
	segment->block_bytes = used;
	if (segment->by_device.id == key)
		return;
	if (segment->by_device.id)
		take_out(segment);
	if (key)
		put_in(segment, key);
}

void zd_empty_await(struct zd_engine *e, uint32_t id, int more)
{
	struct zd_segment *segment;
	HASH_FIND(hh, e->segments, &id, sizeof(id), segment);
	if (!segment)
		return;
	zd_assert(more > 0 || segment->nwaiting > 0);
	segment->nwaiting += (uint32_t)more;
	zd_empty_note(segment);
}

uint64_t zd_empty_bytes(const struct zd_device *device, const struct zd_owner *owner)
{
	return owner ? owner->queues[device->index].empty_bytes : device->empty_bytes;
}

struct zd_segment *zd_empty_first(const struct zd_device *device)
{
	return of_device(zd_id_tree_after(&device->empty, 0));
}

struct zd_segment *zd_empty_next(const struct zd_segment *segment)
{
	return of_device(zd_id_tree_next(&segment->by_device));
}

static struct zd_segment *first_of_owner(const struct zd_device *device, const struct zd_owner *owner)
{
	struct zd_segment *first = NULL;
	for (const struct zd_job *job = owner->jobs; job; job = job->hh_name.next) {
		struct zd_segment *segment = first_of_job(job, device);
		if (segment && (!first || segment->by_device.id < first->by_device.id))
			first = segment;
	}
	return first;
}

struct zd_segment *zd_empty_choose(const struct zd_device *device, const struct zd_owner *owner,
                                   const struct zd_job *job)
{
	struct zd_segment *first = owner ? first_of_owner(device, owner) : zd_empty_first(device);
	struct zd_segment *own = first_of_job(job, device);
	return own && is_mapped(own) == is_mapped(first) ? own : first;
}
