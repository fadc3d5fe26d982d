/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.h - the ring of lifecycle events, and the names of objects that have ended.
 *
 * Both have a fixed size. Without a size the ring is one event, which is overwritten by each other one and
 * never read, so that adding has no branch.
 */
#ifndef ZD_CORE_ENGINE_HISTORY_H
#define ZD_CORE_ENGINE_HISTORY_H

#include "core/engine/device.h"
#include "core/history.h"

/* A name is kept for each so many events: most objects outlive many. */
#define ZD_HISTORY_EVENTS_PER_NAME 64u

/* The names of an object that has ended. */
struct zd_ended_name {
	uint64_t id; /* 0: none yet */
	char name[ZD_MAX_UNIT_NAME_BYTES + 1];
	char group[ZD_MAX_NAME_BYTES + 1]; /* of a unit, and of a group itself */
	UT_hash_handle hh;
};

struct zd_history {
	uint64_t last; /* the newest event's number */
	uint64_t mask; /* the number of events, a power of two, minus 1 */
	struct zd_event *events;
	bool on;
	uint64_t copies_until_ns; /* copies that begin before are events */
	uint32_t nnames, next_name;
	struct zd_ended_name *names; /* a ring */
	struct zd_ended_name *by_id; /* hash */
};

/* `nevents` is rounded up to a power of two; 0: nothing is kept. */
void zd_history_init(struct zd_history *history, uint32_t nevents);
void zd_history_deinit(struct zd_history *history);
/* Keeps the names of an object that ends, "": none. Of a group its own name is `group`. */
void zd_history_keep_name(struct zd_history *history, uint64_t id, const char *name, const char *group);
/* NULL: not kept. */
const struct zd_ended_name *zd_history_ended(const struct zd_history *history, uint64_t id);

/* Returns the place of the next event. The caller fills all of it. */
static inline struct zd_event *zd_history_next(struct zd_history *history)
{
	return &history->events[++history->last & history->mask];
}

#endif
