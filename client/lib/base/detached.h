/* SPDX-License-Identifier: Apache-2.0 */
/* detached.h - failures of detached requests, for the next call. */
#ifndef ZD_CLIENT_DETACHED_H
#define ZD_CLIENT_DETACHED_H

#include <zerod.h>

#include "base/err.h"

struct zc_unit;

/* Records the failure of a detached request, or of a gather that was released (`what` NULL), for the next
 * call. `unit` can be NULL for a request without a unit. With the lock. */
void zc_detached_fail(struct zerod_client *client, int status, const char *what, const struct zc_unit *unit,
                      const char *error);
/* Returns the first failure after the last report once, otherwise 0. Without the lock. */
int zc_detached_report(struct zerod_client *client, struct zd_err *err) __attribute__((warn_unused_result));

#endif
