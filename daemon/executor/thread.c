/* SPDX-License-Identifier: Apache-2.0 */
/* thread.c - threads of a backend, and their sleep. */
#include "executor/thread.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"

#define NAME_BYTES     16     /* the kernel's limit, including the terminating zero */
#define TIMER_SLACK_NS 1000ul /* the kernel's default of 50 us would more than double a short sleep */
#define SECOND_NS      1000000000l
#define MOST_THREADS   8u /* for the parts of a range */

/* A new thread inherits the timer slack of its creator. The creator's slack is therefore changed for a
 * moment. */
static int start(pthread_t *thread, void *(*run)(void *arg), void *arg)
{
	long before = prctl(PR_GET_TIMERSLACK, 0ul, 0ul, 0ul, 0ul);
	(void)prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0ul, 0ul, 0ul);
	int error = pthread_create(thread, NULL, run, arg);
	if (before > 0)
		(void)prctl(PR_SET_TIMERSLACK, (unsigned long)before, 0ul, 0ul, 0ul);
	return error;
}

/* All signals are blocked in the thread, because the loop handles them. With SIGXFSZ blocked, a segment
 * beyond RLIMIT_FSIZE fails with an error. */
int zd_thread_start(pthread_t *thread, const char *name, void *(*run)(void *arg), void *arg,
                    struct zd_err *err)
{
	char cut[NAME_BYTES];
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = start(thread, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		return zd_err_errno(err, error, "the thread %s", name);
	(void)snprintf(cut, sizeof(cut), "%s", name);
	(void)pthread_setname_np(*thread, cut);
	return 0;
}

struct parts {
	atomic_uint_fast64_t next;
	uint64_t bytes, part_bytes;
	void (*fn)(void *arg, uint64_t from, uint64_t bytes);
	void *arg;
};

static void *take_parts(void *arg)
{
	struct parts *parts = arg;
	uint64_t from;
	while ((from = atomic_fetch_add(&parts->next, parts->part_bytes)) < parts->bytes)
		parts->fn(parts->arg, from, zd_min_u64(parts->part_bytes, parts->bytes - from));
	return NULL;
}

void zd_run_in_parts(uint64_t bytes, uint64_t part_bytes,
                     void (*fn)(void *arg, uint64_t from, uint64_t bytes), void *arg)
{
	struct parts parts = {.bytes = bytes, .part_bytes = part_bytes, .fn = fn, .arg = arg};
	pthread_t threads[MOST_THREADS - 1];
	unsigned started = 0;
	uint64_t most = zd_min_u64(MOST_THREADS, bytes / part_bytes + (bytes % part_bytes != 0));
	if (most > 1) { /* the answer takes some microseconds */
		long processors = sysconf(_SC_NPROCESSORS_ONLN);
		most = zd_min_u64(most, processors > 1 ? (uint64_t)processors : 1);
	}
	while (started + 1 < most) {
		struct zd_err ignored;
		if (zd_thread_start(&threads[started], "zd-parts", take_parts, &parts, &ignored) != 0)
			break;
		started++;
	}
	(void)take_parts(&parts);
	while (started > 0)
		(void)pthread_join(threads[--started], NULL);
}

uint64_t zd_thread_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

void zd_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t monotonic;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &monotonic);
	pthread_condattr_destroy(&monotonic);
}

void zd_cond_sleep(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t ns)
{
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += (time_t)(ns / SECOND_NS);
	until.tv_nsec += (long)(ns % SECOND_NS);
	if (until.tv_nsec >= SECOND_NS) {
		until.tv_nsec -= SECOND_NS;
		until.tv_sec++;
	}
	(void)pthread_cond_timedwait(cond, lock, &until);
}
