/* SPDX-License-Identifier: Apache-2.0 */
/* offloaded_sum.h - the thread that computes the sums that the daemon requests, and its channel. */
#ifndef ZD_CLIENT_OFFLOADED_SUM_H
#define ZD_CLIENT_OFFLOADED_SUM_H

#include <stdint.h>

#include <zerod.h>

#include "base/err.h"

/* Starts the thread, once, if the daemon may request sums. With cuda_lock. */
int zc_worker_start(struct zerod_client *client, struct zd_err *err) __attribute__((warn_unused_result));
/* Wakes the worker thread, because the daemon will soon request a sum as a result of this process's call. */
void zc_worker_expect(const struct zerod_client *client);
/* Stops the thread, which starts no further sums. */
void zc_worker_stop(struct zerod_client *client);
/* Frees the worker's resources at the client's end, also in a forked child. */
void zc_worker_deinit(struct zerod_client *client);

#endif
