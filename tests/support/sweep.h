/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sweep.h - tests that try very many cases: every eighth of them by default, all with $ZEROD_TEST_SWEEP, as
 * `make check-sweep` sets it.
 */
#ifndef ZD_TEST_SWEEP_H
#define ZD_TEST_SWEEP_H

#include <stdlib.h>

/* Returns the distance from one case that is tried to the next one. */
static inline unsigned sweep_step(void)
{
	return getenv("ZEROD_TEST_SWEEP") ? 1 : 8;
}

#endif
