/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.h - a block allocator over an address range whose memory it never accesses.
 *
 * Two-level segregated fit: allocation and release are constant time, neighbours coalesce at once. Only a
 * request that would fail otherwise searches all free blocks of about its size. Bookkeeping is out of band,
 * since the range is device memory. Not thread-safe; one range belongs to one engine.
 */
#ifndef ZD_CORE_MEMORY_BLOCK_H
#define ZD_CORE_MEMORY_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#define ZD_BLOCK_MIN_ALIGN 256u
#define ZD_BLOCK_MAX_ALIGN (2u << 20)

struct zd_block_range;

/* The object that has a block: the type of `owner`. */
enum zd_block_owner {
	ZD_BLOCK_NOBODY,     /* it was allocated just now */
	ZD_BLOCK_PART,       /* struct zd_part: shard, and shadow */
	ZD_BLOCK_BUFFER,     /* struct zd_buffer: gathered buffer without a slot */
	ZD_BLOCK_SLOT,       /* struct zd_slot */
	ZD_BLOCK_STORAGE,    /* struct zd_storage */
	ZD_BLOCK_ALLOCATION, /* struct zd_allocation */
	ZD_BLOCK_LANDING,    /* struct zd_landing */
	ZD_BLOCK_SAVE,       /* struct zd_save */
};

/* A block in use, or (for block.c and listings only) a free one. At most 64 bytes: there is one for every
 * shard. */
struct zd_block {
	uint64_t offset;                 /* in the range; a multiple of the requested alignment */
	uint64_t bytes;                  /* at least the requested bytes, a multiple of ZD_BLOCK_MIN_ALIGN */
	struct zd_block *before, *after; /* neighbours by address */
	union {
		struct {
			struct zd_block *bin_prev, *bin_next; /* while free */
		};
		const void *owner; /* while in use; for listings */
	};
	bool free;
	uint8_t owner_type; /* enum zd_block_owner */
	/* for events, while in use: enum zd_event_word, and the id of the unit, group or allocation */
	uint8_t purpose;
	uint32_t given; /* the lowest bits of the event's number that gave it to its owner */
	uint64_t object;
};

/* Makes a range of `bytes` bytes (a multiple of ZD_BLOCK_MIN_ALIGN, at most 2^50). Never NULL. */
struct zd_block_range *zd_block_range_new(uint64_t bytes);
/* Frees the range and all its blocks; NULL is allowed. */
void zd_block_range_free(struct zd_block_range *range);

/* Allocates a block. `bytes` >= 1 is rounded up to ZD_BLOCK_MIN_ALIGN; `align` is a power of two,
 * ZD_BLOCK_MIN_ALIGN .. ZD_BLOCK_MAX_ALIGN. NULL only if no free block holds that many bytes at that
 * alignment. */
struct zd_block *zd_block_alloc(struct zd_block_range *range, uint64_t bytes, uint64_t align);
/* Takes the free bytes at `offset`. `after`: the block that was taken last, if this one lies behind it; else
 * NULL. Returns NULL if these bytes are not all free, are beyond the range, or are no multiples of
 * ZD_BLOCK_MIN_ALIGN. */
struct zd_block *zd_block_take(struct zd_block_range *range, struct zd_block *after, uint64_t offset,
                               uint64_t bytes);
/* Frees a block that is in use in this range. */
void zd_block_free(struct zd_block_range *range, struct zd_block *block);

/* Returns the size of the range's own tables, which does not depend on its blocks. */
uint64_t zd_block_range_metadata_bytes(const struct zd_block_range *range);
uint64_t zd_block_range_bytes(const struct zd_block_range *range);
/* Returns the first block that begins at or behind `offset`, free or in use; NULL: none. Visits the blocks of
 * 1 MiB at most, in ranges of up to 64 GiB. */
const struct zd_block *zd_block_behind(const struct zd_block_range *range, uint64_t offset);
uint64_t zd_block_used_bytes(const struct zd_block_range *range);
/* Returns the size of the largest free block, in time linear in one bin. */
uint64_t zd_block_largest_free(const struct zd_block_range *range);

/* Checks that blocks tile the range, that no two free blocks are neighbours, and that bins and sums agree
 * with the blocks. Aborts (zd_assert) otherwise. For tests. */
void zd_block_range_check(const struct zd_block_range *range);
/* Calls fn for every block by ascending address, free ones too. */
void zd_block_range_walk(const struct zd_block_range *range, void (*fn)(const struct zd_block *, void *),
                         void *arg);

#endif
