/* SPDX-License-Identifier: Apache-2.0 */
/* gather.h - tags of gathers, and waits for their tickets. */
#ifndef ZD_CLIENT_GATHER_H
#define ZD_CLIENT_GATHER_H

#include <zerod.h>

#include "base/err.h"

/* Returns the holder's name in *tag, or the default name if `given` is NULL. Errors: INVALID. */
int zc_tag_choose(const char *given, const char **tag, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Returns the tag for messages, which omit the default tag. */
char *zc_tag_wire(const char *tag);
/* Implements zerod_wait_many() for a client that has been entered. */
int zc_wait_many(struct zerod_client *client, const zerod_ticket *tickets, uint32_t count,
                 zerod_stream *stream, void **data, struct zd_err *err) __attribute__((warn_unused_result));
/* Waits for all tickets, which are of releases, and consumes them. Returns the first failure. */
int zc_releases_await(struct zerod_client *client, const zerod_ticket *tickets, uint32_t count,
                      uint64_t deadline_ns, struct zd_err *err) __attribute__((warn_unused_result));

#endif
