/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fork.c - detects whether a child of the process that created a client uses it.
 *
 * A forked child shares its parent's socket and has none of its threads. The library detects a child by a
 * generation that pthread_atfork increments in the child, which is cheaper than getpid(). In the child it
 * uses neither the socket nor a lock.
 */
#include "client/lib/base/enter.h"

atomic_uint zc_fork_generation;

static void count_fork(void)
{
	zc_fork_generation++;
}

static void watch_forks(void)
{
	(void)pthread_atfork(NULL, NULL, count_fork);
}

unsigned zc_fork_watch(void)
{
	static pthread_once_t forks_watched = PTHREAD_ONCE_INIT;

	(void)pthread_once(&forks_watched, watch_forks);
	return zc_fork_generation;
}
