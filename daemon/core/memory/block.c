/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.c - two-level segregated fit over a range whose memory the allocator never accesses.
 *
 * Sizes are counted in granules of ZD_BLOCK_MIN_ALIGN. Free blocks are in bins: one for each size below 2^5
 * granules, then 2^5 for each power of two, so that blocks of one bin differ by less than 1/32. Two levels of
 * bitmaps find the next bin that is not empty in two instructions.
 *
 * A request is served, in this order, from
 *   1. its own bin, the tightest of the first OWN_BIN_LOOKS blocks that fit: training requests the same few
 *      sizes repeatedly, and a hole that is refilled exactly does not fragment;
 *   2. the next higher bin that has a block: every block in it fits;
 *   3. the rest of its own bin. Only a request that would fail otherwise reaches this search, and only this
 *      search is not constant-time. It finds any block that fits: a pool that is full except for one
 *      hole can refill that hole.
 * An alignment above the granule needs more than the size. The bins between are then its own as well.
 *
 * A small request is placed at the high end of the block that was found, any other at the low end. Small
 * units (norms, biases) often remain gathered for a whole run. Placed between two large units that are
 * gathered and released in turn, each of them would split a range that a large unit needs.
 *
 * Invariants: blocks tile the range in the order of `before` and `after`; no two free blocks are neighbours;
 * a block is in a bin exactly while it is free.
 *
 * A listing can start at any offset. The range is therefore divided into strides, each of which names the
 * first block that starts in it.
 */
#include "core/engine/device.h"
#include "core/memory/block.h"

#include <stddef.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

#define SUB_BITS          5u
#define MAX_RANGE_BYTES   (1ull << 50)
#define OWN_BIN_LOOKS     16u
#define HEADERS_PER_CHUNK 32u
#define LEAST_STRIDE      (1ull << 20)
#define MOST_STRIDES      (1ull << 16)

/* Small: below this share of the range, and below this size in any range. The smallest matrices of a model
 * that fills gigabytes are larger. */
#define SMALL_SHARE 1024u
#define SMALL_BYTES (1u << 20)

_Static_assert(sizeof(struct zd_block) <= 64, "there is one for every shard");
_Static_assert(ZD_BLOCK_BINS == 1u << SUB_BITS, "a second-level bitmap has 32 bits");

/* Headers are allocated in chunks and reused. Chunks live as long as the range. */
struct header_chunk {
	struct header_chunk *next;
	struct zd_block headers[HEADERS_PER_CHUNK];
};

/* ---- Headers ------------------------------------------------------------------------------------------- */

static struct zd_block *header_new(struct zd_block_range *range)
{
	if (!range->spare) {
		struct header_chunk *chunk = zd_calloc(1, sizeof(*chunk));

		chunk->next = range->chunks;
		range->chunks = chunk;
		for (unsigned i = 0; i < HEADERS_PER_CHUNK; i++) {
			chunk->headers[i].free = true;
			chunk->headers[i].bin_next = range->spare;
			range->spare = &chunk->headers[i];
		}
	}
	struct zd_block *header = range->spare;
	range->spare = header->bin_next;
	*header = (struct zd_block){0};
	return header;
}

/* A spare header remains marked free, so that zd_block_free() rejects a stale pointer to it. */
static void header_free(struct zd_block_range *range, struct zd_block *header)
{
	*header = (struct zd_block){.free = true, .bin_next = range->spare};
	range->spare = header;
}

/* ---- Bins ---------------------------------------------------------------------------------------------- */

/* Bins are numbered by ascending size: row * ZD_BLOCK_BINS + place in the row. */
static unsigned bin_of(uint64_t bytes)
{
	uint64_t granules = bytes / ZD_BLOCK_MIN_ALIGN;

	if (granules < ZD_BLOCK_BINS)
		return (unsigned)granules;
	unsigned top = 63u - (unsigned)__builtin_clzll(granules);
	return (top - SUB_BITS + 1) * ZD_BLOCK_BINS +
	       (unsigned)(granules >> (top - SUB_BITS)) % ZD_BLOCK_BINS;
}

static void bin_insert(struct zd_block_range *range, struct zd_block *block)
{
	unsigned bin = bin_of(block->bytes);
	struct zd_block **head = &range->rows[bin / ZD_BLOCK_BINS].bins[bin % ZD_BLOCK_BINS];

	block->free = true;
	block->bin_prev = NULL;
	block->bin_next = *head;
	if (*head)
		(*head)->bin_prev = block;
	*head = block;
	range->rows[bin / ZD_BLOCK_BINS].filled |= 1u << bin % ZD_BLOCK_BINS;
	range->filled_rows |= 1ull << bin / ZD_BLOCK_BINS;
}

