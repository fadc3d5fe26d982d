/* SPDX-License-Identifier: Apache-2.0 */
/*
 * interrupt.h - for verbs that run until they are interrupted.
 */
#ifndef ZD_CTL_INTERRUPT_H
#define ZD_CTL_INTERRUPT_H

#include <stdbool.h>

/* From now on the first SIGINT or SIGTERM only makes zd_ctl_interrupted() true; a second one ends the
 * program. */
void zd_ctl_catch_signals(void);
bool zd_ctl_interrupted(void);
/* Waits. Returns early at a signal, and when the reader of `out` has closed the pipe; `out` < 0: none. */
void zd_ctl_wait(double seconds, int out);
/* Whether `out` is a pipe whose reader has closed it. */
bool zd_ctl_reader_is_gone(int out);

#endif
