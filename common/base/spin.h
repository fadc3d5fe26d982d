/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spin.h - how long a thread may poll before it sleeps.
 *
 * Polling without sleeping saves what a wake-up costs, and burns a core. So a thread spins for a moment after
 * its last event, and in the long run for a share of the time only: what it has not used it saves up, to a
 * bound, for a burst. Time in which something happened is not counted. What it knows to be on its way it
 * spins for in any case, and owes that share for it. Where there are few processors to share, nobody spins,
 * unless $ZEROD_SPIN says otherwise: "auto", "always" or "never". There is no clock here: the caller says
 * what time it is.
 */
#ifndef ZD_BASE_SPIN_H
#define ZD_BASE_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#define ZD_SPIN_PERCENT  8
#define ZD_SPIN_BURST_NS INT64_C(100000000)
#define ZD_SPIN_DEBT_NS  INT64_C(20000000)
#define ZD_SPIN_AWAIT_NS 100000u /* for what is on its way */

struct zd_spin {
	uint64_t window_ns; /* after an event; 0: never */
	int64_t left_ns;    /* saved up, for one burst at most; below zero: owed, to ZD_SPIN_DEBT_NS */
	uint64_t event_ns, expected_ns, seen_ns; /* expected_ns: when what is on its way should be there */
	bool spinning;
};

struct zd_err;

/* INVALID when $ZEROD_SPIN is set to anything else; the others below take that for "auto". */
int zd_spin_check(struct zd_err *err) __attribute__((warn_unused_result));
/* "always": also where what is waited for mostly takes long. */
bool zd_spin_always(void);

/* Never spins when the process may keep fewer processors busy than `processors` (processors.h), but for what
 * $ZEROD_SPIN says. */
void zd_spin_init(struct zd_spin *spin, uint64_t window_ns, unsigned processors);
/* Something happened. */
static inline void zd_spin_event(struct zd_spin *spin, uint64_t now_ns)
{
	spin->event_ns = now_ns;
}
/* Something is on its way, and should be there by then. */
static inline void zd_spin_expect(struct zd_spin *spin, uint64_t until_ns)
{
	if (until_ns > spin->expected_ns)
		spin->expected_ns = until_ns;
}
/* May the thread poll again at once? Asked whenever it has nothing to do; `now_ns` never goes back. */
bool zd_spin_may(struct zd_spin *spin, uint64_t now_ns);

#endif
