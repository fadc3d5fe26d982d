// SPDX-License-Identifier: Apache-2.0
/*
 * stats.c - order statistics of samples.
 */
#include "bench.h"

#include <stdlib.h>

#include "base/mem.h"

static int compare(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
	return (a > b) - (a < b);
}

void zd_stats_of(uint64_t *samples, size_t count, struct zd_stats *stats)
{
	zd_assert(count > 0);
	qsort(samples, count, sizeof(*samples), compare);
	*stats = (struct zd_stats){
	        .min = samples[0],
	        .p50 = samples[(count - 1) / 2],
	        .p99 = samples[(count * 99 + 99) / 100 - 1], /* the nearest rank, rounded up */
	        .max = samples[count - 1],
	};
}

void zd_stats_of_rounds(const struct zd_interval *spans, size_t width, size_t rounds, struct zd_stats *stats)
{
	uint64_t *samples = zd_calloc(rounds, sizeof(*samples));
	for (size_t round = 0; round < rounds; round++) {
		const struct zd_interval *span = spans + round * width;
		uint64_t start = span[0].start_ns, end = span[0].end_ns;
		for (size_t i = 1; i < width; i++) {
			start = zd_min_u64(start, span[i].start_ns);
			end = zd_max_u64(end, span[i].end_ns);
		}
		samples[round] = end - start;
	}
	zd_stats_of(samples, rounds, stats);
	free(samples);
}
