/* SPDX-License-Identifier: Apache-2.0 */
/* thread.h - threads of a backend, and their sleep with a time limit. */
#ifndef ZD_EXECUTOR_THREAD_H
#define ZD_EXECUTOR_THREAD_H

#include <pthread.h>
#include <stdint.h>

struct zd_err;

/* Starts a thread with all signals blocked, whose sleeps end within a microsecond of their time. `name` is
 * cut to 15 bytes. Errors: SYSTEM. */
int zd_thread_start(pthread_t *thread, const char *name, void *(*run)(void *arg), void *arg,
                    struct zd_err *err) __attribute__((warn_unused_result));

/* Initialises a condition for zd_cond_sleep(). */
void zd_cond_init(pthread_cond_t *cond);
/* Waits until the condition is signalled, the time has passed, or a spurious wake-up. The caller holds the
 * lock. */
void zd_cond_sleep(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t ns);

/* Calls fn() for all parts of a range of `bytes` bytes, each of `part_bytes` (the last can be smaller), and
 * returns when all calls have returned. Up to eight threads make the calls, in any order: the caller's
 * thread, and further threads that can be started and have a processor. */
void zd_run_in_parts(uint64_t bytes, uint64_t part_bytes,
                     void (*fn)(void *arg, uint64_t from, uint64_t bytes), void *arg);

/* Returns the time of the monotonic clock. */
uint64_t zd_thread_now_ns(void);

/* Delays a busy-polling thread for some cycles. Called between two polls. */
static inline void zd_spin_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

#endif
