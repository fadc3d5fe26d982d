/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.h - the history: lifecycle events, which the core stores in a ring of fixed size.
 *
 * The core stores the newest events, and events of long-lived memory for longer. It reports to readers how
 * many were overwritten. An event has ids of objects. A reader receives their names, also of ended objects,
 * as long as the names are stored.
 */
#ifndef ZD_CORE_HISTORY_H
#define ZD_CORE_HISTORY_H

#include <stdint.h>

enum zd_event_kind {
#define EVENT(KIND, name, reason) ZD_EVENT_##KIND,
#include "core/history.def"
	ZD_NEVENTS
};

enum zd_event_word {
#define WORD(NAME, text) ZD_WORD_##NAME,
#include "core/history.def"
	ZD_NWORDS
};

#define ZD_MAX_EVENTS      (1u << 24) /* stored events */
#define ZD_EVENT_COPIES_NS 2000000000ull
#define ZD_EVENT_EVERYBODY UINT32_MAX /* the uid of an event that all sessions may read */

/* The place of an event in the ring gives its sequence number. */
struct zd_event {
	uint64_t time_ns;
	uint64_t job, session; /* 0: none */
	/* the unit, group or allocation. wait_*, and an update or publish of several units: the group */
	uint64_t object;
	uint64_t bytes;
	/* the start time (gather, copy, reduction, lease, *_end), a block's offset in its segment, the number
	 * of units (update, publish), the step (commit) */
	uint64_t value;
	uint32_t uid;  /* its sessions and administrators' may read the event */
	uint32_t rank; /* in the world */
	/* the segment (block_*, segment_*), the transfer, cut to 32 bits (gather, lease), the process
	 * (session_*), the number of jobs (daemon_restore); enum zd_request_kind (wait_*, refuse) */
	uint32_t number;
	uint8_t kind, reason;
	/* the index plus 1; 0: none. The executor of `device` makes a copy into memory of `peer` */
	uint8_t device, peer;
};

_Static_assert(sizeof(struct zd_event) == 64, "the ring has a cache line for each");

#endif
