/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.h - a block allocator for an address range. It never accesses the memory of the range.
 *
 * The algorithm is two-level segregated fit: allocation and release take constant time, and neighbours
 * coalesce at once. Only a request that would otherwise fail searches all free blocks of about its size. The
 * bookkeeping is outside the range, because the range is device memory. Not thread-safe: one range belongs to
 * one engine.
 */
#ifndef ZD_CORE_MEMORY_BLOCK_H
#define ZD_CORE_MEMORY_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#define ZD_BLOCK_MIN_ALIGN 256u
#define ZD_BLOCK_MAX_ALIGN (2u << 20)

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
	ZD_BLOCK_HOST_COPY,  /* struct zd_copied_unit */
};

/* A block in use, or (only for block.c and listings) a free one. At most 64 bytes, because every shard has
 * one. */
struct zd_block {
	uint64_t offset;                 /* in the range; a multiple of the requested alignment */
	uint64_t bytes;                  /* at least the requested bytes, a multiple of ZD_BLOCK_MIN_ALIGN */
	struct zd_block *before, *after; /* neighbours by address */
	union {
		struct {
			struct zd_block *bin_prev, *bin_next; /* while free */
		};
		const void *owner; /* set while in use; for listings */
	};
	bool free;
	uint8_t owner_type; /* enum zd_block_owner */
	/* for events, while in use: enum zd_event_word, and the id of the unit, group or allocation */
	uint8_t purpose;
	uint32_t given; /* the lowest bits of the number of the event that assigned it to its owner */
	uint64_t object;
};

#define ZD_BLOCK_BINS 32u

/* The bins of a row: see block.c. */
struct zd_block_bins {
	uint32_t filled; /* bit i: bins[i] is not empty */
	struct zd_block *bins[ZD_BLOCK_BINS];
};

struct zd_block_range {
	uint64_t bytes, used_bytes;
	struct zd_block *first; /* by address */
	struct zd_block *spare; /* unused headers, linked by bin_next */
	struct header_chunk *chunks;
	uint64_t filled_rows; /* bit i: rows[i].filled != 0 */
	unsigned nrows;       /* as many as a block of the whole range needs */
	uint64_t stride_bytes, nstrides;
	struct zd_block **strides; /* the first block that begins in each; NULL: none does */
	struct zd_block_bins rows[];
};

/* Makes a range of `bytes` bytes (a multiple of ZD_BLOCK_MIN_ALIGN, at most 2^50). Never NULL. */
struct zd_block_range *zd_block_range_new(uint64_t bytes);
/* Frees the range and all its blocks; NULL is allowed. */
void zd_block_range_free(struct zd_block_range *range);

/* Allocates a block. `bytes` >= 1 is rounded up to ZD_BLOCK_MIN_ALIGN. `align` is a power of two,
 * ZD_BLOCK_MIN_ALIGN .. ZD_BLOCK_MAX_ALIGN. Returns NULL only if no free block has room for the bytes at that
 * alignment. */
struct zd_block *zd_block_alloc(struct zd_block_range *range, uint64_t bytes, uint64_t align);
/* Allocates the free bytes at `offset`. `after` is the block of the last call if it lies before this one,
 * otherwise NULL. Returns NULL if these bytes are not all free, are beyond the range, or are not multiples of
 * ZD_BLOCK_MIN_ALIGN. */
struct zd_block *zd_block_take(struct zd_block_range *range, struct zd_block *after, uint64_t offset,
                               uint64_t bytes);
/* Frees a block that is in use in this range. */
void zd_block_free(struct zd_block_range *range, struct zd_block *block);

/* Returns the size of the range's own tables, which does not depend on its blocks. */
uint64_t zd_block_range_metadata_bytes(const struct zd_block_range *range);
/* Returns the first block, free or in use, that starts at or after `offset`, or NULL. Visits the blocks of at
 * most 1 MiB, in ranges of up to 64 GiB. */
const struct zd_block *zd_block_behind(const struct zd_block_range *range, uint64_t offset);
uint64_t zd_block_used_bytes(const struct zd_block_range *range);
/* Returns the size of the largest free block, in time linear in one bin. */
uint64_t zd_block_largest_free(const struct zd_block_range *range);

#endif
