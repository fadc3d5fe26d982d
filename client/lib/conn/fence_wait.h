/* SPDX-License-Identifier: Apache-2.0 */
/* fence_wait.h - waits for fences on the daemon's page. */
#ifndef ZD_CLIENT_FENCE_WAIT_H
#define ZD_CLIENT_FENCE_WAIT_H

#include "client/lib/base/fence.h"

/* Blocks the calling thread, without the lock, until all fences have passed. Returns 0, ABORTED (the session
 * is POISONED then), DEADLINE, or the status with which the connection broke. `what` names the wait's reason
 * in texts. */
int zc_fences_wait(struct zerod_client *client, const struct zc_fences *fences, uint64_t deadline_ns,
                   const char *what, struct zd_err *err) __attribute__((warn_unused_result));
/* Blocks after a reset until the daemon has undone its aborts, or has ended. */
void zc_aborts_settle(struct zerod_client *client);

#endif
