/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core_check.h - the core's invariants, computed again from its objects.
 */
#ifndef ZD_TESTS_CORE_CHECK_H
#define ZD_TESTS_CORE_CHECK_H

struct zd_block_range;
struct zd_engine;

/*
 * Aborts (zd_assert) when an invariant does not hold: no block is owned twice; blocks + free + quarantine =
 * arena; accounted bytes and metadata = those of the objects; every waiting request has a reason; a job
 * without sessions that is not durable holds nothing; states agree with their data. Linear in the number of
 * objects.
 */
void zd_engine_check(struct zd_engine *engine);

/* Blocks tile the range, no two free blocks are neighbours, and bins and sums agree with the blocks. */
void zd_block_range_check(const struct zd_block_range *range);

/* Clears the journal, and records all durable jobs. */
void zd_engine_journal_all(struct zd_engine *engine);

#endif
