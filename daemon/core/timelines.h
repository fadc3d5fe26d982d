/* SPDX-License-Identifier: Apache-2.0 */
/* timelines.h - the timelines of a session's daemon page, and sets of them. */
#ifndef ZD_CORE_TIMELINES_H
#define ZD_CORE_TIMELINES_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/limits.h"

/* Timelines of a session's daemon page: which device's work of a kind has gone how far for it. */
enum {
	ZD_TIMELINE_COPIES = 0,
	ZD_TIMELINE_EXCHANGE = ZD_MAX_DEVICES,
	ZD_TIMELINE_ONWARD = 2 * ZD_MAX_DEVICES, /* copies of what an exchange has brought */
	ZD_TIMELINE_STAGED =
	        ZD_AWAITED_TIMELINES, /* pieces of reductions, into the session's staging memory */
	ZD_SESSION_TIMELINES = 4 * ZD_MAX_DEVICES
};

static inline bool zd_timeline_exchanges(uint32_t timeline)
{
	return timeline >= ZD_TIMELINE_EXCHANGE && timeline < ZD_TIMELINE_ONWARD;
}

_Static_assert(ZD_SESSION_TIMELINES <= ZD_TIMELINES, "a page has them all");

/* A set of them. */
struct zd_timelines {
	uint64_t mask[ZD_SESSION_TIMELINES / 64];
};

static inline void zd_timelines_add(struct zd_timelines *set, uint32_t timeline)
{
	set->mask[timeline / 64] |= 1ull << timeline % 64;
}

static inline bool zd_timelines_has(const struct zd_timelines *set, uint32_t timeline)
{
	return set->mask[timeline / 64] >> timeline % 64 & 1;
}

#endif
