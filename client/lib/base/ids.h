/* SPDX-License-Identifier: Apache-2.0 */
/* ids.h - the ids that callers have of objects of the daemon. */
#ifndef ZD_CLIENT_IDS_H
#define ZD_CLIENT_IDS_H

#include <stdint.h>

#include <zerod.h>

#include "base/err.h"

/* Returns the caller's id of an object of the daemon. If the client reconnects, the number of the connection
 * replaces the bits above the kind. 0 is 0. */
uint64_t zc_id_give(const struct zerod_client *client, uint64_t id);
/* Returns the daemon's id in *id. RESTARTED if it is of a former connection. */
int zc_id_take(const struct zerod_client *client, uint64_t given, const char *what, uint64_t *id,
               struct zd_err *err) __attribute__((warn_unused_result));

#endif