static void bin_remove(struct zd_block_range *range, struct zd_block *block)
{
	unsigned bin = bin_of(block->bytes);
	struct zd_block_bins *row = &range->rows[bin / ZD_BLOCK_BINS];

	if (block->bin_prev)
		block->bin_prev->bin_next = block->bin_next;
	else
		row->bins[bin % ZD_BLOCK_BINS] = block->bin_next;
	if (block->bin_next)
		block->bin_next->bin_prev = block->bin_prev;
	if (!row->bins[bin % ZD_BLOCK_BINS]) {
		row->filled &= ~(1u << bin % ZD_BLOCK_BINS);
		if (!row->filled)
			range->filled_rows &= ~(1ull << bin / ZD_BLOCK_BINS);
	}
	block->free = false;
	block->bin_prev = block->bin_next = NULL;
	block->owner_type = ZD_BLOCK_NOBODY;
}

/* Returns a block of the first bin above `bin` that is not empty. NULL: all are empty. */
static struct zd_block *first_above(const struct zd_block_range *range, unsigned bin)
{
	unsigned row = bin / ZD_BLOCK_BINS, place = bin % ZD_BLOCK_BINS;
	uint32_t filled = row < range->nrows ? range->rows[row].filled & ~((2u << place) - 1) : 0;

	if (!filled) {
		uint64_t rows = row < 63 ? range->filled_rows & ~((2ull << row) - 1) : 0;

		if (!rows)
			return NULL;
		row = (unsigned)__builtin_ctzll(rows);
		filled = range->rows[row].filled;
	}
	return range->rows[row].bins[__builtin_ctz(filled)];
}

/* ---- Strides ------------------------------------------------------------------------------------------- */

static struct zd_block **stride_of(const struct zd_block_range *range, const struct zd_block *block)
{
	return &range->strides[block->offset / range->stride_bytes];
}

static void stride_add(struct zd_block_range *range, struct zd_block *block)
{
	struct zd_block **first = stride_of(range, block);

	if (!*first || (*first)->offset > block->offset)
		*first = block;
}

/* Called before the block leaves its neighbours. */
static void stride_remove(struct zd_block_range *range, const struct zd_block *block)
{
	struct zd_block **first = stride_of(range, block), *after = block->after;

	if (*first == block)
		*first = after && stride_of(range, after) == first ? after : NULL;
}

const struct zd_block *zd_block_behind(const struct zd_block_range *range, uint64_t offset)
{
	for (uint64_t i = offset / range->stride_bytes; i < range->nstrides; i++) {
		const struct zd_block *block = range->strides[i];

		for (; block && stride_of(range, block) == &range->strides[i]; block = block->after) {
			if (block->offset >= offset)
				return block;
		}
	}
	return NULL;
}

/* ---- Allocation ---------------------------------------------------------------------------------------- */

/* A request. `slack` is the maximum cost of its alignment. All are multiples of ZD_BLOCK_MIN_ALIGN. */
struct request {
	uint64_t bytes, align, slack;
};

static bool fits(const struct zd_block *block, const struct request *request)
{
	return zd_align_up(block->offset, request->align) + request->bytes <= block->offset + block->bytes;
}

/* Returns the smallest of the bin's first `tries` blocks that fit. */
static struct zd_block *tightest(const struct zd_block_range *range, unsigned bin, unsigned tries,
                                 const struct request *request)
{
	struct zd_block *found = NULL;

	if (bin / ZD_BLOCK_BINS >= range->nrows)
		return NULL;
	for (struct zd_block *block = range->rows[bin / ZD_BLOCK_BINS].bins[bin % ZD_BLOCK_BINS];
	     block && tries > 0; block = block->bin_next, tries--) {
		if ((found && found->bytes <= block->bytes) || !fits(block, request))
			continue;
		found = block;
		if (found->bytes == request->bytes)
			break;
	}
	return found;
}

static struct zd_block *find_block(const struct zd_block_range *range, const struct request *request)
{
	unsigned own = bin_of(request->bytes);
	unsigned sure = bin_of(request->bytes + request->slack); /* any block of a bin above fits */
	struct zd_block *block = tightest(range, own, OWN_BIN_LOOKS, request);

	if (!block && sure != own)
		block = tightest(range, sure, OWN_BIN_LOOKS, request);
	if (!block)
		block = first_above(range, sure);
	for (unsigned bin = own; !block && bin <= sure; bin++)
		block = tightest(range, bin, UINT32_MAX, request);
	return block;
}

/* Splits `block` after `bytes`, and returns the second part. Neither is in a bin. */
static struct zd_block *split(struct zd_block_range *range, struct zd_block *block, uint64_t bytes)
{
	struct zd_block *rest = header_new(range);

	rest->offset = block->offset + bytes;
	rest->bytes = block->bytes - bytes;
	rest->before = block;
	rest->after = block->after;
	if (rest->after)
		rest->after->before = rest;
	block->after = rest;
	block->bytes = bytes;
	stride_add(range, rest);
	return rest;
}

/* Returns the offset of the request in `block`, in which it fits. */
static uint64_t place_of(const struct zd_block_range *range, const struct zd_block *block,
                         const struct request *request)
{
	if (request->bytes < SMALL_BYTES && request->bytes < range->bytes / SMALL_SHARE)
		return (block->offset + block->bytes - request->bytes) & ~(request->align - 1);
	return zd_align_up(block->offset, request->align);
}

