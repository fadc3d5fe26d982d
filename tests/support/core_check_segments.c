/* SPDX-License-Identifier: Apache-2.0 */
/* core_check_segments.c - the sums of each uid's segments. */
#include "core/memory/allocation.h"
#include "core/memory/block.h"
#include "core/memory/pool.h"
#include "tests/support/core_check_parts.h"

/* Each uid's segments, whatever their state. */
void zd_owned_segments_check(const struct zd_engine *e)
{
	uint32_t all_kept = e->nforgotten;
	for (const struct zd_owner *owner = e->owners; owner; owner = owner->hh.next) {
		uint64_t bytes = 0, retiring_bytes = 0, empty_bytes = 0, block_bytes = 0;
		uint32_t nkept = 0;
		for (const struct zd_segment *segment = e->segments; segment; segment = segment->hh.next) {
			if (segment->job->owner != owner)
				continue;
			bytes += segment->bytes;
			nkept += segment->counted;
			retiring_bytes += segment->state >= ZD_SEGMENT_RETIRING ? segment->bytes : 0;
			empty_bytes += segment->by_device.id ? segment->bytes : 0;
			block_bytes += zd_block_used_bytes(segment->range);
		}
		zd_assert(block_bytes == owner->block_bytes);
		for (uint32_t i = 0; i < e->ndevices; i++)
			empty_bytes -= owner->queues[i].empty_bytes;
		zd_assert(empty_bytes == 0);
		zd_assert(bytes == owner->segment_bytes && retiring_bytes == owner->retiring_bytes);
		zd_assert(nkept == owner->nkept);
		all_kept += nkept;
		zd_assert(owner->account.total <= bytes);
	}
	zd_assert(all_kept == e->nkept);
}
