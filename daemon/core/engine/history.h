/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.h - the ring of lifecycle events, a longer history of memory, and the names of ended objects.
 *
 * All have a fixed size. Without a size the ring is one event, which every event overwrites and no reader
 * reads. A busy job fills the ring in seconds. The longer history therefore stores the events of segments,
 * and of blocks that were in use while the whole ring was overwritten: the event `give` of such a block when
 * the ring overwrites it, and later its `free`. If a block was in use for a shorter time, neither event is
 * stored.
 */
#ifndef ZD_CORE_ENGINE_HISTORY_H
#define ZD_CORE_ENGINE_HISTORY_H

#include "core/engine/device.h"
#include "core/history.h"

/* A name is stored per this number of events, because most objects have many events. */
#define ZD_HISTORY_EVENTS_PER_NAME 64u
/* The ring has this many events per event of the longer history. */
#define ZD_HISTORY_EVENTS_PER_OLD 4u

struct zd_old_event {
	uint64_t seq;
	struct zd_event event;
};

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
	bool *moves; /* by place in the ring: the event moves to the longer history */
	/* the longer history, a ring */
	struct zd_old_event *old;
	uint64_t nold, old_count; /* its size, and the number of events ever added */
	bool on;
	uint64_t copies_until_ns; /* copies that start before this time are events */
	uint32_t nnames, next_name;
	struct zd_ended_name *names; /* a ring */
	struct zd_ended_name *by_id; /* hash */
};

/* Rounds `nevents` up to a power of two. 0: the history stores no events. */
void zd_history_init(struct zd_history *history, uint32_t nevents);
void zd_history_deinit(struct zd_history *history);
/* Stores the names of an object that ends; "": no name. For a group `group` is its own name. */
void zd_history_keep_name(struct zd_history *history, uint64_t id, const char *name, const char *group);
/* Returns NULL if the name is not stored. */
const struct zd_ended_name *zd_history_ended(const struct zd_history *history, uint64_t id);

/* Moves the event with this number, which is about to be overwritten, to the longer history. */
void zd_history_move(struct zd_history *history, uint64_t seq);
/* Returns the first stored event after `after`, and its number. `after` is less than the newest event's
 * number. */
const struct zd_event *zd_history_find(const struct zd_history *history, uint64_t after, uint64_t *seq);
/* Events with a greater number are all in the ring. */
static inline uint64_t zd_history_overwritten(const struct zd_history *history)
{
	return history->last > history->mask ? history->last - history->mask - 1 : 0;
}

/* Returns the place of the next event. The caller fills all of it. */
static inline struct zd_event *zd_history_next(struct zd_history *history)
{
	uint64_t place = ++history->last & history->mask;
	if (history->moves[place])
		zd_history_move(history, history->last - history->mask - 1);
	return &history->events[place];
}

/* Whether the newest event, or another one in the ring, will move. */
static inline void zd_history_set_moves(struct zd_history *history, uint64_t seq, bool moves)
{
	history->moves[seq & history->mask] = moves;
}

#endif
