/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.h - counts and measurements of the core, for operators.
 *
 * All figures are sums for the node. They never refer to a uid, a job or a session.
 */
#ifndef ZD_CORE_METRICS_H
#define ZD_CORE_METRICS_H

#include <stdint.h>

#include <zerod.h>

#include "core/args.h"

enum zd_counter {
#define COUNTER(NAME, value) ZD_COUNT_##NAME,
#include "core/counters.def"
	ZD_NCOUNTERS
};

#define ZD_HISTOGRAM_FIRST_NS 10000u /* the bound of the first bucket; each bound is 4 times the one before */
#define ZD_HISTOGRAM_BOUNDS   11u    /* the last one is 10.48576 s */

/* A histogram of durations. counts[i] counts durations above bound i - 1 up to bound i. The last count has
 * the durations above all bounds. */
struct zd_histogram {
	uint64_t counts[ZD_HISTOGRAM_BOUNDS + 1];
	uint64_t sum_ns;
};

static inline uint64_t zd_histogram_bound_ns(uint32_t i)
{
	return (uint64_t)ZD_HISTOGRAM_FIRST_NS << (2 * i);
}

static inline void zd_histogram_observe(struct zd_histogram *histogram, uint64_t ns)
{
	uint64_t firsts = ns ? (ns - 1) / ZD_HISTOGRAM_FIRST_NS : 0; /* whole first buckets below it */
	uint32_t bits = firsts ? 64 - (uint32_t)__builtin_clzll(firsts) : 0, i = (bits + 1) / 2;
	histogram->counts[i < ZD_HISTOGRAM_BOUNDS ? i : ZD_HISTOGRAM_BOUNDS]++;
	histogram->sum_ns += ns;
}

#define ZD_NERRORS ((unsigned)-ZEROD_E_FORKED + 1) /* by -status; FORKED is the last */

struct zd_metrics {
	uint64_t counters[ZD_NCOUNTERS];
	uint64_t requests[ZD_NREQUESTS];
	uint64_t errors[ZD_NERRORS]; /* replies */
	/* from the request to the end of the transfer that it started, if that has not failed */
	struct zd_histogram gathers;
};

/* The core's metrics, and its waits by reason. */
struct zd_metrics_view {
	const struct zd_metrics *metrics;
	uint32_t nwaits;
	const struct zd_histogram *waits;
	const char *const *wait_names; /* NULL if `waits` has none */
};

#endif
