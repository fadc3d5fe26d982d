/* SPDX-License-Identifier: Apache-2.0 */
/*
 * former.h - the sessions that this process has closed, and whose daemon may have ended before it saw that.
 *
 * A daemon that restores durable jobs retains the memory of these sessions until their process has ended, or
 * reports that it does not use the memory any more. The next hello at the same socket reports it.
 */
#ifndef ZD_CLIENT_FORMER_H
#define ZD_CLIENT_FORMER_H

#include <stddef.h>
#include <stdint.h>

#define ZC_MAX_FORMER 64u /* the last ones; the daemon retains the memory of others until the process ends */

/* Thread-safe. `daemon` distinguishes the sockets of daemons. */
void zc_former_add(uint64_t daemon, uint64_t session);
/* Returns how many sessions of that daemon it has written. */
size_t zc_former_list(uint64_t daemon, uint64_t sessions[ZC_MAX_FORMER]);

#endif
