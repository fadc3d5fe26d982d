/* SPDX-License-Identifier: Apache-2.0 */
/* timelines.h - the timelines of a session's daemon page, and sets of them. */
#ifndef ZD_CORE_ENGINE_TIMELINES_H
#define ZD_CORE_ENGINE_TIMELINES_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/limits.h"

/* Timelines of a session's daemon page. Each counts the work of one kind on one device. */
enum {
	ZD_TIMELINE_COPIES = 0,
	ZD_TIMELINE_EXCHANGE = ZD_MAX_DEVICES,
	ZD_TIMELINE_RELAYS = 2 * ZD_MAX_DEVICES, /* plan_rail_gathers.c */
	/* Deferred copies have their own timelines, because copies with younger fences can start before
	 * them. */
	ZD_TIMELINE_DEFERRED = 3 * ZD_MAX_DEVICES,
	ZD_TIMELINE_PROMISES = 4 * ZD_MAX_DEVICES, /* a block of ZD_MAX_DEVICES for each promise kind */
	/* Pieces of reductions, into the session's staging memory. */
	ZD_TIMELINE_STAGED = ZD_AWAITED_TIMELINES,
	ZD_SESSION_TIMELINES = 8 * ZD_MAX_DEVICES
};

static inline bool zd_timeline_is_of_exchanges(uint32_t timeline)
{
	return timeline >= ZD_TIMELINE_EXCHANGE && timeline < ZD_TIMELINE_RELAYS;
}

_Static_assert(ZD_SESSION_TIMELINES <= ZD_TIMELINES, "a page has them all");
_Static_assert(ZD_TIMELINE_STAGED == ZD_TIMELINE_PROMISES + 3 * ZD_MAX_DEVICES, "a block for each kind");

/* A set of timelines. */
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
