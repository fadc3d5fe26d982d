/* SPDX-License-Identifier: Apache-2.0 */
/* connect.h - the connection's beginning, for the first daemon and for the next ones. */
#ifndef ZD_CLIENT_CONNECT_H
#define ZD_CLIENT_CONNECT_H

#include "client/lib/base/client.h"

/* Connects to the daemon's socket. While the daemon's queue is full, retries until the deadline. */
int zc_socket_open(struct zerod_client *client, const char *path, uint64_t deadline_ns, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Exchanges the hellos. */
int zc_greet(struct zerod_client *client, const char *name) __attribute__((warn_unused_result));

#endif
