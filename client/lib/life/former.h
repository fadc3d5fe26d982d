/* SPDX-License-Identifier: Apache-2.0 */
/*
 * former.h - the sessions that this process has closed, whose daemon may have ended before it saw that.
 *
 * A daemon that restores durable jobs keeps the memory of such a session until its process has ended, or says
 * that nothing uses the memory any more. The next hello at the same socket says so.
 */
#ifndef ZD_CLIENT_FORMER_H
#define ZD_CLIENT_FORMER_H

#include <stddef.h>
#include <stdint.h>

#define ZC_MAX_FORMER 64u /* the last ones; the memory of others is kept until the process ends */

/* Thread-safe. `daemon`: tells the sockets of daemons apart. */
void zc_former_add(uint64_t daemon, uint64_t session);
/* Returns how many sessions of that daemon it has written. */
size_t zc_former_list(uint64_t daemon, uint64_t sessions[ZC_MAX_FORMER]);

#endif