/* Cuts `bytes` at `gap` out of a free block that has them. */
static struct zd_block *carve(struct zd_block_range *range, struct zd_block *block, uint64_t gap,
                              uint64_t bytes)
{
	bin_remove(range, block);
	if (gap > 0) {
		struct zd_block *lead = block;

		block = split(range, lead, gap);
		bin_insert(range, lead);
	}
	if (block->bytes > bytes)
		bin_insert(range, split(range, block, bytes));
	range->used_bytes += block->bytes;
	return block;
}

struct zd_block *zd_block_alloc(struct zd_block_range *range, uint64_t bytes, uint64_t align)
{
	struct request request;

	zd_assert(bytes > 0);
	zd_assert(align >= ZD_BLOCK_MIN_ALIGN && align <= ZD_BLOCK_MAX_ALIGN && (align & (align - 1)) == 0);
	if (bytes > range->bytes)
		return NULL;
	request = (struct request){
	        .bytes = zd_align_up(bytes, ZD_BLOCK_MIN_ALIGN),
	        .align = align,
	        .slack = align - ZD_BLOCK_MIN_ALIGN,
	};
	struct zd_block *block = find_block(range, &request);
	if (!block)
		return NULL;
	return carve(range, block, place_of(range, block, &request) - block->offset, request.bytes);
}

struct zd_block *zd_block_take(struct zd_block_range *range, struct zd_block *after, uint64_t offset,
                               uint64_t bytes)
{
	struct zd_block *block = after ? after->after : range->first;

	if (bytes == 0 || (offset | bytes) % ZD_BLOCK_MIN_ALIGN != 0 || bytes > range->bytes)
		return NULL;
	while (block && block->offset + block->bytes <= offset)
		block = block->after;
	if (!block || !block->free || block->offset > offset || block->offset + block->bytes - offset < bytes)
		return NULL;
	return carve(range, block, offset - block->offset, bytes);
}

/* Merges the neighbour after `block` into it. `block` is in no bin. */
static void absorb_after(struct zd_block_range *range, struct zd_block *block)
{
	struct zd_block *gone = block->after;

	stride_remove(range, gone);
	block->bytes += gone->bytes;
	block->after = gone->after;
	if (block->after)
		block->after->before = block;
	header_free(range, gone);
}

void zd_block_free(struct zd_block_range *range, struct zd_block *block)
{
	zd_assert(!block->free);
	range->used_bytes -= block->bytes;
	if (block->after && block->after->free) {
		bin_remove(range, block->after);
		absorb_after(range, block);
	}
	if (block->before && block->before->free) {
		block = block->before;
		bin_remove(range, block);
		absorb_after(range, block);
	}
	bin_insert(range, block);
}

/* ---- Ranges -------------------------------------------------------------------------------------------- */

struct zd_block_range *zd_block_range_new(uint64_t bytes)
{
	struct zd_block_range *range;
	uint64_t stride_bytes, nstrides;

	zd_assert(bytes > 0 && bytes <= MAX_RANGE_BYTES && bytes % ZD_BLOCK_MIN_ALIGN == 0);
	unsigned nrows = bin_of(bytes) / ZD_BLOCK_BINS + 1;
	stride_bytes = zd_max_u64(LEAST_STRIDE, (bytes + MOST_STRIDES - 1) / MOST_STRIDES);
	nstrides = (bytes + stride_bytes - 1) / stride_bytes;
	range = zd_calloc(1, sizeof(*range) + nrows * sizeof(range->rows[0]));
	range->bytes = bytes;
	range->nrows = nrows;
	range->stride_bytes = stride_bytes;
	range->nstrides = nstrides;
	range->strides = zd_calloc(nstrides, sizeof(void *));
	range->first = header_new(range);
	range->first->bytes = bytes;
	stride_add(range, range->first);
	bin_insert(range, range->first);
	return range;
}

uint64_t zd_block_range_metadata_bytes(const struct zd_block_range *range)
{
	return sizeof(*range) + range->nrows * sizeof(range->rows[0]) + range->nstrides * sizeof(void *) +
	       sizeof(struct header_chunk);
}

void zd_block_range_free(struct zd_block_range *range)
{
	if (!range)
		return;
	while (range->chunks) {
		struct header_chunk *next = range->chunks->next;

		free(range->chunks);
		range->chunks = next;
	}
	free(range->strides);
	free(range);
}

uint64_t zd_block_used_bytes(const struct zd_block_range *range)
{
	return range->used_bytes;
}

uint64_t zd_block_largest_free(const struct zd_block_range *range)
{
	uint64_t largest = 0;

	if (!range->filled_rows)
		return 0;
	const struct zd_block_bins *row = &range->rows[63u - (unsigned)__builtin_clzll(range->filled_rows)];
	for (const struct zd_block *block = row->bins[31u - (unsigned)__builtin_clz(row->filled)]; block;
	     block = block->bin_next)
		largest = zd_max_u64(largest, block->bytes);
	return largest;
}
