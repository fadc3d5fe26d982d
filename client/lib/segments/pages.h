/* SPDX-License-Identifier: Apache-2.0 */
/* pages.h - pages and rings that the daemon shares with the client. */
#ifndef ZD_CLIENT_PAGES_H
#define ZD_CLIENT_PAGES_H

#include "base/err.h"
#include "client/lib/base/client.h"

/* Checks that the daemon has sealed the file against shrinking, and that it has `min_bytes`. `what` is its
 * name in texts. PROTOCOL otherwise. */
int zc_pages_check(int fd, uint64_t min_bytes, const char *what, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Maps the fence pages. Takes ownership of both descriptors. */
int zc_pages_map(struct zerod_client *client, int client_fd, int daemon_fd, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Maps the session's rings. Takes ownership of the descriptor. */
int zc_pages_take_rings(struct zerod_client *client, int fd, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Maps the result page. Takes ownership of both descriptors. */
int zc_pages_take_work(struct zerod_client *client, int sock, int page_fd, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
