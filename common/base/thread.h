/* SPDX-License-Identifier: Apache-2.0 */
/* thread.h - threads of the library inside of an application. */
#ifndef ZD_BASE_THREAD_H
#define ZD_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* As pthread_create(), with all signals blocked in the thread: they are for the application's threads. */
static inline int zd_thread_create(pthread_t *thread, void *(*run)(void *arg), void *arg)
{
	sigset_t all, before;
	int error;

	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(thread, NULL, run, arg);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

#endif
