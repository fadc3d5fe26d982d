/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rounds.h - the rounds of a test in which two threads race.
 *
 * Where each thread has a processor, a round takes microseconds. Where other programs keep the processors
 * busy, a thread that yields gets its processor back after milliseconds, and a round takes several of these
 * waits. So a time bounds the number of rounds as well. Nothing is asserted about the time.
 */
#ifndef ZD_TEST_ROUNDS_H
#define ZD_TEST_ROUNDS_H

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define ROUNDS_NS         UINT64_C(2000000000)
#define ROUNDS_OVER       UINT_MAX /* in place of a round's number: there is no further round */
#define ROUNDS_LOOKS_EACH 200u     /* at what the other thread does, before a thread yields */

struct rounds {
	unsigned most, begun; /* begun: the number of the current round; the first one is 1 */
	uint64_t until_ns;
};

static inline uint64_t rounds_now_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline struct rounds rounds_of(unsigned most)
{
	return (struct rounds){.most = most, .until_ns = rounds_now_ns() + ROUNDS_NS};
}

/* Begins the next round; false: there is none. There is at least one. */
static inline bool rounds_next(struct rounds *rounds)
{
	if (rounds->begun == rounds->most || (rounds->begun > 0 && rounds_now_ns() >= rounds->until_ns))
		return false;
	rounds->begun++;
	return true;
}

/* Pins the calling thread and the other one to a processor each, if there are two. Else the scheduler leaves
 * threads that wake each other on one processor, where nothing races. `allowed` is for rounds_unpin(). */
static inline void rounds_pin(pthread_t other, cpu_set_t *allowed)
{
	cpu_set_t first, last;
	int cpu = 0;

	(void)pthread_getaffinity_np(pthread_self(), sizeof(*allowed), allowed);
	last = *allowed;
	CPU_ZERO(&first);
	for (; CPU_COUNT(&last) > 1; cpu++) {
		if (CPU_COUNT(&first) == 0 && CPU_ISSET(cpu, &last))
			CPU_SET(cpu, &first);
		CPU_CLR(cpu, &last);
	}
	if (CPU_COUNT(&first) == 0)
		return;
	(void)pthread_setaffinity_np(pthread_self(), sizeof(first), &first);
	(void)pthread_setaffinity_np(other, sizeof(last), &last);
}

static inline void rounds_unpin(const cpu_set_t *allowed)
{
	(void)pthread_setaffinity_np(pthread_self(), sizeof(*allowed), allowed);
}

/* Lets some time pass, about a nanosecond a step: a test varies them, so that in some rounds both threads
 * do at once what races. */
static inline void rounds_dally(unsigned steps)
{
	for (volatile unsigned n = steps; n > 0; n--)
		continue;
}

/* Between two looks. `looks`: how many there were, 0 at first. */
static inline void rounds_look_again(unsigned *looks)
{
	if (++*looks % ROUNDS_LOOKS_EACH == 0)
		(void)sched_yield();
}

/* Waits until the other thread has stored the round's number, or a later one; false: the rounds are over. */
static inline bool rounds_await(atomic_uint *stored, unsigned round)
{
	unsigned looks = 0, seen;

	while ((seen = atomic_load_explicit(stored, memory_order_acquire)) < round)
		rounds_look_again(&looks);
	return seen != ROUNDS_OVER;
}

#endif
