/* SPDX-License-Identifier: Apache-2.0 */
/* offloaded_sum.h - the thread that makes the sums that the daemon requests, and its channel. */
#ifndef ZD_CLIENT_OFFLOADED_SUM_H
#define ZD_CLIENT_OFFLOADED_SUM_H

#include <stdint.h>

#include <zerod.h>

#include "base/err.h"

/* Maps the session's rings; takes the descriptor over. */
int zc_rings_take(struct zerod_client *client, int fd, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Maps the page; takes both descriptors over. */
int zc_worker_take(struct zerod_client *client, int sock, int page_fd, struct zd_err *err)
        __attribute__((warn_unused_result));
/* With cuda_lock. Starts the thread, once, if the daemon may request sums. */
int zc_worker_start(struct zerod_client *client, struct zd_err *err) __attribute__((warn_unused_result));
/* The daemon will soon request a sum because of this process's call: wakes the worker thread, so that it is
 * awake when the request arrives. */
void zc_worker_expect(const struct zerod_client *client);
/* Stops the thread: it begins no further sums. */
void zc_worker_stop(struct zerod_client *client);
/* At the client's end, also in a forked child. */
void zc_worker_deinit(struct zerod_client *client);

#endif
