/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spin.h - decides how long a thread polls before it sleeps.
 *
 * Polling without sleeping (spinning) avoids the cost of a wake-up, but occupies a core. A thread
 * therefore spins for a moment after its last event, and in the long run only for ZD_SPIN_PERCENT of the
 * time. Unused time is saved, up to ZD_SPIN_BURST_NS, for a burst. Time in which events occurred does not
 * count. A thread always spins for an announced event. Time beyond its savings is a debt of at most
 * ZD_SPIN_DEBT_NS. With few processors no thread spins. The caller passes the time. $ZEROD_SPIN changes these
 * rules:
 *   auto    as above
 *   always  as above, also with few processors
 *   busy    a thread spins for ZD_SPIN_BUSY_NS after the last event, regardless of its share of the time
 *   never   no thread spins
 */
#ifndef ZD_BASE_SPIN_H
#define ZD_BASE_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#define ZD_SPIN_PERCENT  8
#define ZD_SPIN_BURST_NS INT64_C(100000000)
#define ZD_SPIN_DEBT_NS  INT64_C(20000000)
#define ZD_SPIN_AWAIT_NS 100000u   /* for an announced event */
#define ZD_SPIN_BUSY_NS  10000000u /* longer than the pauses between the gathers of a training step */

struct zd_spin {
	uint64_t window_ns; /* after an event; 0: never spins */
	int64_t left_ns;    /* saved, for at most one burst; below zero: owed, up to ZD_SPIN_DEBT_NS */
	uint64_t event_ns, expected_ns, seen_ns; /* expected_ns: the time of the announced event */
	bool spinning;
	bool busy; /* spins without regard to `left_ns` */
};

struct zd_err;

/* Checks $ZEROD_SPIN. Returns INVALID for any other value, which the functions below treat as "auto". */
int zd_spin_check(struct zd_err *err) __attribute__((warn_unused_result));
/* Whether $ZEROD_SPIN is "always" or "busy". Threads then also spin for events that usually take long. */
bool zd_spin_always(void);

/* Initialises the state. The thread never spins if the process can keep fewer processors busy than
 * `processors` (processors.h), unless $ZEROD_SPIN is "always" or "busy". */
void zd_spin_init(struct zd_spin *spin, uint64_t window_ns, unsigned processors);
/* Records an event. */
static inline void zd_spin_event(struct zd_spin *spin, uint64_t now_ns)
{
	spin->event_ns = now_ns;
}
/* Announces an event, which should happen by then. */
static inline void zd_spin_expect(struct zd_spin *spin, uint64_t until_ns)
{
	if (until_ns > spin->expected_ns)
		spin->expected_ns = until_ns;
}
/* Returns whether the thread may poll again at once. Called whenever the thread has no work. `now_ns` never
 * decreases. */
bool zd_spin_may(struct zd_spin *spin, uint64_t now_ns);

#endif
