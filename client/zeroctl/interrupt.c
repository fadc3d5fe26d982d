// SPDX-License-Identifier: Apache-2.0
/*
 * interrupt.c - signals and waits of verbs that run until they are interrupted.
 */
#include "interrupt.h"

#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <time.h>

static volatile sig_atomic_t stopped;

static void stop(int number)
{
	(void)number;
	stopped = 1;
}

void zd_ctl_catch_signals(void)
{
	struct sigaction action = {.sa_handler = stop, .sa_flags = SA_RESETHAND};
	sigemptyset(&action.sa_mask);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
}

bool zd_ctl_interrupted(void)
{
	return stopped;
}

/* Only ppoll() unblocks signals, so that none arrives between the check and the wait. */
void zd_ctl_wait(double seconds, int out)
{
	struct timespec interval = {.tv_sec = (time_t)seconds};
	struct pollfd pipe = {.fd = out}; /* reports errors only */
	sigset_t blocked, before;
	interval.tv_nsec = (long)((seconds - (double)interval.tv_sec) * 1e9);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGINT);
	sigaddset(&blocked, SIGTERM);
	sigprocmask(SIG_BLOCK, &blocked, &before);
	if (!stopped)
		ppoll(&pipe, 1, &interval, &before);
	sigprocmask(SIG_SETMASK, &before, NULL);
}

bool zd_ctl_reader_is_gone(int out)
{
	struct pollfd pipe = {.fd = out};
	return poll(&pipe, 1, 0) == 1 && (pipe.revents & POLLERR);
}
