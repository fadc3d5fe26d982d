/* SPDX-License-Identifier: Apache-2.0 */
/* pause.h - between two looks at what others are to do, who may need the processor that this thread has. */
#ifndef ZD_TEST_PAUSE_H
#define ZD_TEST_PAUSE_H

#include <sched.h>
#include <time.h>

#define PAUSE_YIELDS 100u
#define PAUSE_NAP_NS 50000

/* At first it is left to them, then for longer. `turns`: pauses since something was seen, 0 at first. */
static inline void pause_for_others(unsigned *turns)
{
	if (++*turns < PAUSE_YIELDS)
		(void)sched_yield();
	else
		(void)nanosleep(&(const struct timespec){.tv_nsec = PAUSE_NAP_NS}, NULL);
}

#endif
