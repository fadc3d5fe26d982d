/* SPDX-License-Identifier: Apache-2.0 */
/* core_check_block.c - invariants of a range of blocks. */
#include "base/err.h"
#include "core/memory/block.h"
#include "tests/support/core_check.h"

/* Bins are numbered by ascending size: one for each size below ZD_BLOCK_BINS granules, then so many for each
 * power of two. */
static unsigned bin_of(uint64_t bytes)
{
	uint64_t granules = bytes / ZD_BLOCK_MIN_ALIGN;
	unsigned row = 0;

	for (; granules >= 2ull * ZD_BLOCK_BINS; granules /= 2)
		row++;
	return row * ZD_BLOCK_BINS + (unsigned)granules;
}

static struct zd_block **stride_of(const struct zd_block_range *range, const struct zd_block *block)
{
	return &range->strides[block->offset / range->stride_bytes];
}

static uint64_t check_bin(const struct zd_block *first, unsigned bin)
{
	const struct zd_block *prev = NULL;
	uint64_t count = 0;

	for (const struct zd_block *block = first; block; block = block->bin_next) {
		zd_assert(block->free && block->bin_prev == prev);
		zd_assert(bin_of(block->bytes) == bin);
		prev = block;
		count++;
	}
	return count;
}

/* Returns the number of free blocks in all bins. The simulator calls this after every step, and nearly all
 * bins are empty: an empty bin costs no branch. */
static uint64_t check_bins(const struct zd_block_range *range)
{
	uint64_t count = 0;

	for (unsigned row = 0; row < range->nrows; row++) {
		const struct zd_block_bins *bins = &range->rows[row];
		uint32_t filled = 0;

		for (unsigned place = 0; place < ZD_BLOCK_BINS; place++)
			filled |= (uint32_t)(bins->bins[place] != NULL) << place;
		zd_assert(bins->filled == filled);
		zd_assert(((range->filled_rows >> row & 1) != 0) == (filled != 0));
		for (; filled; filled &= filled - 1)
			count += check_bin(bins->bins[__builtin_ctz(filled)],
			                   row * ZD_BLOCK_BINS + (unsigned)__builtin_ctz(filled));
	}
	zd_assert(range->filled_rows >> range->nrows == 0);
	return count;
}

void zd_block_range_check(const struct zd_block_range *range)
{
	const struct zd_block *before = NULL;
	uint64_t offset = 0, used_bytes = 0, nfree = 0, nfirst = 0;

	for (const struct zd_block *block = range->first; block; block = block->after) {
		zd_assert(block->offset == offset && block->before == before);
		zd_assert(block->bytes > 0 && block->bytes % ZD_BLOCK_MIN_ALIGN == 0);
		zd_assert(!(block->free && before && before->free));
		if (!before || stride_of(range, before) != stride_of(range, block)) {
			zd_assert(*stride_of(range, block) == block);
			nfirst++;
		}
		if (block->free)
			nfree++;
		else
			used_bytes += block->bytes;
		offset += block->bytes;
		before = block;
	}
	zd_assert(offset == range->bytes && used_bytes == range->used_bytes);
	zd_assert(check_bins(range) == nfree);
	for (uint64_t i = 0; i < range->nstrides; i++)
		nfirst -= range->strides[i] != NULL;
	zd_assert(nfirst == 0);
}
